"""Where memory comes from, how much there is, and when it goes back: use_memory, memory_info, trim, defer_cleanup, thresholds."""

from __future__ import annotations

import contextlib
import gc
import pickle
import re
import traceback
from collections import deque
from pathlib import Path

import numpy as np
import pytest

import devmem as dm
from devmem.memory import DriverMemory, MemoryResource, PoolMemory, StreamOrderedMemory
from devmem.spi.sizes import exact_size

pytestmark = pytest.mark.usefixtures("tidy")

MIB = 1 << 20


class Counting:
    """A third party's resource over plain driver memory, which writes down what it is asked."""

    def __init__(self):
        self.upstream = DriverMemory()
        self.asked = []
        self.live = {}

    def bind(self, driver):
        self.upstream.bind(driver)

    def allocate(self, nbytes, stream):
        ptr = self.upstream.allocate(nbytes, stream)
        self.asked.append(nbytes)
        self.live[ptr] = nbytes
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        assert self.live.pop(ptr) == nbytes
        self.upstream.deallocate(ptr, nbytes, stream)


class Caching(Counting):
    """One that keeps what it gets back."""

    def __init__(self):
        super().__init__()
        self.kept = []

    @property
    def cached_bytes(self):
        return sum(nbytes for _, nbytes in self.kept)

    def deallocate(self, ptr, nbytes, stream):
        assert self.live.pop(ptr) == nbytes
        self.kept.append((ptr, nbytes))

    def trim(self, keep_bytes):
        while self.cached_bytes > keep_bytes:
            ptr, nbytes = self.kept.pop()
            self.upstream.deallocate(ptr, nbytes, 1)


# -- use_memory --------------------------------------------------------------------------------------------------------


def test_in_with_for_this_thread_alone(in_thread):
    mine = Counting()
    assert isinstance(mine, MemoryResource)
    with dm.use_memory(mine) as given:
        assert given is mine
        d = dm.to_device(np.arange(4.0))
        assert mine.asked == [32]
        in_thread(lambda: dm.zeros(100).tolist())
        assert mine.asked == [32]
    dm.zeros(5)
    assert mine.asked == [32]
    assert d.tolist() == [0, 1, 2, 3]
    d.free()
    assert mine.live == {}


def test_use_memory_holds_for_all_threads_from_the_call_on(in_thread):
    mine = Counting()
    scope = dm.use_memory(mine)
    try:
        d = dm.zeros(4)
        e = in_thread(lambda: dm.zeros(5))
        assert mine.asked == [32, 40]
    finally:
        with scope:  # entering takes the call back
            pass
    dm.zeros(6)
    assert mine.asked == [32, 40]
    d.free()
    e.free()
    assert mine.live == {}


def test_blocks_go_back_to_the_stack_that_made_them():
    a, b = Counting(), Counting()
    with dm.use_memory(a):
        from_a = dm.zeros(1)
        with dm.use_memory(b):
            from_b = dm.zeros(2)
            from_a.free()
            assert a.live == {}
            with dm.use_memory(a):
                again = dm.zeros(3)
        inner = dm.zeros(4)
    assert (a.asked, b.asked) == ([8, 24, 32], [16])
    del from_b, again, inner
    gc.collect()
    dm.trim()
    assert a.live == b.live == {}


def test_scopes_end_when_the_body_raises():
    mine = Counting()
    with pytest.raises(ZeroDivisionError), dm.use_memory(mine):
        raise ZeroDivisionError
    dm.zeros(3)
    assert mine.asked == []


def test_b6_everything_that_makes_device_memory_asks_the_resource(second):
    mine = Counting()
    host = np.arange(24.0).reshape(4, 6)
    far = dm.to_device(host, device=second)
    with dm.use_memory(mine):
        d = dm.to_device(host)
        made = [
            ("strided upload", lambda _: dm.to_device(host[::2, ::3])),
            ("fortran", lambda _: dm.to_device(host.T)),
            ("list", lambda _: dm.to_device([1, 2])),
            ("device_array", lambda _: dm.device_array(3)),
            ("like", lambda _: dm.device_array_like(host)),
            ("zeros", lambda _: dm.zeros(3)),
            ("full", lambda _: dm.full(3, 1)),
            ("copy", lambda d: d.copy()),
            ("reshape", lambda d: d.T.reshape(24)),
            ("ravel", lambda d: d.T.ravel()),
            ("overlap", lambda d: d[1:].copy_to_device(d[:-1])),
            ("across", lambda _: dm.to_device(far)),
            ("stream", lambda _: dm.to_device(host, stream=dm.default_stream())),
        ]
        for name, make in made:
            before = len(mine.asked)
            make(d)
            assert len(mine.asked) == before + 1, name
        before = len(mine.asked)
        for view in (d[1], d.T, d.reshape(24), d.view("i8"), d.bind(1)):
            view.copy_to_host()
        dm.zeros(0)
        dm.to_device(np.zeros((0, 3)))
        assert len(mine.asked) == before
    del d, made, view, make
    gc.collect()
    dm.trim()
    assert mine.live == {}


