"""A driver around a driver that counts, keeps a ledger, and fails when told to."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from devmem.spi.driver import PROTOCOLS, Backend, Configurable, Driver
from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import AllocFlags, CopyKind, DeviceInfo, MemoryKind

#: What an injected failure raises: an error, or something called with the method's name that makes one.
Failure = BaseException | Callable[[str], BaseException]

#: These give something back, and have done so even if they raise: vendors report earlier asynchronous failures there.
GIVING_BACK = frozenset(
    {
        "close",
        "event_destroy",
        "exit",
        "free",
        "free_async",
        "host_unregister",
        "ipc_close",
        "release",
        "stream_destroy",
    }
)


class Ledger(NamedTuple):
    """What has been handed out and not come back."""

    bytes: int
    blocks: int
    streams: int
    events: int


class Faults:
    """The plan: which call fails, with what. One for a driver, or one shared by all drivers of a backend."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.injected: list[str] = []  #: methods made to fail since `fail_at`, in order
        self._lock = threading.Lock()
        self._count = 0
        self._nth = 0
        self._method: str | None = None
        self._failure: Failure | None = None
        self._repeat = False

    def fail_at(
        self, nth: int, method: str | None = None, error: Failure | None = None, *, repeat: bool = False
    ) -> None:
        """Fail the ``nth`` call from now on, of ``method`` or of any; with ``repeat`` every later one too.

        ``error`` is what to raise, or is called with the method's name; by default a `BackendError`, `OutOfMemory` for
        an allocation, with ``code=-1`` and ``name="INJECTED"``.
        """
        if nth < 1:
            raise ValueError(f"calls are counted from 1, got {nth}")
        with self._lock:
            self._nth, self._method, self._failure, self._repeat = nth, method, error, repeat
            self._count = 0
            self.injected = []

    def disarm(self) -> None:
        """Fail no more; `injected` stays to be read."""
        with self._lock:
            self._nth = 0

    def failure(self, method: str, backend: str) -> BaseException | None:
        """Count a call, and say what it is to raise."""
        with self._lock:
            self.calls[method] += 1
            if not self._nth or self._method not in (None, method):
                return None
            self._count += 1
            if self._count != self._nth and not (self._repeat and self._count > self._nth):
                return None
            self.injected.append(method)
            failure = self._failure
        if failure is None:
            kind = OutOfMemory if method in ("alloc", "alloc_async") else BackendError
            return kind(f"injected failure of {method}", backend=backend, call=method, code=-1, name="INJECTED")
        return failure if isinstance(failure, BaseException) else failure(method)


