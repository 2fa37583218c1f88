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
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any

from ...spi.driver import Driver
from ...spi.errors import DevmemError, DevmemWarning, OutOfMemory
from ...spi.memory import MemoryResource
from ...spi.types import LEGACY_STREAM, AllocFlags, Capability, HostMemoryInfo, MemoryInfo, MemoryKind
from ...toolkit.deferred_errors import FirstError
from ..base.changes import Changes
from ..base.device_handle import CurrentDevice, DeviceHandle, without_own_frames
from ..base.interrupts import CannotWait
from ..base.scopes import Scope, ScopeVariable, deferral
from ..memory import default_host_resource, default_resource, of_kind, prepare, resource_of
from ..memory.adaptor import cached_in, chain, kept_by, part_with, stream_tables
from ..memory.foreign import is_ours, tell
from ..memory.heap import Block, Heap
from ..ordering.stream import Stream
from .allocation import Allocation, ForeignAllocation, owned
from .deferred_free import DeferredFreeQueue

#: The heaps that ``with use_memory()`` has put in force in this thread or task, and whose they are.
stacks_of_blocks: ScopeVariable[tuple[DeviceMemory, Heap] | None] = ScopeVariable("devmem_heaps", None)
#: Installed stacks that `uninstall` can still uncover, besides the first.
REMEMBERED = 6