def test_never_asked_for_nothing():
    mine = Counting()
    with dm.use_memory(mine):
        for shape in (0, (0, 3), (3, 0)):
            dm.zeros(shape)
            dm.to_device(np.empty(shape)).copy()
            dm.device_array(shape).free()
    assert mine.asked == []


def test_use_memory_takes_a_name(need):
    with dm.use_memory("driver") as given:
        assert type(given) is DriverMemory
        assert dm.zeros(3).tolist() == [0, 0, 0]
    need("stream_ordered")
    with dm.use_memory(" stream_ordered ") as given:
        assert type(given) is StreamOrderedMemory
        assert dm.zeros(3).tolist() == [0, 0, 0]


def test_by_module_and_attribute():
    with dm.use_memory("devmem.memory:DriverMemory") as given:
        assert type(given) is DriverMemory


@pytest.mark.parametrize("name", ["nonsense", "", "driver:"])
def test_unknown_names_are_refused(name):
    with pytest.raises((dm.ConfigError, dm.PluginError), match=name or "''"):
        dm.use_memory(name)
    assert dm.zeros(2).tolist() == [0, 0]


@pytest.mark.parametrize("spelled", ["no_such_module:thing", "devmem.memory:nothing", "devmem.errors:__doc__"])
def test_what_cannot_be_loaded_is_refused_by_name(spelled):
    with pytest.raises((dm.PluginError, TypeError), match=r"not a memory resource|cannot be loaded|not callable"):
        dm.use_memory(spelled)


@pytest.mark.parametrize("thing", [object(), 5, None, DriverMemory, [1]], ids=repr)
def test_what_is_no_resource_is_refused(thing):
    with pytest.raises(dm.PluginError, match=r"not a memory resource: it needs allocate\(nbytes, stream\)"):
        dm.use_memory(thing)


@pytest.mark.parametrize("answer", [None, 0, -1, 1.5, "0x10", True])
def test_a_resource_that_returns_no_address_is_caught(answer):
    class Wrong(Counting):
        def allocate(self, nbytes, stream):
            return answer

    with (
        dm.use_memory(Wrong()),
        pytest.raises(dm.PluginError, match=r"returned .* for 24 bytes: an address is a positive int"),
    ):
        dm.device_array(3)


def test_a_resource_that_gives_one_address_twice_is_caught():
    class Wrong(Counting):
        def allocate(self, nbytes, stream):
            return next(iter(self.live), 0) or super().allocate(nbytes, stream)

    with dm.use_memory(Wrong()):
        d = dm.device_array(3)
        with pytest.raises(dm.PluginError, match=r"which it gave out before \(24 bytes\)"):
            dm.device_array(3)
        d.free()


class Planned(Counting):
    """One that returns the addresses of a list first; what is none of the driver's is not given back."""

    def __init__(self):
        super().__init__()
        self.planned = []

    def allocate(self, nbytes, stream):
        return self.planned.pop(0) if self.planned else super().allocate(nbytes, stream)


@pytest.mark.parametrize("make", [lambda below: below, dm.memory.Statistics])
@pytest.mark.parametrize(("shift", "nbytes"), [(10, 100), (-10, 20), (-10, 1000), (499, 1)])
def test_blocks_that_share_bytes_are_caught(make, shift, nbytes):
    below = Planned()
    with dm.use_memory(make(below)):
        others = [dm.device_array(8, "u1") for _ in range(5)]
        block = dm.device_array(500, "u1")
        below.planned = [block.ptr + shift]
        with pytest.raises(dm.PluginError, match=rf"some of which it gave out before \(500 bytes at {block.ptr:#x}\)"):
            dm.device_array(nbytes, "u1")
        del others[::2]
        dm.trim()
        assert dm.device_array(500, "u1").ptr not in (block.ptr, *(each.ptr for each in others))
        block.free()
        others += [dm.device_array(500, "u1") for _ in range(3)]  # its address again, perhaps


@pytest.fixture
def asked(device):
    if not device.opened().handle.checks_memory:
        pytest.skip(f"{device} cannot say what is its memory")


