"""The memory stacks of one open device, and which of them serves a request.

A stack (a memory resource with all that it stands on) is bound to the device once and becomes a heap. `install` makes a heap
the one that the whole device allocates from; ``with use_memory(...)``, which is a `MemoryScope`, puts one in force for a thread
or task. A block goes back to the heap that made it, so stacks may change at any time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any

from ...spi.driver import Driver
from ...spi.memory import MemoryResource
from ...spi.types import AllocFlags, MemoryKind
from ...toolkit.deferred_errors import FirstError
from ..base.changes import Changes
from ..base.device_handle import CurrentDevice, DeviceHandle
from ..base.interrupts import CannotWait
from ..base.scopes import Scope, ScopeVariable, deferral
from ..memory.adaptor import chain, detach, kept_by, part_with, stream_tables
from ..memory.foreign import is_ours, tell
from ..memory.heap import Heap
from .resolve import Usage, default_host_resource, default_resource, of_kind, prepare, resource_of

#: The heaps that ``with use_memory()`` has put in force in this thread or task, and whose they are.
stacks_of_blocks: ScopeVariable[tuple[InstalledStacks, Heap] | None] = ScopeVariable("devmem_heaps", None)
#: Installed stacks that `uninstall` can still uncover, besides the first.
REMEMBERED = 6


class InstalledStacks:
    """The memory stacks of one open device, each bound to it as a heap.

    Attributes
    ----------
    heaps : list of Heap
        Every heap that something comes from, or that caches memory. It is replaced, never changed.
    heap : Heap
        The one that device memory comes from where no scope says otherwise.
    """

    def __init__(
        self,
        handle: DeviceHandle,
        lock: threading.RLock,
        usage: Usage,
        own_handles: Callable[[], Iterable[int]],
    ) -> None:
        self.handle = handle
        #: The lock of the open device.
        self._lock = lock
        #: Given to a part of a stack that makes room.
        self._usage = usage
        #: The handles of devmem's own streams on the device.
        self._own_handles = own_handles
        self.heaps: list[Heap] = []
        #: What the stacks know of streams, for the compiled core: a stream that is in none of these tables may end untold.
        self.stream_tables: tuple[dict[int, Any], ...] | None = ()
        #: Which call binds a resource for a kind of memory. One that was interrupted has gone from here.
        self._setting_up: dict[tuple[int, MemoryKind], weakref.ref[SettingUp]] = {}
        self._changes = Changes(lock)
        self._named: dict[tuple[MemoryKind, str], MemoryResource] = {}
        #: Resources without a heap, by identity: a block may have been on its way back to one as the heap was forgotten. So they
        #: are told of streams as long as they are there.
        self._forgotten: dict[int, weakref.ref[Any]] = {}
        #: Plain memory that the host can see, for requests that no stack serves.
        self._host_heaps: dict[tuple[MemoryKind, AllocFlags], Heap] = {}
        self.heap = handle.heap = self.bind(default_resource(handle, self._named))
        #: Stacks of each kind in the order in which they were installed; the last is in force.
        self._installed: dict[MemoryKind, list[Heap]] = {MemoryKind.DEVICE: [self.heap]}

    # -- finding and binding -------------------------------------------------------------------------------------------

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
                made = Heap(self.handle, prepare(resource, self.handle, self._usage), kind)
                with self._lock:
                    found = self._heap_of(resource, kind) or made  # the resource may have bound itself
                    self._remember(found)
            return found
        finally:
            if (kept := self._setting_up.get(key)) is not None and kept() is mine:
                del self._setting_up[key]
                self._changes.tell()

    def plain_heap(self, kind: MemoryKind, flags: AllocFlags) -> Heap:
        """The heap of plain memory that the host can see, of a kind and with flags."""
        heap = self._host_heaps.get((kind, flags))
        if heap is None:
            resource = prepare(of_kind(kind, flags), self.handle)
            heap = self._host_heaps.setdefault((kind, flags), Heap(self.handle, resource, kind))
        return heap

    def all_heaps(self) -> list[Heap]:
        """The heaps of device memory and of memory that the host can see."""
        return [*self.heaps, *self._host_heaps.values()]

    def name_of(self, heap: Heap) -> str:
        """The text that a heap's stack was made of; the empty text for another."""
        return next((text for (_, text), resource in self._named.items() if resource is heap.resource), "")

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
        known = [stream_tables(each) for each in [*(heap.resource for heap in heaps), *self._without_heap()]]
        self.stream_tables = None  # until both are set; and if any stack has to be told of every stream
        self.heaps = heaps
        if None not in known:
            self.stream_tables = tuple(table for tables in known for table in tables or ())

    def _remember(self, heap: Heap) -> None:
        """Count a heap among the device's: it may have been forgotten as idle between being made and being installed."""
        if heap not in self.heaps:
            self._set_heaps([*self.heaps, heap])
            self._forgotten.pop(id(heap.resource), None)

    # -- choosing ------------------------------------------------------------------------------------------------------

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
            for stacks, heap in filter(None, stacks_of_blocks.values()):
                if stacks is self and heap.kind is kind:
                    return heap
        if kind is MemoryKind.DEVICE:
            return self.heap
        installed = self.installed(kind)
        return installed[-1] if installed else None

    def heap_in_force(self) -> Heap:
        """The heap that device memory comes from, on this thread or task."""
        return (self.current_heap() if self.handle.scopes else None) or self.heap

    def installed(self, kind: MemoryKind) -> list[Heap]:
        """The stacks that are installed for a kind; the one that the settings name is the first, looked up at first use."""
        found = self._installed.get(kind)
        if found is None:
            resource = default_host_resource(self.handle, self._named, kind)
            found = self._installed.setdefault(kind, [] if resource is None else [self.bind(resource, kind)])
        return found

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def forget_idle_heaps(self) -> None:
        """Drop heaps that nothing comes from any more; those in use, or with cached memory, stay.

        A resource that is dropped here may be bound again; what streams it knew is forgotten.
        """
        if self.handle.dead is None:
            with suppress(CannotWait), CurrentDevice(self.handle):  # a handler came into a call that uses one
                # Resources, which may be the program's own code, are asked without the lock.
                idle = [heap for heap in self._unused() if not heap.cached_bytes]
                if idle:
                    self._forget(idle)

    def _forget(self, idle: list[Heap]) -> None:
        for heap in idle:  # while they can be found: nothing binds their resources anew in between
            detach(heap.resource, self._own_handles())
            with suppress(TypeError):  # of a third party, without weak references
                self._forgotten[id(heap.resource)] = weakref.ref(heap.resource)
        with self._lock:
            unused = self._unused()
            self._set_heaps([heap for heap in self.heaps if heap not in idle or heap not in unused])

    def _unused(self) -> list[Heap]:
        chosen = [heap for installed in list(self._installed.values()) for heap in installed]
        return [heap for heap in self.heaps if not (heap in chosen or heap.scopes or heap.live)]

    def forget_stream(self, stream: int) -> None:
        """Tell every stack that a stream is about to be destroyed."""
        with FirstError() as first:
            told: list[Callable[[int], object]] = [heap.forget_stream for heap in self.heaps]
            lost = self._without_heap()
            told += [partial(tell, part_with(resource, "forget_stream"), "forget_stream") for resource in lost]
            for forget in told:
                try:
                    forget(stream)
                except CannotWait:  # all are told another time
                    raise
                except Exception as error:  # the others must be told, too
                    first.put(error)

    def _without_heap(self) -> list[Any]:
        return [resource for each in list(self._forgotten.values()) if (resource := each()) is not None]

    def trim_forgotten(self, first: FirstError, keep_bytes: int) -> None:
        """Let resources without a heap give back what they cache."""
        for key, each in list(self._forgotten.items()):
            if (resource := each()) is None:
                self._forgotten.pop(key, None)
            elif kept_by(resource):
                first.attempt(tell, resource, "trim", keep_bytes)

    def unbind(self, driver: Driver) -> None:
        """Let each stack go that is bound to the driver, which has all its memory back: it may be bound anew.

        Not one with a part of a third party, which may keep addresses of the device that was closed.
        """
        resources = [heap.resource for heap in self.all_heaps()] + self._without_heap()
        for parts in map(chain, resources):
            for part in parts if all(map(is_ours, parts)) else ():
                if getattr(part, "driver", None) is driver and hasattr(part, "unbind"):
                    part.unbind()


