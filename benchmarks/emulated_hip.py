"""devmem over the emulated HIP runtime in null mode, through each provider, next to the vendor's calls alone.

Each provider is measured in a process of its own with that runtime; `rows` starts the processes, which run `child`. `emulated`
does the same for CUDA.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from emulated import TURNS, USES, listed, verb_row
from table import Effort, Row
from timing import interleaved, ratio, spread

from devmem.testing import emulator

if TYPE_CHECKING:
    from hip_verbs import Place

PROVIDERS = {"rocm": "rocm.bindings.hip", "hip": "hip._version", "ctypes": "ctypes"}
#: devmem through a provider takes at most this many times the vendor's calls through the same.
AT_MOST = 1.0
JUDGED = (
    *("to_device + free", "to_device, dropped", "copy_to_host()", "copy_to_host(out)", "device_array + free"),
    *("stream + close", "event + record + close"),
)


def rows(effort: Effort, script: Path, environment: Mapping[str, str], about: dict[str, object]) -> Iterator[Row]:
    """The rows that the children measure, or every target with the reason why it is not measured."""
    try:
        variables, lacking = emulator.environment("roc"), None
    except OSError as error:
        variables, lacking = {}, str(error).partition("\n")[0]
    for provider in PROVIDERS:
        why = lacking or unavailable(provider)
        if why is None:
            told = {**environment, **variables, "DEVMEM_BACKEND": "roc", "DEVMEM_EMULATOR_MODE": "null"}
            told["DEVMEM_ROC_PROVIDER"] = provider
            command = [
                sys.executable,
                str(script),
                "--emulated-hip-child",
                str(effort.rounds * TURNS),
                str(effort.seconds),
            ]
            run = subprocess.run(command, capture_output=True, text=True, check=False, env=told)
            if run.returncode == 0:
                found = json.loads(run.stdout.splitlines()[-1])
                about.update(found["versions"])
                yield from (Row(**row) for row in found["rows"])
                continue
            why = "it ended: " + (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        yield from (target(verb, provider, {}).skipped(why) for verb in JUDGED)


def unavailable(provider: str) -> str | None:
    """The reason why a provider cannot be measured, as far as it is known without compiling."""
    if not sys.platform.startswith("linux"):
        return f"the emulated runtime needs Linux; this is {sys.platform}"
    try:
        found = importlib.util.find_spec(PROVIDERS[provider])
    except ImportError:
        found = None
    return None if found else f"hip-python {'10' if provider == 'rocm' else '7'} is not installed"


def target(verb: str, provider: str, times: Mapping[str, list[float]]) -> Row:
    """The row with the target: devmem through a provider against the vendor's calls through the same."""
    from hip_verbs import BARE_OF, DEVMEM

    bare = BARE_OF[provider]
    row = Row(f"{verb}: devmem / {bare}", provider, None, "x")
    if times:
        row.value = spread(times[DEVMEM]).least / spread(times[bare]).least
        median = ratio(times[DEVMEM], times[bare])
        row.detail, row.numbers = f"median of the rounds {median:.2f}", {"least": row.value, "median": median}
    return row.judged(AT_MOST, f"{AT_MOST:g} x")


# -- in a process of its own -------------------------------------------------------------------------------------------


def child(rounds: int, seconds: float) -> None:
    """Measure in the process with the emulated runtime, and print JSON."""
    import hip_verbs

    provider = hip_verbs.provider()
    place = hip_verbs.Place(provider)
    found: list[Row] = []
    judged: list[Row] = []
    for verb in hip_verbs.verbs():
        times = interleaved(place.cases(verb), rounds, seconds, before=place.use)
        row = verb_row(verb, times, {})
        row.where = provider
        found.append(row)
        if verb in JUDGED:
            judged.append(target(verb, provider, times))
    print(
        json.dumps({"versions": place.versions, "rows": [asdict(row) for row in [*found, *judged, *call_rows(place)]]})
    )


def call_rows(place: Place) -> Iterator[Row]:
    """The runtime calls of one use of each verb, by library."""
    import hip_verbs

    counter = emulator.control("roc")

    def counted(once: Callable[[], object], library: str) -> dict[str, float]:
        place.use(library)
        for _ in range(USES):
            once()
        counter.reset()
        for _ in range(USES):
            once()
        return {name: count / USES for name, count in counter.calls().items()}

    for verb in hip_verbs.verbs():
        by_library = {library: counted(once, library) for library, once in place.cases(verb).items()}
        ours = by_library[hip_verbs.DEVMEM]
        others = [f"{library} {sum(calls.values()):.3g}" for library, calls in by_library.items() if calls is not ours]
        numbers = {f"{library} {name}": count for library, calls in by_library.items() for name, count in calls.items()}
        detail = f"{listed(ours)} · totals: {', '.join(others)}"
        yield Row(f"runtime calls: {verb}", place.provider, sum(ours.values()), "calls", detail, numbers=numbers)