class FaultyDriver:
    """A driver that passes every call on to ``inner``, and can be told to fail.

    A call that is made to fail does not reach ``inner``, unless it gives something back (`GIVING_BACK`): that is done
    first and the error raised then. The optional capabilities are those of ``inner``. It may be used from many threads.

    Parameters
    ----------
    inner : Driver
        What does the work.
    backend : str, optional
        The backend's name in `info`, where it differs from the inner one's.
    faults : Faults, optional
        A plan shared with other drivers; its own by default.

    Attributes
    ----------
    mistakes : list of str
        What came back wrongly: unknown or freed twice, with another size or kind than it was handed out with.
    """

    def __init__(self, inner: Driver, *, backend: str | None = None, faults: Faults | None = None) -> None:
        self.inner = inner
        self.faults = Faults() if faults is None else faults
        self.mistakes: list[str] = []
        self._info = inner.info if backend is None else dataclasses.replace(inner.info, backend=backend)
        self._lock = threading.Lock()
        self._blocks: dict[int, tuple[int, MemoryKind]] = {}
        self._registered: dict[int, int] = {}
        self._streams: set[int] = set()
        self._events: set[int] = set()
        # Instance attributes, not __getattr__: from Python 3.12 on a runtime protocol is looked up statically.
        for protocol in PROTOCOLS.values():
            if isinstance(inner, protocol):
                for name in vars(protocol):
                    if not name.startswith("_") and name not in self.__dict__:
                        mine = getattr(self, f"_{name}", None)
                        setattr(self, name, partial(self._call, name) if mine is None else mine)

    def __getattr__(self, name: str) -> Any:
        # What is in no protocol: knobs and side doors of the inner driver, neither counted nor failed.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    # -- the knobs and the side door -----------------------------------------------------------------------------------

    def fail_at(
        self, nth: int, method: str | None = None, error: Failure | None = None, *, repeat: bool = False
    ) -> None:
        """Fail the ``nth`` call from now on; see `Faults.fail_at`."""
        self.faults.fail_at(nth, method, error, repeat=repeat)

    def disarm(self) -> None:
        """Fail no more."""
        self.faults.disarm()

    @property
    def injected(self) -> list[str]:
        """Names of the methods that were made to fail since `fail_at`."""
        return self.faults.injected

    @property
    def calls(self) -> Counter[str]:
        """How often each method was called; failed calls count."""
        return self.faults.calls

    def live(self) -> Ledger:
        """What has been handed out and not given back: bytes, blocks, streams, events."""
        with self._lock:
            nbytes = sum(nbytes for nbytes, _ in self._blocks.values())
            return Ledger(nbytes, len(self._blocks), len(self._streams), len(self._events))

    def blocks(self) -> dict[int, tuple[int, MemoryKind]]:
        """Live allocations: address to (bytes, kind)."""
        with self._lock:
            return dict(self._blocks)

    def registered(self) -> dict[int, int]:
        """Live host registrations: address to bytes."""
        with self._lock:
            return dict(self._registered)

    # -- Driver --------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def enter(self) -> object:
        return self._call("enter")

    def exit(self, token: object) -> None:
        self._call("exit", token)

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        ptr = cast(int, self._call("alloc", nbytes, stream, kind, flags))
        with self._lock:
            self._blocks[ptr] = (nbytes, kind)
        return ptr

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        self._forget("free", ptr, nbytes, kind)
        self._call("free", ptr, nbytes, stream, kind)

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return cast(bool, self._call("copy", dst, src, nbytes, kind, stream, blocking=blocking))

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        self._call("fill", dst, value, width, count, stream)

    def memory_info(self) -> tuple[int, int]:
        return cast("tuple[int, int]", self._call("memory_info"))

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        stream = cast(int, self._call("stream_create", priority, non_blocking))
        with self._lock:
            self._streams.add(stream)
        return stream

    def stream_destroy(self, stream: int) -> None:
        self._remove("stream_destroy", self._streams, stream)
        self._call("stream_destroy", stream)

    def stream_synchronize(self, stream: int) -> None:
        self._call("stream_synchronize", stream)

    def stream_query(self, stream: int) -> bool:
        return cast(bool, self._call("stream_query", stream))

    def stream_wait(self, stream: int, event: int) -> None:
        self._call("stream_wait", stream, event)

    def event_create(self, timing: bool) -> int:
        event = cast(int, self._call("event_create", timing))
        with self._lock:
            self._events.add(event)
        return event

    def event_destroy(self, event: int) -> None:
        self._remove("event_destroy", self._events, event)
        self._call("event_destroy", event)

    def event_record(self, event: int, stream: int) -> None:
        self._call("event_record", event, stream)

    def event_query(self, event: int) -> bool:
        return cast(bool, self._call("event_query", event))

    def event_synchronize(self, event: int) -> None:
        self._call("event_synchronize", event)

    def event_elapsed(self, start: int, end: int) -> float:
        return cast(float, self._call("event_elapsed", start, end))

    def synchronize(self) -> None:
        self._call("synchronize")

    def close(self) -> None:
        with self._lock:  # what was not freed by now is the inner driver's to drop
            self._blocks.clear()
            self._registered.clear()
            self._streams.clear()
            self._events.clear()
        self._call("close")

    # -- optional methods that are in the ledger; the others go through `_call` as they are -----------------------------

    def _alloc_async(self, nbytes: int, stream: int) -> int:
        ptr = cast(int, self._call("alloc_async", nbytes, stream))
        with self._lock:
            self._blocks[ptr] = (nbytes, MemoryKind.DEVICE)
        return ptr

    def _free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        self._forget("free_async", ptr, nbytes, MemoryKind.DEVICE)
        self._call("free_async", ptr, nbytes, stream)

    def _host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        self._call("host_register", ptr, nbytes, mapped)
        with self._lock:
            self._registered[ptr] = nbytes

    def _host_unregister(self, ptr: int, nbytes: int) -> None:
        with self._lock:
            if self._registered.pop(ptr, None) != nbytes:
                self.mistakes.append(f"host_unregister({ptr:#x}, {nbytes}): not registered like that")
        self._call("host_unregister", ptr, nbytes)

    # ------------------------------------------------------------------------------------------------------------------

    def _call(self, method: str, *args: object, **keywords: object) -> object:
        failure = self.faults.failure(method, self._info.backend)
        result: object = None
        if failure is None or method in GIVING_BACK:
            try:
                result = getattr(self.inner, method)(*args, **keywords)
            except BackendError as error:
                error.backend = self._info.backend
                raise
        if failure is None:
            return result
        try:
            raise failure
        finally:
            del failure  # or its traceback and this frame, with whoever called, would keep each other

    # The ledger forgets before the inner driver does: afterwards the address may already be another thread's.
    def _forget(self, method: str, ptr: int, nbytes: int, kind: MemoryKind) -> None:
        with self._lock:
            known = self._blocks.pop(ptr, None)
            if known != (nbytes, kind):
                was = "unknown" if known is None else f"handed out as {known[0]} bytes of {known[1]}"
                self.mistakes.append(f"{method}({ptr:#x}, {nbytes} bytes of {kind}): {was}")

    def _remove(self, method: str, live: set[int], handle: int) -> None:
        with self._lock:
            if handle not in live:
                self.mistakes.append(f"{method}({handle:#x}): unknown")
            live.discard(handle)


