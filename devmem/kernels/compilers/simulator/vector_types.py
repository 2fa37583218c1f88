"""The types of vectors of numba.cuda, such as ``float32x4`` and ``uint2``, as the simulator computes them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from .device_math import NUMBER_TYPES


class Vector:
    """One to four numbers of one type: ``v.x``, ``v.y``, ``v.z``, ``v.w``."""

    def __init__(self, parts: list[Any]) -> None:
        vars(self).update(zip("xyzw", parts, strict=False))


def vector(name: str, arguments: tuple[Any, ...]) -> Vector:
    """A vector of the type of a name, of numbers and of the elements of other vectors.

    Raises
    ------
    KeyError
        There is no such type.
    TypeError
        There are more elements than the type has, or fewer.
    """
    found = re.fullmatch(r"(\D+|\w+x)([1-4])", name)
    if found is None:
        raise KeyError(name)
    number = NUMBER_TYPES[np.dtype(found[1].removesuffix("x").replace("char", "byte")).type]
    parts = [part for each in arguments for part in (vars(each).values() if isinstance(each, Vector) else (each,))]
    if len(parts) != int(found[2]):
        raise TypeError(f"{name} has {found[2]} elements, and was given {len(parts)}")
    return Vector([number(part) for part in parts])
