"""The functions timed over the emulated CUDA driver: one for each pair of a library and a verb.

Each takes a `Place` and returns a function without arguments that uses the verb once. Cells of verbs that a library lacks stay
empty: the bare bindings and cuda.core have no arrays to slice.

Work goes to the legacy default stream, except where a verb names a stream of its own and page-locked memory.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

import devmem as dm

ELEMENTS = 16

DEVMEM = "devmem"
#: devmem if no other library has left the primary context current, so that devmem makes it current and restores it.
ALONE = "devmem, none current"
#: devmem with its own pool above the driver's memory.
POOLED = "devmem, pool"
BARE, BARE_POOL = "bare", "bare, pool"
NUMBA = "numba-cuda"
CORE = "cuda.core"

Once = Callable[[], object]
Case = Callable[["Place"], Once]

CASES: dict[tuple[str, str], Case] = {}


@dataclass
class Place:
    """Arrays of `ELEMENTS` f8, a pool of the bare bindings, and the other libraries, or the reasons why they are missing."""

    host: np.ndarray[Any, Any] = field(default_factory=lambda: np.arange(float(ELEMENTS)))
    out: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(ELEMENTS))
    primary: Any = field(init=False)
    pool: Any = field(init=False)
    legacy: Any = field(init=False)
    numba: Any = None
    core: Any = None
    core_device: Any = None
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dm.use_backend("cuda")
        dm.to_device(self.host).free()
        self.versions["cuda-bindings"] = importlib.metadata.version("cuda-bindings")
        _, device = cu.cuDeviceGet(0)
        _, self.primary = cu.cuDevicePrimaryCtxRetain(device)
        _, self.pool = cu.cuDeviceGetDefaultMemPool(device)
        self.legacy = cu.CUstream(1)
        self.current(BARE)
        for library, found in ((NUMBA, self._find_numba), (CORE, self._find_core)):
            try:
                found()
            except Exception as error:  # a library that fails to load is reported, and the others are measured
                self.missing[library] = f"{type(error).__name__}: {error}".partition("\n")[0]

    def _find_numba(self) -> None:
        self.versions["numba"], self.versions[NUMBA] = map(importlib.metadata.version, ("numba", "numba-cuda"))
        numba = importlib.import_module("numba.cuda")
        numba.to_device(self.host)
        self.numba = numba

    def _find_core(self) -> None:
        self.versions[CORE] = importlib.metadata.version("cuda-core")
        core = importlib.import_module("cuda.core")
        device = core.Device()
        device.set_current()
        device.allocate(self.host.nbytes, stream=core.LEGACY_DEFAULT_STREAM).close()
        self.core, self.core_device = core, device

    def current(self, library: str) -> None:
        """Make the primary context current, as every library but devmem leaves it, or no context; and select devmem's memory."""
        dm.use_memory("pool" if library == POOLED else "stream_ordered")
        cu.cuCtxSetCurrent(0 if library == ALONE else self.primary)

    def cases(self, verb: str) -> dict[str, Once]:
        """The functions for a verb, ready to be called, by library."""
        made = {}
        for (library, name), case in CASES.items():
            if name == verb and library not in self.missing:
                self.current(library)
                made[library] = case(self)
        return made


def case(verb: str, *libraries: str) -> Callable[[Case], Case]:
    """Register the function of a library for a verb."""

    def register(function: Case) -> Case:
        for library in libraries:
            assert (library, verb) not in CASES
            CASES[library, verb] = function
        return function

    return register


def verbs() -> list[str]:
    """The verbs in order of definition."""
    return list(dict.fromkeys(verb for _, verb in CASES))


# -- devmem ------------------------------------------------------------------------------------------------------------


@case("to_device + free", DEVMEM, ALONE, POOLED)
def _(place: Place) -> Once:
    host = place.host
    return lambda: dm.to_device(host).free()


@case("to_device, dropped", DEVMEM, ALONE, POOLED)
def _(place: Place) -> Once:
    host = place.host
    return lambda: dm.to_device(host)


