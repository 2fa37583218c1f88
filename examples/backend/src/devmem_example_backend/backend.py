"""The backend: what devmem asks before it opens a device."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from devmem.spi.driver import Driver
from devmem.spi.errors import BackendError
from devmem.spi.types import Option
from devmem.toolkit.settings import checked, count


class ExampleBackend:
    """Devices that are threads, always there. ``DEVMEM_EXAMPLE_DEVICES`` says how many."""

    name = "example"
    spi_version = 2  # the contract that it is written for
    options: Mapping[str, Option] = MappingProxyType({"devices": count("number of devices", 1)})

    def __init__(self) -> None:
        self._devices = 1

    def configure(self, options: Mapping[str, object]) -> None:
        """Take the settings."""
        self._devices = int(str(checked(self.name, options, self.options).get("devices", self._devices)))

    def unavailable(self) -> str | None:
        """Never: it needs nothing. A real backend says what is missing, with the command that installs it."""
        return None

    def device_count(self) -> int:
        """Return the number that was asked for."""
        return self._devices

    def open(self, ordinal: int) -> Driver:
        """Open a device."""
        # A real backend imports its vendor's module here and no sooner: finding a plugin must not load it.
        from devmem.toolkit.default_streams import with_default_streams

        from .driver import ExampleDriver

        if not 0 <= ordinal < self._devices:
            raise BackendError(f"no device {ordinal}", backend="example", call="open", code=1, name="NO_DEVICE")
        return with_default_streams(ExampleDriver(ordinal))
