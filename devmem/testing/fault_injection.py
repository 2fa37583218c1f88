"""Fault injection: a driver that fails on request and tracks what is live, and a loop that fails every driver call.

`FaultyDriver` passes each call to another driver. Before it does, a `FailurePlan` counts the call and may make it raise.
`every_failure` runs a function once for each of its driver calls, with that call failing.

A plan and a `FaultyDriver` may be used from many threads; calls are counted in the order in which they arrive.
"""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from devmem.spi.driver import PROTOCOLS, Backend, Configurable, Driver
from devmem.spi.errors import BackendError, DevmemError, DevmemWarning, OutOfMemory
from devmem.spi.types import AllocFlags, CopyKind, DeviceInfo, MemoryKind
from devmem.toolkit.driver_parts import lacking
from devmem.toolkit.settings import checked

#: What an injected failure raises: an error, or a function that makes one from the method's name.
Failure = BaseException | Callable[[str], BaseException]

#: Methods that release a resource, even when they raise: vendors report earlier asynchronous failures from such calls.
RELEASING = frozenset(
    {
        "close",
        "event_destroy",
        "exit",
        "free",
        "free_async",
        "graph_destroy",
        "host_unregister",
        "ipc_close",
        "release",
        "stream_destroy",
    }
)


class LiveCounts(NamedTuple):
    """Device memory, streams and events that were created and not released."""

    bytes: int
    blocks: int
    streams: int
    events: int


