"""DLPack's wire format: what is written into capsules and read out of them, right and wrong."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref

import crafted
import numpy as np
import pytest
from crafted import Crafted, everything_let_go
from waits import patience, together

from devmem._core.base.address import address
from devmem._core.interop import dlpack
from devmem._core.interop.dlpack_types import dtype_code

VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
needs_versioned = pytest.mark.skipif(not VERSIONED, reason="this NumPy makes and takes unversioned capsules only")

LAYOUTS = {
    "C": lambda: np.arange(24, dtype="f4").reshape(2, 3, 4),
    "F": lambda: np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)),
    "strided": lambda: np.arange(48, dtype="f4").reshape(4, 12)[::2, 1::3],
    "negative": lambda: np.arange(24, dtype="f4").reshape(4, 6)[::-1, ::-2],
    "broadcast": lambda: np.broadcast_to(np.arange(3, dtype="f4"), (4, 3)),
    "0-d": lambda: np.array(3, dtype="f4"),
    "empty": lambda: np.zeros((3, 0, 2), "f4"),
    "ones": lambda: np.arange(6, dtype="f4").reshape(1, 6, 1)[:, ::2],
    "32 axes": lambda: np.zeros((1,) * 32, "f4"),
}
DTYPES = ["b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8", "c8", "c16"]
VERSIONS = [pytest.param(True, marks=needs_versioned, id="versioned"), pytest.param(False, id="legacy")]


class Exported:
    """An ndarray, exported by us as if it were on a device."""

    def __init__(self, array, versioned=True, *, flags=0, owner=None, device=(1, 0)):
        self.array, self.versioned, self.flags, self.device = array, versioned, flags, device
        self.owner = array if owner is None else owner

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **asked):
        array = self.array
        ptr = address(array) if array.size else 0
        layout = array.shape, array.strides, array.dtype
        return dlpack.export(ptr, self.device, *layout, self.flags, self.owner, self.versioned)


@pytest.mark.parametrize("versioned", VERSIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numpy_reads_what_is_exported(layout, versioned):
    array = LAYOUTS[layout]()
    seen = np.from_dlpack(Exported(array, versioned))
    assert (seen.dtype, seen.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(seen, array)
    if array.size:
        assert address(seen) == address(array)


@pytest.mark.parametrize("versioned", VERSIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_both_ways(dtype, versioned):
    array = np.ones(3, dtype)
    assert np.from_dlpack(Exported(array, versioned)).dtype == array.dtype
    ptr, device, layout, found, flags, _ = dlpack.take(Exported(array, versioned).__dlpack__())
    assert (ptr, device, found, flags) == (address(array), (1, 0), array.dtype, 0)
    assert layout == ((3,), None, 0, array.nbytes)


@pytest.mark.parametrize(
    "dtype", ["g", "G", ">i4", ">f8", "M8[s]", "m8[ns]", "S3", "U2", "V4", "O", [("a", "i4"), ("b", "f8")], "(2,)i4"]
)
def test_what_dlpack_has_no_type_for_is_a_buffer_error(dtype):
    kind = np.dtype((np.int32, (2,))) if dtype == "(2,)i4" else np.dtype(dtype)
    if kind in (np.dtype("f8"), np.dtype("c16")):
        pytest.skip("a long double is a double here")
    with pytest.raises(BufferError, match="DLPack has no type for"):
        dtype_code(kind)


#: Codes as dlpack.h has them.
ML_DTYPES = [
    (4, "bfloat16"),
    (7, "float8_e3m4"),
    (8, "float8_e4m3"),
    (9, "float8_e4m3b11fnuz"),
    (10, "float8_e4m3fn"),
    (11, "float8_e4m3fnuz"),
    (12, "float8_e5m2"),
    (13, "float8_e5m2fnuz"),
    (14, "float8_e8m0fnu"),
]


@pytest.mark.parametrize("versioned", VERSIONS)
@pytest.mark.parametrize(("code", "name"), ML_DTYPES)
def test_types_of_ml_dtypes_go_both_ways(code, name, versioned):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.ones((2, 3), getattr(ml_dtypes, name))
    assert dtype_code(array.dtype) == (code, 8 * array.itemsize)
    ptr, _, layout, found, _, _ = dlpack.take(Exported(array, versioned).__dlpack__())
    assert (ptr, layout, found) == (address(array), ((2, 3), None, 0, array.nbytes), array.dtype)


def test_a_foreign_type_of_numpys_kind_is_not_numpys():
    class Foreign:
        name, kind, itemsize, isnative, isbuiltin = "posit16", "f", 2, True, 2

    with pytest.raises(BufferError, match="DLPack has no type for"):
        dtype_code(Foreign())


def test_a_type_that_is_not_installed_says_what_to_install(monkeypatch):
    dlpack._layout_and_dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(BufferError, match="pip install ml_dtypes"):
        dlpack.take(Crafted(0x1000, dtype="u2", fields={"code": 4}).capsule)
    monkeypatch.setitem(sys.modules, "ml_dtypes", object())
    with pytest.raises(BufferError, match="update ml_dtypes"):
        dlpack.take(Crafted(0x1000, dtype="u2", fields={"code": 4}).capsule)


def test_elements_that_lie_no_whole_elements_apart_are_refused():
    records = np.zeros(4, [("a", "i4"), ("b", "f8")])
    with pytest.raises(BufferError, match="no whole elements apart"):
        Exported(records["b"]).__dlpack__()


@pytest.mark.parametrize("versioned", VERSIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_never_missing_and_those_of_length_one_are_normal(layout, versioned):
    array = LAYOUTS[layout]()
    capsule = Exported(array, versioned).__dlpack__()
    kind = crafted.Versioned if versioned else crafted.Legacy
    name = b"dltensor_versioned" if versioned else b"dltensor"
    tensor = kind.from_address(dlpack._get_pointer(capsule, name))
    assert tensor.ndim == array.ndim
    if not array.ndim:
        return
    strides = (ctypes.c_int64 * array.ndim).from_address(tensor.strides)[:]
    assert (ctypes.c_int64 * array.ndim).from_address(tensor.shape)[:] == list(array.shape)
    if not array.size:
        assert not tensor.data
        assert strides == [2, 2, 1]
        return
    assert tensor.data == address(array)
    assert tensor.byte_offset == 0
    for count, step, stride in zip(array.shape, strides, array.strides, strict=True):
        assert count == 1 or step * array.itemsize == stride
    if all(count == 1 for count in array.shape):
        assert set(strides) == {1}


@needs_versioned
def test_flags_arrive():
    array = np.arange(3.0)
    seen = np.from_dlpack(Exported(array, flags=dlpack.READ_ONLY))
    assert not seen.flags.writeable
    assert dlpack.take(Exported(array, flags=dlpack.READ_ONLY | dlpack.IS_COPIED).__dlpack__())[4] == 3


def test_an_unversioned_capsule_of_read_only_memory_is_refused():
    with pytest.raises(BufferError, match=r"max_version|NumPy 2.1"):
        Exported(np.arange(3.0), False, flags=dlpack.READ_ONLY).__dlpack__()


class Owner:
    """Something whose end is seen."""


@pytest.mark.parametrize("versioned", VERSIONS)
@pytest.mark.parametrize("end", ["dropped", "taken", "taken by numpy"])
def test_the_owner_lives_as_long_as_the_tensor(versioned, end):
    owner, array = Owner(), np.arange(3.0)
    seen = weakref.ref(owner)
    held = Exported(array, versioned, owner=owner)
    del owner
    if end == "taken by numpy":
        kept = np.from_dlpack(held)
    else:
        kept = held.__dlpack__()
        if end == "taken":
            kept = dlpack.take(kept)
    held.owner = None
    gc.collect()
    assert seen() is not None
    del kept
    gc.collect()
    assert seen() is None


def test_capsules_of_one_layout_do_not_share_what_a_consumer_may_write_to():
    one, two = (Exported(np.arange(6.0).reshape(2, 3), False) for _ in range(2))
    capsule = one.__dlpack__()
    tensor = crafted.Legacy.from_address(dlpack._get_pointer(capsule, b"dltensor"))
    (ctypes.c_int64 * 2).from_address(tensor.shape)[0] = 99
    assert dlpack.take(two.__dlpack__())[2][0] == (2, 3)


def test_many_exports_leave_nothing_behind():
    array = np.arange(6.0)
    before = sys.getrefcount(array)
    for _ in range(500):
        Exported(array, VERSIONED).__dlpack__()
        dlpack.take(Exported(array, False).__dlpack__())
        np.from_dlpack(Exported(array, VERSIONED))
    gc.collect()
    assert sys.getrefcount(array) == before


def test_a_tensor_may_end_on_another_thread():
    owner = Owner()
    seen = weakref.ref(owner)
    box = [dlpack.take(Exported(np.arange(3.0), VERSIONED, owner=owner).__dlpack__())]
    del owner
    together(box.clear)
    gc.collect()
    assert seen() is None


def test_a_tensor_may_outlive_the_interpreter():
    script = """
