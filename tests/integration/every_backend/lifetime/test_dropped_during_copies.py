"""Everything is dropped while a copy is held back; when it runs at last, the bytes are right, and no other memory has changed.

A stream stands still at a latch. What a late copy reads or writes must then still be there, whatever was dropped meanwhile
and however often memory of the same size was asked for: each test scribbles over all the memory that it can get.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waits import blocked, patience, together

import devmem as dm
from devmem.backends.host.hooks import HostBackend
from devmem.testing import FaultyBackend, StreamHold, hold

Array = np.ndarray[Any, Any]

SHAPE = (4, 6, 256)
GARBAGE = 0xEE


class Bench:
    """Streams that do not wait for each other, and something to scribble with."""

    def __init__(self, backend: FaultyBackend) -> None:
        self.backend = backend
        self.slow: Any = dm.stream(non_blocking=True)
        self.side: Any = dm.stream(non_blocking=True)
        self.ink: Any = dm.stream(non_blocking=True)
        self.scribbled: list[Any] = []
        self.pages: list[Array] = []

    def scribble(self, nbytes: int) -> None:
        """Take all the memory of that size that there is to be had, host and device, and write garbage to it."""
        gc.collect()
        for _ in range(6):
            array = dm.device_array(nbytes, np.uint8, stream=self.ink)
            array.fill(GARBAGE, stream=self.ink)
            self.scribbled.append(array)
            self.pages.append(dm.pinned_array(nbytes, np.uint8))
            self.pages[-1][...] = GARBAGE
        self.ink.synchronize()

    def check_scribbles(self) -> None:
        """No copy wrote to memory that had been given to us."""
        for array in self.scribbled:
            assert np.all(array.copy_to_host(stream=0) == GARBAGE)
        for page in self.pages:
            assert np.all(page == GARBAGE)
        self.scribbled.clear()
        self.pages.clear()

    def pinned(self, content: Array) -> Array:
        made = dm.pinned_array_like(content)
        made[...] = content
        return made


@pytest.fixture
def backend() -> Iterator[FaultyBackend]:
    dm.close()
    made = FaultyBackend(HostBackend())
    made.configure({"strict": True, "devices": 2})
    dm.register_backend(made)
    try:
        with dm.use_backend("faulty"):
            yield made
    finally:
        made.disarm()
        dm.unregister_backend("faulty")
        dm.close()


@pytest.fixture
def bench(backend: FaultyBackend) -> Iterator[Bench]:
    """A bench; at the end all is given back, and nothing came back wrongly."""
    bench = Bench(backend)
    yield bench
    bench.check_scribbles()
    bench.side = bench.slow = None
    gc.collect()
    dm.synchronize()
    dm.trim()
    assert backend.live()[:2] == (0, 0)
    assert backend.live().events == 0
    assert backend.mistakes() == []


@pytest.fixture(params=["contiguous", "rows", "columns"])
def content(request: pytest.FixtureRequest) -> Callable[[Array], Array]:
    """A layout: all of an array, rows that the driver copies in two calls, or columns that are gathered."""
    return {
        "contiguous": lambda base: base,
        "rows": lambda base: base[::2, ::2, :160],
        "columns": lambda base: base[1:, ::-2, ::3],
    }[request.param]


Layout = Callable[[Any], Any]


def numbers(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 1 << 30, SHAPE, np.int32)


# -- uploads -----------------------------------------------------------------------------------------------------------


def test_the_source_of_an_upload_is_kept(bench: Bench, content: Layout) -> None:
    base = numbers()
    source = bench.pinned(base)
    with hold(bench.slow):
        array = dm.to_device(content(source), stream=bench.slow)
        del source
        bench.scribble(base.nbytes)
    bench.slow.synchronize()
    assert np.array_equal(array.copy_to_host(), content(base))


def test_the_source_is_let_go_when_the_stream_has_passed(bench: Bench) -> None:
    source = bench.pinned(numbers())
    gone = weakref.ref(source)
    with hold(bench.slow):
        array = dm.to_device(source, stream=bench.slow)
        del source
        gc.collect()
        assert gone() is not None
    bench.slow.synchronize()
    gc.collect()
    assert gone() is None
    del array


def test_the_source_of_a_copy_into_a_view_is_kept(bench: Bench, content: Layout) -> None:
    base = numbers()
    source = bench.pinned(base)
    array = dm.full(SHAPE, -1, np.int32)
    with hold(bench.slow):
        content(array).copy_to_device(content(source), stream=bench.slow)
        del source
        bench.scribble(base.nbytes)
    bench.slow.synchronize()
    expected = np.full(SHAPE, -1, np.int32)
    content(expected)[...] = content(base)
    assert np.array_equal(array.copy_to_host(), expected)


def test_a_pageable_source_may_be_reused_at_once(bench: Bench, content: Layout) -> None:
    base = numbers()
    source = base.copy()
    with hold(bench.slow):
        array = dm.to_device(content(source), stream=bench.slow)
        source[...] = 0
    bench.slow.synchronize()
    assert np.array_equal(array.copy_to_host(), content(base))


def test_the_destination_of_an_upload_is_kept(bench: Bench, content: Layout) -> None:
    base = numbers()
    source = bench.pinned(base)
    with hold(bench.slow):
        array = dm.to_device(content(source), stream=bench.slow)
        view = array[1:].T
        del array, view
        dm.trim()
        bench.scribble(base.nbytes)
        bench.scribble(content(base).nbytes)
    bench.slow.synchronize()


@pytest.mark.parametrize("how", ["drop", "free", "with"])
def test_freeing_does_not_wait_and_does_not_hurry(bench: Bench, how: str) -> None:
    base = numbers()
    source = bench.pinned(base)
    with hold(bench.slow):
        array = dm.to_device(source, stream=bench.slow)
        if how == "free":
            array.free()
        elif how == "with":
            with array:
                pass
        del array
        dm.trim()
        bench.scribble(base.nbytes)
    bench.slow.synchronize()
    assert np.array_equal(source, base)


# -- downloads ---------------------------------------------------------------------------------------------------------


def test_the_source_of_a_download_is_kept(bench: Bench, content: Layout) -> None:
    base = numbers()
    array = content(dm.to_device(base))
    out = bench.pinned(np.zeros_like(base))
    with hold(bench.slow) as latch, running(functools.partial(array.copy_to_host, content(out), stream=bench.slow)):
        del array
        dm.trim()
        bench.scribble(base.nbytes)
        latch.release()  # a copy that has to be scattered on the host waits for its stream
    bench.slow.synchronize()
    expected = np.zeros_like(base)
    content(expected)[...] = content(base)
    assert np.array_equal(out, expected)


def test_the_destination_of_a_download_is_kept(bench: Bench) -> None:
    base = numbers()
    array = dm.to_device(base)
    out = bench.pinned(np.zeros_like(base))
    gone = weakref.ref(out.base.base)  # its memory: of a subclass the memory is kept, not the view
    with hold(bench.slow):
        array.copy_to_host(out, stream=bench.slow)
        del out
        bench.scribble(base.nbytes)
        assert gone() is not None
    bench.slow.synchronize()
    assert gone() is None


def test_the_destination_of_a_download_is_right_through_another_reference(bench: Bench) -> None:
    base = numbers()
    array = dm.to_device(base)
    out = bench.pinned(np.zeros_like(base))
    alias = out.view()
    with hold(bench.slow):
        array.copy_to_host(out, stream=bench.slow)
        del out, array
        dm.trim()
        bench.scribble(base.nbytes)
        assert not np.any(alias)
    bench.slow.synchronize()
    assert np.array_equal(alias, base)


# -- several streams ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["drop", "free"])
@pytest.mark.parametrize("home", ["default", "named"])
def test_a_block_waits_for_every_stream_that_used_it(bench: Bench, how: str, home: str) -> None:
    base = numbers()
    # Home is a stream that runs freely; the last use is on one that stands still.
    free = dm.stream(non_blocking=True)
    array = dm.to_device(base, stream=0 if home == "default" else free)
    free.synchronize()
    out = bench.pinned(np.zeros_like(base))
    with hold(bench.slow):
        array.copy_to_host(out, stream=bench.slow)
        if how == "free":
            array.free()
        del array
        dm.trim()
        bench.scribble(base.nbytes)
    bench.slow.synchronize()
    assert np.array_equal(out, base)


@pytest.mark.parametrize("write", ["fill", "upload", "move"])
def test_late_writes_do_not_reach_the_next_owner(bench: Bench, write: str) -> None:
    base = numbers()
    array, other = dm.to_device(base), dm.to_device(base)
    source = bench.pinned(base)
    with hold(bench.slow):
        if write == "fill":
            array.fill(7, stream=bench.slow)
        elif write == "upload":
            array.copy_to_device(source, stream=bench.slow)
        else:
            array.copy_to_device(other, stream=bench.slow)
        del array, other  # not the source: freeing pinned memory waits for the device
        dm.trim()
        bench.scribble(base.nbytes)
    bench.slow.synchronize()


@pytest.mark.parametrize("kind", ["upload", "move"])
def test_a_copy_that_failed_half_way_is_waited_for(bench: Bench, kind: str) -> None:
    """Its first rows are on their way when the second call fails: neither side may be given away before they have arrived."""
    shape = (3, 3, 3, 3, 160)
    part = (slice(None, None, 2),) * 4 + (slice(128),)  # too many axes for one call of any driver
    array = dm.full(shape, -1, np.int32)
    source: Any = bench.pinned(np.zeros(shape, np.int32))
    if kind == "move":
        source = dm.to_device(source)

    before = bench.backend.calls.copy()
    array[part].copy_to_device(source[part], stream=bench.slow)
    bench.slow.synchronize()
    often = bench.backend.calls - before
    method = max(("copy", "copy_strided"), key=lambda name: often[name])
    assert often[method] > 1

    # The call has to wait for the stream, which goes on when the latch gives up.
    with hold(bench.slow, patience=0.5, tolerant=True) as latch:
        bench.backend.fail_at(2, method)
        with pytest.raises(dm.BackendError, match=f"injected failure of {method}"):
            array[part].copy_to_device(source[part], stream=bench.slow)
        bench.backend.disarm()
        assert latch.expired
        assert bench.slow.query(), "something is still under way"


def test_a_fill_that_failed_is_waited_for(bench: Bench) -> None:
    array = dm.full(SHAPE, -1, np.int32)
    with hold(bench.slow):
        bench.backend.fail_at(1, "stream_synchronize")
        with contextlib.suppress(dm.BackendError):
            array.bind(bench.slow).fill(7)  # enqueued, and the wait for it fails
        bench.backend.disarm()
        del array
        gc.collect()  # the error's traceback
        dm.trim()
        bench.scribble(4 * 6 * 256 * 4)
    bench.slow.synchronize()


def test_a_stream_is_dropped_with_copies_in_flight(bench: Bench) -> None:
    base = numbers()
    array = dm.device_array(SHAPE, np.int32)
    source = bench.pinned(base)
    stream = dm.stream(non_blocking=True)
    before = bench.backend.live().streams
    with hold(stream):
        array.copy_to_device(source, stream=stream)
        del stream, source
        gc.collect()
        dm.trim()
        bench.scribble(base.nbytes)
    dm.synchronize()
    assert np.array_equal(array.copy_to_host(), base)
    del array
    gc.collect()
    dm.trim()  # the block, behind an event on the stream
    dm.synchronize()
    dm.trim()
    assert bench.backend.live().streams == before - 1


def test_a_stream_is_closed_with_copies_in_flight(bench: Bench) -> None:
    base = numbers()
    source = bench.pinned(base)
    stream = dm.stream(non_blocking=True)
    with hold(stream) as latch:
        array = dm.to_device(source, stream=stream)
        del source
        with running(stream.close) as closing:
            blocked(closing, "close() did not wait")
            latch.release()
    assert stream.closed
    assert np.array_equal(array.bind(0).copy_to_host(), base)


def test_an_event_is_dropped_while_a_stream_waits_for_it(bench: Bench) -> None:
    base = numbers()
    array = dm.device_array(SHAPE, np.int32)
    source, out = bench.pinned(base), bench.pinned(np.zeros_like(base))
    with hold(bench.slow):
        array.copy_to_device(source, stream=bench.slow)
        event = bench.slow.record()
        bench.side.wait(event)
        del event
        gc.collect()
        dm.trim()
        array.copy_to_host(out, stream=bench.side)
        assert not bench.side.query()
    bench.side.synchronize()
    assert np.array_equal(out, base)


def test_a_slow_stream_does_not_hold_up_the_others(bench: Bench) -> None:
    base = numbers()
    slow, fast = bench.pinned(base), bench.pinned(base)
    held, let_go = weakref.ref(slow), weakref.ref(fast)
    with hold(bench.slow):
        first = dm.to_device(slow, stream=bench.slow)
        second = dm.to_device(fast, stream=bench.side)
        del slow, fast
        bench.side.synchronize()
        gc.collect()
        assert let_go() is None
        assert held() is not None
    bench.slow.synchronize()
    assert held() is None
    assert np.array_equal(first.copy_to_host(), second.copy_to_host())


def test_many_copies_of_one_stream_are_let_go_one_by_one(bench: Bench) -> None:
    base = numbers()
    references = []
    with hold(bench.slow):
        for _ in range(20):
            source = bench.pinned(base)
            references.append(weakref.ref(source))
            dm.to_device(source, stream=bench.slow)
        del source
        assert all(reference() is not None for reference in references)
    bench.slow.synchronize()
    gc.collect()
    assert [reference() for reference in references] == [None] * 20


# -- streams that are not ours -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def foreign_stream() -> Iterator[int]:
    """A foreign stream, whose owner destroys it right after its work is done."""
    device = dm.current_device()
    with device.entered() as driver:
        handle = driver.stream_create(0, True)
    try:
        yield handle
    finally:
        with device.entered() as driver:
            driver.stream_synchronize(handle)
            driver.stream_destroy(handle)


@pytest.mark.races("two streams write one block")
@pytest.mark.parametrize("home", ["there", "here"])
def test_a_foreign_stream_is_not_used_after_the_last_use(bench: Bench, home: str) -> None:
    base = numbers()
    source, out = bench.pinned(base), bench.pinned(np.zeros_like(base))
    with foreign_stream() as handle:
        stream = dm.external_stream(handle)
        with StreamHold(dm.current_device().driver(), handle):
            array = dm.to_device(source, stream=stream if home == "there" else bench.side)
            if home == "here":
                array.copy_to_device(source, stream=stream)
            array.copy_to_host(out, stream=stream)
            del array, source
            dm.trim()
            bench.scribble(base.nbytes)
    assert np.array_equal(out, base)
    dm.trim()  # the stream is gone: its handle must not be asked


def test_an_event_that_could_not_be_had_keeps_nothing_once_its_error_is_gone(bench: Bench) -> None:
    """Without a collection."""
    array = dm.to_device(numbers(), stream=bench.side)
    bench.side.synchronize()
    reference = weakref.ref(array)

    def fill(array: Any, handle: int) -> None:
        with pytest.raises(dm.BackendError, match="injected failure of event_create"):
            array.fill(0, stream=dm.external_stream(handle))

    gc.collect()
    gc.disable()
    try:
        with foreign_stream() as handle:
            bench.backend.fail_at(1, "event_create")
            fill(array, handle)
        bench.backend.disarm()
        del array
        assert reference() is None
    finally:
        gc.enable()


class Mine:
    """Something that a caller has in a variable."""


@pytest.mark.parametrize("ask", ["wait", "result", "done", "with"])
def test_the_error_of_a_failed_transfer_keeps_no_caller_alive(bench: Bench, ask: str) -> None:
    """It says the same each time, for as long as the transfer is referenced; the callers' frames need not stay."""
    copy = dm.copy_async(dm.to_device(numbers()), stream=bench.side)

    def caller() -> weakref.ref[Mine]:
        mine = Mine()
        if ask == "done":
            assert copy.done()
        with pytest.raises(dm.BackendError, match=f"injected failure of {method}"):
            if ask == "with":
                with copy:
                    pass
            else:
                getattr(copy, "wait" if ask == "done" else ask)()
        return weakref.ref(mine)

    method = "event_query" if ask == "done" else "event_synchronize"
    bench.side.synchronize()
    bench.backend.fail_at(1, method)
    gc.collect()
    gc.disable()
    try:
        assert [caller()() for _ in range(3)] == [None] * 3
    finally:
        gc.enable()


