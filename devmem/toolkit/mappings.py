"""Mappings of this process, by Linux's own list; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MAPS = Path("/proc/self/maps")


def mappings() -> Iterator[list[str]]:
    """The fields of each mapping in the order of addresses: addresses, permissions, offset, device, inode, and what is mapped."""
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        yield line.split(maxsplit=5)


def permissions_of(start: int, end: int) -> set[str]:
    """Return the permissions of the mappings within this range: ``rw``, ``r-`` and the like."""
    permissions = set()
    for addresses, permission, *_ in mappings():
        low, high = (int(each, 16) for each in addresses.split("-"))
        if low < end and high > start:
            permissions.add(permission[:2])
    return permissions
