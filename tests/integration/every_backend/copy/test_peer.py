"""From one device to another of the same backend: any layout, in order on both sides, in bounded memory."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waits import blocked, patience, together

import devmem as dm
from devmem._core.copy import peer
from devmem._core.copy.staging.blocks import tiles
from devmem._core.telemetry.copy_statistics import CopyStatistics

SLOT, SLOTS = 1024, 3
DATA = np.random.default_rng(1).integers(0, 256, (12, 20, 30), np.uint8).view("i2")
LAYOUTS = {
    "whole": lambda a: a,
    "turned": lambda a: a.transpose(2, 0, 1),
    "axes": lambda a: a.transpose(1, 0, 2),
    "rows": lambda a: a[::2, 1:],
    "columns": lambda a: a[..., ::3],
    "reversed": lambda a: a[::-1, :, ::-2],
    "new axes": lambda a: a[:, None, :, :, None],
}


@pytest.fixture(params=["peer", "by the host"])
def way(request, with_settings, second, need_kind, monkeypatch):
    """Two devices, the first of which reaches the other's memory, or not; everything large passes through small slots."""
    need_kind("pinned")
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(SLOT), STAGING_SLOTS=str(SLOTS), STAGING_THREADS="2")
    if request.param == "by the host":
        apart(monkeypatch, dm.current_device(), second)
    return request.param


def apart(monkeypatch, *devices):
    """Let none of them reach another's memory."""
    for device in devices:
        context = device.opened()
        monkeypatch.setattr(
            context.handle, "capabilities", context.handle.capabilities - {dm.spi.types.Capability.PEER}
        )


def paths(device):
    return {path for path in dm.transfer_stats(device=device) if path.startswith("peer")}


def expected(device, second, way):
    with device.entered() as driver:
        peers = "peer" in device.info.capabilities and driver.can_access(second.ordinal)
    return "peer" if way == "peer" and peers else "peer staged"


@pytest.mark.parametrize(("here", "there"), list(itertools.product(LAYOUTS, repeat=2)))
def test_from_every_layout_into_every_other(here, there, way, device, second):
    """Not a byte between the elements of the destination is touched."""
    base = dm.to_device(np.full(DATA.shape, -9, "i2"))
    origin = dm.to_device(DATA, device=second)
    target, source = LAYOUTS[there](base), LAYOUTS[here](origin)
    if target.ndim != source.ndim:
        return
    box = tuple(slice(0, min(lengths)) for lengths in zip(target.shape, source.shape, strict=True))
    target[box].copy_to_device(source[box])
    model = np.full(DATA.shape, -9, "i2")
    LAYOUTS[there](model)[box] = LAYOUTS[here](DATA)[box]
    assert np.array_equal(base.copy_to_host(), model)
    assert np.array_equal(origin.copy_to_host(), DATA)


def test_each_layout_takes_its_path(way, device, second):
    there = dm.to_device(DATA, device=second)
    assert np.array_equal(dm.to_device(there, device=device).copy_to_host(), DATA)
    assert paths(device) == {expected(device, second, way)}
    dm.transfer_stats(reset=True)
    rows = dm.device_array(DATA.shape, "i2")[:, ::2]
    rows.copy_to_device(there[:, ::2])
    assert np.array_equal(rows.copy_to_host(), DATA[:, ::2])
    assert paths(device) <= {"peer", "peer staged", "peer by the host"}


def test_the_trace_is_told_why(way, device, second, monkeypatch):
    """Too many rows are another reason than a device that is out of reach."""
    told = []

    def count(statistics, path, nbytes, began, waited, why, *_):
        if path.startswith("peer"):
            told.append((path, why))

    monkeypatch.setattr(CopyStatistics, "count", count)
    there, here = dm.to_device(DATA, device=second), dm.zeros(DATA.shape, "i2")
    here.copy_to_device(there)
    here[:, :, ::2].copy_to_device(there[:, :, ::2])
    here[:2, :2, ::9].copy_to_device(there[:2, :2, ::9])
    assert len(told) == 3
    if expected(device, second, way) == "peer":
        assert told[0] == ("peer", peer.PEER)
        assert told[1][0] != "peer"
        assert told[1][1].startswith(peer.ROW_BY_ROW)
        assert peer.APART not in {why for _, why in told}
    else:
        assert all(why.startswith(peer.APART) for _, why in told)
        assert told[2][1].endswith(peer.SMALL)


def test_small_arrays_are_not_staged(way, device, second):
    small = dm.to_device(np.arange(20, dtype="u1"), device=second)
    assert dm.to_device(small, device=device).copy_to_host().tolist() == list(range(20))
    assert not paths(device) & {"peer staged"}