class FailurePlan:
    """The driver call that is to fail, and its error. One driver has its own plan; the drivers of a backend share one."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.injected: list[str] = []  #: names of the methods that failed since `fail_at`, in order
        self._lock = threading.RLock()
        self._count = 0
        self._nth = 0
        self._method: str | None = None
        self._failure: Failure | None = None
        self._repeat = False

    def fail_at(
        self, nth: int, method: str | None = None, error: Failure | None = None, *, repeat: bool = False
    ) -> None:
        """Make the ``nth`` call from now on fail: the nth call of ``method``, or of all methods.

        With ``repeat``, every later one fails too. ``error`` is the exception, or a function that makes it from the
        method's name. The default is a `BackendError` (for an allocation, `OutOfMemory`) with ``code=-1`` and
        ``name="INJECTED"``.
        """
        if nth < 1:
            raise ValueError(f"calls are counted from 1, got {nth}")
        with self._lock:
            self._nth, self._method, self._failure, self._repeat = nth, method, error, repeat
            self._count = 0
            self.injected = []

    def disarm(self) -> None:
        """Stop failing calls. `injected` keeps its contents."""
        with self._lock:
            self._nth = 0

    def failure(self, method: str, backend: str) -> BaseException | None:
        """Count a call, and return the error that it shall raise, or None."""
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
            kind = (
                OutOfMemory
                if method in ("alloc", "alloc_async", "alloc_shared", "alloc_decompressible")
                else BackendError
            )
            return kind(f"injected failure of {method}", backend=backend, call=method, code=-1, name="INJECTED")
        return failure if isinstance(failure, BaseException) else failure(method)


class Injectable:
    """Methods with which a test plans and reads failures; common to `FaultyDriver` and `FaultyBackend`."""

    faults: FailurePlan

    def fail_at(
        self, nth: int, method: str | None = None, error: Failure | None = None, *, repeat: bool = False
    ) -> None:
        """Make the ``nth`` call from now on fail; see `FailurePlan.fail_at`."""
        self.faults.fail_at(nth, method, error, repeat=repeat)

    def disarm(self) -> None:
        """Stop failing calls."""
        self.faults.disarm()

    @property
    def injected(self) -> list[str]:
        """Names of the methods that failed since `fail_at`, in order."""
        return self.faults.injected

    @property
    def calls(self) -> Counter[str]:
        """The number of calls of each method; calls that failed count too."""
        return self.faults.calls


class FaultyDriver(Injectable):
    """A driver that passes every call to ``inner``, tracks what is live, and fails on request.

    A call that fails by injection does not reach ``inner``, except the methods in `RELEASING`: they release the resource
    and then raise. The driver has the optional capabilities of ``inner``.

    Parameters
    ----------
    inner : Driver
        The driver that does the work.
    backend : str, optional
        The name of the backend in `info`; that of ``inner`` by default.
    faults : FailurePlan, optional
        A plan shared with other drivers; a new one by default.

    Attributes
    ----------
    mistakes : list of str
        Wrong releases: of an unknown or already released resource, or with another size or kind than it was created with.
    """

    def __init__(self, inner: Driver, *, backend: str | None = None, faults: FailurePlan | None = None) -> None:
        self.inner = inner
        self.faults = FailurePlan() if faults is None else faults
        self.mistakes: list[str] = []
        self._info = inner.info if backend is None else dataclasses.replace(inner.info, backend=backend)
        self._lock = threading.RLock()
        self._blocks: dict[int, tuple[int, MemoryKind]] = {}
        self._registered: dict[int, int] = {}
        self._streams: set[int] = set()
        self._events: set[int] = set()
        # Instance attributes, not __getattr__: from Python 3.12 on a runtime protocol is looked up statically.
        for protocol in PROTOCOLS.values():
            if not lacking(inner, protocol):
                for name in vars(protocol):
                    if not name.startswith("_") and name not in self.__dict__:
                        mine = getattr(self, f"_{name}", None)
                        setattr(self, name, partial(self._call, name) if mine is None else mine)

    def __getattr__(self, name: str) -> Any:
        # Attributes of `inner` that are in no protocol are neither counted nor made to fail.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    # -- what is live --------------------------------------------------------------------------------------------------

    def live(self) -> LiveCounts:
        """Count the device memory, streams and events that were created and not released."""
        with self._lock:
            nbytes = sum(nbytes for nbytes, _ in self._blocks.values())
            return LiveCounts(nbytes, len(self._blocks), len(self._streams), len(self._events))

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
        with self._lock:  # `inner` drops what was not released by now
            self._blocks.clear()
            self._registered.clear()
            self._streams.clear()
            self._events.clear()
        self._call("close")

    # -- optional methods that change what is live; the others call `_call` directly -----------------------------------

    def _alloc_async(self, nbytes: int, stream: int, method: str = "alloc_async") -> int:
        ptr = cast(int, self._call(method, nbytes, stream))
        with self._lock:
            self._blocks[ptr] = (nbytes, MemoryKind.DEVICE)
        return ptr

    def _alloc_shared(self, nbytes: int, stream: int) -> int:
        return self._alloc_async(nbytes, stream, "alloc_shared")

    def _alloc_decompressible(self, nbytes: int, stream: int) -> int:
        return self._alloc_async(nbytes, stream, "alloc_decompressible")

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
        if failure is None or method in RELEASING:
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
            del failure  # the error's traceback holds this frame, and the frame would hold the error

    # The record is removed before `inner` frees: after that, another thread may already have the same address.
    def _forget(self, method: str, ptr: int, nbytes: int, kind: MemoryKind) -> None:
        with self._lock:
            known = self._blocks.pop(ptr, None)
            if known != (nbytes, kind):
                was = "unknown" if known is None else f"allocated as {known[0]} bytes of {known[1]}"
                self.mistakes.append(f"{method}({ptr:#x}, {nbytes} bytes of {kind}): {was}")

    def _remove(self, method: str, live: set[int], handle: int) -> None:
        with self._lock:
            if handle not in live:
                self.mistakes.append(f"{method}({handle:#x}): unknown")
            live.discard(handle)


class FaultyBackend(Injectable):
    """A backend that opens each driver as a `FaultyDriver`; all of them share one plan, which counts over all devices.

    ``open`` counts as a call and can fail. `drivers` maps each ordinal to the driver that was opened last.
    """

    def __init__(self, inner: Backend, name: str = "faulty") -> None:
        self.name = name
        self.inner = inner
        self.spi_version = inner.spi_version
        self.options = inner.options if isinstance(inner, Configurable) else {}
        self.faults = FailurePlan()
        self.drivers: dict[int, FaultyDriver] = {}

    def unavailable(self) -> str | None:
        return self.inner.unavailable()

    def device_count(self) -> int:
        return self.inner.device_count()

    def configure(self, options: Mapping[str, object]) -> None:
        if isinstance(self.inner, Configurable):
            self.inner.configure(options)
        else:
            checked(self.name, options, {})

    def open(self, ordinal: int) -> Driver:
        failure = self.faults.failure("open", self.name)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # as in `FaultyDriver._call`
        driver = FaultyDriver(self.inner.open(ordinal), backend=self.name, faults=self.faults)
        self.drivers[ordinal] = driver
        return driver

    def live(self) -> LiveCounts:
        """Count what is live on all devices."""
        counts = [driver.live() for driver in self.drivers.values()]
        return LiveCounts(*(sum(column) for column in zip(*counts, strict=True))) if counts else LiveCounts(0, 0, 0, 0)

    def mistakes(self) -> list[str]:
        """Wrong releases on all devices; see `FaultyDriver`."""
        return [mistake for driver in self.drivers.values() for mistake in driver.mistakes]


class Fallible(Protocol):
    """The methods that `every_failure` needs of its target; `FaultyDriver` and `FaultyBackend` have them."""

    def fail_at(
        self, nth: int, method: str | None = None, error: Failure | None = None, *, repeat: bool = False
    ) -> None: ...

    def disarm(self) -> None: ...

    @property
    def injected(self) -> list[str]: ...


def every_failure(
    call: Callable[[], object],
    target: Fallible,
    *,
    check: Callable[[], object],
    limit: int = 10_000,
    repeat: bool = False,
) -> int:
    """Run ``call`` with its 1st, 2nd, ... driver call failing, until a run makes fewer calls than that.

    A run passes if it raises a `DevmemError` or a `MemoryError`, or if it handles the failure. Another error, or an error
    in the run without an injected failure, is raised. After each run ``check`` runs without injected failures: it shall
    check that nothing leaked and that the next call works. An error of either carries a note with n and the name of the
    method that failed.

    Parameters
    ----------
    call : callable
        The code under test. It makes the same driver calls each time, and releases what it creates.
    target : FaultyDriver or FaultyBackend
        Where to inject.
    check : callable
        Called after each run.
    limit : int
        The most runs: a ``call`` that retries without end would never get through.
    repeat : bool
        Fail every call from the n-th on, not the n-th alone.

    Returns
    -------
    int
        The number of runs in which a call failed.
    """
    for nth in range(1, limit + 1):
        target.fail_at(nth, repeat=repeat)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DevmemWarning
                )  # a warning is the right report where raising is impossible
                call()
        except BaseException as error:
            target.disarm()
            if not (target.injected and isinstance(error, DevmemError | MemoryError)):
                error.add_note(_where(nth, target))
                raise
        finally:
            target.disarm()
        injected = bool(target.injected)
        try:
            check()
        except BaseException as error:
            error.add_note(f"in the check after {_where(nth, target)}")
            raise
        if not injected:
            return nth - 1
    raise AssertionError(f"after {limit} runs there is still a driver call left to fail")


def _where(nth: int, target: Fallible) -> str:
    if not target.injected:
        return f"run {nth}, in which no failure was injected"
    return f"run {nth}, in which {target.injected[0]} failed"


if TYPE_CHECKING:
    _driver: type[Driver] = FaultyDriver
    _backend: type[Backend] = FaultyBackend
