"""A callback for allocations that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import lt

from ...spi.memory import MemoryResource
from ..base.arguments import check_callable
from .adaptor import Adaptor


class OnOutOfMemory(Adaptor):
    """Call a function when memory runs out, so that the program can free something.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where the memory comes from.
    callback : callable
        Called with the bytes that did not fit, in the thread that asked, with no lock held and the device current. True: free
        what was dropped and try again, as long as calls free memory: the failure of a try for which none was freed is final.
        False: let the failure take its course, which is devmem's own answer (free what waits, trim, ask once more, so it may
        be called twice). Allocations of its own that fail do not call it again.

    Examples
    --------
    >>> def make_room(nbytes):
    ...     cache.clear()
    ...     return True
    >>> with dm.use_memory(dm.memory.OnOutOfMemory(dm.memory.Limit(max_bytes=10_000), make_room)):
    ...     cache = [dm.zeros(1000)]
    ...     d = dm.zeros(1000)
    >>> cache
    []
    """

    _shown = ("callback",)

    def __init__(
        self, upstream: MemoryResource | None = None, callback: Callable[[int], bool] = lambda nbytes: False
    ) -> None:
        super().__init__(upstream)
        check_callable(callback, "OnOutOfMemory(callback=)")
        self.callback = callback
        #: Given with the device. Frees what was dropped, if asked to, and tells counts of bytes: one falls if something is freed.
        self.usage: Callable[[bool], tuple[int, int]] = lambda free_dropped: (0, 0)
        self._asking = threading.local()

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate; ask the callback if it does not fit."""
        if not nbytes:
            return 0
        freed = True
        while True:
            try:
                return self._allocate(nbytes, stream)
            except MemoryError:
                if not freed or getattr(self._asking, "now", False):
                    raise
                self._asking.now = True
                try:
                    before = self.usage(False)
                    if not self.callback(nbytes):
                        raise
                    freed = any(map(lt, self.usage(True), before))
                finally:
                    self._asking.now = False
