"""Waiting for what can only be asked about, with a limit. Nothing else in devmem polls, but a task that awaits a copy."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds between two questions: the first pause, and the longest.
SHORTEST, LONGEST = 20e-6, 2e-3


def until(done: Callable[[], bool], timeout: float) -> bool:
    """Ask until the answer is yes, or so many seconds have passed; what the last answer was."""
    deadline = time.monotonic() + timeout
    pause = SHORTEST
    while not done():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST)
    return True
