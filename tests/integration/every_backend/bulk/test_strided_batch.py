"""Many arrays whose rows lie apart: one call of the driver where it has one, the same elements everywhere."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy", "device")

#: Bytes of a row that is copied, and of one of the array that it is part of.
WIDE, PITCH = 1024, 4096


def parts(count=8, rows=64, seed=0):
    """Views of one page-locked array, which are not contiguous: every second row, and the first quarter of each."""
    whole = dm.pinned_array((count, 2 * rows, PITCH), np.uint8)
    whole[...] = np.random.default_rng(seed).integers(0, 256, whole.shape, np.uint8)
    return [each[::2, :WIDE] for each in whole]


def batches(seen):
    return [call for call in seen if call.method == "copy_3d_batch"]


def copies(seen):
    return [call.method for call in seen if call.method.startswith("copy")]


def same(hosts, arrays):
    return all(np.array_equal(host, np.asarray(array)) for host, array in zip(hosts, arrays, strict=True))


def down(arrays):
    return [array.copy_to_host() for array in arrays]


def test_arrays_whose_rows_lie_apart_arrive(recorded):
    leaves = [*parts(), np.arange(10), parts(1)[0][::-1], parts(2)[1].T]
    assert same(leaves, down(dm.to_device_many(leaves)))
    assert same(leaves, down(dm.to_device_many(leaves, dm.stream())))


def test_page_locked_rows_are_copied_by_one_call(need, recorded):
    need("volume_batch")
    leaves = parts()
    whole = dm.pinned_array((4, 6, 8, PITCH), np.uint8)
    whole[...] = 7
    leaves.append(whole[:, ::2, :4, :WIDE])
    with recorded.during() as seen:
        up = dm.to_device_many(leaves, dm.stream())
    assert copies(seen) == ["copy_3d_batch"]
    [batch] = batches(seen)
    assert sum(box.nbytes for box in batch.args[0]) == sum(leaf.nbytes for leaf in leaves)
    assert {box.src for box in batch.args[0]} >= {leaf.ctypes.data for leaf in leaves}
    assert same(leaves, down(up))
    assert dm.transfer_stats()["h2d batch"]["bytes"] == sum(leaf.nbytes for leaf in leaves)


def test_contiguous_and_strided_ones_take_a_call_each(need, recorded):
    need("volume_batch", "batch_copy")
    runs = [dm.pinned_array(1 << 16, np.uint8) for _ in range(3)]
    for number, run in enumerate(runs):
        run[...] = number
    leaves = [*parts(2), *runs, np.arange(5), *parts(1)]
    with recorded.during() as seen:
        up = dm.to_device_many(leaves, dm.stream())
    assert copies(seen) == ["copy", "copy_batch", "copy_3d_batch"]
    assert same(leaves, down(up))


def test_sources_live_until_the_stream_has_passed(need, hold):
    need("volume_batch", "hold")
    stream = dm.stream(non_blocking=True)
    leaves = parts(4)
    wanted = [leaf.copy() for leaf in leaves]
    with hold(stream) as latch:
        up = dm.to_device_many(leaves, stream)
        del leaves
        gc.collect()
        other = dm.pinned_array((4, 128, PITCH), np.uint8)  # where the sources were, if they were let go of
        other[...] = 0
        latch.release()
    assert same(wanted, down(up))


@pytest.mark.parametrize("which", ["legacy", "none named"])
def test_on_the_legacy_stream_another_one_takes_the_batch_ordered_by_two_events(need, recorded, which):
    need("volume_batch")
    stream = dm.legacy_default_stream() if which == "legacy" else 0
    leaves = parts(10)
    with recorded.during() as seen:
        up = dm.to_device_many(leaves, stream)
    names = ("copy_3d_batch", "stream_wait", "event_record")
    calls = [call for call in seen if call.method in names]
    at = [call.method for call in calls].index("copy_3d_batch")
    on = calls[at].args[2]
    assert on not in (1, 2)
    assert [call.method for call in calls[at - 2 : at + 3]] == [
        "event_record", "stream_wait", "copy_3d_batch", "event_record", "stream_wait",
    ]  # fmt: skip
    assert (calls[at - 1].args[0], calls[at + 1].args[1]) == (on, on)
    assert same(leaves, down(up))
    with recorded.during() as seen:
        up = dm.to_device_many(parts(3), stream)
    assert set(copies(seen)) == {"copy_strided"}, "not worth two events"
    dm.synchronize()


@pytest.mark.parametrize("count", [2, 10])
def test_the_per_thread_stream_takes_the_batch_itself(need, recorded, count):
    need("volume_batch")
    stream, leaves = dm.per_thread_default_stream(), parts(count)
    with recorded.during() as seen:
        up = dm.to_device_many(leaves, stream)
    enqueued = [
        call for call in seen if call.method in ("copy_strided", "copy_3d_batch", "stream_create", "stream_wait")
    ]
    assert [(call.method, call.args[2]) for call in enqueued] == [("copy_3d_batch", stream.handle)]
    assert same(leaves, down(up))


def test_a_driver_without_the_call_for_rows_keeps_that_for_runs(need, device, monkeypatch):
    need("volume_batch", "batch_copy")

    def refuse(*arguments):
        raise dm.UnsupportedError("no such call")

    engine = device.opened().copies
    monkeypatch.setattr(engine, "volume_batches", True)  # what it will be again afterwards
    monkeypatch.setattr(device.driver(), "copy_3d_batch", refuse, raising=False)
    leaves = [*parts(3), *(dm.pinned_array(1 << 16, np.uint8) for _ in range(3))]
    for leaf in leaves[3:]:
        leaf[...] = 9
    assert same(leaves, down(dm.to_device_many(leaves, dm.stream())))
    assert (engine.volume_batches, engine.batches) == (False, True)
    assert same(leaves, down(dm.to_device_many(leaves, dm.stream())))


def test_a_driver_without_the_call_for_runs_keeps_that_for_rows(need, recorded, monkeypatch):
    need("volume_batch")
    monkeypatch.setattr(dm.current_device().opened().copies, "batches", False)
    leaves = parts()
    with recorded.during() as seen:
        up = dm.to_device_many(leaves, dm.stream())
    assert copies(seen) == ["copy_3d_batch"]
    assert same(leaves, down(up))


@pytest.mark.parametrize("memory", ["page-locked", "pageable"])
@pytest.mark.parametrize("width", [WIDE, 64])
def test_where_no_batch_of_the_driver_takes_them_they_are_gathered_and_copied_together(
    recorded, monkeypatch, memory, width
):
    monkeypatch.setattr(dm.current_device().opened().copies, "volume_batches", False)
    wholes = parts(), parts(seed=1)
    if memory == "pageable":
        wholes = [[np.repeat(each, 2, axis=1)[:, ::1] for each in whole] for whole in wholes]
    leaves = [each[:, :width] if width == WIDE else each[:, : WIDE // 2][:, ::2] for each in wholes[0]]
    assert not any(leaf.flags.c_contiguous for leaf in leaves)
    with recorded.during() as seen:
        up = dm.to_device_many(leaves, dm.stream())
    assert copies(seen) == ["copy"]
    assert same(leaves, down(up))


def test_rows_too_narrow_for_the_driver_are_gathered_on_the_host(need, recorded):
    need("volume_batch")
    whole = dm.pinned_array((2, 4096, 64), np.uint8)
    whole[...] = 5
    leaves = [each[:, :32] for each in whole]
    with recorded.during() as seen:
        up = dm.to_device_many(leaves, dm.stream())
    assert not batches(seen)
    assert same(leaves, down(up))


def test_while_a_graph_is_captured_each_is_copied_by_itself(need, recorded):
    need("capture", "volume_batch")
    stream = dm.stream()
    leaves = parts(3)
    with recorded.during() as seen, dm.capture(stream) as plan:
        up = dm.to_device_many(leaves, stream)
    assert not batches(seen)
    plan.replay()
    stream.synchronize()
    assert same(leaves, down(up))
    plan.close()


def test_memory_that_is_locked_meanwhile_is_looked_at_again(need, device, monkeypatch):
    need("volume_batch", "host_register")
    leaves, other, registered = parts(3), np.zeros(1 << 20, np.uint8), []
    table = type(device.opened().page_locks)
    hold = table.hold_page_locks

    def first(self, low, high):
        if not registered:
            registered.append(dm.register(other))
        return hold(self, low, high)

    before = dm.transfer_stats().get("h2d batch", {"copies": 0})["copies"]
    with monkeypatch.context() as patch:
        patch.setattr(table, "hold_page_locks", first)
        up = dm.to_device_many(leaves, dm.stream())
    assert registered
    assert same(leaves, down(up))
    assert dm.transfer_stats().get("h2d batch", {"copies": 0})["copies"] == before
    dm.deregister(other)


def test_strided_device_arrays_are_packed_by_one_call(device, need, recorded):
    need("volume_batch")
    if not device.info.staging_threshold:
        pytest.skip(f"{device} has pageable memory as good as page-locked: nothing is packed")
    hosts = [np.arange(2000 + 40 * number, dtype=np.int32).reshape(-1, 40) for number in range(6)]
    arrays = [dm.to_device(host)[::2, 5:25] for host in hosts]
    wanted = [host[::2, 5:25] for host in hosts]
    with recorded.during() as seen:
        found = dm.to_host_many(arrays, dm.stream())
    assert copies(seen) == ["copy_3d_batch", "copy"]
    assert same(wanted, found)


@pytest.mark.parametrize("named", [False, True])
def test_strided_device_arrays_come_back(named):
    hosts = [np.arange(24.0).reshape(2, 3, 4) + number for number in range(5)]
    arrays = [array[:, ::2, 1:].T for array in map(dm.to_device, hosts)]
    assert same([host[:, ::2, 1:].T for host in hosts], dm.to_host_many(arrays, dm.stream() if named else 0))
