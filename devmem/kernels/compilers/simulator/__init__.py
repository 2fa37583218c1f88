"""The simulator: kernels run in Python, thread by thread, on the host backend, and their mistakes are reported.

``compiler`` is what the hook finds. ``launch`` runs the blocks of a grid over a few threads of the host, ``group`` the work-items
of one block, which are greenlets; ``memory`` and ``watched`` have the arrays that they see, over those of ``plain``, ``numbers``
their elements and ``atomics`` what is done to one with nobody in between; ``races`` and ``updates`` remember their accesses where
somebody asked for it, and ``reports`` says what went wrong where.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....spi.kernel import KernelCompiler
from .compiler import Simulator


def devmem_kernel_compilers() -> Sequence[KernelCompiler]:
    """Return the simulator."""
    return [Simulator()]