@case("to_device, dropped beside a stream", DEVMEM, ALONE, POOLED)
def _(place: Place) -> Once:
    return partial(_upload, place.host, dm.stream())


def _upload(host: np.ndarray[Any, Any], alive: object) -> None:
    dm.to_device(host)


@case("to_device(to=)", DEVMEM, ALONE)
def _(place: Place) -> Once:
    array, host = dm.to_device(place.host), place.host
    return lambda: dm.to_device(host, to=array)


@case("copy_to_device", DEVMEM, ALONE)
def _(place: Place) -> Once:
    array, host = dm.to_device(place.host), place.host
    return lambda: array.copy_to_device(host)


@case("copy_to_device, stream", DEVMEM, ALONE)
def _(place: Place) -> Once:
    array, host, stream = dm.to_device(place.host), dm.pinned_array(ELEMENTS), dm.stream()
    return lambda: array.copy_to_device(host, stream)


@case("copy_to_host(out), stream", DEVMEM, ALONE)
def _(place: Place) -> Once:
    array, out, stream = dm.to_device(place.host), dm.pinned_array(ELEMENTS), dm.stream()
    return lambda: array.copy_to_host(out, stream)


@case("copy_to_device, stream, synchronize", DEVMEM, ALONE)
def _(place: Place) -> Once:
    array, host, stream = dm.to_device(place.host), dm.pinned_array(ELEMENTS), dm.stream()

    def once() -> None:
        array.copy_to_device(host, stream)
        stream.synchronize()

    return once


@case("copy_to_host()", DEVMEM, ALONE)
def _(place: Place) -> Once:
    array = dm.to_device(place.host)
    return lambda: array.copy_to_host()


@case("copy_to_host(out)", DEVMEM, ALONE)
def _(place: Place) -> Once:
    array, out = dm.to_device(place.host), place.out
    return lambda: array.copy_to_host(out)


@case("device_array + free", DEVMEM, ALONE, POOLED)
def _(place: Place) -> Once:
    return lambda: dm.device_array(ELEMENTS).free()


@case("device_array, dropped", DEVMEM, ALONE, POOLED)
def _(place: Place) -> Once:
    return lambda: dm.device_array(ELEMENTS)


@case("device_array of a shape and a dtype, dropped", DEVMEM, ALONE, POOLED)
def _(place: Place) -> Once:
    shape = ELEMENTS // 4, 4
    return lambda: dm.device_array(shape, "f4")


@case("pinned_array, dropped", DEVMEM, ALONE)
def _(place: Place) -> Once:
    return lambda: dm.pinned_array(ELEMENTS)


@case("d[3:9]", DEVMEM)
def _(place: Place) -> Once:
    array = dm.device_array(ELEMENTS)
    return lambda: array[3:9]


@case("d[3]", DEVMEM)
def _(place: Place) -> Once:
    array = dm.to_device(place.host).reshape(4, -1)
    return lambda: array[3]


@case("d[3:9].copy_to_device", DEVMEM)
def _(place: Place) -> Once:
    array, host = dm.to_device(place.host), place.host[:6].copy()
    return lambda: array[3:9].copy_to_device(host)


@case("reshape", DEVMEM)
def _(place: Place) -> Once:
    array = dm.device_array(ELEMENTS)
    return lambda: array.reshape(4, -1)


@case("DLPack export + import", DEVMEM)
def _(place: Place) -> Once:
    array = dm.device_array(ELEMENTS)
    return lambda: dm.from_dlpack(array)


@case("stream + close", DEVMEM, ALONE)
def _(place: Place) -> Once:
    return lambda: dm.stream().close()


@case("stream, dropped", DEVMEM, ALONE)
def _(place: Place) -> Once:
    return dm.stream


@case("event + record + close", DEVMEM, ALONE)
def _(place: Place) -> Once:
    def once() -> None:
        event = dm.event()
        event.record()
        event.close()

    return once


