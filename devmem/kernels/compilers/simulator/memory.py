"""The arrays that kernels see: NumPy's elements, and indices that are checked."""

from __future__ import annotations

import ctypes
import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from .reports import Misuse

Array = npt.NDArray[Any]
#: The space of what `devmem.const` gives.
CONST = "const array"

_int64 = np.int64  # looked up at each access to an array of integers

# One type for views of any length: a ctypes array type for each length would cost more than a small launch.
_Anything = ctypes.c_char * (1 << 62)


class Checked:
    """An array in a kernel.

    ``a[i]``, ``a[i, j]`` are NumPy scalars, integers as `widened`, and can be assigned to; fewer indices, and slices, give arrays
    that share the memory.
    An index that is not one of the array's is reported, also a negative one. Records are NumPy's: ``a[i]["x"]``, ``a[i].x``.
    There is no arithmetic with whole arrays, as there is none on a device.
    """

    __slots__ = ("_data", "shape", "space")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Array, space: str) -> None:
        self._data = data
        self.space = space
        self.shape: tuple[int, ...] = data.shape

    def __repr__(self) -> str:
        # Of a kernel that failed: the memory may be gone, and nothing of it is shown.
        return f"<{self.space} of shape {self.shape}, dtype {self._data.dtype}>"

    def __getitem__(self, index: Any) -> Any:
        key, whole = self._key(index)
        return self._data[key] if whole else self._part(key)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._store(self._key(index)[0], value)

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
        """Do an atomic operation on an element, inside the lock of all atomics; the value from before."""
        key, whole = self._key(index)
        if not whole:
            raise TypeError(f"atomic.{operation} is about one element, and {index!r} are {self._data[key].size}")
        data = self._data
        before = data[key]
        operands = tuple(_as_stored(each, data.dtype) for each in operands)
        if operation != "cas":
            self._store(key, COMBINE[operation](before, operands[0]))
        elif before == operands[0]:
            self._store(key, operands[1])
        return before

    def detach(self) -> None:
        """Let go of the memory: whoever looks at a failed kernel later finds zeros."""
        self._data = np.broadcast_to(np.zeros((), self._data.dtype), self.shape)

    def _key(self, index: Any) -> tuple[tuple[Any, ...], bool]:
        """The index, checked; whether it is one element's."""
        parts = index if type(index) is tuple else (index,)
        shape = self.shape
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
                raise TypeError(f"arrays in kernels are indexed with integers and slices, not with {part!r}") from None
            if not 0 <= at < shape[axis]:
                hint = "" if at >= 0 else ": kernels do not count from the end"
                raise Misuse("out of bounds", f"index {at} on axis {axis} of {self!r}{hint}")
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
        self._data[key] = _as_stored(value, self._data.dtype)


class Reference:
    """An element that is still where it lies."""

    __slots__ = ()

    def whole(self) -> Any:
        """All of it, as it is now."""
        raise NotImplementedError


class Line(Checked):
    """An array with one axis, by the short way."""

    __slots__ = ("_length",)

    def __init__(self, data: Array, space: str) -> None:
        super().__init__(data, space)
        self._length = data.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and 0 <= index < self._length:
            return self._data[index]
        return Checked.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is int and 0 <= index < self._length:
            self._data[index] = value
        else:
            Checked.__setitem__(self, index, value)


class Plane(Checked):
    """An array with two axes, by the short way."""

    __slots__ = ("_columns", "_rows")

    def __init__(self, data: Array, space: str) -> None:
        super().__init__(data, space)
        self._rows, self._columns = data.shape

    def __getitem__(self, index: Any) -> Any:
        if type(index) is tuple and len(index) == 2:
            row, column = index
            if type(row) is int and type(column) is int and 0 <= row < self._rows and 0 <= column < self._columns:
                return self._data[index]
        return Checked.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is tuple and len(index) == 2:
            row, column = index
            if type(row) is int and type(column) is int and 0 <= row < self._rows and 0 <= column < self._columns:
                self._data[index] = value
                return
        Checked.__setitem__(self, index, value)


