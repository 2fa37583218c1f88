"""The chooser of paths: each rule by a case that it alone decides, their order, and what host memory is taken for."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest

import devmem as dm
from devmem._core.copy import plan
from devmem._core.copy.plan import RULES, Case, Path, Rule, Sort, choose, sort_of
from devmem.backends.host.driver import HostDriver
from devmem.backends.host.hooks import HostBackend
from devmem.spi.types import Capability
from devmem.testing import FaultyBackend

PAGE = mmap.PAGESIZE


@dataclass
class Ring:
    slot_bytes: int = 1 << 20
    most: int = 4


@dataclass
class Registry:
    covered: bool = False

    def covers(self, low: int, high: int) -> bool:
        return self.covered


@dataclass
class Driver:
    capturing_on: int = -1
    known: set[int] = field(default_factory=set)

    def capturing(self, stream: int) -> bool:
        return stream == self.capturing_on

    def pointer_device(self, address: int) -> int | None:
        return 0 if address in self.known else None


@dataclass
class Context:
    ring: Ring = field(default_factory=Ring)
    registry: Registry = field(default_factory=Registry)
    driver: Driver = field(default_factory=Driver)
    capabilities: frozenset[Capability] = frozenset({Capability.CAPTURE})
    knows_pointers: bool = True

    def has(self, capability: Capability) -> bool:
        return capability in self.capabilities


@dataclass
class Stream:
    handle: int = 7
    simple: bool = False


def chosen(context: Context, host: Any, stream: Stream | None = None) -> Rule:
    return choose(context, host, stream or Stream())  # type: ignore[arg-type]


PLAIN = np.zeros(5000, "u1")


def place(rule: Rule) -> int:
    return RULES.index(rule)


def test_plain_memory_is_staged():
    rule = chosen(Context(), PLAIN)
    assert rule.path is Path.STAGED
    assert place(rule) == len(RULES) - 1


def test_elements_larger_than_a_slot_go_directly():
    wide = np.zeros(3, "V100")
    assert chosen(Context(Ring(slot_bytes=100)), wide).path is Path.STAGED
    rule = chosen(Context(Ring(slot_bytes=99)), wide)
    assert rule.path is Path.DIRECT
    assert place(rule) == 0


def test_without_slots_it_goes_directly():
    rule = chosen(Context(Ring(most=0)), PLAIN)
    assert (rule.path, place(rule)) == (Path.DIRECT, 1)


def test_a_captured_stream_goes_directly():
    context = Context(driver=Driver(capturing_on=7))
    rule = chosen(context, PLAIN)
    assert (rule.path, place(rule)) == (Path.DIRECT, 2)
    assert chosen(context, PLAIN, Stream(8)).path is Path.STAGED


def test_only_streams_that_can_capture_are_asked():
    driver = Driver(capturing_on=7)
    assert chosen(Context(driver=driver), PLAIN, Stream(7, simple=True)).path is Path.STAGED
    assert chosen(Context(driver=driver, capabilities=frozenset()), PLAIN).path is Path.STAGED


def test_memory_that_the_device_reaches_goes_directly():
    rule = chosen(Context(registry=Registry(covered=True)), PLAIN)
    assert (rule.path, place(rule)) == (Path.DIRECT, 3)


def test_the_first_rule_that_holds_decides(monkeypatch):
    asked: list[str] = []
    told = tuple(
        Rule(rule.path, rule.why, lambda case, rule=rule: asked.append(rule.why) or rule.holds(case)) for rule in RULES
    )
    monkeypatch.setattr(plan, "RULES", told)
    everything = Context(Ring(slot_bytes=1, most=0), Registry(True), Driver(capturing_on=7))
    assert choose(everything, np.zeros(9, "i4"), Stream()).why == RULES[0].why  # type: ignore[arg-type]
    assert asked == [RULES[0].why], "what takes time to find out is asked only when it is needed"
    asked.clear()
    choose(Context(), PLAIN, Stream())  # type: ignore[arg-type]
    assert asked == [rule.why for rule in RULES]


def test_every_rule_says_why():
    assert len({rule.why for rule in RULES}) == len(RULES)
    assert RULES[-1].holds(Case(Context(), PLAIN, Stream()))  # type: ignore[arg-type]


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


def test_plain(context):
    assert sort_of(context, np.zeros(100)) is Sort.PAGEABLE
    assert sort_of(context, np.zeros((10, 10))[::2, ::-3]) is Sort.PAGEABLE
    assert sort_of(context, np.frombuffer(bytearray(100), "u1")) is Sort.PAGEABLE


def test_pinned_and_its_views(context):
    pinned = dm.pinned_array((20, 30), "f4")
    for each in (pinned, pinned[3:7, ::-2], pinned.T, pinned[2].view("u1"), np.asarray(pinned)[1:]):
        assert sort_of(context, each) is Sort.LOCKED


def test_mapped(context):
    assert sort_of(context, dm.mapped_array(50)[10:]) is Sort.LOCKED


def test_managed(context):
    assert sort_of(context, dm.managed_array(50)[10:]) is Sort.MANAGED


def test_registered_whole_or_in_part(context):
    memory = np.frombuffer(mmap.mmap(-1, 4 * PAGE), "u1")
    middle = memory[PAGE : 3 * PAGE]
    with dm.pinned(middle):
        assert sort_of(context, middle) is Sort.LOCKED
        assert sort_of(context, middle[5:100:7]) is Sort.LOCKED
        assert sort_of(context, memory) is not Sort.LOCKED, "half of it the device does not reach"
        assert sort_of(context, memory[: PAGE + 10]) is not Sort.LOCKED
    assert sort_of(context, middle) is not Sort.LOCKED


def test_files(context, tmp_path: File):
    file = np.memmap(tmp_path / "data", "u1", "w+", shape=4 * PAGE)
    assert sort_of(context, file) is Sort.FILE
    assert sort_of(context, file[100:200]) is Sort.FILE
    assert sort_of(context, np.asarray(file)[::3]) is Sort.FILE
    with (tmp_path / "data").open("r+b") as handle:
        assert sort_of(context, np.frombuffer(mmap.mmap(handle.fileno(), 0), "f4")) is Sort.FILE
    whole = np.asarray(file)
    with dm.pinned(whole):
        assert sort_of(context, file) is Sort.LOCKED
    assert chosen(Context(), file).path is Path.STAGED


def test_a_mapped_file_is_not_touched_to_find_out_what_it_is(context, tmp_path: File):
    """Its pages come when they are copied, to whichever thread copies them."""
    (tmp_path / "data").write_bytes(bytes(64 * PAGE))
    file = np.memmap(tmp_path / "data", "u1", "r")
    os.truncate(tmp_path / "data", 0)  # whoever touches a page now is killed
    assert sort_of(context, file) is Sort.FILE
    assert sort_of(context, file[PAGE:-5:3]) is Sort.FILE
    rule = chosen(Context(), file)
    assert (rule.path, place(rule)) == (Path.STAGED, 4)


def test_what_memory_is_is_found_out_once(monkeypatch):
    asked: list[object] = []
    monkeypatch.setattr(plan, "sort_of", lambda *arguments: asked.append(arguments) or Sort.PAGEABLE)
    assert chosen(Context(), PLAIN).path is Path.STAGED
    assert len(asked) == 1


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


def test_memory_that_another_library_locked():
    host = np.zeros(1000, "u1")
    low = host.ctypes.data
    both = Context(driver=Driver(known={low, low + 999}))
    assert sort_of(both, host) is Sort.LOCKED  # type: ignore[arg-type]
    for known in ({low}, {low + 999}):
        assert sort_of(Context(driver=Driver(known=known)), host) is Sort.PAGEABLE  # type: ignore[arg-type]
    both.knows_pointers = False
    assert sort_of(both, host) is Sort.PAGEABLE  # type: ignore[arg-type]


def test_page_locked_memory_of_another_backend(context):
    pinned = dm.pinned_array(100)
    assert sort_of(Context(), pinned) is Sort.PAGEABLE  # type: ignore[arg-type]
    del pinned
