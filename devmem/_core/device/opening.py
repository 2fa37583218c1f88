"""Opening and closing devices.

A device opens at its first use, one at a time, and stays open until it is reset or closed, the process forks, or the interpreter
finalizes. An opening that an interrupt or a handler came into may have made drivers that nothing uses: they stay in `_openings`
until the next opening or close of a device ends them.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from ..._native import core
from ...spi.driver import Driver
from ...spi.errors import DeviceLost, DevmemWarning, ForkedError
from ...toolkit.deferred_errors import FirstError, fresh_copy
from ...toolkit.driver_parts import opening
from ...toolkit.locks import Rank
from ..base import scopes
from ..base.call_site import caller_level
from ..base.config import settings
from ..base.device_handle import ENDED, PublicDevice, checked_driver
from ..base.interrupts import interrupted_call
from ..base.outer_lock import OuterLock
from ..lifetime import page_locks
from ..ordering.completions import leaked
from .backends import usable_backend
from .open_device import OpenDevice, closing_drivers, finish_closing

#: The device of each name that was ever opened.
_devices: dict[tuple[str, int], PublicDevice] = {}
_lock = OuterLock("devices", Rank.DEVICE, "a device, which another thread opens,")
_backends_of_parent: set[str] = set()  # which a forked child may not use
_exiting = False
#: The devices that are being opened, and those whose opening was interrupted.
_openings: list[_Opening] = []


def open_device(device: PublicDevice) -> OpenDevice:
    """The open device of a device, which is opened unless it is open."""
    with _lock:
        if (found := live(device)) is not None:  # another thread has opened it while this one waited
            return found
        check_not_left_behind(device.backend)
        if sys.is_finalizing():
            raise fresh_copy(ENDED)
        for finish in (finish_closing, _end_openings):
            try:
                finish()
            except Exception as error:  # what is left of other devices must not keep this one from opening
                message = f"while closing what is left of devices: {error}"
                warnings.warn(message, DevmemWarning, stacklevel=caller_level())
        _devices[device.backend, device.ordinal] = device
        this = _Opening(device)
        _openings.append(this)
        try:
            this.opened = opened = OpenDevice(device, _open_driver(device, this.drivers))
            opened.page_locks.join(opened.handle, opened.completions)
            if _exiting:
                opened.handle.end_with_interpreter()
            # A handler, or a finalizer, may have opened the device meanwhile. None comes between the question and the answer.
            found = device._opened
            if found is None or found.handle.dead is not None:
                found = device._opened = opened
        finally:
            this.end()
        forget_lane()
        return found


def live(device: PublicDevice) -> OpenDevice | None:
    """The open device of a device, if it is open."""
    opened: OpenDevice | None = device._opened
    return opened if opened is not None and opened.handle.dead is None else None


def open_devices() -> list[OpenDevice]:
    """Every device that is open."""
    return [opened for device in list(_devices.values()) if (opened := live(device)) is not None]


def close_device(device: PublicDevice, why: str) -> None:
    """Close a device, if it is open; ``why`` is told to those who use it later."""
    check_not_left_behind(device.backend)
    opened = live(_devices.get((device.backend, device.ordinal), device))
    if opened is not None:
        opened.close(why)
        forget_lane()
    _end_openings()


def close_devices() -> None:
    """Close every open device of every backend."""
    with FirstError() as first:
        for opened in open_devices():
            try:
                opened.close("was closed")
            except Exception as error:  # the other devices must still be closed
                first.put(error)
        first.attempt(finish_closing)
        first.attempt(_end_openings)


def check_not_left_behind(backend: str | None = None) -> None:
    """ForkedError for what a parent process had open of a backend, or of any."""
    if _backends_of_parent and (backend is None or backend in _backends_of_parent):
        which = backend or ", ".join(sorted(_backends_of_parent))
        raise ForkedError(
            f"the backend {which!r} was in use before this process was forked, and cannot be used in the child "
            f"(pid {os.getpid()}): open devices after forking, or start processes with the 'spawn' method"
        )


class _Opening:
    """One attempt to open a device: what was made for it is closed unless it is used."""

    def __init__(self, device: PublicDevice) -> None:
        self.device = device
        self.drivers: list[Any] = []
        self.opened: OpenDevice | None = None

    def end(self) -> None:
        """Close what is not used. After an interrupt the next opening, reset or close of a device calls this again."""
        opened = self.opened
        with FirstError() as first:
            if opened is None:
                for driver in self.drivers[::-1]:
                    if not getattr(driver, "closes_at_any_stage", False):
                        self.drivers.remove(driver)  # first: an interrupt must not close it twice
                    with suppress(Exception):  # the error that has kept it from opening is told
                        getattr(driver, "close", lambda: None)()  # a third party's may be no driver
            elif self.device._opened is not opened and opened.handle.dead is None:
                first.attempt(opened.close, "was opened once more, or not to its end")
            _openings.remove(self)


def _end_openings() -> None:
    """Close what interrupted openings have left, unless this call may itself have come into the middle of one."""
    if not _openings or interrupted_call() is not None:
        return
    with _lock, FirstError() as first:
        left = list(_openings)
        for each in left:
            first.attempt(each.end)


def _open_driver(device: PublicDevice, made: list[Any]) -> Driver:
    """The backend's driver. Those that begin to open go into ``made``, and so does it: the caller closes them if this fails."""
    context = copy_context()
    context.run(opening.set, made)
    try:
        driver = context.run(usable_backend(device.backend).open, device.ordinal)
    except DeviceLost as error:
        blocks = sum(opened.memory.lent_blocks() for opened, _ in closing_drivers if opened.device == device)
        if blocks:
            error.args = (
                f"{error}; {blocks} page-locked or managed blocks of it are still referenced, which keeps it from starting "
                f"afresh: drop those arrays, and use the device again",
            )
        raise
    if not any(each is driver for each in made):
        made.append(driver)
    driver = checked_driver(driver, device.backend, device.ordinal)
    if settings().races:
        from ...toolkit.race_checked_driver import race_checked  # late: few programs want it

        return race_checked(driver)
    return driver


def forget_lane() -> None:
    """Let the compiled core look anew for the lane of the current device."""
    if core is not None:
        core.forget()


def _after_fork_in_child() -> None:
    scopes.deferral.reset()
    page_locks.forget_after_fork()
    leaked.extend([*closing_drivers, *_openings])
    closing_drivers.clear()
    _openings.clear()
    for device in list(_devices.values()):
        if (opened := live(device)) is not None:
            _backends_of_parent.add(device.backend)
            opened.forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _at_exit() -> None:
    """Let handlers that were registered before go on using devices, and nothing touch a driver once the interpreter finalizes.

    Not a finalizer then, nor the end of a block that a generator held open.
    """
    global _exiting
    _exiting = True
    for opened in open_devices():
        opened.handle.end_with_interpreter()
    forget_lane()
