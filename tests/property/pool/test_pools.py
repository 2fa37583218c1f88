"""The pools against a model: a driver that only keeps time, an upstream that only counts, and no device.

Work on a stream is a number that grows; `advance` makes it pass. A block that came back leaves a trace of which work may still
use it, and the next user of those bytes must be ordered behind all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from devmem._core.pool.pinned_pool import PinnedPool
from devmem._core.pool.pool import PoolMemory
from devmem._core.pool.size_bins import UNIT, class_of, rounded
from devmem.spi.errors import BackendError, OutOfMemory
from devmem.spi.types import LEGACY_STREAM, Capability, DeviceInfo

KIB, MIB = 1 << 10, 1 << 20
SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 200 * KIB),
    st.sampled_from([512, 513, 16 * KIB, 1 * MIB - 1, 1 * MIB, 3 * MIB]),
    st.integers(1, 8 * MIB),
)
PICK = st.integers(0, 1 << 16)


@dataclass(eq=False)
class Work:
    """A stream: work that was enqueued, and how much of it has passed."""

    handle: int
    enqueued: int = 0
    passed: int = 0


@dataclass
class Event:
    """What an event captured: work that has to pass."""

    until: list[tuple[Work, int]] = field(default_factory=list)


class Injected(BackendError):
    """A failure that was ordered."""


class Clock:
    """A driver with streams and events and nothing else; wrong handles are mistakes."""

    def __init__(self) -> None:
        self.info = DeviceInfo("clock", 0, "clock", "clock", 1 << 40, capabilities=frozenset({Capability.CAPTURE}))
        self.streams: dict[int, Work] = {LEGACY_STREAM: Work(LEGACY_STREAM)}
        self.gone: list[Work] = []
        self.events: dict[int, Event] = {}
        self.mistakes: list[str] = []
        self.capture: set[int] = set()
        self.fail = 0
        self.calls = 0
        self._handles = iter(range(1000, 1 << 60))

    def call(self, name: str) -> None:
        self.calls += 1
        if self.fail:
            self.fail -= 1
            if not self.fail:
                raise Injected(f"injected: {name}", backend="clock", call=name, code=-1, name="INJECTED")

    def until(self, handle: int) -> list[tuple[Work, int]]:
        """The work that is on a stream now; on the legacy stream that is all work."""
        found = [*self.streams.values(), *self.gone] if handle == LEGACY_STREAM else [self.streams[handle]]
        return [(work, work.enqueued) for work in found]

    def capturing(self, stream: int) -> bool:
        return stream in self.capture

    def event_create(self, timing: bool) -> int:
        self.call("event_create")
        handle = next(self._handles)
        self.events[handle] = Event()
        return handle

    def event_record(self, event: int, stream: int) -> None:
        if stream not in self.streams or event not in self.events:
            self.mistakes.append(f"event_record({event}, {stream})")
        if stream in self.capture:
            self.mistakes.append(f"event_record on the capturing stream {stream}")
        self.call("event_record")
        self.events[event].until = self.until(stream)

    def event_query(self, event: int) -> bool:
        if event not in self.events:
            self.mistakes.append(f"event_query({event})")
        self.call("event_query")
        return has_passed(self.events[event].until)

    def event_destroy(self, event: int) -> None:
        if self.events.pop(event, None) is None:
            self.mistakes.append(f"event_destroy({event})")
        self.call("event_destroy")

    def synchronize(self) -> None:
        if self.capture:
            self.mistakes.append("synchronize while a stream is capturing")
        self.call("synchronize")
        for work in [*self.streams.values(), *self.gone]:
            work.passed = work.enqueued


def has_passed(until: list[tuple[Work, int]]) -> bool:
    return all(work.passed >= number for work, number in until)


class Upstream:
    """Memory without memory; it gives the lowest address that is free, so that what comes back is soon given out again."""

    def __init__(self, machine: Pools) -> None:
        self.machine = machine
        self.stream_ordered = machine.ordered
        self.live: dict[int, int] = {}
        self.room = 1 << 40

    def allocate(self, nbytes: int, stream: int) -> int:
        assert nbytes > 0
        self.machine.clock.call("alloc")
        if sum(self.live.values()) + nbytes > self.room:
            raise OutOfMemory("no room")
        at = 256
        for start, size in sorted(self.live.items()):
            if at + nbytes <= start:
                break
            at = start + size
        self.live[at] = nbytes
        limit = self.machine.limit
        assert limit is None or sum(self.live.values()) <= limit
        if self.stream_ordered:
            self.machine.traces.append((at, at + nbytes, stream, self.machine.clock.until(stream)))
        return at

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        assert self.live.pop(ptr) == nbytes, "another size than was given"
        self.machine.must_be_unused(ptr, ptr + nbytes)
        self.machine.clock.call("free")


class Pools(RuleBasedStateMachine):
    """Every rule does what a program may do, and the model says what must not come of it."""

    ordered = False
    limit: int | None = None

    def make(self) -> Any:
        return PoolMemory(Upstream(self), max_bytes=self.limit)

    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.traces: list[tuple[int, int, int, list[tuple[Work, int]]]] = []
        self.live: dict[int, tuple[int, int]] = {}  # address: bytes, stream
        self.foreign: set[int] = set()
        self.pool = self.make()
        self.upstream: Upstream = self.pool.upstream
        self.pool.bind(self.clock)
        for handle in (10, 11):
            self.clock.streams[handle] = Work(handle)

    # -- the model -----------------------------------------------------------------------------------------------------

    def must_be_unused(self, start: int, end: int) -> None:
        for ptr, (nbytes, _) in self.live.items():
            assert end <= ptr or ptr + nbytes <= start, "a live block went back"
        self.forget_traces(start, end, None)

    def forget_traces(self, start: int, end: int, stream: int | None) -> None:
        """These bytes begin anew: nothing of what was may still use them, but on the same stream before."""
        kept = []
        for first, last, home, until in self.traces:
            if last <= start or end <= first:
                kept.append((first, last, home, until))
                continue
            if not self.in_order(home, stream, until):
                raise AssertionError(f"bytes that stream {home} may still use reach stream {stream}")
            kept += [(a, b, home, until) for a, b in ((first, start), (end, last)) if a < b]
        self.traces = kept

    def in_order(self, home: int, stream: int | None, until: list[tuple[Work, int]]) -> bool:
        if has_passed(until):
            return True
        # In the order of one stream: if it still is that stream, and not another with its number.
        return home == stream and (home == LEGACY_STREAM or all(work is self.clock.streams[home] for work, _ in until))

    def pick(self, number: int) -> int:
        handles = sorted(self.clock.streams)
        return handles[number % len(handles)]

    def attempt(self, call: Any, *arguments: Any) -> Any:
        """Failures that were ordered may come through; the books must be right nevertheless."""
        try:
            return call(*arguments)
        except (OutOfMemory, Injected):
            return None
        finally:
            self.clock.fail = 0

    # -- what a program does -------------------------------------------------------------------------------------------

    @rule(nbytes=SIZES, on=PICK, count=st.integers(1, 5))
    def allocate(self, nbytes: int, on: int, count: int) -> None:
        stream = self.pick(on)
        for _ in range(count):
            if stream in self.clock.capture:
                calls = self.clock.calls
                try:
                    ptr = self.pool.allocate(nbytes, stream)
                except NotImplementedError:
                    ptr = None
                assert self.clock.calls == calls, "a call of the driver while capturing"
            else:
                ptr = self.attempt(self.pool.allocate, nbytes, stream)
            if ptr is None:
                return
            assert ptr > 0 and ptr % 256 == 0
            for other, (theirs, _) in self.live.items():
                assert ptr + nbytes <= other or other + theirs <= ptr, "two live blocks overlap"
            inside = [s for s, size in self.upstream.live.items() if s <= ptr and ptr + nbytes <= s + size]
            assert inside, "not in a block of the upstream"
            self.begin(ptr, nbytes, stream)
            self.live[ptr] = nbytes, stream
            self.clock.streams[stream].enqueued += 1

    def begin(self, ptr: int, nbytes: int, stream: int) -> None:
        self.forget_traces(ptr, ptr + self.size(nbytes), stream)

    @rule(which=PICK, count=st.integers(1, 8))
    def deallocate(self, which: int, count: int) -> None:
        for _ in range(min(count, len(self.live))):
            ptr = sorted(self.live)[which % len(self.live)]
            nbytes, stream = self.live.pop(ptr)
            if stream not in self.clock.streams or stream in self.foreign:
                stream = LEGACY_STREAM  # of a closed stream, or one that is not ours
            self.clock.streams[stream].enqueued += 1
            self.traces.append((ptr, ptr + self.size(nbytes), stream, self.clock.until(stream)))
            calls = self.clock.calls
            self.attempt(self.pool.deallocate, ptr, nbytes, stream)
            self.check_silent(calls)

    def check_silent(self, calls: int) -> None:
        assert self.clock.calls == calls, "deallocate called the driver"

    @rule(on=PICK)
    def advance(self, on: int) -> None:
        work = [*self.clock.streams.values(), *self.clock.gone]
        chosen = work[on % len(work)]
        chosen.passed = chosen.enqueued

    @rule(on=PICK)
    def destroy(self, on: int) -> None:
        """What was enqueued still runs, and the next stream gets the number."""
        stream = self.pick(on)
        if stream == LEGACY_STREAM or stream in self.clock.capture:
            return
        if stream in self.foreign:
            self.foreign.discard(stream)  # the pool is not told
        elif hasattr(self.pool, "forget_stream"):
            self.pool.forget_stream(stream)
        self.clock.gone.append(self.clock.streams.pop(stream))

    @rule(handle=st.sampled_from([10, 11, 12]), foreign=st.booleans())
    def create(self, handle: int, foreign: bool) -> None:
        if handle not in self.clock.streams:
            self.clock.streams[handle] = Work(handle)
            self.live = {ptr: (n, s if s != handle else LEGACY_STREAM) for ptr, (n, s) in self.live.items()}
            if foreign:
                self.foreign.add(handle)

    @rule(keep=st.sampled_from([0, 0, 1, MIB, 16 * MIB]))
    def trim(self, keep: int) -> None:
        armed = bool(self.clock.fail)
        self.attempt(self.pool.trim, keep)
        if not self.live and not self.clock.capture and not armed:
            assert self.pool.cached_bytes <= keep

    @rule(on=PICK)
    def capture(self, on: int) -> None:
        stream = self.pick(on)
        if stream != LEGACY_STREAM and stream not in self.foreign:
            self.clock.capture ^= {stream}
            self.refresh_legacy()

    def refresh_legacy(self) -> None:
        """The legacy stream cannot be asked while another is capturing."""
        self.clock.capture.discard(LEGACY_STREAM)
        if self.clock.capture:
            self.clock.capture.add(LEGACY_STREAM)

    @rule(nth=st.integers(1, 4))
    def fail(self, nth: int) -> None:
        self.clock.fail = nth

    @rule(room=st.sampled_from([1 << 40, 8 * MIB, 0]))
    def shrink(self, room: int) -> None:
        self.upstream.room = room

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert not self.clock.mistakes
        assert sum(self.upstream.live.values()) == self.reserved()
        live = sum(self.size(nbytes) for nbytes, _ in self.live.values())
        assert self.pool.cached_bytes == self.reserved() - live

    def size(self, nbytes: int) -> int:
        return rounded(nbytes)

    def reserved(self) -> int:
        return self.pool._lists.reserved  # as `report` merges what lies ready, which is not to happen at every step

    @rule()
    def look(self) -> None:
        report = self.pool.report()
        assert report.live_bytes == sum(self.size(nbytes) for nbytes, _ in self.live.values())
        assert report.largest_free_block <= report.cached_bytes <= report.reserved_bytes <= report.peak_reserved_bytes
        assert 0.0 <= report.fragmentation <= 1.0

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.clock.fail, self.clock.capture = 0, set()
        while self.live:
            self.deallocate(0, 8)
        self.pool.trim(0)
        # Only whole chunks go back: so all blocks have found their neighbours again.
        assert not self.upstream.live
        assert not self.clock.events
        assert self.pool.cached_bytes == 0
        assert not self.clock.mistakes


class OrderedUpstream(Pools):
    ordered = True


class Limited(Pools):
    limit = 6 * MIB


class Pinned(Pools):
    """The host is on no stream: what is handed out must be past everything."""

    limit = 24 * MIB

    def make(self) -> Any:
        return PinnedPool(Upstream(self), max_bytes=self.limit)

    def begin(self, ptr: int, nbytes: int, stream: int) -> None:
        self.forget_traces(ptr, ptr + self.size(nbytes), None)

    def size(self, nbytes: int) -> int:
        return (rounded(-(-nbytes // 4096) * 4096) + 4095) // 4096 * 4096

    def reserved(self) -> int:
        return self.pool.report().reserved_bytes

    def check_silent(self, calls: int) -> None:
        pass

    @rule()
    def look(self) -> None:
        report = self.pool.report()
        assert report.waiting_bytes <= report.cached_bytes <= report.reserved_bytes <= report.peak_reserved_bytes
        assert report.peak_reserved_bytes <= report.max_bytes

    @rule(on=PICK)
    def capture(self, on: int) -> None:
        pass


@pytest.mark.parametrize("machine", [Pools, OrderedUpstream, Limited, Pinned], ids=lambda m: m.__name__)
def test_a_pool_agrees_with_its_model(machine: Any) -> None:
    found = machine.TestCase
    profile = settings.get_profile(settings._current_profile)
    found.settings = settings(profile, max_examples=max(1, profile.max_examples // 4), stateful_step_count=50)
    found("runTest").runTest()


def test_size_classes_waste_little_and_serve_every_request() -> None:
    """No class takes more than 1/64 above the units that are needed; a class serves every request that rounds to it."""
    sizes = [n + d for bits in range(10, 41) for n in (1 << bits, 3 << bits, (1 << bits) * 5 // 4) for d in (-1, 0, 1)]
    for nbytes in [*range(1, 70_000, 97), *sizes]:
        size, units = rounded(nbytes), -(-nbytes // UNIT) * UNIT
        assert size % UNIT == 0
        assert units <= size <= units + units // 64
        assert rounded(size) == size
        assert class_of(size) > class_of(size - UNIT) or size == UNIT
        assert class_of(size + UNIT - 1) == class_of(size)