class Refused(dm.DevmemError, MemoryError):
    """No memory, in the words of a resource that means something else by it."""


class Refusing:
    """Memory that refuses every request."""

    def allocate(self, nbytes: int, stream: int) -> int:
        raise Refused("ask another resource")

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None: ...


def test_the_error_of_a_refused_allocation_keeps_no_caller_alive(bench: Bench) -> None:
    def caller() -> weakref.ref[Mine]:
        mine = Mine()
        with pytest.raises(Refused, match="ask another resource"):
            dm.to_device(numbers(), stream=bench.side)
        return weakref.ref(mine)

    with dm.use_memory(Refusing()):
        gc.collect()
        gc.disable()
        try:
            assert caller()() is None
        finally:
            gc.enable()


def test_a_block_used_on_a_foreign_stream_outlives_it(bench: Bench) -> None:
    base = numbers()
    with foreign_stream() as handle:
        array = dm.to_device(base, stream=dm.external_stream(handle)).bind(0)
    assert np.array_equal(array.copy_to_host(), base)
    array.free()


@pytest.mark.parametrize("same_ident", [False, True])
def test_the_default_stream_of_a_thread_that_is_gone(bench: Bench, same_ident: bool) -> None:
    """Handle 2 means another stream in each thread, and a new thread may well have the ident of an old one."""
    base = numbers()
    out = bench.pinned(np.zeros_like(base))
    left: dict[str, Any] = {"source": bench.pinned(base), "array": dm.to_device(base, stream=bench.side)}
    bench.side.synchronize()

    def first() -> None:
        with dm.use_backend("faulty"):
            stream = dm.per_thread_default_stream()
            left["latch"] = StreamHold(dm.current_device().driver(), stream.handle)
            left["latch"].__enter__()
            left["array"].copy_to_host(out, stream=stream)
            left["upload"] = dm.to_device(left.pop("source"), stream=stream)
            left["ident"] = threading.get_ident()

    def second() -> bool:
        if same_ident and threading.get_ident() != left["ident"]:
            return False
        with dm.use_backend("faulty"):
            del left["upload"]
            left["array"].free()
            dm.trim()
            bench.scribble(base.nbytes)
        return True

    together(first)
    if same_ident:  # as soon as the system has ended the first one: it may be a little behind
        found = any(together(second)[0] for _ in range(1000))
    else:
        found = second()
    left["latch"].__exit__(None, None, None)
    dm.synchronize()
    assert np.array_equal(out, base)
    if not found:
        pytest.skip("every new thread has an ident of its own")


