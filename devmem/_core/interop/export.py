"""Giving memory to other libraries: DLPack capsules, the CUDA Array Interface, and the streams that their consumers name."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import numpy as np

from ...spi.errors import LayoutError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from ..base.array_view import ArrayView
from ..base.device_handle import CPU, CurrentDevice
from ..base.layout import is_contiguous, opaque
from ..lifetime.allocation import Allocation
from ..lifetime.deferred_free import ExportedForeign
from ..ordering.stream import Stream
from ..ordering.stream_table import StreamTable
from .dlpack import READ_ONLY
from .dlpack import export as capsule_of

#: What a DLPack consumer says that orders its work itself.
NO_ORDER = -1


def is_versioned(max_version: object) -> bool:
    """Whether a consumer that understands at most this version of DLPack takes versioned capsules.

    Raises
    ------
    TypeError
        It is neither None nor a pair of integers.
    """
    if max_version is None:
        return False
    try:
        major, _ = map(operator.index, max_version)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise TypeError(f"max_version is a pair of integers, (major, minor), or None, not {max_version!r}") from None
    return bool(major >= 1)


def exported(view: ArrayView[Any], allocation: Allocation, table: StreamTable, stream: object, versioned: bool) -> Any:
    """A capsule with an array's memory, in place, made ready for the stream that the consumer names."""
    consumer: Stream | None = None
    if view._ptr and stream != NO_ORDER:
        consumer = consumer_of(table, stream)
        # Nothing is to be done where the consumer's is the only stream that ever used the memory. Foreign memory has no home.
        used_elsewhere = consumer is not allocation.home or allocation.streams is not None
        if consumer is None or consumer.external or used_elsewhere:
            with CurrentDevice(table.handle):
                if consumer is None:
                    allocation.wait()
                else:
                    allocation.order_for_consumer(consumer)
    keep = ExportedForeign(allocation.queue, allocation.owner, consumer) if allocation.home is None else allocation
    allocation.lend()
    flags = READ_ONLY if allocation.read_only else 0
    device = table.handle.dlpack_device
    return capsule_of(view._ptr, device, view._shape, view._strides, view._dtype, flags, keep, versioned)


def asked_device(table: StreamTable, dl_device: object, copy: bool | None, stream: object) -> tuple[int, int]:
    """The DLPack device that a consumer wants an array on: its own, or the host, which takes a copy.

    Raises
    ------
    BufferError
        The array is exported there only by a copy that is forbidden, or not at all.
    LayoutError
        A stream is named for a copy in host memory.
    """
    device, own = table.handle.device, table.handle.dlpack_device
    if dl_device is None:
        return own
    try:
        kind, number = map(operator.index, dl_device)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise TypeError(f"dl_device is a pair of integers, (type, number), not {dl_device!r}") from None
    wanted: tuple[int, int] = kind, number
    if wanted == own:
        return own
    if wanted != (CPU, 0):
        raise BufferError(
            f"an array on {device} (DLPack device {own}) is exported there or to the host, (1, 0), not to {wanted}: "
            f"copy it with devmem.to_device(array, device=...) first"
        )
    if copy is False:
        raise BufferError(f"an array on {device} gets to the host by a copy only, and copy=False")
    if stream is not None:
        raise LayoutError(f"a copy in host memory is complete: with dl_device=(1, 0) give stream=None, not {stream!r}")
    return wanted


def array_interface(view: ArrayView[Any], allocation: Allocation, table: StreamTable) -> dict[str, Any]:
    """Version 3 of the CUDA Array Interface; AttributeError where the device's arrays have none."""
    if not table.handle.info.exchange.array_interface:
        raise AttributeError(
            f"arrays on {table.handle.device} have no __cuda_array_interface__: exchange them by DLPack"
        )
    allocation.lend()
    dtype, strides = view._dtype, view._strides
    if strides is not None and is_contiguous(view._shape, strides, dtype.itemsize):
        strides = None
    interface = {
        "shape": view._shape,
        "typestr": _typestr(dtype),
        "data": (view._ptr, allocation.read_only),
        "strides": strides,
        "version": 3,
        "stream": _stream_to_wait_for(allocation, table) if view._ptr else None,
    }
    if dtype.fields is not None:
        interface.update(_described(dtype))
    return interface


def consumer_of(table: StreamTable, stream: object) -> Stream | None:
    """The stream that a DLPack consumer names in its vendor's numbers; None where it has none, and the host is to wait.

    Raises
    ------
    LayoutError
        The vendor has no such stream.
    """
    names = table.handle.info.exchange.streams
    if type(stream) is int and names is not None and names.get(stream) == LEGACY_STREAM:
        return table.legacy  # as most say it
    if stream is None:
        return table.legacy if names is not None else None
    try:
        if isinstance(stream, bool):
            raise TypeError
        number = operator.index(stream)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"DLPack names streams by integers or None, not {stream!r}") from None
    if names is None:
        raise LayoutError(
            f"arrays on {table.handle.device} are exported with stream=None or -1, not {number}: it has no streams"
        )
    handle = names.get(number, number if number > PER_THREAD_STREAM else 0)
    if handle == LEGACY_STREAM:
        return table.legacy
    if not handle:
        known = ", ".join(map(str, names))
        raise LayoutError(
            f"stream={number} means nothing on {table.handle.device}: DLPack has {known} for its default streams, None, "
            f"-1 for no ordering, and the handles of other streams"
        )
    return table.external_stream(handle)


def make_ready(table: StreamTable, stream: int | None, *, now: bool = False) -> None:
    """Wait for the copies to and from host memory that are still running, where the consumer of such memory wants it.

    ``now``: the host waits, whatever stream the consumer names, because it reads the memory itself.
    """
    if stream == NO_ORDER:
        return
    consumer = None if stream is None else consumer_of(table, stream)
    completions = table.completions
    if not completions.in_flight:
        return
    with CurrentDevice(table.handle):
        if consumer is None or now:
            completions.wait_complete()
            return
        for other in list(completions.in_flight):
            if other is not consumer and not consumer.waits_for(other):
                completions.order_behind(consumer.handle, other)


def _stream_to_wait_for(allocation: Allocation, table: StreamTable) -> int | None:
    """The vendor's number of a stream that comes after all that devmem enqueued on the block; None if all is done."""
    home: Stream = allocation.home or getattr(allocation, "ready", None) or table.legacy
    named = home if home is table.legacy else home.ordering_stream()
    if allocation.streams is not None or named is not allocation.home:
        with CurrentDevice(table.handle):
            allocation.order_behind(named)
    handle = named.handle
    if handle > PER_THREAD_STREAM or table.handle.stream_numbers.get(handle) == handle:
        return handle
    with CurrentDevice(table.handle) as driver:  # a default stream whose number means something else to consumers
        driver.stream_synchronize(handle)
    return None


@lru_cache(maxsize=64)
def _typestr(dtype: np.dtype[Any]) -> str:
    return opaque(dtype).str


@lru_cache(maxsize=64)
def _described(dtype: np.dtype[Any]) -> dict[str, Any]:
    """The fields of a record; nothing where they overlap, which a list of them cannot say."""
    try:
        return {"descr": opaque(dtype).descr}
    except ValueError:
        return {}
