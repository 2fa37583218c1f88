"""The driver of the device that is measured, called by hand: what everybody is compared with, and what verifies them.

One for each vendor, in `by_cuda` and `by_hip`; `use` chooses. Addresses are integers.
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

    #: What the calls alone are called in the tables, and what they go through.
    bare = ""
    version = ""

    @abstractmethod
    def enter(self) -> None:
        """Make the device current on this thread, whoever has been there meanwhile."""

    @abstractmethod
    def wait(self) -> None:
        """Until the device has nothing left to do."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Memory of the driver's own pool, kept warm as devmem keeps its."""

    @abstractmethod
    def free(self, ptr: int) -> None:
        """Back to the pool; never raises."""

    @abstractmethod
    def write(self, ptr: int, host: int, nbytes: int) -> None:
        """From the host, done on return."""

    @abstractmethod
    def read(self, host: int, ptr: int, nbytes: int) -> None:
        """To the host, done on return."""

    @abstractmethod
    def move(self, dst: int, src: int, nbytes: int) -> None:
        """Within the device."""

    @abstractmethod
    def calls(self, host: Array, ptr: int, out: Array) -> dict[str, Callable[[], object]]:
        """Upload, read, create: with as little around the driver's functions as can be."""

    @abstractmethod
    def engine(self, nbytes: int) -> Engine:
        """What times copies of page-locked memory."""


class Engine(ABC):
    """Memory on the device, a stream that waits for no other, and two events; all are given back with it."""

    ptr = 0

    @abstractmethod
    def seconds(self, direction: str, host: int, nbytes: int, times: int) -> float:
        """How long the device takes for so many copies, one after the other."""


class _Chosen:
    driver: Driver | None = None


def use(backend: str, ordinal: int) -> Driver:
    """Choose the driver, and enter the device. ImportError says what is missing."""
    _Chosen.driver = importlib.import_module(f".{MODULES[backend]}", __package__).open_driver(ordinal)
    _Chosen.driver.enter()
    return _Chosen.driver


def driver() -> Driver:
    """The one that was chosen."""
    assert _Chosen.driver is not None, "use() comes first"
    return _Chosen.driver
