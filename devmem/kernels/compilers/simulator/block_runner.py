"""Run the work-items of a block as greenlets of one host thread.

A work-item runs until it ends or reaches a barrier, where it switches back to the runner. When none can run, the runner checks
that all of the block, of a wave, or of the lanes in a mask, wait at the same barrier, and releases them; otherwise it reports a
divergence. At some barriers each work-item gives a value, and is given those of the others. Greenlets never run at the same
time, so plain memory accesses need no locks within a block.
"""

from __future__ import annotations

import functools
import math
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from ....spi.errors import SimulatorError
from ....spi.sizes import exact_size
from ...work_items import Dim3, this_thread
from . import advice
from .cuda_functions import call
from .kernel_arrays import KernelArray, kernel_array
from .kernel_check import returned_at
from .launch_parameters import LaunchParameters
from .raw_arrays import dtype_of, poisoned, shape_of
from .reports import CallSite, MemorySite, Misuse, call_chain, explain, memory_site, report, user_frame
from .shared_memory import AccessLog, BarrierEpochs, WatchedArray

#: The kinds of barriers that a work-item waits for: of the block, of the wave, of some lanes of the wave, of the grid.
BLOCK, WAVE, LANES, GRID = "barrier", "wave's barrier", "exchange of lanes", "barrier of the grid"

#: Where a work-item lets others run: at an atomic operation that has returned the same value `SPINS` times, as one in a loop
#: does that waits for another thread.
SPIN = "loop that waits for another thread"
SPINS = 100

#: More bytes of shared memory in arrays of constant shapes than any GPU has for a block.
STATIC = 160 << 10


