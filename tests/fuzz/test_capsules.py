"""Arrays of others that say anything at all: taken if it can be, else refused in one way, and let go of once."""

from __future__ import annotations

import gc
import importlib.util
import weakref
from collections.abc import Iterator
from typing import Any

import crafted
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm
from devmem._core.interop import dlpack

BYTES = 4096
TYPES = {
    **{(0, bits): f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"f{bits // 8}" for bits in (16, 32, 64)},
    **{(5, bits): f"c{bits // 8}" for bits in (64, 128)},
    (6, 8): "b1",
}
#: What NumPy has no types for. DLPack numbers them so.
if importlib.util.find_spec("ml_dtypes"):
    import ml_dtypes

    SMALL = ["e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"]
    ADDED = {(4, 16): "bfloat16", **{(7 + number, 8): f"float8_{name}" for number, name in enumerate(SMALL)}}
else:
    ADDED = {}

LENGTHS = st.integers(0, 6) | st.sampled_from([-1, 1000, 2**31, 2**62, -(2**63), 2**63 - 1])
STEPS = st.integers(-24, 24) | st.sampled_from([-(2**63), 2**63 - 1, 2**40, -(2**40)])
WRONG = {
    "data": st.sampled_from([None, 1, 2**64 - 1, 2**63]),
    "code": st.integers(0, 255),
    "bits": st.integers(0, 255),
    "lanes": st.integers(0, 2**16 - 1),
    "byte_offset": st.integers(0, BYTES) | st.integers(0, 2**64 - 1),
    "shape": st.none(),
    "deleter": st.none(),
    "device_id": st.integers(-(2**31), 2**31 - 1),
    "device_type": st.integers(-1, 20),
}
WRONG_VERSIONED = {"major": st.integers(0, 3), "minor": st.integers(0, 2**32 - 1), "flags": st.integers(0, 2**64 - 1)}
AXES = st.sampled_from([-1, -(2**31), 65, 1000, 2**31 - 1])


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    """What a capsule says, as `crafted.Crafted` takes it; most fields are right, so that what is behind them is reached."""
    shape = tuple(draw(st.lists(LENGTHS, max_size=4)))
    strides = draw(st.none() | st.tuples(*[STEPS] * len(shape)))
    versioned = draw(st.booleans())
    possible = {**WRONG, **(WRONG_VERSIONED if versioned else {})}
    names = draw(st.lists(st.sampled_from([*possible, "ndim"]), max_size=2, unique=True))
    fields = {name: draw(possible[name] if name != "ndim" else AXES | st.integers(0, len(shape))) for name in names}
    dtype = draw(st.sampled_from(sorted(TYPES.values())))
    at = draw(st.integers(0, BYTES // 16)) * 16
    return {"shape": shape, "strides": strides, "versioned": versioned, "fields": fields, "dtype": dtype, "at": at}


class Expected:
    """What a tensor means, worked out the long way round; `refused` if nothing."""

    def __init__(self, tensor: Any) -> None:
        ndim = tensor.ndim
        self.refused = (
            getattr(tensor, "major", 1) != 1
            or (tensor.code, tensor.bits) not in TYPES.keys() | ADDED.keys()
            or tensor.lanes != 1
            or not 0 <= ndim <= 64
            or bool(ndim and not tensor.shape)
        )
        if self.refused:
            return
        kind = tensor.code, tensor.bits
        self.dtype = np.dtype(TYPES[kind] if kind in TYPES else getattr(ml_dtypes, ADDED[kind]))
        self.shape = tuple((crafted.ctypes.c_int64 * ndim).from_address(tensor.shape)) if ndim else ()
        self.empty = 0 in self.shape
        self.refused = any(count < 0 for count in self.shape)
        strides = list((crafted.ctypes.c_int64 * ndim).from_address(tensor.strides)) if tensor.strides and ndim else []
        if not strides:
            step = 1
            for count in reversed(self.shape):
                strides.insert(0, step)
                step *= max(count, 1)
        self.strides = [step * self.dtype.itemsize for step in strides]
        moves = [step * (count - 1) for count, step in zip(self.shape, self.strides, strict=True)]
        self.ptr = (tensor.data or 0) + tensor.byte_offset
        self.low = self.ptr + sum(move for move in moves if move < 0)
        self.high = self.ptr + sum(move for move in moves if move > 0) + self.dtype.itemsize
        if not self.empty and (not tensor.data or self.low <= 0 or self.high > 2**64):
            self.refused = True

    def is_met_by(self, ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        if (shape, dtype) != (self.shape, self.dtype) or ptr != (0 if self.empty else self.ptr):
            return False
        steps = zip(shape, strides, self.strides, strict=True)
        return self.empty or all(count == 1 or ours == theirs for count, ours, theirs in steps)


@given(tensors())
def test_whatever_a_capsule_says(said: dict[str, Any]) -> None:
    """On the wire: no memory is touched, so any address will do."""
    tensor = crafted.Crafted(2**40 + said.pop("at"), **said)
    expected = Expected(tensor.tensor)
    if expected.refused:
        with pytest.raises(BufferError):
            dlpack.take(tensor.capsule)
        assert (tensor.taken, tensor.deleted) == (False, 0)
        return
    ptr, device, (shape, strides, low, nbytes), dtype, flags, owner = dlpack.take(tensor.capsule)
    assert device == (tensor.tensor.device_type, tensor.tensor.device_id)
    assert flags == getattr(tensor.tensor, "flags", 0)
    steps = strides if strides is not None else dlpack.contiguous_strides(shape, dtype.itemsize)
    assert expected.is_met_by(ptr, shape, steps, dtype)
    if not expected.empty:
        assert (ptr + low, ptr + low + nbytes) == (expected.low, expected.high)
    with pytest.raises(BufferError, match="taken before"):
        dlpack.take(tensor.capsule)
    assert tensor.deleted == 0
    del owner
    assert tensor.deleted == (1 if tensor.tensor.deleter else 0)


@pytest.fixture
def block(devmem_backend: str) -> Iterator[Any]:
    """A block of device memory that the fuzzed arrays may lie in."""
    info = dm.current_device().info
    if "pointer_info" not in info.capabilities or info.exchange.device_type == 1:
        pytest.skip("the driver cannot be asked what an address is")
    dm.close()
    with dm.use_memory(dm.memory.DriverMemory()):
        array = dm.zeros(BYTES, "u1")
    yield array
    del array
    gc.collect()
    dm.close()


def is_all_known(low: int, high: int) -> bool:
    """Whether a driver knows every byte; blocks next to each other are one."""
    with dm.current_device().entered() as driver:
        while low < high:
            found = driver.pointer_range(low)
            if found is None:
                return False
            low = found[0] + found[1]
    return True


def unchanged(before: Any) -> bool:
    """Whether nothing of it is in use any more."""
    dm.synchronize()
    dm.trim()
    after = dm.memory_info()
    return bool((after.live, after.pending) == (before.live, before.pending))


@given(tensors())
def test_whatever_an_array_with_dlpack_says(block: Any, said: dict[str, Any]) -> None:
    before = dm.memory_info()
    kind, number = block.__dlpack_device__()
    tensor = crafted.Crafted(block.ptr + said.pop("at"), device=(kind, number), **said)
    expected, lie = Expected(tensor.tensor), (tensor.tensor.device_type, tensor.tensor.device_id) != (kind, number)
    try:
        seen = dm.from_dlpack(tensor)
    except BufferError:
        assert expected.refused or lie or (not expected.empty and not is_all_known(expected.low, expected.high)), (
            "refused for no reason"
        )
    else:
        assert not expected.refused
        assert not lie
        assert expected.empty or is_all_known(expected.low, expected.high)
        assert expected.is_met_by(seen.ptr, seen.shape, seen.strides, seen.dtype)
        assert seen.flags["WRITEABLE"] is not bool(getattr(tensor.tensor, "flags", 0) & 1)
        # Strides of 0 make much of little.
        if 0 < seen.nbytes <= BYTES and block.ptr <= expected.low and expected.high <= block.ptr + BYTES:
            assert seen.copy_to_host().tobytes() == bytes(seen.nbytes)
        del seen
    assert unchanged(before)
    assert tensor.deleted == (1 if tensor.taken and tensor.tensor.deleter else 0)


JUNK = st.sampled_from([None, 0, -1, 1.5, "4", (), [], {}, object(), b"x", True, float("nan"), np.zeros(2)])
NUMBERS = st.integers(0, 5) | st.sampled_from([-1, 2**31, 2**62, 2**64, -(2**70), np.int64(3)])
TYPESTRS = st.sampled_from(["<f4", "|u1", "|b1", "<c16", ">i2", "|V8", "|V0", "|S0", "<M8[s]", "|S3", "<U2"]) | st.text(
    "<>|=iufcbSVUMmO019,()[] :", max_size=6
)
NAMES = st.text("ab", max_size=2)
DESCRS = st.recursive(
    st.lists(st.tuples(NAMES, TYPESTRS) | st.tuples(NAMES, TYPESTRS, st.integers(0, 3)) | JUNK, max_size=3),
    lambda inner: st.lists(st.tuples(NAMES, inner), max_size=2),
    max_leaves=3,
)


@st.composite
def interfaces(draw: st.DrawFn) -> dict[str, Any]:
    """What a CUDA Array Interface says: mostly right, `data` as (offset, whether it is read-only)."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    said: dict[str, Any] = {
        "shape": shape,
        "typestr": draw(st.sampled_from(["<f4", "|u1", "|V8", ">i2"])),
        "data": (draw(st.integers(0, BYTES)), draw(st.booleans())),
        "version": draw(st.integers(0, 3)),
        "strides": draw(st.none() | st.tuples(*[st.integers(-40, 40)] * len(shape))),
        "stream": draw(st.sampled_from([None, None, 1, 2])),
    }
    wrong = {
        "shape": st.lists(NUMBERS | JUNK, max_size=3) | st.lists(NUMBERS, max_size=3).map(tuple) | JUNK,
        "typestr": TYPESTRS | JUNK,
        "data": st.tuples(NUMBERS | JUNK, st.booleans() | JUNK) | JUNK,
        "version": NUMBERS | JUNK,
        "strides": st.lists(NUMBERS | JUNK, max_size=3).map(tuple) | JUNK,
        "stream": st.sampled_from([0, -1, "1", 1.5, 2**70, object(), True]),
        "mask": st.none() | JUNK,
        "descr": DESCRS | JUNK,
    }
    for name in draw(st.lists(st.sampled_from(sorted(wrong)), max_size=2, unique=True)):
        said[name] = draw(wrong[name])
    for name in draw(st.lists(st.sampled_from(sorted(said)), max_size=1)):
        del said[name]
    return said


class Foreign:
    """Another library's array, with an interface and nothing else."""

    def __init__(self, interface: object) -> None:
        self.__cuda_array_interface__ = interface


@given(interfaces() | JUNK)
def test_whatever_a_cuda_array_interface_says(block: Any, said: Any) -> None:
    before = dm.memory_info()
    if isinstance(said, dict) and isinstance(said.get("data"), tuple) and len(said["data"]) == 2:
        at, read_only = said["data"]
        if type(at) is int and 0 <= at <= BYTES:
            said = {**said, "data": (block.ptr + at, read_only)}
    foreign = Foreign(said)
    owner = weakref.ref(foreign)
    try:
        seen = dm.as_device_array(foreign)
    except (dm.LayoutError, dm.UnsupportedError) as error:
        assert "Foreign" in str(error)  # noqa: PT017  (others are failures)
    else:
        assert seen.shape == tuple(said["shape"])
        assert said.get("mask") is None
        assert seen.flags["WRITEABLE"] is not bool(said["data"][1])
        assert seen.dtype.itemsize == np.dtype(said["typestr"]).itemsize
        if seen.nbytes:
            assert seen.ptr == said["data"][0]
            moves = [step * (count - 1) for count, step in zip(seen.shape, seen.strides, strict=True)]
            low, high = seen.ptr + sum(min(move, 0) for move in moves), seen.ptr + sum(max(move, 0) for move in moves)
            assert is_all_known(low, high + seen.itemsize)
            if said.get("strides") is not None:
                assert all(
                    count == 1 or a == b for count, a, b in zip(seen.shape, seen.strides, said["strides"], strict=True)
                )
            if seen.nbytes <= BYTES and block.ptr <= low and high + seen.itemsize <= block.ptr + BYTES:
                assert seen.copy_to_host().tobytes() == bytes(seen.nbytes)
        else:
            assert seen.ptr == 0
        del seen
    del foreign
    assert unchanged(before)
    assert owner() is None
