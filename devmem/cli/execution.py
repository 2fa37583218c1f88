"""Run a command in another environment, with its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

#: Exit codes of a shell for a command that it cannot find or run.
NOT_FOUND, NOT_RUNNABLE = 127, 126


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command; where that cannot be, end it with a message and the exit code of a shell."""
    if os.name == "nt":  # there the process would end at once, with the status 0
        sys.exit(wait_for(command, environment))
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        sys.exit(_cannot(command, error))


def wait_for(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command and return its exit status, or 128 and the number of the signal that ended it, as a shell does."""
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if not running:
            early.append(number)
        elif number != signal.SIGINT:  # the terminal sends an interrupt to the command, too
            running[0].send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        running.append(subprocess.Popen(command, env=environment))
        for number in early:
            running[0].send_signal(number)
        status = running[0].wait()
    except OSError as error:
        return _cannot(command, error)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _cannot(command: Sequence[str], error: OSError) -> int:
    """Say why a command does not run, and return the exit code."""
    missing = isinstance(error, FileNotFoundError)
    print(f"devmem: {command[0]}: {'no such command' if missing else error.strerror}", file=sys.stderr)
    return NOT_FOUND if missing else NOT_RUNNABLE
