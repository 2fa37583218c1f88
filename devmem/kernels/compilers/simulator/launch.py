"""A simulated launch: a few host threads run the blocks of a grid.

Blocks that may wait for each other, at a barrier of the grid, run as greenlets of a single thread.
"""

# Decision: docs/adr/0010-kernels-are-compiled-by-the-vendors-compiler.md
from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from greenlet import getcurrent, greenlet

from ....spi.errors import SimulatorError
from ....spi.types import Extent
from ....toolkit.host_functions import this_thread
from ....toolkit.locks import Rank, lock
from ...simulation import THREADS, Simulation
from ...work_items import Dim3
from .block_runner import BlockRunner
from .compiled_blocks import CompiledBlocks
from .interrupts import Interrupts
from .kernel_arrays import KernelArray
from .launch_log import record
from .launch_parameters import Constants, LaunchParameters
from .lost_updates import track_updates
from .reports import locals_of

#: Seconds that a thread runs compiled blocks before it looks for an interrupt.
_TURN = 0.01


class SimulatedLaunch(LaunchParameters):
    """One run of a kernel over a grid; the stream's thread calls it with the addresses of its arrays.

    The report is that of the first failing block in order: blocks that were started before it run to their end, so that the same
    mistake gives the same report each time.
    """

    def __init__(
        self,
        function: Callable[..., object],
        makers: Sequence[Callable[[Sequence[int]], object]],
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        simulation: Simulation,
        constants: Constants,
        debug: bool,
        cooperative: bool,
        compiled: CompiledBlocks | None,
    ) -> None:
        super().__init__(function, grid, block, shared_bytes, simulation, constants, debug)
        self._makers = makers
        self._order: Sequence[int] = range(math.prod(grid))
        if simulation.shuffle is not None:
            self._order = random.Random(simulation.shuffle).sample(self._order, len(self._order))
        self._lock = lock("simulator launch", Rank.LEAF)
        self._next = 0
        self._failures: dict[int, BaseException] = {}
        self._interrupts = Interrupts(self._lock)
        self._begun = self._ended = False
        self._cooperative = cooperative
        self._compiled = compiled  #: to run in the simulator's place, where it can
        self._given: tuple[object, ...] | None = None  #: its arguments, once it can
        self._why_not: str | None = None  #: why it cannot
        self._compiling = 0.0  #: seconds
        self._to_launch: Callable[..., object] | None = None  # switches from a block to the launch
        self._finished: threading.Event | None = (
            None  # made only for a waiter, as it costs more than the rest of this constructor
        )

    def __call__(self, places: Sequence[int]) -> None:
        """Run all blocks; raise the report of the first failing one, unless the launch was interrupted."""
        self._begun, start = True, time.perf_counter()
        try:
            if not self._interrupts.requested:
                self.arguments = tuple(make(places) for make in self._makers)
                if self.updates is not None:
                    self.arguments = tuple(track_updates(each, self.updates) for each in self.arguments)
                self._run()
                self._record(start, None)
        except BaseException as error:
            self._record(start, error)
            if not self._interrupts.requested:
                self._failures.clear()  # breaks the cycle of the error and the launch
                raise
        finally:
            self._ended = True
            if self._finished is not None:
                self._finished.set()

    def _record(self, start: float, error: BaseException | None) -> None:
        grid, block = tuple(self.grid_dim), tuple(self.block_dim)
        seconds, compiled = round(time.perf_counter() - start, 6), self._given is not None
        facts = {"grid": grid, "block": block, "seconds": seconds, "compiling": self._compiling, "compiled": compiled}
        record(self.function, error, **facts, why_not=self._why_not)

    def interrupt(self) -> str:
        """Interrupt the launch from another thread, or prevent its start; return a report of where it was."""
        self._interrupts.requested = True
        if not self._begun:
            return ""
        with self._lock:
            finished = self._finished = self._finished or threading.Event()
        if self._ended:
            finished.set()
        if not self._interrupts.interrupt_all(finished):
            return f"{self.function.__qualname__} still runs in the simulator: what it calls does not let itself be interrupted"
        reports = [str(error) for _, error in sorted(self._failures.items()) if isinstance(error, SimulatorError)]
        self._failures.clear()
        return reports[0] if reports else ""

    def _run(self) -> None:
        if self._compiled is not None:
            before = self._compiled.seconds
            self._given, self._why_not = self._compiled.ready(self.simulation, self.arguments)
            self._compiling = round(self._compiled.seconds - before, 6)
        helpers = []
        # A reproducible order needs a single thread, as the switches between several are not reproducible.
        threads = min(THREADS, len(self._order))
        in_order = self._given is not None and self._compiled is not None and self._compiled.in_order
        if self._cooperative or in_order or self.simulation.shuffle is not None:
            threads = 1
        for _ in range(threads - 1):
            helper = threading.Thread(target=self._help, name="devmem-simulator", daemon=True)
            try:
                helper.start()  # on the stream's thread, where no signal's handler runs
            except RuntimeError:  # no more threads can be started: go on with fewer
                break
            helpers.append(helper)
        if self._cooperative:
            self._blocks_together()
        else:
            self._blocks()
        for helper in helpers:
            helper.join()
        for value in self.arguments + tuple(value for error in self._failures.values() for value in locals_of(error)):
            if isinstance(value, KernelArray):
                value.detach()  # the device may free their memory from here on
        if self._failures:
            raise _without_traceback(self._failures[min(self._failures)])

    def _help(self) -> None:
        with this_thread.running_host_function():
            self._blocks()

    def _blocks(self) -> None:
        if self._given is not None:
            self._compiled_blocks(self._given)
            return
        at: int | None = -1
        try:
            group = BlockRunner(self)
            try:
                while (at := self._take()) is not None:
                    number, seed = self._order[at], self.simulation.shuffle
                    block_seed = None if seed is None else (seed, number)
                    self._interrupts.run_interruptible(group.run, self._block(number), block_seed)
            finally:
                group.close()
        except BaseException as error:
            self._failures[-1 if at is None else at] = error

    def _compiled_blocks(self, given: tuple[object, ...]) -> None:
        """Run ranges of blocks that take so long that taking the next is cheap, and an interrupt does not wait."""
        assert self._compiled is not None
        count = 1
        try:
            while (first := self._take(count)) is not None:
                blocks, start = range(first, min(first + count, len(self._order))), time.perf_counter()
                self._interrupts.run_interruptible(self._compiled_range, blocks, given)
                if time.perf_counter() - start < _TURN:
                    count *= 2
        except BaseException as error:
            self._failures[-1] = error

    def _compiled_range(self, blocks: range, given: tuple[object, ...]) -> None:
        assert self._compiled is not None
        failed = self._compiled.run(blocks, self, given)
        if failed is not None:
            number, error = failed
            self._failures[number] = self._with_line(number, error)

    def _with_line(self, number: int, error: SimulatorError) -> BaseException:
        """The simulator's report of the same thread, which has the line; that of the compiled code, if it makes none.

        The block runs once more, in memory that it has changed already. A kernel that fails leaves nothing to rely on there.
        """
        group = BlockRunner(self)
        try:
            group.run(self._block(number), None)
        except SimulatorError as found:
            if found.thread == error.thread or found.kind == error.kind == "divergence":
                return found
        finally:
            group.close()
        return error

    def _blocks_together(self) -> None:
        running: dict[int, greenlet] = {}
        try:
            self._interrupts.run_interruptible(self._take_turns, running)
        except BaseException as error:
            self._failures[-1] = error
        finally:
            for block in running.values():
                if block:
                    with suppress(SimulatorError):  # the report of the block is made already
                        block.throw()

    def _take_turns(self, running: dict[int, greenlet]) -> None:
        """Run each block up to the next barrier of the grid, until all have ended."""
        self._to_launch = getcurrent().switch
        running.update((number, greenlet(self._run_block)) for number in self._order)
        while running:
            returned = [number for number, block in running.items() if not block.switch(number)]
            if returned and len(returned) < len(running):
                told = f"block {tuple(self._block(returned[0]))} has returned without reaching it"
                for number, block in running.items():
                    if number not in returned:
                        block.switch(told)
            if returned:
                return

    def _run_block(self, number: int) -> None:
        group, seed = BlockRunner(self), self.simulation.shuffle
        try:
            group.run(self._block(number), None if seed is None else (seed, number))
        finally:
            group.close()

    def wait_for_grid(self) -> object:
        """Go on with the next block. A text says why the block can never go on; anything else: it can."""
        assert self._to_launch is not None
        return self._to_launch(True)

    def _take(self, count: int = 1) -> int | None:
        with self._lock:
            if self._failures or self._next >= len(self._order):
                return None
            self._next += count
            return self._next - count

    def _block(self, number: int) -> Dim3:
        across, down, _ = self.grid_dim
        return Dim3(number % across, number // across % down, number // (across * down))


def _without_traceback(error: BaseException) -> BaseException:
    """A report without its traceback, whose contents are in its message."""
    return error.with_traceback(None) if isinstance(error, SimulatorError) else error
