"""What to write instead of the names that one vendor's compiler alone knows."""

from __future__ import annotations

from .names import PUBLIC

_EXCHANGE = "exchange values through devmem.shared.array and devmem.wavebarrier()"
_NEUTRAL = {
    "syncwarp": "write devmem.wavebarrier()",
    "threadfence": "write devmem.mem_fence()",
    "threadfence_block": "write devmem.mem_fence(devmem.CLK_LOCAL_MEM_FENCE)",
    "threadfence_system": "write devmem.mem_fence(), which reaches no further than the device",
    "lanemask_lt": "write (1 << devmem.laneid) - 1",
    "fma": "write a * b + c",
    "selp": "write a if condition else b",
    "cbrt": "write math.copysign(abs(x) ** (1 / 3), x)",
    "types": "write NumPy's, such as np.float32",
    "cg": "blocks cannot wait for each other on every device: end the kernel, and launch another one behind it",
}
_NEUTRAL |= dict.fromkeys(
    ("syncthreads_and", "syncthreads_count", "syncthreads_or"),
    "collect it with devmem.atomic in a devmem.shared.array, between barriers",
)


def instead(name: str) -> str:
    """The neutral way to do what a name of numba.cuda's or numba.hip's does, as advice; or that there is none."""
    if name in PUBLIC:
        return f"write devmem.{name}"
    if name.startswith("shfl_") or name.endswith("_sync"):
        return _EXCHANGE
    return _NEUTRAL.get(name, "there is no name for it that works everywhere")
