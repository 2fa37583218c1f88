"""An open device: its driver, its memory stack, its queue and its streams, from opening to close."""

from __future__ import annotations

import operator
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from ...spi.driver import PROTOCOLS, Driver
from ...spi.errors import ClosedError, DeviceLost, DevmemError, ForkedError, LayoutError, PluginError, UnsupportedError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM, AllocFlags, Capability, DeviceInfo, MemoryInfo, MemoryKind
from ...toolkit.deferred_errors import FirstError, fresh_copy
from ..base import scopes
from ..base.arguments import priority_of
from ..base.config import DefaultStream, settings
from ..base.current_device import Entered
from ..copy.advice import Repeats
from ..copy.staging import Ring
from ..copy.statistics import TIMED_FROM, Stats
from ..copy.trace import tracefile
from ..interop import dlpack
from ..lifetime.allocation import Allocation, Heap
from ..lifetime.deferred_free import Reclaimer
from ..lifetime.page_locks import registry_of
from ..memory import default_host_resource, default_resource, of_kind, prepare, resource_of
from ..memory.adaptor import cached_in, chain
from ..ordering.stream import Stream, foreign_handle

if TYPE_CHECKING:
    from ...spi.memory import MemoryResource
    from .device import Device

_new = object.__new__
_stream_in_scope = scopes.stream.get


