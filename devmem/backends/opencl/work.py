"""Work on the streams of a device: copies, fills and host functions.

Pageable memory has been read or written when a call returns: a short source is copied, and for all else the call waits. OpenCL
has no batch: the copies of one are handed on together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyopencl as cl
from pyopencl import _cl

from ...spi.types import Box, CopyKind, MemoryKind
from ...toolkit.host_calls import HostFunction
from ...toolkit.ranges import merged
from .memory import Memory
from .queues import Queue, Queues
from .runtime import CODE, at, checked, refuse

#: Up to so many bytes a pageable source is copied, and the call does not wait for the stream.
KEPT_BYTES = 1 << 20
READ_AND_WRITE = cl.map_flags.READ | cl.map_flags.WRITE


class Command(NamedTuple):
    """A copy, not enqueued yet: what enqueues it, whether the call waits for it, and else whether it uses the host's memory."""

    enqueue: Callable[[Any], Any]
    waits: bool
    uses_host: bool


class Work:
    """Copies, fills and host functions, for which what they may touch is mapped."""

    def __init__(self, memory: Memory, queues: Queues) -> None:
        self._memory, self._queues = memory, queues

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        queue = self._queues.find(stream)
        return self._run(queue, "clEnqueueSVMMemcpy", [self._bytes("copy", dst, src, nbytes, kind, blocking)])

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        queue = self._queues.find(stream)
        made = [self._bytes("copy_batch", *each, kind, False) for each in zip(dsts, srcs, sizes, strict=True)]
        return self._run(queue, "clEnqueueSVMMemcpy", made)

    def copy_strided(self, box: Box, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        queue = self._queues.find(stream)
        return self._run(queue, "clEnqueueCopyBufferRect", [self._rectangle("copy_strided", box, kind, blocking)])

    def copy_3d_batch(self, boxes: Sequence[Box], kind: CopyKind, stream: int) -> bool:
        queue = self._queues.find(stream)
        made = [self._rectangle("copy_3d_batch", box, kind, False) for box in boxes]
        return self._run(queue, "clEnqueueCopyBufferRect", made)

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        queue = self._queues.find(stream)
        if width not in (1, 2, 4) or count <= 0 or not 0 <= value < 1 << 8 * width or dst % width:
            refuse("fill", CODE.INVALID_VALUE, f"{count} times the {width}-byte value {value} at {dst:#x}")
        self._memory.side("fill", dst, width * count)
        pattern = ctypes.create_string_buffer(value.to_bytes(width, "little"), width)
        fill = partial(_cl._enqueue_svm_memfill, dst=at(dst, width * count), pattern=pattern)
        self._queues.enqueue(queue, "clEnqueueSVMMemFill", fill)

    def launch_host_function(self, function: HostFunction, ranges: Sequence[tuple[int, int]], stream: int) -> None:
        queue = self._queues.find(stream)
        coarse = [each for each in ranges if self._memory.side("launch_host_function", *each).kind is MemoryKind.DEVICE]
        mapped = [at(start, stop - start) for start, stop in merged(coarse)]
        begin = partial(_cl._enqueue_svm_map, is_blocking=False, flags=READ_AND_WRITE)
        maps = [(partial(begin, svm=each), partial(_cl._enqueue_svm_unmap, svm=each)) for each in mapped]
        self._queues.launch(queue, function, [ptr for ptr, _ in ranges], maps)

    def _bytes(self, call: str, dst: int, src: int, nbytes: int, kind: CopyKind, blocking: bool) -> Command:
        if nbytes <= 0:
            refuse(call, CODE.INVALID_VALUE, f"{nbytes} bytes")
        to = self._memory.side(call, dst, nbytes, kind is CopyKind.D2H)
        source = self._memory.side(call, src, nbytes, kind is CopyKind.H2D)
        if kind is CopyKind.D2D and dst < src + nbytes and src < dst + nbytes:
            refuse(call, CODE.MEM_COPY_OVERLAP, f"{nbytes} bytes at {src:#x} overlap those at {dst:#x}")
        if to is not None and source is None and not blocking and nbytes <= KEPT_BYTES:
            kept, written, offset = self._kept(src, nbytes), to.buffer(True), dst - to.start
            return Command(lambda on: _cl._enqueue_copy_buffer(on, kept, written, nbytes, 0, offset), False, False)
        target, origin, waits = at(dst, nbytes), at(src, nbytes), blocking or to is None or source is None
        return Command(
            lambda on: _cl._enqueue_svm_memcpy(on, False, target, origin), waits, not waits and kind is not CopyKind.D2D
        )

    def _rectangle(self, call: str, box: Box, kind: CopyKind, blocking: bool) -> Command:
        """Rows and slices. A buffer is wanted on each side; memory that has none is given by its address."""
        region = width, height, depth = box.width, box.height, box.depth
        if min(region) <= 0 or min(box.dst_pitch, box.src_pitch) < width or min(box.dst_rows, box.src_rows) < height:
            refuse(call, CODE.INVALID_VALUE, f"{box}")
        to_pitches = box.dst_pitch, box.dst_pitch * box.dst_rows
        from_pitches = box.src_pitch, box.src_pitch * box.src_rows
        to_span, span = (
            (depth - 1) * slices + (height - 1) * rows + width for rows, slices in (to_pitches, from_pitches)
        )
        to = self._memory.side(call, box.dst, to_span, kind is CopyKind.D2H)
        source = self._memory.side(call, box.src, span, kind is CopyKind.H2D)
        none = 0, 0, 0
        at_source = (box.src - source.start, 0, 0) if source else none
        read = source.buffer(False) if source else None
        if to is None:
            host = (ctypes.c_ubyte * to_span).from_address(box.dst)
            rest = host, at_source, none, region, from_pitches, to_pitches, None, False
            return Command(lambda on: _cl._enqueue_read_buffer_rect(on, read, *rest), True, False)
        at_target, written = (box.dst - to.start, 0, 0), to.buffer(True)
        if source is None and (blocking or span > KEPT_BYTES):
            host = (ctypes.c_ubyte * span).from_address(box.src)
            rest = host, at_target, none, region, to_pitches, from_pitches, None, False
            return Command(lambda on: _cl._enqueue_write_buffer_rect(on, written, *rest), True, False)
        read = read or self._kept(box.src, span)
        uses_host = not blocking and kind is not CopyKind.D2D and source is not None
        places = at_source, at_target, region, from_pitches, to_pitches
        return Command(lambda on: _cl._enqueue_copy_buffer_rect(on, read, written, *places), blocking, uses_host)

    def _kept(self, ptr: int, nbytes: int) -> Any:
        """A copy of a pageable source, which OpenCL keeps until its command has run."""
        flags, source = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, (ctypes.c_ubyte * nbytes).from_address(ptr)
        with checked("clCreateBuffer"):
            return cl.Buffer(self._queues.context, flags, hostbuf=source)

    def _run(self, queue: Queue, name: str, commands: Sequence[Command]) -> bool:
        event, calls = self._queues.enqueue(queue, name, *(command.enqueue for command in commands))
        if any(command.waits for command in commands):
            self._queues.wait(event, calls)
        return any(command.uses_host for command in commands)
