"""Eight threads work a device for minutes or hours: run by ``scripts/soak``.

The run is a row of shifts. In each, every thread draws verbs (`soak_verbs`) and compares all bytes that it gets back. Some
shifts are quiet: no verb may fail. In the others calls of the driver fail now and then, or devices are reset beside the threads:
then a verb may end with the error that was injected, or with a ClosedError, and the thread goes on. Between two shifts all that
the threads hold is dropped and trimmed. By then nothing may be live, the ledger of the driver (`devmem.testing.FaultyBackend`)
may have seen no wrong release, and what is resident is measured.

Resident memory, Python objects, and handles of the driver shall be flat: see `GROWTH`. What threads draw, what fails and when
devices are reset follows from ``--seed`` and the number of the shift, so that ``--seed S --first N`` repeats a shift; what the
system's scheduler does, it cannot repeat.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import functools
import gc
import json
import os
import platform
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from soak_verbs import ENVIRONMENT, VERBS, Things, draw

import devmem as dm
from devmem.plugins import registry
from devmem.testing import FaultyBackend, emulator

#: Seconds after which a thread that did not come back counts as hanging.
PATIENCE = 240.0
#: Failures after which the run ends.
ENOUGH = 10
#: The share of the run that fills caches; its samples do not count.
WARM_UP = 0.2
#: How much more the least of the last third of the samples may be than that of the first third: a share of it, and a number. The
#: least is the tenth percentile. How much caches hold depends on when the last reset came, and so does the median; what is lost
#: stays whatever comes.
GROWTH = {
    "resident": (0.03, 4 << 20),
    "anonymous": (0.03, 4 << 20),
    "allocated": (0.03, 2 << 20),
    "objects": (0.01, 1000),
    "blocks": (0.01, 2000),
    "memory": (0.0, 2 << 20),
    "streams": (0.0, 8),
    "events": (0.0, 80),
    "vendor_memory": (0.0, 2 << 20),
    "vendor_handles": (0.0, 80),
    "files": (0.0, 2),
    "threads": (0.0, 2),
}
TITLES = {
    "resident": "resident memory of the process, bytes",
    "anonymous": "of it anonymous (no files, no shared memory), bytes",
    "allocated": "bytes that malloc has handed out",
    "objects": "Python objects that the collector knows",
    "blocks": "blocks of Python's own allocator",
    "memory": "device and page-locked memory of devmem, bytes",
    "streams": "streams of devmem",
    "events": "events of devmem",
    "vendor_memory": "memory in the driver's own books, bytes",
    "vendor_handles": "handles in the driver's own books",
    "files": "open files",
    "threads": "threads",
}
#: What an emulated driver may be asked to refuse: creations, with the vendors' common code of running out of memory.
REFUSED = {
    "cuda": ("cuMemAlloc_v2", "cuMemAllocAsync", "cuMemHostAlloc", "cuStreamCreateWithPriority", "cuEventCreate"),
    "roc": ("hipMalloc", "hipMallocAsync", "hipHostMalloc", "hipStreamCreateWithPriority", "hipEventCreateWithFlags"),
}
OUT_OF_MEMORY = 2


@dataclass
class Sample:
    """What there is between two shifts, when all has been dropped and trimmed."""

    seconds: float
    resident: int
    anonymous: int
    allocated: int
    objects: int
    blocks: int
    memory: int
    streams: int
    events: int
    vendor_memory: int
    vendor_handles: int
    files: int
    threads: int


@dataclass
class Run:
    """What has happened so far."""

    backend: str
    seed: int
    samples: list[Sample] = field(default_factory=list)
    shifts: Counter[str] = field(default_factory=Counter)
    verbs: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unsupported: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    resets: int = 0
    failures: list[str] = field(default_factory=list)
    #: Objects by their types, behind the warm-up and at the end.
    types: list[Counter[str]] = field(default_factory=list)
    seconds: float = 0.0


class Soak:
    """The threads, what disturbs them, and the books."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.run = Run(options.backend, options.seed)
        loaded = registry.backend(options.backend)
        assert loaded is not None
        # In the backend's own place, so that compilers and exchange take it for what it is.
        self.backend = FaultyBackend(loaded.backend, options.backend)
        registry.backends[options.backend] = loaded._replace(backend=self.backend)
        self.control: emulator.Control | None = None
        self.barrier = threading.Barrier(options.threads + 1)
        self.lock = threading.Lock()
        self.handed_on: list[tuple[Any, Any]] = []
        self.things: list[Things | None] = [None] * options.threads
        self.folder = tempfile.TemporaryDirectory(prefix="devmem-soak-")
        self.number = options.first
        self.mood = "quiet"
        self.until = 0.0
        self.over = False

    # -- one thread ----------------------------------------------------------------------------------------------------

    def work(self, thread: int) -> None:
        """Shift after shift, until it is over."""
        with suppress(threading.BrokenBarrierError):
            while True:
                self.barrier.wait(PATIENCE)
                if self.over:
                    return
                self.shift(thread)
                self.barrier.wait(PATIENCE)

    def shift(self, thread: int) -> None:
        """Verbs until time is up."""
        rng = random.Random(f"{self.run.seed}/{self.number}/{thread}")
        done: Counter[str] = Counter()
        while time.monotonic() < self.until and len(self.run.failures) < ENOUGH:
            name = draw(rng)
            try:
                things = self.things[thread]
                if things is None:
                    name = "begin"
                    things = self.things[thread] = Things(rng, self.folder.name, thread, self.handed_on)
                else:
                    VERBS[name](things)
                done[name] += 1
            except BaseException as error:
                self.judge(thread, name, error)
        with self.lock:
            self.run.verbs.update(done)

    def judge(self, thread: int, name: str, error: BaseException) -> None:
        """Take note of an error that was to be expected, or of a failure. The thread begins with new things."""
        self.things[thread] = None
        excuse = self.excuse(error)
        with self.lock:
            if excuse:
                self.run.refused[excuse] += 1
            elif isinstance(error, dm.UnsupportedError):
                self.run.unsupported[f"{name}: {error}"] += 1
            else:
                where = f"thread {thread}, verb {name!r}, a {self.mood} shift"
                self.fail(where + "\n" + "".join(traceback.format_exception(error)))

    def excuse(self, error: BaseException | None) -> str:
        """Why an error may have come, or nothing."""
        while error is not None:
            text = " ".join([str(error), *getattr(error, "__notes__", [])])
            if "injected failure of" in text:
                return f"{type(error).__name__}, injected"
            if isinstance(error, dm.OutOfMemory) and "failures" in self.mood and self.control:
                return "OutOfMemory, injected into the emulated driver"
            if isinstance(error, dm.ClosedError) and "resets" in self.mood:
                return "ClosedError, reset"
            error = error.__cause__ or error.__context__
        return ""

    def fail(self, what: str) -> None:
        """Take note of a failure."""
        repeat = f"repeat with --backend {self.run.backend} --seed {self.run.seed} --first {self.number}"
        self.run.failures.append(f"shift {self.number}: {what}\n{repeat}")
        print(self.run.failures[-1], file=sys.stderr, flush=True)

    # -- what disturbs them --------------------------------------------------------------------------------------------

    def disturb(self, rng: random.Random) -> None:
        """Let calls fail, and reset devices, until time is up."""
        while (left := self.until - time.monotonic()) > 0 and len(self.run.failures) < ENOUGH:
            time.sleep(min(left, rng.uniform(0.01, 0.1)))
            if "failures" in self.mood:
                self.run.injected.update(self.backend.injected)
                if self.control and rng.random() < 0.3:
                    self.control.fail(rng.choice(REFUSED[self.run.backend]), rng.randrange(1, 50), OUT_OF_MEMORY)
                else:
                    called = sorted(self.backend.calls - Counter(["open", "close"]))
                    self.backend.fail_at(rng.randrange(1, 300), rng.choice([None, *called]), repeat=False)
            if "resets" in self.mood and self.options.resets == "beside" and rng.random() < 0.2:
                self.reset(rng)
        self.run.injected.update(self.backend.injected)
        self.backend.disarm()
        self.backend.fail_at(1 << 60)
        if self.control:
            self.control.reset()

    def reset(self, rng: random.Random) -> None:
        """Reset one of the devices beside the threads."""
        try:
            dm.reset(rng.randrange(self.backend.device_count()))
            self.run.resets += 1
        except BaseException as error:
            if not self.excuse(error):
                self.fail("reset()\n" + "".join(traceback.format_exception(error)))

    def choose_mood(self, rng: random.Random) -> str:
        """What disturbs the next shift."""
        moods = {"quiet": 4, "with failures": 3}
        if self.options.resets != "none":
            moods |= {"with resets": 2, "with failures and resets": 1}
        return rng.choices(list(moods), list(moods.values()))[0]

    # -- the run -------------------------------------------------------------------------------------------------------

    def all(self) -> Run:
        """Shifts until the time is up or something failed."""
        started = time.monotonic()
        end = started + self.options.minutes * 60
        warnings.simplefilter("always", dm.DevmemWarning)
        warnings.showwarning = self.warned
        sys.unraisablehook = self.unraisable
        threads = [threading.Thread(target=self.work, args=(at,), daemon=True) for at in range(self.options.threads)]
        for thread in threads:
            thread.start()
        try:
            while time.monotonic() < end and len(self.run.failures) < ENOUGH:
                rng = random.Random(f"{self.run.seed}/{self.number}")
                self.mood = self.choose_mood(rng)
                self.until = min(time.monotonic() + self.options.shift, end)
                self.barrier.wait(PATIENCE)
                self.disturb(rng)
                self.barrier.wait(PATIENCE)
                if "resets" in self.mood and self.options.resets == "between":
                    self.reset(rng)  # the threads stand still, and hold what they have
                self.run.shifts[self.mood] += 1
                self.look(time.monotonic() - started)
                self.number += 1
            self.over = True
            self.barrier.wait(PATIENCE)
            for thread in threads:
                thread.join(PATIENCE)
        except threading.BrokenBarrierError:
            self.fail(f"a thread hangs in a shift {self.mood}: see the threads' stacks")
            faulthandler.dump_traceback(all_threads=True)
        self.run.types.append(types())
        self.run.seconds = time.monotonic() - started
        return self.run

    def warned(self, message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        """A warning is a failure, unless it tells of what was injected."""
        text = str(message)
        if issubclass(category, dm.DevmemWarning):
            with self.lock:
                excused = isinstance(message, Warning) and self.excuse(message)
                self.run.warned[f"{category.__name__}, injected" if excused else text[:300]] += 1

    def unraisable(self, args: Any) -> None:
        """What a finalizer raises is a failure."""
        with self.lock:
            self.fail(f"in {args.object!r}\n" + "".join(traceback.format_exception(args.exc_value)))

    def look(self, seconds: float) -> None:
        """Drop everything, check the books, and measure."""
        self.things = [None] * self.options.threads
        self.handed_on.clear()
        try:
            left = self.settle()
        except BaseException as error:
            self.fail("between the shifts\n" + "".join(traceback.format_exception(error)))
            return
        if mistakes := self.backend.mistakes():
            self.fail(f"wrong releases: {mistakes[:5]}")
        if left:
            self.fail(f"left over: {left}")
        if self.control is None and self.run.backend != "host":
            self.control = emulator.control(self.run.backend)
        self.run.samples.append(self.sample(seconds))
        if not self.run.types and seconds > WARM_UP * self.options.minutes * 60:
            self.run.types.append(types())

    def settle(self) -> str:
        """Free all that can go; return what is still live."""
        for _ in range(3):  # what is freed may be the last that held something else
            gc.collect()
            for ordinal in range(self.backend.device_count()):
                device = dm.device(ordinal)
                device.synchronize()
                device.opened()
            dm.trim()
            found = {str(device): device.memory_info() for device in dm.devices() if device.backend == self.run.backend}
            left = {name: info[2:] for name, info in found.items() if any((*info[2:5], *info.host))}
            if not left:
                return ""
        return str(left)

    def sample(self, seconds: float) -> Sample:
        """Measure the process and the books."""
        live = self.backend.live()
        vendor = self.control.live() if self.control else (0, 0)
        files = len(list(Path("/proc/self/fd").iterdir()))
        counted = (live.bytes, live.streams, live.events, *vendor, files, threading.active_count())
        forget_cached_answers()
        blocks = sys.getallocatedblocks() - len(self.run.samples) * (1 + len(fields(Sample)))  # without this record
        return Sample(seconds, *resident(), allocated(), len(gc.get_objects()), blocks, *counted)


def forget_cached_answers() -> None:
    """Clear each cache of a function of devmem's: they are bounded, and fill as long as new shapes are drawn."""
    for name, module in list(sys.modules.items()):
        for each in list(vars(module).values()) if name.startswith("devmem.") else ():
            if isinstance(each, functools._lru_cache_wrapper) and each.cache_info().maxsize is not None:
                each.cache_clear()


def types() -> Counter[str]:
    """How many objects there are of each type."""
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


def resident() -> tuple[int, int]:
    """Resident bytes of this process, and those of them that are anonymous."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["VmRSS"].split()[0]) << 10, int(fields["RssAnon"].split()[0]) << 10


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def allocated() -> int:
    """Bytes that malloc has handed out, in all its arenas; 0 where the C library does not say."""
    try:
        call = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    call.restype = _Mallinfo
    found = call()
    return int(found.uordblks + found.hblkhd)


# -- the judgement -----------------------------------------------------------------------------------------------------


def thirds(run: Run, name: str) -> tuple[float, float]:
    """The least of the first and of the last third of the samples behind the warm-up, as `GROWTH` has it."""
    values = [getattr(sample, name) for sample in run.samples if sample.seconds >= WARM_UP * run.seconds]
    third = max(1, len(values) // 3)
    first, last = sorted(values[:third]), sorted(values[-third:])
    return first[len(first) // 10], last[len(last) // 10]


def grown(run: Run, name: str) -> bool:
    """Whether something is not flat."""
    first, last = thirds(run, name)
    share, number = GROWTH[name]
    return last > first + max(share * first, number)


# -- the report --------------------------------------------------------------------------------------------------------


def count(value: float) -> str:
    """A number for people."""
    return f"{value:,.0f}"


def table(head: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table in Markdown; the first column is text, the others are numbers."""
    columns = head.split(" | ")
    return [f"| {head} |", "|" + "---|" + "---:|" * (len(columns) - 1), *(f"| {' | '.join(row)} |" for row in rows)]


def report(run: Run, options: argparse.Namespace, plot: str) -> str:
    """The run in Markdown."""
    passed = "passed" if not run.failures else "FAILED"
    over = "the host backend" if run.backend == "host" else f"the emulated driver of {run.backend}"
    rows = []
    for name, title in TITLES.items():
        first, last = thirds(run, name)
        share, number = GROWTH[name]
        allowed = max(share * first, number)
        flat = "no" if grown(run, name) else "yes"
        rows.append((title, count(first), count(last), f"{last - first:+,.0f}", count(allowed), flat))
    moods = ", ".join(f"{number} {mood}" for mood, number in sorted(run.shifts.items()))
    disturbed = f"{count(run.injected.total())} failures of driver calls injected, {count(run.resets)} resets"
    where = "beside the working threads" if options.resets == "beside" else "between the shifts"
    python = f"Python {platform.python_version()}, {' '.join(platform.libc_ver())}"
    lines = [
        f"# Soak over {over}: {passed}",
        "",
        f"{run.seconds / 60:.0f} minutes, {options.threads} threads, {count(run.verbs.total())} verbs in "
        f"{count(run.shifts.total())} shifts ({moods}), {disturbed} {where}. Seed {run.seed}. {len(run.failures)} failures.",
        "",
        f"{python}, {os.cpu_count()} processors, devmem {dm.__version__}.",
        "",
        *(f"    {line}" for failure in run.failures for line in failure.splitlines()),
        "",
        "## Flat",
        "",
        f"Each shift ends with everything dropped, trimmed and measured. Behind a warm-up of {WARM_UP:.0%} the least of the "
        "last third (its tenth percentile) may be as much above that of the first third as is said under *allowed*.",
        "",
        *table("what | first third | last third | difference | allowed | flat", rows),
        "",
        f"![What was measured between the shifts]({plot})",
        "",
        "## Verbs",
        "",
        *table("verb | times", [(name, count(number)) for name, number in sorted(run.verbs.items())]),
        "",
        "## Errors that were expected",
        "",
        *table("error | times", [(name, count(number)) for name, number in sorted(run.refused.items())]),
        "",
        *table(
            "driver call made to fail | times", [(name, count(number)) for name, number in sorted(run.injected.items())]
        ),
        "",
    ]
    if len(run.types) == 2 and (more := (run.types[1] - run.types[0]).most_common(12)):
        lines += ["## Objects that have become more since the warm-up", ""]
        lines += [*table("type | more", [(name, count(number)) for name, number in more]), ""]
    for title, counted in (("Not supported here", run.unsupported), ("Warnings", run.warned)):
        if counted:
            lines += [
                f"## {title}",
                "",
                *(f"- {count(number)} times: {text}" for text, number in sorted(counted.items())),
                "",
            ]
    return "\n".join(lines)


def draw_plot(run: Run, path: Path) -> None:
    """Each measure over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.7 * len(TITLES)), layout="constrained")
    minutes = [sample.seconds / 60 for sample in run.samples]
    for axes, (name, title) in zip(figure.subplots(len(TITLES), 1, sharex=True), TITLES.items(), strict=True):
        scale, unit = (1 << 20, title.replace("bytes", "MiB")) if "bytes" in title else (1, title)
        axes.plot(minutes, [getattr(sample, name) / scale for sample in run.samples], linewidth=0.8)
        axes.axvspan(0, WARM_UP * run.seconds / 60, color="0.93")
        axes.set_title(unit, fontsize="small", loc="left")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    axes.set_xlabel("minutes")
    figure.savefig(path, dpi=60)


def main() -> int:
    """Run, judge, write, and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.partition("\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--backend", choices=("host", "cuda", "roc"), default="host")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--first", type=int, default=0, help="the number of the first shift")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--shift", type=float, default=5.0, help="seconds of a shift")
    where = ("beside", "between", "none")
    parser.add_argument("--resets", choices=where, default="beside", help="beside the threads, or between the shifts")
    parser.add_argument("--report", type=Path, help="a file in Markdown; a plot comes beside it")
    parser.add_argument("--samples", type=Path, help="a file for the samples, as JSON")
    options = parser.parse_args()
    if options.backend != "host" and os.environ.get("DEVMEM_EMULATOR") != options.backend:
        found = emulator.environment(options.backend)
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | found)
    os.environ.update(ENVIRONMENT | {"DEVMEM_BACKEND": options.backend})
    faulthandler.enable()
    run = Soak(options).all()
    if len(run.samples) >= 10:
        run.failures += [f"{TITLES[name]}: not flat, {thirds(run, name)}" for name in TITLES if grown(run, name)]
    if options.report and run.samples:
        plot = options.report.with_suffix(".png")
        draw_plot(run, plot)
        options.report.write_text(report(run, options, plot.name), "utf-8")
    disturbed = f"{run.injected.total()} injected failures, {run.resets} resets"
    if options.samples:
        options.samples.write_text(json.dumps([asdict(sample) for sample in run.samples], indent=0), "utf-8")
    print(f"{run.seconds:.0f} s, {run.verbs.total()} verbs, {disturbed}, {len(run.failures)} failures, seed {run.seed}")
    for failure in run.failures:
        print(failure)
    sys.stdout.flush()
    if any("hangs" in failure for failure in run.failures):
        os._exit(1)  # the thread that hangs would keep the process
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
