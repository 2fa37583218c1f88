"""Serialise device arrays between the processes of a Dask cluster as bytes, not as pickled Python objects.

Dask loads this module by the entry point ``dask.sizeof`` of an installed devmem. The serializers are registered when
``distributed`` is imported, and looked up at the first array. In a checkout that is not installed, call `register` in every
process.

`local_cluster` starts one worker for each device, whose arrays `worker_store` spills. With dask.array, chunks on devices are put
together on the device.

Of distributed's families of serializers, ``cuda`` sends a device array's own memory, which needs a transport for device memory
(UCX); ``dask`` sends a copy on the host. A cluster uses the first suitable family in its ``serializers=``.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, NoReturn

import numpy as np

import devmem as dm

from ..spi.errors import TransferGuardError
from .foreign_resource import import_library

INSTALL = "'devmem-arrays[dask]'"
PURPOSE = "sending arrays by Dask"

#: The module of distributed after whose import both families exist, and that of dask.array that puts chunks together.
_TRIGGER: Final = "distributed.protocol.cuda"
_CHUNKS: Final = "dask.array.dispatch"
#: The name by which Dask looks up lazy registrations: the package of the type.
_PACKAGE: Final = __name__.partition(".")[0]


def register() -> None:
    """Register the serializers of device arrays with distributed. Further calls have no effect.

    Raises
    ------
    BackendUnavailable
        distributed is not installed.
    """
    serialize, cuda = (
        import_library("distributed.protocol.serialize", INSTALL, PURPOSE),
        import_library(_TRIGGER, INSTALL, PURPOSE),
    )
    for table, function in (
        (serialize.dask_serialize, to_host_frames),
        (serialize.dask_deserialize, from_host_frames),
        (cuda.cuda_serialize, to_device_frames),
        (cuda.cuda_deserialize, from_device_frames),
    ):
        table.register_lazy(_PACKAGE, partial(table.register, dm.DeviceNDArray, function))


def register_chunks() -> None:
    """Let dask.array put device chunks together on the device. Further calls have no effect."""
    chunks = import_library(_CHUNKS, INSTALL, PURPOSE)
    chunks.concatenate_lookup.register(dm.DeviceNDArray, concatenated)


def register_sizeof(sizeof: Any) -> None:
    """The entry point that Dask calls: register the size of arrays, and the rest once the modules for it are imported."""
    sizeof.register(dm.DeviceNDArray, _nbytes)
    for trigger, then in ((_TRIGGER, register), (_CHUNKS, register_chunks)):
        if trigger in sys.modules:
            then()
        elif not any(isinstance(each, _ImportHook) and each.trigger == trigger for each in sys.meta_path):
            sys.meta_path.insert(0, _ImportHook(trigger, then))


class _ImportHook(MetaPathFinder):
    """Calls a function once a module has been imported, then removes itself."""

    def __init__(self, trigger: str, then: Callable[[], None]) -> None:
        self.trigger, self.then = trigger, then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module with the other finders, and wrap its loader to call the function afterwards."""
        if name != self.trigger:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoadThenCall(spec.loader, self.then)
        return spec


