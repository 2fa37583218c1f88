"""A driver in Python that offers a table of C entry points: callbacks, which do and record what its methods do.

Device memory is memory of the host, so that copies can be looked at. Any function can be made to fail at its n-th call, by the
table or by the method alike.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter

from devmem.spi import SPI_VERSION
from devmem.spi.driver_table import TABLE_VERSION, DriverTable, TableFlags
from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import Capability, DeviceInfo, Exchange

NAMES = (
    *("get_current", "set_current", "allocate", "free", "copy_up", "copy_down", "synchronize"),
    *("stream_query", "event_query", "event_record", "capture_mode", "is_capturing", "enqueue_up", "enqueue_down"),
)
OUT_OF_MEMORY, CURRENT, RELAXED, NOT_READY = 2, 7, 2, 600
_WORD, _SIZE, _POINTER = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
_OUT = ctypes.POINTER(_WORD)
TYPES = {
    "get_current": ctypes.CFUNCTYPE(ctypes.c_int, _OUT),
    "set_current": ctypes.CFUNCTYPE(ctypes.c_int, _WORD),
    "allocate": ctypes.CFUNCTYPE(ctypes.c_int, _OUT, _SIZE, _WORD, _WORD),
    "free": ctypes.CFUNCTYPE(ctypes.c_int, _WORD, _WORD),
    "copy_up": ctypes.CFUNCTYPE(ctypes.c_int, _WORD, _POINTER, _SIZE),
    "copy_down": ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _WORD, _SIZE),
    "synchronize": ctypes.CFUNCTYPE(ctypes.c_int, _WORD),
    "stream_query": ctypes.CFUNCTYPE(ctypes.c_int, _WORD),
    "event_query": ctypes.CFUNCTYPE(ctypes.c_int, _WORD),
    "event_record": ctypes.CFUNCTYPE(ctypes.c_int, _WORD, _WORD),
    "capture_mode": ctypes.CFUNCTYPE(ctypes.c_int, _OUT),
    "is_capturing": ctypes.CFUNCTYPE(ctypes.c_int, _WORD, _OUT),
    "enqueue_up": ctypes.CFUNCTYPE(ctypes.c_int, _WORD, _POINTER, _SIZE, _WORD),
    "enqueue_down": ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _WORD, _SIZE, _WORD),
}
#: With the flag COPIES_TAKE_STREAM: the kind and the stream come too.
COPIES = {
    name: ctypes.CFUNCTYPE(ctypes.c_int, _WORD, _WORD, _SIZE, ctypes.c_int, _WORD)
    for name in ("copy_up", "copy_down", "enqueue_up", "enqueue_down")
}


class TableDriver:
    """One device."""

    def __init__(self, name="table", ordinal=0, copies_take_stream=False, captures=False):
        capabilities = frozenset({Capability.STREAM_ORDERED} | ({Capability.CAPTURE} if captures else set()))
        exchange = Exchange(streams={1: 1, 2: 2})
        self.info = DeviceInfo(
            name, ordinal, "a device with a table", "0", 1 << 20, capabilities=capabilities, exchange=exchange
        )
        self.calls, self.failing, self.current, self.memory = [], {}, CURRENT, {}
        self.capture = threading.local()  # each thread has a mode of its own
        self.capturing_streams = set()
        #: Events that have not passed yet; with True in it none has.
        self.running = set()
        self.table_blocks, self.next = {}, 1 << 20
        self.table = DriverTable(TABLE_VERSION, TableFlags.USABLE, CURRENT, 3, 1, RELAXED)
        types = TYPES | COPIES if copies_take_stream else TYPES
        self.table.flags |= TableFlags.COPIES_TAKE_STREAM if copies_take_stream else 0
        self.callbacks = {name: types[name](getattr(self, f"_{name}")) for name in NAMES}
        for name, callback in self.callbacks.items():
            setattr(self.table, name, ctypes.cast(callback, ctypes.c_void_p).value)

    # -- what both ways do ---------------------------------------------------------------------------------------------

    def fail(self, name, nth, status):
        """Let a function fail at its n-th call from now."""
        self.failing[name] = [nth, status]

    def saw(self, name, *details):
        self.calls.append((name, *details))
        left = self.failing.get(name)
        if left:
            left[0] -= 1
            if left[0] == 0:
                return self.failing.pop(name)[1]
        return 0

    def table_refused(self, call, status):
        kind = OutOfMemory if status == OUT_OF_MEMORY else BackendError
        raise kind(
            f"{NAMES[call]} failed with {status}", backend="table", call=NAMES[call], code=status, name=str(status)
        )

    def checked(self, name, *arguments):
        status = getattr(self, f"_{name}")(*arguments)
        if status:
            self.table_refused(NAMES.index(name), status)

    def _get_current(self, out):
        status = self.saw("get_current")
        out[0] = self.current
        return status

    def _set_current(self, value):
        self.current = value
        return self.saw("set_current", value)

    def _allocate(self, out, nbytes, pool, stream):
        status = self.saw("allocate", nbytes, stream) or (OUT_OF_MEMORY if nbytes > self.info.total_bytes else 0)
        if not status:
            memory = ctypes.create_string_buffer(nbytes)
            out[0] = ctypes.addressof(memory)
            self.memory[out[0]] = memory
        return status

    def _free(self, address, stream):
        status = self.saw("free", len(self.memory[address]), stream)
        del self.memory[address]
        return status

    def _copy_up(self, to, source, nbytes, kind=1, stream=1):
        assert (kind, stream) == (1, 1)
        status = self.saw("copy_up", nbytes)
        if not status:
            ctypes.memmove(to, source, nbytes)
        return status

    def _copy_down(self, to, source, nbytes, kind=2, stream=1):
        assert (kind, stream) == (2, 1)
        status = self.saw("copy_down", nbytes)
        if not status:
            ctypes.memmove(to, source, nbytes)
        return status

    def _enqueue_up(self, to, source, nbytes, *kind_and_stream):
        return self._enqueue("enqueue_up", to, source, nbytes, *kind_and_stream)

    def _enqueue_down(self, to, source, nbytes, *kind_and_stream):
        return self._enqueue("enqueue_down", to, source, nbytes, *kind_and_stream)

    def _enqueue(self, name, to, source, nbytes, *kind_and_stream):
        *kind, stream = kind_and_stream
        assert kind == ([1 if name == "enqueue_up" else 2] if self.table.flags & TableFlags.COPIES_TAKE_STREAM else [])
        status = self.saw(name, nbytes, stream)
        if not status:
            ctypes.memmove(to, source, nbytes)
        return status

    def _synchronize(self, stream):
        return self.saw("synchronize", stream)

    def _stream_query(self, stream):
        return self.saw("stream_query", stream)

    def _event_query(self, event):
        assert getattr(self.capture, "mode", 0) == RELAXED
        return self.saw("event_query", int(event)) or (NOT_READY if self.running & {event, True} else 0)

    def _event_record(self, event, stream):
        return self.saw("event_record", int(event), stream)  # not the object, which goes back by itself

    def _capture_mode(self, mode):
        mode[0], self.capture.mode = getattr(self.capture, "mode", 0), mode[0]
        return 0

    def _is_capturing(self, stream, found):
        found[0] = stream in self.capturing_streams
        return self.saw("is_capturing", stream)

    # -- the driver's own methods --------------------------------------------------------------------------------------

    def enter(self):
        before = (_WORD * 1)()
        self.checked("get_current", before)
        if before[0] == CURRENT:
            return None
        self.checked("set_current", CURRENT)
        return before[0]

    def exit(self, token):
        if token is not None:
            self.checked("set_current", token)

    def alloc_async(self, nbytes, stream):
        out = (_WORD * 1)()
        self.checked("allocate", out, nbytes, 3, stream)
        ptr = int(out[0])
        self.table_blocks[ptr] = ptr
        return ptr

    def free_async(self, ptr, nbytes, stream):
        self.table_blocks.pop(ptr, None)
        self.checked("free", ptr, stream)

    def alloc(self, nbytes, stream, kind=None, flags=None):
        return self.alloc_async(nbytes, stream)

    def free(self, ptr, nbytes, stream, kind=None):
        self.free_async(ptr, nbytes, stream)

    def copy(self, dst, src, nbytes, kind, stream, *, blocking):
        name = {"h2d": "copy_up", "d2h": "copy_down"}.get(kind.value)
        if name is None:
            self.saw("copy_on_device", nbytes)
            ctypes.memmove(dst, src, nbytes)
        elif blocking:
            self.checked(name, dst, src, nbytes)
        else:
            numbers = [1 + (name == "copy_down")] if self.table.flags & TableFlags.COPIES_TAKE_STREAM else []
            self.checked(name.replace("copy", "enqueue"), dst, src, nbytes, *numbers, stream)
        return name is not None and not blocking

    def fill(self, dst, value, width, count, stream):
        self.saw("fill", count)
        for at in range(count):
            ctypes.memmove(dst + at * width, value.to_bytes(width, "little"), width)

    def memory_info(self):
        return self.info.total_bytes, self.info.total_bytes

    def _handle(self):
        self.next += 16
        return self.next

    def stream_create(self, priority, non_blocking):
        self.saw("stream_create")
        return self._handle()

    def stream_destroy(self, stream):
        self.saw("stream_destroy")

    def stream_synchronize(self, stream):
        self.checked("synchronize", stream)

    def capturing(self, stream):
        found = (_WORD * 1)()
        self.checked("is_capturing", stream, found)
        return bool(found[0])

    def stream_query(self, stream):
        return not self._stream_query(stream)

    def stream_wait(self, stream, event):
        self.saw("stream_wait")

    def event_create(self, timing):
        return self._handle()

    def event_destroy(self, event):
        pass

    def event_record(self, event, stream):
        self.checked("event_record", event, stream)

    def event_query(self, event):
        self.capture.mode = RELAXED
        status = self._event_query(event)
        self.capture.mode = 0
        return not status

    def event_synchronize(self, event):
        pass

    def event_elapsed(self, start, end):
        return 0.0

    def synchronize(self):
        self.saw("device_synchronize")

    def close(self):
        self.saw("close")


class TableBackend:
    """A backend with one such device."""

    spi_version = SPI_VERSION

    def __init__(self, name="table", copies_take_stream=False, captures=False):
        self.name = name
        self.copies_take_stream, self.captures = copies_take_stream, captures
        self.driver = None

    def unavailable(self):
        return None

    def device_count(self):
        return 1

    def open(self, ordinal):
        self.driver = TableDriver(self.name, ordinal, self.copies_take_stream, self.captures)
        return self.driver


def count(calls):
    """How often each function was called."""
    return Counter(call[0] for call in calls)
