"""Copies that the compiled core enqueues on a stream: what they call, what they keep, and when that is let go of."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from table_driver import NOT_READY, TableBackend

import devmem as dm
from devmem import _native
from devmem._core.device.device import current_open_device
from devmem._core.lifetime.page_locks import Segment
from devmem._core.ordering import completions

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)
EVENT_RECORD = 9


@pytest.fixture(params=[False, True], ids=["one call each way", "one call with the kind"])
def backend(request):
    made = TableBackend("enqueued", copies_take_stream=request.param)
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            yield made
    finally:
        if made.driver is not None:
            made.driver.running.clear()
        dm.unregister_backend(made.name)


@pytest.fixture
def stream():
    return dm.stream()


@pytest.fixture
def array(backend, stream):
    made = dm.to_device(np.zeros(16))
    made.copy_to_device(np.zeros(16), stream)  # the first on a stream, and the first event, are Python's
    stream.synchronize()
    called(backend)
    return made


def called(backend):
    """The functions that were called since this was asked for last, but for the device's entering."""
    found = [call[0] for call in backend.driver.calls if call[0] not in ("get_current", "set_current")]
    backend.driver.calls.clear()
    return found


def compiled():
    """Copies that the core has made."""
    return sum(each[0] for each in current_open_device().statistics.compiled(False))


def waiting():
    return sum(map(len, current_open_device().completions.in_flight.values()))


def test_a_copy_takes_two_calls(backend, array, stream):
    before, out = compiled(), np.empty(16)
    array.copy_to_device(np.arange(16.0), stream)
    assert called(backend) == ["enqueue_up", "event_record"]
    array.copy_to_host(out, stream)
    assert called(backend) == ["event_query", "enqueue_down", "event_record"]
    assert array.copy_to_host(stream=stream).tolist() == out.tolist() == list(range(16))
    assert compiled() == before + 3
    assert waiting() == 1


def test_the_host_side_lives_until_the_stream_has_passed_it(backend, array, stream):
    backend.driver.running.add(True)
    before, sources = compiled(), [np.full(16, float(number)) for number in range(3)]
    gone = [weakref.ref(each) for each in sources]
    events = []
    while sources:
        current_open_device().completions.events.passed.append(1000 + len(events))
        array.copy_to_device(sources.pop(0), stream)
        events.append(backend.driver.calls[-1][1])
    assert compiled() == before + 3
    assert all(each() is not None for each in gone)
    backend.driver.running = set(events[1:])
    called(backend)
    dm.to_device(np.zeros(3))  # any verb lets go of what has passed
    assert called(backend) == ["event_query", "event_query", "allocate", "copy_up"]
    assert compiled() == before + 4
    assert [each() is None for each in gone] == [True, False, False]
    backend.driver.running.clear()
    stream.synchronize()
    assert called(backend)[:3] == ["synchronize", "event_query", "event_query"]
    assert all(each() is None for each in gone)
    assert not current_open_device().completions.in_flight


def test_an_event_is_not_recorded_anew_as_long_as_something_is_behind_it(backend, array, stream):
    backend.driver.running.add(True)
    seen = set()
    for _ in range(5):
        array.copy_to_device(np.zeros(16), stream)
        seen.add(next(call[1] for call in reversed(backend.driver.calls) if call[0] == "event_record"))
    assert len(seen) == waiting() == 5
    backend.driver.running.clear()
    stream.synchronize()
    assert sorted(seen) == sorted(current_open_device().completions.events.passed)


def test_the_first_use_of_a_block_on_a_stream_is_pythons(backend, array):
    other, before = dm.stream(non_blocking=True), compiled()
    called(backend)
    array.copy_to_device(np.zeros(16), other)
    assert "stream_wait" in called(backend)  # behind the stream that the memory came on
    assert compiled() == before
    other.synchronize()
    array.copy_to_device(np.zeros(16), other)
    assert "stream_wait" not in called(backend)
    assert compiled() == before + 1
    assert other in array.allocation.streams


