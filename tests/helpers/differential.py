"""The same random programs on several runtimes, each in a process of its own: what each step gives has to be the same.

    scripts/campaign differential MINUTES [--runtimes host,cuda,roc,pocl,intel]    until the time is up
    scripts/campaign differential 0 --steps N                                      until there were so many steps
    scripts/campaign differential 0 --seed S --programs 1                          one program again

A program is drawn from its seed: a list of operations, each with a seed of its own. `Plan` makes steps of them that race with
nothing, by the rules of streams, so every part of a program is a program too: one that shows a difference is made smaller by
leaving operations out. Compared are the types of errors at each step, the bytes of host arrays as soon as the host has waited for
them (to look earlier would be a race, and to copy for it a wait), and at the end all bytes and what is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_order import DEFAULT, HOST, Access, Clock, StreamOrder, Touched

from devmem.testing import emulator

#: Operations of a program; seconds for one step, before a runtime counts as hanging.
OPERATIONS, PATIENCE = 40, 120
#: What a runtime gives for the step at which its process ended, or hung.
ENDED = "!the process ended or hung"
#: Runs that a program gets to show a difference that is a matter of time, and runs in all to make a program smaller.
TRIES, SHRINKS = 3, 300
SHAPES = ((1,), (300,), (5000,), (300_000,), (12, 50), (200, 333), (5, 6, 7), (3, 40, 64))
SHAPE_WEIGHTS = (2, 6, 6, 1, 6, 3, 6, 3)
DTYPES = "u1", "i4", "f8"
#: The most elements that are taken with a step.
STRIDED = 500
#: Settings under which all ways of copying are taken with little memory.
ENVIRONMENT = {
    "DEVMEM_HOST_STRICT": "1",
    "DEVMEM_HOST_DEVICES": "1",
    "DEVMEM_STAGING_THRESHOLD": "65536",
    "DEVMEM_STAGING_SLOT_BYTES": "16384",
}
#: OpenCL's runtimes: what is in the names of their platforms. All that OpenCL's loader finds are one backend.
PLATFORMS = {"pocl": "portable", "intel": "intel"}
RUNTIMES = "host", "cuda", "roc", *PLATFORMS
STACKS = "driver", "pool", "statistics,pool", "limit:1GiB,driver", "guard,pool", "scrub,pool"

Operation = tuple[str, int]
Step = list[Any]


# -- programs ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Buffer(Touched):
    """An array on either side."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bound: int = DEFAULT  #: of a device array: the stream of calls that name none
    kind: str = ""  #: of a host array
    seen: bool = False  #: of a host array: whether it was looked at since it was written

    @property
    def on_device(self) -> bool:
        return self.name.startswith("d")


@dataclass
class Pending:
    """A transfer that was begun."""

    name: str
    to: Buffer
    source: Buffer