def test_a_default_stream_that_was_handed_to_another_thread(bench: Bench) -> None:
    """There it means that thread's own, and the block remembers that one."""
    base = numbers()
    source, out = bench.pinned(base), bench.pinned(np.zeros_like(base))
    array = dm.to_device(source, stream=dm.per_thread_default_stream())
    dm.synchronize()
    left: dict[str, Any] = {}

    def elsewhere() -> None:
        with dm.use_backend("faulty"):
            left["latch"] = StreamHold(dm.current_device().driver(), dm.per_thread_default_stream().handle)
            left["latch"].__enter__()
            array.copy_to_host(out, stream=array.stream)

    together(elsewhere)
    array.free()
    dm.trim()
    bench.scribble(base.nbytes)
    left["latch"].__exit__(None, None, None)
    dm.synchronize()
    assert np.array_equal(out, base)


# -- scopes that end ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(call: Callable[[], object]) -> Iterator[threading.Event]:
    """Run it beside the block, in a thread; what it raises is raised at the end."""
    done = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with dm.use_backend("faulty"):
                call()
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        thread.join(patience())
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_the_end_of_mapped_waits(bench: Bench) -> None:
    base = numbers()
    array, source = np.zeros_like(base), dm.to_device(base)
    mapping = dm.mapped(array, stream=bench.slow)
    with hold(bench.slow) as latch:
        view = mapping.__enter__()
        view.copy_to_device(source, stream=bench.slow)
        with running(mapping.close) as closing:
            blocked(closing, "it did not wait")
            latch.release()
    assert np.array_equal(array, base)
    with pytest.raises(dm.ClosedError):
        view.copy_to_host()


