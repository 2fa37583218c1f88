"""Detect lost updates in device memory: two threads update an element without an atomic operation.

A thread that reads a value which another thread wrote, and then writes a different value there, with no barrier between the two
threads, loses one of the updates on a GPU. Only this pattern is reported, because it is never correct. After the first atomic
operation or fence of a launch nothing more is reported: threads can use these to order their accesses, which is not analysed.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, NamedTuple

from ...work_items import Dim3, this_thread
from .kernel_arrays import NAME, Array, KernelArray
from .numbers import kernel_number
from .reports import CallSite, Misuse, user_frame


class ExecutionPoint(NamedTuple):
    """A work-item and the number of barriers it has passed."""

    block: Dim3
    number: int
    epoch: int
    wave: int
    wave_epoch: int

    def unordered(self, other: ExecutionPoint) -> bool:
        """Whether no barrier orders the two points; there is none between blocks."""
        if self.block != other.block:
            return True
        if self.number == other.number or self.epoch != other.epoch:
            return False
        return self.wave != other.wave or self.wave_epoch == other.wave_epoch


class Write(NamedTuple):
    """A write of an element."""

    when: ExecutionPoint
    thread: Dim3
    stored: bytes
    code: CodeType
    offset: int


class UpdateLog:
    """The last write to each element in a launch."""

    def __init__(self) -> None:
        self.ordered = False  #: threads used atomic operations or fences
        self._written: dict[int, Write] = {}
        self._read: dict[int, tuple[ExecutionPoint, Write]] = {}

    def read(self, at: int) -> None:
        """Record that the running work-item reads the element at an address."""
        other = self._written.get(at)
        if other is not None and not self.ordered and (now := _now()).unordered(other.when):
            self._read[at] = now, other

    def write(self, at: int, stored: bytes, array: UpdateTrackedArray, key: tuple[Any, ...]) -> None:
        """Record that the running work-item writes an element; raise Misuse for a lost update."""
        if self.ordered:
            return
        now, (then, other) = _now(), self._read.pop(at, (None, None))
        if other is not None and now == then and len(stored) == len(other.stored) and stored != other.stored:
            shown = key[0] if len(key) == 1 else key
            raise Misuse(
                "race",
                f"element {shown} of {array!r} is read and written here, and thread {tuple(other.thread)} of block "
                f"{tuple(other.when.block)} wrote it with no barrier in between, at {CallSite((other.code, other.offset))}: on a "
                f"GPU one of the two is lost; use devmem.atomic, or an element for each thread",
            )
        frame, item = user_frame(sys._getframe(1)), this_thread.item
        assert item is not None
        self._written[at] = Write(now, item.thread, stored, frame.f_code, frame.f_lasti)


class UpdateTrackedArray(KernelArray):
    """A device array that reports each access to a single element to the launch's `UpdateLog`."""

    __slots__ = ("_begin", "_updates")

    def __init__(self, data: Array, space: str, updates: UpdateLog) -> None:
        super().__init__(data, space)
        self._updates = updates
        self._begin = data.__array_interface__["data"][0]

    def __getitem__(self, index: Any) -> Any:
        key, is_element = self._key(index)
        if not is_element:
            return self._subarray(key)
        self._updates.read(self._address(key))
        return kernel_number(self._data[key])

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        super()._store(key, value)
        if len(key) == len(self.shape) and all(type(place) is int for place in key):
            self._updates.write(self._address(key), self._data[key].tobytes(), self, key)

    def _address(self, key: tuple[int, ...]) -> int:
        return int(self._begin + sum(place * step for place, step in zip(key, self._data.strides, strict=True)))

    def _with_data(self, data: Array) -> KernelArray:
        return UpdateTrackedArray(data, self.space, self._updates)


def track_updates(argument: object, updates: UpdateLog) -> object:
    """The argument of a launch, as an `UpdateTrackedArray` if it is a writable array of numbers."""
    if isinstance(argument, KernelArray) and argument._data.flags.writeable and argument.dtype.names is None:
        return UpdateTrackedArray(argument._data, argument.space, updates)
    return argument


def _now() -> ExecutionPoint:
    item: Any = this_thread.item
    return ExecutionPoint(
        item.block, item.index, item.group.epochs.block, item.wave, item.group.epochs.waves[item.wave]
    )


UpdateTrackedArray.__name__ = NAME
