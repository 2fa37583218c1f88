"""DLPack's wire format: how a tensor is written into a capsule and read out of one.

Nothing here knows devices or arrays. A capsule is never built from Python: NumPy makes it, of a small array that holds shape,
strides and whatever must stay alive, and the tensor in it is then rewritten. So its deleter is NumPy's, in C: it may be called
from any thread, without the GIL, and after the interpreter is gone, where a callback written with ctypes crashes.

Structures and rules: DLPack 1.x, ``dlpack.h``, and the array API standard's ``__dlpack__``. Strides are in elements here, as they
are there.
"""

from __future__ import annotations

import array
import ctypes
import struct
import sys
from enum import IntEnum
from functools import lru_cache
from math import prod
from operator import mul
from typing import Any, NoReturn

import numpy as np

from .layout import Shape, contiguous_strides, normal_strides, pointer_in, span

#: The version whose meaning this code knows; a consumer may read any with the same major number.
VERSION = (1, 1)
READ_ONLY, IS_COPIED = 1, 2
#: More axes than any array library has.
MOST_AXES = 64

_LEGACY, _VERSIONED = b"dltensor", b"dltensor_versioned"
_USED_LEGACY, _USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"

# A tensor: data, device type and number, axes, dtype (code, bits, lanes), shape, strides, byte offset.
_TENSOR = "QiiiBBHQQQ"
# Unversioned: the tensor, context, deleter. Versioned: major, minor, context, deleter, flags, the tensor.
_legacy_fields = struct.Struct("=" + _TENSOR + "QQ")
_versioned_fields = struct.Struct("=IIQQQ" + _TENSOR)
_write_tensor = struct.Struct("=" + _TENSOR).pack_into
_write_flagged = struct.Struct("=Q" + _TENSOR).pack_into
_FLAGS_AT = 24
_raw = (ctypes.c_char * 80).from_address

_Capsule = type(np.zeros(1).__dlpack__())
_INT64 = np.dtype(np.int64)
_new_array = np.ndarray.__new__
_is_finalizing = sys.is_finalizing
_api = ctypes.pythonapi
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _api))
_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_probe = np.empty(1).__dlpack__()
if pointer_in(_probe) != _pointer(_probe, _LEGACY):
    raise ImportError(f"Python {sys.version} keeps pointers in capsules where devmem does not know: please report it")
#: NumPy before 2.1 makes unversioned capsules only.
_numpy_is_versioned = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
#: Where addresses end.
_END = 1 << 64

#: What `take` finds: address, (device type, number), shape, strides (None: contiguous), dtype, flags, and the owner, which keeps the
#: memory alive and lets go of it when it dies.
Tensor = tuple[int, tuple[int, int], Shape, Shape | None, "np.dtype[Any]", int, object]


