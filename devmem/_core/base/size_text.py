"""Numbers of bytes as people write them."""

from __future__ import annotations

import re
import reprlib

from ...spi.errors import ConfigError

ALLOWED = "a whole number of bytes, or any number with a unit (KiB, MiB, GiB, TiB, KB, MB, GB, TB)"
ALLOWED_SHARE = f"{ALLOWED}, or a share of the device's memory (80%)"

#: More than any size has: Python refuses to read very long numbers.
MAX_DIGITS = 100

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS[_letter + "ib"] = 1024**_power
    _UNITS[_letter + "b"] = 1000**_power
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


def parse_size(size: int | str) -> int:
    """Bytes of ``4096``, ``"64MiB"``, ``"1.5 GB"``; ConfigError for anything else."""
    found = _SIZE.fullmatch(size.strip().lower()) if isinstance(size, str) else None
    nbytes: float = -1
    if isinstance(size, int) and not isinstance(size, bool):
        nbytes = size
    elif found is not None and found[2] in _UNITS and len(found[1]) <= MAX_DIGITS:
        unit = _UNITS[found[2]]
        if "." not in found[1]:
            nbytes = int(found[1]) * unit
        elif unit > 1:  # a fraction of a byte is none: a share of the memory is meant, or a unit is missing
            nbytes = float(found[1]) * unit
    if nbytes != 0 and not 1 <= nbytes < 1 << 64:
        raise ConfigError(f"{reprlib.repr(size)} is not a size: give {ALLOWED}, less than 2**64")
    return int(nbytes)


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
