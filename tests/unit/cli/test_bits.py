from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from devmem.cli import bitwise_compare
from devmem.cli.bitwise_compare import first_difference

DTYPES = [
    "?",
    "i1",
    "<i2",
    ">i4",
    "u8",
    "f2",
    "<f4",
    ">f8",
    "c8",
    "c16",
    "g",
    "G",
    "S5",
    "U3",
    "V7",
    "M8[s]",
    "m8[ns]",
    "S0",
]

VIEWS = [
    lambda a: a,
    np.asfortranarray,
    lambda a: a.T,
    lambda a: a[::-1, ::-2],
    lambda a: a[1:-1, 1:],
    lambda a: np.broadcast_to(a[0], a.shape),
    lambda a: a[:0],
    lambda a: a[0, 0],
]


def filled(dtype, shape=(4, 6)):
    dtype = np.dtype(dtype)
    pattern = np.arange(int(np.prod(shape)) * max(1, dtype.itemsize), dtype=np.uint8)
    if dtype.kind in "?U":  # not every bit pattern is a bool or a character
        return (pattern[: int(np.prod(shape))] % 2).reshape(shape).astype(dtype)
    return np.frombuffer(pattern.tobytes(), dtype).reshape(shape) if dtype.itemsize else np.empty(shape, dtype)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_bytes_are_the_same(dtype, view):
    array = np.asarray(view(filled(dtype)))
    assert first_difference(array, array.copy()) is None


@pytest.mark.parametrize("dtype", [kind for kind in DTYPES if kind != "S0"])
def test_one_changed_bit_is_found_and_named(dtype):
    array = filled(dtype)
    other = array.copy()
    other.view(np.uint8).reshape(4, 6, -1)[2, 3, 0] ^= 1
    assert str(first_difference(array, other)).startswith("[2, 3] is ")


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.complex64, np.int16, np.bool_]), hnp.array_shapes(min_dims=0)
    ),
    st.data(),
)
def test_any_flipped_bit_is_found(array, data):
    other = array.copy()
    flat = other.reshape(-1).view(np.uint8)
    flat[data.draw(st.integers(0, flat.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert first_difference(array, array.copy()) is None
    assert first_difference(array, other) is not None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (0.0, -0.0),
        (np.frombuffer(b"\x01\0\0\0\0\0\xf8\x7f")[0], np.nan),
    ],
)
def test_values_that_print_the_same_differ(left, right):
    assert first_difference(np.array([left]), np.array([right])) is not None


def test_nan_is_the_same_as_itself():
    assert first_difference(np.array([np.nan]), np.array([np.nan])) is None


def test_shape_and_dtype_count():
    assert "shape" in str(first_difference(np.zeros(3), np.zeros((3, 1))))
    assert "dtype" in str(first_difference(np.zeros(3, "<i4"), np.zeros(3, ">i4")))
    assert "dtype" in str(first_difference(np.zeros(3, "M8[s]"), np.zeros(3, "M8[ms]")))


def test_padding_of_records_does_not_count():
    dtype = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    left = np.zeros(3, dtype)
    raw = np.full(left.nbytes, 0xAA, np.uint8)
    right = raw.view(dtype)
    right["a"], right["b"] = 0, 0
    assert left.tobytes() != right.tobytes()
    assert first_difference(left, right) is None


def test_fields_of_records_count_however_deep():
    dtype = np.dtype([("id", "i4"), ("at", [("xyz", "f4", (3,)), ("tag", "S3")])])
    left = np.zeros((2, 2), dtype)
    right = left.copy()
    right["at"]["xyz"][1, 0, 2] = -0.0
    assert str(first_difference(left, right)).startswith("at.xyz[1, 0, 2] is ")


def test_padding_of_long_doubles_does_not_count():
    if np.dtype(np.longdouble).itemsize == bitwise_compare.LONG_DOUBLE_BYTES:
        pytest.skip("long double has no padding here")
    left = np.ones(2, np.clongdouble)
    right = left.copy()
    right.view(np.uint8)[bitwise_compare.LONG_DOUBLE_BYTES] ^= 0xFF
    assert first_difference(left, right) is None
    right.view(np.uint8)[0] ^= 1
    assert first_difference(left, right) is not None


@pytest.mark.parametrize("shape", [(1000,), (2, 500), (3, 4, 100)])
def test_the_last_element_of_many_chunks_is_compared(monkeypatch, shape):
    monkeypatch.setattr(bitwise_compare, "CHUNK", 64)
    left = np.zeros(shape)
    right = left.copy()
    last = tuple(n - 1 for n in shape)
    right[last] = 1
    assert str(first_difference(left, right)).startswith(f"[{', '.join(map(str, last))}]")