class DeviceMemory:
    """Allocate for one open device.

    Attributes
    ----------
    heaps : list of Heap
        Every heap that something comes from, or that caches memory. It is replaced, never changed.
    heap : Heap
        The one that device memory comes from where no scope says otherwise.
    trim_others : list of callable
        What else gives back cached memory when memory runs out, with a name for the message.
    """

    def __init__(self, handle: DeviceHandle, queue: DeferredFreeQueue) -> None:
        self.handle = handle
        self.queue = queue
        #: The class of allocations that are freed when they are dropped.
        self.owned = owned(handle.dropped)
        self.heaps: list[Heap] = []
        #: What the stacks know of streams, for the compiled core: a stream that is in none of these tables may end untold.
        self.stream_tables: tuple[dict[int, Any], ...] | None = ()
        self.trim_others: list[tuple[str, Callable[[], object]]] = []
        self._lock = queue.completions.events.lock
        #: Which call binds a resource for a kind of memory. One that was interrupted has gone from here.
        self._setting_up: dict[tuple[int, MemoryKind], weakref.ref[SettingUp]] = {}
        self._changes = Changes(self._lock)
        self._named: dict[tuple[MemoryKind, str], MemoryResource] = {}
        #: Resources without a heap: a block may have been on its way back to one as the heap was forgotten.
        self._forgotten: list[weakref.ref[Any]] = []
        #: Plain memory that the host can see, for requests that no stack serves.
        self._host_heaps: dict[tuple[MemoryKind, AllocFlags], Heap] = {}
        self.heap = handle.heap = self.bind(default_resource(handle, self._named))
        #: Stacks of each kind in the order in which they were installed; the last is in force.
        self._installed: dict[MemoryKind, list[Heap]] = {MemoryKind.DEVICE: [self.heap]}

    # -- stacks --------------------------------------------------------------------------------------------------------

    def resource(self, what: object, kind: MemoryKind = MemoryKind.DEVICE) -> MemoryResource:
        """The resource that an argument means: an instance, or a stack as text, which is built once for the device."""
        return resource_of(what, self.handle, self._named, kind)

    def bind(self, resource: MemoryResource, kind: MemoryKind = MemoryKind.DEVICE) -> Heap:
        """Make a heap of a resource, once for each resource and kind of memory that it serves.

        The resource's own ``bind`` is called without a lock. Another thread that wants the same resource waits for it.

        Raises
        ------
        CannotWait
            This is a signal's handler or a finalizer, and another thread binds the resource.
        """
        found = self._heap_of(resource, kind)
        if found is not None:
            return found
        if self.heaps:
            self.forget_idle_heaps()
        key, mine = (id(resource), kind), SettingUp()
        try:
            if not self._set_up(key, mine):
                self._changes.wait_until(partial(self._set_up, key, mine), "a memory stack that another thread sets up")
            found = self._heap_of(resource, kind)
            if found is None:
                made = Heap(self.handle, prepare(resource, self.handle, self.usage), kind)
                with self._lock:
                    found = self._heap_of(resource, kind) or made  # the resource may have bound itself
                    self._remember(found)
            return found
        finally:
            if (kept := self._setting_up.get(key)) is not None and kept() is mine:
                del self._setting_up[key]
                self._changes.tell()

    def _set_up(self, key: tuple[int, MemoryKind], mine: SettingUp) -> bool:
        """Let a call bind a resource, unless another thread does."""
        with self._lock:
            kept = self._setting_up.get(key)
            other = None if kept is None else kept()
            if other is None:
                self._setting_up[key] = weakref.ref(mine)
            return other is None or other.thread == mine.thread

    def _heap_of(self, resource: MemoryResource, kind: MemoryKind) -> Heap | None:
        return next((heap for heap in self.heaps if heap.resource is resource and heap.kind is kind), None)

    def _set_heaps(self, heaps: list[Heap]) -> None:
        known = [stream_tables(heap.resource) for heap in heaps]
        self.stream_tables = None  # until both are set; and if any stack has to be told of every stream
        self.heaps = heaps
        if None not in known:
            self.stream_tables = tuple(table for tables in known for table in tables or ())

    def forget_idle_heaps(self) -> None:
        """Drop heaps that nothing comes from any more; those in use, or with cached memory, stay.

        A resource that is dropped here may be bound again, but is not told of streams that are destroyed meanwhile.
        """
        if self.handle.dead is None:
            with CurrentDevice(self.handle):
                # Resources, which may be the program's own code, are asked without the lock.
                idle = [heap for heap in self._unused() if not heap.cached_bytes]
                if idle:
                    self._forget(idle)

    def _forget(self, idle: list[Heap]) -> None:
        for heap in idle:  # while they can be found: nothing binds their resources anew in between
            tell(part_with(heap.resource, "detach"), "detach", self.queue.streams.own_handles())
            with suppress(TypeError):  # of a third party, without weak references
                self._forgotten.append(weakref.ref(heap.resource))
        with self._lock:
            unused = self._unused()
            self._set_heaps([heap for heap in self.heaps if heap not in idle or heap not in unused])

    def _unused(self) -> list[Heap]:
        chosen = [heap for installed in list(self._installed.values()) for heap in installed]
        return [heap for heap in self.heaps if not (heap in chosen or heap.scopes or heap.live)]

    def install(self, heap: Heap) -> None:
        """Make a heap the one that the whole device allocates its kind of memory from."""
        self.installed(heap.kind)  # looks it up at first use, without the lock
        with self._lock:
            self._remember(heap)
            before = self.installed(heap.kind)
            # The first is what the device had to begin with; those between it and the last few cannot be uncovered any more.
            self._installed[heap.kind] = [*before[:1], *before[1:][-REMEMBERED:], heap]
            self.heap = self.handle.heap = self._installed[MemoryKind.DEVICE][-1]

    def uninstall(self, heap: Heap) -> None:
        """Take back one `install`, in any order; nothing, if later ones have pushed it out."""
        self.installed(heap.kind)
        with self._lock:
            self._remember(heap)
            installed = self.installed(heap.kind)
            first = 1 if heap.kind is MemoryKind.DEVICE else 0
            places = [at for at, other in enumerate(installed) if other is heap and at >= first]
            if places:
                del installed[places[-1]]
            self.heap = self.handle.heap = self._installed[MemoryKind.DEVICE][-1]

    def current_heap(self, kind: MemoryKind = MemoryKind.DEVICE) -> Heap | None:
        """The heap that memory of a kind comes from, on this thread or task; None where no stack is installed for the kind."""
        if self.handle.scopes:
            for memory, heap in filter(None, stacks_of_blocks.values()):
                if memory is self and heap.kind is kind:
                    return heap
        if kind is MemoryKind.DEVICE:
            return self.heap
        installed = self.installed(kind)
        return installed[-1] if installed else None

    def heap_in_force(self) -> Heap:
        """The heap that device memory comes from, on this thread or task."""
        return (self.current_heap() if self.handle.scopes else None) or self.heap

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
            heap = self.heap_in_force() if self.handle.scopes else self.heap
            if stream.recorder is not None:
                heap = stream.recorder.heap
        queue = self.queue
        if queue.dropped or queue.completions.in_flight:
            queue.free_if_due()
        made: Allocation = object.__new__(Allocation)  # as its constructor does, which is one more call for every array
        made.queue, made.device_handle, made.heap, made.home = queue, queue.handle, heap, stream
        made.ptr, made.nbytes, made.unnamed = 0, nbytes, unnamed
        made.streams, made.freed = None, False
        try:
            made.ptr = heap.allocate(nbytes, stream.handle)
        except MemoryError as error:
            made.ptr = self._recover(heap, nbytes, stream, error)
        heap.live[made.ptr] = nbytes
        made.__class__ = self.owned
        return made

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
        return self.allocate(nbytes, stream, heap=heap)

    def empty_allocation(self, stream: Stream) -> Allocation:
        """The allocation of an array without elements: no memory, address 0."""
        return Allocation(self.queue, self.heap, 0, 0, stream)

    def foreign(
        self, ptr: int, nbytes: int, owner: object, ready: Stream | None = None, read_only: bool = False
    ) -> ForeignAllocation:
        """Memory of another library, which ``owner`` keeps alive."""
        return ForeignAllocation(self.queue, self.heap, ptr, nbytes, owner, ready, read_only)

    def recover(self, nbytes: int, stream: Stream, first: MemoryError) -> int:
        """Answer the compiled core's failing allocation: the address, after one more attempt, or the error."""
        if self.queue.dropped:
            self.queue.free_if_due()  # the core counts what was dropped, and leaves it where it is
        return self._recover(self.heap, nbytes, stream, first)

    # -- what there is -------------------------------------------------------------------------------------------------

    def memory_info(self) -> MemoryInfo:
        """Bytes free and in all as the driver says; live, pending and cached as devmem counts."""
        with CurrentDevice(self.handle) as driver:
            free, total = driver.memory_info()
            return MemoryInfo(free, total, *self.held(on_host=False), HostMemoryInfo(*self.held(on_host=True)))

    def held(self, on_host: bool) -> tuple[int, int, int]:
        """Bytes live, pending and cached of the device's memory, or of the host's; the device is entered."""
        heaps = [heap for heap in self.all_heaps() if heap.is_host == on_host]
        waiting = [
            item for item in (*list(self.queue.dropped), *list(self.queue.pending)) if isinstance(item, Allocation)
        ]
        pending = sum(item.nbytes for item in waiting if item.heap.is_host == on_host)
        live = sum(sum(list(heap.live.values())) for heap in heaps)
        return max(live - pending, 0), pending, cached_in(each.resource for each in heaps)  # while other threads go on

    def all_heaps(self) -> list[Heap]:
        """The heaps of device memory and of memory that the host can see."""
        return [*self.heaps, *self._host_heaps.values()]

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
        ordered = waits and any(heap.ordered for heap in self.heaps) and not queue.is_held()
        idle = queue.streams.idle() - self._homes_held_back() if ordered else ()
        in_use = queue.drain()
        if queue.dropped:
            in_use = queue.drain()  # streams that only the blocks just freed had kept
        if idle:
            queue.streams.synchronize(idle)
        if in_use:
            queue.drain()  # streams that had to pass the frees that were enqueued on them
        with FirstError() as first:
            for heap in list(self.heaps):
                first.attempt(heap.trim, keep_bytes)  # the other stacks must still give back
            self._trim_forgotten(first, keep_bytes)
            queue.completions.events.drop_spare()

    def forget_stream(self, stream: int) -> None:
        """Tell every stack that a stream is about to be destroyed."""
        with FirstError() as first:
            for heap in list(self.heaps):
                try:
                    heap.forget_stream(stream)
                except CannotWait:  # all are told another time
                    raise
                except Exception as error:  # the others must be told, too
                    first.put(error)

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
            for heap in self.heaps:
                for ptr, nbytes in list(heap.live.items()):
                    if ptr not in heap.lent:
                        first.attempt(heap.give_back, Block(ptr, nbytes), LEGACY_STREAM)
                first.attempt(heap.trim, 0)
            self._trim_forgotten(first, 0)

    def _trim_forgotten(self, first: FirstError, keep_bytes: int) -> None:
        self._forgotten[:] = filter(weakref.ref.__call__, self._forgotten)
        for each in list(self._forgotten):
            if kept_by(resource := each()):
                first.attempt(tell, resource, "trim", keep_bytes)

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
        with FirstError() as first:  # whatever fails, the rest must still be given back
            for item in self.queue.take_all():
                if isinstance(item, Allocation):
                    if lost:
                        item.heap.lent.discard(item.ptr)
                    else:
                        first.attempt(item.heap.give_back, item, LEGACY_STREAM)  # its stream was destroyed
            for heap in self.heaps if not lost else ():
                first.attempt(heap.trim, 0)

    def unbind(self, driver: Driver) -> None:
        """Let each stack go that is bound to the driver, which has all its memory back: it may be bound anew.

        Not one with a part of a third party, which may keep addresses of the device that was closed.
        """
        resources = [heap.resource for heap in self.all_heaps()] + [each() for each in self._forgotten]
        for parts in map(chain, resources):
            for part in parts if all(map(is_ours, parts)) else ():
                if getattr(part, "driver", None) is driver and hasattr(part, "unbind"):
                    part.unbind()

    def lent_blocks(self) -> int:
        """Count the blocks that the host, or another library, may still use."""
        return sum(len(heap.lent) for heap in self.all_heaps())

    # -- below ---------------------------------------------------------------------------------------------------------

    def _remember(self, heap: Heap) -> None:
        """Count a heap among the device's: it may have been forgotten as idle between being made and being installed."""
        if heap not in self.heaps:
            self._set_heaps([*self.heaps, heap])

    def installed(self, kind: MemoryKind) -> list[Heap]:
        """The stacks that are installed for a kind; the one that the settings name is the first, looked up at first use."""
        found = self._installed.get(kind)
        if found is None:
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
                raise self._out_of_memory(heap, nbytes, first, capturing=True) from without_own_frames(first)
            queue.drain()
            self._wait_for_device()
            gc.collect()  # also what completed copies held until then
            queue.drain()
            self._wait_for_device()  # memory that was freed in stream order can be trimmed when its stream has passed
            self._trim_everything()
            try:
                return heap.allocate(nbytes, stream.handle)
            except MemoryError as second:
                raise self._out_of_memory(heap, nbytes, second, capturing=False) from without_own_frames(first)
        try:
            raise first
        finally:
            del first  # or its traceback and this frame would keep each other, and the caller's arrays

    def usage(self, free_dropped: bool) -> tuple[int, int]:
        """The bytes that are in use; and those with what is cached, less what is free. One falls where memory is freed.

        ``free_dropped``: after what was dropped has been freed, behind the work that uses it. A memory stack is given this when
        it is bound, for a program that makes room: see `OnOutOfMemory`.
        """
        if free_dropped and self.queue.drain():
            self._wait_for_device()
            self.queue.drain()
        free, _ = self.handle.driver.memory_info()
        (live, pending, cached), of_host = self.held(on_host=False), self.held(on_host=True)
        in_use = live + pending + of_host[0] + of_host[1]
        return in_use, in_use + cached + of_host[2] - free

    def _out_of_memory(self, heap: Heap, nbytes: int, cause: MemoryError, capturing: bool) -> OutOfMemory:
        from .oom import out_of_memory  # with the statistics that it asks: only where memory has run out

        text = next((text for (_, text), resource in self._named.items() if resource is heap.resource), "")
        return out_of_memory(self.queue, self.all_heaps(), self.memory_info(), heap, nbytes, cause, capturing, text)

    def _trim_everything(self) -> None:
        steps: list[tuple[str, Callable[[], object]]] = [
            (repr(heap.resource), partial(heap.trim, 0)) for heap in list(self.heaps)
        ]
        for what, trim in [*steps, *self.trim_others]:
            try:
                trim()
            except Exception as error:  # one stack that fails must not keep the memory of the others
                warnings.warn(f"while trimming {what}: {error}", DevmemWarning, stacklevel=5)

    def _homes_held_back(self) -> set[int]:
        """Handles of streams on which dropped blocks will be freed behind work of other streams that has not passed."""
        queue = self.queue
        waiting = [each for each in (*queue.dropped, *queue.pending) if isinstance(each, Allocation)]
        with queue.streams.leases.hold():
            return {each.home.order_handle() for each in waiting if each.streams and not each.has_passed()}

    def _wait_for_device(self) -> None:
        self.handle.driver.synchronize()
        self.queue.completions.poll()


