"""The primary context of a device, which all libraries of the process share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as cu

from ...toolkit.deferred_errors import fresh_copy
from ...toolkit.driver_parts import DriverState, Part
from .binding import code_of

# Called as it is: a checked call would cost a frame in every verb.
_get_current = cu.cuCtxGetCurrent


class PrimaryContext(Part):
    """Retained when the device is opened, and made current for each verb."""

    def __init__(self, state: DriverState) -> None:
        super().__init__(state)
        self.device = state.functions.DeviceGet(state.ordinal)
        self.primary = state.functions.DevicePrimaryCtxRetain(self.device)

    def enter(self) -> Any:
        if self._errors.lost is not None:
            raise fresh_copy(self._errors.lost)
        try:
            error, current = _get_current()
        except ValueError as unknown:
            error, current = code_of(unknown), None
        if current == self.primary:
            return None
        if error:
            self._errors.fail("cuCtxGetCurrent", int(error))
        self._functions.CtxSetCurrent(self.primary)
        return current

    def exit(self, token: Any) -> None:
        if token is not None:
            self._functions.CtxSetCurrent(token)

    def synchronize(self) -> None:
        self._functions.CtxSynchronize()

    def release(self) -> None:
        """Let go of the context."""
        self._functions.DevicePrimaryCtxRelease(self.device)

    @contextmanager
    def of_device(self, ordinal: int) -> Iterator[Any]:
        """The primary context of a device that is open, because its memory is being copied."""
        device = self._functions.DeviceGet(ordinal)
        primary = self._functions.DevicePrimaryCtxRetain(device)
        try:
            yield primary
        finally:
            self._functions.DevicePrimaryCtxRelease(device)
