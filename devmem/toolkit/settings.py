"""What `Configurable.configure` is given, checked: names that the backend has, and values of their type."""

from __future__ import annotations

from collections.abc import Mapping

from ..spi.errors import ConfigError


def checked(backend: str, given: Mapping[str, object], kinds: Mapping[str, type]) -> Mapping[str, object]:
    """Return the settings as they are given.

    Parameters
    ----------
    backend : str
        Its name, for the message.
    given : mapping
        What ``configure`` got: values by the names of settings.
    kinds : mapping
        The type of each setting that there is; from the environment all of a third party's are str.

    Raises
    ------
    ConfigError
        A name is no setting, or a value is of another type. A bool is no int.
    """
    for name, value in given.items():
        if name not in kinds:
            has = ", ".join(sorted(kinds)) or "none"
            raise ConfigError(f"the backend {backend!r} has no setting {name!r}; it has: {has}")
        if not isinstance(value, kinds[name]) or (kinds[name] is int and isinstance(value, bool)):
            raise ConfigError(
                f"the backend {backend!r}: {name}={value!r} is of the wrong type: give it as {kinds[name].__name__}"
            )
    return given
