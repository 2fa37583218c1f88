"""Events: recorded, waited for, timed; streams that wait for each other, on one device and on two."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import devmem as dm
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")


def test_an_event_that_was_never_recorded_counts_as_passed(device):
    e = dm.event()
    assert e.query()
    e.synchronize()
    s = dm.stream()
    s.wait(e)
    e.wait(s)
    e.wait()
    s.synchronize()  # the waits pass at once, but some drivers' threads do that
    assert e.device == device
    assert "event" in repr(e)
    assert "without timing" in repr(dm.event(timing=False))


def test_elapsed_time_is_measured_between_two_events():
    start, end = dm.event(), dm.event()
    s = dm.stream()
    start.record(s)
    dm.zeros(1 << 16).fill(1.0, stream=s)
    end.record(s)
    end.synchronize()
    took = start.elapsed_time(end)
    assert type(took) is float
    assert took >= 0
    assert dm.event_elapsed_time(start, end) == took
    assert end.elapsed_time(start) <= 0


def test_timing_needs_timing():
    a, b = dm.event(), dm.event(timing=False)
    a.record()
    b.record()
    dm.synchronize()
    for pair in ((a, b), (b, a)):
        with pytest.raises(dm.LayoutError, match=r"timing=False.*devmem.event\(\)"):
            dm.event_elapsed_time(*pair)


def test_timing_needs_records():
    a, b = dm.event(), dm.event()
    a.record()
    dm.synchronize()
    for start, end, which in ((a, b, "the end was not"), (b, a, "the start was not"), (b, dm.event(), "neither was")):
        with pytest.raises(dm.LayoutError, match=rf"recorded \({which}\): record\(stream\) one before"):
            start.elapsed_time(end)
    assert b.query(), "an event that was never recorded has passed"
    with pytest.raises(TypeError, match=r"two devmem\.Events, not to 5"):
        a.elapsed_time(5)


def test_timing_needs_events_that_have_passed(need):
    need("hold")
    s = dm.stream(non_blocking=True)
    a, b = dm.event(), dm.event()
    with hold(s) as latch:
        a.record(s)
        b.record(s)
        with pytest.raises(
            dm.BackendError, match=r"is not done: synchronize\(\) the later one first \(.+\)$"
        ) as caught:
            a.elapsed_time(b)
        assert caught.value.call
        assert caught.value.code
        latch.release()
    b.synchronize()
    assert a.elapsed_time(b) >= 0


def test_times_of_two_devices_do_not_compare(second):
    a = dm.event()
    with second:
        b = dm.event()
    with pytest.raises(dm.LayoutError, match=r"do not compare"):
        a.elapsed_time(b)


def test_events_pass_when_their_stream_does(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d, a, e = dm.zeros(100), dm.pinned_array(100), dm.event()
    d.copy_to_device(a, stream=s)
    s.synchronize()
    with hold(s) as latch:
        d.copy_to_device(a, stream=s)
        e.record(s)
        assert not e.query()
        latch.release()
        e.synchronize()
        assert e.query()
        assert s.query()


def test_a_stream_waits_for_an_event_of_another(need, need_kind):
    need("hold")
    need_kind("pinned")
    s, t = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    d, a, b = dm.zeros(100), dm.pinned_array(100), dm.pinned_array(100)
    e = dm.event()
    a[...], b[...] = 5, 0
    d.copy_to_device(a, stream=s)
    s.synchronize()
    d.copy_to_host(b, stream=t)
    dm.synchronize()
    a[...] = 6
    for wait in (lambda: t.wait(e), lambda: e.wait(t), lambda: e.wait(t.handle), lambda: t.wait(s)):
        b[...] = 0
        d.fill(0.0)
        with hold(s):
            d.copy_to_device(a, stream=s)
            e.record(s)
            wait()
            d.copy_to_host(b, stream=t)
            assert not t.query()
            assert not b.any()
        t.synchronize()
        assert (b == 6).all()


def test_an_event_can_be_recorded_again(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d, a, e = dm.zeros(100), dm.pinned_array(100), dm.event()
    e.record(s)
    e.synchronize()
    d.copy_to_device(a, stream=s)
    s.synchronize()
    with hold(s):
        d.copy_to_device(a, stream=s)
        e.record(s)
        assert not e.query()
    e.synchronize()


def test_record_gives_the_event(recorded):
    s = dm.stream()
    e = s.record()
    assert type(e) is dm.Event
    f = dm.event()
    assert s.record(f) is f
    with recorded.during() as seen:
        f.record()
        f.record(s.handle)
        f.record(1)
        with s:
            f.record()
    assert [call.args[1] for call in seen if call.method == "event_record"] == [1, s.handle, 1, s.handle]


def test_timing_reaches_the_driver(recorded):
    with recorded.during() as seen:
        dm.event(), dm.event(timing=False), dm.event(False)
    assert [call.args for call in seen if call.method == "event_create"] == [(True,), (False,), (False,)]


def test_an_event_is_recorded_on_its_own_device(second):
    e = dm.event()
    with second:
        s = dm.stream()
    with pytest.raises(dm.LayoutError, match="cannot order work on"):
        e.record(s)
    with pytest.raises(dm.LayoutError, match="cannot order work on"):
        s.record(e)


def test_a_stream_waits_for_another_device(need, need_kind, second):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d, a, e = dm.zeros(100), dm.pinned_array(100), dm.event()
    a[...] = 1
    d.copy_to_device(a, stream=s)
    s.synchronize()
    with second:
        t = dm.stream(non_blocking=True)
        out = dm.zeros(100)
    for wait in (lambda: t.wait(e), lambda: e.wait(t), lambda: t.wait(s)):
        a[...] += 1
        with hold(s, patience=0.3, tolerant=True):
            d.copy_to_device(a, stream=s)
            e.record(s)
            wait()  # whichever side waits, t comes after s
            out.copy_to_device(d, stream=t)
        t.synchronize()
        assert out.tolist() == a.tolist()


def test_what_is_no_event_is_refused():
    with pytest.raises(TypeError, match=r"records a devmem\.Event, not 5"):
        dm.stream().record(5)


def test_a_closed_event_is_refused_and_closing_twice_is_fine():
    e = dm.event()
    e.record()
    e.close()
    e.close()
    for use in (
        e.record,
        e.query,
        e.synchronize,
        e.wait,
        lambda: e.handle,
        lambda: e.elapsed_time(dm.event()),
        lambda: dm.stream().wait(e),
    ):
        with pytest.raises(dm.ClosedError, match=r"event of .* is closed.*devmem.event\(\)"):
            use()


def test_dropped_events_are_given_back(recorded):
    before = recorded.live().events
    kept = [dm.event() for _ in range(5)]
    kept[0].record()
    del kept
    gc.collect()
    dm.trim()
    assert recorded.live().events <= before


def test_events_die_with_their_device():
    e = dm.event()
    dm.reset()
    for use in (e.record, e.query, e.synchronize):
        with pytest.raises(dm.ClosedError, match="was reset"):
            use()


def test_synchronize_waits_for_everything(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d, a = dm.zeros(100), dm.pinned_array(100)
    a[...] = 4
    d.copy_to_device(a, stream=s)
    s.synchronize()
    for wait in (dm.synchronize, dm.current_device().synchronize):
        a[...] += 1
        with hold(s, patience=0.3, tolerant=True) as latch:
            d.copy_to_device(a, stream=s)
            wait()
            assert latch.expired
            assert s.query()
        np.testing.assert_array_equal(d.copy_to_host(), a)
