"""The exceptions of numba.cuda's host side, and the translation of devmem's errors.

All functions of the package raise numba.cuda's types; an error that devmem has too is an instance of both types.
"""

from __future__ import annotations

import functools
from typing import Any

from ....spi.errors import (
    BackendError,
    BackendUnavailable,
    DevmemError,
    ForkedError,
    LayoutError,
    OutOfMemory,
    SimulatorError,
)

#: CUDA_ERROR_OUT_OF_MEMORY, and the same number of HIP.
OUT_OF_MEMORY = 2


class CudaDriverError(Exception):
    """The driver was used incorrectly."""


class CudaRuntimeError(Exception):
    """The runtime library was used incorrectly."""


class CudaSupportError(ImportError):
    """No driver or no device is usable."""


class CudaAPIError(CudaDriverError):
    """A driver call failed; `code` is the driver's error number, `msg` its message."""

    def __init__(self, code: int, msg: str) -> None:
        Exception.__init__(self, code, msg)
        self.code = code
        self.msg = msg

    def __str__(self) -> str:
        return f"[{self.code}] {self.msg}"

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (type(self), self.code, self.msg, dict(self.__dict__))


class DeadMemoryError(RuntimeError):
    """Memory was used after it was freed."""


class LinkerError(RuntimeError):
    """A kernel could not be linked."""


class NvvmError(Exception):
    """The compiler library failed."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class NvvmSupportError(ImportError):
    """There is no compiler library."""


class NvvmWarning(Warning):
    """A warning of the compiler library."""


class NvrtcError(Exception):
    """The runtime compiler failed."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class NvrtcCompilationError(NvrtcError):
    """Source text could not be compiled."""


class NvrtcBuiltinOperationFailure(NvrtcError):
    """An internal error of the runtime compiler."""


class NvrtcSupportError(ImportError):
    """There is no runtime compiler."""


class CCSupportError(RuntimeError):
    """The device is too old."""


class _Refused(CudaAPIError, BackendError):
    """A failed driver call of devmem."""


class _NoMemory(CudaAPIError, OutOfMemory):
    """An allocation that did not fit."""


class _Forked(CudaDriverError, ForkedError):
    """A handle from before a fork."""


class _Unavailable(CudaSupportError, BackendUnavailable):
    """No backend that could be used."""


class BadIndex(LayoutError, TypeError):
    """An index that is neither an int nor a slice."""


def translated(error: DevmemError) -> Exception:
    """numba.cuda's exception for an error of devmem, to be raised from it; an error that needs no translation is raised here.

    LayoutError and ClosedError are ValueErrors, UnsupportedError is a NotImplementedError: they need none.
    """
    if isinstance(error, CudaDriverError | CudaSupportError):
        pass
    elif isinstance(error, BackendError):
        found: BackendError
        kind = _NoMemory if isinstance(error, OutOfMemory) else _Refused
        found = kind(OUT_OF_MEMORY if kind is _NoMemory else error.code, str(error))
        vars(found).update({**vars(error), "code": found.code})
        return found
    elif isinstance(error, ForkedError):
        return _Forked(f"CUDA initialized before forking: {error}")
    elif isinstance(error, BackendUnavailable):
        return _Unavailable(str(error))
    elif (
        isinstance(error, SimulatorError)
        and isinstance(error.__cause__, Exception)
        and not isinstance(error.__cause__, DevmemError)
    ):
        return _of_both_kinds(error, error.__cause__)
    try:  # raised here, as an exception that is its own cause would never be freed
        raise error
    finally:
        del error


def _of_both_kinds(error: SimulatorError, cause: Exception) -> Exception:
    """A report that is also of the kind of the exception that the kernel raised, which is what numba.cuda raises."""
    try:
        kind: Any = type(cause)
        found: Exception = _report_and(kind)(str(error))
    except TypeError:  # exceptions of C that hold more than others
        found = SimulatorError(str(error))
    found.__dict__.update(vars(error))
    return found


@functools.lru_cache(64)
def _report_and(kind: Any) -> Any:
    names = {"__init__": SimulatorError.__init__, "__reduce__": SimulatorError.__reduce__, "__str__": Exception.__str__}
    return type(kind.__name__, (SimulatorError, kind), names)


def _unpickle(kind: type[CudaAPIError], code: int, msg: str, fields: dict[str, object]) -> CudaAPIError:
    error = kind(code, msg)
    error.__dict__.update(fields)
    return error
