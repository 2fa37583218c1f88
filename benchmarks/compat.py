#!/usr/bin/env python3
"""The overhead of `devmem.compat.numba_cuda` over devmem's own verbs: at most 1.3 times their time.

    python benchmarks/compat.py [--quick] [--json FILE] [--markdown FILE]

Measured over a driver that does nothing, where only Python's time remains, and over the host backend. Both sides take turns in
every round; the ratio is that of the minimum times. The exit code tells whether it ran, not whether targets were met.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from overhead import machine
from table import FULL, QUICK, Effort, Row, line, markdown
from timing import interleaved, spread

import devmem as dm
from devmem.compat import numba_cuda as cuda
from devmem.testing import NullBackend

LIMIT = 1.3
TIMES = 50
NULL = NullBackend()
Once = Callable[[], object]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less precise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    options = parser.parse_args()
    os.environ.setdefault("DEVMEM_HOST_STRICT", "0")
    warnings.simplefilter("ignore", dm.DevmemWarning)
    dm.register_backend(NULL)
    rows = []
    for backend in (NULL.name, "host"):
        for row in measure(backend, QUICK if options.quick else FULL):
            rows.append(row)
            print(line(row), flush=True)
    met = sum(row.verdict == "PASS" for row in rows)
    print(f"\n{met} of {len(rows)} verbs within {LIMIT} times the native verb")
    about = {"quick": options.quick, **machine()}
    if options.json:
        text = json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.markdown:
        notes = ["Time of a verb of `devmem.compat.numba_cuda` over the time of the native verb; minimum times."]
        text = markdown("Overhead of the drop-in for numba.cuda", about, notes, {"ratios": rows})
        options.markdown.write_text(text, encoding="utf-8")
    return 0


def measure(backend: str, effort: Effort) -> Iterator[Row]:
    """Each verb against the native verb."""
    with dm.use_backend(backend):
        for verb, (native, ours) in pairs(pinned=backend == "host").items():
            # In both orders: the second one finds the memory that the first dropped in the queue.
            sides = {"native": many(native), "compat": many(ours)}
            times: dict[str, list[float]] = {name: [] for name in sides}
            for order in (("native", "compat"), ("compat", "native")):
                turn = {name: sides[name] for name in order}
                for name, each in interleaved(turn, effort.rounds, effort.seconds / 2, before=_nothing).items():
                    times[name] += each
            found = {name: spread(each) for name, each in times.items()}
            row = Row(verb, backend, found["compat"].least / found["native"].least, "x")
            row.numbers = {name: each.least * 1e6 / TIMES for name, each in found.items()}
            row.detail = f"native {row.numbers['native']:.2f} us, compat {row.numbers['compat']:.2f} us"
            yield row.judged(LIMIT, f"{LIMIT} x")


def many(once: Once) -> Once:
    """Enough uses in a row that each side frees the memory that it dropped itself."""

    def use() -> None:
        for _ in repeat(None, TIMES):
            once()

    return use


def pairs(pinned: bool) -> dict[str, tuple[Once, Once]]:
    """The same verb in devmem and in the drop-in."""
    host, out = np.arange(16.0), np.empty(16)
    found: dict[str, tuple[Once, Once]] = {}
    sides: list[dict[str, Once]] = []
    for library in (dm, cuda):
        sides.append(verbs(library, host, out))
        if pinned:
            sides[-1] |= host_verbs(library, host)
    for name in sides[0]:
        found[name] = sides[0][name], sides[1][name]
    return found


def verbs(library: Any, host: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> dict[str, Once]:
    """The verbs that both namespaces have."""
    d, other, stream, event = library.to_device(host), library.to_device(host), library.stream(), library.event()
    square = library.to_device(np.arange(16.0).reshape(4, 4))
    part = host[2:8].copy()
    return {
        "to_device": lambda: library.to_device(host),
        "to_device, stream": lambda: library.to_device(host, stream),
        "to_device(to=)": lambda: library.to_device(host, to=d),
        "device_array": lambda: library.device_array(16),
        "device_array((4, 4), f4)": lambda: library.device_array((4, 4), np.float32),
        "device_array_like": lambda: library.device_array_like(host),
        "copy_to_host()": lambda: d.copy_to_host(),
        "copy_to_host(out)": lambda: d.copy_to_host(out),
        "copy_to_host(out), stream": lambda: d.copy_to_host(out, stream),
        "copy_to_device(host)": lambda: d.copy_to_device(host),
        "copy_to_device(host), stream": lambda: d.copy_to_device(host, stream),
        "copy_to_device(device)": lambda: d.copy_to_device(other),
        "d[3]": lambda: d[3],
        "d[2:8]": lambda: d[2:8],
        "d2[1]": lambda: square[1],
        "d2[:, 1]": lambda: square[:, 1],
        "d[3] = 1.0": partial(d.__setitem__, 3, 1.0),
        "d[2:8] = host": partial(d.__setitem__, slice(2, 8), part),
        "d[:] = device": partial(d.__setitem__, slice(None), other),
        "reshape": lambda: d.reshape(4, 4),
        "ravel": lambda: square.ravel(),
        "view": lambda: d.view(np.int64),
        "squeeze": lambda: square.squeeze(),
        "split": lambda: list(d.split(4)),
        "bind": lambda: d.bind(stream),
        "numpy.asarray": lambda: np.asarray(d),
        "stream": lambda: library.stream(),
        "stream.synchronize": lambda: stream.synchronize(),
        "event": lambda: library.event(),
        "event.record": lambda: event.record(stream),
        "event.synchronize": lambda: event.synchronize(),
        "synchronize": lambda: library.synchronize(),
    }


def host_verbs(library: Any, host: np.ndarray[Any, Any]) -> dict[str, Once]:
    """The verbs that need page-locked memory."""

    def pin() -> None:
        with library.pinned(host):
            pass

    def in_place() -> None:
        with library.mapped(host):
            pass

    return {
        "pinned_array": lambda: library.pinned_array(16),
        "mapped_array": lambda: library.mapped_array(16),
        "managed_array": lambda: library.managed_array(16),
        "with pinned(a)": pin,
        "with mapped(a)": in_place,
    }


def _nothing(name: str) -> None:
    pass


if __name__ == "__main__":
    raise SystemExit(main())
