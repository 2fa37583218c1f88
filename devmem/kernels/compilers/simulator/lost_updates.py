"""Elements of the device's memory that two threads update, with no atomic operation: one of the two is lost on a GPU."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, NamedTuple

from ...work_items import Dim3, this_thread
from .kernel_arrays import NAME, Array, Checked
from .numbers import ours
from .reports import Misuse, Place, caller


class When(NamedTuple):
    """Which work-item, between which of its barriers."""

    block: Dim3
    number: int
    epoch: int
    wave: int
    wave_epoch: int

    def unordered(self, other: When) -> bool:
        """Whether no barrier orders the two; between blocks there is none."""
        if self.block != other.block:
            return True
        if self.number == other.number or self.epoch != other.epoch:
            return False
        return self.wave != other.wave or self.wave_epoch == other.wave_epoch


class Written(NamedTuple):
    """A write of an element."""

    when: When
    thread: Dim3
    stored: bytes
    code: CodeType
    offset: int


class Updates:
    """What a launch has written, element by element.

    Told is one thing only, because it is never right: a thread reads what another one wrote, and writes another value there,
    with no barrier between the two. From the first atomic operation, or fence, of the launch nothing is told any more: threads
    can order their accesses by them in ways that are not looked through.
    """

    def __init__(self) -> None:
        self.ordered = False  #: in ways of their own
        self._written: dict[int, Written] = {}
        self._read: dict[int, tuple[When, Written]] = {}

    def read(self, at: int) -> None:
        """Note that the running work-item reads the element at an address."""
        other = self._written.get(at)
        if other is not None and not self.ordered and (now := _now()).unordered(other.when):
            self._read[at] = now, other

    def write(self, at: int, stored: bytes, array: Updated, key: tuple[Any, ...]) -> None:
        """Note that it writes it."""
        if self.ordered:
            return
        now, (then, other) = _now(), self._read.pop(at, (None, None))
        if other is not None and now == then and len(stored) == len(other.stored) and stored != other.stored:
            shown = key[0] if len(key) == 1 else key
            raise Misuse(
                "race",
                f"element {shown} of {array!r} is read and written here, and thread {tuple(other.thread)} of block "
                f"{tuple(other.when.block)} wrote it with no barrier in between, at {Place((other.code, other.offset))}: on a "
                f"GPU one of the two is lost; use devmem.atomic, or an element for each thread",
            )
        frame, item = caller(sys._getframe(1)), this_thread.item
        assert item is not None
        self._written[at] = Written(now, item.thread, stored, frame.f_code, frame.f_lasti)


class Updated(Checked):
    """An array on the device of whose single elements each access is told to the launch's `Updates`."""

    __slots__ = ("_begin", "_updates")

    def __init__(self, data: Array, space: str, updates: Updates) -> None:
        super().__init__(data, space)
        self._updates = updates
        self._begin = data.__array_interface__["data"][0]

    def __getitem__(self, index: Any) -> Any:
        key, whole = self._key(index)
        if not whole:
            return self._part(key)
        self._updates.read(self._address(key))
        return ours(self._data[key])

    def _store(self, key: tuple[Any, ...], value: Any) -> None:
        super()._store(key, value)
        if len(key) == len(self.shape) and slice not in map(type, key):
            self._updates.write(self._address(key), self._data[key].tobytes(), self, key)

    def _address(self, key: tuple[int, ...]) -> int:
        return int(self._begin + sum(place * step for place, step in zip(key, self._data.strides, strict=True)))

    def _over(self, data: Array) -> Checked:
        return Updated(data, self.space, self._updates)


def updated(argument: object, updates: Updates) -> object:
    """An argument of a launch as it is seen where updates are watched: arrays of numbers that may be written are."""
    if isinstance(argument, Checked) and argument._data.flags.writeable and argument.dtype.names is None:
        return Updated(argument._data, argument.space, updates)
    return argument


def _now() -> When:
    item: Any = this_thread.item
    return When(item.block, item.index, item.group.epochs.block, item.wave, item.group.epochs.waves[item.wave])


Updated.__name__ = NAME
