"""Device memory that two processes use: what one hands to the other, and who lets go of it there."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from ...spi.errors import BackendError, LayoutError, UnsupportedError
from ...spi.types import Capability
from ..base.arguments import layout_of
from ..base.array_view import ArrayView
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, check_size, span
from ..device.backends import usable_backend
from ..device.device import checked_device, current_open_device, open_devices
from ..lifetime.allocation import Allocation, ForeignAllocation
from ..memory.adaptor import chain, largest_free_block
from ..memory.direct import DriverMemory

if TYPE_CHECKING:
    from ...spi.driver import Driver
    from ..device.open_device import OpenDevice

#: How to have memory that can be shared.
PLAIN = "allocate it inside `with devmem.use_memory(devmem.memory.DriverMemory()):`"


@dataclass(frozen=True)
class IpcHandle:
    """Device memory of this process, for another one: pickle it, send it, and give it to `open_ipc_array` there.

    The memory stays this process's: keep the array until the other process has let go of its own.

    Attributes
    ----------
    backend, uuid : str
        Whose device it is, and which.
    nbytes, offset : int
        The allocation's size, and where in it the array begins.
    shape, dtype, strides
        The array's, where `open_ipc_array` is not told otherwise; strides in bytes.
    process : int
        The number of the process that it was made in.
    """

    backend: str
    uuid: str
    nbytes: int
    offset: int
    shape: Shape
    dtype: np.dtype[Any]
    strides: Shape
    raw: bytes = field(repr=False)
    process: int = field(default_factory=os.getpid)


class Opened:
    """Memory of other processes, as a resource that only takes back. It closes what the driver has opened."""

    stream_ordered = False

    def __init__(self) -> None:
        self.driver: Driver | None = None

    def bind(self, driver: Driver) -> None:
        """Take the device."""
        self.driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        """Not possible: it is opened instead."""
        raise UnsupportedError("memory of another process is opened with open_ipc_array(), not allocated")

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Let go of the memory; every stream has passed it."""
        self.driver.ipc_close(ptr)  # type: ignore[union-attr]


