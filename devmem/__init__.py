"""devmem: arrays between host and accelerator memory, the same way on NVIDIA and AMD.

=======================  ================================================================================
verb                     what it does
=======================  ================================================================================
``to_device(x)``         copies a host array to the current device; ``asarray(x, dtype)`` converts first
``d.copy_to_host()``     copies a device array to the host
``empty``, ``zeros``     make a device array, as NumPy's do
``d.copy_to_device(x)``  copies into a device array that is there
``from_dlpack(t)``       uses the device memory of another library's array in place
``stream()``             makes a stream, which orders the work that is given it
=======================  ================================================================================

>>> import numpy as np
>>> import devmem as dm
>>> a = np.arange(12.0).reshape(3, 4)
>>> d = dm.to_device(a)                      # on the current device; complete when it returns
>>> corner = d[:2, ::2]                      # a view: nothing is copied
>>> corner[...] = 0                          # a strided fill; the elements in between are not written
>>> stream = dm.stream()
>>> b = d.copy_to_host(stream=stream)        # may return early where b is page-locked
>>> stream.synchronize()
>>> float(b[0, 0]), float(b[2, 3])
(0.0, 11.0)
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

# The folder of the built-in backends is loaded (it is empty) before the verb of the same name is bound: the first import of
# one of its modules would put the folder in the verb's place.
from . import backends as _folder  # noqa: F401
from . import errors
from ._core.arrays.host_visible import MappedNDArray
from ._core.arrays.managed import ManagedNDArray
from ._core.arrays.ndarray import DeviceNDArray, DeviceRecord
from ._core.arrays.pinned import PinnedNDArray
from ._core.base.advice import MODULE as _OTHERS
from ._core.base.advice import advice_on as _advice_on
from ._core.base.config import Setting
from ._core.device.backends import BackendStatus
from ._core.device.device import Device, current_device
from ._core.ordering.event import Event
from ._core.ordering.stream import Stream
from .api.arrays import device_array, device_array_like, pitched_array, to_device
from .api.creation import (
    asarray,
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from .api.devices import (
    backends,
    close,
    device,
    device_count,
    devices,
    is_available,
    register_backend,
    reset,
    select_device,
    settings,
    unregister_backend,
    use_backend,
)
from .api.interop import (
    as_device_array,
    from_dlpack,
    is_device_array,
    open_ipc_array,
    receive_ipc_array,
    send_ipc_array,
)
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
    from . import memory, spill
    from ._core.bulk.async_copy import Transfer
    from ._core.bulk.files import ArrayFile
    from ._core.bulk.prefetch import Prefetcher
    from ._core.bulk.transfer_plan import TransferPlan
    from ._core.interop.ipc import IpcHandle
    from ._core.smart import SmartArray
    from .api.files import load, load_many, save
    from .api.kernels import In, InOut, Out, kernel
    from .api.loading import prefetch
    from .api.managed import discard_managed, prefetch_managed
    from .api.memory_reports import memory_snapshot, memory_summary
    from .api.plans import capture
    from .api.simulation import simulator
    from .api.transfers import copy_async, copy_pitched, gather, scatter, to_device_many, to_host_many
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
    "ArrayFile",
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
    "Prefetcher",
    "Setting",
    "SimulatorError",
    "SmartArray",
    "Stream",
    "Transfer",
    "TransferGuardError",
    "TransferPlan",
    "UnsupportedError",
    "as_device_array",
    "asarray",
    "atomic",
    "backends",
    "barrier",
    "blockDim",
    "blockIdx",
    "capture",
    "close",
    "const",
    "copy_async",
    "copy_pitched",
    "current_device",
    "default_stream",
    "defer_cleanup",
    "deregister",
    "device",
    "device_array",
    "device_array_like",
    "device_count",
    "devices",
    "discard_managed",
    "empty",
    "empty_like",
    "errors",
    "event",
    "event_elapsed_time",
    "external_stream",
    "from_dlpack",
    "full",
    "full_like",
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
    "is_available",
    "is_device_array",
    "kernel",
    "laneid",
    "legacy_default_stream",
    "load",
    "load_many",
    "local",
    "managed_array",
    "managed_array_like",
    "mapped",
    "mapped_array",
    "mapped_array_like",
    "mem_fence",
    "memory",
    "memory_info",
    "memory_snapshot",
    "memory_summary",
    "ones",
    "ones_like",
    "open_ipc_array",
    "per_thread_default_stream",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "pitched_array",
    "prefetch",
    "prefetch_managed",
    "receive_ipc_array",
    "register",
    "register_backend",
    "reset",
    "save",
    "scatter",
    "select_device",
    "send_ipc_array",
    "settings",
    "shared",
    "simulator",
    "spill",
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
    "zeros_like",
]

#: Names that not every program uses, by the module that has them. It is imported when the first of them is used, as
#: `devmem.memory` and `devmem.spill` are: pools, kernels and files take a third of what all of devmem takes to import.
_LATER = {
    "._core.bulk.async_copy": "Transfer",
    "._core.bulk.files": "ArrayFile",
    ".api.files": "load load_many save",
    "._core.bulk.prefetch": "Prefetcher",
    "._core.interop.ipc": "IpcHandle",
    "._core.bulk.transfer_plan": "TransferPlan",
    "._core.smart": "SmartArray",
    ".api.plans": "capture",
    ".api.kernels": "In InOut Out kernel",
    ".api.loading": "prefetch",
    ".api.managed": "discard_managed prefetch_managed",
    ".api.memory_reports": "memory_snapshot memory_summary",
    ".api.simulation": "simulator",
    ".api.transfers": "copy_async copy_pitched gather scatter to_device_many to_host_many",
    ".kernels.names": (
        "CLK_GLOBAL_MEM_FENCE CLK_LOCAL_MEM_FENCE atomic barrier blockDim blockIdx const get_global_id "
        "get_global_size get_group_id get_local_id get_local_size get_num_groups get_work_dim grid gridDim gridsize "
        "laneid local mem_fence shared syncthreads threadIdx warpsize wavebarrier"
    ),
}
_HOMES = {name: module for module, names in _LATER.items() for name in names.split()}

if not _typing.TYPE_CHECKING:  # which would take it that there is every name, misspelt ones too

    def __getattr__(name: str) -> object:
        if name in ("memory", "spill"):
            return _import_module(f".{name}", __name__)
        if name in _HOMES:
            found = getattr(_import_module(_HOMES[name], __name__), name)
        else:
            text = f"module {__name__!r} has no attribute {name!r}{_advice_on(_OTHERS, name)}"
            raise AttributeError(text, name=name, obj=_import_module(__name__))
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