class DeviceType(IntEnum):
    """``DLDeviceType``, those that matter here."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    ROCM = 10
    ROCM_HOST = 11
    EXT_DEV = 12
    CUDA_MANAGED = 13


#: What the host can read.
HOST_TYPES = frozenset({DeviceType.CPU, DeviceType.CUDA_HOST, DeviceType.ROCM_HOST})


class _Carrier(np.ndarray[Any, Any]):
    """Shape and strides of an exported tensor; what it must keep alive hangs on it as an attribute."""

    owner: object


def export(
    ptr: int,
    device: tuple[int, int],
    shape: Shape,
    strides: Shape,
    dtype: np.dtype[Any],
    flags: int,
    owner: object,
    versioned: bool,
) -> Any:
    """A capsule for a tensor, which keeps ``owner`` alive until its consumer is done.

    Raises
    ------
    BufferError
        DLPack has no such dtype, or the tensor is read-only, which an unversioned capsule cannot say.
    """
    code, bits = dtype_code(dtype)
    ndim = len(shape)
    words = array.array("q", shape + strides if ndim else (0,))
    carrier = _new_array(_Carrier, (2 * ndim or 1,), _INT64, words)  # type: ignore[type-var]
    carrier.owner = owner
    at = words.buffer_info()[0] if ndim else 0
    if versioned and _numpy_is_versioned:
        capsule = carrier.__dlpack__(max_version=VERSION)
        raw = _raw(pointer_in(capsule))
        _write_flagged(raw, _FLAGS_AT, flags, ptr, *device, ndim, code, bits, 1, at, at + 8 * ndim, 0)
        return capsule
    if flags & READ_ONLY:
        raise BufferError(
            "a read-only array needs a versioned DLPack capsule: the consumer has to ask with max_version=(1, 0)"
            if _numpy_is_versioned
            else "a read-only array needs a versioned DLPack capsule, which takes NumPy 2.1 or newer"
        )
    capsule = carrier.__dlpack__()
    _write_tensor(_raw(pointer_in(capsule)), 0, ptr, *device, ndim, code, bits, 1, at, at + 8 * ndim, 0)
    return capsule


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
    try:
        at = _pointer(capsule, _VERSIONED)
    except ValueError:
        at, used, flags = _legacy(capsule), _USED_LEGACY, 0
        fields = _legacy_fields.unpack_from(_raw(at))
        ptr, kind, number, ndim, code, bits, lanes, shape_at, strides_at, offset, _, deleter = fields
    else:
        fields = _versioned_fields.unpack_from(_raw(at))
        major, minor, _, deleter, flags, ptr, kind, number, ndim, code, bits, lanes, shape_at, strides_at, offset = fields
        used = _USED_VERSIONED
        if major != VERSION[0]:
            raise BufferError(f"the capsule is of DLPack {major}.{minor}, this devmem reads {VERSION[0]}.x")
    dtype = _dtype_of(code, bits, lanes)
    shape, strides = _axes(ndim, shape_at, strides_at) if ndim else ((), None)
    if 0 in shape:
        ptr = 0
    elif not ptr:
        raise BufferError(f"the capsule describes an array of shape {shape} at address 0")
    else:
        ptr += offset
        # Contiguous, the first axis says how far it reaches; to have room to spare is all that most are asked for.
        reach = shape[0] * contiguous_strides(shape, dtype.itemsize)[0] if ndim else dtype.itemsize
        if strides is not None or ptr + reach > _END:
            _check_range(ptr, shape, strides, dtype.itemsize)
    _set_name(capsule, used)
    return ptr, (kind, number), shape, strides, dtype, flags, _Taken(at, deleter, capsule)


class _Taken:
    """A tensor that was taken: its deleter runs, once, when this dies."""

    __slots__ = ("at", "capsule", "deleter")

    def __init__(self, at: int, deleter: int, capsule: object) -> None:
        self.at = at
        # Made now: at the end of the interpreter there may be nothing left to make it with.
        self.deleter = _callable(deleter) if deleter else None
        # Some producers hang what they need on the capsule itself.
        self.capsule = capsule

    def __del__(self) -> None:
        # The interpreter's end is left to itself: a leak is preferred.
        deleter, self.deleter = self.deleter, None
        if deleter is not None and not _is_finalizing():
            deleter(self.at)


@lru_cache(maxsize=64)
def _callable(address: int) -> Any:
    return _deleter(address)


# -- types -------------------------------------------------------------------------------------------------------------

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_CODES = {"i": _INT, "u": _UINT, "f": _FLOAT, "c": _COMPLEX, "b": _BOOL}
_KINDS = {code: kind for kind, code in _CODES.items()}
_WIDTHS = {_INT: (8, 16, 32, 64), _UINT: (8, 16, 32, 64), _FLOAT: (16, 32, 64), _COMPLEX: (64, 128), _BOOL: (8,)}
#: Types that NumPy has only where ml_dtypes is installed, by (code, bits).
_EXTENSIONS = {
    (_BFLOAT, 16): "bfloat16",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
_EXTENSION_CODES = {name: pair for pair, name in _EXTENSIONS.items()}


@lru_cache(maxsize=256)
def dtype_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """DLPack's (code, bits) of a dtype.

    Raises
    ------
    BufferError
        DLPack has none: records, dates, text, long doubles, foreign byte order.
    """
    if dtype.isnative:
        code = _CODES.get(dtype.kind)
        if code is not None and 8 * dtype.itemsize in _WIDTHS[code]:
            return code, 8 * dtype.itemsize
        if dtype.name in _EXTENSION_CODES and dtype.fields is None and dtype.subdtype is None:
            return _EXTENSION_CODES[dtype.name]
    raise BufferError(
        f"DLPack has no type for dtype {dtype}: exchange it as bytes, array.view('u1'), or copy it through the host"
    )


@lru_cache(maxsize=256)
def _dtype_of(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    if lanes != 1:
        raise BufferError(f"the capsule holds vectors of {lanes} lanes as elements: give an array of single elements")
    if (code, bits) in _EXTENSIONS:
        return _extension(_EXTENSIONS[code, bits])
    if bits not in _WIDTHS.get(code, ()):
        raise BufferError(
            f"the capsule holds elements of DLPack type code {code} and {bits} bits, which NumPy has no dtype for"
        )
    return np.dtype(f"{_KINDS[code]}{bits // 8}")


def _extension(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise BufferError(f"the capsule holds elements of type {name}: pip install ml_dtypes") from None
    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise BufferError(
            f"the capsule holds elements of type {name}, which this ml_dtypes has not got: update ml_dtypes"
        )
    return np.dtype(found)


# -- reading -----------------------------------------------------------------------------------------------------------


def _legacy(capsule: object) -> int:
    """Where the tensor of an unversioned capsule is."""
    try:
        at: int = _pointer(capsule, _LEGACY)
    except ValueError:
        name: bytes = _get_name(capsule) or b""
        if name in (_USED_LEGACY, _USED_VERSIONED):
            raise BufferError("the DLPack capsule was taken before: ask its producer for another one") from None
        raise BufferError(f"a capsule with the name {name.decode(errors='replace')!r} is not DLPack's") from None
    return at


def _axes(ndim: int, shape_at: int, strides_at: int) -> tuple[Shape, Shape | None]:
    """Shape and strides; None for those of a C-contiguous array, and where there are none, as DLPack before 1.2 allowed."""
    if not 0 < ndim <= MOST_AXES:
        raise BufferError(f"the capsule describes an array with {ndim} axes")
    if not shape_at:
        raise BufferError(f"the capsule describes an array with {ndim} axes and no shape")
    one, both, room, two_rooms = _readers(ndim)
    if strides_at == shape_at + 8 * ndim:  # as most write them: one behind the other
        words = both(two_rooms(shape_at))
        shape, strides = words[:ndim], words[ndim:]
    else:
        shape = one(room(shape_at))
        strides = one(room(strides_at)) if strides_at else None
    for count in shape:
        if count < 0:
            raise BufferError(f"the capsule describes an array of negative length: shape {shape}")
    if strides is None or strides == contiguous_strides(shape, 1) or 0 in shape:
        return shape, None
    if 1 in shape:  # whose strides mean nothing, and are anything
        strides = normal_strides(shape, strides, 1)
        if strides == contiguous_strides(shape, 1):
            return shape, None
    return shape, strides


@lru_cache(maxsize=MOST_AXES)
def _readers(ndim: int) -> tuple[Any, Any, Any, Any]:
    """What reads a number of 64-bit words, and twice as many, and what gives it the memory at an address."""
    one, both = struct.Struct(f"={ndim}q"), struct.Struct(f"={2 * ndim}q")
    room, two_rooms = ctypes.c_char * one.size, ctypes.c_char * both.size
    return one.unpack_from, both.unpack_from, room.from_address, two_rooms.from_address


def _check_range(ptr: int, shape: Shape, strides: Shape | None, itemsize: int) -> None:
    if strides is None:
        low, high = 0, prod(shape)
    else:
        reach = sum(map(mul, shape, map(abs, strides))) * itemsize
        if reach < ptr and ptr + reach < _END:
            return  # with room to spare
        low, high = span(shape, strides, 1)
    if ptr + low * itemsize < 0 or ptr + high * itemsize > _END:
        _refuse_range(ptr, shape, strides)


def _refuse_range(ptr: int, shape: Shape, strides: Shape | None) -> NoReturn:
    raise BufferError(
        f"the capsule describes an array beyond all addresses: shape {shape} and strides {strides} at {ptr:#x}"
    )
