"""The threads that run a host function for a stream. Such a thread must not call a driver.

A driver with `SupportsHostFunction` runs host functions on threads of its own. If such a function enqueued work and waited for
it, the stream would wait for the function and the function for the stream. So the driver marks the thread while the function
runs, a function that starts threads of its own marks those, and ``Driver.enter`` raises on every marked thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class HostFunctionThread(threading.local):
    """Whether the calling thread runs a host function, or a part of one; `this_thread` is the only instance."""

    runs_host_function = False

    @contextmanager
    def running_host_function(self) -> Iterator[None]:
        """Mark the calling thread for the length of the block."""
        before, self.runs_host_function = self.runs_host_function, True
        try:
            yield
        finally:
            self.runs_host_function = before


this_thread = HostFunctionThread()
