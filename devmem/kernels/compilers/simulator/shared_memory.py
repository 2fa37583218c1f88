"""Detecting races in shared memory.

Each array in a block's shared memory (`WatchedArray`) reports its accesses to an `AccessLog`, which keeps them until the block's
next barrier. It raises `Misuse` for two accesses that race, and for a read of an element that no thread has written.
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
from .kernel_arrays import NAME, Array, KernelArray, RecordReference
from .numbers import kernel_number
from .reports import CallSite, Misuse, user_frame

#: Stack frames from the methods `read` and `write` out to the array; the kernel's frame is further out.
DEPTH = 2


class Thread(WorkItem, Protocol):
    """A work-item with its number in the block, and its wave's."""

    index: int
    wave: int


class BarrierEpochs:
    """The number of barriers that a block has passed, and the number of each of its waves."""

    __slots__ = ("block", "waves")

    def __init__(self, waves: int) -> None:
        self.block = 0
        self.waves = [0] * waves


class Access(NamedTuple):
    """The last access of its kind (see `key`) of a work-item to a granule, since the last barrier."""

    item: Thread
    wave_epoch: int
    atomic: bool
    stored: bytes | None  #: the written bytes; None for a read
    code: CodeType
    offset: int

    def key(self) -> tuple[int, bool, int]:
        """The kind of access."""
        return self.item.index, self.atomic, self.wave_epoch


#: By work-item, whether the access is atomic, and the number of wave barriers before it.
Accesses = dict[tuple[int, bool, int], Access]
#: Stands for different values, one after the other; it equals no written value.
SEVERAL_VALUES = b""


