"""The timed functions: one for each pair of a library and a verb.

Each takes a `Place` and returns a function without arguments that uses the verb once. The cell of a library that is not
installed, or of a verb that it lacks, stays empty. To add a function, only its definition is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import devmem as dm
from devmem.spi.types import Capability, CopyKind

ELEMENTS = 16

Once = Callable[[], object]
Case = Callable[["Place"], Once]

#: (library, verb) -> case; the verbs of the first library set the order of the table.
CASES: dict[tuple[str, str], Case] = {}


@dataclass
class Place:
    """The operands of a case: the driver of the current device, its default stream, and arrays of `ELEMENTS` f8."""

    driver: Any = field(init=False)
    stream: int = field(init=False)
    host: np.ndarray[Any, Any] = field(default_factory=lambda: np.arange(float(ELEMENTS)))
    out: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(ELEMENTS))

    def __post_init__(self) -> None:
        self.driver = dm.current_device().driver()
        self.stream = dm.default_stream().handle

    @property
    def nbytes(self) -> int:
        return int(self.host.nbytes)

    def memory(self) -> tuple[Callable[[int, int], int], Callable[[int, int, int], None]]:
        """The driver's allocation functions that devmem calls by default."""
        driver = self.driver
        if Capability.STREAM_ORDERED in driver.info.capabilities:
            return driver.alloc_async, driver.free_async
        return driver.alloc, driver.free


def case(library: str, verb: str) -> Callable[[Case], Case]:
    """Register the function of a library for a verb."""

    def register(function: Case) -> Case:
        assert (library, verb) not in CASES
        CASES[library, verb] = function
        return function

    return register


def verbs() -> list[str]:
    """The verbs in order of definition."""
    return list(dict.fromkeys(verb for _, verb in CASES))


# -- devmem ------------------------------------------------------------------------------------------------------------


@case("devmem", "to_device + free")
def _(place: Place) -> Once:
    host = place.host
    return lambda: dm.to_device(host).free()


@case("devmem", "to_device + free, stream")
def _(place: Place) -> Once:
    host, stream = place.host, dm.stream()
    return lambda: dm.to_device(host, stream).free()


@case("devmem", "to_device, dropped")
def _(place: Place) -> Once:
    host = place.host
    return lambda: dm.to_device(host)


@case("devmem", "to_device(to=)")
def _(place: Place) -> Once:
    host, array = place.host, dm.device_array(ELEMENTS)
    return lambda: dm.to_device(host, to=array)


@case("devmem", "copy_to_device")
def _(place: Place) -> Once:
    host, array = place.host, dm.device_array(ELEMENTS)
    return lambda: array.copy_to_device(host)


@case("devmem", "copy_to_device, stream")
def _(place: Place) -> Once:
    host, array, stream = place.host, dm.device_array(ELEMENTS), dm.stream()
    return lambda: array.copy_to_device(host, stream)


@case("devmem", "copy_to_host()")
def _(place: Place) -> Once:
    array = dm.to_device(place.host)
    return lambda: array.copy_to_host()


@case("devmem", "copy_to_host(out)")
def _(place: Place) -> Once:
    array, out = dm.to_device(place.host), place.out
    return lambda: array.copy_to_host(out)


@case("devmem", "copy_to_host(out), stream")
def _(place: Place) -> Once:
    array, out, stream = dm.to_device(place.host), place.out, dm.stream()
    return lambda: array.copy_to_host(out, stream)


@case("devmem", "device_array + free")
def _(place: Place) -> Once:
    return lambda: dm.device_array(ELEMENTS).free()


@case("devmem", "device_array + free, stream")
def _(place: Place) -> Once:
    stream = dm.stream()
    return lambda: dm.device_array(ELEMENTS, stream=stream).free()


@case("devmem", "device_array, dropped")
def _(place: Place) -> Once:
    return lambda: dm.device_array(ELEMENTS)


@case("devmem", "fill")
def _(place: Place) -> Once:
    array = dm.device_array(ELEMENTS, np.float32)
    return lambda: array.fill(1)


@case("devmem", "fill, stream")
def _(place: Place) -> Once:
    array, stream = dm.device_array(ELEMENTS, np.float32), dm.stream()
    return lambda: array.fill(1, stream)


