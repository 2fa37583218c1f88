"""``devmem simulate``: run a program for numba.cuda without a GPU."""

from __future__ import annotations

import click

from ..simulate.command import run
from .output import example


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=example("devmem simulate -- python program.py", "devmem simulate --race-check -- python -m pytest"),
)
@click.option("--race-check", is_flag=True, help="Report races of a block's threads on shared memory.")
@click.option(
    "--shuffle",
    type=int,
    metavar="SEED",
    help="Run threads and blocks in an order drawn from SEED.",
)
@click.option("--fast", is_flag=True, help="Compile kernels for the host with numba, where that gives the same.")
@click.option(
    "--report",
    type=click.Choice(["json"]),
    help="When the command has ended, write which kernels ran and what was found.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="The file for the report; else the standard output.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def simulate(
    context: click.Context,
    command: tuple[str, ...],
    race_check: bool,
    shuffle: int | None,
    fast: bool,
    report: str | None,
    output: str | None,
) -> None:
    """Run COMMAND, and all processes that it starts, with numba.cuda simulated: devmem simulate -- python program.py.

    The program is not changed. It gets devmem's drop-in by `from numba import cuda`, `import numba.cuda` and
    `from numba_cuda_mlir import cuda`, and needs no GPU, no driver and no CUDA. The exit code is the command's.
    """
    context.exit(
        run(
            command,
            race_check=race_check,
            shuffle=shuffle,
            fast=fast,
            report=bool(report or output),
            output=output,
        )
    )
