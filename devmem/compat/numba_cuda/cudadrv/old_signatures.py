"""Signatures of older releases: arguments under their old names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ...deprecation import old

F = TypeVar("F", bound=Callable[..., Any])

#: What stands for an argument that was not given.
MISSING: Any = object()


def shown_as(sample: Callable[..., Any]) -> Callable[[F], F]:
    """Show a function with the signature of another one: without the old spellings that it takes besides."""

    def show(function: F) -> F:
        function.__signature__ = inspect.signature(sample)  # type: ignore[attr-defined]
        return function

    return show


def renamed(given: dict[str, Any], name: str, instead: str, function: str) -> Any:
    """The value of an argument's old name, taken out of what was given; MISSING if it was not."""
    if name not in given:
        return MISSING
    old(f"{function}({name}=...)", f"{instead}=" if instead else "nothing: it has no effect")
    return given.pop(name)


def refuse_rest(given: dict[str, Any], function: str) -> None:
    """Raise TypeError for keywords that nobody ever had."""
    if given:
        raise TypeError(f"{function}() got an unexpected keyword argument {next(iter(given))!r}")


def is_context(value: Any) -> bool:
    """Whether it is a context, which older releases had as the first argument."""
    return hasattr(value, "memory_manager") and hasattr(value, "get_memory_info")
