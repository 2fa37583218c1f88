"""``devmem replay``: repeat the allocations of a log with other memory stacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import devmem

from ..api.stacks import stack_parts
from ..spi.sizes import size_text
from ..testing.replay import measure
from .completion import completes
from .output import FAILED, OK, UNUSABLE, collected_warnings, complain, example, print_json, print_table
from .roundtrip import backend_option, choose, device_option


@click.command(
    epilog=example(
        "DEVMEM_MEMORY_MANAGER=log:run.log,pool python program.py",
        "devmem replay run.log --memory driver --memory pool",
    )
)
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--memory",
    "stacks",
    multiple=True,
    required=True,
    shell_complete=completes(stack_parts, ","),
    help="Stack, as for use_memory(); again for more.",
)
@backend_option
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.pass_context
def replay(
    context: click.Context, log: Path, stacks: tuple[str, ...], backend: str | None, device: str | None, as_json: bool
) -> None:
    """Repeat the allocations in LOG, written by devmem.memory.Log, with a memory stack, and show their cost.

    Give --memory several times to compare stacks: devmem replay LOG --memory driver --memory limit:4GiB,pool.

    Exit code 0: every allocation succeeded. 1: some failed. 2: a stack, or the log, could not be used at all; the other
    stacks were used.
    """
    try:
        with collected_warnings() as warnings:
            chosen = choose(backend, device)
            results = [_replayed(log, stack, chosen) for stack in stacks]
    except (devmem.DevmemError, OSError) as error:
        complain(str(error))
        context.exit(UNUSABLE)
    unusable = [result for result in results if "error" in result]
    if as_json:
        print_json({"log": str(log), "replays": results, "warnings": warnings})
    elif len(unusable) < len(results):
        _show(results)
    for result in unusable:
        complain(f"{result['stack']}: {result['error']}")
    for message in [] if as_json else warnings:
        complain(message)
    context.exit(_exit_code(results))


def _replayed(log: Path, stack: str, device: devmem.Device) -> dict[str, Any]:
    """The cost of a stack, or why it could not be used, so that the other stacks are compared all the same."""
    try:
        return measure(log, stack, device)
    except devmem.DevmemError as error:
        return {"stack": stack, "error": str(error)}


def _exit_code(results: list[dict[str, Any]]) -> int:
    if any(result.get("failed") for result in results):
        return FAILED
    return UNUSABLE if any("error" in result for result in results) else OK


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
        [each["stack"], *["–"] * (len(columns) - 2), "error"]
        if "error" in each
        else [
            each["stack"],
            each["calls"],
            f"{each['us_per_call']:.2f}",
            each["driver_calls"],
            f"{1000 * each['driver_seconds']:.2f}",
            size_text(each["peak_live_bytes"]),
            size_text(each["peak_reserved_bytes"]),
            f"{each['ratio']:.3f}",
            each["failed"],
        ]
        for each in results
    ]
    print_table(columns, rows, right=",".join(columns[1:]))
    for each in results:
        for error in each.get("errors", ()):
            complain(f"{each['stack']}: {error}")
