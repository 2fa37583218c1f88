"""Which device is current on each thread. A thread has at most one, between ``enter`` and ``exit``; every call checks it."""

from __future__ import annotations

import threading
from typing import NoReturn

from devmem.toolkit.host_functions import this_thread

from .error_codes import host_error

_NO_DEVICE = object()


class _Thread(threading.local):
    key: object = _NO_DEVICE


#: ``thread.key`` is the key of the device that is current on the calling thread.
thread = _Thread()


class CurrentDevice:
    """Makes one device current. Its key is replaced when it closes, so that it is current nowhere from then on."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.key = object()
        self.closed = False

    def enter(self) -> object:
        if self.closed:
            self.refuse("enter")
        before = thread.key
        if before is self.key:
            return None
        if this_thread.runs_host_function:
            why = "a kernel, or what else runs for a stream, cannot launch another one, allocate, copy or wait"
            raise host_error("enter", "NOT_PERMITTED", f"{why}: do that on the host, and give it arrays as arguments")
        thread.key = self.key
        return before

    def exit(self, token: object) -> None:
        if token is not None:
            thread.key = token

    def close(self) -> None:
        """Let the device be current nowhere."""
        self.closed = True
        self.key = object()

    def check(self, call: str) -> None:
        """Raise for a driver call unless the device is current on this thread."""
        if thread.key is not self.key:
            self.refuse(call)

    def refuse(self, call: str) -> NoReturn:
        """Raise for a driver call on a device that is not current."""
        if self.closed:
            raise host_error(call, "DEVICE_CLOSED", f"device {self.ordinal} was closed")
        why = f"device {self.ordinal} is not current on this thread; enter() it first"
        raise host_error(call, "INVALID_CONTEXT", why)
