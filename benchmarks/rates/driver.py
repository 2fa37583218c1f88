"""CUDA's driver, called by hand."""

from __future__ import annotations

from typing import Any

try:
    from cuda.bindings import driver as cu
except ImportError as _missing:
    raise SystemExit(f"this measures through cuda-bindings, which cannot be imported: {_missing}") from _missing

__all__ = ["checked", "cu", "wait"]


def checked(result: tuple[Any, ...]) -> Any:
    """The output of a driver call that succeeded."""
    if result[0]:
        raise RuntimeError(f"the driver said {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def wait() -> None:
    """Until the device has nothing left to do."""
    checked(cu.cuCtxSynchronize())
