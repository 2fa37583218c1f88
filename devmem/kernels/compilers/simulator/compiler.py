"""The simulator as a kernel compiler: it compiles nothing, and runs the function itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ...._core.base.layout import span
from ...._core.base.simulation import current
from ....spi.driver import Driver, SupportsHostFunction
from ....spi.errors import LayoutError, SimulatorError, UnsupportedError
from ....spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Extent
from ...launch import MAX_BLOCKS_YZ, MAX_THREADS_Z
from ...work_items import this_thread
from .argument_types import RecordType, ScalarType, TupleType, Type, parse, type_of
from .kernel_check import check

#: Work-items of a block: what every GPU of today allows.
BLOCK_LIMIT = 1024


class Simulator:
    """Runs kernels in Python, thread by thread, on devices whose memory the host can reach (`devmem.simulator`)."""

    name = "simulator"
    backend = "host"

    def unavailable(self) -> str | None:
        """Say how greenlet is installed, unless it is."""
        if importlib.util.find_spec("greenlet") is None:
            return "kernels on the host backend need greenlet: pip install 'devmem-arrays[sim]'"
        return None

    def type_of(self, argument: object) -> Hashable:
        """Dtype, number of axes and layout; the types of numbers."""
        return type_of(argument)

    def types_of(self, signature: str) -> tuple[Hashable, ...]:
        """The same, of a written signature."""
        return parse(signature)

    def fits(self, declared: tuple[Hashable, ...], given: tuple[Hashable, ...]) -> bool:
        """Whether arguments of the types given are what was declared, with no more than numbers converted."""
        if len(declared) != len(given):
            return False
        return all(isinstance(one, Type) and one.takes(other) for one, other in zip(declared, given, strict=True))

    def compile(
        self,
        function: Callable[..., object],
        types: tuple[Hashable, ...],
        driver: Driver,
        options: Mapping[str, object],
    ) -> SimulatedKernel:
        """The function, ready to be run on the device.

        Raises
        ------
        UnsupportedError
            The device, or greenlet, cannot do it; or the kernel uses what works with one vendor's compiler alone.
        SimulatorError
            It has what no compiler takes: a plain function that it calls, a ``try``.
        TypeError
            An option that no compiler has got.
        """
        why = self.unavailable()
        if why is not None:
            raise UnsupportedError(why)
        if not isinstance(driver, SupportsHostFunction):
            raise UnsupportedError(
                f"kernels cannot be simulated on {driver.info.name}: the host does not reach its memory"
            )
        check(function, options)
        return SimulatedKernel(function, types, driver, driver)


class SimulatedKernel:
    """A function with the types of its arguments, for one device."""

    #: The device holds nothing for it.
    resident = False

    def __init__(
        self,
        function: Callable[..., object],
        types: tuple[Hashable, ...],
        driver: Driver,
        launcher: SupportsHostFunction,
    ) -> None:
        from .launch import Launch  # imports greenlet, an extra
        from .launch_parameters import Constants

        self._function = function
        self._types = types
        self._driver = driver
        self._launcher = launcher
        self._launch = Launch
        self._constants: Constants = {}

    def launch(self, grid: Extent, block: Extent, shared_bytes: int, stream: int, arguments: Sequence[object]) -> None:
        """Enqueue it. What it reports is raised by the next call that waits for the stream, or launches on it.

        On a default stream that is this call: nobody has named a stream, and the report is worth most where the launch stands.

        Raises
        ------
        LayoutError
            Grid or block have no work-items, or are longer than GPUs take.
        BackendError
            An array is not in the device's memory.
        UnsupportedError
            It is a kernel that launches.
        SimulatorError
            The kernel has done wrong; or one before, on the same stream, of which nobody has been told.
        """
        if this_thread.item is not None:
            raise UnsupportedError("a kernel cannot launch another one: launch it from the host, behind this one")
        _check(grid, block, shared_bytes)
        ranges: list[tuple[int, int]] = []
        makers = [self._prepare(number, argument, ranges) for number, argument in enumerate(arguments)]
        run = self._launch(self._function, makers, grid, block, shared_bytes, current(), self._constants)
        if stream not in (LEGACY_STREAM, PER_THREAD_STREAM):
            self._launcher.launch_host_function(run, ranges, stream)
            return
        try:
            self._launcher.launch_host_function(run, ranges, stream)
            self._driver.stream_synchronize(stream)
        except BaseException as error:  # also where the wait did not begin: nothing of it runs behind an interrupt
            run.interrupt()
            if isinstance(error, SimulatorError):
                # It says itself where it was, and not how the streams came by it.
                raise error.with_traceback(None) from error.__cause__
            raise

    def close(self) -> None:
        """Do nothing: the device holds nothing for it."""

    def _prepare(self, number: int, argument: Any, ranges: list[tuple[int, int]]) -> Callable[[Sequence[int]], object]:
        """What makes the argument that the function sees, from the addresses of the ranges; its own is added to them."""
        kind = self._types[number] if number < len(self._types) else type_of(argument)
        if isinstance(kind, ScalarType | TupleType):
            value = kind.convert(argument)
            return lambda places: value
        if isinstance(argument, np.void):
            record = _record(np.array(argument.copy()))  # of a record, np.array() alone is a view
            return lambda places: record
        from .kernel_arrays import checked
        from .raw_arrays import over

        names = self._function.__code__.co_varnames
        space = f"array {names[number]!r}" if number < len(names) else "array"
        dtype, shape = argument.dtype, tuple(getattr(argument, "shape", ()))
        strides, readonly = tuple(getattr(argument, "strides", ())), _readonly(argument)
        low, high = span(shape, strides, dtype.itemsize)
        at = len(ranges)
        if high > low:
            ranges.append((argument.ptr + low, high - low))

        def view(places: Sequence[int]) -> object:
            data = over(places[at], low, shape, strides, dtype) if high > low else np.empty(shape, dtype)
            data.flags.writeable = not readonly
            if isinstance(kind, RecordType):
                return _record(data)
            return checked(data, space)

        return view


def _readonly(argument: Any) -> bool:
    return bool(getattr(argument, "readonly", False)) or getattr(
        getattr(argument, "allocation", None), "read_only", False
    )


def _record(array: Any) -> Any:
    """The one record of an array, in its memory, with its fields as attributes."""
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
