"""Arrays in shared memory of which each access is told."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from . import advice
from .kernel_arrays import NAME, Array, Checked, Reference
from .numbers import ours

if TYPE_CHECKING:
    from .shared_memory import Watch


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
        if self._data.dtype.names is not None:
            return WatchedRecord(self, key)
        return ours(self.read(key))

    def read(self, key: tuple[Any, ...]) -> Any:
        """An element; that it is read is told."""
        self._watch.read(int(self._cells[key]), self._data.itemsize, self, key)
        return self._data[key]

    def field(self, name: str) -> Watched:
        """A field of all elements, which are records."""
        if name not in (self._data.dtype.names or ()):
            raise AttributeError(advice.on_field(name, self._data.dtype))
        data = self._data[name]
        inner = data.shape[self.ndim :]  # of a field that is an array itself
        within = np.arange(math.prod(inner)).reshape(inner) * data.itemsize
        begin = self._cells + self._data.dtype.fields[name][1]  # type: ignore[index]  # a record has fields
        return Watched(data, f"{self.space}, field {name!r},", np.add.outer(begin, within), self._watch)

    @property
    def T(self) -> Self:
        """The same elements with the axes in reverse."""
        return type(self)(self._data.T, self.space, self._cells.T, self._watch)

    def exchange(self, operation: str, index: Any, operands: tuple[Any, ...]) -> Any:
        """As of any array; accesses that are atomic on both sides are no race."""
        with self._watch.atomic():
            key, whole = self._key(index)
            if whole:
                self.read(key)
            return super().exchange(operation, index, operands)

    def _exchange(self, operation: str, key: tuple[int, ...], operands: tuple[Any, ...]) -> Any:
        before = super()._exchange(operation, key, operands)
        if operation != "cas" or before == operands[0]:
            self._written(key)
        return before

    def _part(self, key: tuple[Any, ...]) -> Self:
        return type(self)(self._data[key], self.space, self._cells[key], self._watch)

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        if isinstance(value, Watched):
            for cell in value._cells.flat:
                value._watch.read(int(cell), value._data.itemsize, value, ...)
        super()._store(key, value)
        self._written(key)

    def _written(self, key: tuple[Any, ...]) -> None:
        size = self._data.itemsize
        cells, stored = np.atleast_1d(self._cells[key]), np.atleast_1d(self._data[key])
        for cell, each in zip(cells.flat, stored.flat, strict=True):
            self._watch.write(int(cell), size, each.tobytes(), self, key)


class WatchedRecord(Reference):
    """A record in watched memory, where it lies: what is told of are accesses to its fields."""

    __slots__ = ("_array", "_at")

    def __init__(self, array: Watched, at: tuple[Any, ...]) -> None:
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_at", at)

    def __getitem__(self, name: str) -> Any:
        return self._array.field(name)[self._at]

    def __setitem__(self, name: str, value: Any) -> None:
        self._array.field(name)[self._at] = value

    def __getattr__(self, name: str) -> Any:
        if name not in (self._array.dtype.names or ()):
            raise AttributeError(advice.on_field(name, self._array.dtype))
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def whole(self) -> Any:
        """All of it, as it is now."""
        return self._array.read(self._at).copy()


Watched.__name__ = NAME
