"""What large copies of pageable memory cost, told to whoever could do something about it."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import DevmemWarning
from ...spi.types import Capability
from ..base.config import call_site, caller_level
from ..base.layout import extent
from .plan import Case, Sort

if TYPE_CHECKING:
    from ..device.open_device import Context
    from ..ordering.stream import Stream

#: Bytes from which a copy is looked at. At the 8 to 9 GB/s at which drivers copy pageable memory this takes 0.1 ms: of what is
#: smaller nobody sees whether it overlapped.
LARGE = 1 << 20
#: Bytes a second at which pages are locked and let go again. Reported are 0.9 (four buffers of 128 MiB), 1 to 2, 2.1 (64 MiB)
#: and, with huge pages, 6 to 15 GB/s; so the advice comes late rather than early.
LOCKING = 1.5e9
#: Bytes a second at which locked memory is copied at least: a PCIe 4 bus. Time that this takes, locking does not save.
LOCKED = 20e9
#: Arrays that are looked at, at once, on a device. Who copies more of them in turn gets no advice.
TRACKED = 64

_told: set[tuple[str, int]] = set()


class Repeats:
    """Which arrays are copied again and again, and what that has taken, for one device.

    Of an array its place in memory and a weak reference are kept: another one at the same place begins anew.
    """

    def __init__(self) -> None:
        self._arrays: OrderedDict[tuple[int, int], _Repeat] = OrderedDict()
        self._lock = threading.RLock()  # a finalizer, run by the collector in between, may copy

    def add(self, array: npt.NDArray[Any], seconds: float) -> int:
        """Count a copy, which took so many seconds of the host.

        Returns
        -------
        int
            How many copies there were, when their time has just passed what it would have taken to lock the array's pages and
            copy it so, every time; else 0.
        """
        place = extent(array)
        nbytes = place[1] - place[0]
        owner = _owner(array)
        with self._lock:
            found = self._arrays.pop(place, None)
            if found is None or found.owner() is not owner:
                found = _Repeat(owner)
            self._arrays[place] = found
            if len(self._arrays) > TRACKED:
                self._arrays.popitem(last=False)
            found.copies += 1
            again = found.copies - 1
            found.seconds += seconds if again else 0.0  # the first may have made the slots
            if found.told or found.seconds <= nbytes * (1 / LOCKING + again / LOCKED):
                return 0
            found.told = True
            return found.copies


class _Repeat:
    """One array."""

    __slots__ = ("copies", "owner", "seconds", "told")

    def __init__(self, owner: npt.NDArray[Any]) -> None:
        self.owner = weakref.ref(owner)
        self.copies = 0
        self.seconds = 0.0
        self.told = False


def copied(
    context: Context, host: npt.NDArray[Any], stream: Stream, seconds: float, *, stood: bool, spared: bool = False
) -> None:
    """Take note of a copy of at least `LARGE` bytes, and say so where page-locked memory would have been better.

    Parameters
    ----------
    host : ndarray
        The user's side.
    seconds : float
        What it took on the host, without what it waited.
    stood : bool
        Whether the call stood still until the host side was read, or written, although a stream was named.
    spared : bool
        Whether `copy_async` would not have.

    Warns
    -----
    DevmemWarning
        The call stood still, and would not have with page-locked memory; once for each line that calls.
    """
    if not context.locking_pays:
        return
    case = Case(context, host, stream)
    sort = case.sort
    if sort not in (Sort.PAGEABLE, Sort.FILE) or case.capturing:
        return
    if sort is Sort.PAGEABLE and host.flags.writeable and Capability.HOST_REGISTER in context.capabilities:
        copies = context.repeats.add(host, seconds)
        if copies:
            _tell_of_register(context, host, copies)
    if stood:
        _warn_of_standing(host, spared)


# -- below -------------------------------------------------------------------------------------------------------------


def _warn_of_standing(host: npt.NDArray[Any], spared: bool) -> None:
    site = call_site()
    if site in _told:
        return
    _told.add(site)
    warnings.warn(
        f"a stream was given, but the copy did not run in the background: the host array of {host.nbytes:,} bytes lies in "
        f"pageable memory, so the call waited for it. Make the array with pinned_array(), or register() it"
        + (", or use copy_async()" if spared else ""),
        DevmemWarning,
        stacklevel=caller_level(),
    )


def _tell_of_register(context: Context, host: npt.NDArray[Any], copies: int) -> None:
    import logging  # takes longer to import than this module

    low = extent(host)[0]
    message = (
        f"an array of {host.nbytes:,} bytes at {low:#x} was copied {copies} times from and to pageable memory: to page-lock "
        f"it once, with devmem.register(array), would have taken less"
    )
    logging.getLogger("devmem").info("%s", message)
    if context.trace is not None:
        facts = {"bytes": host.nbytes, "address": f"{low:#x}", "copies": copies, "why": message}
        context.trace.note("register would pay", perf_counter(), facts)


def _owner(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The ndarray whose memory a view shows, as far as there is one."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
