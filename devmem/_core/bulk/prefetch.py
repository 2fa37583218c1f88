"""Items of an iterable on their way to a device while the caller works on the ones before.

A thread takes items from the iterable, uploads each on a stream of its own and records an event behind it. The caller's stream
is made to wait for the event when the item is handed over; the host waits for no copy. At most ``depth`` items are uploaded and
not handed over: the thread takes a token for each, and the caller gives one back.

The two sides share two queues and a flag, and no lock: the finalizer of a `Prefetcher` that is dropped, wherever that happens,
sets the flag and wakes the thread. The iterable is advanced, and closed, on the thread alone. The thread refers to the
`Prefetcher` not at all, runs in a copy of the caller's context (memory stacks, the current device), and is waited for by `close`
and, for a moment, at the interpreter's exit.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import copy_context
from os import PathLike
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from ...spi.errors import DevmemError, LayoutError
from ...toolkit.deferred_errors import FirstError
from ...toolkit.threads import run_apart
from ..arrays.ndarray import DeviceNDArray, device_view
from ..base.arguments import integer_of, is_named
from ..base.device_handle import CurrentDevice
from ..base.interrupts import check_may_wait, holds_nothing
from ..device.device import DeviceLike, open_device_of
from ..device.open_device import OpenDevice
from ..lifetime.allocation import StreamUse
from ..ordering.event import Event, StreamLike
from ..ordering.stream import Stream
from .batch import upload_many
from .batch.tree import flatten

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

#: Seconds that the interpreter's exit waits for a thread that is in the middle of a copy.
PATIENCE = 2.0
#: Items that may be on their way: each has a place of its own, which is made at the beginning.
MOST_ITEMS = 1 << 16


class _Item(NamedTuple):
    """A tree of device arrays, and the event behind their copies."""

    tree: object
    event: Event


class _End(FirstError):
    """Behind the last item: the error that ended the iterable, if one did. The end of its ``with`` block raises it."""

    __slots__ = ()


class Prefetcher(Generic[T]):
    """An iterator over what `devmem.prefetch` uploads, in order; made by that. Also for ``async for``.

    Any thread may ask for the next item. ``close``, or the end of ``with``, stops it; so does dropping it, as a loop that is left
    does.

    Examples
    --------
    >>> with dm.prefetch(np.full(10, n) for n in range(100)) as batches:
    ...     for batch in batches:
    ...         if batch[0] == 3:
    ...             break
    >>> batches
    <prefetch to host:0, closed>
    """

    __slots__ = ("__weakref__", "_loader", "_opened", "_stream")

    def __init__(
        self, iterable: Iterable[Any], depth: int = 2, stream: StreamLike = 0, device: DeviceLike = None
    ) -> None:
        count = integer_of(depth, "prefetch(depth=) is a number of items, an integer")
        if not 1 <= count <= MOST_ITEMS:
            raise LayoutError(f"prefetch(depth={depth}): at least one item is on its way, and {MOST_ITEMS:,} at most")
        if isinstance(iterable, Mapping):
            raise TypeError(
                f"prefetch() takes an iterable of batches, and a {type(iterable).__name__} gives its keys: for one batch give "
                f"[batch], for several batches.values()"
            )
        _check_is_no_name(iterable)
        source = iter(iterable)
        self._opened = opened = open_device_of(device)
        #: The stream that the caller named: the arrays are bound to it.
        self._stream = opened.streams.stream_of(stream) if is_named(stream) else None
        self._loader = _Loader(opened, source, count)
        self._loader.start()

    def __repr__(self) -> str:
        return f"<prefetch to {self._opened.device}{', closed' if self._loader.stopped else ''}>"

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        self._opened.handle.check()  # in the child of a fork there is no thread
        found = self._take(self._loader.next_waited_for())
        if isinstance(found, _End):
            raise StopIteration
        return found

    def __aiter__(self) -> Prefetcher[T]:
        return self

    async def __anext__(self) -> T:
        self._opened.handle.check()
        found = self._take(await self._loader.next_ready())
        if isinstance(found, _End):
            raise StopAsyncIteration
        return found

    def __enter__(self) -> Prefetcher[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # never finished __init__
            self._loader.stop()

    def close(self) -> None:
        """Take no more items, drop those that were not handed over, and wait for the thread. A second call does nothing.

        An item that the iterable is in the middle of making is waited for; its generator is closed. In a signal's handler or a
        finalizer that came into another call of devmem's, and on the thread itself, nothing is waited for: the thread does the
        rest when it ends.
        """
        self._loader.stop()
        with suppress(RuntimeError):
            self._loader.wait_for_the_end()

    def _take(self, found: _Item | _End) -> T | _End:
        loader = self._loader
        if isinstance(found, _End):
            loader.ready.put(_End())  # for the next caller
            with found:
                return found
        try:
            self._hand_over(found)
        finally:
            loader.places.put(True)
        return cast(T, found.tree)

    def _hand_over(self, item: _Item) -> None:
        """Make the caller's stream wait for the copies, and let it have the arrays."""
        opened, copies = self._opened, self._loader.stream
        chosen = opened.streams.stream_of(self._stream)
        views = [view for leaf in flatten(item.tree)[0] if (view := _uploaded(leaf, copies)) is not None]
        blocks = list({id(view.allocation): view.allocation for view in views if view.allocation.ptr}.values())
        with CurrentDevice(opened.handle):
            chosen.wait(item.event)
            with StreamUse(chosen, *blocks):
                for view in views:
                    view._stream = self._stream
                for block in blocks:  # as if no stream had been named: every other one waits at its first use
                    block.unnamed = self._stream is None