@pytest.mark.parametrize("make", [lambda below: below, dm.memory.Scrub, dm.memory.Statistics, PoolMemory])
@pytest.mark.parametrize("address", [4096, 1 << 47, "the host's", "too short"])
def test_a_resource_that_returns_no_memory_is_told_by_its_name(asked, make, address):
    below = Planned()
    with dm.use_memory(DriverMemory()):
        short = dm.device_array(64, "u1")
    host = np.zeros(100)
    below.planned = [{"the host's": host.ctypes.data, "too short": short.ptr}.get(address, address)]
    with dm.use_memory(make(below)):
        with pytest.raises(dm.PluginError, match=r"Planned object .* knows .* or was freed \(from .*test_memory"):
            dm.device_array(1 << 20, "u1")
        assert (dm.zeros(3).copy_to_host() == 0).all()
    dm.trim()


@pytest.mark.parametrize("make", [lambda below: below, dm.memory.Statistics, PoolMemory])
def test_an_address_that_is_not_aligned_is_told(device, make):
    below = Planned()
    with dm.use_memory(DriverMemory()):
        there = dm.device_array(4 << 20, "u1")
    below.planned = [there.ptr + device.info.alignment // 2]
    with dm.use_memory(make(below)):
        with pytest.raises(
            dm.PluginError, match=rf"Planned .* an address is a multiple of {device.info.alignment} \(from"
        ):
            dm.device_array(1 << 20, "u1")
        assert (dm.zeros(3).copy_to_host() == 0).all()
    dm.trim()


def test_a_block_that_its_resource_has_freed_by_itself_does_not_fail_each_trim(asked):
    below = Counting()
    with dm.use_memory(dm.memory.Scrub(below)):
        d = dm.device_array(1000, "u1")
        with d.device.entered():
            below.upstream.deallocate(d.ptr, 1000, 1)
        with pytest.raises(dm.BackendError):
            d.free()
        dm.trim()
        dm.zeros(3)


def test_a_resource_serves_one_device(second):
    mine = DriverMemory()
    with dm.use_memory(mine):
        pass
    with pytest.raises(dm.DevmemError, match="bound to a device already"):
        dm.use_memory(mine, second)


def test_of_another_device(device, second):
    mine = Counting()
    with dm.use_memory(mine, device=second):
        dm.zeros(3)
        assert mine.asked == []
        d = dm.to_device(np.zeros(3), device=second)
        assert mine.asked == [24]
    d.free()


def test_the_memory_manager_setting(with_settings):
    with_settings(MEMORY_MANAGER="driver")
    assert dm.zeros(3).tolist() == [0, 0, 0]
    with_settings(MEMORY_MANAGER="nonsense")
    with pytest.raises(dm.ConfigError, match="no memory resource is named 'nonsense'"):
        dm.zeros(3)
    with_settings(MEMORY_MANAGER=None)
    assert dm.zeros(3).tolist() == [0, 0, 0]


def test_an_unbound_resource_says_so():
    with pytest.raises(dm.DevmemError, match=r"not bound.*use_memory"):
        DriverMemory().allocate(10, 1)


# -- memory_info -------------------------------------------------------------------------------------------------------


def test_the_fields_through_a_life(still):
    dm.trim()
    start = dm.memory_info()
    assert start._fields == ("free", "total", "live", "pending", "cached", "host")
    assert start.host._fields == ("live", "pending", "cached")
    assert all(type(n) is int and n >= 0 for n in (*start[:5], *start.host))
    assert 0 < start.free <= start.total
    d = dm.device_array(MIB, "u1")
    views = [d[1:], d.T]
    assert dm.memory_info()[2:4] == (start.live + MIB, start.pending)
    with dm.defer_cleanup():
        del d
        assert dm.memory_info()[2:4] == (start.live + MIB, start.pending)
        views.clear()
        assert dm.memory_info()[2:4] == (start.live, start.pending + MIB)
        dm.trim()
        assert dm.memory_info()[2:4] == (start.live, start.pending + MIB)
    dm.trim()
    assert dm.memory_info()[2:4] == (start.live, start.pending)


def test_of_a_device_by_any_name(device, second):
    d = dm.to_device(np.zeros(MIB, "u1"), device=second)
    assert dm.memory_info(second) == dm.memory_info(str(second)) == second.memory_info()
    assert dm.memory_info(second).live >= MIB
    assert dm.memory_info() == dm.memory_info(device)
    d.free()


def test_cached_and_trim():
    mine = Caching()
    with dm.use_memory(mine):
        before = dm.memory_info()
        d, e = dm.device_array(1000, "u1"), dm.device_array(500, "u1")
        d.free()
        e.free()
        assert dm.memory_info()[2:5] == (before.live, before.pending, before.cached + 1500)
        dm.trim(1000)
        assert dm.memory_info().cached == before.cached + 1000
        dm.trim()
        assert dm.memory_info().cached == before.cached
        dm.trim(device=dm.current_device())
    assert mine.live == {}


def test_trim_drains_what_waits(recorded):
    dm.zeros(1)
    before = recorded.live().bytes
    for _ in range(5):
        dm.device_array(1000, "u1")
    assert dm.memory_info().pending > 0
    dm.trim()
    assert recorded.live().bytes <= before
    assert dm.memory_info().pending == 0


@pytest.mark.parametrize("stack", [None, "stream_ordered", "pool", "limit:1GiB,pool"])
def test_one_trim_of_an_idle_device_leaves_nothing_cached(need, stack):
    if stack == "stream_ordered":
        need("stream_ordered")
    gc.collect()
    dm.trim()
    live = dm.memory_info().live
    with dm.use_memory(stack) if stack else contextlib.nullcontext():
        for _ in range(5):  # what is freed behind other streams is given back when its own has passed that
            streams = [dm.stream(non_blocking=number % 2 == 0) for number in range(4)]
            for number in range(40):
                used, other = dm.zeros(65536, stream=streams[number % 4]), dm.zeros(65536)
                other.fill(1, stream=streams[(number + 1) % 4])
                cycle = [used, other]
                cycle.append(cycle)
                del used, other, cycle
            del streams
            dm.synchronize()
            gc.collect()
            dm.trim()
            assert dm.memory_info()[2:5] == (live, 0, 0)


@pytest.mark.parametrize("held_by", ["its own stream", "another stream"])
def test_trim_does_not_wait_for_a_stream_that_is_held(device, need, hold, held_by):
    need("hold")
    if "stream_ordered" not in device.info.capabilities or device.info.default_memory:
        pytest.skip("plain memory is given back when the device is idle")
    gc.collect()
    dm.trim()
    live = dm.memory_info().live
    with dm.use_memory("stream_ordered"):
        slow, quick = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
        block = dm.zeros(65536, stream=slow if held_by == "its own stream" else quick)
        dm.synchronize()
        with hold(slow) as latch:
            block.fill(1, stream=slow)
            del block
            dm.trim()
            assert not slow.query()
            latch.release()
        dm.synchronize()
        dm.trim()
        assert dm.memory_info()[2:5] == (live, 0, 0)


# -- defer_cleanup -----------------------------------------------------------------------------------------------------


def test_nothing_is_freed_within(recorded):
    with dm.defer_cleanup():
        before = recorded.calls["free"] + recorded.calls["free_async"]
        for _ in range(50):
            dm.device_array(MIB, "u1")
        d = dm.zeros(3)
        d.free()
        with pytest.raises(dm.ClosedError):
            d.tolist()
        dm.trim()
        dm.synchronize()
        gc.collect()
        assert recorded.calls["free"] + recorded.calls["free_async"] == before
        assert dm.memory_info().pending == 50 * MIB + 24
    assert dm.memory_info().pending == 0  # 51 blocks are more than the 10 that may wait


def test_leaving_the_outermost_looks_at_the_thresholds(recorded):
    dm.trim()
    with dm.defer_cleanup():
        with dm.defer_cleanup():
            for _ in range(11):
                dm.device_array(100, "u1")
        assert dm.memory_info().pending == 1100
    assert dm.memory_info().pending == 0
    with dm.defer_cleanup():
        for _ in range(3):
            dm.device_array(100, "u1")
    assert dm.memory_info().pending == 300  # below the thresholds: nothing has to go
    dm.trim()


def test_it_ends_when_the_body_raises(recorded):
    with pytest.raises(ZeroDivisionError), dm.defer_cleanup():
        for _ in range(20):
            dm.device_array(100, "u1")
        raise ZeroDivisionError
    assert dm.memory_info().pending == 0


def test_it_counts_for_every_thread(recorded, in_thread):
    with dm.defer_cleanup():
        in_thread(lambda: [dm.device_array(100, "u1").size for _ in range(20)])
        assert dm.memory_info().pending == 2000
    dm.trim()


def test_one_object_may_be_used_again():
    deferred = dm.defer_cleanup()
    for _ in range(2):
        with deferred, deferred:
            dm.zeros(3)
    dm.trim()
    assert dm.memory_info().pending == 0


# -- thresholds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_count_of_blocks_that_may_wait(with_settings, count):
    with_settings(MAX_PENDING_DEALLOCS_COUNT=str(count))
    dm.zeros(1).free()
    for i in range(count):
        dm.device_array(100, "u1")
        assert dm.memory_info().pending == 100 * (i + 1)
    dm.device_array(100, "u1")
    dm.device_array(1, "u1").free()  # a safe point
    assert dm.memory_info().pending == 0


def test_the_share_of_memory_that_may_wait(with_settings):
    total = dm.memory_info().total
    with_settings(MAX_PENDING_DEALLOCS_COUNT="1000", MAX_PENDING_DEALLOCS_RATIO=f"{4.5 * MIB / total:.20f}")
    for i in range(4):
        dm.device_array(MIB, "u1")
        assert dm.memory_info().pending == MIB * (i + 1)
    dm.device_array(MIB, "u1")
    dm.device_array(1, "u1").free()
    assert dm.memory_info().pending == 0


def test_what_waits_is_counted_once(with_settings):
    """A safe point looks at what was dropped of late only, however much waits."""
    with_settings(MAX_PENDING_DEALLOCS_COUNT="1000")
    stream, queue = dm.stream(), dm.current_device().opened().free_queue
    for _ in range(100):
        dm.device_array(100, "u1", stream=stream)
    assert dm.memory_info().pending == 10_000
    assert len(queue.dropped) < 20


@pytest.mark.parametrize(
    "safe_point",
    [
        lambda array: array.copy_to_host(),
        lambda array: array.copy_to_device(np.zeros(4)),
        lambda array: dm.copy_async(array, np.zeros(4)),
        lambda array: dm.zeros(4),
        lambda array: dm.stream(),
    ],
    ids=["copy_to_host", "copy_to_device", "copy_async", "allocation", "stream"],
)
def test_a_share_of_nothing_frees_at_the_next_call(with_settings, safe_point):
    with_settings(MAX_PENDING_DEALLOCS_RATIO="0")
    array = dm.zeros(4)
    dm.device_array(100, "u1")
    kept = safe_point(array)
    assert dm.memory_info().pending == 0
    del kept


def test_the_default_thresholds_of_pending_frees(with_settings):
    with_settings(MAX_PENDING_DEALLOCS_COUNT=None, MAX_PENDING_DEALLOCS_RATIO=None)
    known = {s.name: s.value for s in dm.settings()}
    assert known["DEVMEM_MAX_PENDING_DEALLOCS_COUNT"] == 10
    assert known["DEVMEM_MAX_PENDING_DEALLOCS_RATIO"] == 0.2
    for i in range(10):
        dm.device_array(100, "u1")
        assert dm.memory_info().pending == 100 * (i + 1)


# -- out of memory -----------------------------------------------------------------------------------------------------


#: A size in the units of people, and the number of bytes behind it.
SIZE = r"[0-9.]+ [KMGT]iB \(([0-9,]+) bytes\)"
BYTES = r"\([0-9,]+ bytes\)"


def too_much():
    return dm.memory_info().total * 4 // 3 + MIB


def test_the_message_has_every_number(device):
    asked = too_much()
    kept = dm.device_array(12345, "u1")
    with pytest.raises(dm.OutOfMemory) as caught:
        dm.device_array(asked, "u1")
    error = caught.value
    found = re.search(
        rf"out of memory on {device}: asked for {SIZE} \(.+\); the device has {SIZE} free of {SIZE}, "
        rf"cached .*, pending .*, live {SIZE} in (\d+) block",
        str(error),
    )
    assert found, str(error)
    assert found[1] == f"{asked:,}"
    assert str(error).endswith(
        "memory_snapshot(record=True) shows from then on which lines hold it, devmem.spill moves arrays away"
    )
    assert int(found[4].replace(",", "")) >= 12345
    assert (error.requested, f"{error.free:,}", error.limit) == (asked, found[2], None)
    assert isinstance(error, MemoryError)
    assert isinstance(error, dm.BackendError)
    assert error.backend == device.backend
    assert error.call
    assert error.name
    kept.free()


def test_of_page_locked_memory_it_tells_of_the_host(device, need_kind):
    need_kind("pinned")
    with dm.use_memory("limit:1MiB,pinned", kind="pinned"):
        kept = dm.pinned_array(4096, "u1")
        on_device = dm.device_array(12345, "u1")
        with pytest.raises(dm.OutOfMemory) as caught:
            dm.pinned_array(2 * MIB, "u1")
    found = re.search(
        rf"out of page-locked host memory for {device}: the limit is {SIZE}, .* \(Limit\); asked for {SIZE}; .*"
        rf"the host has {SIZE}, of which devmem holds cached 0 bytes, pending 0 bytes, live {SIZE} in (\d+) block",
        str(caught.value),
    )
    assert found, str(caught.value)
    assert int(found[3].replace(",", "")) > 2 * MIB
    assert (found[4], found[5]) == (f"{kept.nbytes:,}", "1"), "the device's memory is none of it"
    assert (caught.value.requested, caught.value.free, caught.value.limit) == (2 * MIB, MIB - kept.nbytes, MIB)
    on_device.free()


@pytest.mark.parametrize("stack", ["limit:1MiB,driver", "pool:1MiB,driver", "statistics,limit:1MiB,pool"])
def test_the_limit_that_was_reached_comes_first(device, stack):
    with dm.use_memory(stack), pytest.raises(dm.OutOfMemory) as caught:
        dm.device_array(3 * MIB, "u1")
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error).startswith(f"out of memory on {device}: the limit is 1.0 MiB (1,048,576 bytes), ")
    assert str(error).count("3.0 MiB") == 1, "what was asked for is said once"
    assert f"; all use_memory({stack!r}) share this stack; the device has " in str(error)
    assert (error.requested, error.free, error.limit) == (3 * MIB, MIB, MIB)


