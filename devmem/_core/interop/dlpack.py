"""DLPack capsules: how a tensor is written into one and read out of one. Devices and arrays are not known here.

A capsule is a Python object with a pointer to a managed tensor and a name. It is used through Python's ``PyCapsule_*`` functions
only; the tensor is a public struct of DLPack 1.x, read and written at the address that ``PyCapsule_GetPointer`` returns. Strides
are in elements in the struct, in bytes for callers of this module.

Export: NumPy makes the capsule of a small array that keeps the owner of the exported memory alive. Then data pointer, device,
flags, element type and, where NumPy left them out, strides are overwritten. So the deleter is NumPy's C code: it may be called
from any thread, without the GIL, and after the interpreter has ended, where a callback written with ctypes crashes.

Import: `take` renames the capsule, as DLPack prescribes, and then checks the tensor. Of several threads that take one capsule at
a time one succeeds, and no thread waits for another. A capsule with an impossible tensor gets its name back: it still belongs to
its producer. The deleter of a tensor that was taken runs once, without the GIL, on the thread that drops the last reference to
the returned owner; it does not run once the interpreter has begun to end.
"""

# Decision: docs/adr/0007-exchange-follows-dlpack.md
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import compress, starmap
from operator import attrgetter, not_
from typing import Any

import numpy as np

from ...spi.sizes import exact_size
from ..base.layout import Shape, contiguous_strides, normal_strides, span
from .dlpack_types import KINDS, DLManagedTensor, DLManagedTensorVersioned, dtype_code, dtype_of

#: The newest version that is asked for; capsules with the same major number are read.
VERSION = (1, 1)
READ_ONLY, IS_COPIED = 1, 2
#: More axes than any array library has.
MAX_AXES = 64

#: ``DLDeviceType``. Not an enum, whose members take five times as long to compare.
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
    EXT_DEV: "an extension device",
    CUDA_MANAGED: "managed memory of CUDA",
    14: "oneAPI",
}
#: Device types whose memory the host can read.
HOST_TYPES = frozenset({CPU, CUDA_HOST, ROCM_HOST})

#: (shape, strides in bytes or None for contiguous, offset of the lowest byte, bytes from there to the end).
Layout = tuple[Shape, Shape | None, int, int]
#: Address, (device type, number), layout, dtype, flags, and the owner, which keeps the memory alive until it dies.
Tensor = tuple[int, tuple[int, int], Layout, "np.dtype[Any]", int, object]

#: Types of the arrays that a tensor's shape and strides point to, by the number of axes.
_INT64S = [ctypes.c_int64 * ndim for ndim in range(MAX_AXES + 1)]


def _permanent(text: bytes) -> int:
    """The address of a C string that is never freed: a capsule refers to its name, and may outlive this module."""
    string = ctypes.create_string_buffer(text)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(string))
    return ctypes.addressof(string)


_LEGACY, _VERSIONED = b"dltensor", b"dltensor_versioned"
#: By the name of a capsule: that name, and the name of the capsule once it is taken.
_NAMES = {name: (_permanent(name), _permanent(b"used_" + name)) for name in (_LEGACY, _VERSIONED)}

_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetName", ctypes.pythonapi))

_Capsule = type(np.zeros(1).__dlpack__())
#: NumPy before 2.1 makes unversioned capsules only.
NUMPY_IS_VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
_is_finalizing = sys.is_finalizing


# -- export ------------------------------------------------------------------------------------------------------------