class _LoadThenCall(Loader):
    """Loads a module with another loader, then calls a function."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Call the other loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Call the other loader, which the module keeps as its loader."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.then()


def _nbytes(array: dm.DeviceNDArray[Any]) -> int:
    """Bytes of an array, which Dask uses for its decisions although they are device memory."""
    return array.nbytes


# -- serialisation -----------------------------------------------------------------------------------------------------

Header = dict[str, Any]


def to_host_frames(
    array: dm.DeviceNDArray[Any], context: dict[str, Any] | None = None
) -> tuple[Header, list[memoryview]]:
    """Family ``dask``: the header of an array, and its bytes, copied to the host once; the transfer guard applies to this copy.

    distributed tries again for ever where this raises while it sends (it gives a ``context`` then). So in place of an array
    that must not leave its device a `RefusedArray` is sent, which raises the guard's error where it is used.

    Raises
    ------
    TransferGuardError
        DEVMEM_TRANSFER_GUARD forbids the copy, and the array is not being sent: it is pickled, or spilled by another store.
    """
    # The array that pickle stores: checked by the guard, complete, and packed in the array's own order of axes.
    try:
        host: np.ndarray[Any, Any] = array.__reduce__()[1][0]  # type: ignore[index]
    except TransferGuardError as error:
        if context is None:
            raise
        return {"refused": str(error)}, []
    header = _header(array)
    packed = host.transpose(header["axes"]).reshape(-1)
    return header, [packed.view(np.uint8).data] if packed.nbytes else []


def from_host_frames(header: Header, frames: Sequence[Any]) -> dm.DeviceNDArray[Any]:
    """An array on the current device, from the result of `to_host_frames`; complete on return."""
    if "refused" in header:
        return RefusedArray(header["refused"])  # type: ignore[return-value]
    shape, axes, dtype = _described(header)
    packed = np.frombuffer(frames[0], dtype) if frames else np.ndarray(math.prod(shape), dtype)
    array: dm.DeviceNDArray[Any] = dm.to_device(_unpacked(packed, shape, axes))
    return array


class RefusedArray:
    """A placeholder for an array that DEVMEM_TRANSFER_GUARD keeps on its device: using it raises TransferGuardError."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __repr__(self) -> str:
        return f"<array that was not sent: {self._message}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what libraries look for in every object
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise TransferGuardError(self._message)

    __array__ = __getitem__ = __setitem__ = __len__ = __iter__ = __float__ = __add__ = __mul__ = __sub__ = _refuse


def to_device_frames(array: dm.DeviceNDArray[Any]) -> tuple[Header, list[dm.DeviceNDArray[np.uint8]]]:
    """Family ``cuda``: the header of an array, and its memory as bytes on the device, ready for use on any stream.

    The array's own memory if that has no gaps, else a copy on the device.

    Raises
    ------
    NotImplementedError
        Other libraries cannot access the device's memory as CUDA's; distributed tries the next family.
    """
    if not array.device.info.exchange.array_interface:
        raise NotImplementedError(f"arrays on {array.device} have no __cuda_array_interface__")
    header = _header(array)
    packed = array.transpose(header["axes"])
    if not packed.is_c_contiguous():
        packed = array.copy().transpose(header["axes"])
    if not packed.nbytes:
        return header, []
    frame = packed.reshape(-1).view(np.uint8)
    # Transports ignore streams.
    wait = frame.__cuda_array_interface__["stream"]
    if wait is not None:
        with array.device:
            dm.external_stream(wait).synchronize()
    return header, [frame]


def from_device_frames(header: Header, frames: Sequence[Any]) -> dm.DeviceNDArray[Any]:
    """The array over received memory; it keeps that memory alive."""
    shape, axes, dtype = _described(header)
    if not frames:
        return dm.to_device(np.ndarray(shape, dtype))  # of this dtype: device_array makes "S1" of "S0"
    array: dm.DeviceNDArray[Any] = _unpacked(dm.as_device_array(frames[0]).view(np.uint8).view(dtype), shape, axes)
    return array


def concatenated(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays one behind the other, on the device of the first; what is on the host comes there too."""
    parts = [each if isinstance(each, dm.DeviceNDArray) else dm.to_device(each) for each in arrays]
    first, axis = parts[0], axis % parts[0].ndim
    length = sum(part.shape[axis] for part in parts)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    with first.device:
        result: dm.DeviceNDArray[Any] = dm.device_array(shape, np.result_type(*[part.dtype for part in parts]))
    start = 0
    for part in parts:
        result[(*(slice(None),) * axis, slice(start, start + part.shape[axis]))] = part
        start += part.shape[axis]
    return result


def _header(array: dm.DeviceNDArray[Any]) -> Header:
    """The shape, the axes from the slowest to the fastest, and the pickled dtype, which may have fields."""
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return {"shape": array.shape, "axes": axes, "dtype": pickle.dumps(array.dtype)}


def _unpacked(packed: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    """A view of packed elements with the original shape and order of axes."""
    inverse = sorted(range(len(axes)), key=axes.__getitem__)
    return packed.reshape([shape[axis] for axis in axes]).transpose(inverse)


def _described(header: Header) -> tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]:
    dtype: np.dtype[Any] = pickle.loads(header["dtype"])
    return tuple(header["shape"]), tuple(header["axes"]), dtype
