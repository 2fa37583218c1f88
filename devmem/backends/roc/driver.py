"""One HIP device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ...spi.errors import BackendError, DevmemError, UnsupportedError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM, AllocFlags, Capability, CopyKind, MemoryKind
from ...toolkit.deferred_errors import FirstError, fresh_copy
from .extras import COHERENT, MAPPED, NON_COHERENT, PORTABLE, WRITE_COMBINED
from .functions import CAPTURE_UNSUPPORTED, CAPTURED_EVENT, INVALID_VALUE
from .handles import page_locked
from .info import describe
from .launching import Launching
from .runtime import Runtime
from .selftest import pool_is_sound

_D2D = CopyKind.D2D
ATTACH_GLOBAL, ATTACH_HOST = 1, 2
DISABLE_TIMING, RELEASE_TO_SYSTEM = 2, 0x8000_0000


class RocDriver(Launching):
    """A device of the process: HIP has one context for each, and what is current is a thread's ordinal.

    The runtime trusts its caller, and crashes on what is gone. So a driver remembers what it handed out, and refuses the rest.
    """

    def __init__(
        self, found: Runtime, ordinal: int, stream_ordered: bool = False, array_interface: bool = False
    ) -> None:
        super().__init__(found, ordinal)
        token = self.enter()
        try:
            self.info = describe(found, self.hip, ordinal)
            if array_interface:
                self.info = dataclasses.replace(
                    self.info, exchange=dataclasses.replace(self.info.exchange, array_interface=True)
                )
            if stream_ordered and self.info.facts["memory_pools"] and self.can_pool() and pool_is_sound(self):
                capabilities = self.info.capabilities | {Capability.STREAM_ORDERED}
                self.info = dataclasses.replace(self.info, capabilities=capabilities, default_memory="")
        except BaseException:
            self.drop_pool()
            raise
        finally:
            self.exit(token)

    # -- current -------------------------------------------------------------------------------------------------------

    def enter(self) -> int | None:
        """Make the device current, unless it is: another library may have switched since."""
        if self.lost is not None:
            raise fresh_copy(self.lost)
        current: int = self.hip.hipGetDevice()
        if current == self.ordinal:
            return None
        self.hip.hipSetDevice(self.ordinal)
        return current

    def exit(self, token: Any) -> None:
        """Make current what was current before; None stands for nothing to do."""
        if token is not None:
            self.hip.hipSetDevice(token)

    # -- memory --------------------------------------------------------------------------------------------------------

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        """Plain memory of a kind; ``hipMalloc`` waits for nothing."""
        if not nbytes:
            return 0
        ptr: int
        if kind is MemoryKind.DEVICE:
            ptr = self.hip.hipMalloc(nbytes)
            self.blocks.add(ptr)
            return ptr
        if kind is MemoryKind.MANAGED:
            ptr = self.unseen(
                self.hip.hipMallocManaged, nbytes, ATTACH_HOST if flags & AllocFlags.ATTACH_HOST else ATTACH_GLOBAL
            )
            self.managed.add(ptr)
            return ptr
        # Said in either case: left to itself, coherence depends on the other flags and on the environment.
        wanted = NON_COHERENT if flags & AllocFlags.COARSE else COHERENT
        wanted |= PORTABLE if flags & AllocFlags.PORTABLE else 0
        wanted |= WRITE_COMBINED if flags & AllocFlags.WRITE_COMBINED else 0
        if kind is MemoryKind.MAPPED and not flags & AllocFlags.COARSE:
            wanted |= MAPPED  # it always is; together with non-coherent, documents and code disagree on what is meant
        ptr = self.unseen(self.hip.hipHostMalloc, nbytes, wanted)
        self.host_blocks.add(ptr)
        page_locked.add(ptr, nbytes)
        return ptr

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give plain memory back; ``hipFree`` waits for the whole device.

        It takes any address inside of a block, of any kind, and frees all of it: only what came from here gets there.
        """
        if not ptr:
            return
        on_host = kind is MemoryKind.PINNED or kind is MemoryKind.MAPPED
        mine = self.host_blocks if on_host else self.managed if kind is MemoryKind.MANAGED else self.blocks
        if ptr not in mine:
            self.refuse("hipFree", INVALID_VALUE, f"{ptr:#x} is no {kind} memory of this device, or was freed")
        mine.discard(ptr)
        if on_host:
            page_locked.remove(ptr)
            self.unseen(self.hip.hipHostFree, ptr)
        else:
            self.unseen(self.hip.hipFree, ptr)

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; memory that any pool of the process keeps counts as used."""
        free, total = self.hip.hipMemGetInfo()
        return free, total

    # -- copies --------------------------------------------------------------------------------------------------------

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """Copy bytes. Whether host memory is pinned is not asked, so any asynchronous copy may still touch the host.

        The runtime finds the direction out by itself; the kind that is said keeps it from taking a device's address that it
        does not know for host memory on both sides.
        """
        on = self.streams[stream]
        if blocking and kind is not _D2D:  # within a device it would not wait
            self.hip.hipMemcpyWithStream(dst, src, nbytes, self.kinds[kind], on)
            return False
        self.hip.hipMemcpyAsync(dst, src, nbytes, self.kinds[kind], on)
        if blocking:
            self.stream_synchronize(stream)
            return False
        return kind is not _D2D

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        """Store values of 8, 16 or 32 bits."""
        on = self.streams[stream]
        if width == 4:
            self.hip.hipMemsetD32Async(dst, value - (value >> 31 << 32), count, on)  # a signed word there
        elif width == 2:
            self.hip.hipMemsetD16Async(dst, value, count, on)
        else:
            self.hip.hipMemsetD8Async(dst, value, count, on)

    # -- streams and events --------------------------------------------------------------------------------------------

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        """A new stream."""
        return self.streams.add(self.hip.hipStreamCreateWithPriority(int(non_blocking), priority))

    def stream_destroy(self, stream: int) -> None:
        """Destroy, after what is on it: the runtime promises neither to wait nor to go on."""
        try:
            self.stream_synchronize(stream)
        finally:  # the caller has let go of it, whatever the wait met
            self.hip.hipStreamDestroy(self.streams.take(stream))

    def stream_synchronize(self, stream: int) -> None:
        """Wait for the stream."""
        self.hip.hipStreamSynchronize(self.streams[stream])

    def stream_query(self, stream: int) -> bool:
        """Whether the stream is done."""
        done: bool = self.hip.hipStreamQuery(self.streams[stream])
        return done

    def stream_wait(self, stream: int, event: int) -> None:
        """Make the stream wait for the event."""
        self.hip.hipStreamWaitEvent(self.streams[stream], self.event(event), 0)

    def event_create(self, timing: bool) -> int:
        """A new event. What the host then finds complete it can also read, in memory of either coherence."""
        made: int = self.hip.hipEventCreateWithFlags(RELEASE_TO_SYSTEM | (0 if timing else DISABLE_TIMING))
        self.events.add(made)
        return made

    def event_destroy(self, event: int) -> None:
        """Destroy an event."""
        handle = self.event(event)
        self.events.discard(handle)
        self.hip.hipEventDestroy(handle)

    def event_record(self, event: int, stream: int) -> None:
        """Capture what is on the stream."""
        self.hip.hipEventRecord(self.event(event), self.streams[stream])

    def event_query(self, event: int) -> bool:
        """Whether the captured work is done, as far as may be known.

        It is asked by the way, when something else is to be done; and some runtimes of the series 7 allow it to no thread at all
        while a graph is captured.
        """
        try:
            done: bool = self.unseen(self.hip.hipEventQuery, self.event(event))
        except BackendError as error:
            if error.code == CAPTURE_UNSUPPORTED:
                return False
            if error.code == CAPTURED_EVENT:
                raise _captured(error) from error
            raise
        return done

    def event_synchronize(self, event: int) -> None:
        """Wait for the captured work."""
        try:
            self.unseen(self.hip.hipEventSynchronize, self.event(event))
        except BackendError as error:
            if error.code == CAPTURED_EVENT:
                raise _captured(error) from error
            raise

    def event_elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two events."""
        found: float = self.hip.hipEventElapsedTime(self.event(start), self.event(end))
        return found

    def synchronize(self) -> None:
        """Wait for the whole device."""
        self.hip.hipDeviceSynchronize()

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back what is still out, piece by piece: resetting the device would take it from everybody else.

        Memory that the host can see stays, because ndarrays may point to it.
        """
        streams = [stream for stream in self.streams if stream > PER_THREAD_STREAM]
        try:
            token = self.enter()
        except DevmemError:
            for start in self.registered:
                page_locked.remove(start)
            if self.lost is not None:  # everything fails, and that has been said
                return
            raise
        steps: list[tuple[Callable[[int], object], int]] = [(lambda _: self.synchronize(), 0)]
        steps += [(lambda start: self.host_unregister(start, 0), start) for start in self.registered]
        steps += [(self.unload, function) for function in self.modules]
        steps += [(self.stream_destroy, stream) for stream in streams]
        steps += [(self.event_destroy, event) for event in self.events]
        steps += [(lambda ptr: self.free(ptr, 0, LEGACY_STREAM), ptr) for ptr in self.blocks]
        steps += [(self.hip.hipHostFree, word) for word in self.words]
        with FirstError() as first:
            for give_back, what in [*steps, (lambda _: self.drop_pool(), 0)]:
                try:
                    give_back(what)
                except DevmemError as error:  # the others must still be given back
                    first.put(error)
            self.exit(token)


def _captured(error: BackendError) -> UnsupportedError:
    return UnsupportedError(
        f"{error.call}: the event was recorded while its stream was capturing a graph, and tells nothing of what runs later"
    )
