"""copy_to_host and copy_to_device: into what is given, without a byte beside it, and whole on return."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

HOST = np.arange(4 * 6, dtype="i4").reshape(4, 6)
PADDED = np.dtype({"names": ["x", "y"], "formats": ["i1", "f8"], "offsets": [0, 8], "itemsize": 24})

#: Ways to cut a (4, 6) window out of bigger host memory.
WINDOWS = {
    "C": ((4, 6), lambda b: b),
    "F": ((6, 4), lambda b: b.T),
    "columns": ((4, 18), lambda b: b[:, ::3]),
    "rows": ((8, 6), lambda b: b[::2]),
    "corner": ((9, 11), lambda b: b[3:7, 4:10]),
    "both": ((12, 20), lambda b: b[::3, 1:13:2]),
    "reversed": ((4, 6), lambda b: b[::-1]),
    "reversed inside": ((4, 6), lambda b: b[:, ::-1]),
    "reversed both": ((4, 6), lambda b: b[::-1, ::-1]),
    "negative steps": ((8, 12), lambda b: b[::-2, ::-2]),
    "transposed and cut": ((13, 9), lambda b: b[::2, ::2].T[:4, :6]),
    "from a cube": ((4, 5, 6), lambda b: b[:, 2]),
}


@pytest.mark.parametrize(("shape", "cut"), WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("source", ["C", "F", "sliced", "reversed"])
def test_into_any_window_without_touching_the_gaps(shape, cut, source):
    d = {
        "C": lambda: dm.to_device(HOST),
        "F": lambda: dm.to_device(HOST.copy("F")),
        "sliced": lambda: dm.to_device(np.repeat(HOST, 3, 1))[:, ::3],
        "reversed": lambda: dm.to_device(HOST[::-1, ::-1].copy())[::-1, ::-1],
    }[source]()
    big = np.full(shape, -99, "i4")
    want = big.copy()
    cut(want)[...] = HOST
    window = cut(big)
    assert d.copy_to_host(window) is window
    np.testing.assert_array_equal(big, want)


@pytest.mark.parametrize(("shape", "cut"), WINDOWS.values(), ids=WINDOWS)
def test_into_any_window_of_the_device_without_touching_the_gaps(shape, cut):
    big = dm.full(shape, -99, "i4")
    want = np.full(shape, -99, "i4")
    cut(want)[...] = HOST
    cut(big).copy_to_device(HOST)
    np.testing.assert_array_equal(big.copy_to_host(), want)
    big.fill(-99)
    cut(big).copy_to_device(dm.to_device(HOST.copy("F")))
    np.testing.assert_array_equal(big.copy_to_host(), want)


def test_wide_rows_and_many_rows_take_other_paths_to_the_same_end():
    for shape, key in [
        ((40, 3000), np.s_[::3, 100:2500]),
        ((3000, 8), np.s_[:, 1:4]),
        ((70, 2, 4000), np.s_[::-1, :, :900]),
    ]:
        host = np.random.default_rng(3).integers(0, 255, shape, np.uint8)
        d = dm.to_device(host)
        np.testing.assert_array_equal(d[key].copy_to_host(), host[key])
        big = np.full(shape, 7, np.uint8)
        want = big.copy()
        want[key] = host[key]
        d[key].copy_to_host(big[key])
        np.testing.assert_array_equal(big, want)
        d2 = dm.full(shape, 7, np.uint8)
        d2[key].copy_to_device(host[key])
        np.testing.assert_array_equal(d2.copy_to_host(), want)
        d3 = dm.full(shape, 7, np.uint8)
        d3[key].copy_to_device(d[key])
        np.testing.assert_array_equal(d3.copy_to_host(), want)


def test_padding_of_records_comes_along():
    raw = np.random.default_rng(5).integers(0, 256, 5 * 24, np.uint8)
    host = raw.view(PADDED)
    assert dm.to_device(host).copy_to_host().tobytes() == raw.tobytes()
    strided = np.empty(10, PADDED)[::2]
    strided.view("V24")[...] = host.view("V24")
    assert dm.to_device(strided).copy_to_host().tobytes() == raw.tobytes()


def test_a_new_array_is_ours_to_write_and_not_shared():
    d = dm.to_device(HOST)
    a, b = d.copy_to_host(), d.copy_to_host()
    assert a.flags.writeable
    a[...] = 0
    np.testing.assert_array_equal(b, HOST)
    np.testing.assert_array_equal(d.copy_to_host(), HOST)


@pytest.mark.parametrize(
    "key", [np.s_[::2], np.s_[:, ::3], np.s_[::-1], np.s_[:, ::-2], np.s_[1:1], np.s_[2], np.s_[..., None]]
)
def test_a_new_array_of_a_view(key):
    got = dm.to_device(HOST)[key].copy_to_host()
    np.testing.assert_array_equal(got, HOST[key])
    assert got.shape == HOST[key].shape


def test_a_new_array_keeps_the_order_of_axes():
    host = np.arange(24.0).reshape(2, 3, 4)
    assert dm.to_device(host).T.copy_to_host().flags.f_contiguous
    rotated = dm.to_device(host).transpose(1, 0, 2).copy_to_host()
    np.testing.assert_array_equal(rotated, host.transpose(1, 0, 2))
    assert rotated.strides == host.transpose(1, 0, 2).strides


def test_an_ndarray_of_any_kind_will_do(tmp_path):
    d = dm.to_device(HOST)
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "i4", (4, 6))
    d.copy_to_host(file)
    file.flush()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), HOST)
    buffer = bytearray(HOST.nbytes)
    d.copy_to_host(np.frombuffer(buffer, "i4").reshape(4, 6))
    assert bytes(buffer) == HOST.tobytes()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_read_only_destinations_are_refused():
    dst = np.full((4, 6), -1, "i4")
    dst.flags.writeable = False
    with pytest.raises(dm.LayoutError, match=r"read-only.*writable"):
        dm.to_device(HOST).copy_to_host(dst)
    with pytest.raises(dm.LayoutError, match="read-only"):
        dm.to_device(HOST).copy_to_host(np.frombuffer(bytes(96), "i4").reshape(4, 6))
    assert (dst == -1).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "says"),
    [
        ((4, 6), "f4", "float32.*int32"),
        ((4, 6), ">i4", ">i4.*int32"),
        ((4, 6), "u4", "uint32.*int32"),
        ((6, 4), "i4", r"\(6, 4\).*\(4, 6\)"),
        ((24,), "i4", r"\(24,\).*\(4, 6\)"),
        ((4, 6, 1), "i4", r"\(4, 6, 1\).*\(4, 6\)"),
        ((), "i4", r"\(\).*\(4, 6\)"),
    ],
)
def test_another_shape_or_dtype_is_refused(shape, dtype, says):
    dst = np.full(shape, 1, dtype)
    d = dm.to_device(HOST)
    with pytest.raises(dm.LayoutError, match=says):
        d.copy_to_host(dst)
    assert (dst == 1).all()
    with pytest.raises(dm.LayoutError, match=r"destination.*source"):
        d.copy_to_device(dst)
    with pytest.raises(dm.LayoutError, match=r"destination.*source"):
        d.copy_to_device(dm.to_device(dst))
    np.testing.assert_array_equal(d.copy_to_host(), HOST)


@pytest.mark.parametrize("dst", [[0] * 6, bytearray(96), "x", 5, object()])
def test_only_ndarrays_are_filled(dst):
    with pytest.raises(TypeError, match=f"ndarray, not a {type(dst).__name__}"):
        dm.to_device(HOST).copy_to_host(dst)


def test_a_device_array_is_no_host_destination():
    d = dm.to_device(HOST)
    with pytest.raises(TypeError, match="ndarray, not a DeviceNDArray"):
        d.copy_to_host(d)


def test_destinations_whose_elements_lie_on_each_other_are_refused():
    row = np.full(6, -1, "i4")
    with pytest.raises(dm.LayoutError, match=r"overlap \(shape \(4, 6\), strides \(0, 4\)"):
        dm.to_device(HOST).copy_to_host(as_strided(row, (4, 6), (0, 4)))
    assert (row == -1).all()


@pytest.mark.parametrize("source", [None, [None], np.array([object()] * 3)])
def test_objects_do_not_go_to_the_device(source):
    d = dm.full(3, 5.0)
    with pytest.raises(dm.LayoutError, match="Python objects"):
        d.copy_to_device(source)
    assert d.tolist() == [5, 5, 5]


def test_masks_do_not_go_to_the_device():
    with pytest.raises(dm.LayoutError, match="mask"):
        dm.zeros(3).copy_to_device(np.ma.array([1.0, 2.0, 3.0]))


# -- copy_to_device ----------------------------------------------------------------------------------------------------


def test_copy_to_device_takes_lists_device_arrays_and_itself():
    d = dm.zeros(3)
    assert d.copy_to_device([1.0, 2.0, 3.0]) is None
    assert d.tolist() == [1, 2, 3]
    d.copy_to_device(d)
    d.copy_to_device(dm.to_device([4.0, 5.0, 6.0]))
    assert d.tolist() == [4, 5, 6]


@pytest.mark.parametrize(("dst", "src"), [(np.s_[1:], np.s_[:-1]), (np.s_[:-1], np.s_[1:]), (np.s_[:], np.s_[::-1])])
def test_copy_to_device_of_an_overlapping_view(dst, src):
    for host in (np.arange(20.0), np.arange(3000.0).reshape(30, 100)):
        want = host.copy()
        want[dst] = host[src].copy()
        d = dm.to_device(host)
        d[dst].copy_to_device(d[src])
        np.testing.assert_array_equal(d.copy_to_host(), want)


def test_copy_to_device_between_devices(second):
    far = dm.to_device(HOST, device=second)
    d = dm.zeros(HOST.shape, "i4")
    d.copy_to_device(far)
    np.testing.assert_array_equal(d.copy_to_host(), HOST)
    far[::2, ::-1].copy_to_device(d[1::2])
    want = HOST.copy()
    want[::2, ::-1] = HOST[1::2]
    np.testing.assert_array_equal(far.copy_to_host(), want)


def test_a_named_stream_on_both_ways():
    s = dm.stream()
    d = dm.zeros(HOST.shape, "i4")
    d.copy_to_device(HOST, stream=s)
    out = np.empty_like(HOST)
    assert d.copy_to_host(out, stream=s) is out
    s.synchronize()
    np.testing.assert_array_equal(out, HOST)
    strided = np.full((4, 18), -1, "i4")
    d[::-1].copy_to_host(strided[:, ::3], stream=s)
    s.synchronize()
    np.testing.assert_array_equal(strided[:, ::3], HOST[::-1])
    assert (strided[:, 1::3] == -1).all()
    assert d.stream is None
