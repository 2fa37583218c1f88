"""The driver: memory of the host, and every call complete on return. Only what the contract requires."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
import time

from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, AllocFlags, CopyKind, DeviceInfo, MemoryKind

TOTAL_BYTES = 1 << 30


class ExampleDriver:
    """One open device. Work is done at once, so streams and events are bookkeeping."""

    info = DeviceInfo("example", 0, "Example device", "example-0000", TOTAL_BYTES)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles = itertools.count(16)
        self._blocks: dict[int, tuple[mmap.mmap, int]] = {}
        self._used = 0
        self._streams = {LEGACY_STREAM, PER_THREAD_STREAM}
        self._events: dict[int, tuple[bool, float | None]] = {}  # timing?, recorded when

    def enter(self) -> object:
        return None

    def exit(self, token: object) -> None:
        pass

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if not nbytes:
            return 0
        with self._lock:
            if self._used + nbytes > TOTAL_BYTES:
                free = TOTAL_BYTES - self._used
                raise OutOfMemory(f"{nbytes} bytes, {free} free", backend="example", call="alloc", code=2, name="FULL")
            block = mmap.mmap(-1, nbytes)  # page-aligned, which is more than the 256 asked for
            ptr = ctypes.addressof(ctypes.c_char.from_buffer(block))
            self._blocks[ptr] = (block, nbytes)
            self._used += nbytes
            return ptr

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        with self._lock:
            if ptr not in self._blocks:
                raise _error("free", f"{ptr:#x} is not an allocation")
            block, size = self._blocks.pop(ptr)
            self._used -= size
            block.close()

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        self._known(stream, "copy")
        if kind is not CopyKind.H2D:
            self._inside(src, nbytes, "copy")
        if kind is not CopyKind.D2H:
            self._inside(dst, nbytes, "copy")
        ctypes.memmove(dst, src, nbytes)
        return False  # the host side is not touched any more

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        self._known(stream, "fill")
        self._inside(dst, width * count, "fill")
        unit = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32}[width]
        ctypes.memmove(dst, bytes(unit(value)) * count, width * count)

    def memory_info(self) -> tuple[int, int]:
        return TOTAL_BYTES - self._used, TOTAL_BYTES

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        stream = next(self._handles)
        self._streams.add(stream)
        return stream

    def stream_destroy(self, stream: int) -> None:
        self._known(stream, "stream_destroy")
        self._streams.discard(stream)

    def stream_synchronize(self, stream: int) -> None:
        self._known(stream, "stream_synchronize")

    def stream_query(self, stream: int) -> bool:
        self._known(stream, "stream_query")
        return True

    def stream_wait(self, stream: int, event: int) -> None:
        self._known(stream, "stream_wait")
        self._recorded(event, "stream_wait")

    def event_create(self, timing: bool) -> int:
        event = next(self._handles)
        self._events[event] = (timing, None)
        return event

    def event_destroy(self, event: int) -> None:
        self._recorded(event, "event_destroy")
        del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        self._known(stream, "event_record")
        self._recorded(event, "event_record")
        self._events[event] = (self._events[event][0], time.perf_counter())

    def event_query(self, event: int) -> bool:
        self._recorded(event, "event_query")
        return True

    def event_synchronize(self, event: int) -> None:
        self._recorded(event, "event_synchronize")

    def event_elapsed(self, start: int, end: int) -> float:
        first, last = self._recorded(start, "event_elapsed"), self._recorded(end, "event_elapsed")
        if first is None or last is None or not (self._events[start][0] and self._events[end][0]):
            raise _error("event_elapsed", "both events must be made with timing and recorded")
        return (last - first) * 1e3

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        self._blocks.clear()

    def _inside(self, ptr: int, nbytes: int, call: str) -> None:
        # A list at once: other threads allocate meanwhile.
        if not any(base <= ptr and ptr + nbytes <= base + size for base, (_, size) in list(self._blocks.items())):
            raise _error(call, f"{nbytes} bytes at {ptr:#x} are not inside an allocation")

    def _known(self, stream: int, call: str) -> None:
        if stream not in self._streams:
            raise _error(call, f"{stream:#x} is not a stream")

    def _recorded(self, event: int, call: str) -> float | None:
        if event not in self._events:
            raise _error(call, f"{event:#x} is not an event")
        return self._events[event][1]


def _error(call: str, message: str) -> BackendError:
    return BackendError(f"{call}: {message}", backend="example", call=call, code=1, name="INVALID")
