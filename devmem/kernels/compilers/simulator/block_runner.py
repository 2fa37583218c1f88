"""A block: its work-items are greenlets of one thread of the host, and a barrier is where they take turns."""

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
from ...work_items import Dim3, this_thread
from . import advice
from .kernel_arrays import Checked, checked
from .kernel_check import returned_at
from .launch_parameters import LaunchParameters
from .raw_arrays import dtype_of, poisoned, shape_of
from .reports import Misuse, Place, Site, caller, chain_of, explain, report, site_of
from .shared_memory import BarrierEpochs, Watch, Watched

#: What a work-item waits for.
BLOCK, WAVE = "barrier", "wave's barrier"

#: Bytes of shared memory whose shape is a constant, for a block: more than any GPU has.
STATIC = 160 << 10


class Group:
    """What runs the blocks of a launch on one thread of the host, one after the other.

    A greenlet takes a work-item, runs it, and takes the next: a kernel without barriers needs a single one. One that is left
    waiting at a barrier keeps its work-item, and another one is taken for those that have not begun. So there is a greenlet
    for each work-item that waits, and none is made anew for the next block.
    """

    def __init__(self, launch: LaunchParameters) -> None:
        self.launch = launch
        self.code = launch.function.__code__
        self.leave = getcurrent().switch  # back to who runs the group
        self.items = _items(self)
        self.waves: list[list[Item]] = [[] for _ in range(self.items[-1].wave + 1)]
        for item in self.items:
            self.waves[item.wave].append(item)
        self.epochs = BarrierEpochs(len(self.waves))
        self.waiting: list[Item] = []
        self._arrays: dict[Site, tuple[object, Checked]] = {}  # static ones, by their place in the kernel
        self._dynamic: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._dynamic_watch: Watch | None = None
        self._pending: Iterator[Item] = iter(())
        self._begun = False  # all of them
        self._idle: list[greenlet] = []
        self.closing = False

    def run(self, block: Dim3, seed: object) -> None:
        """Run one block. ``seed``: in what order; None: in their own.

        Raises
        ------
        SimulatorError
            A work-item did wrong, or the block is stuck. The group cannot be used again.
        """
        for item in self.items:
            item.block = block
        self._arrays.clear()
        self._dynamic = self._dynamic_watch = None
        self.epochs.block += 1
        order: Sequence[Item] = self.items
        shuffled = None
        if seed is not None:
            shuffled = random.Random(repr(seed))
            order = shuffled.sample(order, len(order))
        try:
            self._run(order, shuffled)
        except SimulatorError:
            raise
        except BaseException as error:
            if this_thread.item is None:  # nobody's turn it was yet: it was ended before
                raise
            told = explain(error, this_thread.item, self.code)
            try:
                raise told from told.__cause__
            finally:
                del told  # or its traceback and this frame would keep each other, and the launch's arrays

    def close(self) -> None:
        """End all greenlets, on the thread that they belong to. Those still waiting at a barrier are told to leave."""
        self.closing = True
        for _ in self._pending:  # none of them begins any more
            pass
        for item in self.items:
            if item.place:
                this_thread.item = item
                _end(item.greenlet)
        for worker in self._idle:  # also those that would not hear of it
            worker.switch()
        this_thread.item = None
        self.items, self.waves = [], []  # or what a launch leaves behind would wait for the collector

    def _run(self, order: Sequence[Item], shuffled: random.Random | None) -> None:
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
        with np.errstate(all="ignore"):  # a device divides by zero without a word
            while True:
                for item in self._pending:
                    item.greenlet = me
                    this_thread.item = item
                    value = function(*arguments)
                    if value is not None:
                        told = "a kernel returns nothing: results go into an array that it is given"
                        raise Misuse("misuse", told, returned_at(self.code, value))
                self._begun = True
                self._idle.append(me)
                self.leave()
                if self.closing:
                    return

    # -- barriers ----------------------------------------------------------------------------------------------------

    def _release(self) -> list[Item]:
        """Who may go on, of those that wait; nobody runs. Raises if they wait for what will not come."""
        waiting, self.waiting = self.waiting, []
        first = waiting[0]
        if len(waiting) == len(self.items) and all(item.place == first.place for item in waiting):
            if first.place[0] is BLOCK:
                self.epochs.block += 1
            else:
                self.epochs.waves = [epoch + 1 for epoch in self.epochs.waves]
            return waiting
        waves = {item.wave for item in waiting if item.place[0] is WAVE}
        if not waves:
            _agree(self.items)
        for wave in waves:
            _agree(self.waves[wave])
            self.epochs.waves[wave] += 1
        self.waiting = [item for item in waiting if item.wave not in waves]
        return [item for item in waiting if item.wave in waves]

    # -- shared memory -----------------------------------------------------------------------------------------------

    def static_array(self, shape: Any, dtype: Any, key: Site) -> Checked:
        """The block's array of a place in the kernel: the first who comes by makes it."""
        found = self._arrays.get(key)
        if found is None:
            lengths, kind = shape_of(shape), dtype_of(dtype)
            nbytes = math.prod(lengths) * kind.itemsize + sum(array.nbytes for _, array in self._arrays.values())
            if nbytes > STATIC:
                raise Misuse("misuse", f"the block has {nbytes} bytes of shared memory by now, and {advice.STATIC}")
            array = self._shared(poisoned(lengths, kind), "shared array", 0, None)
            self._arrays[key] = (shape, dtype), array
            return array
        if found[0] != (shape, dtype):
            raise Misuse("misuse", f"shared.array({shape!r}, {dtype!r}) here, where another thread made {found[1]!r}")
        return found[1]

    def dynamic_array(self, dtype: Any) -> Checked:
        """The shared memory that the launch asked for, as an array of whole elements."""
        found, size = dtype_of(dtype), self.launch.shared_bytes
        if self._dynamic is None:
            self._dynamic = poisoned((size,), np.dtype(np.uint8))
            self._dynamic_watch = Watch(self.epochs, 1)
        data = self._dynamic[: size - size % found.itemsize].view(found)
        return self._shared(data, "dynamic shared array", 0, self._dynamic_watch)

    def _shared(self, data: np.ndarray[Any, Any], space: str, start: int, watch: Watch | None) -> Checked:
        if not self.launch.simulation.watches:
            return checked(data, space)
        cells = np.arange(start, start + data.nbytes, data.itemsize).reshape(data.shape)
        # Of records the fields are accessed, which begin anywhere.
        return Watched(data, space, cells, watch or Watch(self.epochs, 1 if data.dtype.names else data.itemsize))


