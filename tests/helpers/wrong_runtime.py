"""A runtime of `differential` with a mistake in its driver, which is named by the variable WRONG: the campaign has to find it."""

from __future__ import annotations

import os
from typing import Any

import differential_runtime

import devmem as dm
from devmem.backends.host.hooks import HostBackend
from devmem.spi.errors import OutOfMemory
from devmem.testing import FaultyBackend, FaultyDriver


class WrongBytes(FaultyDriver):
    """Fills of more than 500 elements are one too short."""

    def fill(self, dst: int, value: int, width: int, count: int, stream: int) -> None:
        super().fill(dst, value, width, count - (count > 500), stream)


class WrongError(FaultyDriver):
    """Another error than elsewhere says that there is too little memory."""

    def alloc(self, *arguments: Any, **others: Any) -> int:
        try:
            return super().alloc(*arguments, **others)
        except OutOfMemory:
            raise ValueError("too little memory") from None


class WrongOrder(FaultyDriver):
    """A stream does not wait for an event."""

    def stream_wait(self, stream: int, event: int) -> None:
        self.event_query(event)


class Crash(FaultyDriver):
    """The process ends as a large block is freed."""

    def free(self, ptr: int, nbytes: int, *arguments: Any, **others: Any) -> None:
        if nbytes > 100_000:
            os._exit(11)
        super().free(ptr, nbytes, *arguments, **others)


DRIVERS = {each.__name__: each for each in (WrongBytes, WrongError, WrongOrder, Crash)}


class WrongBackend(FaultyBackend):
    """The host backend, whose drivers are such."""

    def open(self, ordinal: int) -> FaultyDriver:
        return DRIVERS[os.environ["WRONG"]](self.inner.open(ordinal), backend=self.name, faults=self.faults)


if __name__ == "__main__":
    host = HostBackend()
    host.configure({"strict": True})
    dm.register_backend(WrongBackend(host, "wrong"))
    differential_runtime.main()
