"""The copy engine of one open device: plans a copy, executes it, and counts it once.

Every copy between host and device, and on the device, comes through here. Arrays are views (`ArrayView`); who owns
their memory, and which streams use it, is the caller's business, as is entering the device. No path writes a byte that
lies between the elements of its destination. What a running copy reads or writes on the host is kept alive until its
stream has completed it.

A copy from or to host memory must not meet pages that are being locked or unlocked: CUDA refuses a copy that lies half in
page-locked memory. Where nothing is locked, which is nearly always, no lock is taken; if the driver refuses because memory beside
it was locked meanwhile, the copy is made again with the table held steady, and cut there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import BackendError, DevmemError, LayoutError, OutOfMemory
from ...spi.types import CopyKind
from ..base.address import address, extent
from ..base.array_view import ArrayView, address_range, along_memory, part_of
from ..base.device_handle import DeviceHandle
from ..base.layout import in_memory_order, is_contiguous, memory_order, overlap, span
from ..lifetime.allocation import StreamUse
from ..lifetime.device_memory import DeviceMemory
from ..lifetime.page_locks import PageLockTable
from ..ordering.completions import CompletionTracker
from ..ordering.stream import Stream
from .device_scratch import DeviceScratch
from .host_copy import copy_elements, raw
from .host_memory import HostMemory, host_memory_of
from .host_scratch import scratch
from .plan import GAPS, SMALL_DOWNLOAD, SMALL_UPLOAD, SPARSE_PART, CopyPlan, Route, plan_copy
from .rows import Rows, rows
from .staging import Download, Ring, upload
from .staging.blocks import Block, block_offset, block_shape, blocks, nearest, tiles
from .statistics import SAMPLED, CopyStatistics, begin
from .submit import Submitter, calls, is_pitched

#: Bytes of a fill pattern that are made on the host before doubling on the device begins.
PATTERN_BYTES = 4096

H2D, D2H, D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D  # an enum's attribute takes as long as a call
DIRECT, ROWS = Route.DIRECT, Route.ROWS
_NOTHING_LOCKED: AbstractContextManager[None] = nullcontext()
BYTE = np.dtype(np.uint8)
HostBytes = npt.NDArray[np.uint8]


class CopyEngine:
    """Copies of one open device, which is entered in every method. It is also the facts (`CopyFacts`) that plans are made of."""

    def __init__(
        self,
        handle: DeviceHandle,
        memory: DeviceMemory,
        completions: CompletionTracker,
        page_locks: PageLockTable,
        ring: Ring,
        statistics: CopyStatistics,
    ) -> None:
        self.handle = handle
        self.memory = memory
        self.completions = completions
        self.page_locks = page_locks
        self.ring = ring
        self.statistics = statistics
        self.submitter = Submitter(handle, page_locks)
        self._small_uploads, self._small_downloads = statistics.small["h2d direct"], statistics.small["d2h direct"]
        self.staging_threshold = ring.threshold
        self.slot_bytes = ring.slot_bytes
        self.pitch_multiple = handle.info.strided_pitch_multiple

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def has_slots(self) -> bool:
        """Whether page-locked memory for slots is to be had."""
        return bool(self.ring.slot_limit)

    def calls(self, rows: Rows, kind: CopyKind) -> int:
        """Driver calls that rows take."""
        return calls(self.handle, rows, kind)

    def is_pitched(self, rows: Rows, kind: CopyKind) -> bool:
        """Whether the driver copies these rows in one call."""
        return is_pitched(self.handle, rows, kind)

    def is_capturing(self, stream: Stream) -> bool:
        """Whether a graph is captured on the stream."""
        return not stream.simple and self.handle.capturing(stream.handle)

    def memory_of(self, host: npt.NDArray[Any]) -> HostMemory:
        """What a host array's memory is."""
        return host_memory_of(self.handle, self.page_locks, host)

    def is_cut(self, host: npt.NDArray[Any]) -> bool:
        """Whether page-locked memory begins or ends within a host array."""
        return bool(self.page_locks.segments) and bool(self.page_locks.cuts(*extent(host)))

    # -- between host and device ---------------------------------------------------------------------------------------

    def upload(
        self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool, host_copy: bool = True
    ) -> None:
        """Copy host elements into device elements, and count it.

        Raises
        ------
        LayoutError
            ``host_copy`` is false, and the source would have to be gathered on the host first.
        """
        if not src.nbytes:
            return
        plan = plan_copy(H2D, dst, src, self, stream, host_copy=host_copy)
        counter = self._small_uploads
        untimed = plan is SMALL_UPLOAD and counter[0] & SAMPLED and src.nbytes < self.statistics.timed_from
        began = 0.0 if untimed else begin()
        if plan.route is DIRECT or plan.route is ROWS:
            self._execute(plan, H2D, dst, src, stream, blocking)
        else:
            plan = self._put(plan, dst, src, stream, blocking, host_copy)
        if untimed:
            counter[0] += 1
            counter[1] += src.nbytes
        else:
            self.statistics.count(plan.path, src.nbytes, began, None, plan.why, src, stream, plan.rows)

    def download(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
        """Copy device elements into host elements, and count it; the destination is writable."""
        if not dst.nbytes:
            return
        plan = plan_copy(D2H, dst, src, self, stream)
        counter = self._small_downloads
        untimed = plan is SMALL_DOWNLOAD and counter[0] & SAMPLED and dst.nbytes < self.statistics.timed_from
        began = 0.0 if untimed else begin()
        if plan.route is DIRECT or plan.route is ROWS:
            self._execute(plan, D2H, src, dst, stream, blocking)
        else:
            plan = self._get(plan, src, dst, stream, blocking)
        if untimed:
            counter[0] += 1
            counter[1] += dst.nbytes
        else:
            self.statistics.count(plan.path, dst.nbytes, began, None, plan.why, src, stream, plan.rows)

    def put(
        self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool, host_copy: bool = True
    ) -> CopyPlan:
        """Upload without counting: a part of a copy that the caller counts."""
        plan = plan_copy(H2D, dst, src, self, stream, host_copy=host_copy)
        return self._put(plan, dst, src, stream, blocking, host_copy)

    def get(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream, blocking: bool) -> CopyPlan:
        """Download without counting: a part of a copy that the caller counts."""
        return self._get(plan_copy(D2H, dst, src, self, stream), src, dst, stream, blocking)

    def start_download(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> Download | None:
        """Enqueue a download whose destination is not read before `finish_download`, and count it.

        Returns
        -------
        Download or None
            What has to be finished by hand, if anything.
        """
        nbytes = dst.nbytes
        if not nbytes:
            return None
        began = begin()
        plan = plan_copy(D2H, dst, src, self, stream)
        download = self._start_staged(src, dst, stream, plan.why is GAPS) if plan.route is Route.STAGED else None
        if download is None:
            plan = self._get(plan, src, dst, stream, False)
        self.statistics.count(plan.path, nbytes, began, None, plan.why, src, stream, plan.rows)
        return download

    def finish_download(self, download: Download) -> None:
        """Finish a download that `start_download` began; what that takes is counted with it."""
        began = begin()
        download.finish()
        self.statistics.count_more("d2h staged", began)

    def upload_bytes(
        self, path: str, dst: ArrayView[Any], fill: Callable[[Block, HostBytes], object], stream: Stream, blocking: bool
    ) -> None:
        """Fill a contiguous array with bytes that ``fill(block, host)`` writes to host memory, and count it under this path."""
        began, view = begin(), ArrayView(dst._ptr, (dst.nbytes,), BYTE)
        if self.is_small(dst.nbytes):
            host = np.empty(dst.nbytes, BYTE)
            fill((slice(None),), host)
            self.upload(view, host, stream, blocking)
            return
        upload(self.ring, self.submitter, view, fill, stream)
        if blocking:
            self.wait_for(stream)
        self.statistics.count(path, dst.nbytes, began, array=dst, stream=stream)

    def download_bytes(
        self, path: str, src: ArrayView[Any], store: Callable[[Block, HostBytes], object], stream: Stream
    ) -> None:
        """Give the bytes of a contiguous array to ``store(block, host)``, and count it under this path."""
        began, view = begin(), ArrayView(src._ptr, (src.nbytes,), BYTE)
        if self.is_small(src.nbytes):
            host = np.empty(src.nbytes, BYTE)
            self.download(view, host, stream, True)
            store((slice(None),), host)
            return
        download = Download(self.ring, self.submitter, store)
        download.start(view, stream)
        _finish(download)
        self.statistics.count(path, src.nbytes, began, array=src, stream=stream)

    def is_small(self, nbytes: int) -> bool:
        """Whether so many bytes go through one host array, no larger than a slot, instead of the ring."""
        return nbytes < min(self.staging_threshold, self.slot_bytes)

    # -- on the device -------------------------------------------------------------------------------------------------

    def move(self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream, blocking: bool) -> None:
        """Copy between two arrays of the device, and count it; right also where they overlap."""
        if not dst.nbytes:
            return
        began = begin()
        if not overlap(address_range(dst), address_range(src)):
            plan = self.place(dst, src, stream, blocking)
        elif (dst._ptr, dst.strides) != (src._ptr, src.strides):
            plan = self._move_overlapping(dst, src, stream, blocking)
        else:
            return  # onto itself
        self.statistics.count(plan.path, dst.nbytes, began, None, plan.why, src, stream, plan.rows)

    def place(self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream, blocking: bool) -> CopyPlan:
        """Copy between regions of the device that have no byte in common, as a part of a copy that the caller counts."""
        plan = plan_copy(D2D, dst, src, self, stream)
        if plan.route is not Route.STAGED:
            assert plan.rows is not None
            self.submitter.copy_rows(plan.rows, dst._ptr, src._ptr, D2D, stream, blocking)
            return plan
        stream.check_waitable()
        by_host(self, dst, stream, src, lambda part, host: self.get(part, host, stream, True))
        if blocking:
            self.wait_for(stream)
        return plan

    def fill(self, dst: ArrayView[Any], item: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
        """Store one value, an array without axes of the same dtype, in every element, and count it."""
        if not dst.nbytes:
            return
        began = begin()
        pattern = item.tobytes()
        if not any(is_contiguous(dst.shape, dst.strides, dst.itemsize, order) for order in "CF"):
            plan = self.put(dst, np.broadcast_to(item, dst.shape), stream, blocking)
            self.statistics.count("fill", dst.nbytes, began, None, plan.why, dst, stream, plan.rows)
            return
        width = next((width for width in (1, 2, 4) if _repeats(pattern, width)), 0)
        if width and dst._ptr % width == 0:
            word = int.from_bytes(pattern[:width], sys.byteorder)
            self.handle.driver.fill(dst._ptr, word, width, dst.nbytes // width, stream.handle)
        else:
            self._fill_by_doubling(dst._ptr, pattern, dst.nbytes, stream)
        if blocking:
            self.wait_for(stream)
        self.statistics.count("fill", dst.nbytes, began, None, "one run of bytes", dst, stream)

    def wait_for(self, stream: Stream) -> None:
        """Wait for a stream, and count it as waiting."""
        with self.statistics.waiting("the stream"):
            self.handle.driver.stream_synchronize(stream.handle)

    # -- executing a plan ----------------------------------------------------------------------------------------------

    def _put(
        self,
        plan: CopyPlan,
        dst: ArrayView[Any],
        src: npt.NDArray[Any],
        stream: Stream,
        blocking: bool,
        host_copy: bool,
    ) -> CopyPlan:
        """Execute the plan of an upload; the plan that was executed in the end."""
        if plan.route is Route.SCRATCH:
            if self._put_by_scratch(dst, src, stream, blocking):
                return plan
            plan = plan_copy(H2D, dst, src, self, stream, host_copy=host_copy, scratch=False)
        if plan.route is Route.STAGED:
            self._put_staged(dst, src, stream, blocking)
        elif plan.route is Route.PACKED and not host_copy:
            raise LayoutError(
                f"copy=False, but a source of shape {src.shape} with strides {src.strides} has to be gathered on the host "
                f"first: give numpy.ascontiguousarray(source), or copy=True"
            )
        else:
            self._execute(plan, H2D, dst, src, stream, blocking)
        return plan

    def _get(
        self, plan: CopyPlan, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream, blocking: bool
    ) -> CopyPlan:
        """Execute the plan of a download; the plan that was executed in the end."""
        if plan.route is Route.SCRATCH:
            if self._get_by_scratch(src, dst, stream):
                return plan
            plan = plan_copy(D2H, dst, src, self, stream, scratch=False)
        if plan.route is not Route.STAGED:
            self._execute(plan, D2H, src, dst, stream, blocking)
            return plan
        download = self._start_staged(src, dst, stream, plan.why is GAPS)
        _finish(download)
        return plan

    def _execute(
        self,
        plan: CopyPlan,
        kind: CopyKind,
        device: ArrayView[Any],
        host: npt.NDArray[Any],
        stream: Stream,
        blocking: bool,
    ) -> None:
        """Execute a plan on the user's host memory, in which no page is locked or unlocked meanwhile."""
        locks = self.page_locks
        before = locks.segments
        steady: AbstractContextManager[None] = locks.steady(*extent(host)) if before else _NOTHING_LOCKED
        while True:
            try:
                with steady:
                    route = plan.route
                    if route is DIRECT or route is ROWS:
                        dst, src = (device._ptr, address(host)) if kind is H2D else (address(host), device._ptr)
                        try:
                            if plan.rows is None:
                                size, handle = host.nbytes, stream.handle
                                running = self.submitter.copy_run(dst, src, size, kind, handle, blocking=blocking)
                            else:
                                running = self.submitter.copy_rows(plan.rows, dst, src, kind, stream, blocking)
                            if running:
                                self.completions.keep_until_complete(stream, host)
                        except BaseException as error:
                            self._keep_interrupted(error, stream, host)
                            raise
                    elif kind is H2D:
                        self._put_packed(device, host, stream, blocking)
                    else:
                        stream.check_waitable()
                        get = {Route.PACKED: self._get_packed, Route.SPAN: self._get_span}
                        get.get(route, self._get_sparse)(device, host, stream)
                return
            except BackendError:
                if before or locks.segments is before:
                    raise
                before, steady = locks.segments, locks.steady(*extent(host))

    def _put_packed(self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
        """Gather the source on the host, in the destination's order of memory."""
        ordered = along_memory(dst)
        packed = scratch(ordered.shape, src.dtype)
        copy_elements(raw(packed), in_order_of(dst, raw(src)))
        plan = rows(ordered.shape, dst.itemsize, ordered.strides, packed.strides)
        try:
            if self.submitter.copy_rows(plan, ordered._ptr, address(packed), H2D, stream, blocking):
                self.completions.keep_until_complete(stream, packed)
        except BaseException as error:
            self._keep_interrupted(error, stream, packed)
            raise

    def _keep_interrupted(self, error: BaseException, stream: Stream, host: npt.NDArray[Any]) -> None:
        """Keep host memory until the stream has passed a copy that may have been enqueued when an exception came.

        An error of the driver's means that it was not; anything else, an interrupt say, may come behind the driver's call and
        before the copy is in the tracker.
        """
        if not isinstance(error, DevmemError):
            with suppress(DevmemError):  # then the memory is kept for good
                self.completions.keep_until_complete(stream, host)

    def _put_staged(self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
        target, source = _for_blocks(dst, src)
        copy = self.ring.workers.copy
        upload(self.ring, self.submitter, target, lambda block, slot: copy(slot, source[block]), stream)
        if blocking:
            self.wait_for(stream)

    def _put_by_scratch(self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool) -> bool:
        """Let the device scatter the elements; False where it has no memory for them, and nothing was done."""
        stream.check_waitable()
        source = in_order_of(dst, src)
        try:
            parts = DeviceScratch(self.memory, along_memory(dst), stream)
        except OutOfMemory:
            return False
        with parts:
            for block, part, packed in parts:
                self.put(packed, source[block], stream, False)
                self._on_device(part, packed, stream)
        if blocking:
            self.wait_for(stream)
        return True

    def _get_by_scratch(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> bool:
        """Let the device gather the elements; False where it has no memory for them, and nothing was done."""
        stream.check_waitable()
        target = in_order_of(src, dst)
        try:
            parts = DeviceScratch(self.memory, along_memory(src), stream)
        except OutOfMemory:
            return False
        with parts:
            for block, part, packed in parts:
                self._on_device(packed, part, stream)
                self.get(packed, target[block], stream, True)
        return True

    def _on_device(self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream) -> None:
        plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
        self.submitter.copy_rows(plan, dst._ptr, src._ptr, D2D, stream, False)

    def _start_staged(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream, gaps: bool) -> Download:
        source, target = _for_blocks(src, dst)
        copy = self.ring.workers.copy
        download = Download(self.ring, self.submitter, lambda block, elements: copy(target[block], elements))
        download.start(source, stream, gaps)
        return download

    def _get_packed(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> None:
        """Let the driver gather the elements; how they lie in the destination is the host's part."""
        ordered = along_memory(src)
        packed = scratch(ordered.shape, src.dtype)
        plan = rows(ordered.shape, src.itemsize, packed.strides, ordered.strides)
        self.submitter.copy_rows(plan, address(packed), ordered._ptr, D2H, stream, True)
        copy_elements(in_order_of(src, raw(dst)), raw(packed))

    def _get_span(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> None:
        """Fetch everything from the lowest to the highest element in one run."""
        ordered = along_memory(src)
        low, high = address_range(src)
        fetched = scratch((high - low,), np.uint8)
        if fetched.nbytes < self.staging_threshold:
            self.submitter.copy_run(address(fetched), low, fetched.nbytes, D2H, stream.handle, blocking=True)
        else:
            self._start_staged(ArrayView(low, fetched.shape, fetched.dtype), fetched, stream, False).finish()
        elements: npt.NDArray[Any] = np.ndarray(ordered.shape, src.dtype, fetched, 0, ordered.strides)
        copy_elements(in_order_of(src, raw(dst)), raw(elements))

    def _get_sparse(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> None:
        """Fetch what lies between elements with them as long as that takes less time than the driver's next call."""
        ordered, target = along_memory(src), in_order_of(src, raw(dst))
        strides, itemsize = ordered.strides, src.itemsize
        fetched = scratch((max(SPARSE_PART, itemsize),), np.uint8)
        for block in blocks(ordered.shape, itemsize, SPARSE_PART, strides):
            lengths = block_shape(ordered.shape, block)
            nbytes, low = span(lengths, strides, itemsize)[1], ordered._ptr + block_offset(strides, block)
            self.submitter.copy_run(address(fetched), low, nbytes, D2H, stream.handle, blocking=True)
            elements: npt.NDArray[Any] = np.ndarray(lengths, src.dtype, fetched, 0, strides)
            copy_elements(target[block], raw(elements))

    def _move_overlapping(self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream, blocking: bool) -> CopyPlan:
        """As if the source had been copied away first: it is."""
        copy = self.memory.allocate(src.nbytes, stream)
        with StreamUse(stream, copy):
            packed: ArrayView[Any] = ArrayView(copy.ptr, src.shape, src.dtype)
            self.place(packed, src, stream, False)
            self.place(dst, packed, stream, blocking)
        return CopyPlan(Route.SCRATCH, "d2d scratch", "source and destination overlap")

    def _fill_by_doubling(self, ptr: int, pattern: bytes, nbytes: int, stream: Stream) -> None:
        """Fill with a pattern of any length: some of it from the host, then each copy doubles what is there."""
        repeats = max(1, min(PATTERN_BYTES, nbytes) // len(pattern))
        first = scratch((repeats * len(pattern),), np.uint8)
        first[:] = np.frombuffer(pattern * repeats, np.uint8)
        copy = self.submitter.copy_run
        try:
            if copy(ptr, address(first), first.nbytes, H2D, stream.handle):
                self.completions.keep_until_complete(stream, first)
        except BaseException as error:
            self._keep_interrupted(error, stream, first)
            raise
        done = first.nbytes
        while done < nbytes:
            step = min(done, nbytes - done)
            copy(ptr + done, ptr, step, D2D, stream.handle)
            done += step


def by_host(
    engine: CopyEngine,
    dst: ArrayView[Any],
    stream: Stream,
    src: ArrayView[Any],
    fetch: Callable[[ArrayView[Any], npt.NDArray[Any]], object],
) -> None:
    """Copy by way of host arrays, none larger than a slot, in tiles that are as wide as can be on both sides.

    ``fetch(part, host)`` downloads a part of the source, whichever device it is on. What the destination's driver has yet to
    read is bounded: else it would soon be the whole.
    """
    long = {nearest(side.shape, side.strides) for side in (dst, src)}
    for tile in tiles(dst.shape, dst.itemsize, engine.slot_bytes, long):
        part = part_of(src, tile)
        host = np.empty(part.shape, part.dtype)
        fetch(part, host)
        engine.put(part_of(dst, tile), host, stream, False)
        engine.ring.limit_in_flight(stream)


def in_order_of(view: ArrayView[Any], host: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A host array with its axes in the order in which a device view's lie in memory; see `along_memory`."""
    axes, flipped = memory_order(view.shape, view.strides)
    if flipped:
        host = host[tuple(slice(None, None, -1) if axis in flipped else slice(None) for axis in range(host.ndim))]
    return host.transpose(axes)


def in_order_of_view(view: ArrayView[Any], other: ArrayView[Any]) -> ArrayView[Any]:
    """Another device view with its axes in the order in which a device view's lie in memory; see `along_memory`."""
    axes, flipped = memory_order(view.shape, view.strides)
    low = other._ptr + sum((other.shape[axis] - 1) * other.strides[axis] for axis in flipped)
    shape, strides = in_memory_order(other.shape, other.strides, axes, flipped)
    return ArrayView(low, shape, other.dtype, strides)


def _finish(download: Download) -> None:
    try:
        download.finish()
    except BaseException:
        download.cancel()  # the destination is the caller's again: nothing may be written there later
        raise


def _for_blocks(view: ArrayView[Any], host: npt.NDArray[Any]) -> tuple[ArrayView[Any], npt.NDArray[Any]]:
    """Both sides of a staged copy as `along_memory` has the device's; as bytes, where both are one run of bytes."""
    ordered, host = along_memory(view), in_order_of(view, raw(host))
    if host.flags.c_contiguous and ordered.is_c_contiguous():
        bytes_of = (
            np.ndarray((host.nbytes,), np.uint8, host) if host.flags.writeable else host.reshape(-1).view(np.uint8)
        )
        return ArrayView(ordered._ptr, bytes_of.shape, bytes_of.dtype), bytes_of
    return ArrayView(ordered._ptr, ordered.shape, host.dtype, ordered.strides), host


def _repeats(pattern: bytes, width: int) -> bool:
    return len(pattern) % width == 0 and pattern == pattern[:width] * (len(pattern) // width)
