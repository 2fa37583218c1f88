"""The arrays that kernels see: indices are checked, and elements are kernel numbers (see `numbers`)."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...._core.base.config import NegativeIndices
from ...work_items import this_thread
from . import advice, atomics
from .array_functions import FUNCTIONS, METHODS, UFUNCS, apply
from .conversions import stored
from .numbers import INTEGRAL, REAL, TYPES, kernel_number, numpy_type
from .raw_arrays import dtype_of
from .reports import Misuse

Array = npt.NDArray[Any]
#: The memory space of arrays from `devmem.const`.
CONST = "const array"

#: What NumPy raises for an index that is out of bounds, or no integer, or for too many; the general path reports it.
_NO_ELEMENT = IndexError, OverflowError, TypeError, ValueError
# Classes of plain indices of one element.
_INDEX_TYPES = INTEGRAL - {np.bool_}


class KernelArray:
    """An array in a kernel.

    ``a[i]`` and ``a[i, j]`` are kernel numbers and can be assigned to; fewer indices, slices and None give views.
    A negative index counts from the end, unless the simulation reports it; an index out of bounds is reported. Records are
    `Record`: ``a[i]["x"]``, ``a[i].x``; ``a["x"]`` and ``a.x`` are the fields of all. As on a device, there is no arithmetic with
    whole arrays.
    """

    __slots__ = ("_data", "shape", "space")
    __hash__ = None  # type: ignore[assignment]  # None is how Python marks a class as unhashable

    def __init__(self, data: Array, space: str) -> None:
        self._data = data
        self.space = space
        self.shape: tuple[int, ...] = data.shape

    def __repr__(self) -> str:
        # The array may belong to a failed kernel, whose memory may be freed: no elements are shown.
        return f"<{self.space} of shape {self.shape}, dtype {self._data.dtype}>"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._field(index)
        key, is_element = self._key(index)
        return kernel_number(self._data[key]) if is_element else self._subarray(key)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._store(self._key(index)[0], value)

    def __getattr__(self, name: str) -> Any:
        if name in (self._data.dtype.names or ()):
            return self._field(name)
        if name in METHODS:
            return partial(METHODS[name], self)
        raise AttributeError(f"an array in a kernel has no {name!r}: {advice.WHOLE}")

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, named: Any) -> Any:
        if function.__name__ in FUNCTIONS and arguments[:1] and arguments[0] is self:
            return FUNCTIONS[function.__name__](*arguments, **named)
        raise TypeError(f"{function.__module__}.{function.__name__}() is given a whole {NAME!r}")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", ())
        if method != "__call__" or options or ufunc.__name__ not in UFUNCS or len(out) != 1:
            raise TypeError(f"numpy.{ufunc.__name__}() is given a whole {NAME!r}")
        apply(ufunc, inputs, out[0])
        return out[0]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._data.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._data.nbytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, along each axis."""
        return self._data.strides

    @property
    def T(self) -> KernelArray:
        """The same elements with the axes in reverse."""
        return self._with_data(self._data.T)

    @property
    def real(self) -> KernelArray:
        """The real parts, in the same memory."""
        return self._with_data(self._data.real)

    @property
    def imag(self) -> KernelArray:
        """The imaginary parts, in the same memory; of real arrays read-only zeros."""
        return self._with_data(self._data.imag)

    @property
    def flat(self) -> FlatArray:
        """The elements in C order, by one index."""
        return FlatArray(self)

    def view(self, dtype: Any) -> KernelArray:
        """The same memory as elements of another type."""
        return self._with_data(self._data.view(dtype_of(dtype)))

    def reshape(self, *shape: Any) -> KernelArray:
        """The same memory, which has to be contiguous, with other lengths; one of them may be -1: what is left."""
        if not self._data.flags.c_contiguous:
            raise Misuse("misuse", f"{self!r} is reshaped, and it is not contiguous: index it as it is")
        lengths = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return self._reshaped(tuple(map(operator.index, lengths)))

    def exchange(self, operation: str, index: Any, operands: tuple[Any, ...]) -> Any:
        """Do an atomic operation on an element; return the old value."""
        key, is_element = self._key(index)
        data = self._data
        if not is_element:
            raise TypeError(
                f"atomic.{operation} takes the index of one element, and {index!r} selects {data[key].size}"
            )
        return kernel_number(self._exchange(operation, key, atomics.converted(operation, self, data.dtype, operands)))

    def detach(self) -> None:
        """Replace the memory by zeros, so that a later look at a failed kernel's variables is safe."""
        self._data = np.broadcast_to(np.zeros((), self._data.dtype), self.shape)

    def _exchange(self, operation: str, key: tuple[int, ...], operands: tuple[Any, ...]) -> Any:
        return atomics.exchange(self._data, key, operation, operands)

    def _key(self, index: Any) -> tuple[tuple[Any, ...], bool]:
        """The checked index, and whether it selects a single element."""
        shape = self.shape
        parts = index if type(index) is tuple else (index,)
        if len(parts) == len(shape) and all(type(part) in _INDEX_TYPES for part in parts):  # the common case
            places = tuple(map(operator.index, parts))
            if all(0 <= at < length for at, length in zip(places, shape, strict=True)):
                return places, True
        count = sum(part is not None for part in parts)  # of those that select along an axis
        if Ellipsis in parts:
            at = parts.index(Ellipsis)
            parts = parts[:at] + (slice(None),) * (len(shape) - count + 1) + parts[at + 1 :]
            count = len(shape)
        if count > len(shape):
            raise Misuse("out of bounds", f"{count} indices for {self!r}")
        key: list[Any] = []
        is_element = len(parts) == len(shape)
        axis = -1
        for part in parts:
            if part is None:
                key.append(None)  # a new axis of length 1
                is_element = False
                continue
            axis += 1
            if isinstance(part, slice):
                key.append(self._slice(part, axis))
                is_element = False
                continue
            try:
                at = operator.index(part)
            except TypeError:
                told = (
                    f"arrays in kernels are indexed with integers and slices, not with {part!r}{advice.on_index(part)}"
                )
                raise TypeError(told) from None
            length = shape[axis]
            if not 0 <= at < length:
                negative = -length <= at < 0
                if not negative or _reports_negative():
                    raise Misuse("out of bounds", f"index {at} on axis {axis} of {self!r}{advice.NEGATIVE * negative}")
                at += length
            key.append(at)
        return tuple(key), is_element

    def _slice(self, part: Any, axis: int) -> Any:
        """The checked slice. Compiled kernels clip its bounds, and count negative ones from the end."""
        start, stop, step = (
            None if bound is None else operator.index(bound) for bound in (part.start, part.stop, part.step)
        )
        if ((start or 0) < 0 or (stop or 0) < 0) and _reports_negative():
            raise Misuse("out of bounds", f"slice {start}:{stop} on axis {axis} of {self!r}{advice.NEGATIVE}")
        return slice(start, stop, step)

    def _field(self, name: str) -> KernelArray:
        if name not in (self._data.dtype.names or ()):
            raise AttributeError(advice.on_field(name, self._data.dtype))
        return self._fields(name)

    def _fields(self, name: str) -> KernelArray:
        return self._with_data(self._data[name])

    def _reshaped(self, shape: tuple[int, ...]) -> KernelArray:
        return self._with_data(self._data.reshape(shape))

    def _subarray(self, key: tuple[Any, ...]) -> KernelArray:
        return self._with_data(self._data[key])

    def _with_data(self, data: Array) -> KernelArray:
        return kernel_array(data, self.space)

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        if isinstance(value, KernelArray):
            raise Misuse("misuse", f"an array is stored in {self!r}: {advice.WHOLE}")
        if isinstance(value, RecordReference):
            value = value.load()
        if type(value) not in REAL and (why := advice.against_storing(value, self._data.dtype)) is not None:
            raise Misuse("misuse", f"{why} (in {self!r})")
        self._data[key] = stored(value, self._data.dtype)


