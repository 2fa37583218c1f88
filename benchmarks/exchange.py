#!/usr/bin/env python3
"""The time to exchange arrays by DLPack and the CUDA Array Interface, next to numba-cuda and tvm-ffi.

    python benchmarks/exchange.py [--quick] [--json FILE] [--markdown FILE]

Needs no GPU: a child process runs everything over the emulated CUDA driver in null mode, where calls return at once and do
nothing. That needs a C compiler and cuda-bindings; numba-cuda and tvm-ffi (apache-tvm-ffi) are measured where they are
installed. The libraries take turns within one run. Times are the minimum and the median of many turns. The exit code tells
whether it ran, not whether targets were met.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
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
WHERE = "emulated"
ELEMENTS = 16
CAPSULE, EXPORT, ONE_WAY, CALL, CALL_ON_HOST, INTERFACE, WRAP, WRAP_STREAM = (
    "export and import a DLPack capsule",
    "export a DLPack capsule",
    "export by DLPack's table of C functions",
    "an array into an empty call",
    "an array of the host backend into an empty call",
    "__cuda_array_interface__",
    "wrap a foreign array",
    "wrap a foreign array that names a stream",
)
#: Microseconds.
AT_MOST = {CAPSULE: 5.0, EXPORT: 0.15, ONE_WAY: 0.08, INTERFACE: 1.0}
#: numba-cuda takes at least this many times as long.
AT_LEAST = {WRAP: 2.0}
#: At most this many times what a tensor of tvm-ffi's own takes.
TIMES_TVM = {CALL: 1.3, CALL_ON_HOST: 1.3}
#: Exports in one turn by the table, which a library in C calls.
BY_TABLE = 1000
LOOP = """
struct tensor { char before[16]; void (*end)(struct tensor *); };
int loop(int (*from_object)(void *, struct tensor **), void *object, int times) {
    struct tensor *made;
    for (int at = 0; at < times; at++) {
        if (from_object(object, &made)) return -1;
        made->end(made);
    }
    return 0;
}
"""
#: Factor on the number of rounds.
TURNS = 3
NOTE = (
    "Measured over the emulated CUDA driver in null mode: every driver call returns at once and does nothing. No "
    "GPU was used. The primary context is current, as other libraries leave it. Targets apply to the "
    "minimum times; on a shared machine only the ratios are reliable. A capsule is exported, imported and released. "
    "The foreign array is an object with a ready `__cuda_array_interface__`; `as_cuda_array` is numba-cuda's, which trusts "
    "the interface, while devmem asks the driver for the memory's device and size. If it names a stream, "
    "numba-cuda waits for it, and devmem makes its own stream wait for it. An empty call is one of a function of tvm-ffi that "
    "does nothing, with an array of devmem's, and with a tensor of its own on the same memory."
)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too, as Markdown")
    parser.add_argument("--quick", action="store_true", help="a second instead of half a minute; less precise")
    parser.add_argument("--child", nargs=2, metavar=("ROUNDS", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        warnings.simplefilter("ignore")
        child(int(options.child[0]), float(options.child[1]))
        return 0
    print(f"\n{SECTION}", flush=True)
    versions: dict[str, object] = {}
    rows = list(measured(QUICK if options.quick else FULL, versions))
    for row in rows:
        print(line(row), flush=True)
    about = {"quick": options.quick, "elements": ELEMENTS, **machine(), **versions}
    sections = {SECTION: rows}
    if options.json:
        tables = {name: [asdict(row) for row in found] for name, found in sections.items()}
        options.json.write_text(json.dumps({"about": about, "sections": tables}, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(
            markdown("The cost of exchanging arrays", about, [NOTE], sections), encoding="utf-8"
        )
    return 0


def measured(effort: Effort, versions: dict[str, object]) -> Iterator[Row]:
    """The rows that the child measures, or the targets with the reason why they are not measured."""
    try:
        lacking = unavailable()
        variables = {} if lacking else emulator.environment("cuda")
    except OSError as error:
        lacking = str(error).partition("\n")[0]
    if not lacking:
        told = {**environment(), **variables, "DEVMEM_BACKEND": "cuda", "DEVMEM_EMULATOR_MODE": "null"}
        told.pop("NUMBA_ENABLE_CUDASIM", None)
        command = [sys.executable, __file__, "--child", str(effort.rounds * TURNS), str(effort.seconds)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=told)
        if not run.returncode:
            found = json.loads(run.stdout.splitlines()[-1])
            versions.update(found["versions"])
            yield from (Row(**row) for row in found["rows"])
            return
        lacking = f"the process failed: {(run.stderr.strip().splitlines() or [f'exit code {run.returncode}'])[-1]}"
    yield from (row.skipped(lacking) for row in targets({}))


def targets(times: Mapping[str, Mapping[str, list[float]]]) -> list[Row]:
    """The rows with targets, from the times by operation and library; without times they have no values."""
    found = []
    for what, limit in AT_MOST.items():
        ours = times.get(what, {}).get("devmem")
        row = Row(f"{what}: devmem", WHERE, spread(ours).least * 1e6 if ours else None, "us")
        if ours:
            row.detail = f"median {spread(ours).median * 1e6:.2f}"
        found.append(row.judged(limit, f"{limit:g} us"))
    for what, factor in AT_LEAST.items():
        ours, theirs = times.get(what, {}).get("devmem"), times.get(what, {}).get("numba-cuda")
        row = Row(f"{what}: numba-cuda / devmem", WHERE, None, "x")
        if ours and theirs:
            row.value, median = spread(theirs).least / spread(ours).least, ratio(theirs, ours)
            row.detail, row.numbers = f"median of the rounds {median:.2f}", {"least": row.value, "median": median}
        row.judged_at_least(factor, f"{factor:g} x")
        found.append(row if row.value is not None else row.skipped("numba-cuda is not installed"))
    for what, factor in TIMES_TVM.items():
        ours, theirs = times.get(what, {}).get("devmem"), times.get(what, {}).get("tvm-ffi")
        row = Row(f"{what}: devmem / tvm-ffi", WHERE, None, "x")
        if ours and theirs:
            row.value, median = spread(ours).least / spread(theirs).least, ratio(ours, theirs)
            row.detail, row.numbers = f"median of the rounds {median:.2f}", {"least": row.value, "median": median}
        row.judged(factor, f"{factor:g} x")
        found.append(row if row.value is not None else row.skipped("apache-tvm-ffi is not installed"))
    return found


# -- in the process of its own -----------------------------------------------------------------------------------------


class Foreign:
    """A foreign array with a ready `__cuda_array_interface__`."""

    def __init__(self, interface: Mapping[str, object]) -> None:
        self.__cuda_array_interface__ = dict(interface)


def child(rounds: int, seconds: float) -> None:
    """Measure in the process with the emulated driver, and print JSON."""
    from cuda.bindings import driver

    versions = {"cuda-bindings": importlib.metadata.version("cuda-bindings")}
    primary = checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuInit(0), driver.cuDeviceGet(0))))
    checked(driver.cuCtxSetCurrent(primary))
    times = {what: interleaved(run, rounds, seconds, before=lambda _: None) for what, run in cases(versions).items()}
    times[ONE_WAY] = {"devmem": [each / BY_TABLE for each in times[ONE_WAY]["devmem"]]}
    rows = [told(what, found) for what, found in times.items()] + targets(times)
    print(json.dumps({"versions": versions, "rows": [asdict(row) for row in rows]}))


def cases(versions: dict[str, str]) -> dict[str, dict[str, Callable[[], object]]]:
    """The timed functions by operation and library."""
    array: Any = dm.to_device(np.zeros(ELEMENTS, np.float32))
    said = array.__cuda_array_interface__
    plain, ordered = Foreign({**said, "stream": None}), Foreign({**said, "stream": 1})
    found: dict[str, dict[str, Callable[[], object]]] = {
        CAPSULE: {"devmem": lambda: dm.from_dlpack(array)},
        EXPORT: {"devmem": lambda: array.__dlpack__(stream=1, max_version=(1, 1))},
        ONE_WAY: {"devmem": by_table(array)},
        INTERFACE: {"devmem": lambda: array.__cuda_array_interface__},
        WRAP: {"devmem": lambda: dm.as_device_array(plain)},
        WRAP_STREAM: {"devmem": lambda: dm.as_device_array(ordered)},
    }
    with contextlib.suppress(ImportError):
        import tvm_ffi

        versions["tvm-ffi"] = importlib.metadata.version("apache-tvm-ffi")
        call, of_host = (
            tvm_ffi.get_global_func("testing.nop"),
            dm.to_device(np.zeros(ELEMENTS, np.float32), device="host:0"),
        )
        for what, ours in ((CALL, array), (CALL_ON_HOST, of_host)):
            own = tvm_ffi.from_dlpack(ours)
            found[what] = {"devmem": partial(call, ours), "tvm-ffi": partial(call, own)}
    try:
        from numba import cuda as numba_cuda
    except ImportError:
        return found
    versions["numba-cuda"] = importlib.metadata.version("numba-cuda")
    theirs = numba_cuda.as_cuda_array(plain)
    found[INTERFACE]["numba-cuda"] = lambda: theirs.__cuda_array_interface__
    found[WRAP]["numba-cuda"] = lambda: numba_cuda.as_cuda_array(plain)
    found[WRAP_STREAM]["numba-cuda"] = lambda: numba_cuda.as_cuda_array(ordered)
    return found


def by_table(array: Any) -> Callable[[], object]:
    """Export an array many times by DLPack's table of C functions, from C."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "loop.so"
        command = [*(os.environ.get("CC") or "cc").split(), "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(built)]
        subprocess.run(command, input=LOOP, text=True, check=True)
        loop = ctypes.PyDLL(str(built)).loop
    loop.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_int)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    # Versions, the table before, the allocator; then what exports.
    from_object = ctypes.c_void_p.from_address(get(type(array).__dlpack_c_exchange_api__, b"dlpack_exchange_api") + 24)
    return partial(loop, from_object, array, BY_TABLE)


def told(what: str, times: Mapping[str, list[float]]) -> Row:
    """One operation: minimum and median microseconds for each library."""
    spreads = {library: spread(found) for library, found in times.items()}
    numbers = {f"{lib} {key}": value * 1e6 for lib, found in spreads.items() for key, value in found._asdict().items()}
    detail = f"median {numbers['devmem median']:.2f}"
    for library in spreads:
        if library != "devmem":
            detail += f" · {library} {numbers[f'{library} least']:.2f} (median {numbers[f'{library} median']:.2f})"
    return Row(what, WHERE, numbers["devmem least"], "us", detail, numbers=numbers)


def checked(*results: Any) -> Any:
    """The last output of a driver call; raise if the call failed."""
    for status, *_ in results:
        if int(status):
            raise RuntimeError(f"the driver refused: {status}")
    return results[-1][1] if len(results[-1]) > 1 else None


if __name__ == "__main__":
    sys.exit(main())
