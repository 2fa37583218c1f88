"""Sizes, and their text."""

from __future__ import annotations

KiB, MiB = 1 << 10, 1 << 20


def shown(nbytes: int) -> str:
    """A size with its unit."""
    return f"{nbytes // MiB} MiB" if nbytes >= MiB else f"{nbytes // KiB} KiB"
