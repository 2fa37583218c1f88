"""Programs for numba.cuda, unchanged, on the host backend and its simulator: ``devmem simulate -- COMMAND``.

A command is run with `environment`: its Python processes import ``startup/sitecustomize.py`` first, which has ``numba.cuda`` and
``numba_cuda_mlir.cuda`` be devmem's drop-in. `start` does the same in a process that runs already.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from .._core.device.opening import open_devices

__all__ = ["environment", "start"]

STARTUP = str(Path(__file__).with_name("startup"))


def environment(*, race_check: bool = False, shuffle: int | None = None, fast: bool = False) -> dict[str, str]:
    """Return the environment variables with which a command and its child processes simulate.

    Parameters
    ----------
    race_check, shuffle, fast
        As in `devmem.simulator`, where ``fast`` is a mode. What is not given stays as the environment has it.
    """
    paths = os.environ["PYTHONPATH"].split(os.pathsep) if os.environ.get("PYTHONPATH") else []
    found = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([STARTUP, *paths])),
        "DEVMEM_BACKEND": "host",
        "NUMBA_ENABLE_CUDASIM": "0",  # numba's own simulator, which programs ask for
    }
    if race_check:
        found["DEVMEM_SIM_RACE_CHECK"] = "1"
    if shuffle is not None:
        found["DEVMEM_SIM_SHUFFLE"] = str(shuffle)
    if fast:
        found["DEVMEM_SIM"] = "fast"
    return found


def start() -> None:
    """Simulate in this process and in those that it starts, from now on.

    Raises
    ------
    RuntimeError
        ``numba.cuda`` is imported already, or a device of another backend is open, which the program would get.
    """
    others = sorted({each.device.backend for each in open_devices()} - {"host"})
    if others:
        raise RuntimeError(
            f"a device of the backend {', '.join(others)} is open in this process, and kernels are simulated on the host: "
            f"simulate before devmem is used, or call devmem.close() first"
        )
    before = list(sys.path)
    if STARTUP not in sys.path:
        sys.path.insert(0, STARTUP)
    try:
        # Not as a part of this package: the processes of a command import it without devmem, and each has it once.
        importlib.import_module("devmem_redirect").install()
    except RuntimeError:
        sys.path[:] = before
        raise
    os.environ.update(environment())
