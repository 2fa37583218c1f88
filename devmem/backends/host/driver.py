"""The driver of a host device."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Callable, Sequence
from types import MappingProxyType

from devmem.spi.types import AllocFlags, Capability, DeviceInfo, Exchange, MemoryKind

from .calls import current, opened
from .copies import Copies
from .error_codes import host_error
from .page_locks import page_locks
from .streams import nothing

_CAPABILITIES = frozenset(
    {
        Capability.STREAM_ORDERED,
        Capability.STRIDED_COPY,
        Capability.VOLUME_COPY,
        Capability.HOST_REGISTER,
        Capability.MAPPED,
        Capability.MANAGED,
        Capability.PEER,
        Capability.HOST_FUNCTION,
        Capability.HOLD,
        Capability.POINTER_INFO,
    }
)
#: DLPack's kDLCPU for memory that everybody can read; strict devices say kDLExtDev.
_READABLE, _HIDDEN = Exchange(device_type=1), Exchange(device_type=12)
_ADVICE = frozenset(
    prefix + word for prefix in ("set_", "unset_") for word in ("read_mostly", "preferred_location", "accessed_by")
)


class HostDriver(Copies):
    """A device made of host memory, and strict about it: what it refuses, a GPU would get wrong.

    What it is given is checked at the call, against `Space`; what it does then is a job on a stream of `Engine`. Here is all but
    the copies.
    The methods are those of `devmem.spi.driver.Driver` and of the capabilities in `info`, and are documented there.
    """

    def __init__(self, ordinal: int, *, strict: bool, devices: int) -> None:
        super().__init__(ordinal, strict=strict, devices=devices)
        self.info = self._describe()

    # -- memory ------------------------------------------------------------------------------------------------------

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if current.key is not self._key:
            raise self._no_context("alloc")
        if nbytes <= 0:
            if nbytes == 0:
                return 0
            raise host_error("alloc", "INVALID_VALUE", f"{nbytes} bytes")
        return self._memory.allocate(nbytes) if kind is MemoryKind.DEVICE else self._space.allocate(nbytes, kind)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if current.key is not self._key:
            raise self._no_context("free")
        if not ptr:
            return
        memory, engine = self._memory, self._engine
        idle = not engine.pending and not engine.foreign
        if idle and kind is MemoryKind.DEVICE and memory.invalidate(ptr, nbytes):
            memory.recycle(ptr)
            return
        self._space.invalidate("free", ptr, nbytes, kind)
        # If the wait is interrupted the bytes stay taken: rather a leak than memory that is handed out under a copy.
        engine.drain()
        self._space.recycle(ptr, kind)

    def memory_info(self) -> tuple[int, int]:
        if current.key is not self._key:
            raise self._no_context("memory_info")
        return self._memory.size - self._memory.used, self._memory.size

    def alloc_async(self, nbytes: int, stream: int) -> int:
        self._stream(stream, "alloc_async")
        return self.alloc(nbytes, stream)

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        on = self._stream(stream, "free_async")
        if not ptr:
            return
        self._space.invalidate("free_async", ptr, nbytes, MemoryKind.DEVICE)
        self._start(on, 0, self._memory.recycle, ptr)

    def pool_cached(self) -> int:
        self._check("pool_cached")
        return 0

    def pool_trim(self, keep_bytes: int) -> None:
        self._check("pool_trim")

    def pool_threshold(self, nbytes: int) -> None:
        self._check("pool_threshold")  # nothing unused is ever held

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        on = self._stream(stream, "prefetch")
        self._space.check_managed("prefetch", ptr, nbytes)
        # Moves nothing here, but takes its place in the order of the stream.
        self._start(on, 0, nothing)

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        self._check("advise")
        self._space.check_managed("advise", ptr, nbytes)
        if advice not in _ADVICE:
            raise host_error("advise", "INVALID_VALUE", f"{advice!r} is not one of {', '.join(sorted(_ADVICE))}")

    # -- functions ---------------------------------------------------------------------------------------------------

    def launch_host_function(
        self, function: Callable[[Sequence[int]], None], ranges: Sequence[tuple[int, int]], stream: int
    ) -> None:
        on, engine = self._stream(stream, "launch_host_function"), self._engine
        if wrong := [f"{nbytes} bytes" for _, nbytes in ranges if nbytes <= 0]:
            raise host_error("launch_host_function", "INVALID_VALUE", wrong[0])
        places = [self._space.device_side("launch_host_function", ptr, nbytes) for ptr, nbytes in ranges]
        if engine.failures:
            engine.tell(on, on.completed)
        engine.post(on, engine.protect, on, function, places)  # never inline: it may run for as long as it likes

    # -- registration ------------------------------------------------------------------------------------------------

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        self._check("host_register")
        self._space.register(ptr, nbytes, mapped)

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        self._check("host_unregister")
        page_locks.find(self._space, ptr, nbytes)
        self._engine.drain()
        page_locks.remove(self._space, ptr, nbytes)

    def device_pointer(self, host: int) -> int:
        self._check("device_pointer")
        return self._space.device_pointer(host)

    def pointer_range(self, ptr: int) -> tuple[int, int] | None:
        self._check("pointer_range")
        found = self._space.block_around(ptr)
        if found is None:
            others = [device._space.block_around(ptr) for device in list(opened)]
            found = next((each for each in others if each is not None), None)
        return found

    def pointer_device(self, ptr: int) -> int | None:
        self._check("pointer_device")
        holders = (device for device in [self, *opened] if device._space.block_around(ptr) is not None)
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
                raise host_error(
                    "event_elapsed", "INVALID_HANDLE", f"event {handle} was not recorded, or not for timing"
                )
            if not event.mark.reached():
                raise host_error("event_elapsed", "NOT_READY", f"event {handle} is not complete")
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
        arenas, engine = (self._space.device, self._space.host), self._engine
        nbytes, blocks = sum(arena.asked for arena in arenas), sum(len(arena.live) for arena in arenas)
        return nbytes, blocks, len(engine.streams) - 1, len(engine.events)

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
