"""Cases of `devmem bench`: the ways of copying (`CASES`), and the arrays that they copy (`BenchArrays`)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from enum import StrEnum
from functools import cached_property, partial
from itertools import pairwise
from mmap import PAGESIZE
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import devmem

Array = NDArray[Any]

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
#: Bytes of one small array, and of the largest batch of them: 16,384 arrays.
SMALL_ARRAY_BYTES, MAX_BATCH_BYTES = 4 * KiB, 64 * MiB
#: In arrays with gaps between the rows: bytes of a row, and the smallest number of rows.
ROW_BYTES, MIN_ROWS = 16 * KiB, 4
#: The limit case queues this many bytes on the stream before it waits, in at most this many copies.
QUEUED_BYTES, MAX_QUEUED = 64 * MiB, 64
#: Threads of the host-to-host copy.
THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


class Direction(StrEnum):
    """Between which memories; ``inside``: within the device's, or within the host's."""

    UPLOAD = "h2d"
    DOWNLOAD = "d2h"
    WITHIN = "inside"


class CopyTask(NamedTuple):
    """One case at one size. The result of ``run`` is freed outside the timing; one run moves the bytes ``repeats`` times."""

    run: Callable[[], object]
    repeats: int = 1


class BenchCase(NamedTuple):
    """One way of copying: a line of the plot, a row of a table.

    ``last``: measured after the other cases, because it registers memory, which changes how that memory is copied.
    """

    direction: Direction
    name: str
    build: Callable[[BenchArrays], CopyTask]
    max_bytes: int = GiB
    last: bool = False


class BenchArrays:
    """The arrays of one size, each made at its first use; the end of the ``with`` block frees them.

    Every host page is written once beforehand: a page never written has no memory behind it and reads at no cost.
    """

    #: Memory for all arrays and the copies' temporaries, as multiples of the size. A device may keep its memory on the host.
    ON_DEVICE, ON_HOST = 4, 12

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._stack = ExitStack()

    def __enter__(self) -> BenchArrays:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    # -- on the host ---------------------------------------------------------------------------------------------------

    @cached_property
    def source(self) -> Array:
        """Pageable."""
        return self._padded_source.reshape(-1)[: self.nbytes // 4]

    @cached_property
    def target(self) -> Array:
        """Pageable."""
        return self._padded_target.reshape(-1)[: self.nbytes // 4]

    @cached_property
    def pinned(self) -> Array:
        """Allocated page-locked by devmem."""
        made = devmem.pinned_array(self.nbytes // 4, np.float32)
        made[:] = 1
        return made.view(np.ndarray)

    @cached_property
    def registered(self) -> Array:
        """Pageable memory, page-locked afterwards; it shares no page with other arrays."""
        raw = np.full(self.nbytes + 2 * PAGESIZE, 1, np.uint8)
        start = -raw.ctypes.data % PAGESIZE
        made: Array = raw[start : start + self.nbytes].view(np.float32)
        self._stack.enter_context(devmem.register(made))
        return made

    @property
    def source_rows(self) -> Array:
        """Rows with gaps of the same length between them."""
        return self._padded_source[:, : self._width]

    @property
    def target_rows(self) -> Array:
        """Rows with gaps of the same length between them."""
        return self._padded_target[:, : self._width]

    @cached_property
    def small_arrays(self) -> list[Array]:
        """Small arrays, each allocated on its own."""
        return [np.full(SMALL_ARRAY_BYTES // 4, 1, np.float32) for _ in range(self.nbytes // SMALL_ARRAY_BYTES)]

    @property
    def source_square(self) -> Array:
        """`source` as a square matrix."""
        return self.source.reshape(self._square)

    @property
    def target_square(self) -> Array:
        """`target` as a square matrix."""
        return self.target.reshape(self._square)

    @cached_property
    def helper_threads(self) -> ThreadPoolExecutor:
        """Threads that copy beside the calling thread."""
        made = ThreadPoolExecutor(THREADS - 1)
        self._stack.callback(made.shutdown)
        return made

    # -- on the device -------------------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> devmem.DeviceNDArray[Any]:
        """Contiguous."""
        return devmem.full(self.nbytes // 4, np.float32(1), np.float32)

    @cached_property
    def second_device(self) -> devmem.DeviceNDArray[Any]:
        """Contiguous."""
        return devmem.full(self.nbytes // 4, np.float32(1), np.float32)

    @property
    def device_rows(self) -> devmem.DeviceNDArray[Any]:
        """`device` in the shape of the host's rows."""
        return self.device.reshape(-1, self._width)

    @property
    def device_square(self) -> devmem.DeviceNDArray[Any]:
        """`device` as a square matrix."""
        return self.device.reshape(self._square)

    @cached_property
    def device_small_arrays(self) -> Any:
        """Device copies of the small arrays, in one allocation."""
        return devmem.to_device_many(self.small_arrays)

    @cached_property
    def stream(self) -> devmem.Stream:
        """The stream of the queued copies."""
        return devmem.stream()

    # -- private -------------------------------------------------------------------------------------------------------

    @property
    def _square(self) -> tuple[int, int]:
        side = math.isqrt(self.nbytes // 4)  # exact, as sizes are powers of four
        return side, side

    @property
    def _width(self) -> int:
        return min(ROW_BYTES, self.nbytes // MIN_ROWS) // 4

    @cached_property
    def _padded_source(self) -> Array:
        return np.full((self.nbytes // 4 // self._width, 2 * self._width), 1, np.float32)

    @cached_property
    def _padded_target(self) -> Array:
        return np.full_like(self._padded_source, 2)


def _upload(prepared: Callable[[BenchArrays], Callable[[], object]]) -> Callable[[BenchArrays], CopyTask]:
    """An upload may return once the host array has been read; the timing ends when the device has the bytes."""

    def build(arrays: BenchArrays) -> CopyTask:
        copy = prepared(arrays)

        def run() -> object:
            made = copy()
            devmem.synchronize()
            return made

        return CopyTask(run)

    return build


def _download(prepared: Callable[[BenchArrays], Callable[[], object]]) -> Callable[[BenchArrays], CopyTask]:
    """A download without a stream is complete on return."""
    return lambda arrays: CopyTask(prepared(arrays))


def _async(src: Any, dst: Any) -> Callable[[], object]:
    return lambda: devmem.copy_async(src, dst).result()


def _queued(direction: Direction) -> Callable[[BenchArrays], CopyTask]:
    def build(arrays: BenchArrays) -> CopyTask:
        times = min(MAX_QUEUED, max(1, QUEUED_BYTES // arrays.nbytes))
        device, pinned, stream = arrays.device, arrays.pinned, arrays.stream

        def run() -> None:
            for _ in range(times):
                if direction is Direction.UPLOAD:
                    device.copy_to_device(pinned, stream)
                else:
                    device.copy_to_host(pinned, stream)
            stream.synchronize()

        return CopyTask(run, times)

    return build


def _by_threads(arrays: BenchArrays) -> CopyTask:
    ends = [arrays.source.size * at // THREADS for at in range(THREADS + 1)]
    parts = [(arrays.target[low:high], arrays.source[low:high]) for low, high in pairwise(ends)]

    def run() -> None:
        futures = [arrays.helper_threads.submit(np.copyto, *part) for part in parts[1:]]
        np.copyto(*parts[0])
        for future in futures:
            future.result()

    return CopyTask(run)


LIMIT_CASE = "pinned, queued"
#: The cases that show the limit of the bus: no other copy over it is faster.
PAGE_LOCKED = (LIMIT_CASE, "pinned", "registered")
UPLOAD, DOWNLOAD, WITHIN = Direction.UPLOAD, Direction.DOWNLOAD, Direction.WITHIN

#: Each builder makes the arrays first and returns the copy alone, which is what gets timed.
CASES: tuple[BenchCase, ...] = (
    BenchCase(UPLOAD, LIMIT_CASE, _queued(UPLOAD)),
    BenchCase(UPLOAD, "pinned", _upload(lambda arrays: partial(arrays.device.copy_to_device, arrays.pinned))),
    BenchCase(
        UPLOAD,
        "registered",
        _upload(lambda arrays: partial(arrays.device.copy_to_device, arrays.registered)),
        last=True,
    ),
    BenchCase(UPLOAD, "pageable", _upload(lambda arrays: partial(arrays.device.copy_to_device, arrays.source))),
    BenchCase(UPLOAD, "pageable, new array", _upload(lambda arrays: partial(devmem.to_device, arrays.source))),
    BenchCase(UPLOAD, "copy_async", _upload(lambda arrays: _async(arrays.source, arrays.device))),
    BenchCase(
        UPLOAD, "rows apart", _upload(lambda arrays: partial(arrays.device_rows.copy_to_device, arrays.source_rows))
    ),
    BenchCase(
        UPLOAD,
        "transposed",
        _upload(lambda arrays: partial(arrays.device_square.copy_to_device, arrays.source_square.T)),
    ),
    BenchCase(
        UPLOAD,
        "batch of 4 KiB arrays",
        _upload(lambda arrays: partial(devmem.to_device_many, arrays.small_arrays)),
        MAX_BATCH_BYTES,
    ),
    BenchCase(DOWNLOAD, LIMIT_CASE, _queued(DOWNLOAD)),
    BenchCase(DOWNLOAD, "pinned", _download(lambda arrays: partial(arrays.device.copy_to_host, arrays.pinned))),
    BenchCase(
        DOWNLOAD,
        "registered",
        _download(lambda arrays: partial(arrays.device.copy_to_host, arrays.registered)),
        last=True,
    ),
    BenchCase(DOWNLOAD, "pageable", _download(lambda arrays: partial(arrays.device.copy_to_host, arrays.target))),
    BenchCase(DOWNLOAD, "pageable, new array", _download(lambda arrays: arrays.device.copy_to_host)),
    BenchCase(DOWNLOAD, "copy_async", _download(lambda arrays: _async(arrays.device, arrays.target))),
    BenchCase(
        DOWNLOAD, "rows apart", _download(lambda arrays: partial(arrays.device_rows.copy_to_host, arrays.target_rows))
    ),
    BenchCase(
        DOWNLOAD,
        "transposed",
        _download(lambda arrays: partial(arrays.device_square.T.copy_to_host, arrays.target_square)),
    ),
    BenchCase(
        DOWNLOAD,
        "batch of 4 KiB arrays",
        _download(lambda arrays: partial(devmem.to_host_many, arrays.device_small_arrays)),
        MAX_BATCH_BYTES,
    ),
    BenchCase(
        WITHIN, "device to device", _upload(lambda arrays: partial(arrays.second_device.copy_to_device, arrays.device))
    ),
    BenchCase(
        WITHIN, "host to host, 1 thread", _download(lambda arrays: partial(np.copyto, arrays.target, arrays.source))
    ),
    *([BenchCase(WITHIN, f"host to host, {THREADS} threads", _by_threads)] if THREADS > 1 else []),
)
