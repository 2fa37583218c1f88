"""New arrays: on a device, uninitialised or with the elements of whatever the user has; and host arrays that a device reaches."""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..._native import core
from ...spi.errors import DevmemError, LayoutError
from ...spi.types import AllocFlags, MemoryKind
from ..base.address import address, extent
from ..base.arguments import check_same
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, contiguous_strides, like_strides, new_host
from ..device.device import DeviceLike, open_device_of
from ..device.open_device import OpenDevice
from ..interop.host_objects import host_array
from ..ordering.event import StreamLike
from ..ordering.stream import Stream
from .host_visible import HostVisible, MappedNDArray
from .managed import ManagedNDArray
from .ndarray import DeviceNDArray, DeviceRecord, device_view, new
from .pinned import Buffer, PinnedNDArray


def empty(
    opened: OpenDevice, shape: Shape, dtype: np.dtype[Any], strides: Shape | None, nbytes: int, stream: StreamLike
) -> DeviceNDArray[Any]:
    """An uninitialised array, bound to the stream if one is named; strides of None are those of a C-contiguous array."""
    chosen = opened.streams.stream_of(stream)
    handle, me, token = opened.handle, get_ident(), None
    try:
        handle.callers.append(me)  # first, as `CurrentDevice` does, which costs a little more
        entry = handle.entry
        token = entry.enter()
        return new(opened, shape, dtype, strides, chosen, nbytes, chosen if stream else None)
    finally:
        handle.callers.remove(me)
        if token is not None:
            entry.exit(token)


def upload(opened: OpenDevice, src: npt.NDArray[Any], stream: StreamLike, copy: bool) -> DeviceNDArray[Any]:
    """A device array with the elements of a host array, contiguous in the same order of axes."""
    chosen = opened.streams.stream_of(stream)
    shape, dtype = src.shape, src.dtype
    if dtype.hasobject:
        host_array(src)  # says why not
    if not copy and (lent := in_place(opened, src, chosen if stream else None)) is not None:
        return lent
    strides = None if src.flags.c_contiguous else like_strides(shape, src.strides, dtype.itemsize)
    handle, me, token = opened.handle, get_ident(), None
    try:
        handle.callers.append(me)
        entry = handle.entry
        token = entry.enter()
        if not stream and (chosen.recorder is not None or not chosen.simple):
            chosen.check_waitable()
        array = new(opened, shape, dtype, strides, chosen, src.nbytes, chosen if stream else None)
        try:
            if core is None or not stream or core.upload_into(array, src, chosen) is None:
                opened.copies.upload(array, src, chosen, not stream, copy)
            if chosen.external:
                array.allocation.after_use(chosen)
        except BaseException:
            with suppress(DevmemError):
                array.allocation.after_use(chosen)  # some of it may be on its way
            array.allocation.discard()
            raise
        return array
    finally:
        handle.callers.remove(me)
        if token is not None:
            entry.exit(token)


def in_place(opened: OpenDevice, host: npt.NDArray[Any], stream: Stream | None) -> DeviceNDArray[Any] | None:
    """A device array in a host array's memory, which it keeps; None where the device does not use that, as the trace tells."""
    by = opened.handle.info.coherence
    why = "" if by else "the device takes no addresses of the host's memory: neither ATS nor HMM"
    if not why and (not host.flags.aligned or host.dtype.hasobject):
        why = "its elements are not aligned" if not host.flags.aligned else "it has Python objects"
    opened.statistics.note("not in place" if why else "in place", why or f"the device uses the memory, by {by}", host)
    if why or not host.nbytes:
        return None
    ptr, (low, high) = address(host), extent(host)
    allocation = opened.memory.foreign(ptr, high - low, host, None, not host.flags.writeable)
    strides = None if host.flags.c_contiguous else host.strides
    return DeviceNDArray(opened, allocation, ptr, host.shape, host.dtype, strides, stream)


