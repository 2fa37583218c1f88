"""What follows from the facts of a device that CUDA and HIP both have."""

from __future__ import annotations

from collections.abc import Mapping

from ..spi.types import MemoryKind


def memory_kinds(facts: Mapping[str, int], *, managed: bool = True) -> frozenset[MemoryKind]:
    """The kinds of memory that a device has; ``managed``: whether the library has the function that allocates it."""
    kinds = {MemoryKind.DEVICE, MemoryKind.PINNED}
    if facts["can_map_host_memory"]:
        kinds.add(MemoryKind.MAPPED)
    if facts["managed_memory"] and managed:
        kinds.add(MemoryKind.MANAGED)
    return frozenset(kinds)


def text(raw: bytes) -> str:
    """The text in a buffer that ends with a zero."""
    return raw.partition(b"\0")[0].decode(errors="replace")


def typed_facts(facts: Mapping[str, int], counts: frozenset[str]) -> dict[str, int]:
    """The facts as integers where they count something, else as True or False."""
    return {name: value if name in counts else bool(value) for name, value in facts.items()}