def test_what_is_left_below_a_limit_is_in_the_message(device):
    with dm.use_memory(dm.memory.Limit(None, 4 * MIB)), pytest.raises(dm.OutOfMemory) as caught:
        kept = dm.device_array(3 * MIB, "u1")
        dm.device_array(2 * MIB, "u1")
    assert re.search(
        rf"the limit is 4\.0 MiB {BYTES}, of which 3\.0 MiB {BYTES} are in use and 1\.0 MiB {BYTES} are left \(Limit\); "
        rf"asked for 2\.0 MiB {BYTES}; the device has ",
        str(caught.value),
    ), str(caught.value)
    assert caught.value.free == MIB
    assert "share" not in str(caught.value)
    kept.free()


def test_what_a_pool_asks_for_is_told_apart_from_what_it_was_asked_for():
    with dm.use_memory(dm.memory.PoolMemory(dm.memory.Limit(None, MIB))), pytest.raises(dm.OutOfMemory) as caught:
        dm.device_array(2 * MIB + 1, "u1")
    message = str(caught.value)
    assert re.search(rf"; asked for 2\.0 MiB \(2,097,153 bytes\), and then for 2\.[0-9] MiB {BYTES}; ", message), (
        message
    )


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (lambda: dm.memory.Limit("4GiB", PoolMemory()), "'4GiB' .*: Limit(upstream, max_bytes)"),
        (lambda: dm.memory.PoolMemory("4GiB"), "'4GiB' .*: PoolMemory(upstream, max_bytes=...)"),
        (lambda: dm.memory.FailNth(3), "3 .*: FailNth(upstream, n, repeat=..., error=...)"),
        (lambda: dm.memory.Log(Path("run.log")), "Path('run.log') .*: Log(upstream, path, frames=...)"),
        (lambda: dm.memory.OnOutOfMemory(lambda nbytes: False), "<function .*: OnOutOfMemory(upstream, callback)"),
    ],
    ids=["Limit", "PoolMemory", "FailNth", "Log", "OnOutOfMemory"],
)
def test_an_adaptor_takes_the_resource_below_it_first(make, call):
    what, shown = call.split(" .*: ")
    with pytest.raises(
        dm.PluginError, match=f"{re.escape(what)}.* is not a .*, which comes first: {re.escape(shown)}$"
    ):
        make()


