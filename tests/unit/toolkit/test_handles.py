"""Live handles, where one ends, an interrupt comes, and a signal's handler has made another one with the same number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from devmem._core.ordering.leases import HandleLeases, OwnedHandle
from devmem.spi.errors import BackendError, DevmemWarning
from devmem.toolkit.handles import Handles
from devmem.toolkit.memory import Holdings

NUMBER = 70_000


def number():
    return int(str(NUMBER))  # another object each time, as a vendor's library gives


def refuse(what, code, why):
    raise AssertionError(why)


@pytest.fixture
def events():
    return Handles(int, refuse=refuse, what="event", foreign=False)


def make(events):
    return events.make(lambda event: None, lambda made: made.append(number()))


def test_one_that_was_not_destroyed_is_still_the_same(events):
    event = make(events)

    def interrupted(record, handle):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        events.end(event, interrupted)
    assert events.holds(event)
    assert not events.holds(number())


def test_another_one_with_its_number_is_not_taken_for_it(events):
    driver, table, others = Holdings.__new__(Holdings), {}, []
    driver._tables, driver._streams, driver._events, driver._graphs = (), Handles(int), events, {}

    def handler(record, handle):
        record.append(handle)  # destroyed; then a signal's handler makes another one, and raises
        others.append(OwnedHandle(make(events), table, owner, "event_destroy", lambda handle: True))
        table[NUMBER] = others[0]
        raise KeyboardInterrupt

    driver.event_destroy = lambda event: events.end(event, handler)
    owner = SimpleNamespace(driver=driver)
    first = OwnedHandle(make(events), table, owner, "event_destroy", lambda handle: True)
    table[NUMBER] = first
    leases = HandleLeases()
    with pytest.raises(KeyboardInterrupt):
        leases.destroy(first)
    assert table[NUMBER] is others[0]
    driver.event_destroy = refuse
    leases.destroy_given_up()
    assert NUMBER in events


# -- walks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def streams():
    made = Handles(int, refuse=refuse, what="stream")
    for handle in (1, 2, 3):
        made.add(handle)
    return made


def test_what_is_given_up_during_a_walk_is_destroyed_behind_the_last(streams):
    destroyed = []

    def destroy(record, handle):
        destroyed.append(handle)

    outer, inner = streams.each(), streams.each()
    assert (next(outer), next(inner)) == (1, 1)
    streams.end(2, destroy)
    inner.close()
    assert 2 not in streams and not destroyed
    assert list(outer) == [2, 3]
    assert destroyed == [2]
    streams.end(3, destroy)
    assert destroyed == [2, 3] and streams.live() == [1]


def test_a_walk_that_is_interrupted_is_over(streams):
    destroyed = []
    with pytest.raises(KeyboardInterrupt):
        for _ in streams.each():
            streams.end(1, lambda record, handle: destroyed.append(handle))
            raise KeyboardInterrupt
    assert destroyed == [1] and not streams._walks


def test_an_interrupt_where_one_was_put_aside_does_not_bring_it_back(streams):
    destroyed = []
    for _ in streams.each():
        streams._destroy_late = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            streams.end(1, lambda record, handle: destroyed.append(handle))
        del streams._destroy_late
        break
    assert 1 not in streams and destroyed == [1]


def test_a_failure_to_destroy_it_is_a_warning(streams):
    def fail(record, handle):
        raise BackendError("no", code=1, name="NO")

    walk = streams.each()
    next(walk)
    streams.end(1, fail)
    streams.end(2, lambda record, handle: None)
    with pytest.warns(DevmemWarning, match="while destroying a stream: no"):
        walk.close()
    assert streams.live() == [3] and not streams._late
