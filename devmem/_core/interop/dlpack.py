"""DLPack's wire format: how a tensor is written into a capsule and read out of one.

Nothing here knows devices or arrays. A capsule is never built from Python: NumPy makes it, of a small array that holds shape,
strides and whatever must stay alive, and the tensor in it is then rewritten. So its deleter is NumPy's, in C: it may be called
from any thread, without the GIL, and after the interpreter is gone, where a callback written with ctypes crashes.

Structures and rules: DLPack 1.x, ``dlpack.h``, and the array API standard's ``__dlpack__``. Strides are in elements here, as they
are there.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from ..base.layout import Shape, contiguous_strides, normal_strides, span
from .dlpack_types import KINDS, dtype_code, dtype_of

#: The version whose meaning this code knows; a consumer may read any with the same major number.
VERSION = (1, 1)
_MAJOR = VERSION[0]
READ_ONLY, IS_COPIED = 1, 2
#: More axes than any array library has.
MOST_AXES = 64

#: ``DLDeviceType``, those that matter here. Not an enum, whose members take five times as long to compare.
CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, EXT_DEV, CUDA_MANAGED = 1, 2, 3, 10, 11, 12, 13
DEVICE_NAMES = {
    CPU: "CPU",
    CUDA: "CUDA",
    CUDA_HOST: "page-locked memory of CUDA",
    4: "OpenCL",
    7: "Vulkan",
    8: "Metal",
    ROCM: "ROCm",
    ROCM_HOST: "page-locked memory of ROCm",
    EXT_DEV: "a device of somebody's own kind",
    CUDA_MANAGED: "managed memory of CUDA",
    14: "oneAPI",
}
#: What the host can read.
HOST_TYPES = frozenset({CPU, CUDA_HOST, ROCM_HOST})

# A tensor: data, device type and number, axes, dtype (code, bits, lanes), shape, strides, byte offset.
_TENSOR = "QiiiBBHQQQ"
# Unversioned: the tensor, opened, deleter. Versioned: major, minor, opened, deleter, flags, the tensor.
_read_legacy = struct.Struct("=" + _TENSOR + "QQ").unpack_from
_read_versioned = struct.Struct("=IIQQQ" + _TENSOR).unpack_from
# What is rewritten: address and device, behind the flags where there are any; types that NumPy has not got; strides.
_write_legacy = struct.Struct("=Qii").pack_into
_write_versioned = struct.Struct("=QQii").pack_into
_write_type = struct.Struct("=BB").pack_into
_FLAGS_AT, _TENSOR_AT, _TYPE_AT, _SHAPE_AT, _STRIDES_AT = 24, 32, 20, 24, 32
_WORD = ctypes.sizeof(ctypes.c_size_t)
#: All addresses, as bytes and as words.
_memory = (ctypes.c_char * sys.maxsize).from_address(0)
_words = (ctypes.c_size_t * (sys.maxsize // _WORD)).from_address(0)
#: Where a capsule keeps its pointer and its name: first behind the object header, in words.
_POINTER, _NAME = object.__basicsize__ // _WORD, object.__basicsize__ // _WORD + 1

_Capsule = type(np.zeros(1).__dlpack__())
_new = object.__new__
_is_finalizing, _references = sys.is_finalizing, sys.getrefcount
_api = ctypes.pythonapi
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _api))
_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_LEGACY, _VERSIONED = b"dltensor", b"dltensor_versioned"
# The names of what was taken. Capsules refer to their names, so these live as long as the process.
_used_names = [ctypes.create_string_buffer(b"used_" + name) for name in (_LEGACY, _VERSIONED)]
for _each in _used_names:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_each))
_USED_LEGACY, _USED_VERSIONED = map(ctypes.addressof, _used_names)

_probe = np.empty(1).__dlpack__()
_at = id(_probe) // _WORD
if _words[_at + _POINTER] != _pointer(_probe, _LEGACY) or ctypes.string_at(_words[_at + _NAME]) != _LEGACY:
    raise ImportError(f"Python {sys.version} keeps what is in a capsule where devmem does not know: please report it")
#: NumPy before 2.1 makes unversioned capsules only.
_numpy_is_versioned = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
_probe = np.empty(1).__dlpack__(max_version=VERSION) if _numpy_is_versioned else _probe
#: Where NumPy keeps the name that it gives versioned capsules, for as long as it is loaded.
_numpy_name = _words[id(_probe) // _WORD + _NAME] if _numpy_is_versioned else -1
#: NumPy before 2.4 has the strides of contiguous arrays written, and does not say where.
_at = _words[id(_probe) // _WORD + _POINTER] + (_TENSOR_AT if _numpy_is_versioned else 0)
_numpy_says_strides = _words[(_at + _STRIDES_AT) // _WORD] != 0
#: Where addresses end.
END = 1 << 64

#: What `take` finds: address, (device type, number), layout, dtype, flags, and the owner, which keeps the memory
#: alive and lets go of it when it dies. A layout is (shape, strides in bytes or None for contiguous, offset of the lowest
#: byte, bytes from there to the end).
Layout = tuple[Shape, Shape | None, int, int]
Tensor = tuple[int, tuple[int, int], Layout, "np.dtype[Any]", int, object]


class _Carrier(np.ndarray[Any, Any]):
    """What stands for an exported tensor; what the tensor must keep alive hangs on it as an attribute."""

    __slots__ = ("owner",)

    owner: object


def export(
    ptr: int,
    device: tuple[int, int],
    shape: Shape,
    strides: Shape | None,
    dtype: np.dtype[Any],
    flags: int,
    owner: object,
    versioned: bool,
) -> Any:
    """A capsule for a tensor, which keeps ``owner`` alive until its consumer is done. Strides in bytes; None: contiguous.

    Raises
    ------
    BufferError
        DLPack has no such dtype or strides, or the tensor is read-only, which an unversioned capsule cannot say.
    """
    model, patch = _model(shape, strides, dtype)
    carrier = model.view()
    carrier.owner = owner
    kind, number = device
    if versioned and _numpy_is_versioned:
        capsule = carrier.__dlpack__(max_version=VERSION)
        at = _words[id(capsule) // _WORD + _POINTER]
        _write_versioned(_memory, at + _FLAGS_AT, flags, ptr, kind, number)
        at += _TENSOR_AT
    else:
        if flags & READ_ONLY:
            _refuse_unversioned()
        capsule = carrier.__dlpack__()
        at = _words[id(capsule) // _WORD + _POINTER]
        _write_legacy(_memory, at, ptr, kind, number)
    if patch is not None:
        patch(at)
    return capsule


@lru_cache(maxsize=512)
def _model(shape: Shape, strides: Shape | None, dtype: np.dtype[Any]) -> tuple[Any, Callable[[int], None] | None]:
    """An array that NumPy makes the right capsule of, and what is still to be done to the tensor in it."""
    code, bits = dtype_code(dtype)
    steps = contiguous_strides(shape, 1) if strides is None else element_strides(shape, strides, dtype.itemsize)
    stand_in = dtype if code in KINDS else np.dtype(f"u{dtype.itemsize}")
    model = np.lib.stride_tricks.as_strided(
        np.zeros(1, stand_in), shape, tuple(step * dtype.itemsize for step in steps)
    ).view(_Carrier)

    def patch(at: int) -> None:
        _write_type(_memory, at + _TYPE_AT, code, bits)
        if shape and not _words[(at + _STRIDES_AT) // _WORD]:
            _words[(at + _STRIDES_AT) // _WORD] = _words[(at + _SHAPE_AT) // _WORD] + 8 * len(shape)

    return model, None if stand_in is dtype and _numpy_says_strides else patch


def element_strides(shape: Shape, strides: Shape, itemsize: int) -> Shape:
    """Strides in elements; those of axes of length one, and of empty arrays, as contiguous arrays have them.

    Raises
    ------
    BufferError
        Elements do not lie whole elements apart.
    """
    if 0 in shape:
        return contiguous_strides(shape, 1)
    for count, step in zip(shape, strides, strict=True):
        if count > 1 and step % itemsize:
            raise BufferError(
                f"DLPack counts strides in elements, and elements of {itemsize} bytes that lie {strides} bytes apart are no "
                f"whole elements apart: export a copy(), or the whole record as bytes"
            )
    return normal_strides(shape, tuple(step // itemsize for step in strides), 1)


def _refuse_unversioned() -> NoReturn:
    raise BufferError(
        "a read-only array needs a versioned DLPack capsule: the consumer has to ask with max_version=(1, 0)"
        if _numpy_is_versioned
        else "a read-only array needs a versioned DLPack capsule, which takes NumPy 2.1 or newer"
    )


def take(capsule: Any) -> Tensor:
    """Take over the tensor of a capsule: no one else can take it again.

    A capsule that is refused stays its producer's: nothing is taken, and dropping it gives everything back.

    Raises
    ------
    BufferError
        It is not a DLPack capsule, was taken before, or describes what cannot be.
    """
    if type(capsule) is not _Capsule:
        raise BufferError(f"__dlpack__ returned {capsule!r}, not a DLPack capsule")
    word = id(capsule) // _WORD
    named = _words[word + _NAME]
    try:
        # Python is asked, which compares the name, unless it is the very one that NumPy gives its own.
        at = _words[word + _POINTER] if named == _numpy_name else _pointer(capsule, _VERSIONED)
    except ValueError:
        at, used, flags = _legacy(capsule), _USED_LEGACY, 0
        fields = _read_legacy(_memory, at)
        ptr, kind, number, ndim, code, bits, lanes, shape_at, strides_at, offset, _, deleter = fields
    else:
        used, fields = _USED_VERSIONED, _read_versioned(_memory, at)
        major, minor, _, deleter, flags, ptr, kind, number, ndim, code, bits, lanes, shape_at, strides_at, offset = (
            fields
        )
        if major != _MAJOR:
            raise BufferError(f"the capsule is of DLPack {major}.{minor}, this devmem reads {_MAJOR}.x")
    if strides_at == shape_at + 8 * ndim and 0 < ndim <= MOST_AXES:  # as most write them: one behind the other
        words = _readers[ndim](_memory, shape_at) if shape_at else _no_shape(ndim)
    else:
        words = _axes(ndim, shape_at, strides_at)
    layout, dtype = _layout(words, ndim, code, bits, lanes)
    if not layout[3]:
        ptr = 0
    elif not ptr:
        raise BufferError(f"the capsule describes an array of shape {layout[0]} at address 0")
    else:
        ptr += offset
        low = ptr + layout[2]
        if low <= 0 or low + layout[3] > END:
            raise BufferError(f"the capsule describes an array beyond all addresses: {layout} at {ptr:#x}")
    # Looked at again, with no call in between at which Python may run another thread: one of two takes it.
    if _words[word + _NAME] != named:
        raise BufferError("the DLPack capsule was taken by another thread: ask its producer for one for each")
    # What everybody does to take a capsule; Python's own PyCapsule_SetName does the same through a slow door.
    _words[word + _NAME] = used
    if named == _numpy_name:
        lent = _new(_TakenFromNumpy)
        lent.capsule = capsule
        return ptr, (kind, number), layout, dtype, flags, lent
    owner = _new(_Taken)
    owner.at = at
    # Made now: at the end of the interpreter there may be nothing left to make it with.
    owner.deleter = _callable(deleter) if deleter else None
    owner.capsule = capsule
    return ptr, (kind, number), layout, dtype, flags, owner


class _Taken:
    """A tensor that was taken: its deleter runs, once, when this dies. Some producers hang what they need on the capsule."""

    __slots__ = ("at", "capsule", "deleter")

    at: int
    deleter: Any
    capsule: object

    def __del__(self) -> None:
        # The interpreter's end is left to itself: a leak is preferred.
        deleter, self.deleter = self.deleter, None
        if deleter is not None and not _is_finalizing():
            deleter(self.at)


class _TakenFromNumpy:
    """A tensor in a capsule of NumPy's, of which it is known what its end does: it gives back the tensor, unless that is taken.

    So it gets its name back when this dies, and nothing need be called; unless somebody else still has the capsule.
    """

    __slots__ = ("capsule",)

    capsule: object

    def __del__(self) -> None:
        word = id(self.capsule) // _WORD
        if _references(self.capsule) == _ALONE:
            _words[word + _NAME] = _numpy_name
        elif not _is_finalizing():
            at = _words[word + _POINTER]
            _callable(_read_versioned(_memory, at)[3])(at)


class _Holder:
    __slots__ = ("capsule",)


def _count_alone(holder: Any) -> int:
    holder.capsule = object()
    return _references(holder.capsule)


#: What counting the references to a slot's object gives, where the slot has the only one.
_ALONE = _count_alone(_Holder())


@lru_cache(maxsize=64)
def _callable(address: int) -> Any:
    return _deleter(address)  # it lets go of the GIL: somebody's deleter may wait for a thread that wants it


# -- reading -----------------------------------------------------------------------------------------------------------


def _legacy(capsule: object) -> int:
    """Where the tensor of an unversioned capsule is."""
    try:
        at: int = _pointer(capsule, _LEGACY)
    except ValueError:
        name: bytes = _get_name(capsule) or b""
        if name in (b"used_" + _LEGACY, b"used_" + _VERSIONED):
            raise BufferError("the DLPack capsule was taken before: ask its producer for another one") from None
        raise BufferError(f"a capsule with the name {name.decode(errors='replace')!r} is not DLPack's") from None
    return at


def _axes(ndim: int, shape_at: int, strides_at: int) -> Shape:
    """Lengths, and behind them the strides in elements, if there are any: before DLPack 1.2 contiguous ones need not be said."""
    if not ndim:
        return ()
    if not 0 < ndim <= MOST_AXES:
        raise BufferError(f"the capsule describes an array with {ndim} axes")
    if not shape_at:
        _no_shape(ndim)
    words: Shape = struct.unpack_from(f"={ndim}q", _memory, shape_at)
    if not strides_at:
        return words
    more: Shape = struct.unpack_from(f"={ndim}q", _memory, strides_at)
    return words + more


def _no_shape(ndim: int) -> NoReturn:
    raise BufferError(f"the capsule describes an array with {ndim} axes and no shape")


#: Of shape and strides, by the number of axes.
_readers = [struct.Struct(f"={2 * n}q").unpack_from for n in range(MOST_AXES + 1)]


@lru_cache(maxsize=1024)
def _layout(words: Shape, ndim: int, code: int, bits: int, lanes: int) -> tuple[Layout, np.dtype[Any]]:
    """Shape and strides, checked, strides in bytes; and the dtype. Most programs exchange few, so they are looked up."""
    dtype = dtype_of(code, bits, lanes)
    itemsize, shape = dtype.itemsize, words[:ndim]
    if shape and min(shape) < 0:
        raise BufferError(f"the capsule describes an array of negative length: shape {shape}")
    if 0 in shape:
        return (shape, None, 0, 0), dtype
    strides = tuple(step * itemsize for step in words[ndim:]) or contiguous_strides(shape, itemsize)
    strides = normal_strides(shape, strides, itemsize)  # those of axes of length one mean nothing, and are anything
    low, high = span(shape, strides, itemsize)
    return (shape, None if strides == contiguous_strides(shape, itemsize) else strides, low, high - low), dtype
