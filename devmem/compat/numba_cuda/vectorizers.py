"""Classes for ``numba.vectorize(..., target="cuda")`` and ``numba.guvectorize(..., target="cuda")``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .ufuncs import guvectorize, vectorize


class CUDAVectorize:
    """A function that is made when its signatures are added: `ufuncs.vectorize` in steps."""

    def __init__(
        self, func: Callable[..., Any], identity: Any = None, cache: bool = False, targetoptions: Any = None
    ) -> None:
        self._function, self._identity, self._signatures = func, identity, list[Any]()

    def add(self, sig: Any = None) -> None:
        """Declare types."""
        self._signatures.append(sig)

    def disable_compile(self) -> None:
        """Do nothing: it takes the types that are declared."""

    def build_ufunc(self) -> Any:
        """The function of arrays."""
        return vectorize(self._signatures, identity=self._identity)(self._function)


class CUDAGUFuncVectorize(CUDAVectorize):
    """The same for `ufuncs.guvectorize`."""

    def __init__(
        self,
        func: Callable[..., Any],
        sig: str,
        identity: Any = None,
        cache: bool = False,
        targetoptions: Any = None,
        writable_args: Any = (),
    ) -> None:
        super().__init__(func, identity, cache, targetoptions)
        self._layout = sig

    def build_ufunc(self) -> Any:
        """The function of arrays."""
        return guvectorize(self._signatures, self._layout, identity=self._identity)(self._function)
