"""Launching: what a kernel is given, on which stream it runs, and what becomes of host arrays.

With a compiler that compiles nothing (`standin_compiler`), so that all of it runs on every device.
"""

from __future__ import annotations

import gc
import pickle
import re
import warnings
import weakref

import numpy as np
import pytest
import standin_compiler

import devmem as dm
from devmem.kernels import arguments, work_items

pytestmark = pytest.mark.usefixtures("tidy")

RECORD = np.dtype([("x", "<i4"), ("y", "<f8")])


@dm.kernel
def copying(src, dst):
    """copy"""


@dm.kernel
def idle(value):
    """nothing"""


@dm.kernel
def idle_three(first, second, third):
    """nothing"""


@pytest.fixture(autouse=True)
def fresh():
    """No code of another test's, and no warning that was given already."""
    for kernel in (copying, idle, idle_three):
        kernel.codes.by_key.clear()
        kernel.codes.by_types.clear()
    arguments._warned_sites.clear()


@pytest.fixture
def compiler(device):
    # Code that earlier tests dropped is unloaded when enough is pending: that waits for every stream, held or not.
    gc.collect()
    dm.trim()
    with standin_compiler.standing_in(device.backend) as found:
        yield found


def launches(compiler):
    return compiler.launches


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dm.DevmemWarning)
        yield


# -- the configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configuration", "grid", "block", "shared"),
    [
        ((2, 64), (2, 1, 1), (64, 1, 1), 0),
        (((2, 3), (4, 5)), (2, 3, 1), (4, 5, 1), 0),
        (([2, 3, 4], np.int64(5)), (2, 3, 4), (5, 1, 1), 0),
        ((2, 64, 0, 256), (2, 1, 1), (64, 1, 1), 256),
        ((np.int32(2), (64,), None, np.int64(8)), (2, 1, 1), (64, 1, 1), 8),
    ],
)
def test_a_configuration_reaches_the_compiler_as_three_lengths(compiler, configuration, grid, block, shared):
    idle[configuration](1)
    [launch] = launches(compiler)
    assert launch[:3] == (grid, block, shared)
    assert launch[4] == (1,)


@pytest.mark.parametrize(
    ("configuration", "error", "message"),
    [
        (2, TypeError, r"<kernel idle> .*kernel\[grid, block\].*not kernel\[2\]: say how many blocks there are"),
        ((1, 2, 0, 0, 0), TypeError, "configured as"),
        ((0, 64), dm.LayoutError, r"every length of a grid is at least 1, got 0: kernel.forall\(n\) launches nothing"),
        ((-1, 64), dm.LayoutError, "every length of a grid is at least 1, got -1$"),
        ((1, 0), dm.LayoutError, "every length of a block is at least 1, got 0$"),
        ((1, 1025), dm.LayoutError, "a block has at most 1024 threads on every GPU, not the 1025 of 1025"),
        ((1, (32, 32, 2)), dm.LayoutError, r"not the 2048 of \(32, 32, 2\): take smaller blocks"),
        ((1, (8, -2)), dm.LayoutError, r"every length of a block is at least 1, got \(8, -2\)"),
        (((1, 2, 3, 4), 1), dm.LayoutError, "a grid has one to three lengths, not 4"),
        (((), 1), dm.LayoutError, "a grid has one to three lengths, not 0"),
        ((1.0, 64), TypeError, r"grid is made of integers, not 1.0 \(float\): divide with //"),
        ((1, (2, 1.5)), TypeError, r"block is made of integers, not 1.5 \(float\): divide with //"),
        ((True, 64), TypeError, r"grid is made of integers, not True \(bool\)$"),
        ((1, "64"), TypeError, "block is made of integers, not '64'"),
        ((1, 64, 0, -4), dm.LayoutError, "dynamic_shared_bytes is a number of bytes, not -4"),
        ((1, 64, 0, 4.0), TypeError, "dynamic_shared_bytes is made of integers"),
        ((1, 64, 0, (256 << 10) + 1), dm.LayoutError, "dynamic_shared_bytes=262145: no GPU has that much"),
    ],
)
def test_a_configuration_that_cannot_be(configuration, error, message):
    with pytest.raises(error, match=message):
        idle[configuration]


