"""The device side: the names that kernels use, and launching them. devmem compiles nothing itself (see `compilers`)."""
