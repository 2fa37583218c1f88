"""Elements so far apart that a call of the driver for each would take minutes."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import Any

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem._core.copy.engine import CopyEngine

#: Calls that are few, beside the parts that large arrays are copied in anyway.
FEW = 100

SHAPE = (24, 250, 512)
KEYS = {
    "a colour of an image": np.s_[:, :, 1::3],
    "every other one of every other row": np.s_[::2, ::2, ::8],
    "backwards": np.s_[::-2, ::-3, ::-17],
    "single bytes of rows": np.s_[:, ::5, 7],
    "odd rows": np.s_[:, :249:2, :509],
}
SOLID = [name for name, key in KEYS.items() if np.empty(SHAPE, "u1")[key].ndim == 3]


def spread(dtype: str) -> np.ndarray[Any, Any]:
    """An array whose rows have an odd number of bytes more than are looked at."""
    return np.random.default_rng(5).integers(0, 100, (*SHAPE[:2], SHAPE[2] + 3), "u1").astype(dtype)


def copies(calls: list[Any]) -> int:
    return sum(call.method.startswith("copy") for call in calls)


def rows(array: np.ndarray[Any, Any]) -> int:
    """Calls that it takes with one for all elements along the longest axis: no driver stores a third axis of any pitch."""
    return array.size // max(array.shape)


@pytest.fixture(params=["u1", "f2", "f4", "c16"])
def whole(request: pytest.FixtureRequest) -> np.ndarray[Any, Any]:
    return spread(request.param)


@pytest.mark.parametrize("key", list(KEYS))
@pytest.mark.parametrize("slots", ["0", "4"])
def test_few_calls_fetch_them(recorded, with_settings, whole, slots, key):
    with_settings(STAGING_SLOTS=slots)
    there = dm.to_device(whole)[KEYS[key]]
    with recorded.during() as calls:
        found = there.copy_to_host()
    assert np.array_equal(found, whole[KEYS[key]])
    assert copies(calls) <= FEW + whole.nbytes // (32 << 10), "what lies between them would have been there sooner"


@pytest.mark.parametrize("key", list(KEYS))
@pytest.mark.parametrize("slots", ["0", "4"])
def test_few_calls_store_them(need, recorded, with_settings, whole, slots, key):
    need("strided_copy")  # otherwise the driver stores one element after another
    with_settings(STAGING_SLOTS=slots)
    there = dm.to_device(whole)
    expected = whole.copy()
    expected[KEYS[key]] = new = np.ascontiguousarray(whole[KEYS[key]][..., ::-1])
    with recorded.during() as calls:
        there[KEYS[key]].copy_to_device(new)
    assert np.array_equal(there.copy_to_host(), expected)
    assert copies(calls) <= FEW + rows(whole[KEYS[key]])


@pytest.mark.parametrize(("to", "origin"), list(itertools.permutations(SOLID, 2)))
def test_from_one_place_to_another(need, recorded, to, origin):
    need("strided_copy")
    whole = spread("u1")
    cut = tuple(slice(min(lengths)) for lengths in zip(whole[KEYS[to]].shape, whole[KEYS[origin]].shape, strict=True))
    there, other = dm.to_device(whole), dm.to_device(whole[::-1].copy())
    with recorded.during() as calls:
        there[KEYS[to]][cut].copy_to_device(other[KEYS[origin]][cut])
    expected = whole.copy()
    expected[KEYS[to]][cut] = whole[::-1][KEYS[origin]][cut]
    assert np.array_equal(there.copy_to_host(), expected)
    assert copies(calls) <= FEW + rows(expected[KEYS[to]][cut])


# -- by way of the device ----------------------------------------------------------------------------------------------

COLOUR = np.s_[:, :, 1]  # every fourth byte would be dense enough to be fetched with what lies between
IMAGE = (300, 40, 37)


@pytest.fixture
def uneven(recorded, need):
    """A device whose copies of rows to and from the host are slow at pitches that are no multiples of 4, as AMD's are."""
    need("strided_copy")
    real = recorded.open

    def open_uneven(ordinal: int) -> Any:
        driver = real(ordinal)
        driver._info = dataclasses.replace(driver._info, strided_pitch_multiple=4)
        return driver

    recorded.open = open_uneven
    dm.close()  # `need` has opened it
    return recorded


def paths() -> set[str]:
    return set(dm.transfer_stats(reset=True))


@pytest.fixture
def image(uneven) -> tuple[np.ndarray[Any, Any], Any]:
    whole = np.random.default_rng(6).integers(0, 256, IMAGE, "u1")
    there = dm.to_device(whole)
    paths()
    return whole, there


@pytest.mark.parametrize("flip", [1, -1])
def test_the_device_gathers_and_scatters(image, flip):
    whole, there = image
    assert np.array_equal(there[COLOUR][::flip].copy_to_host(), whole[COLOUR][::flip])
    assert paths() == {"d2h scratch"}
    there[COLOUR][::flip].copy_to_device(whole[:, :, 5])
    assert paths() == {"h2d scratch"}
    whole[COLOUR][::flip] = whole[:, :, 5].copy()
    assert np.array_equal(there.copy_to_host(), whole)


