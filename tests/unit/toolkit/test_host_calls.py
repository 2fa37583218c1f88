"""Host functions that threads of ours call, for runtimes that have none."""

from __future__ import annotations

import threading

from devmem.toolkit import host_calls
from devmem.toolkit.host_calls import HostCall, Worker, finish, tell


def nothing(places):
    pass


def test_functions_are_called_in_order_and_let_the_stream_go_on():
    worker, told = Worker(), []
    calls = [HostCall(told.append, [at], lambda at=at: told.append(f"behind {at}")) for at in range(3)]
    worker.begin(threading.RLock())
    for at, call in enumerate(calls):
        worker.waiting.put((lambda at=at: told.append(f"before {at}"), call))
    worker.end()
    finish(calls)
    assert told == [word for at in range(3) for word in (f"before {at}", [at], f"behind {at}")]


def test_where_a_stream_cannot_go_on_the_call_is_over_and_the_next_one_is_made():
    def lost():
        raise RuntimeError("the device is lost")

    worker, calls = Worker(), [HostCall(nothing, [], lost) for _ in range(2)]
    worker.begin(threading.RLock())
    for call in calls:
        worker.waiting.put((lambda: None, call))
    worker.end()
    finish(calls)
    tell(calls)


def test_two_threads_first_calls_start_one_worker(monkeypatch):
    worker, lock, started = Worker(), threading.RLock(), []

    def meanwhile(function):
        """Another thread's call comes to its end between the first one's question and its start."""
        monkeypatch.setattr(host_calls, "run_apart", lambda function: function())
        worker.begin(lock)
        function()

    monkeypatch.setattr(host_calls, "run_apart", meanwhile)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    worker.begin(lock)
    assert len(started) == 1
