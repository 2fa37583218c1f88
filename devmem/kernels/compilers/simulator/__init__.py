"""The simulator: kernels run in Python, thread by thread, on the host backend, and their mistakes are reported.

``compiler`` implements the plugin interface; ``kernel_check`` and ``instructions`` refuse code that no compiler takes. ``launch``
distributes the blocks of a grid over a few host threads; ``block_runner`` runs the work-items of a block as greenlets.
``kernel_arrays`` are the arrays that kernels see, ``numbers`` their elements, ``atomics`` the atomic operations.
``device_code`` gives functions the globals that they have on a device, ``declared_types`` converts to the types of signatures. If
the user asks for it, ``shared_memory`` detects races there and ``lost_updates`` in device memory. ``reports`` formats the errors.

Where the user allows it, ``compiled_blocks`` runs kernels that `simulator_fast` compiles by numba; ``plain_source`` writes them
without devmem's names.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....spi.kernel import KernelCompiler
from .compiler import Simulator


def devmem_kernel_compilers() -> Sequence[KernelCompiler]:
    """Return the simulator."""
    return [Simulator()]
