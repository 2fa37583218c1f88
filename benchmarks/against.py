#!/usr/bin/env python3
"""What each verb costs, next to an earlier commit: both take turns, in processes of their own.

    python benchmarks/against.py COMMIT [--backend cuda] [--rounds N] [--markdown FILE]

COMMIT's package is taken from the repository into a temporary folder. Each round runs both packages in fresh processes, one after
the other, over the host backend, not strict, or over the emulated CUDA driver in null mode, which does nothing, and each process
times every verb for a moment. The table has the least time of each package, and the median of the rounds' ratios: on a shared
machine only these are reliable. Without a GPU nothing here says how long the copies themselves take.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gpucheck.about import commit, host
from timing import interleaved

ROOT = Path(__file__).resolve().parents[1]
WHERE = {
    "host": "on the host backend, not strict",
    "cuda": "over the emulated CUDA driver in null mode, in which every call returns at once and does nothing",
}
#: Turns of each verb in a process, and the seconds of each.
TURNS, SECONDS = 9, 0.01


def verbs() -> dict[str, Callable[[], object]]:
    """The verbs, as users write them; each leaves nothing behind."""
    import devmem as dm

    data, out, pages = np.arange(16.0), np.empty(16), np.zeros(8192, np.uint8)
    array, other, stream, event = dm.to_device(data), dm.to_device(data), dm.stream(), dm.event()
    page_locked = dm.pinned_array(16, "f8")
    pool = dm.memory.PoolMemory()

    def from_pool() -> None:
        with dm.use_memory(pool):
            dm.device_array(16, "f8")

    def locked() -> None:
        with dm.pinned(pages):
            pass

    def on_stream() -> None:
        array.copy_to_device(page_locked, stream=stream)
        stream.synchronize()

    return {
        "to_device, dropped": lambda: dm.to_device(data),
        "to_device, freed": lambda: dm.to_device(data).free(),
        "device_array, dropped": lambda: dm.device_array(16, "f8"),
        "device_array, freed": lambda: dm.device_array(16, "f8").free(),
        "device_array from a pool, dropped": from_pool,
        "copy_to_host(out)": lambda: array.copy_to_host(out),
        "copy_to_device(host)": lambda: array.copy_to_device(data),
        "copy_to_device(device)": lambda: array.copy_to_device(other),
        "copy_to_device(page-locked), on a stream, and the wait": on_stream,
        "fill": lambda: array.fill(0),
        "a view": lambda: array[3:9],
        "stream(), dropped": dm.stream,
        "event.record(stream)": lambda: event.record(stream),
        "pinned(array)": locked,
        "pinned_array, dropped": lambda: dm.pinned_array(16, "f8"),
        "copy_async, waited for": lambda: dm.copy_async(array).wait(),
        "to_device_many of 8": lambda: dm.to_device_many([data] * 8),
        "memory_info": dm.memory_info,
        "trim": dm.trim,
    }


def variables(backend: str) -> dict[str, str]:
    """What a process needs, to run on a backend that costs little besides what devmem does."""
    if backend == "host":
        return {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_STRICT": "0"}
    from devmem.testing import emulator

    return {**emulator.environment(backend), "DEVMEM_BACKEND": backend, "DEVMEM_EMULATOR_MODE": "null"}


def timed(package: Path, chosen: dict[str, str]) -> dict[str, float]:
    """Seconds of each verb with the package in a folder, in a process of its own."""
    environment = os.environ | chosen | {"PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, __file__, "--here"], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compile_core(native: Path) -> None:
    """Compile the core of a package taken from the repository, where it has one: the package here has its own compiled."""
    sys.path.insert(0, str(ROOT))
    import hatch_build

    if native.is_dir() and (failed := hatch_build.compile_core(native / "src", native / "core.abi3.so")):
        raise SystemExit(f"the earlier commit's core cannot be compiled: {failed}")


def main() -> int:
    """Time both packages in turns, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--backend", choices=WHERE, default="host")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--markdown", type=Path, help="a file for the table")
    parser.add_argument("--here", action="store_true", help="time the package that is imported, and print it as JSON")
    options = parser.parse_args()
    if options.here:
        known = verbs()
        for verb in known.values():
            verb()  # what a first call imports and makes is not of the verb
        times = interleaved(known, TURNS, SECONDS, lambda name: None)
        print(json.dumps({name: min(each) for name, each in times.items()}))
        return 0
    if options.commit is None:
        parser.error("name the commit to compare with")
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", options.commit, "devmem"], check=True, stdout=subprocess.PIPE
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        compile_core(Path(folder, "devmem", "_native"))
        chosen = variables(options.backend)
        rounds = [(timed(ROOT, chosen), timed(Path(folder), chosen)) for _ in range(options.rounds)]
    lines = [
        f"# Commit {commit()} next to {options.commit}",
        "",
        f"`benchmarks/against.py`, {options.rounds} rounds, on {host().get('cpu')}, {host()['cpus']} processors. "
        f"Microseconds {WHERE[options.backend]}: the least of all rounds. "
        "The ratio is the median of the rounds' ratios, with the least and the most.",
        "",
        "| verb | before | now | now / before | |",
        "|---|---:|---:|---:|---|",
    ]
    for name in rounds[0][0]:
        now, before = zip(*((new[name], old[name]) for new, old in rounds), strict=True)
        ratios = [new / old for new, old in zip(now, before, strict=True)]
        lines.append(
            f"| {name} | {min(before) * 1e6:.2f} | {min(now) * 1e6:.2f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if options.markdown:
        options.markdown.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
