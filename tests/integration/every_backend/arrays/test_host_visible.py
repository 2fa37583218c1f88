"""Pinned, mapped and managed arrays: ndarrays that copies, or the device itself, reach in place."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

import devmem as dm
from devmem.spi.types import AllocFlags, MemoryKind
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")

MAKE = {"pinned": dm.pinned_array, "mapped": dm.mapped_array, "managed": dm.managed_array}
LIKE = {"pinned": dm.pinned_array_like, "mapped": dm.mapped_array_like, "managed": dm.managed_array_like}
CLASS = {"pinned": dm.PinnedNDArray, "mapped": dm.MappedNDArray, "managed": dm.ManagedNDArray}


@pytest.fixture(params=["pinned", "mapped", "managed"])
def kind(request, need_kind):
    need_kind(request.param)
    return request.param


@pytest.fixture(params=["mapped", "managed"])
def visible(request, need_kind):
    """The kinds that a device reaches in place."""
    need_kind(request.param)
    return request.param


# -- making them -------------------------------------------------------------------------------------------------------


def test_they_are_ndarrays_with_the_defaults_of_device_array(kind):
    a = MAKE[kind]((2, 3))
    assert type(a) is CLASS[kind]
    assert (a.shape, a.dtype, a.strides) == ((2, 3), np.dtype("f8"), (24, 8))
    assert a.flags.writeable
    assert a.flags.c_contiguous
    assert a.flags.aligned
    a[...] = np.arange(6).reshape(2, 3)
    assert a.sum() == 15


@pytest.mark.parametrize("shape", [(), 0, (0, 3), 5, np.int64(5), [2, 3], (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["f4", "?", "M8[s]", "S3", [("a", "i4"), ("b", "f8")], ">i2"], ids=str)
def test_shapes_and_dtypes(kind, shape, dtype):
    want = np.zeros(shape, dtype)
    a = MAKE[kind](shape, dtype)
    assert (a.shape, a.dtype, a.nbytes) == (want.shape, want.dtype, want.nbytes)
    a[...] = want
    d = dm.to_device(a)
    assert d.copy_to_host().tobytes() == want.tobytes()
    d.copy_to_host(a)
    if kind != "pinned":
        assert bool(a.ptr) == bool(a.nbytes)
        assert a.copy_to_host().tobytes() == want.tobytes()


def test_order_and_strides(kind):
    assert MAKE[kind]((2, 3), order="F").flags.f_contiguous
    a = MAKE[kind]((2, 3), "f8", (64, 16))
    assert a.strides == (64, 16)
    a[...] = 5
    assert dm.to_device(a).tolist() == [[5] * 3] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (((-1,),), dm.LayoutError, "negative"),
        (((2**62, 4),), dm.LayoutError, "does not fit"),
        (("x",), TypeError, "a shape is"),
        ((2.5,), TypeError, "a shape is"),
        ((3, object), dm.LayoutError, "Python objects"),
        ((3, "f8", (4,)), dm.LayoutError, "overlap"),
        ((3, "f8", None, "K"), dm.LayoutError, "order is"),
    ],
)
def test_bad_arguments_are_refused_with_the_reason(kind, arguments, error, says):
    with pytest.raises(error, match=says):
        MAKE[kind](*arguments)


def test_like_takes_shape_dtype_and_order_of_the_model(kind):
    for model in (
        np.zeros((2, 3), "i2", order="F"),
        np.zeros((4, 6))[::2, ::3],
        np.zeros(()),
        np.zeros((0, 2)),
        dm.zeros((2, 3), order="F"),
    ):
        a = LIKE[kind](model)
        assert type(a) is CLASS[kind]
        assert (a.shape, a.dtype) == (model.shape, model.dtype)
        if a.ndim == 2 and a.size:
            assert a.flags.f_contiguous == (
                np.empty_like(model).flags.f_contiguous if isinstance(model, np.ndarray) else True
            )
    with pytest.raises(dm.LayoutError, match="Python objects"):
        LIKE[kind]([None])


def test_a_kind_that_the_device_lacks_is_refused(device):
    lacking = [kind for kind in MAKE if kind not in device.info.memory_kinds]
    if not lacking:
        pytest.skip(f"{device} has every kind of memory")
    with pytest.raises(dm.UnsupportedError, match=f"has no {lacking[0]} memory, only"):
        MAKE[lacking[0]](3)


# -- flags really reach the driver -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("portable", "wc"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", ["pinned", "mapped"])
def test_b3_portable_and_wc_are_passed_to_the_driver(recorded, need_kind, name, portable, wc):
    need_kind(name)
    with recorded.during() as seen:
        kept = [MAKE[name](10, portable=portable, wc=wc), LIKE[name](np.zeros(10), portable=portable, wc=wc)]
    calls = [call for call in seen if call.method == "alloc"]
    assert len(calls) == len(kept) == 2
    for call in calls:
        nbytes, _, kind, flags = call.args
        assert (nbytes, kind) == (80, MemoryKind(name))
        assert bool(flags & AllocFlags.PORTABLE) is portable
        assert bool(flags & AllocFlags.WRITE_COMBINED) is wc


def test_managed_memory_can_be_attached_to_the_host_first(recorded, need_kind):
    need_kind("managed")
    with recorded.during() as seen:
        (
            dm.managed_array(10),
            dm.managed_array(10, attach_global=False),
            dm.managed_array_like(np.zeros(10), attach_global=False),
        )
    flags = [call.args[3] for call in seen if call.method == "alloc"]
    assert [bool(f & AllocFlags.ATTACH_HOST) for f in flags] == [False, True, True]


@pytest.mark.parametrize("kind", ["pinned", "mapped"])
@pytest.mark.parametrize(("coherence", "flag"), [("fine", AllocFlags.FINE), ("coarse", AllocFlags.COARSE)])
def test_coherence_of_host_memory(recorded, need_kind, kind, coherence, flag):
    need_kind(kind)
    make, like = (
        (dm.pinned_array, dm.pinned_array_like) if kind == "pinned" else (dm.mapped_array, dm.mapped_array_like)
    )
    with recorded.during() as seen:
        make(10, coherence=coherence), like(np.zeros(10), coherence=coherence)
    flags = [call.args[3] for call in seen if call.method == "alloc"]
    assert len(flags) == 2 and all(each & flag for each in flags)
    with pytest.raises(dm.LayoutError, match="coherence is 'fine' or 'coarse', not 'rough'"):
        make(10, coherence="rough")


# -- the device's address ----------------------------------------------------------------------------------------------


def test_b4_ptr_is_right_in_every_slice(visible):
    a = MAKE[visible]((4, 6), "i4")
    a[...] = np.arange(24).reshape(4, 6)
    base = a.ptr
    assert base
    for key in (np.s_[1], np.s_[:, 2], np.s_[::-1], np.s_[1:3, 4:1:-1], np.s_[2, 3, None], np.s_[..., ::2]):
        part = a[key]
        assert type(part) is CLASS[visible]
        assert part.ptr == base + (part.ctypes.data - a.ctypes.data)
        view = dm.as_device_array(part)
        assert (view.ptr, view.shape, view.strides) == (part.ptr, part.shape, part.strides)
        np.testing.assert_array_equal(view.copy_to_host(), np.asarray(part))
    for part in (a.T, a.reshape(2, 12), a.ravel(), a.view("u1"), a.transpose(1, 0), a.squeeze(), a[None]):
        assert part.ptr == base
    for part in (a[2:2], a[:, 6:]):
        assert part.ptr == 0
        assert dm.as_device_array(part).copy_to_host().size == 0


def test_b4_results_of_arithmetic_have_no_address(visible):
    a = MAKE[visible](4)
    a[...] = 1
    for result in (a + 1, -a, np.sqrt(a), a.copy(), np.empty_like(a), a.astype("f4"), a[[0, 1]], a[a > 0]):
        with pytest.raises(dm.LayoutError, match="result of a computation"):
            result.ptr  # noqa: B018
        assert not dm.is_device_array(result)
        with pytest.raises(dm.UnsupportedError, match="to_device"):
            dm.as_device_array(result)
    assert type(a.sum()) is np.float64
    assert (a + 1).tolist() == [2, 2, 2, 2]


def test_b4_results_of_arithmetic_upload_like_any_array(visible):
    a = MAKE[visible](4)
    a[...] = 1
    d = dm.zeros(4)
    d.copy_to_device(a + 1)
    assert d.tolist() == [2] * 4
    d[...] = a * 3
    assert d.tolist() == [3] * 4
    assert dm.to_device(a + 4).tolist() == [5] * 4
    assert dm.to_device(a + 5, to=d).tolist() == [6] * 4


def test_b4_the_documented_methods_work(visible):
    a = MAKE[visible]((4, 3))
    host = np.arange(12.0).reshape(4, 3)
    a.copy_to_device(host)
    np.testing.assert_array_equal(np.asarray(a), host)
    out = np.empty((4, 3))
    assert a.copy_to_host(out) is out
    np.testing.assert_array_equal(out, host)
    got = a.copy_to_host()
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, host)
    a[::-1].copy_to_device(dm.to_device(host))
    np.testing.assert_array_equal(np.asarray(a), host[::-1])
    np.testing.assert_array_equal(a[1:, ::2].copy_to_host(), host[::-1][1:, ::2])
    assert a.squeeze().shape == (4, 3)
    assert [part.tolist() for part in a.split(3)] == [host[::-1][:3].tolist(), host[::-1][3:].tolist()]
    assert all(type(part) is CLASS[visible] for part in a.split(1))
    with pytest.raises(dm.LayoutError, match="at least one element, not 0"):
        a.split(0)
    assert a.device == dm.current_device()


def test_the_device_sees_what_the_host_writes_and_the_other_way(visible):
    a = MAKE[visible](4, "i4")
    a[...] = 7
    view = dm.as_device_array(a)
    assert view.tolist() == [7] * 4
    a[1] = 8
    assert view[1] == 8
    view[2:] = 9
    assert a.tolist() == [7, 8, 9, 9]
    d = dm.zeros(4, "i4")
    d[...] = a
    d[::-1].copy_to_device(a)
    assert d.tolist() == [9, 9, 8, 7]


def test_the_device_view_keeps_the_memory_alive(visible):
    view = dm.as_device_array(MAKE[visible](4, "i4"))
    gc.collect()
    dm.trim()
    view.fill(5)
    assert view.tolist() == [5] * 4


def test_to_device_copies(kind):
    a = MAKE[kind](4)
    a[...] = 1
    d = dm.to_device(a)
    a[...] = 2
    assert d.tolist() == [1] * 4


def test_free_is_refused_with_the_reason(visible):
    with pytest.raises(dm.LayoutError, match=r"last array is dropped"):
        MAKE[visible](4).free()


def test_pickle_makes_an_ordinary_array(visible):
    a = MAKE[visible]((2, 2))
    a[...] = 3
    b = pickle.loads(pickle.dumps(a))
    assert type(b) is np.ndarray
    assert b.tolist() == [[3, 3], [3, 3]]


# -- lifetime ----------------------------------------------------------------------------------------------------------


def test_memory_is_counted_exactly_and_given_back_with_the_last_view(kind, still):
    def counts():
        """What is live and pending where memory of the kind is, and elsewhere."""
        info = still.memory_info()
        return (info[2:4], info.host[:2]) if kind == "managed" else (info.host[:2], info[2:4])

    (live, pending), elsewhere = counts()
    a = MAKE[kind](1000, "u1")
    assert counts() == ((live + 1000, pending), elsewhere)
    view = a[10:]
    del a
    gc.collect()
    assert counts() == ((live + 1000, pending), elsewhere)
    del view
    assert counts()[0][0] == live
    dm.trim()
    assert counts() == ((live, pending), elsewhere)


def test_reset_leaves_referenced_arrays_readable(kind, device):
    a = MAKE[kind](1000)
    a[...] = 7
    part = a[::2]
    dm.reset()
    assert part.sum() == 3500
    part[...] = 1
    assert a.sum() == 500 * 8
    if kind != "pinned":
        with pytest.raises(dm.ClosedError, match="was reset"):
            a.ptr  # noqa: B018
        for use in (
            dm.MappedNDArray.copy_to_host,
            lambda x: x.copy_to_device(x + 1),
            lambda x: dm.as_device_array(x).ptr,
        ):
            with pytest.raises(dm.ClosedError):
                use(a)
    d = dm.to_device(a)
    assert d.tolist() == a.tolist()
    del a, part


def test_copies_from_pinned_memory_are_asynchronous_and_keep_it_alive(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d = dm.zeros(1000, "i4")
    a = dm.pinned_array(1000, "i4")
    a[...] = 1
    d.copy_to_device(a, stream=s)  # once before, so that nothing is made for the first time below
    s.synchronize()
    a[...] = 2
    with hold(s):
        d.copy_to_device(a, stream=s)
        assert not s.query()
        del a
        gc.collect()
    s.synchronize()
    assert set(d.tolist()) == {2}


def test_downloads_into_pinned_memory_are_asynchronous(need, need_kind):
    need("hold")
    need_kind("pinned")
    s = dm.stream(non_blocking=True)
    d = dm.full(1000, 5, "i4")
    a = dm.pinned_array(1000, "i4")
    a[...] = 0
    with hold(s):
        assert d.copy_to_host(a, stream=s) is a
        assert not s.query()
        assert not a.any()
    s.synchronize()
    assert (a == 5).all()


def test_a_stream_of_a_mapped_array_orders_its_copies(recorded, visible):
    s = dm.stream()
    a = MAKE[visible](10, stream=s)
    with recorded.during() as seen:
        a.copy_to_device(np.arange(10.0))
        a[::-1].copy_to_host()
    assert {call.args[-1] for call in seen if call.method in ("copy", "copy_strided")} == {s.handle}
    assert dm.as_device_array(a).stream is s
    for bad in (True, "x", 2.5):
        with pytest.raises(TypeError, match="a stream is"):
            MAKE[visible](10, stream=bad)


def test_hints_for_managed_memory(need, need_kind):
    need_kind("managed")
    need("managed")
    a = dm.managed_array(1000)
    a[...] = 1
    a.prefetch()
    a[10:20].prefetch(to_host=True)
    a[:0].prefetch()
    for word in ("read_mostly", "preferred_location", "accessed_by"):
        a.advise(f"set_{word}")
        a.advise(f"unset_{word}")
    with pytest.raises(dm.LayoutError, match=r"advice is one of set_read_mostly.*not 'hurry'"):
        a.advise("hurry")
    dm.synchronize()
    assert a.sum() == 1000


@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_they_have_the_interface_that_device_arrays_have(kind, need_kind):
    need_kind(kind)
    array = getattr(dm, f"{kind}_array")((2, 3), np.int32)
    array[...] = 7
    if not hasattr(dm.device_array(1), "__cuda_array_interface__"):
        assert not hasattr(array, "__cuda_array_interface__")
        return
    part = array[:, 1:]
    interface = part.__cuda_array_interface__
    assert interface["data"] == (array.ptr + 4, False)
    assert (interface["shape"], interface["strides"], interface["typestr"]) == ((2, 2), (12, 4), "<i4")
    assert not hasattr(array + 1, "__cuda_array_interface__"), "the result of a computation is not on the device"
