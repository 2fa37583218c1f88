"""One CUDA device."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cuda.bindings import driver as binding

from ...spi.errors import BackendError
from ...spi.types import LEGACY_STREAM, AllocFlags, CopyKind, MemoryKind
from ...toolkit.deferred_errors import fresh_copy
from .calls import CAPTURE_UNSUPPORTED, unseen
from .extras import Extras
from .info import describe
from .launching import Launching
from .library import NOT_READY, checked, code_of, cu

_H2D, _D2H, _D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D

# Called as they are, because a frame more would be felt; each call looks after statuses that the binding does not know.
_get_current, _set_current = binding.cuCtxGetCurrent, binding.cuCtxSetCurrent
_alloc_async, _free_async = binding.cuMemAllocFromPoolAsync, binding.cuMemFreeAsync
_upload, _download = binding.cuMemcpyHtoD, binding.cuMemcpyDtoH
_event_query = binding.cuEventQuery

#: Keep what was freed: with the driver's own threshold of zero every synchronisation gives the pool's memory back to the
#: system, which costs milliseconds a gigabyte at the next allocation.
KEEP_EVERYTHING = (1 << 64) - 1


class CudaDriver(Extras, Launching):
    """A device through its primary context, which other libraries in the process share.

    Handles are integers outside and the binding's objects inside: turning an int into one at every call costs more
    than looking it up.
    """

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.device = checked("cuDeviceGet", cu.cuDeviceGet(ordinal))
        self.primary = checked("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(self.device))
        try:
            token = self.enter()
            try:
                self.info = describe(self.device, ordinal)
                self._make_pool()
            finally:
                self.exit(token)
        except BaseException:
            with suppress(BackendError):
                if self.pool is not None:
                    cu.cuMemPoolDestroy(self.pool)
            with suppress(BackendError):
                cu.cuDevicePrimaryCtxRelease(self.device)
            raise

    # -- current -------------------------------------------------------------------------------------------------------

    def enter(self) -> Any:
        """Make the primary context current, unless it is: another library may have switched since."""
        if self.lost is not None:
            raise fresh_copy(self.lost)
        try:
            error, current = _get_current()
        except ValueError as unknown:
            error, current = code_of(unknown), None
        if current == self.primary:
            return None
        if error:
            self.fail("cuCtxGetCurrent", error)
        self._make_current(self.primary)
        return current

    def exit(self, token: Any) -> None:
        """Make current what was current before; None stands for nothing to do."""
        if token is not None:
            self._make_current(token)

    def _make_current(self, context: Any) -> None:
        try:
            (error,) = _set_current(context)
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            self.fail("cuCtxSetCurrent", error)

    # -- memory --------------------------------------------------------------------------------------------------------

    def alloc(
        self, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE, flags: AllocFlags = AllocFlags.NONE
    ) -> int:
        """Plain memory of a kind; ``cuMemAlloc`` waits for nothing."""
        if kind is MemoryKind.DEVICE:
            error, ptr = cu.cuMemAlloc(nbytes)
            if error:
                if not nbytes:
                    return 0
                self.fail("cuMemAlloc", error)
            return int(ptr)
        if not nbytes:
            return 0
        if kind is MemoryKind.MANAGED:
            attach = 2 if flags & AllocFlags.ATTACH_HOST else 1
            ptr = self.check("cuMemAllocManaged", unseen(cu.cuMemAllocManaged, nbytes, attach))
        else:
            wanted = 1 if flags & AllocFlags.PORTABLE else 0
            wanted |= 2 if kind is MemoryKind.MAPPED else 0
            wanted |= 4 if flags & AllocFlags.WRITE_COMBINED else 0
            ptr = self.check("cuMemHostAlloc", unseen(cu.cuMemHostAlloc, nbytes, wanted))
        self.host_blocks.add(int(ptr))
        return int(ptr)

    def free(self, ptr: int, nbytes: int, stream: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give plain memory back; ``cuMemFree`` waits for the whole device."""
        if not ptr:
            return
        if kind is MemoryKind.DEVICE:
            (error,) = unseen(cu.cuMemFree, ptr)
            if error:
                self.fail("cuMemFree", error)
            return
        self.host_blocks.discard(ptr)
        if kind is MemoryKind.MANAGED:
            self.check("cuMemFree", unseen(cu.cuMemFree, ptr))
        else:
            self.check("cuMemFreeHost", unseen(cu.cuMemFreeHost, ptr))

    def alloc_async(self, nbytes: int, stream: int) -> int:
        """Memory of our own pool, valid in stream order."""
        try:
            error, ptr = _alloc_async(nbytes, self.pool, self.streams[stream])
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            if not nbytes:
                return 0
            self.fail("cuMemAllocFromPoolAsync", error)
        return int(ptr)

    def free_async(self, ptr: int, nbytes: int, stream: int) -> None:
        """Back to the pool, in stream order."""
        if not ptr:
            return
        try:
            (error,) = _free_async(ptr, self.streams[stream])
        except ValueError as unknown:
            error = code_of(unknown)
        if error:
            self.fail("cuMemFreeAsync", error)

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; memory that any pool of the process keeps counts as used."""
        free, total = self.check("cuMemGetInfo", cu.cuMemGetInfo())
        return int(free), int(total)

    # -- copies --------------------------------------------------------------------------------------------------------

    def copy(self, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int, *, blocking: bool) -> bool:
        """Copy bytes. Whether host memory is pinned is not asked, so any asynchronous copy may still touch the host."""
        if blocking and stream == LEGACY_STREAM and kind is not _D2D:
            # The synchronous verbs are ordered on the legacy stream: one call instead of two.
            if kind is _H2D:
                try:
                    (error,) = _upload(dst, src, nbytes)
                except ValueError as unknown:
                    error = code_of(unknown)
                if error:
                    self.fail("cuMemcpyHtoD", error)
                if self.streams.apart:
                    # It returns when pageable memory was read, which may be before the device has it. Streams that wait for
                    # the legacy stream cannot tell; where there are others the copy has to be waited for.
                    self.stream_synchronize(stream)
                return False
            try:
                (error,) = _download(dst, src, nbytes)
            except ValueError as unknown:
                error = code_of(unknown)
            if error:
                self.fail("cuMemcpyDtoH", error)
            return False
        on = self.streams[stream]
        if kind is _H2D:
            (error,) = cu.cuMemcpyHtoDAsync(dst, src, nbytes, on)
        elif kind is _D2H:
            (error,) = cu.cuMemcpyDtoHAsync(dst, src, nbytes, on)
        else:
            (error,) = cu.cuMemcpyDtoDAsync(dst, src, nbytes, on)
        if error:
            self.fail(f"cuMemcpy{ {_H2D: 'HtoD', _D2H: 'DtoH'}.get(kind, 'DtoD') }Async", error)
        if blocking:
            self.stream_synchronize(stream)
            return False
        return kind is not CopyKind.D2D

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        """Store values of 8, 16 or 32 bits."""
        call = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}[width]
        (error,) = call(dst, value, count, self.streams[stream])
        if error:
            self.fail(f"cuMemsetD{8 * width}Async", error)

    # -- streams and events --------------------------------------------------------------------------------------------

    def stream_create(self, priority: int, non_blocking: bool) -> int:
        """A new stream."""
        made = self.check("cuStreamCreateWithPriority", cu.cuStreamCreateWithPriority(int(non_blocking), priority))
        handle = int(made)
        self.streams[handle] = made
        self.streams.apart |= non_blocking
        return handle

    def stream_destroy(self, stream: int) -> None:
        """Destroy; the driver finishes what is on it."""
        self.check("cuStreamDestroy", cu.cuStreamDestroy(self.streams.take(stream)))

    def stream_synchronize(self, stream: int) -> None:
        """Wait for the stream; the binding releases the GIL."""
        (error,) = cu.cuStreamSynchronize(self.streams[stream])
        if error:
            self.fail("cuStreamSynchronize", error)

    def stream_query(self, stream: int) -> bool:
        """Whether the stream is done."""
        return self.ready("cuStreamQuery", cu.cuStreamQuery(self.streams[stream])[0])

    def stream_wait(self, stream: int, event: int) -> None:
        """Make the stream wait for the event."""
        on = self.streams[stream]
        self.check("cuStreamWaitEvent", cu.cuStreamWaitEvent(on, self.events[event], 0))

    def event_create(self, timing: bool) -> int:
        """A new event."""
        made = self.check("cuEventCreate", cu.cuEventCreate(0 if timing else 2))
        handle = int(made)
        self.events[handle] = made
        return handle

    def event_destroy(self, event: int) -> None:
        """Destroy an event."""
        self.check("cuEventDestroy", cu.cuEventDestroy(self.events.take(event)))

    def event_record(self, event: int, stream: int) -> None:
        """Capture what is on the stream."""
        (error,) = cu.cuEventRecord(self.events[event], self.streams[stream])
        if error:
            self.fail("cuEventRecord", error)

    def event_query(self, event: int) -> bool:
        """Whether the captured work is done, as far as may be known."""
        try:
            (error,) = unseen(_event_query, self.events[event])
        except ValueError as unknown:
            error = code_of(unknown)
        if not error:
            return True
        if int(error) not in (
            NOT_READY,
            CAPTURE_UNSUPPORTED,
        ):  # it is asked by the way, when something else is to be done
            self.fail_event("cuEventQuery", error)
        return False

    def event_synchronize(self, event: int) -> None:
        """Wait for the captured work."""
        (error,) = unseen(cu.cuEventSynchronize, self.events[event])
        if error:
            self.fail_event("cuEventSynchronize", error)

    def event_elapsed(self, start: int, end: int) -> float:
        """Milliseconds between two events."""
        return float(self.check("cuEventElapsedTime", cu.cuEventElapsedTime(self.events[start], self.events[end])))

    def synchronize(self) -> None:
        """Wait for the whole device."""
        self.check("cuCtxSynchronize", cu.cuCtxSynchronize())

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of code, of the pool and of the primary context.

        While host memory that came from it is still in somebody's hands the context is kept: releasing the last reference
        would unmap buffers that ndarrays point to.
        """
        pool, self.pool = self.pool, None
        said = () if self.lost is None else (BackendError,)  # everything fails then
        try:
            with suppress(*said):
                if self.modules:
                    token = self.enter()
                    try:
                        self.unload_all()
                    finally:
                        self.exit(token)
                if pool is not None:
                    self.check("cuMemPoolDestroy", cu.cuMemPoolDestroy(pool))
        finally:
            with suppress(*said):
                if not self.host_blocks:
                    self.check("cuDevicePrimaryCtxRelease", cu.cuDevicePrimaryCtxRelease(self.device))

    def _make_pool(self) -> None:
        """A pool of our own: the device's default pool is shared, and its threshold is everybody's."""
        if not self.info.facts["memory_pools"]:
            return
        properties = cu.CUmemPoolProps()
        properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.ordinal
        self.pool = self.check("cuMemPoolCreate", cu.cuMemPoolCreate(properties))
        self.pool_threshold(KEEP_EVERYTHING)