class Item:
    """A work-item, as the names in a kernel see it (`devmem.kernels.work_items.WorkItem`)."""

    __slots__ = (
        "block",
        "block_dim",
        "greenlet",
        "grid_dim",
        "group",
        "index",
        "lane",
        "place",
        "thread",
        "wave",
        "wave_size",
        "work_dim",
    )

    def __init__(self, group: Group, index: int, thread: Dim3) -> None:
        launch = group.launch
        self.group = group
        self.index = index
        self.thread = thread
        self.block = Dim3(0, 0, 0)
        self.block_dim, self.grid_dim, self.work_dim = launch.block_dim, launch.grid_dim, launch.work_dim
        self.wave_size = launch.simulation.wave_size
        self.wave, self.lane = divmod(index, self.wave_size)
        self.place: tuple[Any, ...] = ()  # what it waits for, and where it does; empty while it does not
        self.greenlet: Any = None  # that runs it

    def barrier(self, scope: int) -> None:
        """Let the others of the block go on until they are here."""
        frame = sys._getframe(2)
        if frame.f_code is self.group.code:  # called by the name in the kernel itself, as nearly always
            self._wait((BLOCK, frame.f_code, frame.f_lasti))
        else:
            self._wait((BLOCK, *chain_of(caller(sys._getframe(1)), _WORK)))

    def wave_barrier(self) -> None:
        """Let the others of the wave go on until they are here."""
        self._wait((WAVE, *chain_of(caller(sys._getframe(1)), _WORK)))

    def fence(self, scope: int) -> None:
        """Note it: what one thread of the host writes, the others see anyway."""
        updates = self.group.launch.updates
        if updates is not None:
            updates.ordered = True

    def shared_array(self, shape: Any, dtype: Any) -> Any:
        """The block's array of this place in the kernel."""
        if shape in (0, (0,)):
            return self.group.dynamic_array(dtype)
        frame = sys._getframe(2)
        if frame.f_code is self.group.code:
            return self.group.static_array(shape, dtype, (id(frame.f_code), frame.f_lasti, None))
        return self.group.static_array(shape, dtype, site_of(caller(frame)))

    def local_array(self, shape: Any, dtype: Any) -> Any:
        """A new array."""
        return checked(poisoned(shape_of(shape), dtype_of(dtype)), "local array")

    def const_array(self, ary: Any) -> Any:
        """What the host array held when a thread of the kernel first came by this place."""
        if isinstance(ary, Checked):
            raise Misuse(
                "misuse", f"const.array_like() takes a host array that is a global, and {ary!r} can be used as it is"
            )
        frame = caller(sys._getframe(1))
        return self.group.launch.constant(site_of(frame), frame.f_code, ary)

    def atomic(self, operation: str, ary: Any, index: Any, *operands: Any) -> Any:
        """Read, combine and write with nobody in between."""
        if not isinstance(ary, Checked):
            raise TypeError(f"atomic.{operation} takes an array of the kernel's, not {type(ary).__name__}")
        updates = self.group.launch.updates
        if updates is not None:
            updates.ordered = True
        return ary.exchange(operation, index, operands)

    def _wait(self, place: tuple[Any, ...]) -> None:
        group = self.group
        if group.closing:  # and this is a `finally` of a kernel that has failed
            raise GreenletExit
        self.place = place
        group.waiting.append(self)
        group.leave()
        this_thread.item = self
        self.place = ()


