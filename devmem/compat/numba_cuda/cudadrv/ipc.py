"""Sharing device memory with other processes, by numba.cuda's classes."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np

import devmem

from ....api.devices import devices_of_current_backend
from ....spi.errors import DevmemError
from .arrays import DeviceNDArray
from .error import translated
from .streams import with_class

#: Whether the system supports sharing device memory.
SUPPORTS_IPC = sys.platform.startswith("linux")


class RawHandle(bytes):
    """The driver's handle, 64 bytes."""

    @property
    def reserved(self) -> bytes:
        """The bytes, under the field name of the driver's struct."""
        return bytes(self)


class IpcHandle:
    """A handle of memory for another process: pickle it, send it, and `open` it there.

    Parameters
    ----------
    base : MemoryPointer or None
        The memory, which is kept alive; None in the process that opens it.
    handle : bytes
        The driver's handle.
    size, offset : int
        Bytes of the memory, and its offset in the allocation.
    source_info : dict, optional
        The identity of the device.
    """

    def __init__(self, base: Any, handle: Any, size: int, source_info: Any = None, offset: int = 0) -> None:
        self.base = base
        self.handle = RawHandle(_raw(handle))
        self.size = size
        self.source_info = source_info
        self.offset = offset
        self._opened: Any = None

    def can_access_peer(self, context: Any) -> bool:
        """Whether a context's device can access the memory's device directly."""
        if self.source_info is None:
            raise RuntimeError("IPC handle doesn't have source info")
        if self.source_info == context.device.get_device_identity():
            return True
        source = type(context.device).from_identity(self.source_info)
        return bool(context.can_access_peer(source.id))

    def open(self, context: Any) -> Any:
        """A pointer to the memory, on its own device.

        Raises
        ------
        ValueError
            The handle was made by this process, or is open already.
        """
        self._open(self.size, np.dtype(np.uint8), None)
        return self._opened.gpu_data

    open_direct = open

    def open_staged(self, context: Any) -> Any:
        """A pointer to a copy of the memory on another device."""
        if self.source_info is None:
            raise RuntimeError("IPC handle doesn't have source info")
        self._open(self.size, np.dtype(np.uint8), None)
        opened, there = self._opened, context.device.native
        try:
            copied = opened.copy() if opened.device == there else devmem.to_device(opened, device=there)
        except DevmemError as error:
            raise translated(error) from error
        finally:
            self.close()
        self._opened = with_class(copied, DeviceNDArray)
        return self._opened.gpu_data

    def open_array(self, context: Any, shape: Any, dtype: Any, strides: Any = None) -> Any:
        """A device array over the memory."""
        return self._open(shape, np.dtype(dtype), strides)

    def close(self) -> None:
        """Close the memory after the work that uses it; ValueError if it is not open."""
        if self._opened is None:
            raise ValueError("IpcHandle not opened")
        opened, self._opened = self._opened, None
        opened.allocation.free()
        with opened.device.entered():
            opened.open_device.free_queue.drain()  # closes it now, as the owner may wait for that

    def __reduce__(self) -> tuple[Any, ...]:
        return IpcHandle, (None, bytes(self.handle), self.size, self.source_info, self.offset)

    def _open(self, shape: Any, dtype: np.dtype[Any], strides: Any) -> Any:
        if self.base is not None:
            raise ValueError("opening IpcHandle from original process")
        if self._opened is not None:
            raise ValueError("IpcHandle is already opened")
        device = self._device()
        handle = devmem.IpcHandle(
            backend=device.backend,
            uuid=device.info.uuid,
            nbytes=self.offset + self.size,
            offset=self.offset,
            shape=(self.size,),
            dtype=np.dtype(np.uint8),
            strides=(1,),
            raw=bytes(self.handle),
            process=-os.getpid(),  # only the driver knows the owner's process
        )
        try:
            self._opened = with_class(devmem.open_ipc_array(handle, shape, dtype, strides), DeviceNDArray)
        except DevmemError as error:
            raise translated(error) from error
        return self._opened

    def _device(self) -> devmem.Device:
        """The memory's device, found by its PCI address, as its number may differ here."""
        current = devmem.current_device()
        if self.source_info is None or self.source_info == identity_of(current):
            return current
        for device in devices_of_current_backend():
            if identity_of(device) == self.source_info:
                return device
        raise RuntimeError(f"no device of this process is {self.source_info}: it may not be visible here")


class GetIpcHandleMixin:
    """An implementation of a plugin's ``get_ipc_handle`` by the driver."""

    context: Any

    def get_ipc_handle(self, memory: Any) -> IpcHandle:
        """A handle of the allocation that contains the memory; UnsupportedError if the driver cannot share it."""
        device: devmem.Device = self.context.device.native
        address = int(memory.device_pointer)
        allocation = getattr(memory, "allocation", None)
        try:
            if not address:
                raise devmem.LayoutError("no memory, nothing to share")
            with device.entered() as driver:
                if not hasattr(driver, "ipc_export"):
                    raise devmem.UnsupportedError(f"{device} cannot share memory with another process")
                if allocation is not None:
                    allocation.wait()
                else:
                    driver.synchronize()
                base = _base(driver, address, allocation)
                try:
                    raw = driver.ipc_export(base)
                except devmem.BackendError as error:
                    raise devmem.UnsupportedError(
                        f"the driver does not share this memory ({error}): use DEVMEM_MEMORY_MANAGER=driver"
                    ) from error
        except DevmemError as error:
            raise translated(error) from error
        return IpcHandle(memory, raw, memory.size, identity_of(device), address - base)


def _raw(handle: Any) -> bytes:
    """The bytes of a driver's handle. Objects of NVIDIA's binding are read from memory, as their fields vary by release."""
    where = getattr(handle, "getPtr", None)
    return bytes(handle) if where is None else ctypes.string_at(where(), 64)


def identity_of(device: devmem.Device) -> dict[str, int]:
    """The PCI address of a device."""
    domain, bus, slot = 0, 0, device.ordinal
    parts = device.info.pci_id.partition(".")[0].split(":")
    if len(parts) == 3:
        domain, bus, slot = (int(part, 16) for part in parts)
    return {"pci_domain_id": domain, "pci_bus_id": bus, "pci_device_id": slot}


def _base(driver: Any, address: int, allocation: Any) -> int:
    """The start of the allocation that contains an address."""
    around = getattr(driver, "pointer_range", None)
    found = around(address) if around is not None else None
    if found is not None:
        return int(found[0])
    return address if allocation is None else int(allocation.ptr)
