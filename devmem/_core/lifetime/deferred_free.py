"""The queue: what was dropped, and when it is given back.

Handles (memory, streams, events) wait here, which finalizers append to `dropped` and which are examined at safe points, in the
caller's thread, never in the collector. With what copies that are still running keep, in `inflight`, it is one object.

No lock of ours is held across a driver call that can block; finalizers take none at all.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ...spi.errors import DevmemError, DevmemWarning, OutOfMemory
from ...spi.types import LEGACY_STREAM, Capability, MemoryKind
from ...toolkit.deferred_errors import FirstError
from ..base.config import settings
from ..base.scopes import deferral
from ..ordering.completions import InFlight, stranded
from ..ordering.stream import Event, Stream
from .allocation import Allocation, Heap, Onward

if TYPE_CHECKING:
    from ..device.open_device import Context


class Reclaimer(InFlight):
    """The queue of one open device: what was dropped, and, below, what running copies keep."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.dropped: deque[Allocation | Stream | Event] = deque()
        self.pending: deque[Allocation | Stream | Event] = deque()
        self.pending_bytes = 0
        #: Memory of others that consumers of ours have let go of.
        self.parting: deque[Onward] = deque()
        self.max_count = settings().max_pending_deallocs_count
        self.max_bytes = int(settings().max_pending_deallocs_ratio * context.info.total_bytes)

    # -- safe points ---------------------------------------------------------------------------------------------------

    def examine(self) -> None:
        """Take stock of what was dropped; drain if that is too much. The device must be entered."""
        self._take_stock()
        if self.parting:
            self._part()
        if self.busy:
            self.poll()
        if len(self.pending) > self.max_count or self.pending_bytes > self.max_bytes:
            self.drain()

    def drain(self) -> None:
        """Free all that waits, unless cleanup is deferred. The device must be entered.

        The first failure to free is told as a DevmemWarning, when the others are freed. What could not be stays in the queue,
        behind them, if the failure came before it was given back; else it is the driver's: a leak is preferred to an address in
        use twice.
        """
        if deferral.depth or self._capturing():
            return
        self._take_stock()
        with self.lock:
            batch, self.pending = self.pending, deque()
            self.pending_bytes = 0
        told = ""
        failed: list[Allocation | Stream | Event] = []
        waited: set[int] = set()
        try:
            while batch:
                failed.append(item := batch.popleft())
                try:
                    if self.context.unordered:
                        self._wait_for_unordered(item, waited)
                    self._give_back(item)
                    failed.pop()
                except Exception as error:  # a plugin's resource may raise anything
                    told = told or "; ".join([str(error), *getattr(error, "__notes__", ())])
        finally:  # interrupted, the item of the moment is among those that failed
            self._put_back([*batch, *(item for item in failed if item.is_out())])
        if told:
            warnings.warn(f"while freeing dropped memory on {self.context.device}: {told}", DevmemWarning, stacklevel=3)

    def rescue(self, heap: Heap, nbytes: int, stream: Stream, first: MemoryError) -> int:
        """The one answer to memory that ran out: drain, wait, collect once, drain and wait again, trim, try once more.

        While a graph is captured nothing of it may be done: then the answer is the error.
        """
        if isinstance(first, OutOfMemory) or not isinstance(first, DevmemError):
            from .oom import out_of_memory  # with the statistics that it asks: only where memory has run out

            if self._capturing():
                raise out_of_memory(self.context, heap, nbytes, first, capturing=True) from first
            self.drain()
            self._wait_for_everything()
            gc.collect()  # also what finished copies held until then
            self.drain()
            self._wait_for_everything()  # what was freed in stream order can be trimmed only when its stream has passed
            self._trim_for_rescue()
            try:
                return heap.allocate(nbytes, stream.handle)
            except MemoryError as second:
                raise out_of_memory(self.context, heap, nbytes, second, capturing=False) from first
            except Exception as error:
                heap.explain(error, nbytes)
                raise
        try:
            raise first
        finally:
            del first  # or its traceback and this frame would keep each other, and the arrays of whoever called

    def release_now(self, allocation: Allocation) -> None:
        """Free one block at once, after the streams that it was used on, unless cleanup is deferred."""
        driver = self.context.driver
        token = None
        try:
            token = driver.enter()
            if deferral.depth or self._capturing():
                self._put_back([allocation])
            else:
                self._wait_for_unordered(allocation, set())
                self._give_back(allocation)
        except BaseException:
            self.keep(allocation)
            raise
        finally:
            if token is not None:
                driver.exit(token)

    def keep(self, item: Allocation | Stream | Event) -> None:
        """Queue what could not be given back, if it is still out."""
        if item.is_out():
            self._put_back([item])

    def trim(self, keep_bytes: int) -> None:
        """Drain, then let every heap give back what it caches."""
        self.context.ring.retry()
        self._part()
        self.poll()
        self.drain()
        if self.dropped:
            self.drain()  # streams that only the blocks just freed had kept
        for heap in self.context.heaps:
            heap.trim(keep_bytes)
        self.forget_spare()

    # -- the end -------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Free everything that came from this device, referenced or not; the device is idle. Called once, at its close.

        Memory that the host can see is left alone while somebody refers to it: an ndarray cannot be told that its buffer is
        gone. The driver keeps it readable.
        """
        self._take_stock()
        driver = self.context.driver
        with FirstError() as first:

            def attempt(step: Callable[..., object], *arguments: object) -> None:
                try:
                    step(*arguments)
                except Exception as error:  # the rest must still be given back; a plugin's resource may raise anything
                    first.put(error)

            for heap in self.context.heaps:
                for ptr, nbytes in list(heap.live.items()) if heap.kind is MemoryKind.DEVICE else ():
                    attempt(heap.give_back, ptr, nbytes, LEGACY_STREAM)
                attempt(heap.trim, 0)
            for item in self.pending:
                if isinstance(item, Allocation):
                    attempt(item.give_back)
            self.pending.clear()
            for stream in list(self.busy):
                stream.inflight = deque()
            self.busy.clear()
            self.parting.clear()
            for handle in list(self.context.handles):
                attempt(driver.stream_destroy, handle)
            self.context.handles.clear()
            for event in list(self.events):
                attempt(driver.event_destroy, event)
            self.events.clear()
            self.spare_events.clear()

    def strand(self) -> None:
        """Nobody can tell when the running copies are done: never let go of what they use."""
        super().strand()
        stranded.append(self.parting.copy())

    def abandon(self) -> None:
        """In the child of a fork: forget everything, free nothing, and take no lock that the parent may have held."""
        self.lock = threading.RLock()
        # Kept referenced on purpose: copies of the parent's host buffers die with this process, not before.
        stranded.extend((self.dropped, self.pending, self.busy, self.parting))
        self.dropped, self.pending, self.busy, self.parting = deque(), deque(), {}, deque()

    def waiting_bytes(self) -> int:
        """Bytes that were dropped and not freed yet."""
        self._take_stock()
        return self.pending_bytes

    # -- below ---------------------------------------------------------------------------------------------------------

    def _take_stock(self) -> None:
        with self.lock:
            while True:
                try:
                    item = self.dropped.popleft()
                except IndexError:  # asked rather than looked at first: a finalizer of the user's may come in between
                    return
                self.pending.append(item)
                self.pending_bytes += item.nbytes

    def _part(self) -> None:
        """See to it that memory of others, which was handed on, is let go of behind those who used it."""
        while self.parting and not self._capturing():
            try:
                self.parting.popleft().part()
            except IndexError:  # another thread had it
                return
            except DevmemError as error:  # it was waited for then, or is kept for good
                warnings.warn(
                    f"while letting go of memory on {self.context.device}: {error}", DevmemWarning, stacklevel=4
                )

    def _put_back(self, items: Iterable[Allocation | Stream | Event]) -> None:
        with self.lock:
            for item in items:
                self.pending.append(item)
                self.pending_bytes += item.nbytes

    def _give_back(self, item: Allocation | Stream | Event) -> None:
        if isinstance(item, Allocation):
            if item.streams is not None:
                self._order_behind_other_streams(item)
            item.freed = True
            item.give_back()
        elif isinstance(item, Stream) and not item.passed():
            self._put_back([item])  # its copies still run; look again at the next safe point
        else:
            item.destroy()

    def _order_behind_other_streams(self, allocation: Allocation) -> None:
        """Make the home stream wait for every other stream that devmem used the block on."""
        driver = self.context.driver
        home = allocation.home.order_handle()
        for stream, last_use in (allocation.streams or {}).items():
            if last_use is not None:
                driver.stream_wait(home, last_use.handle)
            elif not stream.closed:
                self.order(home, stream.order_handle())

    def _wait_for_unordered(self, item: Allocation | Stream | Event, waited: set[int]) -> None:
        """Wait for the streams of a block whose heap takes back only what nobody uses. ``waited``: for which it was done."""
        if not isinstance(item, Allocation) or item.heap.ordered:
            return
        streams = {item.home.order_handle(): None}
        for stream, last_use in (item.streams or {}).items():
            if last_use is not None:
                last_use.synchronize()
            elif not stream.closed:
                streams[stream.order_handle()] = None
        for handle in streams:
            if handle not in waited:
                self.context.driver.stream_synchronize(handle)
                waited.add(handle)

    def _trim_for_rescue(self) -> None:
        steps: list[tuple[str, Callable[[], object]]] = []
        steps += [(repr(heap.resource), partial(heap.trim, 0)) for heap in list(self.context.heaps)]
        for what, trim in [*steps, ("the staging slots", self.context.ring.trim)]:
            try:
                trim()
            except Exception as error:  # one stack that fails must not keep the memory of the others
                warnings.warn(f"while trimming {what}: {error}", DevmemWarning, stacklevel=5)

    def _wait_for_everything(self) -> None:
        self.context.driver.synchronize()
        self.poll()

    def _capturing(self) -> bool:
        context = self.context
        if not context.has(Capability.CAPTURE):
            return False
        return any(context.driver.capturing(stream.handle) for stream in context.own_streams() if not stream.closed)
