"""Numba's switches: in the environment, and in ``numba.config`` of programs that import Numba."""

from __future__ import annotations

import os
import sys

#: Where Numba, numba-cuda and its successor have their settings. A program that sets one has imported the module.
CONFIGS = ("numba.core.config", "numba.cuda.core.config", "numba_cuda_mlir.numba_cuda.core.config")


def switch(name: str, default: bool) -> bool:
    """A switch, by its name in ``numba.config``: the default unless the environment or one of the modules says otherwise."""
    said = [os.environ.get(f"NUMBA_{name}", str(int(default))) not in ("", "0")]
    said += [bool(getattr(sys.modules.get(config), name, default)) for config in CONFIGS]
    return default if all(each is default for each in said) else not default
