"""The compiled core: `core` is the module in C, or None where Python does its work; `why` says which of them runs, and why.

What the core does in C it does as the Python code beside each call of it does; where something has to be decided it answers
None, and that code runs. ``DEVMEM_NATIVE`` is read when devmem is imported: ``0`` chooses Python, ``1`` makes a missing core an
ImportError.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from typing import Any

VARIABLE = "DEVMEM_NATIVE"
#: Raised whenever the core's functions change, here and in ``src/module.c``: a core that was built before is not used.
INTERFACE = 13


def _chosen() -> tuple[Any, str]:
    wish = os.environ.get(VARIABLE, "").strip().lower()
    if wish in ("0", "false", "no", "off"):
        return None, f"Python, as {VARIABLE}={wish} says"
    try:
        if "t" in getattr(sys, "abiflags", ""):  # it would be loaded, and crash
            raise ImportError("a free-threaded interpreter has other objects than it was compiled for")
        found = importlib.import_module("devmem._native.core")
        if getattr(found, "INTERFACE", 1) != INTERFACE:
            raise ImportError("it was built from older sources: install devmem again")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        reason = "it was not built, for want of a C compiler or of Python's headers" if missing else str(error)
        if wish:
            raise ImportError(f"{VARIABLE}={wish}, but the compiled core cannot be imported: {reason}") from error
        return None, f"Python, without the compiled core: {reason}"
    atexit.register(found.end)  # what other libraries let go of later ends with the process
    return found, "compiled"


#: The module, or None. Not typed: which of its functions runs is decided where it is called.
core, why = _chosen()
