"""The pools: what the published suite and the model of `tests/property/pool/test_pools.py` do not show."""

from __future__ import annotations

import itertools
import lzma
import random
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import interrupts
import numpy as np
import pytest
from waits import patience, together

import devmem as dm
from devmem._core.base.interrupts import CannotWait
from devmem._core.pool.size_bins import SizeBins
from devmem._core.telemetry.allocation_log import read
from devmem.errors import ConfigError, OutOfMemory, UnsupportedError
from devmem.memory import PinnedMemory, PinnedPool, PoolMemory, StreamOrderedMemory
from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, AllocFlags, Capability, CopyKind, DeviceInfo, MemoryKind
from devmem.testing import StreamHold, hold
from devmem.testing.replay import replay
from devmem.toolkit import host_limits, numa

MIB = 1 << 20
TRACES = Path(__file__).parents[3] / "benchmarks" / "traces"


def bound(resource: Any, driver: Any) -> Any:
    resource.bind(driver)
    return resource


def in_thread(function: Any) -> Any:
    """What a function returns in a thread of its own."""
    return together(function)[0]


class Addresses:
    """Memory that is only addresses, with places where a test can stop a call."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.seen: list[tuple[str, int]] = []
        self.in_free: Any = lambda: None
        self._lock = threading.Lock()

    def allocate(self, nbytes: int, stream: int) -> int:
        at = 256
        with self._lock:
            for start, size in sorted(self.live.items()):
                if at + nbytes <= start:
                    break
                at = start + size
            self.live[at] = nbytes
        self.seen.append(("allocate", nbytes))
        return at

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        with self._lock:
            assert self.live.pop(ptr) == nbytes
        self.seen.append(("deallocate", nbytes))
        self.in_free()


class Silent:
    """A driver on which everything has always passed."""

    info = DeviceInfo("silent", 0, "silent", "silent", 1 << 40)

    def alloc(self, nbytes: int, stream: int, kind: MemoryKind, flags: AllocFlags) -> int:
        raise AssertionError("nothing is allocated")

    free = alloc

    def __init__(self) -> None:
        self.events = 0

    def event_create(self, timing: bool) -> int:
        self.events += 1  # how many: the numbers need not differ
        return self.events

    def event_record(self, event: int, stream: int) -> None: ...

    def event_query(self, event: int) -> bool:
        return True

    def event_destroy(self, event: int) -> None: ...

    def synchronize(self) -> None: ...


# -- reuse -------------------------------------------------------------------------------------------------------------


def test_a_hit_makes_no_driver_call(driver: Any) -> None:
    pool = bound(PoolMemory(), driver)
    sizes = [1, 1000, 70_000, 3 * MIB, 40 * MIB]
    first = [pool.allocate(nbytes, LEGACY_STREAM) for nbytes in sizes]
    for ptr, nbytes in zip(first, sizes, strict=True):
        pool.deallocate(ptr, nbytes, LEGACY_STREAM)
    before = driver.calls.copy()
    again = [pool.allocate(nbytes, LEGACY_STREAM) for nbytes in sizes]
    assert driver.calls == before
    assert again == first
    for ptr, nbytes in zip(again, sizes, strict=True):
        pool.deallocate(ptr, nbytes, LEGACY_STREAM)
    assert driver.calls == before
    pool.trim(0)
    assert driver.live().blocks == 0


def test_small_blocks_are_cut_from_one_chunk_and_merge_again(driver: Any) -> None:
    pool = bound(PoolMemory(), driver)
    blocks = [(pool.allocate(nbytes, LEGACY_STREAM), nbytes) for nbytes in range(1, 150_000, 9973)]
    assert driver.live().blocks == 1
    for ptr, nbytes in blocks[::2] + blocks[1::2]:
        pool.deallocate(ptr, nbytes, LEGACY_STREAM)
    report = pool.report()
    assert (report.free_blocks, report.chunks, report.live_bytes) == (1, 1, 0)
    assert report.largest_free_block == pool.largest_free_block == report.reserved_bytes
    assert report.fragmentation == 0.0
    pool.trim(0)
    assert pool.report().reserved_bytes == 0


def test_fragmentation_is_told(driver: Any) -> None:
    pool = bound(PoolMemory(), driver)
    blocks = [pool.allocate(100_000, LEGACY_STREAM) for _ in range(20)]
    for ptr in blocks[::2]:
        pool.deallocate(ptr, 100_000, LEGACY_STREAM)
    report = pool.report()
    assert report.free_blocks >= 10
    assert 0.5 < report.fragmentation < 1.0
    for ptr in blocks[1::2]:
        pool.deallocate(ptr, 100_000, LEGACY_STREAM)
    pool.trim(0)


def test_another_stream_waits_for_the_event(driver: Any) -> None:
    """While the first stream is held its memory stays its own; when it has passed, no driver memory is asked for."""
    pool = bound(PoolMemory(), driver)
    first, second = driver.stream_create(0, True), driver.stream_create(0, True)
    ptr = pool.allocate(5 * MIB, first)
    with StreamHold(driver, first) as latch:
        driver.fill(ptr, 1, 1, 100, first)
        pool.deallocate(ptr, 5 * MIB, first)
        early = pool.allocate(5 * MIB, second)
        assert early != ptr
        assert pool.allocate(5 * MIB, first) == ptr, "the stream's own order is enough for itself"
        pool.deallocate(ptr, 5 * MIB, first)
        assert not latch.expired
        latch.release()
        driver.stream_synchronize(first)
    before = driver.calls["alloc"]
    late = pool.allocate(5 * MIB, second)
    assert late == ptr
    assert driver.calls["alloc"] == before
    for each in (early, late):
        pool.deallocate(each, 5 * MIB, second)
    pool.trim(0)
    assert driver.live()[:2] == (0, 0)
    assert driver.live().events == 0


def test_each_thread_has_a_default_stream_of_its_own(driver: Any) -> None:
    pool = bound(PoolMemory(), driver)
    ptr = pool.allocate(5 * MIB, PER_THREAD_STREAM)
    with StreamHold(driver, PER_THREAD_STREAM):
        driver.fill(ptr, 1, 1, 100, PER_THREAD_STREAM)
        pool.deallocate(ptr, 5 * MIB, PER_THREAD_STREAM)

        def other() -> int:
            with_token = driver.enter()
            found = pool.allocate(5 * MIB, PER_THREAD_STREAM)
            pool.deallocate(found, 5 * MIB, PER_THREAD_STREAM)
            driver.exit(with_token)
            return int(found)

        assert in_thread(other) != ptr
        assert pool.allocate(5 * MIB, PER_THREAD_STREAM) == ptr
        pool.deallocate(ptr, 5 * MIB, PER_THREAD_STREAM)
    pool.trim(0)
    assert driver.live().blocks == 0


def test_what_an_ended_thread_left_is_used_by_others(driver: Any) -> None:
    pool = bound(PoolMemory(), driver)

    def work() -> int:
        token = driver.enter()
        ptr = pool.allocate(5 * MIB, PER_THREAD_STREAM)
        pool.deallocate(ptr, 5 * MIB, PER_THREAD_STREAM)
        driver.exit(token)
        return int(ptr)

    left = in_thread(work)
    driver.synchronize()
    assert pool.allocate(5 * MIB, LEGACY_STREAM) == left
    pool.deallocate(left, 5 * MIB, LEGACY_STREAM)
    pool.trim(0)
    assert driver.live().blocks == 0


def test_a_destroyed_stream_is_never_named(driver: Any) -> None:
    """Blocks that came back on it go to others behind an event that was recorded while it lived."""
    pool = bound(PoolMemory(), driver)
    stream, other = driver.stream_create(0, True), driver.stream_create(0, True)
    ptr = pool.allocate(5 * MIB, stream)
    pool.deallocate(ptr, 5 * MIB, stream)
    pool.forget_stream(stream)
    driver.stream_destroy(stream)
    driver.synchronize()
    assert pool.allocate(5 * MIB, other) == ptr
    pool.deallocate(ptr, 5 * MIB, other)
    pool.trim(0)
    assert driver.live().blocks == 0
    assert driver.live().events == 0


def test_streams_of_others_leave_nothing_behind(driver: Any) -> None:
    """Of a stream on which nothing came back only an address is known: it is forgotten as soon as its event has passed."""
    pool = bound(PoolMemory(), driver)
    blocks = []
    for _ in range(20):
        foreign = driver.inner.stream_create(0, True)
        blocks.append(pool.allocate(100_000, foreign))
        driver.inner.stream_destroy(foreign)  # the pool is not told
    for ptr in blocks:
        pool.deallocate(ptr, 100_000, LEGACY_STREAM)
    driver.synchronize()
    pool.trim(0)
    assert driver.live().blocks == 0
    assert len(pool._lists.by_stream) == 1


# -- limits ------------------------------------------------------------------------------------------------------------


def test_the_limit_is_met_by_what_is_cached_first(driver: Any) -> None:
    pool = bound(PoolMemory(max_bytes=10 * MIB), driver)
    blocks = [pool.allocate(3 * MIB, LEGACY_STREAM) for _ in range(3)]
    for ptr in blocks:
        pool.deallocate(ptr, 3 * MIB, LEGACY_STREAM)
    ptr = pool.allocate(9 * MIB, LEGACY_STREAM)
    assert pool.report().reserved_bytes <= 10 * MIB
    with pytest.raises(OutOfMemory, match="limit"):
        pool.allocate(2 * MIB, LEGACY_STREAM)
    pool.deallocate(ptr, 9 * MIB, LEGACY_STREAM)
    pool.trim(0)
    assert driver.live().blocks == 0


def test_what_is_too_large_to_be_cut_serves_before_memory_runs_out(driver: Any) -> None:
    """A large chunk that cannot go back, as part of it is in use, is cut however much larger it is than what is asked for."""
    pool = bound(PoolMemory(max_bytes=12 * MIB), driver)
    whole = pool.allocate(12 * MIB, LEGACY_STREAM)
    pool.deallocate(whole, 12 * MIB, LEGACY_STREAM)
    most = pool.allocate(10 * MIB, LEGACY_STREAM)
    rest = pool.allocate(MIB, LEGACY_STREAM)
    assert most == whole
    assert whole < rest < whole + 12 * MIB
    pool.deallocate(most, 10 * MIB, LEGACY_STREAM)
    part = pool.allocate(2 * MIB, LEGACY_STREAM)
    assert whole <= part < whole + 12 * MIB
    for ptr, nbytes in ((part, 2 * MIB), (rest, MIB)):
        pool.deallocate(ptr, nbytes, LEGACY_STREAM)
    pool.trim(0)
    assert driver.live().blocks == 0


@pytest.mark.parametrize("bad", [0, 511, -1, "much"])
def test_bad_limits_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigError):
        PoolMemory(max_bytes=bad)
    with pytest.raises(ConfigError):
        PinnedPool(max_bytes=bad)


def test_a_full_upstream_gets_what_is_cached(driver: Any) -> None:
    total = driver.info.total_bytes
    pool = bound(PoolMemory(), driver)
    ptr = pool.allocate(total // 2, LEGACY_STREAM)
    pool.deallocate(ptr, total // 2, LEGACY_STREAM)
    ptr = pool.allocate(total * 3 // 4, LEGACY_STREAM)
    pool.deallocate(ptr, total * 3 // 4, LEGACY_STREAM)
    pool.trim(0)
    assert driver.live().blocks == 0


#: by trace, the calls of the upstream that are allowed: in all, and after its first half. The traces have 6,773, 13,808
#: and 3,232 allocations.
CALLS = {"training": (450, 110), "serving": (950, 320), "analysis": (200, 80)}


@pytest.mark.parametrize("trace", CALLS)
def test_little_more_is_reserved_than_is_live_and_the_upstream_is_seldom_asked(trace: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lzma.decompress((TRACES / f"{trace}.jsonl.xz").read_bytes()))
    records = list(read(path))
    upstream = Addresses()
    pool = bound(PoolMemory(upstream), Silent())
    live = peak = 0
    for each in records:
        live += (-(-each.nbytes // 512)) * (512 if each.op == "allocate" else -512)
        peak = max(peak, live)
    assert peak > 256 * MIB
    calls: list[int] = []
    replay(records, pool, after=lambda _: calls.append(len(upstream.seen)))
    assert pool.report().peak_reserved_bytes <= 1.15 * peak
    most, late = CALLS[trace]
    assert calls[-1] <= most
    assert calls[-1] - calls[len(calls) // 2] <= late
    pool.trim(0)
    assert not upstream.live


def test_the_same_work_again_asks_for_nothing() -> None:
    """Layers of a training step, last in first out, of a size that changes from step to step but was there before."""
    upstream, driver = Addresses(), Silent()
    pool = bound(PoolMemory(upstream), driver)

    def step(width: int) -> None:
        made = [(pool.allocate(nbytes, 5), nbytes) for layer in range(12) for nbytes in (width, 3 * width, width // 7)]
        for ptr, nbytes in reversed(made):
            pool.deallocate(ptr, nbytes, 5)

    widths = [5 * MIB, 3 * MIB, 4 * MIB, 3 * MIB]
    for width in widths:
        step(width)
    seen, events = len(upstream.seen), driver.events
    for width in widths * 5:
        step(width)
    assert (len(upstream.seen), driver.events) == (seen, events)


def test_a_chunk_goes_back_only_to_make_room_for_one_that_nothing_serves() -> None:
    """The smallest that is enough, of those that are free."""
    upstream = Addresses()
    pool = bound(PoolMemory(upstream), Silent())
    sizes = [20 * MIB, 30 * MIB, 40 * MIB, 50 * MIB]
    blocks = [(pool.allocate(nbytes, 5), nbytes) for nbytes in sizes]
    for ptr, nbytes in blocks:
        pool.deallocate(ptr, nbytes, 5)
    upstream.seen.clear()
    pool.allocate(60 * MIB, 5)  # of at most 168 MiB that may be held 140 are
    assert upstream.seen == [("deallocate", 40 * MIB), ("allocate", 60 * MIB)]


def test_events_are_used_again(driver: Any) -> None:
    pool = bound(PoolMemory(), driver)
    first, second = driver.stream_create(0, True), driver.stream_create(0, True)
    for stream in (first, second) * 5:
        ptr = pool.allocate(5 * MIB, stream)
        pool.deallocate(ptr, 5 * MIB, stream)
        driver.synchronize()
    assert driver.calls["event_record"] >= 5
    assert driver.calls["event_create"] <= 2
    assert driver.calls["alloc"] == 1
    pool.trim(0)
    assert driver.live()[:2] == (0, 0)
    assert driver.live().events == 0


def test_a_query_that_fails_loses_no_event_that_had_passed(driver: Any) -> None:
    pool = bound(PoolMemory(), driver)
    streams = [driver.stream_create(0, True) for _ in range(3)]
    blocks = [pool.allocate(5 * MIB, stream) for stream in streams[:2]]
    for ptr, stream in zip(blocks, streams, strict=False):
        pool.deallocate(ptr, 5 * MIB, stream)
    driver.synchronize()
    driver.fail_at(2, "event_query")
    with pytest.raises(BackendError):
        pool.allocate(5 * MIB, streams[2])
    driver.disarm()
    pool.trim(0)
    assert driver.live()[:2] == (0, 0)
    assert driver.live().events == 0


# -- several threads ---------------------------------------------------------------------------------------------------


def test_an_address_that_comes_back_before_its_free_returned() -> None:
    """The upstream gives a chunk to another thread while the call that gave it back is still on its way."""
    upstream = Addresses()
    pool = bound(PoolMemory(upstream), Silent())
    ptr = pool.allocate(3 * MIB, LEGACY_STREAM)
    pool.deallocate(ptr, 3 * MIB, LEGACY_STREAM)
    freed, go = threading.Event(), threading.Event()

    def stop() -> None:
        upstream.in_free = lambda: None
        freed.set()
        assert go.wait(patience())

    upstream.in_free = stop
    trimming = threading.Thread(target=pool.trim, args=(0,), daemon=True)
    trimming.start()
    assert freed.wait(patience())
    again = pool.allocate(3 * MIB, LEGACY_STREAM)
    assert again == ptr, "the test widens nothing"
    go.set()
    trimming.join(patience())
    report = pool.report()
    assert (report.live_bytes, report.cached_bytes, report.reserved_bytes) == (3 * MIB, 0, 3 * MIB)
    other = pool.allocate(3 * MIB, LEGACY_STREAM)
    assert other != again
    for each in (again, other):
        pool.deallocate(each, 3 * MIB, LEGACY_STREAM)
    pool.trim(0)
    assert not upstream.live, "the entry of the chunk that came later was erased for the one that went"


@pytest.mark.parametrize("make", [PoolMemory, PinnedPool], ids=lambda make: make.__name__)
def test_eight_threads_on_crossing_streams(make: Any) -> None:
    """Every thread uses every stream, blocks are freed by others than made them, and one thread trims all the time."""
    upstream = Addresses()
    pool = bound(make(upstream), Silent())
    guard, out = threading.Lock(), dict[int, int]()
    handed: list[tuple[int, int]] = []
    problems: list[str] = []

    def work(number: int) -> None:
        chance = np.random.default_rng(number)
        for turn in range(300):
            stream, nbytes = int(chance.integers(1, 6)), int(2 ** chance.uniform(5, 21))
            ptr = pool.allocate(nbytes, stream)
            with guard:
                for other, size in out.items():
                    if ptr < other + size and other < ptr + nbytes:
                        problems.append(f"{ptr:#x}+{nbytes} overlaps {other:#x}+{size}")
                out[ptr] = nbytes
                handed.append((ptr, nbytes))
                back = handed.pop(int(chance.integers(len(handed)))) if len(handed) > 20 else None
                if back:
                    del out[back[0]]
            if back:
                pool.deallocate(*back, stream)
            if turn % 50 == number:
                pool.trim(int(chance.integers(1 << 20)))

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        together(*(partial(work, number) for number in range(8)))
    finally:
        sys.setswitchinterval(switching)
    assert not problems
    for ptr, nbytes in handed:
        pool.deallocate(ptr, nbytes, LEGACY_STREAM)
    pool.trim(0)
    assert not upstream.live
    assert pool.report().reserved_bytes == pool.cached_bytes == 0


@pytest.mark.comes_between
def test_a_finalizer_in_the_middle_of_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may run user code anywhere, which may allocate and free: it must not meet half-written books."""
    upstream = Addresses()
    pool = bound(PoolMemory(upstream), Silent())
    kept = [pool.allocate(3000, 7) for _ in range(3)]
    inside: list[int] = []
    real = SizeBins.of

    def of(self: SizeBins, size: int) -> Any:
        if not inside:
            inside.append(0)
            assert pool._lists.changing
            inside[0] = pool.allocate(5000, 7)
            pool.deallocate(kept.pop(), 3000, 7)
            pool.deallocate(pool.allocate(3 * MIB, 8), 3 * MIB, 8)
            with pytest.raises(CannotWait):
                pool.forget_stream(8)
            pool.trim(0)
        return real(self, size)

    monkeypatch.setattr(SizeBins, "of", of)
    outer = pool.allocate(9000, 7)
    monkeypatch.undo()
    blocks = sorted([(outer, 9000), (inside[0], 5000), *[(ptr, 3000) for ptr in kept]])
    for (ptr, nbytes), (following, _) in itertools.pairwise(blocks):
        assert ptr + nbytes <= following
    for ptr, nbytes in blocks:
        pool.deallocate(ptr, nbytes, 7)
    assert pool.report().live_bytes == 0
    pool.trim(0)
    assert not upstream.live


