"""The names that kernels use: on the host they raise, and in a kernel that runs in Python they ask its work-item."""

from __future__ import annotations

import operator
import pickle
from pathlib import Path

import numpy as np
import pytest
from waits import together

import devmem as dm
from devmem.kernels import names, work_items

CALLS = {
    "shared.array": lambda: dm.shared.array(4, np.float32),
    "local.array": lambda: dm.local.array((2, 3), np.int8),
    "const.array_like": lambda: dm.const.array_like(np.arange(3)),
    "barrier": dm.barrier,
    "syncthreads": dm.syncthreads,
    "wavebarrier": dm.wavebarrier,
    "mem_fence": lambda: dm.mem_fence(dm.CLK_LOCAL_MEM_FENCE),
    "threadIdx": lambda: dm.threadIdx.x,
    "blockIdx": lambda: dm.blockIdx.y,
    "blockDim": lambda: dm.blockDim.z,
    "gridDim": lambda: dm.gridDim.x,
    "grid": lambda: dm.grid(1),
    "gridsize": lambda: dm.gridsize(2),
    "get_global_id": lambda: dm.get_global_id(0),
    "get_local_id": lambda: dm.get_local_id(0),
    "get_group_id": lambda: dm.get_group_id(0),
    "get_local_size": lambda: dm.get_local_size(0),
    "get_global_size": lambda: dm.get_global_size(0),
    "get_num_groups": lambda: dm.get_num_groups(0),
    "get_work_dim": dm.get_work_dim,
    "laneid": lambda: dm.laneid + 1,
    "warpsize": lambda: int(dm.warpsize),
    "atomic.add": lambda: dm.atomic.add(np.zeros(1), 0, 1),
    "atomic.max": lambda: dm.atomic.max(np.zeros(1), 0, 1),
    "atomic.min": lambda: dm.atomic.min(np.zeros(1), 0, 1),
    "atomic.exch": lambda: dm.atomic.exch(np.zeros(1), 0, 1),
    "atomic.cas": lambda: dm.atomic.cas(np.zeros(1), 0, 1, 2),
}


class Item:
    """A work-item that writes down what it is asked."""

    thread, block = work_items.Dim3(1, 2, 3), work_items.Dim3(4, 5, 6)
    block_dim, grid_dim = work_items.Dim3(10, 20, 30), work_items.Dim3(7, 8, 9)
    work_dim, lane, wave_size = 3, 17, 32

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        return lambda *arguments: self.asked.append((name, *arguments)) or name


@pytest.fixture
def item():
    work_items.this_thread.item = found = Item()
    yield found
    work_items.this_thread.item = None


@pytest.mark.parametrize("name", CALLS)
def test_on_the_host_it_says_where_it_belongs(name):
    with pytest.raises(dm.UnsupportedError, match=rf"devmem\.{name} belongs in a kernel.*@devmem\.kernel"):
        CALLS[name]()


def test_every_name_is_public_and_tried_here():
    assert set(names.PUBLIC) <= set(dm.__all__)
    tried = {name.partition(".")[0] for name in CALLS} | {"CLK_LOCAL_MEM_FENCE", "CLK_GLOBAL_MEM_FENCE"}
    assert tried == set(names.PUBLIC)


def test_positions_are_those_of_the_work_item(item):
    assert (dm.threadIdx.x, dm.threadIdx.y, dm.threadIdx.z) == (1, 2, 3)
    assert (dm.blockIdx.x, dm.blockDim.y, dm.gridDim.z) == (4, 20, 9)
    assert [dm.grid(1), dm.grid(2), dm.grid(3)] == [41, (41, 102), (41, 102, 183)]
    assert [dm.gridsize(1), dm.gridsize(2), dm.gridsize(3)] == [70, (70, 160), (70, 160, 270)]
    for axis in range(3):
        assert dm.get_global_id(axis) == dm.grid(3)[axis]
        assert dm.get_global_size(axis) == dm.gridsize(3)[axis]
        assert dm.get_group_id(axis) * dm.get_local_size(axis) + dm.get_local_id(axis) == dm.get_global_id(axis)
        assert dm.get_num_groups(axis) == item.grid_dim[axis]
    assert dm.get_work_dim() == 3


