"""Streams and events that the compiled core gives out again: what it calls, and what it leaves to Python."""

from __future__ import annotations

from functools import partial
from operator import attrgetter

import numpy as np
import pytest
from own_process import check_ends
from table_driver import TableBackend
from waits import together

import devmem as dm
from devmem import _native
from devmem._core.device.device import current_open_device
from devmem._core.ordering.leases import OwnedHandle

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)


@pytest.fixture
def backend(request):
    made = TableBackend("used-again", captures=getattr(request, "param", False))
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            dm.to_device(np.arange(3.0)).free()
            for _ in range(2):  # the first is made, and kept, by Python
                dm.stream().close()
                dm.event().close()
            called(made)
            yield made
    finally:
        dm.unregister_backend(made.name)


def called(backend):
    """The functions that were called since this was asked for last, but for the device's entering."""
    found = [call[0] for call in backend.driver.calls if call[0] not in ("get_current", "set_current")]
    backend.driver.calls.clear()
    return found


def spare(what="streams"):
    opened = current_open_device()
    kept = opened.streams.spare if what == "streams" else opened.completions.events.spare
    return [each for queue in kept._kept.values() for each in queue]


def test_a_stream_takes_two_calls(backend):
    for _ in range(3):
        stream = dm.stream()
        handle, record = stream.handle, stream.owned
        assert (stream.closed, record.leaving, record.idle) == (False, False, False)
        assert spare() == []
        stream.close()
        assert called(backend) == ["stream_query", "synchronize"]
        assert spare() == [record]
        assert (stream.closed, stream.owned, record.handle, record.leaving) == (True, None, handle, True)
        with pytest.raises(dm.ClosedError, match="is closed"):
            attrgetter("handle")(stream)
        stream.close()
        del stream
        assert called(backend) == []
    dm.trim()
    assert called(backend).count("stream_destroy") == 1
    assert spare() == []


CAPTURES = pytest.mark.parametrize("backend", [True], indirect=True, ids=["captures"])


@CAPTURES
def test_a_stream_that_may_be_captured_is_asked_once(backend):
    stream = dm.stream()
    called(backend)
    stream.close()
    assert called(backend) == ["is_capturing", "synchronize"]
    assert (stream.closed, len(spare())) == (True, 1)


@CAPTURES
def test_a_captured_stream_is_not_closed(backend):
    stream = dm.stream()
    backend.driver.capturing_streams.add(stream.handle)
    called(backend)
    with pytest.raises(dm.UnsupportedError, match="is capturing a graph"):
        stream.close()
    assert set(called(backend)) == {"is_capturing"}  # waiting would end the capture
    assert (stream.closed, spare()) == (False, [])
    backend.driver.capturing_streams.clear()
    stream.close()
    assert (stream.closed, len(spare())) == (True, 1)


@CAPTURES
def test_a_stream_that_cannot_be_asked_is_not_closed(backend):
    stream = dm.stream()
    called(backend)
    backend.driver.fail("is_capturing", 1, 999)
    stream.close()  # Python has asked again
    assert called(backend) == ["is_capturing", "is_capturing", "synchronize"]
    stream = dm.stream()
    backend.driver.fail("is_capturing", 1, 999)
    backend.driver._is_capturing = lambda *_: 998  # what the driver's own method calls
    with pytest.raises(dm.BackendError, match="998"):
        stream.close()
    assert "synchronize" not in called(backend)
    assert (stream.closed, spare()) == (False, [])


def test_an_event_takes_two_calls(backend):
    for stream in (0, None, dm.default_stream(), dm.stream()):
        called(backend)
        event = dm.event()
        assert not event.recorded
        event.record(stream)
        assert event.recorded
        event.close()
        event.close()
        assert called(backend) == ["event_query", "event_record"]
        with pytest.raises(dm.ClosedError, match="is closed"):
            event.query()
        assert len(spare("events")) == 1
    dm.trim()
    assert spare("events") == []


def test_streams_events_and_records_are_of_the_cores_classes():
    core = _native.core
    assert (dm.Stream.__base__, dm.Event.__base__, OwnedHandle.__base__) == (
        core.StreamState,
        core.EventState,
        core.RecordState,
    )
    mine = [dm.Stream, dm.Stream, OwnedHandle, 1, dm.Event, dm.Event, OwnedHandle, 1, partial, tuple]
    for at in (0, 2, 4, 6):
        with pytest.raises(TypeError, match="subclasses of StreamState, EventState and RecordState"):
            core.handles(*mine[:at], object, *mine[at + 1 :])


@pytest.mark.parametrize("flag", [1, "yes", 0])
def test_flags_are_bools(backend, flag):
    stream, event = dm.stream(non_blocking=flag), dm.event(flag)
    assert (stream.non_blocking, event.timing) == (bool(flag), bool(flag))
    with pytest.raises(TypeError):
        stream.plain = flag


def test_a_lane_is_given_every_object(backend):
    for objects in ({}, {"handle": 1}, {"blocks": {}, "handle": None}):
        with pytest.raises(TypeError, match="a lane takes every object by its name"):
            _native.core.Lane(0, 0, 0, 0, **objects)


