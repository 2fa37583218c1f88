"""What each adaptor does besides passing on: bounds, counts, lines of a log, failures on purpose, wiping, moving."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waits import together

import devmem as dm
from devmem._core.memory import foreign
from devmem._core.memory.adaptor import cached_in
from devmem._core.telemetry import allocation_log
from devmem.memory import (
    DriverMemory,
    FailIf,
    FailNth,
    Limit,
    Log,
    ManagedMemory,
    OnOutOfMemory,
    PinnedMemory,
    Prefetch,
    Scrub,
    Statistics,
    StreamOrderedMemory,
)
from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, CopyKind, MemoryKind
from devmem.testing import FaultyDriver, StreamHold

S = LEGACY_STREAM


@pytest.fixture
def driver(driver: FaultyDriver) -> Iterator[FaultyDriver]:
    yield driver
    driver.disarm()
    driver.synchronize()
    assert driver.blocks() == {}


@pytest.fixture(autouse=True)
def addresses_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Below` has addresses that no driver knows."""
    monkeypatch.setattr(foreign, "checks_memory", lambda info: False)


class Below:
    """A third party's resource without a device, which does as it is told and counts."""

    def __init__(self) -> None:
        self.addresses = itertools.count(2 << 20, 1 << 20)  # of no two threads the same
        self.live: dict[int, int] = {}
        self.answer: object = None
        self.error: BaseException | None = None
        self.broken_free: BaseException | None = None

    def __repr__(self) -> str:
        return "Below()"

    def allocate(self, nbytes: int, stream: int) -> int:
        if self.error is not None:
            raise self.error
        if self.answer is not None:
            return self.answer  # type: ignore[return-value]
        ptr = next(self.addresses)
        self.live[ptr] = nbytes
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        assert self.live.pop(ptr) == nbytes
        if self.broken_free is not None:
            raise self.broken_free


# -- the chain ---------------------------------------------------------------------------------------------------------


def test_the_chain_is_shown_and_bound_down_to_the_driver(driver: FaultyDriver) -> None:
    stack = Statistics(Limit(None, "1KiB"))
    assert repr(stack) == "Statistics(Limit(DriverMemory(not bound), max_bytes=1.0 KiB (1,024 bytes)))"
    with pytest.raises(dm.DevmemError, match="not bound to a device yet"):
        stack.allocate(5, S)
    stack.bind(driver)
    stack.bind(driver)  # the same one again: nothing
    stack.deallocate(stack.allocate(5, S), 5, S)
    with pytest.raises(dm.ClosedError, match=r"Statistics\(Limit\(.* is bound to host:0 as it was before"):
        stack.bind(FaultyDriver(driver))


def test_what_is_passed_on() -> None:
    assert Limit(StreamOrderedMemory(), 5).stream_ordered
    assert not Limit(DriverMemory(), 5).stream_ordered
    assert Statistics(PinnedMemory()).kind is MemoryKind.PINNED
    assert Statistics(Below()).kind is MemoryKind.DEVICE

    class Caching(Below):
        cached_bytes = 100
        largest_free_block = 60
        kept: int | None = None

        def trim(self, keep_bytes: int) -> None:
            self.kept = keep_bytes

    below = Caching()
    stack = Statistics(Limit(below, 5))
    assert (stack.cached_bytes, stack.largest_free_block) == (100, 60)
    assert dm.memory.PoolMemory(below).cached_bytes == 100
    stack.trim(7)
    assert below.kept == 7


