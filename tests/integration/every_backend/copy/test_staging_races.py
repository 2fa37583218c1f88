"""Slots that are still read, or written, are given to no other copy: provoked with a ring of two and streams that stand still."""

from __future__ import annotations

import numpy as np
import pytest
from waits import blocked, patience

import devmem as dm
from devmem._core.copy.staging.growing_ring import SMALLEST

pytestmark = pytest.mark.usefixtures("tidy")

SLOT, SLOTS = 1024, 2
#: As much as fits into the ring.
DATA = np.random.default_rng(1).integers(0, 256, SLOTS * SLOT, np.uint8)
OTHER = DATA[::-1].copy()


@pytest.fixture(autouse=True)
def staged(with_settings, need_kind, need):
    need_kind("pinned")
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(SLOT), STAGING_SLOTS=str(SLOTS), STAGING_THREADS="2")
    need("hold")


@pytest.fixture(params=["contiguous", "strided"])
def shaped(request):
    """How an array lies on the host: as it comes, or with gaps, so that it has to be packed."""
    if request.param == "contiguous":
        return np.copy
    return lambda array: np.repeat(array, 2)[::2]


def empty(*streams):
    """Device arrays of the size of the ring, made before anything is held."""
    made = [dm.zeros(DATA.shape, np.uint8) for _ in streams]
    dm.synchronize()
    return made


def test_the_source_is_changed_while_its_slots_wait(hold, shaped):
    stream = dm.stream(non_blocking=True)
    [array] = empty(stream)
    source = shaped(DATA)
    with hold(stream) as latch:
        array.copy_to_device(source, stream=stream)
        source[...] = 0
        latch.release()
    stream.synchronize()
    assert np.array_equal(array.copy_to_host(), DATA)


def test_another_streams_copy_leaves_held_slots_alone(hold, shaped):
    held, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    one, two = empty(held, other)
    back = np.zeros_like(DATA)
    with hold(held) as latch:
        one.copy_to_device(shaped(DATA), stream=held)  # both slots wait for the stream now
        for _ in range(3):
            two.copy_to_device(shaped(OTHER), stream=other)
            two.copy_to_host(back, stream=other)
            assert np.array_equal(back, OTHER)
        latch.release()
    held.synchronize()
    assert np.array_equal(one.copy_to_host(), DATA)


@pytest.mark.parametrize("again", ["named", "blocking"])
def test_the_same_streams_next_copy_waits_for_a_slot(hold, shaped, again, in_background):
    stream = dm.stream(non_blocking=True)
    one, two = empty(stream, stream)
    bound = two.bind(stream)
    with hold(stream) as latch:
        one.copy_to_device(shaped(DATA), stream=stream)

        def work():
            if again == "named":
                two.copy_to_device(shaped(OTHER), stream=stream)
            else:
                bound.copy_to_device(shaped(OTHER))

        done = in_background(work)
        blocked(done, "a slot was taken while the copy in it had not begun")
        latch.release()
        assert done.wait(patience())
    assert done.errors == []
    stream.synchronize()
    assert np.array_equal(one.copy_to_host(), DATA)
    assert np.array_equal(two.copy_to_host(), OTHER)


def test_slots_that_a_download_fills_are_not_filled_by_an_upload(hold, shaped, in_background, with_settings):
    """What a background download has fetched is taken out before another copy goes into the slot, where no more are made."""
    with_settings(STAGING_LIMIT=str(SLOTS * SMALLEST), STAGING_SLOT_BYTES=str(SLOT))
    stream = dm.stream(non_blocking=True)
    one, two = empty(stream, stream)
    one.copy_to_device(DATA)
    back = shaped(np.zeros_like(DATA))
    with hold(stream) as latch:
        under_way = dm.copy_async(one, back, stream=stream)
        done = in_background(lambda: dm.copy_async(shaped(OTHER), two, stream=stream).wait())
        blocked(done)
        latch.release()
        assert done.wait(patience())
    assert done.errors == []
    under_way.result()
    stream.synchronize()
    assert np.array_equal(back, DATA)
    assert np.array_equal(two.copy_to_host(), OTHER)


def test_a_batch_waits_for_its_slots_too(hold):
    held, other = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    [one] = empty(held)
    leaves = [OTHER[at : at + 100].copy() for at in range(0, 1500, 100)]
    with hold(held) as latch:
        one.copy_to_device(DATA, stream=held)
        there = dm.to_device_many(leaves, other)
        for leaf in leaves:
            leaf[...] = 0
        other.synchronize()
        latch.release()
    held.synchronize()
    assert np.array_equal(one.copy_to_host(), DATA)
    assert b"".join(each.tobytes() for each in dm.to_host_many(there)) == OTHER[:1500].tobytes()


def test_what_these_tests_would_see(hold, device, monkeypatch):
    """A ring that does not wait gives the slots away, and the bytes of one copy to another."""
    ring = device.opened().ring
    stream = dm.stream(non_blocking=True)
    one, two = empty(stream, stream)
    with monkeypatch.context() as patch:
        patch.setattr(ring, "drain", lambda slot: None)
        with hold(stream) as latch:
            one.copy_to_device(DATA, stream=stream)
            two.copy_to_device(OTHER, stream=stream)
            latch.release()
        stream.synchronize()
    assert np.array_equal(one.copy_to_host(), OTHER)
