"""What a plugin author tests with: conformance suites, injected failures, a latch, a pytest plugin.

::

    from devmem.testing import DriverTests

    class TestMyDriver(DriverTests):
        def make_backend(self):
            return MyBackend()

Names are imported when they are first asked for, so that `devmem.testing.emulator` works where pytest is not installed.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import DriverTests as DriverTests
    from .fault_injection import FaultyBackend as FaultyBackend
    from .fault_injection import FaultyDriver as FaultyDriver
    from .fault_injection import Ledger as Ledger
    from .injection import every_failure as every_failure
    from .memory_resource import MemoryResourceTests as MemoryResourceTests
    from .stream_hold import Latch as Latch
    from .stream_hold import hold as hold

_HOME = {
    "DriverTests": "driver",
    "FaultyBackend": "fault_injection",
    "FaultyDriver": "fault_injection",
    "Latch": "stream_hold",
    "Ledger": "fault_injection",
    "MemoryResourceTests": "memory_resource",
    "every_failure": "injection",
    "hold": "stream_hold",
}

#: Modules whose bare asserts are worth pytest's explanations.
_SUITES = (
    "driver_fixture",
    "driver_copies",
    "driver_device",
    "driver_errors",
    "driver_events",
    "driver_memory",
    "driver_optional",
    "driver_sharing",
    "driver_streams",
    "injection",
    "memory_resource",
)

__all__ = [
    "DriverTests",
    "FaultyBackend",
    "FaultyDriver",
    "Latch",
    "Ledger",
    "MemoryResourceTests",
    "every_failure",
    "hold",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith("Tests"):
        _explain_asserts()
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _explain_asserts() -> None:
    import pytest

    fresh = [module for module in (f"{__name__}.{suite}" for suite in _SUITES) if module not in sys.modules]
    if fresh:
        pytest.register_assert_rewrite(*fresh)
