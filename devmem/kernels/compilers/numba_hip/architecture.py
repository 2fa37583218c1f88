"""The architecture that numba-hip compiles for, by a driver's device, found out without importing numba-hip."""

from __future__ import annotations

from ....spi.driver import Driver
from ....spi.errors import UnsupportedError


def architecture(driver: Driver) -> str:
    """The architecture with its features, as the runtime names it: ``gfx90a:sramecc+:xnack-``."""
    features = str(driver.info.facts.get("features", ""))
    if not driver.info.arch.startswith("gfx"):
        raise UnsupportedError(
            f"the architecture {driver.info.arch!r} of {driver.info.name} is not an AMD architecture"
        )
    return f"{driver.info.arch}:{features}" if features else driver.info.arch
