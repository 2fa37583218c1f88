"""Portable replacements for names that only one vendor's compiler has."""

from __future__ import annotations

from .names import PUBLIC

_EXCHANGE = "exchange values through devmem.shared.array and devmem.wavebarrier()"
_REPLACEMENTS = {
    "syncwarp": "write devmem.wavebarrier()",
    "threadfence": "write devmem.mem_fence()",
    "threadfence_block": "write devmem.mem_fence(devmem.CLK_LOCAL_MEM_FENCE)",
    "threadfence_system": "write devmem.mem_fence(), which covers the device and no more",
    "lanemask_lt": "write (1 << devmem.laneid) - 1",
    "fma": "write a * b + c",
    "selp": "write a if condition else b",
    "cbrt": "write math.copysign(abs(x) ** (1 / 3), x)",
    "types": "write NumPy's, such as np.float32",
    "cg": "blocks cannot wait for each other on every device: end the kernel, and launch another one after it",
}
_REPLACEMENTS |= dict.fromkeys(
    ("syncthreads_and", "syncthreads_count", "syncthreads_or"),
    "reduce with devmem.atomic into a devmem.shared.array, between barriers",
)


def portable_advice(name: str) -> str:
    """Advice on how to replace a name of numba.cuda or numba.hip on every backend."""
    if name in PUBLIC:
        return f"write devmem.{name}"
    if name.startswith("shfl_") or name.endswith("_sync"):
        return _EXCHANGE
    return _REPLACEMENTS.get(name, "no name for it works on every backend")