@case("devmem", "d[3:9]")
def _(place: Place) -> Once:
    array = dm.device_array(ELEMENTS)
    return lambda: array[3:9]


@case("devmem", "d[2] of a matrix")
def _(place: Place) -> Once:
    array = dm.device_array((4, 4))
    return lambda: array[2]


@case("devmem", "d[2], one element")
def _(place: Place) -> Once:
    array = dm.to_device(place.host)
    return lambda: array[2]


@case("devmem", "reshape")
def _(place: Place) -> Once:
    array = dm.device_array(ELEMENTS)
    return lambda: array.reshape(4, 4)


@case("devmem", "stream + close")
def _(place: Place) -> Once:
    return lambda: dm.stream().close()


@case("devmem", "stream, dropped")
def _(place: Place) -> Once:
    return lambda: dm.stream()


@case("devmem", "event + record + close")
def _(place: Place) -> Once:
    def once() -> None:
        event = dm.event()
        event.record()
        event.close()

    return once


@case("devmem", "event.record, stream")
def _(place: Place) -> Once:
    event, stream = dm.event(), dm.stream()
    return lambda: event.record(stream)


# -- the driver's own calls, made directly -----------------------------------------------------------------------------
#
# The same calls in the same order as in the verbs above, with addresses given and nothing recorded or checked; the table of calls
# shows both. devmem frees several dropped arrays at once, so here the device is entered only for the use.


def _upload(place: Place, stream: int, *, blocking: bool) -> Once:
    driver, nbytes, source = place.driver, place.nbytes, place.host.ctypes.data
    enter, leave, copy = driver.enter, driver.exit, driver.copy
    alloc, free = place.memory()
    kind = CopyKind.H2D

    def once() -> None:
        token = enter()
        ptr = alloc(nbytes, stream)
        copy(ptr, source, nbytes, kind, stream, blocking=blocking)
        if token is not None:
            leave(token)
        token = enter()
        free(ptr, nbytes, stream)
        if token is not None:
            leave(token)

    return once


def _copy(place: Place, kind: CopyKind, stream: int, *, blocking: bool) -> Once:
    driver, nbytes = place.driver, place.nbytes
    enter, leave, copy = driver.enter, driver.exit, driver.copy
    # The arrays live as long as the function.
    device, host = dm.device_array(ELEMENTS), place.out if kind is CopyKind.D2H else place.host
    at, other = device.ptr, host.ctypes.data
    dst, src = (at, other) if kind is CopyKind.H2D else (other, at)

    def once(_keep: object = (device, host)) -> None:
        token = enter()
        copy(dst, src, nbytes, kind, stream, blocking=blocking)
        if token is not None:
            leave(token)

    return once


def _allocate(place: Place, stream: int) -> Once:
    driver, nbytes = place.driver, place.nbytes
    enter, leave = driver.enter, driver.exit
    alloc, free = place.memory()

    def once() -> None:
        token = enter()
        ptr = alloc(nbytes, stream)
        if token is not None:
            leave(token)
        token = enter()
        free(ptr, nbytes, stream)
        if token is not None:
            leave(token)

    return once


def _fill(place: Place, stream: int, *, blocking: bool) -> Once:
    driver = place.driver
    enter, leave, fill, synchronize = driver.enter, driver.exit, driver.fill, driver.stream_synchronize
    device = dm.device_array(ELEMENTS, np.float32)
    at = device.ptr

    def once(_keep: object = device) -> None:
        token = enter()
        fill(at, 0x3F800000, 4, ELEMENTS, stream)
        if blocking:
            synchronize(stream)
        if token is not None:
            leave(token)

    return once


@case("driver", "to_device + free")
def _(place: Place) -> Once:
    return _upload(place, place.stream, blocking=True)


@case("driver", "to_device + free, stream")
def _(place: Place) -> Once:
    return _on_stream(lambda handle: _upload(place, handle, blocking=False))


@case("driver", "to_device, dropped")
def _(place: Place) -> Once:
    driver, nbytes, source, stream = place.driver, place.nbytes, place.host.ctypes.data, place.stream
    enter, leave, copy = driver.enter, driver.exit, driver.copy
    alloc, free = place.memory()
    kind = CopyKind.H2D

    def once() -> None:
        token = enter()
        ptr = alloc(nbytes, stream)
        copy(ptr, source, nbytes, kind, stream, blocking=True)
        free(ptr, nbytes, stream)
        if token is not None:
            leave(token)

    return once


