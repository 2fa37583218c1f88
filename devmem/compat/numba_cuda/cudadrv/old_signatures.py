"""Old argument names of numba.cuda's functions, which are still accepted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ...deprecation import warn_old_name

F = TypeVar("F", bound=Callable[..., Any])

#: The default of an argument that was not given.
MISSING: Any = object()


def with_signature(sample: Callable[..., Any]) -> Callable[[F], F]:
    """Give a function the signature of another one, which leaves out the old names that it also takes."""

    def show(function: F) -> F:
        function.__signature__ = inspect.signature(sample)  # type: ignore[attr-defined]
        return function

    return show


def old_keyword(given: dict[str, Any], name: str, instead: str, function: str) -> Any:
    """Pop the value given under an argument's old name, with a warning; MISSING if there is none."""
    if name not in given:
        return MISSING
    warn_old_name(f"{function}({name}=...)", f"{instead}=" if instead else "nothing: it has no effect")
    return given.pop(name)


def refuse_unknown(given: dict[str, Any], function: str) -> None:
    """Raise TypeError for unknown keywords."""
    if given:
        raise TypeError(f"{function}() got an unexpected keyword argument {next(iter(given))!r}")


def is_context(value: Any) -> bool:
    """Whether a value is a context, which was the first argument in older releases."""
    return hasattr(value, "memory_manager") and hasattr(value, "get_memory_info")
