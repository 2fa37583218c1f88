"""Copies and fills of a host device. Each is checked at the call, and is then a job on a stream."""

from __future__ import annotations

from collections.abc import Callable

from devmem.spi.errors import BackendError
from devmem.spi.types import CopyKind

from .address_space import refuse_overlap
from .calls import Calls, current, opened
from .copy_jobs import copy_rows, fill_words, memmove, memset, snapshot, snapshot_rows
from .error_codes import host_error
from .stream_engine import SMALL
from .streams import Run, Stream


class Copies(Calls):
    """Bytes between any two sides, in rows and slices, between devices; and stores of one value."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        if current.key is not self._key:
            raise self._no_context("copy")
        if nbytes <= 0:
            raise host_error("copy", "INVALID_VALUE", f"{nbytes} bytes")
        engine = self._engine
        on = engine.streams.get(stream) or engine.stream(stream, "copy")
        to, source = self._space.copy_sides("copy", dst, nbytes, src, nbytes, kind)
        if blocking:
            if engine.failures:
                engine.tell(on, on.completed)
            if not engine.attempt(on, nbytes, memmove, to, source, nbytes):
                engine.finish(on, memmove, to, source, nbytes)
            elif engine.failures:  # of what was still running a moment ago
                engine.tell(on, on.completed)
            return False
        host = source if kind is CopyKind.H2D else to
        return self._enqueue(on, kind, host, nbytes, nbytes, snapshot, memmove, to, source, nbytes)

    def copy_2d(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        on = self._stream(stream, "copy_2d")
        if width <= 0 or height <= 0 or dst_pitch < width or src_pitch < width:
            why = f"{height} rows of {width} bytes, pitches {dst_pitch} and {src_pitch}"
            raise host_error("copy_2d", "INVALID_VALUE", why)
        dst_span, src_span = (height - 1) * dst_pitch + width, (height - 1) * src_pitch + width
        to, source = self._space.copy_sides("copy_2d", dst, dst_span, src, src_span, kind)
        engine, nbytes = self._engine, width * height
        rows = to, dst_pitch, source, src_pitch, width, height
        if blocking:
            if engine.failures:
                engine.tell(on, on.completed)
            if not engine.attempt(on, nbytes, copy_rows, *rows):
                engine.finish(on, copy_rows, *rows)
            elif engine.failures:  # of what was still running a moment ago
                engine.tell(on, on.completed)
            return False
        host, span = (source, src_span) if kind is CopyKind.H2D else (to, dst_span)
        return self._enqueue(on, kind, host, span, nbytes, snapshot_rows, copy_rows, *rows)

    def copy_3d(
        self,
        dst: int,
        dst_pitch: int,
        dst_rows: int,
        src: int,
        src_pitch: int,
        src_rows: int,
        width: int,
        height: int,
        depth: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        if depth <= 0 or min(dst_rows, src_rows) < height:
            why = f"{depth} slices of {height} rows, {dst_rows} and {src_rows} rows apart"
            raise host_error("copy_3d", "INVALID_VALUE", why)
        running = False
        for at in range(depth):
            to, origin = dst + at * dst_rows * dst_pitch, src + at * src_rows * src_pitch
            wait = blocking and at == depth - 1
            running |= self.copy_2d(to, dst_pitch, origin, src_pitch, width, height, kind, stream, blocking=wait)
        return running and not blocking

    def _enqueue(
        self,
        on: Stream,
        kind: CopyKind,
        host: int,
        span: int,
        nbytes: int,
        snapshot: Callable[..., Run],
        run: Run,
        *args: int,
    ) -> bool:
        """Start a copy that the caller does not wait for; what that means depends on the host side."""
        engine = self._engine
        if kind is CopyKind.D2D:
            self._start(on, nbytes, run, *args)
        elif self._space.page_locked(host, span):
            # Always on the stream's thread: who reuses the host side too early must be able to see it.
            engine.post(on, run, *args)
            return True
        elif not engine.attempt(on, nbytes, run, *args):
            if kind is CopyKind.H2D:
                engine.post(on, snapshot(*args))
            else:
                engine.finish(on, run, *args)
        return False

    def _start(self, on: Stream, nbytes: int, run: Run, *args: int) -> None:
        """Run a job that only touches device memory: inline if that costs less than to enqueue it."""
        if nbytes > SMALL or not self._engine.attempt(on, nbytes, run, *args):
            self._engine.post(on, run, *args)

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        on = self._stream(stream, "fill")
        if width not in (1, 2, 4) or count <= 0 or not 0 <= value < 1 << 8 * width or dst % width:
            why = f"{count} times the {width}-byte value {value} at {dst:#x}"
            raise host_error("fill", "INVALID_VALUE", why)
        nbytes = width * count
        to = self._space.device_side("fill", dst, nbytes)
        if width == 1:
            self._start(on, nbytes, memset, to, value, count)
        else:
            self._start(on, nbytes, fill_words, to, value, width, count)

    def can_access(self, ordinal: int) -> bool:
        self._check("can_access")
        return ordinal != self._ordinal and 0 <= ordinal < self._devices

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        on = self._stream(stream, "copy_peer")
        if nbytes <= 0:
            raise host_error("copy_peer", "INVALID_VALUE", f"{nbytes} bytes")
        there, to = _owner(dst_ordinal, dst, nbytes)
        here, source = _owner(src_ordinal, src, nbytes)
        refuse_overlap("copy_peer", to, nbytes, source, nbytes)
        engine = self._engine
        if (blocking or nbytes <= SMALL) and engine.attempt(on, nbytes, memmove, to, source, nbytes):
            if blocking and engine.failures:
                engine.tell(on, on.completed)
            return
        owners = [device._engine for device in (there, here) if device is not self]
        point = engine.post(on, memmove, to, source, nbytes, touches=owners)
        if blocking:
            engine.wait(point)


def _owner(ordinal: int, ptr: int, nbytes: int) -> tuple[Calls, int]:
    """The device that memory of a device came from, and where the copy engine finds it; a device can be open more than once."""
    problem = host_error("copy_peer", "INVALID_DEVICE", f"device {ordinal} is not open")
    for driver in list(opened):
        if driver._ordinal == ordinal:
            try:
                return driver, driver._space.device_side("copy_peer", ptr, nbytes)
            except BackendError as error:
                problem = error.with_traceback(None)
    try:
        raise problem
    finally:
        del problem  # or its traceback and this frame would keep each other
