"""Files that devmem has written, damaged: safetensors, snapshots, traces and logs, and what a store has on disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm
from devmem.api.memory_reports import SNAPSHOT_FORMAT
from devmem.cli import view

from .conftest import attempt

#: What JSON can say.
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([2**63, 2**70, -(2**63), float("nan"), float("inf"), 1e308])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
#: Texts that are no JSON, or that go too deep.
TEXTS = st.sampled_from(["", "[" * 9000, '{"a":' * 2000, "9" * 5000, "\0", "[1,", "{}", "[]", "null", '"\ud800"'])

DTYPES = st.sampled_from(["F32", "I16", "U8", "BOOL", "F64", "C64", "F8_E5M2", "BF16", "V3", "O", "<f4", ""])
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": DTYPES | JSON,
        "shape": st.lists(st.integers(0, 4), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 70), min_size=2, max_size=2) | JSON,
    },
)
NUMBERS = {"F32": "<f4", "I16": "<i2", "U8": "u1", "BOOL": "?", "F64": "<f8", "C64": "<c8"}


@st.composite
def safetensors(draw: st.DrawFn) -> bytes:
    """A file of 64 bytes of elements behind a header of any contents."""
    right = {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]}
    header: Any = draw(st.dictionaries(st.text("ab", max_size=2), ENTRIES | st.just(right) | JSON, max_size=3) | JSON)
    if isinstance(header, dict) and draw(st.booleans()):
        header["__metadata__"] = draw(st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2) | JSON)
    text = draw(st.just(json.dumps(header).encode()) | TEXTS.map(lambda each: each.encode("utf-8", "surrogatepass")))
    length = draw(st.just(len(text)) | st.sampled_from([0, 1, 2**63, 2**64 - 1, 100_000_001, len(text) + 65]))
    return struct.pack("<Q", length) + text + bytes(range(64))


def expected(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a right file, read by hand."""
    (length,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], NUMBERS[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }


@given(safetensors())
def test_any_safetensors_file_gives_its_arrays_or_is_told(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    path.write_bytes(content)

    def run() -> None:
        seen = dm.load(path)
        if {str(each.dtype) for each in seen.values()} & {"bfloat16", "float8_e5m2"}:
            return
        want = expected(content)
        assert {name: (each.shape, each.dtype) for name, each in seen.items()} == {
            name: (each.shape, each.dtype) for name, each in want.items()
        }
        assert all(seen[name].copy_to_host().tobytes() == want[name].tobytes() for name in want)

    told = attempt(run)
    assert not told or (told.startswith("LayoutError") and str(path) in told), told


BLOCK = st.fixed_dictionaries(
    {}, optional={"address": JSON, "nbytes": JSON, "site": JSON, "device": JSON, "kind": JSON, "ts": JSON, "dur": JSON}
)
EVENT = st.fixed_dictionaries(
    {
        "ph": st.just("X") | JSON,
        "ts": st.integers(0, 9) | JSON,
        "dur": st.integers(0, 9) | JSON,
        "name": JSON,
        "tid": JSON,
    },
    optional={"args": JSON},
)
RECORD = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["allocate", "deallocate"]) | JSON,
        "address": JSON,
        "nbytes": JSON,
        "stream": JSON,
        "t": JSON,
    },
    optional={"frames": JSON},
)
FRAME = st.lists(st.text(max_size=3) | st.integers(0, 9) | JSON, max_size=4)


@given(
    st.builds(
        lambda blocks, more: json.dumps({"format": SNAPSHOT_FORMAT, **more, **blocks}),
        st.fixed_dictionaries(
            {}, optional={"blocks": st.lists(BLOCK | JSON, max_size=3) | JSON, "devices": JSON, "taken_at": JSON}
        ),
        st.dictionaries(st.text(max_size=2), JSON, max_size=1),
    )
    | st.lists(EVENT | JSON, max_size=4).map(json.dumps)
    | st.lists(RECORD | JSON, max_size=4).map(lambda each: "\n".join(map(json.dumps, each)))
    | TEXTS
    | TEXTS.map(lambda text: f'{{"format": "{SNAPSHOT_FORMAT}", "blocks": {text}')
)
def test_any_document_is_shown_or_told(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "document"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        assert "<html" in view.page([view.document(path)])
    except view.NotShown as error:
        assert str(path) in str(error)  # noqa: PT017


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000) | st.none()), max_size=3))
def test_any_file_of_a_store_that_was_cut_short_is_told(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int | None]]
) -> None:
    """Cut, or removed; the other keys are whole."""
    values: list[Any] = [
        np.arange(600.0),
        {"a": np.arange(3), "b": "text"},
        np.full(4000, 7, "u1"),
        [np.ones(5, "i2"), 3],
    ]

    def run() -> None:
        with dm.spill.Store("0B", "0B", tmp_path_factory.mktemp("store", numbered=True)) as store:
            for number, value in enumerate(values):
                moved = dm.to_device(value) if isinstance(value, np.ndarray) else dm.to_device_many(value)
                store[number] = moved
                del moved
            store.spill()
            store.spill(tier="host")
            files = {number: _file_of(store, number) for number in range(4)}
            damaged = set()
            for number, nbytes in cuts:
                path = files[number]
                if path is None:
                    continue
                damaged.add(number)
                if nbytes is None:
                    path.unlink(missing_ok=True)
                elif path.exists():
                    with path.open("r+b") as file:
                        file.truncate(min(nbytes, path.stat().st_size))
            for number, value in enumerate(values):
                try:
                    found = store[number]
                except (dm.LayoutError, OSError) as error:
                    assert number in damaged, error  # noqa: PT017
                else:
                    _compare(found, value)

    attempt(run)


def _file_of(store: Any, key: int) -> Path | None:
    file = store._entries[key].place.file
    return None if file is None else Path(file.path)


def _compare(found: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        assert np.array_equal(found.copy_to_host(), value)
    elif isinstance(value, dict):
        for name in value:
            _compare(found[name], value[name])
    elif isinstance(value, list):
        for one, other in zip(found, value, strict=True):
            _compare(one, other)
    else:
        assert found == value
