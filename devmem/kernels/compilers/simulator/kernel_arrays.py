"""The arrays that kernels see: elements are `numbers`, and indices are checked."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from . import advice, atomics
from .numbers import INTEGRAL, REAL, TYPES, native_of, ours, stored
from .reports import Misuse

Array = npt.NDArray[Any]
#: The space of what `devmem.const` gives.
CONST = "const array"

# Classes of what is an index of one element as it is.
_PLACES = INTEGRAL - {np.bool_}


class Checked:
    """An array in a kernel.

    ``a[i]``, ``a[i, j]`` are numbers as compiled code has them, and can be assigned to; fewer indices, and slices, give arrays
    that share the memory.
    An index that is not one of the array's is reported, also a negative one. Records are `Record`: ``a[i]["x"]``, ``a[i].x``.
    There is no arithmetic with whole arrays, as there is none on a device.
    """

    __slots__ = ("_data", "shape", "space")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]  # a method for type checkers; this is how Python says that there is none

    def __init__(self, data: Array, space: str) -> None:
        self._data = data
        self.space = space
        self.shape: tuple[int, ...] = data.shape

    def __repr__(self) -> str:
        # Of a kernel that failed: the memory may be gone, and nothing of it is shown.
        return f"<{self.space} of shape {self.shape}, dtype {self._data.dtype}>"

    def __getitem__(self, index: Any) -> Any:
        key, whole = self._key(index)
        return ours(self._data[key]) if whole else self._part(key)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._store(self._key(index)[0], value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"an array in a kernel has no {name!r}: {advice.WHOLE}")

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__}() is given a whole {NAME!r}")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
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
    def T(self) -> Checked:
        """The same elements with the axes in reverse."""
        return self._over(self._data.T)

    def exchange(self, operation: str, index: Any, operands: tuple[Any, ...]) -> Any:
        """Do an atomic operation on an element; the value from before."""
        key, whole = self._key(index)
        data = self._data
        if not whole:
            raise TypeError(f"atomic.{operation} is about one element, and {index!r} are {data[key].size}")
        return ours(self._exchange(operation, key, atomics.converted(operation, self, data.dtype, operands)))

    def detach(self) -> None:
        """Let go of the memory: whoever looks at a failed kernel later finds zeros."""
        self._data = np.broadcast_to(np.zeros((), self._data.dtype), self.shape)

    def _exchange(self, operation: str, key: tuple[int, ...], operands: tuple[Any, ...]) -> Any:
        return atomics.exchange(self._data, key, operation, operands)

    def _key(self, index: Any) -> tuple[tuple[Any, ...], bool]:
        """The index, checked; whether it is one element's."""
        shape = self.shape
        if len(shape) == 1 and type(index) in _PLACES:  # as nearly always
            at = operator.index(index)
            if 0 <= at < shape[0]:
                return (at,), True
        parts = index if type(index) is tuple else (index,)
        if len(parts) > len(shape):
            raise Misuse("out of bounds", f"{len(parts)} indices for {self!r}")
        key: list[Any] = []
        whole = len(parts) == len(shape)
        for axis, part in enumerate(parts):
            if isinstance(part, slice):
                key.append(self._slice(part, axis))
                whole = False
                continue
            try:
                at = operator.index(part)
            except TypeError:
                told = (
                    f"arrays in kernels are indexed with integers and slices, not with {part!r}{advice.on_index(part)}"
                )
                raise TypeError(told) from None
            if not 0 <= at < shape[axis]:
                raise Misuse("out of bounds", f"index {at} on axis {axis} of {self!r}{advice.NEGATIVE * (at < 0)}")
            key.append(at)
        return tuple(key), whole

    def _slice(self, part: Any, axis: int) -> Any:
        """Checked as compiled kernels clip it: behind the end is the end. A negative bound is a mistake here too."""
        start, stop, step = (
            None if bound is None else operator.index(bound) for bound in (part.start, part.stop, part.step)
        )
        if (start or 0) < 0 or (stop or 0) < 0:
            raise Misuse("out of bounds", f"slice {start}:{stop} on axis {axis} of {self!r}")
        return slice(start, stop, step)

    def _part(self, key: tuple[Any, ...]) -> Checked:
        return self._over(self._data[key])

    def _over(self, data: Array) -> Checked:
        return checked(data, self.space)

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        if isinstance(value, Checked):
            value = value._data
        elif isinstance(value, Reference):
            value = value.whole()
        if type(value) not in REAL and (why := advice.against_storing(value, self._data.dtype)) is not None:
            raise Misuse("misuse", f"{why} (in {self!r})")
        self._data[key] = stored(value, self._data.dtype)


