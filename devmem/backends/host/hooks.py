"""How devmem finds the host backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from devmem.spi import SPI_VERSION
from devmem.spi.driver import Backend, Driver
from devmem.spi.errors import ConfigError


class HostBackend:
    """Devices made of host memory: for machines without a GPU, and the executable specification of a driver.

    Options: ``strict`` (bool, False) puts device memory at addresses that the host cannot touch; ``devices`` (int, 1)
    says how many devices there are.
    """

    name = "host"
    spi_version = SPI_VERSION

    def __init__(self) -> None:
        self._strict, self._devices = False, 1

    def configure(self, options: Mapping[str, object]) -> None:
        """Take the options for devices that are opened from now on; on an error nothing is changed."""
        strict, devices = options.get("strict", self._strict), options.get("devices", self._devices)
        if unknown := sorted(set(options) - {"strict", "devices"}):
            raise ConfigError(f"the backend 'host' has no option {', '.join(unknown)}; it has: devices, strict")
        if not isinstance(strict, bool):
            raise ConfigError(f"host option strict={strict!r} must be True or False")
        if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
            raise ConfigError(f"host option devices={devices!r} must be an integer of at least 1")
        self._strict, self._devices = strict, devices

    def unavailable(self) -> str | None:
        return None  # every machine has memory

    def device_count(self) -> int:
        return self._devices

    def open(self, ordinal: int) -> Driver:
        from .driver import HostDriver  # imports numpy and ctypes, which finding the backend must not

        return cast("Driver", HostDriver(ordinal, strict=self._strict, devices=self._devices))


def devmem_backends() -> Sequence[Backend]:
    """Return the host backend."""
    return [HostBackend()]
