"""Views and attributes of numba.cuda's device arrays: everything that needs no copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import devmem

from ....spi.errors import DevmemError, LayoutError
from ....spi.types import LEGACY_STREAM
from .array_base import DeviceNDArrayBase
from .copy_sources import array_interface
from .error import translated
from .numba_types import numba_array
from .streams import Stream, native_stream, numba_stream, with_class

# The native methods, called directly: `super()` would add half the time of the shortest of them.
_bind, _reshape = devmem.DeviceNDArray.bind, devmem.DeviceNDArray.reshape
_squeeze, _view = devmem.DeviceNDArray.squeeze, devmem.DeviceNDArray.view
NOT_C = "To change to a dtype of a different size, the array must be C-contiguous"


class DeviceArrayViews(DeviceNDArrayBase, devmem.DeviceNDArray[Any]):  # type: ignore[misc]  # other results, on purpose
    """A device array with numba.cuda's rules for shapes. Views of it are of its class."""

    __slots__ = ()

    # -- other views ---------------------------------------------------------------------------------------------------

    def reshape(self, *newshape: Any, **kws: Any) -> Any:
        """The same elements in another shape, without a copy; bound to no stream.

        Raises
        ------
        NotImplementedError
            The shape requires a copy.
        ValueError
            It has another number of elements or two unknown lengths, or ``order`` is not 'C', 'F' or 'A'.
        """
        order = kws.pop("order", "C")
        if kws:
            raise TypeError(f"unknown keyword arguments {', '.join(kws)}")
        try:
            view: Any = _reshape(self, *newshape, order=order, copy=False)
        except LayoutError as error:
            if order not in ("C", "F", "A"):
                raise ValueError(f"order not C|F|A: {order!r}") from None
            self._dummy.filled_in(tuple(newshape[0]) if newshape and hasattr(newshape[0], "__iter__") else newshape)
            raise NotImplementedError(f"operation requires copying: {error}") from error
        except DevmemError as error:
            raise translated(error) from error
        view._stream = None
        return view

    def ravel(self, order: str = "C", stream: Any = 0) -> Any:
        """A view with one axis; NotImplementedError if that requires a copy."""
        if order not in ("C", "F", "A"):
            raise ValueError(f"order not C|F|A: {order!r}")
        if not ((order in "CA" and self.is_c_contiguous()) or (order in "FA" and self.is_f_contiguous())):
            raise NotImplementedError("ravel on non-contiguous array")
        self.allocation.check()
        view = self._view(self._ptr, (self.size,), (self._dtype.itemsize,))
        return self._rebound(view, stream)

    def transpose(self, axes: Any = None) -> Any:  # type: ignore[override]  # numba's takes one tuple
        """The transpose as a new array in C order; the array itself if ``axes`` keeps the order.

        Raises
        ------
        NotImplementedError
            The array does not have two axes.
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
        kind: Any = type(self)
        result = kind(turned._shape, (rows * self.itemsize, self.itemsize), self._dtype, numba_stream(self._stream))
        try:
            result.put(turned, self._stream or 0)
        except DevmemError as error:
            raise translated(error) from error
        return result

    @property
    def T(self) -> Any:
        """The transpose, as a new array."""
        return self.transpose()

    def view(self, dtype: Any) -> Any:
        """The same bytes as elements of another type; a type of another size requires a C-contiguous array."""
        try:
            found = _view(self, dtype)
        except LayoutError as error:
            if not self._shape:
                raise IndexError(str(error)) from error
            if not self.size and self._strides is not None:
                # NumPy's strides of an empty array are arbitrary.
                return self._view(self._ptr, self._shape, None).view(dtype)
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
                raise ValueError(f"axis {each} has length {self._shape[each]}: only axes of length one can be removed")
        return self._rebound(_squeeze(self, axis), stream)

    def split(self, section: int, stream: Any = 0) -> Iterator[Any]:
        """Yield views of ``section`` elements each; the last one may be shorter."""
        if self.ndim != 1:
            raise ValueError("only support 1d array")
        if self.strides[0] != self._dtype.itemsize:
            raise ValueError("only support unit stride")
        for start in range(0, math.ceil(self.size / section) * section, section):
            piece = self._selected(slice(start, start + section))
            yield self._rebound(piece, stream) if stream else piece

    def bind(self, stream: Any = 0) -> Any:
        """The same array bound to a stream, which orders copies without a stream of their own; they may still run on return."""
        return _bind(self, stream if type(stream) is Stream else native_stream(stream))

    # -- attributes ----------------------------------------------------------------------------------------------------

    @property
    def stream(self) -> Any:
        """The stream that the array is bound to, or 0. It can be set."""
        return numba_stream(self._stream)

    @stream.setter
    def stream(self, stream: Any) -> None:
        chosen = native_stream(stream)
        self._stream = self.open_device.streams.stream_of(chosen) if chosen else None

    @property
    def flags(self) -> dict[str, bool]:
        """``C_CONTIGUOUS`` and ``F_CONTIGUOUS``."""
        return {"C_CONTIGUOUS": self.is_c_contiguous(), "F_CONTIGUOUS": self.is_f_contiguous()}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, on any device; ``stream`` is None for an array without a bound stream and without pending work."""
        if not self.open_device.handle.info.exchange.array_interface:
            return array_interface(self)
        found: dict[str, Any] = super().__cuda_array_interface__
        allocation, bound = self.allocation, self._stream
        with self.device.entered() as driver:
            if bound is not None and bound.plain:
                allocation.order_behind(bound)
                found["stream"] = bound.handle
            elif allocation.home is None and getattr(allocation, "ready", None) is None:
                allocation.wait()  # host-accessible memory, which no stream orders for the host
                found["stream"] = None
            elif allocation.streams is None and driver.stream_query(found["stream"] or LEGACY_STREAM):
                found["stream"] = None
        return found

    @property
    def _numba_type_(self) -> Any:
        """The type of the array for Numba's compiler."""
        return numba_array(self)

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__  # type: ignore[assignment]
    __ne__ = object.__ne__  # type: ignore[assignment]

    # -- private -------------------------------------------------------------------------------------------------------

    def _devmem_array(self) -> Any:
        return with_class(self._view(self._ptr, self._shape, self._strides), devmem.DeviceNDArray)

    def _rebound(self, view: Any, stream: Any) -> Any:
        if stream:
            view._stream = self.open_device.streams.stream_of(native_stream(stream))
        return view
