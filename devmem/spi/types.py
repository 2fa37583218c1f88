"""The values that pass between the generic machinery and a backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntFlag, StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from .sizes import exact_size

#: Stream handles that mean the same on every backend. Any other handle is one that ``stream_create`` returned, or one
#: that the user vouched for. A driver never receives 0: "no stream named" is settled before it is called.
LEGACY_STREAM: Final = 1
PER_THREAD_STREAM: Final = 2

#: Blocks of a grid, or threads of a block, along x, y and z.
Extent = tuple[int, int, int]


class MemoryKind(StrEnum):
    """The place of memory, and who may touch it."""

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


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of a backend: what it means, what is allowed, its value where it is not set, and how its text is read.

    ``parse`` raises ValueError or KeyError for text that is not allowed. `devmem.toolkit.settings` makes the usual ones.

    Examples
    --------
    >>> from devmem.spi.types import Option
    >>> Option("number of devices", "a whole number", 1, int).parse("3")
    3
    """

    help: str
    allowed: str
    default: object = ""
    parse: Callable[[str], object] = str.strip


class Capability(StrEnum):
    """An ability of a device beyond the contract; each stands for the protocol of `driver` with the same name.

    ``meaning`` says what it is, in messages and in the documentation's table of which backend has it, or why not.
    """

    meaning: str

    STREAM_ORDERED = "stream_ordered", "memory that is allocated and freed in the order of a stream"
    POOL_CONTROL = "pool_control", "telling and bounding what the driver's own pool keeps"
    SHARED_POOL = "shared_pool", "memory of the pool that is the current one for all libraries of the process"
    DECOMPRESS_POOL = "decompress_pool", "memory that the device's decompression engine reads and writes"
    STRIDED_COPY = "strided_copy", "copies of rows and slices that lie a pitch apart"
    VOLUME_COPY = STRIDED_COPY  # contract 1 told the two apart
    BATCH_COPY = "batch_copy", "one driver call for many copies"
    VOLUME_BATCH = "volume_batch", "one driver call for many copies of rows and slices"
    HOST_REGISTER = "host_register", "page-locking memory that the program allocated"
    MAPPED = "mapped", "host memory with an address for the device"
    MANAGED = "managed", "managed memory whose pages move, and hints for it"
    MANAGED_PLACES = "managed_places", "hints for many ranges of managed memory, and for other devices and NUMA nodes"
    PEER = "peer", "copies between devices that do not pass through the host"
    PEER_ACCESS = "peer_access", "switching on and off that a device reaches another one's memory"
    PEER_EVENTS = "peer_events", "waiting, on a stream, for an event of another device"
    IPC = "ipc", "sharing device memory with other processes"
    POOL_IPC = "pool_ipc", "sharing memory of the driver's own pool with other processes"
    VIRTUAL = "virtual", "mapped physical memory, which other processes map by a handle"
    CAPTURE = "capture", "telling whether a stream is captured for a graph"
    GRAPHS = "graphs", "recorded work that one call enqueues"
    LAUNCH = "launch", "loading and launching compiled kernels"
    HOST_FUNCTION = "host_function", "functions of Python that run in stream order on the device's memory"
    HOLD = "hold", "a latch that stops a stream, for tests"
    POINTER_INFO = "pointer_info", "telling what an address is, whichever library allocated the memory"
    FOREIGN_STREAMS = "foreign_streams", "streams by the vendor's own objects"
    STREAM_ORIGIN = "stream_origin", "telling which device and context a stream of another library is of"

    def __new__(cls, name: str, meaning: str = "") -> Self:  # a look-up by name has no meaning
        made = str.__new__(cls, name)
        made._value_, made.meaning = name, meaning
        return made


class Box(NamedTuple):
    """A strided copy: ``depth`` slices of ``height`` rows of ``width`` bytes.

    On each side rows begin ``pitch`` bytes apart, at least ``width``, and slices ``rows`` pitches apart, at least ``height``.

    Examples
    --------
    >>> from devmem.spi.types import Box
    >>> Box(dst=4096, dst_pitch=512, dst_rows=2, src=8192, src_pitch=100, src_rows=2, width=100, height=2, depth=1).nbytes
    200
    """

    dst: int
    dst_pitch: int
    dst_rows: int
    src: int
    src_pitch: int
    src_rows: int
    width: int
    height: int
    depth: int

    @property
    def nbytes(self) -> int:
        """The bytes that it copies."""
        return self.width * self.height * self.depth


class PlaceKind(StrEnum):
    """The kinds of places that managed memory may be moved to."""

    DEVICE = "device"  #: a device of the backend, by its ordinal
    HOST = "host"  #: the host
    NUMA_NODE = "numa_node"  #: one NUMA node of the host, by the system's number


class Place(NamedTuple):
    """The place for managed memory.

    Examples
    --------
    >>> from devmem.spi.types import Place, PlaceKind
    >>> Place(PlaceKind.NUMA_NODE, 1).number
    1
    """

    kind: PlaceKind
    number: int = 0


class HostMemoryInfo(NamedTuple):
    """Bytes of page-locked memory of the host (pinned and mapped) that devmem allocated for a device."""

    live: int  #: handed out and still referenced
    pending: int  #: dropped by the user, waiting in the queue
    cached: int  #: held by memory stacks for reuse


