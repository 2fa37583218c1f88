"""Streams and events that were closed are used again: by one owner at a time, of the same kind, and with nothing on them."""

from __future__ import annotations

import gc
from operator import attrgetter, methodcaller
from types import SimpleNamespace

import pytest
from waits import together

import devmem as dm
from devmem._core.ordering.leases import HandleLeases
from devmem._core.ordering.spare import LentHandle, SpareHandles
from devmem._core.ordering.stream_table import SPARE_STREAMS
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy", "still")


def test_a_closed_stream_is_used_again():
    first = dm.stream()
    handle = first.handle
    first.close()
    second = dm.stream()
    assert second.handle == handle
    assert second is not first
    assert not second.closed
    second.synchronize()
    assert dm.stream().handle != handle, "it has one owner"


def test_a_dropped_stream_is_used_again():
    stream = dm.stream()
    handle = stream.handle
    del stream
    gc.collect()
    with dm.current_device().entered():
        dm.current_device().opened().free_queue.drain()
    assert dm.stream().handle == handle


@pytest.mark.parametrize("timing", [True, False])
def test_a_closed_event_is_used_again(timing):
    first = dm.event(timing=timing)
    first.record()
    first.synchronize()
    handle = first.handle
    first.close()
    other, second = dm.event(timing=not timing), dm.event(timing=timing)
    assert second.handle == handle != other.handle
    assert second.query()
    assert second.timing is timing
    assert dm.event(timing=timing).handle != handle


def test_an_event_that_is_used_again_was_never_recorded():
    first = dm.event()
    first.record()
    dm.synchronize()
    first.close()
    second, later = dm.event(), dm.event()
    later.record()
    dm.synchronize()
    with pytest.raises(dm.LayoutError, match="the start was not"):
        second.elapsed_time(later)


def test_a_stream_of_another_kind_is_not_used_again():
    blocking, other = dm.stream(), dm.stream(non_blocking=True)
    handles = blocking.handle, other.handle
    blocking.close()
    other.close()
    again = dm.stream(non_blocking=True), dm.stream()
    assert [each.handle for each in again] == [handles[1], handles[0]]
    assert [each.non_blocking for each in again] == [True, False]


def test_a_stream_of_another_priority_is_not_used_again(device):
    least, greatest = device.info.stream_priorities
    if least == greatest:
        pytest.skip(f"all streams of {device} have the same priority")
    first = dm.stream(priority=greatest)
    handle = first.handle
    first.close()
    assert dm.stream(priority=least).handle != handle
    assert dm.stream(priority=greatest - 7).handle == handle, "priorities are clamped to what there is"


def test_the_old_owner_has_nothing_to_do_with_the_new_one():
    old = dm.stream()
    old.close()
    new = dm.stream()
    for use in (attrgetter("handle"), methodcaller("synchronize"), methodcaller("query"), int, methodcaller("record")):
        with pytest.raises(dm.ClosedError, match="is closed"):
            use(old)
    old.close()
    del old
    gc.collect()
    dm.trim()
    assert not new.closed
    new.synchronize()
    before = dm.event()
    before.close()
    event = dm.event()
    before.close()
    del before
    gc.collect()
    dm.trim()
    event.record(new)
    event.synchronize()


def test_an_event_with_work_before_it_is_not_used_again_until_that_has_passed(need):
    need("hold")
    stream, event = dm.stream(non_blocking=True), dm.event()
    handle = event.handle
    with hold(stream) as latch:
        event.record(stream)
        event.close()
        fresh = dm.event()
        assert fresh.handle != handle
        assert fresh.query(), "an event that was never recorded has passed"
        latch.release()
        stream.synchronize()
    assert dm.event().handle == handle


def test_a_stream_with_work_on_it_is_not_used_again_until_that_has_passed(need):
    """Housekeeping of another thread may have made it wait for something just before it was closed."""
    need("hold")
    stream, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    handle, services = stream.handle, stream.services
    stream.close()
    with hold(other) as latch:
        with dm.current_device().entered():
            services.order(handle, other.handle)
        fresh = dm.stream(non_blocking=True)
        assert fresh.handle != handle
        assert fresh.query()
        latch.release()
        other.synchronize()
    with dm.current_device().entered() as driver:
        driver.stream_synchronize(handle)
    assert dm.stream(non_blocking=True).handle == handle


def test_closing_does_not_disturb_what_waits_for_the_event(need):
    """The event is recorded anew while a stream still waits for its first record."""
    need("hold")
    first, second = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    event = dm.event()
    with hold(first) as latch:
        event.record(first)
        second.wait(event)
        event.close()
        again = dm.event()
        again.record()
        again.synchronize()
        assert not second.query()
        latch.release()
        second.synchronize()


def test_only_a_few_are_kept(recorded):
    streams = [dm.stream() for _ in range(SPARE_STREAMS + 3)]
    before = recorded.live().streams
    for each in streams:
        each.close()
    assert recorded.live().streams == before - 3
    again = [dm.stream() for _ in streams]
    assert recorded.live().streams == before
    assert len({each.handle for each in again}) == len(again)


