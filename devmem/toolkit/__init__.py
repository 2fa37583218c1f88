"""Parts that backends are built of, and that the other layers use too. Third-party backends may import them.

`deferred_errors` keeps errors to be raised later, `host_functions` says which threads must not call a driver, and `toolchain`
compiles C. The package imports `devmem.spi` and the standard library only.
"""
