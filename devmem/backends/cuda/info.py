"""Properties of a CUDA device."""

from __future__ import annotations

import uuid
from types import MappingProxyType
from typing import Any

from cuda.bindings import driver as cu

from ...spi.errors import BackendError
from ...spi.types import Capability, DeviceInfo, Exchange
from ...toolkit.driver_parts import coherence, memory_kinds, text, typed_facts
from ...toolkit.memory import POSIX_FILE
from ...toolkit.numa import own_node
from ...toolkit.vendor_functions import INVALID_VALUE, VendorFunctions

_A = cu.CUdevice_attribute
_FACTS = {
    "copy_engines": _A.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT,
    "integrated": _A.CU_DEVICE_ATTRIBUTE_INTEGRATED,
    "pageable_memory_access": _A.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    "host_page_tables": _A.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    "managed_memory": _A.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
    "concurrent_managed_access": _A.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    "memory_pools": _A.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
    "pool_handles": _A.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
    "decompress_algorithms": _A.CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
    "virtual_memory": _A.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    "virtual_handles": _A.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    "fabric_handles": _A.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    "unified_addressing": _A.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
    "ipc": _A.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
    "host_register": _A.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
    "can_map_host_memory": _A.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
    "host_numa_node": _A.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
}
#: The driver versions that brought cuMemcpyBatchAsync and cuMemcpy3DBatchAsync, and the forms of cuMemPrefetchAsync and
#: cuMemAdvise that are used.
BATCH_COPIES_SINCE, HINTS_SINCE = 12080, 12020
#: That which brought green contexts into cuStreamGetCtx.
STREAM_ORIGIN_SINCE = 12050
#: Bytes from which devmem's staging is faster than the driver's, whose small buffers leave the bus idle most of the time. Devices
#: that read the host's memory in place, or share it, need no staging.
STAGED_FROM = 1 << 20
#: Facts that count something, or are bits; all others are yes or no.
_COUNTS = frozenset({"copy_engines", "pool_handles", "decompress_algorithms", "host_numa_node"})
#: What a fact is where the driver does not tell it, if that is not 0.
_UNKNOWN = {"host_numa_node": -1}
#: DLPack's kDLCUDA, kDLCUDAHost and kDLCUDAManaged. Of streams, 0 could mean either default stream, so it is not allowed.
_EXCHANGE = Exchange(2, 3, 13, MappingProxyType({1: 1, 2: 2}), array_interface=True, cuda_stream=True)


def device_info(functions: VendorFunctions, device: Any, ordinal: int) -> DeviceInfo:
    """Everything about a device that does not change; its context is current."""

    def attribute(number: Any, otherwise: int = 0) -> int:
        try:
            return int(functions.DeviceGetAttribute(number, device))
        except BackendError as error:  # a driver without it
            if error.code != INVALID_VALUE:
                raise
            return otherwise

    told = {name: attribute(number, _UNKNOWN.get(name, 0)) for name, number in _FACTS.items()}
    facts, (node, remark) = typed_facts(told, _COUNTS), own_node(told["host_numa_node"])
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
        max_pitch=attribute(_A.CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        staging_threshold=0 if facts["integrated"] or facts["host_page_tables"] else STAGED_FROM,
        coherence=coherence(facts),
        exchange=_EXCHANGE,
        facts=MappingProxyType(
            {
                "compute_capability": f"{major}.{minor}",
                "driver_version": version,
                **facts,
                "pinned_node": node,
                "remarks": remark,
            }
        ),
    )


def _capabilities(facts: dict[str, int], driver_version: int) -> frozenset[Capability]:
    hints = facts["managed_memory"] and facts["concurrent_managed_access"] and driver_version >= HINTS_SINCE
    conditions = {
        Capability.BATCH_COPY: hasattr(cu, "cuMemcpyBatchAsync") and driver_version >= BATCH_COPIES_SINCE,
        Capability.VOLUME_BATCH: hasattr(cu, "cuMemcpy3DBatchAsync") and driver_version >= BATCH_COPIES_SINCE,
        Capability.STREAM_ORDERED: facts["memory_pools"],
        Capability.POOL_CONTROL: facts["memory_pools"],
        Capability.SHARED_POOL: facts["memory_pools"],
        Capability.DECOMPRESS_POOL: facts["memory_pools"] and facts["decompress_algorithms"],
        Capability.POOL_IPC: facts["memory_pools"] and facts["pool_handles"] & POSIX_FILE,
        Capability.VIRTUAL: facts["virtual_memory"] and facts["virtual_handles"],
        Capability.HOST_REGISTER: facts["host_register"],
        Capability.IPC: facts["ipc"],
        Capability.MAPPED: facts["can_map_host_memory"],
        Capability.MANAGED: hints,
        Capability.MANAGED_PLACES: hints,
        Capability.HOST_FUNCTION: False,
        Capability.FOREIGN_STREAMS: False,
        Capability.STREAM_ORIGIN: hasattr(cu, "cuStreamGetCtx_v2") and driver_version >= STREAM_ORIGIN_SINCE,
    }
    return frozenset(capability for capability in Capability if conditions.get(capability, True))
