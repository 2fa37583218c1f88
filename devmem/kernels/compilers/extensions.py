"""What devmem's names are to whatever numba has been imported."""

from __future__ import annotations

import importlib
import sys
from typing import Any

#: The compiler's package here, by the module of numba that has to be there for it.
_OURS = {"numba.cuda": "numba_cuda", "numba.hip": "numba_hip"}


def type_of(name: object) -> Any:
    """The type of a name, of the first numba that is imported and compiles; AttributeError, as for an attribute, if none is."""
    for theirs, ours in _OURS.items():
        if theirs in sys.modules:
            found = importlib.import_module(f"{__package__}.{ours}").type_of_name(name)
            if found is not None:
                return found
    raise AttributeError("_numba_type_")