@case("driver", "to_device(to=)")
def _(place: Place) -> Once:
    return _copy(place, CopyKind.H2D, place.stream, blocking=True)


@case("driver", "copy_to_device")
def _(place: Place) -> Once:
    return _copy(place, CopyKind.H2D, place.stream, blocking=True)


@case("driver", "copy_to_device, stream")
def _(place: Place) -> Once:
    return _on_stream(lambda handle: _copy(place, CopyKind.H2D, handle, blocking=False))


@case("driver", "copy_to_host()")
def _(place: Place) -> Once:
    return _copy(place, CopyKind.D2H, place.stream, blocking=True)


@case("driver", "copy_to_host(out)")
def _(place: Place) -> Once:
    return _copy(place, CopyKind.D2H, place.stream, blocking=True)


@case("driver", "copy_to_host(out), stream")
def _(place: Place) -> Once:
    return _on_stream(lambda handle: _copy(place, CopyKind.D2H, handle, blocking=False))


@case("driver", "device_array + free")
def _(place: Place) -> Once:
    return _allocate(place, place.stream)


@case("driver", "device_array + free, stream")
def _(place: Place) -> Once:
    return _on_stream(lambda handle: _allocate(place, handle))


@case("driver", "device_array, dropped")
def _(place: Place) -> Once:
    driver, nbytes, stream = place.driver, place.nbytes, place.stream
    enter, leave = driver.enter, driver.exit
    alloc, free = place.memory()

    def once() -> None:
        token = enter()
        free(alloc(nbytes, stream), nbytes, stream)
        if token is not None:
            leave(token)

    return once


@case("driver", "fill")
def _(place: Place) -> Once:
    return _fill(place, place.stream, blocking=True)


@case("driver", "fill, stream")
def _(place: Place) -> Once:
    return _on_stream(lambda handle: _fill(place, handle, blocking=False))


@case("driver", "d[2], one element")
def _(place: Place) -> Once:
    return _copy(place, CopyKind.D2H, place.stream, blocking=True)


@case("driver", "stream + close")
def _(place: Place) -> Once:
    driver = place.driver
    enter, leave, create, destroy = driver.enter, driver.exit, driver.stream_create, driver.stream_destroy
    synchronize = driver.stream_synchronize

    def once() -> None:
        token = enter()
        stream = create(0, False)
        if token is not None:
            leave(token)
        token = enter()
        synchronize(stream)
        if token is not None:
            leave(token)
        token = enter()
        destroy(stream)
        if token is not None:
            leave(token)

    return once


@case("driver", "stream, dropped")
def _(place: Place) -> Once:
    driver = place.driver
    enter, leave, create, destroy = driver.enter, driver.exit, driver.stream_create, driver.stream_destroy
    query = driver.stream_query

    def once() -> None:
        token = enter()
        stream = create(0, False)
        query(stream)
        destroy(stream)
        if token is not None:
            leave(token)

    return once


@case("driver", "event + record + close")
def _(place: Place) -> Once:
    driver = place.driver
    enter, leave = driver.enter, driver.exit
    create, record, destroy = driver.event_create, driver.event_record, driver.event_destroy

    def once() -> None:
        token = enter()
        event = create(True)
        if token is not None:
            leave(token)
        token = enter()
        record(event, place.stream)
        if token is not None:
            leave(token)
        token = enter()
        destroy(event)
        if token is not None:
            leave(token)

    return once


@case("driver", "event.record, stream")
def _(place: Place) -> Once:
    driver = place.driver
    enter, leave, record = driver.enter, driver.exit, driver.event_record
    event, stream = dm.event(), dm.stream()
    mark, handle = event.handle, stream.handle

    def once(_keep: object = (event, stream)) -> None:
        token = enter()
        record(mark, handle)
        if token is not None:
            leave(token)

    return once


def _on_stream(make: Callable[[int], Once]) -> Once:
    stream = dm.stream()
    once = make(stream.handle)
    once.__dict__["keeps"] = stream  # alive for as long as its handle is used
    return once