@pytest.mark.parametrize(
    ("n", "grid", "block"),
    [
        (1, 1, 64),
        (63, 1, 64),
        (64, 1, 128),
        (255, 1, 256),
        (256, 2, 256),
        (257, 2, 256),
        (10_000, 40, 256),
        (512, 3, 256),
    ],
)
def test_forall_has_a_thread_for_each_and_one_that_has_none(compiler, n, grid, block):
    idle.forall(n)(3)
    idle.forall(n, threads=10, dynamic_shared_bytes=4)(3)
    first, second = launches(compiler)
    assert first[:3] == ((grid, 1, 1), (block, 1, 1), 0)
    assert second[:3] == ((-(-n // 10), 1, 1), (10, 1, 1), 4)


def test_forall_of_nothing_launches_nothing(compiler):
    idle.forall(0)(object())
    assert launches(compiler) == []
    with pytest.raises(dm.LayoutError, match="not -1"):
        idle.forall(-1)
    with pytest.raises(TypeError, match="integers"):
        idle.forall(1.5)
    with pytest.raises(TypeError, match=r"argument 1 \(int\) is too many"):
        idle.forall(0)(1, 2)


def test_a_kernel_says_how_it_is_launched():
    with pytest.raises(TypeError, match=r"kernel\[grid, block\]\(\.\.\.\)"):
        idle(1)
    assert repr(idle) == "<kernel idle>"
    assert idle.__name__ == "idle"
    assert idle.function.__doc__ == "nothing"
    assert "idle" in repr(idle[1, 2])


@pytest.mark.parametrize("what", [3, 0, "void(int)", print, idle])
def test_what_is_no_function_is_no_kernel(what):
    with pytest.raises(TypeError, match=r"@devmem\.kernel"):
        dm.kernel("void()")(what) if isinstance(what, str) else dm.kernel(what)


def test_arguments_that_have_no_place_are_refused():
    with pytest.raises(TypeError, match=r"several\(a, \*rest\) cannot be a kernel.*'\*rest' has none"):

        @dm.kernel
        def several(a, *rest):
            pass

    with pytest.raises(TypeError, match="'b' has none"):
        dm.kernel("void(int, int)")(lambda a, *, b: None)
    dm.kernel(device=True)(lambda a, *rest: a)  # a device function is not launched


def test_a_device_function_is_not_launched():
    with pytest.raises(TypeError, match=r"is called by kernels, and not launched: leave device=True out"):
        dm.kernel(device=True)(idle.function)[1, 1]


def test_a_signature_is_text():
    with pytest.raises(TypeError, match="a signature is text"):
        dm.kernel([int])


def test_a_kernel_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(arguments.In)) is dm.In
    assert idle.__reduce__() == "idle"


# -- compilers ---------------------------------------------------------------------------------------------------------


def test_it_is_compiled_once_for_each_kind_of_argument(compiler):
    a, b = dm.to_device(np.zeros(4, np.float32)), dm.to_device(np.zeros(9, np.float32))
    for _ in range(2):
        idle[1, 1](a)
        idle[1, 1](b)
        idle[1, 1](1)
        idle[1, 1](2)
    assert [kernel.types for kernel in compiler.compiled] == [("float32 1",), ("int",)]
    idle[1, 1](a.reshape(2, 2))
    idle[1, 1](1.5)
    assert [kernel.types for kernel in compiler.compiled[2:]] == [("float32 2",), ("float",)]


def test_what_lies_otherwise_is_asked_for_anew(compiler):
    """Order and write protection decide on code of real compilers; here the types are the same, so the code is."""
    a = dm.to_device(np.zeros((4, 6), np.float32))
    for view in (a, a.T, a[:, ::2], a[:, :3]):
        idle[1, 1](view)
    assert len(compiler.compiled) == 1
    assert len(idle.codes.by_key) == 3


def test_without_a_compiler_the_error_says_what_to_install(compiler):
    compiler.reason = "it is not there: pip install 'devmem[some]'"
    with pytest.raises(dm.UnsupportedError, match=re.escape("(copying: it is not there: pip install 'devmem[some]')")):
        idle[1, 1](1)
    host = np.zeros(3)
    with pytest.raises(dm.UnsupportedError):
        idle[1, 1](dm.In(host))


def test_a_compiler_that_raises_when_asked_is_told_of(compiler, monkeypatch):
    monkeypatch.setattr(compiler, "unavailable", lambda: 1 / 0)
    with pytest.raises(dm.UnsupportedError, match="ZeroDivisionError"):
        idle[1, 1](1)


def test_what_the_compiler_says_of_the_source_comes_through(compiler):
    broken = dm.kernel(broken=True)(lambda value: None)
    with pytest.raises(SyntaxError, match="does not compile") as raised:
        broken[1, 1](1)
    assert any("while copying compiled" in note for note in raised.value.__notes__)


def test_the_number_of_arguments(compiler):
    dm.transfer_stats(reset=True)
    with pytest.raises(
        TypeError, match=r"<kernel copying> takes 2 arguments \(src, dst\), and was given 1: 'dst' is missing"
    ):
        copying[1, 1](dm.In(np.zeros(3)))
    assert dm.transfer_stats() == {}
    with pytest.raises(TypeError, match="given 0: 'first', 'second' and 'third' are missing"):
        idle_three[1, 1]()
    with pytest.raises(
        TypeError, match=r"takes 1 argument \(value\), .* given 3: argument 1 .* and argument 2 \(float\) are"
    ):
        idle[1, 1](1, 2, 3.5)
    assert launches(compiler) == []


def test_arguments_by_name_and_by_default(compiler):
    kernel = dm.kernel(lambda array, number=4, other=2.5: None)
    a = dm.to_device(np.zeros(3))
    kernel[1, 1](a)
    kernel[1, 1](other=1.5, array=a)
    kernel.forall(3)(a, number=7)
    assert [launch[4] for launch in launches(compiler)] == [(a, 4, 2.5), (a, 4, 1.5), (a, 7, 2.5)]
    src, dst = np.arange(3.0), np.zeros(3)
    copying[1, 1](dst=dm.Out(dst), src=dm.In(src))
    np.testing.assert_array_equal(dst, src)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"source": 1}, "there is no argument 'source'; 'dst' is missing"),
        ({"src": 1, "dst": 2}, "'src' is given by position and by name"),
    ],
)
def test_names_that_do_not_fit(compiler, named, message):
    with pytest.raises(TypeError, match=message):
        copying[1, 1](1, **named)


