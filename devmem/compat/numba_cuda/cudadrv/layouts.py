"""numba.cuda's checks of layouts before a copy: contiguity, equal shapes, equal strides."""

from __future__ import annotations

from typing import Any

import numpy as np

NOT_CONTIGUOUS = (
    "Array contains non-contiguous buffer and cannot be transferred as a single memory region: copy it with "
    "numpy.ascontiguousarray() first, or pass it to devmem.to_device(), which takes any layout"
)


def is_contiguous(ary: Any) -> bool:
    """Whether the elements are contiguous in C order, apart from axes of stride 0 or length one."""
    step = ary.dtype.itemsize
    for count, stride in zip(reversed(ary.shape), reversed(ary.strides), strict=True):
        if count > 1 and stride:
            if stride != step:
                return False
            step *= count
    return True


def array_core(ary: Any) -> Any:
    """The array with one index taken along each axis of stride 0."""
    if not ary.strides or not ary.size or 0 not in ary.strides:
        return ary
    return ary[tuple(slice(None) if stride else 0 for stride in ary.strides)]


def sentry_contiguous(ary: Any) -> None:
    """Raise ValueError unless the array, without axes of stride 0, is contiguous in C or Fortran order."""
    flags = array_core(ary).flags
    if not flags["C_CONTIGUOUS"] and not flags["F_CONTIGUOUS"]:
        raise ValueError(NOT_CONTIGUOUS)


def byte_bounds(address: int, shape: Any, strides: Any, itemsize: int) -> tuple[int, int]:
    """The address of an array's lowest byte and of the byte behind its highest; ``address`` is that of the first element."""
    if 0 in shape:
        return address, address
    steps = [(count - 1) * step for count, step in zip(shape, strides, strict=True)]
    return address + sum(min(step, 0) for step in steps), address + sum(max(step, 0) for step in steps) + itemsize


def check_array_compatibility(ary1: Any, ary2: Any) -> None:
    """Raise unless one array can be copied to the other in one piece; axes of length one are ignored.

    Raises
    ------
    TypeError
        The dtypes differ.
    ValueError
        The shapes or the strides do.
    """
    if ary1.dtype != ary2.dtype:
        raise TypeError(f"incompatible dtype: {ary1.dtype} vs. {ary2.dtype}")
    (shape1, strides1), (shape2, strides2) = squeezed(ary1), squeezed(ary2)
    if shape1 != shape2:
        raise ValueError(f"incompatible shape: {ary1.shape} vs. {ary2.shape}")
    if strides1 != strides2 and 0 not in shape1:
        raise ValueError(f"incompatible strides: {ary1.strides} vs. {ary2.strides}")


def squeezed(ary: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides without the axes of length one."""
    kept = [(count, stride) for count, stride in zip(ary.shape, ary.strides, strict=True) if count != 1]
    return tuple(count for count, _ in kept), tuple(stride for _, stride in kept)


def shape_strides_dtype(
    shape: Any, strides: Any, dtype: Any, order: str
) -> tuple[tuple[int, ...], tuple[int, ...] | None, np.dtype[Any]]:
    """The normalised arguments of a new array; strides are None for a contiguous array.

    Raises
    ------
    TypeError
        A shape is not made of integers.
    OverflowError
        Its only length is negative.
    ValueError
        The order is neither 'C' nor 'F', the strides are too few or too many, or a length is negative.
    """
    kind = np.dtype(dtype)
    lengths = shape_of(shape)
    steps = (strides,) if isinstance(strides, int) else tuple(strides) if strides else None
    if steps is None and order not in ("C", "F"):
        raise ValueError(f"must be either C/F order, not {order!r}")
    if steps is not None and len(steps) != len(lengths):
        raise ValueError(f"strides not match ndim: {steps} for shape {lengths}")
    return lengths, steps, kind


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape, from an int or a sequence of integers."""
    if isinstance(shape, int):
        lengths: tuple[Any, ...] = (shape,)
    elif isinstance(shape, float | np.floating) or (isinstance(shape, np.ndarray) and shape.dtype.kind == "f"):
        raise TypeError("shape must be an integer or tuple of integers")
    else:
        lengths = tuple(shape)
    for each in lengths:
        if not isinstance(each, int | np.integer):
            raise TypeError(f"shape elements must be integers, got {type(each).__name__}")
    if len(lengths) == 1 and lengths[0] < 0:
        raise OverflowError(f"a shape has no negative length: {lengths}")
    return tuple(map(int, lengths))
