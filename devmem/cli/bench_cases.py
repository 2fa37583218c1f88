"""What `devmem bench` measures: the ways that bytes go, and the arrays that they need."""

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
#: Bytes of a small array, and the most that a batch of them is measured with: 16,384 arrays.
LEAF, MOST_IN_LEAVES = 4 * KiB, 64 * MiB
#: Bytes of one row of the arrays whose rows lie apart, and of how many rows there are at least.
ROW, FEWEST_ROWS = 16 * KiB, 4
#: What the limit is taken from: so many bytes are on the stream before anybody waits, in so many copies at most.
QUEUED_BYTES, MOST_QUEUED = 64 * MiB, 64
#: Threads that copy within the host's memory at once.
THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


class Direction(StrEnum):
    """From where to where; ``inside``: within the device, or within the host's memory."""

    UP = "h2d"
    DOWN = "d2h"
    INSIDE = "inside"


class Task(NamedTuple):
    """One way at one size: what ``run`` returns is dropped after the clock has stopped. It moves the bytes so many times."""

    run: Callable[[], object]
    uses: int = 1


class Way(NamedTuple):
    """One line of the plot, one row of a table.

    ``apart``: measured after the others, because other copies are another matter while it has memory registered.
    """

    direction: Direction
    name: str
    build: Callable[[Room], Task]
    most: int = GiB
    apart: bool = False