@pytest.mark.parametrize("verb", ["pinned", "register"])
def test_the_end_of_pinned_waits(bench: Bench, verb: str) -> None:
    base = numbers()
    # Far enough apart that they share no page: memory registered in pieces is copied as if it were not registered.
    source, _, out = np.zeros((3, *SHAPE), np.int32)
    source[...] = base
    held = getattr(dm, verb)(source, out)
    with hold(bench.slow) as latch:
        array = dm.to_device(source, stream=bench.slow)
        array.copy_to_host(out, stream=bench.slow)
        with running(held.close) as closing:
            blocked(closing, "it did not wait")
            latch.release()
    assert np.array_equal(out, base)


def test_deregister_waits_for_copies_of_the_pages(bench: Bench) -> None:
    base = numbers()
    source = base.copy()
    dm.register(source)
    with hold(bench.slow) as latch:
        array = dm.to_device(source, stream=bench.slow)
        with running(lambda: dm.deregister(source)) as closing:
            blocked(closing, "it did not wait")
            latch.release()
    source[...] = 0
    assert np.array_equal(array.copy_to_host(), base)


@pytest.mark.parametrize("end", ["reset", "close"])
def test_the_device_ends_with_copies_in_flight(bench: Bench, end: str) -> None:
    base = numbers()
    array = dm.to_device(base)
    source, out = bench.pinned(base), bench.pinned(np.zeros_like(base))
    with hold(bench.slow, tolerant=True) as latch:
        driver = dm.current_device().driver()
        uploaded = dm.to_device(source, stream=bench.slow)
        array.copy_to_host(out, stream=bench.slow)
        with running(getattr(dm, end)) as closing:
            blocked(closing, "it did not wait")
            latch.release()
    assert np.array_equal(out, base), "pinned memory stays readable, and what was on its way arrived"
    assert np.array_equal(source, base)
    for gone in (array, uploaded):
        with pytest.raises(dm.ClosedError):
            gone.copy_to_host()
    with pytest.raises(dm.ClosedError):
        bench.slow.synchronize()
    assert np.array_equal(dm.to_device(base).copy_to_host(), base)
    del source, out
    gc.collect()
    dm.trim()
    assert driver.live() == (0, 0, 0, 0)


