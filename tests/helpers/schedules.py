"""Programs of several threads that use a device together, run by the deterministic scheduler and checked byte by byte.

Streams come and go in each thread; arrays, events and pools are shared across threads and streams; memory is registered, staged,
exported and trimmed; and in each fourth program a thread resets the device, or closes all, while the others work. Everything is
drawn from a seed: the program, its memory stack, and which thread goes on at each point.

In a program without a reset nothing may fail. In one with resets, the other threads may get DevmemErrors, and nothing else. In
both no byte that was read may be wrong, nothing may be left behind when the device closes, no handle or block may be given back
twice, and the device must work afterwards.

    scripts/schedules NUMBER [--seed FIRST] [--fine]                          so many, on the host backend, until one fails
    devmem emulate cuda -- scripts/schedules NUMBER                           the same over an emulated driver
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import random
import time
import warnings
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from scheduler import Scheduler, Thread, current, point

import devmem as dm
from devmem import plugins
from devmem._core.lifetime import page_locks
from devmem.spi.driver import Driver
from devmem.testing import FaultyBackend, FaultyDriver

NAME = "scheduled"
#: Memory stacks, drawn for each program.
STACKS = ("", "driver", "pool", "statistics,pool", "limit:1GiB,pool", "guard,driver")
#: Copies of so many elements go through the staging ring, whose slots are of 4 KiB.
SMALL, STAGED = 300, 2500
SETTINGS = {
    "DEVMEM_STAGING_THRESHOLD": "8192",
    "DEVMEM_STAGING_SLOT_BYTES": "4096",
    "DEVMEM_STAGING_SLOTS": "2",
    "DEVMEM_STAGING_THREADS": "1",
    "DEVMEM_MAX_PENDING_DEALLOCS_COUNT": "3",
}


class ScheduledDriver(FaultyDriver):
    """A driver before and behind each of whose calls threads may switch, and which notes what is left when it is closed."""

    #: Where the driver's streams take no part in the schedule: whether work is not done yet, drawn so that seeds can be repeated.
    is_late: Callable[[], bool] | None = None
    #: Whether anything was enqueued since a call has shown that all is done.
    has_work = True

    def _call(self, method: str, *args: object, **keywords: object) -> object:
        point()
        try:
            if self.is_late is None:
                return super()._call(method, *args, **keywords)
            if method in ("stream_query", "event_query"):
                if self.has_work and self.is_late():
                    return False
                method = method.replace("query", "synchronize")
            result = super()._call(method, *args, **keywords)
            if "synchronize" in method:  # after one stream's, too: so fewer answers are "not yet" than might be
                self.has_work = False
                return True
            self.has_work = self.has_work or method not in ("enter", "exit")
            return result
        finally:
            point()

    def close(self) -> None:
        if self.live() != (0, 0, 0, 0) or self.registered():
            self.mistakes.append(f"close: {self.live()} and {self.registered()} are left")
        super().close()


class ScheduledBackend(FaultyBackend):
    """The backend under test, with `ScheduledDriver`s."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, NAME)
        self.opened: list[ScheduledDriver] = []
        self.program: Program | None = None

    def is_late(self) -> bool:
        """Whether a device that the schedule does not control is said to be at work still."""
        scheduler, program = current(), self.program
        is_at_work = scheduler is not None and program is not None and program.works
        return is_at_work and scheduler.random.random() < 0.3

    def open(self, ordinal: int) -> Driver:
        point()
        driver = ScheduledDriver(self.inner.open(ordinal), backend=self.name, faults=self.faults)
        driver.is_late = None if self.inner.name == "host" else self.is_late
        self.opened.append(driver)
        point()
        return driver