def test_a_refused_copy_keeps_nothing(backend, array, stream):
    passed = current_open_device().completions.events.passed
    for name, copy in [("enqueue_up", array.copy_to_device), ("enqueue_down", array.copy_to_host)]:
        host, free = np.zeros(16), list(passed)
        kept = weakref.ref(host)
        backend.driver.fail(name, 1, 5)
        with pytest.raises(dm.BackendError, match=f"{name} failed with 5"):
            copy(host, stream)
        assert called(backend) == [name]
        del host
        gc.collect()
        assert (kept(), waiting(), list(passed)) == (None, 0, free)


def test_without_an_event_the_stream_is_waited_for(backend, array, stream):
    host = np.arange(16.0)
    kept = weakref.ref(host)
    backend.driver.fail("event_record", 1, 5)
    with pytest.raises(dm.BackendError, match="event_record failed with 5"):
        array.copy_to_device(host, stream)
    assert called(backend) == ["enqueue_up", "event_record", "synchronize"]
    del host
    gc.collect()
    assert (kept(), waiting()) == (None, 0)


def test_where_it_cannot_be_waited_for_the_host_side_is_kept_for_good(backend, array, stream):
    host = np.arange(16.0)
    backend.driver.fail("event_record", 1, 5)
    backend.driver.fail("synchronize", 1, 5)
    before = len(completions.leaked)
    with pytest.raises(dm.BackendError, match="event_record failed with 5"):
        array.copy_to_device(host, stream)
    assert completions.leaked[before:] == [host]
    completions.leaked.pop()


def test_a_query_that_fails_is_pythons(backend, array, stream):
    array.copy_to_device(np.zeros(16), stream)
    backend.driver.fail("event_query", 1, 5)
    before = compiled()
    called(backend)
    array.copy_to_device(np.zeros(16), stream)
    assert called(backend)[:2] == ["event_query", "event_query"]  # Python's says that it has passed
    assert compiled() == before


@pytest.mark.parametrize("of", ["closed", "external", "legacy", "another device's"])
def test_other_streams_are_pythons(backend, array, stream, of):
    before = compiled()
    if of == "closed":
        stream.close()
        with pytest.raises(dm.ClosedError):
            array.copy_to_device(np.zeros(16), stream)
    elif of == "another device's":
        with dm.use_backend("host"):
            other = dm.stream()
        with pytest.raises(dm.LayoutError, match="cannot order work"):
            array.copy_to_device(np.zeros(16), other)
    else:
        array.copy_to_device(
            np.zeros(16), dm.legacy_default_stream() if of == "legacy" else dm.external_stream(1 << 20)
        )
    assert compiled() == before


def test_other_layouts_are_refused_as_ever(backend, array, stream):
    with pytest.raises(dm.LayoutError, match="shape"):
        array.copy_to_device(np.zeros(15), stream)
    with pytest.raises(dm.LayoutError, match="read-only"):
        out = np.zeros(16)
        out.flags.writeable = False
        array.copy_to_host(out, stream)
    assert waiting() == 0


def test_memory_that_a_stream_has_is_copied_on_it(backend, array, stream):
    mine, before = dm.to_device(np.zeros(4), stream), compiled()
    stream.synchronize()
    mine.copy_to_device(np.arange(4.0), stream)
    assert compiled() == before + 1
    assert mine.copy_to_host().tolist() == [0, 1, 2, 3]


def test_a_payload_that_polls_as_it_ends_finds_the_table_whole(backend, array, stream):
    """A finalizer may run any verb, in the middle of letting go of others."""
    told = []

    class Host(np.ndarray):
        def __del__(self):
            told.append(waiting())
            array.copy_to_host(np.empty(16), stream)

    backend.driver.running.add(True)
    tracker = current_open_device().completions
    for _ in range(3):
        tracker.keep_until_complete(stream, np.zeros(2).view(Host))
    backend.driver.running.clear()
    dm.to_device(np.zeros(3))
    assert len(told) == 3
    stream.synchronize()
    assert waiting() == 0


