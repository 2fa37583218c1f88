"""Threads that are started whatever interrupts the caller, and what starts them."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from interrupts import AtPoint, interrupt
from waits import patience

import devmem as dm
from devmem._core.bulk import prefetch
from devmem._core.copy.staging import workers
from devmem._core.copy.staging.workers import CopyWorkers
from devmem.toolkit import threads
from devmem.toolkit.threads import run_apart

WATCHED = {threading.__file__, threads.__file__, workers.__file__, prefetch.__file__}


def watched(code):
    return code.co_filename in WATCHED


def named(name):
    return [each for each in threading.enumerate() if each.name.startswith(name)]


def wait_for(condition):
    """A thread that was told to end needs a moment."""
    end = time.monotonic() + patience()
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    assert condition()


def test_what_the_function_raises_is_raised():
    seen = []
    run_apart(lambda: seen.append(threading.get_ident()))
    assert seen != [threading.get_ident()]
    with pytest.raises(ZeroDivisionError):
        run_apart(lambda: 1 // 0)


@pytest.mark.own_thread
def test_behind_an_interrupt_threads_copy_and_end():
    """One of them at most is not started; those that were end with the workers."""
    before, number, left = set(named("devmem-staging")), 0, 0
    src = np.arange(3 * workers.PART, dtype=np.uint8)
    while not left:
        number += 1
        copiers = CopyWorkers(3)
        with AtPoint(number, interrupt, watched) as at:
            copiers.copy(np.empty_like(src), src)
        left, dst = max(at.left, 0), np.empty_like(src)
        copiers.copy(dst, src)
        assert np.array_equal(dst, src)
        wait_for(lambda: len(set(named("devmem-staging")) - before) >= 1)
        copiers.close()
        wait_for(lambda: not set(named("devmem-staging")) - before)
    assert number > 10


def test_a_start_that_comes_after_the_close_starts_no_thread(monkeypatch):
    """The call that asked for it was interrupted, and did not wait for it."""
    before, late = set(named("devmem-staging")), []
    monkeypatch.setattr(workers, "run_apart", late.append)
    src = np.arange(3 * workers.PART, dtype=np.uint8)
    copiers = CopyWorkers(3)
    copiers.copy(np.empty_like(src), src)
    copiers.close()
    [start] = late
    start()
    assert set(named("devmem-staging")) == before


@pytest.mark.own_thread
def test_no_interrupt_loses_a_thread_that_uploads_ahead():
    before, number, left = set(named("devmem-prefetch")), 0, 0
    dm.zeros(1)
    gc.collect()
    dm.trim()
    live = dm.memory_info().live
    while not left:
        number += 1
        with AtPoint(number, interrupt, watched) as at, dm.prefetch([np.ones(3)] * 3) as ahead:
            next(ahead)
        left = max(at.left, 0)
        ahead = None
        wait_for(lambda: not set(named("devmem-prefetch")) - before)
        gc.collect()
        dm.trim()
        assert dm.memory_info().live == live
    assert number > 10


def test_a_handler_that_has_interrupted_threading_starts_threads_itself():
    """It holds the lock of `threading`'s table, which a start on another thread would wait for."""
    started, done = [], threading.Event()

    def start():
        threading.Thread(target=started.append, args=(1,)).start()

    def interrupted():
        with threading._active_limbo_lock:
            run_apart(start)
        done.set()

    threading.Thread(target=interrupted, daemon=True).start()
    assert done.wait(patience())
    wait_for(lambda: started == [1])