def test_what_several_stacks_keep_is_counted_once(driver: FaultyDriver) -> None:
    class Foreign(Below):
        cached_bytes = 100

    driver.pool_cached = lambda: 1000  # type: ignore[method-assign]
    drivers_own = [StreamOrderedMemory(), Statistics(StreamOrderedMemory()), dm.memory.Guard(StreamOrderedMemory())]
    pool = dm.memory.PoolMemory()
    on_one_pool = [pool, Limit(pool, "1GiB"), dm.memory.Guard(pool), Scrub(pool)]
    foreign = Foreign()
    on_foreign = [foreign, Statistics(foreign), dm.memory.PoolMemory(foreign)]
    for stack in (*drivers_own, *on_one_pool, *on_foreign):
        stack.bind(driver) if stack is not foreign else None
    assert cached_in(drivers_own) == 1000
    guard = drivers_own[2]
    guard.deallocate(guard.allocate(100, S), 100, S)  # in quarantine, between red zones
    assert cached_in(drivers_own) == 1000 + 100 + 512
    pool.deallocate(pool.allocate(5000, S), 5000, S)
    kept = pool.cached_bytes
    assert kept >= 5000
    assert cached_in(on_one_pool) == kept
    on_one_pool[3].withheld.append((256, 70))
    assert cached_in(on_one_pool) == kept + 70
    on_one_pool[3].withheld.clear()
    assert cached_in(on_foreign) == 100
    assert cached_in([*drivers_own, *on_one_pool, *on_foreign]) == 1612 + kept + 100
    del driver.pool_cached
    for stack in (*drivers_own, *on_one_pool):
        stack.trim(0)


@pytest.mark.parametrize("device", ["host:0", "host", "0", 0])
def test_a_resource_may_name_its_device(driver: FaultyDriver, device: object) -> None:
    DriverMemory(device).bind(driver)


@pytest.mark.parametrize("device", ["host:1", "cuda:0", "cuda", 1])
def test_a_resource_of_another_device_is_refused(driver: FaultyDriver, device: object) -> None:
    for resource in (DriverMemory(device), StreamOrderedMemory(device), PinnedMemory(device)):
        with pytest.raises(
            dm.ConfigError, match=rf"\(device='{device}'\) cannot serve host:0: name the same device in"
        ):
            resource.bind(driver)
        assert resource.driver is None


def test_a_threshold_reaches_the_drivers_pool(driver: FaultyDriver) -> None:
    asked: list[int] = []
    driver.pool_threshold = asked.append  # type: ignore[method-assign, attr-defined]
    half = driver.info.total_bytes // 2
    for threshold in (None, 0, "1MiB", "50%"):
        stack = Statistics(StreamOrderedMemory(release_threshold=threshold))  # type: ignore[arg-type]
        assert (stack.cached_bytes, stack.trim(0)) == (0, None)  # without a device yet
        stack.bind(driver)
        stack.bind(driver)
    assert asked == [0, 1 << 20, half]
    with pytest.raises(dm.ConfigError, match="'some' is not a size"):
        StreamOrderedMemory(release_threshold="some")


def test_a_device_that_cannot_is_named_and_nothing_is_bound(driver: FaultyDriver) -> None:
    driver._info = dataclasses.replace(driver.info, capabilities=frozenset())
    resource = StreamOrderedMemory()
    with pytest.raises(dm.UnsupportedError, match=rf"which {driver.info.name} has not: use devmem.memory.DriverMemory"):
        resource.bind(driver)
    assert resource.driver is None


@pytest.mark.parametrize("upstream", [object(), DriverMemory, 4096, "pool"])
def test_what_is_no_resource_is_refused_at_once(upstream: object) -> None:
    with pytest.raises(dm.PluginError, match="is not a memory resource"):
        Limit(upstream, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [lambda: FailIf(None, 5), lambda: OnOutOfMemory(None, "x")])  # type: ignore[arg-type]
def test_what_cannot_be_called_is_refused_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"\(\w+=\) is a function, not"):
        make()


@pytest.mark.parametrize("verb", ["allocate", "deallocate", "bind", "trim", "forget_stream"])
def test_a_resource_does_not_end_the_program(driver: FaultyDriver, verb: str) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(3)

    below = Below()
    stack = Statistics(below)
    if verb != "bind":
        stack.bind(driver)
        ptr = stack.allocate(100, S)
    setattr(below, verb, leave)
    calls: dict[str, Callable[[], object]] = {
        "allocate": lambda: stack.allocate(100, S),
        "deallocate": lambda: stack.deallocate(ptr, 100, S),
        "bind": lambda: stack.bind(driver),
        "trim": lambda: stack.trim(0),
        "forget_stream": lambda: stack.forget_stream(7),
    }
    with pytest.raises(dm.PluginError, match=rf"SystemExit\(3\) was raised by the memory resource Below .* in {verb}"):
        calls[verb]()


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        *[(make, -1) for make in (Scrub, Limit, dm.memory.Guard)],
        *itertools.product([Statistics, dm.memory.PoolMemory], [-1, 1.5, "0x10", True, 0, np.int64(1 << 20)]),
    ],
)
def test_nonsense_from_below_is_caught_where_it_comes_in(driver: FaultyDriver, make: type, answer: object) -> None:
    below = Below()
    stack = make(below)
    stack.bind(driver)
    below.answer = answer
    with pytest.raises(dm.PluginError, match=r"Below\(\) returned .* bytes\)?: an address is a positive int"):
        stack.allocate(24, S)


