"""Call devmem's functions that make arrays, with numba.cuda's exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import devmem

from ...spi.errors import DevmemError
from .cudadrv.error import translated
from .cudadrv.layouts import shape_strides_dtype
from .cudadrv.state import current_device, prepare, ready


def create_array(function: Callable[..., Any], shape: Any, dtype: Any, strides: Any, order: str, *more: Any) -> Any:
    """Call a function of devmem that makes an array in host-accessible memory."""
    if strides is not None or (type(shape) is not int and type(shape) is not tuple):
        shape, strides, dtype = shape_strides_dtype(shape, strides, dtype, order)
    try:
        found = current_device().opened()
        if found not in ready:
            prepare(found)
        return function(shape, dtype, strides, order, *more)
    except (TypeError, DevmemError) as error:
        raise creation_error(error, shape, strides, dtype, order) from error


def creation_error(error: Any, shape: Any, strides: Any, dtype: Any, order: str) -> Exception:
    """The exception to raise from an error of an array's creation: numba.cuda's own for wrong arguments, else by `translated`."""
    if isinstance(error, TypeError | devmem.LayoutError):
        try:
            shape_strides_dtype(shape, strides, dtype, order)
        except Exception as found:
            return found
    try:
        return translated(error)
    finally:
        del error


def call_ready(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function of devmem on the current device, prepared for use here."""
    try:
        found = current_device().opened()
        if found not in ready:
            prepare(found)
        return function(*arguments, **keywords)
    except DevmemError as error:
        raise translated(error) from error
