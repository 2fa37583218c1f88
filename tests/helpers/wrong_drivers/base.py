"""The driver that each mistake is made in."""

from __future__ import annotations

import dataclasses
from typing import Any

from devmem.spi.driver import Driver
from devmem.spi.types import DeviceInfo
from devmem.testing import FaultyDriver


class Broken(FaultyDriver):
    """The strict host driver; each subclass adds one fault. Optional methods are instance attributes: see `spoil`."""

    #: Whether a test may find the mistake by an error of the strict driver below.
    raises = False
    #: The driver without the mistake.
    sound_driver: type[FaultyDriver] = FaultyDriver

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.sound: Any = inner
        self.spoil()

    def spoil(self) -> None:
        """Replace optional methods."""


class Tells(Broken):
    """Its info differs from that of the driver below by `difference`."""

    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def info(self) -> DeviceInfo:
        return dataclasses.replace(self._info, **self.difference(self._info))
