"""Which threads run a function for a stream: there the device must not be asked for anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Executing(threading.local):
    """``executing.on``: whether this thread runs what was given to ``SupportsExecute.execute``, or helps with it.

    The driver says so of the thread that it calls the function on; a function that has threads of its own says so there. The
    driver refuses to be entered on such a thread: what is enqueued from it may wait for the very function that waits for it.
    """

    on = False

    @contextmanager
    def here(self) -> Iterator[None]:
        """Say it of this thread, for the block."""
        before, self.on = self.on, True
        try:
            yield
        finally:
            self.on = before


executing = Executing()
