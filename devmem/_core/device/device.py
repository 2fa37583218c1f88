"""Devices: what they are, which is current, and opening and closing them."""

from __future__ import annotations

import atexit
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from ... import plugins
from ...spi.driver import Driver
from ...spi.errors import ClosedError, ConfigError, DeviceLost, ForkedError
from ...spi.types import DeviceInfo, MemoryInfo
from ...toolkit.deferred_errors import FirstError
from ..base import scopes
from ..base.config import forget, settings
from ..base.device_handle import CurrentDevice
from ..lifetime import page_locks
from ..ordering.completions import leaked
from .backends import chosen_name, statuses, usable_backend
from .open_device import OpenDevice, close_left_open, left_open

if TYPE_CHECKING:
    from types import TracebackType

_devices: dict[tuple[str, int], Device] = {}
_default: Device | None = None
_lock = threading.RLock()
_left_behind: set[str] = set()
_exiting = False
#: The device that is current in this thread or task, and what was current before each ``with device:``.
current: ContextVar[Device | None] = ContextVar("devmem_device", default=None)
_saved: ContextVar[tuple[Device | None, Any] | None] = ContextVar("devmem_saved_devices", default=None)


class Device:
    """One device of one backend. It opens at its first use, and in ``with device:`` it is the current one.

    Devices compare equal when they are the same device; `reset` does not change which device it is.
    """

    __slots__ = ("_before", "_opened", "backend", "ordinal")

    def __init__(self, backend: str, ordinal: int) -> None:
        self.backend = backend
        self.ordinal = ordinal
        self._opened: OpenDevice | None = None
        self._before: Device | None = None

    def __repr__(self) -> str:
        return f"<device {self}>"

    def __str__(self) -> str:
        return f"{self.backend}:{self.ordinal}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self.backend, self.ordinal) == (other.backend, other.ordinal)

    def __hash__(self) -> int:
        return hash((self.backend, self.ordinal))

    def __reduce__(self) -> tuple[object, ...]:
        return device_at, (self.backend, self.ordinal)

    def __enter__(self) -> Device:
        self.opened()
        saved = _saved.get()
        _saved.set((current.get(), saved))
        current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        entry = _saved.get()
        assert entry is not None, "left a device that was not entered here"
        before, rest = entry
        current.set(before)
        _saved.set(rest)

    @property
    def id(self) -> int:
        """The ordinal, under the name that CUDA programs know."""
        return self.ordinal

    @property
    def info(self) -> DeviceInfo:
        """Name, uuid, memory, architecture and capabilities."""
        return self.opened().handle.info

    @property
    def name(self) -> str:
        """What the vendor calls the device."""
        return self.info.name

    def memory_info(self) -> MemoryInfo:
        """Bytes ``(free, total, live, pending, cached)`` of this device."""
        return self.opened().memory.memory_info()

    def synchronize(self) -> None:
        """Wait until everything that was enqueued on this device is done."""
        opened = self.opened()
        with CurrentDevice(opened.handle) as driver:
            driver.synchronize()
            opened.completions.poll()

    def reset(self) -> None:
        """Wait, free all that devmem has on this device, and close it. Handles made before raise ClosedError from then on.

        The device can be used again at once. Pinned, mapped and managed host arrays that are still referenced stay readable.
        What it has registered ends. Pages that another device has registered too stay locked, and what the driver keeps for
        them (on CUDA the primary context) stays until they are deregistered there.
        """
        _close(self, "was reset")

    def driver(self) -> Driver:
        """The open device's driver, for tests and extensions; call it inside ``with device.entered():``."""
        driver: Driver = self.opened().handle.driver
        return driver

    def entered(self) -> CurrentDevice:
        """``with device.entered() as driver:`` make the device current for the driver's own calls."""
        return CurrentDevice(self.opened().handle)

    def opened(self) -> OpenDevice:
        """Everything that lives while the device is open; opens it if it is not."""
        opened = self._opened
        if opened is None or opened.handle.dead is not None:
            opened = self._opened = _open(self)
        return opened


def device_at(backend: str, ordinal: int) -> Device:
    """The one object for a device, without looking whether it exists."""
    with _lock:
        found = _devices.get((backend, ordinal))
        if found is None:
            found = _devices[backend, ordinal] = Device(backend, ordinal)
        return found


def device_of(what: object) -> Device:
    """The device that an argument means: a Device, an ordinal, ``"cuda:1"``, ``"cuda"`` or None for the current one.

    Raises
    ------
    ConfigError
        There is no such backend or device.
    BackendUnavailable
        The backend cannot be used here.
    """
    if what is None:
        return current_device()
    if isinstance(what, Device):
        return what
    if isinstance(what, str):
        name, colon, ordinal = what.partition(":")
        if name.isdecimal() and not colon:
            return checked_device(current_device().backend, int(name), what)
        if colon and not ordinal.isdecimal():
            raise ConfigError(f"{what!r} names no device: write a backend and an ordinal, 'cuda:1'")
        try:
            return checked_device(name, int(ordinal) if colon else 0, what)
        except ConfigError as error:
            there = [f"{each.name}:{at}" for each in statuses() if each.usable for at in range(each.devices)]
            raise ConfigError(f"{error}; the devices here: {', '.join(there)}") from None
    try:
        if isinstance(what, bool):
            raise TypeError
        number = what.__index__()  # type: ignore[attr-defined]
    except (TypeError, AttributeError):
        raise TypeError(f"a device is a devmem.Device, an ordinal, or text such as 'cuda:1', not {what!r}") from None
    return checked_device(current_device().backend, number, what)


