"""KvikIO: copies between files and the memory of NVIDIA devices, by GPUDirect Storage.

`devmem.load` and `devmem.save` use it if it is installed and the machine has GPUDirect Storage; otherwise they copy through
devmem's own page-locked staging buffers, as KvikIO would do there too.
"""

from __future__ import annotations

import errno
import importlib
from typing import Any


class KvikIO:
    """Reads and writes device memory through ``kvikio.CuFile``."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._asked = False

    def unavailable(self) -> str | None:
        """Why it cannot be used: it is not installed, or there is no GPUDirect Storage. Determined once, at the first file."""
        if not self._asked:
            self._reason, self._asked = _reason(), True
        return self._reason

    def read(self, path: str, offset: int, ptr: int, nbytes: int) -> int:
        """Read a file into device memory, by several threads of KvikIO."""
        return self._move("pread", "r", path, offset, ptr, nbytes)

    def write(self, path: str, offset: int, ptr: int, nbytes: int) -> int:
        """Write device memory into an existing file."""
        return self._move("pwrite", "r+", path, offset, ptr, nbytes)

    def _move(self, verb: str, flags: str, path: str, offset: int, ptr: int, nbytes: int) -> int:
        kvikio = importlib.import_module("kvikio")
        try:
            with kvikio.CuFile(path, flags) as file:
                return int(getattr(file, verb)(_Bytes(ptr, nbytes), nbytes, offset).get())
        except (RuntimeError, ValueError) as error:  # translated C++ exceptions
            raise OSError(errno.EIO, f"KvikIO: {error}", path) from error


class _Bytes:
    """Device memory with a CUDA Array Interface, for KvikIO."""

    def __init__(self, ptr: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (ptr, False),
            "strides": None,
            "version": 3,
        }


def _reason() -> str | None:
    try:
        driver = importlib.import_module("kvikio.cufile_driver")
        defaults = importlib.import_module("kvikio.defaults")
        if defaults.is_compat_mode_preferred():
            return "KvikIO reads by POSIX here (KVIKIO_COMPAT_MODE)"
        return None if driver.get("is_gds_available") else "no GPUDirect Storage here"
    except Exception as error:  # missing, too old, or its libraries cannot be loaded
        return f"{type(error).__name__}: {error}"
