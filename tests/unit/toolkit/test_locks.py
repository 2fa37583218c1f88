"""The factory of locks; and what the tests look at: see tests/helpers/lock_order.py."""

from __future__ import annotations

import gc
import threading

import lock_order
import pytest
from waits import together

from devmem.toolkit import locks
from devmem.toolkit.locks import Rank


@pytest.fixture
def noted(monkeypatch):
    """What is noted in the test alone."""
    monkeypatch.setattr(lock_order, "noted", [])
    return lock_order.noted


def test_a_lock_is_pythons_own(monkeypatch):
    monkeypatch.setattr(locks, "make", lock_order._plain)
    made = locks.lock("made", Rank.LEAF)
    assert type(made) is type(threading.RLock())
    [known] = [each for each in locks.known if each() is made]
    assert (known.name, known.rank) == ("made", Rank.LEAF)
    del made
    gc.collect()
    assert known not in locks.known


def test_a_forked_child_has_no_lock_of_other_threads():
    other, mine = locks.lock("other", Rank.DEVICE), locks.lock("mine", Rank.LEAF)
    together(other.acquire)
    with mine:
        locks._after_fork_in_child()  # as the child calls it
        assert mine._is_owned()
    with other:
        pass


def test_ranks_ascend(noted):
    outer, inner, same = (
        locks.lock(name, rank) for name, rank in zip("ois", (Rank.DEVICE, Rank.LEAF, Rank.LEAF), strict=True)
    )
    with outer, inner, outer, inner:
        assert not noted
    with inner, outer:
        [told] = noted
        assert told.startswith("'o' (DEVICE) is taken under 'i' (LEAF):")
        noted.clear()
    with inner, same:
        [told] = noted
        assert told.startswith("'s' (LEAF) is taken under 'i' (LEAF):")
    noted.clear()


def test_no_driver_is_called_under_a_leaf(noted):
    class Driver:
        free = lock_order.Method(lambda self: 1)

    leaf, driver = locks.lock("leaf", Rank.LEAF), Driver()
    assert driver.free() == 1
    assert not noted
    with locks.lock("outer", Rank.DRIVER):
        driver.free()
    assert not noted
    with leaf:
        driver.free()
    [told] = noted
    assert told.startswith("the driver's <lambda> is called under 'leaf' (LEAF):")
    noted.clear()


def test_a_finalizer_may_take_any_lock(noted):
    outer, leaf = locks.lock("outer", Rank.DEVICE), locks.lock("leaf", Rank.LEAF)

    class Dropped:
        def __del__(self):
            with outer:
                pass

    with leaf:
        Dropped()
    assert not noted
