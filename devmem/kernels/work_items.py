"""The work-item that runs on this thread, for kernels that run in Python.

A compiler never runs the functions of `names`: it recognises the objects and puts the vendor's code in their place. Called in
Python they look up the running work-item, in one place::

    this_thread.item  # a `WorkItem`; None on the host

A runner of kernels (the simulator) sets ``this_thread.item`` before it runs a work-item on a thread, again at each switch to
another work-item, and to None at the end. With none set, a name calls the functions in `finders` once, which find numba's own
simulator, and then raises `UnsupportedError`: it belongs in a kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..spi.errors import UnsupportedError


class Dim3(NamedTuple):
    """Indices or lengths along the three axes of a grid or a block."""

    x: int
    y: int
    z: int


class WorkItem(Protocol):
    """One thread of a block, as a runner of kernels in Python presents it to the names in a kernel."""

    thread: Dim3  #: its indices in its block
    block: Dim3  #: its block's indices in the grid
    block_dim: Dim3
    grid_dim: Dim3
    work_dim: int  #: how many dimensions the launch's grid was given with
    lane: int  #: its index in its warp or wavefront
    wave_size: int
    debug: bool  #: the kernel has ``debug=True``: a division by zero raises

    def barrier(self, scope: int) -> None:
        """Wait for all work-items of the block."""

    def wave_barrier(self) -> None:
        """Wait for all work-items of the warp or wavefront."""

    def grid_barrier(self) -> None:
        """Wait for all work-items of the grid."""

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a function that numba.cuda has and devmem has no name for; KeyError if the runner has none of that name."""

    def fence(self, scope: int) -> None:
        """Make its earlier writes visible to other threads before its later ones."""

    def shared_array(self, shape: Any, dtype: Any) -> Any:
        """The block's array for this place in the kernel; shape 0: the dynamic shared memory of the launch, as any dtype."""

    def local_array(self, shape: Any, dtype: Any) -> Any:
        """An array of this work-item alone."""

    def const_array(self, ary: Any) -> Any:
        """A host array as a constant."""

    def atomic(self, operation: str, ary: Any, index: Any, *operands: Any) -> Any:
        """An operation of `devmem.atomic` by its name, with one operand, or two for ``cas`` (expected, new); the old value."""


class ThisThread(threading.local):
    """The work-item that a thread runs."""

    item: WorkItem | None = None


this_thread = ThisThread()
#: Called where no work-item is set, for runners of kernels that do not know `this_thread`.
finders: list[Callable[[], WorkItem | None]] = []


def running_item() -> WorkItem | None:
    """The work-item that runs on this thread; None on the host."""
    item = this_thread.item
    if item is None:
        for find in finders:
            item = find()
            if item is not None:
                break
    return item


def require_item(name: str) -> WorkItem:
    """The work-item that runs on this thread; on the host, an error that says where the name belongs."""
    item = this_thread.item or running_item()
    if item is None:
        raise UnsupportedError(
            f"devmem.{name} belongs in a kernel: it means something in a function under @devmem.kernel that is launched, "
            f"kernel[grid, block](...), and nothing on the host"
        )
    return item
