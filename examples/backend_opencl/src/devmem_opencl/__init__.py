"""An OpenCL backend for devmem. pyopencl is imported when a program first asks whether the backend can be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from devmem.spi.driver import Backend, Driver
from devmem.spi.errors import BackendError
from devmem.spi.types import Option
from devmem.toolkit.settings import checked


class OpenCLBackend:
    """The OpenCL devices that have shared virtual memory."""

    name = "opencl"
    spi_version = 2  # the contract that it is written for
    options: Mapping[str, Option] = MappingProxyType(
        {"platform": Option("the platforms to use; empty: all", "a part of their names")}
    )

    def __init__(self) -> None:
        self._platform = ""

    def configure(self, options: Mapping[str, object]) -> None:
        """Take the settings."""
        self._platform = str(checked(self.name, options, self.options).get("platform", self._platform))

    def unavailable(self) -> str | None:
        """Why there is no device, and what would bring one."""
        try:
            if self._devices():
                return None
        except Exception as error:  # asked on every machine: whatever a broken installation does is a reason
            return f"OpenCL cannot be used ({error}): pip install 'pyopencl[pocl]', or a vendor's OpenCL runtime"
        return f"no OpenCL device of a platform {self._platform!r} has shared virtual memory: install a runtime for OpenCL 2.0"

    def device_count(self) -> int:
        """Count the devices that have shared virtual memory."""
        return len(self._devices())

    def open(self, ordinal: int) -> Driver:
        """Open a device in a context of its own."""
        from devmem.toolkit.default_streams import with_default_streams

        from .driver import OpenCLDriver

        devices = self._devices()
        if not 0 <= ordinal < len(devices):
            raise BackendError(f"no device {ordinal}", backend="opencl", call="open", code=-1, name="DEVICE_NOT_FOUND")
        return with_default_streams(OpenCLDriver(devices[ordinal], ordinal))

    def _devices(self) -> list[Any]:
        import pyopencl as cl

        platforms = [each for each in cl.get_platforms() if self._platform.lower() in each.name.lower()]
        return [device for each in platforms for device in each.get_devices() if device.svm_capabilities]


def devmem_backends() -> Sequence[Backend]:
    """The backend of this plugin."""
    return [OpenCLBackend()]
