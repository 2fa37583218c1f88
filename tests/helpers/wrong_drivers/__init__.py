"""Drivers with one mistake each, and the tests of the conformance suite that find it; one file for each file of tests."""

from __future__ import annotations

from typing import Any

from . import (
    copies,
    device,
    errors,
    events,
    foreign_streams,
    graphs,
    held_copies,
    host_functions,
    launch,
    memory,
    optional,
    sharing,
    streams,
)
from .base import Broken as Broken
from .device import NeverCloses as NeverCloses
from .foreign_streams import TheirStream as TheirStream
from .launch import Launches as Launches
from .streams import WaitsWithTheGil as WaitsWithTheGil

ROOMS = (
    copies,
    device,
    errors,
    events,
    foreign_streams,
    graphs,
    held_copies,
    host_functions,
    launch,
    memory,
    optional,
    sharing,
    streams,
)
BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [case for room in ROOMS for case in room.BROKEN]
