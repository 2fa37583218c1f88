"""Backends, devices, and which is current."""

from __future__ import annotations

from .._core.base.config import Setting, describe
from .._core.base.config import settings as _settings
from .._core.base.plugin_registry import registry
from .._core.base.scopes import Scope
from .._core.device.backends import BackendStatus, statuses, usable_backend
from .._core.device.device import (
    Device,
    DeviceLike,
    close_all,
    current_device,
    default_device,
    device_at,
    device_of,
    select,
)
from .._core.ordering.stream import chosen_device, place
from ..plugins import LAST_RESORT
from ..spi.driver import Backend


def backends() -> list[BackendStatus]:
    """Every backend with its state: whether it can be used here, else why not and what would help. Opens no device.

    Examples
    --------
    >>> [status.name for status in dm.backends() if status.usable]
    ['host']
    """
    return statuses()


def devices() -> list[Device]:
    """All devices of all backends that can be used here, in order of preference.

    Examples
    --------
    >>> dm.devices()
    [<device host:0...>, <device host:1...>]
    """
    return [device_at(status.name, i) for status in statuses() if status.usable for i in range(status.devices)]


def devices_of_current_backend() -> list[Device]:
    """All devices of the current device's backend; the others are not asked, which may load their drivers."""
    backend = current_device().backend
    return [device_at(backend, i) for i in range(device_count(backend))]


def is_available(backend: str | None = None) -> bool:
    """Whether a backend can be used here; without a name, whether any is that has an accelerator, and that need not be named.

    Examples
    --------
    >>> dm.is_available("host")
    True
    """
    usable = [status for status in statuses() if status.usable]
    if backend is not None:
        return any(status.name == backend for status in usable)
    return any(status.name != LAST_RESORT and not status.by_name_only for status in usable)


def device_count(backend: str | None = None) -> int:
    """Count the devices of a backend; without a name, of the current one: ``devmem.device(0)`` and so on.

    Examples
    --------
    >>> dm.device_count("host")
    2
    """
    return usable_backend(current_device().backend if backend is None else backend).device_count()


def device(what: DeviceLike = None) -> Device:
    """Look up a device: ``"cuda:1"``, ``"cuda"``, an ordinal of the current backend, or nothing for the current one.

    In ``with devmem.device("cuda:1"):`` it is the current device of this thread or task, and of tasks that are begun inside.

    Examples
    --------
    >>> with dm.device("host:1"):
    ...     dm.zeros(3).device
    <device host:1...>
    """
    return device_of(what)


def select_device(what: DeviceLike) -> Device:
    """Make a device current from now on, or in ``with`` for this thread or task until the end of the block.

    From now on means: in this thread, whatever tasks it runs, to the end of the ``with`` block of a device, stream or backend
    that is around the call, if there is one. In a task, use ``with``: a block there is for that task, and for what is begun
    inside. A block takes back its own choice alone, in whatever order, thread or task it is left.

    Examples
    --------
    >>> with dm.select_device(1):
    ...     dm.current_device()
    <device host:1...>
    """
    return select(what)


def use_backend(name: str) -> Scope[str]:
    """Choose the backend from now on, or in ``with`` for this thread or task until the end of the block.

    It chooses the backend's default device: how far "from now on" reaches is said at `select_device`. ``close()`` of the result
    takes the choice back.

    Raises
    ------
    BackendUnavailable
        It cannot be used here; the message says why and what would help.
    ConfigError
        No plugin supplies a backend of that name.

    Examples
    --------
    >>> with dm.use_backend("host"):
    ...     dm.current_device().backend
    'host'
    """
    return Scope(name, place, default_device(name))


def chosen_backend() -> str | None:
    """The backend that was chosen, by a scope or by DEVMEM_BACKEND; None where devmem would pick one itself.

    For namespaces that prefer another one then.
    """
    chosen = chosen_device()
    return chosen.backend if chosen is not None else _settings().backend or None


def register_backend(backend: Backend) -> None:
    """Add a backend by hand, as an installed plugin would; for tests, and for trying one out.

    Examples
    --------
    >>> from devmem.backends.host.hooks import HostBackend
    >>> class Mine(HostBackend):
    ...     name = "mine"
    >>> dm.register_backend(Mine())
    >>> dm.device_count("mine")
    1
    >>> dm.unregister_backend("mine")
    """
    registry().add_backend(backend, "register_backend()")


def unregister_backend(name: str) -> None:
    """Take back `register_backend`, after closing what is open of it.

    Examples
    --------
    >>> from devmem.backends.host.hooks import HostBackend
    >>> class Mine(HostBackend):
    ...     name = "mine"
    >>> dm.register_backend(Mine())
    >>> dm.unregister_backend("mine")
    >>> dm.is_available("mine")
    False
    """
    for each in [d for d in devices() if d.backend == name]:
        each.reset()
    registry().remove_backend(name)


def settings() -> list[Setting]:
    """Every setting as it stands: its variable, value, and where the value came from.

    Examples
    --------
    >>> [setting.source for setting in dm.settings() if setting.name == "DEVMEM_TRANSFER_GUARD"]
    ['default']
    """
    return describe()


def close() -> None:
    """Close every open device of every backend, after waiting for it; handles raise ClosedError from then on.

    The next use opens afresh, and reads the settings again.

    Raises
    ------
    DevmemError
        A signal's handler, or a finalizer, called this in the middle of another call on a device, on the same thread. The other
        devices are closed even so.

    Examples
    --------
    >>> d = dm.zeros(3)
    >>> dm.close()
    >>> d.copy_to_host()
    Traceback (most recent call last):
        ...
    devmem.ClosedError: ...
    >>> dm.zeros(3).copy_to_host()          # the device is opened anew
    array([0., 0., 0.])
    """
    close_all()


def reset(device: DeviceLike = None) -> None:
    """Free all that devmem has on a device (the current one, if none is named) and close it, as `Device.reset` says.

    Examples
    --------
    >>> d = dm.zeros(3)
    >>> dm.reset()
    >>> d.copy_to_host()
    Traceback (most recent call last):
        ...
    devmem.ClosedError: ...
    """
    device_of(device).reset()
