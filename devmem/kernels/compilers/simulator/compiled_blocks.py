"""``DEVMEM_SIM=fast``: the blocks of a kernel, compiled for the host by ``numba.njit``.

A kernel whose threads do not wait for each other is a loop over threads. It is compiled with the arithmetic of devices
(``error_model="numpy"``: a division by zero gives inf, nan or 0), without contraction and with checked indices. The threads of a
launch take turns in running ranges of blocks, without the interpreter's lock. What cannot be compiled runs in the simulator.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np

from ...._core.base.config import NegativeIndices
from ....spi.errors import SimulatorError
from ....toolkit.locks import Rank, lock
from ...simulation import Simulation
from ...tuples import tuple_like
from ...work_items import Dim3
from .device_code import jit_is_disabled
from .kernel_arrays import KernelArray, plain_array
from .launch_parameters import LaunchParameters
from .numbers import numpy_number
from .plain_source import PlainFunctions, Refused
from .reports import report

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


class CompiledBlocks:
    """A kernel, for arguments of the same types; compiled at its first launch.

    Attributes
    ----------
    why_not : str or None
        Why it runs in the simulator; None if it is compiled, or was not launched yet.
    """

    def __init__(self, function: Any, debug: bool) -> None:
        self._function = function
        self._errors = "python" if debug else "numpy"  # numba's names of whether a division by zero raises
        self._loop: Callable[..., None] | None = None
        self._lock = lock("compiled blocks", Rank.COMPILE)
        self.why_not: str | None = None

    def ready(self, simulation: Simulation, arguments: Sequence[Any]) -> tuple[Any, ...] | None:
        """The arguments as the compiled kernel takes them; None: run it in the simulator, and the log says why."""
        if simulation.watches or simulation.negative is NegativeIndices.REPORT:
            return None  # the user asked for reports that only the simulator makes
        given = tuple(map(_plain, arguments))
        with self._lock:
            if self._loop is None and self.why_not is None:
                try:
                    self._loop = _compiled(self._function, given, self._errors)
                except Exception as error:
                    told = str(error).strip() or type(error).__name__
                    self.why_not = told if isinstance(error, Refused) else f"numba does not compile it: {told}"
                    logging.getLogger("devmem").info(
                        "DEVMEM_SIM=fast: %s runs in the simulator: %s", self._function.__qualname__, self.why_not
                    )
        return given if self._loop is not None else None

    def run(
        self, blocks: range, launch: LaunchParameters, arguments: tuple[Any, ...], failures: dict[int, BaseException]
    ) -> None:
        """Run some blocks of a launch; the report of the first that fails is added to ``failures``."""
        assert self._loop is not None
        at = np.zeros(2, np.int64)
        grid, block = tuple(launch.grid_dim), tuple(launch.block_dim)
        try:
            self._loop(blocks.start, blocks.stop, grid, block, launch.simulation.wave_size, at, *arguments)
        except Exception as error:
            failures[int(at[0])] = _report(error, self._function.__code__, at, launch)


def why_no_compiler() -> str | None:
    """Why no kernel can be compiled for the host; None if they can."""
    spec = importlib.util.find_spec("numba")
    if spec is None or not spec.has_location:  # without a file: `devmem.simulate` stands in for it
        return "numba is not installed: pip install numba"
    return "NUMBA_DISABLE_JIT is set" if jit_is_disabled() else None


def _compiled(function: Any, arguments: tuple[Any, ...], errors: str) -> Callable[..., None]:
    why = why_no_compiler()
    if why is not None:
        raise Refused(why)
    import numba

    compiler = numba.njit(error_model=errors, boundscheck=True, nogil=True)
    kernel = PlainFunctions(compiler).of(function)
    names = "".join(f"a{place}, " for place in range(len(arguments)))
    found: dict[str, Any] = {"kernel": kernel}
    exec(_LOOP.format(arguments=names), found)
    loop: Callable[..., None] = compiler(found["blocks"])
    loop(0, 0, (1, 1, 1), (1, 1, 1), 1, np.zeros(2, np.int64), *arguments)  # no block: compiles it
    if any(each.signature.return_type != numba.types.none for each in kernel.overloads.values()):
        raise Refused("it returns a value")
    return loop


def _plain(value: Any) -> Any:
    """An argument of the simulator's as NumPy's."""
    if isinstance(value, KernelArray):
        return plain_array(value)
    return tuple_like(value, map(_plain, value)) if isinstance(value, tuple) else numpy_number(value)


def _report(error: Exception, code: CodeType, at: Any, launch: LaunchParameters) -> SimulatorError:
    block, thread = (_place(*each) for each in zip(map(int, at), (launch.grid_dim, launch.block_dim), strict=True))
    item: Any = SimpleNamespace(block=block, thread=thread)
    kind = "out of bounds" if isinstance(error, IndexError) else "exception"
    told = f"{type(error).__name__}: {error}; with DEVMEM_SIM=exact the report says the line"
    found = report(kind, told, item, code, code.co_firstlineno)
    if kind == "exception":
        found.__cause__ = error.with_traceback(None)  # its frames hold the arrays
    return found


def _place(number: int, lengths: Dim3) -> Dim3:
    across, down, _ = lengths
    return Dim3(number % across, number // across % down, number // (across * down))
