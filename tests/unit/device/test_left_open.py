"""Drivers of closed devices, whose memory is still in use: closed once, when it is dropped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import devmem as dm
from devmem._core.device import open_device
from devmem._core.lifetime import page_locks
from devmem.spi.errors import BackendError

FILES = open_device.__file__, page_locks.__file__


class Closed:
    """A closed device of which so many blocks are lent, and its driver; the blocks have been dropped."""

    def __init__(self, blocks, is_locked):
        self.lent, self.page_locks, self.closed = blocks, page_locks.PageLockTable(), 0
        self.memory = SimpleNamespace(lent_blocks=lambda: self.lent, stacks=SimpleNamespace(unbind=lambda driver: None))
        if is_locked:
            self.page_locks.segments = [SimpleNamespace(driver=self, busy=0, locked=True)]

    def take_back_lent(self, driver):
        self.lent = 0

    def close(self):
        self.closed += 1

    def unlock(self):
        self.page_locks.segments = []
        self.page_locks._settle()


@pytest.mark.parametrize("is_locked", [False, True])
@pytest.mark.parametrize("blocks", [0, 2])
def test_an_interrupt_leaves_a_driver_to_be_closed_later(blocks, is_locked, monkeypatch, at_point):
    monkeypatch.setattr(open_device, "closing_drivers", [])
    number, left = 0, 0
    while left <= 0:
        number, device = number + 1, Closed(blocks, is_locked)
        open_device.closing_drivers.append((device, device))
        with at_point(number, lambda code: code.co_filename in FILES and "_settle" not in code.co_name) as point:
            open_device.finish_closing()
        left = point.left
        assert device.closed <= (not is_locked)
        open_device.finish_closing()
        assert not open_device.closing_drivers
        device.unlock()
        assert device.closed == 1, point.where
    assert number > 5


def test_one_that_fails_keeps_no_other_from_being_closed_and_no_device_from_opening(monkeypatch):
    class Failing(Closed):
        def take_back_lent(self, driver):
            raise BackendError("it cannot be entered")

    dm.close()
    failing, device = Failing(1, False), Closed(2, False)
    monkeypatch.setattr(open_device, "closing_drivers", [(failing, failing), (device, device)])
    for _ in range(2):
        with pytest.raises(BackendError, match="cannot be entered"):
            open_device.finish_closing()
        assert (failing.closed, device.closed) == (0, 1)
    with pytest.warns(dm.DevmemWarning, match="cannot be entered"):
        assert dm.to_device([1, 2, 3]).tolist() == [1, 2, 3]
    failing.lent = 0
    open_device.finish_closing()
    assert not open_device.closing_drivers
