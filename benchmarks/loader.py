"""How much of copy and compute `prefetch` hides, and how fast a .safetensors file is loaded, in one run on one backend.

    DEVMEM_BACKEND=host python benchmarks/loader.py                     measure, show, judge (exit status 1: falls short)
    python benchmarks/loader.py --quick                                 fewer batches and rounds, a small model
    python benchmarks/loader.py --json FILE --markdown FILE

Batches: the plain loop uploads a pageable batch by `to_device` and then computes; `prefetch` at depth 2 uploads the next ones
meanwhile. The compute is a fixed delay of 20 ms that the stream is held for; each step waits for it, as a loop does that reads
a result. Each step is timed; a way takes the lower quartile of its first steps and, for all others, that of the others. Hidden
is (plain loop - prefetch) / (batches x the smaller of copy and compute): 1 would be all of it, of which the first batch, which
nothing can hide, is a part. Loading: `devmem.load` of a model in the page cache, against safetensors' loader for
PyTorch followed by `pin_memory()`, or, where PyTorch is not installed or has no device to lock pages for, its loader for NumPy
followed by a copy of each array into new page-locked memory; the clock stops while all arrays are there, and the value is of
the least time of each. Ways take turns in every round; quartile and least, as other load of the machine only adds. Many arrays:
with the compiled core and, in a process of its own, without it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from table import Row, line, markdown

import devmem as dm
from devmem import _native
from devmem.spi.driver import SupportsHold
from devmem.testing.stream_hold import entered

MIB = 1 << 20
#: Seconds of compute in each step.
COMPUTE = 0.020
#: How much is to be hidden, and how fast a model is to be loaded.
HIDDEN, LOADED = 0.9, 1.0

Batch = npt.NDArray[np.uint8]


def compute(stream: dm.Stream) -> None:
    """Twenty milliseconds on the stream, behind what is on it, waited for."""
    stream.synchronize()
    with entered(dm.current_device().driver()) as driver:
        held = cast(SupportsHold, driver).hold(stream.handle)  # no StreamHold: that starts a thread
        time.sleep(COMPUTE)
        cast(SupportsHold, driver).release(held)
    stream.synchronize()


def timed(work: Callable[[], object]) -> float:
    """Seconds of a call and of all that it enqueued; what it returns is dropped after that."""
    start = perf_counter()
    result = work()
    dm.synchronize()
    seconds = perf_counter() - start
    del result
    return seconds


def quartile(found: list[float]) -> float:
    """The lower quartile: other load of the machine only adds, and hits some steps."""
    return sorted(found)[len(found) // 4]


def batches(nbytes: int, count: int, rounds: int) -> Row:
    """One size of batches."""
    hosts = [np.full(nbytes, number, np.uint8) for number in range(4)]
    stream = dm.Stream()

    def each() -> Iterator[Batch]:
        return (hosts[number % len(hosts)] for number in range(count))

    def plain() -> Iterator[object]:
        for host in each():
            array = dm.to_device(host, stream)
            compute(stream)
            yield array

    def ahead() -> Iterator[object]:
        with dm.prefetch(each(), 2, stream=stream) as found:
            for array in found:
                compute(stream)
                yield array

    def copies() -> Iterator[object]:
        for host in each():
            array = dm.to_device(host, stream)
            stream.synchronize()
            yield array

    def computes() -> Iterator[object]:
        for _ in range(count):
            compute(stream)
            yield None

    ways = {"plain": plain, "prefetch": ahead, "copy": copies, "compute": computes}
    first: dict[str, list[float]] = {name: [] for name in ways}
    later: dict[str, list[float]] = {name: [] for name in ways}
    for number, (name, way) in product(range(rounds + 1), ways.items()):
        steps, start = [], perf_counter()
        for _ in way():
            now = perf_counter()
            steps.append(now - start)
            start = now
        dm.synchronize()
        if number:  # the first round makes slots and pages
            first[name].append(steps[0])
            later[name] += steps[1:]
    seconds = {name: quartile(first[name]) + (count - 1) * quartile(later[name]) for name in ways}
    hidden = (seconds["plain"] - seconds["prefetch"]) / min(seconds["copy"], seconds["compute"])
    detail = ", ".join(f"{name} {each / count * 1e3:.1f} ms" for name, each in seconds.items()) + " each"
    row = Row(f"batches of {nbytes // MIB} MiB, {count} of them", backend(), hidden, "x", detail, numbers=seconds)
    return row.judged_at_least(HIDDEN, f"{HIDDEN}")


def model(nbytes: int, rounds: int) -> Row:
    """Loading a model: large arrays for nine tenths of its bytes, and many small ones."""
    import safetensors.numpy

    large = {f"layer.{n}.weight": np.full(4 * MIB, n % 251, np.uint8).view("f4") for n in range(nbytes // (4 * MIB))}
    small = {f"layer.{n}.bias": np.full(2500, n, "f4") for n in range(nbytes // 100_000)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        safetensors.numpy.save_file(large | small, path)
        size = path.stat().st_size
        del large, small

        def ours() -> object:
            return dm.load(path)

        library, theirs = their_loader(path)
        times: dict[str, list[float]] = {"devmem": [], "safetensors": []}
        for _ in range(rounds + 1):
            for name, way in {"devmem": ours, "safetensors": theirs}.items():
                times[name].append(timed(way))
                dm.trim()
    least = {name: min(found[1:]) for name, found in times.items()}
    ratio = least["safetensors"] / least["devmem"]
    detail = ", ".join(f"{name} {seconds:.3f} s, {size / seconds / 1e9:.2f} GB/s" for name, seconds in least.items())
    detail += f"; safetensors for {library}"
    row = Row(f"a model of {size // MIB} MiB, by name", backend(), ratio, "x", detail, numbers=least)
    return row.judged_at_least(LOADED, f"{LOADED} x safetensors' own loader into page-locked memory")


def their_loader(path: Path) -> tuple[str, Callable[[], object]]:
    """The format's own way to page-locked memory, and the library that it is for."""
    import safetensors.numpy

    def locked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        made: npt.NDArray[Any] = dm.pinned_array(array.shape, array.dtype)
        made[...] = array
        return made

    with suppress(ImportError, RuntimeError):  # RuntimeError: PyTorch locks pages only where it has a device
        import safetensors.torch
        import torch

        torch.empty(1).pin_memory()
        load = safetensors.torch.load_file
        return "PyTorch", lambda: {name: each.pin_memory() for name, each in load(path, device="cpu").items()}
    return "NumPy", lambda: {name: locked(array) for name, array in safetensors.numpy.load_file(path).items()}


