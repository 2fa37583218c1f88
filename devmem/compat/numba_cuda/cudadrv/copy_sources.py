"""The sources of copies into device arrays, and the memory of new ones."""

from __future__ import annotations

from typing import Any

import numpy as np

import devmem

from ....spi.errors import DevmemError
from .error import translated
from .layouts import array_core, byte_bounds, is_contiguous
from .pointers import ArrayMemory


def memory_for(
    native: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], bound: Any, gpu_data: Any
) -> tuple[Any, int]:
    """The allocation for an array made by its constructor, and the array's address."""
    chosen = bound or native.streams.stream_of(None)
    if 0 in shape or not dtype.itemsize:
        return native.memory.empty_allocation(chosen), 0
    low, high = byte_bounds(0, shape, strides, dtype.itemsize)
    size = high - low
    if gpu_data is None:
        try:
            with native.device.entered():
                block = native.memory.allocate(size, chosen, bound is None)
        except DevmemError as error:
            raise translated(error) from error
        return block, block.ptr - low
    address = int(gpu_data.device_ctypes_pointer.value or 0)
    if isinstance(gpu_data, ArrayMemory):
        return gpu_data.allocation, address
    return native.memory.foreign(address, size, gpu_data), address


def array_interface(array: Any) -> dict[str, Any]:
    """The CUDA Array Interface of an array on a device that is not NVIDIA's, for code written for numba.cuda."""
    bound = array._stream if array._stream is not None and array._stream.plain else None
    with array.device.entered():
        if bound is None:
            array.allocation.wait()
        else:
            array.allocation.order_behind(bound)
    found = {
        "shape": array.shape,
        "strides": None if is_contiguous(array) else array.strides,
        "data": (array.ptr, array.allocation.read_only),
        "typestr": array.dtype.str,
        "stream": None if bound is None else bound.handle,
        "version": 3,
    }
    if array.dtype.fields is not None:
        found["descr"] = array.dtype.descr
    return found


def native_view(obj: Any) -> Any:
    """The native array over an object's device memory; None if it has none."""
    if isinstance(obj, np.ndarray | np.generic | list | tuple | int | float | complex):
        return None
    return devmem.as_device_array(obj) if devmem.is_device_array(obj) else None


def host_source(ary: Any, target: Any) -> Any:
    """The elements of a host array, in the shape of the device array that they are copied into."""
    source = np.asarray(ary)
    if source.dtype != target._dtype:
        raise TypeError(f"incompatible dtype: {target._dtype} vs. {source.dtype}")
    if source.shape == target._shape:
        return source
    core = array_core(source)
    for each in (source, core):
        if [count for count in each.shape if count != 1] == [count for count in target._shape if count != 1]:
            return each.reshape(target._shape)
    raise ValueError(f"incompatible shape: {target._shape} vs. {ary.shape}")


def check_broadcast(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Raise ValueError unless ``source`` broadcasts to ``target``."""
    if len(source) > len(target):
        raise ValueError(f"Can't assign {len(source)}-D array to {len(target)}-D self")
    missing = len(target) - len(source)
    for axis, (have, want) in enumerate(zip((1,) * missing + source, target, strict=True)):
        if have not in (1, want):
            raise ValueError(f"Can't copy sequence with size {have} to array axis {axis} with dimension {want}")


def broadcast(source: Any, shape: tuple[int, ...]) -> Any:
    """A host or device array broadcast to a shape."""
    if source.shape == shape:
        return source
    if isinstance(source, np.ndarray):
        return np.broadcast_to(source, shape)
    missing = len(shape) - source.ndim
    lengths, steps = (1,) * missing + source.shape, (0,) * missing + source.strides
    strides = tuple(step if have == want else 0 for have, want, step in zip(lengths, shape, steps, strict=True))
    return source._view(source._ptr, shape, strides)
