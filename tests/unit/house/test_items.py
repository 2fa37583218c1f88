"""Public classes with items answer what Python and NumPy would otherwise guess from ``__getitem__``, or refuse."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import devmem as dm
from devmem.kernels.kernel import Kernel

MODULES = ["devmem", "devmem.memory", "devmem.spill"]


def with_items() -> list[type]:
    """The public classes of ours with items that are neither ndarrays nor tuples, which answer everything."""
    found = [
        getattr(importlib.import_module(name), each) for name in MODULES for each in dir(importlib.import_module(name))
    ]
    classes = {each for each in found if isinstance(each, type) and each.__module__.startswith("devmem")}
    return sorted(
        (each for each in classes if hasattr(each, "__getitem__") and not issubclass(each, (tuple, np.ndarray))),
        key=lambda each: each.__name__,
    )


def test_there_are_such_classes():
    assert {dm.DeviceNDArray, dm.DeviceRecord, dm.SmartArray, dm.ArrayFile} <= set(with_items())


@pytest.mark.parametrize("kind", with_items(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", ["__iter__", "__len__", "__eq__", "__hash__"])
def test_a_class_with_items_has_its_own_answer(kind, protocol):
    """Python would iterate with 0, 1, 2 and so on, and compare and hash by identity: that has to be meant."""
    assert any(protocol in vars(base) for base in kind.__mro__[:-1])


@pytest.mark.parametrize("kind", [dm.DeviceNDArray, dm.DeviceRecord, dm.SmartArray], ids=lambda kind: kind.__name__)
def test_an_array_converts_itself(kind):
    """NumPy would make an array of objects."""
    assert hasattr(kind, "__array__") and hasattr(kind, "__bool__")


def test_a_kernel_refuses_to_be_taken_for_a_sequence():
    """Its items are configurations, of which there is no first."""

    @dm.kernel
    def nothing(x):
        pass

    assert isinstance(nothing, Kernel)
    for guess in (list, iter_once, lambda k: 0 in k, reversed, len):
        with pytest.raises(TypeError):
            guess(nothing)


def iter_once(kernel):
    return next(iter(kernel))


@pytest.mark.parametrize("make", [dm.spill.Store], ids=["Store"])
def test_which_mapping_it_is_decides_and_nothing_moves(make):
    with dm.use_backend("host"), make() as store, make() as other:
        store["x"] = dm.zeros(3)
        other["x"] = dm.zeros(3)
        assert store == store
        assert store != other
        assert len({store, other}) == 2
