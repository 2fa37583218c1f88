"""The staging ring: a few page-locked slots of one open device, through which large copies of pageable memory go block by block.

A copy leases slots, one at a time. It enqueues a block of its work with the slot, records an event behind that, and gives the
slot back at once; the next copy that takes the slot waits for the event. So the device works on some slots while host threads
fill another, and the memory of the ring bounds what is in flight. A slot is free when it has no holder. The lease notes its
slot before it becomes the holder, and forgets it after the slot is free again.

The driver is called on the thread of the copy alone, and no device is waited for under the lock. A copy never waits for the
work of another stream: where every slot is busy on other streams, a block goes through pageable memory, as it would without a
ring, and the number of such blocks is bounded too. A slot with elements that a download has not stored yet is drained by the
copy that needs it first. The lock may be entered again on the same thread: a finalizer of the user's, run by the collector in
between, may copy.

Slots are made on demand. `devmem.trim` leaves them, because giving back page-locked memory may wait for the whole device; they
are given back when memory runs out and when the device is closed. Where page-locked memory has run out, no slot is made until
some memory was given back.
"""

# Decision: docs/adr/0004-pageable-copies-go-through-a-ring-of-slots.md
from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ....spi.errors import ClosedError, DevmemError, OutOfMemory
from ....spi.types import LEGACY_STREAM, AllocFlags, MemoryKind
from ....toolkit.deferred_errors import FirstError
from ...base.address import address, bytes_at
from ...base.changes import Changes
from ...base.config import settings
from ...base.device_handle import DeviceHandle
from ...base.layout import Shape
from ...ordering.completions import CompletionTracker
from ...ordering.stream import Stream
from ...ordering.stream_table import StreamTable
from ..host_copy import page_aligned_empty
from ..statistics import CopyStatistics
from .workers import CopyWorkers

#: Threads that copy at once where no setting says how many: more do not make the bus of one device busier.
MAX_THREADS = 4
#: Blocks of this size keep that many threads busy and cost little besides: a copy that fits into a few slots is not cut smaller.
SMALL_BLOCK = 4 << 20


class SlotReader(Protocol):
    """A download with elements in slots."""

    def deliver(self, slot: Slot) -> None:
        """Store the elements of a slot in the destination."""

    def fail(self, error: BaseException | None) -> None:
        """Take note that a block will not arrive."""