def many(rounds: int) -> list[Row]:
    """500 arrays of 10 KB, uploaded one by one and together."""
    hosts = [np.full(10_000, n % 251, np.uint8) for n in range(500)]

    def loop() -> None:
        [dm.to_device(host) for host in hosts]

    def together() -> None:
        dm.to_device_many(hosts)

    first = timed(together)
    times: dict[str, list[float]] = {"loop": [], "together": []}
    for _ in range(rounds * 10):
        for name, way in {"loop": loop, "together": together}.items():
            times[name] += [timed(way) for _ in range(5)]
    least = {name: min(found) for name, found in times.items()}
    detail = f"loop {least['loop'] * 1e3:.2f} ms, together {least['together'] * 1e3:.2f} ms"
    core = "DEVMEM_NATIVE=0" if _native.core is None else "compiled core"
    ratio = Row(
        f"to_device_many of 500 arrays of 10 KB, {core}", backend(), least["loop"] / least["together"], "x", detail
    )
    told = Row("  its first call, on an open device", backend(), first * 1e3, "ms")
    limit = 3.0 if _native.core is None else 1.0
    return [ratio.judged_at_least(limit, f"{limit} x the loop"), told]


def many_in_python(rounds: int) -> list[Row]:
    """The same in a process without the compiled core."""
    code = f"import json, loader; print(json.dumps([vars(row) for row in loader.many({rounds})]))"
    environment = {**os.environ, "DEVMEM_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, check=True, stdout=subprocess.PIPE
    )
    return [Row(**each) for each in json.loads(done.stdout)]


def backend() -> str:
    """The backend that is measured."""
    return dm.current_device().backend


def main() -> int:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer batches and rounds, a small model")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args()
    count, rounds = (12, 1) if options.quick else (30, 6)
    sections = {
        "Batches": [batches(nbytes * MIB, count, rounds) for nbytes in ((16,) if options.quick else (16, 32))],
        "Files": [model((64 if options.quick else 256) * MIB, rounds)],
        "Many arrays": [*many(rounds), *many_in_python(rounds)],
    }
    for rows in sections.values():
        for row in rows:
            print(line(row))
    about = {
        "when": time.strftime("%Y-%m-%d"),
        "devmem": dm.__version__,
        "device": f"{dm.current_device()}, {dm.current_device().name}",
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "load while it was measured": f"{os.getloadavg()[0]:.1f} processes that wanted to run, its own among them",
        "priority": f"nice {os.nice(0)}",
        "versions": f"Python {platform.python_version()}, NumPy {np.__version__}",
    }
    if options.json:
        found = {section: [vars(row) for row in rows] for section, rows in sections.items()}
        options.json.write_text(json.dumps({"about": about, "sections": found}, indent=1) + "\n")
    if options.markdown:
        notes = [" ".join((__doc__ or "").split("\n\n", 2)[2].split())]
        options.markdown.write_text(markdown("Loading data", about, notes, sections))
    return int(any(row.verdict == "FALLS SHORT" for rows in sections.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
