"""How tests wait for other threads and processes: as long as a busy machine needs, and less than the test itself may take.

``TEST_PATIENCE=3`` makes each of these limits three times as long, and those of the tests with them (tests/conftest.py).
(``DEVMEM_...`` would be a setting of the library, which warns of those that it does not have.)
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: How much longer than usual everything may take.
FACTOR = float(os.environ.get("TEST_PATIENCE") or 1)
if not 0 < FACTOR < math.inf:
    raise ValueError(f"TEST_PATIENCE={FACTOR} is no factor: limits are multiplied by it, as with 3")
#: How long what must not go on is given to go on all the same, in seconds.
MOMENT = 0.1


def patience(seconds: float = 100) -> float:
    """Return how long to wait at the most for what is to come: without an argument, less than a usual test may take."""
    return seconds * FACTOR


def blocked(waiting: Any, why: str = "it did not wait") -> None:
    """Assert that a thread, or what sets an event, does not go on.

    It never fails by luck. A thread that has not come to its wait passes, so a test that can see it wait looks first.
    """
    if isinstance(waiting, threading.Thread):
        waiting.join(MOMENT)
        assert waiting.is_alive(), why
    else:
        assert not waiting.wait(MOMENT), why


def together(*works: Callable[[], T], limit: float = 100) -> list[T]:
    """Call each function on a thread of its own, all at once; return what they return, or raise what the first to fail raised."""
    barrier, failed, results = threading.Barrier(len(works)), list[BaseException](), dict[int, T]()

    def run(number: int) -> None:
        try:
            barrier.wait(patience(limit))
            results[number] = works[number]()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + patience(limit)
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    if failed:
        raise failed[0]
    late = [number for number, thread in enumerate(threads) if thread.is_alive()]
    assert not late, f"threads {late} of {len(threads)} have not ended after {patience(limit):g} s"
    return [results[number] for number in range(len(works))]
