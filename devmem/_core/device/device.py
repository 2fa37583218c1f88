"""Devices: what they are, and which is current."""

from __future__ import annotations

import operator
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, SupportsIndex

from ..._native import core
from ...spi.driver import Driver
from ...spi.errors import ConfigError, DevmemError
from ...spi.sizes import size_text
from ...spi.types import DeviceInfo, MemoryInfo
from ..base.advice import DEVICE, Listed, advise, made_by
from ..base.config import forget, settings, variable_of
from ..base.device_handle import CurrentDevice, PublicDevice
from ..base.shown import html_facts
from ..copy.peer import can_access, set_access
from ..ordering.event import current_maker
from ..ordering.stream import chosen_device, chosen_stream, place
from .backends import chosen_name, statuses, usable_backend
from .open_device import OpenDevice
from .opening import close_device, close_devices, forget_lane, open_device

_devices: dict[tuple[str, int], Device] = {}
_default: Device | None = None

if TYPE_CHECKING:
    _Advice = Listed
else:
    _Advice = advise(DEVICE, "opened")


@made_by("devmem.device('cuda:1') looks one up, devmem.devices() has all")
class Device(_Advice):
    """One device of one backend. It opens at its first use, and in ``with device:`` it is the current one.

    Devices compare equal when they are the same device; `reset` does not change which device it is.

    Attributes
    ----------
    backend : str
        The name of the backend.
    ordinal : int
        Its number among the backend's devices.

    Examples
    --------
    >>> device = dm.device("host:1")
    >>> device.backend, device.ordinal
    ('host', 1)
    """

    __slots__ = ("_opened", "backend", "ordinal")

    def __init__(self, backend: str, ordinal: int) -> None:
        self.backend = backend
        self.ordinal = ordinal
        self._opened: OpenDevice | None = None

    def __repr__(self) -> str:
        # Opens nothing.
        opened = self._opened
        if opened is None or opened.handle.dead is not None:
            return f"<device {self}>"
        info = opened.handle.info
        return f"<device {self}: {info.name}, {size_text(info.total_bytes)}>"

    def _repr_html_(self) -> str:
        opened = self._opened
        if opened is None or opened.handle.dead is not None:
            return html_facts(f"device {self}, not open", {})
        facts = dict(opened.handle.info.shown())
        with suppress(DevmemError):  # a device that is lost has no numbers
            memory = opened.memory.memory_info()
            facts["memory"] = f"{size_text(memory.free)} free of {size_text(memory.total)}"
            facts["memory of devmem"] = (
                f"live {size_text(memory.live)}, pending {size_text(memory.pending)}, cached {size_text(memory.cached)}"
            )
        return html_facts(f"device {self}", facts)

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
        place.enter_value(self)
        return self

    def __exit__(self, *_: object) -> None:
        place.leave_value(self)

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
        """The vendor's name for the device."""
        return self.info.name

    def memory_info(self) -> MemoryInfo:
        """Bytes ``(free, total, live, pending, cached, host)`` of this device: see `devmem.memory_info`.

        Examples
        --------
        >>> d = dm.zeros(1000)
        >>> dm.current_device().memory_info().live >= d.nbytes
        True
        """
        return self.opened().memory.memory_info()

    def can_access_peer(self, peer: DeviceLike) -> bool:
        """Whether this device can reach the memory of another one by itself, without passing through the host.

        Examples
        --------
        >>> dm.device("host:0").can_access_peer("host:1")
        True
        """
        return can_access(self.opened().copies, device_of(peer).opened().copies)

    def enable_peer_access(self, peer: DeviceLike) -> None:
        """Let work of this device, kernels too, reach the memory of another one by itself. A second call does nothing.

        Copies between the two enable it where they can, unless it was disabled. The call waits for both devices.

        Raises
        ------
        UnsupportedError
            This device cannot reach the other's memory.

        Examples
        --------
        >>> first, second = dm.device("host:0"), dm.device("host:1")
        >>> if first.can_access_peer(second):
        ...     first.enable_peer_access(second)
        """
        set_access(self.opened().copies, device_of(peer).opened().copies, True)

    def disable_peer_access(self, peer: DeviceLike) -> None:
        """Let work of this device reach the memory of another one no more: copies that it makes pass through the host.

        It holds until `enable_peer_access`, or a reset of this device, for all libraries in the process. A kernel that still
        reaches for the other's memory fails. The call waits for both devices.

        Raises
        ------
        UnsupportedError
            This device cannot reach the other's memory.

        Examples
        --------
        >>> dm.device("host:0").disable_peer_access("host:1")
        """
        set_access(self.opened().copies, device_of(peer).opened().copies, False)

    def synchronize(self) -> None:
        """Wait until everything that was enqueued on this device is done.

        Examples
        --------
        >>> d = dm.to_device(np.arange(3), dm.stream())
        >>> dm.current_device().synchronize()
        """
        opened = self.opened()
        with CurrentDevice(opened.handle) as driver:
            driver.synchronize()
            opened.completions.poll()

    def reset(self) -> None:
        """Wait, free all that devmem has on this device, and close it. Handles made before raise ClosedError from then on.

        The device can be used again at once. Pinned, mapped and managed host arrays that are still referenced stay readable.
        Other threads may be at work: calls that they are inside end first, and later ones on what was made before are refused.
        What it has registered ends. Pages that another device has registered too stay locked, and what the driver keeps for
        them (on CUDA the primary context) stays until they are deregistered there.

        Raises
        ------
        DevmemError
            A signal's handler, or a finalizer, called this in the middle of another call on the device, on the same thread.

        Examples
        --------
        >>> d = dm.zeros(3)
        >>> dm.current_device().reset()
        >>> d.copy_to_host()
        Traceback (most recent call last):
            ...
        devmem.ClosedError: ...
        """
        close_device(self, "was reset")

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
            opened = open_device(self)
        return opened


