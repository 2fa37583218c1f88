"""Memory of a HIP device, and host memory that it reaches.

The runtime trusts its caller: its free takes any address inside a block, of any kind, and frees all of it, and it aborts on an
address inside a registered range. So every live block and range is remembered here, and all other addresses are refused.
"""

from __future__ import annotations

from typing import Any

from ...spi.types import AllocFlags, MemoryKind
from ...toolkit.driver_parts import DriverState, Part
from ...toolkit.handles import AddressRanges
from ...toolkit.memory_pool import MemoryPool
from ...toolkit.status_errors import INVALID_VALUE
from .functions import ALREADY_REGISTERED, NOT_REGISTERED, Provider

ATTACH_GLOBAL, ATTACH_HOST = 1, 2
PORTABLE, MAPPED, WRITE_COMBINED, COHERENT, NON_COHERENT = 1, 2, 4, 0x4000_0000, 0x8000_0000
#: The device number that stands for the host.
HOST = -1
_ADVICE = (
    *("", "set_read_mostly", "unset_read_mostly", "set_preferred_location", "unset_preferred_location"),
    *("set_accessed_by", "unset_accessed_by"),
)
#: Host memory that is page-locked, through any device: HIP locks it for the whole process, and for all devices.
page_locked = AddressRanges()


class Memory(Part):
    """Device memory and page-locked, mapped and managed memory; the sets hold the addresses of live blocks."""

    def __init__(self, state: DriverState, pool: MemoryPool, provider: Provider) -> None:
        super().__init__(state)
        self._pool = pool
        self._provider = provider
        self.blocks: set[int] = set()
        self.managed_blocks: set[int] = set()
        self.host_blocks: set[int] = set()
        self.registered: set[int] = set()

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if not nbytes:
            return 0
        ptr: int
        if kind is MemoryKind.DEVICE:
            ptr = self._functions.Malloc(nbytes)
            self.blocks.add(ptr)
            return ptr
        if kind is MemoryKind.MANAGED:
            attach = ATTACH_HOST if flags & AllocFlags.ATTACH_HOST else ATTACH_GLOBAL
            ptr = self._relaxed(self._functions.MallocManaged, nbytes, attach)
            self.managed_blocks.add(ptr)
            return ptr
        # Always one of the two: without them, coherence depends on the other flags and on the environment.
        wanted = NON_COHERENT if flags & AllocFlags.COARSE else COHERENT
        wanted |= PORTABLE if flags & AllocFlags.PORTABLE else 0
        wanted |= WRITE_COMBINED if flags & AllocFlags.WRITE_COMBINED else 0
        if kind is MemoryKind.MAPPED and not flags & AllocFlags.COARSE:
            wanted |= (
                MAPPED  # host memory always is; together with non-coherent, documents and code disagree on its meaning
            )
        ptr = self._relaxed(self._functions.HostMalloc, nbytes, wanted)
        self.host_blocks.add(ptr)
        page_locked.add(ptr, nbytes)
        return ptr

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if not ptr:
            return
        on_host = kind is MemoryKind.PINNED or kind is MemoryKind.MAPPED
        live = self.host_blocks if on_host else self.managed_blocks if kind is MemoryKind.MANAGED else self.blocks
        if ptr not in live:
            self._errors.refuse("hipFree", INVALID_VALUE, f"{ptr:#x} is no {kind} memory of this device, or was freed")
        live.discard(ptr)
        if on_host:
            page_locked.remove(ptr)
            self._relaxed(self._functions.HostFree, ptr)
        else:
            self._relaxed(self._functions.Free, ptr)

    def alloc_async(self, nbytes: int, stream: int) -> int:
        if not nbytes:
            return 0
        ptr: int = self._functions.MallocFromPoolAsync(nbytes, self._pool.handle, self._streams[stream])
        return ptr

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        if ptr:
            self._functions.FreeAsync(ptr, self._streams[stream])

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; memory that any pool of the process keeps counts as used."""
        free, total = self._functions.MemGetInfo()
        return free, total

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        # Some versions of the runtime take the same range twice, and leak it.
        if not page_locked.add(ptr, nbytes):
            why = f"some of the {nbytes} bytes at {ptr:#x} are page-locked already"
            self._errors.refuse("hipHostRegister", ALREADY_REGISTERED, why)
        try:
            self._functions.HostRegister(ptr, nbytes, PORTABLE | (MAPPED if mapped else 0))
        except BaseException:
            page_locked.remove(ptr)
            raise
        self.registered.add(ptr)

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        if ptr not in self.registered:
            self._errors.refuse("hipHostUnregister", NOT_REGISTERED, f"no range that starts at {ptr:#x} is registered")
        self.registered.discard(ptr)
        try:
            self._functions.HostUnregister(ptr)
        finally:
            page_locked.remove(ptr)

    def device_pointer(self, host: int) -> int:
        return int(self._functions.HostGetDevicePointer(host, 0))  # which may differ from the host's address

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        self._functions.MemPrefetchAsync(ptr, nbytes, HOST if to_host else self._ordinal, self._streams[stream])

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        word: Any = self._provider.member("hipMemoryAdvise", _ADVICE.index(advice))
        self._functions.MemAdvise(ptr, nbytes, word, HOST if to_host else self._ordinal)
