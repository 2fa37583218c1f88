"""Real signals at random moments of every verb: run by ``scripts/signals``.

The main thread draws verbs (`soak_verbs`). Meanwhile signals arrive, from a timer and from a thread that calls ``os.kill``. Their
handlers raise KeyboardInterrupt, call a verb, or both, and may be interrupted themselves. After a few hundred the signals stop.
Then what ADR 14 promises shall hold: no two blocks share an address, every verb works and gives the right bytes, nothing hangs,
and when all is dropped, ``reset()`` leaves nothing that the driver has handed out: no memory, stream, event, pool or context.
What ``trim()`` leaves before that is counted, and is no failure.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md

from __future__ import annotations

import argparse
import contextvars
import faulthandler
import functools
import gc
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from soak_verbs import ENVIRONMENT, VERBS, Things, draw

import devmem as dm
from devmem._core.device.opening import open_devices
from devmem.backends.host.driver import _open_drivers
from devmem.testing import emulator

BACKENDS = ("host", "cuda", "roc")
#: Signals between two looks at the books.
BATCH = 250
#: Signals that one process gets, and failures after which the rest of a backend is left out.
PART, ENOUGH = 2500, 20
#: Frames that are told of each interrupt before a failure.
FRAMES = 6
#: Seconds without an end of a batch that count as a hang.
PATIENCE = 180.0
#: Interrupts in `threading.Thread.start` and in the kernel's compiler would be in frames that are not devmem's.
LEFT_OUT = {"a thread that comes and goes", "kernel"}
#: Folders of the vendors' bindings. Where an interrupt comes in their own Python code, say between the driver's call and what it
#: returned, devmem cannot know what has happened.
VENDORS = {"cuda", "hip", "rocm"}
#: What handlers call.
IN_HANDLERS = (
    "upload and download",
    "copies on a stream",
    "fills",
    "trim",
    "looking",
    "garbage in cycles",
    "pool",
    "registering",
)


@functools.cache
def is_vendors(file: str) -> bool:
    """Whether a file belongs to a vendor's binding, or to its results: both bindings make an enumeration of each."""
    parts = Path(file).parts
    if parts[-1] == "enum.py":
        return True
    return "devmem" not in parts and any(part in VENDORS for part in parts)


def came_into_a_class_statement(error: BaseException) -> bool:
    """Whether Python before 3.12 has made a RuntimeError of an interrupt: of one in ``__set_name__``, as a module is imported."""
    return type(error) is RuntimeError and "__set_name__" in str(error) and isinstance(error.__cause__, Interrupt)


