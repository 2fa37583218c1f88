"""Parts that backends are built of, and that other layers use too. Third-party backends may import them.

A driver is put together of parts (`driver_parts`); several come from here: `streams`, `memory`, `module_loader`. Beneath them
are a vendor's functions as checked calls (`vendor_functions`, `ctypes_functions`), live handles (`handles`), tables of address
ranges (`ranges`), and finding the vendor's library (`libraries`).
`deferred_errors` keeps errors to be raised later, `host_functions` says which threads must not call a driver, `host_limits` how
much memory the host has, and `toolchain` compiles C. The package imports `devmem.spi` and the standard library only.
"""