class _Loader:
    """The side of the thread."""

    def __init__(self, opened: OpenDevice, source: Iterator[Any], depth: int) -> None:
        self.opened = opened
        self.source = source
        self.stream = opened.new_stream(0, True)
        self.ready: SimpleQueue[_Item | _End] = SimpleQueue()
        #: A token for each item that may be uploaded; what wakes the thread to see that it is to stop.
        self.places: SimpleQueue[bool] = SimpleQueue()
        self.stopped = False
        #: What tasks wait for that found nothing ready.
        self.waiters: deque[asyncio.Future[None]] = deque()
        run = copy_context().run
        self.thread = threading.Thread(target=run, args=(self.run,), name="devmem-prefetch", daemon=True)
        for _ in range(depth):
            self.places.put(True)

    def start(self) -> None:
        _loaders.add(self)
        run_apart(self.thread.start)

    def stop(self) -> None:
        """Have the thread end. Any finalizer may call it."""
        self.stopped = True
        self.places.put(False)

    def check_may_wait(self) -> None:
        """Raise RuntimeError on the thread itself, and in what has interrupted a call that the thread may need."""
        if self.thread is threading.current_thread():
            raise RuntimeError(
                "an item of prefetch is asked for on the thread that makes it: by its iterable, or a finalizer"
            )
        check_may_wait("the next item of prefetch")

    def next_waited_for(self) -> _Item | _End:
        """The next item, or the end."""
        try:
            return self.ready.get_nowait()
        except Empty:
            self.check_may_wait()
        return self.ready.get()

    def wait_for_the_end(self) -> None:
        """Wait until the thread has ended, and drop what was not handed over."""
        if self.thread.is_alive():
            self.check_may_wait()
            self.thread.join()
        self.clear()

    def clear(self) -> None:
        """Drop what was not handed over, when the thread takes no more."""
        with suppress(Empty):
            while True:
                self.ready.get_nowait()
        self._put(_End())

    @holds_nothing
    def run(self) -> None:
        """Upload items until there are no more, or one fails, or the caller has had enough."""
        end = _End()
        try:
            self._upload_all()
        except BaseException as found:  # the caller's to raise, whatever it is
            end.put(found)
        try:
            close = getattr(self.source, "close", None)
            if close is not None:
                close()
        except BaseException as found:
            end.put(found)
        del self.source
        self._put(end)
        if self.stopped:
            self.clear()
        del end  # its error's traceback has this frame

    @holds_nothing
    def _upload_all(self) -> None:
        number = 0
        while self.places.get() and not self.stopped:
            try:
                item = next(self.source)
            except StopIteration:
                return
            try:
                _check_is_no_name(item)
                tree = upload_many(item, self.stream, self.opened.device)
                event = self.stream.record()
            except Exception as error:
                error.add_note(f"devmem.prefetch: item {number}, counted from 0")
                raise
            self._put(_Item(tree, event))
            del item, tree, event  # while the thread waits, it keeps nothing alive
            number += 1

    def _put(self, found: _Item | _End) -> None:
        self.ready.put(found)
        with suppress(IndexError):
            while True:
                waiter = self.waiters.popleft()
                with suppress(RuntimeError):  # its loop is closed
                    waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    async def next_ready(self) -> _Item | _End:
        """The next item, or the end; other tasks run meanwhile."""
        import asyncio  # late: a program that awaits has imported it already

        while True:
            with suppress(Empty):
                return self.ready.get_nowait()
            waiter = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            with suppress(Empty):  # put before the thread could see who waits
                return self.ready.get_nowait()
            await waiter


def _check_is_no_name(given: object) -> None:
    """Refuse text where arrays are meant: NumPy would make an array of its characters."""
    if isinstance(given, (str, bytes, PathLike)):
        raise TypeError(f"prefetch() takes arrays, not {given!r}: of a file's name devmem.load(path) makes one")


def _uploaded(leaf: object, copies: Stream) -> DeviceNDArray[Any] | None:
    """The view of an array that was uploaded; None of one that was on the device before."""
    view = device_view(leaf)
    return view if view is not None and view.stream is copies else None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_loaders: weakref.WeakSet[_Loader] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """Before the devices end: let no thread be in the middle of a copy."""
    found = list(_loaders)
    for loader in found:
        loader.stop()
    for loader in found:
        with suppress(DevmemError, RuntimeError):
            loader.thread.join(PATIENCE)
