"""numba.roc's device array, a subclass of devmem's, and its host array that kernels access."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

import devmem

from ...._core.lifetime.allocation import Allocation
from ....spi.errors import BackendError, LayoutError, UnsupportedError
from .devices import Context, check_same, select_default_backend
from .error import translated, translating

Native = devmem.DeviceNDArray[Any]

_copy_to_host = Native.copy_to_host  # super() takes time

#: The shapes of one element: a device array always has an axis.
ONE_ELEMENT_SHAPES = ((), (1,))


class DeviceNDArray(devmem.DeviceNDArray[Any]):
    """An array in device memory, with the attributes of numba.roc's and of devmem's arrays.

    Parameters
    ----------
    shape : int or tuple of int
        Lengths of the axes.
    strides : int or tuple of int
        Bytes from one element to the next along each axis.
    dtype : dtype
        Type of the elements.
    dgpu_data : DeviceMemory, optional
        Memory to use, the ``dgpu_data`` of another array; by default new memory.

    Raises
    ------
    ValueError
        The strides do not match the shape, or the array does not fit into the memory.
    """

    __slots__ = ()
    __hsa_memory__ = True
    __hsa_ndarray__ = True
    # As in numba.roc, arrays are hashable and compare by identity.
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__  # type: ignore[assignment]
    __ne__ = object.__ne__  # type: ignore[assignment]

    @translating
    def __init__(self, shape: Any, strides: Any, dtype: npt.DTypeLike, dgpu_data: Any = None) -> None:
        select_default_backend()
        strides = (strides,) if isinstance(strides, int) else strides
        if dgpu_data is None:
            made = devmem.device_array(shape, dtype, strides)
            super().__init__(made.open_device, made.allocation, made._ptr, made._shape, made._dtype, made._strides)
            return
        if not isinstance(dgpu_data, DeviceMemory):
            raise LayoutError(f"dgpu_data is the attribute dgpu_data of another array, not {dgpu_data!r}")
        allocation = dgpu_data.allocation
        # NumPy checks whether it fits; the bytes are not used.
        fitted: npt.NDArray[Any] = np.ndarray(shape, dtype, np.empty(allocation.nbytes, np.uint8), 0, strides)
        super().__init__(dgpu_data.open_device, allocation, allocation.ptr, fitted.shape, fitted.dtype, fitted.strides)

    def copy_to_host(
        self, ary: npt.NDArray[Any] | None = None, stream: Any = None, *, pinned: bool = False
    ) -> npt.NDArray[Any]:
        """Copy the elements to the host.

        Parameters
        ----------
        ary : ndarray, optional
            The target: same dtype, shape and strides. By default a new array with these.
        stream : Stream, optional
            Orders the copy, which may still run on return. Without a stream the copy, and all work on other streams of the
            device, is complete on return.
        pinned : bool
            As for devmem's own arrays.

        Returns
        -------
        ndarray
            ``ary``, or the new array.

        Raises
        ------
        TypeError
            ``ary`` has another dtype, shape or strides, or is not an ndarray.
        """
        target = ary
        if ary is None:
            if self._strides is not None and not (self.is_c_contiguous() or self.is_f_contiguous()):
                ary = target = self._strided_host_array()
        elif type(ary) is not np.ndarray or self._strides is not None or not ary.flags.c_contiguous:
            target = self._matching_host_array(ary)
        try:
            found = _copy_to_host(self, target, stream or 0, pinned=pinned)
        except BackendError as error:
            raise translated(error) from error
        except LayoutError:
            if ary is None or target is not ary:
                raise
            target = self._matching_host_array(ary)  # raises the TypeError, or reshapes a single element
            if target is ary:
                raise
            found = _copy_to_host(self, target, stream or 0, pinned=pinned)
        return found if ary is None else ary

    @translating
    def copy_to_device(self, ary: Any, stream: Any = None, context: Any = None) -> None:
        """Copy into this array, from the host or from a device array: same shape and dtype, any strides.

        Does nothing for an empty array. ``stream`` as for `copy_to_host`; ``context`` has to be this array's.

        Raises
        ------
        ValueError
            Another shape or dtype, for which numba.roc would read beyond the source.
        HsaContextMismatchError
            This array is on another device than ``context``.
        AttributeError
            ``ary`` is not an array.
        """
        if ary.size == 0:
            return
        check_same(self, context)
        if ary.shape != self._shape and ary.shape in ONE_ELEMENT_SHAPES and self._shape in ONE_ELEMENT_SHAPES:
            ary = ary.reshape(self._shape)
        super().copy_to_device(ary, stream or 0)

    def reshape(self, *newshape: Any, order: str = "C", copy: bool | None = None) -> Any:
        """A view in another shape; NotImplementedError if that requires a copy.

        ``copy=True`` makes a copy, as in devmem's own method.
        """
        if copy is not None:
            return super().reshape(*newshape, order=order, copy=copy)
        try:
            return super().reshape(*newshape, order=order, copy=False)
        except LayoutError as error:
            if "copy=False" in str(error):
                raise UnsupportedError(
                    f"operation requires copying: {error}; reshape(..., copy=True) copies"
                ) from error
            raise

    def ravel(self, order: str = "C", stream: Any = None) -> Any:
        """A view with one axis; NotImplementedError if that requires a copy."""
        return (self.bind(stream) if stream else self).reshape(self.size, order=order)

    @property
    def alloc_size(self) -> int:
        """Bytes of the array's allocation."""
        return self.allocation.nbytes

    @property
    def dgpu_data(self) -> DeviceMemory | None:
        """The memory; None for an empty array."""
        return DeviceMemory(self.open_device, self.allocation) if self.size else None

    def as_hsa_arg(self) -> DeviceMemory | None:
        """The memory, as an argument of a kernel."""
        return self.dgpu_data

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """The address of the first element."""
        return ctypes.c_void_p(self.ptr)

    @property
    def _context(self) -> Context:
        return Context(self.device)

    def _strided_host_array(self) -> npt.NDArray[Any]:
        """A new host array with the same strides."""
        shape, strides = self._shape, self.strides
        reach = sum((count - 1) * step for count, step in zip(shape, strides, strict=True)) + self.itemsize
        return np.ndarray(shape, self._dtype, np.empty(reach if self.size else 1, np.uint8), 0, strides)

    def _matching_host_array(self, ary: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A host array checked as a target for this array's elements; TypeError if it does not match."""
        if not isinstance(ary, np.ndarray):
            raise TypeError(f"copy_to_host() copies into an ndarray, not a {type(ary).__name__}")
        if ary.dtype != self._dtype:
            raise TypeError(f"incompatible dtype; device {self._dtype}; host {ary.dtype}")
        if ary.shape != self._shape:
            if ary.shape in ONE_ELEMENT_SHAPES and self._shape in ONE_ELEMENT_SHAPES:
                return ary.reshape(self._shape)
            raise TypeError(f"incompatible shape; device {self._shape}; host {ary.shape}")
        # Strides of axes of length one, and of empty arrays, are arbitrary.
        pairs = zip(self._shape, self.strides, ary.strides, strict=True)
        if ary.size and any(count > 1 and mine != its for count, mine, its in pairs):
            raise TypeError(f"incompatible strides; device {self.strides}; host {ary.strides}")
        return ary


class DeviceMemory:
    """The memory of a device array, for another array in it: ``DeviceNDArray(shape, strides, dtype, dgpu_data)``."""

    __slots__ = ("_hsa_memsize_", "allocation", "open_device")

    def __init__(self, open_device: Any, allocation: Allocation) -> None:
        self.open_device = open_device
        self.allocation = allocation
        self._hsa_memsize_ = allocation.nbytes

    @property
    def context(self) -> Context:
        """The context of its device."""
        return Context(self.open_device.device)

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """The address."""
        self.allocation.check()
        return ctypes.c_void_p(self.allocation.ptr)


class HostArray(devmem.MappedNDArray):
    """An ndarray that kernels read and write in place."""

    __hsa_memory__ = True

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        """The device address of the first element."""
        return ctypes.c_void_p(self.ptr)


def as_roc_array(array: Native) -> DeviceNDArray:
    """The array as one of numba.roc's, which are bound to no stream."""
    array = array.bind(0) if array._stream is not None else array
    # The subclass has no fields of its own, and there is no other reference to the object.
    array.__class__ = DeviceNDArray
    found: Any = array
    assert isinstance(found, DeviceNDArray)
    return found


@translating
def from_array_like(ary: Any, dgpu_data: Any = None) -> DeviceNDArray:
    """An uninitialised array of the same shape, dtype and strides; contiguous if the strides are negative or zero."""
    select_default_backend()
    shape, strides = (ary.shape, ary.strides) if ary.ndim else ((1,), (ary.dtype.itemsize,))
    if dgpu_data is not None:
        return DeviceNDArray(shape, strides, ary.dtype, dgpu_data)
    if ary.ndim and ary.flags["C_CONTIGUOUS"]:
        return as_roc_array(devmem.device_array(shape, ary.dtype))
    try:
        return as_roc_array(devmem.device_array(shape, ary.dtype, strides))
    except LayoutError:
        return as_roc_array(devmem.device_array_like(ary))


def is_hsa_ndarray(obj: object) -> bool:
    """Whether an object declares itself an array in device memory."""
    return bool(getattr(obj, "__hsa_ndarray__", False))


def require_hsa_ndarray(obj: object) -> None:
    """Raise ValueError unless an object declares itself an array in device memory."""
    if not is_hsa_ndarray(obj):
        raise LayoutError(f"require an hsa ndarray object, not a {type(obj).__name__}")


def verify_hsa_ndarray_interface(obj: Any) -> None:
    """Raise unless it has what is asked of an array in device memory."""
    require_hsa_ndarray(obj)
    for name, kind in (("shape", tuple), ("strides", tuple), ("dtype", np.dtype), ("size", int)):
        if not isinstance(getattr(obj, name), kind):
            raise AttributeError(f"{name} must be of type {kind}")


def auto_device(obj: Any, context: Any = None, stream: Any = None, copy: bool = True) -> tuple[Any, bool]:
    """The object and False, if it is in device memory; else a new array like it, uploaded with ``copy``, and True."""
    if getattr(obj, "__hsa_memory__", False):
        return obj, False
    made = from_array_like(obj)
    if copy:
        made.copy_to_device(obj, stream=stream, context=context)
    return made, True
