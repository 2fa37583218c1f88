"""The border where host objects come in: each becomes an ndarray of plain bytes here, or is refused.

Every way in goes through it: uploads, assignments, fill values, batches, arguments of kernels, host memory that comes by DLPack,
memory that is page-locked or mapped in place. What would be lost on the way is refused, with what to give instead:

=========================================================  =============================================================
object                                                     what becomes of it
=========================================================  =============================================================
ndarray; number; text; what ``numpy.asarray`` converts     its elements; of a subclass too, without what that adds
has a mask: an ndarray, or its ``__array_interface__``     refused: elements that do not count would come to count
sequence with one of those anywhere in it                  refused
tensor of host memory that NumPy cannot convert, bfloat16  its elements, by DLPack
Python objects, None                                       refused: references mean nothing to a device
=========================================================  =============================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import IOBase
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError
from ..base.arguments import foreign_attribute
from ..base.layout import MAX_AXES, new_host
from .dlpack import HOST_TYPES
from .foreign_arrays import device_of_tensor, host_tensor, is_tensor

#: Types of which NumPy makes one element, or that it takes as they are: there is nothing to look for in them.
_PLAIN = {bool, int, float, complex, str, bytes, range, type(None), np.ndarray}
#: Of what NumPy makes no array, the first that it is, and what to give instead.
_NO_ARRAYS = (
    (Mapping, "devmem.to_device_many(tree) copies the arrays in it"),
    (PathLike, "devmem.load(path) reads a file"),
    (IOBase, "devmem.load(path) reads a file, numpy.frombuffer(x.read(), dtype) the bytes of an open one"),
    (Iterator, "give list(x), or numpy.fromiter(x, dtype)"),
    (Iterable, "give list(x)"),
    (object, "give an array, a number or text, or a list of them"),
)
#: Types that NumPy makes of Python objects only where it is told to, and what they hold.
_TOLD = {"f8": "numbers", "M8[us]": "dates", "m8[us]": "durations"}
#: What says that an object is an array itself, and not a sequence of them; so do DLPack's methods.
_CONVERSIONS = ("__array__", "__array_interface__", "__array_struct__")


def host_array(obj: object, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """An ndarray of what the user gave: itself, or what ``numpy.asarray`` makes of it, of the dtype if one is named.

    Raises
    ------
    LayoutError
        It has Python objects in it, or a mask that would be lost.
    """
    if type(obj) is np.ndarray:
        found = obj if dtype is None else np.asarray(obj, dtype)
    else:
        found = _converted(obj, dtype)
    if found.dtype.hasobject:
        raise LayoutError(_refusal(obj, found))
    return found


def pinnable(array: object) -> npt.NDArray[Any]:
    """The plain ndarray of an argument of pinned(), mapped() or register()."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"only an ndarray's memory can be page-locked in place, not that of a {type(array).__name__}")
    check_no_mask(array)
    plain = np.asarray(array)  # a subclass may say anything of its shape and strides
    if plain.dtype.hasobject:
        raise LayoutError(
            f"an array of dtype {plain.dtype} holds references to Python objects: nothing to share with a device"
        )
    return plain


def check_no_mask(obj: object) -> None:
    """Raise LayoutError if an object has a mask, or something in it has one: its elements alone would come to a device."""
    if has_mask(obj):
        raise _lost_mask()


def has_mask(obj: object, depth: int = MAX_AXES) -> bool:
    """Whether an object, or something in it, has elements that a mask of its own declares not to count."""
    return _says_mask(obj, depth) or _converts_to_masked(obj)


def _says_mask(obj: object, depth: int = MAX_AXES) -> bool:
    """`has_mask` of all but what the object's own ``__array__`` returns, which is called once only where that matters.

    Masked arrays of NumPy, one element of them, and those of other libraries that are subclasses of ndarray have it in their
    class. A field of the name ``mask``, which a recarray may have, is not in the class.
    """
    kind = type(obj)
    if issubclass(kind, np.ndarray):
        return hasattr(kind, "mask")
    if kind in _PLAIN or issubclass(kind, np.generic):
        return False
    described = foreign_attribute(obj, "__array_interface__")
    if isinstance(described, dict):
        return described.get("mask") is not None
    items = _items(obj) if depth else ()
    kinds = {each for each in set(map(type, items)) - _PLAIN if not issubclass(each, np.generic)}
    return bool(kinds) and any(has_mask(each, depth - 1) for each in items if type(each) in kinds)


def _converts_to_masked(obj: object) -> bool:
    """Whether the ``__array__`` of an object returns a masked array; tensors, which have DLPack, have no masks."""
    kind = type(obj)
    if issubclass(kind, (np.ndarray, np.generic)) or is_tensor(obj) or not hasattr(kind, "__array__"):
        return False
    try:
        return _says_mask(np.asanyarray(obj))
    except Exception:  # NumPy says what it makes of it
        return False


def _lost_mask() -> LayoutError:
    return LayoutError(
        "a masked array's mask does not go to a device: give array.filled(...), or array.data and by itself the mask, "
        "numpy.ma.getmaskarray(array)"
    )


