"""numba.cuda's device arrays and records: devmem's, with numba.cuda's rules for copies, indices and shapes.

A native array becomes a `DeviceNDArray` by a change of its class, which adds no state. Views keep the class.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

import devmem

from ....spi.errors import DevmemError, LayoutError
from . import state
from .array_base import DeviceNDArrayBase
from .copy_sources import broadcast, check_broadcast, host_source, memory_for, native_view
from .error import BadIndex, translated
from .layouts import array_core, check_array_compatibility, sentry_contiguous, shape_of
from .numba_types import numba_record
from .old_signatures import old_keyword, refuse_unknown, with_signature
from .streams import Stream, native_stream, numba_stream, with_class
from .views import DeviceArrayViews

_ndarray = np.ndarray
# The native methods, called directly: `super()` would add half the time of the shortest of them.
_copy_to_host, _to_array = devmem.DeviceNDArray.copy_to_host, devmem.DeviceNDArray.__array__
_INDEX = (int, np.integer, slice)


class DeviceNDArray(DeviceArrayViews):
    """An array in device memory.

    A copy with a stream, or of an array that is bound to one, may still run when the call returns.
    """

    __slots__ = ()

    def __init__(self, shape: Any, strides: Any, dtype: Any, stream: Any = 0, *more: Any, **keywords: Any) -> None:
        gpu_data = keywords.pop("gpu_data", more[-1] if more else None)
        if len(more) > 1:
            old_keyword({"writeback": None}, "writeback", "", "DeviceNDArray")
        for gone in ("writeback", "gpu_head"):
            old_keyword(keywords, gone, "", "DeviceNDArray")
        refuse_unknown(keywords, "DeviceNDArray")
        lengths, kind = shape_of(shape), np.dtype(dtype)
        steps = (strides,) if isinstance(strides, int) else tuple(strides or ())
        if len(steps) != len(lengths):
            raise ValueError(f"strides not match ndim: {steps} for shape {lengths}")
        chosen = native_stream(stream)
        native = state.ready_device()
        bound = native.streams.stream_of(chosen) if chosen else None
        allocation, address = memory_for(native, lengths, steps, kind, bound, gpu_data)
        super().__init__(native, allocation, address, lengths, kind, steps, bound)

    # -- copies --------------------------------------------------------------------------------------------------------

    def copy_to_host(self, ary: Any = None, stream: Any = 0, **old: Any) -> Any:
        """Copy the elements to the host, into ``ary`` or a new array, which is returned.

        Parameters
        ----------
        ary : ndarray, optional
            The target: same dtype, and same shape and strides apart from axes of length one. Bytes between its elements are not
            written.
        stream : Stream, optional
            Orders the copy, which may still run on return. By default the stream that the array is bound to.

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
            ary = old_keyword(old, "array", "ary", "copy_to_host")
            refuse_unknown(old, "copy_to_host")
        strides = self._strides
        if strides is not None and strides and min(strides) < 0:
            raise NotImplementedError(
                f"D->H copy not implemented for negative strides: {strides}; devmem's own arrays support it"
            )
        if stream:
            stream = stream if type(stream) is Stream else native_stream(stream)
        else:
            stream = self._stream or 0
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
            self.copy_to_host(ary.reshape(self._shape), stream)  # only axes of length one differ: never a copy
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
        chosen: Any = native_stream(stream) if stream else self._stream or 0
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
            raise ValueError("`copy=False` is not supported: device memory reaches the host only by a copy")
        array = (
            self if self._stream is None else self._devmem_array()
        )  # the bound stream would make the copy asynchronous
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
        # As with numba.cuda, computed on the host from a copy; `out` cannot be a device array.
        if any(isinstance(each, DeviceNDArray) for each in keywords.get("out", ())):
            return NotImplemented
        on_host = [np.asarray(each) if isinstance(each, DeviceNDArray) else each for each in inputs]
        return getattr(ufunc, method)(*on_host, **keywords)

    # -- elements ------------------------------------------------------------------------------------------------------

    def __getitem__(self, item: Any) -> Any:
        if type(item) is slice and self._shape:
            return self._selected(item)
        return self.getitem(item)

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """``array[item]``, ordered on a stream. A single element is complete on return in any case."""
        try:
            view: Any = self._selected(item) if type(item) is int else self._indexed(item)
            if stream:
                view._stream = self.open_device.streams.stream_of(native_stream(stream))
            if view._shape:
                return view
            if view._dtype.names is not None:
                return with_class(devmem.DeviceRecord(view), DeviceRecord)
            view.__class__ = devmem.DeviceNDArray
            return view._value("indexing one element")
        except DevmemError as error:
            raise translated(error) from error

    def __setitem__(self, key: Any, value: Any) -> None:
        self.setitem(key, value)

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """``array[key] = value``, converted to the array's dtype; complete on return unless a stream is given or bound.

        Raises
        ------
        ValueError
            The value has too many axes, or a length that does not fit.
        """
        chosen: Any = native_stream(stream) or self._stream or 0
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
            target.put(broadcast(source, target._shape), chosen)
        except DevmemError as error:
            raise translated(error) from error

    def __len__(self) -> int:
        return self._shape[0]

    def __bool__(self) -> bool:
        # By its length, as for any container; an array without axes tests its element.
        return self._shape[0] != 0 if self._shape else super().__bool__()

    # -- below ---------------------------------------------------------------------------------------------------------

    def like(self, stream: Any) -> Any:
        """A new, uninitialised array of the same shape and order of axes; the device is current."""
        return with_class(super().like(stream), DeviceNDArray)

    def _value(self, what: str) -> Any:
        return self._devmem_array()._value(what)

    def _indexed(self, item: Any) -> Any:
        """The view that ints and slices select; devmem's own arrays take other indices too."""
        parts = item if type(item) is tuple else (item,)
        if len(parts) > len(self._shape):
            raise IndexError(f"{len(parts) - len(self._shape)} extra indices given")
        for part in parts:
            if not isinstance(part, _INDEX):
                parts = tuple(map(_index, parts))
                break
        return self._selected(parts)


