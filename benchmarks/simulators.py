"""Seven kernels in devmem's simulator, with ``DEVMEM_SIM=fast``, and in numba's own simulator, taking turns.

    python benchmarks/simulators.py [--quick] [--json FILE] [--markdown FILE]

Needs numba (and greenlet). A launch is timed until its results are complete, in a process whose ``NUMBA_ENABLE_CUDASIM`` is 1 for
numba's simulator alone; the processes take turns in each round, and the minimum of the rounds is shown. The results of all must
agree. The exact simulator should take at most as long as numba's; the fast one a hundredth of it, for the five kernels without
barriers; its others, which run from barrier to barrier, are shown. The seconds of compilation are told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from gpucheck.about import commit
from seven_kernels import MODULE, WITHOUT_BARRIERS, arguments
from table import Row, line, markdown

WAYS = ("exact", "fast", "numba")
#: The goal for compiled kernels: so many times faster than the exact simulator.
TIMES = 100
#: Launches that a round times together, so that a turn is long enough for the clock.
REPEATS = {"exact": 1, "fast": 20, "numba": 1}


def serve(way: str) -> None:
    """Answer each line of the standard input, a kernel's name, with the seconds of a launch and the result."""
    import seven_kernels

    cuda, given = seven_kernels.cuda, arguments()
    if way != "numba":
        cuda.simulator(mode=way)
    for name in map(str.strip, sys.stdin):
        grid, block, values = given[name]
        held = [cuda.to_device(each) if isinstance(each, np.ndarray) else each for each in values]
        launch = seven_kernels.KERNELS[name][grid, block]
        start = perf_counter()
        launch(*held)  # compiled and warm
        cuda.synchronize()
        first = perf_counter() - start
        start = perf_counter()
        for _ in range(REPEATS[way]):
            launch(*held)
        cuda.synchronize()
        seconds = (perf_counter() - start) / REPEATS[way]
        arrays = [each.copy_to_host().ravel().tolist() for each in held if hasattr(each, "copy_to_host")]
        print(json.dumps([seconds, first, arrays[-1]]), flush=True)


def started(way: str) -> subprocess.Popen[str]:
    """The process that runs the kernels one way."""
    environment = {**os.environ, "DEVMEM_BACKEND": "host", "NUMBA_ENABLE_CUDASIM": str(int(way == "numba"))}
    environment[MODULE] = "numba.cuda" if way == "numba" else "devmem"
    command = [sys.executable, __file__, "--serve", way]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def measured(rounds: int) -> list[Row]:
    """A row for each kernel and way."""
    servers = {way: started(way) for way in WAYS}
    times: dict[tuple[str, str], list[float]] = {}
    firsts: dict[tuple[str, str], float] = {}
    results: dict[tuple[str, str], Any] = {}
    for _ in range(rounds):
        for name in arguments():
            for way, server in servers.items():
                assert server.stdin is not None and server.stdout is not None
                server.stdin.write(name + "\n")
                server.stdin.flush()
                seconds, before, results[name, way] = json.loads(server.stdout.readline())
                times.setdefault((name, way), []).append(seconds)
                firsts.setdefault((name, way), before)
    for server in servers.values():
        server.communicate()
    rows = []
    for name in arguments():
        exact, fast, theirs = (1e3 * min(times[name, way]) for way in WAYS)
        first = firsts[name, "fast"]
        if results[name, "exact"] != results[name, "fast"]:
            raise SystemExit(f"{name}: the two ways of devmem differ")
        ours, others = np.array(results[name, "exact"]), np.array(results[name, "numba"])
        # numba's simulator computes by NumPy's promotions, partly in single precision.
        np.testing.assert_allclose(ours, others, rtol=0, atol=1e-5 * np.abs(others).max(), err_msg=name)
        row = Row(f"{name}, exact", "host", exact, "ms", f"{exact / theirs:.2f} of numba's simulator's {theirs:.2f} ms")
        rows.append(row.judged(theirs, "numba's"))
        row = Row(f"{name}, fast", "host", fast, "ms", f"{exact / fast:.0f} times faster, compiled in {first:.1f} s")
        rows.append(row.judged(exact / TIMES, f"exact / {TIMES}") if name in WITHOUT_BARRIERS else row)
    return rows


def main() -> int:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    import numba

    rows = measured(2 if options.quick else 7)
    for row in rows:
        print(line(row))
    about: dict[str, object] = {
        "commit": commit(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": " ".join(f"{each:.1f}" for each in os.getloadavg()),
    }
    if options.json:
        options.json.write_text(
            json.dumps({"about": about, "rows": [vars(row) for row in rows]}, indent=1) + "\n", encoding="utf-8"
        )
    if options.markdown:
        notes = ["Written by `python benchmarks/simulators.py --json FILE --markdown FILE`; minimum of the rounds."]
        text = markdown("devmem's simulator and numba's", about, notes, {"Seven kernels": rows})
        options.markdown.write_text(text, encoding="utf-8")
    return int(any(row.verdict == "FALLS SHORT" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
