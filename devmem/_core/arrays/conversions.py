"""One element as a number of Python's."""

from __future__ import annotations

from typing import Any


class Conversions:
    """``bool()``, ``int()``, ``float()`` and ``complex()`` of an array of one element."""

    __slots__ = ()

    def _value(self, what: str) -> Any:
        """The element, for what is asked, on the host."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        return bool(self._value("bool()"))

    def __int__(self) -> int:
        return int(self._value("int()"))

    def __float__(self) -> float:
        return float(self._value("float()"))

    def __complex__(self) -> complex:
        return complex(self._value("complex()"))
