"""Any key, any layout: NumPy's answer, or an error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm

from .conftest import ANYTHING, INTEGERS, attempt

SMALL = st.integers(-5, 5) | st.none()
KEY = (
    st.integers(-5, 5)
    | st.builds(slice, SMALL, SMALL, SMALL)
    | st.sampled_from([..., None])
    | st.builds(slice, INTEGERS | st.none(), INTEGERS | st.none(), INTEGERS | st.none())
    | INTEGERS
)
KEYS = KEY | st.lists(KEY, max_size=5).map(tuple) | st.lists(KEY | ANYTHING, max_size=3).map(tuple) | ANYTHING
DTYPES = st.sampled_from(["u1", "<i4", ">f8", "V3", "S5", "<U2", "M8[s]", "c8", [("a", "u1"), ("b", "<i4", (2,))]])
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def host(shape: tuple[int, ...], dtype: Any = "<i4") -> np.ndarray[Any, Any]:
    array = np.empty(shape, dtype)
    size = array.nbytes
    return np.frombuffer(bytes(each % 251 for each in range(size)), array.dtype, array.size).reshape(shape)


def is_integer(part: Any) -> bool:
    return hasattr(part, "__index__") and not isinstance(part, (bool, np.bool_, np.ndarray))


def expected(array: np.ndarray[Any, Any], key: Any) -> Any:
    """NumPy's answer; None where it refuses, or answers by copying."""
    parts = key if isinstance(key, tuple) else (key,)
    if not all(part is None or part is ... or isinstance(part, slice) or is_integer(part) for part in parts):
        return None
    try:
        return array[key]
    except Exception:
        return None


@given(SHAPES, KEYS)
def test_any_key_reads_what_numpy_reads(shape: tuple[int, ...], key: Any) -> None:
    array = host(shape)
    want = expected(array, key)

    def run() -> None:
        seen = dm.to_device(array)[key]
        if isinstance(seen, dm.DeviceNDArray):
            seen = seen.copy_to_host()
        assert want is not None, "NumPy refuses the key"
        assert seen.shape == want.shape
        np.testing.assert_array_equal(seen, want)

    told = attempt(run)
    assert not told or want is None, told


@given(SHAPES, KEYS, st.integers(-9, 9) | ANYTHING)
def test_any_assignment_writes_what_numpy_writes_or_nothing(shape: tuple[int, ...], key: Any, value: Any) -> None:
    array = host(shape)

    def run() -> None:
        device, want = dm.to_device(array), array.copy()
        try:
            device[key] = value
        except Exception:
            np.testing.assert_array_equal(device.copy_to_host(), array, "half of it was written")
            raise
        assert expected(array, key) is not None, "NumPy refuses the key"
        parts = key if isinstance(key, tuple) else (key,)
        place = want[parts if any(part is ... for part in parts) else (*parts, ...)]
        np.copyto(place, value, casting="same_kind")
        np.testing.assert_array_equal(device.copy_to_host(), want)

    attempt(run)


VIEWS = {
    "reshape": st.lists(INTEGERS, max_size=5),
    "transpose": st.lists(st.integers(-5, 5), max_size=5),
    "squeeze": st.lists(st.integers(-5, 5), max_size=2).map(tuple) | st.none(),
    "view": DTYPES,
    "ravel": st.sampled_from("CFAK"),
    "split": INTEGERS,
    "item": KEY,
    "fill": ANYTHING,
    "copy": ANYTHING,
}


@given(SHAPES, DTYPES, st.sampled_from(sorted(VIEWS)), st.data())
def test_any_other_shape_is_numpys(shape: tuple[int, ...], dtype: Any, verb: str, data: st.DataObject) -> None:
    array = host(shape, dtype)
    argument = data.draw(VIEWS[verb] | ANYTHING)

    def run() -> None:
        seen = getattr(dm.to_device(array), verb)(argument)
        if verb in ("reshape", "transpose", "squeeze", "view", "ravel"):
            want = getattr(array, verb)(argument)
            assert seen.shape == want.shape
            assert seen.copy_to_host().tobytes() == want.tobytes()
        elif verb == "split":
            pieces = [piece.copy_to_host() for piece in seen]
            assert b"".join(piece.tobytes() for piece in pieces) == array.tobytes()
        elif verb == "item":
            want = array[argument]
            assert np.asarray(seen, array.dtype).tobytes() == np.asarray(want, array.dtype).tobytes()

    attempt(run)


@given(
    ANYTHING | st.lists(INTEGERS, max_size=4),
    DTYPES | ANYTHING,
    st.none() | ANYTHING | st.lists(st.integers(-9, 60), max_size=4),
    st.sampled_from("CFAK") | ANYTHING,
    st.sampled_from(["device_array", "zeros", "pinned_array", "mapped_array", "managed_array"]),
)
def test_any_layout_is_made_as_asked_for(shape: Any, dtype: Any, strides: Any, order: Any, verb: str) -> None:
    def run() -> None:
        made = getattr(dm, verb)(shape, dtype, order=order, **({} if verb == "zeros" else {"strides": strides}))
        assert made.dtype == np.dtype(dtype) or made.dtype.kind in "SU"
        assert made.size == math.prod(made.shape)
        if 0 < made.nbytes <= 4096:
            made[...] = np.zeros((), made.dtype)
            assert np.asarray(made).tobytes() == bytes(made.nbytes)

    attempt(run, *([OverflowError] if is_huge(dtype) else []))


def is_huge(dtype: Any) -> bool:
    """What NumPy itself fails at with OverflowError."""
    try:
        np.dtype(dtype)
    except OverflowError:
        return True
    except Exception:
        pass
    return False
