"""Memory of a HIP device, and host memory that it reaches.

The runtime trusts its caller: its free takes any address inside a block, of any kind, and frees all of it, and it aborts on an
address inside a registered range. So every live block and range is remembered here, and all other addresses are refused.
"""

from __future__ import annotations

import ctypes
import struct
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NoReturn

from ...spi.driver import Driver
from ...spi.errors import BackendError, DevmemError, DevmemWarning, UnsupportedError
from ...spi.sizes import exact_size
from ...spi.types import AllocFlags, CopyKind, MemoryKind, Place, PlaceKind
from ...toolkit.driver_parts import ADVICE, DriverState
from ...toolkit.memory import IPC_HANDLE_BYTES, POSIX_FILE, READ_AND_WRITE, MemoryPool
from ...toolkit.numa import has_policy, online_nodes
from ...toolkit.ranges import RangeTable
from ...toolkit.vendor_functions import INVALID_VALUE, NOT_SUPPORTED
from ...toolkit.virtual import FABRIC, VirtualMemory
from .calls import Runtime
from .functions import ALREADY_REGISTERED, NOT_REGISTERED

ATTACH_GLOBAL, ATTACH_HOST = 1, 2
PORTABLE, MAPPED, WRITE_COMBINED, NUMA_USER, COHERENT, NON_COHERENT = 1, 2, 4, 0x2000_0000, 0x4000_0000, 0x8000_0000
#: The device number that stands for the host.
HOST = -1
#: hipMemLocationType.
_LOCATIONS = {PlaceKind.DEVICE: 1, PlaceKind.HOST: 2, PlaceKind.NUMA_NODE: 3}
#: The test of a pool, and hipMemPoolProps.
_ROUNDS, _SIZES = 48, (4 << 10, 192 << 10, 96 << 10)
_POOL_PROPERTIES = ctypes.c_int * 22
#: hipMemAllocationProp, and hipMemAccessDesc: a location's kind, its number, and what is allowed.
_MEMORY_PROPERTIES, ACCESS = ctypes.c_int * 8, ctypes.c_int * 3
#: The runtime that takes a file descriptor as it is; older ones take the address of one.
FILE_AS_IT_IS_SINCE = 70_100_000
#: What is known of an address: kind, device, the device's address and the host's; flags follow. Kinds have changed their numbers.
POINTER = struct.Struct("=iiQQ")
#: Host memory that is page-locked, through any device: HIP locks it for the whole process, and for all devices.
page_locked = RangeTable[range]()


class _Unknown(Exception):
    """The runtime does not know an address, or does not say."""


