"""Allocators of other libraries as memory resources of devmem, and devmem's memory stack as their allocator.

One module for each library, which imports the library at first use:

=============  =====================================  ====================================================
module         the library's memory for devmem        devmem's memory for the library
=============  =====================================  ====================================================
``rmm``        `RMMMemory`                            ``callback_resource()``
``cupy``       `CuPyMemory`                           ``allocator()``
``torch``      `TorchMemory`                          ``pluggable_allocator()``
``cuda_core``  `CudaCoreMemory`                       ``memory_resource()``
``numba``      `EMMMemory` (module ``emm``)           ``NUMBA_CUDA_MEMORY_MANAGER=devmem.adapters.numba``
=============  =====================================  ====================================================

For other libraries: derive from `ForeignResource` for the left column, use `lend` or `LentBlocks` for the right one.
"""

from __future__ import annotations

from .foreign_resource import ForeignResource
from .lent_blocks import LentBlocks, lend

__all__ = ["ForeignResource", "LentBlocks", "lend"]
