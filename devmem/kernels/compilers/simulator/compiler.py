"""The simulator as a kernel compiler: it compiles nothing and runs the Python function."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ...._core.base.config import Simulators
from ...._core.base.layout import span
from ...._core.base.simulation import current
from ....spi.driver import Driver, SupportsHostFunction
from ....spi.errors import LayoutError, SimulatorError, UnsupportedError
from ....spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Extent
from ...launch import MAX_BLOCKS_YZ, MAX_THREADS_Z
from ...tuples import tuple_like
from ...work_items import this_thread
from .argument_types import EnumType, RecordType, ScalarType, TupleType, Type, parse_signature, type_of
from .device_code import in_python
from .kernel_check import check_kernel
from .launch_log import record

#: Most work-items of a block; every current GPU allows this many.
BLOCK_LIMIT = 1024


class Simulator:
    """Runs kernels in Python, thread by thread, on devices whose memory the host can access (`devmem.simulator`)."""

    name = "simulator"
    backend = "host"

    def unavailable(self) -> str | None:
        """Return how to install greenlet, if it is missing."""
        if importlib.util.find_spec("greenlet") is None:
            return "kernels on the host backend need greenlet: pip install 'devmem-arrays[sim]'"
        return None

    def type_of(self, argument: object) -> Hashable:
        """The type of an argument: dtype, number of axes and layout of an array, or the type of a number."""
        return type_of(argument)

    def types_of(self, signature: str) -> tuple[Hashable, ...]:
        """The types of a signature."""
        return parse_signature(signature)

    def fits(self, declared: tuple[Hashable, ...], given: tuple[Hashable, ...]) -> bool:
        """Whether arguments of the given types match the declared ones, with at most numbers converted."""
        if len(declared) != len(given):
            return False
        return all(isinstance(one, Type) and one.accepts(other) for one, other in zip(declared, given, strict=True))

    def compile(
        self,
        function: Callable[..., object],
        types: tuple[Hashable, ...],
        driver: Driver,
        options: Mapping[str, object],
    ) -> SimulatedKernel:
        """The function, ready to run on the device.

        Raises
        ------
        UnsupportedError
            The host cannot access the device's memory, or greenlet is missing; or the kernel uses names of one vendor's compiler.
        SimulatorError
            The code has what no compiler takes: a call of a plain function, a ``try``.
        TypeError
            An option that no compiler has.
        """
        why = self.unavailable()
        if why is not None:
            raise UnsupportedError(why)
        if not isinstance(driver, SupportsHostFunction):
            raise UnsupportedError(
                f"kernels cannot be simulated on {driver.info.name}: the host cannot access its memory"
            )
        try:
            cooperative = check_kernel(function, options)
        except (SimulatorError, UnsupportedError) as error:
            record(function, error)
            raise
        return SimulatedKernel(function, types, driver, driver, bool(options.get("debug")), cooperative)


class SimulatedKernel:
    """A function with the types of its arguments, for one device."""

    #: Nothing is loaded on the device.
    resident = False

    def __init__(
        self,
        function: Callable[..., object],
        types: tuple[Hashable, ...],
        driver: Driver,
        launcher: SupportsHostFunction,
        debug: bool,
        cooperative: bool,
    ) -> None:
        from .compiled_blocks import CompiledBlocks
        from .launch import SimulatedLaunch  # imports greenlet, an extra
        from .launch_parameters import Constants

        self._function = in_python(function)
        self._compiled = CompiledBlocks(function, debug)
        self._types = types
        self._driver = driver
        self._launcher = launcher
        self._launch = SimulatedLaunch
        self._constants: Constants = {}
        self._debug, self._cooperative = debug, cooperative

    def launch(self, grid: Extent, block: Extent, shared_bytes: int, stream: int, arguments: Sequence[object]) -> None:
        """Enqueue the kernel. Its report is raised by the next call that waits for the stream, or launches on it.

        On a default stream, this call waits and raises the report, as there it is most useful.

        Raises
        ------
        LayoutError
            The grid or the block is empty, or larger than GPUs allow.
        BackendError
            An array is not in the device's memory.
        UnsupportedError
            The caller is a kernel.
        SimulatorError
            The report of this kernel, or of an earlier one on the same stream that was not raised yet.
        """
        if this_thread.item is not None:
            raise UnsupportedError("a kernel cannot launch another one: launch it from the host, after this one")
        _check(grid, block, shared_bytes)
        ranges: list[tuple[int, int]] = []
        names = self._function.__code__.co_varnames
        makers = [
            self._prepare(
                argument,
                self._types[place] if place < len(self._types) else type_of(argument),
                f"array {names[place]!r}" if place < len(names) else "array",
                ranges,
            )
            for place, argument in enumerate(arguments)
        ]
        simulation = current()
        run = self._launch(
            self._function,
            makers,
            grid,
            block,
            shared_bytes,
            simulation,
            self._constants,
            self._debug,
            self._cooperative,
            self._compiled if simulation.mode is Simulators.FAST else None,
        )
        if stream not in (LEGACY_STREAM, PER_THREAD_STREAM):
            self._launcher.launch_host_function(run, ranges, stream)
            return
        try:
            self._launcher.launch_host_function(run, ranges, stream)
            self._driver.stream_synchronize(stream)
        except BaseException as error:  # also if the wait did not begin: after an interrupt the kernel must not go on
            run.interrupt()
            if isinstance(error, SimulatorError):
                # The report names the kernel's line; the traceback would show the stream's internals.
                raise error.with_traceback(None) from error.__cause__
            raise

    def close(self) -> None:
        """Do nothing: nothing is loaded on the device."""

    def _prepare(
        self, argument: Any, kind: Hashable, space: str, ranges: list[tuple[int, int]]
    ) -> Callable[[Sequence[int]], object]:
        """A function that makes the kernel's argument from the host addresses of ``ranges``; its own range is appended."""
        if isinstance(kind, TupleType):
            parts = [self._prepare(*each, space, ranges) for each in zip(argument, kind.parts, strict=True)]
            return lambda places: tuple_like(argument, [make(places) for make in parts])
        if isinstance(kind, ScalarType):
            value = kind.convert(argument)
            return lambda places: value
        if isinstance(kind, EnumType):
            return lambda places: argument
        if isinstance(argument, np.void):
            record = _record(np.array(argument.copy()))  # np.array() of a record alone is a view
            return lambda places: record
        from .kernel_arrays import kernel_array
        from .raw_arrays import array_at

        dtype, shape = argument.dtype, tuple(getattr(argument, "shape", ()))
        strides, readonly = tuple(getattr(argument, "strides", ())), _readonly(argument)
        low, high = span(shape, strides, dtype.itemsize)
        at = len(ranges)
        if high > low:
            ranges.append((argument.ptr + low, high - low))

        def view(places: Sequence[int]) -> object:
            data = array_at(places[at], low, shape, strides, dtype) if high > low else np.empty(shape, dtype)
            data.flags.writeable = not readonly
            if isinstance(kind, RecordType):
                return _record(data)
            return kernel_array(data, space)

        return view