# -- capture -----------------------------------------------------------------------------------------------------------


class Capturing(Silent):
    """A driver on which one stream captures a graph."""

    info = DeviceInfo("silent", 0, "silent", "silent", 1 << 40, capabilities=frozenset({Capability.CAPTURE}))

    def capturing(self, stream: int) -> bool:
        return stream in (LEGACY_STREAM, 7)


def test_inside_a_capture_only_what_is_there_serves() -> None:
    upstream, driver = Addresses(), Capturing()
    pool = bound(PoolMemory(upstream), driver)
    pool.deallocate(pool.allocate(9 * MIB, 8), 9 * MIB, 8)
    pool.forget_stream(8)
    pool.allocate(1, 9)
    pool.report()
    seen, events = list(upstream.seen), driver.events
    with pytest.raises(UnsupportedError, match="captur"):
        pool.allocate(30 * MIB, 7)
    assert (upstream.seen, driver.events) == (seen, events)


# -- kinds -------------------------------------------------------------------------------------------------------------


def test_what_the_host_can_touch_is_not_reused_in_stream_order() -> None:
    assert PoolMemory().stream_ordered
    assert PoolMemory(StreamOrderedMemory()).stream_ordered
    assert not PoolMemory(PinnedMemory()).stream_ordered
    assert PoolMemory(PinnedMemory()).kind is PinnedPool().kind is MemoryKind.PINNED


