"""Memory that host and device share, and memory of other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import devmem

from .array_creation import call_ready, create_array
from .cudadrv import devices, driver
from .cudadrv.arrays import DeviceNDArray
from .cudadrv.hostarrays import ManagedNDArray, MappedNDArray
from .cudadrv.ipc import IpcHandle
from .cudadrv.layouts import shape_strides_dtype
from .cudadrv.streams import native_stream


def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> Any:
    """Allocate an uninitialised ndarray in page-locked memory."""
    return create_array(devmem.pinned_array, shape, dtype, strides, order)


def pinned_array_like(ary: Any) -> Any:
    """Allocate a `pinned_array` with the shape, dtype and order of axes of an array."""
    ary.flags, ary.strides  # noqa: B018
    return call_ready(devmem.pinned_array_like, ary)


def mapped_array(
    shape: Any,
    dtype: Any = np.float64,
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    portable: bool = False,
    wc: bool = False,
) -> Any:
    """Allocate an uninitialised ndarray in page-locked memory that the device reads and writes in place.

    ``portable``: page-locked for all devices. ``wc``: write-combined, very slow for the host to read.
    """
    return create_array(devmem.mapped_array, shape, dtype, strides, order, native_stream(stream), portable, wc).view(
        MappedNDArray
    )


def mapped_array_like(ary: Any, stream: Any = 0, portable: bool = False, wc: bool = False) -> Any:
    """Allocate a `mapped_array` with the shape, dtype and order of axes of an array."""
    ary.flags, ary.strides  # noqa: B018
    return call_ready(devmem.mapped_array_like, ary, native_stream(stream), portable, wc).view(MappedNDArray)


def managed_array(
    shape: Any,
    dtype: Any = np.float64,
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    attach_global: bool = True,
) -> Any:
    """Allocate an uninitialised ndarray in managed memory, with one address for host and device.

    ``attach_global=False`` attaches it to the host first.
    """
    return create_array(devmem.managed_array, shape, dtype, strides, order, native_stream(stream), attach_global).view(
        ManagedNDArray
    )


@contextmanager
def pinned(*arylist: Any) -> Iterator[None]:
    """Page-lock ndarrays for a ``with`` block; at its end they are unlocked after the copies that use them."""
    with call_ready(devmem.pinned, *arylist):
        yield


@contextmanager
def mapped(*arylist: Any, **kws: Any) -> Iterator[Any]:
    """Map ndarrays into the device's memory for a ``with`` block, which gets a device array, or a list of several."""
    assert not kws or set(kws) == {"stream"}, "Only accept 'stream' as keyword."
    stream = native_stream(kws.get("stream", 0))
    with call_ready(devmem.mapped, *arylist, stream=stream) as views:
        for view in views if isinstance(views, list) else [views]:
            view.__class__ = DeviceNDArray
        yield views


@contextmanager
def open_ipc_array(handle: Any, shape: Any, dtype: Any, strides: Any = None, offset: int = 0) -> Iterator[Any]:
    """Open another process's device memory for a ``with`` block, from the bytes of the driver's handle, as an array."""
    kind = np.dtype(dtype)
    lengths, steps, _ = shape_strides_dtype(shape, strides, kind, "C")
    context = devices.get_context()
    size = driver.memory_size_from_info(lengths, steps or _packed(lengths, kind.itemsize), kind.itemsize)
    opened = IpcHandle(None, handle, size, offset=offset)
    array = opened.open_array(context, shape=lengths, strides=steps, dtype=kind)
    try:
        yield array
    finally:
        del array
        opened.close()


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    steps, step = [], itemsize
    for count in reversed(shape):
        steps.append(step)
        step *= count
    return tuple(reversed(steps))
