"""Fields that the compiled core reads of handles, allocations, arrays, streams, events and queues; the live blocks of a heap.

They are of its classes, or of such in Python.

Flags are bools: the core's classes take nothing else for them, and have False where none was set.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from ..._native import core


class LiveBlocks(Protocol):
    """The live blocks of a heap. Each remembers its place, by which it is taken out."""

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""

    def __len__(self) -> int: ...

    def enter(self, block: AllocationState, /) -> None:
        """Enter a block, which remembers its place; no interrupt comes between the two."""

    def take(self, place: int, ptr: int, /) -> bool:
        """Take a block out; whether it was there."""

    def blocks(self) -> list[tuple[int, int, int]]:
        """Address, bytes and place of each."""

    def clear(self) -> None:
        """Take all out."""


class BlocksByPlace(dict[int, tuple[int, int]]):
    """Live blocks in Python: address and bytes of each by its place."""

    def __init__(self) -> None:
        super().__init__()
        self._places = count()

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(nbytes for _, nbytes in list(self.values()))

    def enter(self, block: AllocationState, /) -> None:
        """Enter a block, which remembers its place; no interrupt comes between the two."""
        block.place = place = next(self._places)
        self[place] = block.ptr, block.nbytes

    def take(self, place: int, ptr: int, /) -> bool:
        """Take a block out; whether it was there."""
        return self.get(place, (0, 0))[0] == ptr and self.pop(place, None) is not None

    def blocks(self) -> list[tuple[int, int, int]]:
        """Address, bytes and place of each."""
        return [(ptr, nbytes, place) for place, (ptr, nbytes) in list(self.items())]


def new_live_blocks() -> LiveBlocks:
    """The table of a new heap."""
    made: LiveBlocks = BlocksByPlace() if core is None else core.LiveBlocks()
    return made


if TYPE_CHECKING or core is None:

    class HandleState:
        """The slots of a `DeviceHandle` that the core reads."""

        __slots__ = (
            "dead",
            "dlpack_device",
            "driver",
            "drop",
            "dropped",
            "dropped_bytes",
            "entry",
            "heap",
            "lane",
            "legacy_number",
            "outside",
            "scopes",
        )

        dead: object
        dlpack_device: tuple[int, int]
        driver: object
        drop: object
        dropped: object
        dropped_bytes: int
        entry: object
        heap: object
        lane: object
        legacy_number: int | None
        outside: int
        scopes: int

    class AllocationState:
        """The slots of an `Allocation` that the core reads."""

        __slots__ = ("device_handle", "freed", "heap", "home", "nbytes", "place", "ptr", "queue", "streams", "unnamed")

        device_handle: object
        freed: bool
        heap: object
        home: object
        nbytes: int
        place: int
        ptr: int
        queue: object
        streams: object
        unnamed: bool

    class ArrayState:
        """The slots of an `ArrayView`, and of the arrays that are views."""

        __slots__ = ("_dtype", "_ptr", "_shape", "_stream", "_strides", "allocation", "open_device")

        _dtype: object
        _ptr: int
        _shape: tuple[int, ...]
        _stream: object
        _strides: tuple[int, ...] | None
        allocation: object
        open_device: object

    class OwnerState:
        """The slots of a `Stream` or an `Event`."""

        __slots__ = ("_drop", "device_handle", "handle", "owned", "services")

    class StreamState(OwnerState):
        """The slots of a `Stream`."""

        __slots__ = ("external", "is_default", "non_blocking", "plain", "recorder", "simple")

    class EventState(OwnerState):
        """The slots of an `Event`."""

        __slots__ = ("recorded", "timing")

        handle: int

    class RecordState:
        """The slots of an `OwnedHandle` that the core reads."""

        __slots__ = ("handle", "idle", "key", "leaving", "table")

    class DeferralState:
        """The slots of a `Deferral`."""

        __slots__ = ("counting", "depth")

        counting: AbstractContextManager[object]
        depth: int

    class LocksState:
        """The attribute of a `PageLockTable` that the core reads."""

        segments: list[Any]

    class QueueState:
        """The attributes of a `DeferredFreeQueue` that the core reads."""

        pending: deque[Any]
        pending_bytes: int
        foreign_releases: deque[Any]

else:
    HandleState, AllocationState, ArrayState = core.HandleState, core.AllocationState, core.ArrayState
    StreamState, EventState, RecordState = core.StreamState, core.EventState, core.RecordState
    DeferralState, LocksState, QueueState = core.DeferralState, core.LocksState, core.QueueState
