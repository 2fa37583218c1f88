"""The table of C entry points of a CUDA device: the driver's own functions, as `cuGetProcAddress` gives them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cu

from ...spi.driver_table import DriverTable
from ...spi.types import LEGACY_STREAM
from ...toolkit import vendor_table
from ...toolkit.driver_parts import DriverState
from ...toolkit.memory import MemoryPool

#: The functions of the table in its order, and those that the driver's own methods call in their place, for errors.
FUNCTIONS = {
    "get_current": "cuCtxGetCurrent",
    "set_current": "cuCtxSetCurrent",
    "allocate": "cuMemAllocFromPoolAsync",
    "free": "cuMemFreeAsync",
    "copy_up": "cuMemcpyHtoD",
    "copy_down": "cuMemcpyDtoH",
    "synchronize": "cuStreamSynchronize",
    "stream_query": "cuStreamQuery",
    "event_query": "cuEventQuery",
    "event_record": "cuEventRecord",
    "capture_mode": "cuThreadExchangeStreamCaptureMode",
    "is_capturing": "cuStreamIsCapturing",
    "enqueue_up": "cuMemcpyHtoDAsync",
    "enqueue_down": "cuMemcpyDtoHAsync",
}
#: The version of CUDA whose functions are asked for: the oldest that devmem runs on.
VERSION = 12000
#: cuda-bindings gives out the functions of the per-thread default stream where this is set.
PER_THREAD = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"


def table_of(state: DriverState, primary: Any, pool: MemoryPool, plain_copies: bool) -> DriverTable | None:
    """The table of an open device; None where the driver lacks a function. It enqueues copies if the plain ones are taken."""
    if os.environ.get(PER_THREAD, "0") not in ("", "0"):
        return None
    own = 0 if pool.handle is None else int(pool.handle)
    table = vendor_table.table_of(state, FUNCTIONS, _address, current=int(primary), stream=LEGACY_STREAM, pool=own)
    if table is not None and not plain_copies:
        table.enqueue_up = table.enqueue_down = 0
    return table


def _address(function: str) -> int:
    ask: Callable[..., Any] = cu.cuGetProcAddress
    error, address, found = ask(function.encode(), VERSION, 0)
    return int(address) if not error and not int(found) else 0
