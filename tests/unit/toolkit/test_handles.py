"""Live handles, where one ends, an interrupt comes, and a signal's handler has made another one with the same number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from devmem._core.ordering.leases import HandleLeases, OwnedHandle
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