class BlockRunner:
    """Runs blocks of a launch on one host thread, one after the other.

    A greenlet runs one work-item after the other: a kernel without barriers needs a single greenlet. A greenlet that waits at a
    barrier keeps its work-item, and another greenlet runs the next ones. Greenlets are reused for the next block.
    """

    def __init__(self, launch: LaunchParameters) -> None:
        self.launch = launch
        self.code = launch.function.__code__
        self.leave = getcurrent().switch  # back to the runner
        self.items = _items(self)
        self.waves: list[list[SimulatedWorkItem]] = [[] for _ in range(self.items[-1].wave + 1)]
        for item in self.items:
            self.waves[item.wave].append(item)
        self.epochs = BarrierEpochs(len(self.waves))
        self.waiting: list[SimulatedWorkItem] = []
        self._arrays: dict[MemorySite, tuple[object, KernelArray]] = {}  # static ones, by their call in the kernel
        self._dynamic: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._dynamic_log: AccessLog | None = None
        self._pending: Iterator[SimulatedWorkItem] = iter(())
        self._begun = False  # all work-items have begun
        self._idle: list[greenlet] = []
        self.closing = False

    def run(self, block: Dim3, seed: object) -> None:
        """Run one block. ``seed`` shuffles the order of its work-items, if it is not None.

        Raises
        ------
        SimulatorError
            A work-item made a mistake, or the block is stuck. The runner cannot be used again.
        """
        for item in self.items:
            item.block = block
        self._arrays.clear()
        self._dynamic = self._dynamic_log = None
        self.epochs.block += 1
        order: Sequence[SimulatedWorkItem] = self.items
        shuffled = None
        if seed is not None:
            shuffled = random.Random(repr(seed))
            order = shuffled.sample(order, len(order))
        try:
            self._run(order, shuffled)
        except SimulatorError:
            raise
        except BaseException as error:
            if this_thread.item is None:  # interrupted before the first work-item ran
                raise
            told = explain(error, this_thread.item, self.code)
            try:
                raise told from told.__cause__
            finally:
                del told  # breaks the cycle of traceback and frame, which would keep the launch's arrays alive

    def close(self) -> None:
        """End all greenlets, on the thread that they belong to; those waiting at a barrier get GreenletExit."""
        self.closing = True
        for _ in self._pending:  # no further work-item begins
            pass
        for item in self.items:
            if item.place:
                this_thread.item = item
                _end_greenlet(item.greenlet)
        for worker in self._idle:  # also those that caught GreenletExit
            worker.switch()
        this_thread.item = None
        self.items, self.waves = [], []  # breaks the reference cycles with the launch

    def _run(self, order: Sequence[SimulatedWorkItem], shuffled: random.Random | None) -> None:
        self._pending, self._begun = iter(order), False
        while not self._begun:
            worker = self._idle.pop() if self._idle else greenlet(self._work)
            worker.switch()
        while self.waiting:
            released = self._release()
            if shuffled is not None:
                shuffled.shuffle(released)
            for item in released:
                item.greenlet.switch()

    def _work(self) -> None:
        function, arguments, me = self.launch.function, self.launch.arguments, getcurrent()
        with np.errstate(all="ignore"):  # a device divides by zero silently
            while True:
                for item in self._pending:
                    item.greenlet = me
                    this_thread.item = item
                    value = function(*arguments)
                    if value is not None:
                        told = "a kernel returns nothing: write results into an array argument"
                        raise Misuse("misuse", told, returned_at(self.code, value))
                self._begun = True
                self._idle.append(me)
                self.leave()
                if self.closing:
                    return

    # -- barriers ----------------------------------------------------------------------------------------------------

    def _release(self) -> list[SimulatedWorkItem]:
        """The waiting work-items whose barrier is complete; none runs. Raise a divergence if none can ever go on."""
        waiting, self.waiting = self.waiting, []
        if spinning := [item for item in waiting if item.place[0] is SPIN]:
            self.waiting = [item for item in waiting if item.place[0] is not SPIN]
            return spinning
        first = waiting[0]
        if first.place[0] is not LANES and all(item.place == first.place for item in self.items):
            if first.place[0] is GRID and isinstance(told := self.launch.wait_for_grid(), str):
                told = f"the thread waits at a {GRID}, and {told}"
                raise report("divergence", told, first, *CallSite(first.place[1:]).innermost())
            if first.place[0] is not WAVE:
                self.epochs.block += 1
                values = {item.index: item.value for item in waiting}
                for item in waiting:
                    item.received = values
            else:
                self.epochs.waves = [epoch + 1 for epoch in self.epochs.waves]
            return waiting
        met = self._exchange(waiting) if any(item.place[0] is LANES for item in waiting) else ()
        if met:
            self.waiting = [item for item in waiting if item not in met]
            return list(met)
        waves = {item.wave for item in waiting if item.place[0] is WAVE}
        if not waves:
            _check_same_barrier(self._partners(first) if first.place[0] is LANES else self.items)
        for wave in waves:
            _check_same_barrier(self.waves[wave])
            self.epochs.waves[wave] += 1
        self.waiting = [item for item in waiting if item.wave not in waves]
        return [item for item in waiting if item.wave in waves]

    def _partners(self, item: SimulatedWorkItem) -> list[SimulatedWorkItem]:
        """The lanes that a work-item exchanges values with, itself among them; those that have returned are left out."""
        mask = item.place[1]
        return [other for other in self.waves[item.wave] if mask >> other.lane & 1 and other.place]

    def _exchange(self, waiting: Sequence[SimulatedWorkItem]) -> dict[SimulatedWorkItem, None]:
        """The work-items whose lanes all wait at the same exchange; each has the values now."""
        groups: dict[tuple[Any, ...], list[SimulatedWorkItem]] = {}
        for item in waiting:
            if item.place[0] is LANES:
                groups.setdefault((item.wave, item.place), []).append(item)
        met: dict[SimulatedWorkItem, None] = {}
        for group in groups.values():
            if group[0].place[1] is None or len(self._partners(group[0])) == len(group):
                values = {item.lane: item.value for item in group}
                for item in group:
                    item.received = values
                    met[item] = None
        return met

    # -- shared memory -----------------------------------------------------------------------------------------------

    def static_array(self, shape: Any, dtype: Any, key: MemorySite) -> KernelArray:
        """The block's array for a call in the kernel; the first work-item makes it."""
        found = self._arrays.get(key)
        if found is None:
            lengths, kind = shape_of(shape), dtype_of(dtype)
            nbytes = math.prod(lengths) * kind.itemsize + sum(array.nbytes for _, array in self._arrays.values())
            if nbytes > STATIC:
                raise Misuse(
                    "misuse", f"the block has {exact_size(nbytes)} of shared memory by now, and {advice.STATIC}"
                )
            array = self._shared(poisoned(lengths, kind), "shared array", 0, None)
            self._arrays[key] = (shape, dtype), array
            return array
        if found[0] != (shape, dtype):
            raise Misuse("misuse", f"shared.array({shape!r}, {dtype!r}) here, where another thread made {found[1]!r}")
        return found[1]

    def dynamic_array(self, dtype: Any) -> KernelArray:
        """The dynamic shared memory of the launch, as an array of whole elements."""
        found, size = dtype_of(dtype), self.launch.shared_bytes
        if self._dynamic is None:
            self._dynamic = poisoned((size,), np.dtype(np.uint8))
            self._dynamic_log = AccessLog(self.epochs, 1)
        data = self._dynamic[: size - size % found.itemsize].view(found)
        return self._shared(data, "dynamic shared array", 0, self._dynamic_log)

    def _shared(self, data: np.ndarray[Any, Any], space: str, start: int, log: AccessLog | None) -> KernelArray:
        if not self.launch.simulation.watches:
            return kernel_array(data, space)
        offsets = np.arange(start, start + data.nbytes, data.itemsize).reshape(data.shape)
        # Accesses to records are to fields, which begin at any byte.
        return WatchedArray(
            data, space, offsets, log or AccessLog(self.epochs, 1 if data.dtype.names else data.itemsize)
        )