class Memory(VirtualMemory):
    """Device, virtual, page-locked, mapped and managed memory; the tables hold the addresses of live blocks."""

    def __init__(self, state: DriverState, pool: MemoryPool, found: Runtime) -> None:
        super().__init__(state)
        self._pool = pool
        self._has = found.has
        self.blocks, self.managed_blocks, self.host_blocks = self.table(), self.table(), self.table()
        self.registered = self.table()
        #: What comes from the pool, which checks it.
        self.pooled = self.table()
        ask = "hipPointerGetAttributes"
        self._several_nodes = len(online_nodes()) > 1
        self._ask = found.bind(ask, self._raise_unknown) if found.has(ask) else None

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        if not nbytes:
            return 0
        free = self._functions.Free
        if kind is MemoryKind.DEVICE:
            return self._take(self.blocks, free, self._recorded.Malloc, nbytes)
        if kind is MemoryKind.MANAGED:
            attach = ATTACH_HOST if flags & AllocFlags.ATTACH_HOST else ATTACH_GLOBAL
            make = partial(self._relaxed, self._recorded.MallocManaged)
            return self._take(self.managed_blocks, free, make, nbytes, attach)
        # Always one of the two: without them, coherence depends on the other flags and on the environment.
        wanted = NON_COHERENT if flags & AllocFlags.COARSE else COHERENT
        wanted |= PORTABLE if flags & AllocFlags.PORTABLE else 0
        wanted |= WRITE_COMBINED if flags & AllocFlags.WRITE_COMBINED else 0
        if kind is MemoryKind.MAPPED and not flags & AllocFlags.COARSE:
            # Host memory always is. Together with non-coherent, documents and code disagree on what it means.
            wanted |= MAPPED
        # By itself the runtime takes the node that is nearest to the device, whatever the thread's policy is.
        wanted |= NUMA_USER if self._several_nodes and has_policy() else 0
        make = partial(self._relaxed, self._recorded.HostMalloc)
        ptr = self._take(self.host_blocks, self._functions.HostFree, make, nbytes, wanted)
        page_locked.add(range(ptr, ptr + nbytes))
        return ptr

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        if not ptr:
            return
        on_host = kind is MemoryKind.PINNED or kind is MemoryKind.MAPPED
        live = self.host_blocks if on_host else self.managed_blocks if kind is MemoryKind.MANAGED else self.blocks
        if ptr not in live:
            self._errors.refuse("hipFree", INVALID_VALUE, f"{ptr:#x} is no {kind} memory of this device, or was freed")
        if on_host:
            page_locked.remove(ptr)
        self._give(live, ptr, partial(self._relaxed, self._recorded.HostFree if on_host else self._recorded.Free))

    def _properties(self, kind: int) -> Any:
        return _MEMORY_PROPERTIES(1, kind, 1, self._ordinal)  # pinned, on this device

    def _access(self) -> Any:
        return ACCESS(1, self._ordinal, READ_AND_WRITE)

    def _place(self, handle: Any) -> int:
        found = _MEMORY_PROPERTIES()
        self._functions.MemGetAllocationPropertiesFromHandle(found, handle)
        return int(found[3])

    def _export(self, handle: Any, kind: int) -> int | bytes:
        made = (ctypes.c_int * (IPC_HANDLE_BYTES // 4))()
        self._functions.MemExportToShareableHandle(made, handle, kind, 0)
        return bytes(made) if kind == FABRIC else int(made[0])

    def _import(self, given: Any, kind: int) -> Any:
        by_address = kind == POSIX_FILE and self._functions.RuntimeGetVersion() < FILE_AS_IT_IS_SINCE
        return self._functions.MemImportFromShareableHandle(
            ctypes.byref(ctypes.c_int(given)) if by_address else given, kind
        )

    def alloc_async(self, nbytes: int, stream: int) -> int:
        if not nbytes:
            return 0
        on, pool = self._streams[stream], self._pool.handle
        give_back = partial(self.free_async, nbytes=nbytes, stream=stream)
        return self._take(self.pooled, give_back, self._recorded.MallocFromPoolAsync, nbytes, pool, on)

    def alloc_shared(self, nbytes: int, stream: int) -> int:
        if not nbytes:
            return 0
        give_back = partial(self.free_async, nbytes=nbytes, stream=stream)
        return self._take(self.pooled, give_back, self._recorded.MallocAsync, nbytes, self._streams[stream])

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        if ptr:
            self._give(self.pooled, ptr, self._recorded.FreeAsync, self._streams[stream])

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; memory that any pool of the process keeps counts as used."""
        free, total = self._functions.MemGetInfo()
        return free, total

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        pages, flags = range(ptr, ptr + nbytes), PORTABLE | (MAPPED if mapped else 0)
        try:
            if not page_locked.add(pages):  # some runtimes take the same range twice, and leak it
                why = f"some of the {exact_size(nbytes)} at {ptr:#x} are page-locked already"
                self._errors.refuse("hipHostRegister", ALREADY_REGISTERED, why)
            lock, unlock = self._recorded.HostRegister, self._functions.HostUnregister
            self._take(self.registered, unlock, lock, ptr, nbytes, flags)
        except BaseException:
            page_locked.discard(pages)
            raise

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        if ptr not in self.registered:
            self._errors.refuse("hipHostUnregister", NOT_REGISTERED, f"no range that starts at {ptr:#x} is registered")
        pages = page_locked.containing(ptr, ptr + 1)
        try:
            page_locked.remove(ptr)
            self._give(self.registered, ptr, self._recorded.HostUnregister)
        except BaseException:
            if pages is not None and ptr in self.registered:  # they are still locked
                page_locked.add(pages)
            raise

    def is_page_locked(self, ptr: int) -> bool:
        """Whether an address of the host is one that the runtime knows: page-locked, by any library, or managed."""
        if self._ask is None or page_locked.containing(ptr, ptr + 1) is not None:
            return True
        try:
            _, _, address, host = POINTER.unpack_from(self._ask(ptr))
        except _Unknown as unknown:
            return unknown.args != (INVALID_VALUE,)
        return bool(address or host)  # runtimes from 7 on answer for any address

    def _raise_unknown(self, call: str, status: int) -> NoReturn:
        """Raise without the runtime's words for the status, which take longer than the call."""
        self._errors.acknowledge()
        raise _Unknown(status)

    def device_pointer(self, host: int) -> int:
        return int(self._functions.HostGetDevicePointer(host, 0))  # which may differ from the host's address

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        self._functions.MemPrefetchAsync(ptr, nbytes, HOST if to_host else self._ordinal, self._streams[stream])

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        self._functions.MemAdvise(ptr, nbytes, 1 + ADVICE.index(advice), HOST if to_host else self._ordinal)

    def prefetch_to(self, ptrs: Sequence[int], sizes: Sequence[int], to: Place, stream: int, *, discard: bool) -> None:
        if discard:
            self._batch("MemDiscardAndPrefetchBatchAsync", ptrs, sizes, stream, to)
            return
        with suppress(UnsupportedError):  # then one by one
            self._batch("MemPrefetchBatchAsync", ptrs, sizes, stream, to)
            return
        on, node = self._streams[stream], self._node(to, "hipMemPrefetchAsync_v2")
        for ptr, nbytes in zip(ptrs, sizes, strict=True):
            if node is None:
                self._functions.MemPrefetchAsync(ptr, nbytes, HOST if to.kind is PlaceKind.HOST else to.number, on)
            else:
                self._functions.MemPrefetchAsync_v2(ptr, nbytes, node, 0, on)

    def discard(self, ptrs: Sequence[int], sizes: Sequence[int], stream: int) -> None:
        self._batch("MemDiscardBatchAsync", ptrs, sizes, stream)

    def _batch(
        self, call: str, ptrs: Sequence[int], sizes: Sequence[int], stream: int, to: Place | None = None
    ) -> None:
        """Make a call for several ranges of managed memory, which AMD has as beta; with ``to``, for all of them."""
        if not self._has(f"hip{call}"):
            raise UnsupportedError(f"this HIP runtime has no hip{call}, which ROCm 10 has")
        lists = [(ctypes.c_size_t * len(each))(*each) for each in (ptrs, sizes)]
        place, first = ctypes.c_uint64(0 if to is None else _location(to)), ctypes.c_size_t(0)
        places = () if to is None else (ctypes.addressof(place), ctypes.addressof(first), 1)
        arguments = *map(ctypes.addressof, lists), len(ptrs), *places, 0, self._streams[stream]
        try:
            getattr(self._functions, call)(*arguments)
        except BackendError as error:
            if error.code == NOT_SUPPORTED:
                raise UnsupportedError(f"this device's runtime does not do it: {error}") from error
            raise

    def advise_for(self, ptr: int, nbytes: int, advice: str, to: Place) -> None:
        number, node = 1 + ADVICE.index(advice), self._node(to, "hipMemAdvise_v2")
        if node is None:
            self._functions.MemAdvise(ptr, nbytes, number, HOST if to.kind is PlaceKind.HOST else to.number)
        else:
            self._functions.MemAdvise_v2(ptr, nbytes, number, node)

    def _node(self, to: Place, call: str) -> int | None:
        """A NUMA node as a hipMemLocation by value; None for other places."""
        if to.kind is not PlaceKind.NUMA_NODE:
            return None
        if not self._has(call):
            raise UnsupportedError(f"this HIP runtime has no {call}, which takes a NUMA node: name the host as a whole")
        return _location(to)


def _location(to: Place) -> int:
    """A hipMemLocation as one word."""
    return _LOCATIONS[to.kind] | to.number << 32


def pool_is_sound(driver: Driver, memory: Memory, pool: MemoryPool, ordinal: int, handles: int = 0) -> bool:
    """Make the pool, for handles of that type, and find out whether it can be trusted.

    Some runtimes hand out memory that they zero afterwards.

    Fill, read back and free blocks of several sizes. Where a byte is wrong, warn, and destroy the pool.
    """
    found = ""
    try:
        properties = _POOL_PROPERTIES(1, handles, 1, ordinal)  # pinned, on this device
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
    """Return the error of one round of the pool check as text; empty if there is none."""
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
                wrong = f"{exact_size(nbytes)} at {ptr:#x} did not hold what was stored"
    if number % 2:
        driver.stream_synchronize(stream)
    return wrong
