"""The backend: what devmem asks before it opens a device."""

from __future__ import annotations

from devmem.spi.driver import Driver
from devmem.spi.errors import BackendError


class ExampleBackend:
    """One device, always there."""

    name = "example"
    spi_version = 1

    def unavailable(self) -> str | None:
        """Never: it needs nothing."""
        return None

    def device_count(self) -> int:
        """One."""
        return 1

    def open(self, ordinal: int) -> Driver:
        """Open the only device."""
        # A real backend imports its vendor's module here and no sooner: finding a plugin must not load it.
        from .driver import ExampleDriver

        if ordinal != 0:
            raise BackendError(f"no device {ordinal}, only 0", backend="example", call="open", code=1, name="NO_DEVICE")
        return ExampleDriver()
