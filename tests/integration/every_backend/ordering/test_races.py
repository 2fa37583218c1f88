"""``DEVMEM_RACES=1``: each planted race is found, with both lines and both streams; the same work in order is not reported."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import standin_compiler

import devmem as dm
from devmem.testing import hold
from devmem.toolkit.races import detector

N = 4096


@pytest.fixture
def world(with_settings, need, need_kind):
    """Two streams that know nothing of each other, and memory on both sides; races are looked for."""
    with_settings(RACES="1")
    need("hold")
    need_kind("pinned")
    made = SimpleNamespace(s=dm.stream(non_blocking=True), t=dm.stream(non_blocking=True))
    made.d, made.e = dm.zeros((64, 64), np.uint8), dm.zeros((64, 64), np.uint8)
    made.host, made.out = dm.pinned_array((64, 64), np.uint8), dm.pinned_array((64, 64), np.uint8)
    dm.synchronize()
    detector.reports.clear()
    detector._told.clear()
    return made


def found(world, first, second, *between):
    """The races of two pieces of work, the first of which is held back; ``between`` is done between them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dm.DevmemWarning)
        with hold(world.s) as latch:
            first(world)
            for each in between:
                each(world)
            second(world)
            latch.release()
        dm.synchronize()
    races = list(detector.reports)
    detector.reports.clear()
    detector._told.clear()
    return races


def wait(w):
    w.t.wait(w.s)


