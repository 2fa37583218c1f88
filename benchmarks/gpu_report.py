"""The program behind ``scripts/gpu-check``: runs tests and benchmarks on a GPU, and writes a report in JSON and Markdown.

Each step runs in a process of its own and has a share of the time; later steps get the time that it does not use. The results
of a step that is interrupted, hangs or crashes are kept, and the tests after the one that killed the process run in a new one.
The report is rewritten after each step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpucheck.about import describe
from gpucheck.device import ask_device, child_environment, child_facts, refused
from gpucheck.every_verb import child_verbs
from gpucheck.process import child, finish
from gpucheck.recorder import child_pytest
from gpucheck.report import counted, free_name, markdown, out_folder, shown_path, write
from gpucheck.step import LONGEST_TAIL, ROOT, SCRIPT, SHARES, TOTAL, Run, Step, clean
from gpucheck.suites import tests
from gpucheck.vendors import VENDORS, Vendor

RESULTS = ROOT / "benchmarks" / "results"
#: Tests with other libraries, each in a process of its own, so that the report shows which ones are not installed.
PEERS = [
    ROOT / "tests" / name
    for name in ("integration/adapters/test_gpu.py", "integration/adapters/test_peers.py", "peers/test_gpu.py")
]

#: Tests of launching, on every device: what is launched there, and what becomes of its arguments.
KERNELS = [ROOT / "tests/integration/every_backend/kernels"]


def main() -> int:
    """Run the selected steps, and write the report."""
    parser = argparse.ArgumentParser(
        prog="gpu-check", description="Run devmem's tests and benchmarks on the GPU of this machine."
    )
    parser.add_argument("--backend", choices=list(VENDORS), help="default: the first whose GPU can be used")
    parser.add_argument("--emulated", action="store_true", help="use the emulated driver; every result is marked")
    parser.add_argument("--quick", action="store_true", help="a few tests of each kind, tiny sizes")
    parser.add_argument(
        "--only", nargs="+", choices=list(SHARES), default=list(SHARES), metavar="STEP", help=", ".join(SHARES)
    )
    parser.add_argument("--seconds", type=float, default=TOTAL, help=f"time limit (default: {TOTAL:.0f})")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: benchmarks/results")
    options = parser.parse_args()
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    vendor, env, facts = find_device(options.backend, options.emulated)
    if (refusal := refused(facts, options.emulated, vendor)) is not None:
        shutil.rmtree(work, ignore_errors=True)
        print(f"gpu-check: {refusal}", file=sys.stderr)
        return 2
    chosen = [name for name in SHARES if name in options.only]
    run = Run(options.emulated, options.quick, work, env, facts, began + options.seconds, chosen, vendor)
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
    print(f"gpu-check: {about['seconds']} s; " + (f"NOT PASSED: {', '.join(wrong)}" if wrong else "all is well"))
    print(f"gpu-check: results in {shown_path(options.results / stem)}.json and .md")
    shutil.rmtree(work, ignore_errors=True)
    return 1 if wrong else 0


def find_device(wanted: str | None, emulated: bool) -> tuple[Vendor, dict[str, str], dict[str, Any]]:
    """The selected vendor, else the first with a usable GPU, else the first; and the facts that its driver reports."""
    tried = []
    for vendor in [VENDORS[wanted]] if wanted else VENDORS.values():
        env = child_environment(emulated, vendor.backend)
        tried.append((vendor, env, ask_device(env)))
        if "error" not in tried[-1][2]:
            return tried[-1]
    vendor, env, facts = tried[0]
    others = [f"no {other.gpu} either: {found['error']}" for other, _, found in tried[1:]]
    return vendor, env, {"error": "; ".join([facts["error"], *others])}


def contract(run: Run, step: Step) -> None:
    """The conformance suites on the driver."""
    made = run.work / "test_resources.py"
    made.write_text(run.vendor.resources(), encoding="utf-8")
    tests(run, step, [ROOT / run.vendor.suite, made], only_backend=False)


def api(run: Run, step: Step) -> None:
    """The API tests that take a backend."""
    folders = [ROOT / "tests" / folder for folder in ("integration", "leaks", "property")]
    tests(run, step, folders, only_backend=True, without=[*PEERS, *KERNELS])


def kernels(run: Run, step: Step) -> None:
    """Run well-known kernels and compare their results, run the launch tests, and time a launch."""
    tests(run, step, KERNELS, only_backend=True)
    if run.vendor.backend != "cuda":
        step.notes.append("launches are not timed: there is no library to compare with")
        return
    status, target = step.status, run.work / "launch.json"
    command = [sys.executable, str(ROOT / "benchmarks/launch.py"), "--json", str(target)]
    command += ["--quick"] if run.quick or run.emulated else []
    command += [] if run.emulated else ["--on-device"]
    code, text = child(run, step, command, run.left(step.name))
    finish(step, code, text)
    step.status = status if status != "passed" else step.status
    if target.exists():
        step.data = json.loads(clean(target.read_text(encoding="utf-8")))
        judged = [row for section in step.data["sections"].values() for row in section if row["target"]]
        said = {"PASS": "met", "FALLS SHORT": "falls short", "skipped": "not measured"}
        step.counts |= Counter(f"asked, {said[row['verdict']]}" for row in judged)


def allocators(run: Run, step: Step) -> None:
    """Allocators and arrays of RMM, CuPy, PyTorch, JAX, cuda.core and numba-cuda, if installed."""
    tests(run, step, PEERS, only_backend=False)


def truth(run: Run, step: Step) -> None:
    """The emulator's assumptions, tested on this driver."""
    tests(run, step, [ROOT / each for each in run.vendor.truth], only_backend=False)


