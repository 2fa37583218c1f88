"""Base class of memory resources over other libraries' allocators.

Such a library returns an object that owns the memory. The resource keeps the object, by address, until the block is deallocated;
so the library's allocator may be replaced while blocks are allocated.
"""

# Decision: docs/adr/0006-any-allocator-fits-into-a-memory-stack.md
from __future__ import annotations

import importlib
import threading
from types import ModuleType
from typing import Any, ClassVar

from .._core.memory.direct import already_bound
from ..spi.driver import Driver
from ..spi.errors import BackendUnavailable, DevmemError, OutOfMemory, PluginError
from ..spi.sizes import exact_size
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM


class ForeignResource:
    """A memory resource over another library's allocator.

    A subclass implements `_open`, `_acquire` and `_release`, and `_is_out_of_memory`, which recognises the library's exceptions
    for exhausted memory. For each block the resource keeps the owner that `_acquire` returned beside the address.

    Methods are called from any thread, with the device current; the library must allow that.
    """

    #: The package to install if the library is missing.
    install: ClassVar[str] = ""
    #: The backends that the library's default allocator serves. A given allocator may be for any backend.
    backends: ClassVar[frozenset[str]] = frozenset({"cuda"})

    stream_ordered = False

    def __init__(self) -> None:
        self.driver: Driver | None = None
        self._blocks: dict[int, tuple[object, int]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.driver.info.name if self.driver else 'not bound'})"

    def bind(self, driver: Driver) -> None:
        """Bind the resource to a device, and import the library. A resource serves one device, until that is reset.

        Raises
        ------
        BackendUnavailable
            The library is not installed, or cannot be imported.
        ClosedError
            The device was reset or closed since the resource was bound to it.
        """
        if already_bound(self, self.driver, driver, "resource"):
            return
        self._open(driver)
        self.driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate from the library, for work on the stream.

        Raises
        ------
        OutOfMemory
            The library has run out of memory.
        PluginError
            It returned no address, or the address of an allocated block.
        """
        if not nbytes:
            return 0
        if self.driver is None:
            raise DevmemError(f"{self!r} has no device yet: install it with devmem.use_memory()")
        before = allocating.driver
        allocating.driver = self.driver
        try:
            given, owner = self._acquire(nbytes, stream)
        except Exception as error:
            if not self._is_out_of_memory(error):
                raise
            message = f"{type(self).__name__}: {exact_size(nbytes)} are not available: {error}"
            name = type(error).__name__
            backend = self.driver.info.backend
            raise OutOfMemory(
                message, backend=backend, call=f"{type(self).__name__}.allocate", name=name, requested=nbytes
            ) from error
        finally:
            allocating.driver = before
        ptr = address(given, self)
        if ptr in self._blocks:
            raise PluginError(f"{self!r} returned the address {ptr:#x} of a block that is still allocated")
        self._blocks[ptr] = owner, stream
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Return the block to the library."""
        if not ptr:
            return
        # Removed first: once the block is returned, another thread may get the same address at any time.
        entry = self._blocks.pop(ptr, None)
        if entry is None:
            raise DevmemError(f"{self!r} did not allocate the address {ptr:#x}, or freed it already")
        owner, home = entry
        del entry
        self._release(ptr, nbytes, stream, home, owner)

    # -- implemented by subclasses -------------------------------------------------------------------------------------

    def _open(self, driver: Driver) -> None:
        """Import the library and choose the allocator; the device is current."""
        raise NotImplementedError

    def _acquire(self, nbytes: int, stream: int) -> tuple[object, object]:
        """Allocate; return the address and the object that owns the memory."""
        raise NotImplementedError

    def _release(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        """Free a block that `_acquire` allocated for the stream ``home``; work on ``stream`` may still use it."""
        raise NotImplementedError

    def _is_out_of_memory(self, error: Exception) -> bool:
        """Whether an exception of the library means that memory ran out."""
        return isinstance(error, MemoryError)

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def _load(self, module: str) -> ModuleType:
        return import_library(module, self.install, f"the memory resource {type(self).__name__}")

    def _check_default(self, driver: Driver) -> None:
        """Raise PluginError for a device that the library's default allocator does not serve."""
        if driver.info.backend not in self.backends:
            raise PluginError(
                f"{type(self).__name__}() without an allocator serves devices of {', '.join(sorted(self.backends))}, not "
                f"{driver.info.backend}:{driver.info.ordinal}: pass it an allocator whose memory belongs to that device"
            )

    def _wait_unless_ordered(self, stream: int, home: int) -> None:
        """Wait for ``stream`` unless the library orders the reuse of a block allocated on ``home`` itself.

        Libraries with a free list for each stream add a block to the list of the stream that it was allocated on. That needs no
        wait only if it is freed on the same stream, and not for the per-thread stream, whose handle stands for many streams.
        """
        if stream != home or stream == PER_THREAD_STREAM:
            assert self.driver is not None
            self.driver.stream_synchronize(stream)


class _Allocating(threading.local):
    """The device for which this thread allocates from a library; detects two allocators that allocate from each other."""

    driver: Driver | None = None


allocating = _Allocating()


class Handle:
    """A stream's handle as an object with ``__cuda_stream__``."""

    __slots__ = ("handle",)

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and handle."""
        return 0, self.handle


def import_library(module: str, install: str, purpose: str) -> ModuleType:
    """Import a library.

    Raises
    ------
    BackendUnavailable
        It is missing or cannot be imported; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            f"{purpose} needs {module}, which cannot be imported here: {error} (pip install {install})"
        ) from error


def address(given: Any, giver: object) -> int:
    """The address in a library's object: an int, a ctypes pointer, or an object with ``__int__``."""
    value: Any = getattr(given, "value", given)
    try:
        if isinstance(value, bool | float | str):
            raise TypeError
        found = int(value)
    except (TypeError, ValueError):
        raise PluginError(f"{giver!r} returned {given!r} as an address") from None
    if found <= 0:
        raise PluginError(f"{giver!r} returned {given!r} as an address: it must be positive")
    return found


def raw_handle(stream: int) -> int:
    """A stream's handle for libraries that call the legacy default stream 0."""
    return 0 if stream == LEGACY_STREAM else stream
