"""to_device: what goes up comes down again bit for bit, and what cannot go up leaves nothing behind."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import devmem as dm

pytestmark = pytest.mark.usefixtures("tidy")

RECORD = np.dtype([("id", "<i4"), ("inner", [("a", "u1"), ("b", ">f8")]), ("grid", "<f4", (2, 3)), ("name", "S5")])
PADDED = np.dtype({"names": ["x", "y"], "formats": ["i1", "f8"], "offsets": [0, 8], "itemsize": 24})

DTYPES = [
    *("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "longdouble", "clongdouble"),
    *(
        ">i2",
        ">u4",
        ">i8",
        ">f2",
        ">f4",
        ">f8",
        ">c16",
        "M8[ns]",
        "M8[D]",
        "m8[us]",
        ">M8[s]",
        "S1",
        "S7",
        "U1",
        "U9",
        ">U3",
    ),
    *("V1", "V11", RECORD, PADDED, np.dtype([("only", "f4")])),
]


def sample(shape, dtype):
    """Values that use every byte, reproducibly."""
    dtype = np.dtype(dtype)
    count = math.prod(shape)
    raw = np.random.default_rng(7).integers(0, 256, count * dtype.itemsize, np.uint8)
    if dtype.kind == "b":
        raw &= 1
    if dtype.kind == "U":
        return np.array([chr(65 + i % 20) * (i % 3) for i in range(count)], dtype).reshape(shape)
    return np.frombuffer(raw.tobytes(), dtype, count).reshape(shape)


def same(got, want):
    """Equal in type, shape and every byte of every element (padding apart)."""
    assert type(got) is np.ndarray
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.fields is None:
        assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes()
    else:
        for name in want.dtype.names:
            same(np.asarray(got[name]), np.asarray(want[name]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back(dtype):
    host = sample((3, 5), dtype)
    d = dm.to_device(host)
    assert (d.shape, d.dtype, d.strides) == (host.shape, host.dtype, host.strides)
    same(d.copy_to_host(), host)


@pytest.mark.parametrize("dtype", ["f8", ">i4", "?", "M8[s]", RECORD, "S3"], ids=str)
def test_zero_dimensional_arrays_of_every_sort(dtype):
    host = sample((), dtype)
    d = dm.to_device(host)
    assert (d.shape, d.ndim, d.size) == ((), 0, 1)
    same(d.copy_to_host(), host)


BASE = np.arange(4 * 6 * 10, dtype="i4").reshape(4, 6, 10)
LAYOUTS = {
    "C": BASE,
    "F": np.asfortranarray(BASE),
    "transposed": BASE.transpose(1, 0, 2),
    "rotated": BASE.transpose(2, 0, 1),
    "sliced": BASE[1:3, ::2, 3:9:3],
    "rows": BASE[::2],
    "columns": BASE[:, :, ::3],
    "reversed": BASE[::-1],
    "reversed everywhere": BASE[::-1, ::-1, ::-1],
    "reversed inside": BASE[:, :, ::-2],
    "mixed signs": BASE[::-1, ::2, ::-3],
    "broadcast": np.broadcast_to(np.arange(10, dtype="i4"), (4, 6, 10)),
    "broadcast inside": np.broadcast_to(np.arange(4, dtype="i4").reshape(4, 1, 1), (4, 6, 10)),
    "windows": as_strided(np.arange(30, dtype="i4"), (5, 6), (4, 8)),
    "one element": BASE[2:3, 3:4, 4:5],
    "ones with odd strides": BASE[2:3, ::-1, 4:5],
    "new axis": BASE[:, None, ::2],
    "diagonal": BASE[0].T.diagonal(),
    "unaligned": np.frombuffer(b"x" + BASE.tobytes(), "i4", 60, 1),
    "field": np.rec.fromarrays([np.arange(9), np.arange(9.0)], names="a,b")["b"],
    "wide rows": np.arange(64 * 1024, dtype="i4").reshape(64, 1024)[::3, :600],
    "many rows": np.arange(5000 * 4, dtype="i4").reshape(5000, 4)[:, :3],
}


@pytest.mark.parametrize("host", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_comes_back(host):
    before = host.copy()
    d = dm.to_device(host)
    assert math.prod(d.shape) * d.itemsize == d.nbytes == host.size * host.itemsize
    same(d.copy_to_host(), np.ascontiguousarray(host))
    same(host, before)


@pytest.mark.parametrize("host", LAYOUTS.values(), ids=LAYOUTS)
def test_the_order_of_axes_is_kept_and_the_gaps_are_not(host):
    d = dm.to_device(host)
    want = np.empty_like(host, order="K").strides
    assert [s for s, n in zip(d.strides, d.shape, strict=True) if n > 1] == [
        s for s, n in zip(want, d.shape, strict=True) if n > 1
    ]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4), (0, 0)])
def test_empty_arrays_have_a_shape_and_no_address(shape):
    d = dm.to_device(np.empty(shape, "f4"))
    assert (d.shape, d.nbytes, d.ptr) == (shape, 0, 0)
    got = d.copy_to_host()
    assert (got.shape, got.dtype) == (shape, np.dtype("f4"))


def test_elements_without_bytes():
    host = np.empty(3, np.dtype([]))
    d = dm.to_device(host)
    assert (d.shape, d.nbytes, d.ptr) == ((3,), 0, 0)
    assert d.copy_to_host().shape == (3,)
    d[...] = host
    d.fill(())
    assert d.copy().shape == (3,)


@pytest.mark.parametrize(
    "thing",
    [
        [1, 2, 3],
        [[1.5], [2.5]],
        (True, False),
        5,
        2.5,
        1j,
        "text",
        b"raw",
        range(4),
        np.float32(3),
        np.datetime64("2020"),
    ],
)
def test_lists_and_scalars_go_through_asarray(thing):
    same(dm.to_device(thing).copy_to_host(), np.asarray(thing))


def test_subclasses_arrive_as_what_they_hold():
    same(dm.to_device(np.rec.fromarrays([[1, 2]], names="a")).copy_to_host()["a"], np.array([1, 2]))
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1, 2]])
    assert dm.to_device(matrix).copy_to_host().tolist() == [[1, 2]]


def test_objects_with_array_protocol_are_taken():
    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3)

    assert dm.to_device(Wrapped()).tolist() == [0, 1, 2]


def test_read_only_sources_are_fine():
    host = np.arange(10.0)
    host.flags.writeable = False
    same(dm.to_device(host).copy_to_host(), host)
    same(dm.to_device(host[::2]).copy_to_host(), host[::2])
    same(dm.to_device(np.frombuffer(b"abcd", "u1")).copy_to_host(), np.frombuffer(b"abcd", "u1"))


def test_a_memory_mapped_file_goes_up(tmp_path):
    host = np.arange(1000.0).reshape(10, 100)
    np.save(tmp_path / "a.npy", host)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    same(dm.to_device(mapped).copy_to_host(), host)
    same(dm.to_device(mapped[::3, ::-2]).copy_to_host(), host[::3, ::-2].copy())


def test_a_host_object_is_always_copied():
    host = np.arange(4.0)
    d = dm.to_device(host)
    host[:] = -1
    assert d.tolist() == [0, 1, 2, 3]
    assert dm.to_device(host, copy=False).tolist() == [-1] * 4


def test_a_record_becomes_a_device_record():
    host = sample((2,), RECORD)
    r = dm.to_device(host[1])
    assert type(r) is dm.DeviceRecord
    assert (r.dtype, r.nbytes) == (RECORD, RECORD.itemsize)
    assert r["id"] == host[1]["id"]
    same(np.asarray(r.copy_to_host()), np.asarray(host[1]))


def test_void_without_fields_stays_an_array():
    assert type(dm.to_device(np.void(b"abc"))) is dm.DeviceNDArray


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [[1, None], object(), {"a": 1}, np.array([1, "x"], object), {1, 2}], ids=repr)
def test_objects_are_refused(thing):
    with pytest.raises(dm.LayoutError, match=r"Python objects .*: \w+|is not an array: \w+"):
        dm.to_device(thing)


def test_none_is_refused():
    with pytest.raises(dm.LayoutError, match=r"None is no array.*Python objects.*give an array"):
        dm.to_device(None)


def test_records_with_objects_are_refused():
    with pytest.raises(dm.LayoutError, match="Python objects"):
        dm.to_device(np.zeros(2, [("a", "i4"), ("b", object)]))


def test_no_objects_are_refused_too():
    with pytest.raises(dm.LayoutError, match="Python objects"):
        dm.to_device(np.empty(0, object))


def test_ragged_lists_are_refused_by_numpy():
    with pytest.raises(ValueError, match="inhomogeneous"):
        dm.to_device([[1], [1, 2]])


@pytest.mark.parametrize("mask", [[True, False, False], False])
def test_masked_arrays_are_refused(mask):
    with pytest.raises(dm.LayoutError, match=r"mask.*filled"):
        dm.to_device(np.ma.array([1, 2, 3], mask=mask))


def test_nothing_is_left_of_a_refusal(still):
    before = still.memory_info()
    for bad in (None, np.ma.array([1]), np.array([None])):
        with pytest.raises(dm.LayoutError):
            dm.to_device(bad)
    assert still.memory_info()[2:4] == before[2:4]


# -- copy=False --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [BASE, np.asfortranarray(BASE), BASE[1:2], BASE.transpose(1, 2, 0)])
def test_copy_false_is_no_matter_where_one_copy_will_do(host):
    same(dm.to_device(host, copy=False).copy_to_host(), np.ascontiguousarray(host))


def test_copy_false_refuses_a_copy_on_the_host(still):
    before = still.memory_info()
    with pytest.raises(dm.LayoutError, match=r"copy=False.*\(4, 6, 4\).*ascontiguousarray"):
        dm.to_device(BASE[:, :, ::3], copy=False)
    assert still.memory_info()[2:4] == before[2:4]


def test_copy_false_counts_with_to_as_well():
    d = dm.zeros((4, 6, 4), "i4")
    with pytest.raises(dm.LayoutError, match="copy=False"):
        dm.to_device(BASE[:, :, ::3], copy=False, to=d)
    assert not d.copy_to_host().any()


def test_copy_false_of_a_device_array_is_the_array():
    d = dm.to_device([1, 2])
    assert dm.to_device(d, copy=False) is d


# -- to= ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [BASE, BASE.copy("F"), BASE[::-1]], ids=["C", "F", "reversed"])
def test_to_copies_into_the_array_and_returns_it(host):
    d = dm.zeros(host.shape, host.dtype)
    assert dm.to_device(host, to=d) is d
    same(d.copy_to_host(), np.ascontiguousarray(host))


def test_to_may_be_a_view():
    d = dm.zeros((4, 6), "i4")
    dm.to_device(np.ones((2, 3), "i4"), to=d[::2, 1::2])
    want = np.zeros((4, 6), "i4")
    want[::2, 1::2] = 1
    same(d.copy_to_host(), want)


def test_to_takes_device_arrays_lists_and_records():
    d = dm.zeros(3)
    assert dm.to_device([1.0, 2.0, 3.0], to=d) is d
    e = dm.zeros(3)
    assert dm.to_device(d, to=e) is e
    assert e.tolist() == [1, 2, 3]
    host = sample((2,), RECORD)
    r, q = dm.to_device(host[0]), dm.to_device(host[1])
    assert dm.to_device(host[1], to=r) is r
    assert r["id"] == host[1]["id"]
    assert dm.to_device(q, to=r) is r


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (np.zeros(4, "f8"), r"shape \(3,\).*\(4,\)"),
        (np.zeros((3, 1), "f8"), r"shape \(3,\).*\(3, 1\)"),
        (np.zeros(3, "f4"), "float64.*float32"),
        (np.zeros(3, ">f8"), "float64.*>f8"),
        ([1, 2, 3], "float64.*int64"),
    ],
)
def test_to_of_another_shape_or_dtype_is_refused(host, says):
    d = dm.full(3, 7.0)
    with pytest.raises(dm.LayoutError, match=says):
        dm.to_device(host, to=d)
    assert d.tolist() == [7, 7, 7]


@pytest.mark.parametrize("to", [np.zeros(3), [0, 0, 0], 5])
def test_to_takes_only_device_arrays(to):
    with pytest.raises(TypeError, match=f"device array.*{type(to).__name__}"):
        dm.to_device(np.zeros(3), to=to)


def test_to_of_a_freed_array_is_refused():
    d = dm.zeros(3)
    d.free()
    with pytest.raises(dm.ClosedError, match="freed"):
        dm.to_device(np.zeros(3), to=d)


# -- device= -----------------------------------------------------------------------------------------------------------


def test_device_says_where_to(device, second):
    host = np.arange(6.0).reshape(2, 3)[:, ::-1]
    for each in (second, str(second), second.ordinal):
        d = dm.to_device(host, device=each)
        assert d.device == second
        same(d.copy_to_host(), host.copy())
    assert dm.to_device(host).device == device


def test_a_device_array_stays_where_it_is_or_is_copied(device, second):
    d = dm.to_device(np.arange(6.0))
    assert dm.to_device(d) is d
    assert dm.to_device(d, device=device) is d
    far = dm.to_device(d, device=second)
    assert far.device == second
    assert far is not d
    assert far.tolist() == d.tolist()
    with second:
        assert dm.to_device(far) is far
        assert dm.to_device(d).device == second
    assert dm.to_device(far).device == device


@pytest.mark.parametrize(
    "host", [BASE.copy("F"), BASE.transpose(2, 0, 1), BASE[:, ::2]], ids=["F", "rotated", "sliced"]
)
def test_any_layout_crosses_between_devices(second, host):
    big = dm.to_device(BASE)
    view = big[:, ::2] if host.shape == (4, 3, 10) else dm.to_device(host)
    same(dm.to_device(view, device=second).copy_to_host(), np.ascontiguousarray(host))


def test_a_record_crosses_between_devices(device, second):
    r = dm.to_device(sample((), RECORD)[()])
    assert dm.to_device(r) is r
    far = dm.to_device(r, device=second)
    assert type(far) is dm.DeviceRecord
    assert far.device == second
    assert far["id"] == r["id"]


def test_device_and_to_must_agree(device, second):
    d = dm.zeros(3)
    assert dm.to_device(np.ones(3), to=d, device=device) is d
    with pytest.raises(dm.LayoutError, match=r"device=.*to="):
        dm.to_device(np.zeros(3), to=d, device=second)
    assert d.tolist() == [1, 1, 1]


@pytest.mark.parametrize("bad", [99, -1, "nonsense", "nonsense:0"])
def test_an_unknown_device_is_refused(bad):
    with pytest.raises(dm.ConfigError, match=str(bad).partition(":")[0]):
        dm.to_device(np.zeros(3), device=bad)


# -- stream= -----------------------------------------------------------------------------------------------------------


def test_a_named_stream_binds_the_result():
    s = dm.stream()
    d = dm.to_device(np.arange(5.0), stream=s)
    assert d.stream is s
    s.synchronize()
    assert d.tolist() == [0, 1, 2, 3, 4]
    assert dm.to_device(np.arange(5.0)).stream is None


@pytest.mark.parametrize("bad", [True, False, 1.5, "x", "", object(), [], 0.0])
def test_what_is_no_stream_is_refused(bad, still):
    before = still.memory_info()
    for call in (
        lambda: dm.to_device(np.zeros(3), bad),
        lambda: dm.device_array(3, stream=bad),
        lambda: dm.to_device([], bad),
    ):
        with pytest.raises(TypeError, match="a stream is"):
            call()
    assert still.memory_info()[2:4] == before[2:4]