def test_a_kernel_has_arguments_of_any_name(compiler):
    dm.kernel(lambda self, arguments: None)[1, 1](self=1, arguments=2)
    assert launches(compiler)[0][4] == (1, 2)


@pytest.mark.parametrize("what", ["text", [1, 2], None])
def test_what_no_kernel_takes(compiler, what):
    with pytest.raises(TypeError, match=r"argument 0 of <kernel idle>, 'value'"):
        idle[1, 1](what)


def test_a_signature_takes_its_own_types_and_converts_scalars(compiler):
    declared = dm.kernel(["void(float32 1, int)", "void(float64 1, int)"])(lambda array, number: None)
    a, b, c = (dm.to_device(np.zeros(4, kind)) for kind in ("f4", "f8", "i4"))
    declared[1, 1](a, 1)
    declared[1, 1](a, 1.5)
    declared[1, 1](b, 1)
    assert [kernel.types for kernel in compiler.compiled] == [("float32 1", "int"), ("float64 1", "int")]
    with pytest.raises(TypeError, match=r"declared for void\(float32 1, int\) and .* given \(int32 1, int\)") as raised:
        declared[1, 1](c, 1)
    assert "argument 0, 'array', is int32 1, where void(float64 1, int) has float64 1" in str(raised.value)
    assert "argument 1" not in str(raised.value)


