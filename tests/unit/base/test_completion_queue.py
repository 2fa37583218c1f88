"""What is put behind an event is kept, whatever runs while it is put there."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from devmem import _native
from devmem._core.ordering import completions
from devmem._core.ordering.completions import CompletionQueue, EventPool, EventQueues

FILE = completions.__file__


@pytest.fixture(params=["Python", "compiled"])
def of_a_driver(request):
    if request.param == "compiled" and _native.core is None:
        pytest.skip(_native.why)

    def make(query):
        queue = made(query)
        queue.waiting = EventQueues(queue.lock) if request.param == "Python" else _native.core.EventQueues()
        return queue

    return make


def made(query):
    handles = iter(range(1, 1 << 20))
    driver = SimpleNamespace(
        event_create=lambda timing: next(handles),
        event_record=lambda event, stream: None,
        event_query=query,
        event_destroy=lambda event: None,
    )
    return CompletionQueue(EventPool(SimpleNamespace(driver=driver)))


def test_a_finalizer_that_polls_does_not_lose_a_payload(at_point, of_a_driver):
    queue = of_a_driver(lambda event: False)

    def poll():
        sys.settrace(None)
        queue.completed()

    for number in range(1, 100):
        with at_point(number, lambda code: code.co_filename == FILE, poll) as point:
            queue.add("stream", 1, number)
        assert [payload for _, payload in queue.waiting.pop("stream")] == [number], point.where
        if point.left > 0:
            break
    assert number > 5


def test_what_a_failed_query_has_left_is_forgotten_with_the_rest(of_a_driver):
    answers, payloads = [True], [{1}, {2}]
    queue = of_a_driver(lambda event: answers.pop())  # the second one fails
    gone = [weakref.ref(each) for each in payloads]
    while payloads:
        queue.add("stream", 1, payloads.pop())
    with pytest.raises(IndexError):
        queue.completed()
    assert all(each() is not None for each in gone)
    queue.forget()
    gc.collect()  # the error's traceback
    assert all(each() is None for each in gone)


def test_a_signals_handler_may_enter_more_while_empty_queues_are_taken_out():
    queues = EventQueues(nullcontext())

    class Queue(deque):
        def __len__(self):
            queues.setdefault(f"more {len(queues)}", deque([(1, 2)]))  # as a handler would, at the end of a turn
            return super().__len__()

    queues["empty"] = Queue()
    queues["full"] = deque([(1, 2)])
    queues.tidy()
    assert "empty" not in queues
    assert "full" in queues


def test_what_was_found_meanwhile_is_given_out_again(of_a_driver):
    """A query lets other threads run: one of them may take what was found until then."""
    given = []

    def query(event):
        if len(given) == 0:
            given.append(None)
            given.extend(queue.completed())
        return True

    queue = of_a_driver(query)
    for number in range(3):
        queue.add("stream", 1, number)
    found = queue.completed()
    assert sorted([*given[1:], *found, *queue.completed()]) == [0, 1, 2]