class SettingUp:
    """One call that binds a resource."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()


class MemoryScope(Scope[Any]):
    """A stack for one kind of memory: for every thread from the call on; in ``with``, for this thread or task alone."""

    __slots__ = ("_counted", "heap", "memory")

    def __init__(self, memory: DeviceMemory, heap: Heap) -> None:
        self.memory = memory
        self.heap = heap
        #: Whether the block is among those that the heap and the memory count.
        self._counted = False
        super().__init__(heap.resource, stacks_of_blocks, (memory, heap))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.value!r} for {self.heap.kind} memory of {self.memory.handle.device}>"

    def _choose(self) -> Callable[[], None]:
        self.memory.install(self.heap)
        return lambda: None

    def __enter__(self) -> Any:
        resource = super().__enter__()
        with deferral.counting:
            self.heap.scopes += 1  # first, or another thread may take the heap for an idle one
            self.memory.handle.scopes += 1
            self._counted = True
        self.memory.uninstall(self.heap)
        return resource

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.memory.forget_idle_heaps()

    def close(self) -> None:
        """Take the choice back; the stack that was in force before is again. A second call does nothing."""
        if self._undo is not None and not self._entered:
            self.memory.uninstall(self.heap)
        super().close()
        self.memory.forget_idle_heaps()

    def _end(self) -> None:
        with deferral.counting:
            if self._counted:
                self._counted = False
                self.memory.handle.scopes -= 1
                self.heap.scopes -= 1
        if self._block is not None:
            self._block.ended = True  # also for tasks that go on: the stack may be another device's next
        super()._end()
