"""The choice of a backend: the one asked for, else the first GPU backend that is usable, else the host with a warning."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

from ... import plugins
from ...spi.errors import BackendError, BackendUnavailable, ConfigError, DevmemError, DevmemWarning, PluginError
from ..base.call_site import caller_level
from ..base.config import options_of, settings
from ..base.plugin_registry import registry


@dataclass(frozen=True)
class BackendStatus:
    """The status of a backend: its name, whether it can be used here, else why not, its devices and who supplies it.

    ``by_name_only``: it is not chosen where no backend is named.

    Examples
    --------
    >>> [status.devices for status in dm.backends() if status.name == "host"]
    [2]
    """

    name: str
    usable: bool
    reason: str | None
    devices: int
    origin: str
    by_name_only: bool = False


#: What other libraries call a backend, and what it is here.
_OTHERS = {
    "cpu": "copy_to_host() copies to the host; 'host' is the backend without a GPU",
    "gpu": "where none is named, the first usable one of a GPU is taken",
    "nvidia": "NVIDIA's is 'cuda'",
    "amd": "AMD's is 'roc'",
    "rocm": "AMD's is 'roc'",
    "hip": "AMD's is 'roc'",
}
_fallen_back = False


def usable_backend(name: str) -> plugins.LoadedBackend:
    """The backend of that name, ready for use.

    Raises
    ------
    ConfigError
        No plugin supplies it.
    BackendUnavailable
        It cannot be used here; the message says why and what would help.
    """
    if not isinstance(name, str):
        raise TypeError(f"a backend is given by its name, not as {name!r}")
    found = registry().backend(name)
    if found is None:
        failure = registry().failures.get(name)
        if failure is not None and name in plugins.BUILT_IN:
            raise BackendUnavailable(f"the backend {name!r} cannot be used: {failure.message}")
        if failure is not None:
            raise PluginError(failure.message)
        known = sorted({*registry().every_backend(), *plugins.BUILT_IN})
        wrong = f"no backend is named {name!r} (DEVMEM_BACKEND, use_backend): give one of {', '.join(known)}"
        if name.lower() in known:
            wrong += f"; names are lower case, {name.lower()!r}"
        elif name.lower() in _OTHERS:
            wrong += f"; {_OTHERS[name.lower()]}"
        elif name.partition(":")[0] in known:
            wrong += f"; that names a device: devmem.device({name!r}), or DEVMEM_DEVICE for its number"
        raise ConfigError(wrong)
    found.configure(options_of)
    reason = found.unavailable()
    if reason is not None:
        raise BackendUnavailable(f"the backend {name!r} cannot be used: {reason}")
    return found


def chosen_name() -> str:
    """The name of the backend that the settings name, else the first that is usable."""
    return settings().backend or first_usable()


def first_usable() -> str:
    """The first GPU backend that can be used, else the host backend, with one warning that says why."""
    global _fallen_back
    reasons = []
    for name in plugins.BUILT_IN:
        if name == plugins.LAST_RESORT or name in plugins.BY_NAME_ONLY:
            continue
        reason = _reason(name)
        if reason is None:
            return name
        reasons.append(f"{name}: {_first_clause(reason)}")
    if not _fallen_back:
        _fallen_back = True
        warnings.warn(
            f"no GPU backend can be used ({'; '.join(reasons)}): devmem runs on the host.\n"
            f"`devmem doctor` says what to install; DEVMEM_BACKEND=host chooses the host backend and silences this",
            DevmemWarning,
            stacklevel=caller_level(),
        )
    return plugins.LAST_RESORT


def _first_clause(reason: str) -> str:
    """Return the first clause of a reason, without the places searched and the advice."""
    return re.split(r" \(|: |; |\n", reason, maxsplit=1)[0]


def statuses() -> list[BackendStatus]:
    """Every backend, usable or not, built-ins first."""
    found = registry().every_backend()
    failed = registry().failures
    every = []
    for name in dict.fromkeys([*plugins.BUILT_IN, *found, *failed]):
        reason, count, loaded = _reason(name), 0, found.get(name)
        if loaded is not None and reason is None:
            try:
                count = loaded.device_count()
            except (PluginError, BackendError) as error:
                reason = str(error)
        origin = loaded.origin if loaded is not None else failed[name].origin
        every.append(BackendStatus(name, reason is None, reason, count, origin, name in plugins.BY_NAME_ONLY))
    return every


def _reason(name: str) -> str | None:
    found = registry().backend(name)
    if found is None:
        failure = registry().failures.get(name)
        return failure.message if failure else "no plugin supplies it"
    try:
        found.configure(options_of)
        return found.unavailable()
    except (DevmemError, MemoryError) as error:  # a backend that fails must not take the others with it
        return str(error)
