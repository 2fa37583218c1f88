"""A driver that is put together from parts, each with some methods of the contract.

A backend writes a part for each of its own concerns (memory, copies, code) and takes the others from the toolkit. All parts of
an open device share one `DriverState`. `ComposedDriver` makes the parts' bound methods attributes of the driver: so the flat
contract costs no frame more than the part's own method, and ``driver.alloc`` is a memory resource as it stands. No part refers to
the driver, so there is no reference cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..spi.driver import PROTOCOLS, Driver
from ..spi.types import DeviceInfo
from .handles import Handles
from .relaxed_capture import RelaxedCapture
from .status_errors import StatusErrors
from .vendor_functions import VendorFunctions

#: The methods of the contract and of all its optional protocols.
CONTRACT = [name for protocol in (Driver, *PROTOCOLS.values()) for name in vars(protocol) if not name.startswith("_")]


@dataclass(frozen=True)
class DriverState:
    """What the parts of one open device share."""

    ordinal: int
    functions: VendorFunctions
    errors: StatusErrors
    relaxed_capture: RelaxedCapture
    streams: Handles[Any]
    events: Handles[Any]


class Part:
    """Some methods of the contract, with what they use of the state at hand."""

    def __init__(self, state: DriverState) -> None:
        self._functions = state.functions
        self._errors = state.errors
        self._relaxed = state.relaxed_capture.run
        self._streams = state.streams
        self._events = state.events
        self._ordinal = state.ordinal


class ComposedDriver:
    """A driver with the methods of the contract that its parts have; ``close`` is the subclass's."""

    def __init__(self, state: DriverState, info: DeviceInfo, *parts: Part) -> None:
        self.state = state
        self.info = info
        for part in parts:
            for name in CONTRACT:
                if hasattr(part, name):
                    setattr(self, name, getattr(part, name))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
