"""devmem: arrays between host and accelerator memory, the same way on NVIDIA and AMD."""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

# The folder of the built-in backends is loaded (it is empty) before the verb of the same name is bound: the first import of
# one of its modules would put the folder in the verb's place.
from . import backends as _folder  # noqa: F401
from . import errors
from ._core.arrays.host_visible import ManagedNDArray, MappedNDArray
from ._core.arrays.ndarray import DeviceNDArray, DeviceRecord
from ._core.arrays.pinned import PinnedNDArray
from ._core.arrays.smart import SmartArray
from ._core.base.config import Setting
from ._core.bulk.async_copy import Transfer
from ._core.device.backends import BackendStatus
from ._core.device.device import Device, current_device
from ._core.interop.ipc import IpcHandle
from ._core.ordering.stream import Event, Stream
from .api.arrays import device_array, device_array_like, full, to_device, zeros
from .api.devices import (
    backends,
    close,
    device,
    devices,
    register_backend,
    reset,
    select_device,
    settings,
    unregister_backend,
    use_backend,
)
from .api.interop import as_device_array, from_dlpack, is_device_array, open_ipc_array
from .api.memory import memory_info, transfer_stats, trim, use_memory
from .api.registration import (
    deregister,
    managed_array,
    managed_array_like,
    mapped,
    mapped_array,
    mapped_array_like,
    pinned,
    pinned_array,
    pinned_array_like,
    register,
)
from .api.streams import (
    default_stream,
    defer_cleanup,
    event,
    event_elapsed_time,
    external_stream,
    legacy_default_stream,
    per_thread_default_stream,
    stream,
    synchronize,
)
from .api.transfers import copy_async, gather, scatter, to_device_many, to_host_many
from .errors import (
    BackendError,
    BackendUnavailable,
    ClosedError,
    ConfigError,
    DeviceLost,
    DevmemError,
    DevmemWarning,
    ForkedError,
    GuardError,
    LayoutError,
    OutOfMemory,
    PluginError,
    SimulatorError,
    TransferGuardError,
    UnsupportedError,
)
from .spi.types import DeviceInfo, MemoryInfo

if _typing.TYPE_CHECKING:
    from . import memory
    from .api.files import load, save
    from .api.kernels import In, InOut, Out, kernel
    from .api.simulation import simulator
    from .kernels.names import (
        CLK_GLOBAL_MEM_FENCE,
        CLK_LOCAL_MEM_FENCE,
        atomic,
        barrier,
        blockDim,
        blockIdx,
        const,
        get_global_id,
        get_global_size,
        get_group_id,
        get_local_id,
        get_local_size,
        get_num_groups,
        get_work_dim,
        grid,
        gridDim,
        gridsize,
        laneid,
        local,
        mem_fence,
        shared,
        syncthreads,
        threadIdx,
        warpsize,
        wavebarrier,
    )

#: pyproject.toml takes the version from here, so that a checkout that was never installed knows it too.
__version__ = "0.2.0"

__all__ = [
    "CLK_GLOBAL_MEM_FENCE",
    "CLK_LOCAL_MEM_FENCE",
    "BackendError",
    "BackendStatus",
    "BackendUnavailable",
    "ClosedError",
    "ConfigError",
    "Device",
    "DeviceInfo",
    "DeviceLost",
    "DeviceNDArray",
    "DeviceRecord",
    "DevmemError",
    "DevmemWarning",
    "Event",
    "ForkedError",
    "GuardError",
    "In",
    "InOut",
    "IpcHandle",
    "LayoutError",
    "ManagedNDArray",
    "MappedNDArray",
    "MemoryInfo",
    "Out",
    "OutOfMemory",
    "PinnedNDArray",
    "PluginError",
    "Setting",
    "SimulatorError",
    "SmartArray",
    "Stream",
    "Transfer",
    "TransferGuardError",
    "UnsupportedError",
    "as_device_array",
    "atomic",
    "backends",
    "barrier",
    "blockDim",
    "blockIdx",
    "close",
    "const",
    "copy_async",
    "current_device",
    "default_stream",
    "defer_cleanup",
    "deregister",
    "device",
    "device_array",
    "device_array_like",
    "devices",
    "errors",
    "event",
    "event_elapsed_time",
    "external_stream",
    "from_dlpack",
    "full",
    "gather",
    "get_global_id",
    "get_global_size",
    "get_group_id",
    "get_local_id",
    "get_local_size",
    "get_num_groups",
    "get_work_dim",
    "grid",
    "gridDim",
    "gridsize",
    "is_device_array",
    "kernel",
    "laneid",
    "legacy_default_stream",
    "load",
    "local",
    "managed_array",
    "managed_array_like",
    "mapped",
    "mapped_array",
    "mapped_array_like",
    "mem_fence",
    "memory",
    "memory_info",
    "open_ipc_array",
    "per_thread_default_stream",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "register",
    "register_backend",
    "reset",
    "save",
    "scatter",
    "select_device",
    "settings",
    "shared",
    "simulator",
    "stream",
    "synchronize",
    "syncthreads",
    "threadIdx",
    "to_device",
    "to_device_many",
    "to_host_many",
    "transfer_stats",
    "trim",
    "unregister_backend",
    "use_backend",
    "use_memory",
    "warpsize",
    "wavebarrier",
    "zeros",
]

#: Names that not every program uses, by the module that has them. It is imported when the first of them is used, as
#: `devmem.memory` is: its pools and adaptors, kernels and files take a third of what all of devmem takes to import.
_LATER = {
    ".api.files": "load save",
    ".api.kernels": "In InOut Out kernel",
    ".api.simulation": "simulator",
    ".kernels.names": (
        "CLK_GLOBAL_MEM_FENCE CLK_LOCAL_MEM_FENCE atomic barrier blockDim blockIdx const get_global_id "
        "get_global_size get_group_id get_local_id get_local_size get_num_groups get_work_dim grid gridDim gridsize "
        "laneid local mem_fence shared syncthreads threadIdx warpsize wavebarrier"
    ),
}
_HOMES = {name: module for module, names in _LATER.items() for name in names.split()}

if not _typing.TYPE_CHECKING:  # which would take it that there is every name, misspelt ones too

    def __getattr__(name: str) -> object:
        if name == "memory":
            return _import_module(".memory", __name__)
        if name in _HOMES:
            found = getattr(_import_module(_HOMES[name], __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
