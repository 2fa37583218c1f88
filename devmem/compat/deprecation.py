"""Warnings at the calling line outside devmem: of names of older releases, which are accepted, and others."""

from __future__ import annotations

import sys
import warnings


def warn_old_name(spelling: str, instead: str) -> None:
    """Warn of an old name."""
    warn_caller(f"{spelling} is the spelling of an old release: write {instead}", DeprecationWarning)


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the calling line outside devmem."""
    level, frame = 2, sys._getframe(1)  # 1 would be this function
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "devmem":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
