"""Every argument is parsed here, once, for verbs and methods."""

from __future__ import annotations

import operator
import reprlib
import sys
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError
from ...spi.types import AllocFlags
from .layout import MAX_AXES, Shape, check_axes, check_size, contiguous_strides, span

_COHERENCE = {"fine": AllocFlags.FINE, "coarse": AllocFlags.COARSE}


def shape_of(shape: object) -> Shape:
    """A tuple of lengths from an integer-like or a sequence of them.

    Raises
    ------
    LayoutError
        A length is negative.
    TypeError
        Something is not an integer.
    """
    if type(shape) is int and shape >= 0:
        return (shape,)
    try:
        if isinstance(shape, (tuple, bool, np.bool_)):
            raise TypeError
        lengths: tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__"):
            raise TypeError(f"a shape is an integer or a sequence of integers, not {shape!r}") from None
        lengths = integers_of(shape, "a shape is made of integers")
    if lengths and min(lengths) < 0:
        raise LayoutError(f"a shape has no negative lengths, got {lengths}")
    return lengths


def integer_of(value: object, rule: str) -> int:
    """The integer that an argument is; else TypeError, in which ``rule`` says what it is to be."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{rule}, not {reprlib.repr(value)}") from None


def integers_of(values: object, rule: str) -> Shape:
    """The integers in a sequence that has one for each axis. It is not read further than an array has axes.

    Raises
    ------
    LayoutError
        There are more than an array has axes.
    TypeError
        It is no sequence, or something in it is not an integer; ``rule`` says what it is to be.
    """
    try:
        found = tuple(map(operator.index, islice(values, MAX_AXES + 1)))  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"{rule}, not {reprlib.repr(values)}") from None
    check_axes(found)
    return found


def dtype_of(dtype: object) -> np.dtype[Any]:
    """A NumPy dtype whose items are bytes and nothing else."""
    try:
        found = _dtype_of_class(dtype) if isinstance(dtype, type) else np.dtype(dtype)  # type: ignore[call-overload]
    except SyntaxError as error:  # NumPy reads parts of a text as Python's
        raise TypeError(f"{reprlib.repr(dtype)} is no dtype: {error.msg}") from None
    if found.hasobject:
        raise LayoutError(
            f"the dtype {found} holds references to Python objects, which mean nothing on a device: use a dtype of plain bytes"
        )
    if found.subdtype is not None:
        raise LayoutError(f"the dtype {found} is itself an array: put its shape behind the array's, as NumPy does")
    return found


def is_named(stream: object) -> bool:
    """Whether an argument names a stream, which 0 and None do not. It may be no stream; whatever parses it says so."""
    if isinstance(stream, int | np.integer) and not isinstance(stream, bool):
        return stream != 0
    return stream is not None


def flag_of(value: object, name: str) -> bool:
    """True or False, from what counts as one of them.

    Raises
    ------
    TypeError
        It cannot tell: an array of several elements, or a stream, that was given in the place of another argument.
    """
    with suppress(ValueError):
        if hasattr(value, "__bool__") or hasattr(value, "__len__"):  # all else counts as True, whatever it is
            return bool(value)
    raise TypeError(f"{name} is True or False, not {reprlib.repr(value)}")


def is_dtype(what: object) -> bool:
    """Whether something that was given for something else is a dtype."""
    if not isinstance(what, (str, type, np.dtype)):
        return False
    try:
        return not np.dtype(what).hasobject
    except (TypeError, ValueError, SyntaxError):
        return False


@lru_cache(maxsize=64)
def _dtype_of_class(kind: type) -> np.dtype[Any]:
    return np.dtype(kind)


def layout_of(shape: object, dtype: object, strides: object, order: str) -> tuple[Shape, np.dtype[Any], Shape, int]:
    """(shape, dtype, strides, bytes) of a new array.

    ``strides`` in bytes, non-negative and without overlap of elements; None for contiguous in ``order`` 'C' or 'F'.
    """
    if strides is None and type(shape) is int and isinstance(dtype, type) and isinstance(order, str) and order == "C":
        return _vector(shape, dtype)
    return _layout_of(shape, dtype, strides, order)


@lru_cache(maxsize=1024)
def _vector(length: int, dtype: type) -> tuple[Shape, np.dtype[Any], Shape, int]:
    """The layout asked for most: to work it out takes longer than the rest of `device_array`.

    Ints and classes alone are looked up: a tuple that equals another may have floats in it, and dtypes that are equal may differ
    in what NumPy does not compare.
    """
    return _layout_of(length, dtype, None, "C")


def _layout_of(shape: object, dtype: object, strides: object, order: str) -> tuple[Shape, np.dtype[Any], Shape, int]:
    lengths = shape_of(shape)
    kind = dtype_of(dtype)
    if kind.itemsize == 0 and kind.kind in "SU":
        kind = np.empty(0, kind).dtype  # text of no length given: NumPy makes arrays of one character
    order_of(order, "CF")
    if strides is None:
        steps, nbytes = _packed(lengths, kind.itemsize, order)
        return lengths, kind, steps, nbytes
    check_size(lengths, kind.itemsize)
    steps = _strides_of(strides, lengths, kind.itemsize)
    return lengths, kind, steps, span(lengths, steps, kind.itemsize)[1]


@lru_cache(maxsize=1024)
def _packed(shape: Shape, itemsize: int, order: str) -> tuple[Shape, int]:
    nbytes = check_size(shape, itemsize)
    return contiguous_strides(shape, itemsize, order), nbytes


def _strides_of(strides: object, shape: Shape, itemsize: int) -> Shape:
    steps = integers_of(strides, "strides are a sequence of integers (bytes)")
    if len(steps) != len(shape):
        raise LayoutError(f"{len(steps)} strides {steps} do not go with {len(shape)} lengths {shape}")
    reach = itemsize
    moved = [] if 0 in shape else [pair for pair in zip(steps, shape, strict=True) if pair[1] > 1]
    for step, count in sorted(moved):
        if step < reach:
            raise LayoutError(
                f"strides {steps} with shape {shape} and {itemsize} bytes an item are negative or let elements overlap"
            )
        reach = step * (count - 1) + reach
    if max((reach, *map(abs, steps))) > sys.maxsize:  # also where nothing is a stride away: NumPy's have 64 bits
        raise LayoutError(
            f"strides {steps} with shape {shape} and {itemsize} bytes an item do not fit into memory addresses"
        )
    return steps


def alloc_flags(portable: bool, wc: bool, coherence: str) -> AllocFlags:
    """Return the allocation flags for the keywords of pinned_array() and mapped_array()."""
    if coherence not in _COHERENCE:
        raise LayoutError(f"coherence is 'fine' or 'coarse', not {coherence!r}")
    flags = _COHERENCE[coherence]
    if portable:
        flags |= AllocFlags.PORTABLE
    if wc:
        flags |= AllocFlags.WRITE_COMBINED
    return flags


def check_same(
    what: str, dst_shape: Shape, dst_dtype: np.dtype[Any], src_shape: Shape, src_dtype: np.dtype[Any]
) -> None:
    """Raise LayoutError unless two arrays have one shape and one dtype."""
    if dst_dtype != src_dtype:
        raise LayoutError(
            f"{what}: the destination has dtype {dst_dtype}, the source {src_dtype}: convert one of them first"
        )
    if dst_shape != src_shape:
        raise LayoutError(
            f"{what}: the destination has shape {dst_shape}, the source {src_shape}: reshape one of them first"
        )


def foreign_attribute(obj: object, name: str) -> Any:
    """An attribute of another library's object; None if it has none, or its property raises, which counts as absent."""
    try:
        return getattr(obj, name, None)
    except Exception:
        return None


