"""The plan of a copy: which route it takes, in which rows, and why. Pure: nothing is copied, allocated or waited for here.

`plan_copy` looks at the layouts of both sides and at facts of the device (`CopyFacts`), and answers with a `CopyPlan`
whose reason goes into the trace. The engine executes it. The routes:

==========  ==========================================================================================================
direct      one run of bytes on both sides
2d          rows, by the driver's strided copies
packed      gathered in a host buffer first (upload), or fetched in one run and scattered from there (download)
span        everything between the elements is fetched with them, and gathered on the host; sparse: in parts
staged      by way of page-locked slots; on one device, by way of the host
scratch     by way of a second array on the device, where only the device copies such rows in few calls
==========  ==========================================================================================================
"""

# Decision: docs/adr/0003-one-plan-chooses-the-path-of-a-copy.md
from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from ...spi.types import CopyKind
from ..base.array_view import Strided
from ..base.layout import memory_order, reordered, span
from ..ordering.stream import Stream
from .host_memory import HostMemory
from .rows import Rows, rows, unpacking_rows

#: Rows at least this wide are copied by the driver as they lie; narrower ones are cheaper to gather on the host.
WIDE_ROW = 512
#: Driver calls that a strided copy may take before it is done by way of a host buffer instead.
MANY_CALLS = 64
#: How many times fewer they have to be for a detour.
FEWER = 4
#: How many times the wanted bytes a span may have, to be fetched whole.
DENSE_SPAN = 8
#: Bytes of a span that is fetched where the whole would be too much: about what the bus moves while the driver is called.
SPARSE_PART = 64 << 10

BELOW = "too small for the way through page-locked slots to pay"
NARROW = f"rows of less than {WIDE_ROW} bytes are cheaper to gather on the host"
MANY = f"the driver would be called more than {MANY_CALLS} times"
GAPS = f"{MANY}: rows are fetched with what lies between them"
SPARSE = f"{MANY}, and the whole is too sparse: it is fetched in parts of {SPARSE_PART >> 10} KiB"
SCRATCH = f"{MANY} between host and device, and fewer times on it"
UNPITCHED = "the device does not copy rows so far apart in one call"
CUT = "page-locked memory begins or ends within the host array"
UNCOPIED = "copy=False: nothing is gathered on the host"
REACHED = "the device reaches the memory"
ONE_RUN = "both sides are one run of bytes"
ROWS = "rows are wide, and few calls of the driver copy them"
NEVER_WAITS = "the call waits for no stream"
MAPPED_FILE = "a mapped file, whose pages several threads fetch"
PAGEABLE = "pageable memory, copied by the driver, leaves most of the bus unused"

H2D, D2H, D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D


class Route(StrEnum):
    """The route of a copy."""

    DIRECT = "direct"
    ROWS = "2d"
    PACKED = "packed"
    SPAN = "span"
    SPARSE = "sparse"
    STAGED = "staged"
    SCRATCH = "scratch"


class CopyFacts(Protocol):
    """The facts on which a plan depends besides the two sides. The engine has them; a test gives its own."""

    @property
    def staging_threshold(self) -> int:
        """Bytes from which a copy of pageable memory is staged."""

    @property
    def slot_bytes(self) -> int: ...

    @property
    def has_slots(self) -> bool:
        """Whether there is page-locked memory for slots."""

    @property
    def can_grow(self) -> bool:
        """Whether copies that wait for no stream have slots."""

    @property
    def pitch_multiple(self) -> int:
        """The number of which pitches must be multiples for strided copies between host and device to be fast."""

    def calls(self, rows: Rows, kind: CopyKind) -> int:
        """Driver calls that rows take."""

    def is_pitched(self, rows: Rows, kind: CopyKind) -> bool:
        """Whether the driver copies these rows in one call."""

    def memory_of(self, host: npt.NDArray[Any]) -> HostMemory:
        """Return the sort of a host array's memory."""

    def is_cut(self, host: npt.NDArray[Any]) -> bool:
        """Whether page-locked memory begins or ends within a host array."""


class CopyPlan(NamedTuple):
    """A route, the path that it is counted under, why it is taken, and the rows that the driver copies."""

    route: Route
    path: str
    why: str
    rows: Rows | None = None


SMALL_UPLOAD = CopyPlan(Route.DIRECT, "h2d direct", BELOW)
SMALL_DOWNLOAD = CopyPlan(Route.DIRECT, "d2h direct", BELOW)


