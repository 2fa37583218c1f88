#!/usr/bin/env python3
"""`scatter`, `gather` and `copy_async` over eight devices of one process, beside one device with an eighth of the bytes.

    python benchmarks/devices.py [--quick] [--json FILE] [--markdown FILE]

Needs no GPU: eight emulated devices of each vendor. With 10 ms in every copy, eight devices are to take less than 1.3 times
one. The rate is that of 8 MiB a device from page-locked memory without a delay: all devices are the memory and the processors of
this machine, so it tells what the work of the host allows, and nothing of a GPU. The exit code tells whether it ran, not whether
targets were met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
from overhead import environment, machine
from table import Row, line, markdown

import devmem as dm
from devmem.testing import emulator

DEVICES = 8
#: Bytes for each device where the rate is measured.
PIECE = 8 << 20
#: Seconds of every copy where the ratio is measured, and the bytes for each device, which take no time beside that.
DELAY, SMALL = 0.010, 1 << 13
#: How much longer eight devices may take than one.
FACTOR = 1.3
NOTE = (
    "No GPU was used: the devices are emulated, their memory is the host's. Each value is of the least time of the rounds, "
    "which take turns."
)

Work = Callable[[], object]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--child", type=int, metavar="ROUNDS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps([asdict(row) for row in measured(options.child)]))
        return 0
    rows = []
    for vendor in ("cuda", "roc"):
        told = {
            **environment(),
            **emulator.environment(vendor),
            "DEVMEM_BACKEND": vendor,
            "DEVMEM_EMULATOR_DEVICES": str(DEVICES),
        }
        command = [sys.executable, __file__, "--child", "5" if options.quick else "20"]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=told)
        rows += [Row(**row) for row in json.loads(run.stdout.splitlines()[-1])]
    for row in rows:
        print(line(row), flush=True)
    about = {"quick": options.quick, "devices": DEVICES, **machine()}
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(
            markdown("Eight devices at once", about, [NOTE], {"Eight devices and one": rows}), encoding="utf-8"
        )
    return 0


def measured(rounds: int) -> list[Row]:
    """The rows of one vendor."""
    backend = os.environ["DEVMEM_BACKEND"]
    devices = [device for device in dm.devices() if device.backend == backend]
    assert len(devices) == DEVICES, devices
    control = emulator.control(backend)
    rows = []
    for delay, nbytes in ((DELAY, SMALL), (0.0, PIECE)):
        host, out = (dm.pinned_array(DEVICES * nbytes, np.uint8) for _ in range(2))
        host[:] = np.arange(host.size, dtype=np.uint8)
        alone, together = works(host[:nbytes], out[:nbytes], devices[:1]), works(host, out, devices)
        control.delay(int(delay * 1e6))
        for name in alone:
            one, eight = least((alone[name], together[name]), rounds)
            if delay:
                row = Row(f"{name}, {delay * 1e3:.0f} ms a copy: eight devices / one", backend, eight / one, "x")
                row.judged(FACTOR, f"{FACTOR:g} x").detail = f"{one * 1e3:.1f} and {eight * 1e3:.1f} ms"
            else:
                rates = {"one GB/s": nbytes / one / 1e9, "eight GB/s": DEVICES * nbytes / eight / 1e9}
                row = Row(f"{name}, no delay: the rate of eight", backend, rates["eight GB/s"], "GB/s", numbers=rates)
                row.detail = f"one device {rates['one GB/s']:.1f} GB/s"
            rows.append(row)
        control.delay(0)
        assert np.array_equal(out, host)
    return rows


def works(host: np.ndarray, out: np.ndarray, devices: Sequence[dm.Device]) -> dict[str, Work]:
    """What is timed, over some devices."""
    pieces = dm.scatter(host, devices)

    def copies() -> None:
        for transfer in [dm.copy_async(piece, pinned=True) for piece in pieces]:
            transfer.wait()

    return {
        "scatter": lambda: dm.scatter(host, devices),
        "gather": lambda: dm.gather(pieces, out=out),
        "copy_async": copies,
    }


def least(pair: tuple[Work, Work], rounds: int) -> list[float]:
    """Seconds of each of two, which take turns: the least of the rounds."""
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for work, times in zip(pair, found, strict=True):
            began = perf_counter()
            result = work()
            dm.synchronize()
            times.append(perf_counter() - began)
            del result
    return [min(times) for times in found]


if __name__ == "__main__":
    sys.exit(main())