def test_a_signature_has_a_type_for_each_argument(compiler):
    declared = dm.kernel("void(int)")(copying.function)
    with pytest.raises(TypeError, match=r"'void\(int\)' has 1 type, and .* takes 2 arguments \(src, dst\)"):
        declared[1, 1](1, 2)
    with pytest.raises(TypeError, match="has 1 type"):
        declared.compile_for()
    assert compiler.compiled == []


def test_types_are_told_as_the_compiler_spells_them(compiler, monkeypatch):
    monkeypatch.setattr(compiler, "spelled", lambda kind: f"<{kind}>", raising=False)
    with pytest.raises(
        TypeError, match=r"given \(<complex>\): argument 0, 'value', is <complex>, where void\(int\) has <int>"
    ):
        dm.kernel("void(int)")(idle.function)[1, 1](1j)


def test_a_kernel_is_not_called_by_one_that_runs_in_python(compiler, monkeypatch):
    held = idle[1, 1]
    monkeypatch.setattr(work_items.this_thread, "item", object())
    for call in (idle, held):
        with pytest.raises(
            dm.UnsupportedError, match=r"<kernel idle> is called by a kernel.*@devmem\.kernel\(device=True\)"
        ):
            call(object())


def test_a_kernel_that_names_another_is_told_of_device_functions(compiler):
    inner = dm.kernel(device=True)(lambda value: idle(value))
    held = idle[1, 1]
    for calling in (lambda value: idle(value), lambda value: inner(value), lambda value: held(value)):
        with pytest.raises(SyntaxError) as raised:
            dm.kernel(broken=True)(calling)[1, 1](1)
        assert any(
            "it refers to <kernel idle>" in note and "@devmem.kernel(device=True)" in note
            for note in raised.value.__notes__
        )


def test_a_name_that_has_no_value_yet_hides_nothing(compiler):
    """What the compiler says comes through; a name that is assigned later is looked at by then."""
    inner = dm.kernel(device=True)(lambda value: later(value))

    def calling(value):
        return later(idle(value)) + inner(value)

    with pytest.raises(SyntaxError) as raised:
        dm.kernel(broken=True)(calling)[1, 1](1)
    assert any("it refers to <kernel idle>" in note for note in raised.value.__notes__)
    later = 1


def test_compile_for_compiles_before_the_first_launch(compiler, device):
    declared = dm.kernel("void(int)")(idle.function)
    declared.compile_for(device)
    declared.compile_for()
    assert [kernel.types for kernel in compiler.compiled] == [("int",)]
    declared[1, 1](5)
    assert len(compiler.compiled) == 1
    idle.compile_for(str(device), "void(float)")
    assert compiler.compiled[1].types == ("float",)
    with pytest.raises(TypeError, match="declared for no types"):
        idle.compile_for(device)
    with pytest.raises(TypeError, match="no signature"):
        idle.compile_for(device, "float")
    with pytest.raises(TypeError, match=r"a signature is text .* not 3"):
        idle.compile_for(device, 3)


def test_options_reach_the_compiler(compiler):
    dm.kernel(fastmath=True)(idle.function)[1, 1](1)
    assert compiler.compiled[0].options == {"fastmath": True}


def test_code_is_given_back_with_its_kernel(compiler):
    kernel = dm.kernel(lambda value: None)
    kernel[1, 1](1)
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None
    assert compiler.closed == 0
    dm.trim()
    assert compiler.closed == 1


def test_a_device_that_was_closed_is_compiled_for_anew(compiler, device):
    idle[1, 1](1)
    device.reset()
    idle[1, 1](1)
    assert len(compiler.compiled) == 2
    assert len(idle.codes.by_key) == len(idle.codes.by_types) == 1


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_device_arrays_and_scalars_go_as_they_are(compiler):
    a = dm.to_device(np.arange(3))
    for value in (
        True,
        -5,
        2**64 - 1,
        2.5,
        1 + 2j,
        np.float32(3),
        np.int8(4),
        np.datetime64("2020-01-01"),
        np.bool_(1),
    ):
        idle_three[1, 1](a, value, a[1:])
        launch = launches(compiler)[-1]
        assert launch[4][0] is a
        assert launch[4][1] is value