def test_memory_ran_out_in_no_line_of_devmem():
    """What the cause's traceback shows is the program's, or a plugin's: here a resource's, and of a Limit nothing."""

    class Full(Counting):
        def allocate(self, nbytes, stream):
            raise MemoryError("no more")

    for stack, names in ((Full(), ["allocate"]), (dm.memory.Limit(None, 10), [])):
        with dm.use_memory(stack), pytest.raises(dm.OutOfMemory) as caught:
            dm.zeros(300)
        cause = caught.value.__cause__
        assert [line.name for line in traceback.extract_tb(cause.__traceback__)] == names
        lines = [line.line for line in traceback.extract_tb(caught.value.__traceback__)]
        assert not [line for line in lines if "= map(" in line], lines


def test_page_locked_memory_is_the_hosts(device, need_kind):
    """It takes none of what the driver says is free on the device, so it is counted apart."""
    need_kind("pinned")
    dm.trim()
    before = dm.memory_info()
    arrays = [dm.pinned_array(MIB, "u1"), dm.device_array(1000, "u1")]
    if "mapped" in device.info.memory_kinds:
        arrays.append(dm.mapped_array(MIB, "u1"))
    info = dm.memory_info()
    on_host = sum(array.nbytes for array in arrays) - 1000
    assert (info.live - before.live, info.host.live - before.host.live) == (1000, on_host)
    assert f"host.live={exact_size(info.host.live)}" in repr(info)
    assert f"<td>host.live</td><td>{exact_size(info.host.live)}</td>" in info._repr_html_()
    with dm.defer_cleanup():
        arrays.clear()
        gc.collect()
        dropped = dm.memory_info()
        assert (dropped.pending - before.pending, dropped.host.pending - before.host.pending) == (1000, on_host)
    dm.synchronize()  # what was freed in stream order can be trimmed when its stream has passed
    dm.trim()
    assert dm.memory_info()[2:] == before[2:]


