"""What ``scripts/gpu-check`` runs: tests and benchmarks on a CUDA device, each in a process of its own, into JSON and Markdown.

Each step has a share of the time. What a step does not use is left to those after it; a step that is cut off, hangs or
crashes keeps what it had shown, and the tests after the one that killed the process go on in another. The files are written
again after each step.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: Seconds for everything, and for each step if the others use all of theirs.
TOTAL = 465.0
SHARES = {"contract": 75.0, "api": 135.0, "truth": 45.0, "memcheck": 45.0, "bandwidth": 120.0, "overhead": 35.0}
#: Seconds after which a test is taken for hung: by pytest-timeout where there is one, then by ending its process.
PATIENCE, LAST_PATIENCE = 30, 45
#: How often the tests after one that killed its process go on in another.
RESTARTS = 8
QUICK_TESTS = 6
LONGEST_TAIL, MOST_TAILS = 3000, 40
#: Driver errors after which nothing works in the process any more.
STICKY = frozenset({4, 46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})

#: Tests of what happens when the last one lets go of the device's context: for these nobody else may hold it.
SOLE_OWNERS = ("test_close_drops_what_was_not_freed",)

RESOURCES_ON_CUDA = '''"""devmem's own memory resources on the CUDA driver, against the published suite."""

from devmem import memory
from devmem.backends.cuda.hooks import CudaBackend
from devmem.testing import MemoryResourceTests


class OnCuda(MemoryResourceTests):
    def make_backend(self):
        return CudaBackend()


class TestDriverMemory(OnCuda):
    def make_resource(self, driver):
        return memory.DriverMemory()


class TestStreamOrderedMemory(OnCuda):
    def make_resource(self, driver):
        return memory.StreamOrderedMemory()
