"""Optional: launching compiled code, with the function that an author gives by `ConformanceSuite.kernel`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from devmem.spi.driver import Driver, SupportsLaunch
from devmem.spi.errors import BackendError
from devmem.spi.types import Capability, CopyKind, Extent

from .driver_fixture import STREAM_KINDS, Bytes, ConformanceSuite, DriverFixture, address, same

#: Elements of the array to which the function adds: more than any launch reaches.
ELEMENTS = 300


class Arguments:
    """Arguments as ``launch`` takes them. The bytes behind each belong to none."""

    def __init__(self, *values: np.generic) -> None:
        self.sizes = [value.nbytes for value in values]
        self._values = [np.frombuffer(value.tobytes() + bytes([0xEE]) * 16, np.uint8).copy() for value in values]
        self._places = np.array([address(value) for value in self._values], np.uintp)
        self.params = int(self._places.ctypes.data)

    def overwrite(self) -> None:
        for value in self._values:
            value[:] = 0xDD
        self._places[:] = address(self._values[0])


class Adder:
    """The loaded function, an array for it on the device, and what the launches are to make of the array."""

    def __init__(self, driver: SupportsLaunch, function: int, fixture: DriverFixture) -> None:
        self.driver, self.function, self._fixture = driver, function, fixture
        self.before = np.arange(ELEMENTS, dtype=np.uint32) * 1_000_003
        self.expected = self.before.copy()
        self.ptr = fixture.alloc_with(self.before.view(np.uint8))
        self._kept: list[Arguments] = []

    def launch(
        self, stream: int, step: int = 1, count: int = 96, grid: Extent = (3, 1, 1), block: Extent = (32, 1, 1)
    ) -> Arguments:
        """Launch the function on the array; the arguments are kept."""
        arguments = Arguments(np.uint64(self.ptr), np.uint32(count), np.uint8(step))
        self._kept.append(arguments)
        self.driver.launch(self.function, grid, block, 0, stream, arguments.params, arguments.sizes)
        index = np.arange(min(count, grid[0] * block[0]), dtype=np.uint32)
        self.expected[index] += np.uint32(step) + index // np.uint32(block[0])
        return arguments

    def read(self) -> Bytes:
        return self._fixture.read(self.ptr, self.before.nbytes)

    def untouched(self) -> bool:
        return same(self.read(), self.before.view(np.uint8))

    def added(self) -> bool:
        return same(self.read(), self.expected.view(np.uint8))


class LaunchChecks(ConformanceSuite):
    @contextmanager
    def adder(self, fixture: DriverFixture) -> Iterator[Adder]:
        fixture.need(Capability.LAUNCH)
        driver: Driver = fixture.driver
        code = self.kernel(driver)
        if code is None:
            pytest.skip("'launch' is declared and not tested: kernel() of the test class has to return code")
        assert isinstance(driver, SupportsLaunch)
        function = driver.load(*code)
        try:
            yield Adder(driver, function, fixture)
        finally:
            fixture.driver.synchronize()
            driver.unload(function)

    @pytest.mark.parametrize("which", STREAM_KINDS)
    def test_launch_passes_each_argument(self, fixture: DriverFixture, which: str) -> None:
        """In its order and size: the array, how many elements, and what is added."""
        stream = fixture.stream_of_kind(which)
        with self.adder(fixture) as adder:
            for count, step in ((96, 1), (1, 255), (50, 9), (95, 128), (0, 3)):
                adder.launch(stream, step, count)
                fixture.driver.stream_synchronize(stream)
                assert adder.added()

    def test_launch_has_the_blocks_and_threads_that_were_asked_for(self, fixture: DriverFixture) -> None:
        stream = fixture.stream()
        with self.adder(fixture) as adder:
            for blocks, threads in ((1, 1), (1, 64), (7, 1), (3, 32), (5, 16)):
                adder.launch(stream, 10, ELEMENTS, (blocks, 1, 1), (threads, 1, 1))
                fixture.driver.stream_synchronize(stream)
                assert adder.added(), f"{blocks} blocks of {threads}"

    def test_each_launch_runs_once(self, fixture: DriverFixture) -> None:
        stream = fixture.stream()
        with self.adder(fixture) as adder:
            for step in range(1, 6):
                adder.launch(stream, step)
            fixture.driver.stream_synchronize(stream)
            assert adder.added()

    @pytest.mark.parametrize("which", STREAM_KINDS)
    def test_launch_waits_behind_a_held_stream(self, fixture: DriverFixture, which: str) -> None:
        stream = fixture.stream_of_kind(which)
        with self.adder(fixture) as adder, fixture.hold(stream) as hold:
            adder.launch(stream)
            assert fixture.stays_pending(stream)
            assert adder.untouched()
            hold.release()
            fixture.driver.stream_synchronize(stream)
            assert adder.added()

    def test_launch_waits_for_no_other_stream(self, fixture: DriverFixture) -> None:
        held, stream = fixture.stream(), fixture.stream()
        with self.adder(fixture) as adder, fixture.hold(held):
            adder.launch(stream)
            fixture.driver.stream_synchronize(stream)
            assert adder.added()

    def test_launch_does_not_wait_and_keeps_its_place(self, fixture: DriverFixture) -> None:
        """Behind an upload and before a download of the same stream."""
        stream, nbytes = fixture.stream(), 4 * ELEMENTS
        with self.adder(fixture) as adder:
            data, back = fixture.pinned(nbytes), fixture.pinned(nbytes)
            data[:], back[:] = adder.before.view(np.uint8), 0
            fixture.write(adder.ptr, np.zeros(nbytes, np.uint8))
            with fixture.hold(stream) as hold:
                fixture.driver.copy(adder.ptr, address(data), nbytes, CopyKind.H2D, stream, blocking=False)
                adder.launch(stream)
                fixture.driver.copy(address(back), adder.ptr, nbytes, CopyKind.D2H, stream, blocking=False)
                assert not hold.expired, "launch waited for its stream"
                assert not back.any()
                hold.release()
                fixture.driver.stream_synchronize(stream)
            assert same(back, adder.expected.view(np.uint8))

    def test_launch_has_read_its_arguments_on_return(self, fixture: DriverFixture) -> None:
        stream = fixture.stream()
        with self.adder(fixture) as adder, fixture.hold(stream) as hold:
            adder.launch(stream, step=7).overwrite()
            hold.release()
            fixture.driver.stream_synchronize(stream)
            assert adder.added()

    def test_device_synchronize_waits_for_a_launch(self, fixture: DriverFixture) -> None:
        stream = fixture.stream()
        with self.adder(fixture) as adder, fixture.hold(stream) as hold:
            adder.launch(stream)
            waiting = fixture.run_in_thread(fixture.driver.synchronize)
            assert not waiting.done.wait(self.grace), "returned while a launch was pending"
            hold.release()
            waiting.finish()
            assert adder.added()

    def test_functions_are_unloaded_one_by_one(self, fixture: DriverFixture) -> None:
        stream = fixture.stream()
        with self.adder(fixture) as first:
            with self.adder(fixture) as second:
                assert first.function != second.function
                second.launch(stream)
                fixture.driver.stream_synchronize(stream)
                assert second.added()
            first.launch(stream)
            fixture.driver.stream_synchronize(stream)
            assert first.added()

    @pytest.mark.parametrize("wrong", ["image", "name"])
    def test_loading_what_is_not_there_is_refused(self, fixture: DriverFixture, wrong: str) -> None:
        with self.adder(fixture) as adder:
            code: Any = self.kernel(fixture.driver)
            image, name = (b"no code", code[1]) if wrong == "image" else (code[0], f"no_{code[1]}")
            with pytest.raises(BackendError):
                adder.driver.load(image, name)
            adder.launch(fixture.unheld_stream)
            assert adder.added()

    def test_a_function_that_was_unloaded_is_refused(self, fixture: DriverFixture) -> None:
        fixture.need_strict(self.checks_handles)
        stream = fixture.stream()
        with self.adder(fixture) as adder:
            pass
        for call in (lambda: adder.launch(stream), lambda: adder.driver.unload(adder.function)):
            with pytest.raises(BackendError):
                call()
        fixture.driver.stream_synchronize(stream)
        assert adder.untouched()
