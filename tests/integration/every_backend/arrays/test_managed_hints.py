"""Hints for managed memory: any place, many arrays at once, and contents that are given up."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.spi.types import Capability
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy", "device")

PLACES = {
    "this device": {},
    "the host": {"to_host": True},
    "a NUMA node": {"numa_node": 0},
    "the host, by a NUMA node": {"to_host": True, "numa_node": 0},
}


@pytest.fixture
def arrays(recorded, need, need_kind):
    need_kind("managed")
    need("managed", "managed_places")
    made = [dm.managed_array(1000 + number) for number in range(4)]
    for number, array in enumerate(made):
        array[...] = number
    return made


@pytest.fixture
def discarding(arrays):
    """The arrays, where the driver can discard."""
    try:
        arrays[0].discard()
    except dm.UnsupportedError as lacking:
        pytest.skip(str(lacking))
    dm.synchronize()
    arrays[0][...] = 0
    return arrays


def intact(arrays):
    dm.synchronize()
    return all((array == number).all() for number, array in enumerate(arrays))


def calls(seen):
    return [
        call.method for call in seen if call.method in ("prefetch", "prefetch_to", "discard", "advise", "advise_for")
    ]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("named", [False, True])
def test_many_arrays_are_prefetched_by_one_call(arrays, recorded, place, named):
    with recorded.during() as seen:
        dm.prefetch_managed([*arrays, arrays[0][:0]], stream=dm.stream() if named else 0, **place)
    assert calls(seen) == ["prefetch_to"]
    assert intact(arrays)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_one_array_is_prefetched_and_advised(arrays, place):
    arrays[1].prefetch(**place)
    for word in ("read_mostly", "preferred_location"):
        arrays[1].advise(f"set_{word}", **place)
        arrays[1].advise(f"unset_{word}", **place)
    assert intact(arrays)


def test_one_array_need_not_be_in_a_list(arrays, recorded):
    with recorded.during() as seen:
        dm.prefetch_managed(arrays[1], to_host=True)
    assert len(calls(seen)) == 1
    assert intact(arrays)


def test_another_device(arrays, recorded, second):
    second = dm.device(f"{recorded.name}:1")
    with recorded.during() as seen:
        arrays[0].prefetch(device=second)
        arrays[0].advise("set_accessed_by", device=second)
        arrays[0].prefetch(device=dm.current_device())
    assert calls(seen) == ["prefetch_to", "advise_for", "prefetch"]
    assert [call.args[2].number for call in seen if call.method == "prefetch_to"] == [second.ordinal]
    assert intact(arrays)


def test_on_the_legacy_stream_another_one_takes_it_ordered_by_two_events(arrays, recorded):
    """Vendors refuse it on the legacy stream."""
    with recorded.during() as seen:
        dm.prefetch_managed(arrays)
    named = [call for call in seen if call.method in ("prefetch_to", "event_record", "stream_wait")]
    assert [call.method for call in named] == [
        "event_record",
        "stream_wait",
        "prefetch_to",
        "event_record",
        "stream_wait",
    ]
    assert named[2].args[3] not in (1, 2)
    assert intact(arrays)


@pytest.mark.parametrize("verb", ["prefetch", "discard"])
def test_the_per_thread_stream_takes_it_itself(discarding, recorded, verb):
    """Vendors refuse it on the legacy stream alone."""
    stream, call = dm.per_thread_default_stream(), getattr(dm, f"{verb}_managed")
    with recorded.during() as seen:
        call(discarding, stream=stream)
    named = [each for each in seen if each.method in ("prefetch_to", "discard", "event_record", "stream_wait")]
    assert [(each.method, stream.handle in each.args) for each in named] == [
        ("prefetch_to" if verb == "prefetch" else "discard", True)
    ]
    stream.synchronize()


def test_what_is_discarded_can_be_written(discarding, recorded):
    with recorded.during() as seen:
        dm.discard_managed(discarding[:2])
    assert calls(seen) == ["discard"]
    dm.synchronize()
    discarding[0][...] = 0
    discarding[1][...] = 1
    assert intact(discarding)


def test_discarding_is_in_stream_order(discarding, need):
    need("hold")
    stream = dm.stream(non_blocking=True)
    with hold(stream) as latch:
        discarding[1].discard(stream)
        assert (discarding[1] == 1).all()
        latch.release()
    stream.synchronize()
    discarding[1][...] = 1
    assert intact(discarding)


def test_discarding_and_prefetching_is_one_call(discarding, recorded):
    with recorded.during() as seen:
        dm.prefetch_managed(discarding[:1], discard=True, to_host=True)
    assert calls(seen) == ["prefetch_to"]
    dm.synchronize()
    discarding[0][...] = 0
    assert intact(discarding)


def test_arrays_with_gaps_are_not_discarded(arrays):
    with pytest.raises(dm.LayoutError, match="the bytes between its elements"):
        arrays[0][::2].discard()
    with pytest.raises(dm.LayoutError, match="the bytes between its elements"):
        arrays[0][::2].prefetch(discard=True)
    arrays[0][::2].prefetch()
    assert intact(arrays)


def test_wrong_places_are_refused(arrays):
    array, second = arrays[0], dm.current_device()
    for wrong in ({"to_host": True, "device": second}, {"device": second, "numa_node": 0}):
        with pytest.raises(dm.LayoutError, match="one place"):
            array.prefetch(**wrong)
    with pytest.raises(dm.LayoutError, match="is no NUMA node"):
        array.prefetch(numa_node=-1)
    with pytest.raises(TypeError):
        array.prefetch(numa_node="1")
    with pytest.raises(TypeError, match="not for a ndarray"):
        dm.prefetch_managed([array, np.zeros(3)])
    with pytest.raises(dm.LayoutError, match="advice is one of"):
        array.advise("hurry", numa_node=0)
    assert intact(arrays)


def test_a_plan_does_not_record_hints(arrays, need):
    need("graphs")
    stream = dm.stream()
    with pytest.raises(dm.UnsupportedError), dm.capture(stream):
        dm.prefetch_managed(arrays, stream=stream)
    assert intact(arrays)


def test_without_the_capability_places_are_refused_with_the_reason(device, need_kind, monkeypatch):
    need_kind("managed")
    handle = device.opened().handle
    monkeypatch.setattr(handle, "capabilities", handle.capabilities - {Capability.MANAGED_PLACES})
    array = dm.managed_array(10)
    with pytest.raises(dm.UnsupportedError, match="managed"):
        array.prefetch(numa_node=0)
    with pytest.raises(dm.UnsupportedError, match="managed"):
        array.discard()


def test_nothing_to_hint(device, need_kind):
    need_kind("managed")
    dm.prefetch_managed([])
    dm.discard_managed([dm.managed_array(0)])
    assert np.asarray(dm.managed_array(0)).size == 0