class _Carrier(np.ndarray[Any, Any]):
    """The array that NumPy exports; what the consumer needs lives as long as it does."""

    __slots__ = ("owner", "strides_words")

    owner: object
    strides_words: object


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

    BufferError if DLPack has no such dtype or strides, or for read-only memory, which an unversioned capsule cannot express.
    """
    model, code, bits, steps = _model(shape, strides, dtype)
    carrier = model.view()
    carrier.owner = owner
    tensor: DLManagedTensor | DLManagedTensorVersioned
    if versioned and NUMPY_IS_VERSIONED:
        capsule = carrier.__dlpack__(max_version=VERSION)
        tensor = DLManagedTensorVersioned.from_address(_get_pointer(capsule, _VERSIONED))
        tensor.flags = flags
    elif flags & READ_ONLY:
        raise BufferError(
            "a read-only array needs a versioned DLPack capsule: the consumer has to ask with max_version=(1, 0)"
            if NUMPY_IS_VERSIONED
            else "a read-only array needs a versioned DLPack capsule, which takes NumPy 2.1 or newer"
        )
    else:
        capsule = carrier.__dlpack__()
        tensor = DLManagedTensor.from_address(_get_pointer(capsule, _LEGACY))
    tensor.data = ptr
    tensor.device_type, tensor.device_id = device
    tensor.code, tensor.bits = code, bits
    if shape and not tensor.strides:  # NumPy before 2.4 leaves out those of contiguous arrays
        carrier.strides_words = words = _INT64S[len(shape)](*steps)
        tensor.strides = ctypes.addressof(words)
    return capsule


@lru_cache(maxsize=512)
def _model(shape: Shape, strides: Shape | None, dtype: np.dtype[Any]) -> tuple[_Carrier, int, int, Shape]:
    """An array with the shape and strides, which NumPy can export; DLPack's (code, bits); and the strides in elements."""
    code, bits = dtype_code(dtype)
    steps = contiguous_strides(shape, 1) if strides is None else element_strides(shape, strides, dtype.itemsize)
    known = dtype if code in KINDS else np.dtype(f"u{dtype.itemsize}")  # NumPy cannot export types of ml_dtypes
    model = np.lib.stride_tricks.as_strided(
        np.zeros(1, known), shape, tuple(step * dtype.itemsize for step in steps)
    ).view(_Carrier)
    return model, code, bits, steps


def element_strides(shape: Shape, strides: Shape, itemsize: int) -> Shape:
    """Strides in elements; those of axes of length one, and of empty arrays, as contiguous arrays have them.

    BufferError if a stride is not a multiple of the element size.
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


# -- import ------------------------------------------------------------------------------------------------------------


def take(capsule: object) -> Tensor:
    """Take over the tensor of a capsule, which cannot be taken again.

    BufferError if it is not a DLPack capsule, was taken before, or describes an impossible tensor.
    """
    if type(capsule) is not _Capsule:
        raise BufferError(f"__dlpack__ returned {capsule!r}, not a DLPack capsule")
    # Reading the name and setting it are two steps. ``dict.setdefault`` is atomic and so decides between callers that come at
    # once, be they threads or a finalizer that interrupts the two steps.
    mark, renamed = object(), b""
    tensor: DLManagedTensor | DLManagedTensorVersioned
    try:
        if _claims.setdefault(capsule, mark) is not mark:
            raise BufferError("the DLPack capsule was taken by another thread: ask its producer for one for each")
        name = _unused_name(capsule)
        pointer: int = _get_pointer(capsule, name)
        renamed = name
        _set_name(capsule, _NAMES[name][1])
        if name == _VERSIONED:
            tensor = DLManagedTensorVersioned.from_address(pointer)
            if tensor.major != VERSION[0]:  # another major version has other fields
                raise BufferError(
                    f"the capsule is of DLPack {tensor.major}.{tensor.minor}, this devmem reads {VERSION[0]}.x"
                )
        else:
            tensor = DLManagedTensor.from_address(pointer)
        ptr, layout, dtype = _checked(tensor)
        device, flags = (tensor.device_type, tensor.device_id), tensor.flags
        # Made now, because it may be needed when the interpreter can no longer make it.
        deleter = _callable(tensor.deleter) if tensor.deleter else _nothing
        # All in C, and once only. The question comes first: a producer's deleter may need the interpreter.
        not_finalizing = map(not_, starmap(_is_finalizing, ((),)))
        drop = partial(next, map(deleter, compress((pointer,), not_finalizing)), None)
        taken = _Taken(capsule)
        taken._drop = drop
    except BaseException as error:
        if renamed:  # it still belongs to its producer
            _set_name(capsule, _NAMES[renamed][0])
        if isinstance(error, ValueError):
            raise BufferError(f"the capsule {error}") from None
        raise
    finally:
        if capsule in _claims and _claims[capsule] is mark:
            del _claims[capsule]
    return ptr, device, layout, dtype, flags, taken


#: Capsules that a thread is taking, with a mark of the call that does it.
_claims: dict[object, object] = {}


def _unused_name(capsule: object) -> bytes:
    """The name of a capsule that was not taken yet."""
    name: bytes = _get_name(capsule) or b""
    if name not in _NAMES:
        if name.startswith(b"used_") and name[5:] in _NAMES:
            raise BufferError("the DLPack capsule was taken before: ask its producer for another one")
        raise BufferError(f"a capsule with the name {name.decode(errors='replace')!r} is not DLPack's")
    return name


class _Taken:
    """Owns a tensor that was taken, and its capsule: some producers hang what they need on that."""

    __slots__ = ("_drop", "capsule")

    #: The producer's deleter, called in C.
    __del__ = property(attrgetter("_drop"))

    def __init__(self, capsule: object) -> None:
        self._drop: Callable[..., object] = _nothing
        self.capsule = capsule


def _nothing(*arguments: object) -> None:
    """In place of a deleter."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@lru_cache(maxsize=64)
