"""The warning of a host array that a launch copies: devmem's and, in a program that imports Numba, Numba's too."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import devmem

from ..deprecation import warn_caller
from .cudadrv.switches import switch

#: Where Numba, numba-cuda and its successor have the class. A program that filters by one has imported the module.
ERRORS = ("numba.core.errors", "numba.cuda.core.errors", "numba_cuda_mlir.numba_cuda.core.errors")
#: Numba's own words come first, as filters compare the beginning of the text.
NUMBAS_WORDS = "Host array used in CUDA kernel will incur copy overhead to/from device"


def warn_of_copy(argument: str) -> None:
    """Warn of a host array, described by its place, unless Numba's switches forbid it. How often it shows, filters say."""
    if not switch("CUDA_WARN_ON_IMPLICIT_COPY", True) or switch("DISABLE_PERFORMANCE_WARNINGS", False):
        return
    modules = (sys.modules.get(each) for each in ERRORS)
    found = {getattr(each, "NumbaPerformanceWarning", None): None for each in modules}
    warn_caller(
        f"{NUMBAS_WORDS}: {argument}, is uploaded before this launch and copied back after it, at every launch: keep it on the "
        f"device with cuda.to_device(), or choose the directions with cuda.In, Out or InOut",
        _category(*(each for each in found if each is not None)),
    )


@cache
def _category(*numbas: Any) -> type[Warning]:
    """A DevmemWarning that is of all these classes, too."""
    if not numbas:
        return devmem.DevmemWarning
    # One may derive from another; Python wants that one first, which is then enough.
    last = [each for each in numbas if not any(other is not each and issubclass(other, each) for other in numbas)]
    return type("ImplicitCopyWarning", (devmem.DevmemWarning, *last), {"__module__": __name__})
