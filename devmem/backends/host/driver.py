"""The driver of a host device."""

# ruff: noqa: D102 -- the contract documents its methods once, for every backend

from __future__ import annotations

import os
import platform
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from types import MappingProxyType

from devmem.spi.errors import BackendError
from devmem.spi.executing import executing
from devmem.spi.types import AllocFlags, Capability, CopyKind, DeviceInfo, Exchange, MemoryKind

from .faults import fault
from .jobs import copy_rows, fill_words, memmove, memset, nothing, snapshot, snapshot_rows
from .space import Space, refuse_overlap
from .streams import SMALL, Engine, Run, Stream

_CAPABILITIES = frozenset(
    {
        Capability.STREAM_ORDERED,
        Capability.STRIDED_COPY,
        Capability.VOLUME_COPY,
        Capability.HOST_REGISTER,
        Capability.MAPPED,
        Capability.MANAGED,
        Capability.PEER,
        Capability.EXECUTE,
        Capability.HOLD,
        Capability.POINTER_INFO,
    }
)
#: DLPack's kDLCPU for memory that everybody can read; strict devices say kDLExtDev.
_READABLE, _HIDDEN = Exchange(device_type=1), Exchange(device_type=12)
_ADVICE = frozenset(
    prefix + word for prefix in ("set_", "unset_") for word in ("read_mostly", "preferred_location", "accessed_by")
)


