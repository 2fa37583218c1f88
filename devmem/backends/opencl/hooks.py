"""The plugin: OpenCL devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from ...spi import SPI_VERSION
from ...spi.driver import Driver
from ...spi.types import Option
from ...toolkit.settings import checked


class OpenCLBackend:
    """OpenCL devices with shared virtual memory. pyopencl is imported when a program asks whether the backend can be used."""

    name = "opencl"
    spi_version = SPI_VERSION
    options: Mapping[str, Option] = MappingProxyType(
        {"platform": Option("the platforms whose devices are used; empty: all", "a part of their names")}
    )

    def __init__(self) -> None:
        self._platform = ""

    def configure(self, options: Mapping[str, object]) -> None:
        """Take ``platform``, the setting ``DEVMEM_OPENCL_PLATFORM``."""
        self._platform = str(checked(self.name, options, self.options).get("platform", self._platform))

    def unavailable(self) -> str | None:
        from .vendors import broken_vendors

        try:
            from .runtime import reason
        except Exception as error:  # asked on every machine, so whatever a broken installation does is a reason too
            return f"pyopencl cannot be imported ({error}): pip install 'devmem-arrays[opencl]', or [opencl-cpu]"
        why = reason(self._platform)
        return why and "; ".join([why, *broken_vendors()])

    def device_count(self) -> int:
        from .runtime import devices

        return len(devices(self._platform))

    def open(self, ordinal: int) -> Driver:
        from ...toolkit.default_streams import with_default_streams
        from .driver import OpenCLDriver
        from .runtime import checked, device

        with checked("open"):
            return with_default_streams(cast("Driver", OpenCLDriver(device(self._platform, ordinal), ordinal)))


def devmem_backends() -> list[OpenCLBackend]:
    """The backend of this plugin."""
    return [OpenCLBackend()]
