"""A device that opens while a handler raises, opens it too or resets it: each driver is used or closed, and none is lost."""

from __future__ import annotations

import pytest
from interrupts import interrupt

import devmem as dm
from devmem._core.device import opening
from devmem.backends.host import hooks
from devmem.backends.host.driver import HostDriver
from devmem.backends.host.hooks import HostBackend
from devmem.spi.errors import BackendError


class Backend(HostBackend):
    """Remembers the drivers that it opened."""

    name = "remembered"

    def __init__(self):
        super().__init__()
        self.opened = []

    def open(self, ordinal):
        driver = super().open(ordinal)
        self.opened.append(driver)
        return driver

    def still_open(self):
        return [driver for driver in self.opened if not is_closed(driver)]


def is_closed(driver):
    try:
        driver.exit(driver.enter())
    except BackendError:
        return True
    return False


@pytest.fixture
def backend():
    made = Backend()
    dm.register_backend(made)
    with dm.use_backend(made.name):
        yield made
    dm.unregister_backend(made.name)


def open_and_keep():
    kept.append(dm.zeros(3))


kept = []


def is_watched(code):
    return code.co_filename in (opening.__file__, hooks.__file__) or code is HostDriver.close.__code__


@pytest.mark.parametrize("action", [interrupt, open_and_keep, lambda: (open_and_keep(), dm.reset(), open_and_keep())])
def test_a_driver_that_was_opened_is_used_or_closed(backend, at_point, action):
    number, left = 0, 0
    while left <= 0:
        number += 1
        with at_point(number, is_watched, action) as point:
            dm.current_device().opened()
        left = point.left
        assert len(backend.still_open()) <= 1, point.where
        assert dm.to_device([1, 2, 3]).tolist() == [1, 2, 3]
        kept.clear()
        dm.close()
        assert backend.still_open() == [], point.where
    assert number > 5
