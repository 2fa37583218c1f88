"""The machine's limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from .driver import UP, driver
from .sizes import MiB
from .tasks import Data, Task, poison, same


def limit(direction: str, nbytes: int, data: Data) -> Task:
    """The rate of the driver's copies from or to page-locked memory with many copies enqueued."""
    host = data.src(nbytes, True) if direction == UP else data.out(nbytes, True)
    engine = driver().engine(nbytes)
    times = min(64, max(1, 64 * MiB // nbytes))
    at = host.ctypes.data

    def prepare() -> None:
        if direction == UP:
            data.renew(host)
        else:
            poison(host)
            driver().write(engine.ptr, data.src(nbytes).ctypes.data, nbytes)
            driver().wait()  # the copy may return when the bytes have left the host, and the stream is non-blocking

    def verify(_: Any) -> None:
        found = np.empty(nbytes // 4, np.float32)
        driver().read(found.ctypes.data, engine.ptr, nbytes)
        same(found, host)
        if direction != UP:
            same(host, data.src(nbytes))

    return Task(
        lambda: engine.seconds(direction, at, nbytes, times),
        verify,
        prepare,
        waits=False,
        timed_itself=True,
        uses=times,
    )
