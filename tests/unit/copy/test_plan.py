"""The plan of a copy: each rule by a case that it alone decides, their order, and what host memory is taken for."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest

import devmem as dm
from devmem._core.base.array_view import ArrayView, along_memory
from devmem._core.base.rows import Rows
from devmem._core.copy import plan
from devmem._core.copy.host_memory import HostMemory, host_memory_of
from devmem._core.copy.plan import MANY_CALLS, WIDE_ROW, CopyPlan, Route, plan_copy
from devmem._core.lifetime.page_locks import PageLockTable
from devmem.backends.host.driver import HostDriver
from devmem.backends.host.hooks import HostBackend
from devmem.spi.types import CopyKind
from devmem.testing import FaultyBackend

PAGE = mmap.PAGESIZE
H2D, D2H, D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D


@dataclass
class Facts:
    """A device that copies rows in two dimensions and has slots, and the stream; each field is what one test changes."""

    staging_threshold: int = sys.maxsize
    slot_bytes: int = 1 << 20
    has_slots: bool = True
    can_grow: bool = True
    pitch_multiple: int = 1
    capturing: bool = False
    memory: HostMemory = HostMemory.PAGEABLE
    cut: bool = False
    asked: int = 0

    def calls(self, rows: Rows, kind: CopyKind) -> int:
        return rows.calls if self.is_pitched(rows, kind) else rows.calls * rows.height

    def is_pitched(self, rows: Rows, kind: CopyKind) -> bool:
        multiple = 1 if kind is D2D else self.pitch_multiple
        return not (rows.dst_pitch % multiple or rows.src_pitch % multiple)

    def is_capturing(self) -> bool:
        return self.capturing

    def memory_of(self, host: Any) -> HostMemory:
        self.asked += 1
        return self.memory

    def is_cut(self, host: Any) -> bool:
        return self.cut


def planned(kind: CopyKind, device: Any, other: Any, facts: Facts | None = None, **more: bool) -> CopyPlan:
    """The plan, with the device's side given by an ndarray of the same layout; ``other`` is the host's, or the source."""
    view = like(device)
    if kind is D2D:
        other = like(other)
    else:
        view, other = along_memory(view, other)
    dst, src = (other, view) if kind is D2H else (view, other)
    facts = facts or Facts()
    found = plan_copy(kind, dst, src, facts, facts, **more)  # type: ignore[arg-type]
    assert " " in found.why, "each plan says why in words"
    return found


def like(array: Any) -> ArrayView[Any]:
    return ArrayView(1 << 20, array.shape, array.dtype, array.strides)


def outcome(found: CopyPlan) -> tuple[Route, str, str]:
    return found.route, found.path, found.why


SMALL = np.zeros((4, 6))
#: Rows that the driver copies in one call.
WIDE = np.zeros((8, 2 * WIDE_ROW), "u1")[:, :WIDE_ROW]
#: Elements that lie apart: near one another, and too far to be fetched with what is between them.
NARROW = np.zeros((64, 8), "u1")[:, :4]
SPARSE = np.zeros((1 << 10, 1 << 10), "u1")[:, :4]

# -- direct ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", [H2D, D2H, D2D])
def test_a_run_of_bytes_on_both_sides_goes_directly(kind, order):
    array = np.zeros((4, 6), order=order)
    found = planned(kind, array, array)
    assert (found.route, found.path) == (Route.DIRECT, f"{kind} direct")
    assert found.why == (plan.ONE_RUN if kind is D2D else plan.BELOW)


@pytest.mark.parametrize("kind", [H2D, D2H])
def test_runs_in_two_orders_do_not(kind):
    assert planned(kind, SMALL, np.asfortranarray(SMALL)).route is Route.PACKED


# -- staging: the first rule that holds decides ------------------------------------------------------------------------

BYTES = np.zeros(5000, "u1")


def large(**more: Any) -> Facts:
    return Facts(staging_threshold=100, **more)


@pytest.mark.parametrize("kind", [H2D, D2H])
def test_large_plain_memory_is_staged(kind):
    assert outcome(planned(kind, BYTES, BYTES, large())) == (Route.STAGED, f"{kind} staged", plan.PAGEABLE)
    assert planned(kind, BYTES[:99], BYTES[:99], large()).route is Route.DIRECT
    assert planned(kind, BYTES[:100], BYTES[:100], large()).route is Route.STAGED


def test_a_mapped_file_is_staged_for_another_reason():
    assert planned(H2D, BYTES, BYTES, large(memory=HostMemory.FILE)).why == plan.MAPPED_FILE


def test_elements_larger_than_a_slot_go_directly():
    wide = np.zeros(3, "V100")
    assert planned(H2D, wide, wide, large(slot_bytes=100)).route is Route.STAGED
    assert planned(H2D, wide, wide, large(slot_bytes=99))[:3] == (
        Route.DIRECT,
        "h2d direct",
        "elements do not fit into a slot",
    )


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"has_slots": False}, "there is no page-locked memory for slots"),
        ({"capturing": True}, "a graph is captured on the stream"),
        ({"memory": HostMemory.LOCKED}, "the device reaches the memory"),
        ({"memory": HostMemory.MANAGED}, "the device reaches the memory"),
    ],
)
@pytest.mark.parametrize("kind", [H2D, D2H])
def test_what_is_not_staged_goes_directly(kind, facts, why):
    assert outcome(planned(kind, BYTES, BYTES, large(**facts))) == (Route.DIRECT, f"{kind} direct", why)


def test_the_first_rule_that_holds_decides():
    """And what takes time to find out is asked only when it is needed, once."""
    everything = large(slot_bytes=1, has_slots=False, capturing=True, memory=HostMemory.LOCKED)
    wide = np.zeros(200, "i4")
    for name, value in (("slot_bytes", 4), ("has_slots", True), ("capturing", False)):
        before = planned(H2D, wide, wide, everything).why
        assert everything.asked == 0
        setattr(everything, name, value)
        assert planned(H2D, wide, wide, everything).why != before
    assert everything.asked == 1
    everything.memory, everything.asked = HostMemory.PAGEABLE, 0
    assert planned(H2D, wide, wide, everything).route is Route.STAGED
    assert everything.asked == 1


def test_a_staged_download_of_narrow_rows_is_fetched_with_its_gaps_unless_they_are_most_of_it():
    apart = np.zeros((70, 71, 8, 8), "u1")[:, :70, ::2, ::2]
    assert planned(D2H, apart, apart, large())[:3] == (Route.STAGED, "d2h staged", plan.GAPS)
    sparse = np.zeros((70, 71, 8, 8), "u1")[:, :70, ::4, ::4]
    assert planned(D2H, sparse, sparse, large()).route is Route.SPARSE
    assert planned(H2D, sparse, sparse, large()).route is Route.STAGED, "an upload writes nothing that lies between"
    assert planned(D2H, SPARSE, SPARSE, large())[:3] == (Route.STAGED, "d2h staged", plan.PAGEABLE), "one call"


# -- strided copies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [H2D, D2H, D2D])
def test_wide_rows_are_copied_as_they_lie(kind):
    assert outcome(planned(kind, WIDE, WIDE)) == (Route.ROWS, f"{kind} 2d", plan.ROWS)


@pytest.mark.parametrize(
    ("host", "facts", "why"),
    [
        (WIDE[:, :-1], {}, plan.NARROW),
        (np.zeros((70, 71, WIDE_ROW), "u1").transpose(1, 0, 2)[:70], {}, plan.MANY),
        (WIDE, {"pitch_multiple": 1 << 20}, plan.UNPITCHED),
        (WIDE, {"cut": True}, plan.CUT),
    ],
)
def test_rows_that_are_gathered_on_the_host_instead(host, facts, why):
    assert outcome(planned(H2D, np.zeros(host.shape, host.dtype), host, Facts(**facts))) == (
        Route.PACKED,
        "h2d packed",
        why,
    )


def test_rows_so_narrow_are_cheaper_to_scatter_on_the_host():
    room = np.zeros((64, 8), "u1")[:, ::2]
    assert outcome(planned(D2H, np.zeros(room.shape, "u1"), room)) == (Route.PACKED, "d2h packed", plan.NARROW)
    assert outcome(planned(D2H, NARROW, room)) == (Route.SPAN, "d2h span", plan.NARROW)


def test_a_sparse_download_is_fetched_row_by_row_or_in_parts():
    assert outcome(planned(D2H, SPARSE, SPARSE)) == (Route.PACKED, "d2h packed", plan.NARROW)
    many = np.zeros((70, 71, 8, 8), "u1")[:, :70, ::4, ::4]
    assert outcome(planned(D2H, many, many)) == (Route.SPARSE, "d2h span", plan.SPARSE)


def test_nothing_is_gathered_that_the_caller_forbids():
    assert planned(H2D, BYTES, BYTES, large(), host_copy=False).why == plan.UNCOPIED
    assert planned(H2D, BYTES, BYTES, large(), host_copy=False).route is Route.DIRECT
    assert planned(H2D, WIDE, WIDE, large(), host_copy=False).route is Route.ROWS


# -- by way of a second array ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [H2D, D2H])
def test_rows_that_only_the_device_copies_in_few_calls_take_a_second_array_there(kind):
    packed = np.zeros(SPARSE.shape, "u1")
    odd = Facts(pitch_multiple=1 << 20)
    assert outcome(planned(kind, SPARSE, packed, odd)) == (Route.SCRATCH, f"{kind} scratch", plan.SCRATCH)
    assert planned(kind, SPARSE, packed, odd, scratch=False).route is not Route.SCRATCH
    assert planned(kind, SPARSE, packed).route is not Route.SCRATCH, "the device copies them from the host as well"
    few = SPARSE[:MANY_CALLS]
    assert planned(kind, few, packed[:MANY_CALLS], odd).route is not Route.SCRATCH


def test_a_dense_download_needs_no_second_array():
    dense = np.zeros((1 << 10, 8), "u1")[:, :4]
    assert planned(D2H, dense, np.zeros(dense.shape, "u1"), Facts(pitch_multiple=1 << 20)).route is Route.SPAN


def test_on_one_device_many_calls_go_by_the_host_unless_that_takes_as_many():
    first = np.zeros((70, 70, 2, 70), "u1")[:, :, 0]
    turned = first.transpose(2, 1, 0)
    assert outcome(planned(D2D, np.zeros(turned.shape, "u1"), turned)) == (Route.STAGED, "d2d staged", plan.MANY)
    apart = np.zeros((70, 70, 4, 4), "u1")[:, :, ::2, ::2]
    assert planned(D2D, apart, apart).route is Route.ROWS


# -- what memory is ----------------------------------------------------------------------------------------------------


@pytest.fixture
def context() -> Iterator[Any]:
    """Of the strict host backend, which is never named as the one under test."""
    dm.close()
    backend = FaultyBackend(HostBackend(), "sorts")
    backend.configure({"strict": True, "devices": 1})
    dm.register_backend(backend)
    try:
        with dm.use_backend("sorts"), dm.current_device().entered():
            yield dm.current_device().opened()
    finally:
        dm.unregister_backend("sorts")
        dm.close()


def memory_of(context: Any, host: Any) -> HostMemory:
    return context.copies.memory_of(host)


def test_ordinary_memory_is_pageable(context):
    assert memory_of(context, np.zeros(100)) is HostMemory.PAGEABLE
    assert memory_of(context, np.zeros((10, 10))[::2, ::-3]) is HostMemory.PAGEABLE
    assert memory_of(context, np.frombuffer(bytearray(100), "u1")) is HostMemory.PAGEABLE


def test_pinned_and_its_views(context):
    pinned = dm.pinned_array((20, 30), "f4")
    for each in (pinned, pinned[3:7, ::-2], pinned.T, pinned[2].view("u1"), np.asarray(pinned)[1:]):
        assert memory_of(context, each) is HostMemory.LOCKED


def test_mapped_memory_is_page_locked(context):
    assert memory_of(context, dm.mapped_array(50)[10:]) is HostMemory.LOCKED


def test_managed_memory_is_managed(context):
    assert memory_of(context, dm.managed_array(50)[10:]) is HostMemory.MANAGED


def test_registered_whole_or_in_part(context):
    memory = np.frombuffer(mmap.mmap(-1, 4 * PAGE), "u1")
    middle = memory[PAGE : 3 * PAGE]
    with dm.pinned(middle):
        assert memory_of(context, middle) is HostMemory.LOCKED
        assert memory_of(context, middle[5:100:7]) is HostMemory.LOCKED
        assert memory_of(context, memory) is not HostMemory.LOCKED, "half of it the device does not reach"
        assert memory_of(context, memory[: PAGE + 10]) is not HostMemory.LOCKED
    assert memory_of(context, middle) is not HostMemory.LOCKED


def test_mapped_files_are_files(context, tmp_path: File):
    file = np.memmap(tmp_path / "data", "u1", "w+", shape=4 * PAGE)
    assert memory_of(context, file) is HostMemory.FILE
    assert memory_of(context, file[100:200]) is HostMemory.FILE
    assert memory_of(context, np.asarray(file)[::3]) is HostMemory.FILE
    with (tmp_path / "data").open("r+b") as handle:
        assert memory_of(context, np.frombuffer(mmap.mmap(handle.fileno(), 0), "f4")) is HostMemory.FILE
    whole = np.asarray(file)
    with dm.pinned(whole):
        assert memory_of(context, file) is HostMemory.LOCKED


def test_a_mapped_file_is_not_touched_to_find_out_what_it_is(context, tmp_path: File):
    """Its pages come when they are copied, to whichever thread copies them."""
    (tmp_path / "data").write_bytes(bytes(64 * PAGE))
    file = np.memmap(tmp_path / "data", "u1", "r")
    os.truncate(tmp_path / "data", 0)  # a process that touches a page now is killed
    assert memory_of(context, file) is HostMemory.FILE
    assert memory_of(context, file[PAGE:-5:3]) is HostMemory.FILE
    facts = Facts(staging_threshold=100, memory=HostMemory.FILE)
    assert planned(H2D, file, file, facts)[:3] == (Route.STAGED, "h2d staged", plan.MAPPED_FILE)


@pytest.mark.parametrize(("threshold", "said"), [(0, None), (4096, None), (0, "100"), (4096, "0")])
def test_memory_that_the_device_reads_through_the_hosts_page_tables(threshold, said, monkeypatch):
    """A device says of itself that nothing is won by staging; a threshold that the user sets is what holds, though."""
    dm.close()
    if said is not None:
        monkeypatch.setenv("DEVMEM_STAGING_THRESHOLD", said)
    describe = HostDriver._describe
    monkeypatch.setattr(
        HostDriver, "_describe", lambda self: replace(describe(self), staging_threshold=threshold), raising=True
    )
    inner = HostBackend()
    inner.configure({"strict": True, "devices": 1})
    dm.register_backend(FaultyBackend(inner, "coherent"))
    try:
        with dm.use_backend("coherent"):
            wanted = sys.maxsize if not threshold and said is None else max(threshold if said is None else int(said), 1)
            assert dm.current_device().opened().ring.threshold == wanted
    finally:
        dm.unregister_backend("coherent")
        monkeypatch.undo()
        dm.close()


@dataclass
class Handle:
    """A device whose driver knows these addresses."""

    known: set[int]
    knows_pointers: bool = True
    info: Any = None

    @property
    def driver(self) -> Handle:
        return self

    def pointer_device(self, address: int) -> int | None:
        return 0 if address in self.known else None


def test_memory_that_another_library_locked():
    host, locks = np.zeros(1000, "u1"), PageLockTable()
    low = host.ctypes.data

    def found(handle: Handle, **more: bool) -> HostMemory:
        return host_memory_of(handle, locks, host, **more)  # type: ignore[arg-type]

    both = Handle({low, low + 999})
    assert found(both) is HostMemory.LOCKED
    assert found(both, ask=False) is HostMemory.PAGEABLE
    for known in ({low}, {low + 999}):
        assert found(Handle(known)) is HostMemory.PAGEABLE
    both.knows_pointers = False
    assert found(both) is HostMemory.PAGEABLE


def test_page_locked_memory_of_another_backend(context):
    pinned = dm.pinned_array(100)
    other = Handle(set(), info=replace(context.handle.info, backend="another"))
    assert host_memory_of(other, PageLockTable(), pinned) is HostMemory.PAGEABLE  # type: ignore[arg-type]
    assert memory_of(context, pinned) is HostMemory.LOCKED
    del pinned


@pytest.mark.parametrize("kind", [H2D, D2H])
@pytest.mark.parametrize(
    ("facts", "host", "route"),
    [
        ({}, SMALL, Route.STAGED),
        ({"memory": HostMemory.FILE}, SMALL, Route.STAGED),
        ({"memory": HostMemory.LOCKED}, SMALL, Route.DIRECT),
        ({"memory": HostMemory.LOCKED}, WIDE, Route.ROWS),
        ({"memory": HostMemory.LOCKED}, np.zeros((50, 100))[:, ::2], Route.STAGED),
        ({"memory": HostMemory.LOCKED, "cut": True}, WIDE, Route.STAGED),
        ({"capturing": True}, SMALL, Route.DIRECT),
        ({"can_grow": False}, SMALL, Route.DIRECT),
    ],
)
def test_a_copy_that_must_not_wait_goes_by_slots_unless_the_device_reaches_the_memory_as_it_lies(
    kind, facts, host, route
):
    assert planned(kind, np.zeros(host.shape, host.dtype), host, Facts(**facts), waits=False).route is route