# -- the bare bindings -------------------------------------------------------------------------------------------------
#
# Only the vendor's calls: host arrays go through the buffer protocol, and status codes are not checked. Nothing can be dropped:
# blocks are freed, as in the other verb.


@case("to_device, dropped beside a stream", BARE)
@case("to_device, dropped", BARE)
@case("to_device + free", BARE)
def _(place: Place) -> Once:
    host, nbytes = place.host, place.host.nbytes
    alloc, copy, free = cu.cuMemAlloc, cu.cuMemcpyHtoD, cu.cuMemFree

    def once() -> None:
        _, ptr = alloc(nbytes)
        copy(ptr, host, nbytes)
        free(ptr)

    return once


@case("to_device, dropped beside a stream", BARE_POOL)
@case("to_device, dropped", BARE_POOL)
@case("to_device + free", BARE_POOL)
def _(place: Place) -> Once:
    host, nbytes, pool, stream = place.host, place.host.nbytes, place.pool, place.legacy
    alloc, copy, free = cu.cuMemAllocFromPoolAsync, cu.cuMemcpyHtoD, cu.cuMemFreeAsync

    def once() -> None:
        _, ptr = alloc(nbytes, pool, stream)
        copy(ptr, host, nbytes)
        free(ptr, stream)

    return once


@case("copy_to_device", BARE)
@case("to_device(to=)", BARE)
def _(place: Place) -> Once:
    host, nbytes, copy = place.host, place.host.nbytes, cu.cuMemcpyHtoD
    _, ptr = cu.cuMemAlloc(nbytes)
    return lambda: copy(ptr, host, nbytes)


@case("copy_to_device, stream", BARE)
def _(place: Place) -> Once:
    host, nbytes, copy = dm.pinned_array(ELEMENTS), place.host.nbytes, cu.cuMemcpyHtoDAsync
    _, ptr = cu.cuMemAlloc(nbytes)
    _, stream = cu.cuStreamCreate(0)
    return lambda: copy(ptr, host, nbytes, stream)


@case("copy_to_host(out), stream", BARE)
def _(place: Place) -> Once:
    out, nbytes, copy = dm.pinned_array(ELEMENTS), place.host.nbytes, cu.cuMemcpyDtoHAsync
    _, ptr = cu.cuMemAlloc(nbytes)
    _, stream = cu.cuStreamCreate(0)
    return lambda: copy(out, ptr, nbytes, stream)


@case("copy_to_device, stream, synchronize", BARE)
def _(place: Place) -> Once:
    host, nbytes, copy, wait = (
        dm.pinned_array(ELEMENTS),
        place.host.nbytes,
        cu.cuMemcpyHtoDAsync,
        cu.cuStreamSynchronize,
    )
    _, ptr = cu.cuMemAlloc(nbytes)
    _, stream = cu.cuStreamCreate(0)

    def once() -> None:
        copy(ptr, host, nbytes, stream)
        wait(stream)

    return once


@case("copy_to_host()", BARE)
def _(place: Place) -> Once:
    nbytes, copy, empty = place.host.nbytes, cu.cuMemcpyDtoH, np.empty
    _, ptr = cu.cuMemAlloc(nbytes)

    def once() -> object:
        out = empty(ELEMENTS)
        copy(out, ptr, nbytes)
        return out

    return once


@case("copy_to_host(out)", BARE)
def _(place: Place) -> Once:
    out, nbytes, copy = place.out, place.host.nbytes, cu.cuMemcpyDtoH
    _, ptr = cu.cuMemAlloc(nbytes)
    return lambda: copy(out, ptr, nbytes)


@case("device_array of a shape and a dtype, dropped", BARE)
@case("device_array, dropped", BARE)
@case("device_array + free", BARE)
def _(place: Place) -> Once:
    nbytes, alloc, free = place.host.nbytes, cu.cuMemAlloc, cu.cuMemFree
    return lambda: free(alloc(nbytes)[1])


