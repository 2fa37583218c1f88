"""The values that pass between the generic machinery and a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

#: Stream handles that mean the same on every backend. Any other handle is one that ``stream_create`` returned, or one
#: that the user vouched for. A driver never receives 0: "no stream named" is settled before it is called.
LEGACY_STREAM: Final = 1
PER_THREAD_STREAM: Final = 2

#: Blocks of a grid, or threads of a block, along x, y and z.
Extent = tuple[int, int, int]


class MemoryKind(StrEnum):
    """Where memory lives and who may touch it."""

    DEVICE = "device"  #: device memory; the host must never touch its address
    PINNED = "pinned"  #: page-locked host memory; copies to and from it can be asynchronous
    MAPPED = "mapped"  #: page-locked host memory that the device reads through an address of its own
    MANAGED = "managed"  #: one address for both sides, migrated or shared by the driver


class AllocFlags(IntFlag):
    """Refinements of an allocation; a backend ignores those that mean nothing to it."""

    NONE = 0
    PORTABLE = 1  #: host memory usable from every device, not just the one that made it
    WRITE_COMBINED = 2  #: host memory fast for the device to read, very slow for the host to read
    FINE = 4  #: host memory coherent with the device while work runs (AMD fine-grained)
    COARSE = 8  #: host memory coherent only at synchronisation (AMD coarse-grained)
    ATTACH_HOST = 16  #: managed memory attached to the host first, not to every stream


class CopyKind(StrEnum):
    """Direction of a copy, from the device's point of view of the two addresses."""

    H2D = "h2d"
    D2H = "d2h"
    D2D = "d2d"


class Capability(StrEnum):
    """What a device can do beyond the contract; each stands for the protocol of `driver` with the same name."""

    STREAM_ORDERED = "stream_ordered"
    STRIDED_COPY = "strided_copy"
    VOLUME_COPY = "volume_copy"
    BATCH_COPY = "batch_copy"
    HOST_REGISTER = "host_register"
    MAPPED = "mapped"
    MANAGED = "managed"
    PEER = "peer"
    IPC = "ipc"
    CAPTURE = "capture"
    LAUNCH = "launch"
    HOST_FUNCTION = "host_function"
    HOLD = "hold"
    POINTER_INFO = "pointer_info"


class MemoryInfo(NamedTuple):
    """What :func:`devmem.memory_info` reports, in bytes."""

    free: int  #: as the driver says
    total: int  #: as the driver says
    live: int  #: handed out by devmem and still referenced
    pending: int  #: dropped by the user, waiting in the queue
    cached: int  #: held by the memory stack for reuse


@dataclass(frozen=True, slots=True)
class Exchange:
    """How other libraries know a device's memory and streams: the numbers that its vendor and DLPack have agreed on.

    ``device_type``, ``host_type`` and ``managed_type`` are DLPack's numbers for memory of the device, for page-locked and for
    managed memory. ``streams`` is what a consumer's small numbers mean, by our handles: CUDA says ``{1: 1, 2: 2}``, HIP
    ``{0: 1}``; numbers greater than 2 are handles. None where other libraries have no streams: they are given memory that is
    ready.
    ``array_interface``: arrays say ``__cuda_array_interface__``.
    """

    device_type: int = 12
    host_type: int = 1
    managed_type: int = 1
    streams: Mapping[int, int] | None = None
    array_interface: bool = False


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is; fixed from the moment it is opened.

    ``uuid`` identifies the physical device across processes and orderings, ``pci_id`` its slot (empty where there is
    none). ``stream_priorities`` is (least, greatest): smaller numbers run first, and (0, 0) means no priorities.
    ``default_memory`` is the memory stack that suits the device, as text (``pool``); empty: devmem chooses.
    ``exchange``: how other libraries know its memory and streams.
    ``strided_pitch_multiple``: strided copies between host and device are worth having for pitches that are multiples of it;
    copies with other pitches are correct but slow.
    ``staging_threshold``: bytes from which a copy of pageable host memory is faster by way of page-locked memory; 0: none is.
    ``facts`` is everything else worth printing, by name; of these `devmem doctor` warns of ``notes`` and tells ``remarks``.
    """

    backend: str
    ordinal: int
    name: str
    uuid: str
    total_bytes: int
    arch: str = ""
    warp_size: int = 1
    pci_id: str = ""
    memory_kinds: frozenset[MemoryKind] = frozenset({MemoryKind.DEVICE})
    capabilities: frozenset[Capability] = frozenset()
    stream_priorities: tuple[int, int] = (0, 0)
    default_memory: str = ""
    strided_pitch_multiple: int = 1
    staging_threshold: int = 0
    exchange: Exchange = Exchange()
    facts: Mapping[str, str | int | float | bool] = field(default_factory=lambda: MappingProxyType({}))
