"""The functions timed over the emulated HIP runtime: one for each pair of a library and a verb, as in `cuda_verbs`.

Each process uses devmem through one provider, as the settings select. It is compared with the vendor's calls alone, through the
installed binding and through ctypes. The binding gets the host array through the buffer protocol, ctypes gets its address.
Status codes are not checked.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import devmem as dm

ELEMENTS = 16
DEVMEM, DEVMEM_DRIVER = "devmem", "devmem, no pool"
BARE, BARE_CTYPES = "bare hip-python", "bare ctypes"
#: The library that devmem through a provider is compared with.
BARE_OF = {"rocm": BARE, "hip": BARE, "ctypes": BARE_CTYPES}
#: Modules of the binding.
BINDINGS = {"rocm": "rocm.bindings.hip", "hip": "hip.hip"}

Once = Callable[[], object]
Case = Callable[["Place"], Once]

CASES: dict[tuple[str, str], Case] = {}


@dataclass
class Place:
    """Arrays of `ELEMENTS` f8, the binding if there is one, and the library through ctypes."""

    provider: str
    host: np.ndarray[Any, Any] = field(default_factory=lambda: np.arange(float(ELEMENTS)))
    out: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(ELEMENTS))
    hip: Any = None
    library: Any = field(init=False)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = dm.device("roc:0")
        with device:
            dm.to_device(self.host).free()
        facts = device.info.facts
        self.versions[f"roc through {self.provider}"] = str(facts["provider"])
        self.library = _declared(ctypes.CDLL(str(facts["library"])))
        self._find_binding()
        dm.use_backend("roc")

    def _find_binding(self) -> None:
        """The binding that devmem uses, with the library that devmem selected."""
        if self.provider in BINDINGS:
            self.hip = importlib.import_module(BINDINGS[self.provider])
            self.versions["hip-python"] = importlib.metadata.version("hip-python")
        else:
            self.missing[BARE] = "devmem does not use this binding in this process"

    def use(self, library: str) -> None:
        """Select the memory stack that devmem is measured with."""
        dm.use_memory("driver" if library == DEVMEM_DRIVER else "pool")

    def cases(self, verb: str) -> dict[str, Once]:
        """The functions for a verb, ready to be called, by library."""
        made = {}
        for (library, name), case in CASES.items():
            if name == verb and library not in self.missing:
                self.use(library)
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


def provider() -> str:
    """The provider that this process uses."""
    return os.environ["DEVMEM_ROC_PROVIDER"]


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    size, address = ctypes.c_size_t, ctypes.c_void_p
    library.hipMalloc.argtypes = [address, size]
    library.hipFree.argtypes = [address]
    library.hipMemcpy.argtypes = [address, address, size, ctypes.c_int]
    library.hipStreamCreate.argtypes = [address]
    library.hipStreamDestroy.argtypes = [address]
    library.hipEventCreate.argtypes = [address]
    library.hipEventRecord.argtypes = [address, address]
    library.hipEventDestroy.argtypes = [address]
    return library


# -- devmem ------------------------------------------------------------------------------------------------------------


@case("to_device + free", DEVMEM, DEVMEM_DRIVER)
def _(place: Place) -> Once:
    host = place.host
    return lambda: dm.to_device(host).free()


@case("to_device, dropped", DEVMEM)
def _(place: Place) -> Once:
    host = place.host
    return lambda: dm.to_device(host)


@case("copy_to_host()", DEVMEM)
def _(place: Place) -> Once:
    array = dm.to_device(place.host)
    return lambda: array.copy_to_host()


@case("copy_to_host(out)", DEVMEM)
def _(place: Place) -> Once:
    array, out = dm.to_device(place.host), place.out
    return lambda: array.copy_to_host(out)


@case("device_array + free", DEVMEM, DEVMEM_DRIVER)
def _(place: Place) -> Once:
    return lambda: dm.device_array(ELEMENTS).free()


@case("d[3:9]", DEVMEM)
def _(place: Place) -> Once:
    array = dm.device_array(ELEMENTS)
    return lambda: array[3:9]


@case("stream + close", DEVMEM)
def _(place: Place) -> Once:
    return lambda: dm.stream().close()


@case("event + record + close", DEVMEM)
def _(place: Place) -> Once:
    def once() -> None:
        event = dm.event()
        event.record()
        event.close()

    return once


# -- the binding -------------------------------------------------------------------------------------------------------


@case("to_device + free", BARE)
@case("to_device, dropped", BARE)
def _(place: Place) -> Once:
    host, nbytes, hip = place.host, place.host.nbytes, place.hip
    alloc, copy, free, kind = hip.hipMalloc, hip.hipMemcpy, hip.hipFree, hip.hipMemcpyKind.hipMemcpyHostToDevice

    def once() -> None:
        _, ptr = alloc(nbytes)
        copy(ptr, host, nbytes, kind)
        free(ptr)

    return once


@case("copy_to_host()", BARE)
def _(place: Place) -> Once:
    nbytes, hip, empty = place.host.nbytes, place.hip, np.empty
    copy, kind = hip.hipMemcpy, hip.hipMemcpyKind.hipMemcpyDeviceToHost
    _, ptr = hip.hipMalloc(nbytes)

    def once() -> object:
        out = empty(ELEMENTS)
        copy(out, ptr, nbytes, kind)
        return out

    return once


@case("copy_to_host(out)", BARE)
def _(place: Place) -> Once:
    out, nbytes, hip = place.out, place.host.nbytes, place.hip
    copy, kind = hip.hipMemcpy, hip.hipMemcpyKind.hipMemcpyDeviceToHost
    _, ptr = hip.hipMalloc(nbytes)
    return lambda: copy(out, ptr, nbytes, kind)


@case("device_array + free", BARE)
def _(place: Place) -> Once:
    nbytes, alloc, free = place.host.nbytes, place.hip.hipMalloc, place.hip.hipFree
    return lambda: free(alloc(nbytes)[1])


@case("stream + close", BARE)
def _(place: Place) -> Once:
    create, destroy = place.hip.hipStreamCreate, place.hip.hipStreamDestroy
    return lambda: destroy(create()[1])


@case("event + record + close", BARE)
def _(place: Place) -> Once:
    create, record, destroy = place.hip.hipEventCreate, place.hip.hipEventRecord, place.hip.hipEventDestroy

    def once() -> None:
        _, event = create()
        record(event, None)
        destroy(event)

    return once


# -- ctypes ------------------------------------------------------------------------------------------------------------


def _address(array: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


@case("to_device + free", BARE_CTYPES)
@case("to_device, dropped", BARE_CTYPES)
def _(place: Place) -> Once:
    host, nbytes, library = place.host, place.host.nbytes, place.library
    alloc, copy, free, word, byref = (
        library.hipMalloc,
        library.hipMemcpy,
        library.hipFree,
        ctypes.c_void_p,
        ctypes.byref,
    )

    def once() -> None:
        ptr = word()
        alloc(byref(ptr), nbytes)
        copy(ptr, _address(host), nbytes, 1)
        free(ptr)

    return once


@case("copy_to_host()", BARE_CTYPES)
def _(place: Place) -> Once:
    nbytes, copy, empty = place.host.nbytes, place.library.hipMemcpy, np.empty
    ptr = _block(place)

    def once() -> object:
        out = empty(ELEMENTS)
        copy(_address(out), ptr, nbytes, 2)
        return out

    return once


@case("copy_to_host(out)", BARE_CTYPES)
def _(place: Place) -> Once:
    out, nbytes, copy = place.out, place.host.nbytes, place.library.hipMemcpy
    ptr = _block(place)
    return lambda: copy(_address(out), ptr, nbytes, 2)


@case("device_array + free", BARE_CTYPES)
def _(place: Place) -> Once:
    nbytes, alloc, free = place.host.nbytes, place.library.hipMalloc, place.library.hipFree

    def once() -> None:
        ptr = ctypes.c_void_p()
        alloc(ctypes.byref(ptr), nbytes)
        free(ptr)

    return once


@case("stream + close", BARE_CTYPES)
def _(place: Place) -> Once:
    create, destroy = place.library.hipStreamCreate, place.library.hipStreamDestroy

    def once() -> None:
        handle = ctypes.c_void_p()
        create(ctypes.byref(handle))
        destroy(handle)

    return once


@case("event + record + close", BARE_CTYPES)
def _(place: Place) -> Once:
    create, record, destroy = place.library.hipEventCreate, place.library.hipEventRecord, place.library.hipEventDestroy

    def once() -> None:
        event = ctypes.c_void_p()
        create(ctypes.byref(event))
        record(event, None)
        destroy(event)

    return once


def _block(place: Place) -> int:
    found = ctypes.c_void_p()
    place.library.hipMalloc(ctypes.byref(found), place.host.nbytes)
    return found.value or 0
