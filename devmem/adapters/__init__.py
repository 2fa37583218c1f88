"""Other people's allocators as memory resources of devmem, and devmem's memory stack as theirs.

One module for each library, which imports that library only when it is asked for something:

=============  =====================================  ====================================================
module         theirs as ours                         ours as theirs
=============  =====================================  ====================================================
``rmm``        `RMMMemory`                            ``callback_resource()``
``cupy``       `CuPyMemory`                           ``allocator()``
``torch``      `TorchMemory`                          ``pluggable_allocator()``
``cuda_core``  `CudaCoreMemory`                       ``memory_resource()``
``numba``      `EMMMemory` (module ``emm``)           ``NUMBA_CUDA_MEMORY_MANAGER=devmem.adapters.numba``
=============  =====================================  ====================================================

For a library that is not in the table: `devmem.adapters.held.Held` is the base of the left column, `lend` the whole of the right.
"""

from __future__ import annotations

from .held import Held
from .loans import Loans, lend

__all__ = ["Held", "Loans", "lend"]