class HostDriver:
    """A device made of host memory, and strict about it: what it refuses, a GPU would get wrong.

    Every copy and fill is checked at the call, against `Space`; what it does then is a job on a stream of `Engine`.
    The methods are those of `devmem.spi.driver.Driver` and of the capabilities in `info`, and are documented there.
    """

    def __init__(self, ordinal: int, *, strict: bool, devices: int) -> None:
        if not 0 <= ordinal < devices:
            raise fault("open", "INVALID_DEVICE", f"there is no device {ordinal}; there are {devices}")
        self._ordinal = ordinal
        self._devices = devices
        self._space = Space(strict)
        self._memory = self._space.memory
        self._engine = Engine()
        self._engine.at_exit = self._space.pin_mappings
        self._key = object()  # what the thread-local says while this device is current; a new one closes all doors
        self._closed = False
        self.info = self._describe()
        _open.add(self)

    # -- context -----------------------------------------------------------------------------------------------------

    def enter(self) -> object:
        if self._closed:
            raise self._no_context("enter")
        before = _current.key
        if before is self._key:
            return None
        if executing.on:
            why = "a kernel, or what else runs for a stream, cannot launch another one, allocate, copy or wait"
            raise fault("enter", "NOT_PERMITTED", f"{why}: do that on the host, and give it arrays as arguments")
        _current.key = self._key
        return _NOBODY if before is None else before

    def exit(self, token: object) -> None:
        if token is not None:
            _current.key = None if token is _NOBODY else token

    def close(self) -> None:
        """Stop the threads after the jobs that they are running; held and waiting jobs are abandoned."""
        if self._closed:
            return
        self._closed = True
        self._key = object()
        self._engine.close()
        _open.discard(self)
        self._space.close(keep=self._engine.used_elsewhere())
        self._engine.warn()

    # -- memory ------------------------------------------------------------------------------------------------------

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if _current.key is not self._key:
            raise self._no_context("alloc")
        if nbytes <= 0:
            if nbytes == 0:
                return 0
            raise fault("alloc", "INVALID_VALUE", f"{nbytes} bytes")
        return self._memory.allocate(nbytes) if kind is MemoryKind.DEVICE else self._space.allocate(nbytes, kind)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if _current.key is not self._key:
            raise self._no_context("free")
        if not ptr:
            return
        memory, engine = self._memory, self._engine
        idle = not engine.pending and not engine.foreign
        if idle and kind is MemoryKind.DEVICE and memory.retire(ptr, nbytes):
            memory.recycle(ptr)
            return
        self._space.retire("free", ptr, nbytes, kind)
        # If the wait is interrupted the bytes stay taken: rather a leak than memory that is handed out under a copy.
        engine.drain()
        self._space.recycle(ptr, kind)

    def memory_info(self) -> tuple[int, int]:
        if _current.key is not self._key:
            raise self._no_context("memory_info")
        return self._memory.size - self._memory.used, self._memory.size

    def alloc_async(self, nbytes: int, stream: int) -> int:
        self._stream(stream, "alloc_async")
        return self.alloc(nbytes, stream)

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        on = self._stream(stream, "free_async")
        if not ptr:
            return
        self._space.retire("free_async", ptr, nbytes, MemoryKind.DEVICE)
        self._start(on, 0, self._memory.recycle, ptr)

    def pool_cached(self) -> int:
        self._check("pool_cached")
        return 0

    def pool_trim(self, keep_bytes: int) -> None:
        self._check("pool_trim")

    def pool_threshold(self, nbytes: int) -> None:
        self._check("pool_threshold")  # nothing unused is ever held

    # -- copies and fills --------------------------------------------------------------------------------------------

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if _current.key is not self._key:
            raise self._no_context("copy")
        if nbytes <= 0:
            raise fault("copy", "INVALID_VALUE", f"{nbytes} bytes")
        engine = self._engine
        on = engine.streams.get(stream) or engine.stream(stream, "copy")
        to, source = self._space.sides("copy", dst, nbytes, src, nbytes, kind)
        if blocking:
            if engine.failures:
                engine.tell(on, on.completed)
            if not engine.attempt(on, nbytes, memmove, to, source, nbytes):
                engine.finish(on, memmove, to, source, nbytes)
            elif engine.failures:  # of what was still running a moment ago
                engine.tell(on, on.completed)
            return False
        host = source if kind is CopyKind.H2D else to
        return self._enqueue(on, kind, host, nbytes, nbytes, snapshot, memmove, to, source, nbytes)

    def copy_2d(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        on = self._stream(stream, "copy_2d")
        if width <= 0 or height <= 0 or dst_pitch < width or src_pitch < width:
            why = f"{height} rows of {width} bytes, pitches {dst_pitch} and {src_pitch}"
            raise fault("copy_2d", "INVALID_VALUE", why)
        dst_span, src_span = (height - 1) * dst_pitch + width, (height - 1) * src_pitch + width
        to, source = self._space.sides("copy_2d", dst, dst_span, src, src_span, kind)
        engine, nbytes = self._engine, width * height
        rows = to, dst_pitch, source, src_pitch, width, height
        if blocking:
            if engine.failures:
                engine.tell(on, on.completed)
            if not engine.attempt(on, nbytes, copy_rows, *rows):
                engine.finish(on, copy_rows, *rows)
            elif engine.failures:  # of what was still running a moment ago
                engine.tell(on, on.completed)
            return False
        host, span = (source, src_span) if kind is CopyKind.H2D else (to, dst_span)
        return self._enqueue(on, kind, host, span, nbytes, snapshot_rows, copy_rows, *rows)

    def copy_3d(
        self,
        dst: int,
        dst_pitch: int,
        dst_rows: int,
        src: int,
        src_pitch: int,
        src_rows: int,
        width: int,
        height: int,
        depth: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        if depth <= 0 or min(dst_rows, src_rows) < height:
            why = f"{depth} slices of {height} rows, {dst_rows} and {src_rows} rows apart"
            raise fault("copy_3d", "INVALID_VALUE", why)
        running = False
        for at in range(depth):
            to, origin = dst + at * dst_rows * dst_pitch, src + at * src_rows * src_pitch
            wait = blocking and at == depth - 1
            running |= self.copy_2d(to, dst_pitch, origin, src_pitch, width, height, kind, stream, blocking=wait)
        return running and not blocking

    def _enqueue(
        self,
        on: Stream,
        kind: CopyKind,
        host: int,
        span: int,
        nbytes: int,
        snapshot: Callable[..., Run],
        run: Run,
        *args: int,
    ) -> bool:
        """Start a copy that the caller does not wait for; what that means depends on the host side."""
        engine = self._engine
        if kind is CopyKind.D2D:
            self._start(on, nbytes, run, *args)
        elif self._space.pinned(host, span):
            # Always on the stream's thread: who reuses the host side too early must be able to see it.
            engine.post(on, run, *args)
            return True
        elif not engine.attempt(on, nbytes, run, *args):
            if kind is CopyKind.H2D:
                engine.post(on, snapshot(*args))
            else:
                engine.finish(on, run, *args)
        return False

    def _start(self, on: Stream, nbytes: int, run: Run, *args: int) -> None:
        """Run a job that only touches device memory: inline if that costs less than to enqueue it."""
        if nbytes > SMALL or not self._engine.attempt(on, nbytes, run, *args):
            self._engine.post(on, run, *args)

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        on = self._stream(stream, "fill")
        if width not in (1, 2, 4) or count <= 0 or not 0 <= value < 1 << 8 * width or dst % width:
            why = f"{count} times the {width}-byte value {value} at {dst:#x}"
            raise fault("fill", "INVALID_VALUE", why)
        nbytes = width * count
        to = self._space.device_side("fill", dst, nbytes)
        if width == 1:
            self._start(on, nbytes, memset, to, value, count)
        else:
            self._start(on, nbytes, fill_words, to, value, width, count)

    def can_access(self, ordinal: int) -> bool:
        self._check("can_access")
        return ordinal != self._ordinal and 0 <= ordinal < self._devices

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        on = self._stream(stream, "copy_peer")
        if nbytes <= 0:
            raise fault("copy_peer", "INVALID_VALUE", f"{nbytes} bytes")
        there, to = _owner(dst_ordinal, dst, nbytes)
        here, source = _owner(src_ordinal, src, nbytes)
        refuse_overlap("copy_peer", to, nbytes, source, nbytes)
        engine = self._engine
        if (blocking or nbytes <= SMALL) and engine.attempt(on, nbytes, memmove, to, source, nbytes):
            if blocking and engine.failures:
                engine.tell(on, on.completed)
            return
        owners = [device._engine for device in (there, here) if device is not self]
        point = engine.post(on, memmove, to, source, nbytes, touches=owners)
        if blocking:
            engine.wait(point)

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        on = self._stream(stream, "prefetch")
        self._space.check_managed("prefetch", ptr, nbytes)
        # Moves nothing here, but takes its place in the order of the stream.
        self._start(on, 0, nothing)

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        self._check("advise")
        self._space.check_managed("advise", ptr, nbytes)
        if advice not in _ADVICE:
            raise fault("advise", "INVALID_VALUE", f"{advice!r} is not one of {', '.join(sorted(_ADVICE))}")

    # -- functions ---------------------------------------------------------------------------------------------------

    def execute(
        self, function: Callable[[Sequence[int]], None], ranges: Sequence[tuple[int, int]], stream: int
    ) -> None:
        on, engine = self._stream(stream, "execute"), self._engine
        if wrong := [f"{nbytes} bytes" for _, nbytes in ranges if nbytes <= 0]:
            raise fault("execute", "INVALID_VALUE", wrong[0])
        places = [self._space.device_side("execute", ptr, nbytes) for ptr, nbytes in ranges]
        if engine.failures:
            engine.tell(on, on.completed)
        engine.post(on, engine.protect, on, function, places)  # never inline: it may run for as long as it likes

    # -- registration ------------------------------------------------------------------------------------------------

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        self._check("host_register")
        self._space.register(ptr, nbytes, mapped)

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        self._check("host_unregister")
        self._space.check_registered(ptr, nbytes)
        self._engine.drain()
        self._space.unregister(ptr, nbytes)

    def device_pointer(self, host: int) -> int:
        self._check("device_pointer")
        return self._space.device_pointer(host)

    def pointer_range(self, ptr: int) -> tuple[int, int] | None:
        self._check("pointer_range")
        found = self._space.block_around(ptr)
        if found is None:
            others = [device._space.block_around(ptr) for device in list(_open)]
            found = next((each for each in others if each is not None), None)
        return found

    def pointer_device(self, ptr: int) -> int | None:
        self._check("pointer_device")
        holders = (device for device in [self, *_open] if device._space.block_around(ptr) is not None)
        return next((device._ordinal for device in holders), None)

    # -- streams and events ------------------------------------------------------------------------------------------

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        self._check("stream_create")
        return self._engine.create_stream(non_blocking)

    def stream_destroy(self, stream: int) -> None:
        self._check("stream_destroy")
        self._engine.destroy_stream(stream)

    def stream_synchronize(self, stream: int) -> None:
        on = self._stream(stream, "stream_synchronize")
        self._engine.wait((on, on.enqueued))

    def stream_query(self, stream: int) -> bool:
        on = self._stream(stream, "stream_query")
        return on.completed == on.enqueued

    def stream_wait(self, stream: int, event: int) -> None:
        on = self._stream(stream, "stream_wait")
        engine = self._engine
        engine.wait_for(on, engine.events.get(event) or engine.event_of_any(event, "stream_wait"))

    def event_create(self, timing: bool) -> int:
        self._check("event_create")
        return self._engine.create_event(timing)

    def event_destroy(self, event: int) -> None:
        self._check("event_destroy")
        self._engine.destroy_event(event)

    def event_record(self, event: int, stream: int) -> None:
        on = self._stream(stream, "event_record")
        self._engine.record(self._engine.event(event, "event_record"), on)

    def event_query(self, event: int) -> bool:
        self._check("event_query")
        mark = self._engine.event(event, "event_query").mark
        return mark is None or mark.reached()

    def event_synchronize(self, event: int) -> None:
        self._check("event_synchronize")
        mark = self._engine.event(event, "event_synchronize").mark
        if mark is not None:
            self._engine.wait((mark.stream, mark.count))

    def event_elapsed(self, start: int, end: int) -> float:
        self._check("event_elapsed")
        marks = []
        for handle in (start, end):
            event = self._engine.event(handle, "event_elapsed")
            if event.mark is None or not event.timing:
                raise fault("event_elapsed", "INVALID_HANDLE", f"event {handle} was not recorded, or not for timing")
            if not event.mark.reached():
                raise fault("event_elapsed", "NOT_READY", f"event {handle} is not complete")
            marks.append(event.mark.seconds)
        return 1000.0 * (marks[1] - marks[0])

    def synchronize(self) -> None:
        self._check("synchronize")
        self._engine.drain()
        if self._engine.failures:
            self._engine.tell()

    def hold(self, stream: int) -> int:
        return self._engine.hold(self._stream(stream, "hold"))

    def release(self, hold: int) -> None:
        self._check("release")
        self._engine.release(hold)

    # -- for tests ---------------------------------------------------------------------------------------------------

    def live_counts(self) -> tuple[int, int, int, int]:
        """(bytes, blocks, streams, events) that were handed out and not given back."""
        arenas, engine = self._space.arenas.values(), self._engine
        nbytes, blocks = sum(arena.asked for arena in arenas), sum(len(arena.live) for arena in arenas)
        return nbytes, blocks, len(engine.streams) - 1, len(engine.events)

    # -- checks ------------------------------------------------------------------------------------------------------

    def _check(self, call: str) -> None:
        if _current.key is not self._key:
            raise self._no_context(call)

    def _stream(self, handle: int, call: str) -> Stream:
        if _current.key is not self._key:
            raise self._no_context(call)
        return self._engine.stream(handle, call)

    def _no_context(self, call: str) -> BackendError:
        if self._closed:
            return fault(call, "DEVICE_CLOSED", f"device {self._ordinal} was closed")
        return fault(call, "INVALID_CONTEXT", f"device {self._ordinal} is not current on this thread; enter() it first")

    def _describe(self) -> DeviceInfo:
        return DeviceInfo(
            backend="host",
            ordinal=self._ordinal,
            name=f"host memory {self._ordinal}",
            uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{platform.node()}/devmem-host/{self._ordinal}")),
            total_bytes=self._memory.size,
            arch=platform.machine(),
            memory_kinds=frozenset(MemoryKind),
            capabilities=_CAPABILITIES,
            exchange=_HIDDEN if self._space.strict else _READABLE,
            facts=MappingProxyType({"strict": self._space.strict, "cores": os.cpu_count() or 1}),
        )


class _Current(threading.local):
    """What is current on a thread: the key of a driver, or nothing."""

    key: object = None


_current = _Current()
#: The token that stands for nothing having been current; None says that nothing was changed.
_NOBODY = object()
_open: weakref.WeakSet[HostDriver] = weakref.WeakSet()


def _owner(ordinal: int, ptr: int, nbytes: int) -> tuple[HostDriver, int]:
    """The driver that memory of a device came from, and where the copy engine finds it; a device can be open more than once."""
    problem = fault("copy_peer", "INVALID_DEVICE", f"device {ordinal} is not open")
    for driver in list(_open):
        if driver._ordinal == ordinal:
            try:
                return driver, driver._space.device_side("copy_peer", ptr, nbytes)
            except BackendError as error:
                problem = error
    raise problem
