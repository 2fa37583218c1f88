"""Work of a stream that is recorded once, and replayed."""

from __future__ import annotations

from .._core.bulk.transfer_plan import TransferPlan
from .._core.device.device import open_device_of
from .._core.ordering.event import StreamLike
from .._core.ordering.stream import Stream


def capture(stream: StreamLike) -> TransferPlan:
    """Record what is given to a stream in a ``with`` block, instead of running it; the plan runs it as often as is wanted.

    ::

        stream = dm.stream()
        with dm.capture(stream) as plan:
            device.copy_to_device(source, stream=stream)     # source: a page-locked array
            device[:8].fill(0, stream=stream)
            device.copy_to_host(result, stream=stream)
        plan.replay()
        stream.synchronize()

    Recorded are copies between device arrays and page-locked host arrays, on the device, fills, `Event.record`, `Event.wait` and
    launches of `devmem.kernel`, where the call names the stream. Nothing of it runs in the block. What cannot be recorded raises
    there: a call that waits, copies of pageable memory, also of what a device uses in place, copies that are gathered on the host
    or go to another device. What other libraries enqueue on the stream is not recorded, but runs.

    The plan keeps both sides of its copies alive, and locked. A device array that is made on the stream in the block has memory
    of the plan's own, which no other work is given before the plan is closed.

    Parameters
    ----------
    stream : Stream
        One of devmem's own, which `devmem.stream` made. Work of other streams goes on as ever.

    Returns
    -------
    TransferPlan
        ``replay()``, ``update(src=..., dst=...)`` and ``close()``, after the block.

    Raises
    ------
    UnsupportedError
        The device cannot record work, or the stream is a default one or another library's, or is being recorded or captured.

    Examples
    --------
    >>> stream, source = dm.stream(), dm.pinned_array(3)
    >>> device = dm.device_array(3)
    >>> with dm.capture(stream) as plan:
    ...     device.copy_to_device(source, stream=stream)
    >>> source[:] = 1, 2, 3
    >>> plan.replay()
    >>> stream.synchronize()
    >>> device.tolist()
    [1.0, 2.0, 3.0]
    >>> plan.close()
    """
    named = stream.device if isinstance(stream, Stream) else None
    opened = open_device_of(named)
    return TransferPlan(opened, opened.streams.stream_of(stream))