class DeviceRecord(DeviceNDArrayBase, devmem.DeviceRecord):
    """One record in device memory: ``record["x"]`` reads a field, ``record["x"] = 1`` writes it."""

    __slots__ = ()

    #: The attributes of an array without axes.
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    ndim = 0
    size = 1

    def __init__(self, dtype: Any, stream: Any = 0, *more: Any, **keywords: Any) -> None:
        super().__init__(DeviceNDArray((), (), dtype, stream, *more, **keywords))

    @property
    def stream(self) -> Any:
        """The stream that the record is bound to, or 0."""
        return numba_stream(self._array._stream)

    @property
    def flags(self) -> dict[str, bool]:
        """Both contiguous."""
        return {"C_CONTIGUOUS": True, "F_CONTIGUOUS": True}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._array.__cuda_array_interface__

    @property
    def _numba_type_(self) -> Any:
        """The type of the record for Numba's compiler."""
        return numba_record(self)

    def bind(self, stream: Any = 0) -> Any:
        """The same record on a stream, as for arrays."""
        bound = devmem.DeviceNDArray.bind(self._array, native_stream(stream))
        return with_class(devmem.DeviceRecord(bound), DeviceRecord)

    def transpose(self, axes: Any = None) -> Any:
        """NotImplementedError: a record has no axes."""
        raise NotImplementedError("transposing a non-2D DeviceNDArray isn't supported")

    T = property(transpose)

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        """Copy the record to the host, into an ndarray without axes, or into a NumPy record, complete on return."""
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
        """A field's value, complete on return; a view for a field that is a record or an array."""
        field = self._field(item)
        if stream:
            field._stream = self.open_device.streams.stream_of(native_stream(stream))
        return field if field._shape else field.getitem(())

    def __setitem__(self, key: Any, value: Any) -> None:
        self.setitem(key, value)

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """Write a field, converted to its type; complete on return unless a stream is given or bound."""
        field = self._field(key)
        if field._dtype.names is None:
            field.setitem(slice(None) if field._shape else (), value, stream)
        else:
            with_class(devmem.DeviceRecord(field), DeviceRecord).copy_to_device(value, stream)

    def _field(self, name: Any) -> Any:
        fields: Any = self.dtype.fields or {}
        if name not in fields:
            raise KeyError(name)
        return self._array._selected(name)

    def _devmem_array(self) -> Any:
        return self._array._devmem_array() if isinstance(self._array, DeviceNDArray) else self._array


#: The host values that NumPy converts to a record.
_HOST = (np.void, tuple)


def _index(part: Any) -> Any:
    """One part of an index; an array without axes becomes an int."""
    try:
        return part if isinstance(part, slice) else operator.index(part)
    except TypeError:
        name = type(part).__name__
        raise BadIndex(
            f"an index is made of ints and slices, not {name}: devmem's own arrays take other indices"
        ) from None


with_signature(lambda self, shape, strides, dtype, stream=0, gpu_data=None: None)(DeviceNDArray.__init__)
with_signature(lambda self, ary=None, stream=0: None)(DeviceNDArray.copy_to_host)
with_signature(lambda self, dtype, stream=0, gpu_data=None: None)(DeviceRecord.__init__)
