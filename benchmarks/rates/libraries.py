"""The measured libraries: the interface, devmem, and direct driver calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import devmem as dm

from .driver import Array, driver


class Library:
    """A library that copies arrays, all of float32. A method that is not overridden is not measured."""

    name = ""
    #: The backends on which it can be measured, if it is installed.
    backends: tuple[str, ...] = ("cuda", "roc")

    def version(self) -> str:
        raise NotImplementedError

    def upload(self, host: Array) -> Any:
        """Upload into a new device array."""
        raise NotImplementedError

    def allocate(self, shape: tuple[int, ...]) -> Any:
        raise NotImplementedError

    def write(self, device: Any, host: Array) -> None:
        """Upload into an existing device array."""
        raise NotImplementedError

    def download(self, device: Any) -> Array:
        """Download into a new host array."""
        raise NotImplementedError

    def read(self, device: Any, out: Array) -> None:
        """Download into an existing host array."""
        raise NotImplementedError

    def move(self, dst: Any, src: Any) -> None:
        """Device to device."""
        raise NotImplementedError

    def write_transposed(self, device: Any, host: Array) -> None:
        """``host.T`` into a C-contiguous device array."""
        raise NotImplementedError

    def read_transposed(self, device: Any, out: Array) -> None:
        """``device.T`` into a C-contiguous host array."""
        raise NotImplementedError

    def download_every_second(self, device: Any) -> Array:
        """``device[:, ::2]`` as a new host array."""
        raise NotImplementedError

    def upload_many(self, hosts: list[Array]) -> Any:
        return [self.upload(host) for host in hosts]

    def download_many(self, devices: Any) -> Any:
        return [self.download(device) for device in devices]

    def pointer(self, device: Any) -> int:
        return int(device.__cuda_array_interface__["data"][0])

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        """Small calls with the least overhead; dropping the result frees it."""
        raise NotImplementedError


class Devmem(Library):
    """Its verbs."""

    name = "devmem"

    def version(self) -> str:
        return dm.__version__

    def upload(self, host: Array) -> Any:
        return dm.to_device(host)

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return dm.device_array(shape, np.float32)

    def write(self, device: Any, host: Array) -> None:
        device.copy_to_device(host)

    def download(self, device: Any) -> Array:
        made: Array = device.copy_to_host()
        return made

    def read(self, device: Any, out: Array) -> None:
        device.copy_to_host(out)

    def move(self, dst: Any, src: Any) -> None:
        dst.copy_to_device(src)

    def write_transposed(self, device: Any, host: Array) -> None:
        device.copy_to_device(host.T)

    def read_transposed(self, device: Any, out: Array) -> None:
        device.T.copy_to_host(out)

    def download_every_second(self, device: Any) -> Array:
        made: Array = device[:, ::2].copy_to_host()
        return made

    def upload_many(self, hosts: list[Array]) -> Any:
        return dm.to_device_many(hosts)

    def download_many(self, devices: Any) -> Any:
        return dm.to_host_many(devices)

    def pointer(self, device: Any) -> int:
        return int(device.ptr)

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        shape = host.shape
        return {
            "upload": lambda: dm.to_device(host).free(),
            "read": lambda: device.copy_to_host(out),
            "create": lambda: dm.device_array(shape, np.float32).free(),
        }


class Block:
    """Device memory from the driver."""

    def __init__(self, nbytes: int, shape: tuple[int, ...]) -> None:
        self.ptr = driver().allocate(nbytes)
        self.nbytes, self.shape = nbytes, shape

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            driver().free(self.ptr)


class Bare(Library):
    """Direct driver calls."""

    def __init__(self) -> None:
        self.driver = driver()
        self.name = self.driver.bare

    def version(self) -> str:
        return self.driver.version

    def upload(self, host: Array) -> Any:
        if not host.flags.c_contiguous:
            raise NotImplementedError
        made = Block(host.nbytes, host.shape)
        self.driver.write(made.ptr, host.ctypes.data, host.nbytes)
        return made

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return Block(int(np.prod(shape)) * 4, shape)

    def write(self, device: Any, host: Array) -> None:
        self.driver.write(device.ptr, host.ctypes.data, host.nbytes)

    def download(self, device: Any) -> Array:
        out = np.empty(device.shape, np.float32)
        self.driver.read(out.ctypes.data, device.ptr, device.nbytes)
        return out

    def read(self, device: Any, out: Array) -> None:
        self.driver.read(out.ctypes.data, device.ptr, out.nbytes)

    def move(self, dst: Any, src: Any) -> None:
        self.driver.move(dst.ptr, src.ptr, src.nbytes)

    def pointer(self, device: Any) -> int:
        return int(device.ptr)

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        return self.driver.calls(host, device.ptr, out)
