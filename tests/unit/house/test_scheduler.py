"""The deterministic scheduler of threads that the tests use (tests/helpers/scheduler.py)."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest
import scheduler
from scheduler import Condition, RLock, Scheduler, Stuck, Thread, point


def lost_update(seed):
    """Two threads add to a counter with a point in between; what is left."""
    counter = [0]

    def add():
        before = counter[0]
        point()
        counter[0] = before + 1

    Scheduler(seed).run(add, add)
    return counter[0]


def test_some_seeds_lose_an_update_and_others_do_not():
    found = [lost_update(seed) for seed in range(100)]
    assert set(found) == {1, 2}
    assert found == [lost_update(seed) for seed in range(100)]


def test_a_lock_lets_one_in():
    for seed in range(50):
        counter, lock = [0], RLock()

        def add(counter=counter, lock=lock):
            with lock, lock:
                before = counter[0]
                point()
                counter[0] = before + 1

        Scheduler(seed).run(add, add, add)
        assert counter == [3]


def test_locks_taken_in_two_orders_are_a_deadlock_that_is_told_with_both_stacks():
    def taker(first, second):
        def take_both():
            with first, second:
                pass

        return take_both

    told = []
    for seed in range(50):
        one, other = RLock(), RLock()
        try:
            Scheduler(seed, chances=(0.5,)).run(taker(one, other), taker(other, one))
        except Stuck as error:
            told.append(str(error))
    assert told
    assert len(told) < 50
    assert all(text.count("in take_both") == 2 for text in told)


def test_a_run_without_an_end_is_told():
    def spin():
        while True:
            point()

    with pytest.raises(Stuck, match=r"have not come to an end after .* points\n.*spin"):
        Scheduler(0).run(spin)


def test_a_condition_and_a_queue_and_threads_that_are_started():
    """A consumer waits for what producers put down; all of them are threads that the first one starts."""
    for seed in range(50):
        condition, ready, items, consumed = Condition(), [], scheduler.SimpleQueue(), []

        def produce(number, condition=condition, ready=ready, items=items):
            items.put(number)
            with condition:
                ready.append(number)
                condition.notify_all()

        def consume(condition=condition, ready=ready, items=items, consumed=consumed):
            with condition:
                condition.wait_for(lambda: len(ready) == 3)
            consumed.extend(items.get() for _ in range(3))

        def body(produce=produce, consume=consume):
            threads = [Thread(target=consume), *(Thread(target=produce, args=(number,)) for number in range(3))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
                assert not thread.is_alive()

        Scheduler(seed).run(body)
        assert sorted(consumed) == [0, 1, 2]


def test_the_first_error_of_a_thread_is_raised():
    def fail():
        point()
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        Scheduler(1).run(fail, point)


def test_devmem_has_the_schedulers_locks_during_a_run_alone():
    from devmem import plugins
    from devmem.backends.host import stream_engine, streams

    lock = plugins.registry.lock
    seen = []

    def look():
        seen.extend([plugins.registry.lock, stream_engine._lock, stream_engine.threading.RLock, streams.SimpleQueue])

    Scheduler(0).run(look)
    assert [type(seen[0]), type(seen[1]), *seen[2:]] == [RLock, RLock, RLock, scheduler.SimpleQueue]
    assert plugins.registry.lock is lock
    assert stream_engine.threading is threading
    assert streams.SimpleQueue is SimpleQueue