WRITES = {
    "upload": lambda w, on: w.d.copy_to_device(w.host, stream=on),
    "fill": lambda w, on: w.d.fill(1, stream=on),
    "fill of a view": lambda w, on: w.d[3:9].fill(1, stream=on),
    "copy on the device": lambda w, on: w.d.copy_to_device(w.e, stream=on),
    "pitched copy": lambda w, on: dm.copy_pitched(
        w.d, w.host, 16, 16, dst_pitch=64, src_pitch=64, dst_offset=192, stream=on
    ),
}
READS = {
    "download": lambda w, on: w.d.copy_to_host(w.out, stream=on),
    "download of a view": lambda w, on: w.d[2:5].copy_to_host(w.out[2:5], stream=on),
    "copy on the device": lambda w, on: dm.zeros((64, 64), np.uint8, stream=on).copy_to_device(w.d, stream=on),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("first", ["write", "read"])
def test_a_write_and_a_read_race(world, write, read, first):
    """Thirty planted races."""
    one, other = (WRITES[write], READS[read]) if first == "write" else (READS[read], WRITES[write])
    races = found(world, lambda w: one(w, w.s), lambda w: other(w, w.t))
    assert races
    for race in races:
        assert (race.first.writes, race.second.writes) == ((True, False) if first == "write" else (False, True))
        assert __file__ in race.first.site
        assert __file__ in race.second.site
        assert f"{world.s.handle:#x}" in race.first.stream
        assert f"{world.t.handle:#x}" in race.second.stream
        assert "stream.wait(other)" in str(race)
    assert found(world, lambda w: one(w, w.s), lambda w: other(w, w.t), wait) == []


@pytest.mark.parametrize("one", WRITES)
@pytest.mark.parametrize("other", WRITES)
def test_two_writes_race(world, one, other):
    assert found(world, lambda w: WRITES[one](w, w.s), lambda w: WRITES[other](w, w.t))
    assert found(world, lambda w: WRITES[one](w, w.s), lambda w: WRITES[other](w, w.t), wait) == []


def fill(on, value=1):
    return lambda w: w.d.fill(value, stream=getattr(w, on))


def early_event(w):
    w.event = w.s.record()
    w.d.fill(2, stream=w.s)


def event_of_the_other(w):
    w.t.wait(w.t.record())


def wrong_waiter(w):
    w.s.wait(w.t)


def rerecorded(w):
    event = w.s.record()
    event.record(w.t)
    w.t.wait(event)


PLANTED = {
    "an event that was recorded before the access": (early_event, fill("t"), lambda w: w.t.wait(w.event)),
    "an event of the stream itself": (fill("s"), fill("t"), event_of_the_other),
    "the first waits for the second": (fill("s"), fill("t"), wrong_waiter),
    "an event that was recorded again elsewhere": (fill("s"), fill("t"), rerecorded),
    "an event that nothing waits for": (fill("s"), fill("t"), lambda w: w.s.record()),
    "a third stream waits": (fill("s"), fill("t"), lambda w: dm.stream(non_blocking=True).wait(w.s)),
    "the legacy stream, which a non-blocking one ignores": (fill("s"), lambda w: w.d.fill(1, stream=1)),
    "the per-thread stream, which a non-blocking one ignores": (fill("s"), lambda w: w.d.fill(1, stream=2)),
    "host memory that a download still writes": (
        lambda w: w.d.copy_to_host(w.out, stream=w.s),
        lambda w: w.e.copy_to_device(w.out, stream=w.t),
    ),
    "host memory that an upload still reads": (
        lambda w: w.d.copy_to_device(w.host, stream=w.s),
        lambda w: w.e.copy_to_host(w.host, stream=w.t),
    ),
    "two downloads into one array": (
        lambda w: w.d.copy_to_host(w.out, stream=w.s),
        lambda w: w.e.copy_to_host(w.out, stream=w.t),
    ),
    "a background copy": (lambda w: dm.copy_async(w.host, w.d, stream=w.s), fill("t")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_an_edge_that_is_missing_or_wrong(world, name):
    first, second, *between = PLANTED[name]
    assert found(world, first, second, *between)


def through_a_third(w):
    third = dm.stream(non_blocking=True)
    third.wait(w.s)
    w.t.wait(third)


IN_ORDER = {
    "an event": lambda w: w.t.wait(w.s.record()),
    "a third stream between": through_a_third,
    "the other half": None,
    "columns between columns": None,
    "two reads": None,
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_is_in_order_or_apart_is_not_reported(world, name):
    first, second, between = fill("s"), fill("t"), [IN_ORDER[name]]
    if name == "the other half":
        first, second, between = (lambda w: w.d[:32].fill(1, stream=w.s)), (lambda w: w.d[32:].fill(1, stream=w.t)), []
    elif name == "columns between columns":
        copy = {"src_pitch": 64, "dst_pitch": 64}
        first = lambda w: dm.copy_pitched(w.d, w.host, 32, 64, **copy, stream=w.s)  # noqa: E731
        second = lambda w: dm.copy_pitched(w.d, w.host, 32, 64, **copy, dst_offset=32, stream=w.t)  # noqa: E731
        between = []
    elif name == "two reads":
        first, second = (
            (lambda w: w.d.copy_to_host(w.out, stream=w.s)),
            (lambda w: w.d.copy_to_host(w.host, stream=w.t)),
        )
        between = []
    assert found(world, first, second, *between) == []


@pytest.fixture
def replayed(world, need):
    """The same with a plan of its own stream `p`: it fills `d`, and records the event `done` behind that."""
    need("graphs")
    world.p = dm.stream(non_blocking=True)
    world.done = dm.Event()
    with dm.capture(world.p) as plan:
        world.d.copy_to_device(world.host, stream=world.p)
        world.done.record(world.p)
    world.plan = plan
    yield world
    dm.synchronize()
    plan.close()


def replay(w):
    w.plan.replay()


REPLAYED = {
    "it writes what is written elsewhere": (fill("s"), replay),
    "it reads what is written elsewhere": (lambda w: w.e.copy_to_host(w.host, stream=w.s), replay),
}


@pytest.mark.parametrize("name", REPLAYED)
def test_what_a_plan_does_is_looked_at_whenever_it_is_replayed(replayed, name):
    first, second = REPLAYED[name]
    assert found(replayed, first, second)
    assert found(replayed, first, second), "again"
    assert found(replayed, first, second, lambda w: w.p.wait(w.s)) == []


def test_an_event_of_a_plan_orders_what_waits_for_it(replayed):
    """What comes behind a replay races with it, unless it waits for the event that the plan records."""

    def held(w):
        w.p.wait(w.s)  # behind the latch: the host finds nothing of it complete
        replay(w)

    assert found(replayed, held, fill("t"))
    assert found(replayed, held, fill("t"), lambda w: w.t.wait(w.done)) == []


def test_a_replay_that_is_refused_for_a_race_leaves_no_access(replayed):
    w = replayed
    with warnings.catch_warnings():
        warnings.simplefilter("error", dm.DevmemWarning)
        with hold(w.s) as latch:
            w.d.fill(1, stream=w.s)
            with pytest.raises(dm.DevmemWarning, match="not ordered behind"):
                replay(w)
            w.e.copy_to_host(w.host, stream=w.t)  # what the plan would have read
            latch.release()
    dm.synchronize()


@dm.kernel
def idle(array):
    """nothing"""


@pytest.fixture
def compiler(world, device):
    """One that compiles nothing: what a kernel was given for is told where it is launched."""
    with standin_compiler.standing_in(device.backend) as found:
        yield found


@pytest.mark.parametrize("hint", [dm.In, dm.Out, dm.InOut])
def test_a_kernel_reads_and_writes_what_it_was_given_for(world, compiler, hint):
    def launch(on):
        return lambda w: idle[1, 1, getattr(w, on)](hint(w.d))

    def download(w):
        w.d.copy_to_host(w.out, stream=w.t)

    writes = hint is not dm.In
    assert found(world, fill("s"), launch("t"))
    assert found(world, fill("s"), launch("t"), wait) == []
    assert bool(found(world, launch("s"), download)) is writes
    assert found(world, launch("s"), download, wait) == []
    # Nothing is said of rows that lie apart.
    assert found(world, lambda w: idle[1, 1, w.s](hint(w.d[:, 3:])), download) == []


def test_the_host_that_waits_orders_all(world):
    world.d.fill(1, stream=world.s)
    world.s.synchronize()
    world.d.fill(2, stream=world.t)
    event = world.t.record()
    event.synchronize()
    world.d.fill(3, stream=world.s)
    dm.synchronize()
    world.d.fill(4, stream=world.t)
    dm.synchronize()
    assert detector.reports == []


def test_a_pool_hands_memory_on_in_order(world):
    with dm.use_memory("pool"):
        for stream in (world.s, world.t) * 5:
            array = dm.device_array(N, np.uint8, stream=stream)
            array.fill(1, stream=stream)
            array.free()
    dm.synchronize()
    assert detector.reports == []


def test_memory_that_is_freed_under_another_stream_is_a_race_and_declared_it_is_none(world, device):
    """devmem does not know of the work by the driver's own call."""

    def use(w, declared):
        array = dm.device_array(N, np.uint8, stream=w.t)
        w.s.wait(w.t)
        with device.entered() as driver:
            driver.fill(array.ptr, 1, 1, N, w.s.handle)
        if declared:
            array.record_stream(w.s)
        return array

    with dm.use_memory("pool"):
        for declared in (False, True):
            races = found(
                world,
                lambda w, declared=declared: setattr(w, "array", use(w, declared)),
                lambda w: (w.array.free(), dm.device_array(N, np.uint8, stream=w.t).fill(2, stream=w.t)),
            )
            assert bool(races) is not declared


def test_it_is_a_warning_where_the_second_access_is_made(world):
    with hold(world.s) as latch:
        world.d.fill(1, stream=world.s)
        with pytest.warns(
            dm.DevmemWarning, match=r"race at 0x[0-9a-f]+ \(4\.0 KiB \(4,096 bytes\)\): a fill on the stream"
        ) as told:
            [world.d.fill(2, stream=world.t) for _ in range(3)]
        assert len(told) == 1, "once for the two lines"
        latch.release()
    dm.synchronize()


@pytest.mark.races("it is about the setting")
def test_without_the_setting_the_driver_is_the_backends(device):
    assert type(device.driver()).__module__ != "devmem.toolkit.race_checked_driver"


def test_a_file_races_like_any_copy(world, tmp_path):
    """Also on a backend that reads files past the driver."""
    np.save(tmp_path / "a.npy", np.ones(1 << 21, np.uint8))
    large = dm.load(tmp_path / "a.npy")
    dm.load(tmp_path / "a.npy", to=large, stream=world.t)

    def load(w):
        dm.load(tmp_path / "a.npy", to=large, stream=w.t)

    dm.synchronize()
    assert found(world, lambda w: large.fill(1, stream=w.s), load)
    assert found(world, lambda w: large.fill(1, stream=w.s), load, wait) == []