def assignable(value: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A host value as an array of the dtype, cast as ``numpy.copyto(casting="same_kind")`` does.

    Raises
    ------
    LayoutError
        The cast is not of the same kind, or the dtype cannot hold the value.
    """
    try:
        return _assignable(value, dtype)
    except OverflowError as error:
        raise LayoutError(f"cannot assign {value!r} to {dtype}: {error}") from None


def one_value(value: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The one value that `fill` stores, as an array without axes; LayoutError if there are several."""
    cast = assignable(value, dtype)
    if cast.size != 1:
        raise LayoutError(
            f"fill() stores one value, not {cast.size} of shape {cast.shape}: assign them, d[...] = values"
        )
    return cast.reshape(())


def _converted(obj: object, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """Convert an object by NumPy; a tensor that NumPy cannot convert, by DLPack."""
    if _says_mask(obj):
        raise _lost_mask()
    try:
        # Which keeps the mask of what the object's `__array__` returns, whose masked elements are not to be cast.
        found = np.asanyarray(obj, None if hasattr(type(obj), "__array__") else dtype)
    except TypeError:  # so PyTorch refuses types that NumPy does not have
        if not _is_host_tensor(obj):
            raise
    else:
        if found is not obj and _says_mask(found):
            raise _lost_mask()
        if not found.dtype.hasobject or not _is_host_tensor(obj):
            return np.asarray(found, dtype)
    return np.asarray(host_tensor(obj), dtype)


def _refusal(obj: object, found: npt.NDArray[Any]) -> str:
    """Why what NumPy made of an object, which holds references to Python objects, goes to no device, and what would."""
    if obj is None:
        return "None is no array, and Python objects mean nothing to a device: give an array, a number or text"
    name = type(obj).__name__
    if not isinstance(obj, (np.ndarray, np.generic)) and not found.ndim:
        if name == "PyCapsule":
            return "a capsule is not an array: give the object that made it, devmem.from_dlpack(x)"
        if isinstance(obj, int):
            return f"an int of {obj.bit_length()} bits fits no dtype, which have 64 at most: give float(x), which rounds it"
        if hasattr(obj, "toarray"):
            instead = "give x.toarray(), or the arrays that a sparse one is made of"
        else:
            instead = _conversion(found) or next(text for kind, text in _NO_ARRAYS if isinstance(obj, kind))
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name} is not an array: {instead}"
    if hasattr(obj, "to_numpy"):
        instead = "convert it, x.to_numpy('f8'), or give one column at a time"
    elif found.dtype.kind in "OT" and all(isinstance(each, str) for each in found.flat):
        instead = f"convert it to text of one length, numpy.array(x, 'U{max(map(len, found.flat), default=1)}')"
    else:
        instead = _conversion(found) or "give numbers or text, without other objects among them"
    return f"the items of the {name} are references to Python objects (dtype {found.dtype}): {instead}"


def _conversion(found: npt.NDArray[Any]) -> str:
    """Say how NumPy makes numbers or dates of what an array refers to, NaN or NaT of None; empty if it does not."""
    for kind, what in _TOLD.items() if found.dtype.names is None else ():
        try:
            found.astype(kind)
        except (TypeError, ValueError, OverflowError):
            continue
        return f"convert it to {what}, numpy.array(x, {kind!r})"
    return ""


def _is_host_tensor(obj: object) -> bool:
    return is_tensor(obj) and device_of_tensor(obj)[0] in HOST_TYPES


def _items(obj: Any) -> Any:
    """Return what NumPy iterates over: the items of a list, or of an object with a length and no conversion or memory."""
    kind = type(obj)
    if issubclass(kind, (list, tuple)):
        return obj
    if issubclass(kind, (str, bytes, dict)) or not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        return ()
    if is_tensor(obj) or any(getattr(kind, name, None) is not None for name in _CONVERSIONS):
        return ()
    try:
        memoryview(obj).release()
    except TypeError:
        pass
    else:
        return ()
    try:
        return list(obj)
    except Exception:  # NumPy says what it makes of it
        return ()


def _assignable(value: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    array_like = isinstance(value, (np.ndarray, np.generic))
    if not array_like and dtype.fields is not None:
        return host_array(value, dtype)
    host = host_array(value)
    if host.dtype == dtype:
        return host
    if not array_like and host.dtype.kind in "iu" and dtype.kind in "iu":
        return _held(host, dtype)
    cast = new_host(host.shape, dtype)
    try:
        # A Python scalar has no dtype of its own: NumPy must see it as it is.
        np.copyto(cast, value if not array_like and host.ndim == 0 else host, casting="same_kind")  # type: ignore[arg-type]
    except TypeError:
        what = f"{value!r} ({type(value).__name__})" if host.ndim == 0 and not array_like else str(host.dtype)
        raise LayoutError(
            f"cannot assign {what} to {dtype}: the cast is not of the same kind; {_instead(host, dtype)}"
        ) from None
    return cast


def _instead(host: npt.NDArray[Any], dtype: np.dtype[Any]) -> str:
    """Return the conversion for a value that is not of the same kind, as text for people."""
    if set(host.dtype.names or ()) & set(dtype.names or ()):  # which astype() does not look at
        return "for a value with the same fields, by name, give numpy.lib.recfunctions.require_fields(value, d.dtype)"
    if not np.can_cast(host.dtype, dtype, "unsafe"):
        return "nor is there another: " + (
            "assign the fields one by one, d['name'] = ..." if dtype.names else "give one of its fields, value['name']"
        )
    if host.ndim == 0 and host.dtype.kind in "biuf" and dtype.isbuiltin == 1:
        return f"if that is meant, convert it yourself: numpy.{dtype.name}(value)"
    named = (
        "d.dtype" if dtype.kind == "V" or dtype.isbuiltin == 2 else repr(dtype.str)
    )  # which says of records, and of bfloat16, their size alone
    return f"if that is meant, convert it yourself: numpy.asarray(value).astype({named})"


def _held(integers: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Python integers in any integer dtype that holds them; NumPy before version 2 would wrap the others around."""
    limits = np.iinfo(dtype)
    for value in (int(integers.min(initial=0)), int(integers.max(initial=0))):
        if not limits.min <= value <= limits.max:
            raise LayoutError(f"cannot assign {value} to {dtype}, which holds {limits.min} to {limits.max}")
    return integers.astype(dtype)
