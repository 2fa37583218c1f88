"""An open device: the place where its services are put together, from opening to close."""

# Decision: docs/adr/0013-each-failure-is-told-once.md
from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident

from ...spi.driver import Driver, FullDriver
from ...spi.errors import ClosedError, DeviceLost, DevmemError, ForkedError
from ...spi.types import LEGACY_STREAM
from ...toolkit.deferred_errors import FirstError
from ..base.config import settings
from ..base.device_handle import CurrentDevice, DeviceHandle, PublicDevice
from ..base.polling import until
from ..copy.engine import CopyEngine
from ..copy.staging import GrowingRing, Ring
from ..lifetime.deferred_free import DeferredFreeQueue
from ..lifetime.device_memory import DeviceMemory
from ..lifetime.page_locks import page_locks_of
from ..ordering.completions import CompletionTracker, leaked
from ..ordering.stream import Stream
from ..ordering.stream_table import StreamTable
from ..telemetry.copy_statistics import copy_statistics
from ..telemetry.trace import tracefile
from .lane import lane_of

#: Seconds that a close waits until other threads have left the calls that they are inside.
PATIENCE = 30.0
#: Devices that were closed, whose drivers are not: the host, or another library, may use memory of them.
closing_drivers: list[tuple[OpenDevice, Driver]] = []


