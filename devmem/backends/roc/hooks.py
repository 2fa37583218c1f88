"""The plugin: AMD GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from ...spi import SPI_VERSION
from ...spi.driver import Driver
from ...toolkit.settings import checked


class RocBackend:
    """HIP devices. Nothing of AMD's is imported or loaded before a program asks whether the backend can be used."""

    name = "roc"
    spi_version = SPI_VERSION
    options: Mapping[str, str] = MappingProxyType(
        {
            "provider": "what HIP is called through",
            "library": "the libamdhip64.so to use",
            "stream_ordered": "True | False: allocate from HIP's pool",
            "cuda_array_interface": "True | False: arrays say __cuda_array_interface__",
        }
    )

    def __init__(self) -> None:
        self._where = {"provider": "auto", "library": ""}
        self._choices = {"stream_ordered": False, "cuda_array_interface": False}

    def configure(self, options: Mapping[str, object]) -> None:
        """Take ``provider``, ``library``, ``stream_ordered`` and ``cuda_array_interface``, the settings ``DEVMEM_ROC_*``."""
        checked(self.name, options, dict.fromkeys(self._where, str) | dict.fromkeys(self._choices, bool))
        self._where |= {name: str(options[name]) for name in self._where if name in options}
        self._choices |= {name: bool(options[name]) for name in self._choices if name in options}

    def unavailable(self) -> str | None:
        try:
            from .runtime import reason

            return reason(**self._where)
        except Exception as error:  # asked on every machine, so whatever a broken installation does is a reason too
            return f"the HIP runtime or its Python binding is broken ({error!r}): reinstall ROCm, or hip-python"

    def device_count(self) -> int:
        from .runtime import runtime

        return runtime(**self._where).count()

    def open(self, ordinal: int) -> Driver:
        from .driver import RocDriver
        from .runtime import runtime

        found = runtime(**self._where)
        found.warn_of_copies()
        return cast("Driver", RocDriver(found, ordinal, **self._choices))


def devmem_backends() -> list[RocBackend]:
    """The backend of this plugin."""
    return [RocBackend()]
