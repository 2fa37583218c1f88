"""The exceptions of numba.roc, and the translation of devmem's errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ....spi.errors import BackendError, BackendUnavailable, DevmemError, OutOfMemory

F = TypeVar("F", bound=Callable[..., Any])


class HsaDriverError(Exception):
    """The driver was used incorrectly."""


class HsaSupportError(ImportError):
    """No device is usable."""


class HsaApiError(HsaDriverError):
    """A driver call failed; ``code`` is the driver's error number."""

    def __init__(self, code: int, msg: str) -> None:
        super().__init__(msg)
        self.code = code


class HsaKernelLaunchError(HsaDriverError):
    """The configuration of a launch is invalid."""


class HsaContextMismatchError(HsaDriverError):
    """An array is on another device than the given context."""

    def __init__(self, expect: object, got: object) -> None:
        super().__init__(f"the array is on {expect}, the given context is {got}")


class HsaWarning(UserWarning):
    """A warning of the driver."""


class _Refused(HsaApiError, BackendError):
    """A failed driver call of devmem."""


class _NoMemory(HsaApiError, OutOfMemory):
    """An allocation that did not fit."""


class _Unavailable(HsaSupportError, BackendUnavailable):
    """No backend that could be used."""


def translated(error: DevmemError) -> Exception:
    """numba.roc's exception for an error of devmem, to be raised from it; an error that needs no translation is raised here."""
    if isinstance(error, HsaDriverError | HsaSupportError):
        pass
    elif isinstance(error, BackendError):
        kind = _NoMemory if isinstance(error, OutOfMemory) else _Refused
        found = kind(error.code, str(error))
        vars(found).update({**vars(error), "code": found.code})
        return found
    elif isinstance(error, BackendUnavailable):
        return _Unavailable(str(error))
    try:  # raised here, as an exception that is its own cause would never be freed
        raise error
    finally:
        del error


def translating(function: F) -> F:
    """Decorate a function to raise numba.roc's exceptions instead of devmem's."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except (BackendError, BackendUnavailable) as error:
            raise translated(error) from error

    return call  # type: ignore[return-value]