def test_arrays_of_a_pool() -> None:
    """The core's own streams are forgotten as they close, and their memory serves the next one."""
    pool = PoolMemory()
    with dm.use_memory(pool):
        addresses = set()
        for _ in range(5):
            stream = dm.stream()
            d = dm.to_device(np.arange(1 << 19), stream=stream)
            addresses.add(d.ptr)
            d.free()
            stream.close()
            dm.synchronize()
        assert len(addresses) == 1
        assert pool.report().reserved_bytes == (1 << 19) * 8
        assert [handle for handle in pool._lists.by_stream if handle > PER_THREAD_STREAM] == []
    dm.trim()
    assert pool.cached_bytes == 0


def test_arrays_of_a_pool_on_held_streams() -> None:
    device = dm.current_device()
    if Capability.HOLD not in device.info.capabilities:
        pytest.skip("the device cannot hold a stream")
    pool = PoolMemory()
    with dm.use_memory(pool):
        held, other = dm.stream(), dm.stream()
        host = dm.pinned_array(1 << 18, "u1")
        data = np.arange(1 << 18, dtype="u1")
        d = dm.to_device(data, stream=held)
        held.synchronize()
        with hold(held):
            d.copy_to_host(host, stream=held)
            d.free()
            e = dm.to_device(np.full(1 << 18, 7, "u1"), stream=other)
            other.synchronize()
        held.synchronize()
        np.testing.assert_array_equal(np.asarray(host), data)
        np.testing.assert_array_equal(e.copy_to_host(), np.full(1 << 18, 7, "u1"))
        del d, e


