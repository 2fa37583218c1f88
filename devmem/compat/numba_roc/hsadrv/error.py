"""The exceptions of numba.roc, and devmem's own errors as one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ....spi.errors import BackendError, BackendUnavailable, DevmemError, OutOfMemory

F = TypeVar("F", bound=Callable[..., Any])


class HsaDriverError(Exception):
    """The driver cannot be used so."""


class HsaSupportError(ImportError):
    """There is no device, or none that could be used."""


class HsaApiError(HsaDriverError):
    """A driver call failed; ``code`` is the driver's number."""

    def __init__(self, code: int, msg: str) -> None:
        super().__init__(msg)
        self.code = code


class HsaKernelLaunchError(HsaDriverError):
    """A kernel cannot be launched so."""


class HsaContextMismatchError(HsaDriverError):
    """An array is on another device than the context that was named."""

    def __init__(self, expect: object, got: object) -> None:
        super().__init__(f"the array is on {expect}, the context that was named is {got}")


class HsaWarning(UserWarning):
    """The driver complained."""


class _Refused(HsaApiError, BackendError):
    """A driver call of devmem's that failed."""


class _NoMemory(HsaApiError, OutOfMemory):
    """An allocation that did not fit."""


class _Unavailable(HsaSupportError, BackendUnavailable):
    """No backend that could be used."""


def translated(error: DevmemError) -> Exception:
    """An error of devmem's as numba.roc's callers know it, to be raised from it; one that they know is raised."""
    if isinstance(error, HsaDriverError | HsaSupportError):
        pass
    elif isinstance(error, BackendError):
        kind = _NoMemory if isinstance(error, OutOfMemory) else _Refused
        found = kind(error.code, str(error))
        found.backend, found.call, found.name = error.backend, error.call, error.name
        return found
    elif isinstance(error, BackendUnavailable):
        return _Unavailable(str(error))
    try:  # here, as nothing can be its own cause: it would never go
        raise error
    finally:
        del error


def translating(function: F) -> F:
    """Raise numba.roc's exceptions where devmem's are of another type."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except (BackendError, BackendUnavailable) as error:
            raise translated(error) from error

    return call  # type: ignore[return-value]
