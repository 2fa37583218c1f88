"""Random schedules of streams, copies, fills, events, waits, drops and frees, under random delays, against NumPy.

The schedule is free of races by the rules of streams, and of nothing else (tests/helpers/stream_order.py): where an operation
would race with an earlier one, one of the ways to order them is put in between. What is ordered by devmem's own promises is left
to devmem: dropped sources and destinations of copies that still run, memory given back while other streams use it, memory of the
default stream used on others, calls without a stream that are complete on return.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import vendors
from stream_order import DEFAULT, HOST, Access, StreamOrder, Touched

import devmem as dm
from devmem.testing import emulator

#: As many as there is patience for; the same seeds are the same schedules.
SEEDS, CHUNK = int(os.environ.get("SCHEDULE_SEEDS", "1000")), 20
STEPS = 30


@dataclass(eq=False)
class Buffer(Touched):
    """Memory on either side, and what it must hold."""

    array: Any
    model: np.ndarray[Any, Any]
    bound: int = DEFAULT  #: the stream of calls that name none
    pinned: bool = False


class Schedule(StreamOrder):
    """One seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.streams: list[Any] = [dm.legacy_default_stream()]
        for _ in range(3):
            self.add_stream()
        self.device: list[Buffer] = []
        self.hosts: list[Buffer] = []
        self.kept: list[Any] = []

    # -- what is ordered -----------------------------------------------------------------------------------------------

    def add_stream(self) -> None:
        non_blocking = self.random.random() < 0.5
        self.streams.append(dm.stream(non_blocking=non_blocking))
        self.new_stream(not non_blocking)

    def order(self, place: int, accesses: list[Access]) -> None:
        """Order what is enqueued next on a stream (or done by the host) behind these accesses, if it is not already."""
        for other, count in accesses:
            if self.is_ordered(place, (other, count)):
                continue
            way = self.random.randrange(5)
            if self.streams[other] is None or way == 0:  # a dropped stream cannot be named any more
                dm.synchronize()
                self.waited()
            elif place == HOST or way == 1:
                if self.random.random() < 0.5:
                    self.streams[other].synchronize()
                else:
                    event = dm.event()
                    event.record(self.streams[other])
                    event.synchronize()
                self.waited(self.clocks[other])
            else:
                if way == 2:
                    self.streams[place].wait(self.streams[other])
                else:
                    event = self.streams[other].record()
                    if way == 3:
                        self.streams[place].wait(event)
                    else:
                        event.wait(self.streams[place])
                    if self.random.random() < 0.3:
                        self.kept.append(event)
                self.waits(place, self.clocks[other])

    # -- choosing ------------------------------------------------------------------------------------------------------

    def live_streams(self) -> list[int]:
        return [place for place, stream in enumerate(self.streams) if stream is not None]

    def pick(self, bound: int) -> tuple[int, Any, bool]:
        """(place, argument, complete on return): a stream by name, or none named."""
        if self.random.random() < 0.3:
            return bound, 0, True
        place = self.random.choice(self.live_streams()[1:])
        return place, self.streams[place], False

    def values(self, size: int) -> np.ndarray[Any, Any]:
        return self.data.integers(-1000, 1000, size, np.int32)

    def host_array(self, size: int, pinned: bool) -> np.ndarray[Any, Any]:
        if not pinned:
            return np.empty(size, np.int32)
        made: np.ndarray[Any, Any] = dm.pinned_array(size, np.int32)
        return made

    def part(self, buffer: Buffer) -> slice:
        """Half of the time all of it, and never nothing: a copy of nothing waits for nothing."""
        if self.random.random() < 0.5:
            return slice(None)
        low = self.random.randrange(len(buffer.model))
        return slice(low, self.random.randint(low + 1, len(buffer.model)), self.random.choice((1, 1, 2, 3)))

    # -- doing ---------------------------------------------------------------------------------------------------------

    def upload_new(self) -> None:
        place, stream, complete = self.pick(DEFAULT)
        size = self.random.choice((1, 7, 300, 5000))
        source = self.host_array(size, self.random.random() < 0.5)
        source[...] = self.values(size)
        model = source.copy()
        array = dm.to_device(source, stream=stream)
        made = Buffer(array, model, DEFAULT if complete else place)
        made.touched(self.enqueue(place, complete=complete), writes=True)
        self.device.append(made)
        del source
        self.scribble(size)

    def upload_into(self) -> None:
        target = self.random.choice(self.device)
        part = self.part(target)
        place, stream, complete = self.pick(target.bound)
        known = self.random.choice(self.hosts) if self.hosts and self.random.random() < 0.4 else None
        if known is not None and len(known.model) >= len(target.model):
            # Only pinned memory that is copied as it lies is read by the stream; anything else at once, by the host.
            as_it_lies = known.pinned and part.step in (None, 1)
            self.order(place if as_it_lies else HOST, known.hazards(writes=False))
            self.order(place, target.hazards(writes=True))
            source, model = known.array[: len(target.model)][part], known.model[: len(target.model)][part]
        else:
            known = None
            self.order(place, target.hazards(writes=True))
            whole = self.host_array(len(target.model), self.random.random() < 0.5)
            whole[...] = self.values(len(target.model))
            source, model = whole[part], whole[part].copy()
            del whole
        target.array[part].copy_to_device(source, stream=stream)
        target.model[part] = model
        access = self.enqueue(place, complete=complete)
        target.touched(access, writes=True)
        if known is not None:
            known.touched(access, writes=False)
        del source
        self.scribble(len(target.model))

    def download(self) -> None:
        origin = self.random.choice(self.device)
        part = self.part(origin)
        place, stream, complete = self.pick(origin.bound)
        fitting = [host for host in self.hosts if len(host.model) >= len(origin.model[part])]
        if fitting and self.random.random() < 0.7:
            target = self.random.choice(fitting)
            size = len(origin.model[part])
            self.order(place, origin.hazards(writes=False) + target.hazards(writes=True))
            origin.array[part].copy_to_host(target.array[:size], stream=stream)
            target.model[:size] = origin.model[part]
            access = self.enqueue(place, complete=complete)
            target.touched(access, writes=True)
            origin.touched(access, writes=False)
            return
        self.order(place, origin.hazards(writes=False))
        found = origin.array[part].copy_to_host(stream=stream)
        origin.touched(self.enqueue(place, complete=complete), writes=False)
        if not complete:
            if self.random.random() < 0.5:
                return  # dropped while it is written to
            self.order(HOST, [(place, self.count[place])])
        assert np.array_equal(found, origin.model[part])

    def download_and_drop(self) -> None:
        """The device array goes at once, the copy of it still runs."""
        origin = self.device.pop(self.random.randrange(len(self.device)))
        place, stream, complete = self.pick(origin.bound)
        self.order(place, origin.hazards(writes=False))
        found = Buffer(origin.array.copy_to_host(stream=stream), origin.model)
        found.touched(self.enqueue(place, complete=complete), writes=True)
        self.hosts.append(found)
        if self.random.random() < 0.5:
            origin.array.free()

    def within(self) -> None:
        origin, target = self.random.choice(self.device), self.random.choice(self.device)
        size = min(len(origin.model), len(target.model))
        place, stream, complete = self.pick(target.bound)
        hazards = origin.hazards(writes=origin is target) + target.hazards(writes=True)
        self.order(place, hazards)
        low = self.random.randrange(size)
        if origin is target and not low:
            return  # a copy to itself is none
        target.array[: size - low].copy_to_device(origin.array[low:size], stream=stream)
        target.model[: size - low] = origin.model[low:size].copy()
        access = self.enqueue(place, complete=complete)
        origin.touched(access, writes=False)
        target.touched(access, writes=True)

    def duplicate(self) -> None:
        origin = self.random.choice(self.device)
        place, stream, complete = self.pick(origin.bound)
        self.order(place, origin.hazards(writes=False))
        made = Buffer(origin.array.copy(stream=stream), origin.model.copy(), DEFAULT if complete else place)
        access = self.enqueue(place, complete=complete)
        origin.touched(access, writes=False)
        made.touched(access, writes=True)
        self.device.append(made)

    def fill(self) -> None:
        target = self.random.choice(self.device)
        part, value = self.part(target), self.random.choice((0, -1, 7, 1 << 20))
        place, stream, complete = self.pick(target.bound)
        self.order(place, target.hazards(writes=True))
        target.array[part].fill(value, stream=stream)
        target.model[part] = value
        target.touched(self.enqueue(place, complete=complete), writes=True)

    def allocate(self) -> None:
        """Uninitialised memory, filled on some other stream if it was asked for on none."""
        place, stream, complete = self.pick(DEFAULT)
        size = self.random.choice((1, 300, 5000))
        array = dm.device_array(size, np.int32, stream=stream)
        made = Buffer(array, np.full(size, 9, np.int32), DEFAULT if complete else place)
        if not complete:
            made.touched(self.enqueue(place, complete=False), writes=True)
        # A call that names no stream is complete on return, but an allocation has nothing to be complete: devmem's to order.
        place, stream, complete = self.pick(made.bound)
        self.order(place, made.hazards(writes=True))
        array.fill(9, stream=stream)
        made.touched(self.enqueue(place, complete=complete), writes=True)
        self.device.append(made)

    def host_memory(self) -> None:
        size = self.random.choice((300, 5000))
        pinned = self.random.random() < 0.6
        array = self.host_array(size, pinned)
        array[...] = self.values(size)
        self.hosts.append(Buffer(array, array.copy(), pinned=pinned))

    def host_write(self) -> None:
        if self.hosts:
            host = self.random.choice(self.hosts)
            self.order(HOST, host.hazards(writes=True))
            assert np.array_equal(host.array, host.model)
            host.array[...] = self.values(len(host.model))
            host.model = host.array.copy()
            host.touched(None, writes=True)

    def drop(self) -> None:
        """Whatever still runs: devmem's to keep alive, and to give back in order."""
        kind = self.random.choice((self.device, self.hosts))
        if len(kind) > 1:
            gone = kind.pop(self.random.randrange(len(kind)))
            if kind is self.device and self.random.random() < 0.5:
                gone.array.free()

    def drop_stream(self) -> None:
        places = self.live_streams()[1:]
        if len(places) < 3:
            self.add_stream()
            return
        place = self.random.choice(places)
        for buffer in self.device:
            if buffer.bound == place:
                buffer.array, buffer.bound = buffer.array.bind(0), DEFAULT
        if self.random.random() < 0.5:
            self.streams[place].close()
            self.waited(self.clocks[place])
        self.streams[place] = None

    def in_scope(self) -> None:
        """Calls that name no stream, while one is the current."""
        place = self.random.choice(self.live_streams()[1:])
        values = self.values(300)
        with self.streams[place]:
            made = Buffer(dm.to_device(values), values.copy())
        self.enqueue(place, complete=True)
        self.device.append(made)

    def far_and_back(self) -> None:
        origin = self.random.choice(self.device)
        self.order(HOST, origin.hazards(writes=False))
        far = dm.to_device(origin.array, device=1)
        assert np.array_equal(far.copy_to_host(), origin.model)

    def tidy(self) -> None:
        self.random.choice((gc.collect, dm.trim, dm.memory_info, self.kept.clear))()

    def scribble(self, size: int) -> None:
        """What was dropped is overwritten, if its memory was released."""
        np.full(size, -1234567, np.int32)
        if self.random.random() < 0.2:
            dm.pinned_array(size, np.int32)[...] = -1234567

    # -- all of it -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.upload_new()
        weights: dict[Callable[[], None], int] = {
            self.upload_new: 4,
            self.upload_into: 6,
            self.download: 6,
            self.download_and_drop: 2,
            self.within: 4,
            self.duplicate: 3,
            self.fill: 4,
            self.allocate: 2,
            self.host_memory: 2,
            self.host_write: 2,
            self.drop: 4,
            self.drop_stream: 1,
            self.in_scope: 1,
            self.far_and_back: 1,
            self.tidy: 1,
        }
        for _ in range(STEPS):
            if not self.device:
                self.upload_new()
            self.random.choices(list(weights), list(weights.values()))[0]()
        for buffer in self.device:
            self.order(buffer.bound, buffer.hazards(writes=False))
            assert np.array_equal(buffer.array.copy_to_host(), buffer.model)
        for buffer in self.hosts:
            self.order(HOST, buffer.hazards(writes=False))
            assert np.array_equal(buffer.array, buffer.model)


