"""Arguments of a launch that need more than a look: host arrays that share memory, subclasses, packed records, captures."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
import standin_compiler
from waits import patience, together

import devmem as dm
from devmem.kernels.compilers import abi
from devmem.kernels.compilers.numba_types import LoadedKernel
from devmem.kernels.launch import Launch
from devmem.spi.types import Capability

pytestmark = pytest.mark.usefixtures("tidy")

PACKED = np.dtype([("x", "i1"), ("y", "<f8")])


class Sub(dm.DeviceNDArray):
    """An array class of the user's own."""

    __slots__ = ()


@pytest.fixture
def compiler(device):
    with standin_compiler.standing_in(device.backend) as found:
        yield found


@pytest.fixture
def copying(compiler):
    """Copies its first argument over its second."""

    @dm.kernel
    def kernel(src, dst):
        """copy"""

    return kernel


@pytest.fixture
def copying_three(compiler):
    @dm.kernel
    def kernel(src, dst, other):
        """copy"""

    return kernel


# -- host arrays -------------------------------------------------------------------------------------------------------


def test_the_same_memory_twice_is_one_array_on_the_device(copying_three, compiler):
    """As two, the one that the kernel left alone would be copied back over what it wrote to the other."""
    a, src = np.arange(4.0), np.full(4, 7.0)
    copying_three[1, 1](dm.In(src), dm.InOut(a), dm.InOut(a[:]))
    [launch] = compiler.launches
    assert launch[4][1] is launch[4][2]
    np.testing.assert_array_equal(a, src)


def test_arrays_that_would_be_copied_back_over_each_other(copying_three, compiler):
    a, src = np.arange(6.0), np.full(5, 7.0)
    with pytest.raises(
        dm.LayoutError, match=r"argument 1 of .*, 'dst', .* and argument 2 of .*, 'other', .* share memory"
    ):
        copying_three[1, 1](dm.In(src), dm.InOut(a[1:]), dm.InOut(a[:-1]))
    assert not compiler.launches
    np.testing.assert_array_equal(a, np.arange(6.0))
    copying_three[1, 1](dm.In(src), dm.Out(a[1:]), dm.In(a[:-1]))
    np.testing.assert_array_equal(a, [0, 7, 7, 7, 7, 7])
    b = np.arange(6.0)  # between each other's elements they share none
    copying_three[1, 1](dm.In(src[:3]), dm.InOut(b[::2]), dm.InOut(b[1::2]))
    np.testing.assert_array_equal(b, [7, 1, 7, 3, 7, 5])


def test_a_record_of_a_read_only_array(copying, compiler):
    src, dst = np.ones(2, PACKED), np.zeros(2, PACKED)
    dst.flags.writeable = False
    with pytest.raises(
        dm.LayoutError, match=r"argument 1 of .*read-only.*InOut\(\) needs a writable array; devmem\.In"
    ):
        copying[1, 1](dm.In(src[0]), dm.InOut(dst[1]))
    assert not compiler.launches
    dst.flags.writeable = src.flags.writeable = True
    src.flags.writeable = False
    copying[1, 1](dm.In(src[0]), dm.InOut(dst[1]))
    assert dst[1] == src[0]


def test_nothing_moves_where_another_argument_is_refused(copying, with_settings):
    smart, protected = dm.SmartArray(np.arange(4.0)), np.zeros(4)
    protected.flags.writeable = False
    dm.transfer_stats(reset=True)
    with pytest.raises(dm.LayoutError, match="read-only"):
        copying[1, 1](smart, dm.InOut(protected))
    with_settings(TRANSFER_GUARD="disallow")
    with pytest.raises(dm.TransferGuardError):
        copying[1, 1](smart, np.zeros(4))
    assert dm.transfer_stats() == {}


# -- device arrays -----------------------------------------------------------------------------------------------------


def test_arrays_of_a_subclass_go_the_short_way(copying, compiler, monkeypatch):
    made = []
    for each in (dm.to_device(np.arange(3.0)), dm.zeros(3)):
        sub = Sub(each.open_device, each.allocation, each.ptr, each.shape, each.dtype, None, None)
        made.append(sub)
    monkeypatch.setattr(Launch, "_launch_mixed", None)
    copying[1, 1](*made)
    [launch] = compiler.launches
    assert all(one is other for one, other in zip(launch[4], made, strict=True))
    np.testing.assert_array_equal(made[1].copy_to_host(), np.arange(3.0))


def test_elements_that_are_not_aligned_are_asked_for_anew(compiler):
    kernel = dm.kernel(lambda array: None)
    records = dm.to_device(np.zeros(4, PACKED))
    bytes_ = dm.zeros(33, np.uint8)
    kernel[1, 1](dm.zeros(4))
    kernel[1, 1](bytes_[:32].view(np.float64))
    assert len(kernel.codes.by_key) == 1
    kernel[1, 1](bytes_[1:].view(np.float64))
    assert len(kernel.codes.by_key) == 2
    kernel[1, 1](records["y"])
    kernel[1, 1](dm.zeros((4, 2))[:, 0])
    assert len(kernel.codes.by_key) == 4