def _readonly(argument: Any) -> bool:
    return bool(getattr(argument, "readonly", False)) or getattr(
        getattr(argument, "allocation", None), "read_only", False
    )


def _record(array: Any) -> Any:
    """The record in an array without axes, in its memory, with its fields as attributes."""
    from .kernel_arrays import Record

    return array.view(np.dtype((Record, array.dtype)))[()]


def _check(grid: Extent, block: Extent, shared_bytes: int) -> None:
    if min(grid) < 1 or min(block) < 1:
        raise LayoutError(
            f"a launch has at least one block and one thread along each axis, not {grid} blocks of {block}"
        )
    items = block[0] * block[1] * block[2]
    if items > BLOCK_LIMIT:
        raise LayoutError(f"a block has at most {BLOCK_LIMIT} threads on every GPU, not {block}: {items}")
    if max(grid[1:]) > MAX_BLOCKS_YZ or block[2] > MAX_THREADS_Z:
        raise LayoutError(
            f"most GPUs take at most {MAX_BLOCKS_YZ} blocks along y and z, and {MAX_THREADS_Z} threads along z, "
            f"not {grid} blocks of {block}: give the longest axis to x"
        )
    if shared_bytes < 0:
        raise LayoutError(f"dynamic shared memory of {shared_bytes} bytes")
