"""Numbers of bytes and seconds, for people."""

from __future__ import annotations


def size_text(nbytes: int) -> str:
    """A number of bytes for people, in units of 1024: ``512 B``, ``4.0 KiB``."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def exact_size(nbytes: int) -> str:
    """A number of bytes for people, and the exact number: ``24 bytes``, ``1.5 MiB (1,600,000 bytes)``."""
    return f"{nbytes} bytes" if abs(nbytes) < 1024 else f"{size_text(nbytes)} ({nbytes:,} bytes)"


def time_text(seconds: float) -> str:
    """A number of seconds for people: ``21.0 µs``, ``3.2 ms``, ``1.5 s``."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if abs(seconds) * scale < 1000:
            return f"{seconds * scale:.1f} {unit}"
    return f"{seconds:.1f} s"
