"""`OuterLock`: no handler waits for what another thread does while it may wait for the handler's own."""

from __future__ import annotations

import sys
import threading
from itertools import chain

import pytest
from waits import patience

import devmem as dm
from devmem._core.arrays import creation
from devmem._core.base import outer_lock
from devmem._core.base.interrupts import CannotWait
from devmem._core.base.outer_lock import OuterLock
from devmem._core.pool import engine
from devmem.compat import numba_cuda
from devmem.toolkit.locks import Rank


@pytest.fixture
def taken():
    """A lock that another thread has, and what ends that."""
    lock, there, go_on = OuterLock("test", Rank.COMPILE, "a test"), threading.Event(), threading.Event()

    def hold():
        with lock:
            there.set()
            assert go_on.wait(patience())

    thread = threading.Thread(target=hold)
    thread.start()
    assert there.wait(patience())
    yield lock, go_on
    go_on.set()
    thread.join(patience())


def test_a_handler_is_refused_what_another_thread_has(taken, at_point):
    lock, _ = taken
    seen = []

    def handler():
        with pytest.raises(CannotWait, match=r"^a test needs another thread"), lock:
            pass
        seen.append(True)

    with at_point(3, lambda code: code.co_filename == creation.__file__, handler):
        dm.zeros(3)
    assert seen


@pytest.fixture
def waited_for(taken, monkeypatch):
    """The lock, whose holder goes on when another thread asks for it."""
    lock, go_on = taken

    def let_go():
        go_on.set()
        yield False

    monkeypatch.setattr(outer_lock, "chain", lambda first, ask, last: chain(first, ask, let_go(), last))
    return lock


def wrapped(verb):
    return lambda *arguments: verb(*arguments)


@pytest.mark.parametrize("decorator", [lambda verb: verb, wrapped], ids=["plain", "wrapped"])
def test_a_resource_of_the_program_waits_for_it(waited_for, decorator):
    """What devmem calls there has interrupted nothing: a pool below it asks its streams as one without it does."""
    seen = []

    class Own(dm.memory.Adaptor):
        @decorator
        def allocate(self, nbytes, stream):
            with waited_for:
                seen.append(nbytes)
            return super().allocate(nbytes, stream)

    with dm.use_memory(Own()):
        dm.device_array(3, "u1").free()
    assert seen == [3]


@pytest.mark.parametrize("module", [dm, numba_cuda], ids=["devmem", "numba_cuda"])
def test_a_callback_of_a_stream_waits_for_it(waited_for, module):
    done, failed = threading.Event(), []

    def called(*_):
        try:
            with waited_for:
                pass
        except CannotWait as error:
            failed.append(str(error))
        done.set()

    try:
        stream = module.stream()
        stream.add_callback(called)
        assert done.wait(patience())
    finally:
        dm.close()  # the drop-in has installed plain memory for the whole device, which waits where it is freed
    assert failed == []


def test_a_handler_below_a_resource_of_the_program_is_refused(taken, at_point):
    lock, _ = taken
    seen = []

    class Own(dm.memory.Adaptor):
        def allocate(self, nbytes, stream):
            return super().allocate(nbytes, stream)

    def handler():
        with pytest.raises(CannotWait, match=r"^a test needs another thread"), lock:
            pass
        seen.append(True)

    with (
        dm.use_memory(Own(dm.memory.PoolMemory())),
        at_point(3, lambda code: code.co_filename == engine.__file__, handler),
    ):
        dm.device_array(3 << 20, "u1")
    assert seen


def test_a_handler_waits_for_none_that_another_thread_takes_meanwhile(at_point):
    """At each point of what takes the lock at which another thread may come."""
    outer, number, left = OuterLock("test", Rank.COMPILE, "a test"), 0, 0
    interrupted = {"__name__": "devmem.interrupted"}  # a call of devmem's
    exec("def by(handler): handler()", interrupted)
    while left <= 0:
        number += 1
        go_on, others, seen = threading.Event(), [], []

        def hold(there, go_on=go_on):
            with outer:
                there.set()
                go_on.wait(patience())

        def come_between(others=others, hold=hold):
            there = threading.Event()
            others.append(threading.Thread(target=hold, args=(there,)))
            others[0].start()
            assert there.wait(patience())

        def handler(seen=seen):
            with outer:
                seen.append("taken")

        with at_point(number, lambda code: code.co_filename == outer_lock.__file__, come_between) as point:
            try:
                interrupted["by"](handler)
            except CannotWait:
                seen.append("refused")
            seen.append(go_on.is_set())
        go_on.set()
        for each in others:
            each.join(patience())
        left = point.left
        assert seen == ["refused" if others else "taken", False], point.where
    assert number > 2


def test_others_wait_for_it(taken):
    lock, go_on = taken
    go_on.set()
    with lock, lock:
        assert lock._lock._is_owned()
    assert not lock._lock._is_owned()


@pytest.mark.own_thread
def test_no_interrupt_leaves_it_taken(at_point):
    lock, number, left = OuterLock("test", Rank.LEAF, "a test"), 0, 0
    while left <= 0:
        number += 1
        with at_point(number, lambda code: code.co_filename in (__file__, outer_lock.__file__)) as point, lock:
            len("")
        left = point.left
        sys.settrace(None)
        assert not lock._lock._is_owned(), point.where
    assert number > 2