# -- pinned memory -----------------------------------------------------------------------------------------------------


def test_pinned_memory_is_reused_after_its_event(driver: Any) -> None:
    pool = bound(PinnedPool(), driver)
    device, stream = driver.alloc(100_000, LEGACY_STREAM), driver.stream_create(0, True)
    ptr = pool.allocate(100_000, stream)
    with StreamHold(driver, stream) as latch:
        driver.copy(device, ptr, 100_000, CopyKind.H2D, stream, blocking=False)
        pool.deallocate(ptr, 100_000, stream)
        assert pool.report().waiting_bytes == pool.cached_bytes > 0
        assert pool.largest_free_block == 0
        other = pool.allocate(100_000, stream)
        assert other != ptr, "the host is on no stream: not even the same one may have it"
        latch.release()
        driver.stream_synchronize(stream)
    assert pool.allocate(100_000, LEGACY_STREAM) == ptr
    for each in (ptr, other):
        pool.deallocate(each, 100_000, LEGACY_STREAM)
    pool.trim(0)
    report = pool.report()
    assert (report.hits, report.misses, report.given_back, report.reserved_bytes) == (1, 2, 2, 0)
    assert report.driver_seconds > 0
    driver.free(device, 100_000, LEGACY_STREAM)
    assert driver.live().events == 0


