"""Signatures of older releases: arguments under their old names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ...deprecation import warn_old_name

F = TypeVar("F", bound=Callable[..., Any])

#: What stands for an argument that was not given.
MISSING: Any = object()


def with_signature(sample: Callable[..., Any]) -> Callable[[F], F]:
    """Show a function with the signature of another one: without the old spellings that it takes besides."""

    def show(function: F) -> F:
        function.__signature__ = inspect.signature(sample)  # type: ignore[attr-defined]
        return function

    return show


def old_keyword(given: dict[str, Any], name: str, instead: str, function: str) -> Any:
    """The value of an argument's old name, taken out of what was given; MISSING if it was not."""
    if name not in given:
        return MISSING
    warn_old_name(f"{function}({name}=...)", f"{instead}=" if instead else "nothing: it has no effect")
    return given.pop(name)


def refuse_unknown(given: dict[str, Any], function: str) -> None:
    """Raise TypeError for keywords that nobody ever had."""
    if given:
        raise TypeError(f"{function}() got an unexpected keyword argument {next(iter(given))!r}")


def is_context(value: Any) -> bool:
    """Whether it is a context, which older releases had as the first argument."""
    return hasattr(value, "memory_manager") and hasattr(value, "get_memory_info")
