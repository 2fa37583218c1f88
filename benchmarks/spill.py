#!/usr/bin/env python3
"""The rate at which arrays leave the device and come back: `devmem.spill.Store` beside dask-cuda's ``DeviceHostFile``.

    python benchmarks/spill.py [--quick] [--json FILE] [--markdown FILE]

Needs no GPU, but ``distributed`` and ``dask-cuda`` (installed with ``--no-deps``, beside cuda-core and nvidia-ml-py). Both
mappings hold the same arrays of devmem, half of which fit; every key is used in turn, so each use brings one array back and moves
another away. They take turns within one run, with the two copies alone between them, over the host backend, where devmem's
arrays are registered in dask-cuda's ``is_device_object``, and over the emulated CUDA driver. The exit code tells whether it ran,
not whether targets were met.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from overhead import environment, machine
from table import Row, line, markdown
from timing import interleaved, ratio

import devmem as dm
from devmem.spill import Store
from devmem.testing import emulator

#: Arrays in each mapping.
COUNT = 16
SIZES = {"64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "4 MiB": 1 << 22, "16 MiB": 1 << 24}
#: From this size on devmem is to have this many times the rate.
FROM, FACTOR = 1 << 20, 1.5
NOTE = (
    "The rate of an array that comes back while another leaves: both their bytes, by the time of one `mapping[key]`. No GPU was "
    "used: device memory is the host's, and what is measured is the work of the host. The target applies to the median of the "
    "ratios of each round, from 1 MiB on. On host both mappings make the same two copies, because any memory is as good as "
    "page-locked memory there: only the work around them can differ. *limit*: the two copies alone, into "
    "memory that is there already, in the same rounds; no mapping of devmem's arrays can be faster."
)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--child", type=int, metavar="ROUNDS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return 0
    rows = []
    for where in ("host", "cuda"):
        told = {**environment(), "DEVMEM_BACKEND": where, "DEVMEM_HOST_STRICT": "1"}
        told |= emulator.environment(where) if where == "cuda" else {}
        command = [sys.executable, __file__, "--child", "5" if options.quick else "15"]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=told)
        rows += [Row(**row) for row in json.loads(run.stdout.splitlines()[-1])]
    for row in rows:
        print(line(row), flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("dask-cuda", "distributed", "cuda-bindings")}
    about = {"quick": options.quick, "arrays": COUNT, **machine(), **versions}
    section = {"Store and DeviceHostFile": rows}
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown("Spilling and coming back", about, [NOTE], section), encoding="utf-8")
    return 0


def child(rounds: int) -> None:
    """Measure on one backend, and print JSON."""
    from dask.sizeof import sizeof
    from dask_cuda.device_host_file import DeviceHostFile
    from dask_cuda.is_device_object import is_device_object

    from devmem.adapters import dask

    dask.register()
    dask.register_sizeof(sizeof)
    is_device_object.register(dm.DeviceNDArray, lambda _: True)
    rows = []
    for name, nbytes in SIZES.items():
        with tempfile.TemporaryDirectory() as folder, Store(COUNT * nbytes // 2) as store:
            theirs = DeviceHostFile(folder, device_memory_limit=COUNT * nbytes // 2)
            users = {"devmem": user(store, nbytes), "dask-cuda": user(theirs, nbytes), "limit": copies(nbytes)}
            times = interleaved(users, rounds, 0.05, before=lambda _: None)
            for mapping in (store, theirs):
                for key in range(COUNT):
                    assert (mapping[key].copy_to_host() == key).all()
        rates = {library: 2 * nbytes / min(found) / 1e9 for library, found in times.items()}
        row = Row(f"{name}: dask-cuda's time / devmem's", os.environ["DEVMEM_BACKEND"], None, "x")
        row.value = ratio(times["dask-cuda"], times["devmem"])
        row.detail = ", ".join(f"{name} {rate:.2f} GB/s" for name, rate in rates.items())
        row.detail += f" (fastest rounds); the limit is {rates['limit'] / rates['dask-cuda']:.2f} x dask-cuda's"
        row.numbers = {f"{library} GB/s": rate for library, rate in rates.items()}
        rows.append(row.judged_at_least(FACTOR, f"{FACTOR:g} x") if nbytes >= FROM else row)
    print(json.dumps([asdict(row) for row in rows]))


def user(mapping: Any, nbytes: int) -> Callable[[], object]:
    """A function that uses the next of a mapping's arrays, which it fills here."""
    for key in range(COUNT):
        mapping[key] = dm.to_device(np.full(nbytes, key, np.uint8))
    keys = cycle(range(COUNT))
    return lambda: mapping[next(keys)]


def copies(nbytes: int) -> Callable[[], object]:
    """A function that copies an array off the device, and another one to its place, into memory that is there already."""
    device = [dm.to_device(np.zeros(nbytes, np.uint8)) for _ in range(COUNT // 2)]
    *host, spare = (dm.pinned_array(nbytes, np.uint8) for _ in range(COUNT // 2 + 1))
    places = cycle(range(COUNT // 2))

    def use() -> None:
        nonlocal spare
        at = next(places)
        device[at].copy_to_host(spare)
        device[at].copy_to_device(host[at])
        host[at], spare = spare, host[at]

    return use


if __name__ == "__main__":
    sys.exit(main())