def test_a_table_of_queues_takes_only_what_it_can_hold():
    queues, into = _native.core.EventQueues(), []
    for wrong in [(), ("stream",), ("stream", 1), ("stream", (1,)), ("stream", [1, 2])]:
        with pytest.raises(TypeError, match="enter"):
            queues.enter(*wrong)
    for wrong in [(), ("stream", (1, 2)), ("stream", (1, 2), ()), ("stream", 1, [])]:
        with pytest.raises(TypeError, match="take"):
            queues.take(*wrong)
    first, second = (1, "a"), (2, "b")
    queues.enter("stream", first)
    queues.enter("stream", second)
    assert not queues.take("stream", second, into)
    assert not queues.take("other", first, into)
    assert queues.take("stream", first, into)
    assert queues.take("stream", second, into)
    assert (into, len(queues), queues["stream"]) == (["a", "b"], 1, type(queues["stream"])())
    queues.tidy()
    assert queues == {}
    queues["odd"] = 5
    with pytest.raises(AttributeError):
        queues.enter("odd", first)
    assert not queues.take("odd", first, into)
    queues.tidy()
    assert queues == {"odd": 5}


def test_a_table_that_enqueues_nothing_leaves_copies_on_streams_to_python(backend, array, stream):
    backend.driver.table.enqueue_up = backend.driver.table.enqueue_down = 0
    before = compiled()
    array.copy_to_device(np.zeros(16), stream)
    assert called(backend)[-2:] == ["enqueue_up", "event_record"]  # the driver's method
    assert compiled() == before
    assert NOT_READY == 600


@pytest.fixture
def lock_pages(backend, array):
    """Call it for pages far away to be in the table of locked ones."""
    locks = current_open_device().page_locks
    yield lambda: locks._replace_segments([Segment(0, 1, backend.driver, [])])
    locks._replace_segments([])


def during(backend, name, hook):
    """Let a function of the table call something while it is called."""
    before = backend.driver.saw

    def saw(called, *details):
        if called == name:
            hook()
        return before(called, *details)

    backend.driver.saw = saw


@pytest.mark.parametrize("name", ["enqueue_up", "enqueue_down"])
def test_a_stream_is_waited_for_where_pages_were_locked_meanwhile(backend, array, stream, lock_pages, name):
    """The driver may use them when it has returned: the caller was promised that a pageable source was read."""
    during(backend, name, lock_pages)
    (array.copy_to_device if name == "enqueue_up" else array.copy_to_host)(np.zeros(16), stream)
    assert called(backend)[:3] == [name, "event_record", "synchronize"]


def test_pages_that_are_locked_before_the_copy_are_pythons(backend, array, stream, lock_pages):
    class Host(np.ndarray):
        def __del__(self):
            lock_pages()

    before = compiled()
    backend.driver.running.add(True)
    current_open_device().completions.keep_until_complete(stream, np.zeros(2).view(Host))
    backend.driver.running.clear()
    array.copy_to_device(np.zeros(16), stream)  # lets go of that one first
    assert current_open_device().page_locks.segments
    assert compiled() == before


def test_an_interrupt_of_the_wait_for_want_of_an_event_keeps_the_host_side(backend, array, stream):
    host = np.zeros(16)
    kept, before = weakref.ref(host), len(completions.leaked)
    backend.driver.fail("event_record", 1, 5)

    def interrupted(stream):
        raise KeyboardInterrupt

    backend.driver.stream_synchronize = interrupted
    with pytest.raises(KeyboardInterrupt):
        array.copy_to_device(host, stream)
    del backend.driver.stream_synchronize, completions.leaked[before:], host
    gc.collect()
    assert kept() is not None  # the core has kept it, whatever Python could note


def test_a_payload_that_takes_the_spare_streams_away_as_it_ends(backend, array, stream):
    """What the core looks at is still there when a finalizer has cleared the tables."""
    spare = current_open_device().streams.spare

    class Host(np.ndarray):
        def __del__(self):
            spare._kept.clear()
            gc.collect()

    dm.stream().close()
    backend.driver.running.add(True)
    current_open_device().completions.keep_until_complete(stream, np.zeros(2).view(Host))
    backend.driver.running.clear()
    assert not dm.stream().closed
    assert not spare._kept