def plan_copy(
    kind: CopyKind,
    dst: Any,
    src: Any,
    facts: CopyFacts,
    stream: Stream,
    *,
    host_copy: bool = True,
    scratch: bool = True,
    waits: bool = True,
) -> CopyPlan:
    """Plan a copy between two sides of one shape and dtype that have no byte in common.

    Between host and device their axes are in the order of `along_memory`.

    Parameters
    ----------
    kind : CopyKind
        Which side is the host's.
    dst, src : ArrayView or ndarray
        The two sides; only their layouts are looked at.
    host_copy : bool
        Whether an upload may be gathered on the host first.
    scratch : bool
        Whether the device may be asked for memory for a second array.
    waits : bool
        Whether the call may wait for the stream.
    """
    if kind is D2D:
        return _on_device(dst, src, facts, waits)
    device, host = (dst, src) if kind is H2D else (src, dst)
    one_run: bool = host.flags.c_contiguous and device._strides is None
    if not waits and facts.can_grow and not stream.is_capturing():
        return _without_waiting(kind, device, host, facts, one_run, scratch)
    if one_run and host.nbytes < facts.staging_threshold and host_copy:
        return SMALL_UPLOAD if kind is H2D else SMALL_DOWNLOAD
    if kind is H2D and host_copy and scratch and (plan := _scattered(device, facts)):
        return plan
    why = BELOW if host_copy else UNCOPIED
    if host.nbytes >= facts.staging_threshold and host_copy:
        staged, why = _staging(host, facts, stream)
        if staged:
            plan = _staged(kind, device, facts, one_run, why)
            if plan.route is Route.STAGED:
                return plan
            why = plan.why
    if one_run:
        return CopyPlan(Route.DIRECT, f"{kind.value} direct", why)
    return _upload(dst, src, facts, why) if kind is H2D else _download(dst, src, facts, why, scratch)


def against_rows(rows: Rows, facts: CopyFacts, host: npt.NDArray[Any] | None = None) -> str:
    """Why the driver is not to copy rows as they lie between host and device; empty, if it is."""
    if rows.width < WIDE_ROW:
        return NARROW
    if facts.calls(rows, H2D) > MANY_CALLS:
        return MANY
    if not facts.is_pitched(rows, H2D):
        return UNPITCHED
    return CUT if host is not None and facts.is_cut(host) else ""


def _by_rows(kind: CopyKind, plan: Rows, why: str) -> CopyPlan:
    if plan.height == 1 and (kind is not D2D or plan.is_run):
        return CopyPlan(Route.DIRECT, f"{kind.value} direct", why, plan)
    return CopyPlan(Route.ROWS, f"{kind.value} 2d", ROWS, plan)


def _staging(host: npt.NDArray[Any], facts: CopyFacts, stream: Stream) -> tuple[bool, str]:
    """Whether a large copy between host and device goes by way of slots, and why; the first rule that holds decides."""
    if host.itemsize > facts.slot_bytes:
        return False, "elements do not fit into a slot"
    if not facts.has_slots:
        return False, "there is no page-locked memory for slots"
    # A graph copies whenever it is launched: from the user's array, not from a slot.
    if stream.is_capturing():
        return False, "a graph is captured on the stream"
    memory = facts.memory_of(host)
    if memory in (HostMemory.LOCKED, HostMemory.MANAGED):
        return False, REACHED
    return True, MAPPED_FILE if memory is HostMemory.FILE else PAGEABLE


def _staged(kind: CopyKind, device: Strided, facts: CopyFacts, one_run: bool, why: str) -> CopyPlan:
    """A staged copy; a download of rows too narrow for the driver is fetched with its gaps, unless it is too sparse."""
    path = f"{kind.value} staged"
    if one_run:
        return CopyPlan(Route.STAGED, path, why)
    plan = unpacking_rows(device.shape, device.strides, device.itemsize)
    if kind is H2D or facts.calls(plan, D2H) <= MANY_CALLS:
        return CopyPlan(Route.STAGED, path, why, plan)
    low, high = span(device.shape, device.strides, device.itemsize)
    if high - low > DENSE_SPAN * device.nbytes:
        return CopyPlan(Route.SPARSE, path, MANY, plan)
    return CopyPlan(Route.STAGED, path, GAPS, plan)


