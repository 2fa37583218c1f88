"""The compiled core's lane of an open device: its way past Python, straight to the vendor's library.

There is one where the compiled core runs and the driver offers a table of C entry points (`devmem.spi.driver_table`). It is
taken for small contiguous copies on the legacy default stream or on one that is named, for memory of a plain
`StreamOrderedMemory`, and for streams and events that were used before; `lane.c` says when. What it cannot answer itself, a
failure above all, it asks the methods here, which do what the Python path does.
"""

# Decision: docs/adr/0015-the-compiled-core-is-c-against-the-limited-api.md
from __future__ import annotations

import ctypes
import warnings
from typing import Any, cast

import numpy.typing as npt

from ..._native import core
from ...spi.driver import Driver, SupportsStreamOrdered
from ...spi.driver_table import TABLE_VERSION, DriverTable, OffersTable
from ...spi.errors import BackendError, DevmemError, DevmemWarning, OutOfMemory
from ...spi.types import Capability
from ..base.array_view import ArrayView
from ..base.config import DefaultStream, settings
from ..base.device_handle import CurrentDevice
from ..base.scopes import deferral
from ..memory.direct import StreamOrderedMemory
from ..memory.heap import Heap
from ..ordering.completions import leaked
from ..ordering.stream import Stream
from ..telemetry.copy_statistics import TIMED_FROM

#: The calls of a table that copy, and the one that records an event, by number: see `OffersTable.table_refused`.
UPLOADS, DOWNLOADS, RECORD = (4, 12), (5, 13), 9


class LaneAnswers:
    """The answers to a lane's questions about one open device (`OpenDevice`, which imports this)."""

    def __init__(self, opened: Any, driver: Driver) -> None:
        self.opened = opened
        self.driver = driver
        self.segments = opened.page_locks.segments
        self.refused = cast(OffersTable, driver).table_refused
        table = cast(OffersTable, driver).table
        self.allocates = table is not None and bool(table.allocate)

    def tables_of(self, heap: Heap) -> tuple[object, ...]:
        """The live and the lent addresses of a heap whose verbs are the driver's own, in stream order, or a pool's.

        With a pool comes its table of hits, and the number of the legacy stream. Of any other heap there is nothing.
        """
        resource: object = heap.resource
        if type(resource) is not StreamOrderedMemory:
            from ..pool.pool import PoolMemory  # not before a stack has needed it

            verbs = [getattr(verb, "__func__", None) for verb in (heap.allocate, heap.deallocate)]
            if type(resource) is PoolMemory and heap.ordered and verbs == [PoolMemory.allocate, PoolMemory.deallocate]:
                return heap.live, heap.lent, resource._ready, self.opened.streams.legacy.handle
            return ()
        driver = cast(SupportsStreamOrdered, self.driver)
        plain = self.allocates and heap.allocate == driver.alloc_async and heap.deallocate == driver.free_async
        return (heap.live, heap.lent) if plain else ()

    def recover(self, call: int, status: int, nbytes: int) -> int:
        """Answer a failing allocation as `DeviceMemory` does: the address, after one more attempt, or the error."""
        with CurrentDevice(self.opened.handle):
            try:
                self.refused(call, status)
            except OutOfMemory as error:
                ptr: int = self.opened.memory.recover(nbytes, self.opened.streams.legacy, error)
                return ptr

    def once_more(
        self, call: int, status: int, array: ArrayView[Any], host: npt.NDArray[Any], stream: Stream | None
    ) -> None:
        """Raise for a failing copy; where memory beside its host side was locked meanwhile, it is made again, and cut there.

        It may be unlocked again by now: any change of the locks since the last failing copy counts.
        """
        opened = self.opened
        segments = opened.page_locks.segments
        changed, self.segments = segments is not self.segments, segments
        copies, blocking = opened.copies, stream is None
        chosen = opened.streams.legacy if stream is None else stream
        if not blocking and call == RECORD:
            self.wait(chosen, host)
        try:
            self.refused(call, status)
        except BackendError:
            if call not in (*UPLOADS, *DOWNLOADS) or not (segments or changed):
                if not blocking:
                    with CurrentDevice(opened.handle):
                        copies.submitter.explain(host, chosen)
                raise
        with CurrentDevice(opened.handle):
            copy = copies.upload if call in UPLOADS else copies.download
            copy(array, host, chosen, blocking)

    def wait(self, stream: Stream, host: npt.NDArray[Any]) -> None:
        """Wait for a stream that has a copy without an event behind it; the host side is kept for good where that fails."""
        try:
            with CurrentDevice(self.opened.handle):
                self.opened.completions.wait_or_leak(stream, host)
        except BaseException:
            leaked.append(host)
            raise

    def capturing(self) -> bool:
        """Whether a graph is captured on a stream of the device, so that nothing may be freed."""
        with CurrentDevice(self.opened.handle):
            return self.opened.streams.any_capturing()  # type: ignore[no-any-return]

    def told(self, call: int, status: int) -> None:
        """Warn of a failure to free what was dropped."""
        try:
            self.refused(call, status)
        except DevmemError as error:
            warnings.warn(f"while freeing dropped memory on {self.opened.device}: {error}", DevmemWarning, stacklevel=2)


def lane_of(opened: Any) -> object:
    """The lane of an open device; None where there is none."""
    handle, driver = opened.handle, opened.handle.driver
    if (
        core is None
        or not hasattr(type(driver), "table_refused")
        or settings().default_stream is not DefaultStream.LEGACY
    ):
        return None
    offered = cast(OffersTable, driver)
    table = offered.table
    known = TABLE_VERSION == core.TABLE_VERSION and ctypes.sizeof(DriverTable) == core.TABLE_BYTES
    if table is None or not known or table.version != TABLE_VERSION or opened.statistics.trace is not None:
        return None
    answers = LaneAnswers(opened, driver)
    lane = core.Lane(
        ctypes.addressof(table),
        min(opened.copies.staging_threshold, TIMED_FROM),
        opened.free_queue.max_count,
        opened.free_queue.max_bytes,
        opened=opened,
        handle=handle,
        driver=driver,
        keep=table,
        refused=offered.table_refused,
        blocks=offered.table_blocks,
        queue=opened.free_queue,
        completing=opened.completions.in_flight,
        locks=opened.page_locks,
        legacy=opened.streams.legacy,
        own_streams=opened.streams._streams,
        deferral=deferral,
        owned=opened.memory.owned,
        plain=answers.tables_of,
        recover=answers.recover,
        once_more=answers.once_more,
        told=answers.told,
        capturing=answers.capturing,
        services=opened.streams,
        memory=opened.memory.stacks,
        held=opened.streams.leases._held,
        given_up=opened.streams.leases.given_up,
        spare_streams=opened.streams.spare._kept,
        spare_events=opened.completions.events.spare._kept,
        stream_handles=opened.streams._handles,
        event_handles=opened.completions.events.events,
        passed=opened.completions.events.passed,
        recorded=opened.completions.events.recorded,
        simple=not handle.has(Capability.CAPTURE),
    )
    opened.statistics.compiled = lane.take
    return lane
