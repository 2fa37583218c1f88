"""Ten thousand times each main verb: nothing is left on the device, in devmem's books, or on the host."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import devmem as dm
from devmem._core.ordering.completions import leaked
from devmem.testing import hold

TIMES = 10_000
#: What may remain on the host after that: caches that fill up once, not something for each time.
SLACK = 48 * 1024

Verb = Callable[["Things"], object]
VERBS: dict[str, Verb] = {}


class Things:
    """What the verbs work on, made once."""

    def __init__(self) -> None:
        self.host = np.arange(60, dtype=np.int32).reshape(6, 10)
        self.out = np.empty_like(self.host)
        self.array: Any = dm.to_device(self.host)
        self.target: Any = dm.device_array_like(self.host)
        self.records: Any = dm.to_device(np.zeros(3, [("x", "i4"), ("y", "f8")]))
        self.stream = dm.stream()
        self.other = dm.stream(non_blocking=True)
        self.event = dm.event()
        self.end = dm.event()
        self.pinned = dm.pinned_array_like(self.host)
        self.pinned[...] = self.host
        self.mapped = dm.mapped_array(10)
        self.plain = np.zeros(1000)
        self.shared: Any = dm.to_device(self.host)  # lives through all rounds: what it remembers must not grow
        with dm.device(1):
            self.far = dm.to_device(self.host)

    def forget(self) -> None:
        """Begin anew with what remembers something of its past."""
        self.shared.free()
        self.shared = dm.to_device(self.host)
        settle()


def verb(name: str) -> Callable[[Verb], Verb]:
    def add(call: Verb) -> Verb:
        VERBS[name] = call
        return call

    return add


@verb("upload")
def _(things: Things) -> None:
    dm.to_device(things.host)


@verb("upload on a stream")
def _(things: Things) -> None:
    dm.to_device(things.host, stream=things.stream)


@verb("upload from pinned memory on a stream")
def _(things: Things) -> None:
    dm.to_device(things.pinned, stream=things.stream)


@verb("upload of a slice")
def _(things: Things) -> None:
    dm.to_device(things.host[::2, ::-3])


@verb("download")
def _(things: Things) -> None:
    things.array.copy_to_host()


@verb("download into")
def _(things: Things) -> None:
    things.array.copy_to_host(things.out)


@verb("download to pinned memory on a stream")
def _(things: Things) -> None:
    things.array.copy_to_host(things.pinned, stream=things.other)


@verb("device_array")
def _(things: Things) -> None:
    dm.device_array((6, 10), np.int32)


@verb("zeros and full")
def _(things: Things) -> None:
    dm.zeros(10)
    dm.full(10, 1.5)


@verb("free")
def _(things: Things) -> None:
    dm.device_array(10).free()


@verb("with")
def _(things: Things) -> None:
    with dm.device_array(10):
        pass


@verb("copy_to_device")
def _(things: Things) -> None:
    things.target.copy_to_device(things.host)
    things.target.copy_to_device(things.array, stream=things.stream)
    things.target.copy_to_device(things.pinned, stream=things.stream)


@verb("between devices")
def _(things: Things) -> None:
    things.target.copy_to_device(things.far)


@verb("copy and fill")
def _(things: Things) -> None:
    things.array.copy().fill(7)


@verb("views")
def _(things: Things) -> None:
    things.array[1:, ::2].T.reshape(-1)
    list(things.array.split(2))
    things.array.view("u1").squeeze().ravel()


@verb("indexing and assignment")
def _(things: Things) -> None:
    things.target[1, 2] = things.array[0, 1]
    things.target[1:] = things.target[:-1]


@verb("records")
def _(things: Things) -> None:
    record = things.records[1]
    record["x"] = int(record["x"]) + 1


@verb("streams")
def _(things: Things) -> None:
    with dm.stream() as stream:
        dm.device_array(10)
    stream.close()


@verb("dropped streams with work on them")
def _(things: Things) -> None:
    dm.to_device(things.pinned, stream=dm.stream())


@verb("one array on ever new streams")
def _(things: Things) -> None:
    stream = dm.stream()
    things.shared.copy_to_host(things.pinned, stream=stream)
    stream.synchronize()


@verb("one array on ever new streams, closed")
def _(things: Things) -> None:
    stream = dm.stream()
    things.shared.fill(1, stream=stream)
    stream.close()


@verb("events")
def _(things: Things) -> None:
    things.event.record(things.stream)
    things.end.record(things.stream)
    things.stream.wait(things.other)
    things.stream.record().synchronize()
    dm.event().close()


@verb("pinned memory")
def _(things: Things) -> None:
    dm.pinned_array(10)[...] = 1


@verb("mapped and managed memory")
def _(things: Things) -> None:
    dm.mapped_array(10)[2:].sum()
    dm.managed_array(10)[2:].sum()
    things.mapped.copy_to_host()


@verb("registration")
def _(things: Things) -> None:
    with dm.pinned(things.plain), dm.pinned(things.plain[10:]):
        pass
    dm.register(things.plain)
    dm.deregister(things.plain)


@verb("mapping")
def _(things: Things) -> None:
    with dm.mapped(things.plain) as view:
        view.fill(1)


@verb("cycles")
def _(things: Things) -> None:
    cycle: list[Any] = [dm.to_device(things.host), dm.stream(), dm.event()]
    cycle.append(cycle)


@verb("scopes")
def _(things: Things) -> None:
    with dm.device(1), dm.use_backend("host"), dm.use_memory("driver"), things.stream, dm.defer_cleanup():
        pass


@verb("external streams")
def _(things: Things) -> None:
    stream = dm.external_stream(things.other.handle)
    dm.to_device(things.pinned, stream=stream)


@verb("errors")
def _(things: Things) -> None:
    with contextlib.suppress(dm.LayoutError):
        things.array.copy_to_device(np.zeros(3))
    with contextlib.suppress(IndexError):
        things.array[99]
    array = dm.device_array(3)
    array.free()
    with contextlib.suppress(dm.ClosedError):
        array.copy_to_host()


@verb("out of memory")
def _(things: Things) -> None:
    # The ladder collects garbage, which is slow: the other rungs are climbed elsewhere.
    if dm.memory_info().live % 200 == 0:
        with contextlib.suppress(dm.OutOfMemory):
            dm.device_array(1 << 50, np.uint8)


@pytest.fixture
def things() -> Iterator[Things]:
    dm.close()
    gc.collect()
    yield Things()
    dm.close()


def settle() -> None:
    gc.collect()
    for ordinal in range(2):
        dm.device(ordinal).synchronize()
    dm.trim()


def books() -> dict[str, Any]:
    """What devmem and the driver hold."""
    context = dm.current_device().opened()
    queue, completions = context.free_queue, context.completions
    driver: Any = context.handle.driver
    return {
        "live and pending": (dm.memory_info()[2:4], dm.memory_info().host[:2]),
        "driver": driver.live_counts() if hasattr(driver, "live_counts") else None,
        "heaps": len(context.memory.stacks.heaps),
        "busy streams": len(completions.in_flight),
        "events": len(completions.events.events),
        "spare events": len(completions.events.passed),
        "dropped": len(queue.dropped),
        "pending": len(queue.pending),
        "leaked": len(leaked),
        "streams": len(context.streams._streams),
        "handles": len(context.streams._handles),
        "registered": len(context.page_locks.held[context.handle])
        + len(context.page_locks.segments)
        + len(context.page_locks.closing),
    }


@pytest.mark.parametrize("name", sorted(VERBS))
def test_ten_thousand_times(name: str, things: Things) -> None:
    call = VERBS[name]
    traced = []
    tracemalloc.start()
    try:
        for _ in range(1100):  # caches fill, such as that of 1,024 destroyed handles; threads start
            call(things)
        settle()
        things.forget()
        before = books()
        for _ in range(3):
            for _ in range(200):
                call(things)
            settle()
            traced.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    for _ in range(TIMES - 1700):
        call(things)
    settle()
    # An array that lives long remembers some of the streams that it was used on, not all.
    assert books()["handles"] <= before["handles"] + 20
    things.forget()
    assert books() == before
    assert (
        traced[-1] - traced[0] < 2 * SLACK
    )  # dictionaries from which the oldest entry goes are made anew now and then


def test_a_long_loop_on_the_host(things: Things) -> None:
    """Growth that is too slow to be seen in a few hundred rounds."""
    settle()
    tracemalloc.start()
    try:
        for round in range(2):
            for _ in range(2000):
                array = dm.to_device(things.pinned, stream=things.stream)
                things.other.wait(things.stream)
                array[1:].copy_to_host(things.out[1:], stream=things.other)
                things.shared.copy_to_host(things.pinned, stream=dm.stream())
            settle()
            if round == 0:
                before, _ = tracemalloc.get_traced_memory()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 3 * SLACK  # threads of streams that were just dropped may still be ending


def test_what_waits_for_streams_does_not_pile_up(things: Things) -> None:
    """Thousands of copies are behind a latch at the same time; when it opens, what they held goes, and so do their events."""
    settle()
    before = books()
    with hold(things.other):
        for _ in range(2000):
            things.array.copy_to_host(things.pinned, stream=things.other)
    things.other.synchronize()
    dm.device_array(1)
    context = dm.current_device().opened()
    assert len(context.completions.events.passed) <= 64, "no more than a handful of events are kept for reuse"
    settle()
    assert books() == before


def test_the_queue_is_bounded(things: Things) -> None:
    """Without a trim: what was dropped is freed at the next allocation, by count."""
    context = dm.current_device().opened()
    for _ in range(1000):
        dm.to_device(things.host)
        assert len(context.handle.dropped) + len(context.free_queue.pending) <= context.free_queue.max_count + 2


def test_opening_and_closing() -> None:
    def once() -> None:
        with dm.stream():
            dm.to_device(np.arange(10)).copy_to_host()
        dm.pinned_array(10)
        dm.close()

    dm.close()
    for _ in range(20):
        once()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(10):
            once()
        held = []
        for _ in range(3):  # what is lost each time is lost in all of them; a table that grows once is not
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
            for _ in range(100):
                once()
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert min(after - before for before, after in pairwise(held)) < SLACK
