"""Theirs as ours: what every allocator of another library has in common as a memory resource."""

# Decision: docs/adr/0006-any-allocator-fits-into-a-memory-stack.md
from __future__ import annotations

import importlib
import threading
from types import ModuleType
from typing import Any, ClassVar

from ..spi.driver import Driver
from ..spi.errors import BackendUnavailable, DevmemError, OutOfMemory, PluginError
from ..spi.types import LEGACY_STREAM, PER_THREAD_STREAM


class ForeignResource:
    """A memory resource over a library that hands out objects which own their memory: they are kept here, by address.

    A subclass says how to take and to give back, and which of the library's exceptions mean that memory ran out. What it keeps
    for one block is whatever `_take` returned beside the address.

    The verbs are called with the device entered, from any thread; the library must allow that, as all of these do. Blocks that
    are out keep the library's objects alive, so the allocator may be replaced in its own library at any time.
    """

    #: What to install, where the library is missing.
    install: ClassVar[str] = ""
    #: Backends on whose devices the library's own default allocator has memory. An allocator that is given may be of any.
    backends: ClassVar[frozenset[str]] = frozenset({"cuda"})

    stream_ordered = False

    def __init__(self) -> None:
        self.driver: Driver | None = None
        self._held: dict[int, tuple[object, int]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.driver.info.name if self.driver else 'not bound'})"

    def bind(self, driver: Driver) -> None:
        """Take the device, and import the library. A resource serves one device.

        Raises
        ------
        BackendUnavailable
            The library is not installed, or does not load.
        """
        if self.driver is driver:
            return
        if self.driver is not None:
            raise DevmemError(f"{self!r} is bound to a device already: make one resource for each device")
        self._open(driver)
        self.driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        """Ask the library; its memory is valid for work on the stream.

        Raises
        ------
        OutOfMemory
            The library says so, in whatever way it says it.
        PluginError
            It returned no address, or one that is out already.
        """
        if not nbytes:
            return 0
        if self.driver is None:
            raise DevmemError(f"{self!r} has no device yet: install it with devmem.use_memory()")
        before = asked.driver
        asked.driver = self.driver
        try:
            given, owner = self._take(nbytes, stream)
        except Exception as error:
            if not self._ran_out(error):
                raise
            message = f"{type(self).__name__}: {nbytes} bytes cannot be had: {error}"
            name = type(error).__name__
            backend = self.driver.info.backend
            raise OutOfMemory(message, backend=backend, call=f"{type(self).__name__}.allocate", name=name) from error
        finally:
            asked.driver = before
        ptr = address(given, self)
        if ptr in self._held:
            raise PluginError(f"{self!r} returned the address {ptr:#x}, which it gave out before and did not get back")
        self._held[ptr] = owner, stream
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Give the block back to the library."""
        if not ptr:
            return
        # Taken out first: once it is back, another thread may be given the address before we would look again.
        held = self._held.pop(ptr, None)
        if held is None:
            raise DevmemError(f"{self!r} did not give out the address {ptr:#x}, or got it back already")
        owner, home = held
        del held
        self._give(ptr, nbytes, stream, home, owner)

    # -- what a subclass supplies --------------------------------------------------------------------------------------

    def _open(self, driver: Driver) -> None:
        """Import the library and settle on an allocator; the device is entered."""
        raise NotImplementedError

    def _take(self, nbytes: int, stream: int) -> tuple[object, object]:
        """An address, and what keeps it alive."""
        raise NotImplementedError

    def _give(self, ptr: int, nbytes: int, stream: int, home: int, owner: object) -> None:
        """Give back what `_take` returned for the stream ``home``; work on ``stream`` may still be using it."""
        raise NotImplementedError

    def _ran_out(self, error: Exception) -> bool:
        """Whether an exception of the library means that there is no memory left."""
        return isinstance(error, MemoryError)

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def _load(self, module: str) -> ModuleType:
        return load(module, self.install, f"the memory resource {type(self).__name__}")

    def _check_default(self, driver: Driver) -> None:
        """Refuse a device on which the library's own default has no memory."""
        if driver.info.backend not in self.backends:
            raise PluginError(
                f"{type(self).__name__}() without an allocator serves devices of {', '.join(sorted(self.backends))}, not "
                f"{driver.info.backend}:{driver.info.ordinal}: pass it an allocator whose memory belongs to that device"
            )

    def _settle(self, stream: int, home: int) -> None:
        """Wait for a stream on which the library would not order the reuse of a block by itself.

        Libraries with free lists by stream put a block on the list of the stream that it was made for. That is safe without
        waiting only if it comes back on the same one, and never for per-thread streams: their one handle is many streams.
        """
        if stream != home or stream == PER_THREAD_STREAM:
            assert self.driver is not None
            self.driver.stream_synchronize(stream)


class _Asked(threading.local):
    """For which device this thread is asking a library for memory, so that two allocators over each other are noticed."""

    driver: Driver | None = None


asked = _Asked()


class Handle:
    """A stream's handle for libraries that ask an object for it."""

    __slots__ = ("handle",)

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and handle."""
        return 0, self.handle


def load(module: str, install: str, purpose: str) -> ModuleType:
    """Import a library.

    Raises
    ------
    BackendUnavailable
        It is missing or does not load; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            f"{purpose} needs {module}, which cannot be imported here: {error} (pip install {install})"
        ) from error


def address(given: Any, giver: object) -> int:
    """The address that an object of a library stands for: an int, a ctypes pointer, or anything with ``__int__``."""
    value: Any = getattr(given, "value", given)
    try:
        if isinstance(value, bool | float | str):
            raise TypeError
        found = int(value)
    except (TypeError, ValueError):
        raise PluginError(f"{giver!r} returned {given!r} for an address") from None
    if found <= 0:
        raise PluginError(f"{giver!r} returned {given!r} for an address: it must be positive")
    return found


def raw(stream: int) -> int:
    """A stream's handle for libraries that call the legacy default stream 0."""
    return 0 if stream == LEGACY_STREAM else stream