def test_a_copy_in_parts_moves_every_element(image, monkeypatch):
    monkeypatch.setattr("devmem._core.copy.device_scratch.PART_BYTES", 1000)
    whole, there = image
    assert np.array_equal(there[COLOUR].copy_to_host(), whole[COLOUR])
    there[COLOUR].copy_to_device(whole[:, :, 7])
    whole[COLOUR] = whole[:, :, 7]
    assert paths() == {"d2h scratch", "h2d scratch"}
    assert np.array_equal(there.copy_to_host(), whole)


def test_records_with_padding(uneven):
    padded = np.dtype([("a", "u1"), ("b", "<u2")], align=True)
    kind = np.dtype({"names": ["a", "c"], "formats": ["u1", "u1"], "offsets": [0, 2], "itemsize": 3})
    for dtype in (padded, kind):
        raw = np.random.default_rng(7).integers(0, 256, (600, 33 * dtype.itemsize), "u1")
        there = dm.to_device(raw.view(dtype))
        assert np.array_equal(there[:, 4].copy_to_host(), raw.view(dtype)[:, 4])
        there[:, 4].copy_to_device(np.ascontiguousarray(raw.view(dtype)[:, 9]))
        expected = raw.view(dtype).copy()
        expected[:, 4] = expected[:, 9]
        assert np.array_equal(there.copy_to_host(), expected)


def test_nothing_is_left_of_the_second_array(image):
    whole, there = image
    before = dm.memory_info()
    for _ in range(3):
        there[COLOUR].copy_to_host()
        there[COLOUR].copy_to_device(whole[COLOUR])
    dm.synchronize()
    after = dm.memory_info()
    assert (after.live, after.pending) == (before.live, before.pending)


@pytest.mark.parametrize("blocking", [True, False])
def test_what_comes_later_on_the_stream_comes_later(image, hold, need, blocking):
    need("hold")
    whole, there = image
    stream = dm.stream(non_blocking=True)
    dm.synchronize()
    new = np.ascontiguousarray(whole[:, :, 3])
    with hold(stream) as latch:
        there[COLOUR].copy_to_device(new, stream=stream)
        copy = dm.device_array_like(there, stream=stream)
        copy.copy_to_device(there, stream=stream)
        there[COLOUR].fill(0, stream=stream)
        new[...] = 0  # it was read
        assert not stream.query()
        latch.release()
    whole[COLOUR] = whole[:, :, 3]
    assert np.array_equal(copy.copy_to_host(), whole)


def test_a_full_device_is_copied_from_and_to_all_the_same(image, monkeypatch):
    whole, there = image

    def full(*arguments: object) -> None:
        raise dm.OutOfMemory("full")

    monkeypatch.setattr("devmem._core.copy.engine.DeviceScratch", full)
    assert np.array_equal(there[COLOUR].copy_to_host(), whole[COLOUR])
    assert paths() == {"d2h span"}
    there[COLOUR].copy_to_device(whole[:, :, 7])
    whole[COLOUR] = whole[:, :, 7]
    assert "h2d scratch" not in paths()
    assert np.array_equal(there.copy_to_host(), whole)


def test_another_thread_may_lock_the_memory_between_two_parts(uneven, image, need, monkeypatch):
    need("host_register")
    whole, there = image
    apart = np.zeros(1 << 16, "u1")
    dm.register(apart)  # where something is page-locked, copies hold what they write to steady
    into = np.zeros(1 << 16, "u1")
    out = into[: whole[COLOUR].size].reshape(whole[COLOUR].shape)
    real = CopyEngine._on_device
    begun = threading.Event()

    def on_device(*arguments: Any) -> None:
        if not begun.is_set():
            begun.set()
            other.join(timeout=1)  # it is done at once, or waits for this copy, which must not wait for it
        real(*arguments)

    def lock() -> None:
        assert begun.wait(patience())
        with dm.use_backend(uneven.name):
            dm.register(into)

    other = threading.Thread(target=lock)
    monkeypatch.setattr(CopyEngine, "_on_device", on_device)
    other.start()
    there[COLOUR].copy_to_host(out)
    other.join(patience())
    assert np.array_equal(out, whole[COLOUR])
    dm.deregister(into)
    dm.deregister(apart)


def test_by_the_host_in_bounded_memory(recorded, with_settings):
    with_settings(STAGING_SLOT_BYTES=str(64 << 10))
    whole = np.random.default_rng(8).integers(0, 256, (700, 901), "u1")
    there = dm.to_device(whole)
    other = dm.device_array((901, 700), "u1")
    with recorded.during() as calls:
        other.copy_to_device(there.T)
    assert np.array_equal(other.copy_to_host(), whole.T)
    assert "d2d staged" in paths()
    assert copies(calls) > 10, "it was done in one host array as large as all"