@pytest.mark.parametrize("configuration", [(1 << 31, 1), (1, (1, 1 << 40)), (1, 1, 0, 1 << 31)])
def test_what_no_device_takes_is_refused(compiler, configuration):
    kernel = dm.kernel(lambda value: None)
    with pytest.raises(dm.LayoutError):
        kernel[configuration]
    with pytest.raises(dm.LayoutError, match="let each thread do several elements"):
        kernel.forall(1 << 40)


# -- frames ------------------------------------------------------------------------------------------------------------


class ReadingDriver:
    """Reads the words of each launch when as many as it waits for have begun: that is when shared words would be seen."""

    def __init__(self, parties):
        self.together = threading.Barrier(parties, timeout=patience())
        self.seen = []

    def load(self, image, name):
        return 1

    def launch(self, function, grid, block, shared_bytes, stream, params, sizes):
        import ctypes

        self.together.wait()
        address = ctypes.c_void_p.from_address(params).value
        self.seen.append(ctypes.c_int64.from_address(address).value)
        assert sizes[0] == 8


def test_threads_that_launch_the_same_kernel_have_words_of_their_own():
    driver = ReadingDriver(4)
    kernel = LoadedKernel(driver, b"", "name", [abi.scalar("q", int)])
    together(*(partial(kernel.launch, (1, 1, 1), (1, 1, 1), 0, 0, (number,)) for number in range(4)))
    assert sorted(driver.seen) == [0, 1, 2, 3]


def test_words_that_were_interrupted_are_not_used_again(device):
    kernel = LoadedKernel(ReadingDriver(1), b"", "name", [abi.array(1)])
    a, b = dm.zeros(3), dm.zeros(5)

    class Interrupting:
        """An array that hides its strides."""

        _shape, _strides, _ptr, size, itemsize, shape = (5,), None, 0, 5, 8, (5,)

        @property
        def strides(self):
            raise KeyboardInterrupt

    def launch(array):
        kernel.launch((1, 1, 1), (1, 1, 1), 0, 0, (array,))

    launch(a)
    assert len(kernel.frames.idle) == 1
    with pytest.raises(KeyboardInterrupt):
        launch(Interrupting())
    assert kernel.frames.idle == []
    launch(b)
    assert len(kernel.frames.idle) == 1


def test_a_scalar_that_does_not_fit_is_named():
    kernel = LoadedKernel(ReadingDriver(1), b"", "name", [abi.scalar("q", int), abi.scalar("b", int)])
    with pytest.raises(OverflowError, match="argument 1, 300, does not fit the type"):
        kernel.launch((1, 1, 1), (1, 1, 1), 0, 0, (1, 300))
    kernel.launch((1, 1, 1), (1, 1, 1), 0, 0, (1, 3))


def test_threads_that_launch_first_have_it_compiled_once(copying, compiler, device, monkeypatch):
    real = compiler.compile

    def slowly(*arguments):
        threading.Event().wait(0.05)  # the others come by, if they can
        return real(*arguments)

    monkeypatch.setattr(compiler, "compile", slowly)

    def launch():
        src, dst = dm.to_device(np.arange(3.0), device=device), dm.zeros(3)
        copying[1, 1](src, dst)
        np.testing.assert_array_equal(dst.copy_to_host(), np.arange(3.0))

    together(*[launch] * 4)
    assert len(compiler.compiled) == 1


# -- captures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def capture(device, monkeypatch):
    """Begins and ends a capture on a stream, as the driver tells of one."""
    context = device.opened()
    held = []

    class Capturing:
        def __getattr__(self, name):
            return getattr(driver, name)

        def capturing(self, handle):
            return handle in held

    driver = context.handle.driver
    with monkeypatch.context() as patch:
        patch.setattr(context.handle, "capabilities", context.handle.capabilities | {Capability.CAPTURE})
        patch.setattr(context.handle, "driver", Capturing())
        yield dm.stream(), held
        held.clear()
        dm.trim()


def test_no_code_is_loaded_while_a_graph_is_captured(copying, compiler, capture):
    stream, held = capture
    a, b = dm.to_device(np.arange(3.0)), dm.zeros(3)
    held.append(stream.handle)
    with pytest.raises(dm.UnsupportedError, match=r"is capturing a graph, and .* is not compiled .*compile_for"):
        copying[1, 1, stream](a, b)
    assert compiler.compiled == []
    held.clear()
    copying[1, 1, stream](a, b)
    held.append(stream.handle)
    copying[1, 1, stream](a, b)
    assert len(compiler.launches) == 2


def test_no_host_array_is_given_while_a_graph_is_captured(copying, compiler, capture):
    """What a graph does it does again, and the memory of an upload belongs to another allocation by then."""
    stream, held = capture
    src, dst = np.arange(3.0), np.zeros(3)
    copying[1, 1, stream](dm.In(src), dm.Out(dst))
    stream.synchronize()
    held.append(stream.handle)
    dm.transfer_stats(reset=True)
    with pytest.raises(dm.UnsupportedError, match="host arrays are copied to the device for a single launch"):
        copying[1, 1, stream](dm.In(src), dm.Out(dst))
    with stream, pytest.raises(dm.UnsupportedError, match="host arrays are copied to the device for a single launch"):
        copying[1, 1](dm.In(src), dm.Out(dst))
    assert dm.transfer_stats() == {}
    assert len(compiler.launches) == 1