class Ring:
    """The slots of one open device, and the threads that fill and empty them. Its methods need the device entered."""

    def __init__(
        self,
        handle: DeviceHandle,
        completions: CompletionTracker,
        streams: StreamTable,
        statistics: CopyStatistics,
        workers: CopyWorkers | None = None,
    ) -> None:
        chosen = settings()
        self.handle = handle
        self.completions = completions
        self.streams = streams
        self.statistics = statistics
        #: Bytes from which a copy of pageable memory is staged.
        self.threshold = _threshold(handle)
        self.slot_bytes: int = chosen.staging_slot_bytes
        self._configured_slots: int = chosen.staging_slots
        #: How many slots may exist now: fewer than configured where page-locked memory has run out.
        self.slot_limit: int = self._configured_slots
        threads = chosen.staging_threads or min(MAX_THREADS, os.cpu_count() or 1)
        self.workers = workers or CopyWorkers(threads, statistics.trace)
        self.made: dict[Slot, None] = {}
        #: Leases that are making a slot, of so many bytes.
        self._making: dict[SlotLease, int] = {}
        self._turns = count()
        self._lock = completions.events.lock
        self._changes = Changes(self._lock)

    def block_bytes(self, nbytes: int) -> int:
        """The size of the blocks of a copy of so many bytes: a slot's, or less where that would give one or two blocks only.

        With no other block to fill while the device is busy, host and device would wait for each other.
        """
        return min(self.slot_bytes, max(-(-nbytes // max(self.slot_limit, 1)), SMALL_BLOCK))

    def lease(self, stream: Stream) -> SlotLease:
        """Slots for copies on a stream."""
        return SlotLease(self, stream)

    def take(self, lease: SlotLease, nbytes: int) -> Slot:
        """A drained slot for a block of so many bytes; pageable memory where every slot is busy on other streams.

        Raises
        ------
        DevmemError
            The wait for the slot's previous copy failed.
        """
        slot = self._claim_first(lease, self._is_idle) or self._make(lease, self.slot_bytes)
        if slot is None:
            # What is to be enqueued comes after the stream's own slots anyway; the one that it completes first.
            handle = lease.stream.handle
            slot = self._claim_first(lease, lambda slot: slot.stream == handle)
        if slot is None:
            self.limit_in_flight(lease.stream)
            return pageable_slot(nbytes)
        self.drain(slot)
        return slot

    def drain(self, slot: Slot, what: str = "a slot") -> None:
        """Wait for the copy in a slot that the caller holds, and store the elements that it fetched."""
        reader = slot.reader
        if slot.event:
            try:
                with self.statistics.waiting(what):
                    self.handle.driver.event_synchronize(slot.event)
            except DevmemError as error:
                slot.reader = None
                if reader is not None:
                    reader.fail(error)
                raise
            slot.event = 0
        if reader is not None:
            reader.deliver(slot)  # if it is interrupted, the next copy that takes the slot does it
        slot.reader = None

    def enqueued(self, slot: Slot, lease: SlotLease) -> None:
        """Record an event behind the copy that was enqueued with a slot, and give the slot back."""
        slot.event = self.completions.events.record(lease.stream.handle)
        slot.stream = lease.stream.handle
        slot.turn = next(self._turns)
        lease.in_flight = False
        self.give_back(lease)

    def free_slots(self) -> list[Slot]:
        """Slots that no lease holds; the one that was used the longest ago comes first."""
        return sorted((slot for slot in list(self.made) if slot.holder is None), key=lambda slot: slot.turn)

    def claim(self, slot: Slot, lease: SlotLease, turn: int | None = None) -> bool:
        """Take this slot, if it is free, and was not given back to the driver meanwhile; ``turn``: if it was not used since."""
        with self._lock:
            if slot.holder is not None or slot not in self.made or turn not in (None, slot.turn):
                return False
            lease.slot = slot
            slot.holder = lease
            return True

    def give_back(self, lease: SlotLease) -> None:
        """Make the lease's slot free, if it holds one."""
        with self._lock:
            if lease.slot is not None and lease.slot.holder is lease:
                lease.slot.holder = None
        self._changes.tell()
        lease.slot = None

    def release(self, lease: SlotLease) -> None:
        """End a lease. Its slot is never used again where a device may use it at a time that cannot be known."""
        self._making.pop(lease, None)
        if lease.in_flight and lease.slot is not None:
            lease.slot.reader = None
            try:
                self.handle.driver.stream_synchronize(lease.stream.handle)
            except DevmemError:
                return  # still held
        self.give_back(lease)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, which is looked at whenever a slot became free or a download failed.

        Raises
        ------
        RuntimeError
            Another thread has the slots, and this is a signal's handler or a finalizer, which cannot wait.
        """
        if not condition():
            with self.statistics.waiting("a block that another thread stores"):
                self._changes.wait_until(condition, "a slot of the staging ring")

    def wake(self) -> None:
        """Let waiting threads look at their conditions again."""
        self._changes.tell()

    def limit_in_flight(self, stream: Stream) -> None:
        """Wait for the caller's own stream where it has as many pageable blocks in flight as the ring has slots."""
        if self.completions.count(stream) >= max(self.slot_limit, 2):
            with self.statistics.waiting("the stream"):
                self.handle.driver.stream_synchronize(stream.handle)
            self.completions.poll()

    def retry(self) -> None:
        """Let more slots be made: there may be page-locked memory again."""
        self.slot_limit = self._configured_slots

    def release_events(self) -> None:
        """Give back the events of free slots whose copies have completed; the slots stay."""
        for slot in self.free_slots():
            turn = slot.turn
            if slot.event and slot.reader is None and self._is_idle(slot):
                with self._lock:
                    if slot.holder is None and slot.turn == turn:  # it was not used meanwhile
                        slot.event = 0

    def trim(self) -> None:
        """Give back the slots that no copy uses; this may wait for the device."""
        if self.made:
            with self.lease(self.streams.legacy) as lease:
                unused: Callable[[Slot], bool] = lambda slot: slot.reader is None and self._is_idle(slot)  # noqa: E731
                self._destroy(iter(partial(self._claim_first, lease, unused), None))
        self.retry()

    def close(self) -> None:
        """Give all slots back, and let the threads end; the device is idle, and no copy is running.

        A download that was not finished fails: the elements that it fetched go with the slots.
        """
        closed = ClosedError(f"{self.handle.device} was closed before the copy was waited for: make it anew")
        for slot in list(self.made):
            reader = slot.reader
            if reader is not None:
                reader.fail(closed)
        self.workers.close()
        self._destroy(list(self.made))

    # -- below ---------------------------------------------------------------------------------------------------------

    def _is_idle(self, slot: Slot) -> bool:
        event = slot.event
        return not event or self.handle.driver.event_query(event)

    def _claim_first(self, lease: SlotLease, fits: Callable[[Slot], bool]) -> Slot | None:
        # The driver is asked without the lock.
        asked = ((slot, slot.turn) for slot in self.free_slots())
        return next((slot for slot, turn in asked if fits(slot) and self.claim(slot, lease, turn)), None)

    def _has_room(self, nbytes: int) -> bool:
        """Whether a slot of so many bytes may be made; the lock is held."""
        return len(self.made) + len(self._making) < self.slot_limit

    def _make_do(self) -> None:
        """Take note that page-locked memory has run out: no more is tried for each block."""
        self.slot_limit = len(self.made)

    def _make(self, lease: SlotLease, nbytes: int) -> Slot | None:
        """A new slot, unless there are enough, or page-locked memory has run out."""
        with self._lock:
            if not self._has_room(nbytes):
                return None
            self._making[lease] = nbytes
        try:
            ptr = self.handle.driver.alloc(nbytes, LEGACY_STREAM, MemoryKind.PINNED, AllocFlags.NONE)
            lease.slot = slot = Slot(bytes_at(ptr, nbytes), ptr, lease)
            self.made[slot] = None
            return slot
        except OutOfMemory:
            self._make_do()
            return None
        finally:
            # Only when it is counted in `made`: else another thread would find room for one too many.
            self._making.pop(lease, None)

    def _destroy(self, slots: Iterable[Slot]) -> None:
        with FirstError() as first:
            for slot in slots:
                self.made.pop(slot, None)
                # The rest must still be given back.
                first.attempt(self.handle.driver.free, slot.ptr, slot.nbytes, LEGACY_STREAM, MemoryKind.PINNED)


class SlotLease:
    """``with ring.lease(stream) as lease:`` the right of one copy to hold slots, one at a time.

    A copy that reaches the end of the block has given every slot back. Where an error or a KeyboardInterrupt leaves the block
    early, the slot that is held then is given back: when the stream has completed, if a device may be using the slot.
    """

    __slots__ = ("in_flight", "ring", "slot", "stream")

    def __init__(self, ring: Ring, stream: Stream) -> None:
        self.ring = ring
        self.stream = stream
        #: The slot that is held.
        self.slot: Slot | None = None
        #: Whether a device may be using it, with no event behind that.
        self.in_flight = False

    def __enter__(self) -> SlotLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.ring.release(self)


class Slot:
    """Host memory for one block of a copy: page-locked memory of the ring, or pageable memory for one use.

    Attributes
    ----------
    ptr, nbytes : int
        The address, and the size.
    holder : SlotLease or None
        The lease that has taken it.
    event, stream, turn : int
        The event behind the last copy that used the slot (0: that was waited for), its stream's handle, and when it was enqueued.
    in_ring : bool
        Whether the memory is the ring's, and has to be given back.
    """

    __slots__ = ("_raw", "_reader", "event", "holder", "in_ring", "nbytes", "ptr", "stream", "turn")

    def __init__(self, raw: npt.NDArray[np.uint8], ptr: int, holder: SlotLease | None = None) -> None:
        self._raw = raw
        self._reader: weakref.ref[SlotReader] | None = None
        self.ptr = ptr
        self.nbytes = raw.nbytes
        self.event = self.stream = self.turn = 0
        self.holder = holder
        self.in_ring = holder is not None

    @property
    def reader(self) -> SlotReader | None:
        """The download that wants the slot's elements, which is not kept alive."""
        return None if self._reader is None else self._reader()

    @reader.setter
    def reader(self, reader: SlotReader | None) -> None:
        self._reader = None if reader is None else weakref.ref(reader)

    def array(self, shape: Shape, dtype: np.dtype[Any], strides: Shape | None = None) -> npt.NDArray[Any]:
        """The memory as an array, C-contiguous or with other strides, none of them negative."""
        return np.ndarray(shape, dtype, self._raw, 0, strides)


def _threshold(handle: DeviceHandle) -> int:
    chosen, info = settings(), handle.info
    threshold = info.staging_threshold if chosen.staging_threshold is None else chosen.staging_threshold
    pays = MemoryKind.PINNED in info.memory_kinds and (chosen.staging_threshold is not None or info.staging_threshold)
    return max(threshold, 1) if chosen.staging_slots and pays else sys.maxsize


def pageable_slot(nbytes: int) -> Slot:
    """Pageable memory in place of a slot, for one use."""
    raw = page_aligned_empty((nbytes,), np.uint8)
    return Slot(raw, address(raw))