class Room:
    """The arrays of one size, each made when it is first asked for, all given back at the end of the block.

    Every page of the host's is written to beforehand: what is never written to has no memory, and is read at no cost.
    """

    #: How many times its size a room takes, with what the copies make besides. A device may have its memory on the host.
    ON_DEVICE, ON_HOST = 4, 12

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._stack = ExitStack()

    def __enter__(self) -> Room:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    # -- the host's side -----------------------------------------------------------------------------------------------

    @cached_property
    def source(self) -> Array:
        """Pageable."""
        return self._apart_source.reshape(-1)[: self.nbytes // 4]

    @cached_property
    def target(self) -> Array:
        """Pageable."""
        return self._apart_target.reshape(-1)[: self.nbytes // 4]

    @cached_property
    def pinned(self) -> Array:
        """Page-locked, by devmem."""
        made = devmem.pinned_array(self.nbytes // 4, np.float32)
        made[:] = 1
        return made.view(np.ndarray)

    @cached_property
    def registered(self) -> Array:
        """Page-locked afterwards, on pages of its own."""
        raw = np.full(self.nbytes + 2 * PAGESIZE, 1, np.uint8)
        start = -raw.ctypes.data % PAGESIZE
        made: Array = raw[start : start + self.nbytes].view(np.float32)
        self._stack.enter_context(devmem.register(made))
        return made

    @property
    def source_rows(self) -> Array:
        """Rows with as much between them."""
        return self._apart_source[:, : self._width]

    @property
    def target_rows(self) -> Array:
        """Rows with as much between them."""
        return self._apart_target[:, : self._width]

    @cached_property
    def leaves(self) -> list[Array]:
        """Small arrays, each with memory of its own, as a program has them."""
        return [np.full(LEAF // 4, 1, np.float32) for _ in range(self.nbytes // LEAF)]

    @property
    def source_square(self) -> Array:
        """The pageable array as a square."""
        return self.source.reshape(self._square)

    @property
    def target_square(self) -> Array:
        """The pageable array as a square."""
        return self.target.reshape(self._square)

    @cached_property
    def crew(self) -> ThreadPoolExecutor:
        """Threads that help the caller."""
        made = ThreadPoolExecutor(THREADS - 1)
        self._stack.callback(made.shutdown)
        return made

    # -- the device's --------------------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> devmem.DeviceNDArray[Any]:
        """Contiguous."""
        return devmem.full(self.nbytes // 4, np.float32(1), np.float32)

    @cached_property
    def other(self) -> devmem.DeviceNDArray[Any]:
        """Contiguous."""
        return devmem.full(self.nbytes // 4, np.float32(1), np.float32)

    @property
    def device_rows(self) -> devmem.DeviceNDArray[Any]:
        """The array in the shape of the host's rows."""
        return self.device.reshape(-1, self._width)

    @property
    def device_square(self) -> devmem.DeviceNDArray[Any]:
        """The array as a square."""
        return self.device.reshape(self._square)

    @cached_property
    def device_leaves(self) -> Any:
        """The small arrays, in one block."""
        return devmem.to_device_many(self.leaves)

    @cached_property
    def stream(self) -> devmem.Stream:
        """One for what is queued."""
        return devmem.stream()

    # -- below ---------------------------------------------------------------------------------------------------------

    @property
    def _square(self) -> tuple[int, int]:
        side = math.isqrt(self.nbytes // 4)  # whole: sizes are powers of four
        return side, side

    @property
    def _width(self) -> int:
        return min(ROW, self.nbytes // FEWEST_ROWS) // 4

    @cached_property
    def _apart_source(self) -> Array:
        return np.full((self.nbytes // 4 // self._width, 2 * self._width), 1, np.float32)

    @cached_property
    def _apart_target(self) -> Array:
        return np.full_like(self._apart_source, 2)


def _up(prepared: Callable[[Room], Callable[[], object]]) -> Callable[[Room], Task]:
    """Uploads may return when the bytes have left the host's array; they are timed until the device has them."""

    def build(room: Room) -> Task:
        copy = prepared(room)

        def run() -> object:
            made = copy()
            devmem.synchronize()
            return made

        return Task(run)

    return build


def _down(prepared: Callable[[Room], Callable[[], object]]) -> Callable[[Room], Task]:
    """Downloads without a stream are complete on return."""
    return lambda room: Task(prepared(room))


def _async(src: object, dst: object) -> Callable[[], object]:
    return lambda: devmem.copy_async(src, dst).result()


def _queued(direction: Direction) -> Callable[[Room], Task]:
    def build(room: Room) -> Task:
        times = min(MOST_QUEUED, max(1, QUEUED_BYTES // room.nbytes))
        device, pinned, stream = room.device, room.pinned, room.stream

        def run() -> None:
            for _ in range(times):
                if direction is Direction.UP:
                    device.copy_to_device(pinned, stream)
                else:
                    device.copy_to_host(pinned, stream)
            stream.synchronize()

        return Task(run, times)

    return build


def _by_threads(room: Room) -> Task:
    ends = [room.source.size * at // THREADS for at in range(THREADS + 1)]
    parts = [(room.target[low:high], room.source[low:high]) for low, high in pairwise(ends)]

    def run() -> None:
        others = [room.crew.submit(np.copyto, *part) for part in parts[1:]]
        np.copyto(*parts[0])
        for each in others:
            each.result()

    return Task(run)


LIMIT = "pinned, queued"
#: Whatever the bus can do, one of these shows; nothing else that goes over it is faster.
PAGE_LOCKED = (LIMIT, "pinned", "registered")
UP, DOWN, INSIDE = Direction.UP, Direction.DOWN, Direction.INSIDE

#: Functions that are given a room make everything there first: what they return is only the copy.
WAYS: tuple[Way, ...] = (
    Way(UP, LIMIT, _queued(UP)),
    Way(UP, "pinned", _up(lambda room: partial(room.device.copy_to_device, room.pinned))),
    Way(UP, "registered", _up(lambda room: partial(room.device.copy_to_device, room.registered)), apart=True),
    Way(UP, "pageable", _up(lambda room: partial(room.device.copy_to_device, room.source))),
    Way(UP, "pageable, new array", _up(lambda room: partial(devmem.to_device, room.source))),
    Way(UP, "copy_async", _up(lambda room: _async(room.source, room.device))),
    Way(UP, "rows apart", _up(lambda room: partial(room.device_rows.copy_to_device, room.source_rows))),
    Way(UP, "transposed", _up(lambda room: partial(room.device_square.copy_to_device, room.source_square.T))),
    Way(UP, "batch of 4 KiB arrays", _up(lambda room: partial(devmem.to_device_many, room.leaves)), MOST_IN_LEAVES),
    Way(DOWN, LIMIT, _queued(DOWN)),
    Way(DOWN, "pinned", _down(lambda room: partial(room.device.copy_to_host, room.pinned))),
    Way(DOWN, "registered", _down(lambda room: partial(room.device.copy_to_host, room.registered)), apart=True),
    Way(DOWN, "pageable", _down(lambda room: partial(room.device.copy_to_host, room.target))),
    Way(DOWN, "pageable, new array", _down(lambda room: room.device.copy_to_host)),
    Way(DOWN, "copy_async", _down(lambda room: _async(room.device, room.target))),
    Way(DOWN, "rows apart", _down(lambda room: partial(room.device_rows.copy_to_host, room.target_rows))),
    Way(DOWN, "transposed", _down(lambda room: partial(room.device_square.T.copy_to_host, room.target_square))),
    Way(
        DOWN,
        "batch of 4 KiB arrays",
        _down(lambda room: partial(devmem.to_host_many, room.device_leaves)),
        MOST_IN_LEAVES,
    ),
    Way(INSIDE, "device to device", _up(lambda room: partial(room.other.copy_to_device, room.device))),
    Way(INSIDE, "host to host, 1 thread", _down(lambda room: partial(np.copyto, room.target, room.source))),
    *([Way(INSIDE, f"host to host, {THREADS} threads", _by_threads)] if THREADS > 1 else []),
)
