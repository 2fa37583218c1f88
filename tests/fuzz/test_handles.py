"""Handles of memory, and what pickles of them may give: the memory that was shared, or an error before it is touched."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm
from devmem._core.device.device import device_at

from .conftest import ANYTHING, INTEGERS, attempt

#: Another process: it shares an array, and lives until its input is closed.
SHARING = """
import pickle, sys
import numpy as np
import devmem as dm

with dm.use_memory(dm.memory.DriverMemory()):
    array = dm.to_device(np.arange(96, dtype="u1"))
sys.stdout.write(pickle.dumps(array.get_ipc_handle()).hex() + "\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[dm.IpcHandle]:
    """A right handle of 96 bytes with the values 0 to 95."""
    if "ipc" not in dm.current_device().info.capabilities:
        # The checks of the fields need no driver.
        yield dm.IpcHandle("none", "none", 96, 0, (96,), np.dtype("u1"), (1,), bytes(64), 1)
        return
    command = [sys.executable, "-c", SHARING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield pickle.loads(bytes.fromhex(process.stdout.readline()))
        assert process.stdin is not None
        process.stdin.close()


SMALL = st.integers(0, 8) | st.integers(-3, 100)
FIELDS = {
    "backend": st.sampled_from(["host", "cuda", "roc", "", "x"]) | ANYTHING,
    "uuid": st.text(max_size=4) | ANYTHING,
    "nbytes": SMALL | INTEGERS | ANYTHING,
    "offset": SMALL | INTEGERS | ANYTHING,
    "shape": st.lists(SMALL, max_size=3).map(tuple) | st.lists(INTEGERS, max_size=3).map(tuple) | ANYTHING,
    "dtype": st.sampled_from([*map(np.dtype, ["u1", "<f4", ">i2", "O", "V0", "V3", "S2", "(2,)u1", "c16"])]) | ANYTHING,
    "strides": st.lists(st.integers(-9, 9), max_size=3).map(tuple)
    | st.lists(INTEGERS, max_size=3).map(tuple)
    | ANYTHING,
    "raw": st.binary(max_size=70) | st.just(bytes(64)) | ANYTHING,
    "process": st.integers(0, 9) | ANYTHING,
}


def forged(handle: dm.IpcHandle, changes: dict[str, Any], missing: list[str]) -> dm.IpcHandle:
    """What `pickle` makes of a handle whose fields were changed: the class is not asked."""
    made = object.__new__(dm.IpcHandle)
    fields = {**vars(handle), **changes}
    for name, value in fields.items():
        if name not in missing:
            object.__setattr__(made, name, value)
    return made


def addressed(fields: dict[str, Any]) -> Any:
    """The bytes that the fields describe, one by one: of the values 0 to 95, each value is its own address."""
    shape, strides, itemsize = fields["shape"], fields["strides"], fields["dtype"].itemsize
    content = [
        fields["offset"] + sum(at * step for at, step in zip(place, strides, strict=True)) + byte
        for place in itertools.product(*map(range, shape))
        for byte in range(itemsize)
    ]
    assert all(0 <= each < 96 for each in content), "beyond the memory that is shared"
    return bytes(content)


@given(
    st.dictionaries(st.sampled_from(sorted(FIELDS)), st.none(), max_size=4),
    st.lists(st.sampled_from(sorted(FIELDS)), max_size=1),
    st.data(),
)
def test_any_handle_opens_what_was_shared_or_nothing(
    shared: dm.IpcHandle, names: dict[str, None], missing: list[str], data: st.DataObject
) -> None:
    changes = {name: data.draw(FIELDS[name], name) for name in names}
    if data.draw(st.booleans()):
        missing = []
    handle = forged(shared, changes, missing)

    def run() -> None:
        seen = dm.open_ipc_array(handle)
        assert "raw" not in changes or changes["raw"] == shared.raw
        assert not missing
        assert seen.nbytes <= 96
        assert seen.copy_to_host().tobytes() == addressed(vars(handle))

    attempt(run)


@given(
    st.lists(SMALL, max_size=3).map(tuple) | ANYTHING,
    FIELDS["dtype"] | st.none(),
    st.lists(st.integers(0, 30), max_size=3) | st.none() | ANYTHING,
)
def test_any_layout_of_a_handle_lies_in_its_memory(shared: dm.IpcHandle, shape: Any, dtype: Any, strides: Any) -> None:
    def run() -> None:
        seen = dm.open_ipc_array(shared, shape, dtype, strides)
        described = {"offset": 0, "shape": seen.shape, "strides": seen.strides, "dtype": seen.dtype}
        assert seen.copy_to_host().tobytes() == addressed(described)

    attempt(run)


@given(ANYTHING | st.sampled_from(["host", "cuda", "roc", "x"]), INTEGERS | ANYTHING)
def test_any_device_out_of_a_pickle_is_one_or_told(backend: Any, ordinal: Any) -> None:
    def run() -> None:
        found = device_at(backend, ordinal)
        found.memory_info()
        assert str(found) in [str(each) for each in dm.devices()]

    attempt(run)