class SettingUp:
    """One call that binds a resource."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()


class MemoryScope(Scope[Any]):
    """A stack for one kind of memory: for every thread from the call on; in ``with``, for this thread or task alone."""

    __slots__ = ("_counted", "heap", "stacks")

    def __init__(self, stacks: InstalledStacks, heap: Heap) -> None:
        self.stacks = stacks
        self.heap = heap
        #: Whether the block is among those that the heap and the memory count.
        self._counted = False
        super().__init__(heap.resource, stacks_of_blocks, (stacks, heap))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.value!r} for {self.heap.kind} memory of {self.stacks.handle.device}>"

    def _choose(self) -> Callable[[], None]:
        self.stacks.install(self.heap)
        return lambda: None

    def __enter__(self) -> Any:
        resource = super().__enter__()
        with deferral.counting:
            self.heap.scopes += 1  # first, or another thread may take the heap for an idle one
            self.stacks.handle.scopes += 1
            self._counted = True
        self.stacks.uninstall(self.heap)
        return resource

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.stacks.forget_idle_heaps()

    def close(self) -> None:
        """Take the choice back; the stack that was in force before is again. A second call does nothing."""
        if self._undo is not None and not self._entered:
            self.stacks.uninstall(self.heap)
        super().close()
        self.stacks.forget_idle_heaps()

    def _end(self) -> None:
        with deferral.counting:
            if self._counted:
                self._counted = False
                self.stacks.handle.scopes -= 1
                self.heap.scopes -= 1
        if self._block is not None:
            self._block.ended = True  # also for tasks that go on: the stack may be another device's next
        super()._end()
