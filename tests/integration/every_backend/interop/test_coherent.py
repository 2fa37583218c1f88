"""Host memory that is used in place, on machines whose devices take the host's addresses, and why it is not elsewhere."""

from __future__ import annotations

import gc
import json
import weakref

import numpy as np
import pytest
from waits import together

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture
def coherent(device, with_settings, monkeypatch, tmp_path):
    """The device of a machine where it uses the host's memory in place; a trace is written."""
    monkeypatch.setenv("DEVMEM_EMULATOR_COHERENCE", "2")
    monkeypatch.setenv("HSA_XNACK", "1")
    with_settings(HOST_STRICT="0", TRACE=str(tmp_path / "trace.json"))
    if not dm.current_device().info.coherence:
        pytest.skip("this device takes no addresses of the host's memory")
    return dm.current_device()


def decided(tmp_path):
    """What the trace says about arrays that need not be copied: (what, why)."""
    [path] = tmp_path.glob("trace*.json")
    events = json.loads(path.read_text() + "]")
    return [(each["name"], each["args"]["why"]) for each in events if each["name"].endswith("in place")]


@pytest.mark.parametrize("host", [np.arange(12.0), np.arange(24.0).reshape(4, 6)[::2, ::-3]])
def test_a_host_array_is_used_in_place(coherent, tmp_path, host):
    want = host.copy()
    for array in (dm.to_device(host, copy=False), dm.from_dlpack(host), dm.from_dlpack(host, copy=False)):
        assert array.ptr == host.ctypes.data and array.shape == host.shape
        np.testing.assert_array_equal(array.copy_to_host(), want)
    assert {*decided(tmp_path)} == {("in place", f"the device uses the memory, by {coherent.info.coherence}")}
    assert dm.transfer_stats().keys() <= {"d2h direct", "d2h 2d", "d2h packed", "d2h span"}


