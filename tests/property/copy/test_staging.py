"""Staged copies of any layout through slots of any size, on streams that are late, against NumPy, byte by byte, gaps included."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

import devmem as dm
from devmem._core.base import config
from devmem._core.copy import host_copy
from devmem._core.copy.staging import Ring, workers
from devmem.spi.types import Capability

Array = np.ndarray[Any, Any]

RECORD = np.dtype([("a", "u1"), ("b", ">i4"), ("c", "<f8", (2,))], align=True)
DTYPES = ["?", "u1", "<i2", ">i4", "<f8", "<c16", "<M8[ns]", "S3", "V7", RECORD]
SHAPES = array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=9)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Parts of a few bytes, so that several threads work on small arrays too; everything is staged, whatever its size."""
    dm.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "PART", 64)
        for name, value in {"LONG": 4, "STRIP": 3, "LINE": 8}.items():
            patch.setattr(host_copy, name, value)
        patch.setenv("DEVMEM_STAGING_THRESHOLD", "0")
        if dm.current_device().opened().ring.threshold > 1:
            pytest.skip("this device has no page-locked memory")
        yield
    dm.close()


@contextlib.contextmanager
def ring(slots: int, slot_bytes: int, threads: int) -> Iterator[None]:
    """The device with a ring like this. Opening it anew for each example would take longer than all else."""
    opened = dm.current_device().opened()
    before = opened.ring

    def use(ring: Ring) -> None:
        opened.ring = opened.copies.ring = ring
        opened.copies.slot_bytes = ring.slot_bytes

    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"SLOTS": slots, "SLOT_BYTES": slot_bytes, "THREADS": threads}.items():
                patch.setenv(f"DEVMEM_STAGING_{name}", str(value))
            config.forget()
            use(Ring(opened.handle, opened.completions, opened.streams, opened.statistics))
        config.forget()
        yield
        assert len(opened.ring.made) <= slots
        assert set(opened.ring.free_slots()) == set(opened.ring.made)
    finally:
        dm.synchronize()
        with dm.current_device().entered():
            opened.ring.close()
        use(before)


rings = st.tuples(st.integers(1, 3), st.integers(1, 400), st.integers(1, 4))


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...] | None = None, dtype: Any = None) -> tuple[Any, Array]:
    """How to take a view of this shape from a base, and the base, with arbitrary bytes."""
    shape = draw(SHAPES) if shape is None else shape
    dtype = np.dtype(draw(st.sampled_from(DTYPES))) if dtype is None else dtype
    axes = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3, -1, -2])) for _ in shape]
    before = [draw(st.sampled_from([0, 0, 1])) for _ in shape]
    lengths = [start + length * abs(step) for start, length, step in zip(before, shape, steps, strict=True)]
    base = random([lengths[axis] for axis in axes], dtype, draw(st.integers(0, 999)))

    def take(array: Any) -> Any:
        turned = array.transpose([axes.index(axis) for axis in range(len(shape))])
        key = []
        for start, length, step in zip(before, shape, steps, strict=True):
            stop = start + (length - 1) * abs(step) + 1
            key.append(slice(start, stop, step) if step > 0 else slice(stop - 1, start - 1 if start else None, step))
        return turned[tuple(key)]

    return take, base


def random(shape: Any, dtype: np.dtype[Any], seed: int) -> Array:
    nbytes = math.prod(shape) * dtype.itemsize
    found = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, nbytes, np.uint8)
    return found.view(dtype).reshape(shape)


def raw(array: Array) -> Array:
    return array.view(f"V{array.itemsize}")


def same(got: Array, expected: Array) -> bool:
    return got.shape == expected.shape and raw(got).tobytes() == raw(expected).tobytes()


@given(st.data(), rings)
def test_a_staged_array_comes_back_unchanged(late: Any, data: st.DataObject, how: tuple[int, int, int]) -> None:
    take, base = data.draw(views())
    host = take(base)
    stream = dm.stream()
    with ring(*how):
        with late(0, data):
            there = dm.to_device(host)
            assert same(there.copy_to_host(), host)
        with late(stream, data):
            assert same(dm.copy_async(there, stream=stream).result(), host)


@given(st.data(), rings, st.booleans())
def test_up_into_any_layout(late: Any, data: st.DataObject, how: tuple[int, int, int], named: bool) -> None:
    take, base = data.draw(views())
    shape = take(base).shape
    from_take, from_base = data.draw(views(shape, base.dtype))
    source = from_take(from_base)
    expected = raw(base).copy()
    take(expected)[...] = raw(source)
    there = dm.to_device(base)
    stream = dm.stream() if named else 0
    with ring(*how), late(stream, data):
        take(there).copy_to_device(source, stream=stream)
        source[...] = np.zeros((), base.dtype)  # it was read when the call returned
        dm.synchronize()
    assert same(there.copy_to_host(), expected.view(base.dtype))


@given(st.data(), rings, st.sampled_from(["blocking", "named", "async"]))
def test_down_into_any_layout(late: Any, data: st.DataObject, how: tuple[int, int, int], call: str) -> None:
    take, base = data.draw(views())
    shape = take(base).shape
    to_take, to_base = data.draw(views(shape, base.dtype))
    expected = raw(to_base).copy()
    to_take(expected)[...] = raw(take(base))
    there = dm.to_device(base)
    stream = dm.stream() if call == "named" else 0
    with ring(*how), late(stream, data):
        target = to_take(to_base)
        if call == "async":
            dm.copy_async(take(there), target).wait()
        else:
            take(there).copy_to_host(target, stream=stream)
    assert same(to_base, expected.view(base.dtype))
    assert same(there.copy_to_host(), base)


@given(st.data(), rings)
def test_an_array_comes_back_from_a_file_unchanged(
    late: Any, tmp_path_factory: Any, data: st.DataObject, how: tuple[int, int, int]
) -> None:
    take, base = data.draw(views())
    host, there = take(base), dm.to_device(base)
    path = tmp_path_factory.getbasetemp() / "a.npy"
    stream = dm.stream()
    with ring(*how):
        with late(0, data):
            dm.save(take(there), path)
        assert same(np.load(path), host)
        with late(stream, data):
            again = dm.load(path, stream=stream)
            path.unlink()
            assert same(dm.copy_async(again, stream=stream).result(), host)


@given(st.data(), rings, st.booleans())
def test_from_another_device(late: Any, data: st.DataObject, how: tuple[int, int, int], named: bool) -> None:
    here = dm.current_device()
    others = [each for each in dm.devices() if each.backend == here.backend and each != here]
    if not others:
        pytest.skip(f"{here.backend} has one device only")
    take, base = data.draw(views())
    from_take, from_base = data.draw(views(take(base).shape, base.dtype))
    expected = raw(base).copy()
    take(expected)[...] = raw(from_take(from_base))
    target, source = dm.to_device(base), dm.to_device(from_base, device=others[0])
    stream = dm.stream() if named else 0
    opened = here.opened()
    with ring(*how), pytest.MonkeyPatch.context() as patch, late(stream, data):
        if data.draw(st.booleans()):  # neither reaches the other's memory
            patch.setattr(opened.handle, "capabilities", opened.handle.capabilities - {Capability.PEER})
        take(target).copy_to_device(from_take(source), stream=stream)
        source.copy_to_device(np.zeros(source.shape, source.dtype))  # it was read when the call returned
        dm.synchronize()
    assert same(target.copy_to_host(), expected.view(base.dtype))
