"""The plugin: NVIDIA GPUs."""

from __future__ import annotations

from typing import cast

from ...spi import SPI_VERSION
from ...spi.driver import Driver


class CudaBackend:
    """CUDA devices. No module of NVIDIA's is imported before a program asks whether the backend can be used."""

    name = "cuda"
    spi_version = SPI_VERSION

    def unavailable(self) -> str | None:
        try:
            from .binding import reason
        except ImportError as error:
            return (
                f"cuda-bindings is not installed ({error}): pip install 'devmem-arrays[cuda13]' "
                f"(for an older driver 'devmem-arrays[cuda12]')"
            )
        except Exception as error:  # asked on every machine, so whatever a broken installation does is a reason too
            return f"cuda-bindings is broken ({error!r}): pip install --force-reinstall 'cuda-bindings>=13,<14'"
        return reason()

    def device_count(self) -> int:
        from .binding import device_count

        return device_count()

    def open(self, ordinal: int) -> Driver:
        from .driver import CudaDriver

        return cast("Driver", CudaDriver(ordinal))


def devmem_backends() -> list[CudaBackend]:
    """The backend of this plugin."""
    return [CudaBackend()]
