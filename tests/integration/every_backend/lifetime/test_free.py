"""free, with, use after free, pickle and copies, and one array in many threads."""

from __future__ import annotations

import copy
import operator
import pickle
from functools import partial

import numpy as np
import pytest
from waits import together

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

#: Every way to use an array that reaches its memory, or makes a view of it.
USES = {
    "ptr": lambda d: d.ptr,
    "copy_to_host": lambda d: d.copy_to_host(),
    "copy_to_device": lambda d: d.copy_to_device(np.zeros(4)),
    "copy": lambda d: d.copy(),
    "fill": lambda d: d.fill(1),
    "item": lambda d: d.item(0),
    "tolist": lambda d: d.tolist(),
    "element": lambda d: d[0],
    "slice": lambda d: d[1:],
    "ellipsis": lambda d: d[...],
    "setitem": lambda d: operator.setitem(d, 0, 1),
    "assign it": lambda d: operator.setitem(dm.zeros(4), ..., d),
    "assign it cast": lambda d: operator.setitem(dm.zeros(4, "f4"), ..., d),
    "iterate": lambda d: list(d),
    "reshape": lambda d: d.reshape(2, 2),
    "ravel": lambda d: d.ravel(),
    "transpose": lambda d: d.transpose(),
    "T": lambda d: d.T,
    "view": lambda d: d.view("i8"),
    "squeeze": lambda d: d.squeeze(),
    "split": lambda d: list(d.split(2)),
    "bind": lambda d: d.bind(0),
    "asarray": lambda d: np.asarray(d),
    "bool": lambda d: bool(d),
    "with": lambda d: d.__enter__(),
    "copy.copy": lambda d: copy.copy(d),
    "deepcopy": lambda d: copy.deepcopy(d),
    "pickle": lambda d: pickle.dumps(d),
    "to=": lambda d: dm.to_device(np.zeros(4), to=d),
    "source": lambda d: dm.zeros(4).copy_to_device(d),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_use_after_free_is_refused(use):
    d = dm.to_device(np.arange(4.0))
    if use is USES["bool"]:
        d = d[:1].copy()
    d.free()
    with pytest.raises(dm.ClosedError, match=r"\d+ bytes on .*was freed.*allocate anew"):
        use(d)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_use_of_a_view_after_its_parent_was_freed_is_refused(use):
    parent = dm.to_device(np.arange(12.0).reshape(3, 4))
    view = parent[1]
    if use is USES["bool"]:
        view = view[:1]
    parent.free()
    with pytest.raises(dm.ClosedError, match="was freed"):
        use(view)


def test_freeing_a_view_frees_the_whole():
    d = dm.to_device(np.arange(12.0).reshape(3, 4))
    d[1].T.free()
    with pytest.raises(dm.ClosedError):
        d.copy_to_host()


def test_freeing_twice_does_nothing():
    d = dm.to_device([1.0])
    d.free()
    d.free()
    e = dm.zeros(0)
    e.free()
    e.free()
    with pytest.raises(dm.ClosedError):
        e.copy_to_host()


def test_facts_survive_the_memory():
    d = dm.to_device(np.arange(4.0))
    d.free()
    assert (d.shape, d.dtype, d.strides, d.size, d.nbytes, len(d)) == ((4,), np.dtype("f8"), (8,), 4, 32, 4)
    assert d.flags["C_CONTIGUOUS"]
    assert d.device == dm.current_device()
    assert d.stream is None
    assert dm.is_device_array(d)


def test_freeing_gives_the_memory_back_at_once(device):
    before = device.memory_info()
    d = dm.device_array(1 << 20, "u1")
    assert device.memory_info().live == before.live + (1 << 20)
    d.free()
    after = device.memory_info()
    assert (after.live, after.pending) == (before.live, before.pending)


def test_with_frees_at_the_end_also_when_the_body_raises(device):
    before = device.memory_info().live
    with dm.to_device(np.arange(4.0)) as d:
        assert d.tolist() == [0, 1, 2, 3]
    with pytest.raises(dm.ClosedError):
        d.tolist()
    with pytest.raises(ZeroDivisionError), dm.zeros(100) as e:
        raise ZeroDivisionError
    with pytest.raises(dm.ClosedError):
        e.tolist()
    with dm.zeros(3) as f:
        f.free()
    assert device.memory_info().live == before


def test_dropping_the_last_view_gives_the_memory_back(device):
    before = device.memory_info()
    d = dm.device_array(1 << 20, "u1")
    view = d[6:][::-1].view("i1").reshape(-1, 2)
    del d
    assert device.memory_info().live == before.live + (1 << 20)
    del view
    dm.trim()
    assert device.memory_info().live == before.live


def test_closed_error_is_a_value_error_and_a_devmem_error():
    d = dm.zeros(1)
    d.free()
    for kind in (ValueError, dm.DevmemError, dm.errors.ClosedError):
        with pytest.raises(kind):
            d.tolist()


# -- copies of the object ----------------------------------------------------------------------------------------------

LAYOUTS = {
    "C": np.arange(6.0).reshape(2, 3),
    "F": np.arange(6.0).reshape(2, 3, order="F"),
    "scalar": np.array(5),
    "empty": np.empty((0, 2)),
    "records": np.array([(1, 2.5)], "i4,f8"),
    "dates": np.array(["2024-01-01"], "M8[D]"),
}


@pytest.mark.parametrize("host", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickled_array_comes_back_on_the_device(host, protocol):
    d = dm.to_device(host)
    e = pickle.loads(pickle.dumps(d, protocol))
    assert type(e) is dm.DeviceNDArray
    assert (e.dtype, e.shape) == (d.dtype, d.shape)
    np.testing.assert_array_equal(e.copy_to_host(), host)
    if host.size:
        assert e.ptr != d.ptr


def test_pickle_of_a_view_takes_what_the_view_shows():
    d = dm.to_device(np.arange(1000.0))
    text = pickle.dumps(d[::100])
    assert len(text) < 1000
    assert pickle.loads(text).tolist() == np.arange(0.0, 1000, 100).tolist()


def test_pickle_lands_on_the_current_device(second):
    text = pickle.dumps(dm.to_device([1, 2]))
    with second:
        assert pickle.loads(text).device == second


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copy_and_deepcopy_make_memory_of_their_own(duplicate):
    d = dm.to_device(np.arange(6.0).reshape(2, 3))
    e = duplicate(d)
    e[...] = 0
    assert d.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert e.device == d.device
    assert duplicate(d.T).tolist() == [[0, 3], [1, 4], [2, 5]]


# -- threads -----------------------------------------------------------------------------------------------------------


def test_many_threads_read_and_write_one_array():
    count, length = 8, 5000
    d = dm.zeros((count, length), "i4")

    def work(mine):
        for turn in range(20):
            value = mine * 1000 + turn
            d[mine] = value
            d[mine, ::2] = np.full(length // 2, value, "i4")
            assert (d[mine].copy_to_host() == value).all()
            assert d[mine][::-1].copy().tolist()[0] == value

    together(*(partial(work, i) for i in range(count)))
    np.testing.assert_array_equal(
        d.copy_to_host(), np.arange(count, dtype="i4")[:, None] * 1000 + 19 + np.zeros((1, length), "i4")
    )


def test_an_array_may_be_dropped_in_another_thread(in_thread, device):
    before = device.memory_info().live
    box = [dm.device_array(1 << 16, "u1")]
    in_thread(box.pop)
    dm.trim()
    assert device.memory_info().live == before


def test_an_array_may_be_freed_in_another_thread(in_thread):
    d = dm.zeros(4)
    in_thread(d.free)
    with pytest.raises(dm.ClosedError):
        d.tolist()


def test_an_array_made_in_another_thread_is_usable_here(in_thread):
    assert in_thread(lambda: dm.to_device(np.arange(3.0))).tolist() == [0, 1, 2]
