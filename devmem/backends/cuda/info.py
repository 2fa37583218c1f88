"""What a CUDA device is."""

from __future__ import annotations

import uuid
from types import MappingProxyType
from typing import Any

from ...spi.types import Capability, DeviceInfo, Exchange, MemoryKind
from .library import checked, cu

_A = cu.CUdevice_attribute
_FACTS = {
    "copy_engines": _A.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT,
    "integrated": _A.CU_DEVICE_ATTRIBUTE_INTEGRATED,
    "pageable_memory_access": _A.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    "host_page_tables": _A.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    "managed_memory": _A.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
    "concurrent_managed_access": _A.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    "memory_pools": _A.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
    "unified_addressing": _A.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
    "ipc": _A.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
    "can_map_host_memory": _A.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
}
#: The driver versions that brought cuMemcpyBatchAsync, and the forms of cuMemPrefetchAsync and cuMemAdvise that are used.
BATCH_COPIES_SINCE = 12080
HINTS_SINCE = 12020
#: Bytes from which the driver's own way with pageable memory, small buffer by small buffer, leaves the bus idle most of the time.
#: Where the device reads the host's memory in place, or shares it, there is nothing to win.
STAGED_FROM = 1 << 20
#: Facts that count something; all others are yes or no.
_COUNTS = {"copy_engines"}
#: DLPack's kDLCUDA, kDLCUDAHost and kDLCUDAManaged. Of streams, 0 could mean either default stream, so it is not allowed.
_EXCHANGE = Exchange(2, 3, 13, MappingProxyType({1: 1, 2: 2}), array_interface=True)


def describe(device: Any, ordinal: int) -> DeviceInfo:
    """Everything about a device that does not change; its context is current."""
    facts = {name: _attribute(attribute, device) for name, attribute in _FACTS.items()}
    facts = {name: value if name in _COUNTS else bool(value) for name, value in facts.items()}
    major = _attribute(_A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = _attribute(_A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    least, greatest = checked("cuCtxGetStreamPriorityRange", cu.cuCtxGetStreamPriorityRange())
    version = checked("cuDriverGetVersion", cu.cuDriverGetVersion())
    return DeviceInfo(
        backend="cuda",
        ordinal=ordinal,
        name=_text(checked("cuDeviceGetName", cu.cuDeviceGetName(256, device))),
        uuid=str(uuid.UUID(bytes=bytes(checked("cuDeviceGetUuid", cu.cuDeviceGetUuid(device)).bytes))),
        total_bytes=int(checked("cuDeviceTotalMem", cu.cuDeviceTotalMem(device))),
        arch=f"sm_{major}{minor}",
        warp_size=_attribute(_A.CU_DEVICE_ATTRIBUTE_WARP_SIZE, device),
        pci_id=_text(checked("cuDeviceGetPCIBusId", cu.cuDeviceGetPCIBusId(32, device))),
        memory_kinds=_kinds(facts),
        capabilities=_capabilities(facts, int(version)),
        stream_priorities=(int(least), int(greatest)),
        staging_threshold=0 if facts["integrated"] or facts["host_page_tables"] else STAGED_FROM,
        exchange=_EXCHANGE,
        facts=MappingProxyType({"compute_capability": f"{major}.{minor}", "driver_version": int(version), **facts}),
    )


def _kinds(facts: dict[str, int]) -> frozenset[MemoryKind]:
    kinds = {MemoryKind.DEVICE, MemoryKind.PINNED}
    if facts["can_map_host_memory"]:
        kinds.add(MemoryKind.MAPPED)
    if facts["managed_memory"]:
        kinds.add(MemoryKind.MANAGED)
    return frozenset(kinds)


def _capabilities(facts: dict[str, int], driver_version: int) -> frozenset[Capability]:
    found = {
        Capability.STRIDED_COPY,
        Capability.VOLUME_COPY,
        Capability.HOST_REGISTER,
        Capability.PEER,
        Capability.CAPTURE,
        Capability.IPC,
        Capability.LAUNCH,
        Capability.HOLD,
        Capability.POINTER_INFO,
    }
    if hasattr(cu, "cuMemcpyBatchAsync") and driver_version >= BATCH_COPIES_SINCE:
        found.add(Capability.BATCH_COPY)
    if facts["memory_pools"]:
        found.add(Capability.STREAM_ORDERED)
    if facts["can_map_host_memory"]:
        found.add(Capability.MAPPED)
    if facts["managed_memory"] and facts["concurrent_managed_access"] and driver_version >= HINTS_SINCE:
        found.add(Capability.MANAGED)
    return frozenset(found)


def _attribute(attribute: Any, device: Any) -> int:
    return int(checked("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(attribute, device)))


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode()