#: What names a device: the device, ``"cuda:1"``, an ordinal of the current backend, or None for the current one.
DeviceLike = PublicDevice | str | SupportsIndex | None


def device_at(backend: str, ordinal: int) -> Device:
    """The one object for a device, without looking whether it exists. A pickle of a device calls this with what it says."""
    if not isinstance(backend, str) or not isinstance(ordinal, int) or ordinal < 0:
        raise ConfigError(f"no device is backend={backend!r}, ordinal={ordinal!r}: a name, and a number from 0 on")
    found = _devices.get((backend, ordinal))
    if found is None:
        found = object.__new__(Device)
        Device.__init__(found, backend, ordinal)
        found = _devices.setdefault((backend, ordinal), found)
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
            return checked_device(current_device().backend, _ordinal(name), what)
        if colon and not ordinal.isdecimal():
            raise ConfigError(f"{what!r} names no device: write a backend and an ordinal, 'cuda:1'")
        try:
            return checked_device(name, _ordinal(ordinal) if colon else 0, what)
        except ConfigError as error:
            there = [f"{each.name}:{at}" for each in statuses() if each.usable for at in range(each.devices)]
            raise ConfigError(f"{error}; the devices here: {', '.join(there)}") from None
    try:
        if isinstance(what, bool):
            raise TypeError
        number = operator.index(what)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a device is a devmem.Device, an ordinal, or text such as 'cuda:1', not {what!r}") from None
    return checked_device(current_device().backend, number, what)


def _ordinal(digits: str) -> int:
    """The number that is written so; of very long ones, which Python refuses to read, one that no device has."""
    return int(digits) if len(digits) < 20 else sys.maxsize


def checked_device(backend: str, ordinal: int, asked: object) -> Device:
    """A device that is there."""
    count = usable_backend(backend).device_count()
    if not 0 <= ordinal < count:
        there = f"the backend {backend!r} has {count}, numbered from 0"
        if variable := variable_of(backend, "devices"):
            there += f"; {variable} sets how many it has"
        raise ConfigError(f"there is no device {asked!r}: {there}")
    return device_at(backend, ordinal)


def current_device() -> Device:
    """The device that is current in this thread or task, else the default of the chosen backend.

    Examples
    --------
    >>> dm.current_device()
    <device host:0...>
    """
    chosen: Any = chosen_device()  # the public device of an earlier room
    return chosen or _default or _find_default()


def default_device(backend: str) -> Device:
    """The device of a backend that is used where none is named."""
    number = settings().device
    return checked_device(backend, number, f"DEVMEM_DEVICE={number}")


def current_open_device() -> OpenDevice:
    """The open device of the current one."""
    chosen: Any = place.chosen.choice[0] if place.blocks.get() is None else chosen_device()  # mostly no block is around
    device = chosen or _default or _find_default()
    opened: OpenDevice | None = device._opened
    return opened if opened is not None and opened.handle.dead is None else device.opened()


current_maker[0] = current_open_device


def open_device_of(device: object) -> OpenDevice:
    """The open device that an argument means."""
    return current_open_device() if device is None else device_of(device).opened()


def select(what: DeviceLike) -> Device:
    """Make a device current from now on; used in ``with``, the result takes that back, and makes it current in the block."""
    device = device_of(what)
    device.opened()
    return Selected(device_at(device.backend, device.ordinal))


class Selected(Device):
    """A device that was made current by a call."""

    __slots__ = ("_device", "_undo")

    def __init__(self, device: Device) -> None:
        super().__init__(device.backend, device.ordinal)
        self._device = device
        self._undo = place.choose(device)

    def __enter__(self) -> Device:
        self._undo()
        return self._device.__enter__()

    def __exit__(self, *error: object) -> None:
        self._device.__exit__(*error)

    def opened(self) -> OpenDevice:
        """The open device of the one device object."""
        return self._device.opened()


def close_all() -> None:
    """Close every open device of every backend; the next use opens afresh, and reads the settings again."""
    global _default
    try:
        close_devices()
    finally:
        _default = None
        forget_lane()
        forget()


def _find_default() -> Device:
    global _default
    _default = default_device(chosen_name())
    forget_lane()
    return _default


if core is not None:
    by_thread = threading.local.__module__ == "_thread"  # not where gevent, or its like, has put its own there
    core.connect(place.blocks.get, place.chosen, by_thread, chosen_device, chosen_stream, current_open_device)
