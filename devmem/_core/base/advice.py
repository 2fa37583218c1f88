"""Names of other libraries for what devmem calls otherwise, or leaves to others: the AttributeError says which verb it is."""

from __future__ import annotations

from typing import NoReturn


class Absent:
    """Stands in a class where an attribute of another library's is looked for. ``hasattr`` says False, and the error what to do.

    A descriptor for each name, not a ``__getattr__``, which makes every look at an attribute slower.
    """

    __slots__ = ("_advice", "_name")

    def __init__(self, name: str, advice: str) -> None:
        self._name = name
        self._advice = advice

    def __get__(self, instance: object, owner: type) -> NoReturn:
        what = f"{owner.__name__!r} object has no attribute {self._name!r}: {self._advice}"
        raise AttributeError(what, name=self._name, obj=instance)


def advise(names: dict[str, str]) -> type:
    """A class to inherit from, in which names of other libraries are absent; by name, separated by blanks: the advice.

    Type checkers and ``dir`` are told nothing of them.
    """
    absent = {name: Absent(name, advice) for several, advice in names.items() for name in several.split()}

    def listed(self: object) -> list[str]:
        return sorted(set(object.__dir__(self)) - absent.keys())

    return type("Advice", (), {"__slots__": (), "__module__": __name__, "__dir__": listed, **absent})
