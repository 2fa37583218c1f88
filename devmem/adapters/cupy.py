"""CuPy: its allocators for devmem, and devmem's memory stack as its allocator.

CuPy allocates on the current stream of the calling thread, and frees when the last reference is dropped. Its pool keeps a free
list for each stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spi.driver import Driver
from ..spi.errors import PluginError
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .foreign_resource import ForeignResource, Handle, import_library
from .lent_blocks import LentBlocks

INSTALL = "cupy-cuda13x"

#: cudaErrorMemoryAllocation and hipErrorOutOfMemory.
OUT_OF_MEMORY = 2
#: CuPy's pools, which keep freed memory for the stream that it was allocated on.
POOLS = ("MemoryPool", "MemoryAsyncPool")


class CuPyMemory(ForeignResource):
    """Memory from an allocator of CuPy.

    Parameters
    ----------
    allocator : callable or pool, optional
        As for ``cupy.cuda.set_allocator``: a function of a size that returns a MemoryPointer, or an object with such a method
        ``malloc``, for example a ``cupy.cuda.MemoryPool``. By default CuPy's current allocator.
    """

    install = INSTALL
    backends = frozenset({"cuda", "roc"})

    def __init__(self, allocator: Any = None) -> None:
        super().__init__()
        self.allocator = allocator
        self._malloc: Callable[[int], Any] | None = None
        self._streams: Any = None
        self._ordinal = 0
        self.pool: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.allocator!r})"

    @property
    def stream_ordered(self) -> bool:  # type: ignore[override]
        """True for CuPy's own pools. Other allocators get memory back only when no stream uses it any more."""
        return type(self.pool).__name__ in POOLS

    @property
    def cached_bytes(self) -> int:
        """Unused bytes in CuPy's pool."""
        free = getattr(self.pool, "free_bytes", None)
        return int(free()) if free is not None else 0

    def trim(self, keep_bytes: int) -> None:
        """Free all unused memory in CuPy's pool, if it exceeds ``keep_bytes``: the pool cannot free a part."""
        if self.cached_bytes > keep_bytes:
            self.pool.free_all_blocks()

    def _open(self, driver: Driver) -> None:
        streams = self._load("cupy.cuda").Stream
        if self.allocator is None:
            self._check_default(driver)
            self.allocator = self._load("cupy.cuda").get_allocator()
        malloc = getattr(self.allocator, "malloc", self.allocator)
        if not callable(malloc):
            raise PluginError(
                f"{self.allocator!r} is no allocator of CuPy: it has to be a function of a size, or have a method malloc"
            )
        self._malloc, self._streams, self._ordinal = malloc, streams, driver.info.ordinal
        self.pool = getattr(malloc, "__self__", None)

    def _acquire(self, nbytes: int, stream: int) -> tuple[object, object]:
        assert self._malloc is not None
        with self._stream(stream):
            pointer = self._malloc(nbytes)
        device = getattr(pointer, "device_id", self._ordinal)
        if device != self._ordinal:
            raise PluginError(f"{self!r} gave memory of device {device}, not of device {self._ordinal}")
        return getattr(pointer, "ptr", None), pointer

    def _release(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        # `owner` dies when the caller returns, which frees the memory; a pool adds it to the list of its own stream.
        if self.stream_ordered:
            self._wait_unless_ordered(stream, home)

    def _is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, MemoryError) or getattr(error, "status", None) == OUT_OF_MEMORY

    def _stream(self, handle: int) -> Any:
        if handle == LEGACY_STREAM:
            return self._streams.null
        if handle == PER_THREAD_STREAM:
            return self._streams.ptds
        make = getattr(self._streams, "from_external", None)
        if make is not None:
            return make(Handle(handle))
        return self._load("cupy.cuda").ExternalStream(handle)  # CuPy before 14


class CuPyAllocator:
    """An allocator for ``cupy.cuda.set_allocator``: `malloc` allocates from a device's devmem stack.

    Allocations are ordered on CuPy's current stream. The MemoryPointer owns its block; when CuPy drops it, the block joins
    devmem's queue of deferred frees, behind that stream's work.
    """

    def __init__(self, device: Any = None) -> None:
        self.lent = LentBlocks(device)
        self._cuda = import_library("cupy.cuda", INSTALL, "devmem.adapters.cupy.allocator()")

    def malloc(self, nbytes: int) -> Any:
        """A MemoryPointer to ``nbytes`` of device memory; devmem.OutOfMemory, a MemoryError, if they are not available."""
        cuda, ordinal = self._cuda, self.lent.device.ordinal
        block = None
        if nbytes:
            stream = cuda.get_current_stream()
            block = self.lent.block(nbytes, stream.ptr, keep=stream)
        ptr = block.ptr if block is not None else 0
        return cuda.MemoryPointer(cuda.UnownedMemory(ptr, nbytes, block, ordinal), 0)

    __call__ = malloc


def allocator(device: Any = None) -> CuPyAllocator:
    """Make an allocator for ``cupy.cuda.set_allocator(allocator())`` or ``with cupy.cuda.using_allocator(...)``.

    Parameters
    ----------
    device : Device, int or str, optional
        The device whose memory stack to use; by default the current one. It must be CuPy's current device at allocations.

    Raises
    ------
    BackendUnavailable
        CuPy is not installed.
    """
    return CuPyAllocator(device)
