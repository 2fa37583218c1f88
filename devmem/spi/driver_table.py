"""A driver's table of C entry points, which the compiled core calls in place of the driver's methods.

Offering one is optional, and changes nothing but the cost of a call: each entry is a public function of the vendor's library,
called as the driver's own method would call it, with the device current and without the GIL. Each returns 0, or the status.

What the table serves is the commonest: memory that is ordered on the legacy default stream, blocking copies of one run of bytes
on that stream, and such copies enqueued on another; streams and events that are used again. Everything else goes through the
driver's methods, as does everything where an adaptor, a fault injector, a trace or a Python driver stands between.
"""

from __future__ import annotations

import ctypes
from enum import IntFlag
from typing import NoReturn, Protocol

#: The layout of `DriverTable`. A table of another version is not used.
TABLE_VERSION = 4


class TableFlags(IntFlag):
    """The state of a table, which its driver may change at any time.

    ``USABLE``: calls may be made; a driver takes it back when its device is lost. ``UPLOADS_WAIT``: after each blocking upload
    the stream is waited for, because streams exist that are not ordered with it. ``COPIES_TAKE_STREAM``: all four copies take
    their kind (an int, 1 to the device and 2 from it) and the stream behind the bytes.
    """

    USABLE = 1
    UPLOADS_WAIT = 2
    COPIES_TAKE_STREAM = 4


class DriverTable(ctypes.Structure):
    """Addresses of functions, and the handles that they are given; all integers are 64 bits wide, in the machine's order.

    ``get_current(out)`` stores what is current on the calling thread, in 32 or 64 of the 64 bits, which are 0 before;
    ``set_current(value)`` makes it current, and ``current`` is this device's value. ``allocate(out, nbytes, pool, stream)``
    stores an address, ``free(address, stream)`` gives it back in the order of the stream; both are 0 where ``pool`` is, and only
    blocks of a devmem pool are served. ``copy_up(to, from, nbytes)`` and
    ``copy_down(to, from, nbytes)`` copy from and to host memory, ordered on the legacy default stream, and return when the
    host side is read or written. ``enqueue_up(to, from, nbytes, stream)`` and ``enqueue_down`` only enqueue a copy on a stream;
    0 where the driver has to choose among its calls. ``synchronize(stream)`` waits. ``stream`` is the vendor's handle of the
    legacy default stream.

    ``stream_query(stream)`` and ``event_query(event)`` return 0 where it has passed all of its work and 600 where it has not, and
    ``event_record(event, stream)`` records; streams and events are known by the numbers that the driver's own methods gave.
    ``capture_mode(mode)`` sets the calling thread's stream capture mode and stores the previous one there, in 32 of the 64 bits.
    In the mode ``relaxed`` the thread's calls do not invalidate captures of other threads. ``is_capturing(stream, out)`` stores
    whether a graph is captured on the stream, or was until the capture was invalidated, in 32 of the 64 bits; 0: none is.
    """

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("current", ctypes.c_uint64),
        ("pool", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("relaxed", ctypes.c_uint64),
        ("get_current", ctypes.c_void_p),
        ("set_current", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
        ("copy_up", ctypes.c_void_p),
        ("copy_down", ctypes.c_void_p),
        ("synchronize", ctypes.c_void_p),
        ("stream_query", ctypes.c_void_p),
        ("event_query", ctypes.c_void_p),
        ("event_record", ctypes.c_void_p),
        ("capture_mode", ctypes.c_void_p),
        ("is_capturing", ctypes.c_void_p),
        ("enqueue_up", ctypes.c_void_p),
        ("enqueue_down", ctypes.c_void_p),
    )


class OffersTable(Protocol):
    """A driver with a table: the class has these attributes (one that passes a driver on has not, and its methods are called).

    The driver's own methods free blocks that came from the table, too. When it is closed, all of them were given back.
    """

    #: The addresses of live blocks that the driver's own methods have given: the core takes out those that it frees by the table.
    table_blocks: dict[int, int]

    @property
    def table(self) -> DriverTable | None:
        """The table, the same for as long as the device is open; None where the vendor's library lacks one of the functions."""

    def table_refused(self, call: int, status: int) -> NoReturn:
        """Raise what the driver's own method would raise for a status of a function; the functions are numbered from 0."""
