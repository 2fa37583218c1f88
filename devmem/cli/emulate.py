"""``devmem emulate``: run a command over an emulated driver library."""

from __future__ import annotations

import importlib
import os

import click

import devmem

from .completion import completes
from .execution import become
from .output import UNUSABLE, complain, example


@click.command(
    context_settings={"ignore_unknown_options": True}, epilog=example("devmem emulate cuda -- python program.py")
)
@click.option(
    "--runtime", is_flag=True, help="Emulate the CUDA runtime too, for programs that are linked with it (PyTorch)."
)
@click.option(
    "--layout",
    default="full",
    show_default=True,
    help="Of roc: versioned (libamdhip64.so.7 only) or old (fewer functions).",
)
@click.option(
    "--stand-ins",
    "packages",
    multiple=True,
    metavar="PACKAGE",
    help="Generate the libraries that this installed package links and the machine lacks; a call of one ends the process.",
)
@click.option("--races", is_flag=True, help="Warn of accesses that no stream order separates (sets DEVMEM_RACES=1).")
@click.argument("backend", shell_complete=completes(lambda: ["cuda", "roc", "cuda,roc"]))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def emulate(
    context: click.Context,
    backend: str,
    command: tuple[str, ...],
    runtime: bool,
    layout: str,
    packages: tuple[str, ...],
    races: bool,
) -> None:
    """Run COMMAND, and all processes that it starts, with BACKEND over an emulated driver: devmem emulate cuda -- python x.py.

    BACKEND is cuda, roc, or both (cuda,roc). DEVMEM_BACKEND is set to the first unless it is set.
    The exit code is the command's; 2 if there is no such emulator.
    """
    try:
        emulator = importlib.import_module("devmem.testing.emulator")
        additions: dict[str, str] = emulator.environment(backend, layout, runtime=runtime, stand_ins=packages)
    except (devmem.DevmemError, ImportError, ValueError, OSError) as error:
        complain(f"the backend {backend!r} cannot be emulated: {error}")
        context.exit(UNUSABLE)
    environment = {"DEVMEM_BACKEND": backend, **os.environ, **additions, **({"DEVMEM_RACES": "1"} if races else {})}
    become(command, environment)


def is_emulated(backend: str) -> bool:
    """Whether the driver of a backend is emulated in this process."""
    emulator = importlib.import_module("devmem.testing.emulator")
    try:
        emulator.control(backend)
    except (emulator.EmulatorNotLoaded, KeyError):  # KeyError: there is no emulator for that backend
        return False
    return True
