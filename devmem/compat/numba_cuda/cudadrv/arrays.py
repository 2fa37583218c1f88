"""numba.cuda's device arrays and records: devmem's, with numba.cuda's rules for copies, indices and shapes.

Native arrays become these by a change of class: `DeviceNDArray` adds no state. Views of one are of the same class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import devmem

from ....spi.errors import DevmemError, LayoutError
from ....spi.types import LEGACY_STREAM
from . import state
from .base import DeviceNDArrayBase
from .error import BadIndex, translated
from .kernel_types import numba_array, numba_record
from .layouts import array_core, check_array_compatibility, sentry_contiguous, shape_of
from .sources import check_broadcast, described, host_source, memory_for, native_view, spread
from .spelling import refuse_rest, renamed, shown_as
from .streams import Stream, dressed, named, shown

_ndarray = np.ndarray
# Of the native class, called as they are: `super()` would take half as long again as the shortest of them.
_copy_to_host, _to_array = devmem.DeviceNDArray.copy_to_host, devmem.DeviceNDArray.__array__
_bind, _reshape = devmem.DeviceNDArray.bind, devmem.DeviceNDArray.reshape
_squeeze, _view = devmem.DeviceNDArray.squeeze, devmem.DeviceNDArray.view
_INDEX = (int, np.integer, slice)
NOT_C = "To change to a dtype of a different size, the array must be C-contiguous"


class DeviceNDArray(DeviceNDArrayBase, devmem.DeviceNDArray[Any]):  # type: ignore[misc]  # other results, on purpose
    """An array in device memory.

    A copy for which a stream is named, and any copy of an array that is bound to one, may still run when the call returns.
    """

    __slots__ = ()

    def __init__(self, shape: Any, strides: Any, dtype: Any, stream: Any = 0, *more: Any, **keywords: Any) -> None:
        gpu_data = keywords.pop("gpu_data", more[-1] if more else None)
        if len(more) > 1:
            renamed({"writeback": None}, "writeback", "", "DeviceNDArray")
        for gone in ("writeback", "gpu_head"):
            renamed(keywords, gone, "", "DeviceNDArray")
        refuse_rest(keywords, "DeviceNDArray")
        lengths, kind = shape_of(shape), np.dtype(dtype)
        steps = (strides,) if isinstance(strides, int) else tuple(strides or ())
        if len(steps) != len(lengths):
            raise ValueError(f"strides not match ndim: {steps} for shape {lengths}")
        chosen = named(stream)
        native = state.native()
        bound = native.stream_of(chosen) if chosen else None
        allocation, address = memory_for(native, lengths, steps, kind, bound, gpu_data)
        super().__init__(allocation, address, lengths, kind, steps, bound)

    # -- copies --------------------------------------------------------------------------------------------------------

    def copy_to_host(self, ary: Any = None, stream: Any = 0, **old: Any) -> Any:
        """Copy the elements to the host, into ``ary`` or a new array, which is returned.

        Parameters
        ----------
        ary : ndarray, optional
            Where to: the same dtype, and shape and strides apart from axes of length one. Bytes between its elements are not
            touched.
        stream : Stream, optional
            Orders the copy, which may still run on return. The array's own, if it is bound to one.

        Raises
        ------
        NotImplementedError
            The array has a negative stride.
        TypeError
            ``ary`` has another dtype.
        ValueError
            It has another shape or other strides, or is read-only.
        """
        if old:
            ary = renamed(old, "array", "ary", "copy_to_host")
            refuse_rest(old, "copy_to_host")
        strides = self._strides
        if strides is not None and strides and min(strides) < 0:
            raise NotImplementedError(
                f"D->H copy not implemented for negative strides: {strides}; devmem's own arrays have it"
            )
        if stream:
            stream = stream if type(stream) is Stream else named(stream)
        elif self._stream is not None:
            stream = self._stream
        try:
            if ary is not None and not (ary.flags.c_contiguous if strides is None else ary.strides == strides):
                check_array_compatibility(self, ary)
            return _copy_to_host(self, ary, stream)
        except LayoutError:
            if ary is None:
                raise
            check_array_compatibility(self, ary)
            if ary.shape == self._shape:
                raise
            self.copy_to_host(ary.reshape(self._shape), stream)  # axes of length one come and go: never a copy
            return ary
        except DevmemError as error:
            raise translated(error) from error

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy into this array, from the host in any layout, or from a device array with the same strides.

        Raises
        ------
        TypeError
            Another dtype.
        ValueError
            Another shape; this array, or a device array that is the source, is not contiguous; device strides differ.
        """
        chosen: Any = named(stream) if stream else self._stream or 0
        try:
            kind = type(ary)
            if (
                (kind is _ndarray or (kind is DeviceNDArray and ary._strides is None))
                and self._strides is None
                and ary.shape == self._shape
                and ary.dtype == self._dtype
            ):
                self.put(ary, chosen)
                return
            if ary.size == 0:
                return
            target = self
            if self._strides is not None:
                sentry_contiguous(self)
                target = array_core(self)
            device = ary._devmem_array() if isinstance(ary, DeviceNDArrayBase) else native_view(ary)
            if device is not None:
                sentry_contiguous(device)
                device = array_core(device)
                check_array_compatibility(target, device)
                source: Any = device._view(device._ptr, target._shape, target.strides)
            else:
                source = host_source(ary, target)
            target.put(source, chosen)
        except DevmemError as error:
            raise translated(error) from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("`copy=False` is not supported: what is on the device gets to the host by a copy only")
        array = self if self._stream is None else self._devmem_array()  # its own stream would make it asynchronous
        return _to_array(array, dtype, copy)

    def tolist(self) -> Any:
        """The elements as nested lists of Python scalars."""
        return self._devmem_array().tolist()

    def item(self, *at: int) -> object:
        """The only element, or the one at these indices, as a Python scalar."""
        return self._devmem_array().item(*at)

    def __array_ufunc__(  # type: ignore[override]
        self, ufunc: Any, method: str, *inputs: Any, **keywords: Any
    ) -> Any:
        # Computed on the host, from a copy, as with numba.cuda; there is nothing that could be computed into.
        if any(isinstance(each, DeviceNDArray) for each in keywords.get("out", ())):
            return NotImplemented
        on_host = [np.asarray(each) if isinstance(each, DeviceNDArray) else each for each in inputs]
        return getattr(ufunc, method)(*on_host, **keywords)

    # -- elements ------------------------------------------------------------------------------------------------------

    def __getitem__(self, item: Any) -> Any:
        if type(item) is slice and self._shape:
            return self._slice(item)
        return self.getitem(item)

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """``array[item]``, ordered on a stream. One element is complete on return, in any case."""
        try:
            view: Any = self._at(item) if type(item) is int else self._indexed(item)
            if stream:
                view._stream = self.context.stream_of(named(stream))
            if view._shape:
                return view
            if view._dtype.names is not None:
                return dressed(devmem.DeviceRecord(view), DeviceRecord)
            view.__class__ = devmem.DeviceNDArray
            return view._one("indexing one element")
        except DevmemError as error:
            raise translated(error) from error

    def __setitem__(self, key: Any, value: Any) -> None:
        self.setitem(key, value)

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """``array[key] = value``, converted to the array's dtype; complete on return unless a stream is named or bound.

        Raises
        ------
        ValueError
            The value has too many axes, or a length that does not fit.
        """
        chosen: Any = named(stream) or self._stream or 0
        target = self._indexed(key)
        try:
            device: Any = None
            if type(value) is DeviceNDArray:
                device = value
            else:
                device = value._devmem_array() if isinstance(value, DeviceNDArrayBase) else native_view(value)
            if device is not None and device.dtype != target._dtype:
                value, device = device.copy_to_host(), None
            source = np.asarray(value).astype(target._dtype, copy=False) if device is None else device
            check_broadcast(source.shape, target._shape)
            target.put(spread(source, target._shape), chosen)
        except DevmemError as error:
            raise translated(error) from error

    def __len__(self) -> int:
        return self._shape[0]

    # -- other views ---------------------------------------------------------------------------------------------------

    def reshape(self, *newshape: Any, **kws: Any) -> Any:
        """The same elements in another shape, without a copy; bound to no stream.

        Raises
        ------
        NotImplementedError
            Only a copy has that shape.
        ValueError
            It has another number of elements, leaves two lengths open, or ``order`` is none of 'C', 'F', 'A'.
        """
        order = kws.pop("order", "C")
        if kws:
            raise TypeError(f"unknown keyword arguments {', '.join(kws)}")
        try:
            view: Any = _reshape(self, *newshape, order=order, copy=False)
        except LayoutError as error:
            if order not in ("C", "F", "A"):
                raise ValueError(f"order not C|F|A: {order!r}") from None
            self._check_new_shape(tuple(newshape[0]) if hasattr(newshape[0], "__iter__") else newshape)
            raise NotImplementedError(f"operation requires copying: {error}") from error
        except DevmemError as error:
            raise translated(error) from error
        view._stream = None
        return view

    def ravel(self, order: str = "C", stream: Any = 0) -> Any:
        """The elements along one axis, without a copy; NotImplementedError where that needs one."""
        if order not in ("C", "F", "A"):
            raise ValueError(f"order not C|F|A: {order!r}")
        if not ((order in "CA" and self.is_c_contiguous()) or (order in "FA" and self.is_f_contiguous())):
            raise NotImplementedError("ravel on non-contiguous array")
        self.allocation.check()
        view = self._view(self._ptr, (self.size,), (self._dtype.itemsize,))
        return self._rebound(view, stream)

    def transpose(self, axes: Any = None) -> Any:
        """The array with its two axes exchanged, as a new array in C order; itself, where ``axes`` keeps them as they are.

        Raises
        ------
        NotImplementedError
            It has not two axes.
        ValueError
            ``axes`` are not its axes.
        """
        if axes and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            raise NotImplementedError("transposing a non-2D DeviceNDArray isn't supported")
        if axes is not None and set(axes) != {0, 1}:
            raise ValueError(f"invalid axes list {axes!r}")
        rows, columns = self._shape
        turned = self._view(self._ptr, (columns, rows), self.strides[::-1])
        result = DeviceNDArray(turned._shape, (rows * self.itemsize, self.itemsize), self._dtype, shown(self._stream))
        try:
            result.put(turned, self._stream or 0)
        except DevmemError as error:
            raise translated(error) from error
        return result

    @property
    def T(self) -> Any:
        """The array with its two axes exchanged, as a new array."""
        return self.transpose()

    def view(self, dtype: Any) -> Any:
        """The same bytes as elements of another type; of another size, of a C-contiguous array only."""
        try:
            found = _view(self, dtype)
        except LayoutError as error:
            if not self._shape:
                raise IndexError(str(error)) from error
            if not self.is_c_contiguous():
                raise ValueError(f"{NOT_C}: {error}") from error
            raise
        if found._dtype.itemsize != self._dtype.itemsize and not self.is_c_contiguous():
            raise ValueError(NOT_C)
        return found

    def squeeze(self, axis: Any = None, stream: Any = 0) -> Any:
        """A view without axes of length one: all of them, or those named."""
        if axis is None and not stream:
            return _squeeze(self)
        for each in () if axis is None else axis if isinstance(axis, tuple) else (axis,):
            if self._shape[each] != 1:
                raise ValueError(f"axis {each} has length {self._shape[each]}: only axes of length one can go")
        return self._rebound(_squeeze(self, axis), stream)

    def split(self, section: int, stream: Any = 0) -> Iterator[Any]:
        """Views of ``section`` elements each, the last one shorter; made as they are asked for."""
        if self.ndim != 1:
            raise ValueError("only support 1d array")
        if self.strides[0] != self._dtype.itemsize:
            raise ValueError("only support unit stride")
        for start in range(0, math.ceil(self.size / section) * section, section):
            piece = self._slice(slice(start, start + section))
            yield self._rebound(piece, stream) if stream else piece

    def bind(self, stream: Any = 0) -> Any:
        """The same array on a stream: copies for which no other one is named are ordered there, and may run on."""
        return _bind(self, stream if type(stream) is Stream else named(stream))

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def stream(self) -> Any:
        """The stream that the array is bound to, or 0. It can be set."""
        return shown(self._stream)

    @stream.setter
    def stream(self, stream: Any) -> None:
        chosen = named(stream)
        self._stream = self.context.stream_of(chosen) if chosen else None

    @property
    def flags(self) -> dict[str, bool]:
        """``C_CONTIGUOUS`` and ``F_CONTIGUOUS``."""
        return {"C_CONTIGUOUS": self.is_c_contiguous(), "F_CONTIGUOUS": self.is_f_contiguous()}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, on any device; of an array that is bound to no stream, and has nothing running, ``stream`` is None."""
        if not self.context.info.exchange.array_interface:
            return described(self)
        found: dict[str, Any] = super().__cuda_array_interface__
        allocation, bound = self.allocation, self._stream
        with self.device.entered() as driver:
            if bound is not None and bound.plain:
                allocation.order_behind(bound)
                found["stream"] = bound.handle
            elif allocation.home is None and getattr(allocation, "ready", None) is None:
                allocation.wait()  # memory that the host sees too: for that a stream says nothing
                found["stream"] = None
            elif allocation.streams is None and driver.stream_query(found["stream"] or LEGACY_STREAM):
                found["stream"] = None
        return found

    @property
    def _numba_type_(self) -> Any:
        """What Numba's compiler takes the array for."""
        return numba_array(self)

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__  # type: ignore[assignment]
    __ne__ = object.__ne__  # type: ignore[assignment]

    # -- below ---------------------------------------------------------------------------------------------------------

    def like(self, stream: Any) -> Any:
        """A new, uninitialised array of the same shape and order of axes; the device is entered."""
        return dressed(super().like(stream), DeviceNDArray)

    def _devmem_array(self) -> Any:
        return dressed(self._view(self._ptr, self._shape, self._strides), devmem.DeviceNDArray)

    def _one(self, what: str) -> Any:
        return self._devmem_array()._one(what)

    def _rebound(self, view: Any, stream: Any) -> Any:
        if stream:
            view._stream = self.context.stream_of(named(stream))
        return view

    def _indexed(self, item: Any) -> Any:
        """A view of what ints and slices choose; devmem's own arrays take more."""
        parts = item if type(item) is tuple else (item,)
        for part in parts:
            if not isinstance(part, _INDEX):
                raise BadIndex(
                    f"an index is made of ints and slices, not of {type(part).__name__}: devmem's own arrays take more"
                )
        if len(parts) > len(self._shape):
            raise IndexError(f"{len(parts) - len(self._shape)} extra indices given")
        return self._at(parts)

    def _check_new_shape(self, shape: tuple[int, ...]) -> None:
        if sum(count < 0 for count in shape) > 1:
            raise ValueError("can only specify one unknown dimension")
        known = math.prod(count for count in shape if count >= 0)
        if any(count < 0 for count in shape):
            if not known or self.size % known:
                raise ValueError("cannot infer valid shape for unknown dimension")
        elif known != self.size:
            raise ValueError("reshape changes the size of the array")


