"""The plugin: AMD GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from ...spi import SPI_VERSION
from ...spi.driver import Driver


class RocBackend:
    """HIP devices. Nothing of AMD's is imported or loaded before somebody asks whether the backend can be used."""

    name = "roc"
    spi_version = SPI_VERSION

    def __init__(self) -> None:
        self._provider = "auto"
        self._library = ""
        self._stream_ordered = False
        self._array_interface = False

    def configure(self, options: Mapping[str, object]) -> None:
        """Take ``provider``, ``library``, ``stream_ordered`` and ``cuda_array_interface``, the settings ``DEVMEM_ROC_*``."""
        self._provider = str(options.get("provider", self._provider))
        self._library = str(options.get("library", self._library))
        self._stream_ordered = bool(options.get("stream_ordered", self._stream_ordered))
        self._array_interface = bool(options.get("cuda_array_interface", self._array_interface))

    def unavailable(self) -> str | None:
        """Why HIP cannot be used here, with what would help; ``None`` if it can."""
        try:
            from .runtime import reason

            return reason(self._provider, self._library)
        except Exception as error:  # asked on every machine, so whatever a broken installation does is a reason too
            return f"the HIP runtime or its Python binding is broken ({error!r}): reinstall ROCm, or hip-python"

    def device_count(self) -> int:
        """The number of devices that the runtime shows, after the variables that hide some."""
        from .runtime import runtime

        return runtime(self._provider, self._library).count()

    def open(self, ordinal: int) -> Driver:
        """A driver on the device's one context, which all of the process shares."""
        from .driver import RocDriver
        from .runtime import runtime

        found = runtime(self._provider, self._library)
        found.warn_of_copies()
        return RocDriver(found, ordinal, self._stream_ordered, self._array_interface)


def devmem_backends() -> list[RocBackend]:
    """The backend of this plugin."""
    return [RocBackend()]
