"""Backends of the previous contract run: what devmem no longer asks for is ignored, and a warning says what to write."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

import devmem as dm
from devmem._core.memory.foreign import check_version
from devmem.backends.host.driver import HostDriver
from devmem.spi import SPI_VERSION
from devmem.spi.driver import Driver, SupportsHostRegister, SupportsStridedCopy, SupportsVolumeCopy
from devmem.spi.errors import DevmemWarning, PluginError
from devmem.spi.types import Capability, DeviceInfo
from devmem.testing import FaultyBackend, NullBackend, NullDriver
from devmem.toolkit.default_streams import with_default_streams
from devmem.toolkit.driver_parts import ComposedDriver, StridedCopies

WROTE = "written for contract 1, this devmem has contract 2: it runs"
IGNORED = (
    "has no copy_strided: strided copies take the general path, and copy_2d, copy_3d and copy_3d_batch are not called"
)


class Old(ComposedDriver):
    """Sound, and with the strided copies of contract 1, which must not be called."""

    def __init__(self, name: str, ordinal: int) -> None:
        sound = HostDriver(ordinal, strict=False, devices=1)
        self.compose(sound)
        del self.copy_strided
        self.info: DeviceInfo = replace(sound.info, backend=name)

    def copy_2d(self, *sides: Any, blocking: bool) -> bool:
        raise AssertionError("copy_2d is not called any more")

    copy_3d = copy_2d


class OldByText(Old):
    """It declares both capabilities by text."""

    def __init__(self, name: str, ordinal: int) -> None:
        super().__init__(name, ordinal)
        declared = {*self.info.capabilities, cast(Capability, "volume_copy")}
        self.info = replace(self.info, capabilities=frozenset(declared))


class OldByBases(StridedCopies, Old, SupportsVolumeCopy):
    """It inherits the protocol, which has a method of the new name that does nothing."""


def old_with_default_streams(name: str, ordinal: int) -> Driver:
    return with_default_streams(Old(name, ordinal))


DRIVERS = [Old, OldByText, OldByBases, old_with_default_streams]


@contextmanager
def registered(driver: Any, *, faulty: bool = False) -> Iterator[None]:
    """A backend of contract 1 with this driver, as ``previous:0``."""
    backend: Any = NullBackend("old" if faulty else "previous", driver)
    backend.spi_version = 1
    with pytest.warns(DevmemWarning, match=WROTE):
        dm.register_backend(FaultyBackend(backend, name="previous") if faulty else backend)
    try:
        yield
    finally:
        dm.unregister_backend("previous")


@pytest.mark.parametrize("faulty", [False, True])
@pytest.mark.parametrize("driver", DRIVERS)
def test_strided_copies_take_the_general_path(driver: Any, faulty: bool) -> None:
    source = np.random.default_rng(1).integers(0, 256, (6, 8, 4096), np.uint8)
    wide = np.s_[::2, :3, :1024]  # which copy_3d was made for
    with registered(driver, faulty=faulty):
        device = dm.device("previous:0")
        with pytest.warns(DevmemWarning, match=IGNORED):
            whole = dm.to_device(source, device=device)
        assert not device.info.capabilities & {"strided_copy", "volume_copy"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it was told
            assert np.array_equal(whole[wide].copy_to_host(), source[wide])
            assert np.array_equal(dm.to_device(source[wide], device=device).copy_to_host(), source[wide])
            for narrow in (np.s_[:, ::2, ::3], np.s_[::-1, 1:3, :]):
                assert np.array_equal(whole[narrow].copy_to_host(), source[narrow])
                assert np.array_equal(whole[narrow].copy().copy_to_host(), source[narrow])
            with dm.device("previous:0"):
                for leaf in dm.to_device_many([source[wide], source[1], source[::-1, 0]]):
                    leaf.copy_to_host()
        device.reset()


@pytest.mark.parametrize("capabilities", [{Capability.STRIDED_COPY}, {"strided_copy", "volume_copy"}, {"volume_copy"}])
def test_a_backend_that_says_the_new_version_and_has_the_old_methods_runs_too(capabilities: set[str]) -> None:
    """As one does that takes its version from the devmem that is installed."""
    driver = NullDriver("claims", 0, cast(set[Capability], capabilities))
    dm.register_backend(NullBackend("claims", lambda name, ordinal: driver))
    try:
        with pytest.warns(
            DevmemWarning, match="opened device 0 with a driver that declares 'strided_copy' and " + IGNORED
        ):
            assert not dm.device("claims:0").info.capabilities
        dm.device("claims:0").reset()
    finally:
        dm.unregister_backend("claims")


def test_a_method_that_is_the_protocols_own_is_lacking() -> None:
    """As of every capability: an inherited stub would do nothing, and say that it was done."""

    class Inherits(NullDriver, SupportsHostRegister):
        pass

    driver = Inherits("inherits", 0, {Capability.HOST_REGISTER})
    dm.register_backend(NullBackend("inherits", lambda name, ordinal: driver))
    try:
        with pytest.raises(PluginError, match="'host_register', but without host_register, host_unregister"):
            dm.device("inherits:0").synchronize()
    finally:
        dm.unregister_backend("inherits")


def test_names_of_contract_1_can_be_imported() -> None:
    assert SupportsVolumeCopy is SupportsStridedCopy
    assert Capability.VOLUME_COPY is Capability.STRIDED_COPY
    assert "volume_copy" not in set(Capability)


@pytest.mark.parametrize("version", [SPI_VERSION - 1, SPI_VERSION])
def test_memory_resources_of_both_contracts_are_taken(version: int) -> None:
    class Mine:
        spi_version = version

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is asked of a resource did not change
        check_version(Mine(), "'mine'", "mine 1.0")


@pytest.mark.parametrize("version", [SPI_VERSION - 2, SPI_VERSION + 1])
def test_memory_resources_of_other_contracts_are_refused(version: int) -> None:
    class Mine:
        spi_version = version

    with pytest.raises(PluginError, match=rf"written for contract {version}, this devmem has contract {SPI_VERSION}"):
        check_version(Mine(), "'mine'", "mine 1.0")