class DeviceRecord(DeviceNDArrayBase, devmem.DeviceRecord):
    """One record in device memory: ``record["x"]`` reads a field, ``record["x"] = 1`` writes it."""

    __slots__ = ()

    #: Those of an array without axes.
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    ndim = 0
    size = 1

    def __init__(self, dtype: Any, stream: Any = 0, *more: Any, **keywords: Any) -> None:
        super().__init__(DeviceNDArray((), (), dtype, stream, *more, **keywords))

    @property
    def stream(self) -> Any:
        """The stream that the record is bound to, or 0."""
        return shown(self._array._stream)

    @property
    def flags(self) -> dict[str, bool]:
        """Both contiguous."""
        return {"C_CONTIGUOUS": True, "F_CONTIGUOUS": True}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._array.__cuda_array_interface__

    @property
    def _numba_type_(self) -> Any:
        """What Numba's compiler takes the record for."""
        return numba_record(self)

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        """Copy the record to the host, into an ndarray without axes, or a NumPy record; complete on return in a NumPy record."""
        if not isinstance(ary, np.void):
            return self._array.copy_to_host(ary, stream)
        check_array_compatibility(self, np.asarray(ary))
        host = self._devmem_array().copy_to_host(stream=0)
        for name in self.dtype.names or ():
            ary[name] = host[name]
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy a record of the same dtype into this one."""
        source = np.asarray(ary, self.dtype if isinstance(ary, tuple) else None) if isinstance(ary, _HOST) else ary
        self._array.copy_to_device(source, stream)

    def __getitem__(self, item: Any) -> Any:
        return self.getitem(item)

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """A field's value, complete on return; of a field that is a record or an array, its part of the memory."""
        field = self._field(item)
        if stream:
            field._stream = self.context.stream_of(named(stream))
        return field if field._shape else field.getitem(())

    def __setitem__(self, key: Any, value: Any) -> None:
        self.setitem(key, value)

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """Write a field, converted to its type; complete on return unless a stream is named or bound."""
        field = self._field(key)
        if field._dtype.names is None:
            field.setitem(slice(None) if field._shape else (), value, stream)
        else:
            dressed(devmem.DeviceRecord(field), DeviceRecord).copy_to_device(value, stream)

    def _field(self, name: Any) -> Any:
        fields: Any = self.dtype.fields or {}
        if name not in fields:
            raise KeyError(name)
        return self._array._field(name)

    def _devmem_array(self) -> Any:
        return self._array._devmem_array() if isinstance(self._array, DeviceNDArray) else self._array


#: What NumPy makes a record of.
_HOST = (np.void, tuple)


shown_as(lambda self, shape, strides, dtype, stream=0, gpu_data=None: None)(DeviceNDArray.__init__)
shown_as(lambda self, ary=None, stream=0: None)(DeviceNDArray.copy_to_host)
shown_as(lambda self, dtype, stream=0, gpu_data=None: None)(DeviceRecord.__init__)
