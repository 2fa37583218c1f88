"""The settings of a backend (`Configurable`): the usual kinds of them, and a check of what ``configure`` is given."""

from __future__ import annotations

from collections.abc import Mapping

from ..spi.errors import ConfigError
from ..spi.types import Option

_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def flag(help: str, default: bool = False) -> Option:
    """A setting that is on or off."""
    return Option(help, "0 | 1", default, parse_flag)


def count(help: str, default: int) -> Option:
    """A setting that is a whole number, 1 or more."""
    return Option(help, "a whole number, 1 or more", default, parse_count)


def choice(help: str, *allowed: str) -> Option:
    """A setting that is one of some words, of which the first is the default."""
    return Option(help, " | ".join(allowed), allowed[0], lambda text: allowed[allowed.index(text.lower())])


def parse_flag(text: str) -> bool:
    """Whether a text says on or off; KeyError if it says neither."""
    return _FLAGS[text.lower()]


def parse_count(text: str) -> int:
    """A whole number, 1 or more; ValueError if the text is none."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def checked(backend: str, given: Mapping[str, object], kinds: Mapping[str, type | Option]) -> Mapping[str, object]:
    """Return the settings as they are given.

    Parameters
    ----------
    backend : str
        Its name, for the message.
    given : mapping
        What ``configure`` got: values by the names of settings.
    kinds : mapping
        Of each setting that there is the type of its values, or the option, whose default has that type.

    Raises
    ------
    ConfigError
        A name is no setting, or a value is of another type. A bool is no int.
    """
    for name, value in given.items():
        if name not in kinds:
            has = ", ".join(sorted(kinds)) or "none"
            raise ConfigError(f"the backend {backend!r} has no setting {name!r}; it has: {has}")
        said = kinds[name]
        kind = said if isinstance(said, type) else type(said.default)
        if isinstance(said, Option) and (said.default is None or (said.default == "" and said.parse is not str.strip)):
            continue  # the default does not tell the type of what its own parse makes
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(
                f"the backend {backend!r}: {name}={value!r} is of the wrong type: give it as {kind.__name__}"
            )
    return given
