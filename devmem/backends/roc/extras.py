"""What a HIP device can do beyond the contract."""

from __future__ import annotations

import ctypes
import struct
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ...spi.errors import BackendError, DeviceLost, LayoutError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM, CopyKind
from ...toolkit.deferred_errors import fresh_copy
from .functions import (
    ALREADY_REGISTERED,
    CAPTURE_ELSEWHERE,
    FUNCTIONS,
    INVALID_HANDLE,
    INVALID_VALUE,
    IPC_HANDLE_BYTES,
    NOT_FOUND,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    PEER_ACCESS_ALREADY_ENABLED,
)
from .handles import Streams, page_locked
from .runtime import Calls, Runtime

_KINDS = {CopyKind.H2D: 1, CopyKind.D2H: 2, CopyKind.D2D: 3}
_ADVICE = {
    "set_read_mostly": 1,
    "unset_read_mostly": 2,
    "set_preferred_location": 3,
    "unset_preferred_location": 4,
    "set_accessed_by": 5,
    "unset_accessed_by": 6,
}
HOST = -1
#: What is known of an address: kind, device, the device's address and the host's; flags follow. Kinds have changed their numbers.
_POINTER = struct.Struct("=iiQQ")
PORTABLE, MAPPED, WRITE_COMBINED, COHERENT, NON_COHERENT = 1, 2, 4, 0x4000_0000, 0x8000_0000
WAIT_UNTIL_EQUAL, ALL_BITS = 1, 0xFFFF_FFFF
RELEASE_THRESHOLD, RESERVED_BYTES, USED_BYTES = 4, 5, 7
#: Keep what was freed. Besides being fast, it keeps pools of some runtimes from handing out memory that they zero later.
KEEP_EVERYTHING = (1 << 64) - 1
GLOBAL, RELAXED = 0, 2


class Volume(ctypes.Structure):
    """The arguments of a three-dimensional copy."""

    _fields_ = (
        ("src_array", ctypes.c_void_p),
        ("src_pos", ctypes.c_size_t * 3),
        ("src_ptr", ctypes.c_size_t * 4),  # address, pitch, width, rows
        ("dst_array", ctypes.c_void_p),
        ("dst_pos", ctypes.c_size_t * 3),
        ("dst_ptr", ctypes.c_size_t * 4),
        ("extent", ctypes.c_size_t * 3),
        ("kind", ctypes.c_int),
    )


class PoolProperties(ctypes.Structure):
    """What a pool is made of."""

    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 72),
    )