class MemoryInfo(NamedTuple):
    """The report of :func:`devmem.memory_info`, in bytes.

    Examples
    --------
    >>> info = dm.memory_info()
    >>> info.free <= info.total
    True
    """

    free: int  #: as the driver says
    total: int  #: as the driver says
    live: int  #: of the device's memory, handed out by devmem and still referenced
    pending: int  #: of the device's memory, dropped by the user, waiting in the queue
    cached: int  #: of the device's memory, held by memory stacks for reuse
    host: HostMemoryInfo = HostMemoryInfo(0, 0, 0)  #: the same of page-locked memory, which is the host's

    def _shown(self) -> dict[str, str]:
        of_host = {f"host.{name}": nbytes for name, nbytes in self.host._asdict().items()}
        return {name: exact_size(nbytes) for name, nbytes in {**self._asdict(), **of_host}.items() if name != "host"}

    def __repr__(self) -> str:
        return f"MemoryInfo({', '.join(f'{name}={size}' for name, size in self._shown().items())})"

    def _repr_html_(self) -> str:
        rows = (f"<tr><td>{name}</td><td>{size}</td></tr>" for name, size in self._shown().items())
        return f"<table>{''.join(rows)}</table>"


class _Sent:
    """A dataclass to be pickled and copied with the mappings in it: those that cannot be changed go as dicts."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        values = (getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]
        return type(self), tuple(dict(value) if isinstance(value, Mapping) else value for value in values)


@dataclass(frozen=True, slots=True)
class Exchange(_Sent):
    """The numbers by which other libraries know a device's memory and streams, agreed on by its vendor and DLPack.

    ``device_type``, ``host_type`` and ``managed_type`` are DLPack's numbers for memory of the device, for page-locked and for
    managed memory. ``streams`` is what a consumer's small numbers mean, by our handles: CUDA says ``{1: 1, 2: 2}``, HIP
    ``{0: 1}``; greater numbers are the addresses of streams, which are our handles too. None where other libraries do not name
    streams by numbers: they are given memory that is ready, and a number is no stream unless the driver has ``stream_from``.
    ``array_interface``: arrays say ``__cuda_array_interface__``. ``cuda_stream``: streams say ``__cuda_stream__``. Both are for
    devices whose addresses and handles mean something to libraries of CUDA's.
    """

    device_type: int = 12
    host_type: int = 1
    managed_type: int = 1
    streams: Mapping[int, int] | None = field(default=None, hash=False)
    array_interface: bool = False
    cuda_stream: bool = False


@dataclass(frozen=True, slots=True)
class DeviceInfo(_Sent):
    """The properties of a device; fixed from the moment it is opened.

    ``uuid`` identifies the physical device across processes and orderings, ``pci_id`` its slot (empty where there is
    none). ``alignment``: every address that it allocates is a multiple of it; a power of two, at least 64.
    ``stream_priorities`` is (least, greatest): smaller numbers run first, and (0, 0) means no priorities.
    ``default_memory`` is the memory stack that suits the device, as text (``pool``); empty: devmem chooses.
    ``exchange``: how other libraries know its memory and streams.
    ``strided_pitch_multiple``: strided copies between host and device are worth having for pitches that are multiples of it;
    copies with other pitches are correct but slow. ``max_pitch``: the largest pitch that strided copies take.
    ``staging_threshold``: bytes from which a copy of pageable host memory is faster by way of page-locked memory; 0: none is.
    ``shares_stream_ordered``: ``ipc_export`` takes blocks of ``alloc_async`` too, which most drivers refuse.
    Some have ``pool_export`` instead.
    ``coherence``: by what the device takes any address of the host's memory, page-locked or not, in kernels, copies and fills:
    ``"ATS"``, the host's page tables; ``"HMM"``, its own, which follow those; ``"host"``, it is the host. Empty: it does not.
    ``facts`` is everything else worth printing, by name; of these `devmem doctor` warns of ``notes`` and tells ``remarks``.

    Examples
    --------
    >>> info = dm.current_device().info
    >>> info.backend, info.ordinal, info.alignment
    ('host', 0, 256)
    """

    backend: str
    ordinal: int
    name: str
    uuid: str
    total_bytes: int
    arch: str = ""
    warp_size: int = 1
    alignment: int = 256
    pci_id: str = ""
    memory_kinds: frozenset[MemoryKind] = frozenset({MemoryKind.DEVICE})
    capabilities: frozenset[Capability] = frozenset()
    stream_priorities: tuple[int, int] = (0, 0)
    default_memory: str = ""
    strided_pitch_multiple: int = 1
    max_pitch: int = sys.maxsize
    staging_threshold: int = 0
    shares_stream_ordered: bool = False
    coherence: str = ""
    exchange: Exchange = Exchange()
    facts: Mapping[str, str | int | float | bool] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.shown().items())

    def shown(self) -> dict[str, str]:
        """Return the facts for people, with units, by name; without the numbers that only machinery needs."""
        least, greatest = self.stream_priorities
        facts = {
            "device": f"{self.backend}:{self.ordinal}",
            "name": self.name,
            "memory": exact_size(self.total_bytes),
            "architecture": self.arch,
            "threads of a warp": str(self.warp_size),
            "alignment of addresses": f"{self.alignment} bytes",
            "memory of the host in place": self.coherence,
            "PCI slot": self.pci_id,
            "UUID": self.uuid,
            "kinds of memory": ", ".join(sorted(self.memory_kinds)),
            "capabilities": ", ".join(sorted(self.capabilities)),
            "priorities of streams": f"{greatest} (first) to {least} (last)" if least != greatest else "",
            **{name: str(value) for name, value in self.facts.items()},
        }
        return {name: value for name, value in facts.items() if value}
