"""Device arrays between the processes of a Dask cluster, as bytes and not as pickled Python objects.

Dask loads this module by itself, by the entry point ``dask.sizeof`` of an installed devmem. ``distributed`` is told what
it has to know when it is imported, and looks it up when it meets the first array. From a checkout that is not installed, call
`register` in every process.

Of distributed's families of serializers, ``cuda`` sends a device array's own memory, which takes a transport that knows devices
(UCX); ``dask`` sends a copy on the host. A cluster uses the first that fits among those that it was told (``serializers=``).
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import numpy as np

import devmem as dm

from .foreign_resource import load

INSTALL = "'devmem-arrays[dask]'"
PURPOSE = "sending arrays by Dask"

#: The module of distributed behind whose import both families are there.
_LAST: Final = "distributed.protocol.cuda"
#: The name by which Dask looks up what it has not met yet: the package of the type.
_PACKAGE: Final = __name__.partition(".")[0]


def register() -> None:
    """Tell distributed how device arrays are sent. To call it again changes nothing.

    Raises
    ------
    BackendUnavailable
        distributed is not installed.
    """
    serialize, cuda = load("distributed.protocol.serialize", INSTALL, PURPOSE), load(_LAST, INSTALL, PURPOSE)
    for table, function in (
        (serialize.dask_serialize, to_host_frames),
        (serialize.dask_deserialize, from_host_frames),
        (cuda.cuda_serialize, to_device_frames),
        (cuda.cuda_deserialize, from_device_frames),
    ):
        table.register_lazy(_PACKAGE, partial(table.register, dm.DeviceNDArray, function))


def register_sizeof(sizeof: Any) -> None:
    """What Dask calls when it is imported: tell it how large arrays are, and see to `register` when distributed is imported."""
    sizeof.register(dm.DeviceNDArray, _nbytes)
    if _LAST in sys.modules:
        register()
    elif not any(isinstance(each, _Awaiting) for each in sys.meta_path):
        sys.meta_path.insert(0, _Awaiting())


class _Awaiting(MetaPathFinder):
    """Calls `register` once distributed has been imported, and is gone then."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Let the others find the module; what loads it is told to go on with `register`."""
        if name != _LAST:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, register)
        return spec


class _Then(Loader):
    """Loads a module as another loader does, and then calls something."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other one."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the other one, who is also the one that the module remembers."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.then()


def _nbytes(array: dm.DeviceNDArray[Any]) -> int:
    """Bytes that an array keeps; on its device, but it is what Dask decides by."""
    return array.nbytes


# -- what is sent ------------------------------------------------------------------------------------------------------

Header = dict[str, Any]


def to_host_frames(array: dm.DeviceNDArray[Any]) -> tuple[Header, list[memoryview]]:
    """Family ``dask``: what describes an array, and its bytes, copied to the host once; an implicit copy, which the guard knows.

    Raises
    ------
    TransferGuardError
        DEVMEM_TRANSFER_GUARD forbids it.
    """
    # As pickle has it: behind the guard, complete, and packed in the array's own order of axes.
    host: np.ndarray[Any, Any] = array.__reduce__()[1][0]  # type: ignore[index]
    header = _header(array)
    packed = host.transpose(header["axes"]).reshape(-1)
    return header, [packed.view(np.uint8).data] if packed.nbytes else []


def from_host_frames(header: Header, frames: Sequence[Any]) -> dm.DeviceNDArray[Any]:
    """An array on the current device, of what `to_host_frames` made; complete."""
    shape, axes, dtype = _described(header)
    packed = np.frombuffer(frames[0], dtype) if frames else np.empty(0, dtype)
    array: dm.DeviceNDArray[Any] = dm.to_device(_unpacked(packed, shape, axes))
    return array


def to_device_frames(array: dm.DeviceNDArray[Any]) -> tuple[Header, list[dm.DeviceNDArray[np.uint8]]]:
    """Family ``cuda``: what describes an array, and its memory as bytes on the device, ready for any stream.

    The array's own memory, where that has no gaps, else a copy on the device.

    Raises
    ------
    NotImplementedError
        The device's memory is nothing that others can reach as CUDA's; distributed goes on to the next family.
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
    # Transports look at no stream.
    wait = frame.__cuda_array_interface__["stream"]
    if wait is not None:
        with array.device:
            dm.external_stream(wait).synchronize()
    return header, [frame]


def from_device_frames(header: Header, frames: Sequence[Any]) -> dm.DeviceNDArray[Any]:
    """The array in memory that has arrived, in place; it keeps that memory alive."""
    shape, axes, dtype = _described(header)
    if not frames:
        return dm.device_array(shape, dtype)
    array: dm.DeviceNDArray[Any] = _unpacked(dm.as_device_array(frames[0]).view(np.uint8).view(dtype), shape, axes)
    return array


def _header(array: dm.DeviceNDArray[Any]) -> Header:
    """Shape, the axes from the slowest to the fastest, and the dtype, which is more than a text where it has fields."""
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return {"shape": array.shape, "axes": axes, "dtype": pickle.dumps(array.dtype)}


def _unpacked(packed: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    """An array of elements in a row, as what it was: a view."""
    inverse = sorted(range(len(axes)), key=axes.__getitem__)
    return packed.reshape([shape[axis] for axis in axes]).transpose(inverse)


def _described(header: Header) -> tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]:
    dtype: np.dtype[Any] = pickle.loads(header["dtype"])
    return tuple(header["shape"]), tuple(header["axes"]), dtype
