"""Run a command that simulates, and report on what it ran."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import devmem

from ..cli.execution import become, wait_for
from . import environment

#: The exit code where the report cannot be written; the command is not run then.
UNUSABLE = 2


def run(
    command: Sequence[str],
    *,
    race_check: bool = False,
    shuffle: int | None = None,
    fast: bool = False,
    report: bool = False,
    output: str | None = None,
) -> int:
    """Run a command and return its exit status; without a report, in the place of this process.

    Parameters
    ----------
    race_check, shuffle, fast
        As for `environment`.
    report
        Write a JSON document of the kernels that ran and what was found in them, after the command has ended.
    output
        The file for it; None: the standard output.
    """
    ways = {"race check": race_check, f"shuffled by {shuffle}": shuffle is not None, "compiled where that can be": fast}
    how = "".join(f", {way}" for way, chosen in ways.items() if chosen)
    told = f"devmem: numba.cuda and numba_cuda_mlir.cuda are simulated on the host, without a GPU{how}"
    print(told, file=sys.stderr, flush=True)
    variables = {**os.environ, **environment(race_check=race_check, shuffle=shuffle, fast=fast)}
    if not report:
        become(command, variables)
    try:
        if output:
            Path(output).write_text("", encoding="utf-8")  # what cannot be written is told before the command runs
    except OSError as error:
        print(f"devmem: {output}: {error.strerror}", file=sys.stderr)
        return UNUSABLE
    with tempfile.TemporaryDirectory(prefix="devmem-simulate-") as folder:
        log = Path(folder, "launches")
        status = wait_for(command, {**variables, "DEVMEM_SIM_LOG": str(log)})
        launches = list(_records(log))
    facts = {"devmem": devmem.__version__, "command": list(command), "exit_status": status}
    text = json.dumps({**facts, **summary(launches)}, indent=2)
    try:
        if output:
            Path(output).write_text(f"{text}\n", encoding="utf-8")
        else:
            print(text)
    except OSError as error:  # the command's exit status is told all the same
        print(f"devmem: {output or 'the report'}: {error.strerror}", file=sys.stderr)
    return status


def _records(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text("utf-8", errors="replace").splitlines() if log.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:  # of a process that was killed as it wrote
            continue


def summary(launches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The kernels, and what was found in them, from the lines of ``DEVMEM_SIM_LOG``; the same finding stands once."""
    kernels: dict[Any, dict[str, Any]] = {}
    findings: dict[str, dict[str, Any]] = {}
    for each in launches:
        place = {name: each[name] for name in ("kernel", "file", "line")}
        kernel = kernels.setdefault(
            tuple(place.values()), {**place, "launches": 0, "compiled": 0, "threads": 0, "seconds": 0.0}
        )
        if "grid" in each:  # else it was refused before a launch
            kernel["launches"] += 1
            kernel["compiled"] += each["compiled"]
            kernel["threads"] += _product(each["grid"]) * _product(each["block"])
            kernel["seconds"] = round(kernel["seconds"] + each["seconds"], 6)
        if each["error"]:
            same = json.dumps([place, each["error"]])
            found = findings.setdefault(same, {"kernel": each["kernel"], **each["error"], "times": 0})
            found["times"] += 1
    return {
        "processes": len({each["pid"] for each in launches}),
        "kernels": list(kernels.values()),
        "findings": list(findings.values()),
    }


def _product(lengths: Sequence[int]) -> int:
    width, height, depth = lengths
    return width * height * depth
