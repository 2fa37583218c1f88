"""Handing device arrays to other libraries: DLPack and the CUDA Array Interface."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..spi.errors import LayoutError
from . import dlpack
from .dlpack import IS_COPIED, READ_ONLY, DeviceType
from .entered import Entered
from .layout import Shape, address, contiguous_strides, is_contiguous, normal_strides

if TYPE_CHECKING:
    from .allocation import Allocation
    from .array import DeviceNDArray
    from .context import Context
    from .stream import Stream

#: What a consumer says that will order its work itself.
NO_ORDER = -1


class Exports:
    """What other libraries ask a device array for."""

    __slots__ = ()

    allocation: Allocation
    _ptr: int
    _shape: Shape
    _strides: Shape | None
    _dtype: np.dtype[Any]

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.allocation.context.dlpack_device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule with the array, for a consumer: ``from_dlpack`` of a library, not you.

        Parameters
        ----------
        stream : int, optional
            Where the consumer will use the memory, in its vendor's numbers: that stream is made to wait for all that devmem
            enqueued on the memory. -1: nobody waits. None: the vendor's default stream, or, where there are none, the host.
        max_version : (int, int), optional
            The newest DLPack that the consumer reads; versioned capsules from 1.0 on.
        dl_device : (int, int), optional
            Where the consumer wants it: this device, or ``(1, 0)``, a copy in host memory; with that, no stream.
        copy : bool, optional
            True always copies, on the consumer's stream; False never does.

        Raises
        ------
        BufferError
            It cannot be exported so: dtype, strides, device, a copy that was forbidden.
        LayoutError
            A stream that the device does not have.
        """
        allocation = self.allocation
        if allocation.freed or allocation.context.dead is not None:
            allocation.refuse()
        context = allocation.context
        versioned = max_version is not None and max_version[0] >= 1
        if dl_device is not None or copy:
            return _elsewhere(self, stream, versioned, dl_device, copy)  # type: ignore[arg-type]
        if self._ptr and stream != NO_ORDER:
            consumer = consumer_of(context, stream)
            if (
                consumer is None
                or consumer is not allocation.home
                or consumer.external
                or allocation.streams is not None
            ):
                with Entered(context):
                    if consumer is None:
                        allocation.wait()
                    else:
                        allocation.hand_to(consumer)
        flags = READ_ONLY if allocation.read_only else 0
        return _capsule(self._ptr, context.dlpack_device, self, flags, allocation, versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array as version 3 of the CUDA Array Interface has it. Whoever uses the memory waits for ``stream`` first.

        AttributeError where the device's arrays have none.
        """
        allocation = self.allocation
        if allocation.freed or allocation.context.dead is not None:
            allocation.refuse()
        context = allocation.context
        if not context.info.exchange.array_interface:
            raise AttributeError(f"arrays on {context.device} have no __cuda_array_interface__: exchange them by DLPack")
        ptr, shape, strides, dtype = self._ptr, self._shape, self._strides, self._dtype
        if strides is not None and is_contiguous(shape, strides, dtype.itemsize):
            strides = None
        interface = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (ptr, allocation.read_only),
            "strides": strides,
            "version": 3,
            "stream": _stream_to_wait_for(allocation, context) if ptr else None,
        }
        if dtype.fields is not None:
            interface.update(_described(dtype))
        return interface


def consumer_of(context: Context, stream: object) -> Stream | None:
    """The stream that a DLPack consumer names in its vendor's numbers; None where it has none, and the host is to wait.

    Raises
    ------
    LayoutError
        The vendor has no such stream.
    """
    names = context.info.exchange.streams
    if stream is None:
        return context.legacy if names is not None else None
    try:
        if isinstance(stream, bool):
            raise TypeError
        number = operator.index(stream)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"DLPack names streams by integers or None, not {stream!r}") from None
    if names is None:
        raise LayoutError(f"arrays on {context.device} are exported with stream=None or -1, not {number}: it has no streams")
    handle = names.get(number, number if number > 2 else 0)
    if not handle:
        known = ", ".join(map(str, names))
        raise LayoutError(
            f"stream={number} means nothing on {context.device}: DLPack has {known} for its default streams, None, -1 for no "
            f"ordering, and the handles of others"
        )
    return context.external_stream(handle)


def element_strides(shape: Shape, strides: Shape, itemsize: int) -> Shape:
    """Strides in elements, as DLPack has them; those of axes of length one as in a contiguous array.

    Raises
    ------
    BufferError
        Elements do not lie whole elements apart.
    """
    if 0 in shape:
        return contiguous_strides(shape, 1)
    for count, step in zip(shape, strides, strict=True):
        if count > 1 and step % itemsize:
            raise BufferError(
                f"DLPack counts strides in elements, and elements of {itemsize} bytes that lie {strides} bytes apart are no whole "
                f"elements apart: export a copy(), or the whole record as bytes"
            )
    return normal_strides(shape, tuple(step // itemsize for step in strides), 1)


_element_strides = lru_cache(maxsize=256)(element_strides)


def _capsule(
    ptr: int, device: tuple[int, int], array: Exports, flags: int, owner: object, versioned: bool
) -> Any:
    shape, strides, dtype = array._shape, array._strides, array._dtype
    steps = contiguous_strides(shape, 1) if strides is None else _element_strides(shape, strides, dtype.itemsize)
    return dlpack.export(ptr, device, shape, steps, dtype, flags, owner, versioned)


def _elsewhere(
    array: DeviceNDArray[Any], stream: object, versioned: bool, dl_device: object, copy: bool | None
) -> Any:
    """A capsule of a copy; or of the array itself, where that is what the consumer turns out to want."""
    context = array.allocation.context
    wanted = context.dlpack_device if dl_device is None else _device_pair(dl_device)
    if wanted == context.dlpack_device:
        if not copy:
            return array.__dlpack__(stream=stream, max_version=dlpack.VERSION if versioned else None)  # type: ignore[arg-type]
        dlpack.dtype_code(array._dtype)
        copied = _copied(array, context, stream)
        return _capsule(copied._ptr, wanted, copied, IS_COPIED, copied.allocation, versioned)
    if wanted != (DeviceType.CPU, 0):
        raise BufferError(
            f"an array on {context.device} (DLPack device {context.dlpack_device}) is exported there or to the host, (1, 0), not to "
            f"{wanted}: copy it with devmem.to_device(array, device=...) first"
        )
    if copy is False:
        raise BufferError(f"an array on {context.device} gets to the host by a copy only, and copy=False")
    if stream is not None:
        raise LayoutError(f"a copy in host memory is complete: with dl_device=(1, 0) give stream=None, not {stream!r}")
    dlpack.dtype_code(array._dtype)
    with Entered(context):
        array.allocation.wait()
    host = array.copy_to_host()
    steps = _element_strides(host.shape, host.strides, host.itemsize)
    return dlpack.export(
        address(host) if host.size else 0, wanted, host.shape, steps, host.dtype, IS_COPIED, host, versioned
    )


def _copied(array: DeviceNDArray[Any], context: Context, stream: object) -> DeviceNDArray[Any]:
    """A copy of an array: on its consumer's stream, or complete, where it names none."""
    consumer = None if stream == NO_ORDER else consumer_of(context, stream)
    with Entered(context):
        if consumer is None:
            if stream != NO_ORDER:
                array.allocation.wait()
            return array.copy()
        array.allocation.order_behind(consumer)
        return array.copy(stream=consumer)


def _device_pair(device: object) -> tuple[int, int]:
    try:
        kind, number = device  # type: ignore[misc]
        return operator.index(kind), operator.index(number)
    except (TypeError, ValueError):
        raise TypeError(f"dl_device is a pair of integers, (type, number), not {device!r}") from None


def _stream_to_wait_for(allocation: Allocation, context: Context) -> int | None:
    """The vendor's number of a stream that comes after all that devmem enqueued on the block; None if all is done."""
    home: Stream = allocation.home or getattr(allocation, "ready", None) or context.legacy
    named = home.stand_in()
    if allocation.streams is not None or named is not allocation.home:
        with Entered(context):
            allocation.order_behind(named)
    handle = named.handle
    if handle > 2 or context.stream_names.get(handle) == handle:
        return handle
    with Entered(context) as driver:  # a default stream whose number means something else to consumers
        driver.stream_synchronize(handle)
    return None


@lru_cache(maxsize=64)
def _described(dtype: np.dtype[Any]) -> dict[str, Any]:
    """The fields of a record; nothing where they overlap, which a list of them cannot say."""
    try:
        return {"descr": dtype.descr}
    except ValueError:
        return {}
