"""A state machine over the whole of devmem, against a model made of NumPy arrays.

The model of a device array is an ndarray of the same layout over memory of its own; an operation on a stream is done to
the model at once. What devmem leaves to the user is done by the machine as a user would: before memory that was used on one
stream is used on another, the second waits for the first.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import devmem as dm

Array = np.ndarray[Any, Any]

DTYPES = ["u1", "<i4", "<f8", "V5"]
SHAPES = st.sampled_from([(7,), (3, 5), (2, 3, 4), (64, 33), (), (0, 4), (1, 6), (5, 700)])
PICK = st.integers(0, 1 << 16)
VIEWS: dict[str, Callable[[Any], Any]] = {
    "same": lambda a: a[...],
    "half": lambda a: a[::2] if a.ndim else a[...],
    "tail": lambda a: a[1:] if a.ndim else a[...],
    "backwards": lambda a: a[..., ::-1] if a.ndim else a[...],
    "transposed": lambda a: a.T,
    "column": lambda a: a[:, 1] if a.ndim > 1 and a.shape[1] > 1 else a[...],
    "spread": lambda a: a[None],
}


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    dm.close()


class Block:
    """One allocation: the model of its bytes, the last stream that used it, and whether it was freed."""

    def __init__(self, memory: Array, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes
        self.last: Any = None
        self.freed = False


class Entry:
    """A device array and what it should hold."""

    def __init__(self, array: Any, model: Array, block: Block) -> None:
        self.array = array
        self.model = model
        self.block = block


class Machine(RuleBasedStateMachine):
    """Every rule does the same to devmem and to the model."""

    @initialize()
    def start(self) -> None:
        dm.close()
        self.entries: list[Entry] = []
        self.streams: list[Any] = []
        self.events: list[Any] = []
        self.promises: list[tuple[Array, bytes, Any]] = []  # downloads under way: where to, what, on which stream
        self.registered: list[Array] = []
        self.deferred: list[Any] = []
        self.seed = 0

    def teardown(self) -> None:
        if not hasattr(self, "entries"):
            return
        while self.deferred:
            self.leave_deferral()
        self.everything_has_passed()
        for array in self.registered:
            dm.deregister(array)
        for name in ("entries", "streams", "events", "promises"):
            getattr(self, name).clear()
        gc.collect()
        dm.synchronize()
        dm.trim()
        info = dm.memory_info()
        assert (info.live, info.pending) == (0, 0)
        driver: Any = dm.current_device().driver()
        if hasattr(driver, "live_counts"):
            assert driver.live_counts() == (0, 0, 0, 0)
        dm.close()

    # -- making arrays -------------------------------------------------------------------------------------------------

    @rule(shape=SHAPES, dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"), on=PICK)
    def upload(self, shape: tuple[int, ...], dtype: str, order: Any, on: int) -> None:
        stream = self.stream(on)
        self.add(dm.to_device(self.content(shape, dtype, order), stream=stream), stream)

    @rule(shape=SHAPES, dtype=st.sampled_from(DTYPES), view=st.sampled_from(sorted(VIEWS)), on=PICK)
    def upload_from_pinned(self, shape: tuple[int, ...], dtype: str, view: str, on: int) -> None:
        stream = self.stream(on)
        content = self.content(shape, dtype)
        pinned = dm.pinned_array(shape, dtype)
        raw(pinned)[...] = raw(content)
        entry = self.add(dm.to_device(VIEWS[view](pinned), stream=stream), stream, VIEWS[view](content))
        assert entry.array.shape == VIEWS[view](content).shape
        # The pinned array is unreferenced while it is being read.

    @rule(shape=SHAPES, dtype=st.sampled_from(["u1", "<i4", "<f8"]), value=st.integers(0, 100), on=PICK)
    def full(self, shape: tuple[int, ...], dtype: str, value: int, on: int) -> None:
        stream = self.stream(on)
        self.add(dm.full(shape, value, dtype, stream=stream), stream, np.full(shape, value, dtype))

    @precondition(lambda self: self.entries)
    @rule(which=PICK, on=PICK)
    def copy(self, which: int, on: int) -> None:
        entry = self.entry(which)
        stream = self.use(on, entry)
        if self.refused(entry, lambda: entry.array.copy(stream=stream)):
            return
        self.add(entry.array.copy(stream=stream), stream, entry.model)

    @precondition(lambda self: self.entries)
    @rule(which=PICK, view=st.sampled_from(sorted(VIEWS)))
    def view(self, which: int, view: str) -> None:
        entry = self.entry(which)
        if self.refused(entry, lambda: entry.array[...]):
            return
        self.entries.append(Entry(VIEWS[view](entry.array), VIEWS[view](entry.model), entry.block))

    # -- copying -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.entries)
    @rule(which=PICK, on=PICK)
    def download(self, which: int, on: int) -> None:
        entry = self.entry(which)
        self.use(0, entry)
        if not self.refused(entry, lambda: entry.array.copy_to_host()):
            assert bits(entry.array.copy_to_host()) == bits(entry.model)

    @precondition(lambda self: self.entries)
    @rule(which=PICK, on=PICK, keep=st.booleans())
    def download_later(self, which: int, on: int, keep: bool) -> None:
        entry = self.entry(which)
        stream = self.use(on, entry)
        if entry.block.freed:
            return
        out = dm.pinned_array(entry.array.shape, entry.array.dtype)
        entry.array.copy_to_host(out, stream=stream)
        if keep:
            self.promises.append((out, bits(entry.model), stream))

    @precondition(lambda self: self.entries)
    @rule(which=PICK, on=PICK, pinned=st.booleans())
    def copy_from_host(self, which: int, on: int, pinned: bool) -> None:
        entry = self.entry(which)
        content = self.content(entry.array.shape, entry.array.dtype)
        stream = self.use(on, entry)
        source = content
        if pinned:
            source = dm.pinned_array_like(content)
            raw(source)[...] = raw(content)
        if not self.refused(entry, lambda: entry.array.copy_to_device(source, stream=stream)):
            entry.array.copy_to_device(source, stream=stream)
            raw(entry.model)[...] = raw(content)

    @precondition(lambda self: self.entries)
    @rule(which=PICK, other=PICK, on=PICK)
    def copy_from_device(self, which: int, other: int, on: int) -> None:
        to = self.entry(which)
        fitting = [e for e in self.entries if (e.array.shape, e.array.dtype) == (to.array.shape, to.array.dtype)]
        origin = fitting[other % len(fitting)]
        stream = self.use(on, to, origin)
        if to.block.freed or origin.block.freed:
            with pytest.raises(dm.ClosedError):
                to.array.copy_to_device(origin.array, stream=stream)
            return
        to.array.copy_to_device(origin.array, stream=stream)
        raw(to.model)[...] = raw(origin.model).copy()

    @precondition(lambda self: self.entries)
    @rule(which=PICK, cut=st.integers(0, 3), step=st.sampled_from([1, 2, -1]))
    def assign(self, which: int, cut: int, step: int) -> None:
        """A part of an array to another part of it, most of the time an overlapping one."""
        entry = self.entry(which)
        self.use(0, entry)
        if not entry.array.ndim or self.refused(entry, lambda: entry.array[...]):
            return
        count = max((len(entry.array) - cut) // abs(step), 0)
        to, origin = slice(cut, cut + count), slice(None, None, step)
        entry.array[to] = entry.array[origin][:count]
        raw(entry.model)[to] = raw(entry.model)[origin][:count].copy()

    @precondition(lambda self: self.entries)
    @rule(which=PICK, on=PICK, value=st.integers(0, 100))
    def fill(self, which: int, on: int, value: int) -> None:
        entry = self.entry(which)
        item: Any = value if entry.array.dtype.kind != "V" else np.frombuffer(bytes([value] * 5), "V5")[0]
        stream = self.use(on, entry)
        if not self.refused(entry, lambda: entry.array.fill(item, stream=stream)):
            entry.array.fill(item, stream=stream)
            entry.model[...] = item

    # -- letting go ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.entries)
    @rule(which=PICK)
    def drop(self, which: int) -> None:
        self.entries.remove(self.entry(which))

    @precondition(lambda self: self.entries)
    @rule(which=PICK)
    def free(self, which: int) -> None:
        entry = self.entry(which)
        entry.array.free()
        entry.array.free()
        entry.block.freed = True

    @rule(keep=st.sampled_from([0, 1 << 20]))
    def trim(self, keep: int) -> None:
        dm.trim(keep)

    @rule()
    def collect(self) -> None:
        gc.collect()

    @rule()
    def enter_deferral(self) -> None:
        self.deferred.append(dm.defer_cleanup())
        self.deferred[-1].__enter__()

    @precondition(lambda self: self.deferred)
    @rule()
    def leave_deferral(self) -> None:
        self.deferred.pop().__exit__(None, None, None)

    @rule(name=st.sampled_from(["driver", "stream_ordered", "managed"]))
    def use_memory(self, name: str) -> None:
        if name == "stream_ordered" and name not in dm.current_device().info.capabilities:
            name = "pool"
        dm.use_memory(name)

    @rule(how=st.sampled_from([dm.reset, dm.close]))
    def reset(self, how: Callable[[], None]) -> None:
        gone = [*self.entries]
        streams, events = [*self.streams], [*self.events]
        how()
        for out, expected, _ in self.promises:
            assert bits(out) == expected, "what was under way arrived, and pinned memory stays readable"
        self.registered.clear()
        for name in ("entries", "streams", "events", "promises"):
            getattr(self, name).clear()
        for entry in gone:
            with pytest.raises(dm.ClosedError):
                entry.array.copy_to_host()
        for stream in streams:
            with pytest.raises(dm.ClosedError):
                stream.synchronize()
        for event in events:
            with pytest.raises(dm.ClosedError):
                event.query()

    # -- streams and events --------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.streams) < 5)
    @rule(non_blocking=st.booleans())
    def new_stream(self, non_blocking: bool) -> None:
        self.streams.append(dm.stream(non_blocking=non_blocking))

    @precondition(lambda self: self.streams)
    @rule(which=PICK)
    def synchronize_stream(self, which: int) -> None:
        stream = self.streams[which % len(self.streams)]
        stream.synchronize()
        assert stream.query()
        self.keep_promises(stream)

    @precondition(lambda self: self.streams)
    @rule(which=PICK)
    def close_stream(self, which: int) -> None:
        stream = self.streams.pop(which % len(self.streams))
        stream.close()
        self.keep_promises(stream)
        self.forget(stream)

    @precondition(lambda self: self.streams)
    @rule(which=PICK)
    def drop_stream(self, which: int) -> None:
        """Dropped with all that is on it; the machine itself must not keep it either."""
        stream = self.streams.pop(which % len(self.streams))
        event = stream.record()
        self.promises = [(out, expected, event if s is stream else s) for out, expected, s in self.promises]
        for entry in self.entries:
            if entry.block.last is stream:
                entry.block.last = event
        for entry in [e for e in self.entries if e.array.stream is stream]:
            entry.array = None if entry.block.freed else entry.array.bind(0)
        self.entries = [entry for entry in self.entries if entry.array is not None]

    @rule()
    def synchronize(self) -> None:
        dm.synchronize()
        self.everything_has_passed()

    @rule(on=PICK)
    def record(self, on: int) -> None:
        event = dm.event(timing=False)
        event.record(self.stream(on))
        self.events.append(event)

    @precondition(lambda self: self.events)
    @rule(which=PICK, on=PICK, how=st.sampled_from(["wait", "synchronize", "close", "drop"]))
    def use_event(self, which: int, on: int, how: str) -> None:
        at = which % len(self.events)
        event = self.events[at]
        if how == "wait":
            event.wait(self.stream(on))
        elif how == "synchronize":
            event.synchronize()
            assert event.query()
        else:
            del self.events[at]
            if how == "close":
                event.close()

    # -- registered memory ---------------------------------------------------------------------------------------------

    @rule(count=st.sampled_from([10, 1000, 5000]))
    def register(self, count: int) -> None:
        array = np.zeros(count, "<i4")
        dm.register(array)
        self.registered.append(array)

    @precondition(lambda self: self.registered)
    @rule(which=PICK, on=PICK)
    def use_registered(self, which: int, on: int) -> None:
        array = self.registered[which % len(self.registered)]
        self.everything_has_passed()
        array += 1
        stream = self.stream(on)
        self.add(dm.to_device(array, stream=stream), stream, array.copy())

    @precondition(lambda self: self.registered)
    @rule(which=PICK)
    def deregister(self, which: int) -> None:
        array = self.registered.pop(which % len(self.registered))
        dm.deregister(array)
        array[...] = -1  # what was copied from it has been copied
        with pytest.raises(dm.DevmemError):
            dm.deregister(array)

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def memory_is_accounted_for(self) -> None:
        if not hasattr(self, "entries"):
            return
        blocks = {id(entry.block): entry.block for entry in self.entries if not entry.block.freed}
        # What is on its way keeps its memory too; that cannot be more than was handed out and not waited for.
        promised = sum(out.nbytes for out, _, _ in self.promises)
        info = dm.memory_info()
        live = info.live + info.host.live  # what is promised comes to lie in page-locked memory
        assert live >= sum(block.nbytes for block in blocks.values()) + promised
        assert info.pending >= 0
        if not self.promises and all(entry.block.last is None for entry in self.entries) and self.idle:
            assert live == sum(block.nbytes for block in blocks.values())

    idle = False

    # -- below ---------------------------------------------------------------------------------------------------------

    def content(self, shape: tuple[int, ...], dtype: Any, order: Any = "C") -> Array:
        self.seed += 1
        kind = np.dtype(dtype)
        found = np.random.default_rng(self.seed).integers(0, 256, max(math.prod(shape), 1) * kind.itemsize, np.uint8)
        return found.view(kind)[: math.prod(shape)].reshape(shape, order=order)

    def add(self, array: Any, stream: Any, model: Array | None = None) -> Entry:
        self.idle = False
        content = array.copy_to_host() if model is None else model
        memory = np.empty(array.size * array.itemsize, np.uint8)
        made = np.ndarray(array.shape, array.dtype, memory if array.size else None, 0, array.strides)
        raw(made)[...] = raw(content)
        block = Block(memory, array.nbytes)
        block.last = stream or None
        self.entries.append(Entry(array, made, block))
        return self.entries[-1]

    def entry(self, which: int) -> Entry:
        return self.entries[which % len(self.entries)]

    def stream(self, on: int) -> Any:
        every = [0, 0, *self.streams]
        return every[on % len(every)]

    def use(self, on: int, *entries: Entry) -> Any:
        """Choose a stream for work on these arrays, and make it wait for what they were last used on."""
        self.idle = False
        stream = self.stream(on)
        for entry in entries:
            # Without a stream, an array's own is used, which may not be the one it was used on last.
            chosen = stream or (None if entry.block.freed else entry.array.stream) or dm.default_stream()
            last = entry.block.last
            for other in {
                id(s): s for s in (last, *[e.array.stream for e in entries if not e.block.freed]) if s
            }.values():
                if other is not chosen:
                    chosen.wait(other)
            entry.block.last = stream or None
        if not stream and len(entries) > 1:
            dm.synchronize()
        return stream

    def refused(self, entry: Entry, call: Callable[[], object]) -> bool:
        """Whether the array's memory was freed; then the call says so."""
        if entry.block.freed:
            with pytest.raises(dm.ClosedError):
                call()
        return entry.block.freed

    def keep_promises(self, stream: Any) -> None:
        for out, expected, on in self.promises:
            if on is stream:
                assert bits(out) == expected
        self.promises = [promise for promise in self.promises if promise[2] is not stream]

    def everything_has_passed(self) -> None:
        dm.synchronize()
        for out, expected, _ in self.promises:
            assert bits(out) == expected
        self.promises.clear()
        for entry in self.entries:
            entry.block.last = None
        gc.collect()
        self.idle = True

    def forget(self, stream: Any) -> None:
        """An array that is bound to a closed stream has to be bound anew."""
        for entry in self.entries:
            if entry.block.last is stream:
                entry.block.last = None
            if entry.array.stream is stream and not entry.block.freed:
                entry.array = entry.array.bind(0)
        self.entries = [e for e in self.entries if e.block.freed is False or e.array.stream is not stream]


def raw(array: Array) -> Array:
    return array.view(f"V{array.itemsize}")


def bits(array: Array) -> bytes:
    return np.ascontiguousarray(raw(array)).tobytes()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=settings.default.max_examples // 4, stateful_step_count=50)
