"""Allocations that fail on purpose, and a callback for those that fail in earnest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import lt

from ...spi.errors import ConfigError, OutOfMemory
from ...spi.memory import MemoryResource
from ...spi.sizes import exact_size
from .adaptor import Adaptor

#: Makes the exception of an injected failure out of a message: an exception's class, for example.
Failure = Callable[[str], BaseException]


def check_callable(given: object, what: str) -> None:
    """Raise TypeError for what cannot be called: at the first allocation it would be too late."""
    if not callable(given):
        raise TypeError(f"{what} is a function, not {given!r}")


class FailNth(Adaptor):
    """Make the n-th allocation from now on fail, to see what a program does then.

    devmem itself answers memory that ran out by giving back what it can and asking once more, so one failure never reaches
    an array's user; ``repeat=True`` makes every later allocation fail too.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where the memory comes from.
    n : int
        Which allocation fails, counted from 1.
    repeat : bool
        Whether all after it fail too.
    error : callable
        Makes what is raised out of a message; `OutOfMemory` by default.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.FailNth(n=2, repeat=True)):
    ...     first = dm.zeros(3)
    ...     second = dm.zeros(3)
    Traceback (most recent call last):
        ...
    devmem.OutOfMemory: ...
    """

    _shown = ("n", "repeat")

    def __init__(
        self, upstream: MemoryResource | None = None, n: int = 1, *, repeat: bool = False, error: Failure = OutOfMemory
    ) -> None:
        super().__init__(upstream)
        if not isinstance(n, int) or n < 1:
            raise ConfigError(f"allocations are counted from 1 in whole numbers, got n={n!r}")
        self.n, self.repeat, self.error = n, repeat, error
        self._start_anew()

    def _start_anew(self) -> None:
        #: Allocations asked for, those that failed too.
        self.calls = 0

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate, unless this is the one that fails."""
        if not nbytes:
            return 0
        with self._lock:
            self.calls += 1
            call = self.calls
        if call == self.n or (self.repeat and call > self.n):
            raise self.error(f"allocation {call} ({exact_size(nbytes)}) was made to fail (FailNth)")
        return self._allocate(nbytes, stream)


class FailIf(Adaptor):
    """Make the allocations fail for which ``predicate(nbytes, stream)`` is true.

    ``error`` makes what is raised out of a message; `OutOfMemory` by default.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.FailIf(predicate=lambda nbytes, stream: nbytes > 1000)):
    ...     small, large = dm.zeros(100), dm.zeros(1000)
    Traceback (most recent call last):
        ...
    devmem.OutOfMemory: ...
    """

    _shown = ("predicate",)

    def __init__(
        self,
        upstream: MemoryResource | None = None,
        predicate: Callable[[int, int], bool] = lambda nbytes, stream: False,
        *,
        error: Failure = OutOfMemory,
    ) -> None:
        super().__init__(upstream)
        check_callable(predicate, "FailIf(predicate=)")
        self.predicate, self.error = predicate, error

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate, unless the predicate picks it."""
        if not nbytes:
            return 0
        if self.predicate(nbytes, stream):
            raise self.error(f"an allocation of {exact_size(nbytes)} was made to fail (FailIf)")
        return self._allocate(nbytes, stream)


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
