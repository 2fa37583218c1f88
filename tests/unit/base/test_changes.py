"""`Changes`: waiting for what a lock protects, with an interrupt anywhere."""

from __future__ import annotations

import sys
import threading

import pytest
from waits import patience, together

import devmem as dm
from devmem._core.base import changes
from devmem._core.base.changes import Changes

CODE = (changes.__file__, threading.__file__)


def watched(code):
    return code.co_filename in CODE


@pytest.fixture
def lock():
    return threading.RLock()


def is_free(lock):
    """Whether another thread can take it."""

    def take():
        if taken := lock.acquire(timeout=patience()):
            lock.release()
        return taken

    return together(take) == [True]


def test_a_change_ends_the_wait(lock):
    made, waits = Changes(lock), threading.Event()
    state, seen = [], []

    def attempt():
        seen.append(lock._is_owned())
        waits.set()
        return bool(state)

    thread = threading.Thread(target=made.wait_until, args=(attempt, "a test"))
    thread.start()
    assert waits.wait(patience())
    with lock:
        state.append(True)
        made.tell()
    thread.join(patience())
    assert not thread.is_alive()
    assert all(seen)
    assert not made._waiting


def test_a_change_that_is_not_told_ends_the_wait_too(lock):
    """What was to tell it may have been interrupted."""
    made, answers = Changes(lock), iter((False, False, True))
    made.wait_until(lambda: next(answers), "a test")
    assert not made._waiting


def test_a_stream_callback_may_wait(lock):
    """It has interrupted nothing: it is called on a thread that has nothing."""
    made, answers, called, failed = Changes(lock), iter((False, True)), threading.Event(), []

    def callback(_):
        try:
            made.wait_until(lambda: next(answers), "a test")
        except RuntimeError as error:
            failed.append(error)
        finally:
            called.set()

    with dm.stream() as stream:
        stream.add_callback(callback)
    assert called.wait(patience())
    assert not failed


@pytest.mark.own_thread
def test_no_interrupt_leaves_the_lock_taken(lock, at_point):
    made, number, left = Changes(lock), 0, 0
    while left <= 0:
        number += 1
        answers = iter((False, False, True))
        with at_point(number, watched) as point:
            made.wait_until(lambda answers=answers: next(answers), "a test")
        left = point.left
        sys.settrace(None)
        assert is_free(lock), point.where
        made.tell()
        assert not made._waiting, point.where
    assert number > 5
