"""Reductions of arrays on the device."""

from ..ufuncs import Reduce

__all__ = ["Reduce"]