class SimulatedWorkItem:
    """A work-item, as the names in a kernel see it (`devmem.kernels.work_items.WorkItem`)."""

    __slots__ = (
        "block",
        "block_dim",
        "debug",
        "greenlet",
        "grid_dim",
        "group",
        "index",
        "lane",
        "place",
        "received",
        "seen",
        "spins",
        "thread",
        "value",
        "wave",
        "wave_size",
        "work_dim",
    )

    def __init__(self, group: BlockRunner, index: int, thread: Dim3) -> None:
        launch = group.launch
        self.group = group
        self.index = index
        self.thread = thread
        self.block = Dim3(0, 0, 0)
        self.block_dim, self.grid_dim, self.work_dim = launch.block_dim, launch.grid_dim, launch.work_dim
        self.wave_size, self.debug = launch.simulation.wave_size, launch.debug
        self.wave, self.lane = divmod(index, self.wave_size)
        self.place: tuple[Any, ...] = ()  # the kind and call of the barrier it waits at; empty while it runs
        self.greenlet: Any = None  # the greenlet that runs it
        self.value: Any = None  # what it gives to the others at a barrier
        self.received: dict[int, Any] = {}  # what they gave, by lane, or by index in the block
        self.seen: Any = None  # what the last atomic operation returned, and how often in a row
        self.spins = 0

    def barrier(self, scope: int) -> None:
        """Wait for the other work-items of the block."""
        frame = sys._getframe(2)
        if frame.f_code is self.group.code:  # called in the kernel itself, the common case
            self._wait((BLOCK, frame.f_code, frame.f_lasti))
        else:
            self._wait((BLOCK, *call_chain(user_frame(sys._getframe(1)), _WORK)))

    def wave_barrier(self) -> None:
        """Wait for the other work-items of the wave."""
        self._wait((WAVE, *call_chain(user_frame(sys._getframe(1)), _WORK)))

    def block_values(self, value: Any) -> list[Any]:
        """Wait for the other work-items of the block; what each of them gave."""
        self.value = value
        self._wait((BLOCK, *call_chain(user_frame(sys._getframe(1)), _WORK)))
        return list(self.received.values())

    def lane_values(self, mask: int, value: Any) -> dict[int, Any]:
        """Wait for the lanes in the mask that have not returned; what each of them gave."""
        if not mask >> self.lane & 1:
            raise Misuse("misuse", f"the mask {mask:#x} leaves out lane {self.lane}, which passes it")
        self.value = value
        self._wait((LANES, mask, *call_chain(user_frame(sys._getframe(1)), _WORK)))
        return self.received

    def converged_lanes(self) -> int:
        """The lanes of the wave that come to this call before they wait for something else, as a mask."""
        self._wait((LANES, None, *call_chain(user_frame(sys._getframe(1)), _WORK)))
        return sum(1 << lane for lane in self.received)

    def grid_barrier(self) -> None:
        """Wait for all work-items of the grid."""
        self._wait((GRID, *call_chain(user_frame(sys._getframe(1)), _WORK)))

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a function of numba.cuda's."""
        return call(self, name, arguments)

    def fence(self, scope: int) -> None:
        """Record the fence; host threads see each other's writes without it."""
        updates = self.group.launch.updates
        if updates is not None:
            updates.ordered = True

    def shared_array(self, shape: Any, dtype: Any) -> Any:
        """The block's array for this call in the kernel."""
        if shape in (0, (0,)):
            return self.group.dynamic_array(dtype)
        frame = sys._getframe(2)
        if frame.f_code is self.group.code:
            return self.group.static_array(shape, dtype, (id(frame.f_code), frame.f_lasti, None))
        return self.group.static_array(shape, dtype, memory_site(user_frame(frame)))

    def local_array(self, shape: Any, dtype: Any) -> Any:
        """A new array."""
        return kernel_array(poisoned(shape_of(shape), dtype_of(dtype)), "local array")

    def const_array(self, ary: Any) -> Any:
        """The contents of the host array at the first call from this place in the kernel."""
        if isinstance(ary, KernelArray):
            raise Misuse(
                "misuse", f"const.array_like() takes a host array that is a global, and {ary!r} can be used as it is"
            )
        frame = user_frame(sys._getframe(1))
        return self.group.launch.constant(memory_site(frame), frame.f_code, ary)

    def atomic(self, operation: str, ary: Any, index: Any, *operands: Any) -> Any:
        """Do an atomic operation; return the old value."""
        if not isinstance(ary, KernelArray):
            raise TypeError(f"atomic.{operation} takes an array of the kernel's, not {type(ary).__name__}")
        updates = self.group.launch.updates
        if updates is not None:
            updates.ordered = True
        found = ary.exchange(operation, index, operands)
        if found != self.seen:
            self.seen, self.spins = found, 0
        elif self.spins < SPINS:
            self.spins += 1
        else:
            self.spins = 0
            self._wait((SPIN, *call_chain(user_frame(sys._getframe(1)), _WORK)))
        return found

    def _wait(self, place: tuple[Any, ...]) -> None:
        group = self.group
        if group.closing:  # a barrier in a `finally` of a failed kernel
            raise GreenletExit
        self.place = place
        group.waiting.append(self)
        group.leave()
        this_thread.item = self
        self.place = ()