def test_a_large_copy_needs_bounded_memory(way, with_settings, device, second, monkeypatch):
    large = np.random.default_rng(2).integers(0, 256, 8 << 20, np.uint8)
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(64 * SLOT), STAGING_SLOTS="3")
    if way == "by the host":
        apart(monkeypatch, device, second)
    there = dm.to_device(large, device=second)
    dm.to_device(dm.to_device(DATA, device=second), device=device)
    tracemalloc.start()
    try:
        here = dm.to_device(there, device=device)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < large.nbytes // 4
    assert all(len(each.opened().ring.made) <= 3 for each in (device, second))
    assert np.array_equal(here.copy_to_host(), large)


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_bounded_memory_where_one_side_is_turned(with_settings, device, second, monkeypatch, axes):
    """In tiles that are rows for both; and with few calls of the driver."""
    slot = 64 * SLOT
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(slot), STAGING_SLOTS="3")
    apart(monkeypatch, device, second)
    large = np.arange(96 * 128 * 160, dtype="i4").reshape(96, 128, 160)
    there = dm.to_device(large, device=second)
    here = dm.device_array([large.shape[axis] for axis in axes], "i4")
    here.copy_to_device(there.transpose(axes))
    tracemalloc.start()
    try:
        here.copy_to_device(there.transpose(axes))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < large.nbytes // 4
    assert np.array_equal(here.copy_to_host(), large.transpose(axes))


@pytest.mark.races("the default stream reads what another one writes")
def test_bounded_memory_on_a_stream_that_is_late(with_settings, device, second, need, hold, monkeypatch):
    """Where there are no slots, the driver may read the tiles later: it is waited for before they are the whole."""
    need("hold")
    with_settings(STAGING_SLOTS="0", STAGING_SLOT_BYTES=str(16 * SLOT))
    apart(monkeypatch, device, second)
    large = np.arange(512 * 512, dtype="i4").reshape(512, 512)
    there, here = dm.to_device(large, device=second), dm.device_array(large.shape, "i4")
    here.copy_to_device(there.T)
    stream = dm.stream(non_blocking=True)
    with hold(stream, patience=0.5, tolerant=True):
        here.copy_to_device(there.T, stream=stream)
        assert device.opened().completions.count(stream) <= 2
    assert np.array_equal(here.copy_to_host(), large.T)


@given(
    st.lists(st.integers(1, 9), max_size=4).map(tuple),
    st.integers(1, 9),
    st.integers(1, 200),
    st.sets(st.integers(0, 3), max_size=2),
)
def test_tiles_are_small_and_cover_each_element_once(shape, itemsize, limit, long):
    """They are small enough, and every element is in one of them."""
    numbers, seen = np.arange(math.prod(shape)).reshape(shape), []
    for tile in tiles(shape, itemsize, limit, long):
        part = numbers[tile]
        assert part.size * itemsize <= max(limit, itemsize)
        seen += np.ravel(part).tolist()
    assert sorted(seen) == list(range(numbers.size))


def test_tiles_are_wide_on_both_sides():
    first = next(tiles((4096, 64, 4096), 4, 1 << 20, {0, 2}))
    assert [part.stop for part in first] == [512, 1, 512]


def test_what_is_on_the_sources_stream_comes_first(way, need, hold, device, second, in_background):
    need("hold")
    with second:
        stream = dm.stream(non_blocking=True)
        there = dm.to_device(DATA, stream=stream)
        stream.synchronize()
    here = dm.zeros(DATA.shape, "i2")
    dm.synchronize()
    with hold(stream) as latch:
        with second:
            there.fill(5, stream=stream)
        done = in_background(lambda: here.copy_to_device(there))
        blocked(done, "it did not wait for the source")
        latch.release()
        assert done.wait(patience())
    assert not done.errors
    assert np.all(here.copy_to_host() == 5)


def test_on_the_destinations_stream_it_has_its_place(way, need, hold, device, second, in_background):
    need("hold")
    there = dm.to_device(DATA, device=second)
    stream = dm.stream(non_blocking=True)
    here, after = dm.zeros(DATA.shape, "i2"), dm.zeros(DATA.shape, "i2")
    dm.synchronize()

    def work():
        here.fill(3, stream=stream)
        here.copy_to_device(there, stream=stream)
        there.fill(9)  # the source is the caller's again
        after.copy_to_device(here, stream=stream)
        here.fill(7, stream=stream)

    with hold(stream) as latch:
        done = in_background(work)
        done.wait(0.2)  # it waits where the slots are all on the held stream, or the copy is the driver's own
        latch.release()
        assert done.wait(patience())
    stream.synchronize()
    assert not done.errors
    assert np.array_equal(after.copy_to_host(), DATA)
    assert np.all(here.copy_to_host() == 7)


def test_memory_for_which_no_stream_was_named(way, need, hold, device, second, in_background):
    """The source was written on its device's default stream; the one in scope does not wait for that by itself."""
    need("hold")
    here = dm.zeros(DATA.shape, "i2")
    dm.synchronize()
    with second:
        there = dm.zeros(DATA.shape, "i2")
        scoped = dm.stream(non_blocking=True)
        dm.synchronize()
        with hold(dm.default_stream()) as latch:
            there.fill(4, stream=dm.default_stream())

            def work():
                with second, scoped:
                    here.copy_to_device(there)

            done = in_background(work)
            blocked(done, "it did not wait for the memory's own stream")
            latch.release()
            assert done.wait(patience())
    assert not done.errors
    assert np.all(here.copy_to_host() == 4)


