"""What is remembered of a block's accesses to shared memory, and what of it is a race."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from ...work_items import this_thread
from .reports import Misuse, Place, caller

if TYPE_CHECKING:
    from .block_runner import Group, Item
    from .watched_arrays import Watched

#: Frames from `Watch.read` and `write` to the array that was indexed; the kernel is above it.
DEPTH = 2


class Access(NamedTuple):
    """An access of a work-item to a granule: the last of its sort between two barriers."""

    item: Item
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

    def __init__(self, group: Group, granule: int) -> None:
        self._group = group
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
        group = self._group
        if self._epoch != group.epoch:  # all that was before is ordered before
            self._epoch = group.epoch
            self._cells.clear()
        item: Any = this_thread.item
        frame = caller(sys._getframe(DEPTH))
        return Access(item, group.wave_epochs[item.wave], self._atomic, stored, frame.f_code, frame.f_lasti)


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
