"""Mistakes in what a device says of itself, and the tests of `testing/driver_device.py` that find them."""

from __future__ import annotations

import dataclasses
import threading
from types import MappingProxyType
from typing import Any, cast

from devmem.spi.driver import Driver
from devmem.spi.types import DeviceInfo, Exchange

from .base import Broken, Tells


class DeclaresTooMuch(Broken):
    def spoil(self) -> None:
        del self.copy_strided
        self.inner = cast(Driver, object())

    def enter(self) -> object:
        return self.sound.enter()

    def exit(self, token: object) -> None:
        self.sound.exit(token)

    def synchronize(self) -> None:
        self.sound.synchronize()

    def close(self) -> None:
        self.sound.close()


class NumbersNoDefaultStream(Tells):
    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        return {"exchange": Exchange(streams=MappingProxyType({1: 1, 2: 16}))}


class InfoIsOfAnotherClass(Broken):
    """With the same fields, and frozen."""

    @property
    def info(self) -> Any:
        fields = {field.name: getattr(self._info, field.name) for field in dataclasses.fields(self._info)}
        return dataclasses.make_dataclass("Info", fields, frozen=True)(**fields)


class InfoChanges(Tells):
    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        return {"facts": {"free": self.sound.memory_info()[0]}}


class InventsACapability(Tells):
    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        return {"capabilities": info.capabilities | {"time_travel"}}


class PrioritiesAreBackwards(Tells):
    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        return {"stream_priorities": (-5, 0)}


class HasAnothersUuid(Tells):
    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        from devmem.backends.host.driver import _open_drivers

        others = [driver for driver in _open_drivers if driver.info.ordinal != self.sound.info.ordinal]
        return {"uuid": others[0].info.uuid} if others else {}


class NeverCloses(Broken):
    """Its close waits, without the GIL, for what does not come; as above."""

    def close(self) -> None:
        threading.Event().wait()


class ExitRestoresNothing(Broken):
    raises = True

    def exit(self, token: object) -> None:
        pass


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (DeclaresTooMuch, "test_declared_capability_has_its_methods", {"capability": "strided_copy"}),
    (NumbersNoDefaultStream, "test_numbers_of_default_streams_name_default_streams", {}),
    (InfoIsOfAnotherClass, "test_info_is_complete", {}),
    (InfoChanges, "test_info_is_fixed", {}),
    (InventsACapability, "test_declared_capabilities_are_known", {}),
    (PrioritiesAreBackwards, "test_stream_priorities_are_least_then_greatest", {}),
    (HasAnothersUuid, "test_devices_are_told_apart", {}),
    (ExitRestoresNothing, "test_exit_restores_the_device_that_was_current", {}),
]