_WORK = BlockRunner._work.__code__


def _check_same_barrier(items: list[SimulatedWorkItem]) -> None:
    """Raise a divergence unless all these work-items wait at the same barrier; at least one waits, and none runs."""
    first = next(item for item in items if item.place)
    others = [item for item in items if item.place != first.place]
    if not others:
        return
    what, code, line = first.place[0], *CallSite(_call_of(first.place)).innermost()
    elsewhere = [item for item in others if item.place]
    who = f"thread {tuple((elsewhere or others)[0].thread)}"
    if elsewhere:
        where = CallSite(_call_of(elsewhere[0].place))
        told = f"the thread waits at a {what}, and {who} at another {elsewhere[0].place[0]}, at {where}"
        if where.innermost() == (code, line):
            told += ", reached through another call"
    else:
        more = f" and {len(others) - 1} more have" if len(others) > 1 else " has"
        told = f"the thread waits at a {what}, and {who}{more} returned without reaching it"
    raise report("divergence", told, first, code, line)


def _call_of(place: tuple[Any, ...]) -> tuple[object, ...]:
    return place[2:] if place[0] is LANES else place[1:]


def _end_greenlet(worker: Any) -> None:
    """End a greenlet that has begun and not ended."""
    if worker:
        try:
            worker.throw()
        except BaseException:  # for example from a `finally` of a failed kernel
            pass


def _items(group: BlockRunner) -> list[SimulatedWorkItem]:
    return [SimulatedWorkItem(group, index, thread) for index, thread in enumerate(_threads(group.launch.block_dim))]


@functools.lru_cache(8)  # programs use few block shapes
def _threads(block_dim: Dim3) -> tuple[Dim3, ...]:
    across, down, deep = block_dim
    return tuple(Dim3(x, y, z) for z in range(deep) for y in range(down) for x in range(across))
