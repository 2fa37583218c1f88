#!/usr/bin/env python3
"""Copy rates between host and device, NVIDIA's or AMD's: devmem, other libraries and the machine's limit, in one run.

    python benchmarks/bandwidth.py [--backend NAME] [--quick] [--budget SECONDS] [--json FILE]

All libraries take turns in every round, in a changing order; medians and best times are shown. Each cell's bytes are compared
once before it is timed: uploads are read back through the driver, downloads go into poisoned memory. Every measurement ends when
the driver has waited for the whole device, for all libraries alike, and the result of a call is dropped after that. The limit is
timed by events around the driver's asynchronous copies of page-locked memory, in the same rounds.

Over the emulated driver it runs with --quick, which tests the script and says nothing about speed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rates.cases import cases
from rates.driver import MODULES, use
from rates.expected import LIMIT, judged, predicted
from rates.libraries import Devmem
from rates.measure import measure
from rates.peers import find_libraries
from rates.sizes import KiB
from rates.tables import markdown
from rates.tasks import QUICK, Data, Effort

import devmem as dm

#: glibc raises this threshold after such a block is freed; then a "new" array reuses memory whose pages are already mapped.
MMAP_THRESHOLD = 128 * KiB


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=list(MODULES), default="cuda", help="the backend (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the script")
    parser.add_argument("--budget", type=float, default=110, metavar="SECONDS", help="time limit (default: 110)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, after every row")
    options = parser.parse_args()
    started = time.perf_counter()

    try:
        dm.use_backend(options.backend)
        device = dm.current_device()
        driver = use(options.backend, device.info.ordinal)
    except (dm.DevmemError, ImportError) as error:
        print(f"bandwidth: {error}", file=sys.stderr)
        return 2
    emulated = is_emulated(options.backend)
    if emulated and not options.quick:
        print(
            "bandwidth: this is the emulated driver, whose speed means nothing: use --quick to test the script",
            file=sys.stderr,
        )
        return 2
    effort = QUICK if options.quick else Effort()
    fresh = always_fresh()
    libraries, states = find_libraries(options.backend, emulated)
    if not any(isinstance(each, Devmem) for each in libraries):
        print(f"bandwidth: devmem cannot be used: {states[Devmem.name]}", file=sys.stderr)
        return 1
    found: dict[str, Any] = {
        "backend": options.backend,
        "device": device.info.name,
        "emulated": emulated,
        "quick": options.quick,
        "libraries": states,
        "fresh_pages_forced": fresh,
        "effort": asdict(effort),
        "rows": [],
        "unfinished": [],
    }
    data = Data(max(*effort.sizes, effort.square**2 * 4))
    rows = list(cases(effort, data))
    for at, case in enumerate(rows):
        left = options.budget - (time.perf_counter() - started)
        if left <= 0:
            found["unfinished"].append(case.title)
            continue
        driver.enter()  # some libraries leave another device current
        row = measure(case, libraries, data, effort, min(left, 2.5 * left / (len(rows) - at)))
        found["rows"].append(asdict(row))
        print(f"{time.perf_counter() - started:6.1f} s  {row.title}", file=sys.stderr, flush=True)
        write(options.json, found)
    found["asked"] = judged(found["rows"], found["quick"])
    found["predicted"] = predicted(found["rows"], found["quick"], options.backend)
    found["seconds"] = time.perf_counter() - started
    write(options.json, found)
    print(markdown(found))
    # An error in another library is reported, and does not fail the run.
    return 1 if any("error" in row["cells"].get(name, {}) for row in found["rows"] for name in ("devmem", LIMIT)) else 0


def is_emulated(backend: str) -> bool:
    """Whether this process uses the emulated driver."""
    from devmem.testing import emulator

    try:
        emulator.control(backend)
    except emulator.EmulatorNotLoaded:
        return False
    return True


def always_fresh() -> bool:
    """Make every large host array use fresh pages, as a program's first one does; return whether the allocator supports that."""
    try:
        return bool(ctypes.CDLL(None).mallopt(-3, MMAP_THRESHOLD))
    except (OSError, AttributeError):
        return False


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Replace the file atomically: an interrupted run leaves the last complete file."""
    if path is not None:
        beside = path.with_name(path.name + ".part")
        beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