def test_trim_gives_them_back(recorded):
    before = recorded.live()
    streams, events = [dm.stream(), dm.stream(non_blocking=True)], [dm.event(), dm.event(timing=False)]
    for each in (*streams, *events):
        each.close()
    assert recorded.live() != before
    dm.trim()
    assert recorded.live() == before


def test_memory_that_runs_out_gets_them_back_first(recorded, device):
    before = recorded.live().streams
    dm.stream().close()
    assert recorded.live().streams == before + 1
    with pytest.raises(dm.OutOfMemory):
        dm.device_array(1 << 60, "u1")
    assert recorded.live().streams == before


def test_none_outlives_a_reset(device):
    dm.stream().close()
    dm.event().close()
    device.reset()
    stream, event = dm.stream(), dm.event()
    event.record(stream)
    event.synchronize()
    stream.close()


def test_a_spare_stream_is_no_stream_for_callers(device):
    stream, array = dm.stream(), dm.zeros(3)
    handle = stream.handle
    stream.close()
    for use in (lambda: array.copy_to_host(stream=handle), lambda: dm.external_stream(handle)):
        with pytest.raises((dm.LayoutError, dm.UnsupportedError), match=f"{handle:#x}"):
            use()
    with device.entered():
        assert handle not in device.opened().streams.idle()


def test_a_stream_that_cannot_be_asked_is_not_used_again(device, monkeypatch):
    stream = dm.stream()
    handle, driver = stream.handle, device.opened().handle.driver
    stream.close()

    def fails(asked):
        raise dm.BackendError("it fails", backend="x", call="query", code=1, name="FAILS")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "stream_query", fails)
        fresh = dm.Stream()  # the compiled core's, `dm.stream`, does not ask the driver's method
    assert fresh.handle != handle
    dm.trim()
    assert handle not in device.opened().streams._handles


def test_pools_are_told_before_a_stream_is_kept():
    pool = dm.memory.PoolMemory()
    stream = dm.stream()
    with dm.use_memory(pool):
        dm.device_array(1000, "u1", stream=stream).free()
        assert stream.handle in pool._lists.by_stream
        handle = stream.handle
        stream.close()
        assert handle not in pool._lists.by_stream


# -- two threads at a time -----------------------------------------------------------------------------------------------


def lent(spare, table, destroyed):
    owner = SimpleNamespace(driver=SimpleNamespace(destroy=destroyed.append))
    made = LentHandle(spare, "key", 0, table, owner, "destroy", lambda dropped: True)
    made.handle = 7
    table[7] = made
    return made


@pytest.mark.parametrize("most", [4, 0])
def test_what_two_threads_end_is_ended_once(most):
    """The second comes in the middle of the first, which has found that the handle is out."""
    destroyed, table, others = [], {}, []
    spare = SpareHandles(HandleLeases(), most)
    made = lent(spare, table, destroyed)

    class Table(dict):
        def get(self, key, default=None):
            found = super().get(key, default)
            if not others:
                others.append("came")
                together(made.end)
            return found

    made.table = table = Table(table)
    made.end()
    assert len(spare) == (1 if most else 0)
    assert destroyed == ([] if most else [7])
    assert (7 in table) == bool(most)


def test_what_two_threads_take_has_one_owner():
    """The second comes while the driver is asked about the first's."""
    destroyed, table = [], {}
    spare = SpareHandles(HandleLeases(), 4)
    lent(spare, table, destroyed).end()
    owner, taken = SimpleNamespace(driver=None), []
    first, second = (LentHandle(spare, "key", 0, table, owner, "destroy", lambda dropped: True) for _ in range(2))

    def has_passed(handle):
        if not taken:
            taken.append(spare.take(second, has_passed))
        return True

    assert spare.take(first, has_passed)
    assert taken == [False]
    assert table[7] is first


def test_streams_and_events_of_several_threads():
    out = []

    def work():
        for _ in range(80):
            stream, event = dm.stream(), dm.event(timing=False)
            assert stream.handle not in out, "it has one owner"
            out.append(stream.handle)
            event.record(stream)
            event.synchronize()
            assert stream.query()
            out.remove(stream.handle)
            event.close()
            stream.close()

    together(*[work] * 4)
    assert not out


@pytest.mark.parametrize(
    ("make", "use"), [(dm.stream, lambda owner: dm.zeros(4, stream=owner)), (dm.event, lambda owner: owner.record())]
)
def test_what_a_finalizer_of_the_collector_closes_is_ended_once(make, use):
    """In a cycle the finalizer of the stream has run by then, and its handle is in the queue: the next owner keeps its own."""

    class Worker:
        def __init__(self, owned):
            self.owned = owned
            self.steps = [self.step]

        def step(self):
            pass

        def __del__(self):
            self.owned.close()

    array = dm.to_device([1.0])  # from here on the compiled core may reuse handles
    del array
    make().close()  # an idle one is kept
    Worker(make())  # the collector calls the finalizer of the older one first
    gc.collect()
    first = make()
    dm.trim()  # the queue of what was dropped comes to its turn
    second = make()
    assert first.handle != second.handle
    use(first)
