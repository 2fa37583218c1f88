"""Host arrays in page-locked memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError
from ...spi.types import AllocFlags, MemoryKind
from ..base.address import address
from ..base.advice import made_by
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, like_strides, new_host
from ..interop import dlpack, export
from ..interop.dlpack import CPU, IS_COPIED, READ_ONLY
from ..lifetime.allocation import Allocation

if TYPE_CHECKING:
    from ..device.open_device import OpenDevice


class Buffer:
    """Makes an ndarray of an allocation's bytes, and keeps the allocation as long as the ndarray lives."""

    __slots__ = ("allocation",)

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self.allocation.nbytes,),
            "typestr": "|u1",
            "data": (self.allocation.ptr, False),
            "version": 3,
        }


class DriverArray(np.ndarray[Any, Any]):
    """An ndarray in memory that the driver made."""

    def __reduce__(self) -> tuple[Any, ...]:
        # What any object gives may be a str; what an ndarray gives never is.
        return np.asarray(self).copy().__reduce__()  # type: ignore[return-value]

    # NumPy promises to be on the CPU, in the literal numbers of its types.
    def __dlpack_device__(self) -> tuple[int, int]:  # type: ignore[override]
        allocation = self._driver_memory()
        return (CPU, 0) if allocation is None else self._dlpack_device_of(allocation)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule with the array, as what its memory is, page-locked or managed; as ordinary with ``dl_device=(1, 0)``.

        Copies of devmem's that are still running are waited for: by the stream that the consumer names, else by the host.
        """
        allocation = self._driver_memory()
        device = (CPU, 0) if allocation is None else self._dlpack_device_of(allocation)
        if dl_device is not None and dl_device != device:
            if tuple(dl_device) != (CPU, 0):
                raise BufferError(
                    f"host memory is exported as {device} or as ordinary memory, (1, 0), not as {dl_device}"
                )
            if stream is not None:
                raise LayoutError(
                    f"ordinary memory is exported ready: with dl_device=(1, 0) give stream=None, not {stream!r}"
                )
            device = CPU, 0
        if allocation is not None:
            export.make_ready(allocation.queue.streams, stream, now=bool(copy))
        array = np.array(self, subok=False) if copy else self
        flags = (0 if array.flags.writeable else READ_ONLY) | (IS_COPIED if copy else 0)
        ptr = address(array) if array.size else 0
        layout = array.shape, array.strides, array.dtype
        versioned = export.is_versioned(max_version)
        return dlpack.export(ptr, (CPU, 0) if copy else device, *layout, flags, array, versioned)

    def _driver_memory(self) -> Allocation | None:
        """The driver's memory that the elements lie in, while its device is open; None if they lie elsewhere."""
        buffer = buffer_of(self)
        return None if buffer is None or buffer.allocation.device_handle.dead is not None else buffer.allocation

    def _dlpack_device_of(self, allocation: Allocation) -> tuple[int, int]:
        return allocation.device_handle.info.exchange.host_type, 0


@made_by("pinned_array(shape) and pinned_array_like(x) make arrays in page-locked memory")
class PinnedNDArray(DriverArray):
    """A host array in page-locked memory, which copies reach directly; what is computed from it is an ndarray.

    Examples
    --------
    >>> type(dm.pinned_array(3) + 1).__name__
    'ndarray'
    """

    def __array_wrap__(self, array: npt.NDArray[Any], context: object = None, return_scalar: bool = False) -> Any:
        if array is self or not array.shape:
            return array if array is self else array[()]
        return np.asarray(array)


def pinned_like(opened: OpenDevice, shape: Shape, dtype: np.dtype[Any], strides: Shape | None) -> npt.NDArray[Any]:
    """An uninitialised array in pooled page-locked memory, in the same order of axes as one with these strides; None: in C order.

    The pool has the memory back when the array and its views are gone, and the streams have passed the copies that use it.
    """
    opened.handle.require_kind(MemoryKind.PINNED)
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return new_host(shape, dtype)
    with CurrentDevice(opened.handle):
        allocation = opened.memory.allocate_host(
            nbytes, MemoryKind.PINNED, AllocFlags.NONE, opened.streams.legacy, pooled=True
        )
    return pinned_over(Buffer(allocation), shape, dtype, strides)


def pinned_over(buffer: Buffer, shape: Shape, dtype: np.dtype[Any], strides: Shape | None) -> npt.NDArray[Any]:
    """The same in page-locked memory that is there already."""
    steps = None if strides is None else like_strides(shape, strides, dtype.itemsize)
    return np.ndarray(shape, dtype, np.asarray(buffer), 0, steps).view(PinnedNDArray)


def buffer_of(array: npt.NDArray[Any]) -> Buffer | None:
    """Return the buffer of the driver's memory that an array lies in; None if it lies elsewhere."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if type(base) is Buffer else None
