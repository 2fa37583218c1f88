"""The arrays that kernels see: NumPy's elements, and indices that are checked."""

from __future__ import annotations

import ctypes
import math
import operator
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from .reports import Misuse

if TYPE_CHECKING:
    from .races import Watch

Array = npt.NDArray[Any]

# One type for views of any length: a ctypes array type for each length would cost more than a small launch.
_Anything = ctypes.c_char * (1 << 62)


class Checked:
    """An array in a kernel.

    ``a[i]``, ``a[i, j]`` are NumPy scalars, and can be assigned to; fewer indices, and slices, give arrays that share the memory.
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
                raise Misuse("out of bounds", f"index {at} on axis {axis} of {self!r}")
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
        self._data[key] = value


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


class Watched(Checked):
    """An array in shared memory of which each access is told to the block's `Watch`.

    ``cells`` has the same shape: where in the shared memory each element begins, in bytes.
    """

    __slots__ = ("_cells", "_watch")

    def __init__(self, data: Array, space: str, cells: Array, watch: Watch) -> None:
        super().__init__(data, space)
        self._cells = cells
        self._watch = watch

    def __getitem__(self, index: Any) -> Any:
        key, whole = self._key(index)
        if not whole:
            return self._part(key)
        self._watch.read(int(self._cells[key]), self._data.itemsize, self, key)
        return self._data[key]

    @property
    def T(self) -> Self:
        """The same elements with the axes in reverse."""
        return type(self)(self._data.T, self.space, self._cells.T, self._watch)

    def exchange(self, operation: str, index: Any, operands: tuple[Any, ...]) -> Any:
        """As of any array; accesses that are atomic on both sides are no race."""
        with self._watch.atomic():
            key, whole = self._key(index)
            if whole:
                self._watch.read(int(self._cells[key]), self._data.itemsize, self, key)
            return super().exchange(operation, index, operands)

    def _part(self, key: tuple[Any, ...]) -> Self:
        return type(self)(self._data[key], self.space, self._cells[key], self._watch)

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        size = self._data.itemsize
        if isinstance(value, Watched):
            for cell in value._cells.flat:
                value._watch.read(int(cell), value._data.itemsize, value, ...)
        super()._store(key, value)
        cells, stored = np.atleast_1d(self._cells[key]), np.atleast_1d(self._data[key])
        for cell, each in zip(cells.flat, stored.flat, strict=True):
            self._watch.write(int(cell), size, each.tobytes(), self, key)


def checked(data: Array, space: str) -> Checked:
    """The array as a kernel sees it; records become NumPy's, with fields as attributes."""
    if data.dtype.names is not None and data.dtype.type is not np.record:
        data = data.view(np.dtype((np.record, data.dtype)))
    kind = {1: Line, 2: Plane}.get(data.ndim, Checked)
    return kind(data, space)


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


COMBINE: dict[str, Any] = {
    "add": operator.add,
    "max": np.maximum,
    "min": np.minimum,
    "exch": lambda before, value: value,
}
