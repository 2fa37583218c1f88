"""A driver that does nothing but count its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from devmem.testing import NullDriver

#: The counted methods, and the names under which they are counted.
COUNTED = {
    "enter": "enter",
    "exit": "exit",
    "alloc": "alloc",
    "alloc_async": "alloc",
    "free": "free",
    "free_async": "free",
    "copy": "copy",
    "fill": "fill",
    "stream_create": "stream_create",
    "stream_destroy": "stream_destroy",
    "stream_synchronize": "stream_synchronize",
    "stream_query": "stream_query",
    "event_create": "event_create",
    "event_destroy": "event_destroy",
    "event_record": "event_record",
    "event_query": "event_query",
}


class CountingDriver(NullDriver):
    """Counts its calls in `calls`."""

    def __init__(self, name: str, ordinal: int) -> None:
        super().__init__(name, ordinal)
        self.calls: Counter[str] = Counter()
        for verb, counted in COUNTED.items():
            setattr(self, verb, self._counting(counted, getattr(self, verb)))

    def _counting(self, counted: str, verb: Callable[..., object]) -> Callable[..., object]:
        def count(*args: object, **options: object) -> object:
            self.calls[counted] += 1
            return verb(*args, **options)

        return count
