"""``DEVMEM_SIM_LOG``: a line of JSON for each launch, appended to one file by all processes that are given its path.

A line is written at once: processes do not write into each other's, and one that dies loses none of those before.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...._core.base.config import settings
from ....spi.errors import DevmemWarning, SimulatorError


def record(function: Callable[..., object], error: BaseException | None, **facts: object) -> None:
    """Append a launch of a kernel, or a kernel that is refused, and the error that it ended with."""
    path = settings().sim_log
    if not path:
        return
    code = function.__code__
    entry = {"kernel": function.__qualname__, "file": code.co_filename, "line": code.co_firstlineno, "pid": os.getpid()}
    line = json.dumps({**entry, **facts, "error": None if error is None else _described(error)})
    try:
        with Path(path).open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())
    except OSError as problem:
        warnings.warn(f"DEVMEM_SIM_LOG={path!r} cannot be written: {problem.strerror}", DevmemWarning, stacklevel=2)


def _described(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, SimulatorError):
        return {"kind": type(error).__name__, "message": str(error)}
    place = {"block": error.block, "thread": error.thread, "file": error.filename, "line": error.lineno}
    return {"kind": error.kind, "message": str(error), **place}
