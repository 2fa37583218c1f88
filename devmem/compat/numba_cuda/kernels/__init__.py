"""What numba.cuda has of ready-made kernels."""

from . import transpose

__all__ = ["transpose"]
