"""Slots for copies whose calls wait for no stream: `copy_async` of pageable memory, of any size.

A block finds an idle slot, or a new one is made: how long a stream is held up makes no difference. Slots come in sizes that are
powers of two, so that a small copy takes little, and are kept for the next copies. ``DEVMEM_STAGING_LIMIT`` bounds their memory.
At the limit idle slots of other sizes are given back; then the call waits for the oldest copy in flight, and stores what that has
fetched. Otherwise the elements of a download stay in its slots until the thread that waits for it, or asks whether it is done,
has stored them.

Where page-locked memory has run out, and nothing is in flight, a block goes through pageable memory, for which the driver may
wait. `devmem.trim` gives idle slots back, where nothing runs: that may wait for the whole device.
"""

# Decision: docs/adr/0004-pageable-copies-go-through-a-ring-of-slots.md
from __future__ import annotations

from ....spi.types import MemoryKind
from ...base.config import settings
from ...base.device_handle import DeviceHandle
from ...ordering.completions import CompletionTracker
from ...ordering.stream_table import StreamTable
from ...telemetry.copy_statistics import CopyStatistics
from .ring import Ring, Slot, SlotLease, pageable_slot
from .workers import CopyWorkers

#: The smallest slot: pages are locked one by one, and each slot is a call of the driver.
SMALLEST = 64 << 10


class GrowingRing(Ring):
    """Slots of one open device that are made as they are needed, up to a number of bytes."""

    def __init__(
        self,
        handle: DeviceHandle,
        completions: CompletionTracker,
        streams: StreamTable,
        statistics: CopyStatistics,
        workers: CopyWorkers,
    ) -> None:
        super().__init__(handle, completions, streams, statistics, workers)
        self._configured = settings().staging_limit if MemoryKind.PINNED in handle.info.memory_kinds else 0
        #: Bytes that the slots may have now.
        self.limit = self._configured

    def take(self, lease: SlotLease, nbytes: int) -> Slot:
        """A drained slot for a block of so many bytes.

        Raises
        ------
        DevmemError
            The limit was reached, and the wait for the oldest copy failed.
        """
        size = max(SMALLEST, 1 << (nbytes - 1).bit_length())
        while True:
            slot = self._claim_idle(lease, size) or self._make(lease, size)
            if slot is not None:
                break
            slot = self._claim_idle(lease)
            if slot is None:
                if not self.made and not self._making:
                    return pageable_slot(nbytes)
                slot = self._claim_first(lease, lambda slot: True)
                if slot is None:  # other copies hold them all, each for a moment
                    self.wait_until(lambda: bool(self.free_slots()) or not self.made)
                    continue
                self.drain(slot, "a slot: DEVMEM_STAGING_LIMIT bytes are in flight")
            if slot.nbytes == size:
                break
            self._destroy([slot])
            self.give_back(lease)
        self.drain(slot)
        return slot

    def retry(self) -> None:
        """Let more slots be made: there may be page-locked memory again."""
        self.limit = self._configured

    def _claim_idle(self, lease: SlotLease, size: int = 0) -> Slot | None:
        """Take a slot that no copy uses, of this size if one is given."""
        busy: set[int] = set()

        def fits(slot: Slot) -> bool:
            # Copies on one stream complete in order.
            if slot.reader is not None or slot.stream in busy or (size and slot.nbytes != size):
                return False
            idle = self._is_idle(slot)
            if not idle:
                busy.add(slot.stream)
            return idle

        return self._claim_first(lease, fits)

    def _has_room(self, nbytes: int) -> bool:
        used = sum(slot.nbytes for slot in list(self.made)) + sum(self._making.values())
        return used + nbytes <= self.limit or (not used and self.limit > 0)

    def _make_do(self) -> None:
        self.limit = sum(slot.nbytes for slot in list(self.made))
