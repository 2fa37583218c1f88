"""The copy engine of one open device: plans a copy, executes it, and counts it once.

Every copy between host and device, and on the device, comes through here. Arrays are views (`ArrayView`); who owns
their memory, and which streams use it, is the caller's business, as is entering the device. No path writes a byte that
lies between the elements of its destination. What a running copy reads or writes on the host is kept alive until its
stream has completed it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError, OutOfMemory, UnsupportedError
from ...spi.sizes import exact_size
from ...spi.types import Box, Capability, CopyKind
from ..base.address import address, bytes_at, extent
from ..base.array_view import ArrayView, address_range, along_memory, part_of
from ..base.device_handle import DeviceHandle
from ..base.layout import new_host, overlap, span
from ..base.rows import Rows, calls, is_pitched, rows
from ..lifetime.allocation import StreamUse
from ..lifetime.device_memory import DeviceMemory
from ..lifetime.page_locks import PageLockTable
from ..ordering.completions import CompletionTracker
from ..ordering.recorder import RecordedCopy, Recorder, Side
from ..ordering.stream import Stream
from ..telemetry.copy_statistics import SAMPLED, CopyStatistics, begin
from .device_scratch import DeviceScratch
from .host_copy import copy_elements, page_aligned_empty, raw
from .host_memory import HostMemory, host_memory_of
from .plan import GAPS, SMALL_DOWNLOAD, SMALL_UPLOAD, SPARSE_PART, CopyPlan, Route, plan_copy
from .staging import Download, GrowingRing, Ring, upload
from .staging.blocks import Block, block_offset, block_shape, blocks, nearest, tiles
from .submit import PAGEABLE, Submitter

H2D, D2H, D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D  # an enum's attribute takes as long as a call
DIRECT, ROWS, PACKED = Route.DIRECT, Route.ROWS, Route.PACKED
_NOTHING_LOCKED: AbstractContextManager[None] = nullcontext()
#: Bytes from which a copy that is not waited for is worth a slot of the ring.
SLOT_FROM = 1 << 20
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
        growing_ring: GrowingRing,
        statistics: CopyStatistics,
    ) -> None:
        self.handle = handle
        self.memory = memory
        self.completions = completions
        self.page_locks = page_locks
        self.ring = ring
        self.growing_ring = growing_ring
        self.statistics = statistics
        self.submitter = Submitter(handle, completions, page_locks, statistics.waiting)
        self._small_uploads, self._small_downloads = statistics.small["h2d direct"], statistics.small["d2h direct"]
        self.staging_threshold = ring.threshold
        self.slot_bytes = ring.slot_bytes
        self.pitch_multiple = handle.info.strided_pitch_multiple
        #: Whether host memory may be a device array's too, used in place.
        self.coherent = bool(handle.info.coherence)
        #: Whether the driver has a call for several copies; some turn out to have none.
        self.batches = handle.has(Capability.BATCH_COPY)
        #: Whether it has one for several copies of rows and slices.
        self.volume_batches = handle.has(Capability.VOLUME_BATCH) and handle.has(Capability.STRIDED_COPY)
        #: The ordinals of devices of the backend whose memory this one was forbidden to reach.
        self.apart: set[int] = set()
        #: By device, the copy engine of each other device that may still read this device's memory: its copy did not wait.
        self.readers: dict[object, CopyEngine] = {}

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def has_slots(self) -> bool:
        """Whether there is page-locked memory for slots."""
        return bool(self.ring.slot_limit)

    @property
    def can_grow(self) -> bool:
        """Whether copies that wait for no stream have slots."""
        return bool(self.growing_ring.limit)

    def calls(self, rows: Rows, kind: CopyKind) -> int:
        """Driver calls that rows take."""
        return calls(self.handle, rows, kind)

    def is_pitched(self, rows: Rows, kind: CopyKind) -> bool:
        """Whether the driver copies these rows in one call."""
        return is_pitched(self.handle, rows, kind)

    def memory_of(self, host: npt.NDArray[Any]) -> HostMemory:
        """Return the sort of a host array's memory."""
        return host_memory_of(self.handle, self.page_locks, host)

    def is_cut(self, host: npt.NDArray[Any]) -> bool:
        """Whether page-locked memory begins or ends within a host array."""
        return bool(self.page_locks.segments) and bool(self.page_locks.cuts(*extent(host)))

    # -- between host and device ---------------------------------------------------------------------------------------

    def upload(
        self,
        dst: ArrayView[Any],
        src: npt.NDArray[Any],
        stream: Stream,
        blocking: bool,
        host_copy: bool = True,
        waits: bool = True,
    ) -> None:
        """Copy host elements into device elements, and count it; unless it ``waits``, the call waits for no stream.

        Raises
        ------
        LayoutError
            ``host_copy`` is false, and the source would have to be gathered on the host first.
        """
        if not src.nbytes:
            return
        if self.coherent:
            if self._copy_shared(H2D, dst, src, stream, blocking or waits, waits):
                return
            self.check_capturable(dst, stream)
        device, host = (dst, src) if dst._strides is None else along_memory(dst, src)
        plan = plan_copy(H2D, device, host, self, stream, host_copy=host_copy, waits=waits)
        if stream.recorder is not None:
            self._record(plan, H2D, dst, src, stream, stream.recorder)
            return
        if plan.route is PACKED and not host_copy:
            raise LayoutError(
                f"copy=False, but a source of shape {src.shape} with strides {src.strides} has to be gathered on the host "
                f"first: give numpy.ascontiguousarray(source), or copy=True"
            )
        counter = self._small_uploads
        untimed = plan is SMALL_UPLOAD and counter[0] & SAMPLED and src.nbytes < self.statistics.timed_from
        began = 0.0 if untimed else begin()
        if plan.route is DIRECT or plan.route is ROWS:
            at, nbytes = address(host), host.nbytes
            self.submitter.copy(device._ptr, at, nbytes, H2D, stream, blocking=blocking, host=host, rows=plan.rows)
        else:
            plan = self._carry_out(plan, H2D, device, host, stream, blocking, waits)
        if untimed:
            counter[0] += 1
            counter[1] += src.nbytes
        else:
            self.statistics.count(plan.path, src.nbytes, began, None, plan.why, src, stream, plan.rows)

    def download(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
        """Copy device elements into host elements, and count it; the destination is writable."""
        if not dst.nbytes:
            return
        if self.coherent and self._copy_shared(D2H, src, dst, stream, True):
            return
        if self.coherent:
            self.await_source(src, stream)
        device, host = (src, dst) if src._strides is None else along_memory(src, dst)
        plan = plan_copy(D2H, host, device, self, stream)
        if stream.recorder is not None:
            self._record(plan, D2H, src, dst, stream, stream.recorder)
            return
        counter = self._small_downloads
        untimed = plan is SMALL_DOWNLOAD and counter[0] & SAMPLED and dst.nbytes < self.statistics.timed_from
        began = 0.0 if untimed else begin()
        if plan.route is DIRECT or plan.route is ROWS:
            at, nbytes = address(host), host.nbytes
            self.submitter.copy(at, device._ptr, nbytes, D2H, stream, blocking=blocking, host=host, rows=plan.rows)
        else:
            plan = self._carry_out(plan, D2H, device, host, stream, blocking)
        if untimed:
            counter[0] += 1
            counter[1] += dst.nbytes
        else:
            self.statistics.count(plan.path, dst.nbytes, began, None, plan.why, src, stream, plan.rows)

    def upload_part(
        self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool, waits: bool = True
    ) -> CopyPlan:
        """Upload without counting: a part of a copy that the caller counts."""
        device, host = along_memory(dst, src)
        plan = plan_copy(H2D, device, host, self, stream, waits=waits)
        return self._carry_out(plan, H2D, device, host, stream, blocking, waits)

    def download_part(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream, blocking: bool) -> CopyPlan:
        """Download without counting: a part of a copy that the caller counts."""
        if self.coherent:
            self.await_source(src, stream)
        device, host = along_memory(src, dst)
        return self._carry_out(plan_copy(D2H, host, device, self, stream), D2H, device, host, stream, blocking)

    def start_download(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> Download | None:
        """Enqueue a download whose destination is not read before `finish_download`, and count it. Waits for no stream.

        Returns
        -------
        Download or None
            What has to be finished by hand, if anything.
        """
        nbytes = dst.nbytes
        if not nbytes:
            return None
        if self.coherent and self._copy_shared(D2H, src, dst, stream, False, False):
            return None
        if self.coherent:
            self.await_source(src, stream)
        began = begin()
        device, host = along_memory(src, dst)
        plan = plan_copy(D2H, host, device, self, stream, waits=False)
        ring = self.growing_ring if self.can_grow else self.ring
        staged = plan.route is Route.STAGED
        download = self._start_staged(device, host, stream, plan.why is GAPS, ring) if staged else None
        if download is None:
            plan = self._carry_out(plan, D2H, device, host, stream, False)
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
        # A slot is not waited for: the next call reads into another one while this one's is copied.
        if self.is_small(dst.nbytes) and (blocking or dst.nbytes < SLOT_FROM):
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

    def _copy_shared(
        self,
        kind: CopyKind,
        device: ArrayView[Any],
        host: npt.NDArray[Any],
        stream: Stream,
        complete: bool,
        waits: bool = True,
    ) -> bool:
        """Copy as between two arrays of a coherent device, where both sides have memory in common; else return False."""
        recorder = stream.recorder
        if not overlap(address_range(device), extent(host)) or (recorder is None and stream.is_capturing()):
            return False
        shared: ArrayView[Any] = ArrayView(address(host), host.shape, host.dtype, host.strides)
        if recorder is not None:
            recorder.kept.append(host)
        dst, src = (device, shared) if kind is H2D else (shared, device)
        self.move(dst, src, stream, False, waits)
        if complete and recorder is None:
            self.wait_for(stream)  # also where nothing was to be copied
        return True

    def move(
        self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream, blocking: bool, waits: bool = True
    ) -> None:
        """Copy between two arrays of the device, and count it; right also where they overlap."""
        if not dst.nbytes:
            return
        began, recorder = begin(), stream.recorder
        overlaps = overlap(address_range(dst), address_range(src))
        if overlaps and (dst._ptr, dst.strides) == (src._ptr, src.strides):
            return  # onto itself
        copy = self._move_overlapping if overlaps else self.copy_part
        if recorder is None:
            plan = copy(dst, src, stream, blocking, waits)
            self.statistics.count(plan.path, dst.nbytes, began, None, plan.why, src, stream, plan.rows)
            return
        moved = RecordedCopy(D2D, self.device_side(dst, recorder), self.device_side(src, recorder))
        with nullcontext() if overlaps else recorder.copying(moved):  # by way of a second array: of two copies
            copy(dst, src, stream, blocking, waits)

    def copy_part(
        self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream, blocking: bool, waits: bool = True
    ) -> CopyPlan:
        """Copy between regions of the device that have no byte in common, as a part of a copy that the caller counts."""
        if self.coherent:
            self.check_capturable(dst, stream)
            self.await_source(src, stream)
        plan = plan_copy(D2D, dst, src, self, stream, waits=waits)
        if plan.route is not Route.STAGED:
            assert plan.rows is not None
            self.submitter.copy_rows(plan.rows, dst._ptr, src._ptr, D2D, stream, blocking)
            return plan
        stream.check_waitable()
        by_host(self, dst, stream, src, lambda part, host: self.download_part(part, host, stream, True))
        if blocking:
            self.wait_for(stream)
        return plan

    def boxes(self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream) -> list[Box]:
        """Return boxes that copy one region of the device to another in a batch; none where only `copy_part` does."""
        if not self.volume_batches or stream.is_capturing():
            return []
        if self.coherent:
            self.await_source(src, stream)
        plan = plan_copy(D2D, dst, src, self, stream)
        if plan.route is Route.STAGED or plan.rows is None or not self.is_pitched(plan.rows, D2D):
            return []
        return plan.rows.boxes(dst._ptr, src._ptr)

    def is_system(self, view: ArrayView[Any]) -> bool:
        """Whether an array is in pageable memory of the host, if in part, that is used in place; the device is entered."""
        if not (self.coherent and self.handle.knows_pointers):
            return False
        (low, high), range_of = address_range(view), self.handle.driver.pointer_range
        return range_of(low) is None or range_of(high - 1) is None

    def await_source(self, src: ArrayView[Any], stream: Stream) -> None:
        """Wait for a stream before what is used in place is read: drivers read that at the call, ahead of enqueued work."""
        if stream.recorder is None and self.is_system(src):
            stream.check_not_captured(PAGEABLE)
            self.wait_for(stream)

    def check_capturable(self, view: ArrayView[Any], stream: Stream) -> None:
        """Raise where a graph is captured on the stream, and an array is in pageable memory that is used in place."""
        if stream.recorder is None and stream.is_capturing() and self.is_system(view):
            stream.check_not_captured(PAGEABLE)

    def check_upload(self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream) -> None:
        """Raise where a graph, which is captured on the stream, cannot have an upload; of the destination the layout counts."""
        if self.memory_of(src) not in (HostMemory.LOCKED, HostMemory.MANAGED):
            stream.check_not_captured(PAGEABLE)
        if plan_copy(H2D, *along_memory(dst, src), self, stream).route not in (DIRECT, ROWS):
            stream.check_waitable()

    def wait_for(self, stream: Stream) -> None:
        """Wait for a stream, and count it as waiting."""
        with self.statistics.waiting("the stream"):
            self.handle.driver.stream_synchronize(stream.handle)

    # -- recording -----------------------------------------------------------------------------------------------------

    def host_side(self, host: npt.NDArray[Any]) -> Side:
        """The host's side of a copy that is recorded. It is page-locked, and stays so as long as the side is kept.

        Raises
        ------
        UnsupportedError
            It is not page-locked, or was locked in pieces.
        """
        low, high = extent(host)
        if self.memory_of(host) not in (HostMemory.LOCKED, HostMemory.MANAGED):
            raise UnsupportedError(
                f"a plan copies whenever it is replayed, and pageable memory (an array of {exact_size(host.nbytes)}) is no "
                f"part of a copy that nothing waits for: give it a pinned_array(), or register() the array before"
            )
        if self.is_cut(host):
            raise UnsupportedError(
                f"an array of {exact_size(host.nbytes)} is page-locked in pieces, which a plan cannot follow: register() it "
                f"as a whole"
            )
        keep: tuple[object, ...] = (host,)
        if self.page_locks.covers(low, high):  # also where the caller deregisters it
            keep = (host, self.page_locks.keep_locked(self.handle, host))
        at = address(host)
        return Side(host, at, at, keep)

    def device_side(self, view: ArrayView[Any], recorder: Recorder) -> Side:
        """The device's side of a copy that is recorded; what it uses of the host's memory in place is as `host_side` wants it."""
        if self.coherent and self.handle.knows_pointers:  # the driver knows the device's own memory, too
            low, high = address_range(view)
            recorder.kept.append(self.host_side(bytes_at(low, high - low)))
        return Side(view, view._ptr, view._ptr)

    def _record(
        self,
        plan: CopyPlan,
        kind: CopyKind,
        device: ArrayView[Any],
        host: npt.NDArray[Any],
        stream: Stream,
        recorder: Recorder,
    ) -> None:
        """Record a copy between host and device."""
        side = self.host_side(host)
        if plan.route is not DIRECT and plan.route is not ROWS:
            recorder.refuse(f"a copy that goes {plan.path!r} ({plan.why})")
        other = self.device_side(device, recorder)
        with recorder.copying(RecordedCopy(kind, *((other, side) if kind is H2D else (side, other)))):
            self._carry_out(plan, kind, *along_memory(device, host), stream, False)

    # -- executing a plan: both sides are in the order of `along_memory` -----------------------------------------------

    def _carry_out(
        self,
        plan: CopyPlan,
        kind: CopyKind,
        device: ArrayView[Any],
        host: npt.NDArray[Any],
        stream: Stream,
        blocking: bool,
        waits: bool = True,
    ) -> CopyPlan:
        """Execute a plan by any route; the plan that was executed in the end."""
        if plan.route is Route.SCRATCH:
            if self._by_scratch(kind, device, host, stream, blocking, waits):
                return plan
            dst, src = (device, host) if kind is H2D else (host, device)
            plan = plan_copy(kind, dst, src, self, stream, scratch=False, waits=waits)
        if plan.route is Route.STAGED and kind is H2D:
            self._put_staged(
                device, host, stream, blocking, self.ring if waits or not self.can_grow else self.growing_ring
            )
        elif plan.route is Route.STAGED:
            _finish(self._start_staged(device, host, stream, plan.why is GAPS, self.ring))
        elif plan.route is DIRECT or plan.route is ROWS:
            to, origin = (device._ptr, address(host)) if kind is H2D else (address(host), device._ptr)
            self.submitter.copy(to, origin, host.nbytes, kind, stream, blocking=blocking, host=host, rows=plan.rows)
        else:
            locks = self.page_locks
            with locks.hold_page_locks(*extent(host)) if locks.segments else _NOTHING_LOCKED:
                if kind is D2H or not stream.simple:
                    stream.check_waitable()
                if kind is H2D:
                    self._put_packed(device, host, stream, blocking)
                else:
                    get = {PACKED: self._get_packed, Route.SPAN: self._get_span}
                    get.get(plan.route, self._get_sparse)(device, host, stream)
        return plan

    def _put_packed(self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool) -> None:
        """Gather the source on the host, in the destination's order of memory."""
        packed = page_aligned_empty(src.shape, src.dtype)
        copy_elements(raw(packed), raw(src))
        plan = rows(src.shape, src.itemsize, dst.strides, packed.strides)
        self.submitter.copy_rows(plan, dst._ptr, address(packed), H2D, stream, blocking, packed)

    def _put_staged(
        self, dst: ArrayView[Any], src: npt.NDArray[Any], stream: Stream, blocking: bool, ring: Ring
    ) -> None:
        target, source = _for_blocks(dst, src)
        copy = ring.workers.copy
        upload(ring, self.submitter, target, lambda block, slot: copy(slot, source[block]), stream)
        if blocking:
            self.wait_for(stream)

    def _by_scratch(
        self,
        kind: CopyKind,
        device: ArrayView[Any],
        host: npt.NDArray[Any],
        stream: Stream,
        blocking: bool,
        waits: bool,
    ) -> bool:
        """Let the device scatter or gather the elements; False where it has no memory for them, and nothing was done."""
        stream.check_waitable()
        try:
            parts = DeviceScratch(self.memory, device, stream)
        except OutOfMemory:
            return False
        with parts:
            for block, part, packed in parts:
                if kind is H2D:
                    self.upload_part(packed, host[block], stream, False, waits)
                    self._on_device(part, packed, stream)
                else:
                    self._on_device(packed, part, stream)
                    self.download_part(packed, host[block], stream, True)
        if blocking and kind is H2D:
            self.wait_for(stream)
        return True

    def _on_device(self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream) -> None:
        plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
        self.submitter.copy_rows(plan, dst._ptr, src._ptr, D2D, stream, False)

    def _start_staged(
        self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream, gaps: bool, ring: Ring
    ) -> Download:
        source, target = _for_blocks(src, dst)
        copy = ring.workers.copy
        download = Download(ring, self.submitter, lambda block, elements: copy(target[block], elements))
        download.start(source, stream, gaps)
        return download

    def _get_packed(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> None:
        """Let the driver gather the elements; how they lie in the destination is the host's part."""
        packed = page_aligned_empty(dst.shape, dst.dtype)
        plan = rows(dst.shape, dst.itemsize, packed.strides, src.strides)
        self.submitter.copy_rows(plan, address(packed), src._ptr, D2H, stream, True, packed)
        copy_elements(raw(dst), raw(packed))

    def _fetch(self, fetched: HostBytes, low: int, nbytes: int, stream: Stream) -> None:
        self.submitter.copy(address(fetched), low, nbytes, D2H, stream, blocking=True, host=fetched)

    def _get_span(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> None:
        """Fetch everything from the lowest to the highest element in one run."""
        strides, low = src.strides, src._ptr
        fetched = page_aligned_empty((span(dst.shape, strides, dst.itemsize)[1],), BYTE)
        if fetched.nbytes < self.staging_threshold:
            self._fetch(fetched, low, fetched.nbytes, stream)
        else:
            self._start_staged(ArrayView(low, fetched.shape, fetched.dtype), fetched, stream, False, self.ring).finish()
        elements: npt.NDArray[Any] = np.ndarray(dst.shape, dst.dtype, fetched, 0, strides)
        copy_elements(raw(dst), raw(elements))

    def _get_sparse(self, src: ArrayView[Any], dst: npt.NDArray[Any], stream: Stream) -> None:
        """Fetch what lies between elements with them as long as that takes less time than the driver's next call."""
        target, strides, itemsize = raw(dst), src.strides, dst.itemsize
        fetched = page_aligned_empty((max(SPARSE_PART, itemsize),), np.uint8)
        for block in blocks(dst.shape, itemsize, SPARSE_PART, strides):
            lengths = block_shape(dst.shape, block)
            nbytes, low = span(lengths, strides, itemsize)[1], src._ptr + block_offset(strides, block)
            self._fetch(fetched, low, nbytes, stream)
            elements: npt.NDArray[Any] = np.ndarray(lengths, src.dtype, fetched, 0, strides)
            copy_elements(target[block], raw(elements))

    def _move_overlapping(
        self, dst: ArrayView[Any], src: ArrayView[Any], stream: Stream, blocking: bool, waits: bool
    ) -> CopyPlan:
        """Copy between overlapping ranges by way of a temporary device block."""
        copy = self.memory.allocate(src.nbytes, stream)
        with StreamUse(stream, copy):
            packed: ArrayView[Any] = ArrayView(copy.ptr, src.shape, src.dtype)
            self.copy_part(packed, src, stream, False, waits)
            self.copy_part(dst, packed, stream, blocking, waits)
        return CopyPlan(Route.SCRATCH, "d2d scratch", "source and destination overlap")


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
        host = new_host(part.shape, part.dtype)
        fetch(part, host)
        engine.upload_part(part_of(dst, tile), host, stream, False)
        engine.ring.limit_in_flight(stream)


def _finish(download: Download) -> None:
    try:
        download.finish()
    except BaseException:
        download.cancel()  # the destination is the caller's again: nothing may be written there later
        raise


def _for_blocks(view: ArrayView[Any], host: npt.NDArray[Any]) -> tuple[ArrayView[Any], npt.NDArray[Any]]:
    """Both sides of a staged copy; as bytes, where both are one run of bytes."""
    host = raw(host)
    if host.flags.c_contiguous and view.is_c_contiguous():
        bytes_of = (
            np.ndarray((host.nbytes,), np.uint8, host) if host.flags.writeable else host.reshape(-1).view(np.uint8)
        )
        return ArrayView(view._ptr, bytes_of.shape, bytes_of.dtype), bytes_of
    return ArrayView(view._ptr, view.shape, host.dtype, view.strides), host