class Reference:
    """An element that is still where it lies."""

    __slots__ = ()

    def whole(self) -> Any:
        """All of it, as it is now."""
        raise NotImplementedError


class Record(np.record):  # type: ignore[misc]  # final for type checkers, and not for Python
    """One record, in its memory: NumPy's, whose fields are as elements of arrays are."""

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
        super().__setitem__(name, value)


class Line(Checked):
    """An array of numbers with one axis, by the short way."""

    __slots__ = ("_length", "_number")

    def __init__(self, data: Array, space: str) -> None:
        super().__init__(data, space)
        self._number = TYPES[native_of(data.dtype.type)]
        self._length = data.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and 0 <= index < self._length:
            return self._number(self._data.item(index))  # of integers, twice as fast as from NumPy's number
        return Checked.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is int and 0 <= index < self._length and type(value) in REAL:
            self._data[index] = value
        else:
            Checked.__setitem__(self, index, value)


class Plane(Checked):
    """An array of numbers with two axes, by the short way."""

    __slots__ = ("_columns", "_number", "_rows")

    def __init__(self, data: Array, space: str) -> None:
        super().__init__(data, space)
        self._number = TYPES[native_of(data.dtype.type)]
        self._rows, self._columns = data.shape

    def __getitem__(self, index: Any) -> Any:
        if type(index) is tuple and len(index) == 2:
            row, column = index
            if type(row) is int and type(column) is int and 0 <= row < self._rows and 0 <= column < self._columns:
                return self._number(self._data.item(row, column))
        return Checked.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is tuple and len(index) == 2 and type(value) in REAL:
            row, column = index
            if type(row) is int and type(column) is int and 0 <= row < self._rows and 0 <= column < self._columns:
                self._data[index] = value
                return
        Checked.__setitem__(self, index, value)


class Narrow(Checked):
    """An array of integers of less than 64 bits, which are what is left of wider ones that are stored."""

    __slots__ = ()

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, stored(value, self._data.dtype))


class NarrowLine(Narrow, Line):
    """With one axis, by the short way."""

    __slots__ = ()

    def __setitem__(self, index: Any, value: Any) -> None:
        kind = type(value)
        if type(index) is int and 0 <= index < self._length and kind in REAL and (kind is not int or 0 <= value < 128):
            try:
                self._data[index] = value
                return
            except OverflowError:  # rarely: what wraps does so below
                pass
        Narrow.__setitem__(self, index, value)


class NarrowPlane(Narrow, Plane):
    """With two axes, by the short way."""

    __slots__ = ()


class Fixed(Checked):
    """An array that no kernel may write."""

    __slots__ = ()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._store(self._key(index)[0], value)

    def _exchange(self, operation: str, key: tuple[int, ...], operands: tuple[Any, ...]) -> Any:
        before = self._data[key]
        if operation != "cas" or before == operands[0]:
            self._store(key, operands[-1])
        return before

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        why = "it is a constant" if self.space == CONST else "it was given as devmem.In(...), or its owner forbids it"
        raise Misuse("misuse", f"{self!r} is written, and kernels may only read it: {why}")


def checked(data: Array, space: str) -> Checked:
    """The array as a kernel sees it; records have their fields as attributes."""
    kind: type[Checked] = Checked
    if data.dtype.names is not None:
        data = data.view(np.dtype((Record, data.dtype)))
    elif native_of(data.dtype.type) is not None:
        kinds = _NARROW if data.dtype.kind in "iu" and data.itemsize < 8 else _KINDS
        kind = kinds[min(data.ndim, 3)]
    return (kind if data.flags.writeable else _FIXED[kind])(data, space)


def _field(value: Any) -> Any:
    return checked(value, "field of a record") if isinstance(value, np.ndarray) else ours(value)


#: By the number of axes; 3: any.
_KINDS = (Checked, Line, Plane, Checked)
_NARROW = (Narrow, NarrowLine, NarrowPlane, Narrow)

#: What Python and NumPy call them where they refuse an operation.
NAME = "array in a kernel"
_FIXED: dict[type[Checked], type[Checked]] = {
    _kind: type(NAME, (Fixed, _kind), {"__slots__": ()}) for _kind in (*_KINDS, *_NARROW)
}
for _kind in (*_KINDS, *_NARROW):
    _kind.__name__ = NAME