class Plan(StreamOrder):
    """Steps out of operations. An operation that finds nothing to work on makes none."""

    def __init__(self, operations: Sequence[Operation], can: frozenset[str]) -> None:
        super().__init__()
        self.can = can
        self.steps: list[Step] = []
        self.names = 0
        self.streams: list[str | None] = ["s0"]
        self.device: list[Buffer] = []
        self.hosts: list[Buffer] = []
        self.events: list[tuple[str, Clock]] = []
        self.pending: list[Pending] = []
        self.random = random.Random(0)
        for _ in range(3):
            self.add_stream()
        for name, seed in operations:
            self.random = random.Random(seed)
            OPERATIONS_BY_NAME[name](self)
            self.look()
        self.finish_all()

    def step(self, verb: str, *arguments: Any) -> None:
        self.steps.append([verb, *arguments])

    def name(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def seed(self) -> int:
        return self.random.randrange(1 << 32)

    # -- what is ordered -----------------------------------------------------------------------------------------------

    def order(self, place: int, accesses: Sequence[Access]) -> None:
        """Order what comes next on a stream, or on the host, behind these accesses, if it is not already."""
        for access in accesses:
            if self.is_ordered(place, access):
                continue
            other, way = access[0], self.random.randrange(5)
            if (stream := self.streams[other]) is None or way == 0:
                self.step("sync_all")
                self.waited()
            elif place == HOST or way == 1:
                if self.random.random() < 0.5:
                    self.step("sync", stream)
                else:
                    self.step("sync_event", self.record(other, stream)[0])
                self.waited(self.clocks[other])
            elif way == 2:
                self.step("wait_stream", self.streams[place], stream)
                self.waits(place, self.clocks[other])
            else:
                self.step("wait_event", self.streams[place], self.record(other, stream)[0])
                self.waits(place, self.clocks[other])

    def record(self, place: int, stream: str) -> tuple[str, Clock]:
        event = self.name("e"), dict(self.clocks[place])
        self.step("record", event[0], stream)
        self.events.append(event)
        return event

    def look(self) -> None:
        """Look at the host arrays whose last write the host has waited for."""
        for host in self.hosts:
            if not host.seen and (host.written is None or self.is_ordered(HOST, host.written)):
                self.step("look", host.name)
                host.seen = True

    # -- choosing ------------------------------------------------------------------------------------------------------

    def places(self) -> list[int]:
        return [place for place, stream in enumerate(self.streams) if stream is not None and place != DEFAULT]

    def pick(self, bound: int) -> tuple[int, str | int, bool]:
        """A place, the argument that says so, and whether the call is complete on return: a stream by name, or none."""
        if self.random.random() < 0.3 or not self.places():
            assert self.streams[bound] is not None, "an array is bound to a stream that has ended"
            return bound, 0, True
        place = self.random.choice(self.places())
        return place, str(self.streams[place]), False

    def layout(self) -> tuple[tuple[int, ...], str]:
        return self.random.choices(SHAPES, SHAPE_WEIGHTS)[0], self.random.choice(DTYPES)

    def kind(self) -> str:
        """Of host memory: of the kinds that all runtimes have."""
        return self.random.choice(["", "", *(kind for kind in ("pinned", "mapped") if kind in self.can)])

    def keys(self, to: Buffer, source: Buffer) -> tuple[Any, Any]:
        """As many elements on either side, each at a place of its own; None is all of an array."""
        if to.shape == source.shape and self.random.random() < 0.5:
            return None, None
        counts = [self.random.randint(1, min(pair)) for pair in zip(to.shape, source.shape, strict=True)]
        return self.key(to, counts), self.key(source, counts)

    def key(self, buffer: Buffer, counts: Sequence[int]) -> list[list[int]]:
        found = []
        for length, count in zip(buffer.shape, counts, strict=True):
            # An emulated driver may delay each element of a strided copy.
            wanted = (1, 1, 1, 2, 3, -1) if count <= STRIDED else (1,)
            steps = [step for step in wanted if (count - 1) * abs(step) < length]
            step = self.random.choice(steps)
            start = self.random.randrange(length - (count - 1) * abs(step))
            found.append([start if step > 0 else start + (count - 1) * -step, count, step])
        return found

    def pair(self) -> tuple[Buffer, Buffer] | None:
        """Two sides of a copy, one of them on the device at least."""
        pairs = [
            (to, source)
            for to in self.device + self.hosts
            for source in self.device + self.hosts
            if (to.on_device or source.on_device)
            and (to.dtype, len(to.shape)) == (source.dtype, len(source.shape))
            and to is not source
        ]
        return self.random.choice(pairs) if pairs else None

    # -- operations ----------------------------------------------------------------------------------------------------

    def add_stream(self) -> None:
        name, non_blocking = self.name("s"), self.random.random() < 0.5
        self.step("stream", name, non_blocking)
        self.streams.append(name)
        self.new_stream(not non_blocking)

    def end_stream(self) -> None:
        places = self.places()
        if len(places) < 3:
            self.add_stream()
            return
        place = self.random.choice(places)
        begun = [side for each in self.pending for side in (each.to, each.source) if side.on_device]
        for buffer in (*self.device, *begun):
            if buffer.bound == place:
                self.step("rebind", buffer.name)
                buffer.bound = DEFAULT
        if self.random.random() < 0.5:
            self.step("close_stream", self.streams[place])
            self.waited(self.clocks[place])
        else:
            self.step("drop", self.streams[place])
        self.streams[place] = None

    def new_host(self) -> None:
        host = Buffer(self.name("h"), *self.layout(), kind=self.kind())
        self.step("host", host.name, host.shape, host.dtype, host.kind, self.seed())
        self.hosts.append(host)

    def new_device(self) -> None:
        (shape, dtype), (place, stream, complete) = self.layout(), self.pick(DEFAULT)
        made = Buffer(self.name("d"), shape, dtype, DEFAULT if complete else place)
        self.step("new", made.name, shape, dtype, self.kind(), self.seed(), stream)
        made.touched(self.enqueue(place, complete=complete), writes=True)
        self.device.append(made)

    def empty(self) -> None:
        """Memory that was asked for on one stream, and is filled on another one."""
        (shape, dtype), (place, stream, complete) = self.layout(), self.pick(DEFAULT)
        made = Buffer(self.name("d"), shape, dtype, DEFAULT if complete else place)
        self.step("empty", made.name, shape, dtype, stream)
        if not complete:
            made.touched(self.enqueue(place, complete=False), writes=True)
        self.fill_all(made, None)
        self.device.append(made)

    def fill_all(self, target: Buffer, key: Any) -> None:
        place, stream, complete = self.pick(target.bound)
        self.order(place, target.hazards(writes=True))
        self.step("fill", target.name, key, self.random.choice((0, 0, 1, 7, 100)), stream)
        target.touched(self.enqueue(place, complete=complete), writes=True)

    def fill(self) -> None:
        if self.device:
            target = self.random.choice(self.device)
            self.fill_all(target, self.keys(target, target)[0])

    def to_device(self) -> None:
        if self.hosts:
            host, (place, stream, complete) = self.random.choice(self.hosts), self.pick(DEFAULT)
            self.order_source(place, host, None)
            made = Buffer(self.name("d"), host.shape, host.dtype, DEFAULT if complete else place)
            self.step("to_device", made.name, host.name, stream)
            self.copied(made, host, self.enqueue(place, complete=complete))
            self.device.append(made)

    def order_source(self, place: int, source: Buffer, key: Any) -> None:
        """Page-locked memory that is copied as it lies is read by the stream alone; other memory may be read at once."""
        if not source.on_device and (source.kind == "" or key is not None):
            self.order(HOST, source.hazards(writes=False))
        self.order(place, source.hazards(writes=False))

    def order_target(self, place: int, to: Buffer) -> None:
        if not to.on_device:
            self.order(HOST, to.hazards(writes=True))
        self.order(place, to.hazards(writes=True))

    def copied(self, to: Buffer, source: Buffer, access: Access | None) -> None:
        source.touched(access, writes=False)
        to.touched(access, writes=True)
        to.seen = False

    def copy(self) -> None:
        if (pair := self.pair()) is not None:
            to, source = pair
            (to_key, key), (place, stream, complete) = self.keys(to, source), self.pick(self.bound(to, source))
            self.order_source(place, source, key)
            self.order_target(place, to)
            self.step("copy", to.name, to_key, source.name, key, stream)
            self.copied(to, source, self.enqueue(place, complete=complete))

    @staticmethod
    def bound(to: Buffer, source: Buffer) -> int:
        """The stream of a copy that names none: the target's own, or the source's."""
        return to.bound if to.on_device else source.bound

    def within(self) -> None:
        """A copy inside one array, whose sides may overlap."""
        if self.device:
            target = self.random.choice(self.device)
            (to_key, key), (place, stream, complete) = self.keys(target, target), self.pick(target.bound)
            if to_key == key:
                return  # a copy to itself is none, and waits for nothing
            self.order(place, target.hazards(writes=True))
            self.step("copy", target.name, to_key, target.name, key, stream)
            target.touched(self.enqueue(place, complete=complete), writes=True)

    def transfer(self) -> None:
        """A copy that is finished later. Until then nothing else touches its sides."""
        if (pair := self.pair()) is not None and self.places():
            to, source = pair
            (to_key, key), place = self.keys(to, source), self.random.choice(self.places())
            self.order_source(place, source, key)
            self.order_target(place, to)
            begun = Pending(self.name("t"), to, source)
            self.step("copy_async", begun.name, to.name, to_key, source.name, key, self.streams[place])
            self.copied(to, source, self.enqueue(place, complete=False))
            for each in pair:
                (self.device if each.on_device else self.hosts).remove(each)
            self.pending.append(begun)

    def finish(self) -> None:
        if self.pending:
            begun = self.pending.pop(self.random.randrange(len(self.pending)))
            self.step("finish", begun.name)
            for each in (begun.to, begun.source):
                self.order(HOST, each.hazards(writes=True))
                (self.device if each.on_device else self.hosts).append(each)

    def duplicate(self) -> None:
        if self.device:
            source = self.random.choice(self.device)
            place, stream, complete = self.pick(source.bound)
            self.order(place, source.hazards(writes=False))
            made = Buffer(self.name("d"), source.shape, source.dtype, DEFAULT if complete else place)
            self.step("duplicate", made.name, source.name, stream)
            self.copied(made, source, self.enqueue(place, complete=complete))
            self.device.append(made)

    def many_up(self) -> None:
        hosts = self.random.sample(self.hosts, min(len(self.hosts), self.random.randint(1, 4)))
        if hosts:
            place, stream, complete = self.pick(DEFAULT)
            for host in hosts:  # small ones are read at once, wherever they are
                self.order(HOST, host.hazards(writes=False))
            bound = DEFAULT if complete else place
            made = [Buffer(self.name("d"), host.shape, host.dtype, bound) for host in hosts]
            self.step("many_up", [each.name for each in made], [host.name for host in hosts], stream)
            access = self.enqueue(place, complete=complete)
            for each, host in zip(made, hosts, strict=True):
                self.copied(each, host, access)
            self.device += made

    def many_down(self) -> None:
        chosen = self.random.sample(self.device, min(len(self.device), self.random.randint(1, 4)))
        if chosen:
            for each in chosen:
                self.order(HOST, each.hazards(writes=False))
            self.step("many_down", [each.name for each in chosen])

    def abandon(self) -> None:
        """A download that nobody keeps; its source may go as well."""
        if self.device:
            source = self.random.choice(self.device)
            place, stream, complete = self.pick(source.bound)
            self.order(place, source.hazards(writes=False))
            self.step("abandon", source.name, self.keys(source, source)[0], stream)
            source.touched(self.enqueue(place, complete=complete), writes=False)
            if self.random.random() < 0.5:
                self.device.remove(source)
                self.step(self.random.choice(("free", "drop")), source.name)

    def read(self) -> None:
        if self.device:
            source = self.random.choice(self.device)
            self.order(source.bound, source.hazards(writes=False))
            self.step("read", source.name, self.keys(source, source)[0])
            self.enqueue(source.bound, complete=True)

    def write(self) -> None:
        if self.hosts:
            host = self.random.choice(self.hosts)
            self.order(HOST, host.hazards(writes=True))
            self.look()
            self.step("write", host.name, self.seed())
            host.touched(None, writes=True)

    def drop(self) -> None:
        """Whatever still runs: devmem's to keep alive, and to give back in order."""
        kind = self.random.choice((self.device, self.hosts))
        if kind:
            gone = kind.pop(self.random.randrange(len(kind)))
            self.step("free" if gone.on_device and self.random.random() < 0.5 else "drop", gone.name)

    def wait(self) -> None:
        """Something waits, without need."""
        place = self.random.choice([DEFAULT, *self.places()])
        stream, way = str(self.streams[place]), self.random.randrange(6)
        if way == 0:
            self.step("sync_all")
            self.waited()
        elif way == 1:
            self.step("sync", stream)
            self.waited(self.clocks[place])
        elif way == 2:
            self.step("query", stream)
        elif way == 3 or not self.events:
            self.record(place, stream)
        else:
            event, clock = self.random.choice(self.events)
            if way == 4:
                self.step("sync_event", event)
                self.waited(clock)
            else:
                self.step("wait_event", stream, event)
                self.waits(place, clock)

    def memory(self) -> None:
        self.step("use_memory", self.random.choice(STACKS))

    def tidy(self) -> None:
        self.step(self.random.choice(("trim", "collect")))

    def wrong(self) -> None:
        self.step("wrong", self.random.randrange(1000))

    def finish_all(self) -> None:
        while self.pending:
            self.finish()
        self.step("sync_all")
        self.waited()
        self.look()
        for buffer in self.device:
            self.step("read", buffer.name, None)
        self.step("end")


WEIGHTS: dict[Callable[[Plan], None], int] = {
    Plan.new_host: 6,
    Plan.new_device: 5,
    Plan.empty: 3,
    Plan.to_device: 3,
    Plan.copy: 14,
    Plan.within: 2,
    Plan.transfer: 4,
    Plan.finish: 4,
    Plan.duplicate: 3,
    Plan.fill: 5,
    Plan.many_up: 2,
    Plan.many_down: 2,
    Plan.abandon: 2,
    Plan.read: 2,
    Plan.write: 3,
    Plan.drop: 5,
    Plan.wait: 5,
    Plan.end_stream: 1,
    Plan.memory: 1,
    Plan.tidy: 1,
    Plan.wrong: 2,
}
OPERATIONS_BY_NAME = {operation.__name__: operation for operation in WEIGHTS}


def draw(seed: int) -> list[Operation]:
    """The operations of a seed."""
    rng = random.Random(seed)
    names = rng.choices(list(OPERATIONS_BY_NAME), list(WEIGHTS.values()), k=OPERATIONS)
    return [(name, rng.randrange(1 << 32)) for name in names]


# -- runtimes ----------------------------------------------------------------------------------------------------------


class Runtime:
    """A process that runs programs, begun again where it has ended."""

    def __init__(self, name: str, command: Sequence[str | Path] = (), variables: dict[str, str] | None = None) -> None:
        self.name = name
        self.command = list(command) or [sys.executable, Path(__file__).with_name("differential_runtime.py")]
        self.variables = {"DEVMEM_BACKEND": name} if variables is None else variables
        self.process: subprocess.Popen[str] | None = None
        self.can: frozenset[str] = frozenset()
        self.device = self.absent = ""

    def begin(self) -> None:
        """Start the process, unless it runs; `absent` says why there is no device."""
        if self.process is not None and self.process.poll() is None:
            return
        self.end()
        environment = os.environ | ENVIRONMENT | self.variables
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            self.command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env=environment
        )
        told = self.line()
        if told is None:
            self.absent = f"its process ended: {self.last_words()}"
            return
        self.absent = told.get("absent", "")
        self.device, self.can = told.get("device", ""), frozenset(told.get("can", ()))

    def send(self, seed: int, steps: Sequence[Step]) -> None:
        """Hand over a program; `answers` has to follow."""
        self.begin()
        assert self.process is not None
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answers tell that it has ended
            self.process.stdin.write(json.dumps({"seed": seed, "steps": steps}) + "\n")
            self.process.stdin.flush()

    def answers(self, count: int) -> list[tuple[str, str]]:
        """What each step gave. A process that ends, or hangs, gives that for the step at which it did, and no more."""
        found: list[tuple[str, str]] = []
        while len(found) < count:
            told = self.line()
            if told is None:
                words = self.last_words()
                self.end()
                return [*found, (ENDED, words)]
            found.append((told[0], told[1]))
        return found

    def line(self) -> Any:
        """One line, or None where no more come; a process that hangs is ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        watch = threading.Timer(PATIENCE, self.process.kill)
        watch.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watch.cancel()
        return json.loads(line) if line.endswith("\n") else None

    def last_words(self) -> str:
        self.errors.seek(0)
        return " | ".join(self.errors.read().splitlines()[-4:])

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.errors.close()
            self.process = None


def runtimes(names: Sequence[str]) -> list[Runtime]:
    """Those that are there, of these backends; why one is not is told."""
    found = []
    for name in names:
        emulated = emulator.environment(name) if name in ("cuda", "roc") else {}
        chosen = {"DEVMEM_BACKEND": name}
        if name in PLATFORMS:
            chosen = {"DEVMEM_BACKEND": "opencl", "DEVMEM_OPENCL_PLATFORM": PLATFORMS[name]}
        runtime = Runtime(name, variables=emulated | chosen)
        runtime.begin()
        if runtime.absent:
            print(f"without {name}: {runtime.absent}", flush=True)
            runtime.end()
            continue
        print(f"{name}: {runtime.device}{', emulated' if emulated else ''}", flush=True)
        found.append(runtime)
    return found


# -- differences -------------------------------------------------------------------------------------------------------


@dataclass
class Difference:
    """A step that did not give the same everywhere."""

    steps: list[Step]  #: all of them up to this one
    given: dict[str, tuple[str, str]]  #: by runtime
    operations: list[Operation] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*(f"  {json.dumps(step)}" for step in self.steps[:-1]), self.last()])

    def last(self) -> str:
        """The step, and what each runtime gave."""
        given = [f"    {name}: {' '.join(given).strip() or 'nothing'}" for name, given in self.given.items()]
        return "\n".join([f"  {json.dumps(self.steps[-1])}", *given])


def compare(over: Sequence[Runtime], seed: int, operations: Sequence[Operation]) -> tuple[int, Difference | None]:
    """Run a program everywhere: how many steps it has, and the first one at which runtimes differ, which then begin anew."""
    can = frozenset.intersection(*(runtime.can for runtime in over))
    steps = Plan(operations, can).steps
    for runtime in over:
        runtime.send(seed, steps)
    answers = {runtime.name: runtime.answers(len(steps)) for runtime in over}
    for at in range(max(map(len, answers.values()))):
        given = {name: each[at] for name, each in answers.items() if at < len(each)}
        told = {each for each, _ in given.values()}
        if len(told) > 1 or ENDED in told:  # all of them may end at one step
            for runtime in over:
                runtime.end()  # what comes next must not suffer from it
            return len(steps), Difference(steps[: at + 1], given, list(operations))
    return len(steps), None


def shrink(over: Sequence[Runtime], seed: int, found: Difference) -> Difference:
    """Leave out operations as long as there is a difference, halves first.

    Where a difference is a matter of time, a program is run several times before it counts as one without.
    """
    again = [compare(over, seed, found.operations)[1] for _ in range(TRIES)]
    tries = 1 if all(again) else TRIES
    tried, size = 0, len(found.operations) // 2
    while size and tried < SHRINKS:
        at = 0
        while at < len(found.operations) and tried < SHRINKS:
            fewer = found.operations[:at] + found.operations[at + size :]
            for _ in range(tries):
                tried += 1
                _, smaller = compare(over, seed, fewer)
                if smaller is not None:
                    found = smaller
                    break
            else:
                at += size
        size //= 2
    return found


def main() -> int:
    """Programs until the time is up; 1 if runtimes differed."""
    parser = argparse.ArgumentParser(prog="scripts/campaign differential", description=__doc__.partition("\n")[0])
    parser.add_argument("minutes", type=float, nargs="?", default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of the first")
    parser.add_argument("--programs", type=int, help="so many, whatever the time")
    parser.add_argument("--steps", type=int, help="so many at least, whatever the time")
    parser.add_argument("--runtimes", default=",".join(RUNTIMES), help="default: those that are there, of all five")
    options = parser.parse_args()
    over = runtimes(options.runtimes.split(","))
    if len(over) < 2:
        print("there is nothing to compare: two runtimes are needed")
        return 2
    begun, programs, steps, differences = time.monotonic(), 0, 0, 0
    names = ",".join(runtime.name for runtime in over)

    def go_on() -> bool:
        if options.programs is not None:
            return programs < options.programs
        if options.steps is not None:
            return steps < options.steps
        return time.monotonic() - begun < 60 * options.minutes

    while go_on():
        seed = options.seed + programs
        count, found = compare(over, seed, draw(seed))
        programs, steps = programs + 1, steps + count
        if found is not None:
            differences += 1
            print(f"seed {seed}: a difference, at step {len(found.steps)}:\n{found.last()}", flush=True)
            told = shrink(over, seed, found)
            print(f"with {len(told.operations)} operations of {OPERATIONS}:\n{told}")
            print(f"again: scripts/campaign differential 0 --seed {seed} --programs 1 --runtimes {names}", flush=True)
        if programs % 100 == 0:
            print(f"{(time.monotonic() - begun) / 60:6.1f} min  {programs:,} programs, {steps:,} steps", flush=True)
    for runtime in over:
        runtime.end()
    last, took = options.seed + programs - 1, (time.monotonic() - begun) / 60
    seeds = f"seeds {options.seed} to {last}, {took:.1f} minutes"
    print(f"{programs:,} programs, {steps:,} steps on {names}, {seeds}; differences: {differences}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
