"""The functions of ``numba.cuda.fp16``, as the simulator computes them: in double precision, rounded once."""

# Rules: https://docs.nvidia.com/cuda/cuda-math-api/cuda_math_api/group__CUDA__MATH__INTRINSIC__HALF.html
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .exact import larger, smaller

_HALF = np.float16


def _of_halves(function: Callable[..., Any], result: Any = _HALF) -> Callable[..., Any]:
    def compute(*given: Any) -> Any:
        return result(function(*(np.float64(_HALF(each)) for each in given)))

    return compute


_NUMPYS = "sin", "cos", "tanh", "log", "log2", "log10", "exp", "exp2", "sqrt", "ceil", "floor", "trunc", "rint"

FUNCTIONS: dict[str, Callable[..., Any]] = {f"h{name}": _of_halves(getattr(np, name)) for name in _NUMPYS}
FUNCTIONS |= {
    "habs": _of_halves(abs),
    "hadd": _of_halves(operator.add),
    "hdiv": _of_halves(operator.truediv),
    "hexp10": _of_halves(lambda x: np.power(10.0, x)),
    "hfma": _of_halves(lambda a, b, c: a * b + c),
    "hmax": _of_halves(larger),
    "hmin": _of_halves(smaller),
    "hmul": _of_halves(operator.mul),
    "hneg": _of_halves(operator.neg),
    "hrcp": _of_halves(lambda x: 1 / x),
    "hrsqrt": _of_halves(lambda x: 1 / np.sqrt(x)),
    "hsub": _of_halves(operator.sub),
    "htanh_approx": _of_halves(np.tanh),
}
FUNCTIONS |= {f"h{name}": _of_halves(getattr(operator, name), bool) for name in ("eq", "ne", "ge", "gt", "le", "lt")}
