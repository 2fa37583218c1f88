"""What a HIP device is."""

from __future__ import annotations

import os
import uuid
from types import MappingProxyType
from typing import Any

from ...spi.errors import BackendError
from ...spi.types import Capability, DeviceInfo, Exchange, MemoryKind
from .functions import INVALID_VALUE
from .runtime import UPGRADE, Calls, Runtime, hiding

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
}
_FACTS = _COUNTS | {
    "can_map_host_memory": 3,
    "concurrent_managed_access": 9,
    "integrated": 16,
    "managed_memory": 24,
    "pageable_memory_access": 65,
    "memory_pools": 88,
    "large_bar": 10011,
    "stream_wait_value": 10013,
}
_WARP_SIZE = 87
#: Where the name of the instruction set is among a device's properties.
_ARCH_AT = slice(1160, 1416)
#: Copies of rows whose pitch is no multiple of this are done by a slow path of the runtime.
PITCH_MULTIPLE = 4
#: Bytes from which the runtime's own way with pageable memory, which locks it for each copy, costs more than slots that stay
#: locked. Where device and host share memory, there is nothing to win.
STAGED_FROM = 1 << 20
#: DLPack's kDLROCM and kDLROCMHost; managed memory has no number of its own. Of streams, 1 and 2 mean nothing here.
EXCHANGE = Exchange(10, 11, 10, MappingProxyType({0: 1}))

_NEEDS = {
    Capability.VOLUME_COPY: ("hipMemcpy3DAsync",),
    Capability.BATCH_COPY: ("hipMemcpyBatchAsync",),
    Capability.PEER: ("hipMemcpyPeerAsync", "hipDeviceCanAccessPeer"),
    Capability.IPC: ("hipIpcGetMemHandle", "hipIpcOpenMemHandle", "hipIpcCloseMemHandle"),
    Capability.CAPTURE: ("hipStreamIsCapturing",),
    Capability.LAUNCH: ("hipModuleLoadData", "hipModuleUnload", "hipModuleGetFunction", "hipModuleLaunchKernel"),
    Capability.POINTER_INFO: ("hipPointerGetAttributes", "hipMemGetAddressRange"),
    Capability.HOLD: ("hipStreamWaitValue32",),
    Capability.MANAGED: ("hipMallocManaged", "hipMemPrefetchAsync", "hipMemAdvise"),
}


def describe(found: Runtime, hip: Calls, ordinal: int) -> DeviceInfo:
    """Everything about a device that does not change; it is current."""
    facts: dict[str, int] = {name: _attribute(found, hip, number, ordinal) for name, number in _FACTS.items()}
    facts = {name: value if name in _COUNTS else bool(value) for name, value in facts.items()}
    arch, _, features = _arch(found, hip, ordinal).partition(":")
    least, greatest = hip.hipDeviceGetStreamPriorityRange()
    pci_id = str(hip.hipDeviceGetPCIBusId(ordinal))
    return DeviceInfo(
        backend="roc",
        ordinal=ordinal,
        name=str(hip.hipDeviceGetName(ordinal)) or arch,
        uuid=_uuid(found, hip, ordinal, pci_id),
        total_bytes=int(hip.hipDeviceTotalMem(ordinal)),
        arch=arch,
        warp_size=_attribute(found, hip, _WARP_SIZE, ordinal) or 64,
        pci_id=pci_id,
        memory_kinds=_kinds(found, facts),
        capabilities=_capabilities(found, facts),
        stream_priorities=(max(least, greatest), min(least, greatest)),
        facts=MappingProxyType({**facts, **_circumstances(found, hip, features)}),
        default_memory="pool",
        strided_pitch_multiple=PITCH_MULTIPLE,
        staging_threshold=0 if facts["integrated"] else STAGED_FROM,
        exchange=EXCHANGE,
    )


def _circumstances(found: Runtime, hip: Calls, features: str) -> dict[str, str | int | bool]:
    """What is worth knowing when something is slow or strange."""
    sdma = os.environ.get("HSA_ENABLE_SDMA", "1") != "0"
    library = found.library
    notes = [hiding(), found.passed_over]
    remarks = [
        f"HIP is called in {library.path} ({library.how}), through {found.provider.version}",
        library.versioned_only,
    ]
    if found.provider.holds_gil:
        notes.append(
            f"{found.provider.version} holds the GIL, so calls that can wait are made through ctypes: {UPGRADE}"
        )
    if not sdma:
        notes.append("HSA_ENABLE_SDMA=0: copies compete with kernels; unset it, unless it is there to cure a fault")
    return {
        "xnack": "xnack+" in features,
        "features": features,
        "hip_version": int(hip.hipRuntimeGetVersion()),
        "library": library.path,
        "found_by": library.how,
        "provider": found.provider.version,
        "provider_passed_over": found.passed_over,
        "holds_gil": found.provider.holds_gil,
        "sdma": sdma,
        "notes": "; ".join(filter(None, notes)),
        "remarks": "; ".join(filter(None, remarks)),
    }


def _kinds(found: Runtime, facts: dict[str, int]) -> frozenset[MemoryKind]:
    kinds = {MemoryKind.DEVICE, MemoryKind.PINNED}
    if facts["can_map_host_memory"]:
        kinds.add(MemoryKind.MAPPED)
    if facts["managed_memory"] and found.provider.has("hipMallocManaged"):
        kinds.add(MemoryKind.MANAGED)
    return frozenset(kinds)


def _capabilities(found: Runtime, facts: dict[str, int]) -> frozenset[Capability]:
    capable = {each for each, names in _NEEDS.items() if all(map(found.provider.has, names))}
    if not facts["stream_wait_value"]:
        capable.discard(Capability.HOLD)
    if not (facts["managed_memory"] and facts["concurrent_managed_access"]):
        capable.discard(Capability.MANAGED)
    if facts["can_map_host_memory"]:
        capable.add(Capability.MAPPED)
    return frozenset(capable | {Capability.STRIDED_COPY, Capability.HOST_REGISTER})


def _attribute(found: Runtime, hip: Calls, number: int, ordinal: int) -> int:
    try:
        return int(hip.hipDeviceGetAttribute(found.provider.member("hipDeviceAttribute_t", number), ordinal))
    except ValueError:  # a binding without that number
        return 0
    except BackendError as error:  # a runtime without it
        if error.code != INVALID_VALUE:
            raise
        return 0


def _arch(found: Runtime, hip: Calls, ordinal: int) -> str:
    """Such as gfx90a:sramecc+:xnack-; empty where the runtime is too old to have the properties in the form that is known."""
    if not found.provider.has("hipGetDevicePropertiesR0600"):
        return ""
    raw: bytes = hip.hipGetDevicePropertiesR0600(ordinal)[_ARCH_AT]
    return raw.partition(b"\0")[0].decode(errors="replace")


def _uuid(found: Runtime, hip: Calls, ordinal: int, pci_id: str) -> str:
    """As ROCR_VISIBLE_DEVICES takes it; a device without a number of its own is known by its slot."""
    raw: Any = hip.hipDeviceGetUuid(ordinal) if found.provider.has("hipDeviceGetUuid") else bytes(16)
    if raw.startswith((b"XX", b"\0\0")):
        return f"PCI-{pci_id}"
    return f"GPU-{raw.decode()}" if raw.isalnum() else str(uuid.UUID(bytes=raw))