def assumptions(run: Run, step: Step) -> None:
    """The rows of docs/reference/assumptions.md that only a device can answer; each is told by its name."""
    outcomes = tests(run, step, [ROOT / "tests" / "contract" / "assumptions"], only_backend=False)
    words = {"passed": "holds", "failed": "DOES NOT HOLD", "skipped": "was not asked"}
    step.notes += [f"{name.partition('::test_')[2]}: {words.get(how, how)}" for name, how in sorted(outcomes.items())]


def memcheck(run: Run, step: Step) -> None:
    """Every verb once, under compute-sanitizer if available."""
    verbs = [sys.executable, str(SCRIPT), "--child", "verbs"]
    tool = sanitizer() if run.vendor.sanitizer and not run.emulated else None
    if tool is None:
        why = (
            "the driver is emulated"
            if run.emulated
            else "compute-sanitizer is not installed (PATH, /usr/local/cuda/bin)"
            if run.vendor.sanitizer
            else f"there is no memory checker for an {run.vendor.gpu}"
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
    """Copy rates, against other libraries and the limit."""
    target = run.work / "bandwidth.json"
    seconds = run.left(step.name)
    command = [
        sys.executable,
        str(ROOT / "benchmarks/bandwidth.py"),
        "--backend",
        run.vendor.backend,
        "--json",
        str(target),
    ]
    command += ["--quick"] if run.quick or run.emulated else []
    code, text = child(run, step, [*command, "--budget", f"{max(5.0, seconds - 15):.0f}"], seconds)
    finish(step, code, text)
    if target.exists():
        step.data = json.loads(clean(target.read_text(encoding="utf-8")))
        cells = [cell for row in step.data["rows"] for cell in row["cells"].values()]
        step.counts = {"rows": len(step.data["rows"]), "cells": sum("median" in cell for cell in cells)}
        step.counts |= {"errors": sum("error" in cell for cell in cells), "rows left out": len(step.data["unfinished"])}
        step.counts |= Counter(f"asked, {each['verdict']}" for each in step.data.get("asked", []))


def overhead(run: Run, step: Step) -> None:
    """The overhead of devmem on this host, and on the device where the script supports that."""
    script, target = ROOT / "benchmarks/overhead.py", run.work / "overhead.json"
    if not script.exists():
        step.status, step.notes = "skipped", ["benchmarks/overhead.py is missing"]
        return
    code, text = child(run, step, [sys.executable, str(script), "--quick", "--json", str(target)], run.left(step.name))
    finish(step, code, text)
    if target.exists():
        step.data = json.loads(clean(target.read_text(encoding="utf-8")))
        rows = [row for section in step.data.get("sections", {}).values() for row in section]
        step.counts = {"rows": len(rows), "fall short": sum(row.get("verdict") == "FALLS SHORT" for row in rows)}
        if not any("cuda" in str(row.get("where", "")) for row in rows):
            step.notes.append(
                "this benchmark has no rows on a real device; the rates above include calls on the device"
            )


STEPS: dict[str, Callable[[Run, Step], None]] = {
    "contract": contract,
    "api": api,
    "truth": truth,
    "assumptions": assumptions,
    "kernels": kernels,
    "allocators": allocators,
    "memcheck": memcheck,
    "bandwidth": bandwidth,
    "overhead": overhead,
}
TITLES = {
    "contract": "The contract: drivers and memory resources",
    "api": "The API: integration, leaks, property",
    "truth": "The emulator's assumptions",
    "assumptions": "What is assumed of real drivers",
    "kernels": "Kernels: results, and launch times",
    "allocators": "Other libraries: allocators and arrays",
    "memcheck": "Every verb, under a memory checker if available",
    "bandwidth": "Copy rates against other libraries and the limit",
    "overhead": "devmem's overhead",
}


def sanitizer() -> Path | None:
    """The path of compute-sanitizer, from the usual places."""
    homes = [
        os.environ.get("CUDA_HOME"),
        "/usr/local/cuda",
        *sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True),
    ]
    found = shutil.which("compute-sanitizer")
    places = [Path(found)] if found else []
    places += [Path(home) / "bin/compute-sanitizer" for home in homes if home]
    return next((place for place in places if place.exists()), None)


CHILDREN: dict[str, Callable[..., int]] = {"facts": child_facts, "pytest": child_pytest, "verbs": child_verbs}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(CHILDREN[sys.argv[2]](*sys.argv[3:]))
    sys.exit(main())