def _callable(address: int) -> Any:
    return _Deleter(address)  # without the GIL: a producer's deleter may wait for a thread that wants it


def _checked(tensor: DLManagedTensor | DLManagedTensorVersioned) -> tuple[int, Layout, np.dtype[Any]]:
    """Address, layout and dtype of a tensor; ValueError says what is impossible about it."""
    ndim: int = tensor.ndim
    if not 0 <= ndim <= MAX_AXES:
        raise ValueError(f"describes an array with {ndim} axes")
    if ndim and not tensor.shape:
        raise ValueError(f"describes an array with {ndim} axes and no shape")
    shape: Shape = tuple(_INT64S[ndim].from_address(tensor.shape)[:]) if ndim else ()
    # Before DLPack 1.2 those of contiguous tensors may be missing.
    steps = tuple(_INT64S[ndim].from_address(tensor.strides)[:]) if ndim and tensor.strides else None
    layout, dtype = _layout_and_dtype(shape, steps, tensor.code, tensor.bits, tensor.lanes)
    ptr: int = tensor.data
    check_address(ptr, layout, tensor.byte_offset)
    return ptr + tensor.byte_offset if layout[3] else 0, layout, dtype


@lru_cache(maxsize=1024)
def _layout_and_dtype(
    shape: Shape, steps: Shape | None, code: int, bits: int, lanes: int
) -> tuple[Layout, np.dtype[Any]]:
    dtype = dtype_of(code, bits, lanes)
    strides = None if steps is None else tuple(step * dtype.itemsize for step in steps)
    return layout_of(shape, strides, dtype.itemsize), dtype


@lru_cache(maxsize=1024)
def layout_of(shape: Shape, strides: Shape | None, itemsize: int) -> Layout:
    """The layout of a foreign array; ValueError says what is impossible about it. Cached: most programs exchange few."""
    if len(shape) > MAX_AXES:
        raise ValueError(f"describes an array with {len(shape)} axes")
    if shape and min(shape) < 0:
        raise ValueError(f"describes an array of negative length: shape {shape}")
    if strides is not None and len(strides) != len(shape):
        raise ValueError(f"describes an array with {len(shape)} axes and {len(strides)} strides")
    if 0 in shape or not itemsize:
        return shape, None, 0, 0
    contiguous = contiguous_strides(shape, itemsize)
    strides = contiguous if strides is None else normal_strides(shape, strides, itemsize)
    low, high = span(shape, strides, itemsize)
    return shape, None if strides == contiguous else strides, low, high - low


def check_address(ptr: int, layout: Layout, offset: int = 0) -> None:
    """ValueError unless an array with its first element ``offset`` bytes behind an address lies at possible addresses."""
    shape, strides, low, nbytes = layout
    if not nbytes:
        return
    if not ptr:
        raise ValueError(f"describes an array of shape {shape} at address 0")
    start = ptr + offset + low
    if start <= 0 or start + nbytes > 1 << 64:
        raise ValueError(
            f"describes an array beyond all addresses: shape {shape}, strides {strides}, {exact_size(nbytes)} from {start:#x}"
        )