def is_within_vendors(frame: FrameType | None) -> bool:
    """Whether what is raised in a frame would come by a vendor's code, also out of another signal's handler there."""
    while frame is not None and not is_vendors(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


class Interrupt(KeyboardInterrupt):
    """What the handlers raise."""


def place(frame: FrameType | None) -> str:
    """Where a signal came: the frames from devmem's innermost ones outwards."""
    told: list[str] = []
    while frame is not None and len(told) < FRAMES:
        told.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(told)


@dataclass
class Result:
    """What became of the signals on one backend."""

    backend: str
    seed: int
    arrived: int = 0  #: while a verb ran
    raised: int = 0
    called: int = 0  #: handlers that called a verb
    nested: int = 0  #: signals that came while a handler ran
    in_vendors: int = 0  #: signals that came in Python code of the vendor's binding, where none raises
    verbs: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)  #: verbs that an interrupt ended
    dropped: Counter[str] = field(default_factory=Counter)  #: finalizers that Python reported
    left: Counter[str] = field(default_factory=Counter)  #: what `trim` left for the resets
    batches: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Signals:
    """One process, one backend."""

    def __init__(self, backend: str, count: int, seed: int) -> None:
        self.result = Result(backend, seed)
        self.count = count
        self.rng = random.Random(f"{seed}/{backend}")
        #: Handlers draw from another one, or the verbs would depend on when signals come.
        self.handlers = random.Random(f"{seed}/{backend}/handlers")
        self.folder = tempfile.TemporaryDirectory(prefix="devmem-signals-")
        self.device = dm.current_device()
        self.armed = False
        self.depth = 0
        self.places: list[str] = []  #: where the interrupts of this batch came
        self.by_timer = True
        self.things: Things | None = None
        self.others: Things | None = None

    # -- signals -------------------------------------------------------------------------------------------------------

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise, call a verb, or both."""
        rng = self.handlers
        if self.by_timer:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, 1e-3))
        if not self.armed:
            return
        self.result.arrived += 1
        self.result.nested += self.depth > 0
        vendors = is_within_vendors(frame)
        self.result.in_vendors += vendors
        choice = rng.random()
        self.depth += 1
        try:
            if choice > 0.5 and self.depth < 3 and self.others is not None:
                with self.device:  # whatever is current where the signal came
                    VERBS[rng.choice(IN_HANDLERS)](self.others)
                self.result.called += 1
            if choice < 0.75 and self.armed and not vendors:
                self.armed = False
                self.result.raised += 1
                self.places.append(place(frame))
                raise Interrupt
        finally:
            self.depth -= 1

    def kill(self, stop: threading.Event) -> None:
        """A thread that sends signals."""
        rng = random.Random(self.result.seed)
        while not stop.is_set():
            time.sleep(rng.uniform(1e-5, 1e-3))
            os.kill(os.getpid(), signal.SIGALRM)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def all(self) -> Result:
        """Batches until enough signals have arrived, or something failed."""
        started = time.monotonic()
        sys.unraisablehook = self.unraisable
        sys.setswitchinterval(1e-4)
        signal.signal(signal.SIGALRM, self.handle)
        while self.result.arrived < self.count and not self.result.failures:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            self.batch(self.rng.random() < 0.7)
            self.result.batches += 1
            self.quiet()
            self.look()
        faulthandler.cancel_dump_traceback_later()
        self.result.seconds = time.monotonic() - started
        dm.close()
        left = self.driver_books()
        if any(left):
            self.fail(f"after close() the driver still has {left}")
        return self.result

    def batch(self, by_timer: bool) -> None:
        """Verbs under signals."""
        end, stop = self.result.arrived + BATCH, threading.Event()
        self.others = Things(self.handlers, self.folder.name, 1)
        self.by_timer = by_timer
        sender = threading.Thread(target=self.kill, args=(stop,), daemon=True)
        if by_timer:
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
        else:
            sender.start()
        try:
            while self.result.arrived < end and not self.result.failures:
                self.one(draw(self.rng))
        finally:
            self.by_timer = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            if not by_timer:
                stop.set()
                sender.join()

    def one(self, name: str) -> None:
        """One verb, during which signals may do something."""
        if name in LEFT_OUT:
            return
        try:
            self.armed = True
            if self.things is None:
                name = "begin"
                self.things = Things(self.rng, self.folder.name)
            else:
                # In a context of its own: a scope whose entering or leaving was interrupted is not in force for the next verb.
                contextvars.copy_context().run(VERBS[name], self.things)
            self.armed = False
            self.result.verbs[name] += 1
        except Interrupt:
            self.result.cut[name] += 1
        except BaseException as error:
            self.armed = False
            if came_into_a_class_statement(error):
                self.result.cut[name] += 1
            elif not isinstance(error, dm.UnsupportedError):
                self.fail(f"{name}\n" + "".join(traceback.format_exception(error)))

    def quiet(self) -> None:
        """Every verb once, without signals."""
        self.things = Things(self.rng, self.folder.name)
        for name in VERBS.keys() - LEFT_OUT:
            try:
                VERBS[name](self.things)
            except dm.UnsupportedError:
                continue
            except BaseException as error:
                self.fail(f"{name}, after the signals\n" + "".join(traceback.format_exception(error)))

    def unraisable(self, args: Any) -> None:
        """Count what a finalizer raised and Python dropped."""
        if isinstance(args.exc_value, Interrupt):
            self.result.dropped[getattr(args.object, "__qualname__", repr(type(args.object).__qualname__))] += 1
        else:
            self.fail(f"in {args.object!r}\n" + "".join(traceback.format_exception(args.exc_value)))

    def fail(self, what: str) -> None:
        """Take note of a failure."""
        self.result.failures.append(what)

    # -- the books -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Drop everything, then trim and reset: `trim` may leave what an interrupt left, the reset nothing."""
        self.check_addresses()
        self.things = self.others = None
        gc.collect()
        try:
            dm.trim()
        except Exception as error:
            self.fail("trim, after the signals\n" + "".join(traceback.format_exception(error)))
        in_driver, handles = self.driver_books()
        self.result.left += Counter({"bytes": in_driver, "handles": handles})
        for device in dm.devices():
            if device.backend == self.result.backend:
                device.reset()
        if any(left := self.driver_books()):
            self.fail(
                f"after reset() the driver still has {left[0]:,} bytes and {left[1]} handles; the interrupts came in:"
            )
            self.result.failures.extend(self.places)
        self.places.clear()

    def check_addresses(self) -> None:
        """No two blocks that are handed out share an address, whichever stack they are from, on one device."""
        for each in open_devices():
            blocks = sorted(block for heap in each.memory.stacks.all_heaps() for block in heap.live.blocks())
            for (low, nbytes, _), (high, _, _) in itertools.pairwise(blocks):
                if low + nbytes > high:
                    self.fail(f"{each.device}: {nbytes} bytes at {low:#x} are handed out, and a block at {high:#x} too")

    def driver_books(self) -> tuple[int, int]:
        """Bytes and handles that the vendor's library has handed out, or the host's drivers, each of which counts too."""
        if self.result.backend != "host":
            return emulator.control(self.result.backend).live()
        counts = [driver.live_counts() for driver in _open_drivers]
        return sum(nbytes for nbytes, *_ in counts), sum(1 + streams + events for _, _, streams, events in counts)


