"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

from ...spi.errors import ConfigError

ALLOWED = "a number of bytes, with a unit (KiB, MiB, GiB, TiB, KB, MB, GB, TB) or without"
ALLOWED_SHARE = f"{ALLOWED}, or a share of the device's memory (80%)"

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS[_letter + "ib"] = 1024**_power
    _UNITS[_letter + "b"] = 1000**_power
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


def parse_size(size: int | str) -> int:
    """Bytes of ``4096``, ``"64MiB"``, ``"1.5 GB"``; ConfigError for anything else."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size.strip().lower()) if isinstance(size, str) else None
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"{size!r} is not a size: give {ALLOWED}")
    return int(float(found[1]) * _UNITS[found[2]]) if "." in found[1] else int(found[1]) * _UNITS[found[2]]


def check_size(size: int | str) -> int | str:
    """A size, or a share of the device's memory, which is told in bytes once the device is known: see `bytes_of`."""
    return size if _share(size) is not None else parse_size(size)


def bytes_of(size: int | str, total: int) -> int:
    """Bytes of a size that may be a share of ``total``."""
    share = _share(size)
    return parse_size(size) if share is None else int(total * share / 100)


def _share(size: int | str) -> float | None:
    found = _SHARE.fullmatch(size.strip()) if isinstance(size, str) else None
    if found is None:
        return None
    share = float(found[1])
    if not 0 < share <= 100:
        raise ConfigError(f"{size!r} is not a share of the device's memory: give more than 0% and at most 100%")
    return share