class Context:
    """Everything that lives as long as the device is open.

    Arrays, streams and events hold their context. When it closes, its driver is replaced by one that refuses every call, so a
    handle that outlived a reset or crossed a fork fails with a clear error and never reaches the vendor.
    """

    def __init__(self, device: Device, driver: Driver) -> None:
        self.device = device
        self.driver: Any = driver
        self.info = driver.info
        self.dead: DevmemError | None = None
        self.capabilities = _checked_capabilities(driver)
        self.knows_pointers = Capability.POINTER_INFO in self.capabilities
        #: How DLPack names the device, and other libraries its default streams.
        exchange = self.info.exchange
        # Of host memory that everybody can read there is one, however many devices it plays.
        self.is_host = exchange.device_type == dlpack.CPU
        self.dlpack_device = exchange.device_type, 0 if self.is_host else self.info.ordinal
        self.stream_names = {handle: number for number, handle in (exchange.streams or {}).items()}
        self.trace = tracefile(settings().trace)
        #: What was copied, by path. The lists of the two commonest are looked up once.
        self.stats = Stats()
        self.uploads, self.downloads = self.stats.small["h2d direct"], self.stats.small["d2h direct"]
        self.streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self.handles: dict[int, None] = {}
        #: Streams of others, as long as somebody refers to them or work of ours is on them.
        self.externals: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self._per_thread = threading.local()
        self.legacy = Stream(self, LEGACY_STREAM)
        # None where each thread has a default stream of its own.
        self.shared_default = self.legacy if settings().default_stream is DefaultStream.LEGACY else None
        self.registry = registry_of(device.backend)
        self.ring: Ring = Ring(self)
        #: Bytes from which a copy of pageable memory goes through the ring.
        self.staged_from = _staged_from(self.info)
        #: Whether large copies of page-locked memory are faster here than those of other memory.
        self.locking_pays = _locking_pays(self.info)
        self.repeats = Repeats()
        #: Bytes from which each copy is timed, and traced; smaller direct ones take the shortest way there is.
        self.timed_from = 0 if self.trace is not None else min(self.staged_from, TIMED_FROM)
        self.heaps: list[Heap] = []
        self.heaps_lock = threading.RLock()
        self.named_resources: dict[tuple[MemoryKind, str], MemoryResource] = {}
        #: Whether some heap takes memory back only when no stream uses it any more.
        self.unordered = False
        self.scoped_heaps = 0
        self.reclaim = Reclaimer(self)
        self.heap = self.bind(default_resource(self))
        #: Stacks of each kind in the order in which they were installed; the last is in force.
        self.installed: dict[MemoryKind, list[Heap]] = {MemoryKind.DEVICE: [self.heap]}
        #: Plain memory that the host can see, for requests that no stack serves.
        self.host_heaps: dict[tuple[MemoryKind, AllocFlags], Heap] = {}
        self.registry.join(self)  # last: a context that was not finished would be in it for good

    def __repr__(self) -> str:
        return f"<context of {self.device}{', closed' if self.dead else ''}>"

    # -- state ---------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the device was closed, reset or left behind by a fork."""
        if self.dead is not None:
            raise fresh_copy(self.dead)

    def has(self, capability: Capability) -> bool:
        """Whether the device can do this."""
        return capability in self.capabilities

    def require(self, capability: Capability, purpose: str, instead: str) -> None:
        """Raise UnsupportedError unless the device can do this."""
        if capability not in self.capabilities:
            raise UnsupportedError(f"{self.device} cannot {purpose} (it lacks {capability.value!r}): {instead}")

    def require_kind(self, kind: MemoryKind) -> None:
        """Raise UnsupportedError unless the device has this kind of memory."""
        if kind not in self.info.memory_kinds:
            kinds = ", ".join(sorted(self.info.memory_kinds))
            raise UnsupportedError(f"{self.device} has no {kind.value} memory, only {kinds}")

    # -- streams -------------------------------------------------------------------------------------------------------

    @property
    def default_stream(self) -> Stream:
        """The stream that orders work for which none was named."""
        return self.shared_default or self.per_thread

    @property
    def per_thread(self) -> Stream:
        """The calling thread's own default stream."""
        found: Stream | None = getattr(self._per_thread, "stream", None)
        if found is None:
            found = self._per_thread.stream = Stream(self, PER_THREAD_STREAM)
        return found

    def stream_of(self, stream: object) -> Stream:
        """The stream that an argument means: 0 or None is the current one, else the default.

        Raises
        ------
        LayoutError
            It belongs to another device, or is a number that no stream of this device has.
        TypeError
            It is nothing that could be a stream.
        """
        if stream is None or (type(stream) is int and stream == 0):
            current = _stream_in_scope()
            if current is not None and current.context is self:
                return current
            return self.shared_default or self.per_thread
        if isinstance(stream, Stream):
            if stream.context is not self:
                stream.context.check()
                raise LayoutError(
                    f"{stream!r} cannot order work on {self.device}: use a stream of that device, made inside "
                    f"`with devmem.device({str(self.device)!r}):`"
                )
            # Another thread's default stream means this thread's own here: its handle does, to every driver.
            return self.per_thread if stream.is_default and not stream.plain else stream
        if hasattr(stream, "__cuda_stream__"):
            return self.external_stream(stream)
        try:
            if isinstance(stream, bool):
                raise TypeError
            handle = operator.index(stream)  # type: ignore[arg-type]
        except TypeError:
            if foreign_handle(stream) is not None:
                return self.external_stream(stream)
            raise TypeError(
                f"a stream is 0, None, a devmem.Stream, the int handle of one, or an object with __cuda_stream__, "
                f"not {stream!r}"
            ) from None
        return self._stream_by_handle(handle)

    def _stream_by_handle(self, handle: int) -> Stream:
        if handle == 0:
            return self.stream_of(None)
        if handle == LEGACY_STREAM:
            return self.legacy
        if handle == PER_THREAD_STREAM:
            return self.per_thread
        found = self.streams.get(handle) or self.externals.get(handle)
        if found is None:
            raise LayoutError(
                f"{handle:#x} is not the handle of a stream that was made on {self.device}: wrap a foreign one with "
                f"devmem.external_stream({handle:#x}) first, and keep what it returns"
            )
        return found

    def new_stream(self, priority: object, non_blocking: bool) -> Stream:
        """A stream of our own."""
        least, greatest = self.info.stream_priorities
        priority = max(min(priority_of(priority, least, greatest), least), greatest)
        with Entered(self) as driver:
            self.reclaim.examine()
            handle = driver.stream_create(priority, non_blocking)
            self.handles[handle] = None
            found = self.streams[handle] = Stream(self, handle, owned=True, non_blocking=non_blocking)
        return found

    def external_stream(self, stream: object) -> Stream:
        """A stream of somebody else, by its address or its ``__cuda_stream__``; never destroyed by us.

        It is known by its number as long as somebody refers to it or work of ours is on it.
        """
        handle = foreign_handle(stream)
        if handle is None:
            raise TypeError(
                f"a foreign stream is given by its address, an int, or as an object with __cuda_stream__, not as {stream!r}"
            )
        if handle < 0:
            raise LayoutError(f"a stream's address is not negative, got {handle}")
        if handle in (0, LEGACY_STREAM, PER_THREAD_STREAM) or handle in self.streams:
            return self._stream_by_handle(handle or LEGACY_STREAM)
        return self.externals.setdefault(handle, Stream(self, handle, external=True))

    def own_streams(self) -> list[Stream]:
        """Every stream that devmem made on this device. Foreign ones may be gone without our knowing."""
        return list(self.streams.values())

    # -- memory --------------------------------------------------------------------------------------------------------

    def bind(self, resource: MemoryResource, kind: MemoryKind = MemoryKind.DEVICE) -> Heap:
        """Make a heap of a resource, once for each resource and kind of memory that it serves."""
        with self.heaps_lock:
            for heap in self.heaps:
                if heap.resource is resource and heap.kind is kind:
                    return heap
            heap = Heap(self, prepare(resource, self), kind)
            if self.heaps:
                self.forget_idle_heaps()
            self.unordered |= not heap.ordered
            self.heaps.append(heap)
            return heap

    def forget_idle_heaps(self) -> None:
        """Drop heaps that nothing comes from any more; what is in use, or caches memory, stays."""
        if self.dead is None:
            with Entered(self), self.heaps_lock:
                chosen = [heap for installed in self.installed.values() for heap in installed]
                self.heaps = [e for e in self.heaps if e in chosen or e.scopes or e.live or e.cached_bytes]

    def install(self, heap: Heap) -> None:
        """Make a heap the one that the whole device allocates its kind of memory from."""
        with self.heaps_lock:
            self._remember(heap)
            before = self._installed(heap.kind)
            # The first is what the device had to begin with; what came between it and the last few cannot be uncovered any more.
            self.installed[heap.kind] = [*before[:1], *before[1:][-6:], heap]
            self.heap = self.installed[MemoryKind.DEVICE][-1]

    def uninstall(self, heap: Heap) -> None:
        """Take back one `install`, in whatever order they are taken back; nothing, if later ones have pushed it out."""
        with self.heaps_lock:
            self._remember(heap)
            installed = self.installed[heap.kind]
            first = 1 if heap.kind is MemoryKind.DEVICE else 0
            places = [at for at, other in enumerate(installed) if other is heap and at >= first]
            if places:
                del installed[places[-1]]
            self.heap = self.installed[MemoryKind.DEVICE][-1]

    def _remember(self, heap: Heap) -> None:
        """Count a heap among the device's, although it was idle, and forgotten, between being made and being used."""
        if heap not in self.heaps:
            self.heaps.append(heap)

    def _installed(self, kind: MemoryKind) -> list[Heap]:
        """The stacks that are installed for a kind of memory; what the settings name is the first, looked up at first use."""
        found = self.installed.get(kind)
        if found is None:
            with self.heaps_lock:
                resource = default_host_resource(self, kind)
                found = self.installed.setdefault(kind, [] if resource is None else [self.bind(resource, kind)])
        return found

    def scope_key(self, kind: MemoryKind) -> object:
        """What a thread's own stacks are kept under."""
        return self if kind is MemoryKind.DEVICE else (self, kind)

    def current_heap(self) -> Heap:
        """The heap that new arrays come from, here."""
        if self.scoped_heaps:
            chosen = (scopes.heaps.get() or {}).get(self)
            if chosen is not None and chosen.scopes:  # else a task that was begun in a block goes on after its end
                return chosen
        return self.heap

    def allocate(self, nbytes: int, stream: Stream, unnamed: bool = False) -> Allocation:
        """Device memory, usable on the stream from now on; the device is entered, and the size is not zero.

        Raises
        ------
        OutOfMemory
            It does not fit, after everything that could be given back was given back.
        """
        heap = self.current_heap() if self.scoped_heaps else self.heap
        reclaim = self.reclaim
        if reclaim.dropped or reclaim.busy:
            reclaim.examine()
        obtain = heap.allocate  # a field, not a method: called as one, it would be looked for in the class each time
        try:
            ptr = obtain(nbytes, stream.handle)
        except MemoryError as error:
            ptr = reclaim.rescue(heap, nbytes, stream, error)
        except Exception as error:
            heap.explain(error, nbytes)
            raise
        if heap.foreign:
            ptr = heap.check_address(ptr, nbytes)
        heap.live[ptr] = nbytes
        # What Allocation(...) does, without the call, which takes longer than all of it.
        block = _new(Allocation)
        block.context = self
        block.heap = heap
        block.unnamed = unnamed
        block.ptr = ptr
        block.nbytes = nbytes
        block.home = stream
        block.streams = None
        block.freed = False
        return block

    def allocate_host(self, nbytes: int, kind: MemoryKind, flags: AllocFlags, pooled: bool = False) -> Allocation:
        """Memory that the host can see, of a kind and with flags; through the queue like any other. The device is entered.

        Where no stack is installed for the kind it is plain memory; or, ``pooled``, the device's pool of page-locked memory.
        """
        heap = self._host_stack(kind, flags) or (self._pinned_pool() if pooled else self._plain_heap(kind, flags))
        self.reclaim.examine()
        try:
            ptr = heap.allocate(nbytes, LEGACY_STREAM)
        except MemoryError as error:
            ptr = self.reclaim.rescue(heap, nbytes, self.legacy, error)
        except Exception as error:
            heap.explain(error, nbytes)
            raise
        if heap.foreign:
            ptr = heap.check_address(ptr, nbytes)
        heap.live[ptr] = nbytes
        return Allocation(self, heap, ptr, nbytes, self.legacy)

    def _host_stack(self, kind: MemoryKind, flags: AllocFlags) -> Heap | None:
        """The stack that serves a request for memory that the host can see, if one is installed and has these flags."""
        installed = self._installed(kind)
        heap = installed[-1] if installed else None
        if self.scoped_heaps:
            chosen = (scopes.heaps.get() or {}).get(self.scope_key(kind))
            heap = chosen if chosen is not None and chosen.scopes else heap
        if heap is None:
            return None
        # A stack hands out one sort of memory, whatever is asked: that of the resource at its bottom.
        has = getattr(chain(heap.resource)[-1], "flags", AllocFlags.NONE)
        return heap if not flags & ~(has | AllocFlags.FINE) else None

    def _pinned_pool(self) -> Heap:
        """The pool that serves what is fetched into page-locked memory, where the user has chosen nothing else for it."""
        return self.bind(resource_of("pinned_pool", self, MemoryKind.PINNED), MemoryKind.PINNED)

    def _plain_heap(self, kind: MemoryKind, flags: AllocFlags) -> Heap:
        heap = self.host_heaps.get((kind, flags))
        if heap is None:
            heap = self.host_heaps.setdefault((kind, flags), Heap(self, prepare(of_kind(kind, flags), self), kind))
            self.unordered = True
        return heap

    def memory_info(self) -> MemoryInfo:
        """Bytes free and in all as the driver says; live, pending and cached as devmem counts."""
        with Entered(self) as driver:
            free, total = driver.memory_info()
            cached = cached_in(each.resource for each in self.heaps)
        live = sum(sum(list(heap.live.values())) for heap in [*self.heaps, *self.host_heaps.values()])
        pending = self.reclaim.waiting_bytes()
        return MemoryInfo(free, total, live - pending, pending, cached)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Wait for the device, free all that came from it, and refuse every later call."""
        if self.dead is not None:
            return
        driver = self.driver
        try:
            token = driver.enter()
        except DeviceLost:
            # Nothing can be given back any more, as whoever used the device has been told. It may be opened afresh.
            self.reclaim.strand()
            try:
                self.registry.leave(self, lost=True)
            finally:
                self._end(why)
                driver.close()
            return
        with FirstError() as first:

            def leave() -> None:
                self.registry.leave(self, lost=isinstance(first.error, DeviceLost))

            try:
                for step in (driver.synchronize, leave, self.ring.close, self.reclaim.clear):
                    try:
                        step()
                    except DevmemError as error:  # the rest must still be given back
                        first.put(error)
                        if step == driver.synchronize:
                            self.reclaim.strand()
            finally:
                self._end(why)
                try:
                    if token is not None:
                        driver.exit(token)
                finally:
                    self.registry.close_driver(driver)

    def _end(self, why: str) -> None:
        self.dead = ClosedError(f"{self.device} {why} since this handle was made: make a new one")
        self.driver = DeadDriver(self.dead)

    def left_behind(self) -> None:
        """Called in the child of a fork: the device is the parent's."""
        self.dead = ForkedError(
            f"{self.device} was opened before this process was forked, and does not exist in the child (pid {os.getpid()}): "
            f"open devices after forking, or start processes with the 'spawn' method"
        )
        self.driver = DeadDriver(self.dead)
        self.reclaim.abandon()

    def left_at_exit(self) -> None:
        """Called when the interpreter exits: whatever is still referenced goes with the process."""
        self.dead = ClosedError(f"{self.device} cannot be used any more: the interpreter is exiting")
        self.driver = DeadDriver(self.dead)


class DeadDriver:
    """Stands where a driver was; refuses everything."""

    def __init__(self, error: DevmemError) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, name: str) -> NoReturn:
        raise fresh_copy(object.__getattribute__(self, "_error"))


def _staged_from(info: DeviceInfo) -> int:
    chosen = settings()
    threshold = info.staging_threshold if chosen.staging_threshold is None else chosen.staging_threshold
    return max(threshold, 1) if chosen.staging_slots and _locking_pays(info) else sys.maxsize


def _locking_pays(info: DeviceInfo) -> bool:
    asked = settings().staging_threshold is not None
    return MemoryKind.PINNED in info.memory_kinds and (asked or bool(info.staging_threshold))


def _checked_capabilities(driver: Driver) -> frozenset[Capability]:
    for capability in driver.info.capabilities:
        if not isinstance(driver, PROTOCOLS[capability]):
            raise PluginError(
                f"the backend {driver.info.backend!r} declares {capability.value!r} but lacks methods of "
                f"{PROTOCOLS[capability].__name__} (see devmem.spi.driver)"
            )
    return driver.info.capabilities
