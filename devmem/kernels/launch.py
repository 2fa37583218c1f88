"""Launches: a kernel with its grid, called with arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .._core.arrays.ndarray import DeviceNDArray, DeviceRecord
from .._core.base.device_handle import CurrentDevice
from .._core.device.device import open_device_of
from .._core.lifetime.allocation import StreamUse
from .._core.ordering.stream import Stream
from ..spi.errors import BackendError, DevmemError, LayoutError, UnsupportedError
from ..spi.sizes import exact_size
from ..spi.types import Extent
from .arguments import PLAIN_SCALARS, Declared, LaunchArguments, name_argument, two_devices_error
from .array_layout import order_and_alignment
from .code import CompiledCodes, compiler_for, type_of
from .functions import ConfiguredKernel, KernelFunction
from .work_items import this_thread

if TYPE_CHECKING:
    from .._core.device.open_device import OpenDevice
    from .._core.lifetime.allocation import Allocation

_INT64_MIN, _INT64_END = -(1 << 63), 1 << 63
#: Classes that are known not to be arrays.
SCALARS = PLAIN_SCALARS | {int}
#: Address bits that are zero where every dtype is aligned.
ALIGNED = 15
#: CUDA's limits for the shorter axes: blocks along y and z, threads along z.
MAX_BLOCKS_YZ, MAX_THREADS_Z = 65535, 64


class Launch(ConfiguredKernel):
    """A kernel with its grid; calling it with arguments enqueues it.

    The launch is ordered on the given stream, else on the stream that the arrays are bound to, else on the current or default
    stream. The call does not wait. It records the stream on every array, so an array may be dropped right after the call.
    Host arrays are uploaded before the kernel and copied back after it, on the same stream; without a given stream the call
    returns when they have been copied back.
    """

    __slots__ = ("block", "codes", "grid", "shared_bytes", "stream")

    def __init__(self, codes: CompiledCodes, grid: Extent, block: Extent, stream: Any, shared_bytes: int) -> None:
        super().__init__(codes.kernel)
        self.codes = codes
        self.grid = grid
        self.block = block
        self.stream = stream
        self.shared_bytes = shared_bytes

    def __repr__(self) -> str:
        return f"<launch of {self.kernel} on {self.grid} blocks of {self.block} threads>"

    def again(self) -> methodcaller:
        """Return what configures a kernel the same way; TypeError for a named stream, which other processes do not have."""
        if self.stream:
            raise TypeError(
                f"{self!r} cannot be pickled: it is on {self.stream!r}, which means something in this process only; "
                f"send the kernel, and write kernel[grid, block, stream] where it is launched"
            )
        return methodcaller("__getitem__", (self.grid, self.block, 0, self.shared_bytes))

    def __call__(self, /, *arguments: Any, **named: Any) -> None:
        """Launch the kernel, with arguments by position or by name; arguments with a default may be left out.

        Raises
        ------
        TypeError
            Too many or too few arguments, or types that the kernel does not take.
        LayoutError
            The arrays are on two devices, or bound to two streams; or a host array that has to be copied back is read-only, or
            shares memory with another such array.
        OverflowError
            A scalar is too large for its type.
        UnsupportedError
            No compiler is usable, or the driver cannot launch kernels; or the stream is capturing a graph, and the kernel is not
            compiled yet or gets host arrays.
        TransferGuardError
            DEVMEM_TRANSFER_GUARD forbids the copy of a host array. Nothing was copied.
        OutOfMemory, BackendError
            An upload, the launch or a copy back failed. Uploaded copies are freed. Host arrays are unchanged if nothing was
            launched; otherwise those whose copy back failed are unchanged.
        """
        if named or len(arguments) != len(self.kernel.parameters):
            arguments = self.kernel.bound(arguments, named)
        opened: OpenDevice | None = None
        bound: Stream | None = None
        allocations: list[Allocation] = []
        key: list[Any] = [None]
        # The fast path: device arrays and plain scalars only.
        for each in arguments:
            kind = type(each)
            if kind is DeviceNDArray or (kind not in SCALARS and issubclass(kind, DeviceNDArray)):
                allocation = each.allocation
                owner = each.open_device
                if allocation.freed or owner.handle.dead is not None:
                    self._refuse(arguments, each)
                if owner is not opened:
                    if opened is not None:
                        raise name_argument(two_devices_error(opened, each), self.kernel, _place(arguments, each))
                    opened = owner
                if each._stream is not None and each._stream is not bound:
                    bound = self._bound(bound, each)
                allocations.append(allocation)
                strides = each._strides
                key += (
                    each._dtype,
                    len(each._shape),
                    "C" if strides is None and not each._ptr & ALIGNED else _order(each),
                    allocation.read_only,
                )
            elif kind is int:
                key.append(int if _INT64_MIN <= each < _INT64_END else "unsigned")
            elif kind in PLAIN_SCALARS:
                key.append(kind)
            elif issubclass(kind, np.generic) and kind is not np.void:
                key.append(each.dtype)
            else:
                self._launch_mixed(arguments)
                return
        if opened is None:
            opened = self._own_open_device()
        self._enqueue(opened, arguments, allocations, key, bound)

    def _enqueue(
        self,
        opened: OpenDevice,
        arguments: Any,
        allocations: list[Allocation],
        key: list[Any],
        bound: Stream | None,
        declared: Sequence[Declared] = (),
    ) -> None:
        stream = self._stream_of(opened, bound)
        key[0] = opened
        codes = self.codes
        found = codes.by_key.get(looked_up := tuple(key))
        handle, me, token = opened.handle, get_ident(), None
        try:
            handle.callers.append(me)
            entry = handle.entry
            token = entry.enter()
            if found is None:
                found = codes.for_arguments(opened, looked_up, arguments, stream)
            if opened.handle.dropped or opened.completions.in_flight:
                opened.free_queue.free_if_due()
            launch = found.compiled.launch
            if declared:
                launch = _with_declared(launch, declared, handle.driver)
            if stream.recorder is not None:
                with StreamUse(stream, *allocations):
                    given = self.grid, self.block, self.shared_bytes
                    stream.recorder.launch(lambda on: launch(*given, on, arguments))
                return
            for each in allocations:
                if each.home is not stream or stream.external:
                    break
            else:
                launch(self.grid, self.block, self.shared_bytes, stream.handle, arguments)
                return
            with StreamUse(stream, *allocations):
                launch(self.grid, self.block, self.shared_bytes, stream.handle, arguments)
        except (BackendError, OverflowError) as error:
            error.add_note(self._described())
            raise
        finally:
            handle.callers.remove(me)
            if token is not None:
                entry.exit(token)

    def _launch_mixed(self, given: tuple[Any, ...]) -> None:
        """Launch with arguments that are not all device arrays of devmem and plain scalars."""
        check_on_host(self.kernel)
        brought = LaunchArguments(self.kernel, given)
        opened = brought.open_device or self._own_open_device()
        bound: Stream | None = None
        for array in brought.arrays:
            if array._stream is not None and array._stream is not bound:
                bound = self._bound(bound, array)
        if not brought.copies:
            self._launch_brought(opened, brought, bound)
            return
        compiler_for(opened)  # raises before anything moves
        stream = self._stream_of(opened, bound)
        with CurrentDevice(opened.handle) as driver:
            _check_not_captured(stream)
            brought.upload(opened, stream)
            try:
                self._launch_brought(opened, brought, stream)
            except BaseException:
                brought.discard()
                raise
            try:
                # The copies are bound to the stream. Naming it too makes copying back asynchronous, if the user gave a stream.
                brought.fetch(stream if self.stream else 0)
            finally:
                if not self.stream:
                    driver.stream_synchronize(stream.handle)
                    opened.completions.poll()

    def _launch_brought(self, opened: OpenDevice, brought: LaunchArguments, bound: Stream | None) -> None:
        key: list[Any] = [None]
        for place, each in enumerate(brought.arguments):
            key += _key(each) or ("type", type_of(compiler_for(opened), self.kernel, place, each))
        try:
            self._enqueue(
                opened,
                brought.for_compiler(),
                [each.allocation for each in brought.arrays],
                key,
                bound,
                brought.declared,
            )
        except BaseException:
            brought.launched(False)
            raise
        brought.launched(True)

    def _stream_of(self, opened: OpenDevice, bound: Stream | None) -> Stream:
        try:
            return opened.streams.stream_of(self.stream if self.stream or bound is None else bound)
        except DevmemError as error:
            if type(self.stream) is int:
                error.add_note(
                    f"the third of the brackets is the stream; bytes of dynamic shared memory are the fourth, "
                    f"kernel[grid, block, 0, {self.stream}]"
                )
            raise

    def _described(self) -> str:
        shared = f", each with {exact_size(self.shared_bytes)} of dynamic shared memory" if self.shared_bytes else ""
        text = f"while launching {self.kernel} on {self.grid} blocks of {self.block} threads{shared}"
        if max(self.grid[1:]) > MAX_BLOCKS_YZ or self.block[2] > MAX_THREADS_Z:
            text += (
                f": many GPUs take at most {MAX_BLOCKS_YZ} blocks along y and z, and {MAX_THREADS_Z} threads along z"
            )
        return text

    def _refuse(self, arguments: tuple[Any, ...], array: DeviceNDArray[Any]) -> NoReturn:
        try:
            array.allocation.refuse()
        except DevmemError as error:
            name_argument(error, self.kernel, _place(arguments, array))
            raise

    def _own_open_device(self) -> OpenDevice:
        """The device of the given stream, else the current device."""
        return open_device_of(self.stream.device if isinstance(self.stream, Stream) else None)

    def _bound(self, before: Stream | None, array: DeviceNDArray[Any]) -> Stream | None:
        """The stream of another bound array; LayoutError if that is a second stream and the caller has not given one."""
        if before is not None and not self.stream:
            raise LayoutError(
                f"the arguments of {self.kernel} are bound to two streams, {before!r} and {array._stream!r}: say which one "
                f"orders the launch, kernel[grid, block, stream]"
            )
        return array._stream


class EmptyLaunch(ConfiguredKernel):
    """A launch without threads."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<launch of {self.kernel} on no elements>"

    def again(self) -> methodcaller:
        """Return a callable that configures a kernel the same way."""
        return methodcaller("forall", 0)

    def __call__(self, /, *arguments: Any, **named: Any) -> None:
        """Do nothing, except raise TypeError for a wrong number of arguments."""
        self.kernel.bound(arguments, named)