def test_an_address_given_out_twice_is_caught_below_an_adaptor(driver: FaultyDriver) -> None:
    below = Below()
    stack = Statistics(Limit(below, 1000))
    stack.bind(driver)
    below.answer = 1 << 20
    stack.allocate(24, S)
    with pytest.raises(dm.PluginError, match=r"0x100000 for 25 bytes, which it gave out before \(24 bytes\)"):
        stack.allocate(25, S)
    assert (stack.current_bytes, stack.current_count) == (24, 1)


def test_errors_from_below_stay_what_they_are_and_say_whose_they_are(driver: FaultyDriver) -> None:
    below = Below()
    stack = Statistics(below)
    stack.bind(driver)
    below.error = ZeroDivisionError("inside the plugin")
    with pytest.raises(ZeroDivisionError, match="inside the plugin") as caught:
        stack.allocate(24, S)
    [note] = caught.value.__notes__
    assert "raised by the memory resource Below" in note
    assert "test_adaptors.py:" in note
    assert "allocate of 24 bytes" in note


# -- Limit -------------------------------------------------------------------------------------------------------------


def test_the_limit_is_reached_and_not_passed(driver: FaultyDriver) -> None:
    limit = Limit(DriverMemory(), 1000)
    limit.bind(driver)
    a, b = limit.allocate(600, S), limit.allocate(400, S)
    with pytest.raises(
        dm.OutOfMemory, match=r"the limit is 1000 bytes, of which 1000 bytes are in use and 0 bytes are left"
    ):
        limit.allocate(1, S)
    limit.deallocate(a, 600, S)
    c = limit.allocate(600, S)
    assert limit.current_bytes == 1000
    limit.deallocate(b, 400, S)
    limit.deallocate(c, 600, S)
    assert limit.current_bytes == 0


def test_failures_below_do_not_count(driver: FaultyDriver) -> None:
    limit = Limit(DriverMemory(), 1000)
    limit.bind(driver)
    driver.fail_at(1, "alloc")
    with pytest.raises(dm.OutOfMemory, match="injected"):
        limit.allocate(1000, S)
    ptr = limit.allocate(1000, S)
    driver.fail_at(1, "free")
    with pytest.raises(BackendError, match="injected"):
        limit.deallocate(ptr, 1000, S)
    assert limit.current_bytes == 0


