"""The types of devmem's names for kernels in the numba that asks for them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

#: The compiler's package here, by the module of numba that it is for.
_PACKAGES = {"numba.cuda": "numba_cuda", "numba.hip": "numba_hip", "numba_cuda_mlir": "numba_cuda_mlir"}


def type_of(name: object) -> Any:
    """The type of a name in the numba that reads ``_numba_type_``, the caller of this function's caller.

    For any other reader, in the first imported numba that compiles; AttributeError if there is none.
    """
    reader = f"{sys._getframe(2).f_globals.get('__name__')}."
    asking = [theirs for theirs in _PACKAGES if reader.startswith(f"{theirs}.")]
    for theirs in asking or _PACKAGES:
        if theirs in sys.modules:
            found = importlib.import_module(f"{__package__}.{_PACKAGES[theirs]}").type_of_name(name)
            if found is not None:
                return found
    raise AttributeError("_numba_type_")