@pytest.fixture
def control(devmem_backend: str) -> Iterator[emulator.Control]:
    dm.close()
    vendor, found = vendors.vendor_of(devmem_backend)
    found.reset()
    yield found
    found.reset()
    dm.close()
    vendor.renew()


def rest() -> None:
    """Everything dropped is given back: first memory, in the order of its stream, then streams that have passed that."""
    gc.collect()
    for _ in range(2):
        dm.synchronize()
        dm.trim()


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_random_schedule_ends_as_it_would_step_by_step(first: int, control: emulator.Control) -> None:
    for device in dm.devices():
        if device.backend == dm.current_device().backend:
            dm.memory_info(device=device)
    Schedule(first).run()  # makes what is made only once
    rest()
    before = control.live()
    for seed in range(first, first + CHUNK):
        control.delay(0, jitter=200, seed=seed)
        memory = dm.use_memory("driver") if seed % 5 == 0 else contextlib.nullcontext()
        try:
            with memory:
                Schedule(seed).run()
            control.delay(0)
            rest()
            assert control.live() == before, "bytes and handles that are out, now and before"
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
        finally:
            control.reset()


def test_the_same_seed_is_the_same_schedule(control: emulator.Control) -> None:
    seen = []
    for _ in range(2):
        control.reset()
        Schedule(7).run()
        calls = control.calls()
        seen.append({name: n for name, n in calls.items() if "Memset" in name or "Memcpy" in name})
        rest()
    assert seen[0] == seen[1]
