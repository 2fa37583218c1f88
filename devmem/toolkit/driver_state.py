"""What the parts of one open device share: the vendor's functions, their errors, the capture mode and the live handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .handles import Handles
from .relaxed_capture import RelaxedCapture
from .status_errors import StatusErrors
from .vendor_functions import VendorFunctions


@dataclass(frozen=True)
class DriverState:
    """Made once when a device is opened, and given to each of its parts. No part refers to the driver, so there is no cycle."""

    ordinal: int
    functions: VendorFunctions
    errors: StatusErrors
    relaxed_capture: RelaxedCapture
    streams: Handles[Any]
    events: Handles[Any]


class Part:
    """A part of a driver: some methods of the contract, with what they use of the state at hand."""

    def __init__(self, state: DriverState) -> None:
        self._functions = state.functions
        self._fail = state.errors.fail
        self._relaxed = state.relaxed_capture.run
        self._streams = state.streams
        self._events = state.events
