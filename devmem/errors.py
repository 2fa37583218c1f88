"""Everything devmem raises, under its public name; the tree is drawn in :mod:`devmem.spi.errors`."""

from .spi.errors import (
    BackendError,
    BackendUnavailable,
    ClosedError,
    ConfigError,
    DeviceLost,
    DevmemError,
    DevmemWarning,
    ForkedError,
    GuardError,
    LayoutError,
    OutOfMemory,
    PluginError,
    SimulatorError,
    TransferGuardError,
    UnsupportedError,
)

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "ClosedError",
    "ConfigError",
    "DeviceLost",
    "DevmemError",
    "DevmemWarning",
    "ForkedError",
    "GuardError",
    "LayoutError",
    "OutOfMemory",
    "PluginError",
    "SimulatorError",
    "TransferGuardError",
    "UnsupportedError",
]
