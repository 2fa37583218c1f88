"""Properties of a HIP device."""

from __future__ import annotations

import dataclasses
import os
import sys
import uuid
from types import MappingProxyType
from typing import Any

from ...spi.errors import BackendError
from ...spi.types import Capability, DeviceInfo, Exchange
from ...toolkit.driver_parts import coherence, memory_kinds, text, typed_facts
from ...toolkit.numa import own_node
from ...toolkit.vendor_functions import INVALID_VALUE, VendorFunctions
from .binding import UPGRADE
from .calls import Runtime
from .functions import TEXT_BYTES, VIRTUAL
from .runtime import hidden_devices, versioned_only

#: Device attributes, by their numbers: those that count something; all others are yes or no.
_COUNTS = {
    "copy_engines": 2,
    "max_block_dim_x": 26,
    "max_block_dim_y": 27,
    "max_block_dim_z": 28,
    "max_grid_dim_x": 29,
    "max_grid_dim_y": 30,
    "max_grid_dim_z": 31,
    "max_threads_per_block": 56,
    "max_threads_per_multiprocessor": 57,
    "multiprocessor_count": 63,
    "max_registers_per_block": 71,
    "max_shared_memory_per_block": 74,
    "total_constant_memory": 83,
    "host_numa_node": 92,
}
_FACTS = _COUNTS | {
    "can_map_host_memory": 3,
    "concurrent_managed_access": 9,
    "integrated": 16,
    "managed_memory": 24,
    "pageable_memory_access": 65,
    "host_page_tables": 66,
    "memory_pools": 88,
    "virtual_memory": 89,
    "fabric_handles": 95,
    "large_bar": 10011,
    "stream_wait_value": 10013,
}
#: What a fact is where the runtime does not tell it, if that is not 0.
_UNKNOWN = {"host_numa_node": -1}
_MAX_PITCH, _WARP_SIZE = 58, 87
#: Where the name of the instruction set is among a device's properties.
_ARCH_AT = slice(1160, 1416)
#: Copies of rows whose pitch is no multiple of this are done by a slow path of the runtime.
PITCH_MULTIPLE = 4
#: Bytes from which devmem's staging buffers, which stay page-locked, are faster than the runtime, which locks pageable memory for
#: each copy. Devices that share the host's memory need no staging.
STAGED_FROM = 1 << 20
#: DLPack's kDLROCM and kDLROCMHost; managed memory has no number of its own. Of streams, 1 and 2 mean nothing here.
EXCHANGE = Exchange(10, 11, 10, MappingProxyType({0: 1}))

#: The functions that a capability needs. What the runtime's pool is worth is found out later.
_NEEDS: dict[Capability, tuple[str, ...]] = {
    Capability.STRIDED_COPY: ("hipMemcpy3DAsync",),
    Capability.HOST_REGISTER: (),
    Capability.MAPPED: (),
    Capability.BATCH_COPY: ("hipMemcpyBatchAsync",),
    Capability.PEER: ("hipMemcpyPeerAsync", "hipDeviceCanAccessPeer"),
    Capability.PEER_ACCESS: ("hipDeviceCanAccessPeer", "hipDeviceEnablePeerAccess", "hipDeviceDisablePeerAccess"),
    Capability.PEER_EVENTS: ("hipStreamWaitEvent",),
    Capability.IPC: ("hipIpcGetMemHandle", "hipIpcOpenMemHandle", "hipIpcCloseMemHandle"),
    Capability.VIRTUAL: tuple(VIRTUAL),
    Capability.CAPTURE: ("hipStreamIsCapturing",),
    Capability.GRAPHS: (
        "hipStreamBeginCapture",
        "hipStreamEndCapture",
        "hipGraphInstantiateWithFlags",
        "hipGraphLaunch",
        "hipGraphExecDestroy",
        "hipGraphDestroy",
    ),
    Capability.LAUNCH: ("hipModuleLoadData", "hipModuleUnload", "hipModuleGetFunction", "hipModuleLaunchKernel"),
    Capability.POINTER_INFO: ("hipPointerGetAttributes", "hipMemGetAddressRange"),
    Capability.HOLD: ("hipStreamWaitValue32",),
    Capability.MANAGED: ("hipMallocManaged", "hipMemPrefetchAsync", "hipMemAdvise"),
    Capability.MANAGED_PLACES: ("hipMallocManaged", "hipMemPrefetchAsync", "hipMemAdvise"),
}


