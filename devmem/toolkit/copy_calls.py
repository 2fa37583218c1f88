"""The choice of the calls that copy page-locked memory, by the time until each returns, once as a device opens.

Vendors have newer calls, for several copies at once or with attributes, beside the plain ones. Each is tried against what it
would replace, on a stream that waits for no other work of the program, and taken where it takes no longer. What cannot be tried
keeps no device from opening.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from ..spi.driver import FullDriver
from ..spi.errors import BackendError, OutOfMemory, UnsupportedError
from ..spi.types import LEGACY_STREAM, Capability, CopyKind, MemoryKind
from .driver_parts import DriverState

#: Bytes of a copy, and the copies that are made in one call or in one each.
SAMPLE, COUNT = 4096, 32
#: Rounds in which two calls take turns; so many at most, as long as the newer one seems slower: what else the machine does must
#: not decide.
ROUNDS, MOST_ROUNDS = 5, 15
_H2D = CopyKind.H2D


class CopyCalls:
    """The calls of one driver, whose device is current, while they are tried.

    Attributes
    ----------
    told : list of str
        What is to be told of the choice, for each kind of call.
    slower : set of Capability
        The capabilities that are not to be used.
    """

    def __init__(self, driver: FullDriver) -> None:
        self._driver = driver
        self.told: list[str] = []
        self.slower: set[Capability] = set()
        self._stream = self._there = self._here = 0

    def choose(
        self,
        state: DriverState,
        capabilities: Collection[Capability],
        with_attributes: Callable[[bool], None] | None = None,
    ) -> None:
        """Try what the driver has; ``with_attributes`` makes its single copies take the newer call or the plain one."""
        driver, nbytes, unordered = self._driver, COUNT * SAMPLE, state.streams.unordered
        batches = Capability.BATCH_COPY in capabilities
        if with_attributes is None and not batches:
            return
        try:
            self._stream = driver.stream_create(0, True)
            self._there = driver.alloc(nbytes, LEGACY_STREAM)
            self._here = driver.alloc(nbytes, LEGACY_STREAM, MemoryKind.PINNED)
            if with_attributes is not None:
                self._try_attributes(with_attributes)
            if batches and not self._compare("several copies", "a call for each", "one call", self._each, self._batch):
                self.slower.add(Capability.BATCH_COPY)
        except BackendError as error:
            self.told.append(f"the calls for copies could not be measured ({error})")
        finally:
            if self._stream:
                with suppress(BackendError):  # a failure of the copies is the one to be told
                    driver.stream_synchronize(self._stream)
                driver.stream_destroy(self._stream)
                state.streams.unordered = unordered
            for ptr, kind in ((self._here, MemoryKind.PINNED), (self._there, MemoryKind.DEVICE)):
                if ptr:
                    driver.free(ptr, nbytes, LEGACY_STREAM, kind)

    def _try_attributes(self, with_attributes: Callable[[bool], None]) -> None:
        def copies(newer: bool) -> None:
            with_attributes(newer)
            self._each()

        what, taken = "single copies of page-locked memory", False
        try:
            taken = self._compare(
                what, "the plain calls", "the call with attributes", partial(copies, False), partial(copies, True)
            )
        finally:
            with_attributes(taken)

    def _compare(
        self, what: str, older: str, newer: str, by_older: Callable[[], object], by_newer: Callable[[], object]
    ) -> bool:
        """Whether copies are to take the newer calls."""
        try:
            plain, new = self._least_times(by_older, by_newer)
        except OutOfMemory:  # which says nothing of the calls
            raise
        except (BackendError, UnsupportedError) as error:
            self.told.append(f"{what} take {older}: {newer} could not be measured ({error})")
            return False
        measured = f"{COUNT} of them take {1e6 * new:.2f} us by {newer}, {1e6 * plain:.2f} us by {older}"
        self.told.append(f"{what} take {newer if new <= plain else older}: {measured}")
        return new <= plain

    def _least_times(self, older: Callable[[], object], newer: Callable[[], object]) -> tuple[float, float]:
        """The least seconds of each, which take turns: both meet what else the machine does."""
        least = [math.inf, math.inf]
        for done in range(MOST_ROUNDS):
            if done >= ROUNDS and least[1] <= least[0]:
                break
            for at, call in enumerate((older, newer)):
                least[at] = min(least[at], time_of(call))
                self._driver.stream_synchronize(self._stream)
        return least[0], least[1]

    def _each(self) -> None:
        for at in range(0, COUNT * SAMPLE, SAMPLE):
            self._driver.copy(self._there + at, self._here + at, SAMPLE, _H2D, self._stream, blocking=False)

    def _batch(self) -> None:
        starts = range(0, COUNT * SAMPLE, SAMPLE)
        dsts, srcs = [self._there + at for at in starts], [self._here + at for at in starts]
        self._driver.copy_batch(dsts, srcs, [SAMPLE] * COUNT, _H2D, self._stream)


def time_of(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
