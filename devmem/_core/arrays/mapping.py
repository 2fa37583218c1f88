"""Host memory that the device reaches for a time."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ...spi.errors import LayoutError
from ...spi.types import Capability
from ..base.device_handle import CurrentDevice
from ..base.layout import span
from ..device.open_device import OpenDevice
from ..lifetime.registration import Registration
from ..ordering.stream import Stream
from .ndarray import DeviceNDArray


class Mapping:
    """Host arrays that the device can reach until the end of a ``with`` block: yields their device views."""

    __slots__ = ("open_device", "registration", "views")

    def __init__(self, opened: OpenDevice, arrays: tuple[npt.NDArray[Any], ...], stream: Stream | None) -> None:
        opened.handle.require(Capability.MAPPED, "map host memory", "copy it with to_device() instead")
        for array in arrays:
            if any(
                step < 0 or (step == 0 and count > 1) for step, count in zip(array.strides, array.shape, strict=True)
            ):
                raise LayoutError(
                    f"strides {array.strides} cannot be mapped: give an array without negative or repeated axes"
                )
        self.open_device = opened
        self.registration = Registration(opened.handle, opened.page_locks, arrays, scoped=True)
        self.views: list[DeviceNDArray[Any]] = []
        try:
            with CurrentDevice(opened.handle):
                for array in arrays:
                    pointer = opened.page_locks.device_pointer(opened.handle, array)
                    size = span(array.shape, array.strides, array.itemsize)[1]
                    # A view that is kept keeps the pages locked.
                    owner = array, self.registration
                    borrowed = opened.memory.foreign(pointer, size, owner, None, not array.flags.writeable)
                    self.views.append(
                        DeviceNDArray(opened, borrowed, pointer, array.shape, array.dtype, array.strides, stream)
                    )
        except BaseException:
            self.registration.close()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.registration!r}>"

    def __enter__(self) -> DeviceNDArray[Any] | list[DeviceNDArray[Any]]:
        self.registration.__enter__()
        return self.views[0] if len(self.views) == 1 else self.views

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the mapping, after the copies that use it: the device views raise ClosedError from then on."""
        opened = self.open_device
        if opened.handle.dead is not None:
            return
        try:
            with CurrentDevice(opened.handle):
                opened.completions.wait_complete()
        finally:
            for view in self.views:
                view.allocation.freed = True
            self.registration.close()