@pytest.mark.parametrize("ndim", [0, 4, "1"])
def test_a_grid_has_one_to_three_axes(item, ndim):
    with pytest.raises(ValueError, match="1, 2 or 3 axes"):
        dm.grid(ndim)
    with pytest.raises(ValueError, match="1, 2 or 3 axes"):
        dm.gridsize(ndim)


def test_numbers_are_their_values(item):
    assert dm.laneid == 17
    assert dm.laneid != 18
    assert 16 < dm.laneid <= 17
    assert (dm.laneid + 1, 1 + dm.laneid, dm.laneid - 1, 20 - dm.laneid) == (18, 18, 16, 3)
    assert (dm.laneid // 2, dm.laneid % 4, dm.laneid & 1, dm.laneid << 1, 40 // dm.laneid) == (8, 1, 1, 34, 2)
    assert (-dm.laneid, ~dm.laneid, abs(dm.laneid), float(dm.laneid), operator.index(dm.warpsize)) == (
        -17,
        -18,
        17,
        17.0,
        32,
    )
    assert np.arange(20)[dm.laneid] == 17
    assert list(range(40))[dm.laneid : dm.warpsize] == list(range(17, 32))
    assert dm.laneid


def test_what_others_must_know_of_goes_to_the_item(item):
    ary = np.zeros(3)
    dm.barrier()
    dm.barrier(scope=dm.CLK_LOCAL_MEM_FENCE)
    dm.syncthreads()
    dm.wavebarrier()
    dm.mem_fence()
    dm.mem_fence(dm.CLK_LOCAL_MEM_FENCE)
    dm.shared.array(shape=(2, 3), dtype=np.int8)
    dm.local.array(4, np.int16)
    dm.const.array_like(ary)
    assert dm.atomic.add(ary, 1, 5) == "atomic"
    dm.atomic.cas(ary, (1,), 2, 3)
    both, local = dm.CLK_GLOBAL_MEM_FENCE, dm.CLK_LOCAL_MEM_FENCE
    assert item.asked == [
        ("barrier", both),
        ("barrier", local),
        ("barrier", both),
        ("wave_barrier",),
        ("fence", both),
        ("fence", local),
        ("shared_array", (2, 3), np.int8),
        ("local_array", 4, np.int16),
        ("const_array", ary),
        ("atomic", "add", ary, 1, 5),
        ("atomic", "cas", ary, (1,), 2, 3),
    ]


def test_an_item_is_a_threads_own(item):
    assert together(work_items.running_item) == [None]
    assert work_items.running_item() is item


def test_finders_are_asked_where_no_item_is_set(monkeypatch):
    found = Item()
    monkeypatch.setattr(work_items, "finders", [lambda: None, lambda: found])
    assert dm.threadIdx.x == 1
    monkeypatch.setattr(work_items, "finders", [lambda: None])
    with pytest.raises(dm.UnsupportedError):
        dm.threadIdx.x  # noqa: B018


def test_names_are_what_they_are_on_the_host():
    assert dm.laneid == dm.laneid
    assert {dm.laneid: 1, dm.shared: 2}[dm.laneid] == 1
    assert [repr(dm.shared), repr(dm.threadIdx)] == ["<devmem.shared, for kernels>", "<devmem.threadIdx, for kernels>"]
    for name in (dm.shared, dm.laneid, dm.atomic, dm.gridDim):
        assert pickle.loads(pickle.dumps(name)) is name
    with pytest.raises(TypeError, match="known in a kernel"):
        bool(dm.laneid)


def test_a_device_function_belongs_in_a_kernel(item):
    @dm.kernel(device=True)
    def twice(value):
        return 2 * value

    assert twice(dm.laneid) == 34
    work_items.this_thread.item = None
    with pytest.raises(dm.UnsupportedError, match=r"called by kernels.*twice\.function"):
        twice(1)
    assert twice.function(1) == 2


def test_every_name_is_described():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "kernels.md").read_text(encoding="utf-8")
    table = page.partition("## Names in kernels")[2]
    assert [name for name in names.PUBLIC if f"`{name}" not in table and f"={name})" not in table] == []
