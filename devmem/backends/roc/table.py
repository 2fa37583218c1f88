"""The table of C entry points of a HIP device: the runtime's own functions, whichever provider the driver's methods use."""

from __future__ import annotations

import ctypes

from ...spi.driver_table import DriverTable
from ...toolkit import vendor_table
from ...toolkit.driver_parts import DriverState
from ...toolkit.libraries import Library
from ...toolkit.memory import MemoryPool

#: The functions of the table in its order, and those that the driver's own methods call in their place, for errors. hipMemcpyHtoD
#: and hipMemcpyDtoH are not taken: they fail while another thread captures a graph.
FUNCTIONS = {
    "get_current": "hipGetDevice",
    "set_current": "hipSetDevice",
    "allocate": "hipMallocFromPoolAsync",
    "free": "hipFreeAsync",
    "copy_up": "hipMemcpyWithStream",
    "copy_down": "hipMemcpyWithStream",
    "synchronize": "hipStreamSynchronize",
    "stream_query": "hipStreamQuery",
    "event_query": "hipEventQuery",
    "event_record": "hipEventRecord",
    "capture_mode": "hipThreadExchangeStreamCaptureMode",
    "is_capturing": "hipStreamIsCapturing",
    "enqueue_up": "hipMemcpyAsync",
    "enqueue_down": "hipMemcpyAsync",
}
#: The legacy default stream, as every runtime knows it.
NULL_STREAM = 0


def table_of(state: DriverState, library: Library, pool: MemoryPool) -> DriverTable | None:
    """The table of an open device; None where the runtime lacks a function."""

    def address(function: str) -> int:
        if not library.exports(function):
            return 0
        return ctypes.cast(library.handle[function], ctypes.c_void_p).value or 0

    own = 0 if pool.handle is None else int(pool.handle)
    current, stream = state.ordinal, NULL_STREAM
    return vendor_table.table_of(
        state, FUNCTIONS, address, current=current, stream=stream, pool=own, copies_take_stream=True
    )
