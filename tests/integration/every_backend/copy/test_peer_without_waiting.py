"""`copy_async` between two devices waits for no stream, neither the destination's nor the source's.

Each copy is made while a stream is held: a call that waits for it would never return.
"""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import pytest
from waits import patience

import devmem as dm

SHAPE = (301, 1000)
#: Indices of the destination and of the source: one run, few rows, more rows than a driver is called for else, and turned ones.
LAYOUTS = {
    "one run": (np.s_[:], np.s_[:]),
    "wide rows": (np.s_[::9], np.s_[::9]),
    "narrow rows": (np.s_[:, 5:7], np.s_[:, 5:7]),
    "one side narrow": (np.s_[:100, :2], np.s_[300:0:-3, 10:12]),
}
DATA = np.random.default_rng(1).integers(0, 256, SHAPE, np.uint8)


@pytest.fixture(params=["peer", "by the host"])
def ordered(request, second, device, need, need_kind, monkeypatch):
    """Two devices, each with a stream, the first of which reaches the other's memory, or not."""
    need("hold", "peer_events")
    need_kind("pinned")
    if request.param == "by the host":
        for each in (device, second):
            handle = each.opened().handle
            monkeypatch.setattr(handle, "capabilities", handle.capabilities - {dm.spi.types.Capability.PEER})
    with second:
        there = dm.stream(non_blocking=True)
    return dm.stream(non_blocking=True), there


@pytest.mark.parametrize("held", ["the destination's stream", "the source's stream", "both"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_any_layout(ordered, hold, second, held, layout):
    here, there = ordered
    to, origin = LAYOUTS[layout]
    base = dm.zeros(SHAPE, "u1")
    with second:
        source = dm.to_device(np.zeros(SHAPE, "u1"), stream=there)
        locked = dm.pinned_array(SHAPE, "u1")
        locked[...] = DATA
        dm.synchronize()
    dm.synchronize()
    streams = {"the destination's stream": [here], "the source's stream": [there], "both": [here, there]}[held]
    with contextlib.ExitStack() as holds:
        latches = [holds.enter_context(hold(stream)) for stream in streams]
        with second:
            source.copy_to_device(locked, stream=there)  # work that the copy comes after
        moved = dm.copy_async(source[origin], base[to], stream=here)
        base[300, 999:].fill(77, stream=here)  # work that comes after the copy
        assert not moved.done()
        for latch in latches:
            latch.release()
    moved.wait()
    here.synchronize()
    model = np.zeros(SHAPE, "u1")
    model[to] = DATA[origin]
    model[300, 999] = 77
    assert np.array_equal(base.copy_to_host(), model)


@pytest.mark.parametrize("nbytes", [1, 4096, (6 << 20) + 5])
def test_of_any_size(ordered, hold, second, nbytes):
    here, _ = ordered
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    source, target = dm.to_device(data, device=second), dm.zeros(nbytes, "u1")
    dm.synchronize()
    with hold(here) as latch:
        moved = dm.copy_async(source, target, stream=here)
        assert not moved.done()
        latch.release()
    assert np.array_equal(moved.result().copy_to_host(), data)


@pytest.mark.parametrize("end", ["dropped", "freed"])
@pytest.mark.parametrize("stack", ["pool", "driver", ""])
def test_the_source_stays_until_the_copy_has_read_it(ordered, hold, second, in_background, end, stack):
    """Its memory is given out again, or back, behind the copy."""
    here, there = ordered
    target = dm.zeros(SHAPE, "u1")
    dm.synchronize()
    with second, dm.use_memory(stack or "pool"):
        source = dm.to_device(DATA, stream=there)
        there.synchronize()
        with hold(here) as latch:
            moved = dm.copy_async(source, target, stream=here)

            def reuse():
                with second, dm.use_memory(stack or "pool"):
                    other = dm.device_array(SHAPE, "u1", stream=there)
                    other.fill(9, stream=there)
                    dm.trim()

            if end == "freed":
                done = in_background(lambda: (source.free(), reuse()))
            else:
                moved._src = None  # as if the transfer, too, were dropped
                del source
                gc.collect()
                done = in_background(reuse)
            done.wait(0.1)  # plain memory is freed when the copy has read it
            latch.release()
            assert done.wait(patience())
        assert not done.errors
    moved.wait()
    assert np.array_equal(target.copy_to_host(), DATA)


@pytest.mark.races("the source is written while the copy may read it, as documented")
def test_later_work_on_the_sources_stream_does_not_wait(ordered, hold, second):
    here, _ = ordered
    target = dm.zeros(SHAPE, "u1")
    source = dm.to_device(DATA, device=second)
    dm.synchronize()
    with hold(here) as latch:
        moved = dm.copy_async(source, target, stream=here)
        with second:
            assert np.array_equal(source.copy_to_host(), DATA)
        latch.release()
    moved.wait()
    assert np.array_equal(target.copy_to_host(), DATA)


def test_a_stream_waits_for_an_event_of_another_device(ordered, hold, second):
    """The host does not."""
    here, there = ordered
    target = dm.zeros(8, "u1")
    dm.synchronize()
    with hold(there) as latch:
        here.wait(there)
        target.fill(3, stream=here)
        assert not here.query()
        latch.release()
    here.synchronize()
    assert target.copy_to_host().tolist() == [3] * 8


def test_a_device_that_was_reset_is_not_waited_for(ordered, hold, second):
    """Its work has ended with it, and the source may still be freed."""
    _, there = ordered
    source = dm.to_device(DATA)
    with second:
        target = dm.zeros(SHAPE, "u1")
        moved = dm.copy_async(source, target, stream=there)
        moved.wait()
        second.reset()
    source.free()
    dm.trim()
    assert np.array_equal(dm.to_device(DATA).copy_to_host(), DATA)
