"""The interpreter's exit, in which no thread can be started."""

from __future__ import annotations

import threading


def is_exiting() -> bool:
    """Whether only other threads and handlers of `atexit` run any more. From Python 3.12 on none of them can start a thread."""
    return not threading.main_thread().is_alive()
