"""Backends, devices, and which is current."""

from __future__ import annotations

from typing import Any

from .._core.base.config import Setting, describe
from .._core.base.config import settings as _settings
from .._core.base.plugin_registry import registry
from .._core.base.scopes import Scope, choose
from .._core.device.backends import BackendStatus, statuses
from .._core.device.device import Device, close_all, current, default_device, device_at, device_of, select
from ..spi.driver import Backend


def backends() -> list[BackendStatus]:
    """Every backend with its state: whether it can be used here, else why not and what would help. Opens no device."""
    return statuses()


def devices() -> list[Device]:
    """All devices of all backends that can be used here, in order of preference."""
    return [device_at(status.name, i) for status in statuses() if status.usable for i in range(status.devices)]


def device(what: Any = None) -> Device:
    """Look up a device: ``"cuda:1"``, ``"cuda"``, an ordinal of the current backend, or nothing for the current one.

    In ``with devmem.device("cuda:1"):`` it is the current device of this thread or task.
    """
    return device_of(what)


def select_device(what: Any) -> Device:
    """Make a device current for this thread or task from now on, or in ``with`` until the end of the block."""
    return select(what)


def use_backend(name: str) -> Scope[str]:
    """Choose the backend for this thread or task from now on, or in ``with`` until the end of the block.

    Raises
    ------
    BackendUnavailable
        It cannot be used here; the message says why and what would help.
    ConfigError
        No plugin supplies a backend of that name.
    """
    return Scope(name, choose(current, default_device(name)))


def chosen_backend() -> str | None:
    """The backend that was chosen, by a scope or by DEVMEM_BACKEND; None where devmem would pick one itself.

    For namespaces that prefer another one then.
    """
    chosen = current.get()
    return chosen.backend if chosen is not None else _settings().backend or None


def register_backend(backend: Backend) -> None:
    """Add a backend by hand, as an installed plugin would; for tests, and for trying one out."""
    registry().add_backend(backend, "register_backend()")


def unregister_backend(name: str) -> None:
    """Take back `register_backend`, after closing what is open of it."""
    for each in [d for d in devices() if d.backend == name]:
        each.reset()
    registry().remove_backend(name)


def settings() -> list[Setting]:
    """Every setting as it stands: its variable, value, and where the value came from."""
    return describe()


def close() -> None:
    """Close every open device of every backend, after waiting for it; handles raise ClosedError from then on.

    The next use opens afresh, and reads the settings again.
    """
    close_all()


def reset(device: Any = None) -> None:
    """Free all that devmem has on a device (the current one, if none is named) and close it.

    Handles made before raise ClosedError; the device can be used again at once.
    """
    device_of(device).reset()
