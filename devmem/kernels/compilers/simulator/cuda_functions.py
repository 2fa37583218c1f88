"""Functions that numba.cuda's compiler has and other vendors' have not, as the simulator computes them.

They are CUDA's: `clz` and `popc` count the bits of the argument's type, `brev` and `ffs` those of 32 or 64; a shift that leaves
the wave, and one from a lane that does not take part, gives the lane's own value.
"""

# Rules: https://nvidia.github.io/numba-cuda/reference/kernel.html
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...names import CLK_GLOBAL_MEM_FENCE, CLK_LOCAL_MEM_FENCE
from .exact import brev, clz, ffs, fma, popc
from .half_precision import FUNCTIONS as HALF_PRECISION
from .numbers import kernel_number, numpy_type
from .vector_types import vector

_WHOLE = 0xFFFFFFFF
_INT32, _UINT32 = np.int32, np.uint32


def call(item: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    """Call the function of a name for a work-item, ``libdevice.sqrt`` among them; KeyError if the simulator has none."""
    space, _, last = name.rpartition(".")
    if space == "libdevice":
        from .libdevice import FUNCTIONS as LIBDEVICE  # three hundred functions, which few kernels use

        found = LIBDEVICE[last](*arguments)
    elif space == "fp16":
        found = HALF_PRECISION[last](*arguments)
    elif name in FUNCTIONS:
        found = FUNCTIONS[name](item, *arguments)
    else:
        found = vector(name, arguments)
    return tuple(map(kernel_number, found)) if isinstance(found, tuple) else kernel_number(found)


# -- bits --------------------------------------------------------------------------------------------------------------


def _of_bits(function: Callable[[Any, int], int], result: Any = None, least: int = 32) -> Callable[[Any, Any], Any]:
    """A function of an integer's bits, at least of ``least``; ``result`` None: an unsigned integer of as many."""

    def compute(item: Any, x: Any) -> Any:
        native = np.dtype(numpy_type(type(x)) or np.int64)
        if native.kind not in "biu":
            raise TypeError(f"the function takes an integer, not {x!r}")
        width = max(native.itemsize * 8, least)
        return (result or np.dtype(f"u{width // 8}").type)(function(x, width))

    return compute


# -- numbers -----------------------------------------------------------------------------------------------------------


def _cbrt(item: Any, x: Any) -> Any:
    return np.cbrt(x if isinstance(x, np.float32) else np.float64(x))


# -- the lanes of a wave -----------------------------------------------------------------------------------------------


def _mask(mask: Any) -> int:
    return int(mask) & _WHOLE


def _ballot(item: Any, mask: Any, predicate: Any) -> Any:
    return _UINT32(sum(1 << lane for lane, value in item.lane_values(_mask(mask), bool(predicate)).items() if value))


def _all(item: Any, mask: Any, predicate: Any) -> Any:
    return all(item.lane_values(_mask(mask), bool(predicate)).values())


def _any(item: Any, mask: Any, predicate: Any) -> Any:
    return any(item.lane_values(_mask(mask), bool(predicate)).values())


def _equal(item: Any, mask: Any, predicate: Any) -> Any:
    return len(set(item.lane_values(_mask(mask), bool(predicate)).values())) == 1


def _match_any(item: Any, mask: Any, value: Any) -> Any:
    values = item.lane_values(_mask(mask), value)
    return _INT32(_signed(sum(1 << lane for lane, other in values.items() if other == value)))


def _match_all(item: Any, mask: Any, value: Any) -> Any:
    values = item.lane_values(_mask(mask), value)
    same = all(other == value for other in values.values())
    return _INT32(_signed(_mask(mask) if same else 0)), same


def _signed(mask: int) -> int:
    return mask - (1 << 32) if mask >> 31 else mask


def _shuffle(source: Callable[[Any, Any], int]) -> Callable[..., Any]:
    """A shuffle: ``source`` is the lane that a work-item takes the value of."""

    def shuffle(item: Any, mask: Any, value: Any, by: Any) -> Any:
        return item.lane_values(_mask(mask), value).get(source(item, int(by)), value)

    return shuffle


def _down(item: Any, by: int) -> int:
    return item.lane + by if item.lane + by < item.wave_size else item.lane  # type: ignore[no-any-return]


def _sync_warp(item: Any, mask: Any = _WHOLE) -> None:
    if _mask(mask) == _WHOLE:
        item.wave_barrier()
    else:
        item.lane_values(_mask(mask), None)


#: By the names of numba.cuda; each is given the work-item and the arguments.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "activemask": lambda item: _UINT32(item.converged_lanes()),
    "all_sync": _all,
    "any_sync": _any,
    "ballot_sync": _ballot,
    "brev": _of_bits(brev),
    "cbrt": _cbrt,
    "clz": _of_bits(clz, _INT32, least=8),
    "eq_sync": _equal,
    "ffs": _of_bits(ffs, _UINT32),
    "fma": lambda item, a, b, c: fma(a, b, c),
    "lanemask_lt": lambda item: _UINT32((1 << item.lane) - 1),
    "match_all_sync": _match_all,
    "match_any_sync": _match_any,
    "nanosleep": lambda item, ns: None,
    "popc": _of_bits(popc, _INT32, least=8),
    "selp": lambda item, a, b, c: b if a else c,
    "shfl_down_sync": _shuffle(_down),
    "shfl_sync": _shuffle(lambda item, lane: lane % item.wave_size),
    "shfl_up_sync": _shuffle(lambda item, by: item.lane - by),
    "shfl_xor_sync": _shuffle(lambda item, by: item.lane ^ by),
    "syncthreads_and": lambda item, predicate: _INT32(all(item.block_values(bool(predicate)))),
    "syncthreads_count": lambda item, predicate: _INT32(sum(item.block_values(bool(predicate)))),
    "syncthreads_or": lambda item, predicate: _INT32(any(item.block_values(bool(predicate)))),
    "syncwarp": _sync_warp,
    "threadfence": lambda item: item.fence(CLK_GLOBAL_MEM_FENCE),
    "threadfence_block": lambda item: item.fence(CLK_LOCAL_MEM_FENCE),
    "threadfence_system": lambda item: item.fence(CLK_GLOBAL_MEM_FENCE),
}
FUNCTIONS |= dict.fromkeys(("ldca", "ldcg", "ldcs", "ldcv", "ldlu"), lambda item, ary, index: ary[index])
FUNCTIONS |= dict.fromkeys(
    ("stcg", "stcs", "stwb", "stwt"), lambda item, ary, index, value: ary.__setitem__(index, value)
)
