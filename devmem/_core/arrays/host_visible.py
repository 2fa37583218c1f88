"""Host arrays in memory that the driver made and a device can reach: mapped and managed; and how all of them are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError
from ...spi.types import AllocFlags, Capability, MemoryKind
from ..base.address import address, extent
from ..base.advice import made_by
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, new_host, span
from ..device.device import DeviceLike
from ..interop.dlpack import CPU
from ..lifetime.allocation import Allocation
from ..lifetime.registration import Registration
from ..ordering.event import StreamLike
from . import managed_hints
from .ndarray import ArrayLike, DeviceNDArray
from .pinned import Buffer, DriverArray, PinnedNDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..device.open_device import OpenDevice
    from ..ordering.stream import Stream


class HostVisible(DriverArray):
    """An ndarray whose memory a device can reach too. Views keep their device address; results of arithmetic have none."""

    _allocation: Allocation | None
    _open_device: OpenDevice
    _device_base: int
    _stream: Stream | None

    def __array_finalize__(self, obj: object) -> None:
        self._allocation = getattr(obj, "_allocation", None)
        if self._allocation is not None:
            self._open_device = cast(HostVisible, obj)._open_device
        self._device_base = getattr(obj, "_device_base", 0)
        self._stream = getattr(obj, "_stream", None)

    def __array_wrap__(self, array: npt.NDArray[Any], context: object = None, return_scalar: bool = False) -> Any:
        # As of NumPy's own memmap: what was computed is a scalar, or an array that does not keep this memory alive.
        if array is self or not array.shape:
            return array if array is self else array[()]
        return array.view(type(self))

    @property
    def ptr(self) -> int:
        """The device's address of the first element; 0 for an empty array.

        Raises
        ------
        ClosedError
            The memory, or the device, is gone.
        LayoutError
            This array was computed from one and has ordinary memory of its own.
        """
        if not self.nbytes:
            return 0
        allocation = self._allocation
        if allocation is None or not self._reached():
            raise LayoutError(
                f"this {type(self).__name__} is the result of a computation, in ordinary memory that no device can reach: "
                f"copy it into a mapped_array() or managed_array()"
            )
        allocation.check()
        return self._device_base + (address(self) - allocation.ptr)

    def data_ptr(self) -> int:
        """`ptr`, under the name by which PyTorch's tensors are asked for it.

        Examples
        --------
        >>> m = dm.mapped_array(3)
        >>> m[1:].data_ptr() == m.ptr + m.itemsize
        True
        """
        return self.ptr

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as the device sees it; see `DeviceNDArray.__cuda_array_interface__`.

        AttributeError where the device's arrays have none, and of the result of a computation, which no device can reach.
        """
        if not self._reached():
            raise AttributeError(f"this {type(self).__name__} has ordinary memory that no device can reach")
        return self._on_device().__cuda_array_interface__

    @property
    def device(self) -> Any:
        """The device that the memory was made for."""
        self._owner()
        return self._open_device.device

    def copy_to_host(
        self, ary: npt.NDArray[Any] | None = None, stream: StreamLike = 0, *, pinned: bool = False
    ) -> npt.NDArray[Any]:
        """Copy the elements, in stream order, into ``ary`` or a new array; as for device arrays."""
        return self._on_device().copy_to_host(ary, stream, pinned=pinned)

    def copy_to_device(self, ary: ArrayLike, stream: StreamLike = 0) -> None:
        """Copy host or device elements into this array, in stream order; as for device arrays."""
        self._on_device().copy_to_device(ary, stream)

    def split(self, section: int, stream: StreamLike = 0) -> Iterator[npt.NDArray[Any]]:
        """Views of ``section`` elements each along the first axis, the last one shorter."""
        if section < 1:
            raise LayoutError(f"a section has at least one element, not {section}")
        return (self[start : start + section] for start in range(0, len(self), section))

    def free(self) -> None:
        """Not possible: NumPy views of the memory cannot be told that it is gone. Drop the last reference instead."""
        raise LayoutError(
            "memory that the host can see is given back when its last array is dropped: "
            "NumPy views cannot be told that it is gone"
        )

    def __devmem_view__(self) -> DeviceNDArray[Any] | None:
        # The result of a computation is an ordinary array like any other, and uploaded like one.
        return self._on_device() if self._reached() else None

    def _on_device(self) -> DeviceNDArray[Any]:
        # Foreign: freeing the view must not take the memory from under the array.
        allocation = self._owner()
        read_only = not self.flags.writeable
        opened = self._open_device
        borrowed = opened.memory.foreign(allocation.ptr, allocation.nbytes, self, None, read_only)
        return DeviceNDArray(opened, borrowed, self.ptr, self.shape, self.dtype, self.strides, self._stream)

    def _reached(self) -> bool:
        """Whether the elements lie in the driver's memory."""
        allocation = self._allocation
        if allocation is None or not self.nbytes:
            return allocation is not None
        low, high = extent(self)
        return allocation.ptr <= low and high <= allocation.ptr + allocation.nbytes

    def _owner(self) -> Allocation:
        if self._allocation is None:
            raise LayoutError("this array has ordinary memory that no device can reach")
        return self._allocation