def test_a_share_of_the_device(driver: FaultyDriver) -> None:
    limit = Limit(DriverMemory(), "50 %")
    limit.bind(driver)
    with pytest.raises(dm.OutOfMemory, match=rf"the limit is .* \({driver.info.total_bytes // 2:,} bytes\)"):
        limit.allocate(driver.info.total_bytes // 2 + 1, S)


@pytest.mark.parametrize(
    "size",
    ["4 GiBs", "-1", "", "0%", "101%", -5, 1.5, None, True, "1e3", "9" * 5000, "9" * 400 + ".5", "9" * 30, 1 << 64],
)
def test_sizes_that_are_none(size: object) -> None:
    with pytest.raises(dm.ConfigError, match="is not a s"):
        Limit(None, size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("12", 12),
        ("12B", 12),
        ("1KiB", 1024),
        ("1kb", 1000),
        (" 1.5 MiB ", 3 << 19),
        ("2GB", 2 * 10**9),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_as_people_write_them(text: str, nbytes: int) -> None:
    assert Limit(None, text).max_bytes == nbytes


def test_threads_never_pass_the_limit_together(driver: FaultyDriver) -> None:
    limit = Limit(Below(), 1000)
    limit.bind(driver)
    most = []

    def work() -> None:
        for _ in range(300):
            try:
                ptr = limit.allocate(400, S)
            except dm.OutOfMemory:
                continue
            most.append(limit.current_bytes)
            limit.deallocate(ptr, 400, S)

    run(8, work)
    assert max(most) <= 1000
    assert limit.current_bytes == 0


# -- Statistics --------------------------------------------------------------------------------------------------------


def counts(statistics: Statistics) -> tuple[int, ...]:
    s = statistics.snapshot()
    return s.current_bytes, s.peak_bytes, s.total_bytes, s.current_count, s.peak_count, s.total_count


def test_statistics_count_live_bytes_and_peaks(driver: FaultyDriver) -> None:
    statistics = Statistics(DriverMemory())
    statistics.bind(driver)
    a = statistics.allocate(100, S)
    b = statistics.allocate(50, S)
    statistics.deallocate(a, 100, S)
    assert counts(statistics) == (50, 150, 150, 1, 2, 2)
    c = statistics.allocate(60, S)
    assert counts(statistics) == (110, 150, 210, 2, 2, 3)
    driver.fail_at(1, "alloc")
    with pytest.raises(dm.OutOfMemory):
        statistics.allocate(1, S)
    assert counts(statistics) == (110, 150, 210, 2, 2, 3)
    driver.fail_at(1, "free")
    with pytest.raises(BackendError):
        statistics.deallocate(b, 50, S)
    statistics.deallocate(c, 60, S)
    assert counts(statistics) == (0, 150, 210, 0, 2, 3)


def test_scopes_nest_and_tell_the_outer_ones(driver: FaultyDriver) -> None:
    statistics = Statistics(Below())
    statistics.bind(driver)
    first = statistics.allocate(100, S)
    statistics.push()
    statistics.deallocate(statistics.allocate(30, S), 30, S)
    statistics.push()
    second = statistics.allocate(500, S)
    statistics.deallocate(first, 100, S)
    inner = statistics.pop()
    assert (inner.current_bytes, inner.peak_bytes, inner.total_bytes) == (400, 500, 500)
    assert (inner.current_count, inner.peak_count, inner.total_count) == (0, 1, 1)
    statistics.deallocate(second, 500, S)
    outer = statistics.pop()
    assert (outer.current_bytes, outer.peak_bytes, outer.total_bytes) == (-100, 500, 530)
    assert (outer.current_count, outer.peak_count, outer.total_count) == (-1, 1, 2)
    assert counts(statistics) == (0, 600, 630, 0, 2, 3)
    with pytest.raises(dm.DevmemError, match="none is open"):
        statistics.pop()


def test_threads_are_all_counted(driver: FaultyDriver) -> None:
    statistics = Statistics(Below(), owners=True)
    statistics.bind(driver)

    def work() -> None:
        for _ in range(300):
            statistics.deallocate(statistics.allocate(8, S), 8, S)

    run(8, work)
    assert (statistics.current_bytes, statistics.total_bytes, statistics.total_count) == (0, 8 * 8 * 300, 8 * 300)
    assert statistics.owners() == []


def test_owners_by_line() -> None:
    with dm.use_backend("host"), dm.use_memory(Statistics(owners=True)) as statistics:
        small = dm.zeros(1)
        large = [dm.zeros(100), dm.zeros(100)]
        first, second = statistics.owners()
        assert (first.nbytes, first.count, first.function) == (1600, 2, "test_owners_by_line")
        assert second.nbytes == 8
        assert second.line == first.line - 1
        assert str(first).startswith("1.6 KiB (1,600 bytes) in 2 blocks from ")
        assert __file__ in str(first)
        assert statistics.owners(1) == [first]
        del small, large
        dm.trim()
        assert statistics.owners() == []
    assert Statistics().owners() == []


# -- Log ---------------------------------------------------------------------------------------------------------------


def test_every_line_is_there_at_once(driver: FaultyDriver, tmp_path: Path) -> None:
    log = Log(DriverMemory(), tmp_path / "{device}.jsonl")
    log.bind(driver)
    path = tmp_path / "host-0.jsonl"
    stream = driver.stream_create(0, True)
    ptr = log.allocate(100, stream)
    [line] = [json.loads(line) for line in path.read_text().splitlines()]
    assert list(line) == ["op", "address", "nbytes", "stream", "t"]
    assert (line["op"], line["address"], line["nbytes"], line["stream"]) == ("allocate", ptr, 100, stream)
    log.deallocate(ptr, 100, stream)
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert (second["op"], second["address"]) == ("deallocate", ptr)
    assert 0 <= first["t"] <= second["t"]
    driver.fail_at(1, "alloc")
    with pytest.raises(dm.OutOfMemory):
        log.allocate(1, S)
    assert len(path.read_text().splitlines()) == 2
    driver.stream_destroy(stream)


def test_a_file_that_cannot_be_made(driver: FaultyDriver, tmp_path: Path) -> None:
    log = Log(DriverMemory(), tmp_path / "missing" / "log")
    with pytest.raises(OSError, match="missing"):
        log.bind(driver)
    (tmp_path / "missing").mkdir()
    log.bind(driver)
    log.deallocate(log.allocate(5, S), 5, S)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_once_and_stops_nothing(driver: FaultyDriver) -> None:
    log = Log(DriverMemory(), "/dev/full")
    log.bind(driver)
    with pytest.warns(dm.DevmemWarning, match="/dev/full cannot be written to, the log ends here"):
        ptr = log.allocate(5, S)
    log.deallocate(ptr, 5, S)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.filterwarnings("error::devmem.DevmemWarning")
def test_a_warning_that_is_an_error_loses_no_block(driver: FaultyDriver) -> None:
    for full in ("allocate", "deallocate"):
        log = Log(DriverMemory(), "/dev/full" if full == "allocate" else "/dev/null")
        log.bind(driver)
        if full == "deallocate":
            ptr = log.allocate(5, S)
            with Path("/dev/full").open("wb") as file:
                os.dup2(file.fileno(), log._file)  # type: ignore[arg-type]
        with pytest.raises(dm.DevmemWarning, match="the log ends here"):
            log.deallocate(ptr, 5, S) if full == "deallocate" else log.allocate(5, S)
        assert driver.blocks() == {}


def test_a_line_that_is_cut_short_ends_the_log(driver: FaultyDriver, tmp_path: Path) -> None:
    log = Log(DriverMemory(), tmp_path / "log")
    log.bind(driver)
    write = os.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda file, line: write(file, line[:10]))
        with pytest.warns(dm.DevmemWarning, match="the log ends here: only a part of a line"):
            ptr = log.allocate(5, S)
    log.deallocate(ptr, 5, S)
    assert list(allocation_log.read(tmp_path / "log")) == []


def test_a_log_is_not_emptied_for_a_stack_that_cannot_be_used(driver: FaultyDriver, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of another run")
    with pytest.raises(dm.UnsupportedError):
        Log(Prefetch(DriverMemory()), tmp_path / "log").bind(driver)
    assert (tmp_path / "log").read_text() == "of another run"
    with pytest.raises(OSError, match="missing") as caught:
        Log(DriverMemory(), tmp_path / "missing" / "log").bind(driver)
    assert "of a memory stack cannot be made: name another path" in caught.value.__notes__[0]


def test_lines_of_many_threads_replay(driver: FaultyDriver, tmp_path: Path) -> None:
    """An address is never handed out in the log before the line that gave it back."""
    log = Log(DriverMemory(), tmp_path / "log")
    log.bind(driver)

    def work() -> None:
        token = driver.enter()
        for _ in range(100):
            log.deallocate(log.allocate(64, S), 64, S)
        driver.exit(token)

    run(6, work)
    live: set[int] = set()
    for line in (tmp_path / "log").read_text().splitlines():
        record = json.loads(line)
        if record["op"] == "allocate":
            assert record["address"] not in live
            live.add(record["address"])
        else:
            live.remove(record["address"])
    assert not live


# -- failures on purpose -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1.5, "first"])
def test_fail_nth_counts_in_whole_numbers(n: Any) -> None:
    with pytest.raises(dm.ConfigError, match="counted from 1 in whole numbers"):
        FailNth(None, n)


@pytest.mark.parametrize(("repeat", "failing"), [(False, [3]), (True, [3, 4, 5])])
def test_fail_nth_fails_the_allocations_it_names(driver: FaultyDriver, repeat: bool, failing: list[int]) -> None:
    stack = FailNth(Below(), 3, repeat=repeat)
    stack.bind(driver)
    for call in range(1, 6):
        if call in failing:
            with pytest.raises(dm.OutOfMemory, match=rf"allocation {call} \(8 bytes\) was made to fail"):
                stack.allocate(8, S)
        else:
            stack.allocate(8, S)
    assert stack.calls == 5


def test_with_an_error_of_choice(driver: FaultyDriver) -> None:
    stack = FailNth(Below(), 1, error=KeyError)
    stack.bind(driver)
    with pytest.raises(KeyError, match="made to fail"):
        stack.allocate(8, S)
    with pytest.raises(dm.ConfigError, match="counted from 1"):
        FailNth(None, 0)


def test_what_a_predicate_picks_fails(driver: FaultyDriver) -> None:
    asked = []
    stack = FailIf(Below(), lambda nbytes, stream: bool(asked.append((nbytes, stream))) or nbytes > 100)  # type: ignore[func-returns-value]
    stack.bind(driver)
    stack.allocate(100, S)
    with pytest.raises(dm.OutOfMemory, match="101 bytes was made to fail"):
        stack.allocate(101, S)
    assert asked == [(100, S), (101, S)]


def test_arrays_absorb_one_failure_and_not_those_that_stay() -> None:
    with dm.use_backend("host"):
        with dm.use_memory(FailNth(None, 1)):
            dm.zeros(3).free()
        with dm.use_memory(FailNth(None, 1, repeat=True)), pytest.raises(dm.OutOfMemory, match="allocation 2"):
            dm.zeros(3)


def test_the_callback_is_asked_until_it_gives_up(driver: FaultyDriver) -> None:
    below, asked = Below(), []

    def callback(nbytes: int) -> bool:
        asked.append(nbytes)
        if len(asked) == 3:
            below.error = None
        return len(asked) < 6

    stack = OnOutOfMemory(below, callback)
    stack.usage = lambda free_dropped: (-len(asked), 0)  # each call frees something
    stack.bind(driver)
    below.error = MemoryError("full")
    assert stack.allocate(8, S) > 0
    assert asked == [8, 8, 8]
    below.error = MemoryError("full")
    with pytest.raises(MemoryError, match="full"):
        stack.allocate(9, S)
    assert asked == [8, 8, 8, 9, 9, 9]
    below.error = KeyError("no memory matter")
    with pytest.raises(KeyError):
        stack.allocate(10, S)
    assert len(asked) == 6


def test_a_callback_that_frees_nothing_is_asked_once(driver: FaultyDriver) -> None:
    below, asked = Below(), []
    stack = OnOutOfMemory(below, lambda nbytes: asked.append(nbytes) is None)
    stack.bind(driver)
    below.error = MemoryError("full")
    with pytest.raises(MemoryError, match="full"):
        stack.allocate(8, S)
    assert asked == [8]


def test_a_callback_that_allocates_is_not_called_by_itself(driver: FaultyDriver) -> None:
    below, asked = Below(), []

    def callback(nbytes: int) -> bool:
        asked.append(nbytes)
        with pytest.raises(MemoryError):
            stack.allocate(1, S)
        return False

    stack = OnOutOfMemory(below, callback)
    stack.bind(driver)
    below.error = MemoryError()
    with pytest.raises(MemoryError):
        stack.allocate(8, S)
    assert asked == [8]


def test_a_callback_may_free_arrays() -> None:
    with dm.use_backend("host"):
        cache = []

        def callback(nbytes: int) -> bool:
            if not cache:
                return False
            cache.pop().free()
            return True

        with dm.use_memory(OnOutOfMemory(Limit(None, 1000), callback)):
            cache.append(dm.device_array(800, "u1"))
            array = dm.device_array(900, "u1")
            assert cache == []
            array.free()


@pytest.mark.parametrize("below", ["limit:10000,driver", "limit:10000,pool", "pool:4MiB,driver"])
def test_what_a_callback_drops_is_freed_before_the_next_try(below: str) -> None:
    """Dropped arrays wait in the queue. The callback says True for ever, which ends when it drops nothing any more."""
    size = 3 << 20 if below.startswith("pool:") else 8000
    cache: dict[int, object] = {}
    asked: list[int] = []

    def make_room(nbytes: int) -> bool:
        asked.append(nbytes)
        cache.clear()
        return True

    with dm.use_backend("host"):
        upstream = dm.current_device().opened().memory.stacks.resource(below)
        with dm.use_memory(OnOutOfMemory(upstream, make_room)):
            cache[0] = dm.device_array(size, "u1")
            array = dm.device_array(size, "u1")
            assert (cache, asked) == ({}, [size])
            with pytest.raises(dm.OutOfMemory):
                dm.device_array(size, "u1")
            assert asked == [size] * 3  # devmem's own answer tries once more
            array.free()


def test_a_callback_may_free_little_by_little_and_what_is_in_use_on_a_stream() -> None:
    with dm.use_backend("host"):
        cache: list[object] = []
        with dm.use_memory(OnOutOfMemory(Limit(None, 10_000), lambda nbytes: cache.pop() is not None)):
            stream = dm.stream()
            cache += [dm.to_device(np.zeros(1000, "u1"), stream) for _ in range(10)]
            dm.device_array(4500, "u1").free()
            assert len(cache) == 5
            cache.clear()  # the stack's callback has it


# -- Scrub and Prefetch ------------------------------------------------------------------------------------------------


def test_what_is_allocated_is_moved_at_once(driver: FaultyDriver) -> None:
    stack = Prefetch()
    stack.bind(driver)
    assert stack.allocate(0, S) == 0
    assert driver.calls["prefetch"] == 0
    stack.deallocate(stack.allocate(1000, S), 1000, S)
    assert driver.calls["prefetch"] == 1
    driver.fail_at(1, "prefetch")
    with pytest.raises(BackendError):
        stack.allocate(1000, S)
    assert driver.blocks() == {}


def test_blocks_are_wiped_before_they_go_on(driver: FaultyDriver) -> None:
    seen = np.ones(1000, np.uint8)

    class Looking(DriverMemory):
        def bind(self, driver: FaultyDriver) -> None:  # type: ignore[override]
            super().bind(driver)  # type: ignore[arg-type]
            free = self.deallocate

            def look(ptr: int, nbytes: int, stream: int) -> None:
                driver.copy(int(seen.ctypes.data), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
                free(ptr, nbytes, stream)

            self.deallocate = look

    stack = Scrub(Looking(), 9)
    stack.bind(driver)
    ptr = stack.allocate(1000, S)
    driver.fill(ptr, 77, 1, 1000, S)
    stack.deallocate(ptr, 1000, S)
    assert set(seen.tolist()) == {9}


def test_a_block_that_cannot_be_wiped_is_withheld(driver: FaultyDriver) -> None:
    stack = Scrub(DriverMemory())
    stack.bind(driver)
    ptr = stack.allocate(1000, S)
    driver.fail_at(1, "fill")
    with pytest.raises(BackendError, match="injected"):
        stack.deallocate(ptr, 1000, S)
    assert list(driver.blocks()) == [ptr]
    assert stack.cached_bytes == 1000
    driver.fail_at(1, "fill")
    with pytest.raises(BackendError):
        stack.trim(0)
    assert stack.cached_bytes == 1000
    stack.trim(0)
    assert stack.cached_bytes == 0


def test_no_block_that_was_withheld_is_lost_when_another_fails(driver: FaultyDriver) -> None:
    stack = Scrub(DriverMemory())
    stack.bind(driver)
    blocks = [stack.allocate(1000, S) for _ in range(3)]
    driver.fail_at(1, "fill", repeat=True)
    for ptr in blocks:
        with pytest.raises(BackendError):
            stack.deallocate(ptr, 1000, S)
    driver.fail_at(2, "free")
    with pytest.raises(BackendError, match="free"):
        stack.trim(0)  # two of them go, one is given back with an error
    assert stack.cached_bytes == 0
    assert driver.blocks() == {}


def test_a_block_that_cannot_be_wiped_does_not_keep_the_others(driver: FaultyDriver) -> None:
    stack = Scrub(DriverMemory())
    stack.bind(driver)
    blocks = [stack.allocate(1000, S) for _ in range(3)]
    driver.fail_at(1, "fill", repeat=True)
    for ptr in blocks:
        with pytest.raises(BackendError):
            stack.deallocate(ptr, 1000, S)
    for _ in range(2):
        driver.disarm()
        driver.fail_at(1, "fill")
        with pytest.raises(BackendError):
            stack.trim(0)
        assert len(driver.blocks()) == 1
    stack.trim(0)
    assert driver.blocks() == {}


def test_what_was_withheld_is_wiped_behind_the_work_of_its_stream(driver: FaultyDriver) -> None:
    stack = Scrub(DriverMemory())
    stack.bind(driver)
    stream = driver.stream_create(0, True)
    ptr = stack.allocate(1000, stream)
    back = driver.alloc(1000, S, MemoryKind.PINNED)
    driver.fill(ptr, 7, 1, 1000, stream)
    driver.stream_synchronize(stream)
    with StreamHold(driver, stream, patience=0.3, tolerant=True):
        driver.copy(back, ptr, 1000, CopyKind.D2H, stream, blocking=False)
        driver.fail_at(1, "fill")
        with pytest.raises(BackendError):
            stack.deallocate(ptr, 1000, stream)
        stack.trim(0)  # waits until the latch gives way
    assert ctypes.string_at(back, 1000) == b"\7" * 1000
    driver.free(back, 1000, S, MemoryKind.PINNED)
    driver.stream_destroy(stream)


def test_it_waits_only_where_the_memory_may_go_anywhere(driver: FaultyDriver) -> None:
    """The driver's free takes blocks that no stream uses: not even a fill may be pending."""
    for below, waits in ((DriverMemory(), 1), (StreamOrderedMemory(), 0), (Statistics(DriverMemory()), 1)):
        stack = Scrub(below)
        stack.bind(driver)
        ptr = stack.allocate(100, S)
        before = driver.calls["stream_synchronize"]
        stack.deallocate(ptr, 100, S)
        assert driver.calls["stream_synchronize"] - before == waits


@pytest.mark.parametrize("byte", [-1, 256, "a", 1.5])
def test_a_byte_is_a_byte(byte: Any) -> None:
    with pytest.raises(dm.ConfigError, match="from 0 to 255"):
        Scrub(None, byte)


def test_managed_memory_is_moved_when_it_is_allocated(driver: FaultyDriver) -> None:
    stack = Prefetch(Statistics(ManagedMemory()))
    stack.bind(driver)
    before = driver.calls["prefetch"]
    ptr = stack.allocate(1000, S)
    assert driver.calls["prefetch"] == before + 1
    stack.deallocate(ptr, 1000, S)
    driver.fail_at(1, "prefetch")
    with pytest.raises(BackendError, match="injected"):
        stack.allocate(1000, S)
    assert driver.blocks() == {}
    with pytest.raises(dm.UnsupportedError, match="stands over managed memory"):
        Prefetch(DriverMemory()).bind(driver)


@pytest.mark.comes_between
@pytest.mark.parametrize(
    "make",
    [
        Statistics,
        Limit,
        lambda below: FailNth(below, 100),
        dm.memory.Guard,
        lambda below: Log(below, os.devnull),
    ],
)
def test_a_finalizer_that_frees_in_the_middle_of_a_call_does_not_hang(driver: FaultyDriver, make: object) -> None:
    """The collector may run a program's own finalizer at any time, in this very thread, with a lock taken."""
    stack = make(DriverMemory())  # type: ignore[operator]
    stack.bind(driver)

    def work() -> None:
        token = driver.enter()
        ptr = stack.allocate(100, S)
        with stack._lock:
            stack.deallocate(ptr, 100, S)
            stack.deallocate(stack.allocate(100, S), 100, S)
        driver.exit(token)

    together(work)
    stack.trim(0)


def test_a_kind_that_there_is_not_is_refused() -> None:
    class Odd(Below):
        kind = "huge"

    with pytest.raises(dm.PluginError, match=r"Below\(\) says that its kind is 'huge': it is one of device, pinned"):
        Statistics(Odd()).kind  # noqa: B018


def run(count: int, work: Callable[[], object]) -> None:
    together(*[work] * count)
