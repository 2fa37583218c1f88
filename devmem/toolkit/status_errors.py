"""The errors that stand for the statuses of a vendor's functions.

A vendor's function returns 0, or a status that says what failed. Each open device has one `StatusErrors`, which raises
`OutOfMemory`, `DeviceLost` or `BackendError` for a status, with the vendor's name and sentence. After the backend's ``sticky``
statuses every later call on the device fails too: the first of these errors is kept in ``lost``, and ``Driver.enter``
raises copies of it (`fresh_copy`) on every thread, without asking the vendor's library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NoReturn

from ..spi.errors import BackendError, DeviceLost, OutOfMemory

#: Statuses that CUDA's driver and AMD's HIP runtime number alike.
INVALID_VALUE, OUT_OF_MEMORY, INVALID_HANDLE, NOT_FOUND, NOT_READY, NOT_SUPPORTED = 1, 2, 400, 500, 600, 801
#: A stream or an event cannot be asked: a stream is capturing a graph, or the event was recorded in one.
CAPTURE_UNSUPPORTED, CAPTURED_EVENT, CAPTURE_STATUSES = 900, 907, range(900, 910)


class StatusErrors:
    """Raise the error that a status stands for, and keep the first one that loses the device.

    ``describe`` gives the vendor's name of a status and its sentence. ``acknowledge`` is called after each failed call: some
    libraries keep the last status until they are asked for it.
    """

    def __init__(
        self,
        backend: str,
        describe: Callable[[int], tuple[str, str]],
        sticky: Collection[int],
        acknowledge: Callable[[], object] = lambda: None,
    ) -> None:
        self.lost: DeviceLost | None = None
        self._backend = backend
        self._describe = describe
        self._sticky = sticky
        self._acknowledge = acknowledge

    def fail(self, call: str, status: int) -> NoReturn:
        """Raise for a function that returned a status."""
        self._acknowledge()
        name, sentence = self._describe(status)
        message = f"{call} failed with {name} ({status}): {sentence}"
        kind = OutOfMemory if status == OUT_OF_MEMORY else BackendError
        if status in self._sticky:
            message += "; the device is lost for this process: restart it"
            kind = DeviceLost
            self.lost = self.lost or DeviceLost(message, backend=self._backend, call=call, code=status, name=name)
        raise kind(message, backend=self._backend, call=call, code=status, name=name)

    def refuse(self, call: str, status: int, why: str) -> NoReturn:
        """Raise instead of calling a function with arguments that the vendor's library does not survive."""
        name, _ = self._describe(status)
        raise BackendError(f"{call} was not called: {why}", backend=self._backend, call=call, code=status, name=name)