class Extras:
    """The optional protocols, and the state that all calls share; the driver is the rest."""

    def __init__(self, found: Runtime, ordinal: int) -> None:
        self.found = found
        self.ordinal = ordinal
        self.hip = Calls(found, self.fail, FUNCTIONS)
        self.exchanges = found.provider.has("hipThreadExchangeStreamCaptureMode")
        self.lost: DeviceLost | None = None
        self.kinds = {kind: found.provider.member("hipMemcpyKind", number) for kind, number in _KINDS.items()}
        self.streams = Streams(self._refuse_stream)
        self.events: set[int] = set()
        self.blocks: set[int] = set()
        self.managed: set[int] = set()
        self.host_blocks: set[int] = set()
        self.registered: set[int] = set()
        self.peers: set[int] = set()
        self.pool = 0
        self.words: set[int] = set()

    # -- errors --------------------------------------------------------------------------------------------------------

    def fail(self, call: str, code: int) -> NoReturn:
        """Raise, and remember the first failure that loses the device."""
        try:
            self.found.fail(call, code)
        except DeviceLost as first:
            self.lost = self.lost or fresh_copy(first)
            raise

    def refuse(self, call: str, code: int, why: str) -> NoReturn:
        """Raise what the runtime should have said, without asking it: on this it may abort the process."""
        name, _ = self.found.provider.describe(code)
        raise BackendError(f"{call} was not called: {why}", backend="roc", call=call, code=code, name=name)

    def event(self, event: int) -> int:
        """An event that is ours."""
        if event not in self.events:
            self.refuse("hipEvent", INVALID_HANDLE, f"the event {event:#x} was destroyed, or never made here")
        return event

    def unseen(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call that captures of graphs need not know of, so that none forbids it, or is spoilt by it.

        While somebody captures in the default mode, no thread of the process may allocate, free, or ask for an event, unless it
        says that it knows what it does. What is done here puts nothing into anybody's graph.
        """
        mode = ctypes.c_int(RELAXED)
        at = ctypes.addressof(mode)
        exchanged, known = self.exchanges, False
        try:
            try:
                if exchanged:
                    self.hip.hipThreadExchangeStreamCaptureMode(at)
                known = True
            except BackendError:
                exchanged = False  # what is wrong the call itself says too, and giving something back has to go on
            return call(*arguments)
        finally:
            if exchanged:
                if not known and mode.value == RELAXED:
                    mode.value = GLOBAL  # an interrupt came before it was told: the mode that every thread begins in
                try:  # not suppress(): it would be felt
                    self.hip.hipThreadExchangeStreamCaptureMode(at)
                except BackendError:
                    pass

    @abstractmethod
    def stream_synchronize(self, stream: int) -> None:
        """Wait for the stream; the driver's."""

    @abstractmethod
    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """One copy; the driver's."""

    def _refuse_stream(self, stream: int) -> NoReturn:
        self.refuse("hipStream", INVALID_HANDLE, f"the stream {stream:#x} was destroyed, or never made here")

    # -- stream-ordered pool -------------------------------------------------------------------------------------------

    def alloc_async(self, nbytes: int, stream: int) -> int:
        """Memory of our own pool, valid in stream order."""
        if not nbytes:
            return 0
        ptr: int = self.hip.hipMallocFromPoolAsync(nbytes, self.pool, self.streams[stream])
        return ptr

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        """Back to the pool, in stream order."""
        if ptr:
            self.hip.hipFreeAsync(ptr, self.streams[stream])

    def pool_cached(self) -> int:
        """Bytes that our pool keeps and nobody uses."""
        return self._pool_bytes(RESERVED_BYTES) - self._pool_bytes(USED_BYTES)

    def pool_trim(self, keep_bytes: int) -> None:
        """Give back what the pool keeps; the runtime counts memory in use among what is kept."""
        used = self._pool_bytes(USED_BYTES)
        self.unseen(self.hip.hipMemPoolTrimTo, self.pool, used + keep_bytes)
        # It keeps at least that, in pieces of its own size: then all, as more was not to be kept.
        if keep_bytes and self.pool_cached() > keep_bytes:
            self.unseen(self.hip.hipMemPoolTrimTo, self.pool, used)

    def pool_threshold(self, nbytes: int) -> None:
        """From how many bytes on the pool gives back what is unused, whenever a stream, an event or the device is waited for."""
        self.unseen(self.hip.hipMemPoolSetAttribute, self.pool, self._attribute(RELEASE_THRESHOLD), nbytes)

    def can_pool(self) -> bool:
        """Whether the runtime has all that it takes."""
        names = [name for name in FUNCTIONS if "Pool" in name or name == "hipFreeAsync"]
        return all(map(self.found.provider.has, names))

    def make_pool(self) -> None:
        """A pool of our own: the device's default pool is shared, and its threshold is everybody's."""
        wanted = PoolProperties(allocation_type=1, location_type=1, location_id=self.ordinal)
        self.pool = self.hip.hipMemPoolCreate(ctypes.addressof(wanted))
        self.pool_threshold(KEEP_EVERYTHING)

    def drop_pool(self) -> None:
        """Let go of the pool."""
        pool, self.pool = self.pool, 0
        if pool:
            self.hip.hipMemPoolDestroy(pool)

    def _pool_bytes(self, what: int) -> int:
        found: int = self.unseen(self.hip.hipMemPoolGetAttribute, self.pool, self._attribute(what))
        return found

    def _attribute(self, number: int) -> Any:
        return self.found.provider.member("hipMemPoolAttr", number)

    # -- copies --------------------------------------------------------------------------------------------------------

    def copy_2d(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        """Rows a pitch apart."""
        on = self.streams[stream]
        self.hip.hipMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, height, self.kinds[kind], on)
        return self._after_copy(stream, kind, blocking)

    def copy_3d(
        self,
        dst: int,
        dst_pitch: int,
        dst_rows: int,
        src: int,
        src_pitch: int,
        src_rows: int,
        width: int,
        height: int,
        depth: int,
        kind: CopyKind,
        stream: int,
        *,
        blocking: bool,
    ) -> bool:
        """Slices of rows."""
        plan = Volume(extent=(width, height, depth), kind=_KINDS[kind])
        plan.src_ptr[:] = src, src_pitch, src_pitch, src_rows
        plan.dst_ptr[:] = dst, dst_pitch, dst_pitch, dst_rows
        self.hip.hipMemcpy3DAsync(ctypes.addressof(plan), self.streams[stream])
        return self._after_copy(stream, kind, blocking)

    def copy_batch(
        self, dsts: Sequence[int], srcs: Sequence[int], sizes: Sequence[int], kind: CopyKind, stream: int
    ) -> bool:
        """Many copies in one call; where batches are refused, as on the default streams, one by one."""
        if stream not in (LEGACY_STREAM, PER_THREAD_STREAM):
            words = ctypes.c_size_t * len(dsts)
            lists = [words(*each) for each in (dsts, srcs, sizes)]
            addresses = map(ctypes.addressof, lists)
            try:
                # Attributes of copies are taken and ignored: there are none.
                self.hip.hipMemcpyBatchAsync(*addresses, len(lists[0]), None, None, 0, self.streams[stream])
                return kind is not CopyKind.D2D
            except BackendError as error:
                if error.code != NOT_SUPPORTED:
                    raise
        running = [self.copy(*each, kind, stream, blocking=False) for each in zip(dsts, srcs, sizes, strict=True)]
        return any(running)

    def can_access(self, ordinal: int) -> bool:
        """Whether copies from that device need not pass through the host."""
        return bool(self.hip.hipDeviceCanAccessPeer(self.ordinal, ordinal))

    def copy_peer(
        self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int, *, blocking: bool
    ) -> None:
        """Between two devices of this runtime."""
        for other in {dst_ordinal, src_ordinal} - self.peers - {self.ordinal}:
            self._enable_access(other)
        self.hip.hipMemcpyPeerAsync(dst, dst_ordinal, src, src_ordinal, nbytes, self.streams[stream])
        if blocking:
            self.stream_synchronize(stream)

    def _enable_access(self, other: int) -> None:
        """Without it the same copy passes through the host."""
        if self.found.provider.has("hipDeviceEnablePeerAccess") and self.can_access(other):
            try:
                self.hip.hipDeviceEnablePeerAccess(other, 0)
            except BackendError as error:
                if error.code != PEER_ACCESS_ALREADY_ENABLED:
                    raise
        self.peers.add(other)

    def _after_copy(self, stream: int, kind: CopyKind, blocking: bool) -> bool:
        if blocking:
            self.stream_synchronize(stream)
            return False
        return kind is not CopyKind.D2D

    # -- host memory ---------------------------------------------------------------------------------------------------

    def host_register(self, ptr: int, nbytes: int, mapped: bool) -> None:
        """Page-lock, for every device. Twice the same is refused here: the runtime takes it, by version, and leaks."""
        if not page_locked.add(ptr, nbytes):
            why = f"some of the {nbytes} bytes at {ptr:#x} are page-locked already"
            self.refuse("hipHostRegister", ALREADY_REGISTERED, why)
        try:
            self.hip.hipHostRegister(ptr, nbytes, PORTABLE | (MAPPED if mapped else 0))
        except BaseException:
            page_locked.remove(ptr)
            raise
        self.registered.add(ptr)

    def host_unregister(self, ptr: int, nbytes: int) -> None:
        """Undo ``host_register``; any other address never gets to the runtime, which aborts on one inside of a range."""
        if ptr not in self.registered:
            self.refuse("hipHostUnregister", NOT_REGISTERED, f"no range that starts at {ptr:#x} is registered")
        self.registered.discard(ptr)
        try:
            self.hip.hipHostUnregister(ptr)
        finally:
            page_locked.remove(ptr)

    def device_pointer(self, host: int) -> int:
        """The device's address of mapped host memory, which may be another."""
        pointer: int = self.hip.hipHostGetDevicePointer(host, 0)
        return pointer

    def prefetch(self, ptr: int, nbytes: int, to_host: bool, stream: int) -> None:
        """Move managed pages ahead of use."""
        self.hip.hipMemPrefetchAsync(ptr, nbytes, HOST if to_host else self.ordinal, self.streams[stream])

    def advise(self, ptr: int, nbytes: int, advice: str, to_host: bool) -> None:
        """Say how managed pages will be used."""
        word = self.found.provider.member("hipMemoryAdvise", _ADVICE[advice])
        self.hip.hipMemAdvise(ptr, nbytes, word, HOST if to_host else self.ordinal)

    # -- sharing, capture, holding -------------------------------------------------------------------------------------

    def ipc_export(self, ptr: int) -> bytes:
        """64 bytes that open the allocation in another process."""
        handle: bytes = self.hip.hipIpcGetMemHandle(ptr)
        return handle

    def ipc_open(self, handle: bytes) -> int:
        """The address here of an allocation of another process."""
        if len(handle) != IPC_HANDLE_BYTES:
            raise LayoutError(
                f"an IPC handle of HIP has {IPC_HANDLE_BYTES} bytes, not {len(handle)}: give it as exported"
            )
        ptr: int = self.hip.hipIpcOpenMemHandle(handle, 1)
        return ptr

    def ipc_close(self, ptr: int) -> None:
        """Let go of what ``ipc_open`` returned."""
        self.hip.hipIpcCloseMemHandle(ptr)

    def pointer_range(self, ptr: int) -> tuple[int, int] | None:
        """The allocation around an address."""
        try:
            base, nbytes = self.hip.hipMemGetAddressRange(ptr)
        except BackendError as error:
            if error.code in (INVALID_VALUE, NOT_FOUND):
                return None
            raise
        return base, nbytes

    def pointer_device(self, ptr: int) -> int | None:
        """Whose memory it is; not of host memory that a device calls otherwise. An unknown address is an error before ROCm 7."""
        try:
            _, ordinal, seen, _ = _POINTER.unpack_from(self.hip.hipPointerGetAttributes(ptr))
        except BackendError as error:
            if error.code == INVALID_VALUE:
                return None
            raise
        return ordinal if seen == ptr else None

    def capturing(self, stream: int) -> bool:
        """Whether the stream records a graph, or cannot be asked because another does."""
        try:
            return bool(self.hip.hipStreamIsCapturing(self.streams[stream]))
        except BackendError as error:
            if error.code in CAPTURE_ELSEWHERE:
                return True
            raise

    def hold(self, stream: int) -> int:
        """Make the stream wait for a word of host memory to become 1."""
        word: int = self.hip.hipHostMalloc(4, COHERENT)
        ctypes.c_uint32.from_address(word).value = 0
        try:
            seen = self.device_pointer(word)
            self.hip.hipStreamWaitValue32(self.streams[stream], seen, 1, WAIT_UNTIL_EQUAL, ALL_BITS)
        except BackendError:
            self.hip.hipHostFree(word)
            raise
        self.words.add(word)
        return word

    def release(self, hold: int) -> None:
        """Let the stream go on. The word stays until the end: the stream may not have read it yet."""
        ctypes.c_uint32.from_address(hold).value = 1