class FlatArray:
    """The elements of an array in C order."""

    __slots__ = ("_array",)

    def __init__(self, array: KernelArray) -> None:
        self._array = array

    def __len__(self) -> int:
        return self._array.size

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return self._array[self._key(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[self._key(index)] = value

    def _key(self, index: Any) -> tuple[int, ...]:
        at, size = operator.index(index), len(self)
        if at < 0 and not _reports_negative():
            at += size
        if not 0 <= at < size:
            raise Misuse("out of bounds", f"index {index} of the {size} elements of {self._array!r}")
        key: tuple[int, ...] = ()
        for length in reversed(self._array.shape):
            at, place = divmod(at, length)
            key = (place, *key)
        return key


class RecordReference:
    """A reference to an element in its memory."""

    __slots__ = ()

    def load(self) -> Any:
        """A copy of the element."""
        raise NotImplementedError


class Record(np.record):  # type: ignore[misc]  # final for type checkers, and not for Python
    """A NumPy record in its memory, whose fields are kernel numbers."""

    def __getattribute__(self, name: str) -> Any:
        return _field(super().__getattribute__(name))

    def __getitem__(self, name: Any) -> Any:
        return _field(super().__getitem__(name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(advice.on_field(name, self.dtype))

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __setitem__(self, name: Any, value: Any) -> None:
        if isinstance(name, str) and name not in (self.dtype.names or ()):
            raise AttributeError(advice.on_field(name, self.dtype))
        if (why := advice.against_storing(value, self.dtype[name])) is not None:
            raise Misuse("misuse", f"{why} (in field {name!r} of a record)")
        super().__setitem__(name, stored(value, self.dtype[name]))


class Vector(KernelArray):
    """An array of numbers with one axis, with a fast path for plain indices."""

    __slots__ = ("_length", "_number")
    #: Classes of values that NumPy itself stores as compiled code does.
    _direct = REAL

    def __init__(self, data: Array, space: str) -> None:
        super().__init__(data, space)
        self._number = TYPES[numpy_type(data.dtype.type)]
        self._length = data.shape[0]

    def __getitem__(self, index: Any) -> Any:
        try:
            if index >= 0:
                return self._number(self._data.item(index))  # twice as fast as from a NumPy integer
        except _NO_ELEMENT:
            pass
        return KernelArray.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is int and 0 <= index < self._length and type(value) in self._direct:
            try:
                self._data[index] = value
                return
            except (OverflowError, DeprecationWarning):  # an integer that wraps: NumPy 1 warns of it
                pass
        KernelArray.__setitem__(self, index, value)


class Matrix(KernelArray):
    """An array of numbers with two axes, with a fast path for plain indices."""

    __slots__ = ("_columns", "_number", "_rows")
    #: As `Vector` has.
    _direct = REAL

    def __init__(self, data: Array, space: str) -> None:
        super().__init__(data, space)
        self._number = TYPES[numpy_type(data.dtype.type)]
        self._rows, self._columns = data.shape

    def __getitem__(self, index: Any) -> Any:
        if type(index) is tuple:
            try:
                row, column = index
                if row >= 0 and column >= 0:
                    return self._number(self._data.item(row, column))
            except _NO_ELEMENT:
                pass
        return KernelArray.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is tuple and len(index) == 2 and type(value) in self._direct:
            row, column = index
            if type(row) is int and type(column) is int and 0 <= row < self._rows and 0 <= column < self._columns:
                try:
                    self._data[index] = value
                    return
                except (OverflowError, DeprecationWarning):
                    pass
        KernelArray.__setitem__(self, index, value)


class LongVector(Vector):
    """A `Vector` of integers with 64 bits."""

    __slots__ = ()
    _direct = INTEGRAL


class LongMatrix(Matrix):
    """A `Matrix` of integers with 64 bits."""

    __slots__ = ()
    _direct = INTEGRAL


class NarrowIntArray(KernelArray):
    """An array of integers with fewer than 64 bits."""

    __slots__ = ()

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, stored(value, self._data.dtype))


class NarrowIntVector(NarrowIntArray, Vector):
    """A `NarrowIntArray` with one axis."""

    __slots__ = ()

    def __setitem__(self, index: Any, value: Any) -> None:
        kind = type(value)
        if (
            kind in INTEGRAL
            and type(index) is int
            and 0 <= index < self._length
            and (kind is not int or 0 <= value < 128)
        ):
            try:
                self._data[index] = value
                return
            except OverflowError:  # rare; the general path wraps the value
                pass
        NarrowIntArray.__setitem__(self, index, value)


class NarrowIntMatrix(NarrowIntArray, Matrix):
    """A `NarrowIntArray` with two axes."""

    __slots__ = ()


class ReadOnlyKernelArray(KernelArray):
    """An array that kernels may not write."""

    __slots__ = ()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._store(self._key(index)[0], value)

    def _exchange(self, operation: str, key: tuple[int, ...], operands: tuple[Any, ...]) -> Any:
        before = self._data[key]
        if operation != "cas" or before == operands[0]:
            self._store(key, operands[-1])
        return before

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        why = (
            "it is a constant"
            if self.space == CONST
            else "it was passed as devmem.In(...), or its owner forbids writes"
        )
        raise Misuse("misuse", f"{self!r} is written, but kernels may only read it: {why}")


def kernel_array(data: Array, space: str) -> KernelArray:
    """The array as a kernel sees it; a record's fields are attributes."""
    kind: type[KernelArray] = KernelArray
    if data.dtype.names is not None:
        data = data.view(np.dtype((Record, data.dtype)))
    elif numpy_type(data.dtype.type) is not None:
        kinds = _KINDS if data.dtype.kind not in "iu" else _LONG if data.itemsize == 8 else _NARROW
        kind = kinds[min(data.ndim, 3)]
    return (kind if data.flags.writeable else _READ_ONLY[kind])(data, space)


def plain_array(array: KernelArray) -> Array:
    """The elements as NumPy's array."""
    return array._data


def _reports_negative() -> bool:
    item: Any = this_thread.item
    return item is not None and item.group.launch.simulation.negative is NegativeIndices.REPORT


def _field(value: Any) -> Any:
    return kernel_array(value, "field of a record") if isinstance(value, np.ndarray) else kernel_number(value)


#: By the number of axes; 3: any.
_KINDS = (KernelArray, Vector, Matrix, KernelArray)
_NARROW = (NarrowIntArray, NarrowIntVector, NarrowIntMatrix, NarrowIntArray)
_LONG = (KernelArray, LongVector, LongMatrix, KernelArray)

#: The class name in error messages of Python and NumPy.
NAME = "array in a kernel"
_READ_ONLY: dict[type[KernelArray], type[KernelArray]] = {
    _kind: type(NAME, (ReadOnlyKernelArray, _kind), {"__slots__": ()}) for _kind in {*_KINDS, *_NARROW, *_LONG}
}
for _kind in {*_KINDS, *_NARROW, *_LONG}:
    _kind.__name__ = NAME