import sys
import numpy as np
from devmem._core.interop import dlpack
a = np.arange(3.0)
class P:
    def __dlpack_device__(self): return (1, 0)
    def __dlpack__(self, **k): return dlpack.export(a.ctypes.data, (1, 0), a.shape, a.strides, a.dtype, 0, a, "max_version" in k)
sys.keep = [np.from_dlpack(P()), dlpack.take(P().__dlpack__()), dlpack.take(P().__dlpack__(max_version=(1, 0))), P().__dlpack__()]
class Cycle: pass
c = Cycle(); c.c = c; c.keep = [np.from_dlpack(P()), dlpack.take(P().__dlpack__())]
print("done")
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=patience(140))
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


IN_C = """
import ctypes, sys, threading, weakref
import numpy as np
from devmem._core.interop import dlpack

class Owner: pass

libc = ctypes.CDLL(None)
versioned = {versioned}
name = b"dltensor_versioned" if versioned else b"dltensor"

def export(owner):
    a = np.arange(3.0)
    owner.array = a
    return dlpack.export(a.ctypes.data, (1, 0), a.shape, a.strides, a.dtype, 0, owner, versioned)

def taken_in_c(capsule):
    "What a consumer in C does: it has the tensor and its deleter, and the capsule is of no use any more."
    at = dlpack._get_pointer(capsule, name)
    tensor = (dlpack.DLManagedTensorVersioned if versioned else dlpack.DLManagedTensor).from_address(at)
    rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
    assert rename(capsule, used) == 0
    return at, tensor.deleter

used = b"used_" + name
"""

