"""How arguments are flattened: read back from the addresses that a driver is given, as a driver reads them."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

import devmem as dm
from devmem.kernels.compilers import abi


def words(frame, code, *at):
    """What stands at the addresses of these parameters."""
    pointers = (ctypes.c_void_p * (max(at) + 1)).from_address(frame.address)
    size = struct.calcsize(code)
    return [struct.unpack(code, ctypes.string_at(pointers[each], size))[0] for each in at]


def test_an_array_is_flattened_as_a_driver_reads_it(devmem_backend):
    array = dm.to_device(np.zeros((3, 4), np.float32))
    frame = abi.Frame([abi.scalar("i", int), abi.array(2)])
    frame.fill([7, array])
    assert words(frame, "i", 0) == [7]
    assert words(frame, "q", *range(1, 10)) == [0, 0, 12, 4, array.ptr, 3, 4, 16, 4]


def test_arrays_of_other_layouts_in_the_same_frame(devmem_backend):
    base = dm.to_device(np.zeros((6, 4), np.int16))
    frame = abi.Frame([abi.array(2)])
    for array in (base, base[::2], base[::-1], base.T.bind(0)[:2], base[:, 1:3], base[1:1], base):
        frame.fill([array])
        expected = [0, 0, array.size, 2, array.ptr, *array.shape, *array.strides]
        assert words(frame, "q", *range(9)) == expected


def test_arrays_without_axes_and_records(devmem_backend):
    record = dm.to_device(np.zeros(3, [("x", "<i4")]))[1]
    scalar = dm.to_device(np.array(3.5))
    frame = abi.Frame([abi.array(0), abi.record()])
    frame.fill([scalar, record])
    assert words(frame, "q", *range(6)) == [0, 0, 1, 8, scalar.ptr, record.ptr]


@pytest.mark.parametrize(
    ("slot", "value", "code", "expected"),
    [
        (abi.scalar("?", bool), True, "?", [True]),
        (abi.scalar("b", int), -3, "b", [-3]),
        (abi.scalar("H", int), np.uint16(65535), "H", [65535]),
        (abi.scalar("q", int), -(2**63), "q", [-(2**63)]),
        (abi.scalar("Q", int), 2**64 - 1, "Q", [2**64 - 1]),
        (abi.scalar("e", float), np.float16(1.5), "e", [1.5]),
        (abi.scalar("f", float), 2.5, "f", [2.5]),
        (abi.scalar("d", float), 1, "d", [1.0]),
        (abi.complex_number("f"), 1 - 2j, "f", [1.0, -2.0]),
        (abi.complex_number("d"), np.complex128(3 + 4j), "d", [3.0, 4.0]),
        (abi.tuple_of([abi.scalar("i", int), abi.scalar("i", int)]), (8, 9), "i", [8, 9]),
        (
            abi.tuple_of([abi.tuple_of([abi.scalar("i", int)] * 2), abi.scalar("i", int)]),
            ((8, 9), 7),
            "i",
            [8, 9, 7],
        ),
    ],
)
def test_scalars_are_flattened_by_their_width(slot, value, code, expected):
    frame = abi.Frame([abi.scalar("q", int), slot])
    frame.fill([-1, value])
    assert words(frame, code, *range(1, 1 + len(expected))) == expected
    assert words(frame, "q", 0) == [-1]


def test_what_does_not_fit_raises():
    frame = abi.Frame([abi.scalar("b", int)])
    with pytest.raises(struct.error):
        frame.fill([300])


def test_a_frame_without_arguments_has_an_address():
    frame = abi.Frame([])
    frame.fill([])
    assert frame.address


def test_frames_are_used_again_and_never_by_two():
    frames = abi.Frames([abi.scalar("q", int)])
    one, other = frames.take(), frames.take()
    assert one is not other
    frames.put_back(one)
    assert frames.take() is one