def test_a_slow_stream_holds_up_no_other(driver: Any) -> None:
    pool = bound(PinnedPool(), driver)
    slow, quick = driver.stream_create(0, True), driver.stream_create(0, True)
    first, second = pool.allocate(5000, slow), pool.allocate(5000, quick)
    with StreamHold(driver, slow):
        driver.stream_wait(slow, driver.event_create(False))
        pool.deallocate(first, 5000, slow)
        pool.deallocate(second, 5000, quick)
        driver.stream_synchronize(quick)
        assert pool.allocate(5000, quick) == second
    driver.stream_synchronize(slow)
    pool.deallocate(second, 5000, quick)
    pool.trim(0)


def test_pinned_sizes_are_exact() -> None:
    upstream = Addresses()
    pool = bound(PinnedPool(upstream), Silent())
    for nbytes in (1, 4096, 5000, 1_000_000, (1 << 28) + 1):
        pool.allocate(nbytes, LEGACY_STREAM)
        _, taken = upstream.seen[-1]
        pages = -(-nbytes // 4096) * 4096
        assert taken % 4096 == 0
        assert pages <= taken <= pages * 65 // 64 + 4096


def test_pinned_limit_gives_back_the_longest_unused_first() -> None:
    upstream = Addresses()
    pool = bound(PinnedPool(upstream, max_bytes=100 * 4096), Silent())
    sizes = [10 * 4096, 20 * 4096, 30 * 4096]
    for nbytes in sizes:
        pool.deallocate(pool.allocate(nbytes, LEGACY_STREAM), nbytes, LEGACY_STREAM)
    pool.deallocate(pool.allocate(sizes[0], LEGACY_STREAM), sizes[0], LEGACY_STREAM)
    upstream.seen.clear()
    pool.allocate(55 * 4096, LEGACY_STREAM)
    assert upstream.seen == [("deallocate", 20 * 4096), ("allocate", 55 * 4096)]
    with pytest.raises(OutOfMemory, match="max_bytes"):
        pool.allocate(60 * 4096, LEGACY_STREAM)
    assert pool.report().reserved_bytes == 55 * 4096, "everything cached went back before it failed"


def test_pinned_memory_has_a_limit_unless_told_otherwise() -> None:
    report = bound(PinnedPool(), Silent()).report()
    assert 0 < report.max_bytes <= host_limits.host_bytes() // 2
    assert PinnedPool(max_bytes="25%").max_bytes == host_limits.host_bytes() // 4


def test_control_groups_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host_limits, "CONTROL_GROUP", (str(limit), str(tmp_path / "none")))
    whole = host_limits.host_bytes()
    limit.write_text("max\n")
    assert host_limits.host_bytes() == whole
    limit.write_text(f"{64 * MIB}\n")
    assert host_limits.host_bytes() == 64 * MIB


