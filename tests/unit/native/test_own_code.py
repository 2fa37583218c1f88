"""Code of an object's own that runs while the compiled core is called: an interrupt in it is told, and what it does counts."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from table_driver import TableBackend

import devmem as dm
from devmem import _native

pytestmark = pytest.mark.skipif(_native.core is None, reason=_native.why)
HOST = np.arange(16.0)


@pytest.fixture(autouse=True)
def backend():
    made = TableBackend("own-code")
    dm.register_backend(made)
    try:
        with dm.use_backend(made.name):
            dm.to_device(HOST).free()
            yield made
    finally:
        dm.unregister_backend(made.name)


@pytest.fixture
def interrupt():
    """Raises when it is called for the first time, as a signal's handler does that comes there."""
    calls = []

    def once():
        calls.append(None)
        if len(calls) == 1:
            raise KeyboardInterrupt

    return once


def test_in_the_bounds_of_a_slice(interrupt):
    class Bound:
        def __index__(self):
            interrupt()
            return 3

    array = dm.to_device(HOST)
    with pytest.raises(KeyboardInterrupt):
        array[Bound() :]
    assert array[Bound() :].shape == (13,)


def test_in_the_hash_of_what_stands_for_a_dtype(interrupt):
    class Kind:
        dtype = np.dtype("f4")

        def __hash__(self):
            interrupt()
            return 3

    kind = Kind()
    with pytest.raises(KeyboardInterrupt):
        dm.device_array(3, kind)
    assert dm.device_array(3, kind).dtype == np.float32


def test_in_the_class_of_what_is_imported(interrupt):
    class Lazy(type):
        def __getattr__(cls, name):
            interrupt()
            raise AttributeError(name)

    class Tensor(metaclass=Lazy):
        def __dlpack__(self, **asked):
            return array.__dlpack__(**asked)

        def __dlpack_device__(self):
            return array.__dlpack_device__()

    array = dm.to_device(HOST)
    with pytest.raises(KeyboardInterrupt):
        dm.from_dlpack(Tensor())
    assert dm.from_dlpack(Tensor()).shape == (16,)


@pytest.mark.skipif(
    not hasattr(dm.DeviceNDArray, "__dlpack_c_exchange_api__"), reason="NumPy makes no versioned capsules"
)
def test_in_the_export_by_another_class_s_table(interrupt):
    class Other(dm.DeviceNDArray):
        __slots__ = ()

    def trace(frame, event, argument):
        if frame.f_code.co_name == "_table_export":
            interrupt()

    array, before = dm.to_device(HOST, stream=dm.stream()), sys.gettrace()
    array.__class__ = Other
    try:
        sys.settrace(trace)
        with pytest.raises(KeyboardInterrupt):
            dm.from_dlpack(array)
    finally:
        sys.settrace(before)
    assert dm.from_dlpack(array).shape == (16,)


def test_copies_by_finalizers_are_counted_while_the_counters_are_taken():
    class Copies:
        def __init__(self):
            self.itself = self

        def __del__(self):
            dm.to_device(HOST, to=array)

    array, before, rounds = dm.to_device(HOST), gc.get_threshold(), 50
    take = array.open_device.handle.lane.take
    taken = [take(True)]
    # Tuples that were freed are used again, and no collection begins with these: all of them are in use.
    used = [tuple([number] * length) for number in range(2100) for length in (2, 4)]
    try:
        for _ in range(rounds):
            gc.disable()
            Copies()
            gc.set_threshold(1)
            gc.enable()
            taken.append(take(True))
    finally:
        gc.set_threshold(*before)
        gc.enable()
    gc.collect()
    taken.append(take(True))
    assert used
    assert sum(uploads[0] for uploads, _ in taken[1:]) == rounds