_WORK = Group._work.__code__


def _agree(items: list[Item]) -> None:
    """Raise unless all these work-items wait, at the same place; one of them does, and nobody runs."""
    first = next(item for item in items if item.place)
    others = [item for item in items if item.place != first.place]
    if not others:
        return
    what, code, line = first.place[0], *Place(first.place[1:]).innermost()
    elsewhere = [item for item in others if item.place]
    who = f"thread {tuple((elsewhere or others)[0].thread)}"
    if elsewhere:
        where = Place(elsewhere[0].place[1:])
        told = f"the thread waits at a {what}, and {who} at another {elsewhere[0].place[0]}, at {where}"
        if where.innermost() == (code, line):
            told += ", reached by way of another call"
    else:
        more = f" and {len(others) - 1} more have" if len(others) > 1 else " has"
        told = f"the thread waits at a {what}, and {who}{more} returned without reaching it"
    raise report("divergence", told, first, code, line)


def _end(worker: Any) -> None:
    """Make a greenlet end, if it was begun and has not."""
    if worker:
        try:
            worker.throw()
        except BaseException:  # out of a `finally`, say, of a kernel that has failed already
            pass


def _items(group: Group) -> list[Item]:
    return [Item(group, index, thread) for index, thread in enumerate(_threads(group.launch.block_dim))]


@functools.lru_cache(8)  # a program has few shapes of blocks, and launches have many threads
def _threads(block_dim: Dim3) -> tuple[Dim3, ...]:
    across, down, deep = block_dim
    return tuple(Dim3(x, y, z) for z in range(deep) for y in range(down) for x in range(across))