def test_threads_that_copy_either_way(way, device, second):
    """Each waits for slots of both rings, and none for another."""

    def work(number):
        here, there = (device, second) if number % 2 else (second, device)
        with here:
            for at in range(8):
                array = dm.to_device(DATA + at, device=there)
                moved = dm.to_device(array.transpose(1, 0, 2) if at % 2 else array, device=here)
                wanted = (DATA + at).transpose(1, 0, 2) if at % 2 else DATA + at
                assert np.array_equal(moved.copy_to_host(), wanted)

    together(*(partial(work, number) for number in range(4)))
    for each in (device, second):
        ring = each.opened().ring
        assert set(ring.free_slots()) == set(ring.made)


@pytest.mark.parametrize("method", ["copy", "event_record", "event_synchronize", "alloc"])
def test_failures_leave_nothing(recorded, method, with_settings, monkeypatch):
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(SLOT), STAGING_SLOTS=str(SLOTS))
    others = [each for each in dm.devices() if each.backend == dm.current_device().backend]
    if len(others) < 2:
        pytest.skip("one device only")
    here, there = others[:2]
    apart(monkeypatch, here, there)
    source, target = dm.to_device(DATA, device=there), dm.to_device(DATA[::-1], device=here)
    for nth in range(1, 40):
        recorded.fail_at(nth, method)
        failed = False
        try:
            target.copy_to_device(source)
        except dm.BackendError:
            failed = True
        recorded.disarm()
        if not recorded.injected:
            break
        for each in (here, there):
            ring = each.opened().ring
            assert all(slot.holder is None or slot.holder.in_flight for slot in ring.made)
        if not failed:
            assert np.array_equal(target.copy_to_host(), DATA)
        target.copy_to_device(DATA[::-1])
    assert not recorded.injected, "as many calls as that were not expected"
    target.copy_to_device(source)
    assert np.array_equal(target.copy_to_host(), DATA)


def test_where_one_row_fails_the_others_are_waited_for(recorded, need, hold, in_background):
    """The source is the caller's again when the error comes out: the copy reads it no more."""
    need("hold")
    others = [each for each in dm.devices() if each.backend == dm.current_device().backend]
    if len(others) < 2 or expected(others[0], others[1], "peer") != "peer":
        pytest.skip("no device reaches another's memory")
    here, there = others[:2]
    source, target = dm.to_device(DATA, device=there), dm.zeros(DATA.shape, "i2")
    stream = dm.stream(non_blocking=True)
    dm.synchronize()
    with hold(stream) as latch:
        recorded.fail_at(4, "copy_peer")
        rows = np.s_[:, :10]
        done = in_background(lambda: target[rows].copy_to_device(source[rows], stream=stream), here)
        blocked(done, "it came back while the source was still to be read")
        latch.release()
        assert done.wait(patience())
    assert recorded.injected
    recorded.disarm()
    assert [type(error) for error in done.errors] == [dm.BackendError]
    assert np.array_equal(target.copy_to_host()[:3, :10], DATA[:3, :10])


def test_the_source_is_not_reset_before_it_was_copied(device, second, in_background, need, hold):
    need("hold", "peer_events")
    if expected(device, second, "peer") != "peer":
        pytest.skip(f"{device} does not reach memory of {second}")
    source, target = dm.to_device(DATA, device=second), dm.zeros(DATA.shape, "i2", device=device)
    stream = dm.stream(non_blocking=True)
    with hold(stream) as held:
        copied = dm.copy_async(source, target, stream=stream)
        reset = in_background(second.reset)
        blocked(reset)
        held.release()
        assert reset.wait(patience())
    copied.result()
    assert np.array_equal(target.copy_to_host(), DATA)


@pytest.mark.parametrize("waits", [True, False])
def test_the_source_is_not_reset_while_it_is_copied(device, second, waits, in_background, monkeypatch):
    """Its memory would be another array's by then, and the copy silently of that."""
    if expected(device, second, "peer") != "peer":
        pytest.skip(f"{device} does not reach memory of {second}")
    source, target = dm.to_device(DATA, device=second), dm.zeros(DATA.shape, "i2", device=device)
    dm.synchronize()
    driver, there = device.opened().handle.driver, second.opened().handle
    real, resets, alive = driver.copy_peer, [], []

    def copy_peer(*arguments, **named):
        resets.append(in_background(second.reset))
        alive.append(not resets[0].wait(0.3) and there.dead is None)
        return real(*arguments, **named)

    monkeypatch.setattr(driver, "copy_peer", copy_peer)
    if waits:
        target.copy_to_device(source)
    else:
        dm.copy_async(source, target).result()
    assert alive == [True]
    assert resets[0].wait(patience())
    assert np.array_equal(target.copy_to_host(), DATA)
    with pytest.raises(dm.ClosedError):
        target.copy_to_device(source)
