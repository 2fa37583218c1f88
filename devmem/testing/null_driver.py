"""A driver that does nothing: what stands between a program and a device, without the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from ..spi import SPI_VERSION
from ..spi.driver import Driver
from ..spi.types import AllocFlags, Capability, CopyKind, DeviceInfo, MemoryKind


class NullDriver:
    """Give addresses that were not given before, and do nothing: all work is complete at once, and no byte moves.

    It measures what devmem itself costs, and is a base for drivers that watch what they are asked for. The memory at its
    addresses must not be touched. `exit` has nothing to do, as with a GPU whose context stays current.
    """

    def __init__(
        self, name: str, ordinal: int, capabilities: Iterable[Capability] = (Capability.STREAM_ORDERED,)
    ) -> None:
        self.info = DeviceInfo(
            backend=name,
            ordinal=ordinal,
            name="nothing",
            uuid="0",
            total_bytes=1 << 50,
            capabilities=frozenset(capabilities),
        )
        self._next: Callable[[], int] = itertools.count(1 << 20, 1 << 12).__next__

    def enter(self) -> object:
        return None

    def exit(self, token: object) -> None:
        pass

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        return self._next()

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        pass

    def alloc_async(self, nbytes: int, stream: int) -> int:
        return self._next()

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        pass

    def pool_cached(self) -> int:
        return 0

    def pool_trim(self, keep_bytes: int) -> None:
        pass

    def pool_threshold(self, nbytes: int) -> None:
        pass

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        return False

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        pass

    def memory_info(self) -> tuple[int, int]:
        return self.info.total_bytes, self.info.total_bytes

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        return self._next()

    def stream_destroy(self, stream: int) -> None:
        pass

    def stream_synchronize(self, stream: int) -> None:
        pass

    def stream_query(self, stream: int) -> bool:
        return True

    def stream_wait(self, stream: int, event: int) -> None:
        pass

    def event_create(self, timing: bool) -> int:
        return self._next()

    def event_destroy(self, event: int) -> None:
        pass

    def event_record(self, event: int, stream: int) -> None:
        pass

    def event_query(self, event: int) -> bool:
        return True

    def event_synchronize(self, event: int) -> None:
        pass

    def event_elapsed(self, start: int, end: int) -> float:
        return 0.0

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass


class NullBackend:
    """A backend with one device, whose driver does nothing unless another is given."""

    spi_version = SPI_VERSION

    def __init__(self, name: str = "null", driver: Callable[[str, int], Driver] = NullDriver) -> None:
        self.name = name
        self.driver = driver

    def unavailable(self) -> str | None:
        return None

    def device_count(self) -> int:
        return 1

    def open(self, ordinal: int) -> Driver:
        return self.driver(self.name, ordinal)