def test_a_record_on_the_device(compiler):
    records = dm.to_device(np.ones(3, RECORD))
    idle[1, 1](records[1])
    [launch] = launches(compiler)
    assert launch[4][0].ptr == records.ptr + RECORD.itemsize


def test_arguments_on_two_devices(compiler, second):
    a = dm.to_device(np.zeros(3))
    with second:
        b = dm.to_device(np.zeros(3))
    message = rf"argument 1 of .*: a kernel runs on one device, and this array is on {b.device}, those before it on {a.device}"
    with pytest.raises(dm.LayoutError, match=message):
        copying[1, 1](a, b)
    with pytest.raises(dm.LayoutError, match=message):
        idle_three[1, 1](a, b, np.zeros(3))
    copying[1, 1](b, b.copy())  # where the arrays are, whatever is current
    assert compiler.compiled[-1].driver is second.driver()


def test_an_array_that_was_freed(compiler):
    a = dm.to_device(np.zeros(3))
    a.free()
    with pytest.raises(dm.ClosedError, match=r"argument 0 of <kernel idle>, 'value': this memory .* was freed"):
        idle[1, 1](a)
    with pytest.raises(dm.ClosedError, match=r"argument 1 of <kernel copying>, 'dst': this memory .* was freed"):
        copying[1, 1](dm.In(np.zeros(3)), a)


@pytest.mark.parametrize("given", [lambda array: array, dm.In, dm.Out])
def test_what_no_device_holds(compiler, given):
    with pytest.raises(dm.LayoutError, match=r"argument 1 of <kernel copying>, 'dst': .*dtype object.*convert it"):
        copying[1, 1](dm.In(np.zeros(2)), given(np.array([None, 1])))
    assert launches(compiler) == []


def test_empty_arrays_are_launched_with(compiler):
    copying[1, 1](dm.device_array(0), dm.device_array((3, 0)))
    copying[1, 1](dm.In(np.zeros(0)), dm.Out(np.zeros((0, 2))))
    assert len(launches(compiler)) == 2


def test_memory_of_another_library(compiler, device):
    class Lent:
        """What another library's array is to us."""

        def __init__(self, array):
            self.array = array
            self.__dlpack_device__ = array.__dlpack_device__

        def __dlpack__(self, **keywords):
            return self.array.__dlpack__(**keywords)

    class Other(Lent):
        __dlpack_device__ = property(lambda self: self.array.__dlpack_device__, lambda self, value: None)

    src, dst = dm.to_device(np.arange(5.0)), dm.zeros(5)
    copying[1, 1](Other(src), Other(dst))
    [launch] = launches(compiler)
    assert [each.ptr for each in launch[4]] == [src.ptr, dst.ptr]
    np.testing.assert_array_equal(dst.copy_to_host(), np.arange(5.0))
    dm.synchronize()


def test_mapped_memory_is_used_in_place(compiler, need_kind):
    need_kind("mapped")
    array = dm.mapped_array(4, np.int32)
    idle[1, 1](array)
    [launch] = launches(compiler)
    assert launch[4][0].ptr == array.ptr


def test_a_smart_array_is_told_of_its_new_elements(compiler):
    src, dst = dm.SmartArray(np.arange(6.0)), dm.SmartArray(np.zeros(6))
    copying[1, 1](dm.In(src), dst)
    np.testing.assert_array_equal(dst.host(), np.arange(6.0))
    assert launches(compiler)[0][4][1] is dst.gpu()


def uploads():
    return sum(found["copies"] for path, found in dm.transfer_stats(reset=True).items() if path.startswith("h2d"))