class Program:
    """One seed."""

    def __init__(self, backend: ScheduledBackend, seed: int, only: Collection[str] = ()) -> None:
        self.backend = backend
        self.only = only
        self.seed = seed
        self.random = random.Random(seed)
        self.resets = seed % 4 == 3 and (not only or "reset" in only)
        self.stack = self.random.choice(STACKS)
        self.workers = self.random.choice((2, 2, 3, 4))
        #: Shared by the threads: an array, the event behind what fills it (None: that is done), and what it holds.
        self.arrays: list[tuple[Any, Any, Any]] = []
        #: The same, filled on a thread's default stream, and with no event.
        self.on_defaults: list[tuple[Any, Any, Any]] = []
        #: Each thread registers a part of it; parts share pages.
        self.memory = np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), np.int64)
        self.refused = 0
        self.works = True
        self.failures: list[BaseException] = []

    def run(self) -> None:
        """The whole program, on one thread of the run."""
        with dm.use_backend(NAME):
            threads = [Thread(target=self._work, args=(number,)) for number in range(self.workers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self.failures:
                raise self.failures.pop()
            self.works = False
            self.arrays.clear()
            self.on_defaults.clear()
            dm.trim()
            dm.synchronize()
            dm.trim()
            info = dm.memory_info()
            assert info[2:] == (0, 0, 0, (0, 0, 0)), info
            self.check(dm.to_device(np.arange(SMALL)), np.arange(SMALL))
        dm.close()
        mistakes = [mistake for driver in self.backend.opened for mistake in driver.mistakes]
        assert not mistakes, mistakes
        self.backend.opened.clear()

    def check(self, array: Any, expected: Any, stream: Any = 0) -> None:
        """Read an array, and compare each byte."""
        found = array.copy_to_host(stream=stream)
        if stream:
            stream.synchronize()
        assert np.array_equal(found, expected), f"wrong bytes: {found} for {expected}"

    def _work(self, number: int) -> None:
        worker = Worker(self, number)
        try:
            with dm.use_backend(NAME):
                for _ in range(worker.random.randint(2, 5)):
                    step = worker.random.choices(worker.steps, worker.weights)[0]
                    try:
                        step()
                    except dm.DevmemError:
                        if not self.resets:
                            raise
                        self.refused += 1
        except BaseException as error:
            self.failures.append(error)


class Worker:
    """One thread of a program."""

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.number = number
        self.random = random.Random(program.seed * 100 + number)
        weights: dict[Callable[[], None], int] = {
            self.come_and_go: 6,
            self.upload: 3,
            self.give: 4,
            self.take: 5,
            self.own_default_stream: 3,
            self.others_default_stream: 3,
            self.registered: 2,
            self.staged: 2,
            self.exported: 2,
            self.uninitialised: 2,
            self.close_stream: 2,
            dm.trim: 2,
            self.look: 2,
            dm.synchronize: 1,
        }
        if program.resets and number == 0:
            weights = {dm.reset: 4, dm.close: 1, self.come_and_go: 1, self.take: 1}
        if program.only:
            weights = {step: weight for step, weight in weights.items() if step.__name__ in program.only}
        self.steps, self.weights = list(weights), list(weights.values())

    def values(self, size: int = SMALL) -> Any:
        return np.arange(size, dtype=np.int64) + self.random.randrange(1 << 40)

    def pinned(self, values: Any) -> Any:
        made = dm.pinned_array_like(values)
        made[...] = values
        return made

    def stream(self) -> Any:
        return dm.stream(non_blocking=self.random.random() < 0.5)

    def come_and_go(self) -> None:
        values, stream = self.values(), self.stream()
        array = dm.to_device(self.pinned(values) if self.random.random() < 0.5 else values, stream=stream)
        if self.random.random() < 0.5:
            self.program.check(array, values, stream)
        else:
            stream.synchronize()

    def upload(self) -> None:
        values = self.values()
        array = dm.to_device(values)
        self.program.check(array[::2], values[::2])

    def give(self) -> None:
        """Leave an array to other threads, with an event behind the copy that fills it."""
        values, stream = self.values(), self.stream()
        array = dm.to_device(self.pinned(values), stream=stream)
        self.program.arrays.append((array.bind(0), stream.record(), values))

    def take(self) -> None:
        """Use an array of another thread on a stream of one's own."""
        try:
            array, event, values = self.program.arrays.pop(self.random.randrange(2))
        except IndexError:
            return
        stream = self.stream()
        if event is not None:
            stream.wait(event)
        self.program.check(array, values, stream)
        if self.random.random() < 0.4:
            self.program.arrays.append((array, None, values))
        elif self.random.random() < 0.5:
            array.free()

    def own_default_stream(self) -> None:
        """Work on this thread's default stream, to which the array stays bound."""
        values, stream = self.values(), dm.per_thread_default_stream()
        self.program.on_defaults.append((dm.to_device(self.pinned(values), stream=stream), stream, values))

    def others_default_stream(self) -> None:
        """Use an array on another thread's default stream, to which it is bound, named or not: devmem orders that."""
        try:
            array, stream, values = self.program.on_defaults.pop(self.random.randrange(2))
        except IndexError:
            return
        self.program.check(array, values, stream if self.random.random() < 0.5 else 0)

    def registered(self) -> None:
        stream, part = self.stream(), self.program.memory[self.number * SMALL :][:SMALL]
        part[...] = values = self.values()
        with dm.pinned(part):
            array = dm.to_device(part, stream=stream)
        self.program.check(array, values, stream)

    def staged(self) -> None:
        values = self.values(STAGED)
        self.program.check(dm.to_device(values), values)

    def exported(self) -> None:
        values = self.values()
        consumer = dm.from_dlpack(dm.to_device(values))
        self.program.check(consumer, values)

    def uninitialised(self) -> None:
        array = dm.device_array(SMALL, np.int64)
        array.fill(self.number)
        self.program.check(array, np.full(SMALL, self.number))

    def close_stream(self) -> None:
        values, stream = self.values(), self.stream()
        array = dm.to_device(values, stream=stream)
        stream.close()
        self.program.arrays.append((array, None, values))

    def look(self) -> None:
        info = dm.memory_info()
        assert min(*info[2:5], *info.host) >= 0, info


def backend_for(name: str) -> ScheduledBackend:
    """Register what the programs run on."""
    found = plugins.registry.backend(name)
    assert found is not None, f"no backend is named {name!r}"
    dm.close()
    backend = ScheduledBackend(found.backend)
    dm.register_backend(backend)
    for (
        stack
    ) in STACKS:  # what is imported at first use is imported now: a run replaces nothing in modules that come later
        os.environ["DEVMEM_MEMORY_MANAGER"] = stack
        dm.close()
        with dm.use_backend(NAME):
            for step in Worker(Program(backend, 0), 0).steps:
                step()
    dm.close()
    backend.opened.clear()
    return backend


def run(
    backend: ScheduledBackend, seed: int, *, fine: bool = False, only: Collection[str] = ()
) -> tuple[Program, Scheduler]:
    """Run one program, which takes some steps ``only``; raise what it finds, with its seed."""
    dm.close()  # what one that failed has left open
    program, scheduler = Program(backend, seed, only), Scheduler(seed, fine=fine)
    os.environ["DEVMEM_MEMORY_MANAGER"] = program.stack
    if "strict" in backend.options:  # the host's
        backend.configure({"strict": seed % 2 == 0, "devices": 2})
    backend.opened.clear()
    backend.program = program
    page_locks._tables.pop(NAME, None)  # its lock was made outside of the run
    collecting = gc.isenabled()
    gc.disable()  # where it would come depends on what ran before
    try:
        scheduler.run(program.run)
    except BaseException as error:
        error.add_note(
            f"seed {seed}{', fine' if fine else ''}: {program.workers} threads, memory stack {program.stack!r}"
        )
        raise
    finally:
        if collecting:
            gc.enable()
    return program, scheduler


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/schedules", description=__doc__.partition("\n")[0])
    parser.add_argument("number", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first")
    parser.add_argument("--fine", action="store_true", help="let threads switch wherever the interpreter may")
    chosen = parser.parse_args()
    name = os.environ.get("DEVMEM_BACKEND", "host")
    os.environ.update(SETTINGS)
    warnings.simplefilter("error")
    backend = backend_for(name)
    gc.collect()
    gc.freeze()
    began, points, refused = time.perf_counter(), 0, 0
    for seed in range(chosen.seed, chosen.seed + chosen.number):
        program, scheduler = run(backend, seed, fine=chosen.fine)
        points += scheduler.points
        refused += program.refused
        if seed % 100 == 99:
            gc.collect()
        if seed % 5000 == 4999:
            print(f"... {seed}", flush=True)
    seconds = time.perf_counter() - began
    how = f"{chosen.number:,} {'fine ' if chosen.fine else ''}schedules on {name}"
    print(f"{how}, none failed: {points:,} points, {refused:,} calls refused by a reset, {seconds:.0f} s")


if __name__ == "__main__":
    main()
