"""Work that is recorded once and replayed by one call: its order, what it owns, and what cannot be recorded."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem.api.kernels import kernel_compilers
from devmem.testing import hold

N = 1000


@pytest.fixture(autouse=True)
def graphs(need, need_kind, tidy):
    need("graphs")
    need_kind("pinned")


def pinned(values):
    made = dm.pinned_array(np.shape(values), np.asarray(values).dtype)
    made[...] = values
    return made


def is_alive(address):
    """Whether the page-locked memory at an address is in use."""
    heaps = dm.current_device().opened().memory.stacks.all_heaps()
    return any(address == ptr for heap in heaps for ptr, _, _ in heap.live.blocks())


def address_of(host):
    return host.__array_interface__["data"][0]


@pytest.fixture
def stream(device):
    return dm.stream(non_blocking=True)


class Doubled:
    """A plan that uploads, copies on the device, fills and downloads, and its arrays."""

    def __init__(self, stream):
        self.source, self.result = pinned(np.arange(N, dtype="i4")), pinned(np.full(N, -1, "i4"))
        self.first, self.second = dm.to_device(np.zeros(N, "i4")), dm.to_device(np.zeros(N, "i4"))
        with dm.capture(stream) as plan:
            self.first.copy_to_device(self.source, stream=stream)
            self.second.copy_to_device(self.first, stream=stream)
            self.second[:10].fill(7, stream=stream)
            self.second.copy_to_host(self.result, stream=stream)
        self.plan = plan

    def expected(self):
        return np.where(np.arange(N) < 10, 7, self.source)


def test_a_plan_runs_when_it_is_replayed_and_not_before(stream):
    work = Doubled(stream)
    stream.synchronize()
    assert (work.result == -1).all() and not work.first.copy_to_host().any()
    work.plan.replay()
    stream.synchronize()
    assert (work.result == work.expected()).all()
    assert work.plan.copies == 3


def test_each_replay_reads_its_sources_again(stream):
    work = Doubled(stream)
    for value in (3, 4, 5):
        work.source[...] = value
        work.plan.replay()
        stream.synchronize()
        assert (work.result == work.expected()).all()


def test_a_replay_is_ordered_on_its_stream_and_does_not_wait(stream, need):
    need("hold")
    work, after = Doubled(stream), pinned(np.zeros(N, "i4"))
    with hold(stream) as latch:
        work.plan.replay()
        work.plan.replay()
        work.second.copy_to_host(after, stream=stream)
        assert (work.result == -1).all()
        work.source[...] = 9  # it is read when the stream comes to it
        latch.release()
        stream.synchronize()
    assert (work.result == work.expected()).all() and (after == work.expected()).all()


def test_a_plan_owns_both_sides(stream, need):
    need("hold")
    work = Doubled(stream)
    source, expected, plan, result = address_of(work.source), work.expected(), work.plan, work.result
    del work
    gc.collect()
    with hold(stream) as latch:
        plan.replay()
        scribbled = [dm.full(N, 0, "i4") for _ in range(4)]
        latch.release()
        stream.synchronize()
    assert is_alive(source) and (result == expected).all()
    assert not any(each.copy_to_host().any() for each in scribbled)
    plan.close()
    dm.trim()
    gc.collect()
    assert not is_alive(source)


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_plan_that_ends_while_it_runs_keeps_what_it_uses_until_the_stream_has_passed(stream, need, how):
    need("hold")
    work = Doubled(stream)
    source, expected, result = address_of(work.source), work.expected(), work.result
    with hold(stream) as latch:
        work.plan.replay()
        if how == "closed":
            work.plan.close()
        del work
        gc.collect()
        dm.zeros(1)
        assert is_alive(source)
        latch.release()
        stream.synchronize()
    assert (result == expected).all()
    dm.trim()
    gc.collect()
    assert not is_alive(source)


def test_page_locks_last_as_long_as_the_plan(stream, need):
    need("host_register")
    host, device = np.arange(N, dtype="f8"), dm.to_device(np.zeros(N))
    dm.register(host)
    with dm.capture(stream) as plan:
        device.copy_to_device(host, stream=stream)
    dm.deregister(host)
    host += 1
    plan.replay()
    stream.synchronize()
    assert (device.copy_to_host() == np.arange(N) + 1).all()
    locks = dm.current_device().opened().page_locks
    low = address_of(host)
    assert locks.covers(low, low + host.nbytes)
    plan.close()
    dm.trim()
    assert not locks.covers(low, low + host.nbytes)


def test_memory_allocated_in_the_block_is_the_plans(stream, device):
    source, result = pinned(np.arange(N, dtype="i4")), pinned(np.zeros(N, "i4"))
    with dm.capture(stream) as plan:
        temporary = dm.to_device(source, stream=stream)
        address = temporary.ptr
        temporary.copy_to_host(result, stream=stream)
    del temporary
    dm.trim()
    others = [dm.device_array(N, "i4", stream=stream) for _ in range(20)]
    assert address not in [each.ptr for each in others]
    for each in others:
        each.fill(0, stream=stream)
    plan.replay()
    stream.synchronize()
    assert (result == source).all() and not any(each.copy_to_host().any() for each in others)
    plan.close()
    dm.trim()
    assert device.opened().memory.memory_info().pending == 0


def test_a_block_that_is_dropped_in_the_block_serves_the_next_of_its_size(stream):
    source, result = pinned(np.arange(N, dtype="i4")), pinned(np.zeros((3, N), "i4"))
    addresses = set()
    with dm.capture(stream) as plan:
        for row in result:
            temporary = dm.to_device(source, stream=stream)
            addresses.add(temporary.ptr)
            temporary[:5].fill(len(addresses), stream=stream)
            temporary.copy_to_host(row, stream=stream)
            temporary.free()
    assert len(addresses) == 1
    plan.replay()
    stream.synchronize()
    assert (result[:, 5:] == source[5:]).all() and (result[:, :5] == 1).all()


def test_rows_with_a_pitch_fill_patterns_and_batches_are_recorded(stream, need):
    need("strided_copy")
    source, result = pinned(np.arange(64 * 256, dtype="f4").reshape(64, 256)), pinned(np.zeros((64, 128), "f4"))
    several = [pinned(np.full(300, value, "u1")) for value in range(3)]
    doubles = pinned(np.zeros(N))
    device, wide = dm.zeros((64, 256), "f4"), dm.zeros(N)
    with dm.capture(stream) as plan:
        device.copy_to_device(source, stream=stream)
        device[:, 64:192].copy_to_host(result, stream=stream)
        wide.fill(1.25, stream=stream)
        wide.copy_to_host(doubles, stream=stream)
        uploaded = dm.to_device_many(several, stream=stream)
    plan.replay()
    stream.synchronize()
    assert (result == source[:, 64:192]).all() and (doubles == 1.25).all()
    assert [set(each.copy_to_host().tolist()) for each in uploaded] == [{0}, {1}, {2}]


@pytest.mark.races("it looks at what a copy behind a latch is about to write")
def test_events_are_recorded_and_waited_for_whenever_the_plan_runs(stream, need):
    need("hold")
    before, after, other = dm.event(), dm.event(), dm.stream(non_blocking=True)
    source, result, device = pinned(np.arange(N)), pinned(np.zeros(N, int)), dm.zeros(N, int)
    before.record(other)
    with dm.capture(stream) as plan:
        stream.wait(before)
        device.copy_to_device(source, stream=stream)
        after.record(stream)
        device.copy_to_host(result, stream=stream)
    for _ in range(2):
        result[...] = 0
        with hold(other) as latch:
            before.record(other)
            plan.replay()
            assert not after.query() and not stream.query()
            latch.release()
            after.synchronize()
            stream.synchronize()
        assert (result == source).all()


def test_a_closed_event_is_found_when_the_plan_is_replayed(stream):
    event = dm.event()
    with dm.capture(stream) as plan:
        event.record(stream)
    plan.replay()
    stream.synchronize()
    event.close()
    with pytest.raises(dm.ClosedError, match="event"):
        plan.replay()


@dm.kernel
def add_one(values):
    i = dm.grid(1)
    if i < values.size:
        values[i] += 1


def test_launches_are_recorded_with_their_arguments(device, stream, need):
    need("host_function")
    pytest.importorskip("greenlet")
    if not kernel_compilers(device.backend):
        pytest.skip(f"{device} has no kernel compiler")
    source, result = pinned(np.arange(N, dtype="i4")), pinned(np.zeros(N, "i4"))
    values = dm.zeros(N, "i4")
    with dm.capture(stream) as plan:
        values.copy_to_device(source, stream=stream)
        for _ in range(2):
            add_one[-(-N // 32), 32, stream](values)
        with pytest.raises(dm.UnsupportedError, match="host arrays are copied"):
            add_one[1, 32, stream](dm.In(np.zeros(3, "i4")))
        values.copy_to_host(result, stream=stream)
    del values
    for _ in range(2):
        result[...] = 0
        plan.replay()
        stream.synchronize()
        assert (result == source + 2).all()


# -- update ------------------------------------------------------------------------------------------------------------


def test_update_replaces_the_sides_of_copies(stream):
    work = Doubled(stream)
    old = address_of(work.source)
    work.source, other = pinned(np.arange(N, dtype="i4") * 5), pinned(np.zeros(N, "i4"))
    second = dm.zeros(N, "i4")
    work.plan.update(src=[work.source, None, None], dst=[None, None, other])
    work.plan.replay()
    stream.synchronize()
    assert (other == work.expected()).all() and (work.result == -1).all()
    work.plan.update(dst=[None, second, None], src=[None, None, second])
    work.plan.replay()
    stream.synchronize()
    assert (second.copy_to_host() == work.source).all(), (
        "the fill keeps its place, in the array that it was recorded with"
    )
    dm.trim()
    gc.collect()
    assert not is_alive(old)


def test_update_of_one_copy_takes_arrays(stream, need):
    need("hold")
    one, two, device = pinned(np.full(N, 1)), pinned(np.full(N, 2)), dm.zeros(N, int)
    other = dm.zeros(N, int)
    with dm.capture(stream) as plan:
        device.copy_to_device(one, stream=stream)
    kept = address_of(one)
    with hold(stream) as latch:
        plan.replay()
        plan.update(src=two, dst=other)
        del one
        gc.collect()
        dm.zeros(1)
        assert is_alive(kept), "what is enqueued copies from it yet"
        plan.replay()
        latch.release()
        stream.synchronize()
    assert (device.copy_to_host() == 1).all() and (other.copy_to_host() == 2).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: {"src": [None, None]}, "2 arrays, but the plan has 3"),
        (lambda: {"src": [pinned(np.zeros(N, "f4")), None, None]}, "has dtype float32, and replaces dtype int32"),
        (lambda: {"src": [pinned(np.zeros(N - 1, "i4")), None, None]}, "has shape"),
        (lambda: {"src": [dm.zeros(N, "i4"), None, None]}, "is a DeviceNDArray, and replaces a host array"),
        (lambda: {"dst": [None, np.zeros(N, "i4"), None]}, "is a ndarray, and replaces a device array"),
    ],
)
def test_update_refuses_another_layout_and_changes_nothing(stream, given, message):
    work = Doubled(stream)
    with pytest.raises(dm.LayoutError, match=message):
        work.plan.update(**given())
    with pytest.raises(dm.UnsupportedError, match="pinned_array"):
        work.plan.update(src=[np.zeros(N, "i4"), None, None])
    work.plan.replay()
    stream.synchronize()
    assert (work.result == work.expected()).all()


# -- what is refused ---------------------------------------------------------------------------------------------------


def on_another_device():
    here = dm.current_device()
    others = [each for each in dm.devices() if each.backend == here.backend and each != here]
    if not others:
        pytest.skip(f"{here} is the only device")
    with others[0]:
        return dm.zeros(N, "i4")


def file_of(array):
    np.save("array.npy", array)
    return "array.npy"


REFUSED = {
    "pageable source": lambda s, d, p: d.copy_to_device(np.zeros(N, "i4"), stream=s),
    "pageable destination": lambda s, d, p: d.copy_to_host(stream=s),
    "a call that waits": lambda s, d, p: d.bind(s).copy_to_host(p),
    "synchronize": lambda s, d, p: s.synchronize(),
    "query": lambda s, d, p: s.query(),
    "close": lambda s, d, p: s.close(),
    "callback": lambda s, d, p: s.add_callback(print),
    "another stream": lambda s, d, p: s.wait(dm.stream()),
    "copy_async": lambda s, d, p: dm.copy_async(p, d, stream=s),
    "copy_async to the host": lambda s, d, p: dm.copy_async(d, p, stream=s),
    "scattered elements": lambda s, d, p: d[::3].copy_to_host(pinned(np.zeros(-(-N // 3), "i4")), stream=s),
    "strided fill": lambda s, d, p: d[::3].fill(1, stream=s),
    "many to the host": lambda s, d, p: dm.to_host_many([d, d], stream=s),
    "another plan": lambda s, d, p: dm.capture(s).__enter__(),
    "a plan replayed": lambda s, d, p: Doubled(s),
    "a copy from another device": lambda s, d, p: d.copy_to_device(on_another_device(), stream=s),
    "rows from another device": lambda s, d, p: d[::2].copy_to_device(on_another_device()[::2], stream=s),
    "an array moved from another device": lambda s, d, p: dm.to_device(on_another_device(), stream=s),
    "a file loaded": lambda s, d, p: dm.load(file_of(p), stream=s),
    "many files loaded": lambda s, d, p: dm.load_many([file_of(p)] * 2, stream=s),
    "a file saved": lambda s, d, p: dm.save(d.bind(s), file_of(p)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_recorded_raises_and_leaves_the_recording_as_it_was(stream, what, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # of files
    device, host = dm.to_device(np.arange(N, dtype="i4")), pinned(np.zeros(N, "i4"))
    with dm.capture(stream) as plan:
        device.fill(5, stream=stream)
        with pytest.raises(dm.UnsupportedError):
            REFUSED[what](stream, device, host)
        device.copy_to_host(host, stream=stream)
    assert plan.copies == 1
    assert (device.copy_to_host() == np.arange(N)).all(), "nothing was enqueued"
    plan.replay()
    stream.synchronize()
    assert (host == 5).all()


@pytest.mark.parametrize("which", ["default_stream", "per_thread_default_stream"])
def test_default_and_foreign_streams_are_not_recorded(device, which):
    with pytest.raises(dm.UnsupportedError, match="others enqueue there"):
        dm.capture(getattr(dm, which)())
    with device.entered() as driver:
        handle = driver.stream_create(0, True)
    with pytest.raises(dm.UnsupportedError, match="others enqueue there"):
        dm.capture(dm.external_stream(handle))
    dm.trim()
    with device.entered() as driver:
        driver.stream_destroy(handle)


def test_other_streams_and_threads_work_as_ever_meanwhile(stream):
    device, host = dm.zeros(N, "i4"), np.full(N, 3, "i4")
    with dm.capture(stream) as plan:
        device.fill(1, stream=stream)
        other = dm.to_device(host)
        assert (other.copy_to_host() == 3).all() and not device.copy_to_host().any()
        dm.synchronize()
        dm.trim()
    plan.replay()
    stream.synchronize()
    assert (device.copy_to_host() == 1).all()


def test_another_thread_may_wait_for_the_device_while_plans_are_made(stream):
    """CUDA refuses that while a stream is captured, and drops the capture: both are tried again."""
    device, host = dm.current_device(), pinned(np.arange(N, dtype="i4"))
    array, failed, done = dm.zeros(N, "i4"), [], threading.Event()

    def wait():
        try:
            while not done.is_set():
                device.synchronize()
        except dm.DevmemError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        for _ in range(30):
            with dm.capture(stream) as plan:
                for _ in range(20):
                    array.copy_to_device(host, stream=stream)
            plan.replay()
            plan.close()
    finally:
        done.set()
        thread.join(patience())
    assert not failed
    stream.synchronize()
    assert (array.copy_to_host() == host).all()


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_plan_knows_its_state(stream):
    plan = dm.capture(stream)
    with pytest.raises(dm.UnsupportedError, match="not recorded yet"):
        plan.replay()
    with plan:
        with pytest.raises(dm.UnsupportedError, match="not recorded yet"):
            plan.replay()
        with pytest.raises(dm.DevmemError, match="leave the with block"):
            plan.close()
    assert not plan.closed and "recorded" in repr(plan)
    plan.replay()  # nothing
    with pytest.raises(dm.DevmemError, match="recorded once"):
        plan.__enter__()
    plan.close()
    plan.close()
    assert plan.closed
    for call in (plan.replay, plan.update):
        with pytest.raises(dm.ClosedError, match="record it anew"):
            call()


def test_an_error_in_the_block_leaves_nothing(stream):
    device, host = dm.zeros(N, "i4"), pinned(np.zeros(N, "i4"))
    kept = address_of(host)
    with pytest.raises(ZeroDivisionError), dm.capture(stream) as plan:
        device.copy_to_device(host, stream=stream)
        dm.zeros(N, "i4", stream=stream)
        raise ZeroDivisionError
    assert plan.closed
    del host
    dm.trim()
    gc.collect()
    assert not is_alive(kept)
    device.fill(2, stream=stream)
    stream.synchronize()
    assert (device.copy_to_host() == 2).all(), "the stream works as ever"


def test_freed_memory_and_a_closed_stream_are_found_at_the_replay(stream):
    work = Doubled(stream)
    work.second.free()
    with pytest.raises(dm.ClosedError, match="was freed"):
        work.plan.replay()
    other = Doubled(dm.stream())
    other.plan.stream.close()
    with pytest.raises(dm.ClosedError):
        other.plan.replay()
    other.plan.close()
    dm.trim()


@pytest.mark.parametrize("end", ["reset", "close"])
def test_a_plan_ends_with_its_device(device, end):
    stream = dm.stream()
    work = Doubled(stream)
    work.plan.replay()
    getattr(dm, end)()
    assert work.plan.closed
    with pytest.raises(dm.ClosedError):
        work.plan.replay()
    with pytest.raises(dm.ClosedError):
        work.plan.update()
    work.plan.close()
    del work, stream
    gc.collect()
    dm.trim()
    again = dm.stream()
    fresh = Doubled(again)
    fresh.plan.replay()
    again.synchronize()
    assert (fresh.result == fresh.expected()).all()


def test_a_device_that_ends_in_the_block_leaves_a_closed_plan(device):
    stream = dm.stream()
    with dm.capture(stream) as plan:
        dm.zeros(N, stream=stream)
        dm.reset()
    assert plan.closed


def test_a_plan_where_the_driver_refuses_is_not_made(device, stream, monkeypatch):
    host, array = pinned(np.zeros(N, "i4")), dm.zeros(N, "i4")
    opened = device.opened()
    graphs = []

    def refuse(calls, on):
        graphs.append(len(calls))
        raise dm.BackendError("refused", backend="x", call="graph", code=1, name="X")

    with monkeypatch.context() as patch:
        patch.setattr(opened.handle.driver, "graph_create", refuse)
        with pytest.raises(dm.BackendError, match="refused"), dm.capture(stream) as plan:
            array.copy_to_device(host, stream=stream)
    assert graphs == [1] and plan.closed
    array.copy_to_device(host, stream=stream)
    stream.synchronize()
    kept = address_of(host)
    del host, plan
    dm.trim()
    gc.collect()
    assert not is_alive(kept)


def test_a_plan_that_is_dropped_ends_no_recording_but_its_own(stream):
    work = Doubled(stream)
    with dm.capture(stream) as plan:
        work.first.fill(3, stream=stream)
        del work.plan
        gc.collect()
        work.first.copy_to_host(work.result, stream=stream)
    plan.replay()
    stream.synchronize()
    assert (work.result == 3).all()


def test_a_plan_that_is_dropped_in_its_block_lets_go_of_the_stream(stream):
    plan = dm.capture(stream)
    plan.__enter__()  # as if an interrupt came before the block
    assert stream.recorder is not None
    del plan
    gc.collect()
    assert stream.recorder is None
    stream.synchronize()
