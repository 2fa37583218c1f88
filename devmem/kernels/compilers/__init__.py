"""What compiles kernels: one package for each compiler, with the hook ``devmem_kernel_compilers`` (see `devmem.spi.kernel`).

They are named in `devmem.plugins.BUILT_IN_COMPILERS`. What they compile with is imported when they are asked for something.
"""
