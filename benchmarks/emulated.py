"""devmem and its peers over the emulated CUDA driver in its null mode, where every driver call answers at once and does nothing.

Runs in a process of its own, which has that driver; `rows` starts it and `child` is what it does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from table import Effort, Row
from timing import interleaved, ratio, spread

import devmem as dm
from devmem.testing import emulator

WHERE = "emulated"
#: How often all take turns, in rounds of the effort: what is compared differs by less here than elsewhere.
TURNS = 3
#: Uses that are counted: a multiple of how many dropped things the libraries destroy in one go.
USES = 110

#: (verb, library, at most so many times what it takes)
AT_MOST = [("to_device + free", "bare", 2.5)]
#: (verb, library, at least so many times as fast)
AT_LEAST = [
    ("to_device + free", "numba-cuda", 20.0),
    ("copy_to_host(out)", "numba-cuda", 3.0),
    ("device_array + free", "numba-cuda", 6.0),
    ("d[3:9]", "numba-cuda", 6.0),
]
UPLOAD = "to_device alone"
#: Driver calls of an upload, by kind.
ALLOWED = {"allocation": 1, "copy": 1, "context query": 1}
QUERIES = ("cuCtxGetCurrent", "cuCtxGetDevice")


def rows(effort: Effort, script: Path, environment: Mapping[str, str], about: dict[str, object]) -> Iterator[Row]:
    """What the child measures, or every target with the reason why it is not measured."""
    try:
        lacking = unavailable()
        variables = {} if lacking else emulator.environment("cuda")
    except OSError as error:
        lacking = str(error).partition("\n")[0]
    if lacking:
        yield from (row.skipped(lacking) for row in targets({}))
        return
    told = {**environment, **variables, "DEVMEM_BACKEND": "cuda", "DEVMEM_EMULATOR_MODE": "null"}
    told.pop("NUMBA_ENABLE_CUDASIM", None)
    command = [sys.executable, str(script), "--emulated-child", str(effort.rounds * TURNS), str(effort.seconds)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=told)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        yield from (row.skipped(f"it ended: {last}") for row in targets({}))
        return
    found = json.loads(run.stdout.splitlines()[-1])
    about.update(found["versions"])
    yield from (Row(**row) for row in found["rows"])


def unavailable() -> str | None:
    """Why this cannot be measured, as far as it can be told without compiling."""
    if not sys.platform.startswith("linux"):
        return f"the emulated driver needs Linux; this is {sys.platform}"
    try:
        found = importlib.util.find_spec("cuda.bindings.driver")
    except ImportError:
        found = None
    return None if found else "cuda-bindings is not installed (pip install cuda-bindings)"


def child(rounds: int, seconds: float) -> None:
    """Measure in a process that has the emulated driver, and print JSON."""
    place, measured = _place()
    measured += [asdict(row) for row in _all_rows(place, rounds, seconds)]
    print(json.dumps({"versions": place.versions, "rows": measured}))


def _place():  # type: ignore[no-untyped-def]  # noqa: ANN202
    raise NotImplementedError
