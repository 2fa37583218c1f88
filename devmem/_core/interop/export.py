"""Handing device arrays to other libraries: DLPack and the CUDA Array Interface."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...spi.errors import LayoutError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from ..base.address import address
from ..base.device_handle import CurrentDevice
from ..base.layout import Shape, is_contiguous
from ..lifetime.allocation import ExportedForeign
from . import dlpack, ipc
from .dlpack import IS_COPIED, READ_ONLY
from .dlpack import export as capsule_of
from .dlpack_types import dtype_code

if TYPE_CHECKING:
    from ..arrays.ndarray import DeviceNDArray
    from ..device.open_device import OpenDevice
    from ..lifetime.allocation import Allocation
    from ..ordering.stream import Stream
    from ..ordering.stream_table import StreamTable

#: What a consumer says that will order its work itself.
NO_ORDER = -1


class Exports:
    """What other libraries ask a device array for."""

    __slots__ = ()

    open_device: OpenDevice
    allocation: Allocation
    _ptr: int
    _shape: Shape
    _strides: Shape | None
    _dtype: np.dtype[Any]

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.open_device.handle.dlpack_device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule with the array, for a consumer: ``from_dlpack`` of a library, not you.

        It keeps the memory alive when all arrays of ours are dropped; an explicit ``free()`` takes it from the consumer too,
        except where the memory is borrowed, of which ``free()`` lets go for us alone.

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
        allocation, opened = self.allocation, self.open_device
        allocation.check()
        versioned = max_version is not None and max_version[0] >= 1
        if dl_device is not None or copy:
            return _elsewhere(self, stream, versioned, dl_device, copy)  # type: ignore[arg-type]
        consumer: Stream | None = None
        if self._ptr and stream != NO_ORDER:
            consumer = consumer_of(opened.streams, stream)
            # Nothing is to be done where the consumer's is the only stream that ever was.
            # Memory of somebody else's on the host has no home either.
            if (
                consumer is None
                or consumer is not allocation.home
                or consumer.external
                or allocation.streams is not None
            ):
                with CurrentDevice(opened.handle):
                    if consumer is None:
                        allocation.wait()
                    else:
                        allocation.hand_to(consumer)
        keep = ExportedForeign(allocation, consumer) if allocation.home is None else allocation
        flags = READ_ONLY if allocation.read_only else 0
        return capsule_of(
            self._ptr, opened.handle.dlpack_device, self._shape, self._strides, self._dtype, flags, keep, versioned
        )

    def get_ipc_handle(self) -> ipc.IpcHandle:
        """What another process opens the memory with, by `open_ipc_array`; it pickles. What devmem enqueued is waited for.

        The memory stays this process's: keep the array until the other process has let go of its own.

        Raises
        ------
        UnsupportedError
            The device cannot share memory; or the memory came from a pool, or from somebody else: what can be shared is allocated
            under ``use_memory(devmem.memory.DriverMemory())``.
        LayoutError
            The array is empty.
        """
        return ipc.handle_of(self)  # type: ignore[arg-type]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array as version 3 of the CUDA Array Interface has it. Whoever uses the memory waits for ``stream`` first.

        AttributeError where the device's arrays have none.
        """
        allocation, opened = self.allocation, self.open_device
        allocation.check()
        if not opened.handle.info.exchange.array_interface:
            raise AttributeError(f"arrays on {opened.device} have no __cuda_array_interface__: exchange them by DLPack")
        ptr, shape, strides, dtype = self._ptr, self._shape, self._strides, self._dtype
        if strides is not None and is_contiguous(shape, strides, dtype.itemsize):
            strides = None
        interface = {
            "shape": shape,
            # NumPy has no text for types of extensions, float8 say, and gives one that means nothing: opaque bytes then.
            "typestr": dtype.str if dtype.isbuiltin != 2 else f"|V{dtype.itemsize}",
            "data": (ptr, allocation.read_only),
            "strides": strides,
            "version": 3,
            "stream": _stream_to_wait_for(allocation, opened) if ptr else None,
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
            f"stream={number} means nothing on {table.handle.device}: DLPack has {known} for its default streams, None, -1 for no "
            f"ordering, and the handles of others"
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
    if not completions.busy:
        return
    with CurrentDevice(table.handle):
        if consumer is None or now:
            completions.wait_complete()
            return
        for other in list(completions.busy):
            if other is not consumer and not consumer.waits_for(other):
                completions.order(consumer.handle, other.order_handle())


def _elsewhere(array: DeviceNDArray[Any], stream: object, versioned: bool, dl_device: object, copy: bool | None) -> Any:
    """A capsule of a copy; or of the array itself, where that is what the consumer turns out to want."""
    opened = array.open_device
    wanted = opened.handle.dlpack_device if dl_device is None else _device_pair(dl_device)
    if wanted == opened.handle.dlpack_device:
        if not copy:
            return array.__dlpack__(stream=stream, max_version=dlpack.VERSION if versioned else None)  # type: ignore[arg-type]
        dtype_code(array._dtype)
        copied = _copied(array, opened, stream)
        layout = copied._shape, copied._strides, copied._dtype
        return capsule_of(copied._ptr, wanted, *layout, IS_COPIED, copied.allocation, versioned)
    if wanted != (dlpack.CPU, 0):
        raise BufferError(
            f"an array on {opened.device} (DLPack device {opened.handle.dlpack_device}) is exported there or to the host, (1, 0), "
            f"not to {wanted}: copy it with devmem.to_device(array, device=...) first"
        )
    if copy is False:
        raise BufferError(f"an array on {opened.device} gets to the host by a copy only, and copy=False")
    if stream is not None:
        raise LayoutError(f"a copy in host memory is complete: with dl_device=(1, 0) give stream=None, not {stream!r}")
    dtype_code(array._dtype)
    with CurrentDevice(opened.handle):
        array.allocation.wait()
    host = array.copy_to_host()
    ptr = address(host) if host.size else 0
    return capsule_of(ptr, wanted, host.shape, host.strides, host.dtype, IS_COPIED, host, versioned)


def _copied(array: DeviceNDArray[Any], opened: OpenDevice, stream: object) -> DeviceNDArray[Any]:
    """A copy of an array: on its consumer's stream, or complete, where it names none."""
    consumer = None if stream == NO_ORDER else consumer_of(opened.streams, stream)
    with CurrentDevice(opened.handle):
        if consumer is None:
            if stream != NO_ORDER:
                array.allocation.wait()
            return array.copy()
        array.allocation.order_behind(consumer)
        return array.copy(stream=consumer)


def _device_pair(device: object) -> tuple[int, int]:
    try:
        kind: Any
        number: Any
        kind, number = device  # type: ignore[misc]
        return operator.index(kind), operator.index(number)
    except (TypeError, ValueError):
        raise TypeError(f"dl_device is a pair of integers, (type, number), not {device!r}") from None


def _stream_to_wait_for(allocation: Allocation, opened: OpenDevice) -> int | None:
    """The vendor's number of a stream that comes after all that devmem enqueued on the block; None if all is done."""
    home: Stream = allocation.home or getattr(allocation, "ready", None) or opened.streams.legacy
    named = home.ordering_stream()
    if allocation.streams is not None or named is not allocation.home:
        with CurrentDevice(opened.handle):
            allocation.order_behind(named)
    handle = named.handle
    if handle > PER_THREAD_STREAM or opened.handle.stream_numbers.get(handle) == handle:
        return handle
    with CurrentDevice(opened.handle) as driver:  # a default stream whose number means something else to consumers
        driver.stream_synchronize(handle)
    return None


@lru_cache(maxsize=64)
def _described(dtype: np.dtype[Any]) -> dict[str, Any]:
    """The fields of a record; nothing where they overlap, which a list of them cannot say."""
    try:
        return {"descr": dtype.descr}
    except ValueError:
        return {}
