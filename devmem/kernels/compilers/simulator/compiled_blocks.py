"""``DEVMEM_SIM=fast``: the blocks of a kernel, compiled for the host by ``numba.njit``.

`simulator_fast` compiles kernels. The threads of a launch take turns in running ranges of blocks, without the interpreter's lock
where a kernel has no barriers and no atomic operations. What cannot be compiled, or is not known to give the simulator's results,
runs in the simulator; the log and the report say why.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Sequence
from types import CodeType, SimpleNamespace
from typing import TYPE_CHECKING, Any

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
from .plain_source import Refused
from .reports import report

if TYPE_CHECKING:
    from ..simulator_fast.compiler import HostKernel

#: The kinds of reports, by the names of exceptions.
_KINDS = {"IndexError": "out of bounds", "Divergence": "divergence"}
#: The most characters of a reason.
_LONGEST = 300


class CompiledBlocks:
    """A kernel, compiled for arguments of each type at its first launch with them.

    Attributes
    ----------
    seconds : float
        The time that the compilations took.
    """

    def __init__(self, function: Any, debug: bool) -> None:
        self._function, self._debug = function, debug
        self._kernel: HostKernel | None = None
        self._reasons: dict[
            object, str | None
        ] = {}  #: by types of arguments: why it runs in the simulator; None: compiled
        self._lock = lock("compiled blocks", Rank.COMPILE)
        self.seconds = 0.0

    @property
    def in_order(self) -> bool:
        """Whether its blocks have to run one after the other."""
        return self._kernel is not None and self._kernel.in_order

    def ready(self, simulation: Simulation, arguments: Sequence[Any]) -> tuple[tuple[Any, ...] | None, str | None]:
        """The arguments as the compiled kernel takes them; None, and why it runs in the simulator."""
        if simulation.watches:
            return None, "the simulator watches its accesses"
        if simulation.negative is NegativeIndices.REPORT:
            return None, "the simulator reports negative indices"
        given = tuple(map(_plain, arguments))
        kind = tuple(map(_kind, given))
        with self._lock:
            if kind not in self._reasons:
                start = time.perf_counter()
                self._reasons[kind] = self._why_not(given)
                self.seconds += time.perf_counter() - start
        why = self._reasons[kind]
        return (given, None) if why is None else (None, why)

    def _why_not(self, given: tuple[Any, ...]) -> str | None:
        """Compile it for these arguments; the reason why not."""
        try:
            why = why_no_compiler()
            if why is not None:
                raise Refused(why)
            from ..simulator_fast.compiler import HostKernel  # imports numba, an extra

            if self._kernel is None:
                self._kernel = HostKernel(self._function, self._debug)
            self._kernel.compile(given)
        except Exception as error:  # also where a new numba is not as it was: the simulator runs every kernel
            told = (str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}")[:_LONGEST]
            name = self._function.__qualname__
            logging.getLogger("devmem").info("DEVMEM_SIM=fast: %s runs in the simulator: %s", name, told)
            return told
        return None

    def run(
        self, blocks: range, launch: LaunchParameters, arguments: tuple[Any, ...]
    ) -> tuple[int, SimulatorError] | None:
        """Run some blocks of a launch; the number of the first that fails, and its report."""
        assert self._kernel is not None
        at = np.zeros(2, np.int64)
        grid, block = tuple(launch.grid_dim), tuple(launch.block_dim)
        try:
            self._kernel.run(blocks.start, blocks.stop, grid, block, launch.simulation.wave_size, at, *arguments)
        except Exception as error:
            return int(at[0]), _report(error, self._function.__code__, at, launch)
        return None


def why_no_compiler() -> str | None:
    """Why no kernel can be compiled for the host; None if they can."""
    spec = importlib.util.find_spec("numba")
    if spec is None or not spec.has_location:  # without a file: `devmem.simulate` stands in for it
        return "numba is not installed: pip install numba"
    return "NUMBA_DISABLE_JIT is set" if jit_is_disabled() else None


def _kind(value: Any) -> object:
    """Tell apart what numba does in an argument of a known type: the layout of an array, and whether it is read-only."""
    if isinstance(value, np.ndarray):
        return value.flags.num
    return tuple(map(_kind, value)) if isinstance(value, tuple) else type(value)


def _plain(value: Any) -> Any:
    """An argument of the simulator's as NumPy's."""
    if isinstance(value, KernelArray):
        return plain_array(value)
    return tuple_like(value, map(_plain, value)) if isinstance(value, tuple) else numpy_number(value)


def _report(error: Exception, code: CodeType, at: Any, launch: LaunchParameters) -> SimulatorError:
    block, thread = (_place(*each) for each in zip(map(int, at), (launch.grid_dim, launch.block_dim), strict=True))
    item: Any = SimpleNamespace(block=block, thread=thread)
    kind = _KINDS.get(type(error).__name__, "exception")
    told = f"{type(error).__name__}: {error}; with DEVMEM_SIM=exact the report says the line"
    found = report(kind, told, item, code, code.co_firstlineno)
    if kind == "exception":
        found.__cause__ = error.with_traceback(None)  # its frames hold the arrays
    return found


def _place(number: int, lengths: Dim3) -> Dim3:
    across, down, _ = lengths
    return Dim3(number % across, number // across % down, number // (across * down))
