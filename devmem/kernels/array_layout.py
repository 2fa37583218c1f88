"""The layout of a device array, as far as compiled code depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.base.layout import is_contiguous

if TYPE_CHECKING:
    from .._core.arrays.ndarray import DeviceNDArray


def order_and_alignment(array: DeviceNDArray[Any]) -> tuple[str, bool]:
    """The order of an array, and whether all its elements are aligned for its dtype.

    The order is 'C' or 'F' for a contiguous array ('C' if it is both), else 'A'. Code for unaligned elements, as fields of
    packed records may be, has to read them in pieces: a device faults on them otherwise.
    """
    dtype = array._dtype
    if array._strides is None:
        return "C", array._ptr % dtype.alignment == 0
    shape, strides = array._shape, array.strides
    order = "A"
    if is_contiguous(shape, strides, dtype.itemsize):
        order = "C"
    elif is_contiguous(shape, strides, dtype.itemsize, "F"):
        order = "F"
    places = array._ptr
    for length, step in zip(shape, strides, strict=True):
        if length > 1:
            places |= step
    return order, places % dtype.alignment == 0


def type_text(dtype: object, ndim: int, order: str) -> str:
    """The type of an array as written in signatures: ``float32[:, ::1]``."""
    axes = [":"] * ndim
    if ndim and order != "A":
        axes[-1 if order == "C" else 0] = "::1"
    return f"{dtype}[{', '.join(axes)}]"