def checked_device(backend: str, ordinal: int, asked: object) -> Device:
    """A device that is there."""
    count = usable_backend(backend).device_count()
    if not 0 <= ordinal < count:
        raise ConfigError(f"there is no device {asked!r}: the backend {backend!r} has {count}, numbered from 0")
    return device_at(backend, ordinal)


def current_device() -> Device:
    """The device that is current in this thread or task, else the default of the chosen backend."""
    return current.get() or _default or _find_default()


def default_device(backend: str) -> Device:
    """The device of a backend that is used where none is named."""
    number = settings().device
    return checked_device(backend, number, f"DEVMEM_DEVICE={number}")


def current_open_device() -> OpenDevice:
    """The open device of the current one."""
    device = current.get() or _default or _find_default()
    opened = device._opened
    return opened if opened is not None and opened.handle.dead is None else device.opened()


def open_device_of(device: object) -> OpenDevice:
    """The open device that an argument means."""
    return current_open_device() if device is None else device_of(device).opened()


def select(what: object) -> Device:
    """Make a device current from now on; used in ``with``, the result puts back what was current before."""
    chosen = Selected(device_of(what))
    chosen.opened()
    current.set(device_at(chosen.backend, chosen.ordinal))
    return chosen


class Selected(Device):
    """A device that was made current by a call."""

    __slots__ = ()

    def __init__(self, device: Device) -> None:
        super().__init__(device.backend, device.ordinal)
        self._before = current.get()

    def __enter__(self) -> Device:
        return device_at(self.backend, self.ordinal)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        current.set(self._before)

    def opened(self) -> OpenDevice:
        """The open device of the one device object."""
        return device_at(self.backend, self.ordinal).opened()


def open_devices() -> list[OpenDevice]:
    """Every device that is open."""
    with _lock:
        return [
            device._opened
            for device in _devices.values()
            if device._opened is not None and device._opened.handle.dead is None
        ]


def close_all() -> None:
    """Close every open device of every backend; the next use opens afresh, and reads the settings again."""
    global _default
    with FirstError() as first:
        for opened in open_devices():
            try:
                _close(cast(Device, opened.device), "was closed")
            except Exception as error:  # the other devices must still be closed
                first.put(error)
        first.attempt(close_left_open)
        with _lock:
            _default = None
        forget()


def _find_default() -> Device:
    global _default
    _default = default_device(chosen_name())
    return _default


def _open(device: Device) -> OpenDevice:
    with _lock:
        # Another thread may have opened it while this one waited.
        if device._opened is not None and device._opened.handle.dead is None:
            return device._opened
        if device.backend in _left_behind:
            raise ForkedError(
                f"the backend {device.backend!r} was in use before this process was forked, and cannot be used in the child "
                f"(pid {os.getpid()}): open devices after forking, or start processes with the 'spawn' method"
            )
        if _exiting:
            raise ClosedError(f"{device} cannot be opened any more: the interpreter is exiting")
        close_left_open()
        driver = _open_driver(device)
        try:
            opened = OpenDevice(device, driver)
        except BaseException:
            driver.close()
            raise
        device._opened = opened
        return opened


def _open_driver(device: Device) -> Driver:
    try:
        return usable_backend(device.backend).open(device.ordinal)
    except DeviceLost as error:
        blocks = sum(opened.memory.lent_blocks() for opened, _ in left_open if opened.device == device)
        if blocks:
            error.args = (
                f"{error}; {blocks} page-locked or managed blocks of it are still referenced, which keeps it from starting "
                f"afresh: drop those arrays, and use the device again",
            )
        raise


def _close(device: Device, why: str) -> None:
    with _lock:
        canonical = device_at(device.backend, device.ordinal)
        opened = canonical._opened
    if opened is not None and opened.handle.dead is None:
        opened.close(why)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    scopes.deferral.depth = 0  # blocks of threads that do not exist here
    plugins.registry.lock = threading.RLock()
    page_locks.forget_after_fork()
    leaked.extend(left_open)
    left_open.clear()
    for device in list(_devices.values()):
        if device._opened is not None and device._opened.handle.dead is None:
            _left_behind.add(device.backend)
            device._opened.forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _at_exit() -> None:
    """From here on nothing of ours touches a driver: not a finalizer, nor the end of a block that a generator held open."""
    global _exiting
    _exiting = True
    for device in list(_devices.values()):
        if device._opened is not None and device._opened.handle.dead is None:
            device._opened.forget_at_exit()
