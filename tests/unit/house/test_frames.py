"""How far it is from a verb to the driver: in Python frames and in driver calls. Nothing here is timed."""

from __future__ import annotations

import os
import sys
from collections import Counter

import numpy as np
import pytest

import devmem as dm
from devmem.spi.types import Capability
from devmem.testing import NullBackend, NullDriver

#: Frames that may stand between `to_device` and the driver.
FRAMES = 4
#: Small copies that are timed before the others go without.
TIMED = 16


class Witness(NullDriver):
    """A driver that does nothing but remember what was called, and through which functions."""

    def __init__(self, capabilities):
        super().__init__("witness", 0, capabilities)
        self.calls = []  # (verb, names of the functions from the caller up)
        self.running = False

    def saw(self, verb):
        frame, codes = sys._getframe(2), []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        self.calls.append((verb, codes))

    def counts(self):
        return Counter(verb for verb, _ in self.calls)

    def between(self, verb, function):
        """Names of the functions that stand between one call of the driver's and the nearest `function` above it."""
        [codes] = [codes for name, codes in self.calls if name == verb]
        return [code.co_qualname for code in codes[: codes.index(function.__code__)]]

    def copy(self, dst, src, nbytes, kind, stream, *, blocking):
        self.saw("copy")
        return self.running and not blocking


def seen(method, verb):
    """A method of the driver that does nothing, which the witness sees."""

    def call(self, *arguments, **options):
        self.saw(verb)
        return getattr(NullDriver, method)(self, *arguments, **options)

    return call


for method in ("enter", "exit", "alloc", "free", "fill", "stream_create", "event_create", "event_record"):
    setattr(Witness, method, seen(method, method))
for method in ("alloc_async", "free_async"):
    setattr(Witness, method, seen(method, method.removesuffix("_async")))


class Adaptor:
    """A memory resource over another: one frame, and no more."""

    def __init__(self, upstream):
        self.upstream = upstream
        self.stream_ordered = upstream.stream_ordered

    def bind(self, driver):
        self.upstream.bind(driver)

    def allocate(self, nbytes, stream):
        return self.upstream.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.upstream.deallocate(ptr, nbytes, stream)


@pytest.fixture(params=[False, True], ids=["plain", "stream-ordered"])
def witness(request, monkeypatch):
    monkeypatch.delenv("DEVMEM_MEMORY_MANAGER", raising=False)
    ordered = request.param
    driver = Witness({Capability.STREAM_ORDERED} if ordered else ())
    dm.register_backend(NullBackend("witness", lambda name, ordinal: driver))
    try:
        with dm.use_backend("witness"):
            # Opens the device; and the first sixteen of every 4096 small copies are timed, by a longer way.
            for _ in range(TIMED):
                array = dm.to_device(np.zeros(1))
                array.copy_to_host()
                array.free()
            driver.calls.clear()
            yield driver
    finally:
        dm.unregister_backend("witness")


