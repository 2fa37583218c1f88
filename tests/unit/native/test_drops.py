"""What was dropped is freed by the compiled core, also where streams exist; but never while one of them captures a graph."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from table_driver import TableBackend, TableDriver

import devmem as dm
from devmem import _native
from devmem._core.device.device import current_open_device
from devmem.spi.types import Capability

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)
HOST = np.arange(16.0)
#: So many dropped blocks are pending before all are freed at once.
LIMIT = 10


class CapturingDriver(TableDriver):
    """Its streams can capture a graph: those in `captures` do."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.info = dataclasses.replace(self.info, capabilities=self.info.capabilities | {Capability.CAPTURE})
        self.captures = set()

    def capturing(self, stream):
        self.saw("capturing", stream)
        return stream in self.captures


class CapturingBackend(TableBackend):
    def open(self, ordinal):
        self.driver = CapturingDriver(self.name, ordinal)
        return self.driver


@pytest.fixture
def driver():
    made = CapturingBackend("drops")
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            dm.to_device(HOST).free()
            made.driver.calls.clear()
            yield made.driver
    finally:
        dm.unregister_backend(made.name)


@pytest.fixture
def python_drains(monkeypatch):
    """How often the queue was freed in Python."""
    queue, drains = current_open_device().free_queue, []
    drain = type(queue).drain
    monkeypatch.setattr(type(queue), "drain", lambda queue: drains.append(None) or drain(queue))
    return drains


def freed(driver):
    return sum(call[0] == "free" for call in driver.calls)


def test_streams_that_capture_nothing_leave_it_to_the_core(driver, python_drains):
    streams = [dm.stream(), dm.stream()]
    driver.calls.clear()
    for _ in range(LIMIT + 2):
        dm.to_device(HOST)
    assert freed(driver) == LIMIT + 1
    assert [call[1] for call in driver.calls if call[0] == "capturing"] == [stream.handle for stream in streams]
    assert not python_drains


def test_nothing_is_freed_while_a_stream_captures(driver):
    stream, other = dm.stream(), dm.stream()
    driver.captures = {other.handle}
    for _ in range(3 * LIMIT):
        dm.to_device(HOST)
    assert freed(driver) == 0
    driver.captures = set()
    dm.to_device(HOST)
    assert freed(driver) == 3 * LIMIT
    assert not stream.closed


def test_what_is_dropped_while_the_streams_are_asked_waits_for_the_next_time(driver, python_drains, monkeypatch):
    stream, kept = dm.stream(), [dm.to_device(HOST)]
    ask = driver.capturing
    monkeypatch.setattr(driver, "capturing", lambda handle: kept.clear() or ask(handle))
    for _ in range(LIMIT + 2):
        dm.to_device(HOST)
    assert freed(driver) == LIMIT + 1
    assert not kept
    assert not python_drains
    dm.trim()
    assert freed(driver) == LIMIT + 3
    assert not stream.closed


def test_a_failure_to_ask_is_told_and_loses_nothing(driver, monkeypatch):
    stream = dm.stream()

    def fail(handle):
        raise dm.BackendError("no answer", backend="drops", call="capturing", code=1, name="1")

    for _ in range(LIMIT + 1):
        dm.to_device(HOST)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "capturing", fail)
        with pytest.raises(dm.BackendError, match="no answer"):
            dm.to_device(HOST)
    assert freed(driver) == 0
    dm.to_device(HOST)
    assert freed(driver) == LIMIT + 1
    assert not stream.closed


@pytest.mark.parametrize("shape", [16, (16,), (2, 8), (2, 2, 2, 2), ()])
@pytest.mark.parametrize("dtype", [np.float64, "f8", "float64", np.dtype("f8"), float, np.int16, "<i2", "?", ">i4"])
def test_arrays_of_any_usual_layout_are_made_without_python(driver, shape, dtype):
    made = [dm.device_array(shape, dtype), dm.device_array(shape, dtype, order="F")]
    expected = np.empty(shape, dtype)
    for array in made:
        assert (array.shape, array.dtype, array.nbytes) == (expected.shape, expected.dtype, expected.nbytes)
        assert type(array.shape) is tuple
    assert made[0].strides == expected.strides
    core_made = _native.core.make(shape, dtype, None, "C", 0)
    assert (core_made is None) == (dtype == ">i4")  # bytes in the other order are Python's


@pytest.mark.parametrize(
    "shape", [True, 2.0, (2, True), (2, 2.0), [2, 3], (0, 4), -1, (1,) * 9, (1 << 40, 1 << 40), "4", None]
)
def test_other_shapes_are_left_to_python(driver, shape):
    assert _native.core.make(shape, np.float64, None, "C", 0) is None


@pytest.mark.parametrize(
    "dtype", [[("x", "f4")], np.dtype([("x", "f4")]), "U4", object, "f8,f8", None, 8, np.dtype("f8", metadata={"a": 1})]
)
def test_other_dtypes_are_left_to_python(driver, dtype):
    assert _native.core.make(4, dtype, None, "C", 0) is None
