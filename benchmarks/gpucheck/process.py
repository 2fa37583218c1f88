"""Running a command with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from .step import LONGEST_TAIL, ROOT, Run, Step, clean


def child(run: Run, step: Step, command: list[str], seconds: float, **variables: str) -> tuple[int | None, str]:
    """Run a command in a process group of its own; return its exit code, or None after the time limit, and its output."""
    log = run.work / f"{step.name}.log"
    with log.open("ab") as out:
        begin = out.tell()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**run.env, **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its child processes too
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)  # a process that hangs in the kernel cannot be ended: do not wait for it
    with log.open("rb") as written:
        written.seek(begin)
        return code, written.read().decode(errors="replace")


def finish(step: Step, code: int | None, text: str) -> None:
    """The status of a step that is one command."""
    step.status = "unfinished" if code is None else "passed" if code == 0 else "failed"
    if code:
        step.failures.append({"id": step.name, "message": ended(code), "tail": clean(text)[-LONGEST_TAIL:]})
    if code is None:
        step.notes.append("its time was up")


def ended(code: int) -> str:
    """The exit status of a process as text."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
