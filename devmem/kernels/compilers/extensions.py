"""The types of devmem's names for kernels in the numba that is imported."""

from __future__ import annotations

import importlib
import sys
from typing import Any

#: The compiler's package here, by the module of numba that it is for.
_PACKAGES = {"numba.cuda": "numba_cuda", "numba.hip": "numba_hip"}


def type_of(name: object) -> Any:
    """The type of a name in the first imported numba that compiles; AttributeError if there is none."""
    for theirs, ours in _PACKAGES.items():
        if theirs in sys.modules:
            found = importlib.import_module(f"{__package__}.{ours}").type_of_name(name)
            if found is not None:
                return found
    raise AttributeError("_numba_type_")