class Counted(dict[int, int]):
    """Addresses that are out. One is out more than once where the driver counts how often a handle was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[int] = Counter()

    def items(self) -> Any:
        """Each as often as it is out."""
        return [pair for pair in super().items() for _ in range(self.times[pair[0]])]

    def __setitem__(self, ptr: int, nbytes: int) -> None:
        self.times[ptr] += 1
        super().__setitem__(ptr, nbytes)

    def pop(self, ptr: int, default: object = None) -> Any:
        """Take one of them back."""
        self.times[ptr] -= 1
        if self.times[ptr] > 0:
            return self[ptr]
        del self.times[ptr]
        return super().pop(ptr, default)


_opened: WeakKeyDictionary[OpenDevice, Opened] = WeakKeyDictionary()


def handle_of(view: ArrayView[Any], allocation: Allocation) -> IpcHandle:
    """What another process opens the array's memory with; all that devmem enqueued on it is waited for.

    Raises
    ------
    UnsupportedError
        The device cannot share memory, or the array's is not an allocation of the driver's own.
    LayoutError
        The array is empty.
    """
    handle = allocation.device_handle
    allocation.check()
    handle.require(Capability.IPC, "share memory with another process", "copy it through the host")
    if not view._ptr:
        raise LayoutError(f"an array of shape {view.shape} has no memory to share")
    if not _is_plain(allocation):
        raise UnsupportedError(f"only plain memory of the driver can be shared with another process: {PLAIN}")
    with CurrentDevice(handle) as driver:
        allocation.wait()
        try:
            raw = driver.ipc_export(allocation.ptr)
        except BackendError as error:
            raise UnsupportedError(f"the driver does not share this memory ({error}): {PLAIN}") from error
    return IpcHandle(
        handle.info.backend,
        handle.info.uuid,
        allocation.nbytes,
        view._ptr - allocation.ptr,
        view.shape,
        view.dtype,
        view.strides,
        raw,
    )


def opened(handle: IpcHandle, shape: object, dtype: object, strides: object) -> tuple[Any, ...]:
    """Another process's memory, as what a device array is made of; it is let go of like memory of our own.

    Raises
    ------
    LayoutError
        The array that was asked for does not fit into the memory.
    UnsupportedError
        The handle is this process's own, or its device is none of this process's.
    """
    if not isinstance(handle, IpcHandle):
        raise TypeError(f"memory is opened by what get_ipc_handle() returned, not by {handle!r}")
    _check_fields(handle)
    lengths, kind, steps = _layout(handle, shape, dtype, strides)
    low, high = span(lengths, steps, kind.itemsize)
    if handle.offset + low < 0 or handle.offset + high > handle.nbytes:
        raise LayoutError(
            f"an array of shape {lengths} and dtype {kind} reaches over {high - low} bytes; the shared memory has "
            f"{handle.nbytes}, of which the array's first is number {handle.offset}"
        )
    if handle.process == os.getpid():
        raise UnsupportedError("this handle was made in this process: use the array itself")
    opened = _open_device_of(handle)
    opened.handle.require(Capability.IPC, "open memory of another process", "copy it through the host")
    resource = _opened.setdefault(opened, Opened())
    heap = opened.memory.bind(resource)
    if not isinstance(heap.live, Counted):
        heap.live = Counted()
    home = opened.streams.stream_of(None)
    with CurrentDevice(opened.handle) as driver:
        opened.free_queue.safe_point()
        base = driver.ipc_open(handle.raw)
        try:
            _check_size(opened, base, handle)
        except BaseException:
            driver.ipc_close(base)
            raise
        heap.live[base] = handle.nbytes
        # Made before the device is left, which can fail: then its end lets go of what was opened.
        allocation = Allocation(opened.free_queue, heap, base, handle.nbytes, home, unnamed=True)
    return opened, allocation, base + handle.offset, lengths, kind, steps


def _check_size(opened: OpenDevice, base: int, handle: IpcHandle) -> None:
    """Raise unless the driver has opened as much as the handle says: it comes from elsewhere. The device is entered."""
    found = opened.handle.driver.pointer_range(base) if opened.handle.knows_pointers else None
    if found is not None and base + handle.nbytes > found[0] + found[1]:
        raise LayoutError(
            f"the handle says that {handle.nbytes} bytes are shared, and the driver has opened {found[0] + found[1] - base}: it "
            f"was not made by get_ipc_handle(), or was damaged on its way"
        )


def _check_fields(handle: IpcHandle) -> None:
    """Raise unless the fields can be what `handle_of` wrote: a handle comes from another process, and may have been forged."""
    expected = {
        "backend": isinstance(handle.backend, str),
        "uuid": isinstance(handle.uuid, str),
        "nbytes": type(handle.nbytes) is int and 0 < handle.nbytes <= sys.maxsize,
        "offset": type(handle.offset) is int and 0 <= handle.offset < sys.maxsize,
        "shape": _are_integers(handle.shape) and all(count >= 0 for count in handle.shape),
        "dtype": isinstance(handle.dtype, np.dtype) and not handle.dtype.hasobject and handle.dtype.subdtype is None,
        "strides": _are_integers(handle.strides) and len(handle.strides) == len(handle.shape),
        "raw": isinstance(handle.raw, bytes),
        "process": type(handle.process) is int,
    }
    wrong = [name for name, is_right in expected.items() if not is_right]
    if wrong:
        found = ", ".join(f"{name}={getattr(handle, name)!r}" for name in wrong)
        raise LayoutError(f"this handle was not made by get_ipc_handle(), or was damaged on its way: {found}")
    check_size(handle.shape, handle.dtype.itemsize)


def _are_integers(values: object) -> bool:
    return isinstance(values, tuple) and all(type(each) is int for each in values)


def _layout(handle: IpcHandle, shape: object, dtype: object, strides: object) -> tuple[Shape, np.dtype[Any], Shape]:
    if shape is None and dtype is None and strides is None:
        return handle.shape, handle.dtype, handle.strides
    lengths = handle.shape if shape is None else shape
    return layout_of(lengths, handle.dtype if dtype is None else dtype, strides, "C")[:3]


def _is_plain(allocation: Allocation) -> bool:
    """Whether the driver knows the block as an allocation of its own, which no pool hands out in parts."""
    if isinstance(allocation, ForeignAllocation):
        return False
    resource, handle = allocation.heap.resource, allocation.device_handle
    if not isinstance(chain(resource)[-1], DriverMemory) or largest_free_block(resource) is not None:
        return False
    if not handle.knows_pointers:
        return True
    with CurrentDevice(handle) as driver:
        found = driver.pointer_range(allocation.ptr)
    return found is None or found[0] == allocation.ptr


def _open_device_of(handle: IpcHandle) -> OpenDevice:
    """The device of this process that is the handle's, whichever number it has here."""
    current = current_open_device()
    for opened in [current, *open_devices()]:
        if (opened.handle.info.backend, opened.handle.info.uuid) == (handle.backend, handle.uuid):
            return opened
    if current.handle.info.backend == handle.backend:
        for ordinal in range(usable_backend(handle.backend).device_count()):
            opened = checked_device(handle.backend, ordinal, ordinal).opened()
            if opened.handle.info.uuid == handle.uuid:
                return opened
    raise UnsupportedError(
        f"the memory is on the device {handle.uuid} of the backend {handle.backend!r}, which this process does not see; the "
        f"current one is {current.device} ({current.handle.info.uuid})"
    )
