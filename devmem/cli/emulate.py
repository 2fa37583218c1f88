"""``devmem emulate``: run a command over an emulated driver library."""

from __future__ import annotations

import importlib
import os

import click

import devmem

from .output import UNUSABLE, complain

#: Exit codes of a shell for a command that it cannot find or run.
NOT_FOUND, NOT_RUNNABLE = 127, 126


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("backend")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def emulate(context: click.Context, backend: str, command: tuple[str, ...]) -> None:
    """Run COMMAND, and all processes that it starts, with BACKEND over an emulated driver: devmem emulate cuda -- python x.py.

    BACKEND is cuda, roc, or both (cuda,roc). DEVMEM_BACKEND is set to the first unless it is set.
    The exit code is the command's; 2 if there is no such emulator.
    """
    try:
        emulator = importlib.import_module("devmem.testing.emulator")
        additions: dict[str, str] = emulator.environment(backend)
    except (devmem.DevmemError, ImportError, ValueError, OSError) as error:
        complain(f"the backend {backend!r} cannot be emulated: {error}")
        context.exit(UNUSABLE)
    environment = {"DEVMEM_BACKEND": backend, **os.environ, **additions}
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        complain(f"{command[0]}: no such command")
        context.exit(NOT_FOUND)
    except OSError as error:
        complain(f"{command[0]}: {error.strerror}")
        context.exit(NOT_RUNNABLE)


def is_emulated(backend: str) -> bool:
    """Whether the driver of a backend is emulated in this process."""
    emulator = importlib.import_module("devmem.testing.emulator")
    try:
        emulator.control(backend)
    except (emulator.EmulatorNotLoaded, KeyError):  # KeyError: there is no emulator for that backend
        return False
    return True
