"""numba.cuda's ready-made kernels."""

from . import transpose

__all__ = ["transpose"]
