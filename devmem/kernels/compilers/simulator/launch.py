"""A launch: the blocks of a grid, dealt out to a few threads of the host."""

# Decision: docs/adr/0010-kernels-are-compiled-by-the-vendors-compiler.md
from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence

from ...._core.base.simulation import THREADS, Simulation
from ....spi.errors import SimulatorError
from ....spi.types import Extent
from ....toolkit.host_functions import this_thread
from ...work_items import Dim3
from .block_runner import Group
from .interrupts import Interrupts
from .kernel_arrays import Checked
from .launch_parameters import Constants, LaunchParameters
from .lost_updates import updated
from .reports import locals_of


class Launch(LaunchParameters):
    """One run of a kernel over a grid; it is called on a stream's thread, with the addresses of its arrays.

    The first blocks to fail are the ones that are told of: all blocks dealt out before a failing one are run to their end, so
    that the same mistake gives the same report each time.
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
    ) -> None:
        super().__init__(function, grid, block, shared_bytes, simulation, constants)
        self._makers = makers
        self._order: Sequence[int] = range(math.prod(grid))
        if simulation.shuffle is not None:
            self._order = random.Random(simulation.shuffle).sample(self._order, len(self._order))
        self._lock = threading.Lock()
        self._next = 0
        self._failures: dict[int, BaseException] = {}
        self._interrupts = Interrupts()
        self._begun = self._ended = False
        self._over: threading.Event | None = None  # made by who waits for it: it costs more than all the rest here

    def __call__(self, places: Sequence[int]) -> None:
        """Run all blocks; raise what the first of them that failed reported, unless it was interrupted: that was told."""
        self._begun = True
        try:
            if not self._interrupts.asked:
                self.arguments = tuple(make(places) for make in self._makers)
                if self.updates is not None:
                    self.arguments = tuple(updated(each, self.updates) for each in self.arguments)
                self._run()
        except BaseException:
            if not self._interrupts.asked:
                self._failures.clear()  # or what it raises would keep the launch, and the launch that
                raise
        finally:
            self._ended = True
            if self._over is not None:
                self._over.set()

    def interrupt(self) -> str:
        """End it, from another thread, or see to it that it never begins; say where it was, if it was anywhere."""
        self._interrupts.asked = True
        if not self._begun:
            return ""
        with self._lock:
            over = self._over = self._over or threading.Event()
        if self._ended:
            over.set()
        if not self._interrupts.end(over):
            return f"{self.function.__qualname__} still runs in the simulator: what it calls does not let itself be interrupted"
        reports = [str(error) for _, error in sorted(self._failures.items()) if isinstance(error, SimulatorError)]
        self._failures.clear()
        return reports[0] if reports else ""

    def _run(self) -> None:
        helpers = []
        # Several threads take turns as the machine pleases: an order that is the same each time needs a single one.
        threads = 1 if self.simulation.shuffle is not None else min(THREADS, len(self._order))
        for _ in range(threads - 1):
            helper = threading.Thread(target=self._help, name="devmem-simulator", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # no more threads: those there are do
                break
            helpers.append(helper)
        self._blocks()
        for helper in helpers:
            helper.join()
        for value in self.arguments + tuple(value for error in self._failures.values() for value in locals_of(error)):
            if isinstance(value, Checked):
                value.detach()  # the device may free their memory from here on
        if self._failures:
            raise _bare(self._failures[min(self._failures)])

    def _help(self) -> None:
        with this_thread.running_host_function():
            self._blocks()

    def _blocks(self) -> None:
        at: int | None = -1
        try:
            group = Group(self)
            try:
                while (at := self._take()) is not None:
                    number, seed = self._order[at], self.simulation.shuffle
                    block_seed = None if seed is None else (seed, number)
                    self._interrupts.inside(group.run, self._block(number), block_seed)
            finally:
                group.close()
        except BaseException as error:
            self._failures[-1 if at is None else at] = error

    def _take(self) -> int | None:
        with self._lock:
            if self._failures or self._next == len(self._order):
                return None
            self._next += 1
            return self._next - 1

    def _block(self, number: int) -> Dim3:
        across, down, _ = self.grid_dim
        return Dim3(number % across, number // across % down, number // (across * down))


def _bare(error: BaseException) -> BaseException:
    """A report without the way by which it came, of which it says what there is to say."""
    return error.with_traceback(None) if isinstance(error, SimulatorError) else error