class Narrow(Checked):
    """An array of integers of less than 64 bits: what is read of it is computed with in 64, as compiled kernels do.

    In NumPy's own types 200 + 100 of two bytes were 44, and the average of three colours wrong here alone.
    """

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return widened(super().__getitem__(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, _as_stored(value, self._data.dtype))

    def exchange(self, operation: str, index: Any, operands: tuple[Any, ...]) -> Any:
        """As of any array."""
        return widened(super().exchange(operation, index, operands))


class NarrowLine(Narrow, Line):
    """With one axis, by the short way."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and 0 <= index < self._length:
            return _int64(self._data.item(index))  # twice as fast as from NumPy's number
        return Narrow.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is int and 0 <= index < self._length and (type(value) is not int or 0 <= value < 128):
            try:
                self._data[index] = value
                return
            except OverflowError:  # rarely: what wraps does so below
                pass
        Narrow.__setitem__(self, index, value)


class NarrowPlane(Narrow, Plane):
    """With two axes, by the short way."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        if type(index) is tuple and len(index) == 2:
            row, column = index
            if type(row) is int and type(column) is int and 0 <= row < self._rows and 0 <= column < self._columns:
                return _int64(self._data.item(row, column))
        return Narrow.__getitem__(self, index)


class Fixed(Checked):
    """An array that no kernel may write."""

    __slots__ = ()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._store(self._key(index)[0], value)

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        why = "it is a constant" if self.space == CONST else "it was given as devmem.In(...), or its owner forbids it"
        raise Misuse("misuse", f"{self!r} is written, and kernels may only read it: {why}")


def checked(data: Array, space: str) -> Checked:
    """The array as a kernel sees it; records become NumPy's, with fields as attributes."""
    kind: type[Checked] = Checked
    if data.dtype.names is not None:
        data = data.view(np.dtype((np.record, data.dtype)))
    else:
        kinds = _NARROW if data.dtype.kind in "iu" and data.itemsize < 8 else _KINDS
        kind = kinds[min(data.ndim, 3)]
    return (kind if data.flags.writeable else _FIXED[kind])(data, space)


def widened(value: Any) -> Any:
    """An integer of less than 64 bits as one of 64; anything else as it is."""
    return np.int64(value) if isinstance(value, np.integer) and value.itemsize < 8 else value


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that nobody has written: no zeros, which would hide it, but NaN, -1, the greatest unsigned integer."""
    data = np.full(math.prod(shape) * dtype.itemsize, 0x01 if dtype.kind == "b" else 0xFF, np.uint8)
    return data.view(dtype).reshape(shape)


def over(address: int, low: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The array whose lowest byte lies at an address, ``low`` bytes (none, or a negative number) from its first element."""
    return np.ndarray(shape, dtype, memoryview(_Anything.from_address(address)), -low, strides)


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape as kernels write it: an integer, or a tuple of them."""
    return tuple(map(operator.index, shape)) if isinstance(shape, tuple | list) else (operator.index(shape),)


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """A dtype as kernels write it: NumPy's, or a type of a compiler, which is called the same."""
    found: np.dtype[Any]
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype({"boolean": "bool"}.get(str(dtype), str(dtype)))
    if found.hasobject or not found.itemsize:
        raise TypeError(f"kernels have no arrays of {dtype!r}")
    return found


def _as_stored(value: Any, dtype: np.dtype[Any]) -> Any:
    """A value for an array: integers wrap, where NumPy would refuse them."""
    if dtype.kind not in "iu":
        return value
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        value = np.int64(value)
    return value.astype(dtype) if isinstance(value, np.integer) else value


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

COMBINE: dict[str, Any] = {
    "add": operator.add,
    "max": np.maximum,
    "min": np.minimum,
    "exch": lambda before, value: value,
}
