"""Elements so far apart that a call of the driver for each would take minutes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import devmem as dm

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
def test_few_calls_store_them(recorded, with_settings, whole, slots, key):
    with_settings(STAGING_SLOTS=slots)
    there = dm.to_device(whole)
    expected = whole.copy()
    expected[KEYS[key]] = new = np.ascontiguousarray(whole[KEYS[key]][..., ::-1])
    with recorded.during() as calls:
        there[KEYS[key]].copy_to_device(new)
    assert np.array_equal(there.copy_to_host(), expected)
    assert copies(calls) <= FEW + rows(whole[KEYS[key]])


@pytest.mark.parametrize(("to", "origin"), list(itertools.permutations(SOLID, 2)))
def test_from_one_place_to_another(recorded, to, origin):
    whole = spread("u1")
    cut = tuple(slice(min(lengths)) for lengths in zip(whole[KEYS[to]].shape, whole[KEYS[origin]].shape, strict=True))
    there, other = dm.to_device(whole), dm.to_device(whole[::-1].copy())
    with recorded.during() as calls:
        there[KEYS[to]][cut].copy_to_device(other[KEYS[origin]][cut])
    expected = whole.copy()
    expected[KEYS[to]][cut] = whole[::-1][KEYS[origin]][cut]
    assert np.array_equal(there.copy_to_host(), expected)
    assert copies(calls) <= FEW + rows(expected[KEYS[to]][cut])