def test_pinned_event_that_fails_loses_nothing(driver: Any) -> None:
    pool = bound(PinnedPool(), driver)
    ptr = pool.allocate(5000, LEGACY_STREAM)
    driver.fail_at(1, "event_record")
    with pytest.raises(BackendError):
        pool.deallocate(ptr, 5000, LEGACY_STREAM)
    driver.disarm()
    assert pool.cached_bytes > 0
    pool.trim(0)
    assert driver.live()[:2] == (0, 0)
    assert driver.live().events == 0


def test_pinned_arrays_of_a_pool() -> None:
    if MemoryKind.PINNED not in dm.current_device().info.memory_kinds:
        pytest.skip("the device has no pinned memory")
    pool = PinnedPool()
    with dm.use_memory(pool, kind="pinned"):
        stream = dm.stream()
        source = dm.pinned_array(1 << 16, "u1")
        source[:] = 5
        d = dm.to_device(source, stream=stream)
        del source
        stream.synchronize()
        dm.trim(1 << 30)
        dm.synchronize()
        again = dm.pinned_array(1 << 16, "u1")
        assert pool.report().hits == 1
        again[:] = 9
        np.testing.assert_array_equal(d.copy_to_host(), np.full(1 << 16, 5, "u1"))
        del again
    dm.trim()
    assert pool.cached_bytes == 0


# -- NUMA --------------------------------------------------------------------------------------------------------------


def policy() -> tuple[int, int]:
    """The memory policy of this thread: its mode, and the first word of its nodes."""
    mode, mask = numa.policy()
    return mode, int(mask[0])