def test_what_a_pinned_pool_keeps_is_the_hosts(need_kind):
    need_kind("pinned")
    with dm.use_memory("pinned_pool", kind="pinned"):
        dm.pinned_array(1000, "u1")
        gc.collect()
        dm.synchronize()
        before = dm.memory_info()
        dm.trim(keep_bytes=1 << 30)
        info = dm.memory_info()
        assert info.host.cached >= 1000
        assert info.cached == before.cached
        dm.trim()
        assert dm.memory_info().host.cached == 0


def test_the_next_allocation_works():
    for _ in range(3):
        with pytest.raises(dm.OutOfMemory):
            dm.device_array(too_much(), "u1")
        assert dm.zeros(3).tolist() == [0, 0, 0]


def test_every_verb_that_allocates_raises_it_and_leaves_nothing(still):
    before = still.memory_info()
    asked = too_much()
    for make in (
        lambda: dm.device_array(asked, "u1"),
        lambda: dm.zeros(asked, "u1"),
        lambda: dm.full(asked, 1, "u1"),
        lambda: dm.device_array_like(np.broadcast_to(np.uint8(1), (asked,))),
        lambda: dm.to_device(np.broadcast_to(np.uint8(1), (asked,))),
    ):
        with pytest.raises(dm.OutOfMemory, match=rf"asked for .* \({asked:,} bytes\)"):
            make()
    assert still.memory_info()[2:4] == (before.live, 0)