class AccessLog:
    """The accesses to one array in a block's shared memory since the last barrier.

    A barrier of the block between two accesses of different work-items orders them, as does a barrier of the wave if both are of
    that wave. Unordered accesses race if one of them writes, unless both are atomic or both write the same bytes.

    Accesses are recorded per granule: an element, or a byte where the same memory may be seen as several types.
    """

    def __init__(self, epochs: BarrierEpochs, granule: int) -> None:
        self._epochs = epochs
        self._granule = granule
        self._epoch = -1
        self._granules: dict[int, tuple[Accesses, Accesses]] = {}  # reads and writes
        self._written: set[int] = set()
        self._atomic = False

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Record the accesses of the ``with`` block as atomic."""
        self._atomic = True
        try:
            yield
        finally:
            self._atomic = False

    def read(self, at: int, nbytes: int, array: WatchedArray, key: object) -> None:
        """Record that the running work-item reads an element of an array, and report a race."""
        now = self._access(None)
        for granule in range(at, at + nbytes, self._granule):
            if granule not in self._written:
                told = f"{_element(array, key)} is read, and no thread has written it: is a barrier missing?"
                raise Misuse("unwritten", told)
            reads, writes = self._granules.setdefault(granule, ({}, {}))
            for other in writes.values():
                if _unordered(now, other):
                    raise _report(now, other, _element(array, key))
            reads[now.key()] = now

    def write(self, at: int, nbytes: int, stored: bytes, array: WatchedArray, key: object) -> None:
        """Record that the running work-item writes an element, and report a race."""
        access = self._access(stored)
        for granule in range(at, at + nbytes, self._granule):
            now = access._replace(stored=stored[granule - at : granule - at + self._granule])
            self._written.add(granule)
            reads, writes = self._granules.setdefault(granule, ({}, {}))
            for other in [*reads.values(), *writes.values()]:
                if other.stored != now.stored and _unordered(now, other):
                    raise _report(now, other, _element(array, key))
            before = writes.get(now.key())
            writes[now.key()] = (
                now if before is None or before.stored == now.stored else now._replace(stored=SEVERAL_VALUES)
            )

    def _access(self, stored: bytes | None) -> Access:
        if self._epoch != self._epochs.block:  # the barrier orders all earlier accesses before this one
            self._epoch = self._epochs.block
            self._granules.clear()
        item: Any = this_thread.item
        frame = user_frame(sys._getframe(DEPTH))
        return Access(item, self._epochs.waves[item.wave], self._atomic, stored, frame.f_code, frame.f_lasti)


def _unordered(now: Access, other: Access) -> bool:
    if other.item is now.item or (now.atomic and other.atomic):
        return False
    return now.item.wave != other.item.wave or now.wave_epoch == other.wave_epoch


def _report(now: Access, other: Access, what: str) -> Misuse:
    does = f"{'read' if now.stored is None else 'written'}{' atomically' if now.atomic else ''}"
    did = f"{'read' if other.stored is None else 'wrote'}{' atomically' if other.atomic else ''}"
    who, where = f"thread {tuple(other.item.thread)}", CallSite((other.code, other.offset))
    return Misuse("race", f"{what} is {does} here, and {who} {did} it with no barrier in between, at {where}")


def _element(array: WatchedArray, key: object) -> str:
    shown = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    return f"element {shown} of {array!r}"


class WatchedArray(KernelArray):
    """An array in shared memory that reports each access to an `AccessLog`.

    ``offsets`` has the same shape: the offset of each element in the shared memory, in bytes.
    """

    __slots__ = ("_log", "_offsets")

    def __init__(self, data: Array, space: str, offsets: Array, log: AccessLog) -> None:
        super().__init__(data, space)
        self._offsets = offsets
        self._log = log

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._field(index)
        key, is_element = self._key(index)
        if not is_element:
            return self._subarray(key)
        if self._data.dtype.names is not None:
            return WatchedRecord(self, key)
        return kernel_number(self.read(key))

    def read(self, key: tuple[Any, ...]) -> Any:
        """Read an element, and report that."""
        self._log.read(int(self._offsets[key]), self._data.itemsize, self, key)
        return self._data[key]

    def _fields(self, name: str) -> WatchedArray:
        data = self._data[name]
        inner = data.shape[self.ndim :]  # of a field that is an array
        within = np.arange(math.prod(inner)).reshape(inner) * data.itemsize
        begin = self._offsets + self._data.dtype.fields[name][1]  # type: ignore[index]  # a record has fields
        return WatchedArray(data, f"{self.space}, field {name!r},", np.add.outer(begin, within), self._log)

    @property
    def T(self) -> Self:
        """The same elements with the axes in reverse."""
        return type(self)(self._data.T, self.space, self._offsets.T, self._log)

    def exchange(self, operation: str, index: Any, operands: tuple[Any, ...]) -> Any:
        """Do an atomic operation on an element; return the old value. Two atomic accesses do not race."""
        with self._log.atomic():
            key, is_element = self._key(index)
            if is_element:
                self.read(key)
            return super().exchange(operation, index, operands)

    def _exchange(self, operation: str, key: tuple[int, ...], operands: tuple[Any, ...]) -> Any:
        before = super()._exchange(operation, key, operands)
        if operation != "cas" or before == operands[0]:
            self._written(key)
        return before

    def _reshaped(self, shape: tuple[int, ...]) -> Self:
        return type(self)(self._data.reshape(shape), self.space, self._offsets.reshape(shape), self._log)

    def _subarray(self, key: tuple[Any, ...]) -> Self:
        return type(self)(self._data[key], self.space, self._offsets[key], self._log)

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        if isinstance(value, WatchedArray):
            for offset in value._offsets.flat:
                value._log.read(int(offset), value._data.itemsize, value, ...)
        super()._store(key, value)
        self._written(key)

    def _written(self, key: tuple[Any, ...]) -> None:
        size = self._data.itemsize
        offsets, stored = np.atleast_1d(self._offsets[key]), np.atleast_1d(self._data[key])
        for offset, each in zip(offsets.flat, stored.flat, strict=True):
            self._log.write(int(offset), size, each.tobytes(), self, key)


class WatchedRecord(RecordReference):
    """A reference to a record in watched memory; accesses to its fields are reported."""

    __slots__ = ("_array", "_at")

    def __init__(self, array: WatchedArray, at: tuple[Any, ...]) -> None:
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_at", at)

    def __getitem__(self, name: str) -> Any:
        return self._array._field(name)[self._at]

    def __setitem__(self, name: str, value: Any) -> None:
        self._array._field(name)[self._at] = value

    def __getattr__(self, name: str) -> Any:
        if name not in (self._array.dtype.names or ()):
            raise AttributeError(advice.on_field(name, self._array.dtype))
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def load(self) -> Any:
        """A copy of the record."""
        return self._array.read(self._at).copy()


WatchedArray.__name__ = NAME
