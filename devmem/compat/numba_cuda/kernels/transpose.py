"""Transposing an array on the device."""

from __future__ import annotations

from typing import Any

from ..cudadrv.devicearray import DeviceNDArray, auto_device


def transpose(a: Any, b: Any = None) -> Any:
    """The transpose of an array with two axes, in ``b`` if given, else in a new array in C order.

    The work is ordered on ``a``'s stream. A host array is copied to the device first.
    """
    source = auto_device(a)[0]
    if b is None:
        return source.transpose()
    target: DeviceNDArray = auto_device(b)[0]
    target.setitem((slice(None), slice(None)), _turned(source), source.stream)
    return b


def _turned(array: Any) -> Any:
    return array._view(array._ptr, array.shape[::-1], array.strides[::-1])
