"""devmem's stack as Numba's memory manager: ``NUMBA_CUDA_MEMORY_MANAGER=devmem.adapters.numba``, or ``use()``.

It implements the External Memory Management plugin interface, version 1: device memory, and pinned and mapped host memory.
Registration (``pinned``, ``mapped``) and managed memory stay with Numba, which the interface leaves them to. The interface has no
streams, so memory is allocated for all streams of the device, and freed once all work then on the device is done.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..api.memory import memory_info
from ..api.streams import defer_cleanup
from ..spi.errors import UnsupportedError
from ..spi.types import AllocFlags, MemoryKind
from .foreign_resource import import_library
from .lent_blocks import LentBlocks

if TYPE_CHECKING:
    from .._core.lifetime.allocation import Allocation

INSTALL = "numba-cuda"


def use() -> None:
    """Make devmem Numba's memory manager, before Numba has opened any device.

    Raises
    ------
    BackendUnavailable
        numba-cuda is not installed.
    """
    import_library("numba.cuda", INSTALL, "devmem.adapters.numba").set_memory_manager(manager())


@cache
def manager() -> Any:
    """The class that ``numba.cuda.set_memory_manager`` takes."""
    cuda = import_library("numba.cuda", INSTALL, "devmem.adapters.numba")
    driver = import_library("numba.cuda.cudadrv.driver", INSTALL, "devmem.adapters.numba")
    return make_manager(cuda.HostOnlyCUDAMemoryManager, driver, "cuda", ctypes.c_void_p)


def make_manager(base: Any, driver: Any, backend: str, pointer: Callable[[int], Any]) -> Any:
    """A manager class over Numba's own for host memory.

    Parameters
    ----------
    base : type
        ``HostOnlyCUDAMemoryManager``, or its equivalent.
    driver : module
        The module of Numba's pointer classes.
    backend : str
        The devmem backend whose devices have Numba's ordinals.
    pointer : callable
        Converts an address for Numba's MemoryPointer.
    """

    class DevmemMemoryManager(driver.GetIpcHandleMixin, base):  # type: ignore[misc]
        """Numba's memory from devmem's memory stack."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # Numba makes an instance without a context to read its version, so no device is opened here.
            self._lent: LentBlocks | None = None
            self._blocks: dict[int, Allocation] = {}

        def initialize(self) -> None:
            """Do nothing: the device is opened at the first allocation."""

        def memalloc(self, size: int) -> Any:
            """Device memory from the installed stack; devmem.OutOfMemory if it does not fit."""
            block = self._lender().block_for_all_streams(size)
            self._blocks[block.ptr] = block
            return driver.MemoryPointer(self.context, pointer(block.ptr), size, finalizer=self._finalizer(block.ptr))

        def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
            """Page-locked host memory from devmem."""
            flags = AllocFlags.PORTABLE * portable | AllocFlags.WRITE_COMBINED * wc
            block = self._lender().block_for_all_streams(
                size, MemoryKind.MAPPED if mapped else MemoryKind.PINNED, flags
            )
            self._blocks[block.ptr] = block
            context, finalizer = weakref.proxy(self.context), self._finalizer(block.ptr)
            if not mapped:
                return driver.PinnedMemory(context, block.ptr, size, finalizer=finalizer)
            memory = driver.MappedMemory(context, block.ptr, size, finalizer=finalizer)
            self.allocations[block.ptr] = memory  # Numba itself keeps a weak reference only
            return memory.own()

        def get_ipc_handle(self, memory: Any) -> Any:
            """A handle for another process; UnsupportedError if the stack's memory has none."""
            try:
                return super().get_ipc_handle(memory)
            except Exception as error:
                raise UnsupportedError(
                    f"this memory of {self._lender().device} cannot be shared with another process ({error}): use "
                    f"devmem.use_memory(devmem.memory.DriverMemory()) before it is allocated"
                ) from error

        def get_memory_info(self) -> Any:
            """Free and total bytes, from the driver."""
            info = memory_info(self._lender().device)
            return driver.MemoryInfo(free=info.free, total=info.total)

        def reset(self) -> None:
            """Free all of Numba's memory from devmem, referenced or not. The device stays open for devmem's own arrays."""
            blocks, self._blocks = self._blocks, {}
            super().reset()
            for block in blocks.values():
                if not block.device_handle.dead:
                    block.free()

        @contextmanager
        def defer_cleanup(self) -> Iterator[None]:
            """Defer all frees of Numba and devmem in a ``with`` block."""
            with super().defer_cleanup(), defer_cleanup():
                yield

        @property
        def interface_version(self) -> int:
            """1, the only version."""
            return 1

        def _lender(self) -> LentBlocks:
            if self._lent is None:
                self._lent = LentBlocks(f"{backend}:{int(self.context.device.id)}")
            return self._lent

        def _finalizer(self, ptr: int) -> Callable[[], object]:
            # May run in the garbage collector: dropping the last reference only queues the block for its free.
            return partial(_forget, self._blocks, self.allocations, ptr)

    return DevmemMemoryManager


def _forget(blocks: dict[int, Any], allocations: Any, ptr: int) -> None:
    blocks.pop(ptr, None)
    if ptr in allocations:
        del allocations[ptr]


def __getattr__(name: str) -> Any:
    """``_numba_memory_manager``, which Numba reads, made at that time."""
    if name == "_numba_memory_manager":
        return manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
