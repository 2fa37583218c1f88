"""What every call to the CUDA driver needs: handles as the binding wants them, and errors as devmem raises them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from cuda.bindings import driver as binding

from ...spi.errors import DeviceLost, UnsupportedError
from ...spi.types import LEGACY_STREAM, PER_THREAD_STREAM
from ...toolkit.deferred_errors import fresh_copy
from .library import NOT_READY, cu, fail

#: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and _CAPTURED_EVENT.
CAPTURE_UNSUPPORTED, CAPTURED_EVENT = 900, 907
_GLOBAL = binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
_RELAXED = binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
# Called as it is, because a frame more would be felt.
_exchange = binding.cuThreadExchangeStreamCaptureMode


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


def unseen(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call that captures of graphs need not know of, so that none forbids it, or is spoilt by it.

    While somebody captures in the default mode, no thread of the process may allocate, free, or ask for an event, unless it says
    that it knows what it does. What is done here puts nothing into anybody's graph.
    """
    before: Any = _GLOBAL  # where an interrupt comes before it is known: the mode that every thread begins in
    try:
        try:
            _, before = _exchange(_RELAXED)
        except ValueError:
            before = None  # whatever is wrong, the call itself says so too, and giving something back has to go on
        return call(*arguments)
    finally:
        if before is not None:
            try:  # not suppress(): it would be felt
                _exchange(before)
            except ValueError:
                pass


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
            self.lost = self.lost or fresh_copy(first)
            raise

    def fail_event(self, call: str, error: Any) -> NoReturn:
        """Raise for an event that cannot be asked or waited for."""
        if int(error) == CAPTURED_EVENT:
            raise UnsupportedError(
                f"{call}: the event was recorded while its stream was capturing a graph, and tells nothing of what runs later"
            )
        self.fail(call, error)

    def ready(self, call: str, error: Any) -> bool:
        """The answer of a query."""
        if not error:
            return True
        if int(error) != NOT_READY:
            self.fail(call, error)
        return False
