"""Tuples as arguments of kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def tuple_like(given: tuple[Any, ...], items: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of other items, with the names of the given one if it is a named tuple."""
    make = getattr(type(given), "_make", tuple)
    found: tuple[Any, ...] = make(items)
    return found
