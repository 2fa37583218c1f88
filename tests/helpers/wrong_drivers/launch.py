"""Mistakes in launches, and the tests of `testing/driver_launch.py` that find them."""

from __future__ import annotations

import ctypes
import itertools
import sys
from typing import Any

from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, DeviceInfo

from .base import Broken, Tells


class Launches(Tells):
    """Sound: launches the function of the suite. Its image is its name, and it runs as a host function."""

    code = b"image of add_to", "add_to"

    def spoil(self) -> None:
        self.functions: set[int] = set()
        self.numbers = itertools.count(1)

    def difference(self, info: DeviceInfo) -> dict[str, Any]:
        return {"capabilities": info.capabilities | {Capability.LAUNCH}}

    def load(self, image: bytes, name: str) -> int:
        if (image, name) != self.code:
            raise BackendError(f"no function {name}", backend="host", call="load", code=1, name="NOT_FOUND")
        self.functions.add(function := next(self.numbers))
        return function

    def unload(self, function: int) -> None:
        if function not in self.functions:
            raise BackendError(f"no function {function}", backend="host", call="unload", code=1, name="INVALID_HANDLE")
        self.functions.remove(function)

    def launch(
        self, function: int, grid: Any, block: Any, shared_bytes: int, stream: int, params: int, sizes: Any
    ) -> None:
        if function not in self.functions:
            raise BackendError(f"no function {function}", backend="host", call="launch", code=1, name="INVALID_HANDLE")
        self.enqueue(grid[0], block[0], stream, *self.arguments(params, sizes))

    def arguments(self, params: int, sizes: Any) -> list[int]:
        places = (ctypes.c_size_t * len(sizes)).from_address(params)
        return [
            int.from_bytes(ctypes.string_at(place, size), sys.byteorder)
            for place, size in zip(places, sizes, strict=True)
        ]

    def enqueue(self, blocks: int, threads: int, stream: int, array: int, count: int, step: int) -> None:
        reached = min(count, blocks * threads)

        def add(there: Any) -> None:
            values = (ctypes.c_uint32 * reached).from_address(there[0])
            for index in range(reached):
                values[index] += step + index // threads

        if reached:
            self.sound.launch_host_function(add, [(array, 4 * reached)], stream)


class LaunchIgnoresItsStream(Launches):
    sound_driver = Launches

    def enqueue(self, blocks: int, threads: int, stream: int, *arguments: int) -> None:
        own = self.sound.stream_create(0, True)
        super().enqueue(blocks, threads, own, *arguments)
        self.sound.stream_synchronize(own)
        self.sound.stream_destroy(own)


class LaunchSwapsItsArguments(Launches):
    sound_driver = Launches

    def enqueue(self, blocks: int, threads: int, stream: int, array: int, count: int, step: int) -> None:
        super().enqueue(blocks, threads, stream, array, step, count)


class LaunchTakesArgumentsForWords(Launches):
    """And reads four bytes of one that has one."""

    sound_driver = Launches

    def arguments(self, params: int, sizes: Any) -> list[int]:
        return super().arguments(params, [max(size, 4) for size in sizes])


class LaunchReadsArgumentsLate(Launches):
    sound_driver = Launches

    def launch(
        self, function: int, grid: Any, block: Any, shared_bytes: int, stream: int, params: int, sizes: Any
    ) -> None:
        array, *_ = super().arguments(params, sizes)

        def add(there: Any) -> None:
            _, count, step = self.arguments(params, sizes)
            values = (ctypes.c_uint32 * min(count, grid[0] * block[0])).from_address(there[0])
            for index in range(len(values)):
                values[index] = (values[index] + step + index // block[0]) % 2**32

        self.sound.launch_host_function(add, [(array, 4 * grid[0] * block[0])], stream)


class LaunchesTwice(Launches):
    sound_driver = Launches

    def enqueue(self, *arguments: int) -> None:
        super().enqueue(*arguments)
        super().enqueue(*arguments)


class LaunchesNothing(Launches):
    sound_driver = Launches

    def enqueue(self, *arguments: int) -> None:
        pass


class LaunchWaits(Launches):
    sound_driver = Launches

    def enqueue(self, blocks: int, threads: int, stream: int, *arguments: int) -> None:
        super().enqueue(blocks, threads, stream, *arguments)
        self.sound.stream_synchronize(stream)


class LaunchWaitsForTheDevice(Launches):
    sound_driver = Launches

    def enqueue(self, blocks: int, threads: int, stream: int, *arguments: int) -> None:
        self.sound.synchronize()
        super().enqueue(blocks, threads, stream, *arguments)


class LaunchSwapsBlocksAndThreads(Launches):
    sound_driver = Launches

    def enqueue(self, blocks: int, threads: int, *arguments: int) -> None:
        super().enqueue(threads, blocks, *arguments)


class SynchronizeForgetsLaunches(Launches):
    sound_driver = Launches

    def spoil(self) -> None:
        super().spoil()
        self.launched: set[int] = set()

    def enqueue(self, blocks: int, threads: int, stream: int, *arguments: int) -> None:
        self.launched.add(stream)
        super().enqueue(blocks, threads, stream, *arguments)

    def synchronize(self) -> None:
        for stream in {LEGACY_STREAM, PER_THREAD_STREAM, *self._streams} - self.launched:
            self.sound.stream_synchronize(stream)


class UnloadsEveryFunction(Launches):
    sound_driver = Launches
    raises = True

    def unload(self, function: int) -> None:
        super().unload(function)
        self.functions.clear()


class LoadsAnything(Launches):
    sound_driver = Launches

    def load(self, image: bytes, name: str) -> int:
        return super().load(*self.code)


class LaunchesUnloadedFunctions(Launches):
    sound_driver = Launches

    def unload(self, function: int) -> None:
        pass


BROKEN: list[tuple[type[Broken], str, dict[str, Any]]] = [
    (LaunchIgnoresItsStream, "test_launch_waits_behind_a_held_stream", {"which": "created"}),
    (LaunchIgnoresItsStream, "test_launch_waits_behind_a_held_stream", {"which": "legacy"}),
    (LaunchSwapsItsArguments, "test_launch_passes_each_argument", {"which": "created"}),
    (LaunchTakesArgumentsForWords, "test_launch_passes_each_argument", {"which": "created"}),
    (LaunchReadsArgumentsLate, "test_launch_has_read_its_arguments_on_return", {}),
    (LaunchesTwice, "test_each_launch_runs_once", {}),
    (LaunchesNothing, "test_each_launch_runs_once", {}),
    (LaunchWaits, "test_launch_does_not_wait_and_keeps_its_place", {}),
    (LaunchWaitsForTheDevice, "test_launch_waits_for_no_other_stream", {}),
    (LaunchSwapsBlocksAndThreads, "test_launch_has_the_blocks_and_threads_that_were_asked_for", {}),
    (SynchronizeForgetsLaunches, "test_device_synchronize_waits_for_a_launch", {}),
    (UnloadsEveryFunction, "test_functions_are_unloaded_one_by_one", {}),
    (LoadsAnything, "test_loading_what_is_not_there_is_refused", {"wrong": "image"}),
    (LoadsAnything, "test_loading_what_is_not_there_is_refused", {"wrong": "name"}),
    (LaunchesUnloadedFunctions, "test_a_function_that_was_unloaded_is_refused", {}),
]