def test_a_failing_allocation_drains_first(recorded):
    dm.trim()
    for _ in range(5):
        dm.device_array(1000, "u1")
    assert dm.memory_info().pending == 5000
    with pytest.raises(dm.OutOfMemory):
        dm.device_array(too_much(), "u1")
    assert dm.memory_info().pending == 0


def test_inside_defer_cleanup_the_message_says_how_much_is_deferred(recorded):
    dm.trim()
    with dm.defer_cleanup():
        for _ in range(3):
            dm.device_array(1000, "u1")
        with pytest.raises(
            dm.OutOfMemory,
            match=r"pending 2\.9 KiB .*2\.9 KiB \(3,000 bytes\) cannot be freed inside defer_cleanup\(\): leave it",
        ):
            dm.device_array(too_much(), "u1")
        assert dm.memory_info().pending == 3000
    dm.trim()


def test_a_resource_that_fails_once_is_asked_again():
    class Flaky(Counting):
        failures = 1

        def allocate(self, nbytes, stream):
            if self.failures:
                self.failures -= 1
                raise MemoryError("not now")
            return super().allocate(nbytes, stream)

    mine = Flaky()
    with dm.use_memory(mine):
        assert dm.zeros(3).tolist() == [0, 0, 0]
        mine.failures = 2
        with pytest.raises(dm.OutOfMemory, match=r"asked for 24 bytes.*not now"):
            dm.zeros(3)


def test_another_error_of_a_resource_is_not_swallowed():
    class Broken(Counting):
        def allocate(self, nbytes, stream):
            raise ZeroDivisionError("inside the plugin")

    with dm.use_memory(Broken()), pytest.raises(ZeroDivisionError, match="inside the plugin"):
        dm.zeros(3)
    assert dm.zeros(3).tolist() == [0, 0, 0]


# -- transfer_stats ----------------------------------------------------------------------------------------------------


def test_copies_are_counted_by_path():
    dm.transfer_stats(reset=True)
    d = dm.to_device(np.zeros(10))
    d.copy_to_host()
    stats = dm.transfer_stats()
    assert stats["h2d direct"]["copies"] == 1
    assert stats["h2d direct"]["bytes"] == 80
    assert stats["d2h direct"]["bytes"] == 80
    assert dm.transfer_stats(reset=True) == stats
    assert dm.transfer_stats() == {}


# -- nothing is lost -----------------------------------------------------------------------------------------------------


def test_looking_at_the_memory_does_not_stop_its_being_freed():
    """A program that logs memory_info() in every step keeps no more waiting than one that does not."""
    waiting = []
    for _ in range(100):
        dm.device_array(4096, "u1")
        waiting.append(dm.memory_info().pending)
    most = dm.current_device().opened().free_queue.max_count + 2
    assert max(waiting) <= most * 4096


class Raising(Counting):
    """A resource that gives its blocks back, and raises all the same."""

    def deallocate(self, ptr, nbytes, stream):
        super().deallocate(ptr, nbytes, stream)
        raise KeyError(ptr)


def test_a_resource_that_raises_does_not_hide_the_error_of_a_copy(monkeypatch):
    resource = Raising()
    with dm.use_memory(resource):
        copies = dm.current_device().opened().copies

        def refused(*arguments):
            raise dm.LayoutError("the copy's own error")

        monkeypatch.setattr(copies, "upload", refused)
        with pytest.raises(dm.LayoutError, match="the copy's own error"):
            dm.to_device(np.arange(3))
    assert not resource.live


