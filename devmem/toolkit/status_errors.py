"""The errors that stand for the statuses of a vendor's functions.

A vendor's function returns a number: 0, or a status that says what failed. Each open device has one `StatusErrors`, and every
checked function of the device (`devmem.toolkit.vendor_functions`) hands it the statuses that are not 0. It raises `OutOfMemory`,
`DeviceLost` or `BackendError`, with the vendor's name and sentence.

After some statuses every later call on the device fails too. They are the backend's ``sticky`` ones. The first is kept in
``lost``, and ``Driver.enter`` raises it again from then on, on every thread, without asking the vendor's library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NoReturn

from ..spi.errors import BackendError, DeviceLost, OutOfMemory, UnsupportedError

#: Statuses that CUDA's driver and AMD's HIP runtime number alike.
INVALID_VALUE, OUT_OF_MEMORY, INVALID_HANDLE, NOT_FOUND, NOT_READY, NOT_SUPPORTED = 1, 2, 400, 500, 600, 801
#: A stream or an event cannot be asked: a stream is capturing a graph, the event was recorded in one.
CAPTURE_UNSUPPORTED, CAPTURED_EVENT, CAPTURE_STATUSES = 900, 907, range(900, 910)


class StatusErrors:
    """Raise the error that a status stands for, and keep the first one that loses the device.

    Parameters
    ----------
    backend : str
        The backend's name, for `BackendError.backend`.
    describe : callable
        The vendor's name of a status, and its sentence on it.
    sticky : collection of int
        Statuses after which the device is lost.
    acknowledge : callable
        Called after each failed call, before its error is made: some libraries keep the last status until they are asked for it.

    Attributes
    ----------
    lost : DeviceLost or None
        The first error that lost the device; raise copies of it (`fresh_copy`).
    """

    def __init__(
        self,
        backend: str,
        describe: Callable[[int], tuple[str, str]],
        sticky: Collection[int],
        acknowledge: Callable[[], object] = lambda: None,
    ) -> None:
        self.backend = backend
        self.describe = describe
        self.sticky = sticky
        self.acknowledge = acknowledge
        self.lost: DeviceLost | None = None

    def fail(self, call: str, status: int) -> NoReturn:
        """Raise for a function that returned a status."""
        self.acknowledge()
        name, sentence = self.describe(status)
        message = f"{call} failed with {name} ({status}): {sentence}"
        kind = OutOfMemory if status == OUT_OF_MEMORY else BackendError
        if status in self.sticky:
            message += "; the device is lost for this process: restart it"
            kind = DeviceLost
            self.lost = self.lost or DeviceLost(message, backend=self.backend, call=call, code=status, name=name)
        raise kind(message, backend=self.backend, call=call, code=status, name=name)

    def refuse(self, call: str, status: int, why: str) -> NoReturn:
        """Raise instead of calling a function whose arguments the vendor's library does not survive."""
        name, _ = self.describe(status)
        message = f"{call} was not called: {why}"
        raise BackendError(message, backend=self.backend, call=call, code=status, name=name)


def captured_event(error: BackendError) -> UnsupportedError:
    """What to raise where an event tells nothing because it is part of a graph."""
    return UnsupportedError(
        f"{error.call}: the event was recorded while its stream was capturing a graph, and tells nothing of what runs later"
    )