class OpenDevice:
    """Everything that lives as long as the device is open.

    Arrays hold it; streams, events and allocations hold the parts that they need. When it closes, the handle's driver is replaced
    by one that refuses every call, so whatever outlived a reset or crossed a fork fails with a clear error and never reaches the
    vendor.
    """

    def __init__(self, device: PublicDevice, driver: Driver) -> None:
        self.device = device
        self.handle = handle = DeviceHandle(device, driver)
        self._closing: dict[int, object] = {}  # has a mark of the thread that closes it
        self.completions = CompletionTracker(handle)
        self.streams = StreamTable(handle, self.completions)
        self.free_queue = DeferredFreeQueue(handle, self.completions, self.streams)
        self.memory = DeviceMemory(handle, self.free_queue)
        self.streams.on_destroy = self.memory.stacks.forget_stream
        self.page_locks = page_locks_of(device.backend)
        self.statistics = copy_statistics(handle, tracefile(settings().trace), self.completions.events.lock)
        if told := handle.info.facts.get("copy_calls"):
            self.statistics.note("calls chosen", str(told))
        self.ring = Ring(handle, self.completions, self.streams, self.statistics)
        self.growing_ring = GrowingRing(handle, self.completions, self.streams, self.statistics, self.ring.workers)
        self.copies = CopyEngine(
            handle, self.memory, self.completions, self.page_locks, self.ring, self.growing_ring, self.statistics
        )
        for ring in (self.ring, self.growing_ring):
            self.memory.recovery.trim_others.append(("the staging slots", ring.trim))
        self.memory.recovery.trim_others.append(("the idle streams", self.streams.spare.drop))
        handle.lane = lane_of(self)

    def __repr__(self) -> str:
        return f"<open {self.device}{', closed' if self.handle.dead else ''}>"

    @property
    def lane(self) -> object:
        """The compiled core's way to the driver, or None."""
        return self.handle.lane

    def new_stream(self, priority: object, non_blocking: bool) -> Stream:
        """A stream of devmem's own."""
        return self.streams.new_stream(priority, non_blocking, self.free_queue.free_if_due)

    def trim(self, keep_bytes: int) -> None:
        """Free what is pending, then give back what the memory stacks cache; the device is entered."""
        for ring in (self.ring, self.growing_ring):
            ring.retry()
            ring.release_events()
        self.memory.trim(keep_bytes)
        self.streams.spare.drop()
        self.page_locks.sweep(self.handle.driver)
        # Giving page-locked memory back may wait for the device.
        if self.growing_ring.made and LEGACY_STREAM in self.streams.idle():
            self.growing_ring.trim()

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Wait for the device, free all that came from it, and refuse every later call.

        The driver is closed later, by `finish_closing`, where the host or another library may still use memory of the device.
        """
        handle, driver, mine = self.handle, self.handle.driver, object()
        if handle.has_interrupted_a_call():  # which would go on with streams and memory that are gone
            raise DevmemError(
                f"{self.device} cannot be reset or closed by a signal's handler, or a finalizer, in the middle of another call "
                f"on it: note the wish, and do it when that call has returned"
            )
        with FirstError() as first:
            # While other threads may still call: what runs on the device may wait for one of them.
            with suppress(ClosedError, DeviceLost), CurrentDevice(handle):
                try:
                    driver.synchronize()
                except Exception as error:  # a function of the user's that the device called may have raised anything
                    first.put(error)
            try:
                if self._closing.setdefault(0, mine) is not mine:  # another thread closes it
                    if get_ident() not in handle.callers:
                        until(lambda: handle.dead is not None, PATIENCE)
                    return
                if handle.refuse(ClosedError(f"{self.device} is being closed by another thread"), PATIENCE):
                    self._close(driver, why, first)
                    return
                self._end(why)
                leaked.append((self, driver))
                raise DevmemError(
                    f"{self.device} was closed, but what devmem has on it was not given back: for {PATIENCE:.0f} seconds another "
                    f"thread was inside a call; end what waits for the device, then reset it"
                )
            except BaseException:
                if self._closing.get(0) is mine and handle.dead is None:  # interrupted: the device stays open
                    handle.entry = driver
                    self._closing.clear()
                raise

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

    def _wait_for_readers(self) -> None:
        """Wait for other devices, which may still copy from memory of this one."""
        for engine in list(self.copies.readers.values()):
            with suppress(ClosedError, DeviceLost), CurrentDevice(engine.handle) as driver:
                driver.synchronize()

    def _end(self, why: str) -> None:
        self.statistics.compiled = None
        self.handle.end(ClosedError(f"{self.device} {why} since this handle was made: make a new one"))

    def _close(self, driver: FullDriver, why: str, first: FirstError) -> None:
        """Give all back; no other thread is inside a call, nor can begin one."""
        try:
            token = driver.enter()
        except DeviceLost:
            # Nothing can be given back any more, as the caller that used the device has been told. It may be opened afresh.
            self._leak_pending()
            try:
                self.page_locks.leave(self.handle, lost=True)
            finally:
                try:
                    self.memory.lose()
                finally:
                    self._part(driver, why, None)
            return

        def leave() -> None:
            self.page_locks.leave(self.handle, lost=isinstance(first.error, DeviceLost))

        rings = [self.ring.close, self.growing_ring.close]
        steps: list[Callable[[], None]] = [driver.synchronize, self._wait_for_readers, leave, *rings, self.memory.close]
        try:
            for step in [*steps, self._destroy_handles]:
                try:
                    step()
                except Exception as error:  # the rest must still be given back; a plugin's code may raise anything
                    first.put(error)
                    if step == driver.synchronize:
                        self._leak_pending()
                    if isinstance(error, DeviceLost):
                        self.memory.lose()
        except BaseException:  # interrupted: what the compiled core has allocated no driver knows of
            with suppress(Exception):
                driver.synchronize()
                self.memory.close()
            raise
        finally:
            self._part(driver, why, token)

    def _part(self, driver: FullDriver, why: str, token: object) -> None:
        """Refuse every later call; close the driver, or leave it to be closed later."""
        try:
            self._end(why)
        except BaseException:  # an interrupt may have come before it
            self._end(why)
            raise
        finally:
            try:
                if token is not None:
                    driver.exit(token)
            finally:
                closing_drivers.append((self, driver))
                finish_closing()

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
                first.attempt(destroy, handle)  # the others must still be destroyed


def finish_closing() -> None:
    """Close the drivers of closed devices whose memory nothing uses any more.

    Called when a device opens or closes, and by `trim`.
    """
    entries = list(closing_drivers)
    with FirstError() as first:  # one that fails must not keep the others open
        for entry in entries:
            first.attempt(_finish_closing, entry)


def _finish_closing(entry: tuple[OpenDevice, Driver]) -> None:
    if entry not in closing_drivers:  # another thread does
        return
    opened, driver = entry
    ended = False
    try:
        closing_drivers.remove(entry)
        try:
            if opened.memory.lent_blocks():
                opened.take_back_lent(driver)
        finally:
            if not opened.memory.lent_blocks():
                opened.memory.stacks.unbind(driver)
                ended = opened.page_locks.close_later(driver)
                if not ended:
                    ended = not getattr(driver, "closes_at_any_stage", False)
                    try:
                        driver.close()
                    except Exception:
                        ended = True  # it has told what it could not give back
                        raise
                    ended = True
    finally:
        if not ended and driver not in opened.page_locks.closing:  # in use, or interrupted
            closing_drivers.append(entry)
