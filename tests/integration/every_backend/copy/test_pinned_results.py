"""Results of downloads in page-locked memory: pooled, in the source's order of axes, and the pool's again when dropped."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import devmem as dm

DATA = np.arange(6 * 50 * 40, dtype="i4").reshape(6, 50, 40)
LAYOUTS = {
    "C": lambda a: a,
    "Fortran": lambda a: a.T,
    "axes": lambda a: a.transpose(1, 0, 2),
    "gaps": lambda a: a[:, ::2, ::3],
    "reversed": lambda a: a[::-1, :, ::-1],
    "nothing": lambda a: a[:0],
    "no axes": lambda a: a[0, 0, 7:8].reshape(()),
}


@pytest.fixture(autouse=True)
def has_pinned(need_kind):
    need_kind("pinned")


def pool():
    """The pool of the device's own."""
    context = dm.current_device().opened()
    [found] = [heap.resource for heap in context.memory.stacks.heaps if type(heap.resource).__name__ == "PinnedPool"]
    return found


@pytest.mark.parametrize("how", ["copy_to_host", "copy_async", "copy_to_host on a stream"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pinned_results_have_the_sources_values_and_order(layout, how):
    view = LAYOUTS[layout](dm.to_device(DATA))
    if how == "copy_async":
        found = dm.copy_async(view, pinned=True).result()
    elif how == "copy_to_host":
        found = view.copy_to_host(pinned=True)
    else:
        stream = dm.stream()
        found = view.copy_to_host(stream=stream, pinned=True)
        stream.synchronize()
    expected = LAYOUTS[layout](DATA)
    plain = view.copy_to_host()
    assert np.array_equal(found, expected)
    assert (found.dtype, found.strides) == (plain.dtype, plain.strides)
    assert found.flags.writeable
    if found.size:
        assert isinstance(found, dm.PinnedNDArray)
        assert type(found + 1) is np.ndarray if found.shape else True


@pytest.mark.parametrize("staged", [False, True])
def test_a_pinned_batch_has_the_sources_values(with_settings, staged):
    """Small ones of one block and of several, with gaps too, and a large one."""
    with_settings(STAGING_THRESHOLD="100" if staged else "0")
    large = np.arange(100_000.0)
    block = dm.to_device_many([DATA[0], DATA[1].T, large])
    trees = [block[:2], [dm.to_device(DATA[0]), dm.to_device(DATA[2])[::2], *block], [dm.to_device(DATA[:0]), block[2]]]
    for tree in trees:
        found = dm.to_host_many(tree, pinned=True)
        for each, array in zip(found, tree, strict=True):
            assert np.array_equal(each, array.copy_to_host())
            assert isinstance(each, dm.PinnedNDArray) or not each.size
    dm.transfer_stats(reset=True)
    block[0].copy_to_device(dm.to_host_many(block[:2], pinned=True)[0])
    assert "h2d direct" in dm.transfer_stats()


def test_a_pinned_gather_has_the_pieces_values():
    pieces = dm.scatter(DATA, [dm.current_device()] * 3)
    found = dm.gather(pieces, pinned=True)
    assert isinstance(found, dm.PinnedNDArray)
    assert np.array_equal(found, DATA)
    assert np.array_equal(dm.gather([each.T for each in pieces], axis=2, pinned=True), DATA.T)


def test_of_memory_on_both_sides(need_kind):
    need_kind("managed")
    array = dm.managed_array(3, "i4")
    array[:] = 5
    found = array.copy_to_host(pinned=True)
    assert isinstance(found, dm.PinnedNDArray)
    assert found.tolist() == [5, 5, 5]


def test_they_are_reached_directly(with_settings):
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES="1024")
    array = dm.to_device(DATA)
    dm.transfer_stats(reset=True)
    found = array.copy_to_host(pinned=True)
    assert dm.copy_async(array, pinned=True).wait()
    assert set(dm.transfer_stats()) == {"d2h direct"}
    array.copy_to_device(found)
    assert set(dm.transfer_stats()) == {"d2h direct", "h2d direct"}


def test_the_pool_has_it_back(device):
    dm.close()  # with what other tests left to be dropped
    array = dm.to_device(DATA)
    found = array.copy_to_host(pinned=True)
    address = found.ctypes.data
    view = found[2:, 5]
    assert pool().report().misses == 1
    live = dm.memory_info().host.live
    del found
    gc.collect()
    dm.synchronize()
    assert dm.memory_info().host.live == live, "a view keeps it"
    del view
    again = array.copy_to_host()  # what was dropped goes back at the next call
    dm.trim(keep_bytes=1 << 30)
    assert dm.memory_info().host.live == live - DATA.nbytes
    dm.synchronize()  # and is used again when the stream that it was given back on has passed
    again = array.copy_to_host(pinned=True)
    assert again.ctypes.data == address
    assert pool().report().misses == 1
    assert np.array_equal(again, DATA)


def test_what_is_dropped_under_way_is_used_again_only_afterwards(need, hold, device):
    need("hold")
    stream = dm.stream(non_blocking=True)
    array = dm.to_device(DATA)
    address = array.copy_to_host(pinned=True).ctypes.data
    dm.synchronize()
    other = array[::-1].copy()
    with hold(stream) as latch:
        array.copy_to_host(stream=stream, pinned=True)
        found = other.copy_to_host(pinned=True)
        assert found.ctypes.data != address or not stream.query()
        latch.release()
    stream.synchronize()
    assert np.array_equal(found, DATA[::-1]), "an older copy wrote to it"


def test_the_stack_that_is_installed_serves_them(device):
    counted = dm.memory.Statistics(dm.memory.PinnedMemory())
    with dm.use_memory(counted, kind="pinned"):
        found = dm.to_device(DATA).copy_to_host(pinned=True)
        assert counted.snapshot().current_bytes >= DATA.nbytes
    assert np.array_equal(found, DATA)


def test_trim_gives_it_back(device):
    dm.to_device(DATA).copy_to_host(pinned=True)
    gc.collect()
    dm.synchronize()
    dm.trim()
    assert pool().report().reserved_bytes == 0


def test_readable_when_the_device_is_closed(device):
    found = dm.to_device(DATA).copy_to_host(pinned=True)
    dm.close()
    assert np.array_equal(found, DATA)


def test_not_with_a_destination():
    array = dm.to_device(DATA)
    with pytest.raises(dm.LayoutError, match="pinned=True"):
        array.copy_to_host(np.zeros_like(DATA), pinned=True)
    for call in (
        lambda: dm.copy_async(array, np.zeros_like(DATA), pinned=True),
        lambda: dm.copy_async(DATA, pinned=True),
        lambda: dm.copy_async(DATA, array, pinned=True),
    ):
        with pytest.raises(dm.LayoutError, match="pinned=True"):
            call()


def test_no_page_locked_memory_left(recorded):
    """The error is OutOfMemory, and nothing is left behind."""
    array = dm.to_device(DATA)
    live = dm.memory_info().live
    recorded.fail_at(1, "alloc", repeat=True)
    for call in (
        lambda: array.copy_to_host(pinned=True),
        lambda: dm.copy_async(array, pinned=True),
        lambda: dm.to_host_many([array, array], pinned=True),
        lambda: dm.gather([array, array], pinned=True),
    ):
        with pytest.raises(dm.OutOfMemory):
            call()
    recorded.disarm()
    gc.collect()
    assert dm.memory_info().live == live
    assert np.array_equal(array.copy_to_host(pinned=True), DATA)
