"""What several tests of single modules stand on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from devmem._core.base.address import extent as extent_of
from devmem.backends.host.hooks import HostBackend
from devmem.kernels.compilers.simulator.compiler import Simulator
from devmem.spi.errors import SimulatorError
from devmem.spi.types import LEGACY_STREAM, CopyKind
from devmem.testing import FaultyDriver


@pytest.fixture
def driver() -> Iterator[FaultyDriver]:
    """A strict host device that is entered, whose calls can be made to fail and which notes every mistake."""
    backend = HostBackend()
    backend.configure({"strict": True, "devices": 1})
    opened = FaultyDriver(backend.open(0))
    token = opened.enter()
    yield opened
    opened.disarm()
    opened.synchronize()
    assert opened.mistakes == []
    opened.exit(token)
    opened.close()


class Buffer:
    """An array on the device, as compilers are given one."""

    def __init__(self, ptr: int, like: np.ndarray, readonly: bool) -> None:
        self.ptr, self.readonly = ptr, readonly
        self.shape, self.strides, self.dtype = like.shape, like.strides, like.dtype


class Machine:
    """The simulator over a strict host device, with nothing in between."""

    def __init__(self) -> None:
        backend = HostBackend()
        backend.configure({"strict": True})
        self.driver = backend.open(0)
        self.compiler = Simulator()
        self.driver.enter()

    def put(self, array: np.ndarray, *, readonly: bool = False) -> Buffer:
        """Upload the bytes that an array spans; it may lie in them in any order."""
        low, high = extent_of(array)
        if high == low:
            return Buffer(0, array, readonly)
        ptr = self.driver.alloc(high - low, LEGACY_STREAM)
        self.driver.copy(ptr, low, high - low, CopyKind.H2D, LEGACY_STREAM, blocking=True)
        return Buffer(ptr + array.ctypes.data - low, array, readonly)

    def get(self, buffer: Buffer) -> np.ndarray:
        """Download a contiguous one."""
        out = np.empty(buffer.shape, buffer.dtype)
        if out.size:
            self.driver.copy(out.ctypes.data, buffer.ptr, out.nbytes, CopyKind.D2H, LEGACY_STREAM, blocking=True)
        return out

    def prepare(self, function: Callable[..., object], *arguments: Any, **options: Any) -> Any:
        """Compile it for these."""
        types = tuple(self.compiler.type_of(each) for each in arguments)
        return self.compiler.compile(function, types, self.driver, options)

    def __call__(
        self,
        function: Callable[..., object],
        grid: Any,
        block: Any,
        *arguments: Any,
        shared: int = 0,
        stream: int = 1,
        **options: Any,
    ) -> None:
        """Launch it."""
        compiled = self.prepare(function, *arguments, **options)
        compiled.launch(extent(grid), extent(block), shared, stream, arguments)

    def run(
        self, function: Callable[..., object], grid: Any, block: Any, *arguments: Any, shared: int = 0, **options: Any
    ) -> list:
        """Launch it on NumPy arrays; what they hold afterwards."""
        placed = [self.put(each) if isinstance(each, np.ndarray) else each for each in arguments]
        self(function, grid, block, *placed, shared=shared, **options)
        return [self.get(each) for each in placed if isinstance(each, Buffer)]

    def report(
        self, function: Callable[..., object], grid: Any, block: Any, *arguments: Any, shared: int = 0
    ) -> SimulatorError:
        """What is reported of it; the device is as good as before."""
        with pytest.raises(SimulatorError) as caught:
            self.run(function, grid, block, *arguments, shared=shared)
        self.driver.synchronize()
        return caught.value


def extent(lengths: Any) -> tuple[int, int, int]:
    """Three lengths, of one, two or three."""
    return (*np.atleast_1d(lengths).tolist(), 1, 1)[:3]


@pytest.fixture
def simulated() -> Iterator[Machine]:
    """A simulator of its own."""
    pytest.importorskip("greenlet")
    machine = Machine()
    yield machine
    machine.driver.close()


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns at every opportunity."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
