"""What a CUDA device is."""

from __future__ import annotations

import uuid
from types import MappingProxyType
from typing import Any

from cuda.bindings import driver as cu

from ...spi.types import Capability, DeviceInfo, Exchange
from ...toolkit.driver_parts import memory_kinds, text, typed_facts
from ...toolkit.vendor_functions import VendorFunctions

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
BATCH_COPIES_SINCE, HINTS_SINCE = 12080, 12020
#: Bytes from which devmem's staging is faster than the driver's, whose small buffers leave the bus idle most of the time. Devices
#: that read the host's memory in place, or share it, need no staging.
STAGED_FROM = 1 << 20
#: Facts that count something; all others are yes or no.
_COUNTS = frozenset({"copy_engines"})
#: DLPack's kDLCUDA, kDLCUDAHost and kDLCUDAManaged. Of streams, 0 could mean either default stream, so it is not allowed.
_EXCHANGE = Exchange(2, 3, 13, MappingProxyType({1: 1, 2: 2}), array_interface=True)


def device_info(functions: VendorFunctions, device: Any, ordinal: int) -> DeviceInfo:
    """Everything about a device that does not change; its context is current."""

    def attribute(number: Any) -> int:
        return int(functions.DeviceGetAttribute(number, device))

    facts = typed_facts({name: attribute(number) for name, number in _FACTS.items()}, _COUNTS)
    major = attribute(_A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    minor = attribute(_A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    least, greatest = functions.CtxGetStreamPriorityRange()
    version = int(functions.DriverGetVersion())
    return DeviceInfo(
        backend="cuda",
        ordinal=ordinal,
        name=text(functions.DeviceGetName(256, device)),
        uuid=str(uuid.UUID(bytes=bytes(functions.DeviceGetUuid(device).bytes))),
        total_bytes=int(functions.DeviceTotalMem(device)),
        arch=f"sm_{major}{minor}",
        warp_size=attribute(_A.CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        pci_id=text(functions.DeviceGetPCIBusId(32, device)),
        memory_kinds=memory_kinds(facts),
        capabilities=_capabilities(facts, version),
        stream_priorities=(int(least), int(greatest)),
        staging_threshold=0 if facts["integrated"] or facts["host_page_tables"] else STAGED_FROM,
        exchange=_EXCHANGE,
        facts=MappingProxyType({"compute_capability": f"{major}.{minor}", "driver_version": version, **facts}),
    )


def _capabilities(facts: dict[str, int], driver_version: int) -> frozenset[Capability]:
    conditions = {
        Capability.BATCH_COPY: hasattr(cu, "cuMemcpyBatchAsync") and driver_version >= BATCH_COPIES_SINCE,
        Capability.STREAM_ORDERED: facts["memory_pools"],
        Capability.MAPPED: facts["can_map_host_memory"],
        Capability.MANAGED: facts["managed_memory"]
        and facts["concurrent_managed_access"]
        and driver_version >= HINTS_SINCE,
        Capability.HOST_FUNCTION: False,
    }
    return frozenset(capability for capability in Capability if conditions.get(capability, True))
