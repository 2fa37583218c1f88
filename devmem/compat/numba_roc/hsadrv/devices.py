"""numba.roc's devices, which it calls compute units, and their contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import devmem

from ....api.devices import chosen_backend, devices_of_current_backend
from ....kernels.simulation import wave_size
from ....spi.errors import BackendUnavailable
from .error import HsaContextMismatchError, HsaSupportError

#: The default backend.
PREFERRED = "roc"


class Context:
    """A context, which stands for its device; contexts of the same device are equal."""

    __slots__ = ("device",)

    def __init__(self, device: devmem.Device) -> None:
        self.device = device

    def __repr__(self) -> str:
        return f"<context of {self.device}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)

    @property
    def unproxy(self) -> Context:
        """The context itself."""
        return self

    @property
    def agent(self) -> Agent:
        """The device's agent."""
        return Agent(self.device)


class Agent:
    """A device, or the host.

    Attributes
    ----------
    name, vendor_name, device : str
        ``device`` is ``"GPU"`` or ``"CPU"``.
    is_component : bool
        Whether kernels run there.
    """

    __slots__ = ("_device",)

    def __init__(self, device: devmem.Device | None) -> None:
        self._device = device

    def __repr__(self) -> str:
        return f"<agent {self.name} ({self.device})>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Agent) and other._device == self._device

    def __hash__(self) -> int:
        return hash(self._device)

    @property
    def name(self) -> str:
        """The vendor's name of the device."""
        return self._device.name if self._device is not None else "host"

    @property
    def vendor_name(self) -> str:
        """The name of the backend."""
        return self._device.backend if self._device is not None else "CPU"

    @property
    def device(self) -> str:
        """``"GPU"`` or ``"CPU"``."""
        return "CPU" if self._device is None else "GPU"

    @property
    def is_component(self) -> bool:
        """Whether kernels run there."""
        return self._device is not None

    @property
    def wavefront_size(self) -> int:
        """Work-items that run in step."""
        if self._device is None:
            raise AttributeError("the host has no wavefronts")
        return wave_size(self._device.info)

    def create_context(self) -> Context:
        """The context of the device."""
        if self._device is None:
            raise AttributeError("the host has no context: its memory is allocated by coarsegrain_array()")
        return Context(self._device)


class CU:
    """A device; in ``with cus[i]:`` it is the current one."""

    __slots__ = ("_device",)

    def __init__(self, device: devmem.Device) -> None:
        self._device = device

    def __repr__(self) -> str:
        return repr(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(Agent(self._device), name)

    def __enter__(self) -> None:
        self._device.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._device.__exit__(*error)

    def associate_context(self) -> Context:
        """The context of the device."""
        return Context(self._device)

    def reset(self) -> None:
        """Free all of devmem's memory on the device, and close it."""
        self._device.reset()


class Devices:
    """All devices of the backend in use."""

    def __getitem__(self, item: int) -> CU:
        return self._all()[item]

    def __len__(self) -> int:
        return len(self._all())

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[CU]:
        return iter(self._all())

    @property
    def current(self) -> CU:
        """The current device."""
        select_default_backend()
        return CU(devmem.current_device())

    def reset(self) -> None:
        """Reset all devices."""
        for each in self:
            each.reset()

    def _all(self) -> list[CU]:
        select_default_backend()
        return [CU(device) for device in devices_of_current_backend()]


cus = Devices()


def select_default_backend() -> None:
    """Select the first ROCm device for this thread, unless a backend was chosen.

    Raises
    ------
    HsaSupportError
        There is no ROCm device.
    """
    if chosen_backend() is not None:
        return
    try:
        devmem.select_device(PREFERRED)
    except (BackendUnavailable, devmem.ConfigError) as error:
        raise HsaSupportError(
            f"{error}; to run this program elsewhere, choose a backend: DEVMEM_BACKEND=cuda or DEVMEM_BACKEND=host"
        ) from error


def is_available() -> bool:
    """Whether the chosen backend, by default ROCm, has a usable device. It raises nothing and opens no device."""
    wanted = chosen_backend() or PREFERRED
    return any(each.name == wanted and each.usable and each.devices > 0 for each in devmem.backends())


def get_context(devnum: int = 0) -> Context:
    """The context of the current device, or of device ``devnum``."""
    select_default_backend()
    return Context(devmem.device(devnum) if devnum else devmem.current_device())


def get_all_contexts() -> list[Context]:
    """The contexts of all devices."""
    return [each.associate_context() for each in cus]


def get_gpu(i: int) -> CU:
    """A device by its number."""
    return cus[i]


def get_num_gpus() -> int:
    """The number of devices."""
    return len(cus)


def reset() -> None:
    """Reset every device."""
    cus.reset()


def is_context(value: object) -> bool:
    """Whether a value stands for a device."""
    return isinstance(value, (Context, CU, devmem.Device))


def device_of(context: Any) -> devmem.Device:
    """The device of a context."""
    if isinstance(context, CU):
        return context._device
    found = getattr(context, "device", context)
    if not isinstance(found, devmem.Device):
        raise TypeError(f"a context is what get_context() returns, not {context!r}")
    return found


def check_same(array: Any, context: Any) -> None:
    """Raise HsaContextMismatchError unless an array is on the device of a context."""
    if context is not None and device_of(context) != array.device:
        raise HsaContextMismatchError(array.device, device_of(context))