def _without_waiting(
    kind: CopyKind, device: Strided, host: npt.NDArray[Any], facts: CopyFacts, one_run: bool, scratch: bool
) -> CopyPlan:
    """A copy whose call waits for no stream: directly where the device reaches the memory as it lies, else by way of slots."""
    if facts.memory_of(host) in (HostMemory.LOCKED, HostMemory.MANAGED):
        if one_run:
            return CopyPlan(Route.DIRECT, f"{kind.value} direct", REACHED)
        sides = (device.strides, host.strides) if kind is H2D else (host.strides, device.strides)
        plan = rows(device.shape, device.itemsize, *sides)
        if plan.is_run or not against_rows(plan, facts, host):
            return _by_rows(kind, plan, REACHED)
    if kind is H2D and scratch and (scattered := _scattered(device, facts)):
        return scattered
    path, plan = f"{kind.value} staged", unpacking_rows(device.shape, device.strides, device.itemsize)
    if one_run or kind is H2D:
        return CopyPlan(Route.STAGED, path, NEVER_WAITS, None if one_run else plan)
    low, high = span(device.shape, device.strides, device.itemsize)
    calls = facts.calls(plan, D2H)
    gaps = calls > MANY_CALLS and high - low <= SPARSE_PART * calls
    return CopyPlan(Route.STAGED, path, GAPS if gaps else NEVER_WAITS, plan)


def _scattered(dst: Strided, facts: CopyFacts) -> CopyPlan | None:
    """An upload to elements that only the device itself stores in few calls."""
    if facts.pitch_multiple == 1:
        return None
    plan = unpacking_rows(dst.shape, dst.strides, dst.itemsize)
    if facts.calls(plan, H2D) <= max(MANY_CALLS, FEWER * facts.calls(plan, D2D)):
        return None
    return CopyPlan(Route.SCRATCH, "h2d scratch", SCRATCH, plan)


def _upload(dst: Strided, src: npt.NDArray[Any], facts: CopyFacts, why: str) -> CopyPlan:
    plan = rows(src.shape, src.itemsize, dst.strides, src.strides)
    reason = "" if plan.is_run else against_rows(plan, facts, src)
    return CopyPlan(Route.PACKED, "h2d packed", reason, plan) if reason else _by_rows(H2D, plan, why)


def _download(dst: npt.NDArray[Any], src: Strided, facts: CopyFacts, why: str, scratch: bool) -> CopyPlan:
    shape, strides, itemsize = dst.shape, src.strides, dst.itemsize
    packed = unpacking_rows(shape, strides, itemsize)
    low, high = span(shape, strides, itemsize)
    dense = high - low <= DENSE_SPAN * dst.nbytes
    calls = facts.calls(packed, D2H)
    if facts.pitch_multiple > 1 and scratch and not dense and calls > MANY_CALLS >= facts.calls(packed, D2D):
        return CopyPlan(Route.SCRATCH, "d2h scratch", SCRATCH, packed)
    plan = rows(shape, itemsize, dst.strides, strides)
    reason = "" if plan.is_run else against_rows(plan, facts, dst)
    if not reason:
        return _by_rows(D2H, plan, why)
    if packed.is_run or not against_rows(packed, facts):
        return CopyPlan(Route.PACKED, "d2h packed", reason, packed)
    if dense:
        return CopyPlan(Route.SPAN, "d2h span", reason, packed)
    if calls <= MANY_CALLS:
        return CopyPlan(Route.PACKED, "d2h packed", reason, packed)
    return CopyPlan(Route.SPARSE, "d2h span", SPARSE, packed)


def _on_device(dst: Strided, src: Strided, facts: CopyFacts, waits: bool) -> CopyPlan:
    plan = rows(dst.shape, dst.itemsize, dst.strides, src.strides)
    calls = facts.calls(plan, D2D)
    # Where the destination alone takes so many, the detour would not take fewer.
    if calls > MANY_CALLS and waits:
        _, shape, strides = reordered(dst.shape, dst.strides, *memory_order(dst.shape, dst.strides))
        alone = unpacking_rows(shape, strides, dst.itemsize)
        if calls > FEWER * facts.calls(alone, D2D):
            return CopyPlan(Route.STAGED, "d2d staged", MANY, plan)
    return _by_rows(D2D, plan, ONE_RUN)
