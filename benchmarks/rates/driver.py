"""Direct calls of the device's driver: the reference for all libraries, and the means to verify their results.

One for each vendor, in `by_cuda` and `by_hip`; `use` selects one. Addresses are integers.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
UP, DOWN = "h2d", "d2h"
MODULES = {"cuda": "by_cuda", "roc": "by_hip"}


class Driver(ABC):
    """One device, current from `enter` on; copies and memory on the legacy default stream."""

    #: The name of the direct calls in the tables, and their binding.
    bare = ""
    version = ""

    @abstractmethod
    def enter(self) -> None:
        """Make the device current on this thread, whatever other libraries have made current."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the device has completed all work."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Allocate from the driver's pool, which keeps freed memory as devmem's does."""

    @abstractmethod
    def free(self, ptr: int) -> None:
        """Free to the pool; never raises."""

    @abstractmethod
    def write(self, ptr: int, host: int, nbytes: int) -> None:
        """Copy from the host; complete on return."""

    @abstractmethod
    def read(self, host: int, ptr: int, nbytes: int) -> None:
        """Copy to the host; complete on return."""

    @abstractmethod
    def move(self, dst: int, src: int, nbytes: int) -> None:
        """Copy within the device."""

    @abstractmethod
    def calls(self, host: Array, ptr: int, out: Array) -> dict[str, Callable[[], object]]:
        """Upload, read, create: functions with the least overhead around the driver calls."""

    @abstractmethod
    def engine(self, nbytes: int) -> Engine:
        """The timer for copies of page-locked memory."""


class Engine(ABC):
    """Owns device memory, a non-blocking stream and two events; closing it frees all of them."""

    ptr = 0

    @abstractmethod
    def seconds(self, direction: str, host: int, nbytes: int, times: int) -> float:
        """Seconds that the device takes for ``count`` consecutive copies."""


class _Chosen:
    driver: Driver | None = None


def use(backend: str, ordinal: int) -> Driver:
    """Select the driver and make the device current. ImportError says what is missing."""
    _Chosen.driver = importlib.import_module(f".{MODULES[backend]}", __package__).open_driver(ordinal)
    _Chosen.driver.enter()
    return _Chosen.driver


def driver() -> Driver:
    """The selected driver."""
    assert _Chosen.driver is not None, "use() comes first"
    return _Chosen.driver
