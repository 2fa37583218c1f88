#!/usr/bin/env python3
"""devmem's overhead: over the host backend, over a driver that does nothing, and next to other libraries on CUDA and ROCm.

    python benchmarks/overhead.py [--quick] [--only host|cuda|rocm|recording] [--json FILE] [--markdown FILE]

Prints a table, and writes it as JSON. The sections on CUDA and ROCm need no GPU: they run in child processes over emulated
drivers, in which every call returns at once and does nothing. They need a C compiler. The CUDA section needs cuda-bindings, and
measures numba-cuda and cuda.core if they are installed; the ROCm section measures hip-python if it is. Times are the minimum and
the median of many turns that the libraries take in each round; on a shared machine only the ratios are reliable. The exit code
tells whether it ran, not whether targets were met.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import emulated
import emulated_hip
import numpy as np
from gpucheck.about import commit, host
from live import FREED, MADE, bytes_per_array, cost_by_live, count_bytes
from null import CountingDriver
from table import FULL, QUICK, Effort, Row, line, markdown
from timing import interleaved, ratio, spread
from verbs import CASES, ELEMENTS, Place, verbs

import devmem as dm
from devmem import _native
from devmem.testing import NullBackend

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = ["host", "null"]
#: A cost counts as constant if it grows by at most this factor from the fewest live arrays to the most.
FLAT = 1.5
BYTES_PER_ARRAY = 600
IMPORT_SECONDS = 0.030
WHEEL_BYTES = 1_300_000
#: Arrays that are uploaded together, and bytes of each; how many times `numpy.concatenate` that may take, the frees included.
MANY, MANY_BYTES, CONCATENATIONS = 1000, 4 << 10, 2.5
#: How many dropped blocks are freed together, and seconds in which that happens a few times.
QUEUED, SECONDS_OF_MANY = 11, 0.03
#: Driver calls that one use of a verb may make, where there is a target. Each part (the use, the free) enters the device once.
ALLOWED_CALLS = {
    "to_device + free": {"alloc": 1, "copy": 1, "free": 1, "enter": 2},
    "to_device + free, stream": {"alloc": 1, "copy": 1, "free": 1, "enter": 2},
    "copy_to_host(out)": {"copy": 1, "enter": 1},
    "device_array + free": {"alloc": 1, "free": 1, "enter": 2},
}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds instead of minutes; fewer arrays, less precise"
    )
    parser.add_argument("--only", choices=["host", *ALONE], help="only the host sections, or only one other")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    for vendor in EMULATED_CHILDREN:
        parser.add_argument(vendor, nargs="+", help=argparse.SUPPRESS)  # rounds, seconds, most live arrays
    parser.add_argument("--count-bytes", nargs=2, metavar=("BACKEND", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", dm.DevmemWarning)
    for option, measure_child in EMULATED_CHILDREN.items():
        if asked := getattr(options, option[2:].replace("-", "_")):
            measure_child(int(asked[0]), *map(float, asked[1:]))
            return 0
    if options.count_bytes:
        backend, count = options.count_bytes
        with in_use(backend):
            print(json.dumps(count_bytes(int(count))))
        return 0
    effort = QUICK if options.quick else FULL
    sections: dict[str, list[Row]] = {}
    for section, measure in SECTIONS.items():
        if options.only and ALONE.get(options.only, section) != section:
            continue
        if options.only == "host" and section in ON_VENDORS.values():
            continue
        print(f"\n{section}", flush=True)
        rows = sections[section] = []
        for row in measure(effort):
            rows.append(row)
            print(line(row), flush=True)
    every = [row for rows in sections.values() for row in rows]
    short = [row for row in every if row.verdict == "FALLS SHORT"]
    met = sum(row.verdict == "PASS" for row in every)
    print(f"\n{met} targets met, {len(short)} missed" + "".join(f"\n  {row.what} {row.where}" for row in short))
    about = {"quick": options.quick, "elements": ELEMENTS, "core": _native.why, **machine()}
    if options.json:
        tables = {name: [asdict(row) for row in rows] for name, rows in sections.items()}
        text = json.dumps({"about": about, "sections": tables}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.markdown:
        notes = [note for section, note in NOTES.items() if section in sections] or [HOST_NOTE]
        options.markdown.write_text(markdown("devmem's overhead", about, notes, sections), encoding="utf-8")
    return 0


# -- microseconds per call ---------------------------------------------------------------------------------------------


def per_call(effort: Effort) -> Iterator[Row]:
    """Each verb, next to the driver calls that it makes and to other libraries."""
    for verb in verbs():
        running: dict[str, Callable[[], object]] = {}
        where: dict[str, tuple[str, str]] = {}
        for backend in BACKENDS:
            with in_use(backend):
                place = Place()
                for (library, name), case in CASES.items():
                    if name == verb:
                        running[f"{library}/{backend}"] = case(place)
                        where[f"{library}/{backend}"] = library, backend
        times = interleaved(running, effort.rounds, effort.seconds, before=partial(make_current, where))
        for backend in BACKENDS:
            here = {library: times[name] for name, (library, there) in where.items() if there == backend}
            yield verb_row(verb, backend, here)


def verb_row(verb: str, backend: str, times: Mapping[str, list[float]]) -> Row:
    """One verb on one backend, in microseconds, with the ratio to each other library."""
    spreads = {library: spread(found) for library, found in times.items()}
    numbers = {f"{lib} {key}": value * 1e6 for lib, found in spreads.items() for key, value in found._asdict().items()}
    detail = f"median {numbers['devmem median']:.2f}"
    for library in spreads:
        if library != "devmem":
            # Minimum times: an interruption by another process takes longer than all that is compared here.
            numbers[f"ratio to {library}"] = spreads["devmem"].least / spreads[library].least
            numbers[f"median ratio to {library}"] = ratio(times["devmem"], times[library])
            detail += f" · {library} {numbers[f'{library} least']:.2f}, ratio {numbers[f'ratio to {library}']:.1f}"
    if "driver" in spreads:
        numbers["own"] = numbers["devmem least"] - numbers["driver least"]
        detail += f" · devmem's own {numbers['own']:.2f}"
    return Row(verb, backend, numbers["devmem least"], "us", detail, numbers=numbers)


# -- driver calls per verb ---------------------------------------------------------------------------------------------


def driver_calls(effort: Effort) -> Iterator[Row]:
    """The driver calls of one use of each verb, and of the same operation with direct calls."""
    uses = 110  # a multiple of how many dropped arrays are freed at once
    with in_use("counting"):
        place = Place()
        for verb in verbs():
            counts = {}
            for library in ("devmem", "driver"):
                if case := CASES.get((library, verb)):
                    once = case(place)
                    dm.trim()
                    place.driver.calls.clear()
                    for _ in range(uses):
                        once()
                    counts[library] = {name: count / uses for name, count in place.driver.calls.items()}
                    del once
            ours = counts["devmem"]
            detail = ", ".join(f"{count:.3g} {name}" for name, count in ours.items()) or "none"
            if counts.get("driver", ours) != ours:
                detail += " · directly: " + ", ".join(f"{count:.3g} {name}" for name, count in counts["driver"].items())
            row = Row(verb, "counting", sum(ours.values()), "calls", detail, numbers=ours)
            if allowed := ALLOWED_CALLS.get(verb):
                kept = all(count <= allowed.get(name, 0) for name, count in ours.items())
                row.target = ", ".join(f"{count} {name}" for name, count in allowed.items())
                row.verdict = "PASS" if kept else "FALLS SHORT"
            yield row


# -- many live arrays --------------------------------------------------------------------------------------------------


def live_arrays(effort: Effort) -> Iterator[Row]:
    """The cost of the next array with few and with many live arrays."""
    for backend in BACKENDS:
        with in_use(backend):
            found = cost_by_live(effort.levels, max(10, effort.rounds))
        for what, by_level in found.items():
            few, most = effort.levels[0], effort.levels[-1]
            ratios = {level: times.median / by_level[few].median for level, times in by_level.items()}
            detail = " · ".join(
                f"{level:,}: {times.median * 1e6:.2f} us ({ratios[level]:.2f}x)" for level, times in by_level.items()
            )
            numbers = {
                f"{level} {key}": value * 1e6 for level, t in by_level.items() for key, value in t._asdict().items()
            }
            row = Row(f"{what}, {most:,} live", backend, ratios[most], "x", detail, numbers=numbers)
            yield row.judged(FLAT, f"{FLAT} x") if what in (MADE, FREED) else row


def memory(effort: Effort) -> Iterator[Row]:
    """Bytes of host memory per live array."""
    for backend in BACKENDS:
        found = bytes_per_array(backend, effort.arrays, Path(__file__), environment())
        for how, count in found.items():
            what = f"bytes for each of {effort.arrays:,} live arrays, {how}"
            yield Row(what, backend, count, "B", numbers=found).judged(BYTES_PER_ARRAY, f"{BYTES_PER_ARRAY} B")


def recording(effort: Effort) -> Iterator[Row]:
    """An allocation and its free over a pool, and what it adds to write down who asked for them."""
    with in_use("host"), tempfile.TemporaryDirectory() as folder:
        stacks = {
            "pool": "pool",
            "statistics": "statistics,pool",
            "lines of the program": "statistics:owners,pool",
            "log": f"log:{folder}/plain.log,pool",
            "log;frames=8": f"log:{folder}/frames.log;frames=8,pool",
        }
        running = dict.fromkeys(stacks, lambda: dm.device_array(ELEMENTS).free())
        times = interleaved(running, effort.rounds, effort.seconds, before=lambda name: dm.use_memory(stacks[name]))
        found = {name: spread(taken) for name, taken in times.items()}
        for name, taken in found.items():
            added = f"adds {(taken.least - found['pool'].least) * 1e6:.2f} us" if name != "pool" else ""
            detail = " · ".join(filter(None, [f"median {taken.median * 1e6:.2f}", added]))
            yield Row(f"device_array + free, {name}", "host", taken.least * 1e6, "us", detail)
        dm.close()  # the device's own stack again


def together(effort: Effort) -> Iterator[Row]:
    """Many small arrays uploaded by one call and dropped, next to the loop, and to joining them on the host alone.

    Each turn goes on until what it has dropped is freed, over and over, on pages that it has used before. The first call after a
    trim, to which the system has to give pages, is told.
    """
    sources = [np.full(MANY_BYTES // 8, float(at)) for at in range(MANY)]
    what = f"to_device_many of {MANY:,} x {MANY_BYTES >> 10} KiB, dropped"
    with in_use("host"):
        running: dict[str, Callable[[], object]] = {
            "together": lambda: dm.to_device_many(sources),
            "loop": lambda: [dm.to_device(each) for each in sources],
            "concatenate": lambda: np.concatenate(sources),
        }

        def used_before(name: str) -> None:
            dm.trim()
            for _ in range(2 * QUEUED):
                running[name]()

        again = interleaved(running, effort.rounds, SECONDS_OF_MANY, before=used_before)
        first = interleaved(running, effort.rounds, 0.0, before=lambda _: dm.trim())
    for how, times in ((what, again), (f"{what}, the first after a trim", first)):
        found = {name: spread(taken).least * 1e3 for name, taken in times.items()}
        detail = ", ".join(f"{name} {taken:.2f} ms" for name, taken in found.items())
        joined = found["together"] / found["concatenate"]
        row = Row(f"{how} / numpy.concatenate", "host", joined, "x", detail, numbers=found)
        yield row.judged(CONCATENATIONS, f"{CONCATENATIONS:g} x") if times is again else row
        yield Row(f"the loop / {how}", "host", found["loop"] / found["together"], "x").judged_at_least(1.0, "1 x")


# -- importing and shipping --------------------------------------------------------------------------------------------


def importing(effort: Effort) -> Iterator[Row]:
    """The time of ``import devmem`` after ``import numpy``, in fresh interpreters that take turns.

    The target applies to the time after ``import numpy`` in one interpreter. The time of each alone is shown too, but NumPy's
    import time varies by more than the difference.
    """
    clock = "import time; at = time.perf_counter; start = at(); {}; print(at() - start)"
    scripts = {
        "behind": "import numpy; " + clock.format("import devmem"),
        "numpy": clock.format("import numpy"),
        "both": clock.format("import devmem"),
    }
    times: dict[str, list[float]] = {name: [] for name in scripts}
    for turn in range(effort.imports + 1):
        for name, script in scripts.items():
            command = [sys.executable, "-c", script]
            run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
            if turn:  # the first run compiles, and fills the file cache
                times[name].append(float(run.stdout) * 1e3)
    found = {name: spread(taken) for name, taken in times.items()}
    for which in ("least", "median"):
        numbers = {name: getattr(taken, which) for name, taken in found.items()}
        detail = f"numpy alone {numbers['numpy']:.1f} ms, devmem alone {numbers['both']:.1f} ms"
        row = Row(f"import devmem after numpy, {which} of {effort.imports}", "", numbers["behind"], "ms", detail)
        row.numbers = numbers
        yield row.judged(IMPORT_SECONDS * 1e3, f"{IMPORT_SECONDS * 1e3:.0f} ms")


def wheel(effort: Effort) -> Iterator[Row]:
    """The installed size."""
    if importlib.util.find_spec("hatchling") is None or not (ROOT / "pyproject.toml").is_file():
        yield Row("wheel", "", None, "B", "not built: this needs the sources, and hatchling (pip install hatchling)")
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        [built] = Path(folder).glob("*.whl")
        size = built.stat().st_size
    yield Row("wheel", "", size, "B", built.name).judged(WHEEL_BYTES, f"{WHEEL_BYTES:,} B")


def on_cuda(effort: Effort) -> Iterator[Row]:
    """devmem, the bare bindings and other libraries on CUDA, without a GPU."""
    yield from emulated.rows(effort, Path(__file__), environment(), _versions)


def on_rocm(effort: Effort) -> Iterator[Row]:
    """On ROCm, without a GPU: devmem through each provider, and the bare calls."""
    yield from emulated_hip.rows(effort, Path(__file__), environment(), _versions)


ON_CUDA = "CUDA, over the emulated driver that does nothing"
ON_ROCM = "ROCm, over the emulated runtime that does nothing"
ON_VENDORS = {"cuda": ON_CUDA, "rocm": ON_ROCM}
RECORDING = "Recording allocations, over a pool: minimum of many turns"
ALONE = {**ON_VENDORS, "recording": RECORDING}
EMULATED_CHILDREN: dict[str, Callable[..., None]] = {
    "--emulated-child": emulated.child,
    "--emulated-hip-child": emulated_hip.child,
}
HOST_NOTE = "Measured on the host: no GPU, and no vendor's driver."
EMULATED_NOTE = (
    "The section on CUDA was measured over the emulated driver in null mode: every driver call returns at "
    "once and does nothing. No GPU was used: these are the costs of the libraries on the host, and say nothing about "
    "speed on a device. Targets apply to ratios of minimum times. The primary context is current, as other libraries leave "
    "it, except for 'none current', where devmem makes it current and restores the previous one. numba-cuda has no free "
    "and no close: it destroys dropped objects eleven at a time. cuda.core's copies are asynchronous, so the benchmark waits "
    "for its stream; its host array is wrapped beforehand."
)
HIP_NOTE = (
    "The section on ROCm was measured over the emulated HIP runtime in null mode, in one process for each provider. devmem "
    "uses its own pool there, the default on AMD; 'no pool' is plain hipMalloc, as in the bare calls. "
    "Targets compare each provider with the bare calls through the same."
)
NOTES = {ON_CUDA: EMULATED_NOTE, ON_ROCM: HIP_NOTE}
SECTIONS: dict[str, Callable[[Effort], Iterator[Row]]] = {
    f"One call at {ELEMENTS} elements: minimum of many turns": per_call,
    "Driver calls for one use": driver_calls,
    "Cost of one more array, by number of live arrays: medians": live_arrays,
    "Host memory of a live array": memory,
    RECORDING: recording,
    "Many arrays together": together,
    "Importing": importing,
    "Wheel": wheel,
    ON_CUDA: on_cuda,
    ON_ROCM: on_rocm,
}


# -- below -------------------------------------------------------------------------------------------------------------


def make_current(where: Mapping[str, tuple[str, str]], name: str) -> None:
    """Select the backend on which a function runs."""
    dm.use_backend(where[name][1])


@contextlib.contextmanager
def in_use(backend: str) -> Iterator[None]:
    """Make a backend current; the benchmark's own backends are registered at first use."""
    if backend in OWN and OWN[backend] not in _registered:
        _registered.append(OWN[backend])
        dm.register_backend(OWN[backend])
    with dm.use_backend(backend):
        yield


OWN = {"null": NullBackend("null"), "counting": NullBackend("counting", CountingDriver)}
_registered: list[NullBackend] = []
#: Versions of the other measured libraries, if installed.
_versions: dict[str, object] = {}


def environment() -> dict[str, str]:
    """The environment of a child process that imports the same devmem, and keeps the modules that it compiles."""
    paths = [str(Path(dm.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths)}


def machine() -> dict[str, object]:
    """Versions and machine of the measurement."""
    try:
        version = dm.__version__
    except ImportError:  # not installed: run from the sources
        version = "source tree"
    return {
        "devmem": version,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": np.__version__,
        **_versions,
        "commit": commit(),
        "cpu": host().get("cpu", "unknown"),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main())
