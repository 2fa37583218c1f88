"""How the elements of a device array lie, as far as code is made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.base.layout import is_contiguous

if TYPE_CHECKING:
    from .._core.arrays.ndarray import DeviceNDArray


def arrangement(array: DeviceNDArray[Any]) -> tuple[str, bool]:
    """Its order, and whether each element stands at a multiple of what its dtype is aligned to.

    The order is 'C', 'F', or 'A' for an array whose elements lie any other way; 'C' for one that is both. Elements that are not
    aligned, as the fields of packed records may be, have to be read in pieces: a device faults on them otherwise.
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


def spelled(dtype: object, ndim: int, order: str) -> str:
    """The type of an array as signatures have it, ``float32[:, ::1]``; of one without axes they have none."""
    axes = [":"] * ndim
    if ndim and order != "A":
        axes[-1 if order == "C" else 0] = "::1"
    return f"{dtype}[{', '.join(axes)}]"
