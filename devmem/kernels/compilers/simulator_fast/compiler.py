"""Compile a kernel with loops over its blocks and threads.

A kernel whose threads do not wait for each other is a loop over threads. It is compiled with the arithmetic of devices
(``error_model="numpy"``: a division by zero gives inf, nan or 0), without contraction and with checked indices. It releases the
interpreter's lock; but a kernel with atomic operations keeps it, so that no other kernel, compiled or not, runs between the read
and the write of one.

A kernel with barriers is compiled as a generator. Each thread of a block runs up to the next barrier, one after the other, as in
the simulator, and all of them have to come to the same one.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import config

from ..simulator.plain_source import PlainFunctions, Refused
from ..simulator.raw_arrays import poisoned
from .operations import MARK, OPERATIONS
from .typed_code import check

#: ``at`` holds the block and the thread that run, for reports.
_LOOP = """
def blocks(first, last, grid, block, wave, at, {arguments}):
    for number in range(first, last):
        x, y, z = number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
        at[0] = number
        for k in range(block[2]):
            for j in range(block[1]):
                for i in range(block[0]):
                    at[1] = (k * block[1] + j) * block[0] + i
                    kernel((i, j, k, x, y, z, block[0], block[1], block[2], grid[0], grid[1], grid[2], wave), {arguments})
"""
#: What errors of numba begin with, without saying anything.
_HEADINGS = re.compile(r"(Failed in|No implementation of|The keyword argument|\x1b|[-^\s]*$)")


#: More bytes of shared memory than every GPU has for a block: the simulator says so.
_SHARED_BYTES = 48 << 10


class Divergence(Exception):
    """Threads of a block that do not come to the same barrier."""


class HostKernel:
    """A kernel compiled for the host; `run` is compiled for arguments of each type that it is called with."""

    def __init__(self, function: Callable[..., object], debug: bool) -> None:
        if config.BOUNDSCHECK == 0:
            raise Refused("NUMBA_BOUNDSCHECK=0 is set, without which indices are not checked")
        errors = "python" if debug else "numpy"  # numba's names of whether a division by zero raises
        compiler = numba.njit(error_model=errors, boundscheck=True)
        self._functions = PlainFunctions(compiler, OPERATIONS)
        self._kernel = self._functions.of(function)
        #: Whether blocks run one at a time, in order.
        self.in_order = self._functions.updates or self._functions.barriers > 0
        if self.in_order and not getattr(sys, "_is_gil_enabled", lambda: True)():
            raise Refused("it has atomic operations or barriers, and this Python no lock that keeps other kernels away")
        if sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._functions.shared) > _SHARED_BYTES:
            raise Refused(f"it uses more than {_SHARED_BYTES} bytes of shared memory")
        count = function.__code__.co_argcount
        values: dict[str, Any] = {"kernel": self._kernel}
        exec(_LOOP.format(arguments="".join(f"a{place}, " for place in range(count))), values)
        loop = numba.njit(nogil=not self.in_order)(values["blocks"])
        self.run: Callable[..., None] = self._take_turns if self._functions.barriers else loop

    def compile(self, arguments: tuple[Any, ...]) -> None:
        """Compile it for arguments of these types.

        Raises
        ------
        Refused
            Numba does not compile it, or the result is not known to be the simulator's.
        """
        try:
            if self._functions.barriers:
                self._kernel.compile(tuple(map(numba.typeof, ((0,) * 13, *self._shared(), *arguments))))
            else:
                self.run(0, 0, (1, 1, 1), (1, 1, 1), 1, np.zeros(2, np.int64), *arguments)  # no block
        except Exception as error:  # numba's have no common base class
            raise Refused(_told(error)) from None
        for function in self._functions.made:
            for each in function.overloads.values():
                check(each.type_annotation, self._functions.made)

    def _shared(self) -> list[Any]:
        return [poisoned(shape, dtype) for shape, dtype in self._functions.shared]

    def _take_turns(self, first: int, last: int, grid: Any, block: Any, wave: int, at: Any, *arguments: Any) -> None:
        """Run blocks whose threads wait for each other."""
        width, height, depth = block
        threads = [(i, j, k) for k in range(depth) for j in range(height) for i in range(width)]
        for number in range(first, last):
            at[0] = number
            place = number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
            shared = self._shared()
            running = [self._kernel((*each, *place, *block, *grid, wave), *shared, *arguments) for each in threads]
            barrier: object = 0
            while barrier is not None:
                for index, thread in enumerate(running):
                    at[1] = index
                    reached = next(thread, None)
                    if index and reached != barrier:
                        raise Divergence("the threads of the block do not come to the same barrier")
                    barrier = reached


def _told(error: Exception) -> str:
    """One line of a long error."""
    lines = list(map(str.strip, str(error).splitlines()))
    ours = next((each.partition(MARK)[2] for each in lines if MARK in each), None)
    if ours is not None:
        return ours
    return f"numba does not compile it: {next((each for each in lines if not _HEADINGS.match(each)), type(error).__name__)}"