@made_by("mapped_array(shape) and mapped_array_like(x) make arrays that the device reaches in place")
class MappedNDArray(HostVisible):
    """A host array in page-locked memory that the device reads and writes in place, through an address of its own (``ptr``).

    Examples
    --------
    >>> a = dm.mapped_array(3)
    >>> a[1:].ptr - a.ptr
    8
    """


@made_by("managed_array(shape) and managed_array_like(x) make arrays in managed memory")
class ManagedNDArray(HostVisible):
    """An array with one address for host and device, moved or shared by the driver.

    Examples
    --------
    >>> a = dm.managed_array(3)
    >>> a[...] = 1
    >>> a.prefetch()
    """

    def _dlpack_device_of(self, allocation: Allocation) -> tuple[int, int]:
        opened = self._open_device
        kind = opened.handle.info.exchange.managed_type
        return kind, 0 if kind == CPU else opened.handle.info.ordinal

    def prefetch(
        self,
        to_host: bool = False,
        stream: StreamLike = 0,
        *,
        device: DeviceLike = None,
        numa_node: int | None = None,
        discard: bool = False,
    ) -> None:
        """Move the pages to the device ahead of use, ordered on the stream. A hint.

        With ``to_host`` they are moved to the host, with ``numa_node`` to one NUMA node of it, with ``device`` to another device
        of the backend. `devmem.prefetch_managed` does that for many arrays at once, and says what ``discard`` is.

        Raises
        ------
        UnsupportedError
            The device has no managed memory that moves, or not to that place.
        """
        managed_hints.prefetch([self], to_host, stream, device, numa_node, discard)

    def discard(self, stream: StreamLike = 0) -> None:
        """Say that the elements are not needed any more, in stream order; see `devmem.discard_managed`."""
        managed_hints.discard([self], stream)

    def advise(
        self, advice: str, to_host: bool = False, *, device: DeviceLike = None, numa_node: int | None = None
    ) -> None:
        """Tell the driver how the pages will be used.

        ``advice`` is ``set_`` or ``unset_`` followed by ``read_mostly``, ``preferred_location`` or ``accessed_by``; of the last
        two, the place is what `prefetch` has.
        """
        managed_hints.advise(self, advice, to_host, device, numa_node)


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


class Mapping:
    """Host arrays that the device can reach until the end of a ``with`` block: yields their device views."""

    __slots__ = ("open_device", "registration", "views")

    def __init__(self, opened: OpenDevice, arrays: tuple[npt.NDArray[Any], ...], stream: Stream | None) -> None:
        opened.handle.require(Capability.MAPPED, "map host memory", "copy it with to_device() instead")
        for array in arrays:
            if any(
                step < 0 or (step == 0 and count > 1) for step, count in zip(array.strides, array.shape, strict=True)
            ):
                raise LayoutError(
                    f"strides {array.strides} cannot be mapped: give an array without negative or repeated axes"
                )
        self.open_device = opened
        self.registration = Registration(opened.handle, opened.page_locks, arrays, scoped=True)
        self.views: list[DeviceNDArray[Any]] = []
        try:
            with CurrentDevice(opened.handle):
                for array in arrays:
                    pointer = opened.page_locks.device_pointer(opened.handle, array)
                    size = span(array.shape, array.strides, array.itemsize)[1]
                    # A view that is kept keeps the pages locked.
                    owner = array, self.registration
                    borrowed = opened.memory.foreign(pointer, size, owner, None, not array.flags.writeable)
                    self.views.append(
                        DeviceNDArray(opened, borrowed, pointer, array.shape, array.dtype, array.strides, stream)
                    )
        except BaseException:
            self.registration.close()
            raise

    def __enter__(self) -> DeviceNDArray[Any] | list[DeviceNDArray[Any]]:
        self.registration.__enter__()
        return self.views[0] if len(self.views) == 1 else self.views

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the mapping, after the copies that use it: the device views raise ClosedError from then on."""
        opened = self.open_device
        if opened.handle.dead is not None:
            return
        try:
            with CurrentDevice(opened.handle):
                opened.completions.wait_complete()
        finally:
            for view in self.views:
                view.allocation.freed = True
            self.registration.close()
