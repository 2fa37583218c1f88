"""The device array, one record of it, and how both are made."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from threading import get_ident
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Never, TypeAlias, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from ..._native import core
from ...spi.errors import ConfigError, LayoutError
from ..base.address import address
from ..base.advice import Listed, made_by, refuse_keywords
from ..base.argument_types import ShapeLike, SupportsCudaArrayInterface, SupportsDLPack
from ..base.arguments import (
    check_destination,
    check_same,
    dtype_of,
    is_dtype,
    is_named,
    new_shape_of,
    order_of,
)
from ..base.array_view import D
from ..base.device_handle import CurrentDevice
from ..base.layout import (
    Shape,
    check_size,
    contiguous_strides,
    like_strides,
    reshape,
    resolve_shape,
    span,
)
from ..base.transfer_guard import guard
from ..copy.fill import fill_elements
from ..copy.host_copy import host_like
from ..copy.peer import PeerSource, copy_from_peer
from ..device.device import Device, DeviceLike, current_open_device, open_device_of
from ..device.open_device import OpenDevice
from ..interop.dlpack import IS_COPIED
from ..interop.dlpack import export as capsule_of
from ..interop.dlpack_types import dtype_code
from ..interop.export import NO_ORDER, array_interface, asked_device, consumer_of, exported, is_versioned
from ..interop.foreign_arrays import device_memory
from ..interop.host_objects import assignable, host_array, one_value
from ..lifetime.allocation import StreamUse
from ..ordering.event import StreamLike
from ..ordering.stream import Stream
from .array_base import ArrayBase
from .conversions import Conversions
from .operators import Operators
from .pinned import PinnedNDArray, pinned_like
from .views import broadcast, retyped, without_leading_ones

if TYPE_CHECKING:
    from types import TracebackType

    from ..interop.ipc import IpcHandle

K = TypeVar("K", bound=np.generic)


@made_by("to_device(x), empty(shape), zeros(shape) and their kin make device arrays", OpenDevice)
class DeviceNDArray(ArrayBase[D], Conversions, Operators):
    """An n-dimensional array in device memory.

    Made by ``to_device``, ``device_array`` and their kin, not by its constructor. Indexing with ints, slices, Ellipsis and None,
    ``reshape``, ``T`` and the like give views, which share the memory and keep it alive. The memory is given back when the
    last of them is dropped, or at once by ``free()`` or at the end of ``with array:``.

    Examples
    --------
    >>> d = dm.to_device(np.arange(6).reshape(2, 3))
    >>> d.T.shape, d[:, 1].copy_to_host()
    ((3, 2), array([1, 4]))
    >>> d[0] = 7
    >>> d.tolist()
    [[7, 7, 7], [3, 4, 5]]
    """

    __slots__ = ()

    #: A capsule with DLPack's table of C functions, where the compiled core runs.
    __dlpack_c_exchange_api__: ClassVar[object]

    # -- copies --------------------------------------------------------------------------------------------------------

    def copy_to_host(
        self, ary: npt.NDArray[D] | None = None, stream: StreamLike = 0, *, pinned: bool = False
    ) -> npt.NDArray[D]:
        """Copy the elements to the host.

        Parameters
        ----------
        ary : ndarray, optional
            Where to: same shape and dtype, any strides, writable; bytes between its elements are not touched. A new array
            with the same order of axes, if not given.
        stream : stream, optional
            Given, the copy is ordered on it. To pageable memory it is complete on return, and the call may wait for the stream.
            To page-locked memory it may still run: do not read the result before the stream has been synchronized ("What pageable
            memory does"). Both sides are kept alive until then. Not given, the copy is complete on return.
        pinned : bool
            Make the new array in page-locked memory, which the device writes to directly, and which goes back to a pool when the
            array is dropped: the device's stack for such memory (`use_memory`), or a pool of the device's own.

        Returns
        -------
        ndarray
            ``ary``, or the new array; a `PinnedNDArray` if ``pinned``.

        Raises
        ------
        LayoutError
            ``ary`` has another shape or dtype, or is read-only; or both ``ary`` and ``pinned`` are given.
        OutOfMemory
            There is no page-locked memory left.
        ClosedError, ForkedError
            The memory, or the device, is gone.
        BackendError
            The driver refused.

        Examples
        --------
        >>> d = dm.to_device(np.arange(3))
        >>> d.copy_to_host()
        array([0, 1, 2])
        >>> with dm.stream() as stream:
        ...     host = d.copy_to_host(stream=stream, pinned=True)
        >>> stream.synchronize()                    # before it is read
        >>> host.tolist()
        [0, 1, 2]
        """
        if core is not None and (copied := core.download(self, ary, stream, pinned)) is not None:
            found: npt.NDArray[D] = copied
            return found
        allocation, opened = self.allocation, self.open_device
        if allocation.freed or opened.handle.dead is not None:
            allocation.refuse()
        if pinned:
            if ary is not None:
                raise LayoutError("pinned=True makes a new array: give none, or one that is page-locked without it")
            ary = target = pinned_like(opened, self._shape, self._dtype, self._strides)
        elif ary is None:
            ary = target = host_like(self._shape, self._dtype, self._strides)
        else:
            target = check_destination(ary, self._shape, self._dtype)
        chosen = opened.streams.stream_of(stream if self._stream is None else stream or self._stream)
        handle, me, token = opened.handle, get_ident(), None
        try:
            handle.callers.append(me)
            entry = handle.entry
            token = entry.enter()
            if opened.free_queue.dropped or opened.completions.in_flight:
                opened.free_queue.free_if_due()
            if not stream and (chosen.recorder is not None or not chosen.simple):
                chosen.check_waitable()
            if chosen is allocation.home and not chosen.external and chosen.recorder is None:
                opened.copies.download(self, target, chosen, not stream)
            else:
                with StreamUse(chosen, allocation):
                    opened.copies.download(self, target, chosen, not stream)
        finally:
            handle.callers.remove(me)
            if token is not None:
                entry.exit(token)
        return ary

    def copy_to_device(self, ary: ArrayLike, stream: StreamLike = 0) -> None:
        """Copy into this array, from the host or from a device array.

        Parameters
        ----------
        ary : array_like or DeviceNDArray
            Same shape and dtype, any strides.
        stream : stream, optional
            Given, the copy is ordered on it, may still run on return, and keeps both sides alive until it is done. A pageable
            source has been read by then, a page-locked one has not. Not given, the copy is complete on return.

        Raises
        ------
        LayoutError
            Another shape or dtype.

        Examples
        --------
        >>> d = dm.zeros((2, 3))
        >>> d[0].copy_to_device(np.ones(3))
        >>> d.tolist()
        [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
        """
        if core is not None and core.upload_into(self, ary, stream) is not None:
            return
        view = device_view(ary)
        source = host_array(ary) if view is None else view
        check_same("copy_to_device", self._shape, self._dtype, source.shape, source.dtype)
        self.put(source, stream)

    def copy(self, stream: StreamLike = 0, **others: Never) -> DeviceNDArray[D]:
        """A new array on the same device with the same elements, contiguous in the same order of axes.

        Examples
        --------
        >>> d = dm.zeros(3)
        >>> other = d.copy()
        >>> other.fill(1)
        >>> d.tolist()
        [0.0, 0.0, 0.0]
        """
        if others:
            refuse_keywords("copy()", others)
        self.allocation.check()
        chosen = self._ordered_on(stream)
        with CurrentDevice(self.open_device.handle):
            if not stream:
                chosen.check_waitable()
            result = self.like(chosen)
            with StreamUse(chosen, self.allocation, result.allocation):
                self.open_device.copies.move(result, self, chosen, not stream)
        result._stream = chosen if stream else None
        return result

    def to(self, device: DeviceLike, stream: StreamLike = 0, **others: Never) -> DeviceNDArray[D]:
        """The array on a device, ``d.to("cuda:1")``: itself if it is there already, else a contiguous copy, as by `to_device`.

        Examples
        --------
        >>> d = dm.zeros(3, device="host:0").to("host:1")
        >>> str(d.device)
        'host:1'
        """
        if others:
            refuse_keywords("to()", others)
        self.allocation.check()
        try:
            opened = open_device_of(device)
        except (ConfigError, TypeError) as error:
            if not is_dtype(device):
                raise
            instead = "this is a dtype, and devmem converts on the host only: asarray(d.copy_to_host(), dtype)"
            raise type(error)(f"{error}; {instead}") from None
        if opened is self.open_device:
            return self
        chosen, strides = opened.streams.stream_of(stream), like_strides(self.shape, self.strides, self.itemsize)
        with CurrentDevice(opened.handle):
            result = new(opened, self.shape, self.dtype, strides, chosen, self.nbytes, chosen if stream else None)
        result.put(self, stream)
        return result

    def numpy(self) -> npt.NDArray[D]:
        """The elements as a new ndarray, complete on return: `copy_to_host` without arguments.

        Examples
        --------
        >>> dm.ones(3).numpy()
        array([1., 1., 1.])
        """
        return self.copy_to_host()

    def fill(self, value: ArrayLike, stream: StreamLike = 0) -> None:
        """Store one value in every element, cast as in ``d[...] = value``.

        Examples
        --------
        >>> d = dm.device_array(3)
        >>> d.fill(7)
        >>> d.tolist()
        [7.0, 7.0, 7.0]
        """
        self.allocation.check_writable()
        item = one_value(value, self.dtype)
        chosen = self._ordered_on(stream)
        with CurrentDevice(self.open_device.handle):
            if not stream:
                chosen.check_waitable()
            with StreamUse(chosen, self.allocation):
                fill_elements(self.open_device.copies, self, item, chosen, not stream)

    def item(self, *at: int) -> Any:
        """The only element, or the one at these indices, as a Python scalar.

        Examples
        --------
        >>> dm.to_device(np.arange(6).reshape(2, 3)).item(1, 2)
        5
        """
        chosen = self._selected(at) if at else self
        if chosen.size != 1:
            raise LayoutError(f"item() takes one element, this array has {chosen.size}: give its indices")
        return chosen.copy_to_host().item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python scalars.

        Examples
        --------
        >>> dm.to_device(np.arange(4).reshape(2, 2)).tolist()
        [[0, 1], [2, 3]]
        """
        return self.copy_to_host().tolist()

    # -- elements, and views that may copy -------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: slice | EllipsisType | None) -> DeviceNDArray[D]: ...

    @overload
    def __getitem__(self, key: object) -> Any: ...

    def __getitem__(self, key: object) -> Any:
        if core is not None and (found := core.part(self, key)) is not None:
            return found
        view = self._selected(key)
        if view._shape or isinstance(key, str) or _asks_for_view(key):
            return view
        if view.dtype.fields is not None:
            return DeviceRecord(view)
        guard("indexing one element")
        return view.copy_to_host()[()]

    def __setitem__(self, key: object, value: object) -> None:
        self._assign(self._selected(key), value)

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over an array without axes")
        return (self[i] for i in range(self.shape[0]))

    @overload
    def view(self, dtype: type[K] | np.dtype[K]) -> DeviceNDArray[K]: ...

    @overload
    def view(self, dtype: npt.DTypeLike) -> DeviceNDArray[Any]: ...

    def view(self, dtype: npt.DTypeLike) -> DeviceNDArray[Any]:
        """The same bytes as elements of another type; with another size of element, the last axis must be contiguous.

        Examples
        --------
        >>> dm.zeros(3, np.float32).view(np.uint8).shape
        (12,)
        """
        self.allocation.check()
        return self._same_memory(retyped(self, dtype_of(dtype)))

    def reshape(self, *newshape: ShapeLike, order: str = "C", copy: bool | None = None) -> DeviceNDArray[D]:
        """The elements in another shape: a view where there is one, else a copy on the device.

        ``order`` 'C', 'F' or 'A' says in which order elements are counted. ``copy=False`` raises LayoutError instead of copying,
        ``copy=True`` always copies.

        Examples
        --------
        >>> d = dm.to_device(np.arange(6))
        >>> d.reshape(2, -1).tolist()
        [[0, 1, 2], [3, 4, 5]]
        """
        if (
            core is not None
            and isinstance(order, str)
            and order == "C"
            and copy is None
            and (found := core.reshaped(self, newshape)) is not None
        ):
            view: DeviceNDArray[D] = found
            return view
        self.allocation.check()
        order = order_of(order, "CFA")
        if order == "A":
            order = "F" if self.is_f_contiguous() and not self.is_c_contiguous() else "C"
        shape = resolve_shape(new_shape_of(newshape), self.size)
        strides = None if copy else reshape(self.shape, self.strides, self.itemsize, shape, order)
        if strides is not None:
            return self._view(self._ptr, shape, strides)
        if copy is False:
            raise LayoutError(
                f"an array of shape {self.shape} and strides {self.strides} has no view of shape {shape}, and copy=False: "
                f"let it copy"
            )
        chosen = self._ordered_on(0)
        with CurrentDevice(self.open_device.handle):
            chosen.check_waitable()
            packed = new(
                self.open_device, self.shape, self.dtype, contiguous_strides(self.shape, self.itemsize, order), chosen
            )
            with StreamUse(chosen, self.allocation, packed.allocation):
                self.open_device.copies.move(packed, self, chosen, True)
        packed._stream = self._stream
        packed_strides = contiguous_strides(shape, self.itemsize, order)
        return packed._view(packed._ptr, shape, packed_strides)

    def ravel(self, order: str = "C", stream: StreamLike = 0) -> DeviceNDArray[D]:
        """The elements along one axis: a view where there is one, else a copy on the device.

        Examples
        --------
        >>> dm.to_device(np.arange(4).reshape(2, 2)).T.ravel().tolist()
        [0, 2, 1, 3]
        """
        return (self.bind(stream) if is_named(stream) else self).reshape(self.size, order=order)

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def record_stream(self, stream: StreamLike) -> None:
        """Say that work which another library enqueued on a stream uses the memory of this array and its views.

        Call it behind the work. The memory is then given back only when the stream has passed that work: of a stream of
        devmem's, all that is enqueued there until the memory is freed; of another library's, what is there now. The host does
        not wait.

        Raises
        ------
        LayoutError
            The stream belongs to another device, or is none.
        ClosedError
            The memory, or the stream, is gone.

        Examples
        --------
        >>> d, stream = dm.zeros(3), dm.stream()
        >>> # another library enqueues work with d on the stream; then:
        >>> d.record_stream(stream)
        >>> del d                                   # its memory is freed when the stream has passed that work
        """
        self.allocation.check()
        chosen = self.open_device.streams.stream_of(stream)
        chosen.handle  # noqa: B018  (raises if closed)
        with CurrentDevice(self.open_device.handle), StreamUse(chosen, self.allocation):
            pass

    def free(self) -> None:
        """Give back the memory that this array and all its views share, in stream order. A second call does nothing.

        Every later use of any of them raises ClosedError. Foreign memory is only let go of.

        Examples
        --------
        >>> d = dm.zeros(3)
        >>> d.free()
        >>> d.copy_to_host()
        Traceback (most recent call last):
            ...
        devmem.ClosedError: ...
        """
        if core is None or core.free(self.allocation) is None:
            self.allocation.free()

    def __enter__(self) -> DeviceNDArray[D]:
        self.allocation.check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.open_device.handle.dead is None:
            self.free()

    # -- exchange ------------------------------------------------------------------------------------------------------

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
        """A capsule with the array, for a consumer such as another library's ``from_dlpack``.

        It keeps the memory alive when all devmem arrays are dropped. An explicit ``free()`` takes the memory from the
        consumer too, except where it is foreign: of that ``free()`` only lets go.

        Parameters
        ----------
        stream : int, optional
            Where the consumer will use the memory, in its vendor's numbers: that stream is made to wait for all that devmem
            enqueued on the memory. -1: no stream waits. None: the vendor's default stream, or, where there are none, the host.
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
        if core is not None and (capsule := core.export(self, stream, max_version, dl_device, copy)) is not None:
            return capsule
        self.allocation.check()
        table = self.open_device.streams
        versioned = is_versioned(max_version)
        wanted = asked_device(table, dl_device, copy, stream)
        if wanted == table.handle.dlpack_device:
            if not copy:
                return exported(self, self.allocation, table, stream, versioned)
            dtype_code(self._dtype)
            copied = self._copy_for_consumer(stream)
            return capsule_of(
                copied._ptr,
                wanted,
                copied._shape,
                copied._strides,
                copied._dtype,
                IS_COPIED,
                copied.allocation,
                versioned,
            )
        dtype_code(self._dtype)
        with CurrentDevice(table.handle):
            self.allocation.wait()
        host = self.copy_to_host()
        ptr = address(host) if host.size else 0
        return capsule_of(ptr, wanted, host.shape, host.strides, host.dtype, IS_COPIED, host, versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array as version 3 of the CUDA Array Interface has it; a consumer waits for ``stream`` first.

        AttributeError where the device's arrays have none.
        """
        self.allocation.check()
        return array_interface(self, self.allocation, self.open_device.streams)

    def get_ipc_handle(self) -> IpcHandle:
        """Return a picklable handle for another process's `open_ipc_array`. What devmem enqueued is waited for.

        The memory stays this process's: keep the array until the other process has let go of its own.

        Raises
        ------
        UnsupportedError
            The device cannot share memory; or the memory came from a pool, or from another library: what can be shared is
            allocated under ``use_memory(devmem.memory.DriverMemory())``.
        LayoutError
            The array is empty.

        Examples
        --------
        >>> with dm.use_memory(dm.memory.DriverMemory()):
        ...     d = dm.zeros(3)
        >>> handle = d.get_ipc_handle()             # pickle it, and send it
        """
        from ..interop.ipc import handle_of  # on first use, as few programs share memory

        return handle_of(self, self.allocation)

    # -- NumPy and Python protocols ------------------------------------------------------------------------------------

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a device array cannot become an ndarray without a copy: use copy_to_host()")
        guard("numpy")
        host = self.copy_to_host()
        return host if dtype is None else host.astype(dtype, copy=False)

    def __bytes__(self) -> bytes:
        guard(
            "bytes()"
        )  # without this method Python takes the elements one by one, or an integer for a number of zeros
        return self.copy_to_host().tobytes()

    def __index__(self) -> int:
        # TypeError, as from NumPy, so that a device array of several elements is refused as the fancy index that it is.
        if self.shape or self.dtype.kind not in "iu":
            raise TypeError(f"an index is one integer, not a device array of shape {self.shape} and dtype {self.dtype}")
        return operator.index(self._value("an index"))

    def __copy__(self) -> DeviceNDArray[D]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> DeviceNDArray[D]:
        return self.copy()

    def __reduce__(self) -> tuple[object, ...]:
        # Through the host: a device address means nothing in another process.
        guard("pickle")
        return _unpickled, (self.copy_to_host(),)

    # -- below ---------------------------------------------------------------------------------------------------------

    def stream_in_force(self) -> Stream:
        """The stream that orders this array's work where none is named."""
        return self.open_device.streams.stream_of(self._stream)

    def like(self, stream: Stream) -> DeviceNDArray[D]:
        """A new, uninitialised array of the same shape and order of axes; the device is entered."""
        return new(
            self.open_device, self.shape, self.dtype, like_strides(self.shape, self.strides, self.itemsize), stream
        )

    def _ordered_on(self, stream: StreamLike) -> Stream:
        return self.open_device.streams.stream_of(stream if self._stream is None else stream or self._stream)

    def put(
        self,
        source: DeviceNDArray[Any] | npt.NDArray[Any],
        stream: StreamLike,
        *,
        host_copy: bool = True,
        waits: bool = True,
    ) -> None:
        """Copy from an array of the same shape and dtype.

        Without ``host_copy`` a source is not gathered on the host first; unless it ``waits``, the call waits for no stream, but
        for that of a source on a device that this one's streams cannot wait for.
        """
        self.allocation.check_writable()
        chosen = self._ordered_on(stream)
        opened = self.open_device
        with CurrentDevice(opened.handle):
            if opened.free_queue.dropped or opened.completions.in_flight:
                opened.free_queue.free_if_due()
            if not stream:
                chosen.check_waitable()
            if not isinstance(source, DeviceNDArray):
                with StreamUse(chosen, self.allocation):
                    opened.copies.upload(self, source, chosen, not stream, host_copy, waits)
                return
            source.allocation.check()
            if source.open_device is opened:
                with StreamUse(chosen, self.allocation, source.allocation):
                    opened.copies.move(self, source, chosen, not stream, waits)
            else:
                origin = PeerSource(source.open_device.copies, source, source.allocation, source.stream_in_force())
                with StreamUse(chosen, self.allocation):
                    copy_from_peer(opened.copies, self, origin, chosen, blocking=not stream, waits=waits)

    def _assign(self, view: DeviceNDArray[Any], value: object) -> None:
        """``view[...] = value``, with NumPy's broadcasting and same-kind casting."""
        source = device_view(value)
        if source is not None and source.dtype == view.dtype:
            view.put(source._same_memory(broadcast(source, view.shape)), 0)
            return
        if source is not None:
            guard(f"assigning {source.dtype} to {view.dtype}")
            value = source.copy_to_host()
        host = assignable(value, view.dtype)
        try:
            spread = np.broadcast_to(host.reshape(without_leading_ones(host.shape, len(view.shape))), view.shape)
        except ValueError:
            raise LayoutError(
                f"cannot assign shape {host.shape} to shape {view.shape}: they do not broadcast"
            ) from None
        view.put(spread, 0)

    def _copy_for_consumer(self, stream: object) -> DeviceNDArray[D]:
        """A copy on the stream that a DLPack consumer names; complete, where it names none."""
        table = self.open_device.streams
        consumer = None if stream == NO_ORDER else consumer_of(table, stream)
        with CurrentDevice(table.handle):
            if consumer is not None:
                self.allocation.order_behind(consumer)
                return self.copy(stream=consumer)
            if stream != NO_ORDER:
                self.allocation.wait()
            return self.copy()

    def _value(self, what: str) -> Any:
        if self.size != 1:
            raise LayoutError(f"{what} takes an array of one element, this has {self.size}")
        guard(what)
        return self.copy_to_host().reshape(())[()]


@made_by("an element of an array of records is one, d[0], and to_device(x[0]) makes one", DeviceNDArray)
class DeviceRecord(Listed):
    """An element of a record array on a device. ``r["x"]`` reads a field, ``r["x"] = 1`` writes it; both are synchronous.

    It shares the memory of the array that it came from, and keeps it alive. As a value of Python it is what a record of NumPy
    is: fields have numbers too, it has a length, is iterated over, compared and converted by its fields, and cannot be hashed.
    What needs the elements on the host for that is an implicit copy, and obeys ``DEVMEM_TRANSFER_GUARD``.

    Examples
    --------
    >>> points = dm.zeros(2, [("x", "f4"), ("y", "f4")])
    >>> points[1]["y"] = 3
    >>> float(points[1]["y"])
    3.0
    >>> bool(points[1] == points[0]), len(points[1])
    (False, 2)
    """

    __slots__ = ("_array",)
    _unlisted = frozenset({"open_device"})

    def __init__(self, array: DeviceNDArray[Any]) -> None:
        self._array = array

    def __repr__(self) -> str:
        return f"<{type(self).__name__} dtype={self.dtype} on {self.device}>"

    def __getitem__(self, key: object) -> Any:
        key = self._named(key)
        found = self._array[key]
        return found[()] if isinstance(key, str) and not found.shape else found

    def __setitem__(self, key: object, value: object) -> None:
        self._array[self._named(key)] = value

    def __len__(self) -> int:
        return len(self._names())

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, self._names())

    def __eq__(self, other: object) -> Any:
        return self._on_host("comparing") == (other._on_host("comparing") if isinstance(other, DeviceRecord) else other)

    def __ne__(self, other: object) -> Any:
        return self._on_host("comparing") != (other._on_host("comparing") if isinstance(other, DeviceRecord) else other)

    __hash__ = None  # type: ignore[assignment]  # its elements change

    def __bool__(self) -> bool:
        return bool(self._on_host("bool()"))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self._array.__array__(dtype, copy)

    def __bytes__(self) -> bytes:
        return bytes(self._array)

    def __copy__(self) -> DeviceRecord:
        return _record(type(self), self._array.copy())

    def __deepcopy__(self, memo: dict[int, object]) -> DeviceRecord:
        return self.__copy__()

    def __reduce__(self) -> tuple[object, ...]:
        return _record, (type(self), self._array)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The record's dtype."""
        return self._array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the record, with its padding."""
        return self._array.nbytes

    @property
    def open_device(self) -> OpenDevice:
        """The open device that the record lives on."""
        return self._array.open_device

    @property
    def device(self) -> Device:
        """The device that the record lives on."""
        return self._array.device

    @property
    def ptr(self) -> int:
        """The device's address of the record."""
        return self._array.ptr

    def copy_to_host(self, ary: npt.NDArray[Any] | None = None, stream: StreamLike = 0) -> np.void:
        """The record as a NumPy record; ``ary``, an ndarray without axes, is filled if given. Otherwise as for arrays."""
        host = self._array.copy_to_host(ary, stream)
        return cast(np.void, host[()])

    def copy_to_device(self, ary: ArrayLike, stream: StreamLike = 0) -> None:
        """Copy a record of the same dtype, of host or device, or a tuple of its fields, into this one."""
        self._array.copy_to_device(assignable(ary, self.dtype) if isinstance(ary, tuple) else ary, stream)

    def free(self) -> None:
        """Give back the memory that the record shares with its array."""
        self._array.free()

    def __devmem_view__(self) -> DeviceNDArray[Any]:
        return self._array

    def _names(self) -> tuple[str, ...]:
        return self.dtype.names or ()

    def _named(self, key: object) -> object:
        """A key with the name of a field in the place of its number."""
        if isinstance(key, list):
            raise LayoutError(
                f"a device record gives one field at a time, not {key}: index a copy_to_host() of it instead"
            )
        if not hasattr(key, "__index__"):
            return key
        names, number = self._names(), operator.index(key)
        if not -len(names) <= number < len(names):
            raise IndexError(f"a record of {len(names)} fields, {', '.join(names)}, has no field {number}")
        return names[number]

    def _on_host(self, what: str) -> np.void:
        guard(what)
        return self.copy_to_host()


def _record(kind: type[DeviceRecord], array: DeviceNDArray[Any]) -> DeviceRecord:
    """A record of a class, which may have a constructor of its own, in the memory of an array without dimensions."""
    made = object.__new__(kind)
    made._array = array
    return made


#: What is device memory, or lends it: devmem's own, and arrays of other libraries.
DeviceArrayLike = DeviceNDArray[Any] | DeviceRecord | SupportsDLPack | SupportsCudaArrayInterface
#: What becomes a device array: all that NumPy makes an array of, and device memory; and such in lists, tuples and dicts.
ArrayLike = npt.ArrayLike | DeviceArrayLike
ArrayTree: TypeAlias = "ArrayLike | Sequence[ArrayTree] | Mapping[Any, ArrayTree]"


def new(
    opened: OpenDevice,
    shape: Shape,
    dtype: np.dtype[Any],
    strides: Shape | None,
    stream: Stream,
    nbytes: int = -1,
    bound: Stream | None = None,
) -> DeviceNDArray[Any]:
    """An uninitialised array whose memory is ordered on a stream, bound to one if the user named it; the device is entered.

    Strides of None are those of a C-contiguous array; ``nbytes``: the bytes that it spans, where they are known.
    """
    if nbytes < 0:
        nbytes = check_size(shape, dtype.itemsize) if strides is None else span(shape, strides, dtype.itemsize)[1]
    memory = opened.memory
    allocation = memory.allocate(nbytes, stream, bound is None) if nbytes else memory.empty_allocation(stream)
    # Not by the constructor, which looks whether the user called it.
    array: DeviceNDArray[Any] = object.__new__(DeviceNDArray)
    array.open_device = opened
    array.allocation = allocation
    array._ptr = allocation.ptr
    array._shape = shape
    array._dtype = dtype
    array._strides = strides
    array._stream = bound
    return array


def device_view(obj: object) -> DeviceNDArray[Any] | None:
    """The device's view of an object that has one, else None: a device array is its own, others may lend device memory."""
    if isinstance(obj, DeviceNDArray):
        return obj
    view = getattr(type(obj), "__devmem_view__", None)
    if view is not None:
        return cast("DeviceNDArray[Any] | None", view(obj))
    lent = device_memory(obj)
    return None if lent is None else DeviceNDArray(*lent)


def _unpickled(host: npt.NDArray[Any]) -> DeviceNDArray[Any]:
    opened = current_open_device()
    with CurrentDevice(opened.handle):
        array = new(
            opened,
            host.shape,
            host.dtype,
            like_strides(host.shape, host.strides, host.itemsize),
            opened.streams.default,
        )
    array.put(host, 0)
    return array


def _asks_for_view(key: object) -> bool:
    return key is Ellipsis or (isinstance(key, tuple) and any(part is Ellipsis for part in key))


if core is not None:
    _plain = map(
        np.dtype, "?bBhHiIqQlLefdFD"
    )  # of two that are equal the last one counts: NumPy's `int64` is `l` on Linux
    _names = [name for kind in _plain for name in (kind.type, kind, kind.char, kind.name, kind.str, kind.str[1:])]
    _known = {name: np.dtype(name) for name in (*_names, bool, int, float, complex)}
    _known_bytes = {name: (kind, kind.itemsize) for name, kind in _known.items()}
    core.arrays(np.ndarray, PinnedNDArray, np.empty, DeviceNDArray, _known_bytes)
