"""Memory of a HIP device, and host memory that it reaches.

The runtime trusts its caller: its free takes any address inside a block, of any kind, and frees all of it, and it aborts on an
address inside a registered range. So every live block and range is remembered here, and all other addresses are refused.
"""

from __future__ import annotations

import ctypes
import warnings
from contextlib import ExitStack
from typing import Any

from ...spi.driver import Driver
from ...spi.errors import DevmemError, DevmemWarning
from ...spi.types import AllocFlags, CopyKind, MemoryKind
from ...toolkit.driver_parts import ADVICE, DriverState, Part
from ...toolkit.memory import MemoryPool
from ...toolkit.ranges import RangeTable
from ...toolkit.vendor_functions import INVALID_VALUE
from .functions import ALREADY_REGISTERED, NOT_REGISTERED
from .providers import Provider

ATTACH_GLOBAL, ATTACH_HOST = 1, 2
PORTABLE, MAPPED, WRITE_COMBINED, COHERENT, NON_COHERENT = 1, 2, 4, 0x4000_0000, 0x8000_0000
#: The device number that stands for the host.
HOST = -1
#: The test of a pool, and hipMemPoolProps.
_ROUNDS, _SIZES = 48, (4 << 10, 192 << 10, 96 << 10)
_POOL_PROPERTIES = ctypes.c_int * 22
#: Host memory that is page-locked, through any device: HIP locks it for the whole process, and for all devices.
page_locked = RangeTable[range]()


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
            # Host memory always is. Together with non-coherent, documents and code disagree on what it means.
            wanted |= MAPPED
        ptr = self._relaxed(self._functions.HostMalloc, nbytes, wanted)
        self.host_blocks.add(ptr)
        page_locked.add(range(ptr, ptr + nbytes))
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
        if not page_locked.add(range(ptr, ptr + nbytes)):  # some runtimes take the same range twice, and leak it
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
        word: Any = self._provider.member("hipMemoryAdvise", 1 + ADVICE.index(advice))
        self._functions.MemAdvise(ptr, nbytes, word, HOST if to_host else self._ordinal)


def pool_is_sound(driver: Driver, memory: Memory, pool: MemoryPool, ordinal: int) -> bool:
    """Make the pool, and find out whether it can be trusted: some runtimes hand out memory that they zero afterwards.

    Fill, read back and free blocks of several sizes. Where a byte is wrong, warn, and destroy the pool.
    """
    found = ""
    try:
        properties = _POOL_PROPERTIES(1, 0, 1, ordinal)  # pinned, no handles to share, on this device
        pool.create(ctypes.addressof(properties))
        stream = driver.stream_create(0, True)
        try:
            found = next(filter(None, (_round(driver, memory, stream, number) for number in range(_ROUNDS))), "")
        finally:
            driver.stream_destroy(stream)
            pool.pool_trim(0)
    except DevmemError as error:
        found = str(error)
    if found:
        pool.destroy()
        warnings.warn(
            f"DEVMEM_ROC_STREAM_ORDERED=1, but the pool of this HIP runtime cannot be used ({found}): plain memory and devmem's "
            f"own pool are used instead",
            DevmemWarning,
            stacklevel=2,
        )
    return not found


def _round(driver: Driver, memory: Memory, stream: int, number: int) -> str:
    """What is wrong, or nothing."""
    wrong = ""
    blocks: list[tuple[int, int]] = []
    with ExitStack() as given_back:
        for nbytes in _SIZES:
            blocks.append((memory.alloc_async(nbytes, stream), nbytes))
            given_back.callback(memory.free_async, *blocks[-1], stream)
        for at, (ptr, nbytes) in enumerate(blocks):
            driver.fill(ptr, (number + 85 * at + 1) % 256, 1, nbytes, stream)
        for at, (ptr, nbytes) in enumerate(blocks):
            back = (ctypes.c_ubyte * nbytes)()
            driver.copy(ctypes.addressof(back), ptr, nbytes, CopyKind.D2H, stream, blocking=True)
            if bytes(back) != bytes([(number + 85 * at + 1) % 256]) * nbytes:
                wrong = f"{nbytes} bytes at {ptr:#x} did not hold what was stored"
    if number % 2:
        driver.stream_synchronize(stream)
    return wrong
