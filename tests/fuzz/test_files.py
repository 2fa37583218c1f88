"""Headers of files, damaged and forged: the array that NumPy reads, or LayoutError before anything is allocated."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm

from .conftest import ANYTHING, INTEGERS, attempt

DTYPES = st.sampled_from(
    [
        "<f4",
        ">i2",
        "|u1",
        "|b1",
        "<c16",
        "|V3",
        "|S2",
        "<U1",
        "<M8[s]",
        "|O",
        "|V2147483647",
        "<f3",
        "",
        "O",
        "|V0",
        "float",
        "(2,)<i4",
    ]
)
DESCRS = DTYPES | st.lists(st.tuples(st.text("ab", max_size=2), DTYPES), max_size=3) | ANYTHING
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple) | st.lists(INTEGERS, max_size=3).map(tuple) | ANYTHING
TEXTS = st.sampled_from(
    [
        "(" * 500,
        "-" * 9000 + "1",
        "{" * 3000,
        "'" + "a" * 9000,
        "1" * 5000,
        "[" * 60 + "]" * 60,
        "__import__('os')",
        "\0",
    ]
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A .npy file: a right one with some bytes changed or cut off, or a header of any contents."""
    body = bytes(range(200))
    if draw(st.booleans()):
        file = io.BytesIO()
        dtype = draw(st.sampled_from(["<f4", ">i2", "|u1", "|b1", [("a", "<i4"), ("b", "|u1")]]))
        array = np.frombuffer(body[: np.dtype(dtype).itemsize * 12], dtype).reshape(3, 4)
        np.save(file, array if draw(st.booleans()) else array.T)
        content = bytearray(file.getvalue())
        for at in draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
            content[at] = draw(st.integers(0, 255))
        return bytes(content[: draw(st.integers(0, len(content)) | st.just(len(content)))])
    facts: Any = {"descr": draw(DESCRS), "fortran_order": draw(st.booleans() | ANYTHING), "shape": draw(SHAPES)}
    for name in draw(st.lists(st.sampled_from([*facts]), max_size=1)):
        del facts[name]
    try:
        text = draw(TEXTS | st.just(repr(facts)))
    except ValueError:  # an integer too long to be written
        text = "{}"
    raw = (text + "\n").encode("utf-8", "replace")
    major = draw(st.sampled_from([1, 2, 3, 3, 0, 4, 255]))
    length = draw(st.just(len(raw)) | st.sampled_from([0, 2**16 - 1, 2**32 - 1, 2**31]))
    form, most = ("<H", 2**16 - 1) if major == 1 else ("<I", 2**32 - 1)
    return b"\x93NUMPY" + bytes((major, 0)) + struct.pack(form, min(length, most)) + raw + body


def read_by_numpy(path: Path) -> Any:
    """NumPy's array; None if it refuses the file."""
    try:
        with path.open("rb") as file:
            return np.load(file, allow_pickle=False)
    except Exception:
        return None


@pytest.mark.filterwarnings("ignore")
@given(files())
def test_any_header_gives_what_numpy_reads_or_is_told(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.npy"
    path.write_bytes(content)
    want = read_by_numpy(path)

    def run() -> None:
        seen = dm.load(path)
        assert want is not None, "NumPy refuses it"
        assert (seen.shape, seen.dtype) == (want.shape, want.dtype)
        assert seen.copy_to_host().tobytes("A") == want.tobytes("A")

    told = attempt(run)
    assert not told or (told.startswith("LayoutError") and str(path) in told), told


@given(
    st.binary(max_size=64),
    DTYPES | ANYTHING,
    st.integers(0, 20) | INTEGERS | ANYTHING,
    st.integers(-2, 70) | ANYTHING,
)
def test_any_raw_file_gives_what_numpy_reads_or_is_told(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, dtype: Any, shape: Any, offset: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "raw.bin"
    path.write_bytes(content)

    def run() -> None:
        seen = dm.load(path, dtype=dtype, shape=shape, offset=offset)
        start = offset.__index__()
        assert seen.copy_to_host().tobytes() == content[start : start + seen.nbytes]

    attempt(run)