def order_of(order: object, allowed: str) -> Any:
    """One of the allowed letters; as Any, because NumPy's methods are typed to take literals."""
    if not isinstance(order, str) or order not in tuple(allowed):
        raise LayoutError(f"order is one of {', '.join(map(repr, allowed))}, not {order!r}")
    return order


def priority_of(priority: object, least: int, greatest: int) -> int:
    """A stream's priority, whatever its size."""
    try:
        if isinstance(priority, bool):
            raise TypeError
        return operator.index(priority)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"a stream's priority is an integer, the smaller the sooner (this device has {greatest} to {least}), not {priority!r}"
        ) from None


def new_shape_of(parts: tuple[Any, ...]) -> Shape:
    """The shape given to ``reshape``: as one tuple or as several ints; -1 leaves one open."""
    given = parts[0] if len(parts) == 1 and hasattr(parts[0], "__iter__") else parts
    return integers_of(given, "a shape is made of integers")


def check_destination(ary: object, shape: Shape, dtype: np.dtype[Any], call: str = "copy_to_host") -> npt.NDArray[Any]:
    """The plain ndarray of a destination; an error unless elements of that shape and dtype can be copied into it.

    ``call``: what the user called, for messages.
    """
    if not isinstance(ary, np.ndarray):
        give = "numpy.empty(...)"
        if hasattr(ary, "host_changed"):
            give = "its host(), and call host_changed() behind it"
        elif isinstance(ary, (bytearray, memoryview)):
            give = "numpy.frombuffer(buffer, d.dtype).reshape(d.shape)"
        elif hasattr(ary, "synchronize"):
            give = "a stream as stream="
        elif hasattr(ary, "numpy") and not hasattr(ary, "copy_to_host"):
            give = "its numpy(), which shares the memory of a tensor on the host"
        raise TypeError(f"{call}: the destination must be an ndarray, not a {type(ary).__name__}: give {give}")
    if type(ary) is not np.ndarray and hasattr(type(ary), "mask"):
        raise LayoutError(f"{call}: a masked array would keep its mask, for other elements: give its data, m.data")
    plain = np.asarray(ary)  # a subclass may say anything of its shape, strides and flags
    if plain.dtype != dtype or plain.shape != shape:
        check_same(call, plain.shape, plain.dtype, shape, dtype)
    flags = plain.flags
    if not flags.writeable:
        raise LayoutError(f"{call}: a copy to the host cannot go into a read-only array: give a writable one, or none")
    if not flags.forc and plain.size and _overlaps_itself(plain.shape, plain.strides, plain.itemsize):
        raise LayoutError(
            f"{call}: a copy to the host cannot go into an array whose elements overlap (shape {plain.shape}, strides "
            f"{plain.strides}, {plain.itemsize} bytes an item): give one that has its own place for each, numpy.empty(...)"
        )
    return plain


def _overlaps_itself(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Whether two elements share a byte."""
    reach = itemsize
    for step, count in sorted((abs(step), count) for step, count in zip(strides, shape, strict=True) if count > 1):
        if step < reach:
            break
        reach = step * (count - 1) + reach
    else:
        return False  # each axis steps over all that the ones before it reach
    if 0 in (step for step, count in zip(strides, shape, strict=True) if count > 1):
        return True
    # Axes that interleave are rare enough to be looked at element by element.
    offsets = np.zeros(1, np.int64)
    for step, count in zip(strides, shape, strict=True):
        offsets = np.add.outer(offsets, np.arange(count) * step).ravel()
    offsets.sort()
    return bool((np.diff(offsets) < itemsize).any())


def check_callable(given: object, what: str) -> None:
    """Raise TypeError for what cannot be called: at the first allocation it would be too late."""
    if not callable(given):
        raise TypeError(f"{what} is a function, not {given!r}")
