"""Kernels of the simulator, compiled for the host by numba: ``DEVMEM_SIM=fast``.

``compiler`` compiles a kernel with the loops over its blocks and threads. ``operations`` are what numba's compiler for the host
computes otherwise than a device, or not at all. ``typed_code`` looks at the types that numba has found, and refuses what is not
known to give the simulator's results. `simulator.compiled_blocks` runs what is compiled.
"""
