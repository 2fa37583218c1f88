"""What a kernel compiler supplies. devmem compiles nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .driver import Driver


class KernelCompiler(Protocol):
    """Turns Python functions into something that the drivers of one backend can launch."""

    name: str
    backend: str

    def unavailable(self) -> str | None:
        """Why this compiler cannot be used here, with the install line; ``None`` if it can."""

    def compile(self, function: Callable[..., object], signature: str | None, driver: Driver) -> int:
        """A handle for `devmem.spi.driver.SupportsLaunch`."""
