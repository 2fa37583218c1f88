"""Detecting races in shared memory.

Each array in a block's shared memory (`Watched`) reports its accesses to a `Watch`, which keeps them until the block's next
barrier. It raises `Misuse` for two accesses that race, and for a read of an element that no thread has written.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from ...work_items import WorkItem, this_thread
from . import advice
from .kernel_arrays import NAME, Array, Checked, Reference
from .numbers import ours
from .reports import Misuse, Place, caller

#: Frames from `Watch.read` and `write` to the array that was indexed; the kernel is above it.
DEPTH = 2


class Thread(WorkItem, Protocol):
    """A work-item with its number in the block, and its wave's."""

    index: int
    wave: int


class BarrierEpochs:
    """How many barriers a block has passed, and how many each of its waves."""

    __slots__ = ("block", "waves")

    def __init__(self, waves: int) -> None:
        self.block = 0
        self.waves = [0] * waves


class Access(NamedTuple):
    """An access of a work-item to a granule: the last of its sort between two barriers."""

    item: Thread
    wave_epoch: int
    atomic: bool
    stored: bytes | None  #: None: it was read
    code: CodeType
    offset: int

    def key(self) -> tuple[int, bool, int]:
        """Of what sort it is."""
        return self.item.index, self.atomic, self.wave_epoch


#: By work-item, whether it is atomic, and what of the wave's barriers were passed.
Accesses = dict[tuple[int, bool, int], Access]
#: What stands for several values, one after the other: nobody writes the same.
SEVERAL = b""


class Watch:
    """All accesses to one piece of a block's shared memory since its last barrier.

    Two accesses of different work-items are ordered by a barrier between them, or by a wave's barrier if both are of that wave.
    If they are not, and one of them writes, they race, unless both are atomic or both write the same bytes.

    Accesses are noted for the granules that they touch: elements, or bytes where the same memory may be seen as several types.
    """

    def __init__(self, epochs: BarrierEpochs, granule: int) -> None:
        self._epochs = epochs
        self._granule = granule
        self._epoch = -1
        self._cells: dict[int, tuple[Accesses, Accesses]] = {}  # who has read, and who has written
        self._written: set[int] = set()
        self._atomic = False

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """What is accessed meanwhile is accessed atomically."""
        self._atomic = True
        try:
            yield
        finally:
            self._atomic = False

    def read(self, at: int, nbytes: int, array: Watched, key: object) -> None:
        """Note that the running work-item reads bytes, which are an element of an array."""
        now = self._access(None)
        for granule in range(at, at + nbytes, self._granule):
            if granule not in self._written:
                told = f"{_element(array, key)} is read, and nobody has written it: is a barrier missing?"
                raise Misuse("unwritten", told)
            reads, writes = self._cells.setdefault(granule, ({}, {}))
            for other in writes.values():
                if _unordered(now, other):
                    raise _report(now, other, _element(array, key))
            reads[now.key()] = now

    def write(self, at: int, nbytes: int, stored: bytes, array: Watched, key: object) -> None:
        """Note that it writes bytes."""
        access = self._access(stored)
        for granule in range(at, at + nbytes, self._granule):
            now = access._replace(stored=stored[granule - at : granule - at + self._granule])
            self._written.add(granule)
            reads, writes = self._cells.setdefault(granule, ({}, {}))
            for other in [*reads.values(), *writes.values()]:
                if other.stored != now.stored and _unordered(now, other):
                    raise _report(now, other, _element(array, key))
            before = writes.get(now.key())
            writes[now.key()] = now if before is None or before.stored == now.stored else now._replace(stored=SEVERAL)

    def _access(self, stored: bytes | None) -> Access:
        if self._epoch != self._epochs.block:  # the barrier orders all earlier accesses before this one
            self._epoch = self._epochs.block
            self._cells.clear()
        item: Any = this_thread.item
        frame = caller(sys._getframe(DEPTH))
        return Access(item, self._epochs.waves[item.wave], self._atomic, stored, frame.f_code, frame.f_lasti)


def _unordered(now: Access, other: Access) -> bool:
    if other.item is now.item or (now.atomic and other.atomic):
        return False
    return now.item.wave != other.item.wave or now.wave_epoch == other.wave_epoch


def _report(now: Access, other: Access, what: str) -> Misuse:
    does = f"{'read' if now.stored is None else 'written'}{' atomically' if now.atomic else ''}"
    did = f"{'read' if other.stored is None else 'wrote'}{' atomically' if other.atomic else ''}"
    who, where = f"thread {tuple(other.item.thread)}", Place((other.code, other.offset))
    return Misuse("race", f"{what} is {does} here, and {who} {did} it with no barrier in between, at {where}")


def _element(array: Watched, key: object) -> str:
    shown = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    return f"element {shown} of {array!r}"


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
