"""Hooks by which devmem finds the host backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from devmem.spi import SPI_VERSION
from devmem.spi.driver import Backend, Driver
from devmem.spi.errors import ConfigError
from devmem.spi.types import Option
from devmem.toolkit.settings import checked, count, flag


class HostBackend:
    """Devices made of host memory: for machines without a GPU, and the executable specification of a driver."""

    name = "host"
    spi_version = SPI_VERSION
    options: Mapping[str, Option] = MappingProxyType(
        {"strict": flag("device memory that the host cannot read"), "devices": count("number of devices", 1)}
    )

    def __init__(self) -> None:
        self._strict, self._devices = False, 1

    def configure(self, options: Mapping[str, object]) -> None:
        """Take the options for devices that are opened from now on; on an error nothing is changed."""
        given = {"strict": self._strict, "devices": self._devices, **checked(self.name, options, self.options)}
        if (devices := int(str(given["devices"]))) < 1:
            raise ConfigError(f"host option devices={devices} must be at least 1")
        self._strict, self._devices = bool(given["strict"]), devices

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