def device_info(found: Runtime, functions: VendorFunctions, ordinal: int, array_interface: bool = False) -> DeviceInfo:
    """Everything about a device that does not change; it is current."""

    def attribute(number: int, otherwise: int = 0) -> int:
        try:
            return int(functions.DeviceGetAttribute(number, ordinal))
        except BackendError as error:  # a runtime without it
            if error.code != INVALID_VALUE:
                raise
            return otherwise

    told = {name: attribute(number, _UNKNOWN.get(name, 0)) for name, number in _FACTS.items()}
    facts = typed_facts(told, frozenset(_COUNTS))
    arch, _, features = _arch(found, functions, ordinal).partition(":")
    least, greatest = functions.DeviceGetStreamPriorityRange()
    pci_id = text(functions.DeviceGetPCIBusId(TEXT_BYTES, ordinal))
    return DeviceInfo(
        backend="roc",
        ordinal=ordinal,
        name=text(functions.DeviceGetName(TEXT_BYTES, ordinal)) or arch,
        uuid=_uuid(found, functions, ordinal, pci_id),
        total_bytes=int(functions.DeviceTotalMem(ordinal)),
        arch=arch,
        warp_size=attribute(_WARP_SIZE) or 64,
        pci_id=pci_id,
        memory_kinds=memory_kinds(facts, managed=found.has("hipMallocManaged")),
        capabilities=_capabilities(found, facts),
        stream_priorities=(max(least, greatest), min(least, greatest)),
        facts=MappingProxyType(
            {**facts, **_circumstances(found, int(functions.RuntimeGetVersion()), features, told["host_numa_node"])}
        ),
        default_memory="pool",
        strided_pitch_multiple=PITCH_MULTIPLE,
        max_pitch=attribute(_MAX_PITCH) or sys.maxsize,
        staging_threshold=0 if facts["integrated"] else STAGED_FROM,
        coherence=coherence(facts),
        exchange=dataclasses.replace(EXCHANGE, array_interface=array_interface),
    )


def _circumstances(found: Runtime, hip_version: int, features: str, node: int) -> dict[str, str | int | bool]:
    """Return the facts that help to explain why copies are slow, or which library is used."""
    # The runtime itself takes page-locked memory from the host's nearest node, unless it is told to follow the thread's policy.
    pinned_node, placed = own_node(node)
    sdma = os.environ.get("HSA_ENABLE_SDMA", "1") != "0"
    library = found.library
    notes = [hidden_devices(), found.passed_over]
    provider = found.version
    remarks = [f"HIP is called in {library.path} ({library.how}), through {provider}", versioned_only(library), placed]
    if found.holds_gil:
        notes.append(f"{provider} holds the GIL, so calls that can wait are made through ctypes: {UPGRADE}")
    if not sdma:
        notes.append("HSA_ENABLE_SDMA=0: copies compete with kernels; unset it, unless it is there to cure a fault")
    return {
        "xnack": "xnack+" in features,
        "features": features,
        "hip_version": hip_version,
        "library": library.path,
        "found_by": library.how,
        "provider": provider,
        "provider_passed_over": found.passed_over,
        "holds_gil": found.holds_gil,
        "sdma": sdma,
        "pinned_node": pinned_node,
        "notes": "; ".join(filter(None, notes)),
        "remarks": "; ".join(filter(None, remarks)),
    }


def _capabilities(found: Runtime, facts: dict[str, int]) -> frozenset[Capability]:
    conditions = {
        Capability.HOLD: facts["stream_wait_value"],
        Capability.MANAGED: facts["managed_memory"] and facts["concurrent_managed_access"],
        Capability.MAPPED: facts["can_map_host_memory"],
        Capability.VIRTUAL: facts["virtual_memory"],
    }
    has = found.has
    return frozenset(each for each, needs in _NEEDS.items() if all(map(has, needs)) and conditions.get(each, True))


def _arch(found: Runtime, functions: VendorFunctions, ordinal: int) -> str:
    """Such as gfx90a:sramecc+:xnack-; empty where the runtime is too old to have the properties in the form that is known."""
    if not found.has("hipGetDevicePropertiesR0600"):
        return ""
    return text(functions.GetDevicePropertiesR0600(ordinal)[_ARCH_AT])


def _uuid(found: Runtime, functions: VendorFunctions, ordinal: int, pci_id: str) -> str:
    """Return the name that ROCR_VISIBLE_DEVICES takes for a device; its slot if it has no number of its own."""
    raw: Any = functions.DeviceGetUuid(ordinal) if found.has("hipDeviceGetUuid") else bytes(16)
    if raw.startswith((b"XX", b"\0\0")):
        return f"PCI-{pci_id}"
    return f"GPU-{raw.decode()}" if raw.isalnum() else str(uuid.UUID(bytes=raw))
