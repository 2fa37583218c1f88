"""numba.roc's streams and driver object."""

from __future__ import annotations

from typing import Any

import devmem

from ...deprecation import warn_old_name
from .devices import Agent, cus, is_available, select_default_backend
from .error import translating


class Stream(devmem.Stream):
    """A queue of work on one device: ``synchronize()`` waits for it, and so does leaving ``with auto_synchronize():``."""

    __slots__ = ()

    @translating
    def synchronize(self) -> None:
        """Wait until all work on the stream is done."""
        super().synchronize()


def new_stream() -> Stream:
    """Make a stream on the current device."""
    select_default_backend()
    made: Any = devmem.stream()
    made.__class__ = Stream  # the subclass has no fields of its own
    found: Stream = made
    return found


class Driver:
    """numba.roc's ``hsa``: the agents of the machine, and synchronisation of all of them."""

    @property
    def is_available(self) -> bool:
        """Whether there is a device."""
        return is_available()

    @property
    def agents(self) -> list[Agent]:
        """The host and all devices; empty without devices."""
        return [Agent(None), *self.components] if is_available() else []

    @property
    def components(self) -> list[Agent]:
        """All devices."""
        return [Agent(each._device) for each in cus]

    def implicit_sync(self) -> None:
        """Wait for all streams of all devices."""
        for each in cus:
            each._device.synchronize()

    def create_stream(self) -> Stream:
        """Make a stream, under an old name."""
        warn_old_name("hsa.create_stream()", "roc.stream()")
        return new_stream()


hsa = Driver()


def __getattr__(name: str) -> Any:
    if name == "dgpu_present":
        return is_available()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