@pytest.mark.parametrize("address", [1 << 64, 1 << 70, (1 << 64) - 8])
def test_a_block_ends_within_the_addresses_that_there_are(address):
    class Far(Counting):
        def allocate(self, nbytes, stream):
            return address

    with dm.use_memory(Far()), pytest.raises(dm.PluginError, match=r"below 2\*\*64"):
        dm.device_array(64, "u1")


def test_running_out_says_how_to_learn_who_holds_most():
    with dm.use_memory(dm.memory.Statistics(dm.memory.Limit(DriverMemory(), MIB))):
        kept = dm.device_array(MIB - 4096, "u1")
        with pytest.raises(dm.OutOfMemory, match=r"Statistics\(owners=True\) names the lines"):
            dm.device_array(MIB - 4096, "u1")
        assert kept.nbytes


@pytest.mark.parametrize("make", [DriverMemory, PoolMemory, lambda: dm.memory.Statistics(DriverMemory())])
@pytest.mark.parametrize("end", [dm.reset, dm.close])
def test_a_stack_of_a_device_that_was_reset_serves_the_next(make, end):
    stack = make()
    for _ in range(3):
        with dm.use_memory(stack):
            array, dropped = dm.to_device(np.arange(3)), dm.zeros(1000)
            dropped.free()
            with dm.use_memory(stack):
                other = dm.zeros(5)
            assert dm.memory_info().live == 24 + 40
            if isinstance(stack, dm.memory.Statistics):
                assert (stack.current_count, stack.total_count) == (2, 3)
            end()
            with pytest.raises(dm.ClosedError):
                array.copy_to_host()
        del array, other
        assert dm.memory_info().live == 0


@pytest.mark.parametrize(
    "make", [dm.memory.Guard, dm.memory.Scrub, lambda below: dm.memory.Limit(below, MIB), PoolMemory]
)
def test_what_a_stack_knew_ends_with_its_device(make):
    """Also where it is wrong, as an interrupt may leave it."""
    stack = make(dm.memory.Statistics(DriverMemory()))
    with dm.use_memory(stack), dm.zeros(1000).device.entered():
        stack.allocate(100_000, 1)  # what nobody gives back
    dm.reset()
    with dm.use_memory(stack):
        array = dm.zeros(10)
        assert stack.cached_bytes < 3 * MIB
        assert getattr(stack, "current_bytes", 80) == 80
        assert stack.upstream.current_count == 1
        array.free()
    dm.trim()
    assert (stack.cached_bytes, stack.upstream.current_bytes) == (0, 0)


def test_a_stack_whose_memory_is_still_in_use_is_not_bound_to_the_next_device(need_kind):
    need_kind("pinned")
    stack = dm.memory.PinnedPool()
    with dm.use_memory(stack, kind="pinned"):
        array = dm.pinned_array(1000)
    dm.reset()
    with pytest.raises(
        dm.ClosedError, match=r"reset or closed, and some of its memory is still in use \(drop it and call trim"
    ):
        dm.use_memory(stack, kind="pinned")
    del array
    gc.collect()
    dm.trim()
    with dm.use_memory(stack, kind="pinned"):
        assert dm.pinned_array(3).nbytes == 24


@pytest.mark.parametrize("make", [lambda below: below, dm.memory.Statistics, PoolMemory])
def test_a_stack_with_a_part_of_a_third_party_is_not_bound_to_the_next_device(make):
    """It may keep addresses of the device that was closed."""
    stack = make(Counting())
    with dm.use_memory(stack):
        dm.zeros(1000).free()
    dm.reset()
    with pytest.raises((dm.ClosedError, dm.DevmemError), match="make a new"):
        dm.use_memory(stack)


def test_a_driver_that_cannot_tell_what_is_memory_loses_no_block(asked, monkeypatch):
    below = Counting()
    with dm.use_memory(below):
        driver = dm.zeros(1).device.opened().handle.driver

        def refuses(ptr):
            raise dm.BackendError("cuMemGetAddressRange: 999")

        monkeypatch.setattr(driver, "pointer_range", refuses, raising=False)
        array = dm.device_array(100, "u1")
        array.free()
    dm.trim()
    assert not below.live


def test_memory_info_counts_while_other_threads_drop(monkeypatch):
    """What is dropped after the live blocks were counted is pending, and not less than nothing is live."""
    queue = dm.current_device().opened().free_queue

    class FreedMeanwhile(deque):
        def __iter__(self):
            found = list(super().__iter__())
            for item in found:
                item.release(set())
            return iter(found)

    dm.trim()
    dm.device_array(1 << 20, np.uint8)
    with monkeypatch.context() as patch:
        patch.setattr(queue, "dropped", FreedMeanwhile(queue.dropped))
        info = dm.memory_info()
        assert (info.pending >= 1 << 20, min(info[:5]) >= 0) == (True, True)
    dm.trim()