# -- all backends ------------------------------------------------------------------------------------------------------


def in_process(backend: str, count: int, seed: int) -> Result:
    """Run a part of one backend's signals in a process of its own."""
    found = {} if backend == "host" else emulator.environment(backend)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        command = [sys.executable, __file__, str(count), "--backend", backend, "--seed", str(seed), "--json", str(path)]
        environment = os.environ | found | ENVIRONMENT | {"DEVMEM_BACKEND": backend}
        done = subprocess.run(
            command, env=environment, check=False, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        if not path.exists():
            told = "\n".join(done.stderr.splitlines()[-60:])
            return Result(
                backend, seed, failures=[f"the process crashed or hung, exit code {done.returncode}:\n{told}"]
            )
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    result = Result(backend, seed)
    for name, value in values.items():
        setattr(result, name, Counter(value) if isinstance(value, dict) else value)
    return result


def all_parts(backend: str, count: int, seed: int) -> Result:
    """All signals of one backend, in one process after the other: what a crash ends is little."""
    total, parts = Result(backend, seed), 0
    while total.arrived < count and len(total.failures) < ENOUGH:
        part = in_process(backend, min(PART, count - total.arrived), seed + parts)
        parts += 1
        for name, value in vars(part).items():
            if name not in ("backend", "seed"):
                setattr(total, name, getattr(total, name) + value)
    return total


def report(results: list[Result]) -> str:
    """The results in Markdown."""
    passed = "FAILED" if any(result.failures for result in results) else "passed"
    arrived = sum(result.arrived for result in results)
    lines = [
        f"# {arrived:,} signals: {passed}",
        "",
        "Signals that arrived while a verb ran, on the main thread. After each few hundred it was asked what "
        "[ADR 14](../../docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md) promises: no two blocks share an address, "
        "every verb works and every byte is right, nothing hangs, and `reset()` leaves nothing that the driver has handed out.",
        "",
        "| | " + " | ".join(result.backend for result in results) + " |",
        "|---|" + "---:|" * len(results),
    ]
    rows: dict[str, list[object]] = {
        "signals": [result.arrived for result in results],
        "raised KeyboardInterrupt": [result.raised for result in results],
        "in Python code of the vendor's binding: none raised": [result.in_vendors for result in results],
        "handlers that called a verb": [result.called for result in results],
        "signals that came while a handler ran": [result.nested for result in results],
        "verbs completed": [result.verbs.total() for result in results],
        "verbs ended by an interrupt": [result.cut.total() for result in results],
        "looks at the books, one behind each few hundred signals": [result.batches for result in results],
        "bytes that `trim()` left for the resets, the device's own among them": [
            result.left["bytes"] for result in results
        ],
        "handles that it left, likewise": [result.left["handles"] for result in results],
        "failures": [len(result.failures) for result in results],
        "seconds": [round(result.seconds) for result in results],
        "seed": [str(result.seed) for result in results],
    }
    lines += [
        f"| {what} | {' | '.join(f'{value:,}' if isinstance(value, int) else str(value) for value in values)} |"
        for what, values in rows.items()
    ]
    lines += ["", "## Finalizers that Python reported and dropped", ""]
    for result in results:
        told = ", ".join(f"{name} {number}" for name, number in sorted(result.dropped.items())) or "none"
        lines.append(f"- {result.backend}: {told}")
    lines += [
        "",
        "## Verbs ended by an interrupt",
        "",
        "| verb | " + " | ".join(result.backend for result in results) + " |",
    ]
    lines.append("|---|" + "---:|" * len(results))
    for name in sorted(set().union(*(result.cut for result in results))):
        lines.append(f"| {name} | " + " | ".join(f"{result.cut[name]:,}" for result in results) + " |")
    for result in results:
        lines += [
            "",
            *(f"    {line}" for told in result.failures for line in f"{result.backend}: {told}".splitlines()),
        ]
    text = "\n".join(lines).rstrip() + "\n"
    for folder in (Path(__file__).resolve().parents[1], *map(Path, (sys.prefix, sys.base_prefix))):
        text = text.replace(f"{folder}/", "")
    return text


def main() -> int:
    """Run the backends in turn, and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/signals", description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--backend", choices=(*BACKENDS, "all"), default="all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--report", type=Path, help="a file in Markdown")
    parser.add_argument("--json", type=Path, help="run one backend in this process, and write what became of it")
    options = parser.parse_args()
    if options.json:
        faulthandler.enable()
        result = Signals(options.backend, options.count, options.seed).all()
        options.json.write_text(json.dumps(vars(result)), "utf-8")
        return 1 if result.failures else 0
    chosen = BACKENDS if options.backend == "all" else (options.backend,)
    results = [all_parts(backend, -(-options.count // len(chosen)), options.seed) for backend in chosen]
    text = report(results)
    print(text)
    if options.report:
        options.report.write_text(text, "utf-8")
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
