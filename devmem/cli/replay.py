"""``devmem replay``: a log of allocations, done again with any memory stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import devmem

from ..api.memory import replay as replay_log
from .output import FAILED, OK, UNUSABLE, collected_warnings, complain, print_json, print_table, size


@click.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--memory", "stacks", multiple=True, required=True, help="Stack, as for use_memory(); again for more.")
@click.option("--backend", help="Backend to use, instead of DEVMEM_BACKEND or the first usable one.")
@click.option("--device", help="Device to use, as shown by `devmem info`: host:0.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.pass_context
def replay(
    context: click.Context, log: Path, stacks: tuple[str, ...], backend: str | None, device: str | None, as_json: bool
) -> None:
    """Do with a memory stack what LOG says, which devmem.memory.Log wrote, and tell what it cost.

    Give --memory several times to compare stacks: devmem replay LOG --memory driver --memory limit:4GiB,pool.

    Exit code 0: every allocation succeeded. 1: some did not. 2: nothing could be replayed.
    """
    try:
        with collected_warnings() as warnings:
            if backend:
                devmem.use_backend(backend)
            results = [replay_log(log, stack, device) for stack in stacks]
    except (devmem.DevmemError, OSError) as error:
        complain(str(error))
        context.exit(UNUSABLE)
    if as_json:
        print_json({"log": str(log), "replays": results, "warnings": warnings})
    else:
        _show(results)
        for message in warnings:
            complain(message)
    context.exit(FAILED if any(result["failed"] for result in results) else OK)


def _show(results: list[dict[str, Any]]) -> None:
    columns = [
        "stack",
        "calls",
        "µs/call",
        "driver calls",
        "driver ms",
        "peak live",
        "peak reserved",
        "ratio",
        "failed",
    ]
    rows = [
        [
            each["stack"],
            each["calls"],
            f"{each['us_per_call']:.2f}",
            each["driver_calls"],
            f"{1000 * each['driver_seconds']:.2f}",
            size(each["peak_live_bytes"]),
            size(each["peak_reserved_bytes"]),
            f"{each['ratio']:.3f}",
            each["failed"],
        ]
        for each in results
    ]
    print_table(columns, rows, right=",".join(columns[1:]))
    for each in results:
        for error in each["errors"]:
            complain(f"{each['stack']}: {error}")
