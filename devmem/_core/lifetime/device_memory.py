"""The memory of one open device: what is allocated on it, given back to it, and left when it is closed.

`InstalledStacks` says which memory stack serves a request, `Recovery` what happens when memory runs out.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

from contextlib import suppress

from ...spi.errors import BackendError
from ...spi.types import LEGACY_STREAM, AllocFlags, Capability, HostMemoryInfo, MemoryInfo, MemoryKind
from ...toolkit.deferred_errors import FirstError
from ..base.device_handle import CurrentDevice, DeviceHandle
from ..memory.adaptor import cached_in, chain
from ..memory.heap import Block, Heap
from ..ordering.stream import Stream
from ..stacks.installed import InstalledStacks
from .allocation import Allocation, ForeignAllocation, owned
from .deferred_free import DeferredFreeQueue
from .recovery import Recovery


class DeviceMemory:
    """Allocate for one open device."""

    def __init__(self, handle: DeviceHandle, queue: DeferredFreeQueue) -> None:
        self.handle = handle
        self.queue = queue
        #: The class of allocations that are freed when they are dropped.
        self.owned = owned(handle.dropped)
        lock, own_handles = queue.completions.events.lock, queue.streams.own_handles
        self.stacks = InstalledStacks(handle, lock, self.usage, own_handles)
        self.recovery = Recovery(handle, queue, self.stacks, self.memory_info)
        #: Whether memory has come back since the stacks of the closed device were trimmed.
        self._to_trim = False

    # -- allocating ----------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: Stream, unnamed: bool = False, heap: Heap | None = None) -> Allocation:
        """Memory of a heap, usable on the stream from now on; the device is entered, and the size is not zero.

        ``unnamed``: the user named no stream, so the memory is there for every stream. ``heap``: of the device memory in force,
        if none is given.

        Raises
        ------
        OutOfMemory
            It does not fit, after everything that could be given back was given back.
        """
        if heap is None:
            stacks = self.stacks
            heap = stacks.heap_in_force() if self.handle.scopes else stacks.heap
            if stream.recorder is not None:
                heap = stream.recorder.heap
        queue = self.queue
        if queue.dropped or queue.completions.in_flight:
            queue.free_if_due()
        made: Allocation = object.__new__(Allocation)  # as its constructor does, which is one more call for every array
        made.queue, made.device_handle, made.heap, made.home = queue, queue.handle, heap, stream
        made.ptr, made.nbytes, made.place, made.unnamed = 0, nbytes, 0, unnamed
        made.streams, made.freed = None, False
        try:
            made.ptr = heap.allocate(nbytes, stream.handle)
        except MemoryError as error:
            made.ptr = self.recovery.recover(heap, nbytes, stream, error)
        except BackendError:
            with suppress(BackendError):  # the first one is to be told
                stream.check_not_captured(
                    "new memory of the driver: make the array before, or from a pool that has room"
                )
            raise
        made.__class__ = (
            self.owned
        )  # first: of a live block on the host an array may be about, so its end alone gives it back
        heap.live.enter(made)
        return made

    def allocate_host(
        self, nbytes: int, kind: MemoryKind, flags: AllocFlags, stream: Stream, pooled: bool = False
    ) -> Allocation:
        """Memory that the host can see, of a kind and with flags; freed through the queue. The device is entered.

        Where no stack is installed for the kind it is plain memory; or, ``pooled``, from the device's pool of page-locked memory.
        """
        stacks = self.stacks
        heap = stacks.current_heap(kind)
        # A stack hands out one sort of memory, whatever is asked: that of the resource at its bottom.
        if heap is not None and flags & ~(
            getattr(chain(heap.resource)[-1], "flags", AllocFlags.NONE) | AllocFlags.FINE
        ):
            heap = None
        if heap is None:
            heap = stacks.bind(stacks.resource("pinned_pool", kind), kind) if pooled else stacks.plain_heap(kind, flags)
        return self.allocate(nbytes, stream, heap=heap)

    def empty_allocation(self, stream: Stream) -> Allocation:
        """The allocation of an array without elements: no memory, address 0."""
        return Allocation(self.queue, self.stacks.heap, 0, 0, stream)

    def foreign(
        self, ptr: int, nbytes: int, owner: object, ready: Stream | None = None, read_only: bool = False
    ) -> ForeignAllocation:
        """Memory of another library, which ``owner`` keeps alive."""
        return ForeignAllocation(self.queue, self.stacks.heap, ptr, nbytes, owner, ready, read_only)

    def recover(self, nbytes: int, stream: Stream, first: MemoryError) -> int:
        """Answer the compiled core's failing allocation: the address, after one more attempt, or the error."""
        if self.queue.dropped:
            self.queue.free_if_due()  # the core counts what was dropped, and leaves it where it is
        return self.recovery.recover(self.stacks.heap, nbytes, stream, first)

    # -- what there is -------------------------------------------------------------------------------------------------

    def memory_info(self) -> MemoryInfo:
        """Bytes free and in all as the driver says; live, pending and cached as devmem counts."""
        with CurrentDevice(self.handle) as driver:
            free, total = driver.memory_info()
            return MemoryInfo(free, total, *self.held(on_host=False), HostMemoryInfo(*self.held(on_host=True)))

    def held(self, on_host: bool) -> tuple[int, int, int]:
        """Bytes live, pending and cached of the device's memory, or of the host's; the device is entered."""
        heaps = [heap for heap in self.stacks.all_heaps() if heap.is_host == on_host]
        waiting = [
            item for item in (*list(self.queue.dropped), *list(self.queue.pending)) if isinstance(item, Allocation)
        ]
        pending = sum(item.nbytes for item in waiting if item.heap.is_host == on_host)
        live = sum(heap.live.nbytes for heap in heaps)
        return max(live - pending, 0), pending, cached_in(each.resource for each in heaps)  # while other threads go on

    def usage(self, free_dropped: bool) -> tuple[int, int]:
        """The bytes that are in use; and those with what is cached, less what is free. One falls where memory is freed.

        ``free_dropped``: after what was dropped has been freed, behind the work that uses it. A memory stack is given this when
        it is bound, for a program that makes room: see `OnOutOfMemory`.
        """
        if free_dropped and self.queue.drain():
            self.recovery.wait_for_device()
            self.queue.drain()
        free, _ = self.handle.driver.memory_info()
        (live, pending, cached), of_host = self.held(on_host=False), self.held(on_host=True)
        in_use = live + pending + of_host[0] + of_host[1]
        return in_use, in_use + cached + of_host[2] - free

    def trim(self, keep_bytes: int) -> None:
        """Free what is pending, then let every heap give back what it caches.

        What is freed in the order of a stream can be given back when the stream has passed that: it is waited for, except where
        the stream would wait for work that runs or is held back.
        """
        self._trim(keep_bytes)
        if self.queue.dropped:  # an interrupted call of a stack, which is over only now, had kept it
            self._trim(keep_bytes)

    def _trim(self, keep_bytes: int) -> None:
        queue = self.queue
        queue.release_foreign()
        queue.completions.poll()
        # Where functions of the host run on streams, a wait raises what they have failed with, which belongs to another caller.
        waits = not self.handle.has(Capability.HOST_FUNCTION)
        ordered = waits and any(heap.ordered for heap in self.stacks.heaps) and not queue.is_held()
        idle = queue.streams.idle() - self._homes_held_back() if ordered else ()
        in_use = queue.drain()
        if queue.dropped:
            in_use = queue.drain()  # streams that only the blocks just freed had kept
        if idle:
            queue.streams.synchronize(idle)
        if in_use:
            queue.drain()  # streams that had to pass the frees that were enqueued on them
        with FirstError() as first:
            for heap in list(self.stacks.heaps):
                first.attempt(heap.trim, keep_bytes)  # the other stacks must still give back
            self.stacks.trim_forgotten(first, keep_bytes)
            queue.completions.events.drop_spare()

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything that came from the device, referenced or not; the device is idle and entered.

        Memory that the host can see is left alone while anything refers to it: an ndarray cannot be told that its buffer is gone.
        So is memory that was lent to another library. Both are freed by `take_back_lent` when they have been dropped.
        """
        with FirstError() as first:  # whatever fails, the rest must still be given back
            for item in self.queue.take_all():
                first.attempt(item.release_at_close)
            self.keep_host_memory()
            for heap in self.stacks.heaps:
                for ptr, nbytes, place in heap.live.blocks():
                    if ptr not in heap.lent:
                        first.attempt(heap.give_back, Block(ptr, nbytes, place), LEGACY_STREAM)
                first.attempt(heap.trim, 0)
            self.stacks.trim_forgotten(first, 0)

    def keep_host_memory(self) -> None:
        """Count live memory that the host can see as lent; the device is being closed."""
        for heap in self.stacks.all_heaps():
            if heap.kind is not MemoryKind.DEVICE:
                heap.lent.update(ptr for ptr, _, _ in heap.live.blocks())

    def lose(self) -> None:
        """Forget all memory of the device, which was lost, except what the host can see."""
        for heap in self.stacks.heaps:
            if heap.kind is MemoryKind.DEVICE:
                heap.live.clear()
                heap.lent.clear()
        self.keep_host_memory()

    def take_back_lent(self, lost: bool) -> None:
        """Free what was lent when the device was closed, and has been dropped since.

        The device is entered; it is ``lost`` where it cannot be, and then ends all its memory when its driver is closed.
        """
        with FirstError() as first:  # whatever fails, the rest must still be given back
            for item in self.queue.take_all():
                if isinstance(item, Allocation):
                    if lost:
                        item.heap.lent.discard(item.ptr)
                    else:
                        self._to_trim = True
                        first.attempt(item.heap.give_back, item, LEGACY_STREAM)  # its stream was destroyed
            if self._to_trim and not lost:
                for heap in self.stacks.heaps:
                    first.attempt(heap.trim, 0)
                self._to_trim = False  # a stack that has failed may fail for good: its memory may have been ended

    def lent_blocks(self) -> int:
        """Count the blocks that the host, or another library, may still use."""
        return sum(len(heap.lent) for heap in self.stacks.all_heaps())

    def _homes_held_back(self) -> set[int]:
        """Handles of streams on which dropped blocks will be freed behind work of other streams that has not passed."""
        queue = self.queue
        waiting = [each for each in (*queue.dropped, *queue.pending) if isinstance(each, Allocation)]
        with queue.streams.leases.hold():
            return {each.home.order_handle() for each in waiting if each.streams and not each.has_passed()}
