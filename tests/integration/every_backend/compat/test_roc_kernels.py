"""``roc.jit`` and the names that its kernels use, where the backend has a compiler or the simulator."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import devmem as dm
from devmem.compat import numba_roc as roc
from devmem.compat.numba_roc.hsadrv.error import HsaDriverError, HsaKernelLaunchError

pytestmark = pytest.mark.usefixtures("devmem_backend", "tidy")


@roc.jit
def copy_kernel(dst, src):
    i = roc.get_global_id(0)
    if i < dst.size:
        dst[i] = src[i]


@roc.jit()
def add_one(array):
    array[roc.get_global_id(0)] += 1


@roc.jit("void(float64[:], float64[:])")
def reversed_blocks(dst, src):
    shared = roc.shared.array(8, np.float64)
    local = roc.get_local_id(0)
    at = roc.get_global_id(0)
    shared[local] = src[at]
    roc.barrier(roc.CLK_LOCAL_MEM_FENCE)
    dst[at] = shared[roc.get_local_size(0) - 1 - local]


@roc.jit(device=True)
def doubled(value):
    return 2 * value


@roc.jit
def call_another(array):
    i = roc.get_global_id(0)
    array[i] = doubled(array[i])


@roc.jit
def where_it_is(out):
    x, y = roc.get_global_id(0), roc.get_global_id(1)
    out[x, y, 0] = roc.get_local_id(0)
    out[x, y, 1] = roc.get_group_id(1)
    out[x, y, 2] = roc.get_local_size(0)
    out[x, y, 3] = roc.get_global_size(1)
    out[x, y, 4] = roc.get_num_groups(0)
    out[x, y, 5] = roc.get_work_dim()


@roc.jit
def count(total):
    roc.atomic.add(total, 0, 1)
    roc.mem_fence(roc.CLK_GLOBAL_MEM_FENCE)
    roc.wavebarrier()
    roc.barrier()


@pytest.fixture(autouse=True)
def compiler(devmem_backend):
    array, reason = roc.device_array(1), ""
    try:
        copy_kernel[1, 1](array, array)
    except dm.UnsupportedError as error:
        reason = str(error)
    array.free()  # a skip keeps what its traceback has seen
    if reason:
        pytest.skip(f"kernels cannot be launched here: {reason}")


def test_host_arrays_go_there_and_back_without_a_warning():
    expected = np.arange(512) + 1
    got = np.zeros_like(expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy_kernel[4, 128](got, expected.copy())
    np.testing.assert_array_equal(got, expected)


def test_a_kernel_copies_between_device_arrays():
    expected = np.arange(512)
    array = roc.device_array_like(expected)
    copy_kernel[4, 128](array, roc.to_device(expected))
    np.testing.assert_array_equal(array.copy_to_host(), expected)


@pytest.mark.parametrize("make", [roc.coarsegrain_array, roc.finegrain_array])
def test_host_visible_arrays_are_written_in_place(make, need_kind):
    need_kind("mapped")
    expected = np.arange(64) + 1
    got = make(shape=expected.shape, dtype=expected.dtype)
    got.fill(0)
    copy_kernel[4, 16](got, roc.to_device(expected))
    np.testing.assert_array_equal(got, expected)  # at once: a launch without a stream waits


def test_read_only_arrays_are_read():
    source = np.arange(8.0)
    source.flags.writeable = False
    got = np.zeros(8)
    copy_kernel[1, 8](got, source)
    np.testing.assert_array_equal(got, source)


def test_configure_counts_work_items():
    array = roc.to_device(np.zeros(12))
    add_one.configure(12, 4)(array)
    add_one.configure((12,), (3,), roc.stream())(array)
    add_one.configure(12)(array)
    dm.synchronize()
    assert (array.copy_to_host() == 3).all()
    with pytest.raises(HsaKernelLaunchError, match="do not fill groups"):
        add_one.configure(10, 4)(array)
    assert issubclass(HsaKernelLaunchError, HsaDriverError)


@pytest.mark.parametrize("length", [0, 1, 7, 64, 100, 130])
def test_forall_runs_exactly_so_many(length):
    array = roc.to_device(np.zeros(length + 1))
    add_one.forall(length)(array)  # which asks for no bounds
    assert array.copy_to_host().tolist() == [1.0] * length + [0.0]


def test_a_group_shares_memory():
    source = np.arange(32.0)
    got = roc.device_array(32)
    reversed_blocks[4, 8](got, roc.to_device(source))
    np.testing.assert_array_equal(got.copy_to_host(), source.reshape(4, 8)[:, ::-1].ravel())


def test_a_kernel_calls_device_functions():
    array = roc.to_device(np.arange(4.0))
    call_another[1, 4](array)
    assert array.copy_to_host().tolist() == [0, 2, 4, 6]


def test_where_a_work_item_is():
    out = np.zeros((4, 6, 6), np.int64)
    where_it_is[(2, 3), (2, 2)](out)
    x, y = np.meshgrid(range(4), range(6), indexing="ij")
    np.testing.assert_array_equal(out[..., 0], x % 2)
    np.testing.assert_array_equal(out[..., 1], y // 2)
    assert [set(out[..., at].ravel()) for at in range(2, 6)] == [{2}, {6}, {2}, {2}]


def test_atomics_and_fences():
    total = np.zeros(1, np.int64)
    count[3, 8](total)
    assert total[0] == 24


def test_many_launches_on_a_stream_come_in_order():
    stream = roc.stream()
    array = roc.to_device(np.zeros(8), stream=stream)
    for _ in range(50):
        add_one[2, 4, stream](array)
    got = array.copy_to_host(stream=stream)
    stream.synchronize()
    assert (got == 50).all()
    with stream.auto_synchronize():
        add_one[2, 4, stream](array)
    assert (array.copy_to_host() == 51).all()


def test_host_arrays_are_back_on_return_with_a_stream_too(need, hold):
    need("hold")
    stream, got = roc.stream(), dm.pinned_array(8).view(np.ndarray)
    got[:] = 0
    add_one[2, 4, stream](got)
    with hold(stream, patience=0.5, tolerant=True):
        add_one[2, 4, stream](got)  # returns when the latch has given up
    assert (got == 2).all()


@pytest.mark.parametrize("stream", [0, None, False])
def test_no_stream_can_be_said(stream):
    got = np.zeros(4)
    add_one[1, 4, stream](got)
    add_one.configure(4, 4, stream)(got)
    add_one.forall(4, stream=stream)(got)
    assert (got == 3).all()


def test_a_stream_by_its_number():
    stream = roc.stream()
    got = np.zeros(4)
    add_one[1, 4, stream.handle](got)
    assert (got == 1).all()


def test_a_kernel_is_not_called_by_one():
    @roc.jit
    def outer(array):
        add_one(array)

    with pytest.raises(Exception, match=r"add_one") as caught:
        outer[1, 1](np.zeros(1))
    if isinstance(caught.value, dm.errors.SimulatorError):
        assert "@roc.jit(device=True)" in str(caught.value)


def test_a_kernel_returns_nothing():
    with pytest.raises(TypeError, match="returns nothing, not float64"):
        roc.jit("float64(float64[:])")
    assert copy_kernel.py_func.__name__ == copy_kernel.__name__ == "copy_kernel"
    assert "copy_kernel" in repr(copy_kernel)
    with pytest.raises(ValueError, match="one to three axes"):
        copy_kernel[(1, 1, 1, 1), 1]


def test_page_kernel_on_a_thousand_elements():
    """The page's kernel: what is uploaded, computed in groups, and fetched."""
    on_device = roc.to_device(np.arange(1000))
    add_one[10, 100](on_device)
    np.testing.assert_array_equal(on_device.copy_to_host(), np.arange(1000) + 1)
