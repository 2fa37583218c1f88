"""devmem: arrays between host and accelerator memory, the same way on NVIDIA and AMD."""

from __future__ import annotations

# The folder of the built-in backends is loaded (it is empty) before the verb of the same name is bound: the first import of
# one of its modules would put the folder in the verb's place.
from . import backends as _folder  # noqa: F401
from . import errors, memory
from ._core.array import DeviceNDArray
from ._core.backends import BackendStatus
from ._core.config import Setting
from ._core.device import Device, current_device
from ._core.handle import Transfer
from ._core.hostarray import ManagedNDArray, MappedNDArray, PinnedNDArray
from ._core.ipc import IpcHandle
from ._core.record import DeviceRecord
from ._core.stream import Event, Stream
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
from .api.transfers import copy_async, to_device_many, to_host_many
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
    TransferGuardError,
    UnsupportedError,
)
from .spi.types import DeviceInfo, MemoryInfo

__all__ = [
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
    "IpcHandle",
    "LayoutError",
    "ManagedNDArray",
    "MappedNDArray",
    "MemoryInfo",
    "OutOfMemory",
    "PinnedNDArray",
    "PluginError",
    "Setting",
    "Stream",
    "Transfer",
    "TransferGuardError",
    "UnsupportedError",
    "as_device_array",
    "backends",
    "close",
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
    "is_device_array",
    "legacy_default_stream",
    "managed_array",
    "managed_array_like",
    "mapped",
    "mapped_array",
    "mapped_array_like",
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
    "select_device",
    "settings",
    "stream",
    "synchronize",
    "to_device",
    "to_device_many",
    "to_host_many",
    "transfer_stats",
    "trim",
    "unregister_backend",
    "use_backend",
    "use_memory",
    "zeros",
]


def __getattr__(name: str) -> str:
    # The version is looked up when somebody asks: reading a distribution's metadata takes longer than the rest of the import.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("devmem")
        except PackageNotFoundError:
            return "0+unknown"  # a checkout that was never installed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