# -- memory that is not stream-ordered ---------------------------------------------------------------------------------


def test_plain_memory_is_freed_after_its_streams(bench: Bench) -> None:
    """Freeing waits here: it is done beside, and the block must not be handed out before the latch opens."""
    base = numbers()
    with dm.use_memory(dm.memory.DriverMemory()):
        array = dm.to_device(base)
        with hold(bench.slow) as latch:
            array.fill(1, stream=bench.slow)
            del array
            with running(dm.trim) as trimming:
                bench.scribble(base.nbytes)
                assert not trimming.is_set()
                latch.release()
        bench.slow.synchronize()


def test_a_dropped_block_waits_in_the_queue_while_cleanup_is_deferred(bench: Bench) -> None:
    base = numbers()
    with dm.defer_cleanup():
        for _ in range(30):
            dm.to_device(base, stream=bench.side)
        bench.side.synchronize()
        dm.trim()
        info = dm.memory_info()
        assert (info.live, info.pending) == (0, 30 * base.nbytes)
    assert dm.memory_info().pending == 0


@pytest.mark.races("blocks are used on another stream than they are allocated on")
@pytest.mark.parametrize(("memory", "method"), [("stream_ordered", "stream_wait"), ("driver", "stream_synchronize")])
def test_a_block_that_cannot_be_freed_holds_up_no_other(bench: Bench, memory: str, method: str) -> None:
    """It is tried again behind the others, and what went wrong is told once."""
    homes = [dm.stream(non_blocking=True) for _ in range(5)]
    with dm.use_memory(memory):
        arrays = [dm.device_array(1000, np.uint8, stream=home) for home in homes]
    for array in arrays:
        array.fill(0, stream=bench.side)
    bench.side.synchronize()
    dm.trim()
    arrays.clear()
    del array
    bench.backend.fail_at(1, method)
    with pytest.warns(dm.DevmemWarning, match=f"injected failure of {method}") as told:
        dm.trim()
    assert bench.backend.injected
    assert len(told) == 1
    assert dm.memory_info().pending == 1000
    bench.backend.disarm()
    dm.trim()
    assert dm.memory_info().pending == 0
