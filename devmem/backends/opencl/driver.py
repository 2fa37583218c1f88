"""One OpenCL device: what it is, the parts of its driver put together, and their end."""

from __future__ import annotations

import uuid
import warnings
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyopencl as cl

from ...spi.driver import PROTOCOLS
from ...spi.errors import BackendError, DevmemWarning
from ...spi.types import Capability, DeviceInfo, MemoryKind
from ...toolkit.driver_parts import ComposedDriver, lacking
from ...toolkit.replayed_graphs import ReplayedGraphs
from .memory import Memory
from .queues import Queues
from .runtime import CODE, context_of, make_error
from .unified import unified_kinds
from .work import Work

#: Bytes from which a copy of pageable memory goes by page-locked memory, where the device's is another memory than the host's.
STAGED_FROM = 1 << 20
#: What a device can do that has memory of these kinds.
NEEDS = {
    Capability.MAPPED: MemoryKind.MAPPED,
    Capability.MANAGED: MemoryKind.MANAGED,
    Capability.MANAGED_PLACES: MemoryKind.MANAGED,
}


class OpenCLDriver(ComposedDriver):
    """A device in a context of its own. `with_default_streams` gives it its default streams."""

    def __init__(self, device: Any, ordinal: int) -> None:
        self.info = device_info(device, ordinal)
        self._queues = queues = Queues(context_of(device), device)
        self._memory = memory = Memory(device, self.info, queues)
        graphs = ReplayedGraphs(
            self, lambda stream, _: queues.find(stream), lambda call, why: make_error(call, CODE.INVALID_VALUE, why)
        )
        self.compose(memory, queues, Work(memory, queues), graphs)
        absent = {each for each, kind in NEEDS.items() if kind not in self.info.memory_kinds}
        can = {each for each, protocol in PROTOCOLS.items() if not lacking(self, protocol)} - absent
        self.info = replace(self.info, capabilities=frozenset(can))

    def close(self) -> None:
        with suppress(BackendError):  # of a lost device every call fails
            self._queues.end()
        self._memory.drop()
        for error in self._queues.untold():
            why = f"a function that a stream ran failed, and no call waited for it: {type(error).__name__}: {error}"
            warnings.warn(why, DevmemWarning, stacklevel=2)


def is_fine_grained(device: Any) -> bool:
    """Whether host and device reach shared virtual memory at the same time, without maps."""
    return bool(device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_BUFFER)


def device_info(device: Any, ordinal: int) -> DeviceInfo:
    """Ask OpenCL. What the device can do follows from what its driver has."""
    fine = is_fine_grained(device)
    kinds = frozenset(MemoryKind) if fine else unified_kinds(device) | {MemoryKind.DEVICE}
    what = f"{device.platform.name}, {device.name}"
    return DeviceInfo(
        "opencl",
        ordinal,
        name=what,
        uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{what}, {ordinal}")),
        total_bytes=device.global_mem_size,
        alignment=max(64, device.min_data_type_align_size),
        memory_kinds=kinds,
        default_memory="pool",  # clSVMFree may wait, and devmem's pool does not
        staging_threshold=STAGED_FROM if MemoryKind.PINNED in kinds and not device.host_unified_memory else 0,
        facts=MappingProxyType({"platform": device.platform.version, "version": device.version, "fine_grained": fine}),
    )