@case("device_array of a shape and a dtype, dropped", BARE_POOL)
@case("device_array, dropped", BARE_POOL)
@case("device_array + free", BARE_POOL)
def _(place: Place) -> Once:
    nbytes, pool, stream = place.host.nbytes, place.pool, place.legacy
    alloc, free = cu.cuMemAllocFromPoolAsync, cu.cuMemFreeAsync
    return lambda: free(alloc(nbytes, pool, stream)[1], stream)


@case("pinned_array, dropped", BARE)
def _(place: Place) -> Once:
    nbytes, alloc, free = place.host.nbytes, cu.cuMemHostAlloc, cu.cuMemFreeHost
    return lambda: free(alloc(nbytes, 0)[1])


@case("stream, dropped", BARE)
@case("stream + close", BARE)
def _(place: Place) -> Once:
    create, destroy = cu.cuStreamCreate, cu.cuStreamDestroy
    return lambda: destroy(create(0)[1])


@case("event + record + close", BARE)
def _(place: Place) -> Once:
    create, record, destroy, stream = cu.cuEventCreate, cu.cuEventRecord, cu.cuEventDestroy, place.legacy

    def once() -> None:
        _, event = create(0)
        record(event, stream)
        destroy(event)

    return once


# -- numba-cuda --------------------------------------------------------------------------------------------------------
#
# numba-cuda has no free and no close: it destroys dropped objects eleven at a time, which is part of the measured time.


@case("to_device, dropped beside a stream", NUMBA)
@case("to_device, dropped", NUMBA)
@case("to_device + free", NUMBA)
def _(place: Place) -> Once:
    to_device, host = place.numba.to_device, place.host
    return lambda: to_device(host)


@case("copy_to_device", NUMBA)
def _(place: Place) -> Once:
    array, host = place.numba.to_device(place.host), place.host
    return lambda: array.copy_to_device(host)


@case("copy_to_device, stream", NUMBA)
def _(place: Place) -> Once:
    array, host, stream = place.numba.to_device(place.host), place.numba.pinned_array(ELEMENTS), place.numba.stream()
    return lambda: array.copy_to_device(host, stream)


@case("copy_to_host(out), stream", NUMBA)
def _(place: Place) -> Once:
    array, out, stream = place.numba.to_device(place.host), place.numba.pinned_array(ELEMENTS), place.numba.stream()
    return lambda: array.copy_to_host(out, stream)


@case("copy_to_device, stream, synchronize", NUMBA)
def _(place: Place) -> Once:
    array, host, stream = place.numba.to_device(place.host), place.numba.pinned_array(ELEMENTS), place.numba.stream()

    def once() -> None:
        array.copy_to_device(host, stream)
        stream.synchronize()

    return once


@case("copy_to_host()", NUMBA)
def _(place: Place) -> Once:
    array = place.numba.to_device(place.host)
    return lambda: array.copy_to_host()


@case("copy_to_host(out)", NUMBA)
def _(place: Place) -> Once:
    array, out = place.numba.to_device(place.host), place.out
    return lambda: array.copy_to_host(out)


@case("device_array of a shape and a dtype, dropped", NUMBA)
@case("device_array, dropped", NUMBA)
@case("device_array + free", NUMBA)
def _(place: Place) -> Once:
    device_array = place.numba.device_array
    return lambda: device_array(ELEMENTS)


@case("pinned_array, dropped", NUMBA)
def _(place: Place) -> Once:
    pinned_array = place.numba.pinned_array
    return lambda: pinned_array(ELEMENTS)


@case("d[3:9]", NUMBA)
def _(place: Place) -> Once:
    array = place.numba.to_device(place.host)
    return lambda: array[3:9]


@case("stream, dropped", NUMBA)
@case("stream + close", NUMBA)
def _(place: Place) -> Once:
    stream = place.numba.stream
    return lambda: stream()


@case("event + record + close", NUMBA)
def _(place: Place) -> Once:
    event = place.numba.event
    return lambda: event().record()


