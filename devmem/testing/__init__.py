"""Tools for testing a backend, an allocator or a program: conformance suites, fault injection, stream holds, a null driver.

::

    from devmem.testing import DriverTests

    class TestMyDriver(DriverTests):
        def make_backend(self):
            return MyBackend()

Each name is imported on first use, so that `devmem.testing.emulator` works without pytest.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import DriverTests as DriverTests
    from .fault_injection import FaultyBackend as FaultyBackend
    from .fault_injection import FaultyDriver as FaultyDriver
    from .fault_injection import LiveCounts as LiveCounts
    from .fault_injection import every_failure as every_failure
    from .memory_resource import MemoryResourceTests as MemoryResourceTests
    from .null_driver import NullBackend as NullBackend
    from .null_driver import NullDriver as NullDriver
    from .stream_hold import StreamHold as StreamHold
    from .stream_hold import hold as hold

_MODULES = {
    "DriverTests": "driver",
    "FaultyBackend": "fault_injection",
    "FaultyDriver": "fault_injection",
    "LiveCounts": "fault_injection",
    "MemoryResourceTests": "memory_resource",
    "NullBackend": "null_driver",
    "NullDriver": "null_driver",
    "StreamHold": "stream_hold",
    "every_failure": "fault_injection",
    "hold": "stream_hold",
}

__all__ = [
    "DriverTests",
    "FaultyBackend",
    "FaultyDriver",
    "LiveCounts",
    "MemoryResourceTests",
    "NullBackend",
    "NullDriver",
    "StreamHold",
    "every_failure",
    "hold",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith("Tests"):
        _explain_asserts()
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _explain_asserts() -> None:
    """Let pytest explain failed asserts in the conformance suites, which it does not collect as test modules."""
    import pytest

    suites = [f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("driver_*.py")]
    new = [module for module in (*suites, f"{__name__}.memory_resource") if module not in sys.modules]
    if new:
        pytest.register_assert_rewrite(*new)
