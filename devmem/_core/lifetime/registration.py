"""Page-locking memory that the user allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ...spi.errors import ClosedError, DevmemError
from ...spi.types import Capability
from ...toolkit.deferred_errors import FirstError
from ..base.current_device import Entered

if TYPE_CHECKING:
    from types import TracebackType

    from ..device.open_device import Context


class Registration:
    """Arrays that are registered until the end of a ``with`` block, or until ``deregister``."""

    __slots__ = ("arrays", "closed", "context")

    def __init__(self, context: Context, arrays: tuple[npt.NDArray[Any], ...]) -> None:
        context.require(Capability.HOST_REGISTER, "page-lock memory", "copy without registering, or use pinned_array()")
        self.context = context
        self.arrays: list[npt.NDArray[Any]] = []
        self.closed = False
        try:
            with Entered(context), context.registry.together(context, arrays):
                for array in arrays:
                    context.registry.register(context, array)
                    self.arrays.append(array)
        except BaseException:  # also when leaving the device fails: nobody would have a handle to close
            self.close()
            raise

    def __enter__(self) -> Registration:
        if self.closed:
            raise ClosedError(
                "these arrays are not registered any more: call register() or pinned() again for each block"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Deregister what is still registered, each array after the copies that use it. A second call does nothing."""
        self.closed = True
        if self.arrays and self.context.dead is None:
            with Entered(self.context):
                self._undo()

    def _undo(self) -> None:
        with FirstError() as first:
            for array in self.arrays[::-1]:
                try:
                    self.context.registry.deregister(self.context, array)
                except DevmemError as error:  # the others must still be let go
                    first.put(error)
            # Where only the wait failed, an array is still registered, and closing can be tried again.
            held = [] if first.error is None else self.arrays
            self.arrays = [array for array in held if self.context.registry.holds(self.context, array)]