ON_ITS_OWN_THREAD = """
owner = Owner(); seen = weakref.ref(owner)
at, deleter = taken_in_c(export(owner))
del owner
assert seen() is not None
thread = ctypes.c_size_t()
libc.pthread_create.argtypes = [ctypes.c_void_p] * 4
libc.pthread_join.argtypes = [ctypes.c_size_t, ctypes.c_void_p]
assert libc.pthread_create(ctypes.addressof(thread), None, deleter, at) == 0
assert libc.pthread_join(thread, None) == 0  # without the GIL, which the deleter takes
assert seen() is None
print("done")
"""

AFTER_THE_END = """
libc.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3
for _ in range(3):
    at, deleter = taken_in_c(export(Owner()))
    assert libc.__cxa_atexit(deleter, at, None) == 0  # when the process ends, long after the interpreter has
print("done")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reaches for the C library of Linux")
@pytest.mark.parametrize("versioned", VERSIONS)
@pytest.mark.parametrize("when", [ON_ITS_OWN_THREAD, AFTER_THE_END], ids=["on a thread of C", "after the interpreter"])
def test_a_consumer_in_c_lets_go(versioned, when):
    script = IN_C.replace("{versioned}", repr(versioned)) + when
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=patience(140))
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory():
    return np.arange(64, dtype="f4")


@pytest.mark.parametrize("versioned", [True, False])
def test_a_capsule_is_taken_once_and_let_go_of_once(memory, versioned):
    tensor = Crafted(address(memory), versioned=versioned)
    with everything_let_go(tensor):
        taken = dlpack.take(tensor.capsule)
        assert tensor.taken
        with pytest.raises(BufferError, match="taken before"):
            dlpack.take(tensor.capsule)
        assert tensor.deleted == 0
        del taken
    del tensor.capsule


def test_a_consumed_capsule_stays_consumed():
    """Let go of, it is not there to be taken again, and its tensor has ended."""
    for versioned in (VERSIONED, False):
        owner = Owner()
        seen = weakref.ref(owner)
        capsule = Exported(np.arange(3.0), versioned, owner=owner).__dlpack__()
        taken = dlpack.take(capsule)
        del owner, taken
        gc.collect()
        assert seen() is None
        with pytest.raises(BufferError, match="taken before"):
            dlpack.take(capsule)


def test_one_of_many_threads_takes_a_capsule(memory):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for versioned in (True, False):
            for _ in range(50):
                tensor = Crafted(address(memory), versioned=versioned)
                taken, refused = [], []

                def take(tensor=tensor, taken=taken, refused=refused):
                    try:
                        taken.append(dlpack.take(tensor.capsule))
                    except BufferError as error:
                        refused.append(str(error))

                together(*[take] * 4)
                assert (len(taken), len(refused)) == (1, 3)
                taken.clear()
                assert tensor.deleted == 1
    finally:
        sys.setswitchinterval(before)


def test_a_finalizer_cannot_take_the_capsule_that_is_being_taken(memory, monkeypatch):
    """Between the look at the name and the renaming: the outer call wins."""
    tensor, refused, get_pointer = Crafted(address(memory)), [], dlpack._get_pointer

    def interrupted(capsule, name):
        try:
            dlpack.take(capsule)
        except BufferError as error:
            refused.append(str(error))
        return get_pointer(capsule, name)

    monkeypatch.setattr(dlpack, "_get_pointer", interrupted)
    with everything_let_go(tensor):
        dlpack.take(tensor.capsule)
    assert len(refused) == 1
    assert "another thread" in refused[0]
    assert dlpack._claims == {}


def test_a_capsule_that_was_refused_can_be_taken_by_another_consumer():
    array = np.arange(3.0)
    held = Exported(array, False, device=(1, 0))
    held.capsule = held.__dlpack__()
    crafted.Legacy.from_address(dlpack._get_pointer(held.capsule, b"dltensor")).lanes = 2
    with pytest.raises(BufferError, match="2 lanes"):
        dlpack.take(held.capsule)
    crafted.Legacy.from_address(dlpack._get_pointer(held.capsule, b"dltensor")).lanes = 1
    assert dlpack.take(held.capsule)[0] == address(array)


def test_a_tensor_may_have_no_deleter(memory):
    tensor = Crafted(address(memory), deleter=False)
    with everything_let_go(tensor, times=0):
        dlpack.take(tensor.capsule)


def test_missing_strides_are_contiguous_ones(memory):
    tensor = Crafted(address(memory), (2, 3), None)
    assert dlpack.take(tensor.capsule)[2] == ((2, 3), None, 0, 24)


def test_the_offset_counts(memory):
    assert dlpack.take(Crafted(address(memory), fields={"byte_offset": 8}).capsule)[0] == address(memory) + 8


@pytest.mark.parametrize("strides", [(7, 1), (1, 99), (-5, 0)])
def test_strides_of_axes_of_length_one_mean_nothing(memory, strides):
    assert dlpack.take(Crafted(address(memory), (1, 1), strides).capsule)[2] == ((1, 1), None, 0, 4)


def test_an_empty_tensor_has_no_address(memory):
    for ptr in (0, address(memory)):
        found, _, layout, *_ = dlpack.take(Crafted(ptr, (0, 3), (3, 1)).capsule)
        assert (found, layout) == (0, ((0, 3), None, 0, 0))


def test_a_newer_minor_version_is_read(memory):
    assert dlpack.take(Crafted(address(memory), fields={"minor": 9}).capsule)[2][0] == (4,)


F = dict
REFUSED = {
    "a newer major version": (F(fields=F(major=2)), "of DLPack 2.1"),
    "an older major version": (F(fields=F(major=0)), "of DLPack 0.1"),
    "no address": (F(fields=F(data=None)), "at address 0"),
    "no shape": (F(fields=F(shape=None)), "no shape"),
    "a negative length": (F(shape=(-1,)), "negative length"),
    "a length below all": (F(shape=(-(2**63),)), "negative length"),
    "negative axes": (F(fields=F(ndim=-1)), "with -1 axes"),
    "a thousand axes": (F(fields=F(ndim=1000)), "with 1000 axes"),
    "two thousand million axes": (F(fields=F(ndim=2**31 - 1)), "axes"),
    "lanes": (F(fields=F(lanes=4)), "4 lanes"),
    "no lanes": (F(fields=F(lanes=0)), "0 lanes"),
    "a strange code": (F(fields=F(code=77)), "type code 77"),
    "an opaque handle": (F(fields=F(code=3, bits=64)), "type code 3"),
    "four bits": (F(fields=F(code=0, bits=4)), "4 bits"),
    "no bits": (F(fields=F(bits=0)), "0 bits"),
    "80 bits": (F(fields=F(bits=80)), "80 bits"),
    "beyond all addresses": (F(shape=(2**62,)), "beyond all addresses"),
    "longer than all addresses": (F(shape=(2**40, 2**40), strides=(2**40, 1)), "beyond all addresses"),
    "below all addresses": (F(shape=(2**50,), strides=(-(2**12),)), "beyond all addresses"),
    "strides beyond all": (F(shape=(3,), strides=(2**62,)), "beyond all addresses"),
    "an offset beyond all": (F(fields=F(byte_offset=2**64 - 8)), "beyond all addresses"),
}


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_and_stays_the_producers(memory, what, versioned):
    changes, match = REFUSED[what]
    if "version" in what and not versioned:
        pytest.skip("an unversioned capsule has no version")
    tensor = Crafted(address(memory), versioned=versioned, **changes)
    with everything_let_go(tensor, times=0):
        with pytest.raises(BufferError, match=match):
            dlpack.take(tensor.capsule)
        assert not tensor.taken


@pytest.mark.parametrize("what", [None, 3, "dltensor", object(), np.arange(3)], ids=repr)
def test_what_is_no_capsule_is_refused(what):
    with pytest.raises(BufferError, match="not a DLPack capsule"):
        dlpack.take(what)


@pytest.mark.parametrize("name", [b"", b"dltensors", b"DLTENSOR", b"arrow_array", b"\xff\xfe"])
def test_a_capsule_of_something_else_is_refused(memory, name):
    with pytest.raises(BufferError, match="not DLPack's"):
        dlpack.take(Crafted(address(memory), name=name).capsule)


def test_a_capsule_without_a_name_is_refused(memory):
    with pytest.raises(BufferError, match="not DLPack's"):
        dlpack.take(crafted._new(address(memory), None, None))


def test_what_a_capsule_carries_lives_as_long_as_the_tensor(memory):
    tensor = Crafted(address(memory))
    before = sys.getrefcount(tensor.capsule)
    taken = dlpack.take(tensor.capsule)
    during = sys.getrefcount(tensor.capsule)
    del taken
    after = sys.getrefcount(tensor.capsule)
    assert (during, after) == (before + 1, before)