SOURCES = {
    "1-D": np.arange(16.0),
    "C": np.zeros((3, 4)),
    "F": np.zeros((3, 4), order="F"),
    "0-d": np.array(1.5),
    "records": np.zeros(5, [("a", "i1"), ("b", "f8")]),
    "times": np.zeros(5, "M8[s]"),
    "read-only": np.frombuffer(bytes(64), np.uint8),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_few_frames_between_to_device_and_the_driver(witness, source):
    array = dm.to_device(source)
    assert len(witness.between("alloc", dm.to_device)) <= FRAMES
    assert len(witness.between("copy", dm.to_device)) <= FRAMES
    assert witness.counts() == {"enter": 1, "alloc": 1, "copy": 1}
    array.free()


def test_also_on_a_stream(witness):
    stream = dm.stream()
    witness.calls.clear()
    array = dm.to_device(SOURCES["1-D"], stream=stream)
    assert len(witness.between("alloc", dm.to_device)) <= FRAMES
    assert len(witness.between("copy", dm.to_device)) <= FRAMES
    assert witness.counts() == {"enter": 1, "alloc": 1, "copy": 1}
    array.free()


def test_also_with_something_in_the_queue(witness):
    dm.to_device(SOURCES["1-D"])  # dropped at once
    witness.calls.clear()
    array = dm.to_device(SOURCES["1-D"])
    assert len(witness.between("alloc", dm.to_device)) <= FRAMES
    assert witness.counts() == {"enter": 1, "alloc": 1, "copy": 1}
    array.free()


@pytest.mark.parametrize("adaptors", [1, 2, 5])
def test_one_more_frame_for_each_adaptor(witness, adaptors):
    resource = dm.memory.DriverMemory()
    for _ in range(adaptors):
        resource = Adaptor(resource)
    with dm.use_memory(resource):
        array = dm.to_device(SOURCES["1-D"])
    between = witness.between("alloc", dm.to_device)
    # What a third-party resource returns is checked, once for the whole stack.
    assert between[: adaptors + 1] == ["Adaptor.allocate"] * adaptors + ["Boundary.allocate"]
    assert len(between) <= FRAMES + adaptors + 1
    assert len(witness.between("copy", dm.to_device)) <= FRAMES
    array.free()


def test_one_more_frame_for_each_of_devmems_own_adaptors(witness):
    stack = {
        "Limit": lambda below: dm.memory.Limit(below, "1GiB"),
        "Statistics": lambda below: dm.memory.Statistics(below, owners=True),
        "Log": lambda below: dm.memory.Log(below, os.devnull),
        # The witness has no memory in which a guard could find its own marks.
        "Guard": lambda below: dm.memory.Guard(below, redzone=0, quarantine_bytes=0),
        "Scrub": dm.memory.Scrub,
        "FailNth": lambda below: dm.memory.FailNth(below, 10**6),
        "FailIf": dm.memory.FailIf,
        "OnOutOfMemory": dm.memory.OnOutOfMemory,
    }
    resource = dm.memory.DriverMemory()
    for make in stack.values():
        resource = make(resource)
    with dm.use_memory(resource):
        array = dm.to_device(SOURCES["1-D"])
    between = witness.between("alloc", dm.to_device)
    inherited = {"Scrub": "Adaptor"}
    assert between[: len(stack)] == [f"{inherited.get(name, name)}.allocate" for name in stack]
    assert len(between) <= FRAMES + len(stack)
    array.free()


def test_the_count_of_frames_can_fail(witness, monkeypatch):
    from devmem.api import arrays

    upload = arrays.upload
    monkeypatch.setattr(arrays, "upload", lambda *args: (lambda: (lambda: upload(*args))())())
    array = dm.to_device(SOURCES["1-D"])
    assert len(witness.between("alloc", dm.to_device)) > FRAMES
    array.free()


def test_a_strided_source_is_one_copy_too(witness):
    array = dm.to_device(np.zeros((8, 8))[::2, ::3])
    assert witness.counts() == {"enter": 1, "alloc": 1, "copy": 1}
    array.free()


def test_an_upload_that_still_runs_costs_one_event_more(witness):
    witness.running = True
    stream = dm.stream()
    witness.calls.clear()
    array = dm.to_device(SOURCES["1-D"], stream=stream)
    assert witness.counts() == {"enter": 1, "alloc": 1, "copy": 1, "event_create": 1, "event_record": 1}
    stream.synchronize()
    array.free()


def test_an_upload_into_an_array_is_one_copy(witness):
    array = dm.device_array(16)
    witness.calls.clear()
    dm.to_device(SOURCES["1-D"], to=array)
    assert witness.counts() == {"enter": 1, "copy": 1}
    array.free()


@pytest.mark.parametrize("out", [None, np.empty(16), np.empty(32)[::2]], ids=["new", "into", "into a strided one"])
def test_a_download_is_one_copy(witness, out):
    array = dm.to_device(SOURCES["1-D"])
    witness.calls.clear()
    array.copy_to_host(out)
    assert witness.counts() == {"enter": 1, "copy": 1}
    if out is None or out.flags.c_contiguous:
        assert len(witness.between("copy", dm.DeviceNDArray.copy_to_host)) <= FRAMES
    array.free()


def test_a_timed_copy_is_one_copy_too(witness):
    counter = dm.current_device().opened().statistics.small["h2d direct"]
    for _ in range(4096 - counter[0]):
        dm.to_device(SOURCES["1-D"]).free()
    witness.calls.clear()
    timed = counter[2]
    array = dm.to_device(SOURCES["1-D"])
    assert counter[2] == timed + 1
    assert len(witness.between("copy", dm.to_device)) <= FRAMES
    assert witness.counts() == {"enter": 1, "alloc": 1, "copy": 1}
    array.free()


@pytest.mark.parametrize("shape", [16, (4, 4), ()])
def test_a_new_array_is_one_allocation(witness, shape):
    array = dm.device_array(shape)
    assert witness.counts() == {"enter": 1, "alloc": 1}
    array.free()


def test_an_empty_array_never_reaches_the_allocator(witness):
    dm.device_array(0).free()
    dm.to_device(np.empty((3, 0))).free()
    assert not {"alloc", "free", "copy"} & set(witness.counts())


def test_views_and_facts_call_nothing(witness):
    array = dm.device_array((4, 4))
    witness.calls.clear()
    views = array[1:3], array[2], array[::-1, 1], array.T, array.reshape(16), array.ravel(), array.view(np.uint8)
    assert [len(repr(view)) > 0 and view.nbytes > 0 for view in views] == [True] * len(views)
    assert witness.calls == []
    array.free()


def test_free_is_one_free(witness):
    array = dm.to_device(SOURCES["1-D"])
    witness.calls.clear()
    array.free()
    array.free()
    assert witness.counts() == {"enter": 1, "free": 1}


def test_dropping_calls_nothing(witness):
    array = dm.to_device(SOURCES["1-D"])
    witness.calls.clear()
    del array
    assert witness.calls == []


def test_a_drained_queue_is_one_free_for_each_block(witness):
    arrays = [dm.device_array(16) for _ in range(5)]
    witness.calls.clear()
    del arrays
    dm.trim()
    assert witness.counts()["free"] == 5
    assert witness.counts()["enter"] == 1
