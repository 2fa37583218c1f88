"""Lines of the program that led to a call: what is not devmem's own. They are for messages, and decide nothing."""

from __future__ import annotations

from inspect import currentframe
from types import FrameType

#: The name of the file, the line, the name of the function.
Site = tuple[str, int, str]


def caller_level() -> int:
    """The stacklevel at which a warning names the line outside devmem that led to the caller."""
    return _outside(currentframe())[1]


def call_site() -> Site:
    """The line outside devmem and NumPy that led to the caller."""
    return _site(_outside(currentframe(), ("devmem", "numpy"))[0])


def calling_frames(most: int) -> tuple[Site, ...]:
    """The lines outside devmem that led here, innermost first: at least one, and at most ``most``."""
    frame: FrameType | None = _outside(currentframe())[0]
    found: list[Site] = []
    while frame is not None and len(found) < most:
        found.append(_site(frame))
        frame = frame.f_back
    return tuple(found)


def _outside(asked: FrameType | None, packages: tuple[str, ...] = ("devmem",)) -> tuple[FrameType, int]:
    """The first frame behind this one that is of none of these packages, or the last there is; and its number, from 1."""
    frame = asked.f_back if asked is not None else None
    assert frame is not None, "CPython has frames, and what asked has a caller"
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in packages:
        level, frame = level + 1, frame.f_back
    return frame, level


def _site(frame: FrameType) -> Site:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