def test_a_smart_array_that_is_only_written_is_not_uploaded(compiler):
    src, dst = dm.SmartArray(np.arange(6.0)), dm.SmartArray(np.zeros(6))
    uploads()
    copying[1, 1](dm.In(src), dm.Out(dst))
    assert uploads() == 1  # of what is read
    np.testing.assert_array_equal(dst.host(), np.arange(6.0))
    dst[0] = 9
    copying[1, 1](src, dm.Out(dst))
    assert uploads() == 0
    np.testing.assert_array_equal(dst.host(), np.arange(6.0))
    dst[0] = 9
    idle[1, 1](dm.InOut(dst))
    assert uploads() == 1


def test_of_a_smart_array_that_is_written_in_part_the_rest_is_kept(compiler):
    src, dst = dm.SmartArray(np.arange(3.0)), dm.SmartArray(np.full(6, 7.0))
    copying[1, 1](dm.In(src), dm.Out(dst[:3]))
    np.testing.assert_array_equal(dst.host(), [0, 1, 2, 7, 7, 7])


def test_a_smart_array_that_is_read_too_is_uploaded(compiler):
    for order in (lambda array: (dm.Out(array), 1, dm.In(array)), lambda array: (dm.In(array), 1, dm.Out(array))):
        both = dm.SmartArray(np.arange(6.0))
        idle_three[1, 1](*order(both))
        np.testing.assert_array_equal(both.host(), np.arange(6.0))


def test_both_sides_agree_after_a_launch_that_wrote_and_failed(compiler, monkeypatch):
    def launch(kernel, grid, block, shared_bytes, stream, arguments):
        kernel.driver.fill(arguments[0].ptr, 1, 1, arguments[0].nbytes, stream)
        raise dm.BackendError("no", backend="x", call="launch")

    monkeypatch.setattr(standin_compiler.CopyingKernel, "launch", launch)
    both = dm.SmartArray(np.zeros(6))
    with pytest.raises(dm.BackendError):
        idle_three[1, 1](dm.Out(both), 1, dm.In(both))
    np.testing.assert_array_equal(both.host(), both.gpu().copy_to_host())


def test_a_launch_that_fails_leaves_the_host_side_the_newest(compiler, monkeypatch):
    def launch(*arguments):
        raise dm.BackendError("no", backend="x", call="launch")

    src, dst = dm.SmartArray(np.arange(6.0)), dm.SmartArray(np.full(6, 7.0))
    copying[1, 1](src, dm.Out(dm.SmartArray(np.zeros(6))))
    monkeypatch.setattr(standin_compiler.CopyingKernel, "launch", launch)
    with pytest.raises(dm.BackendError):
        copying[1, 1](dm.In(src), dm.Out(dst))
    np.testing.assert_array_equal(dst.host(), np.full(6, 7.0))
    np.testing.assert_array_equal(dst.gpu().copy_to_host(), np.full(6, 7.0))


# -- host arrays -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_host_arrays_are_uploaded_and_copied_back(compiler, quiet, order, still):
    base = np.zeros((4, 12))
    dst = base[:, ::2] if order == "strided" else np.zeros((4, 6), order=order)
    src = np.arange(24.0).reshape(4, 6).copy(order if order != "strided" else "C")
    before = dm.memory_info().live
    copying[1, 1](src, dst)
    if order != "strided":
        np.testing.assert_array_equal(dst, src)
    assert not base[:, 1::2].any()
    dm.trim()
    assert dm.memory_info().live == before


