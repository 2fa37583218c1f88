"""Calls that go on while another thread of the process captures a graph.

While any thread captures a graph in the vendors' default mode, no thread of the process may allocate, free or ask for an event:
the call fails, and the capture with it. A thread in the relaxed mode is exempt: it says that what it does is no part of a graph.
That is true of what a driver does for devmem, so each such call changes the mode of its thread, and changes it back.

The mode is a thread's own, so no lock is needed. Whatever interrupts the call, the thread does not stay relaxed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spi.errors import BackendError

#: The vendors' default mode, in which every thread begins, and the relaxed one.
GLOBAL, RELAXED = 0, 2


class RelaxedCapture:
    """Run calls in the relaxed mode.

    ``exchange`` sets the calling thread's mode and returns (0 or a status, the mode before), or raises BackendError or
    ValueError; None where the vendor's library has no such modes. ``mode`` gives a mode as ``exchange`` takes it.
    """

    def __init__(self, exchange: Callable[[Any], tuple[Any, Any]] | None, mode: Callable[[int], Any] = int) -> None:
        self.exchange = exchange
        self._default = mode(GLOBAL)
        self._relaxed = mode(RELAXED)

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call it in the relaxed mode."""
        exchange = self.exchange
        if exchange is None:
            return call(*arguments)
        before = self._default  # for an interrupt that comes before the mode is known: every thread begins in this one
        try:
            try:
                status, before = exchange(self._relaxed)
                if status:
                    before = None
            except (BackendError, ValueError):
                before = None  # the call itself reports what is wrong, and giving memory back has to go on
            return call(*arguments)
        finally:
            if before is not None:
                try:  # suppress() would cost more than the calls
                    exchange(before)
                except (BackendError, ValueError):
                    pass
