"""What every call to the CUDA driver needs: handles as the binding wants them, and errors as devmem raises them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ...spi.errors import DeviceLost
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from .library import NOT_READY, cu, fail


class Handles(dict[int, Any]):
    """The binding's object for each handle: making one at every call costs more than looking it up.

    Of a foreign handle no object is kept, because it may name something else tomorrow.
    """

    def __init__(self, kind: Callable[[int], Any], *known: int) -> None:
        super().__init__({handle: kind(handle) for handle in known})
        self.kind = kind
        #: Whether some stream may not wait for the legacy stream by itself: one of ours, or a foreign one.
        self.apart = False

    def __missing__(self, handle: int) -> Any:
        self.apart = True
        return self.kind(handle)

    def take(self, handle: int) -> Any:
        """The object of a handle that is about to go."""
        return self.pop(handle) if handle in self else self.kind(handle)


class Calls:
    """The state that the calls of one device share."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.lost: DeviceLost | None = None
        self.streams = Handles(cu.CUstream, LEGACY_STREAM, PER_THREAD_STREAM)
        self.events = Handles(cu.CUevent)
        #: Memory that the host can see and that is out.
        self.host_blocks: set[int] = set()
        self.device: Any = None
        self.pool: Any = None

    def check(self, call: str, result: tuple[Any, ...]) -> Any:
        """The outputs of a call that succeeded."""
        if result[0]:
            self.fail(call, result[0])
        return result[1] if len(result) == 2 else result[1:]

    def fail(self, call: str, error: Any) -> NoReturn:
        """Raise, and remember the first failure that loses the device."""
        try:
            fail(call, error)
        except DeviceLost as first:
            self.lost = self.lost or first
            raise

    def ready(self, call: str, error: Any) -> bool:
        """The answer of a query."""
        if not error:
            return True
        if int(error) != NOT_READY:
            self.fail(call, error)
        return False