def test_in_out_and_inout_say_which_way(compiler, device):
    src, dst, both = np.arange(6.0), np.full(6, 7.0), np.full(6, 9.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copying[1, 1](dm.In(src), dm.Out(dst))
        copying[1, 1](dm.In(src), dm.InOut(both))
    np.testing.assert_array_equal(dst, src)
    np.testing.assert_array_equal(both, src)
    unread = np.full(6, 5.0)
    copying[1, 1](dm.Out(unread), dm.In(src))  # what it writes is not fetched
    np.testing.assert_array_equal(src, np.arange(6.0))
    with pytest.raises(
        TypeError, match=r"argument 0 .*: devmem\.In\(\) takes an array, not a int: pass numbers without it"
    ):
        idle[1, 1](dm.In(3))


def test_a_direction_of_a_device_array_means_nothing(compiler):
    a, b = dm.to_device(np.arange(3.0)), dm.zeros(3)
    copying[1, 1](dm.In(a), dm.Out(b))
    np.testing.assert_array_equal(b.copy_to_host(), np.arange(3.0))


def test_one_host_array_twice_is_one_on_the_device(compiler, quiet):
    a = np.arange(3.0)
    idle_three[1, 1](a, 1, a)
    [launch] = launches(compiler)
    assert launch[4][0] is launch[4][2]
    np.testing.assert_array_equal(a, np.arange(3.0))


def test_read_only_arrays(compiler, quiet):
    a = np.arange(3.0)
    a.flags.writeable = False
    with pytest.raises(
        dm.LayoutError, match=r"argument 0 of .*, 'src': a host array of shape \(3,\).*read-only.*devmem\.In"
    ):
        copying[1, 1](a, np.zeros(3))
    assert compiler.compiled == []
    out = np.zeros(3)
    copying[1, 1](dm.In(a), out)
    np.testing.assert_array_equal(out, a)
    with pytest.raises(dm.LayoutError, match="overlap"):
        idle[1, 1](np.lib.stride_tricks.as_strided(np.zeros(3), (3, 3), (8, 8)))


def test_a_record_of_the_host(compiler, quiet):
    src, dst = np.ones(2, RECORD), np.zeros(2, RECORD)
    record = dst[1]
    copying[1, 1](src[0], record)
    assert dst[1] == src[0]
    assert dst[0] == np.zeros(1, RECORD)[0]


def test_the_warning_comes_once_for_each_place(compiler):
    a, b = np.arange(3.0), np.zeros(3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            copying[1, 1](a, b)
        copying[1, 1](a, b)
    assert len(seen) == 2
    assert all(each.category is dm.DevmemWarning and each.filename == __file__ for each in seen)
    told = str(seen[0].message)
    assert "argument 0 of <kernel copying>, 'src', a host array of shape (3,) and dtype float64 is uploaded" in told
    assert "devmem.In, Out or InOut" in told


def test_the_guard_refuses_before_anything_moves(compiler, with_settings):
    with_settings(TRANSFER_GUARD="disallow")
    a, b = np.arange(3.0), np.zeros(3)
    dm.transfer_stats(reset=True)
    with pytest.raises(dm.TransferGuardError, match="a kernel launch"):
        copying[1, 1](a, b)
    assert dm.transfer_stats() == {}
    assert compiler.compiled == []
    copying[1, 1](dm.In(a), dm.Out(b))  # spelled out: no implicit copy
    np.testing.assert_array_equal(a, b)


# -- order and lifetime ------------------------------------------------------------------------------------------------


def test_a_launch_does_not_wait_and_keeps_what_it_uses(compiler, need, hold, with_settings):
    """The memory of a dropped array is not reused before the launch has completed, however eagerly it is given back."""
    need("hold", "stream_ordered")
    with_settings(MAX_PENDING_DEALLOCS_COUNT="0")
    stream, side = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    src, dst = dm.to_device(np.arange(64.0)), dm.zeros(64)
    copying[1, 64, stream](src, dst)
    stream.synchronize()
    compiler.launches.clear()
    with hold(stream) as latch:
        copying[1, 64, stream](src, dst)
        compiler.launches.clear()
        assert not stream.query()
        del src
        others = [dm.device_array(64, stream=side) for _ in range(4)]
        for each in others:
            each.fill(-1.0, stream=side)
        side.synchronize()
        latch.release()
    stream.synchronize()
    np.testing.assert_array_equal(dst.copy_to_host(), np.arange(64.0))


def test_every_array_has_the_stream_recorded(compiler):
    stream = dm.stream()
    arrays = [dm.to_device(np.zeros(4)) for _ in range(3)]
    idle_three[1, 1, stream](*arrays)
    assert all(stream in array.allocation.uses() for array in arrays)


def test_the_stream_named_orders_it(compiler, device):
    stream = dm.stream()
    a = dm.to_device(np.zeros(4))
    idle[1, 1, stream](a)
    idle[1, 1, stream.handle](a)
    with stream:
        idle[1, 1](a)
    idle[1, 1](a.bind(stream))
    assert {launch[3] for launch in launches(compiler)} == {stream.handle}
    idle[1, 1](a)
    assert launches(compiler)[-1][3] == dm.default_stream().handle


def test_arrays_bound_to_two_streams_need_one_named(compiler):
    one, other = dm.stream(), dm.stream()
    a, b = dm.to_device(np.zeros(4)).bind(one), dm.to_device(np.zeros(4)).bind(other)
    with pytest.raises(dm.LayoutError, match="bound to two streams"):
        copying[1, 1](a, b)
    with pytest.raises(dm.LayoutError, match="bound to two streams"):
        idle_three[1, 1](a, b, dm.In(np.zeros(3)))
    copying[1, 1, one](a, b)
    assert launches(compiler)[-1][3] == one.handle


def test_a_stream_of_another_device(compiler, second):
    with second:
        theirs = dm.stream()
    with pytest.raises(dm.LayoutError, match="cannot order work on"):
        idle[1, 1, theirs](dm.to_device(np.zeros(3)))
    idle[1, 1, theirs](3)  # with no array it runs where its stream is
    assert compiler.compiled[-1].driver is second.driver()


def test_a_named_stream_copies_back_in_its_turn(compiler, need, hold):
    need("hold")
    stream = dm.stream()
    src, dst = dm.pinned_array(64), dm.pinned_array(64)
    src[:], dst[:] = np.arange(64.0), 0
    copying[1, 1, stream](dm.In(src), dm.Out(dst))  # compiled by now
    stream.synchronize()
    dst[:] = 0
    with hold(stream) as latch:
        copying[1, 1, stream](dm.In(src), dm.Out(dst))
        assert not stream.query()
        assert not dst.any()
        latch.release()
    stream.synchronize()
    np.testing.assert_array_equal(dst, src)


def test_with_no_stream_named_it_waits_until_they_are_back(recorded):
    src, dst = dm.pinned_array(64), dm.pinned_array(64)
    with standin_compiler.standing_in(recorded.name), recorded.during() as calls:
        copying[1, 1](dm.In(src), dm.Out(dst))
    seen = [call.method for call in calls if call.method in ("copy", "stream_synchronize")]
    assert seen[-2:] == ["copy", "stream_synchronize"]
    a, b = dm.to_device(np.zeros(3)), dm.to_device(np.zeros(3))
    with standin_compiler.standing_in(recorded.name), recorded.during() as calls:
        copying[1, 1](a, b)
    assert "stream_synchronize" not in [call.method for call in calls]


def test_a_failure_of_the_driver_says_what_was_launched(compiler, monkeypatch):
    idle[1, 1](1)

    def launch(*arguments):
        raise dm.BackendError("no", backend="x", call="launch")

    monkeypatch.setattr(compiler.compiled[0], "launch", launch, raising=False)
    with pytest.raises(dm.BackendError) as raised:
        idle[(2, 3), 4](2)
    assert raised.value.__notes__ == ["while launching <kernel idle> on (2, 3, 1) blocks of (4, 1, 1) threads"]
    with pytest.raises(dm.BackendError) as raised:
        idle[(2, 1 << 16), 4](2)
    assert "at most 65535 blocks along y and z, and 64 threads along z" in raised.value.__notes__[0]
    host = np.full(3, 5.0)
    before = host.copy()
    with pytest.raises(dm.BackendError):
        monkeypatch.setattr(standin_compiler.CopyingKernel, "launch", launch)
        copying[1, 1](dm.In(host), dm.InOut(host))
    np.testing.assert_array_equal(host, before)