@pytest.fixture
def node() -> int:
    """A node that memory can be bound to."""
    found = numa.online_nodes()[0] if sys.platform.startswith("linux") else 0
    try:
        numa.check_node(found)
    except UnsupportedError as error:
        pytest.skip(str(error))
    return found


def test_the_upstream_allocates_on_the_node(node: int) -> None:
    class Asking(Addresses):
        def allocate(self, nbytes: int, stream: int) -> int:
            self.policy = policy()
            return super().allocate(nbytes, stream)

    before = policy()
    upstream = Asking()
    pool = bound(PinnedPool(upstream, numa_node=node), Silent())
    ptr = pool.allocate(5000, LEGACY_STREAM)
    assert upstream.policy == (2, 1 << node)
    assert policy() == before
    pool.deallocate(ptr, 5000, LEGACY_STREAM)
    pool.trim(0)
    assert f"numa_node={node}" in repr(pool)


def test_the_policy_is_restored_when_the_upstream_fails(node: int) -> None:
    class Full(Addresses):
        def allocate(self, nbytes: int, stream: int) -> int:
            raise OutOfMemory("full")

    before = policy()
    pool = bound(PinnedPool(Full(), numa_node=node), Silent())
    with pytest.raises(OutOfMemory):
        pool.allocate(5000, LEGACY_STREAM)
    assert policy() == before
    assert pool.report().reserved_bytes == 0


def test_a_node_that_is_not_there(node: int) -> None:
    with pytest.raises(ConfigError, match=r"numa_node=999"):
        PinnedPool(numa_node=999)


def test_where_binding_is_forbidden(node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "_syscall", lambda *_: -1)
    with pytest.raises(UnsupportedError, match="NUMA"):
        PinnedPool(numa_node=node)


def test_where_there_are_no_such_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UnsupportedError, match="Linux"):
        PinnedPool(numa_node=0)


def test_nodes_as_the_kernel_lists_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = tmp_path / "online"
    listed.write_text("0-2,5\n")
    monkeypatch.setattr(numa, "_ONLINE", listed)
    assert numa.online_nodes() == [0, 1, 2, 5]
    listed.write_text("\n")
    assert numa.online_nodes() == [0]
    monkeypatch.setattr(numa, "_ONLINE", tmp_path / "none")
    assert numa.online_nodes() == [0]


def test_what_fits_exactly_is_served_where_nothing_is_cached_and_a_whole_chunk_does_not_fit():
    """A pool asks for more than it needs; where that is refused, it asks for no more than the request."""
    with dm.use_memory(dm.memory.PoolMemory(dm.memory.Limit(dm.memory.DriverMemory(), 4 << 20))):
        first = dm.device_array(3 << 20, "u1")
        second = dm.device_array(900 << 10, "u1")
        assert (first.nbytes, second.nbytes) == (3 << 20, 900 << 10)
        with pytest.raises(dm.OutOfMemory):
            dm.device_array(900 << 10, "u1")


@pytest.mark.parametrize("make", [PoolMemory, PinnedPool], ids=lambda make: make.__name__)
def test_an_interrupt_gives_no_block_to_two_owners_nor_to_a_stream_too_early(make, driver, at_point):
    """At drawn points of a pool's own code, with work held on two streams. A block that was on its way may be lost."""
    inside = Path(sys.modules[PoolMemory.__module__].__file__).parent
    streams = first, second, third = [driver.stream_create(0, True) for _ in range(3)]
    lost, points = 0, [1 << 40]
    with StreamHold(driver, first, patience=patience()), StreamHold(driver, second, patience=patience()):
        for number in points:
            pool = bound(make(PinnedMemory()) if make is PinnedPool else make(), driver)
            books = Books(pool, {first, second} if make is PoolMemory else set())
            books.work(streams)
            with at_point(number, lambda code: Path(code.co_filename).parent == inside) as at:
                books.work(streams)
            if number == 1 << 40:
                points += random.Random(make.__name__).sample(range(1, number - at.left), 40)
            books.work(streams)  # the next call works
            for ptr in list(books.live):
                books.free(ptr, third)
            report = pool.report()
            lost += report.live_bytes
            assert report.live_bytes <= 4 * MIB, at.where
            assert sum(pool._lists.chunks.values()) == pool._lists.chunk_bytes
    assert lost  # so the points were among them at which something may be
    for stream in streams:
        driver.stream_destroy(stream)


