"""The plugin: AMD GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from ...spi import SPI_VERSION
from ...spi.driver import Driver
from ...spi.types import Option
from ...toolkit.settings import checked, choice, flag


class RocBackend:
    """HIP devices. Nothing of AMD's is imported or loaded before a program asks whether the backend can be used."""

    name = "roc"
    spi_version = SPI_VERSION
    options: Mapping[str, Option] = MappingProxyType(
        {
            "provider": choice(
                "what HIP is called through: hip-python 10, hip-python 7, neither; auto: the first that is there",
                "auto",
                "rocm",
                "hip",
                "ctypes",
            ),
            "library": Option("the libamdhip64.so to use, unless the process has one loaded", "the path of a file"),
            "stream_ordered": flag("allocate from HIP's pool, in stream order, if it passes a self-test"),
            "cuda_array_interface": flag(
                "arrays say __cuda_array_interface__, which was not made for HIP, besides DLPack"
            ),
        }
    )

    def __init__(self) -> None:
        self._where = {"provider": "auto", "library": ""}
        self._choices = {"stream_ordered": False, "cuda_array_interface": False}

    def configure(self, options: Mapping[str, object]) -> None:
        """Take ``provider``, ``library``, ``stream_ordered`` and ``cuda_array_interface``, the settings ``DEVMEM_ROC_*``."""
        checked(self.name, options, self.options)
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
        from .runtime import runtime, warn_of_copies

        found = runtime(**self._where)
        warn_of_copies(found.library)
        return cast("Driver", RocDriver(found, ordinal, **self._choices))


def devmem_backends() -> list[RocBackend]:
    """The backend of this plugin."""
    return [RocBackend()]
