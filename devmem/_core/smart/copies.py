"""Memory on two sides, host and device, of which each is brought up to date when it is asked for and lacks something."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import DevmemError, LayoutError
from ...toolkit.locks import Rank, lock
from ..arrays.creation import empty, like, upload
from ..arrays.ndarray import DeviceNDArray, device_view
from ..base.arguments import check_destination, layout_of
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, contiguous_strides, memory_order, new_host
from ..base.transfer_guard import guard
from ..device.device import current_open_device
from ..interop.host_objects import host_array


class Where(StrEnum):
    """One of the sides."""

    HOST = "host"
    GPU = "gpu"

    @property
    def other(self) -> Where:
        """The other side."""
        return Where.GPU if self is Where.HOST else Where.HOST


class Sides:
    """The same elements as a host array and as a device array; at least one of them is up to date.

    What is up to date is decided under a lock that is never held while something moves. A change that is told while elements
    move is not lost: what was moved then counts for nothing, and is moved again.
    """

    __slots__ = ("_gpu", "_host", "_lock", "_valid", "_version", "dtype", "shape", "strides")

    def __init__(self, host: npt.NDArray[Any] | None, gpu: DeviceNDArray[Any] | None) -> None:
        one: Any = gpu if host is None else host
        self.shape: Shape = one.shape
        self.dtype: np.dtype[Any] = one.dtype
        self.strides: Shape = one.strides
        self._host = host
        self._gpu = gpu
        self._valid = {where for where, side in ((Where.HOST, host), (Where.GPU, gpu)) if side is not None}
        self._version = 0
        self._lock = lock("smart array", Rank.LEAF)

    def valid(self, where: Where) -> bool:
        """Whether a side is up to date as it is."""
        with self._lock:
            return where in self._valid and (where is Where.HOST or not _gone(self._gpu))

    def changed(self, where: Where) -> None:
        """Take note that one side was written: the other is out of date from here on.

        Raises
        ------
        DevmemError
            That side was out of date itself: both have been written, and neither holds what the other got.
        """
        with self._lock:
            if where not in self._valid:
                raise DevmemError(
                    f"both sides of this array have been changed: {where}_changed() was called while the newest elements were "
                    f"on the other side alone; call {where}() before writing there, and {where.other}_changed() after each "
                    f"change of the other side"
                )
            self._valid.discard(where.other)
            self._version += 1

    def overwritten(self, where: Where) -> None:
        """Take note that all of one side was written: it alone is up to date from here on."""
        with self._lock:
            self._valid = {where}
            self._version += 1

    def host_memory(self) -> npt.NDArray[Any]:
        """The host's array, whatever is in it; nothing moves."""
        with self._lock:
            if self._host is None:
                self._host = _empty_like(self.shape, self.dtype, self.strides)
            return self._host

    def gpu_memory(self) -> DeviceNDArray[Any] | None:
        """The device's array, whatever is in it, if there is one that can be used."""
        with self._lock:
            return None if _gone(self._gpu) else self._gpu

    def host(self, implicit: str = "") -> npt.NDArray[Any]:
        """The host's array, up to date on return. ``implicit`` names the caller of an implicit copy."""
        while True:
            with self._lock:
                if Where.HOST in self._valid:
                    assert self._host is not None
                    return self._host
                version, gpu = self._version, self._gpu
            assert gpu is not None
            if implicit:
                guard(implicit)
            target = self._writable_host()
            _order(gpu)
            gpu.copy_to_host(target)
            self._moved(Where.HOST, version)

    def gpu(self, unread: bool = False) -> DeviceNDArray[Any]:
        """The device's array, up to date on return; ``unread``: whatever is in it, for who tells of it with `overwritten`."""
        while True:
            with self._lock:
                gpu, version = self._gpu, self._version
                usable = gpu is not None and not _gone(gpu)
                if Where.GPU in self._valid and usable:
                    assert gpu is not None
                    return gpu
                if Where.HOST not in self._valid:
                    assert gpu is not None
                    gpu.allocation.check()  # what was there alone is gone with it
                host = self._host
            assert host is not None
            if gpu is None or not usable or gpu.allocation.read_only:
                opened = current_open_device()
                made: DeviceNDArray[Any] = empty(opened, *like(host), 0) if unread else upload(opened, host, 0, True)
            else:
                made = gpu
                _order(gpu)
                if not unread:
                    gpu.put(host, 0)
            with self._lock:
                if self._gpu is gpu:
                    self._gpu = made
            if self._gpu is made:
                if unread:
                    return made
                self._moved(Where.GPU, version)

    def _moved(self, where: Where, version: int) -> None:
        with self._lock:
            if version == self._version:
                self._valid.add(where)

    def _writable_host(self) -> npt.NDArray[Any]:
        """The host's array; another one in the place of one that must not be written, or whose elements share memory."""
        host = self.host_memory()
        try:
            check_destination(host, self.shape, self.dtype)
        except LayoutError:
            made = _empty_like(self.shape, self.dtype, self.strides)
            with self._lock:
                if self._host is host:
                    self._host = made
                assert self._host is not None
                return self._host
        return host


def sides_of(obj: Any, copy: bool, dtype: np.dtype[Any] | None, order: Any, where: Where) -> Sides:
    """The elements of an object, on that side; without ``copy``, its own memory as far as it can be."""
    device = None if isinstance(obj, np.ndarray) else device_view(obj)
    if device is not None and not fits(device, dtype, order):
        obj, device = device.copy_to_host(), None
    if device is not None:
        if where is Where.GPU:
            return Sides(None, device.copy() if copy else device)
        return Sides(device.copy_to_host(), None if copy else device)
    if where is Where.GPU:  # which copies
        host = np.asarray(host_array(obj), dtype, order)
        return Sides(None if copy else host, upload(current_open_device(), host, 0, True))
    make = np.array if copy else np.asarray
    return Sides(make(host_array(obj), dtype, order=order), None)


def uninitialised(shape: object, dtype: npt.DTypeLike | None, order: str, where: Where) -> Sides:
    """Memory with nothing in it, on that side."""
    axes: Any = "F" if order == "F" else "C"  # NumPy's functions are typed to take literals
    lengths, kind, strides, nbytes = layout_of(shape, np.float64 if dtype is None else dtype, None, axes)
    if where is Where.GPU:
        return Sides(None, empty(current_open_device(), lengths, kind, strides, nbytes, 0))
    return Sides(np.empty(lengths, kind, axes), None)


def fits(array: Any, dtype: npt.DTypeLike | None, order: str) -> bool:
    """Whether an array has that dtype and order already."""
    if dtype is not None and np.dtype(dtype) != array.dtype:
        return False
    if order in "KA":
        return True
    return bool(array.strides == contiguous_strides(array.shape, array.itemsize, order))


def _gone(gpu: DeviceNDArray[Any] | None) -> bool:
    return gpu is not None and (gpu.allocation.freed or gpu.open_device.handle.dead is not None)


def _order(gpu: DeviceNDArray[Any]) -> None:
    """Make the copy that follows come behind all work on the array, whatever streams that was given to."""
    gpu.allocation.check()
    stream = gpu.stream_in_force()
    with CurrentDevice(gpu.open_device.handle):
        stream.check_waitable()
        gpu.allocation.order_behind(stream)


def _empty_like(shape: Shape, dtype: np.dtype[Any], strides: Shape) -> npt.NDArray[Any]:
    """A new host array in the same order of axes, without gaps."""
    axes = memory_order(shape, strides)[0]
    packed: npt.NDArray[Any] = new_host(tuple([shape[axis] for axis in axes]), dtype)
    return packed.transpose(np.argsort(axes))