class Books:
    """What a pool has handed out, and what came back on a stream that is held: each address has one owner."""

    def __init__(self, pool: Any, own_order: set[int]) -> None:
        self.pool, self.own_order = pool, own_order
        self.live: dict[int, int] = {}
        self.freed: list[tuple[int, int, int]] = []

    def work(self, streams: list[int]) -> None:
        first, second, third = streams
        for stream, other in ((first, first), (second, first), (first, second), (third, second)):
            ptrs = [self.allocate(nbytes, stream) for nbytes in (3000, 3000, 70_000, 2 * MIB)]
            for ptr in ptrs[1:]:
                self.free(ptr, other)

    def allocate(self, nbytes: int, stream: int) -> int:
        ptr: int = self.pool.allocate(nbytes, stream)
        assert all(ptr + nbytes <= start or start + size <= ptr for start, size in self.live.items())
        met = [each for each in self.freed if each[0] < ptr + nbytes and ptr < each[0] + each[1]]
        assert all(on == stream and on in self.own_order for _, _, on in met), "its work on a held stream is not done"
        self.freed = [each for each in self.freed if each not in met]
        self.live[ptr] = nbytes
        return ptr

    def free(self, ptr: int, stream: int) -> None:
        nbytes = self.live.pop(ptr)
        self.freed.append((ptr, nbytes, stream))
        self.pool.deallocate(ptr, nbytes, stream)


@pytest.mark.comes_between
def test_a_handler_may_ask_for_the_report_in_the_middle_of_a_change(driver):
    """What is half done counts as it stands: blocks that are being split or merged may be missing."""
    pool, inside = bound(PoolMemory(), driver), Path(sys.modules[PoolMemory.__module__].__file__).parent
    stream, reports, asking = driver.stream_create(0, False), [], []

    def ask(frame):
        if not asking:  # the report comes by points itself
            asking.append(frame)
            reports.append(pool.report())
            asking.clear()

    stop = interrupts.watch(lambda code: Path(code.co_filename).parent == inside, ask)
    try:
        ptrs = [pool.allocate(nbytes, stream) for nbytes in (3000, 70_000, 3_000_000)]
        for ptr, nbytes in zip(ptrs, (3000, 70_000, 3_000_000), strict=True):
            pool.deallocate(ptr, nbytes, stream)
        pool.trim(0)
    finally:
        stop()
    assert len(reports) > 100
    assert all(0 <= each.largest_free_block <= each.reserved_bytes for each in reports)
    driver.stream_destroy(stream)


class Behind(Capturing):
    """A driver whose streams have never passed."""

    def event_query(self, event: int) -> bool:
        return False


def in_a_change(pool: Any, driver: Any, handler: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        pool._lists.change(interrupted, handler)


def as_an_event_is_recorded(pool: Any, driver: Any, handler: Any) -> None:
    driver.event_create = lambda timing: handler() or 1
    pool.allocate(5000, 78)


def as_a_capture_is_looked_for(pool: Any, driver: Any, handler: Any) -> None:
    driver.capturing = lambda stream: driver.name(stream) or (stream == LEGACY_STREAM and handler())
    pool._reuse.any_capturing()


def interrupted(handler: Any) -> None:
    handler()
    raise KeyboardInterrupt


@pytest.mark.comes_between
@pytest.mark.parametrize("meanwhile", [in_a_change, as_an_event_is_recorded, as_a_capture_is_looked_for])
def test_a_handler_ends_no_stream_that_the_interrupted_call_uses(meanwhile: Any) -> None:
    """It would be named afterwards, or its blocks be taken for those of the next stream with its number."""
    driver, ended, refused = Behind(), list[int](), list[str]()
    pool = bound(PoolMemory(Addresses()), driver)
    ptr = pool.allocate(5000, 77)
    pool.deallocate(ptr, 5000, 77)

    def name(stream: int) -> None:
        assert stream not in ended, "it is destroyed"

    def handler() -> None:
        if ended or refused:
            return
        try:
            pool.forget_stream(77)
            ended.append(77)
        except CannotWait as error:
            refused.append(str(error))

    driver.name = name  # type: ignore[attr-defined]
    driver.event_record = lambda event, stream: name(stream)  # type: ignore[method-assign]
    driver.capturing = name  # type: ignore[method-assign, assignment]
    meanwhile(pool, driver, handler)
    if refused:
        assert "0x4d" in refused[0]
        pool.forget_stream(77)
    ended.clear()  # another stream has the number
    assert pool.allocate(5000, 77) != ptr
    assert refused


@pytest.mark.comes_between
def test_a_stream_is_forgotten_after_what_came_back_on_it() -> None:
    """A handler gives a block back in a change, which an interrupt ends; then the stream ends, and another has its number."""
    pool = bound(PoolMemory(Addresses()), Behind())
    ptr = pool.allocate(5000, 77)
    with pytest.raises(KeyboardInterrupt):
        pool._lists.change(interrupted, partial(pool.deallocate, ptr, 5000, 77))
    pool.forget_stream(77)
    assert pool.allocate(5000, 77) != ptr
    pool.trim(0)
    assert pool.report().live_bytes <= 8192