READS = {
    "another array": lambda array, stream: read(dm.zeros_like(array), array, stream),
    "strided": lambda array, stream: read(dm.zeros((array.size // 2,), "u1"), array[::2], stream),
    "download": lambda array, stream: array.copy_to_host(stream=stream),
    "into an array": lambda array, stream: array.copy_to_host(np.zeros(array.size, "u1"), stream=stream),
    "many": lambda array, stream: dm.to_host_many([array, array[1::2]], stream=stream)[0],
    "in the background": lambda array, stream: dm.copy_async(array, np.zeros(array.size, "u1"), stream=stream).result(),
}


def read(target, array, stream):
    target.copy_to_device(array, stream=stream)
    return target.copy_to_host(stream=stream)


@pytest.mark.parametrize("nbytes", [1000, 4 << 20])
@pytest.mark.parametrize("how", READS)
def test_it_is_read_behind_the_work_on_the_stream(coherent, need, hold, how, nbytes):
    """Drivers read memory that they do not know at the call: devmem waits for the stream before."""
    need("hold")
    stream = dm.stream(non_blocking=True)
    array = dm.to_device(np.zeros(nbytes, "u1"), copy=False)
    with hold(stream, patience=0.3, tolerant=True):
        array.fill(7, stream=stream)
        seen = READS[how](array, stream)
    assert (seen == 7).all()


def test_both_sides_see_what_the_other_writes(coherent):
    host = np.zeros(1000)
    array = dm.to_device(host, copy=False)
    array[...] = 5
    dm.synchronize()
    assert (host == 5).all()
    host[...] = 7
    assert (array.copy_to_host() == 7).all()
    array.copy_to_device(np.arange(1000.0))
    assert (host == np.arange(1000.0)).all()
    other = dm.zeros(1000)
    other.copy_to_device(array)
    assert (other.copy_to_host() == host).all()


def test_the_memory_lives_as_long_as_it_is_used(coherent, need, hold):
    need("hold")
    host = np.full(1 << 16, 3, np.uint8)
    gone = weakref.ref(host)
    stream = dm.stream(non_blocking=True)
    array = dm.to_device(host, stream, copy=False)
    dm.synchronize()
    with hold(stream):
        array.fill(4, stream)
        del host, array
        gc.collect()
        assert gone() is not None
    dm.synchronize()
    gc.collect()
    assert gone() is None


def test_free_lets_go_of_the_host_array(coherent):
    host = np.arange(10)
    gone = weakref.ref(host)
    array = dm.to_device(host, copy=False)
    del host
    assert array.copy_to_host().tolist() == list(range(10))
    array.free()
    dm.synchronize()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("rows", [8, 2000])  # the second takes several staging slots
def test_both_sides_may_be_the_same_memory(coherent, rows):
    """As if the source had been copied away first, on the way to the device and back."""
    host = np.arange(rows * rows, dtype=np.uint32).reshape(rows, rows)
    array = dm.to_device(host, copy=False)
    cases = [(np.s_[1:], np.s_[:-1]), (np.s_[:-1], np.s_[1:]), (np.s_[:, 1:], np.s_[:, :-1]), (np.s_[:], np.s_[::-1])]
    for to, of in cases:
        for copy in (array[to].copy_to_device, lambda source, to=to: dm.to_device(source, to=array[to])):
            want = host[of].copy()
            copy(host[of])
            np.testing.assert_array_equal(host[to], want)
        want = host[of].copy()
        array[of].copy_to_host(host[to])
        np.testing.assert_array_equal(host[to], want)
    want = host.T.copy()
    array.T.copy_to_host(host)
    np.testing.assert_array_equal(host, want)


def test_a_copy_onto_itself_waits_for_what_writes_it(coherent, need, hold):
    need("hold")
    host, fives = dm.pinned_array(1000), dm.to_device(np.full(1000, 5.0))
    stream, array = dm.stream(non_blocking=True), dm.to_device(host, copy=False)
    with hold(stream) as held:
        array.copy_to_device(fives, stream)
        copied, _ = together(lambda: array.copy_to_host(host, stream=stream)[0], held.release)
    assert copied == 5


N = 1000
#: Given an array in place, a device array and a page-locked array, all of N elements, and a stream.
RECORDED = {
    "read": lambda array, other, locked, stream: other.copy_to_device(array, stream=stream),
    "written": lambda array, other, locked, stream: array.copy_to_device(other, stream=stream),
    "rows": lambda array, other, locked, stream: other[::2].copy_to_device(array[::2], stream=stream),
    "download": lambda array, other, locked, stream: array.copy_to_host(locked, stream=stream),
    "upload": lambda array, other, locked, stream: array.copy_to_device(locked, stream=stream),
    "overlapping": lambda array, other, locked, stream: array[1:].copy_to_device(array[:-1], stream=stream),
    "pattern": lambda array, other, locked, stream: array.fill(0.3, stream=stream),
}


def page_locked(values):
    made = dm.pinned_array(np.shape(values), "f8")
    made[...] = values
    return made


@pytest.fixture
def recorded(coherent, need, need_kind):
    """A stream whose work can be recorded, a device array, and a page-locked array."""
    need("graphs")
    need_kind("pinned")
    return dm.stream(non_blocking=True), dm.to_device(np.arange(N) + 10.0), page_locked(np.arange(N) + 20.0)


@pytest.mark.parametrize("how", RECORDED)
def test_a_plan_takes_no_pageable_memory_in_place(recorded, how):
    """A graph copies whenever it is replayed: what is not page-locked is refused by the verb, and the rest is recorded."""
    stream, other, locked = recorded
    array, result = dm.to_device(np.zeros(N), copy=False), page_locked(np.zeros(N))
    with dm.capture(stream) as plan:
        with pytest.raises(dm.UnsupportedError, match="pageable"):
            RECORDED[how](array, other, locked, stream)
        other.copy_to_host(result, stream=stream)
        array.fill(0, stream=stream)  # which needs no memory of the host
    assert plan.copies == 1
    with pytest.raises(dm.UnsupportedError, match="pageable"):
        plan.update(src=array)
    plan.replay()
    stream.synchronize()
    assert (result == np.arange(N) + 10).all()


@pytest.mark.parametrize("how", RECORDED)
@pytest.mark.parametrize("locked_by", ["pinned_array", "register"])
def test_a_plan_owns_page_locked_memory_in_place(recorded, need, how, locked_by):
    """It lives, and stays page-locked, as long as the plan."""
    stream, other, locked = recorded
    host = page_locked(np.zeros(N)) if locked_by == "pinned_array" else np.zeros(N)
    if locked_by == "register":
        need("host_register")
        dm.register(host)
    array = dm.to_device(host, copy=False)
    with dm.capture(stream) as plan:
        RECORDED[how](array, other, locked, stream)
    if locked_by == "register":
        dm.deregister(host)
        low = host.__array_interface__["data"][0]
        assert dm.current_device().opened().page_locks.covers(low, low + host.nbytes)
    host[...] = np.arange(N)
    sides = [np.arange(N) * 1.0, other.copy_to_host(), locked.copy()]
    want = [each.copy() for each in sides]
    expected_of(how, *want)
    gone = weakref.ref(host)
    del host, array
    gc.collect()
    plan.replay()
    stream.synchronize()
    for seen, due in zip([gone(), other.copy_to_host(), locked], want, strict=True):
        np.testing.assert_array_equal(seen, due)
    plan.close()
    dm.trim()
    gc.collect()
    assert gone() is None


def expected_of(how, array, other, locked):
    """Do on the host what a recorded copy does."""
    pairs = {
        "read": (other, array),
        "written": (array, other),
        "rows": (other[::2], array[::2]),
        "download": (locked, array),
        "upload": (array, locked),
        "overlapping": (array[1:], array[:-1].copy()),
        "pattern": (array, 0.3),
    }
    to, of = pairs[how]
    to[...] = of


def test_both_sides_of_a_recorded_copy_may_be_the_same_memory(recorded):
    """As if the source had been copied away first, whenever the plan is replayed."""
    stream, *_ = recorded
    host = page_locked(np.arange(N))
    array = dm.to_device(host, copy=False)
    with dm.capture(stream) as plan:
        array[:-1].copy_to_host(host[1:], stream=stream)
        array[:-1].copy_to_device(host[1:], stream=stream)
        array.copy_to_host(host, stream=stream)
    assert (host == np.arange(N)).all() and not plan.copies
    del array
    want = host.copy()
    for _ in range(2):
        plan.replay()
        stream.synchronize()
        want[1:] = want[:-1].copy()
        want[:-1] = want[1:].copy()
        np.testing.assert_array_equal(host, want)


def test_read_only_memory_is_not_written(coherent):
    host = np.arange(10)
    host.flags.writeable = False
    array = dm.to_device(host, copy=False)
    assert array.ptr == host.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 1


def test_what_is_not_aligned_is_copied_and_the_trace_says_so(coherent, tmp_path):
    host = np.zeros(81, np.uint8)[1:].view("f8")
    array = dm.to_device(host, copy=False)
    assert array.ptr != host.ctypes.data
    assert decided(tmp_path) == [("not in place", "its elements are not aligned")]


def test_copies_are_made_where_they_are_asked_for(coherent):
    host = np.arange(10)
    for array in (dm.to_device(host), dm.from_dlpack(host, copy=True)):
        assert array.ptr != host.ctypes.data
    assert dm.to_device(np.zeros(0), copy=False).size == 0
    assert dm.to_device([1, 2, 3], copy=False).tolist() == [1, 2, 3]


def test_it_goes_to_another_device_by_the_host(coherent, second, tmp_path):
    host = np.arange(1000.0)
    array = dm.to_device(host, copy=False)
    there = array.to(second)
    np.testing.assert_array_equal(there.copy_to_host(), host)
    there[...] = 1
    array.copy_to_device(there)
    assert (host == 1).all()


def test_two_devices_use_the_same_memory(coherent, second):
    """As if the source had been copied away first; it takes several staging slots."""
    host = np.arange(3 << 20, dtype=np.uint32)
    here, there = dm.to_device(host, copy=False), dm.to_device(host, copy=False, device=second)
    for to, of in ((np.s_[1:], np.s_[:-1]), (np.s_[:-1], np.s_[1:])):
        want = host[of].copy()
        there[to].copy_to_device(here[of])
        np.testing.assert_array_equal(host[to], want)


def test_it_is_exchanged_with_others(coherent):
    host = np.arange(10.0)
    array = dm.to_device(host, copy=False)
    assert dm.from_dlpack(array).ptr == host.ctypes.data


def test_elsewhere_it_is_copied_and_the_trace_says_why(device, with_settings, tmp_path):
    with_settings(TRACE=str(tmp_path / "trace.json"))
    if dm.current_device().info.coherence:
        pytest.skip("this device takes the host's addresses")
    host = np.arange(10.0)
    for array in (dm.to_device(host, copy=False), dm.from_dlpack(host)):
        assert array.ptr != host.ctypes.data
        np.testing.assert_array_equal(array.copy_to_host(), host)
    assert (
        decided(tmp_path)
        == [("not in place", "the device takes no addresses of the host's memory: neither ATS nor HMM")] * 2
    )
