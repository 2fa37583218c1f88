"""Page-locked slots that large copies pass through, a few for each device."""

# Decision: docs/adr/0004-pageable-copies-go-through-a-ring-of-slots.md
from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ....spi.errors import ClosedError, DevmemError, OutOfMemory
from ....spi.types import LEGACY_STREAM, AllocFlags, MemoryKind
from ....toolkit.deferred_errors import FirstError
from ...base.address import address
from ...base.config import settings
from ...base.device_handle import DeviceHandle
from ...base.layout import Shape
from ...ordering.completions import CompletionTracker
from ...ordering.stream import Stream
from ...ordering.stream_table import StreamTable
from ..host_scratch import scratch
from ..statistics import CopyStatistics
from .workers import CopyWorkers

if TYPE_CHECKING:
    from types import TracebackType


#: Threads that copy at once, where nobody said how many: more do not make one device's bus busier.
MOST_THREADS = 4
#: Blocks of this size keep as many threads busy, and cost little besides: what fits into a few slots is not cut smaller.
SMALL_BLOCK = 4 << 20


class SlotReader(Protocol):
    """A download that has elements in slots."""

    def take_out(self, slot: Slot) -> None:
        """Put the elements in a slot where they belong."""

    def returned(self) -> None:
        """Take note that a slot with elements of this download was put back."""

    def fail(self, error: BaseException) -> None:
        """Take note that a block will not come."""