class FaultyBackend:
    """A backend whose drivers are `FaultyDriver`, with one plan for all of them.

    ``open`` counts as a call and can be made to fail. `drivers` holds the driver that was opened last for each ordinal.
    """

    def __init__(self, inner: Backend, name: str = "faulty") -> None:
        self.name = name
        self.inner = inner
        self.spi_version = inner.spi_version
        self.faults = Faults()
        self.drivers: dict[int, FaultyDriver] = {}

    def unavailable(self) -> str | None:
        return self.inner.unavailable()

    def device_count(self) -> int:
        return self.inner.device_count()

    def configure(self, options: Mapping[str, object]) -> None:
        if isinstance(self.inner, Configurable):
            self.inner.configure(options)

    def open(self, ordinal: int) -> Driver:
        failure = self.faults.failure("open", self.name)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # as in `FaultyDriver`
        driver = FaultyDriver(self.inner.open(ordinal), backend=self.name, faults=self.faults)
        self.drivers[ordinal] = driver
        return driver

    def fail_at(
        self, nth: int, method: str | None = None, error: Failure | None = None, *, repeat: bool = False
    ) -> None:
        """Fail the ``nth`` call from now on, counted over all devices; see `Faults.fail_at`."""
        self.faults.fail_at(nth, method, error, repeat=repeat)

    def disarm(self) -> None:
        """Fail no more."""
        self.faults.disarm()

    @property
    def injected(self) -> list[str]:
        """Names of the methods that were made to fail since `fail_at`."""
        return self.faults.injected

    @property
    def calls(self) -> Counter[str]:
        """How often each method was called, on any device."""
        return self.faults.calls

    def live(self) -> Ledger:
        """What has been handed out and not given back, on all devices."""
        ledgers = [driver.live() for driver in self.drivers.values()]
        return Ledger(*(sum(column) for column in zip(*ledgers, strict=True))) if ledgers else Ledger(0, 0, 0, 0)

    def mistakes(self) -> list[str]:
        """What came back wrongly, on any device."""
        return [mistake for driver in self.drivers.values() for mistake in driver.mistakes]


if TYPE_CHECKING:
    _driver: type[Driver] = FaultyDriver
    _backend: type[Backend] = FaultyBackend
