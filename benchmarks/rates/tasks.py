"""The cells of the tables, the bytes that they copy, and the comparison of those bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import devmem as dm

from .driver import Array, driver
from .libraries import Library
from .sizes import KiB, MiB

POISON = 0xA5


def nothing() -> None:
    """No preparation."""


@dataclass
class Task:
    """One cell: after ``prepare``, ``verify`` checks the result of ``run`` once, and then ``run`` is timed."""

    run: Callable[[], Any]
    verify: Callable[[Any], None]
    prepare: Callable[[], None] = nothing
    waits: bool = True  # for the device, within the measured time
    timed_itself: bool = False  # run() returns the seconds
    uses: int = 1
    note: str = ""


@dataclass(frozen=True)
class Case:
    """One row of a table."""

    id: str
    title: str
    group: str
    nbytes: int  # bytes of one use; 0: only the time is shown
    unit: str
    build: Callable[[Library], Task]
    limit: str = ""  # h2d or d2h: the limit is timed in the same rounds

    def value(self, seconds: float) -> float:
        return seconds * 1e6 if self.unit == "us" else self.nbytes / seconds / 1e9


@dataclass
class Effort:
    """How much to measure."""

    sizes: tuple[int, ...] = (256 * MiB, 16 * MiB, MiB, 64 * KiB, 4 * KiB)
    square: int = 4096
    many: int = 1000
    calls: int = 200
    rounds: int = 40
    rounds_small: int = 600  # of contiguous arrays up to 64 KiB
    fewest: int = 3


QUICK = Effort(sizes=(MiB, 4 * KiB), square=128, many=10, calls=20, rounds=3, rounds_small=3, fewest=1)


class Data:
    """Host memory that all libraries use: pageable and page-locked, with all pages touched."""

    def __init__(self, nbytes: int) -> None:
        rng = np.random.default_rng()
        self._src = rng.random(nbytes // 4, np.float32)
        self._out = np.full(nbytes // 4, 1, np.float32)
        self._pinned_src = dm.pinned_array(nbytes // 4, np.float32)
        self._pinned_src[:] = self._src
        self._pinned_out = dm.pinned_array(nbytes // 4, np.float32)
        self._pinned_out[:] = 0
        self._keys = rng

    def src(self, nbytes: int, pinned: bool = False) -> Array:
        return (self._pinned_src if pinned else self._src)[: nbytes // 4]

    def out(self, nbytes: int, pinned: bool = False) -> Array:
        return (self._pinned_out if pinned else self._out)[: nbytes // 4]

    def renew(self, array: Array) -> None:
        """Change the bytes in place, so that the result of an earlier upload is not mistaken for this one."""
        words = array.reshape(-1).view(np.uint64)
        np.bitwise_xor(words, self._keys.integers(1, 1 << 64, dtype=np.uint64), out=words)


def poison(out: Array) -> None:
    """Poison the memory, so that bytes that were not written are detected."""
    out.view(np.uint8)[...] = POISON


def same(found: Array, wanted: Array) -> None:
    """Compare bytes, not values."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise AssertionError(f"got {found.dtype}{found.shape}, expected {wanted.dtype}{wanted.shape}")
    if not np.array_equal(np.ascontiguousarray(found).view(np.uint32), np.ascontiguousarray(wanted).view(np.uint32)):
        raise AssertionError("wrong bytes")


def on_device(library: Library, device: Any, wanted: Array) -> None:
    """Read device memory through the driver, not through the library."""
    driver().wait()
    found = np.empty(wanted.shape, wanted.dtype)
    poison(found)
    driver().read(found.ctypes.data, library.pointer(device), found.nbytes)
    same(found, wanted)
