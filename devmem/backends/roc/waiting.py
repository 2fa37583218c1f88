"""Waiting where the binding holds the GIL: a call that waits would stop every other thread, even the one it waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...spi.types import LEGACY_STREAM, CopyKind
from .handles import Streams, page_locked

SHORTEST, LONGEST = 10e-6, 1e-3


class Patience:
    """Asks until the work is done, and lets other threads run in between. What follows it then returns at once."""

    def __init__(self, query: Callable[[int], bool], streams: Streams) -> None:
        self.query = query
        self.streams = streams
        self.lock = threading.Lock()

    def until(self, done: Callable[[], bool]) -> None:
        """Ask with growing pauses."""
        pause = SHORTEST
        while not done():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)

    def stream(self, stream: int) -> None:
        """Until the stream is done; one that somebody destroys meanwhile is done with."""
        if not self._done(stream):
            self.until(lambda: self._done(stream))

    def every_stream(self) -> None:
        """Until all that this driver made are, and the default streams of this thread."""
        for stream in list(self.streams):
            self.stream(stream)

    def before_copy(self, stream: int, host: int, nbytes: int, kind: CopyKind) -> None:
        """The runtime may wait for the stream's turn to copy pageable memory, and never to copy any other."""
        if kind is CopyKind.D2D or page_locked.covers(host, nbytes):
            return
        self.stream(stream)
        if stream != LEGACY_STREAM and stream not in self.streams.non_blocking:
            self.stream(LEGACY_STREAM)

    def _done(self, stream: int) -> bool:
        with self.lock:
            return stream in self.streams.gone or self.query(self.streams[stream])
