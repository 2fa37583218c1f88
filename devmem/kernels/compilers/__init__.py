"""Kernel compilers: one package for each, with the hook ``devmem_kernel_compilers`` (see `devmem.spi.kernel`).

They are listed in `devmem.plugins.BUILT_IN_COMPILERS`, and import the library that they compile with at first use.
"""
