"""Timing: the libraries take turns, and each measurement ends when the device is idle."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import devmem as dm

from .driver import driver
from .expected import LIMIT
from .libraries import Devmem, Library
from .limit import limit
from .sizes import KiB
from .tables import one_line
from .tasks import Case, Data, Effort, Task


@dataclass
class Row:
    """One measured row: for each library its seconds, or the reason why there are none."""

    id: str
    title: str
    group: str
    nbytes: int
    unit: str
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)


def measure(case: Case, libraries: list[Library], data: Data, effort: Effort, seconds: float) -> Row:
    """Verify each cell, then measure in turns until the time limit."""
    row = Row(case.id, case.title, case.group, case.nbytes, case.unit)
    builders: dict[str, Callable[[], Task]] = {each.name: lambda each=each: case.build(each) for each in libraries}  # type: ignore[misc]
    if case.limit:
        builders = {LIMIT: lambda: limit(case.limit, case.nbytes, data), **builders}
    tasks: dict[str, Task] = {}
    paths: dict[str, str] = {}
    for name, build in builders.items():
        try:
            task = build()
            task.prepare()
            dm.transfer_stats(reset=True)
            outcome = task.run()
            driver().wait()
            if name == Devmem.name:
                paths[name] = ", ".join(path for path, told in dm.transfer_stats().items() if told["copies"])
            task.verify(outcome)
            del outcome
            task.run()
            driver().wait()
            tasks[name] = task
        except NotImplementedError:
            row.cells[name] = {"absent": "not offered"}
        except Exception as error:
            row.cells[name] = {"error": one_line(error)}
    times: dict[str, list[float]] = {name: [] for name in tasks}
    until = time.perf_counter() + seconds
    gc.collect()
    gc.disable()
    for turn in range(effort.rounds_small if case.limit and case.nbytes <= 64 * KiB else effort.rounds):
        late = time.perf_counter() - until
        if late > 0 and (turn >= effort.fewest or (turn and late > seconds)):
            break
        first = turn % max(1, len(tasks))
        for name in [*list(tasks)[first:], *list(tasks)[:first]]:
            try:
                times[name].append(timed(tasks[name]))
            except Exception as error:
                row.cells[name] = {"error": one_line(error)}
                del tasks[name]
    gc.enable()
    for name, task in tasks.items():
        found = times[name]
        row.cells[name] = {"median_s": statistics.median(found), "best_s": min(found), "rounds": len(found)}
        row.cells[name] |= {"median": case.value(row.cells[name]["median_s"]), "best": case.value(min(found))}
        if task.note:
            row.cells[name]["note"] = task.note
        if paths.get(name):
            row.cells[name]["path"] = paths[name]
    for name in builders:  # in a fixed order, whatever failed
        row.cells[name] = row.cells.pop(name)
    return row


def timed(task: Task) -> float:
    """Seconds for one use; the result is dropped after the measurement."""
    wait = driver().wait
    start = time.perf_counter()
    outcome = task.run()
    if task.waits:
        wait()
    seconds = time.perf_counter() - start
    return (outcome if task.timed_itself else seconds) / task.uses