# -- cuda.core ---------------------------------------------------------------------------------------------------------
#
# Untyped bytes from its default pool. Its copies take two buffers and are asynchronous, so the functions wait for the stream, as
# the verbs of the other libraries do. Existing host arrays are wrapped beforehand; a new one is wrapped in the measured time.


@case("to_device, dropped beside a stream", CORE)
@case("to_device, dropped", CORE)
@case("to_device + free", CORE)
def _(place: Place) -> Once:
    device, stream, nbytes = place.core_device, place.core.LEGACY_DEFAULT_STREAM, place.host.nbytes
    host = place.core.Buffer.from_handle(place.host.ctypes.data, nbytes, owner=place.host)

    def once() -> None:
        buffer = device.allocate(nbytes, stream=stream)
        buffer.copy_from(host, stream=stream)
        stream.sync()
        buffer.close()

    return once


@case("copy_to_device", CORE)
def _(place: Place) -> Once:
    stream, nbytes = place.core.LEGACY_DEFAULT_STREAM, place.host.nbytes
    buffer = place.core_device.allocate(nbytes, stream=stream)
    host = place.core.Buffer.from_handle(place.host.ctypes.data, nbytes, owner=place.host)

    def once() -> None:
        buffer.copy_from(host, stream=stream)
        stream.sync()

    return once


def _on_a_stream(place: Place) -> tuple[Any, Any, Any]:
    host, stream = dm.pinned_array(ELEMENTS), place.core_device.create_stream()
    buffer = place.core_device.allocate(host.nbytes, stream=stream)
    return buffer, place.core.Buffer.from_handle(host.ctypes.data, host.nbytes, owner=host), stream


@case("copy_to_device, stream", CORE)
def _(place: Place) -> Once:
    buffer, host, stream = _on_a_stream(place)
    return lambda: buffer.copy_from(host, stream=stream)


@case("copy_to_host(out), stream", CORE)
def _(place: Place) -> Once:
    buffer, out, stream = _on_a_stream(place)
    return lambda: buffer.copy_to(out, stream=stream)


@case("copy_to_device, stream, synchronize", CORE)
def _(place: Place) -> Once:
    buffer, host, stream = _on_a_stream(place)

    def once() -> None:
        buffer.copy_from(host, stream=stream)
        stream.sync()

    return once


@case("copy_to_host()", CORE)
def _(place: Place) -> Once:
    stream, nbytes, wrap = place.core.LEGACY_DEFAULT_STREAM, place.host.nbytes, place.core.Buffer.from_handle
    buffer = place.core_device.allocate(nbytes, stream=stream)

    def once() -> object:
        out = np.empty(ELEMENTS)
        buffer.copy_to(wrap(out.ctypes.data, nbytes, owner=out), stream=stream)
        stream.sync()
        return out

    return once


@case("copy_to_host(out)", CORE)
def _(place: Place) -> Once:
    stream, nbytes = place.core.LEGACY_DEFAULT_STREAM, place.host.nbytes
    buffer = place.core_device.allocate(nbytes, stream=stream)
    out = place.core.Buffer.from_handle(place.out.ctypes.data, nbytes, owner=place.out)

    def once() -> None:
        buffer.copy_to(out, stream=stream)
        stream.sync()

    return once


@case("device_array of a shape and a dtype, dropped", CORE)
@case("device_array, dropped", CORE)
@case("device_array + free", CORE)
def _(place: Place) -> Once:
    allocate, stream, nbytes = place.core_device.allocate, place.core.LEGACY_DEFAULT_STREAM, place.host.nbytes
    return lambda: allocate(nbytes, stream=stream).close()


@case("stream, dropped", CORE)
@case("stream + close", CORE)
def _(place: Place) -> Once:
    create = place.core_device.create_stream
    return lambda: create().close()


@case("event + record + close", CORE)
def _(place: Place) -> Once:
    record = place.core.LEGACY_DEFAULT_STREAM.record
    return lambda: record().close()
