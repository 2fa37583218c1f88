"""The driver: a device whose memory is the host's, and whose streams are threads. Nothing waits that need not."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from ctypes import memmove
from typing import Any

from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import AllocFlags, Capability, CopyKind, DeviceInfo, MemoryKind

from .streams import Job, Stream

TOTAL_BYTES = 1 << 30


class ExampleDriver:
    """One open device with streams of its own; `devmem.toolkit.default_streams` adds the default ones."""

    def __init__(self, ordinal: int) -> None:
        self.info = DeviceInfo(
            "example",
            ordinal,
            name=f"Example device {ordinal}",
            uuid=f"example-{ordinal:04}",
            total_bytes=TOTAL_BYTES,
            memory_kinds=frozenset({MemoryKind.DEVICE, MemoryKind.PINNED}),
            capabilities=frozenset({Capability.HOLD, Capability.FOREIGN_STREAMS}),
            default_memory="pool",  # there is no alloc_async here: devmem's pool has it over alloc
        )
        self._lock = threading.RLock()
        self._handles = itertools.count(16)  # 0 to 2 mean something to devmem
        self._blocks: dict[int, tuple[mmap.mmap, int, MemoryKind]] = {}
        self._used = 0
        self._streams: dict[int, Stream] = {}
        self._foreign: dict[Stream, int] = {}  # other libraries' streams, by `stream_from`: the handle of each
        self._destroyed: list[Stream] = []
        self._events: dict[int, tuple[bool, Job | None]] = {}  # with timing? recorded as which job?
        self._holds: dict[int, threading.Event] = {}

    # -- the current device: nothing here depends on it ----------------------------------------------------------------

    def enter(self) -> object:
        return None

    def exit(self, token: object) -> None:
        pass

    # -- memory --------------------------------------------------------------------------------------------------------

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if not nbytes:
            return 0
        on_device = nbytes if kind is MemoryKind.DEVICE else 0
        with self._lock:
            if nbytes > TOTAL_BYTES or self._used + on_device > TOTAL_BYTES:
                free = TOTAL_BYTES - self._used
                raise OutOfMemory(f"{nbytes} bytes, {free} free", backend="example", call="alloc", code=2, name="FULL")
            block = mmap.mmap(-1, nbytes)  # on pages of its own, which is more than the alignment asks for
            ptr = ctypes.addressof(ctypes.c_char.from_buffer(block))
            self._blocks[ptr] = block, nbytes, kind
            self._used += on_device
            return ptr

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if not ptr:
            return
        with self._lock:
            if ptr not in self._blocks:
                raise _error("free", f"{ptr:#x} is not an allocation")
            _, size, _ = self._blocks.pop(ptr)  # no work on it is pending: devmem has waited for it
            self._used -= size if kind is MemoryKind.DEVICE else 0

    def memory_info(self) -> tuple[int, int]:
        return TOTAL_BYTES - self._used, TOTAL_BYTES

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if kind is not CopyKind.H2D:
            self._inside(src, nbytes, "copy")
        if kind is not CopyKind.D2H:
            self._inside(dst, nbytes, "copy")
        on = self._stream(stream, "copy")
        host = src if kind is CopyKind.H2D else dst
        pinned = kind is not CopyKind.D2D and self._kind(host) is MemoryKind.PINNED
        if kind is CopyKind.H2D and not pinned and not blocking:
            # The caller may change its memory as soon as this returns.
            source = ctypes.create_string_buffer(ctypes.string_at(src, nbytes), nbytes)
            on.enqueue(Job(memmove, dst, source, nbytes))
            return False
        job = on.enqueue(Job(memmove, dst, src, nbytes))
        if blocking or (kind is CopyKind.D2H and not pinned):
            job.done.wait()
            return False
        return pinned  # True: the stream will still read or write the host's memory

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        self._inside(dst, width * count, "fill")
        data = value.to_bytes(width, "little") * count
        self._stream(stream, "fill").enqueue(Job(memmove, dst, data, len(data)))

    # -- streams -------------------------------------------------------------------------------------------------------

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        stream = next(self._handles)
        self._streams[stream] = Stream()
        return stream

    def stream_destroy(self, stream: int) -> None:
        destroyed = self._stream(stream, "stream_destroy")
        del self._streams[stream]
        # Its work still runs, and `synchronize` waits for it.
        self._destroyed = [each for each in self._destroyed if not each.newest.done.is_set()] + [destroyed]
        destroyed.end()

    def stream_synchronize(self, stream: int) -> None:
        self._stream(stream, "stream_synchronize").wait()

    def stream_query(self, stream: int) -> bool:
        return self._stream(stream, "stream_query").newest.done.is_set()

    def stream_wait(self, stream: int, event: int) -> None:
        on, (_, job) = self._stream(stream, "stream_wait"), self._event(event, "stream_wait")
        if job is not None and not job.done.is_set():
            on.enqueue(Job(job.done.wait))

    def stream_from(self, stream: object) -> int:
        # Of a real runtime: the vendor's own stream object (SupportsForeignStreams). It is used, and never ended.
        if isinstance(stream, int):
            self._stream(stream, "stream_from")
            return stream
        if not isinstance(stream, Stream):
            raise TypeError(f"an example stream is a Stream or its handle, not {stream!r}")
        with self._lock:
            if stream not in self._foreign:
                self._foreign[stream] = next(self._handles)
                self._streams[self._foreign[stream]] = stream
            return self._foreign[stream]

    def synchronize(self) -> None:
        for stream in [*self._streams.values(), *self._destroyed]:
            stream.wait()

    # -- events --------------------------------------------------------------------------------------------------------

    def event_create(self, timing: bool) -> int:
        event = next(self._handles)
        self._events[event] = timing, None
        return event

    def event_destroy(self, event: int) -> None:
        self._event(event, "event_destroy")
        del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        timing, _ = self._event(event, "event_record")
        on = self._stream(stream, "event_record")
        self._events[event] = timing, on.enqueue(Job()) if timing else on.newest

    def event_query(self, event: int) -> bool:
        _, job = self._event(event, "event_query")
        return job is None or job.done.is_set()

    def event_synchronize(self, event: int) -> None:
        _, job = self._event(event, "event_synchronize")
        if job is not None:
            job.done.wait()

    def event_elapsed(self, start: int, end: int) -> float:
        seconds = []
        for event in (start, end):
            timing, job = self._event(event, "event_elapsed")
            if not timing or job is None or not job.done.is_set():
                raise _error("event_elapsed", f"event {event} has no timing, or was not recorded, or is not complete")
            seconds.append(job.seconds)
        return (seconds[1] - seconds[0]) * 1e3

    # -- hold (SupportsHold): the latch by which tests look at work that is pending ------------------------------------

    def hold(self, stream: int) -> int:
        on, hold = self._stream(stream, "hold"), next(self._handles)
        latch = self._holds[hold] = threading.Event()
        on.enqueue(Job(latch.wait))
        return hold

    def release(self, hold: int) -> None:
        self._holds.pop(hold).set()

    def close(self) -> None:
        for latch in self._holds.values():
            latch.set()
        self.synchronize()  # nothing may touch the memory behind the close
        for stream in set(self._streams.values()) - self._foreign.keys():
            stream.end()
        self._blocks.clear()

    # -- checks: a wrong call raises, and changes nothing --------------------------------------------------------------

    def _kind(self, ptr: int) -> MemoryKind | None:
        """The kind of the block around an address; None: memory of the user's, which is pageable."""
        found = self._around(ptr)
        return found and found[2]

    def _inside(self, ptr: int, nbytes: int, call: str) -> None:
        found = self._around(ptr)
        if found is None or ptr + nbytes > found[0] + found[1]:
            raise _error(call, f"{nbytes} bytes at {ptr:#x} are not inside an allocation")

    def _around(self, ptr: int) -> tuple[int, int, MemoryKind] | None:
        for base, (_, size, kind) in list(self._blocks.items()):  # a list at once: other threads allocate meanwhile
            if base <= ptr < base + size:
                return base, size, kind
        return None

    def _stream(self, stream: int, call: str) -> Stream:
        return _known(self._streams, stream, call)

    def _event(self, event: int, call: str) -> tuple[bool, Job | None]:
        return _known(self._events, event, call)


def _known(handles: dict[int, Any], handle: int, call: str) -> Any:
    if handle not in handles:
        raise _error(call, f"{handle:#x} is not a live handle")
    return handles[handle]


def _error(call: str, message: str) -> BackendError:
    return BackendError(f"{call}: {message}", backend="example", call=call, code=1, name="INVALID")
