"""Mistakes in host functions, and the tests of `testing/driver_host_functions.py` that find them."""

from __future__ import annotations

import contextlib
from typing import Any

from .base import Broken


class ExecutesAtOnce(Broken):
    def spoil(self) -> None:
        self.launch_host_function = lambda function, ranges, stream: function([])


class ExecutesAndWaits(Broken):
    def spoil(self) -> None:
        def launch_host_function(function: Any, ranges: Any, stream: int) -> None:
            self.sound.launch_host_function(function, ranges, stream)
            self.sound.stream_synchronize(stream)

        self.launch_host_function = launch_host_function


class ExecutesSilently(Broken):
    def spoil(self) -> None:
        def launch_host_function(function: Any, ranges: Any, stream: int) -> None:
            def quiet(places: Any) -> None:
                with contextlib.suppress(Exception):
                    function(places)

            self.sound.launch_host_function(quiet, ranges, stream)

        self.launch_host_function = launch_host_function


class ExecutesElsewhere(Broken):
    def spoil(self) -> None:
        def launch_host_function(function: Any, ranges: Any, stream: int) -> None:
            # In bounds, but a block that the caller did not name.
            elsewhere = [self.sound.alloc(nbytes, stream) for _, nbytes in ranges]
            moved = [(ptr, nbytes) for ptr, (_, nbytes) in zip(elsewhere, ranges, strict=True)]
            self.sound.launch_host_function(function, moved, stream)

        self.launch_host_function = launch_host_function


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (ExecutesAtOnce, "test_launch_host_function_waits_behind_a_held_stream", {}),
    (ExecutesAndWaits, "test_launch_host_function_is_ordered_on_its_stream", {}),
    (ExecutesSilently, "test_an_error_of_a_function_is_raised_once", {"how": "copy"}),
    (ExecutesSilently, "test_an_error_of_a_destroyed_stream_is_raised_by_the_device", {}),
    (ExecutesElsewhere, "test_launch_host_function_reaches_device_memory", {"which": "created"}),
]