class Ring:
    """The slots of one open device, and the crew that fills and empties them.

    A slot is taken, given a copy to do, and put back behind the others at once; who takes it next waits for the event behind that
    copy. So the engine drains some slots while the crew fills another, and the ring's memory bounds what is under way. Slots are
    taken within a `SlotLease` and noted as its own, so none gets lost, wherever the one who took it is interrupted.

    Only whoever copies calls the driver, on its own thread. Nobody waits for another stream's copies: where all slots are
    busy on others, a block goes through ordinary memory, as it would without a ring. A slot whose elements were not fetched yet
    is emptied by whoever needs it first. Slots are made when they are needed, and stay: `devmem.trim` leaves them alone, because
    giving page-locked memory back may wait for the whole device. They go where memory runs out, and when the device is closed.
    Where page-locked memory has run out no more are made, until something gives memory back.
    """

    def __init__(
        self, handle: DeviceHandle, completions: CompletionTracker, streams: StreamTable, statistics: CopyStatistics
    ) -> None:
        chosen = settings()
        self.handle = handle
        self.completions = completions
        self.streams = streams
        self.statistics = statistics
        #: Bytes from which a copy of pageable memory is staged.
        self.threshold = _threshold(handle)
        self.slot_bytes: int = chosen.staging_slot_bytes
        self.slots: int = chosen.staging_slots
        #: How many slots are made now: fewer where page-locked memory has run out.
        self.most: int = self.slots
        self.workers = CopyWorkers(chosen.staging_threads or min(MOST_THREADS, os.cpu_count() or 1), statistics.trace)
        self.made: dict[Slot, None] = {}
        self._free: deque[Slot] = deque()
        #: Slots that a device may still touch where nothing can tell any more.
        self._stranded: list[Slot] = []
        #: By whom slots are being made.
        self._making: dict[SlotLease, None] = {}
        self._lock = threading.RLock()  # a finalizer of the user's, run by the collector in between, may copy

    def block_bytes(self, nbytes: int) -> int:
        """The most that a block of a copy of so many bytes should have.

        A slot's worth; or less, if the copy would then be a block or two: with nothing to fill while the device is busy, each
        side would wait for the other.
        """
        return min(self.slot_bytes, max(-(-nbytes // max(self.most, 1)), SMALL_BLOCK))

    def lease(self, stream: Stream) -> SlotLease:
        """In a `with` block: slots for copies on a stream; the device is entered."""
        return SlotLease(self, stream)

    def take(self, lease: SlotLease, nbytes: int) -> Slot:
        """A slot for a copy of so many bytes, with nothing in it any more.

        Raises
        ------
        DevmemError
            The wait for the copy before failed.
        """
        slot = self._idle(lease) or self._make(lease) or self._oldest_on(lease)
        if slot is None:
            self.hold_back(lease.stream)
            return _ordinary(nbytes)
        self.settle(slot)
        return slot

    def settle(self, slot: Slot) -> None:
        """Wait for the copy in a slot that is the caller's, and have what it fetched taken out."""
        download = slot.wanted_by()
        if slot.stream is not None:
            try:
                with self.statistics.waiting("a slot"):
                    self.handle.driver.event_synchronize(slot.event)
            except DevmemError as error:
                slot.fetched = None
                if download is not None:
                    download.fail(error)
                raise
            slot.stream = None
        if download is not None:
            download.take_out(slot)  # if that is interrupted, whoever has the slot next does it
        slot.fetched = None

    def enqueued(self, slot: Slot, lease: SlotLease) -> None:
        """Take note that a copy with a slot is on the stream, and let others have it behind that."""
        self.handle.driver.event_record(slot.event, lease.stream.handle)
        slot.stream = weakref.ref(lease.stream)
        lease.begun = False
        self.put_back(slot, lease)

    def put_back(self, slot: Slot, lease: SlotLease) -> None:
        """Let others have a slot. To be done again if it was interrupted: until it is complete the slot is noted as held."""
        with self._lock:
            if slot.holder is not lease:
                return  # somebody else has taken it meanwhile
            if slot not in self._free:
                self._free.append(slot)
        download = slot.wanted_by()
        if download is not None:
            download.returned()
        with self._lock:
            if slot.holder is lease:
                slot.holder = None

    def let_go(self, lease: SlotLease) -> None:
        """Put back what was taken and not put back, whether or not whoever took it got to know of it.

        A slot that a device may still be at follows when the stream has passed it, or, where that cannot be told, never.
        """
        with self._lock:
            self._making.pop(lease, None)
            held = [slot for slot in list(self.made) if slot.holder is lease]  # others may be making some
        for slot in held:
            if lease.begun:
                slot.fetched = None
                try:
                    self.handle.driver.stream_synchronize(lease.stream.handle)
                except BaseException as error:
                    slot.holder = None
                    self._stranded.append(slot)
                    if isinstance(error, DevmemError):
                        continue
                    raise
                slot.stream = None
            self.put_back(slot, lease)

    def hold_back(self, stream: Stream) -> None:
        """Wait for a stream with as many ordinary blocks on it as the ring has slots, or they would be without bound.

        The stream is the caller's: to wait for it is not to wait for somebody else's.
        """
        if self.completions.count(stream) >= max(self.most, 2):
            with self.statistics.waiting("the stream"):
                self.handle.driver.stream_synchronize(stream.handle)
            self.completions.poll()

    def claim(self, slot: Slot, lease: SlotLease) -> bool:
        """Take this slot, unless somebody has it: who has it settles it."""
        with self._lock:
            if slot not in self._free:
                return False
            slot.holder = lease  # before it is taken out, or an interrupt in between would lose it
            self._free.remove(slot)
            return True

    def retry(self) -> None:
        """Page-locked memory may be had again: let more slots be made."""
        self.most = self.slots

    def trim(self) -> None:
        """Give back the slots that nothing is in; the device is entered, and may be waited for."""
        with self.lease(self.streams.legacy) as lease:
            idle: list[Slot] = []
            with self._lock:
                unused = (slot for slot in list(self._free) if slot.wanted_by() is None and self._is_idle(slot))
                idle.extend(slot for slot in unused if self.claim(slot, lease))
            self._destroy(idle)
        self.retry()

    def close(self) -> None:
        """Give all slots back, and let the crew end; the device is idle and entered, and nobody copies.

        Downloads that nobody waited for fail: what they fetched goes with the slots.
        """
        with self._lock:
            self._free.clear()
        for slot in list(self.made):
            download = slot.wanted_by()
            if download is not None:
                download.fail(
                    ClosedError(f"{self.handle.device} was closed before the copy was waited for: make it anew")
                )
        self.workers.close()
        self._destroy(list(self.made))

    # -- below ---------------------------------------------------------------------------------------------------------

    def _is_idle(self, slot: Slot) -> bool:
        return slot.stream is None or bool(self.handle.driver.event_query(slot.event))

    def _idle(self, lease: SlotLease) -> Slot | None:
        """A slot that need not be waited for: the one that has been free for the longest."""
        with self._lock:
            return next((slot for slot in list(self._free) if self._is_idle(slot) and self.claim(slot, lease)), None)

    def _oldest_on(self, lease: SlotLease) -> Slot | None:
        """The slot that the stream passes first. What is enqueued on it now comes later anyway."""
        with self._lock:
            mine = (slot for slot in list(self._free) if slot.stream is not None and slot.stream() is lease.stream)
            return next((slot for slot in mine if self.claim(slot, lease)), None)

    def _make(self, lease: SlotLease) -> Slot | None:
        """One slot more, unless there are enough, or page-locked memory has run out."""
        with self._lock:
            if len(self.made) + len(self._making) >= self.most:
                return None
            self._making[lease] = None
        driver = self.handle.driver
        event = ptr = 0
        try:
            event = driver.event_create(False)
            ptr = driver.alloc(self.slot_bytes, LEGACY_STREAM, MemoryKind.PINNED, AllocFlags.NONE)
            slot = Slot(np.asarray(_Memory(ptr, self.slot_bytes)), ptr, event, lease)
            self.made[slot] = None
            return slot
        except BaseException as error:
            if all(slot.event != event for slot in list(self.made)):
                if ptr:
                    driver.free(ptr, self.slot_bytes, LEGACY_STREAM, MemoryKind.PINNED)
                if event:
                    driver.event_destroy(event)
            if not isinstance(error, OutOfMemory):
                raise
            self.most = len(self.made)  # not tried again for each block; `retry` forgets it
            return None
        finally:
            self._making.pop(
                lease, None
            )  # when it is counted as made, or another thread would find room for one too many

    def _destroy(self, slots: list[Slot]) -> None:
        driver = self.handle.driver
        with FirstError() as first:
            for slot in slots:
                self.made.pop(slot, None)
                for give_back, what in (
                    (driver.event_destroy, (slot.event,)),
                    (driver.free, (slot.ptr, self.slot_bytes, LEGACY_STREAM, MemoryKind.PINNED)),
                ):
                    try:
                        give_back(*what)
                    except DevmemError as error:  # the others must still be given back
                        first.put(error)


class SlotLease:
    """Who takes slots, for copies on a stream, one at a time, and puts each back; in a `with` block.

    Where the block is left too early, by an error or a KeyboardInterrupt, which can come anywhere, what is held then is put back
    at its end; a slot that a device may be at, when the stream has passed it. Whoever comes to the end has put all back before:
    an interrupt can come between the end of a block and what is done there.
    """

    __slots__ = ("begun", "ring", "stream")

    def __init__(self, ring: Ring, stream: Stream) -> None:
        self.ring = ring
        self.stream = stream
        #: Whether a device may be at the slot that is held, and its event does not tell of it.
        self.begun = False

    def __enter__(self) -> SlotLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.ring.let_go(self)
        except BaseException:  # interrupted once more
            self.ring.let_go(self)
            raise


class Slot:
    """Host memory for one block of a copy: page-locked, or ordinary where the ring had none to give.

    Attributes
    ----------
    ptr : int
        The address.
    event : int
        Behind the copy that the slot is in; 0 for ordinary memory.
    stream : weakref to Stream, or None
        What that copy is on; None when it has passed.
    fetched : weakref to SlotReader, or None
        Who wants what the copy brings.
    holder : SlotLease, or None
        Who has taken it; meaningless while it is among the free ones.
    """

    __slots__ = ("_raw", "event", "fetched", "holder", "ptr", "stream")

    def __init__(self, raw: npt.NDArray[np.uint8], ptr: int, event: int, holder: SlotLease | None = None) -> None:
        self._raw = raw
        self.ptr = ptr
        self.event = event
        self.stream: weakref.ref[Stream] | None = None
        self.fetched: weakref.ref[SlotReader] | None = None
        self.holder = holder

    @property
    def in_ring(self) -> bool:
        """Whether the memory is the ring's, and comes back to it."""
        return self.event != 0

    def wanted_by(self) -> SlotReader | None:
        """Who wants what the copy brings, unless it was dropped."""
        return None if self.fetched is None else self.fetched()

    def array(self, shape: Shape, dtype: np.dtype[Any], strides: Shape | None = None) -> npt.NDArray[Any]:
        """The memory as an array, C-contiguous or with other strides, none of them negative."""
        return np.ndarray(shape, dtype, self._raw, 0, strides)


def _threshold(handle: DeviceHandle) -> int:
    chosen, info = settings(), handle.info
    threshold = info.staging_threshold if chosen.staging_threshold is None else chosen.staging_threshold
    pays = MemoryKind.PINNED in info.memory_kinds and (chosen.staging_threshold is not None or info.staging_threshold)
    return max(threshold, 1) if chosen.staging_slots and pays else sys.maxsize


def _ordinary(nbytes: int) -> Slot:
    """Pageable memory of our own."""
    raw = scratch((nbytes,), np.uint8)
    return Slot(raw, address(raw), 0)


class _Memory:
    """What NumPy makes an array of."""

    def __init__(self, ptr: int, nbytes: int) -> None:
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (ptr, False), "version": 3}
