"""The exceptions of numba.cuda's host side, and devmem's own errors as one of them.

Whatever a verb here raises is one of numba.cuda's types; where devmem has an error of the same meaning, it is that one too.
"""

from __future__ import annotations

from ....spi.errors import BackendError, BackendUnavailable, DevmemError, ForkedError, LayoutError, OutOfMemory

#: CUDA_ERROR_OUT_OF_MEMORY, and the same number of HIP.
OUT_OF_MEMORY = 2


class CudaDriverError(Exception):
    """The driver cannot be used so."""


class CudaRuntimeError(Exception):
    """The runtime library cannot be used so."""


class CudaSupportError(ImportError):
    """There is no driver, or no device, that could be used."""


class CudaAPIError(CudaDriverError):
    """A driver call failed; `code` is the driver's number, `msg` what it says."""

    def __init__(self, code: int, msg: str) -> None:
        Exception.__init__(self, code, msg)
        self.code = code
        self.msg = msg

    def __str__(self) -> str:
        return f"[{self.code}] {self.msg}"

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (type(self), self.code, self.msg, dict(self.__dict__))


class DeadMemoryError(RuntimeError):
    """Memory was used after its end."""


class LinkerError(RuntimeError):
    """A kernel's parts do not fit together."""


class NvvmError(Exception):
    """The compiler's library failed."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class NvvmSupportError(ImportError):
    """There is no compiler library."""


class NvvmWarning(Warning):
    """The compiler's library complained."""


class NvrtcError(Exception):
    """The runtime compiler failed."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class NvrtcCompilationError(NvrtcError):
    """Source text could not be compiled."""


class NvrtcBuiltinOperationFailure(NvrtcError):
    """The runtime compiler failed in itself."""


class NvrtcSupportError(ImportError):
    """There is no runtime compiler."""


class CCSupportError(RuntimeError):
    """The device is too old."""


class _Refused(CudaAPIError, BackendError):
    """A driver call of devmem's that failed."""


class _NoMemory(CudaAPIError, OutOfMemory):
    """An allocation that did not fit."""


class _Forked(CudaDriverError, ForkedError):
    """A handle from before a fork."""


class _Unavailable(CudaSupportError, BackendUnavailable):
    """No backend that could be used."""


class BadIndex(LayoutError, TypeError):
    """An index that is neither an int nor a slice."""


def translated(error: DevmemError) -> Exception:
    """An error of devmem's as numba.cuda's callers know it, to be raised from it; those of meaning alike to both are raised.

    LayoutError and ClosedError are ValueErrors, UnsupportedError is a NotImplementedError: they go as they are.
    """
    if isinstance(error, CudaDriverError | CudaSupportError):
        pass
    elif isinstance(error, BackendError):
        found: BackendError
        kind = _NoMemory if isinstance(error, OutOfMemory) else _Refused
        found = kind(OUT_OF_MEMORY if kind is _NoMemory else error.code, str(error))
        found.backend, found.call, found.name = error.backend, error.call, error.name
        return found
    elif isinstance(error, ForkedError):
        return _Forked(f"CUDA initialized before forking: {error}")
    elif isinstance(error, BackendUnavailable):
        return _Unavailable(str(error))
    try:  # here, as nothing can be its own cause: it would never go
        raise error
    finally:
        del error


def _unpickle(kind: type[CudaAPIError], code: int, msg: str, fields: dict[str, object]) -> CudaAPIError:
    error = kind(code, msg)
    error.__dict__.update(fields)
    return error