def check_on_host(kernel: KernelFunction) -> None:
    """Raise UnsupportedError inside a kernel that runs in Python."""
    if this_thread.item is not None:
        raise UnsupportedError(
            f"{kernel} is called by a kernel, but only the host launches kernels: make it a device function, "
            f"@devmem.kernel(device=True), or launch it after this one"
        )


def _with_declared(launch: Callable[..., None], declared: Sequence[Declared], driver: object) -> Callable[..., None]:
    """The launch; where races are looked for, what its arrays were declared to be read and written for is looked at with it."""
    checked = getattr(driver, "run_declared", None)
    if checked is None:
        return launch
    whole = [(each, writes) for each, writes in declared if each.is_c_contiguous() or each.is_f_contiguous()]
    accesses = [(each.ptr, each.nbytes, writes, None) for each, writes in whole if each.nbytes]

    def run(grid: Extent, block: Extent, shared_bytes: int, stream: int, arguments: Sequence[object]) -> None:
        checked(partial(launch, grid, block, shared_bytes, stream, arguments), stream, accesses)

    return run


def _place(arguments: tuple[Any, ...], argument: object) -> int:
    return next(place for place, each in enumerate(arguments) if each is argument)


def _order(array: DeviceNDArray[Any]) -> str:
    order, aligned = order_and_alignment(array)
    return order if aligned else f"{order}, not aligned"


def _check_not_captured(stream: Stream) -> None:
    """Refuse host arrays while a graph is captured: its replays would use memory of the first launch. The device is current."""
    if stream.is_capturing():
        raise UnsupportedError(
            f"{stream!r} is capturing a graph, and host arrays are copied to the device for a single launch: copy them with "
            f"devmem.to_device() before the capture begins"
        )


def _key(argument: Any) -> tuple[Any, ...]:
    """The part of the lookup key for an argument on the device; empty if the compiler has to determine its type."""
    if isinstance(argument, DeviceNDArray):
        order = "C" if argument._strides is None and not argument._ptr & ALIGNED else _order(argument)
        return argument._dtype, len(argument._shape), order, argument.allocation.read_only
    if isinstance(argument, DeviceRecord):
        return DeviceRecord, argument.dtype
    return ()
