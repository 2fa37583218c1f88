"""What the machine can do at most."""

from __future__ import annotations

from typing import Any

import numpy as np

from .driver import checked, cu, wait
from .sizes import MiB
from .tasks import Data, Task, poison, same


def limit(direction: str, nbytes: int, data: Data) -> Task:
    """The rate at which the driver copies from or to page-locked memory when it is given enough to do."""
    host = data.src(nbytes, True) if direction == "h2d" else data.out(nbytes, True)
    stream, device = checked(cu.cuStreamCreate(1)), int(checked(cu.cuMemAlloc(nbytes)))
    start, end = (checked(cu.cuEventCreate(0)) for _ in range(2))
    times = min(64, max(1, 64 * MiB // nbytes))
    at = host.ctypes.data

    def run() -> float:
        checked(cu.cuEventRecord(start, stream))
        for _ in range(times):
            if direction == "h2d":
                checked(cu.cuMemcpyHtoDAsync(device, at, nbytes, stream))
            else:
                checked(cu.cuMemcpyDtoHAsync(at, device, nbytes, stream))
        checked(cu.cuEventRecord(end, stream))
        checked(cu.cuEventSynchronize(end))
        return float(checked(cu.cuEventElapsedTime(start, end))) / 1e3

    def prepare() -> None:
        if direction == "h2d":
            data.renew(host)
        else:
            poison(host)
            checked(cu.cuMemcpyHtoD(device, data.src(nbytes).ctypes.data, nbytes))
            wait()  # it returns when the bytes have left the host, and the stream below waits for nobody

    def verify(_: Any) -> None:
        found = np.empty(nbytes // 4, np.float32)
        checked(cu.cuMemcpyDtoH(found.ctypes.data, device, nbytes))
        same(found, host)
        if direction == "d2h":
            same(host, data.src(nbytes))

    class Owner:
        def __del__(self) -> None:
            cu.cuStreamDestroy(stream)
            cu.cuEventDestroy(start)
            cu.cuEventDestroy(end)
            cu.cuMemFree(device)

    owner = Owner()
    return Task(lambda: (owner, run())[1], verify, prepare, waits=False, timed_itself=True, uses=times)