'''


@dataclass
class Step:
    """What one step showed."""

    name: str
    title: str
    status: str = "not run"  # passed, failed, unfinished, broken, skipped
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    data: Any = None


@dataclass
class Run:
    """The whole, and what the steps need."""

    emulated: bool
    quick: bool
    work: Path
    env: dict[str, str]
    facts: dict[str, Any]
    ends: float
    chosen: list[str]
    steps: list[Step] = field(default_factory=list)

    def left(self, name: str) -> float:
        """Seconds that a step may take: all that the steps after it do not have a claim to."""
        claimed = sum(SHARES[each] for each in self.chosen[self.chosen.index(name) + 1 :])
        return max(5.0, self.ends - time.monotonic() - claimed)


def main() -> int:
    """Run what was asked for, and write it down."""
    parser = argparse.ArgumentParser(
        prog="gpu-check", description="Run devmem's tests and benchmarks on the GPU of this machine."
    )
    parser.add_argument("--emulated", action="store_true", help="over the emulated driver; every result is marked so")
    parser.add_argument("--quick", action="store_true", help="a few tests of each kind, tiny sizes")
    parser.add_argument(
        "--only", nargs="+", choices=list(SHARES), default=list(SHARES), metavar="STEP", help=", ".join(SHARES)
    )
    parser.add_argument("--seconds", type=float, default=TOTAL, help=f"to end within (default: {TOTAL:.0f})")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: benchmarks/results")
    options = parser.parse_args()
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    env = child_environment(options.emulated)
    facts = ask_device(env)
    if (refusal := refused(facts, options.emulated)) is not None:
        shutil.rmtree(work, ignore_errors=True)
        print(f"gpu-check: {refusal}", file=sys.stderr)
        return 2
    chosen = [name for name in SHARES if name in options.only]
    run = Run(options.emulated, options.quick, work, env, facts, began + options.seconds, chosen)
    about = describe(run)
    stem = free_name([options.results, *out_folder()], about)
    for name in chosen:
        step = Step(name, TITLES[name])
        run.steps.append(step)
        print(f"== {step.title}", flush=True)
        started = time.monotonic()
        try:
            STEPS[name](run, step)
        except Exception as error:
            step.status, step.notes = (
                "broken",
                [*step.notes, f"gpu-check itself failed: {type(error).__name__}: {error}"],
            )
        step.seconds = round(time.monotonic() - started, 1)
        print(f"   {step.status}: {counted(step)} ({step.seconds} s)", flush=True)
        about["seconds"] = round(time.monotonic() - began, 1)
        write(run, about, options.results, stem)
    wrong = [step.name for step in run.steps if step.status not in ("passed", "skipped")]
    print(markdown(run, about))
    print(f"gpu-check: {about['seconds']} s; " + (f"NOT WELL: {', '.join(wrong)}" if wrong else "all is well"))
    print(f"gpu-check: results in {shown_path(options.results / stem)}.json and .md")
    shutil.rmtree(work, ignore_errors=True)
    return 1 if wrong else 0


# -- the device --------------------------------------------------------------------------------------------------------


def child_environment(emulated: bool) -> dict[str, str]:
    """Variables of every child: devmem from the sources, no pytest plugins but those named, the driver that was asked for."""
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1", "DEVMEM_BACKEND": "cuda"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "DEVMEM_EMULATOR", "DEVMEM_EMULATOR_MODE"):
        env.pop(name, None)
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    if emulated:
        from devmem.testing import emulator

        env |= {**emulator.environment("cuda"), "DEVMEM_BACKEND": "cuda"}
    return env


def ask_device(env: dict[str, str]) -> dict[str, Any]:
    """What the driver says, asked in a child: this process stays free of it."""
    command = [sys.executable, __file__, "--child", "facts"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "the driver did not answer within 60 seconds: check nvidia-smi"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"asking the driver ended with {done.returncode}: {clean(done.stderr)[-500:]}"}
    return found


def refused(facts: dict[str, Any], emulated: bool) -> str | None:
    """Why nothing will be run."""
    if "error" in facts:
        return f"no NVIDIA GPU can be used here: {facts['error']}"
    if facts["emulated"] and not emulated:
        return (
            "the CUDA driver here is the emulated one: leave `devmem emulate`, or say --emulated to try this script out"
        )
    if emulated and not facts["emulated"]:
        return "--emulated was asked for, and a real driver was found before the emulated one"
    return None


def child_facts() -> int:
    """Print what the driver says about the first device."""
    from devmem.backends.cuda.hooks import CudaBackend

    backend = CudaBackend()
    reason = backend.unavailable()
    if reason is None and backend.device_count() == 0:
        reason = "the driver sees no device: check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if reason is not None:
        print(json.dumps({"error": reason}))
        return 0
    from devmem.testing import emulator

    try:
        emulator.control("cuda")
        emulated = True
    except emulator.EmulatorNotLoaded:
        emulated = False
    started = time.perf_counter()
    driver = backend.open(0)
    info = driver.info
    token = driver.enter()
    free, total = driver.memory_info()
    driver.exit(token)
    version = int(info.facts["driver_version"])
    found = {
        "emulated": emulated,
        "name": info.name,
        "devices": backend.device_count(),
        "compute_capability": info.facts["compute_capability"],
        "cuda_of_driver": f"{version // 1000}.{version % 1000 // 10}",
        "memory_bytes": total,
        "memory_free_bytes": free,
        "capabilities": sorted(map(str, info.capabilities)),
        "memory_kinds": sorted(map(str, info.memory_kinds)),
        "facts": dict(info.facts),
        "open_seconds": round(time.perf_counter() - started, 3),
    }
    print(json.dumps(found))
    return 0


def nvidia_smi() -> dict[str, str]:
    """What the driver's own tool says: the version of the driver, and the bus."""
    asked = [
        "driver_version",
        "pcie.link.gen.max",
        "pcie.link.gen.current",
        "pcie.link.width.current",
        "persistence_mode",
    ]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits", "--id=0"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return dict(zip(asked, (part.strip() for part in done.stdout.splitlines()[0].split(",")), strict=False))
    return {}


# -- the steps ---------------------------------------------------------------------------------------------------------


def contract(run: Run, step: Step) -> None:
    """The published suites against the CUDA driver."""
    made = run.work / "test_resources_cuda.py"
    made.write_text(RESOURCES_ON_CUDA, encoding="utf-8")
    tests(run, step, [ROOT / "tests/contract/test_driver_cuda.py", made], only_backend=False)


def api(run: Run, step: Step) -> None:
    """The suites of the API, those tests that take a backend."""
    tests(run, step, [ROOT / "tests" / folder for folder in ("integration", "leaks", "property")], only_backend=True)


def truth(run: Run, step: Step) -> None:
    """What the emulator claims, said to this driver."""
    tests(run, step, [ROOT / "tests/contract/test_emulator_truth.py"], only_backend=False)


def memcheck(run: Run, step: Step) -> None:
    """Every verb once, under compute-sanitizer where there is one."""
    verbs = [sys.executable, __file__, "--child", "verbs"]
    tool = None if run.emulated else sanitizer()
    if tool is None:
        why = (
            "the driver is emulated"
            if run.emulated
            else "compute-sanitizer is not installed (PATH, /usr/local/cuda/bin)"
        )
        step.notes.append(f"no memcheck: {why}; the verbs were run without it")
        code, text = child(run, step, verbs, run.left(step.name))
    else:
        options = ["--tool", "memcheck", "--leak-check", "full", "--print-limit", "20", "--error-exitcode", "86"]
        code, text = child(run, step, [str(tool), *options, *verbs], run.left(step.name))
        if re.search(r"[Dd]evice (is )?not supported|LibraryNotLoaded", text):
            step.status = "skipped"
            step.notes += ["compute-sanitizer refuses this device", text[-LONGEST_TAIL:]]
            return
        summary = re.findall(r"(?:ERROR|LEAK) SUMMARY:.*", text)
        step.notes += summary or ["compute-sanitizer gave no summary"]
    finish(step, code, text)


def bandwidth(run: Run, step: Step) -> None:
    """Rates, against the peers and the limit."""
    target = run.work / "bandwidth.json"
    seconds = run.left(step.name)
    command = [sys.executable, str(ROOT / "benchmarks/bandwidth.py"), "--json", str(target)]
    command += ["--quick"] if run.quick or run.emulated else []
    code, text = child(run, step, [*command, "--budget", f"{max(5.0, seconds - 15):.0f}"], seconds)
    finish(step, code, text)
    if target.exists():
        step.data = json.loads(clean(target.read_text(encoding="utf-8")))
        cells = [cell for row in step.data["rows"] for cell in row["cells"].values()]
        step.counts = {"rows": len(step.data["rows"]), "cells": sum("median" in cell for cell in cells)}
        step.counts |= {"errors": sum("error" in cell for cell in cells), "rows left out": len(step.data["unfinished"])}


def overhead(run: Run, step: Step) -> None:
    """What devmem itself costs on this host, and on the device where the script offers that."""
    script, target = ROOT / "benchmarks/overhead.py", run.work / "overhead.json"
    if not script.exists():
        step.status, step.notes = "skipped", ["benchmarks/overhead.py is not there"]
        return
    code, text = child(run, step, [sys.executable, str(script), "--quick", "--json", str(target)], run.left(step.name))
    finish(step, code, text)
    if target.exists():
        step.data = json.loads(clean(target.read_text(encoding="utf-8")))
        rows = [row for section in step.data.get("sections", {}).values() for row in section]
        step.counts = {"rows": len(rows), "fall short": sum(row.get("verdict") == "FALLS SHORT" for row in rows)}
        if not any("cuda" in str(row.get("where", "")) for row in rows):
            step.notes.append("it has no rows on a real device; calls on the device are among the rates above")


STEPS: dict[str, Callable[[Run, Step], None]] = {
    "contract": contract,
    "api": api,
    "truth": truth,
    "memcheck": memcheck,
    "bandwidth": bandwidth,
    "overhead": overhead,
}
TITLES = {
    "contract": "The contract: drivers and memory resources",
    "api": "The API: integration, leaks, property",
    "truth": "What the emulator claims",
    "memcheck": "Every verb under compute-sanitizer memcheck",
    "bandwidth": "Rates against the peers and the limit",
    "overhead": "What devmem itself costs",
}


def sanitizer() -> Path | None:
    """compute-sanitizer, if it is anywhere that it usually is."""
    homes = [
        os.environ.get("CUDA_HOME"),
        "/usr/local/cuda",
        *sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True),
    ]
    found = shutil.which("compute-sanitizer")
    places = [Path(found)] if found else []
    places += [Path(home) / "bin/compute-sanitizer" for home in homes if home]
    return next((place for place in places if place.exists()), None)


def finish(step: Step, code: int | None, text: str) -> None:
    """The status of a step that is one command."""
    step.status = "unfinished" if code is None else "passed" if code == 0 else "failed"
    if code:
        step.failures.append({"id": step.name, "message": ended(code), "tail": clean(text)[-LONGEST_TAIL:]})
    if code is None:
        step.notes.append("its time was up")


def ended(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def child(run: Run, step: Step, command: list[str], seconds: float, **variables: str) -> tuple[int | None, str]:
    """Run a command in a process group of its own. Its exit code, None if its time was up, and all that it printed."""
    log = run.work / f"{step.name}.log"
    with log.open("ab") as out:
        begin = out.tell()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**run.env, **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it left behind
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    with log.open("rb") as written:
        written.seek(begin)
        return code, written.read().decode(errors="replace")


# -- tests -------------------------------------------------------------------------------------------------------------


def tests(run: Run, step: Step, paths: list[Path], *, only_backend: bool) -> None:
    """Run test files and folders under pytest, in as many processes as it takes, and count."""
    until = time.monotonic() + run.left(step.name)
    seen = Seen()
    endings = [pytest_to_the_end(run, step, seen, args, until, only_backend) for args in invocations(run, step, paths)]
    seen.into(step)
    step.notes += [each for each in endings if each]
    if not seen.outcomes and not seen.broken:
        step.status = "broken" if endings else "skipped"
    elif seen.bad():
        step.status = "failed"
    else:
        step.status = "unfinished" if any(endings) else "passed"


def pytest_to_the_end(run: Run, step: Step, seen: Seen, args: list[str], until: float, only_backend: bool) -> str:
    """One run of pytest, gone on with after whatever kills it. How it ended, if not well."""
    first = QUICK_TESTS if run.quick else 0
    settings = {"done": [], "first": first, "only_backend": only_backend, "patience": LAST_PATIENCE}
    told = ""
    for attempt in range(RESTARTS + 1):
        left = until - time.monotonic()
        if left < 2:
            return "its time was up"
        events = run.work / f"{step.name}-{len(list(run.work.glob('*.jsonl')))}.jsonl"
        settings["done"] = sorted(seen.started)
        asked = run.work / f"{step.name}.settings.json"
        asked.write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, __file__, "--child", "pytest", str(events), str(asked), *args]
        code, text = child(run, step, command, left)
        before = len(seen.started)
        finished = seen.take(events)
        if finished is not None and not seen.lost:
            return "" if finished in (0, 1, 5) else f"pytest ended with status {finished}: {clean(text)[-800:]}"
        if code is None:
            return f"its time was up{seen.cut()}"
        told = f"the process was lost {attempt + 1} times ({ended(code)}); the tests after that went on in another"
        last_words = max(text.rfind("Fatal Python error"), text.rfind("Timeout ("))
        hung = last_words >= 0 and text.startswith("Timeout (", last_words)
        how = f"hung, and was ended after {LAST_PATIENCE} seconds" if hung else ended(code)
        tail = clean(text[last_words:] if last_words >= 0 else text[-LONGEST_TAIL:])[:LONGEST_TAIL]
        seen.crash("the device was lost" if seen.lost else how, tail)
        if len(seen.started) == before:
            return f"pytest did not start ({ended(code)}): {clean(text)[-800:]}"
        seen.lost = False
        step.notes = [note for note in step.notes if not note.startswith("the process was lost")] + [told]
    return "given up: " + told


class Seen:
    """What the events of all processes of a step say."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.started: set[str] = set()
        self.running: str | None = None
        self.collected: set[str] = set()
        self.deselected: set[str] = set()
        self.broken: list[dict[str, str]] = []
        self.failures: dict[str, dict[str, str]] = {}
        self.skips: Counter[str] = Counter()
        self.lost = False

    def take(self, events: Path) -> int | None:
        """Add what one process wrote. The status it finished with, None if it did not."""
        finished = None
        for line in events.read_text(encoding="utf-8").splitlines() if events.exists() else []:
            with contextlib.suppress(ValueError):  # the last line may have been cut
                event = json.loads(line)
                if event["event"] == "finished":
                    finished = event["status"]
                else:
                    getattr(self, f"_{event['event']}")(event)
        return finished

    def crash(self, how: str, tail: str) -> None:
        """The test that was running, if any, has killed the process."""
        if self.running is not None:
            self.outcomes[self.running] = "crashed"
            self.failures[self.running] = {"id": clean(self.running), "message": how, "tail": tail}
        self.running = None

    def cut(self) -> str:
        """The test that was running when the time was up has shown nothing."""
        name, self.running = self.running, None
        if name is None:
            return ""
        if self.outcomes.get(name, "passed") == "passed":  # of its parts until now
            self.outcomes[name] = "cut off"
        return f" in {clean(name)}"

    def bad(self) -> bool:
        return bool(self.broken) or not {"failed", "error", "crashed"}.isdisjoint(self.outcomes.values())

    def into(self, step: Step) -> None:
        """Write the sums."""
        step.counts = dict(Counter(self.outcomes.values()))
        if self.broken:
            step.counts["files not collected"] = len(self.broken)
        if missing := len(self.collected - self.outcomes.keys()):
            step.counts["not run"] = missing
        if self.deselected:
            step.counts["left out"] = len(self.deselected)
        step.failures = self.broken + list(self.failures.values())
        for at, failure in enumerate(step.failures):
            if at >= MOST_TAILS:
                failure["tail"] = ""
        step.skips = dict(self.skips.most_common())

    def _collected(self, event: dict[str, Any]) -> None:
        self.collected.update(event["ids"])
        self.deselected.update(event["deselected"])

    def _not_collected(self, event: dict[str, Any]) -> None:
        if event["outcome"] == "skipped":
            self.skips[clean(event["text"])[-300:]] += 1
        elif event["id"] not in [each["id"] for each in self.broken]:
            self.broken.append({"id": clean(event["id"]), "message": "not collected", "tail": clean(event["text"])})

    def _started(self, event: dict[str, Any]) -> None:
        self.started.add(event["id"])
        self.running = event["id"]

    def _report(self, event: dict[str, Any]) -> None:
        name, outcome = event["id"], event["outcome"]
        if outcome in ("failed", "error") and name not in self.failures:
            self.failures[name] = {"id": clean(name), "message": clean(event["message"]), "tail": clean(event["text"])}
        if outcome == "skipped":
            self.skips[clean(event["text"])] += 1
        worse = ["passed", "xfailed", "skipped", "error", "failed"]
        known = self.outcomes.get(name, "passed")
        self.outcomes[name] = max(known, outcome, key=worse.index)
        if event["when"] == "teardown":
            self.running = None

    def _lost(self, event: dict[str, Any]) -> None:
        self.lost = True
        self.running = None


def invocations(run: Run, step: Step, paths: list[Path]) -> Iterator[list[str]]:
    """The arguments of each run of pytest: one, or where hypothesis is missing one for each folder with a conftest.py."""
    have = {name: importlib.util.find_spec(name) is not None for name in ("_hypothesis_pytestplugin", "pytest_timeout")}
    common = ["-c", str(settings_file(run, have["pytest_timeout"])), "--rootdir", str(ROOT), "--import-mode=importlib"]
    common += [
        "-q",
        "--tb=short",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        "-p",
        "devmem.testing.plugin",
    ]
    for name, there in have.items():
        common += ["-p", name] if there else []
    common += ["--devmem-backend", "cuda"]
    present = []
    for path in paths:
        if path.is_file() or (path.is_dir() and any(path.rglob("test_*.py"))):
            present.append(path)
        else:
            step.notes.append(f"{path.relative_to(ROOT)} has no tests")
    if have["_hypothesis_pytestplugin"]:
        if present:
            yield [*common, *map(str, present)]
        return
    # tests/conftest.py needs it for what it sets up, and nothing else there is needed here.
    for path in present:
        folder = path if path.is_dir() else path.parent
        needing = [each for each in folder.rglob("*.py") if needs_hypothesis(each)] if path.is_dir() else []
        if folder / "conftest.py" in needing:
            step.notes.append(f"{path.relative_to(ROOT)} left out: it needs hypothesis, which is not installed")
            continue
        for each in needing:
            step.notes.append(f"{each.relative_to(ROOT)} left out: it needs hypothesis, which is not installed")
        yield [*common, "--confcutdir", str(folder), *[f"--ignore={each}" for each in needing], str(path)]


def needs_hypothesis(path: Path) -> bool:
    """Whether a file imports it."""
    return re.search(r"^\s*(?:from|import) hypothesis", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def settings_file(run: Run, has_timeout: bool) -> Path:
    """The project's pytest settings, without what the plugins and the pytest of this machine may not know."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    markers = [
        *project.get("markers", []),
        *([] if has_timeout else ["timeout: not enforced, pytest-timeout is missing"]),
    ]
    # What a version of somebody's package has deprecated is no failure of ours; warnings that tell of our own faults are.
    later = [f"default::{kind}Warning" for kind in ("Deprecation", "PendingDeprecation", "Future")]
    lines = ["[pytest]", "xfail_strict = true", "addopts ="]
    lines += ["markers =", *[f"    {marker}" for marker in markers]]
    lines += ["filterwarnings =", *[f"    {each}" for each in [*project.get("filterwarnings", []), *later]]]
    lines += [f"timeout = {PATIENCE}"] if has_timeout else []
    path = run.work / "pytest.ini"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def child_pytest(events: str, settings: str, *args: str) -> int:
    """Run pytest, and write down what happens while it happens."""
    import pytest

    asked = json.loads(Path(settings).read_text(encoding="utf-8"))
    sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != Path(__file__).resolve().parent]
    with Path(events).open("w", encoding="utf-8") as out:
        return int(pytest.main(list(args), plugins=[recorder(out, asked)]))


def recorder(out: IO[str], asked: dict[str, Any]) -> object:
    """The pytest plugin that writes one line of JSON for everything that happens."""
    import pytest

    def tell(event: str, **what: Any) -> None:
        out.write(json.dumps({"event": event, **what}) + "\n")
        out.flush()

    class Recorder:
        def __init__(self) -> None:
            self.stderr = os.dup(2)  # pytest captures the one that everybody writes to
            self.session: Any = None
            self.held: Any = None

        def pytest_sessionstart(self, session: Any) -> None:
            self.session = session
            self.hold()

        def hold(self) -> None:
            # Making a context takes a good part of a second on a real device, and most tests open one anew.
            with contextlib.suppress(Exception):
                from cuda.bindings import driver as cu

                cu.cuInit(0)
                error, held = cu.cuDevicePrimaryCtxRetain(cu.cuDeviceGet(0)[1])
                self.held = None if error else held

        def let_go(self) -> None:
            if self.held is not None:
                from cuda.bindings import driver as cu

                cu.cuDevicePrimaryCtxRelease(cu.cuDeviceGet(0)[1])
                self.held = None

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
            done, first = set(asked["done"]), asked["first"]
            wanted = [item for item in items if not asked["only_backend"] or "devmem_backend" in item.fixturenames]
            wanted = wanted[:: max(1, len(wanted) // first)][:first] if first else wanted
            chosen = {item.nodeid for item in wanted}
            tell("collected", ids=list(chosen), deselected=[item.nodeid for item in items if item.nodeid not in chosen])
            items[:] = [item for item in wanted if item.nodeid not in done]

        def pytest_collectreport(self, report: Any) -> None:
            if report.outcome != "passed":
                text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                tell("not_collected", id=report.nodeid, outcome=report.outcome, text=text[-LONGEST_TAIL:])

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Any:
            tell("started", id=item.nodeid)
            alone = item.name.partition("[")[0] in SOLE_OWNERS
            if alone:
                self.let_go()
            faulthandler.dump_traceback_later(asked["patience"], exit=True, file=self.stderr)
            try:
                return (yield)
            finally:
                faulthandler.cancel_dump_traceback_later()
                if alone:
                    self.hold()

        def pytest_runtest_logreport(self, report: Any) -> None:
            outcome, text, message = report.outcome, "", ""
            if hasattr(report, "wasxfail"):
                outcome = "xfailed" if outcome == "skipped" else outcome
            elif outcome == "skipped":
                text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                text = text.removeprefix("Skipped: ")
            elif outcome == "failed":
                outcome = "failed" if report.when == "call" else "error"
                crash = getattr(report.longrepr, "reprcrash", None)
                message = str(crash.message).splitlines()[0] if crash and crash.message else ""
                text = report.longreprtext[-LONGEST_TAIL:]
            tell("report", id=report.nodeid, when=report.when, outcome=outcome, text=text, message=message)
            if report.failed and self.is_lost():
                tell("lost")
                self.session.shouldstop = "the device is lost for this process"

        def pytest_sessionfinish(self, exitstatus: int) -> None:
            tell("finished", status=int(exitstatus))

        def is_lost(self) -> bool:
            if self.held is None:
                return False
            from cuda.bindings import driver as cu

            _, current = cu.cuCtxGetCurrent()
            cu.cuCtxSetCurrent(self.held)
            (error,) = cu.cuStreamQuery(cu.CUstream(1))
            cu.cuCtxSetCurrent(current)
            return int(error) in STICKY

    return Recorder()


# -- every verb --------------------------------------------------------------------------------------------------------


def child_verbs() -> int:
    """Use every verb of the API once, on small arrays, and look at the results."""
    import numpy as np

    import devmem as dm

    dm.use_backend("cuda")
    a = np.arange(24, dtype=np.float32).reshape(4, 6)

    def equal(found: Any, wanted: Any) -> None:
        assert np.array_equal(np.asarray(found), np.asarray(wanted)), (found, wanted)

    d = dm.to_device(a)
    equal(d.copy_to_host(), a)
    out = np.zeros_like(a)
    equal(d.copy_to_host(out), a)
    d.copy_to_device(a + 1)
    equal(d.copy_to_host(), a + 1)
    dm.to_device(a, to=d)
    equal(d[1:3, ::2].copy_to_host(), a[1:3, ::2])
    equal(d.T.copy_to_host(), a.T)
    equal(d[::-1].copy_to_host(), a[::-1])
    d[1:3, ::2] = 7
    b = a.copy()
    b[1:3, ::2] = 7
    equal(d.copy_to_host(), b)
    equal(d.reshape(6, 4).ravel().copy_to_host(), b.ravel())
    equal(d.copy().copy_to_host(), b)
    equal(dm.to_device(a[:, ::2]).copy_to_host(), a[:, ::2])
    equal(dm.to_device(a.T).copy_to_host(), a.T)
    e = dm.device_array_like(a)
    e.copy_to_device(d)
    equal(e.copy_to_host(), b)
    e.fill(3)
    equal(e.copy_to_host(), np.full_like(a, 3))
    equal(dm.zeros(5, np.int16).copy_to_host(), np.zeros(5, np.int16))
    equal(dm.full(5, 2.5).copy_to_host(), np.full(5, 2.5))
    equal([part.copy_to_host().size for part in dm.to_device(np.arange(7)).split(3)], [3, 3, 1])
    assert dm.device_array((0, 3)).copy_to_host().shape == (0, 3)
    assert dm.to_device(np.float64(4.5)).item() == 4.5

    with dm.stream(non_blocking=True) as stream:
        p = dm.pinned_array_like(a)
        p[...] = a
        f = dm.to_device(p, stream)
        g = dm.device_array(a.shape, a.dtype, stream=stream)
        g.copy_to_device(f, stream)
        q = dm.pinned_array(a.shape, a.dtype)
        g.copy_to_host(q, stream)
        start, end = dm.event(), dm.event()
        start.record(stream)
        end.record(stream)
        stream.synchronize()
        equal(q, a)
        assert dm.event_elapsed_time(start, end) >= 0
        end.wait(dm.default_stream())
        assert stream.query()
    with dm.register(b), dm.pinned(out):
        equal(dm.to_device(b).copy_to_host(out), b)
    kinds = dm.current_device().info.memory_kinds
    if "mapped" in kinds:
        m = dm.mapped_array(16, np.float32)
        dm.as_device_array(m).fill(2)
        dm.synchronize()
        equal(m, np.full(16, 2, np.float32))
        del m
    if "managed" in kinds:
        n = dm.managed_array(16, np.float32)
        dm.as_device_array(n).fill(2)
        dm.synchronize()
        equal(n, np.full(16, 2, np.float32))
        del n
    with dm.use_memory(dm.memory.DriverMemory()):
        equal(dm.to_device(a).copy_to_host(), a)
    with dm.defer_cleanup():
        dm.to_device(a)
    for _ in range(100):
        dm.to_device(a)
    many, many_back = (getattr(dm, name, None) for name in ("to_device_many", "to_host_many"))
    if many is not None and many_back is not None:
        for found, wanted in zip(many_back(many([a, a + 1])), [a, a + 1], strict=True):
            equal(found, wanted)
    del d, e, f, g, p, q
    dm.trim()
    info = dm.memory_info()
    assert info.live == info.pending == 0, info
    dm.close()
    print("every verb did what it should")
    return 0


# -- writing it down ---------------------------------------------------------------------------------------------------


def describe(run: Run) -> dict[str, Any]:
    """Everything that the numbers depend on."""
    distributions = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    smi = {} if run.emulated else nvidia_smi()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "time": time.strftime("%H:%M:%S %z"),
        "emulated": run.emulated,
        "quick": run.quick,
        "device": run.facts,
        "driver": smi.get("driver_version", "emulated" if run.emulated else "unknown"),
        "nvidia_smi": smi,
        "devmem": {"version": source_version(), "commit": commit(), "sources_sha256": sources_hash()},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": dict(sorted(distributions.items(), key=lambda each: each[0].lower())),
        "host": host(),
    }


def source_version() -> str:
    """The version that the sources call themselves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def commit() -> str:
    """The git commit of the sources: from GIT_COMMIT, by git, or from its files; 'unknown' if nothing says it."""
    if told := os.environ.get("GIT_COMMIT"):
        return told
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = {"capture_output": True, "text": True, "timeout": 20, "check": True}
        found = subprocess.run([*git, "rev-parse", "HEAD"], **asked).stdout.strip()  # type: ignore[call-overload]
        changed = subprocess.run([*git, "status", "--porcelain"], **asked).stdout.strip()  # type: ignore[call-overload]
        return f"{found}, with uncommitted changes" if changed else str(found)
    with contextlib.suppress(OSError):
        return commit_by_hand(ROOT / ".git")
    return "unknown"


def commit_by_hand(folder: Path) -> str:
    """Where there is no git: HEAD, the branch that it names, or the list of packed branches."""
    if folder.is_file():  # a worktree says where its folder is
        folder = (ROOT / folder.read_text(encoding="utf-8").partition("gitdir:")[2].strip()).resolve()
    head = (folder / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head
    name = head.partition(":")[2].strip()
    common = folder
    if (folder / "commondir").exists():
        common = (folder / (folder / "commondir").read_text(encoding="utf-8").strip()).resolve()
    for place in (folder / name, common / name):
        if place.exists():
            return place.read_text(encoding="utf-8").strip()
    for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
        if line.endswith(f" {name}"):
            return line.split()[0]
    return "unknown"


def sources_hash() -> str:
    """What was tested, also where no commit says it: a hash over every source file of the package."""
    digest = hashlib.sha256()
    for path in sorted(each for each in (ROOT / "devmem").rglob("*") if each.suffix in (".py", ".c", ".h")):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def host() -> dict[str, Any]:
    """The host's processor, memory and system, without its name."""
    found: dict[str, Any] = {"machine": platform.machine(), "kernel": platform.release(), "cpus": os.cpu_count()}
    with contextlib.suppress(OSError, AttributeError):
        found["cpus_usable"] = len(os.sched_getaffinity(0))
    wanted = {
        "cpu": ("/proc/cpuinfo", r"^model name\s*:\s*(.+)$"),
        "memory": ("/proc/meminfo", r"^MemTotal:\s*(.+)$"),
        "huge_pages": ("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"),
        "numa_nodes": ("/sys/devices/system/node/online", r"(.+)"),
    }
    for name, (path, pattern) in wanted.items():
        with contextlib.suppress(OSError):
            if match := re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE):
                found[name] = match[1]
    found["libc"] = " ".join(platform.libc_ver())
    return found


def out_folder() -> list[Path]:
    """Where the files are wanted too."""
    return [Path(os.environ["OUT"])] if os.environ.get("OUT") else []


def free_name(folders: list[Path], about: dict[str, Any]) -> str:
    """The name of the files without suffix; an earlier run of the day keeps its own."""
    device = "emulated" if about["emulated"] else re.sub(r"[^a-z0-9]+", "-", about["device"]["name"].lower()).strip("-")
    stem = f"cuda-{device}-{about['date']}"
    names = [stem, *(f"{stem}-{n}" for n in range(2, 1000))]
    return next(name for name in names if not any((folder / f"{name}.json").exists() for folder in folders))


def write(run: Run, about: dict[str, Any], folder: Path, stem: str) -> None:
    """Both files, whole or not at all; where they are wanted elsewhere too, with the output of every step."""
    texts = {
        f"{stem}.json": json.dumps({**about, "steps": [asdict(step) for step in run.steps]}, indent=1) + "\n",
        f"{stem}.md": markdown(run, about),
    }
    for place in [folder, *out_folder()]:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            beside = place / f"{name}.part"
            beside.write_text(text, encoding="utf-8")
            beside.replace(place / name)
    for place in out_folder():
        with (place / f"{stem}.log").open("w", encoding="utf-8") as log:
            for step in run.steps:
                path = run.work / f"{step.name}.log"
                text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
                log.write(f"===== {step.name}\n{text[-2_000_000:]}\n")


def markdown(run: Run, about: dict[str, Any]) -> str:
    """The same for people."""
    device, version = about["device"], about["devmem"]
    key: tuple[str, ...] = (
        "cuda-bindings",
        "cuda-core",
        "numba-cuda",
        "numba",
        "cupy-cuda13x",
        "cupy-cuda12x",
        "torch",
        "numpy",
        "pluggy",
    )
    key += ("pytest", "pytest-timeout", "hypothesis")
    versions = {name.lower(): each for name, each in about["packages"].items()}
    emulated = "**EMULATED: no GPU was there. This shows that the script runs, and nothing else.**"
    lines = [f"# {'Emulated CUDA driver' if about['emulated'] else device['name']}, {about['date']}", ""]
    lines += [emulated, ""] if about["emulated"] else []
    lines += ["Quick: a few tests of each kind, tiny sizes.", ""] if about["quick"] else []
    host_facts = about["host"]
    table = {
        "device": f"{device['name']}, compute capability {device['compute_capability']}, "
        f"{device['memory_bytes'] / 2**30:.1f} GiB, {device['devices']} visible",
        "driver": f"{about['driver']}, for CUDA {device['cuda_of_driver']}",
        "bus": ", ".join(f"{name} {value}" for name, value in about["nvidia_smi"].items() if "pcie" in name)
        or "unknown",
        "devmem": f"{version['version']}, commit {version['commit']}, sources {version['sources_sha256'][:16]}",
        "Python": f"{about['python']}: " + ", ".join(f"{name} {versions[name]}" for name in key if name in versions),
        "host": ", ".join(f"{name} {value}" for name, value in host_facts.items()),
    }
    lines += ["| | |", "|---|---|", *[f"| {name} | {value} |" for name, value in table.items()]]
    lines += ["", "| step | | | seconds |", "|---|---|---|---|"]
    lines += [
        f"| {s.title} | {s.status.upper() if s.status != 'passed' else s.status} | {counted(s)} | {s.seconds:g} |"
        for s in run.steps
    ]
    for step in run.steps:
        lines += details(step)
    return "\n".join(lines) + "\n"


def details(step: Step) -> list[str]:
    """What one step has to tell beyond its line."""
    lines: list[str] = []
    if step.notes or step.failures or step.skips or step.data:
        lines += ["", f"## {step.title}", "", *[f"- {' '.join(note.split())}" for note in step.notes]]
    if step.skips:
        lines += [
            "",
            "Skipped:",
            "",
            *[f"- {count} x {' '.join(reason.split())}" for reason, count in step.skips.items()],
        ]
    for failure in step.failures:
        lines += ["", f"**{failure['id']}**: {failure['message']}"]
        if failure["tail"]:
            lines += ["", "```", failure["tail"].replace("```", "'''")[-1500:], "```"]
    if step.data and step.name == "bandwidth":
        import bandwidth as rates

        lines += ["", rates.markdown(step.data)]
    if step.data and step.name == "overhead":
        lines += ["", "| | where | | | |", "|---|---|---|---|---|"]
        for section in step.data.get("sections", {}).values():
            for row in section:
                if not row["verdict"] and "cuda" not in str(row["where"]):
                    continue
                value = "-" if row["value"] is None else f"{row['value']:.4g}"
                told = [row["what"], row["where"], f"{value} {row['unit']}", row["verdict"], row["detail"]]
                lines.append("| " + " | ".join(str(each).replace("|", "/") for each in told) + " |")
    return lines


def counted(step: Step) -> str:
    """Its counts in one line."""
    return ", ".join(f"{count} {what}" for what, count in step.counts.items()) or "-"


def clean(text: str) -> str:
    """Without the folders of this machine, which are nobody's business."""
    text = re.sub(r"[^\s'\"]*gpu-check-\w+/", "", text)
    text = (
        f"test_resources_cuda.py{text}" if text.startswith("::") else text
    )  # outside the sources, pytest names no file
    for path, name in ((ROOT, "."), (Path(sys.prefix), "<python>"), (Path.home(), "~")):
        if len(str(path)) > 1:
            text = text.replace(f"{path}/", f"{name}/")
    return text.replace("./devmem", "devmem").replace("./tests", "tests")


def shown_path(path: Path) -> str:
    """As one would type it in the sources' folder."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


CHILDREN: dict[str, Callable[..., int]] = {"facts": child_facts, "pytest": child_pytest, "verbs": child_verbs}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(CHILDREN[sys.argv[2]](*sys.argv[3:]))
    sys.exit(main())
