#!/usr/bin/env python3
"""The time to launch a kernel with three device arrays, next to numba-cuda with its own and with foreign arrays.

    python benchmarks/launch.py [--quick] [--on-device] [--json FILE] [--markdown FILE]

Needs a GPU only with ``--on-device``: a child process runs everything over the emulated CUDA driver in null mode, where calls
return at once and a launch does nothing. That needs a C compiler, cuda-bindings, and numba-cuda with its compiler (``pip install
'devmem-arrays[cuda-kernels]'``). The libraries take turns within one run. Times are the minimum and the median of many turns. The
exit code tells whether it ran, not whether targets were met.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from emulated import unavailable
from overhead import environment, machine
from table import FULL, QUICK, Effort, Row, line, markdown
from timing import interleaved, ratio, spread

import devmem as dm
from devmem.testing import emulator

SECTION = "CUDA, over the emulated driver that does nothing"
SECTION_ON_DEVICE = "CUDA, on the device"
WHERE, ON_DEVICE = "emulated", "cuda"
ELEMENTS = 64
ARRAYS = 3
OURS, HELD, STREAM, LENT, HOST = (
    "its own arrays",
    "its own arrays, configured before",
    "its own arrays, on a stream",
    "arrays with a ready __cuda_array_interface__",
    "host arrays, copied there and back",
)
#: devmem takes at most this many times as long as numba-cuda, each with its own arrays.
AT_MOST = 1.3
#: numba-cuda with foreign arrays takes at least this many times as long as devmem with its own.
AT_LEAST = 4.0
#: Factor on the number of rounds.
TURNS = 2
NOTE_EMULATED = (
    "Measured over the emulated CUDA driver in null mode: every driver call returns at once, and a launch is only "
    "counted. No GPU was used."
)
NOTE = (
    "The kernel adds two arrays of 64 numbers, and is compiled before the timing starts. Targets apply to "
    "the minimum times; on a shared machine only the ratios are reliable. The foreign arrays are objects with a ready "
    "`__cuda_array_interface__`: numba-cuda trusts it, while devmem asks the driver for the memory's device and "
    "size, and keeps its owner alive until the launch has completed."
)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of half a minute; less precise")
    parser.add_argument("--on-device", action="store_true", help="launch on the GPU of this machine")
    parser.add_argument("--child", nargs=3, metavar=("ROUNDS", "SECONDS", "WHERE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        warnings.simplefilter("ignore")
        rounds, seconds, where = options.child
        child(int(rounds), float(seconds), where)
        return 0
    section = SECTION_ON_DEVICE if options.on_device else SECTION
    print(f"\n{section}", flush=True)
    versions: dict[str, object] = {}
    rows = list(measured(QUICK if options.quick else FULL, versions, options.on_device))
    for row in rows:
        print(line(row), flush=True)
    about = {"quick": options.quick, "elements": ELEMENTS, **machine(), **versions}
    if options.json:
        tables = {section: [asdict(row) for row in rows]}
        options.json.write_text(json.dumps({"about": about, "sections": tables}, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        notes = [NOTE] if options.on_device else [NOTE_EMULATED, NOTE]
        told = markdown("The cost of launching a kernel", about, notes, {section: rows})
        options.markdown.write_text(told, encoding="utf-8")
    return 0


def measured(effort: Effort, versions: dict[str, object], on_device: bool = False) -> Iterator[Row]:
    """The rows that the child measures, or the targets with the reason why they are not measured."""
    where = ON_DEVICE if on_device else WHERE
    told, lacking = there() if on_device else pretended()
    if not lacking:
        told.pop("NUMBA_ENABLE_CUDASIM", None)
        command = [sys.executable, __file__, "--child", str(effort.rounds * TURNS), str(effort.seconds), where]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=told)
        if not run.returncode:
            found = json.loads(run.stdout.splitlines()[-1])
            versions.update(found["versions"])
            yield from (Row(**row) for row in found["rows"])
            return
        lacking = f"the process failed: {(run.stderr.strip().splitlines() or [f'exit code {run.returncode}'])[-1]}"
    yield from (row.skipped(lacking) for row in targets({}, where))


def pretended() -> tuple[dict[str, str], str]:
    """The environment of a child over the emulated driver, or the reason why there is none."""
    try:
        lacking = there()[1] or unavailable()
        variables = {} if lacking else emulator.environment("cuda")
    except OSError as error:
        lacking, variables = str(error).partition("\n")[0], {}
    return {**environment(), **variables, "DEVMEM_BACKEND": "cuda", "DEVMEM_EMULATOR_MODE": "null"}, lacking or ""


def there() -> tuple[dict[str, str], str]:
    """The environment of a child on this machine's GPU; the child reports if there is no GPU."""
    lacking = "" if importlib.util.find_spec("numba_cuda") else "numba-cuda is not installed"
    return {**os.environ, "DEVMEM_BACKEND": "cuda"}, lacking


