"""The memory of one open device: which stack serves a request, and what happens when memory runs out.

A stack (a memory resource with all that it stands on) is bound to the device once and becomes a heap. `install` makes a
heap the one that the whole device allocates from; ``with use_memory(...)`` puts one in force for a thread or task. A
block goes back to the heap that made it, so stacks may change at any time.

Out of memory is answered in one place (`_recover`): free what was dropped, wait for the device, collect garbage once,
free and wait again, give back what every stack caches, try once more; then the error says where the memory is.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from ...spi.errors import DevmemError, DevmemWarning, OutOfMemory
from ...spi.memory import MemoryResource
from ...spi.types import LEGACY_STREAM, AllocFlags, MemoryInfo, MemoryKind
from ...toolkit.deferred_errors import FirstError
from ..base.device_handle import CurrentDevice, DeviceHandle
from ..base.scopes import Scope
from ..memory import default_host_resource, default_resource, of_kind, prepare, resource_of
from ..memory.adaptor import cached_in, chain
from ..memory.heap import Block, Heap
from ..ordering.stream import Stream
from .allocation import Allocation, ForeignAllocation
from .deferred_free import DeferredFreeQueue

#: The heaps that ``with use_memory()`` has put in force, by device memory and kind, in this thread or task.
_scoped: ContextVar[dict[tuple[DeviceMemory, MemoryKind], Heap] | None] = ContextVar("devmem_heaps", default=None)
#: Installed stacks that `uninstall` can still uncover, besides the first.
REMEMBERED = 6


class DeviceMemory:
    """Allocate for one open device.

    Attributes
    ----------
    heaps : list of Heap
        Every heap that something comes from, or that caches memory.
    heap : Heap
        The one that device memory comes from where no scope says otherwise.
    trim_others : list of callable
        What else gives back cached memory when memory runs out, with a name for the message.
    """

    def __init__(self, handle: DeviceHandle, queue: DeferredFreeQueue) -> None:
        self.handle = handle
        self.queue = queue
        self.heaps: list[Heap] = []
        self.trim_others: list[tuple[str, Callable[[], object]]] = []
        self._lock = threading.RLock()
        self._named: dict[tuple[MemoryKind, str], MemoryResource] = {}
        #: How many ``with use_memory()`` blocks are open on the device.
        self._scopes = 0
        #: Plain memory that the host can see, for requests that no stack serves.
        self._host_heaps: dict[tuple[MemoryKind, AllocFlags], Heap] = {}
        self.heap = self.bind(default_resource(handle, self._named))
        #: Stacks of each kind in the order in which they were installed; the last is in force.
        self._installed: dict[MemoryKind, list[Heap]] = {MemoryKind.DEVICE: [self.heap]}

    # -- stacks --------------------------------------------------------------------------------------------------------

    def resource(self, what: object, kind: MemoryKind = MemoryKind.DEVICE) -> MemoryResource:
        """The resource that an argument means: an instance, or a stack as text, which is built once for the device."""
        return resource_of(what, self.handle, self._named, kind)

    def bind(self, resource: MemoryResource, kind: MemoryKind = MemoryKind.DEVICE) -> Heap:
        """Make a heap of a resource, once for each resource and kind of memory that it serves."""
        with self._lock:
            for heap in self.heaps:
                if heap.resource is resource and heap.kind is kind:
                    return heap
            heap = Heap(self.handle, prepare(resource, self.handle), kind)
            if self.heaps:
                self.forget_idle_heaps()
            self.heaps.append(heap)
            return heap

    def forget_idle_heaps(self) -> None:
        """Drop heaps that nothing comes from any more; those in use, or with cached memory, stay."""
        if self.handle.dead is None:
            with CurrentDevice(self.handle), self._lock:
                chosen = [heap for installed in self._installed.values() for heap in installed]
                self.heaps = [e for e in self.heaps if e in chosen or e.scopes or e.live or e.cached_bytes]

    def install(self, heap: Heap) -> None:
        """Make a heap the one that the whole device allocates its kind of memory from."""
        with self._lock:
            self._remember(heap)
            before = self.installed(heap.kind)
            # The first is what the device had to begin with; those between it and the last few cannot be uncovered any more.
            self._installed[heap.kind] = [*before[:1], *before[1:][-REMEMBERED:], heap]
            self.heap = self._installed[MemoryKind.DEVICE][-1]

    def uninstall(self, heap: Heap) -> None:
        """Take back one `install`, in any order; nothing, if later ones have pushed it out."""
        with self._lock:
            self._remember(heap)
            installed = self.installed(heap.kind)
            first = 1 if heap.kind is MemoryKind.DEVICE else 0
            places = [at for at, other in enumerate(installed) if other is heap and at >= first]
            if places:
                del installed[places[-1]]
            self.heap = self._installed[MemoryKind.DEVICE][-1]

    def has_installed(self) -> bool:
        """Whether a stack was installed for device memory since the device was opened."""
        return len(self._installed[MemoryKind.DEVICE]) > 1

    def current_heap(self, kind: MemoryKind = MemoryKind.DEVICE) -> Heap | None:
        """The heap that memory of a kind comes from, on this thread or task; None where no stack is installed for the kind."""
        if self._scopes:
            chosen = (_scoped.get() or {}).get((self, kind))
            if chosen is not None and chosen.scopes:  # a task that was begun in a block may go on after its end
                return chosen
        if kind is MemoryKind.DEVICE:
            return self.heap
        installed = self.installed(kind)
        return installed[-1] if installed else None

    # -- allocating ----------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: Stream, unnamed: bool = False) -> Allocation:
        """Device memory, usable on the stream from now on; the device is entered, and the size is not zero.

        ``unnamed``: the user named no stream, so the memory is there for every stream.

        Raises
        ------
        OutOfMemory
            It does not fit, after everything that could be given back was given back.
        """
        heap = (self.current_heap() if self._scopes else None) or self.heap
        return self._allocate(heap, nbytes, stream, unnamed)

    def allocate_host(
        self, nbytes: int, kind: MemoryKind, flags: AllocFlags, stream: Stream, pooled: bool = False
    ) -> Allocation:
        """Memory that the host can see, of a kind and with flags; freed through the queue. The device is entered.

        Where no stack is installed for the kind it is plain memory; or, ``pooled``, from the device's pool of page-locked memory.
        """
        heap = self.current_heap(kind)
        # A stack hands out one sort of memory, whatever is asked: that of the resource at its bottom.
        if heap is not None and flags & ~(
            getattr(chain(heap.resource)[-1], "flags", AllocFlags.NONE) | AllocFlags.FINE
        ):
            heap = None
        if heap is None:
            heap = self.bind(self.resource("pinned_pool", kind), kind) if pooled else self._plain_heap(kind, flags)
        return self._allocate(heap, nbytes, stream, False)

    def nothing(self, stream: Stream) -> Allocation:
        """The allocation of an array without elements: no memory, address 0."""
        return Allocation(self.queue, self.heap, 0, 0, stream)

    def foreign(
        self, ptr: int, nbytes: int, owner: object, ready: Stream | None = None, read_only: bool = False
    ) -> ForeignAllocation:
        """Memory of another library, which ``owner`` keeps alive."""
        return ForeignAllocation(self.queue, self.heap, ptr, nbytes, owner, ready, read_only)

    def _allocate(self, heap: Heap, nbytes: int, stream: Stream, unnamed: bool) -> Allocation:
        queue = self.queue
        if queue.dropped or queue.completions.busy:
            queue.safe_point()
        ptr = 0
        try:
            try:
                [ptr] = map(heap.allocate, (nbytes,), (stream.handle,))  # no interrupt comes before it is stored
            except MemoryError as error:
                [ptr] = map(self._recover, (heap,), (nbytes,), (stream,), (error,))
            heap.live[ptr] = nbytes
            return Allocation(queue, heap, ptr, nbytes, stream, unnamed)
        except BaseException:
            # If there was an allocation already, it is among the dropped.
            if ptr and all(
                item.ptr != ptr for item in [*queue.dropped, *queue.pending] if isinstance(item, Allocation)
            ):
                heap.live[ptr] = nbytes
                heap.give_back(Block(ptr, nbytes), stream.handle)
            raise

    # -- what there is -------------------------------------------------------------------------------------------------

    def memory_info(self) -> MemoryInfo:
        """Bytes free and in all as the driver says; live, pending and cached as devmem counts."""
        with CurrentDevice(self.handle) as driver:
            free, total = driver.memory_info()
            cached = cached_in(each.resource for each in self.heaps)
        live = sum(sum(list(heap.live.values())) for heap in self.all_heaps())
        pending = self.queue.waiting_bytes()
        return MemoryInfo(free, total, live - pending, pending, cached)

    def all_heaps(self) -> list[Heap]:
        """The heaps of device memory and of memory that the host can see."""
        return [*self.heaps, *self._host_heaps.values()]

    def trim(self, keep_bytes: int) -> None:
        """Free what is pending, then let every heap give back what it caches."""
        queue = self.queue
        queue.release_foreign()
        queue.completions.poll()
        queue.drain()
        if queue.dropped:
            queue.drain()  # streams that only the blocks just freed had kept
        for heap in self.heaps:
            heap.trim(keep_bytes)
        queue.completions.events.drop_spare()

    def forget_stream(self, stream: int) -> None:
        """Tell every stack that a stream is about to be destroyed."""
        for heap in list(self.heaps):
            heap.forget_stream(stream)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything that came from the device, referenced or not; the device is idle and entered.

        Memory that the host can see is left alone while anything refers to it: an ndarray cannot be told that its buffer is gone.
        So is memory that was lent to another library. Both are freed by `take_back_lent` when they have been dropped.
        """
        with FirstError() as first:

            def attempt(step: Callable[..., object], *arguments: object) -> None:
                try:
                    step(*arguments)
                except Exception as error:  # the rest must still be given back; a plugin's resource may raise anything
                    first.put(error)

            for item in self.queue.take_all():
                attempt(item.release_at_close)
            self.keep_host_memory()
            for heap in self.heaps:
                for ptr, nbytes in list(heap.live.items()):
                    if ptr not in heap.lent:
                        attempt(heap.give_back, Block(ptr, nbytes), LEGACY_STREAM)
                attempt(heap.trim, 0)

    def keep_host_memory(self) -> None:
        """Count live memory that the host can see as lent; the device is being closed."""
        for heap in self.all_heaps():
            if heap.kind is not MemoryKind.DEVICE:
                heap.lent.update(heap.live)

    def lose(self) -> None:
        """Forget all memory of the device, which was lost, except what the host can see."""
        for heap in self.heaps:
            if heap.kind is MemoryKind.DEVICE:
                heap.live.clear()
                heap.lent.clear()
        self.keep_host_memory()

    def take_back_lent(self, lost: bool) -> None:
        """Free what was lent when the device was closed, and has been dropped since.

        The device is entered; it is ``lost`` where it cannot be, and then ends all its memory when its driver is closed.
        """
        for item in self.queue.take_all():
            if isinstance(item, Allocation):
                if lost:
                    item.heap.lent.discard(item.ptr)
                else:
                    item.heap.give_back(item, LEGACY_STREAM)  # its stream was destroyed
        for heap in self.heaps if not lost else ():
            heap.trim(0)

    def lent_blocks(self) -> int:
        """How many blocks the host, or another library, may still use."""
        return sum(len(heap.lent) for heap in self.all_heaps())

    # -- below ---------------------------------------------------------------------------------------------------------

    def _remember(self, heap: Heap) -> None:
        """Count a heap among the device's: it may have been forgotten as idle between being made and being installed."""
        if heap not in self.heaps:
            self.heaps.append(heap)

    def installed(self, kind: MemoryKind) -> list[Heap]:
        """The stacks that are installed for a kind; the one that the settings name is the first, looked up at first use."""
        found = self._installed.get(kind)
        if found is None:
            with self._lock:
                resource = default_host_resource(self.handle, self._named, kind)
                found = self._installed.setdefault(kind, [] if resource is None else [self.bind(resource, kind)])
        return found

    def _plain_heap(self, kind: MemoryKind, flags: AllocFlags) -> Heap:
        heap = self._host_heaps.get((kind, flags))
        if heap is None:
            resource = prepare(of_kind(kind, flags), self.handle)
            heap = self._host_heaps.setdefault((kind, flags), Heap(self.handle, resource, kind))
        return heap

    def _recover(self, heap: Heap, nbytes: int, stream: Stream, first: MemoryError) -> int:
        """Make room and try once more; while a graph is captured nothing may be freed, and the answer is the error."""
        if isinstance(first, OutOfMemory) or not isinstance(first, DevmemError):
            queue = self.queue
            if queue.streams.any_capturing():
                raise self._out_of_memory(heap, nbytes, first, capturing=True) from first
            queue.drain()
            self._wait_for_device()
            gc.collect()  # also what completed copies held until then
            queue.drain()
            self._wait_for_device()  # memory that was freed in stream order can be trimmed when its stream has passed
            self._trim_everything()
            try:
                return heap.allocate(nbytes, stream.handle)
            except MemoryError as second:
                raise self._out_of_memory(heap, nbytes, second, capturing=False) from first
        try:
            raise first
        finally:
            del first  # or its traceback and this frame would keep each other, and the caller's arrays

    def _out_of_memory(self, heap: Heap, nbytes: int, cause: MemoryError, capturing: bool) -> OutOfMemory:
        from .oom import out_of_memory  # with the statistics that it asks: only where memory has run out

        return out_of_memory(self.queue, self.all_heaps(), self.memory_info(), heap, nbytes, cause, capturing)

    def _trim_everything(self) -> None:
        steps: list[tuple[str, Callable[[], object]]] = [
            (repr(heap.resource), partial(heap.trim, 0)) for heap in list(self.heaps)
        ]
        for what, trim in [*steps, *self.trim_others]:
            try:
                trim()
            except Exception as error:  # one stack that fails must not keep the memory of the others
                warnings.warn(f"while trimming {what}: {error}", DevmemWarning, stacklevel=5)

    def _wait_for_device(self) -> None:
        self.handle.driver.synchronize()
        self.queue.completions.poll()


class MemoryScope(Scope[Any]):
    """A stack for one kind of memory: for every thread from the call on; in ``with``, for this thread or task alone."""

    __slots__ = ("heap", "memory")

    def __init__(self, memory: DeviceMemory, heap: Heap) -> None:
        self.memory = memory
        self.heap = heap
        memory.install(heap)
        super().__init__(heap.resource, lambda: None)

    def __enter__(self) -> Any:
        resource = super().__enter__()
        self.heap.scopes += 1  # first, or another thread may take the heap for an idle one
        self.memory.uninstall(self.heap)
        before = _scoped.get()
        _scoped.set({**(before or {}), (self.memory, self.heap.kind): self.heap})
        self.memory._scopes += 1
        self._undo = lambda: self._leave(before)
        return resource

    def _leave(self, before: dict[tuple[DeviceMemory, MemoryKind], Heap] | None) -> None:
        _scoped.set(before)
        self.memory._scopes -= 1
        self.heap.scopes -= 1
        self.memory.forget_idle_heaps()
