"""A driver that is put together from parts, each with some methods of the contract.

A backend writes a part for each concern (memory, copies, code) and takes the others from the toolkit (`devmem.toolkit.streams`,
`devmem.toolkit.memory_pool`). `ComposedDriver` makes the parts' bound methods attributes of the driver. So the flat contract that
the core calls costs no frame more than the part's own method, and ``driver.alloc`` is a memory resource as it stands.
"""

from __future__ import annotations

from typing import Protocol

from ..spi.driver import PROTOCOLS
from ..spi.types import AllocFlags, CopyKind, DeviceInfo, MemoryKind
from .driver_state import DriverState
from .streams import Events, Streams

#: The methods of all optional protocols.
OPTIONAL = [name for protocol in PROTOCOLS.values() for name in vars(protocol) if not name.startswith("_")]


class CurrentDevice(Protocol):
    """The part that makes the device current, and waits for all of it."""

    def enter(self) -> object: ...

    def exit(self, token: object) -> None: ...

    def synchronize(self) -> None: ...


class PlainMemory(Protocol):
    """The part with the memory that is not stream-ordered."""

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int: ...

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None: ...

    def memory_info(self) -> tuple[int, int]: ...


class Copies(Protocol):
    """The part that copies and fills."""

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool: ...

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None: ...


class ComposedDriver:
    """Every method of the contract but ``close``, which is the subclass's.

    Methods of the optional protocols are taken from all parts; ``others`` are parts with such methods only.
    """

    def __init__(
        self,
        state: DriverState,
        info: DeviceInfo,
        current: CurrentDevice,
        memory: PlainMemory,
        copies: Copies,
        streams: Streams,
        events: Events,
        *others: object,
    ) -> None:
        self.state = state
        self.info = info
        self.enter, self.exit, self.synchronize = current.enter, current.exit, current.synchronize
        self.alloc, self.free, self.memory_info = memory.alloc, memory.free, memory.memory_info
        self.copy, self.fill = copies.copy, copies.fill
        self.stream_create, self.stream_destroy = streams.stream_create, streams.stream_destroy
        self.stream_synchronize, self.stream_query = streams.stream_synchronize, streams.stream_query
        self.stream_wait = streams.stream_wait
        self.event_create, self.event_destroy = events.event_create, events.event_destroy
        self.event_record, self.event_query = events.event_record, events.event_query
        self.event_synchronize, self.event_elapsed = events.event_synchronize, events.event_elapsed
        for part in (current, memory, copies, streams, events, *others):
            for name in OPTIONAL:
                if hasattr(part, name):
                    setattr(self, name, getattr(part, name))
