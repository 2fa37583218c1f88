"""`devmem.compat.numba_cuda`: device arrays and records, each method with its bad inputs."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import devmem as dm
from devmem.compat import numba_cuda as cuda
from devmem.compat.numba_cuda.cudadrv import devicearray
from devmem.compat.numba_cuda.cudadrv.devicearray import DeviceNDArray, DeviceRecord
from devmem.compat.numba_cuda.kernels.transpose import transpose

KIND = np.dtype([("a", "i4"), ("b", "f8"), ("c", "f4", (2, 3)), ("d", [("e", "i2"), ("f", "u1")])])


@pytest.fixture(autouse=True)
def fresh(devmem_backend):
    """Contexts of this test's own: they change the device's memory stack."""
    dm.close()
    yield
    cuda.close()
    dm.close()


def ramp(*shape, dtype=np.float64, order="C"):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape, order=order)


# -- facts -------------------------------------------------------------------------------------------------------------


def test_attributes_are_those_of_numbas_arrays():
    d = cuda.to_device(ramp(3, 4))
    assert (d.shape, d.strides, d.dtype, d.ndim, d.size) == ((3, 4), (32, 8), np.float64, 2, 12)
    assert (d.nbytes, d.alloc_size, d.itemsize) == (96, 96, 8)
    assert d[:, ::2].alloc_size == 88
    assert d[:, ::2].nbytes == 48
    assert d.__cuda_memory__
    assert d.__cuda_ndarray__
    assert d.gpu_data.device_pointer == d.device_ctypes_pointer.value == d.ptr
    assert d.gpu_data.size == 96
    assert d.as_cuda_arg() == d.gpu_data
    assert d.is_c_contiguous()
    assert not d.is_f_contiguous()
    assert d.flags == {"C_CONTIGUOUS": True, "F_CONTIGUOUS": False}
    assert devicearray.is_cuda_ndarray(d)
    devicearray.require_cuda_ndarray(d)
    devicearray.verify_cuda_ndarray_interface(d)


@pytest.mark.parametrize("source", [ramp(3, 4), ramp(3, 4, order="F"), np.array(2.0)])
def test_the_layout_that_code_reaches_for(source):
    d = cuda.to_device(source)
    layout = d._dummy
    assert (layout.shape, layout.strides, layout.itemsize) == (d.shape, d.strides, 8)
    assert layout.extent == (0, d.nbytes)
    assert layout.is_c_contig == d.is_c_contiguous()
    assert layout.is_f_contig == d.is_f_contiguous()


def test_truth_is_a_matter_of_length():
    assert cuda.to_device(np.zeros(3))
    assert cuda.to_device(np.zeros((1, 1)))
    assert not cuda.to_device(np.zeros((0, 3)))
    assert not cuda.to_device(np.array(0.0))


@pytest.mark.parametrize("strides", [(24, 8), (0, 0)])
def test_an_array_without_elements_is_seen_as_another_type(strides):
    d = cuda.to_device(np.ndarray((0, 3), strides=strides))
    assert d.view(np.float32).shape == (0, 6)


def test_numba_cudas_own_kernels_find_what_they_ask_for():
    d = cuda.to_device(ramp(3, 4))[:, ::2]
    seen = d._strided_memory_view_shim
    assert (seen.ptr, seen.shape, seen.dtype, seen.size) == (d.ptr, (3, 2), np.float64, 6)
    assert seen._layout.strides_in_bytes == (32, 16)
    assert not seen._layout.is_contiguous_any


def test_the_constructor_takes_memory():
    d = DeviceNDArray((2, 3), (24, 8), np.float64)
    assert d.alloc_size == 48
    part = DeviceNDArray((3,), (8,), "f8", gpu_data=d.gpu_data.view(24))
    part.copy_to_device(np.full(3, 4.0))
    assert d.copy_to_host()[1].tolist() == [4] * 3
    assert DeviceNDArray(3, 8, "f8", cuda.stream()).shape == (3,)
    assert DeviceNDArray((0, 3), (24, 8), "f8").device_ctypes_pointer.value == 0
    down = DeviceNDArray((3,), (-8,), "f8")
    down[:] = [1, 2, 3]
    assert [down[i] for i in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (((2, 3), (8,), "f8"), ValueError, "strides not match ndim"),
        (((2.5,), (8,), "f8"), TypeError, "shape elements must be integers, got float"),
        ((2.5, (8,), "f8"), TypeError, "integer"),
        (((2,), (8,), "nonsense"), TypeError, "nonsense"),
        (((2,), (8,), "f8", 3), TypeError, "Expected a Stream object"),
    ],
)
def test_bad_arguments_of_the_constructor(arguments, error, says):
    with pytest.raises(error, match=says):
        DeviceNDArray(*arguments)


def test_arrays_are_compared_and_hashed_by_identity():
    d, other = cuda.device_array(3), cuda.device_array(3)
    assert d == d
    assert d != other
    assert {d: 1}[d] == 1
    assert other not in {d}


def test_arithmetic_happens_on_the_host_or_is_refused():
    d = cuda.to_device(ramp(3))
    assert np.add(d, 1).tolist() == [1, 2, 3]
    assert type(np.add(d, 1)) is np.ndarray
    assert (ramp(3) + d).tolist() == [0, 2, 4]
    assert np.sum(d) == 3
    for call in (lambda: d + 1, lambda: 1 + d, lambda: d < 1, lambda: np.add(ramp(3), 1, out=d)):
        with pytest.raises(TypeError):
            call()


def test_conversions_to_numpy():
    d = cuda.to_device(ramp(3))
    assert np.asarray(d, np.int32).dtype == np.int32
    assert np.array(d).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="copy=False"):
        d.__array__(copy=False)
    assert len(d) == 3
    with pytest.raises(IndexError):
        len(cuda.device_array(()))
    assert [each.tolist() for each in cuda.to_device(ramp(2, 3))] == [[0, 1, 2], [3, 4, 5]]


def test_copies_of_the_object_have_memory_of_their_own():
    d = cuda.to_device(ramp(3))
    other = copy.deepcopy(d)
    other[0] = 7
    assert d[0] == 0
    assert type(other) is DeviceNDArray


# -- copy_to_device ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "source", [ramp(3, 4), ramp(3, 4, order="F"), ramp(6, 8)[::2, ::2], ramp(3, 4)[::-1], ramp(1, 3, 4), ramp(3, 1, 4)]
)
def test_copy_to_device_from_the_host_takes_any_layout(source, order):
    d = cuda.device_array((3, 4), order=order)
    d.copy_to_device(source)
    np.testing.assert_array_equal(d.copy_to_host(), source.reshape(3, 4))


def test_copy_to_device_of_nothing_looks_at_nothing():
    cuda.device_array(5).copy_to_device(np.empty((0, 7), "c16"))


def test_copy_to_device_from_the_device():
    source, target = cuda.to_device(ramp(3, 4)), cuda.device_array((3, 4))
    target.copy_to_device(source)
    np.testing.assert_array_equal(target.copy_to_host(), ramp(3, 4))
    target.copy_to_device(dm.to_device(ramp(3, 4) + 1))
    np.testing.assert_array_equal(target.copy_to_host(), ramp(3, 4) + 1)
    target.copy_to_device(source.reshape(1, 3, 4))
    np.testing.assert_array_equal(target.copy_to_host(), ramp(3, 4))


@pytest.mark.parametrize(
    ("target", "source", "error", "says"),
    [
        (lambda: cuda.device_array(4)[::2], lambda: ramp(2), ValueError, "non-contiguous"),
        (lambda: cuda.device_array(2), lambda: cuda.to_device(ramp(4))[::2], ValueError, "non-contiguous"),
        (lambda: cuda.device_array(2), lambda: ramp(2, dtype=np.int32), TypeError, "incompatible dtype"),
        (lambda: cuda.device_array(2, "i4"), lambda: cuda.to_device(ramp(2)), TypeError, "incompatible dtype"),
        (lambda: cuda.device_array(2), lambda: ramp(3), ValueError, "incompatible shape"),
        (lambda: cuda.device_array((2, 3)), lambda: ramp(3, 2), ValueError, "incompatible shape"),
        (lambda: cuda.device_array(2), lambda: cuda.to_device(ramp(3)), ValueError, "incompatible shape"),
        (
            lambda: cuda.device_array((2, 3)),
            lambda: cuda.device_array((2, 3), order="F"),
            ValueError,
            "incompatible strides",
        ),
        (lambda: cuda.device_array(3), lambda: [1.0, 2.0, 3.0], AttributeError, "size"),
    ],
)
def test_what_copy_to_device_refuses(target, source, error, says):
    d, given = target(), source()
    with pytest.raises(error, match=says):
        d.copy_to_device(given)


# -- copy_to_host ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [np.s_[:], np.s_[1:], np.s_[:, ::2], np.s_[0], np.s_[:, 1], np.s_[1:1]])
def test_copy_to_host_makes_a_new_array(part):
    source = ramp(4, 6)
    d = cuda.to_device(source)
    np.testing.assert_array_equal(d[part].copy_to_host(), source[part])


def test_copy_to_host_fills_an_array():
    d = cuda.to_device(ramp(3, 4))
    for shape in ((3, 4), (1, 3, 4), (3, 1, 4)):
        out = np.zeros(shape)
        assert d.copy_to_host(out) is out
        np.testing.assert_array_equal(out.reshape(3, 4), ramp(3, 4))


def test_b5_bytes_between_the_elements_are_not_touched():
    d = cuda.to_device(ramp(3, 8))[:, :2]
    whole = np.full((3, 8), -1.0)
    d.copy_to_host(whole[:, :2])
    assert (whole != -1).sum() == 6
    np.testing.assert_array_equal(whole[:, :2], ramp(3, 8)[:, :2])


@pytest.mark.parametrize(
    ("ary", "error", "says"),
    [
        (np.empty((3, 4), "f4"), TypeError, "incompatible dtype"),
        (np.empty((4, 3)), ValueError, "incompatible shape"),
        (np.empty(12), ValueError, "incompatible shape"),
        (np.empty((3, 4), order="F"), ValueError, "incompatible strides"),
        (np.empty((3, 8))[:, ::2], ValueError, "incompatible strides"),
        (np.broadcast_to(np.empty((3, 4)), (3, 4)), ValueError, "read-only"),
        ([0.0] * 12, AttributeError, "flags"),
        (bytearray(96), AttributeError, "flags"),
    ],
)
def test_what_copy_to_host_refuses(ary, error, says):
    with pytest.raises(error, match=says):
        cuda.to_device(ramp(3, 4)).copy_to_host(ary)


@pytest.mark.parametrize("part", [np.s_[::-1], np.s_[:, ::-1]])
def test_negative_strides_are_not_copied_to_the_host(part):
    d = cuda.to_device(ramp(3, 4))[part]
    with pytest.raises(NotImplementedError, match="negative strides"):
        d.copy_to_host()
    with pytest.raises(NotImplementedError, match="negative strides"):
        d.copy_to_host(np.empty((3, 4)))


def test_freed_memory_is_not_used():
    """numba.cuda looks at nothing, and copies from wherever the address points."""
    d = cuda.to_device(ramp(3))
    d.gpu_data.free()
    for call in (d.copy_to_host, lambda: d.copy_to_device(ramp(3)), lambda: d[0], lambda: d.reshape(3, 1)):
        with pytest.raises(dm.ClosedError):
            call()
    with pytest.raises(ReferenceError):
        d.gpu_data.free()


# -- indices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        np.int64(1),
        np.array(1),
        (np.array(1), 2),
        (1, 2),
        (-1, -1),
        slice(1, 3),
        (slice(None), 1),
        (1, slice(2, None)),
        (slice(None),),
        (),
    ],
)
def test_indices_select_what_numpy_selects(key):
    source = ramp(3, 4)
    d = cuda.to_device(source)
    found = d[key]
    np.testing.assert_array_equal(found.copy_to_host() if isinstance(found, DeviceNDArray) else found, source[key])
    if not np.ndim(source[key]):
        assert type(found) is np.float64
    assert type(d.getitem(key, stream=cuda.stream())) is type(found)


def test_too_many_indices_are_told_before_what_they_are():
    d = cuda.to_device(np.array(5.0))
    for key in (..., None, "a"):
        with pytest.raises(IndexError, match="1 extra indices given"):
            d[key]


def test_views_share_memory():
    d = cuda.to_device(ramp(3, 4))
    row = d[1]
    row[2] = 100
    assert d[1, 2] == 100
    del d
    assert row.copy_to_host().tolist() == [4, 5, 100, 7]
    assert cuda.to_device(np.array(5.0))[()] == 5.0


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (3, IndexError),
        (-4, IndexError),
        ((0, 4), IndexError),
        ((0, 0, 0), IndexError),
        ((0, 0, None), IndexError),
        (Ellipsis, TypeError),
        (None, TypeError),
        ([0, 1], (TypeError, ValueError)),
        (np.array([True, False, True]), (TypeError, ValueError)),
        ("a", (TypeError, ValueError)),
        (1.5, TypeError),
    ],
    ids=str,
)
def test_what_is_no_index(key, error):
    d = cuda.to_device(ramp(3, 4))
    with pytest.raises(error):
        d[key]
    with pytest.raises(error):
        d[key] = 1
    if type(key) is tuple and len(key) == 3:
        with pytest.raises(IndexError, match="1 extra indices given"):
            d[key]


# -- assignment --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (0, 5),
        ((1, 2), 7.5),
        (slice(None), 3),
        (slice(None), ramp(4)),
        ((slice(None), slice(None, None, 2)), ramp(3, 2)),
        ((slice(None), 1), [1, 2, 3]),
        (slice(None, None, -1), ramp(3, 4)),
        ((slice(1, None), slice(None)), ramp(1, 4)),
        (slice(None), ramp(4, dtype=np.float32)),
    ],
)
@pytest.mark.parametrize("where", ["host", "device", "native"])
def test_assignment_from_host_and_device_arrives_as_in_numpy(key, value, where):
    source = np.zeros((3, 4))
    d = cuda.to_device(source)
    given = value if where == "host" else (cuda if where == "device" else dm).to_device(np.array(value, order="C"))
    d[key] = given
    source[key] = value
    np.testing.assert_array_equal(d.copy_to_host(), source)


def test_assignment_converts_like_c():
    d = cuda.to_device(np.zeros(3, np.int32))
    d[:] = 2.75
    d[1] = np.float64(4.5)
    assert d.copy_to_host().tolist() == [2, 4, 2]


def test_assignment_is_right_where_both_sides_overlap():
    d = cuda.to_device(ramp(8))
    d[1:] = d[:-1]
    assert d.copy_to_host().tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (ramp(1, 1, 3), "Can't assign 3-D array to 1-D self"),
        (ramp(2), "Can't copy sequence with size 2 to array axis 0 with dimension 5"),
    ],
)
def test_what_does_not_fit_is_not_assigned(value, says):
    d = cuda.to_device(np.zeros(5))
    with pytest.raises(ValueError, match=says):
        d[:] = value
    assert not d.copy_to_host().any()


def test_assignment_is_complete_unless_a_stream_is_named(need, hold):
    need("hold")
    stream, d, ones = cuda.stream(), cuda.to_device(np.zeros(4)), cuda.to_device(np.ones(4))
    with hold(stream) as latch:
        d.setitem(slice(None), ones, stream=stream)
        assert not stream.query()
        latch.release()
    stream.synchronize()
    assert d.copy_to_host().tolist() == [1] * 4


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "order"),
    [((6, 4), "C"), ((2, -1), "C"), ((-1,), "C"), ((2, 3, 4), "C"), ((24,), "A"), ((1, 24, 1), "C"), ((4, 6), "F")],
)
def test_reshape_is_a_view_in_every_spelling(shape, order):
    source = ramp(24)
    d = cuda.to_device(source)
    for found in (d.reshape(*shape, order=order), d.reshape(shape, order=order), d.reshape(list(shape), order=order)):
        np.testing.assert_array_equal(found.copy_to_host(), source.reshape(shape, order=order))
        assert found.ptr == d.ptr


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda d: d.reshape(5), ValueError, "reshape changes the size of the array"),
        (lambda d: d.reshape(), ValueError, "reshape changes the size of the array"),
        (lambda d: d.reshape(-1, -1), ValueError, "one unknown dimension"),
        (lambda d: d.reshape(-1, 5), ValueError, "cannot infer"),
        (lambda d: d.reshape(12, order="X"), ValueError, "order not C"),
        (lambda d: d.reshape(12, order="CF"), ValueError, "order not C"),
        (lambda d: d.reshape(12, nonsense=1), TypeError, "unknown keyword"),
        (lambda d: d[:, :2].reshape(6), NotImplementedError, "operation requires copying"),
        (lambda d: d.reshape(12, order="F"), NotImplementedError, "operation requires copying"),
        (lambda d: d[:, ::2].ravel(), NotImplementedError, "ravel on non-contiguous array"),
        (lambda d: d.ravel("F"), NotImplementedError, "ravel on non-contiguous array"),
        (lambda d: d.ravel("X"), ValueError, "order not C"),
        (lambda d: d.squeeze(0), ValueError, "length"),
        (lambda d: d.squeeze(5), IndexError, None),
        (lambda d: d.view("i2")[:, :12].view("f8"), ValueError, "C-contiguous"),
        (lambda d: d.view("V24"), ValueError, None),
        (lambda d: next(d.split(2)), ValueError, "only support 1d array"),
        (lambda d: next(d[:, 0].split(2)), ValueError, "only support unit stride"),
        (lambda d: next(d[0].split(0)), ZeroDivisionError, None),
        (lambda d: d.transpose((0, 0)), ValueError, "invalid axes list"),
        (lambda d: d.transpose((0, 2)), ValueError, "invalid axes list"),
        (lambda d: d.reshape(12).transpose(), NotImplementedError, "non-2D"),
        (lambda d: d.reshape(1, 3, 4).T, NotImplementedError, "non-2D"),
        (lambda d: cuda.device_array(()).view("i4"), IndexError, None),
    ],
)
def test_what_shapes_cannot_be_had(call, error, says):
    d = cuda.to_device(ramp(3, 4))
    with pytest.raises(error, match=says):
        call(d)


def test_ravel_squeeze_view_split():
    d = cuda.to_device(ramp(3, 1, 4))
    assert d.ravel().shape == (12,)
    assert cuda.to_device(ramp(3, 4, order="F")).ravel("F").copy_to_host().tolist() == list(
        ramp(3, 4, order="F").ravel("F")
    )
    assert d.squeeze().shape == (3, 4)
    assert d.squeeze(1).shape == (3, 4)
    assert d.squeeze((1,)).shape == (3, 4)
    assert d.view(np.int64).dtype == np.int64
    assert d.view(np.int32).shape == (3, 1, 8)
    pieces = cuda.to_device(ramp(12)).split(5)
    assert iter(pieces) is pieces
    assert [each.copy_to_host().tolist() for each in pieces] == [list(range(5)), list(range(5, 10)), [10, 11]]


def test_transpose_is_a_new_array_in_c_order():
    source = ramp(3, 4)
    d = cuda.to_device(source)
    for found in (d.T, d.transpose(), np.transpose(d), d.transpose((1, 0)), transpose(d), transpose(source)):
        np.testing.assert_array_equal(found.copy_to_host(), source.T)
        assert found.strides == (24, 8)
        assert found.ptr != d.ptr
    assert d.transpose((0, 1)) is d
    cube = cuda.to_device(ramp(2, 3, 4))
    assert cube.transpose((0, 1, 2)) is cube
    target = cuda.device_array((4, 3))
    assert transpose(d, target) is target
    np.testing.assert_array_equal(target.copy_to_host(), source.T)


def test_bind_gives_a_shallow_clone():
    d, stream = cuda.to_device(ramp(3)), cuda.stream()
    clone = d.bind(stream)
    assert clone.stream is stream
    assert d.stream == 0
    assert clone.ptr == d.ptr
    assert clone.bind().stream == 0
    d.stream = stream
    assert d.stream is stream
    d.stream = 0
    assert d.stream == 0


# -- records -----------------------------------------------------------------------------------------------------------


def record():
    host = np.zeros(1, KIND)[0]
    host["a"], host["b"], host["c"], host["d"]["e"] = 3, 2.5, np.arange(6).reshape(2, 3), 9
    return host


def test_records_have_numbas_attributes():
    host = record()
    d = cuda.to_device(host)
    assert type(d) is DeviceRecord
    assert (d.shape, d.strides, d.ndim, d.size, d.dtype, d.stream) == ((), (), 0, 1, KIND, 0)
    assert d.alloc_size == KIND.itemsize
    assert d.flags == {"C_CONTIGUOUS": True, "F_CONTIGUOUS": True}
    assert d.gpu_data.size == KIND.itemsize
    assert type(d["a"]) is np.int32
    assert (d["a"], d["b"]) == (3, 2.5)
    assert d.getitem("b", stream=cuda.stream()) == 2.5
    np.testing.assert_array_equal(d["c"].copy_to_host(), np.arange(6.0).reshape(2, 3))
    assert type(d["d"]) is DeviceRecord
    assert d["d"]["e"] == 9


def test_a_record_on_a_stream_and_its_axes():
    d, stream = cuda.to_device(record()), cuda.stream()
    bound = d.bind(stream)
    assert type(bound) is DeviceRecord
    assert (bound.stream, d.stream) == (stream, 0)
    bound["a"] = 4
    stream.synchronize()
    assert d["a"] == 4
    with pytest.raises(NotImplementedError, match="non-2D"):
        d.transpose()
    with pytest.raises(NotImplementedError, match="non-2D"):
        _ = d.T


def test_records_are_written():
    d = cuda.to_device(record())
    d["a"] = 7.9
    d.setitem("b", 8, stream=cuda.stream())
    d["c"][1, 1] = 50
    d["d"]["f"] = 3
    d["d"] = (4, 5)
    cuda.synchronize()
    out = np.zeros(1, KIND)[0]
    assert d.copy_to_host(out) is out
    assert (out["a"], out["b"], out["c"][1, 1], out["d"]["e"], out["d"]["f"]) == (7, 8, 50, 4, 5)
    assert d.copy_to_host().shape == ()
    d.copy_to_device(record())
    assert d["a"] == 3
    with pytest.raises(KeyError):
        d["nonsense"]
    with pytest.raises(KeyError):
        d["nonsense"] = 1
    with pytest.raises(TypeError, match="incompatible dtype"):
        d.copy_to_host(np.zeros(1, [("a", "i4")])[0])


def test_elements_of_record_arrays_are_records():
    host = np.zeros(3, [("x", "i4"), ("y", "f8")])
    d = cuda.to_device(host)
    d[1]["y"] = 4.5
    assert type(d[1]) is DeviceRecord
    assert d.copy_to_host()["y"].tolist() == [0, 4.5, 0]
    with pytest.raises((TypeError, ValueError)):
        d["x"]


# -- what makes device arrays ------------------------------------------------------------------------------------------


def test_from_array_like_takes_the_layout_of_the_model():
    host = ramp(3, 4, order="F")
    d = devicearray.from_array_like(host)
    assert (d.shape, d.strides, d.dtype) == (host.shape, host.strides, host.dtype)
    same = devicearray.from_array_like(host, gpu_data=d.gpu_data)
    assert same.ptr == d.ptr
    r = devicearray.from_record_like(record(), stream=cuda.stream())
    assert r.dtype == KIND
    assert devicearray.from_record_like(r).gpu_data != r.gpu_data


def test_auto_device_uploads_only_host_arrays():
    d, new = devicearray.auto_device(ramp(3))
    assert new
    assert devicearray.auto_device(d) == (d, False)
    r, new = devicearray.auto_device(record())
    assert new
    assert r["a"] == 3
    assert devicearray.auto_device(ramp(3), copy=False)[1]
    with pytest.raises(ValueError, match="non-contiguous"):
        devicearray.auto_device(ramp(6)[::2])


def test_array_core_and_contiguity():
    repeated = np.broadcast_to(ramp(3), (4, 3))
    assert devicearray.array_core(repeated).shape == (3,)
    assert devicearray.is_contiguous(repeated)
    assert devicearray.is_contiguous(ramp(3, 4))
    assert not devicearray.is_contiguous(ramp(3, 4).T)
    assert not devicearray.is_contiguous(ramp(6)[::2])
    plain = ramp(3)
    assert devicearray.array_core(plain) is plain
    with pytest.raises(ValueError, match="non-contiguous"):
        devicearray.sentry_contiguous(ramp(6)[::2])


def test_what_is_no_device_array():
    with pytest.raises(ValueError, match="require an cuda ndarray"):
        devicearray.require_cuda_ndarray(ramp(3))
    with pytest.raises(ValueError, match="require an cuda ndarray"):
        devicearray.verify_cuda_ndarray_interface(ramp(3))

    class Half:
        __cuda_ndarray__ = True
        shape = (3,)
        strides = 8
        dtype = np.dtype("f8")

    with pytest.raises(AttributeError, match="strides must be of type"):
        devicearray.verify_cuda_ndarray_interface(Half())


@pytest.mark.parametrize("name", ["astype", "flatten", "zeros"])
def test_what_numba_cuda_has_not_either(name):
    assert not hasattr(cuda.device_array(3), name)
