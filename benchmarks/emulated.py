"""devmem and other libraries over the emulated CUDA driver in null mode, where driver calls return at once and do nothing.

`rows` starts a process with that driver, which runs `child`.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from live import FREED, MADE, cost_by_live, count_bytes
from table import Effort, Row
from timing import interleaved, ratio, spread

import devmem as dm
from devmem.testing import emulator

if TYPE_CHECKING:
    from cuda_verbs import Place

WHERE = "emulated"
#: Factor on the number of rounds: the libraries differ by less here than in other benchmarks.
TURNS = 3
#: Number of uses for counting calls: a multiple of how many dropped objects the libraries destroy at once.
USES = 110

#: (verb, library, at most this many times the library's time)
AT_MOST = [
    ("to_device + free", "bare", 0.6),
    ("to_device + free", "cuda.core", 0.6),
    ("to_device, dropped", "bare", 0.8),
    ("device_array, dropped", "cuda.core", 0.8),
    ("device_array + free", "cuda.core", 0.6),
    ("copy_to_host(out)", "cuda.core", 1.0),
    ("to_device(to=)", "bare", 0.6),
]
#: With devmem's own pool a verb takes at most so many times what it takes with the driver's.
POOLED, POOL_AT_MOST = "devmem, pool", 1.2
POOL_VERBS = ("to_device + free", "to_device, dropped", "device_array + free", "device_array, dropped")
#: (verb, microseconds at most)
MICROSECONDS = [
    ("d[3:9]", 0.25),
    ("reshape", 0.5),
    ("stream + close", 1.0),
    ("event + record + close", 1.0),
    ("DLPack export + import", 1.0),
]
#: (verb, library, at least this many times as fast)
AT_LEAST = [
    ("to_device + free", "numba-cuda", 100.0),
    ("copy_to_host(out)", "numba-cuda", 3.0),
    ("device_array + free", "numba-cuda", 6.0),
    ("d[3:9]", "numba-cuda", 6.0),
]
#: At most so many bytes for a live array; and how much its cost may grow from few live ones to many.
BYTES, FLAT, FEW = 250, 1.2, 10
UPLOAD = "to_device alone"
#: Driver calls that an upload may make, by kind, and none of any other kind. Calls that make a context current and restore the
#: previous one are unavoidable; the row shows them separately.
ALLOWED = {"allocation": 1, "copy": 1, "context query": 1}
QUERIES = ("cuCtxGetCurrent", "cuCtxGetDevice")
SWITCH = "cuCtxSetCurrent"


def rows(effort: Effort, script: Path, environment: Mapping[str, str], about: dict[str, object]) -> Iterator[Row]:
    """The rows that the child measures, or every target with the reason why it is not measured."""
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
    most = effort.levels[-1]
    command = [
        sys.executable,
        str(script),
        "--emulated-child",
        str(effort.rounds * TURNS),
        str(effort.seconds),
        str(most),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=told)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        yield from (row.skipped(f"it ended: {last}") for row in targets({}))
        return
    found = json.loads(run.stdout.splitlines()[-1])
    about.update(found["versions"])
    yield from (Row(**row) for row in found["rows"])


def unavailable() -> str | None:
    """The reason why this cannot be measured, as far as it is known without compiling."""
    if not sys.platform.startswith("linux"):
        return f"the emulated driver needs Linux; this is {sys.platform}"
    try:
        found = importlib.util.find_spec("cuda.bindings.driver")
    except ImportError:
        found = None
    return None if found else "cuda-bindings is not installed (pip install cuda-bindings)"


def targets(times: Mapping[str, Mapping[str, list[float]]], missing: Mapping[str, str] | None = None) -> list[Row]:
    """The rows with targets, from the times by verb and library; without times they have no values."""
    found = []
    for verb, library, factor in [*AT_MOST, *AT_LEAST]:
        slower = (verb, library, factor) in AT_MOST
        row = Row(f"{verb}: devmem / {library}" if slower else f"{verb}: {library} / devmem", WHERE, None, "x")
        ours, theirs = times.get(verb, {}).get("devmem"), times.get(verb, {}).get(library)
        if ours and theirs:
            over, under = (ours, theirs) if slower else (theirs, ours)
            row.value, median = spread(over).least / spread(under).least, ratio(over, under)
            row.detail, row.numbers = f"median of the rounds {median:.2f}", {"least": row.value, "median": median}
        (row.judged if slower else row.judged_at_least)(factor, f"{factor:g} x")
        found.append(row if row.value is not None else row.skipped((missing or {}).get(library, "not measured")))
    for verb in POOL_VERBS:
        row = Row(f"{verb}: devmem, pool / devmem", WHERE, None, "x")
        pooled, ours = times.get(verb, {}).get(POOLED), times.get(verb, {}).get("devmem")
        if pooled and ours:
            row.value, median = spread(pooled).least / spread(ours).least, ratio(pooled, ours)
            row.detail, row.numbers = f"median of the rounds {median:.2f}", {"least": row.value, "median": median}
        row.judged(POOL_AT_MOST, f"{POOL_AT_MOST:g} x")
        found.append(row if row.value is not None else row.skipped("not measured"))
    for verb, most in MICROSECONDS:
        row = Row(f"{verb}: devmem", WHERE, None, "us")
        if ours := times.get(verb, {}).get("devmem"):
            row.value = spread(ours).least * 1e6
        row.judged(most, f"{most:g} us")
        found.append(row if row.value is not None else row.skipped("not measured"))
    if not times:
        kept = ", ".join(f"{count} {kind}" for kind, count in ALLOWED.items())
        uploads = (f"driver calls: {UPLOAD}", f"driver calls: {UPLOAD}, none current")
        found += [Row(what, WHERE, None, "calls", target=kept) for what in uploads]
    return found


# -- in the process of its own -----------------------------------------------------------------------------------------


def child(rounds: int, seconds: float, most: float) -> None:
    """Measure in the process with the emulated driver, and print JSON."""
    import cuda_verbs

    place = cuda_verbs.Place()
    times: dict[str, dict[str, list[float]]] = {}
    found: list[Row] = []
    for verb in cuda_verbs.verbs():
        times[verb] = interleaved(place.cases(verb), rounds, seconds, before=place.current)
        found.append(verb_row(verb, times[verb], place.missing))
    found += [*targets(times, place.missing), *call_rows(place)]
    place.current(cuda_verbs.DEVMEM)
    found += live_rows(int(most))
    print(json.dumps({"versions": place.versions, "rows": [asdict(row) for row in found]}))


def live_rows(most: int) -> Iterator[Row]:
    """Bytes of host memory for each of many live arrays, and the cost of the next with few and with that many."""
    for how, count in count_bytes(most).items():
        yield Row(f"bytes for each of {most:,} live arrays, {how}", WHERE, count, "B").judged(BYTES, f"{BYTES} B")
    for what, by_level in cost_by_live([FEW, most], TURNS).items():
        few, many = (by_level[level].least * 1e6 for level in (FEW, most))
        row = Row(f"{what}, {most:,} live / {FEW}", WHERE, many / few, "x", f"{few:.2f} us, {many:.2f} us")
        yield row.judged(FLAT, f"{FLAT} x") if what in (MADE, FREED) else row


def verb_row(verb: str, times: Mapping[str, list[float]], missing: Mapping[str, str]) -> Row:
    """One verb: minimum and median microseconds for each library."""
    spreads = {library: spread(found) for library, found in times.items()}
    numbers = {f"{lib} {key}": value * 1e6 for lib, found in spreads.items() for key, value in found._asdict().items()}
    told = [f"median {numbers['devmem median']:.2f}"]
    for library in spreads:
        if library != "devmem":
            numbers[f"ratio to {library}"] = spreads["devmem"].least / spreads[library].least
            numbers[f"median ratio to {library}"] = ratio(times["devmem"], times[library])
            told.append(f"{library} {numbers[f'{library} least']:.2f} (median {numbers[f'{library} median']:.2f})")
    told += [f"{library} not measured: {why}" for library, why in missing.items()]
    return Row(verb, WHERE, numbers["devmem least"], "us", " · ".join(told), numbers=numbers)


def call_rows(place: Place) -> Iterator[Row]:
    """The driver calls of one use of each verb, by library; those of an upload with nothing to free have a target."""
    import cuda_verbs

    counter = emulator.control("cuda")

    def counted(once: Callable[[], Any], library: str, keep: bool = False) -> dict[str, float]:
        for _ in range(USES):
            once()
        place.current(library)
        counter.reset()
        kept = []
        for _ in range(USES):
            made = once()
            if keep:
                kept.append(made)
        calls = counter.calls()
        for made in kept:
            made.free()
        return {name: count / USES for name, count in calls.items()}

    for library in (cuda_verbs.DEVMEM, cuda_verbs.ALONE):
        place.current(library)
        calls = counted(lambda: dm.to_device(place.host), library, keep=True)
        yield upload_row(calls, none_current=library == cuda_verbs.ALONE)
    for verb in cuda_verbs.verbs():
        by_library = {library: counted(once, library) for library, once in place.cases(verb).items()}
        ours = by_library[cuda_verbs.DEVMEM]
        others = [f"{library} {sum(calls.values()):.3g}" for library, calls in by_library.items() if calls is not ours]
        detail = f"{listed(ours)} · totals: {', '.join(others)}"
        numbers = {f"{library} {name}": count for library, calls in by_library.items() for name, count in calls.items()}
        yield Row(f"driver calls: {verb}", WHERE, sum(ours.values()), "calls", detail, numbers=numbers)


def upload_row(calls: Mapping[str, float], none_current: bool) -> Row:
    """The row with the calls of one upload with nothing to free; calls that switch the context are shown separately."""
    switches = calls.get(SWITCH, 0) if none_current else 0
    judged = {name: count for name, count in calls.items() if not (switches and name == SWITCH)}
    kinds: dict[str, float] = defaultdict(float)
    for name, count in judged.items():
        kinds[kind_of(name)] += count
    what = f"driver calls: {UPLOAD}" + (", none current" if none_current else "")
    row = Row(what, WHERE, sum(judged.values()), "calls", listed(judged), numbers=dict(calls))
    if switches:
        row.detail += f" · and {switches:.3g} {SWITCH} to switch the context and back"
    row.target = ", ".join(f"{count} {kind}" for kind, count in ALLOWED.items())
    row.verdict = "PASS" if all(count <= ALLOWED.get(kind, 0) for kind, count in kinds.items()) else "FALLS SHORT"
    return row


def kind_of(name: str) -> str:
    """The kind of a driver call."""
    if name in QUERIES:
        return "context query"
    return "allocation" if "Alloc" in name else "copy" if name.startswith("cuMemcpy") else name


def listed(calls: Mapping[str, float]) -> str:
    """Calls and their counts, as text."""
    return ", ".join(f"{count:.3g} {name}" for name, count in calls.items()) or "none"
