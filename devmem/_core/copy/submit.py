"""Submission of copies to a driver, in as few calls as the device can do them in.

`Submitter.copy` is the one place where a run of bytes is copied: every other copy is made of it, or of the driver's strided
copies. A ``host`` array that is given to it, or to `Submitter.copy_rows`, is kept alive as long as the device
may touch it, also where an interrupt comes as the driver returns.

A copy from or to host memory must not meet pages that are being locked or unlocked: CUDA refuses a copy that lies half in
page-locked memory. Where nothing is locked, which is nearly always, no lock is taken; if the driver refuses because memory beside
it was locked meanwhile, the copy is made again with the table held steady, and cut there.
"""

# Decision: docs/adr/0002-page-locks-are-counted-per-backend.md
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy.typing as npt

from ...spi.errors import BackendError, DevmemError
from ...spi.types import CopyKind
from ..base.address import extent
from ..base.device_handle import DeviceHandle
from ..base.rows import Rows, is_pitched
from ..lifetime.page_locks import PageLockTable
from ..ordering.completions import CompletionTracker
from ..ordering.stream import Stream
from .host_memory import HostMemory, host_memory_of

#: What drivers refuse while they capture a graph. They are not kept from it by a question before each copy, which costs a call.
PAGEABLE = "a copy of pageable host memory: give it a pinned_array(), or register() the array before the capture"
H2D, D2D = CopyKind.H2D, CopyKind.D2D  # an enum's attribute takes as long as a call
_NOTHING_LOCKED: AbstractContextManager[None] = nullcontext()


class Submitter:
    """Enqueue copies on one open device, which is entered. Each method says whether the host side may still be touched."""

    __slots__ = ("completions", "handle", "page_locks", "waiting")

    def __init__(
        self,
        handle: DeviceHandle,
        completions: CompletionTracker,
        page_locks: PageLockTable,
        waiting: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.handle = handle
        self.completions = completions
        self.page_locks = page_locks
        #: What a wait is counted in.
        self.waiting = waiting

    def copy(
        self,
        dst: int,
        src: int,
        nbytes: int,
        kind: CopyKind,
        stream: Stream,
        *,
        blocking: bool = False,
        host: npt.NDArray[Any] | None = None,
        rows: Rows | None = None,
    ) -> bool:
        """Copy one run of bytes, cut where page-locked memory begins or ends, or ``rows`` of elements of the user's."""
        locks, copy = self.page_locks, (stream.recorder or self.handle.driver).copy
        before = locks.segments
        if before and host is not None and not stream.simple and locks.cuts(*extent(host)) and self._is_pageable(host):
            stream.check_not_captured(PAGEABLE)  # before the part that is page-locked is copied
        while True:
            if before and not blocking and self._shares_pages(host, stream):
                blocking = True  # its owner may change it: it is pageable to that one, and page-locked to the driver
            with _NOTHING_LOCKED if host is None or not before else locks.hold_page_locks(*extent(host)):
                try:
                    if rows is not None:
                        running = self.copy_rows(rows, dst, src, kind, stream, blocking, host)
                    elif kind is D2D or not locks.segments:
                        running = copy(dst, src, nbytes, kind, stream.handle, blocking=blocking)
                    else:
                        low, running = src if kind is H2D else dst, False
                        ends = [0, *(cut - low for cut in locks.cuts(low, low + nbytes)), nbytes]
                        for start, end in pairwise(ends):
                            waits = blocking and end == nbytes
                            running |= copy(dst + start, src + start, end - start, kind, stream.handle, blocking=waits)
                    if host is not None and rows is None and (running or not stream.simple) and stream.recorder is None:
                        self.completions.keep_host_side(running, stream, host)
                except BaseException as error:
                    changed = not before and locks.segments is not before
                    if changed and host is not None and isinstance(error, BackendError):
                        before = locks.segments  # pages beside it were locked meanwhile: once more, and cut there
                        continue
                    if host is not None and rows is None:
                        self.completions.keep_interrupted(error, stream, host)
                    if host is not None and isinstance(error, BackendError):
                        self.explain(host, stream)
                    raise
                if locks.segments is not before and not blocking and self._shares_pages(host, stream):
                    with self.waiting("the stream"):  # as above, of pages that were locked meanwhile
                        self.handle.driver.stream_synchronize(stream.handle)
                return running

    def explain(self, host: npt.NDArray[Any], stream: Stream) -> None:
        """Raise UnsupportedError where a copy was refused because its host side is pageable, and a graph is captured."""
        with suppress(BackendError):  # the refusal is to be told
            if self._is_pageable(host):
                stream.check_not_captured(PAGEABLE)

    def _is_pageable(self, host: npt.NDArray[Any]) -> bool:
        return host_memory_of(self.handle, self.page_locks, host) not in (HostMemory.LOCKED, HostMemory.MANAGED)

    def _shares_pages(self, host: npt.NDArray[Any] | None, stream: Stream) -> bool:
        """Whether host memory that no registration names is on pages that are locked, and the driver may still use it."""
        return host is not None and self.page_locks.shares(*extent(host)) and not stream.is_capturing()

    def copy_rows(
        self, rows: Rows, dst: int, src: int, kind: CopyKind, stream: Stream, blocking: bool, host: object = None
    ) -> bool:
        """Copy rows. Only the last call waits: those before it are on the same stream."""
        steps = self._calls(rows, dst, src, kind, stream)
        running = False
        try:
            for step in steps[:-1]:
                running |= step(blocking=False)
            running |= steps[-1](blocking=blocking)
            running = running and not blocking
            if host is not None and stream.recorder is None:
                self.completions.keep_host_side(running, stream, host)
            return running
        except BaseException as error:
            if len(steps) > 1:  # some of it may be on its way, and the caller is about to let go of both sides
                with suppress(DevmemError):
                    stream.check_waitable()
                    self.handle.driver.stream_synchronize(stream.handle)
            if host is not None:
                self.completions.keep_interrupted(error, stream, host)
            raise

    def _calls(self, rows: Rows, dst: int, src: int, kind: CopyKind, stream: Stream) -> list[Callable[..., bool]]:
        driver = stream.recorder or self.handle.driver
        width, height, handle = rows.width, rows.height, stream.handle
        steps: list[Callable[..., bool]] = []
        if height > 1 and is_pitched(self.handle, rows, kind):
            steps += [partial(driver.copy_strided, box, kind, handle) for box in rows.boxes(dst, src)]
        else:
            for to, origin in rows.offsets():
                for row in range(height):
                    there, here = dst + to + row * rows.dst_pitch, src + origin + row * rows.src_pitch
                    steps.append(partial(self.copy, there, here, width, kind, stream))
        return steps