def targets(times: Mapping[str, Mapping[str, list[float]]], where: str = WHERE) -> list[Row]:
    """The rows with targets, from the times by kind of arguments and library; without times they have no values."""
    ours = times.get(OURS, {}).get("devmem")
    theirs = {what: found["numba-cuda"] for what, found in times.items() if "numba-cuda" in found}
    own = Row("three arrays of its own: devmem / numba-cuda", where, None, "x")
    if ours and OURS in theirs:
        own.value = spread(ours).least / spread(theirs[OURS]).least
        own.detail = f"median of the rounds {ratio(ours, theirs[OURS]):.2f}"
    foreign = Row("numba-cuda with foreign arrays / devmem with its own", where, None, "x")
    if ours and LENT in theirs:
        foreign.value = spread(theirs[LENT]).least / spread(ours).least
        foreign.detail = f"median of the rounds {ratio(theirs[LENT], ours):.2f}"
    return [own.judged(AT_MOST, f"{AT_MOST} x"), foreign.judged_at_least(AT_LEAST, f"{AT_LEAST:g} x")]


# -- in the child ------------------------------------------------------------------------------------------------------


def child(rounds: int, seconds: float, where: str) -> None:
    """Measure over the driver of this process, and print JSON."""
    functions = cases()
    found = interleaved(
        {f"{library}/{what}": call for (library, what), call in functions.items()},
        rounds,
        seconds,
        lambda name: dm.synchronize(),
    )
    times: dict[str, dict[str, list[float]]] = {}
    for library, what in functions:
        times.setdefault(what, {})[library] = found[f"{library}/{what}"]
    rows = [row_of(what, by_library, where) for what, by_library in times.items()] + targets(times, where)
    names = ("cuda-bindings", "cuda-core", "numba-cuda")
    versions = {name: importlib.metadata.version(name) for name in names}
    print(json.dumps({"rows": [asdict(row) for row in rows], "versions": versions}))


def row_of(what: str, times: Mapping[str, list[float]], where: str) -> Row:
    """The time of a launch with one kind of arguments, in microseconds."""
    numbers = {}
    for library, found in times.items():
        for key, value in spread(found)._asdict().items():
            numbers[f"{library} {key}"] = value * 1e6
    return Row(what, where, numbers.get("devmem least"), "us", numbers=numbers)


def cases() -> dict[tuple[str, str], Callable[[], object]]:
    """The timed functions, by library and kind of arguments; each has been called once."""
    from numba import cuda  # imported here because only the child needs it

    def add(a: Any, b: Any, out: Any) -> None:
        i = dm.grid(1)
        if i < out.size:
            out[i] = a[i] + b[i]

    ours, theirs = dm.kernel(add), cuda.jit(add)
    host = np.zeros(ELEMENTS, np.float32)
    mine = [dm.to_device(host) for _ in range(ARRAYS)]
    numbas = [cuda.to_device(host) for _ in range(ARRAYS)]
    lent = [Lent(array) for array in mine]
    hosts = [host.copy() for _ in range(ARRAYS)]
    stream, numba_stream = dm.stream(), cuda.stream()
    held, numba_held = ours[1, ELEMENTS], theirs[1, ELEMENTS]
    found: dict[tuple[str, str], Callable[[], object]] = {
        ("devmem", OURS): lambda: ours[1, ELEMENTS](*mine),
        ("numba-cuda", OURS): lambda: theirs[1, ELEMENTS](*numbas),
        ("devmem", HELD): lambda: held(*mine),
        ("numba-cuda", HELD): lambda: numba_held(*numbas),
        ("devmem", STREAM): lambda: ours[1, ELEMENTS, stream](*mine),
        ("numba-cuda", STREAM): lambda: theirs[1, ELEMENTS, numba_stream](*numbas),
        ("devmem", LENT): lambda: ours[1, ELEMENTS](*lent),
        ("numba-cuda", LENT): lambda: theirs[1, ELEMENTS](*lent),
        ("devmem", HOST): lambda: ours[1, ELEMENTS](*hosts),
        ("numba-cuda", HOST): lambda: theirs[1, ELEMENTS](*hosts),
    }
    for call in found.values():
        call()
    return found


class Lent:
    """A foreign array with a ready `__cuda_array_interface__`."""

    def __init__(self, array: dm.DeviceNDArray[Any]) -> None:
        self.array = array
        self.__cuda_array_interface__ = dict(array.__cuda_array_interface__)


if __name__ == "__main__":
    sys.exit(main())
