"""numba.cuda's functions for kernels that devmem has no names for: numba-cuda compiles them, the simulator computes them."""

from __future__ import annotations

from ...kernels.functions import CudaFunction

__all__ = ["SIMULATED", "VECTORS", "CudaFunction"]
#: Functions of `numba.cuda`; `numba.cuda.libdevice` has more.
SIMULATED = frozenset(
    """
    activemask all_sync any_sync ballot_sync brev cbrt clz eq_sync ffs fma lanemask_lt ldca ldcg ldcs ldcv ldlu
    match_all_sync match_any_sync nanosleep popc selp shfl_down_sync shfl_sync shfl_up_sync shfl_xor_sync stcg stcs
    stwb stwt syncthreads_and syncthreads_count syncthreads_or syncwarp threadfence threadfence_block
    threadfence_system
    """.split()  # noqa: SIM905  (as a list, three times as long)
)
_KINDS = ["float", "double", "float32x", "float64x"]
_KINDS += [f"{sign}{kind}" for sign in ("", "u") for kind in ("char", "short", "int", "long", "longlong")]
_KINDS += [f"{sign}int{bits}x" for sign in ("", "u") for bits in (8, 16, 32, 64)]
#: Types of vectors, such as ``float4``, by the names of C, and ``float32x4``.
VECTORS = frozenset(f"{kind}{count}" for kind in _KINDS for count in (1, 2, 3, 4))
