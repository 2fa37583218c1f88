"""An open device: the place where its services are put together, from opening to close."""

# Decision: docs/adr/0013-each-failure-is-told-once.md
from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from ...spi.driver import Driver
from ...spi.errors import ClosedError, DeviceLost, DevmemError, ForkedError
from ...toolkit.deferred_errors import FirstError
from ..base.config import settings
from ..base.device_handle import DeviceHandle, PublicDevice
from ..copy.engine import CopyEngine
from ..copy.staging import Ring
from ..copy.statistics import CopyStatistics
from ..copy.trace import tracefile
from ..lifetime.deferred_free import DeferredFreeQueue
from ..lifetime.device_memory import DeviceMemory
from ..lifetime.page_locks import page_locks_of
from ..ordering.completions import CompletionTracker
from ..ordering.stream import Stream
from ..ordering.stream_table import StreamTable

#: Devices that were closed, whose drivers are not: the host, or another library, may use memory of them.
left_open: list[tuple[OpenDevice, Driver]] = []


class OpenDevice:
    """Everything that lives as long as the device is open.

    Arrays hold it; streams, events and allocations hold the parts that they need. When it closes, the handle's driver is replaced
    by one that refuses every call, so whatever outlived a reset or crossed a fork fails with a clear error and never reaches the
    vendor.
    """

    def __init__(self, device: PublicDevice, driver: Driver) -> None:
        self.device = device
        self.handle = handle = DeviceHandle(device, driver)
        self.completions = CompletionTracker(handle)
        self.streams = StreamTable(handle, self.completions)
        self.free_queue = DeferredFreeQueue(handle, self.completions, self.streams)
        self.memory = DeviceMemory(handle, self.free_queue)
        self.streams.on_destroy = self.memory.forget_stream
        self.page_locks = page_locks_of(device.backend)
        self.statistics = CopyStatistics(handle, tracefile(settings().trace))
        self.ring = Ring(handle, self.completions, self.streams, self.statistics)
        self.copies = CopyEngine(handle, self.memory, self.completions, self.page_locks, self.ring, self.statistics)
        self.memory.trim_others.append(("the staging slots", self.ring.trim))
        self.page_locks.join(handle, self.completions)  # last: a device that was not finished would be in it for good

    def __repr__(self) -> str:
        return f"<open {self.device}{', closed' if self.handle.dead else ''}>"

    def new_stream(self, priority: object, non_blocking: bool) -> Stream:
        """A stream of devmem's own."""
        return self.streams.new_stream(priority, non_blocking, self.free_queue.safe_point)

    def trim(self, keep_bytes: int) -> None:
        """Free what is pending, then give back what the memory stacks cache; the device is entered."""
        self.ring.retry()
        self.ring.release_events()
        self.memory.trim(keep_bytes)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Wait for the device, free all that came from it, and refuse every later call.

        The driver is closed later, by `close_left_open`, where the host or another library may still use memory of the device.
        """
        if self.handle.dead is not None:
            return
        driver = self.handle.driver
        try:
            token = driver.enter()
        except DeviceLost:
            # Nothing can be given back any more, as the caller that used the device has been told. It may be opened afresh.
            self._leak_pending()
            try:
                self.page_locks.leave(self.handle, lost=True)
            finally:
                self._end(why)
                self.memory.lose()
                left_open.append((self, driver))
                close_left_open()
            return
        with FirstError() as first:

            def leave() -> None:
                self.page_locks.leave(self.handle, lost=isinstance(first.error, DeviceLost))

            steps: list[Callable[[], None]] = [driver.synchronize, leave, self.ring.close, self.memory.close]
            try:
                for step in [*steps, self._destroy_handles]:
                    try:
                        step()
                    except DevmemError as error:  # the rest must still be given back
                        first.put(error)
                        if step == driver.synchronize:
                            self._leak_pending()
                        if isinstance(error, DeviceLost):
                            self.memory.lose()
            finally:
                self._end(why)
                try:
                    if token is not None:
                        driver.exit(token)
                finally:
                    left_open.append((self, driver))
                    close_left_open()

    def take_back_lent(self, driver: Driver) -> None:
        """Free what has been dropped of the memory that was in use when the device was closed."""
        try:
            token = driver.enter()
        except DeviceLost:
            self.memory.take_back_lent(lost=True)
            return
        try:
            self.memory.take_back_lent(lost=False)
        except DeviceLost:
            self.memory.lose()
        finally:
            if token is not None:
                driver.exit(token)

    def forget_after_fork(self) -> None:
        """Called in the child of a fork: the device is the parent's."""
        self.handle.end(
            ForkedError(
                f"{self.device} was opened before this process was forked, and does not exist in the child (pid {os.getpid()}): "
                f"open devices after forking, or start processes with the 'spawn' method"
            )
        )
        self.completions.forget_after_fork()
        self.free_queue.forget_after_fork()

    def forget_at_exit(self) -> None:
        """Called when the interpreter exits: whatever is still referenced ends with the process."""
        self.handle.end(ClosedError(f"{self.device} cannot be used any more: the interpreter is exiting"))

    def _end(self, why: str) -> None:
        self.handle.end(ClosedError(f"{self.device} {why} since this handle was made: make a new one"))

    def _leak_pending(self) -> None:
        self.completions.leak_pending()
        self.free_queue.leak_pending()

    def _destroy_handles(self) -> None:
        """Destroy every stream and event; the device is idle."""
        driver = self.handle.driver
        with FirstError() as first:
            handles = self.streams.take_handles()
            for handle in handles if self.memory.lent_blocks() else ():  # the stacks live on
                first.attempt(self.streams.on_destroy, handle)
            streams = [(driver.stream_destroy, handle) for handle in handles]
            events = [(driver.event_destroy, handle) for handle in list(self.completions.events.events)]
            self.completions.forget()
            for destroy, handle in [*streams, *events]:
                try:
                    destroy(handle)
                except DevmemError as error:  # the others must still be destroyed
                    first.put(error)


def close_left_open() -> None:
    """Close the drivers of closed devices whose memory nothing uses any more.

    Called when a device opens or closes, and by `trim`.
    """
    for entry in left_open.copy():
        opened, driver = entry
        with suppress(ValueError):  # another thread does
            left_open.remove(entry)
            try:
                if opened.memory.lent_blocks():
                    opened.take_back_lent(driver)
            finally:
                if opened.memory.lent_blocks():
                    left_open.append(entry)
                else:
                    opened.page_locks.close_driver(driver)