def test_what_has_not_passed_is_not_given_out(backend):
    [idle], [event] = spare(), spare("events")
    backend.driver.fail("stream_query", 1, 600)
    backend.driver.fail("event_query", 1, 600)
    stream, other = dm.stream(), dm.event()
    assert stream.handle == idle.handle, "Python asked once more"
    assert other.handle == event.handle
    assert called(backend) == ["stream_query", "stream_query", "event_query", "event_query"]


@pytest.mark.parametrize(("status", "asked_again"), [(600, "other"), (5, "same")])
def test_after_a_query_that_fails_python_asks_the_same_handle(backend, status, asked_again):
    """It raises what the driver says, and gives the handle up; one that has only not passed waits for another turn."""
    streams = [dm.stream(), dm.stream()]
    for each in streams:
        each.close()
    first, second = spare()
    called(backend)
    backend.driver.fail("stream_query", 1, status)
    taken = dm.stream()
    assert called(backend) == ["stream_query", "stream_query"]
    assert taken.handle == {"same": first, "other": second}[asked_again].handle


def test_a_wait_that_fails_leaves_the_stream_open(backend):
    stream = dm.stream()
    backend.driver.fail("synchronize", 1, 5)
    with pytest.raises(dm.BackendError, match="synchronize failed with 5"):
        stream.close()
    assert not stream.closed
    stream.close()
    assert stream.closed


def test_a_record_that_fails_raises(backend):
    event = dm.event()
    backend.driver.fail("event_record", 1, 5)
    with pytest.raises(dm.BackendError, match="event_record failed with 5"):
        event.record()
    assert not event.recorded


def test_another_thread_closes_it_during_the_wait(backend, monkeypatch):
    """The function of the table plays that thread: the lock is let go of in it."""
    stream, waiting = dm.stream(), []
    handle = stream.handle
    saw = backend.driver.saw

    def also_closes(name, *details):
        if name == "synchronize" and not waiting:
            waiting.append(name)
            stream.close()
        return saw(name, *details)

    monkeypatch.setattr(backend.driver, "saw", also_closes)
    stream.close()
    assert [each.handle for each in spare()] == [handle]
    assert dm.stream().handle == handle


@pytest.mark.parametrize("kind", ["stream", "event"])
def test_an_audit_hook_closes_it_meanwhile(kind):
    """In a process of its own, as a hook stays for good."""
    program = f"""
        import sys
        import numpy as np
        from table_driver import TableBackend
        import devmem as dm

        def closes(name, details):
            if name == "object.__setattr__" and closing and details[0] is closing[0]:
                closing.pop().close()
                meanwhile.append(dm.{kind}())

        closing, meanwhile = [], []
        dm.register_backend(TableBackend("audited"))
        with dm.use_backend("audited"):
            dm.to_device(np.arange(3.0)).free()
            dm.{kind}().close()  # made, and kept, by Python
            closed = dm.{kind}()
            handle = closed.handle
            closing.append(closed)
            sys.addaudithook(closes)
            closed.close()
            assert closed.closed if "{kind}" == "stream" else closed.owned is None
            again = dm.{kind}()
            assert handle in (meanwhile[0].handle, again.handle) and meanwhile[0].handle != again.handle
        print("ends")
    """
    check_ends(program, __file__.rpartition("/")[0])


@pytest.mark.parametrize("what", ["lease", "pool", "entered"])
def test_what_has_to_be_decided_is_pythons(backend, what):
    opened, stream, event = current_open_device(), dm.stream(), dm.event()
    records = stream.owned, event.owned
    if what == "lease":
        with opened.streams.leases.hold():
            stream.close()
            event.close()
            assert records[0].is_out()
            assert spare() == []
    elif what == "pool":
        with dm.use_memory("pool"):
            dm.device_array(3, stream=stream).free()
            stream.close()
        event.close()
    else:
        with stream:
            event.record()
            assert ("event_record", event.handle, stream.handle) in backend.driver.calls
        stream.close()
        event.close()
    assert [each is records[0] for each in spare()] == [what == "entered"]
    assert len(spare("events")) == 1
    assert dm.stream().handle == records[0].handle


def test_dropped_ones_come_back_by_the_queue(backend):
    stream, event = dm.stream(), dm.event()
    handles = stream.handle, event.handle
    del stream, event
    with dm.current_device().entered():
        current_open_device().free_queue.drain()
    assert (dm.stream().handle, dm.event().handle) == handles


def test_each_has_one_owner_in_several_threads(backend):
    out = []

    def work():
        with dm.use_backend(backend.name):
            for _ in range(200):
                stream, event = dm.stream(), dm.event()
                assert not {stream.handle, event.handle} & set(out)
                out.extend((stream.handle, event.handle))
                event.record(stream)
                out.remove(stream.handle)
                out.remove(event.handle)
                event.close()
                stream.close()

    together(*[work] * 3)
    assert not out
