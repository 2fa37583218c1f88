"""Pitched arrays and copies: rows and slices of bytes that lie a pitch apart, in one call of the driver where it has one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")


def numbered(nbytes):
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)


def model(dst, src, width, height, depth, to, origin):
    """What NumPy makes of the same copy, on flat bytes."""
    for slice_ in range(depth):
        for row in range(height):
            a = to[0] + (slice_ * to[2] + row) * to[1]
            b = origin[0] + (slice_ * origin[2] + row) * origin[1]
            dst[a : a + width] = src[b : b + width]


@st.composite
def cases(draw):
    width, height, depth = draw(st.integers(0, 40)), draw(st.integers(0, 5)), draw(st.integers(0, 4))
    sides = [
        (draw(st.integers(0, 9)), width + draw(st.integers(0, 12)), height + draw(st.integers(0, 3))) for _ in range(2)
    ]
    return width, height, depth, *sides


@pytest.mark.parametrize("way", ["up", "down", "on the device"])
@given(case=cases())
def test_every_shape_arrives_and_nothing_beside_it_is_touched(device, way, case):
    width, height, depth, to, origin = case
    source, target = numbered(3000), np.full(3000, 7, np.uint8)
    wanted = target.copy()
    model(wanted, source, width, height, depth, to, origin)
    dst = target if way == "down" else dm.to_device(target)
    src = source if way == "up" else dm.to_device(source)
    names = dict(zip(("dst_offset", "dst_pitch", "dst_rows"), to, strict=True))
    names |= zip(("src_offset", "src_pitch", "src_rows"), origin, strict=True)
    dm.copy_pitched(dst, src, width, height, depth, **names)
    assert np.array_equal(dst if way == "down" else dst.copy_to_host(), wanted)


def test_rows_and_slices_are_one_call_of_the_driver(device, need, need_kind, recorded):
    need("strided_copy")
    need_kind("pinned")
    source, dst = dm.pinned_array(64 << 10, np.uint8), dm.zeros(64 << 10, np.uint8)
    source[...] = numbered(source.size)
    for shape in ((256, 16, 1), (256, 16, 4)):
        with recorded.during() as seen:
            dm.copy_pitched(dst, source, *shape, dst_pitch=512, src_pitch=768, dst_rows=20, src_rows=17)
        copies = [each.method for each in seen if each.method.startswith("copy")]
        assert copies == ["copy_strided"]


def test_defaults_are_packed_rows_and_the_same_bytes_in_any_dtype(device):
    source = np.arange(600.0)
    dst = dm.zeros(600)
    dm.copy_pitched(dst, source, 80, 10, 2)
    assert np.array_equal(dst.copy_to_host()[:200], source[:200])
    assert not dst.copy_to_host()[200:].any()


def test_between_devices(device, second):
    source = dm.to_device(numbered(1000), device=second)
    dst = dm.zeros(1000, np.uint8)
    dm.copy_pitched(dst, source, 10, 5, dst_pitch=16, src_pitch=20, src_offset=3)
    wanted = np.zeros(1000, np.uint8)
    model(wanted, numbered(1000), 10, 5, 1, (0, 16, 5), (3, 20, 5))
    assert np.array_equal(dst.copy_to_host(), wanted)


def test_on_a_stream_both_sides_live_until_it_has_passed(device, need, need_kind):
    need("hold")
    need_kind("pinned")
    source, out = dm.pinned_array(1000, np.uint8), dm.pinned_array(400, np.uint8)
    source[...] = numbered(1000)
    stream, dst = dm.stream(non_blocking=True), dm.zeros(1000, np.uint8)
    with hold(stream) as latch:
        dm.copy_pitched(dst, source, 40, 10, src_pitch=100, stream=stream)
        dm.copy_pitched(out, dst, 400, 1, stream=stream)
        del source, dst
        latch.release()
    stream.synchronize()
    assert np.array_equal(out, numbered(1000).reshape(10, 100)[:, :40].ravel())


def test_a_pitched_array_begins_each_row_at_the_alignment(device):
    alignment = device.info.alignment
    for shape, dtype in (((5, 7), "f4"), ((2, 3, 100), "i2"), ((4, 3), "u1")):
        array = dm.pitched_array(shape, dtype)
        assert array.shape == shape
        assert array.strides[-2] % alignment == 0
        assert array.ptr % alignment == 0
        assert array.strides[:-2] == tuple(shape[1] * array.strides[-2] for _ in shape[:-2])
        host = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
        array.copy_to_device(host)
        assert np.array_equal(array.copy_to_host(), host)
    assert dm.pitched_array((3, 5), "u1", pitch=12).strides == (12, 1)
    assert dm.pitched_array((0, 5)).size == 0


def test_a_pitched_array_is_a_side_of_a_pitched_copy(device):
    array, host = dm.pitched_array((4, 10), np.uint8), numbered(40)
    dm.copy_pitched(array, host, 10, 4, dst_pitch=array.strides[0])
    assert np.array_equal(array.copy_to_host(), host.reshape(4, 10))


@pytest.mark.parametrize(
    ("error", "says", "arguments"),
    [
        (dm.LayoutError, "dst has 100 bytes, and the last row ends at byte 104", {"dst_pitch": 24}),
        (dm.LayoutError, "src has 1000 bytes, and the last row ends at byte 1001", {"src_offset": 961}),
        (dm.LayoutError, "dst_pitch=7", {"dst_pitch": 7}),
        (dm.LayoutError, "src_rows=2", {"src_rows": 2}),
        (dm.LayoutError, "src_offset=-1", {"src_offset": -1}),
        (dm.LayoutError, "width=-1", {"width": -1}),
        (TypeError, "dst_pitch is a number of bytes, rows or slices, an integer, not 1.5", {"dst_pitch": 1.5}),
        (TypeError, "dst must be a device array or an ndarray, not a list", {"dst": [1]}),
        (TypeError, "between host arrays NumPy copies", {"dst": np.zeros(100, "u1"), "src": np.zeros(1000, "u1")}),
        (dm.LayoutError, "give a C-contiguous one", {"src": np.zeros(2000, "u1")[::2]}),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_does_not_fit_is_told_before_anything_is_copied(device, error, says, arguments):
    dst, src = dm.zeros(100, np.uint8), numbered(1000)
    if isinstance(arguments.get("dst"), list):
        src = dm.to_device(src)
    given = {"dst": dst, "src": src, "width": 8, "height": 5, "depth": 1} | arguments
    with pytest.raises(error, match=says):
        dm.copy_pitched(**given)
    assert not dst.copy_to_host().any()


def test_what_is_no_pitched_array_is_told(device):
    with pytest.raises(dm.LayoutError, match="two axes or more"):
        dm.pitched_array(7)
    with pytest.raises(dm.LayoutError, match="pitch=8: rows have 40 bytes"):
        dm.pitched_array((3, 5), pitch=8)
    read_only = np.zeros(100, np.uint8)
    read_only.flags.writeable = False
    with pytest.raises(dm.LayoutError, match="read-only"):
        dm.copy_pitched(read_only, dm.zeros(100, np.uint8), 5, 2)
