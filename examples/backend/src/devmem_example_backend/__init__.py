"""An example plugin: a backend. The function below is devmem's hook."""

from __future__ import annotations

from collections.abc import Sequence

from devmem.spi.driver import Backend

from .backend import ExampleBackend


def devmem_backends() -> Sequence[Backend]:
    """Supply the backend ``example``."""
    return [ExampleBackend()]