def to_device(
    obj: object, stream: StreamLike, copy: bool, to: object, device: DeviceLike
) -> DeviceNDArray[Any] | DeviceRecord:
    """`devmem.to_device` of a device array, a record or an object that NumPy converts to an ndarray; and with ``to=``."""
    if to is not None:
        return _into(obj, stream, copy, to, device)
    if isinstance(obj, DeviceRecord):
        view = obj.__devmem_view__()
        view.allocation.check()
        moved = view.to(device, stream)
        return obj if moved is view else DeviceRecord(moved)
    if isinstance(obj, DeviceNDArray):
        obj.allocation.check()
        return obj.to(device, stream)
    lent = None if isinstance(obj, np.ndarray) else device_view(obj)
    if lent is not None:
        return to_device(lent, stream, copy, to, lent.device if device is None else device)
    opened = open_device_of(device)
    uploaded = upload(opened, host_array(obj), stream, copy)
    return DeviceRecord(uploaded) if isinstance(obj, np.void) and obj.dtype.fields is not None else uploaded


def like(ary: object, dtype: np.dtype[Any] | None = None) -> tuple[Shape, np.dtype[Any], Shape, int]:
    """(shape, dtype, strides, bytes) of an array like this one, or of another dtype, contiguous in its order of axes."""
    model = ary if isinstance(ary, DeviceNDArray) else host_array(ary)
    kind = model.dtype if dtype is None else dtype
    steps = like_strides(model.shape, model.strides, kind.itemsize)
    strides = steps if model.ndim > 1 else contiguous_strides(model.shape, kind.itemsize)
    return model.shape, kind, strides, model.size * kind.itemsize


def target_of(to: object, device: DeviceLike) -> DeviceNDArray[Any]:
    """The device array that an argument ``to=`` means; ``device``: what is said of where it is."""
    target = to.__devmem_view__() if isinstance(to, DeviceRecord) else to
    if not isinstance(target, DeviceNDArray):
        raise TypeError(f"to= takes a device array to copy into, not a {type(to).__name__}")
    if device is not None and open_device_of(device) is not target.open_device:
        raise LayoutError(f"device={device!s} is not where to= is ({target.device}): leave one of them out")
    return target


def _into(
    obj: object, stream: StreamLike, copy: bool, to: object, device: DeviceLike
) -> DeviceNDArray[Any] | DeviceRecord:
    target = target_of(to, device)
    view = device_view(obj)
    source = host_array(obj) if view is None else view
    check_same("to_device(to=)", target.shape, target.dtype, source.shape, source.dtype)
    target.put(source, stream, host_copy=copy)
    return cast("DeviceNDArray[Any] | DeviceRecord", to)


def host_visible(
    opened: OpenDevice,
    kind: MemoryKind,
    shape: Shape,
    dtype: np.dtype[Any],
    strides: Shape,
    nbytes: int,
    flags: AllocFlags = AllocFlags.NONE,
    stream: Stream | None = None,
) -> npt.NDArray[Any]:
    """An uninitialised ndarray in driver memory of a kind."""
    opened.handle.require_kind(kind)
    if not nbytes:
        allocation, raw, base = (
            opened.memory.empty_allocation(opened.streams.legacy),
            np.empty(0, np.uint8),
            0,
        )
    else:
        with CurrentDevice(opened.handle) as driver:
            allocation = opened.memory.allocate_host(nbytes, kind, flags, opened.streams.legacy)
            base = driver.device_pointer(allocation.ptr) if kind is MemoryKind.MAPPED else allocation.ptr
        raw = np.asarray(Buffer(allocation))
    # An empty shape still wants a buffer of at least its offset.
    array = np.ndarray(shape, dtype, raw, 0, strides) if nbytes else new_host(shape, dtype)
    if kind is MemoryKind.PINNED:
        return array.view(PinnedNDArray)
    visible: HostVisible = array.view(MappedNDArray if kind is MemoryKind.MAPPED else ManagedNDArray)
    visible._open_device = opened
    visible._allocation = allocation
    visible._device_base = base
    visible._stream = stream
    return visible
