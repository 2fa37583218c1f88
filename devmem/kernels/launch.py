"""Launching: one kernel, one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .._core.arrays.ndarray import DeviceNDArray, DeviceRecord
from .._core.base.device_handle import CurrentDevice
from .._core.device.device import open_device_of
from .._core.lifetime.allocation import StreamUse
from .._core.ordering.stream import Stream
from ..spi.errors import BackendError, DevmemError, LayoutError, UnsupportedError
from ..spi.types import Capability, Extent
from .arguments import PLAIN, Brought, name_argument, of_two_devices
from .array_layout import arrangement
from .code import compiler_for, type_of
from .work_items import this_thread

if TYPE_CHECKING:
    from .._core.device.open_device import OpenDevice
    from .._core.lifetime.allocation import Allocation
    from .kernel import Kernel

_LEAST, _MOST = -(1 << 63), 1 << 63
#: Classes that need not be asked whether they are of arrays.
SCALARS = PLAIN | {int}
#: Bits of an address that are zero where any dtype is aligned.
ALIGNED = 15
#: What CUDA allows along the axes that its GPUs have less room for: blocks along y and z, threads along z.
FAR, DEEP = 65535, 64


class Launch:
    """A kernel with its grid; called with arguments, it is enqueued.

    The work is ordered on the stream that was named, else on the one that the arrays are bound to, else on the current or the
    default one. The call does not wait, and records the stream on every array: dropping one right after it is safe.
    Host arrays are uploaded before and copied back after it, on the same stream; with no stream named the call returns when they
    are back.
    """

    __slots__ = ("block", "grid", "kernel", "shared_bytes", "stream")

    def __init__(self, kernel: Kernel, grid: Extent, block: Extent, stream: Any, shared_bytes: int) -> None:
        self.kernel = kernel
        self.grid = grid
        self.block = block
        self.stream = stream
        self.shared_bytes = shared_bytes

    def __repr__(self) -> str:
        return f"<launch of {self.kernel} on {self.grid} blocks of {self.block} threads>"

    def __call__(self, /, *arguments: Any, **named: Any) -> None:
        """Launch it, with arguments by position or by name; those that have a default may be left out.

        Raises
        ------
        TypeError
            The arguments are too many or too few, or of types that the kernel does not take.
        LayoutError
            They are on two devices, or bound to two streams; or a host array that has to be copied back is read-only, or shares
            memory with another such.
        OverflowError
            A scalar is too large for its type.
        UnsupportedError
            No compiler can be used, or the driver launches nothing; or a graph is captured on the stream, and the kernel is not
            compiled yet, or is given host arrays.
        TransferGuardError
            A host array would be copied, which DEVMEM_TRANSFER_GUARD forbids. Nothing has moved.
        OutOfMemory, BackendError
            An upload, the launch or a copy back failed. What was uploaded for it is given back; host arrays are as they were if
            nothing was launched, else those whose copy back failed are.
        """
        if named or len(arguments) != len(self.kernel.parameters):
            arguments = self.kernel.bound(arguments, named)
        opened: OpenDevice | None = None
        bound: Stream | None = None
        allocations: list[Allocation] = []
        key: list[Any] = [None]
        # Device arrays and plain scalars are told from each other here; this is the path that has to be fast.
        for each in arguments:
            kind = type(each)
            if kind is DeviceNDArray or (kind not in SCALARS and issubclass(kind, DeviceNDArray)):
                allocation = each.allocation
                owner = each.open_device
                if allocation.freed or owner.handle.dead is not None:
                    self._refuse(arguments, each)
                if owner is not opened:
                    if opened is not None:
                        raise name_argument(of_two_devices(opened, each), self.kernel, _place(arguments, each))
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
                key.append(int if _LEAST <= each < _MOST else "unsigned")
            elif kind in PLAIN:
                key.append(kind)
            elif issubclass(kind, np.generic) and kind is not np.void:
                key.append(each.dtype)
            else:
                self._bring(arguments)
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
    ) -> None:
        stream = self._stream_of(opened, bound)
        key[0] = opened
        codes = self.kernel.codes
        found = codes.by_key.get(looked_up := tuple(key))
        driver = opened.handle.driver
        token = driver.enter()
        try:
            if found is None:
                found = codes.for_arguments(opened, looked_up, arguments, stream)
            if opened.handle.dropped or opened.completions.busy:
                opened.free_queue.safe_point()
            launch = found.compiled.launch
            for each in allocations:
                if each.home is not stream or stream.external:
                    break
            else:
                launch(self.grid, self.block, self.shared_bytes, stream.handle, arguments)
                return
            with StreamUse(stream, *allocations):
                launch(self.grid, self.block, self.shared_bytes, stream.handle, arguments)
        except (BackendError, OverflowError) as error:
            error.add_note(self._told())
            raise
        finally:
            if token is not None:
                driver.exit(token)

    def _bring(self, given: tuple[Any, ...]) -> None:
        """The launch of arguments that are not all arrays of ours and plain scalars."""
        check_on_host(self.kernel)
        brought = Brought(self.kernel, given)
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
            _check_not_captured(stream, opened)
            brought.bring(opened, stream)
            try:
                self._launch_brought(opened, brought, stream)
            except BaseException:
                brought.discard()
                raise
            try:
                # They are bound to the stream; it is named to those copies alone that nobody here waits for.
                brought.fetch(stream if self.stream else 0)
            finally:
                if not self.stream:
                    driver.stream_synchronize(stream.handle)
                    opened.completions.poll()

    def _launch_brought(self, opened: OpenDevice, brought: Brought, bound: Stream | None) -> None:
        key: list[Any] = [None]
        for place, each in enumerate(brought.arguments):
            key += _key(each) or ("type", type_of(compiler_for(opened), self.kernel, place, each))
        try:
            self._enqueue(opened, brought.seen(), [each.allocation for each in brought.arrays], key, bound)
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

    def _told(self) -> str:
        shared = f", each with {self.shared_bytes} bytes of dynamic shared memory" if self.shared_bytes else ""
        told = f"while launching {self.kernel} on {self.grid} blocks of {self.block} threads{shared}"
        if max(self.grid[1:]) > FAR or self.block[2] > DEEP:
            told += f": many GPUs take at most {FAR} blocks along y and z, and {DEEP} threads along z"
        return told

    def _refuse(self, arguments: tuple[Any, ...], array: DeviceNDArray[Any]) -> NoReturn:
        try:
            array.allocation.refuse()
        except DevmemError as error:
            name_argument(error, self.kernel, _place(arguments, array))
            raise

    def _own_open_device(self) -> OpenDevice:
        """The device of the stream, where one is named, else the current one."""
        return open_device_of(self.stream.device if isinstance(self.stream, Stream) else None)

    def _bound(self, before: Stream | None, array: DeviceNDArray[Any]) -> Stream | None:
        """The stream that the arrays are bound to; between two of them somebody has to choose."""
        if before is not None and not self.stream:
            raise LayoutError(
                f"the arguments of {self.kernel} are bound to two streams, {before!r} and {array._stream!r}: say which one "
                f"orders the launch, kernel[grid, block, stream]"
            )
        return array._stream


class Nothing:
    """A launch of no thread at all."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"<launch of {self.kernel} on no elements>"

    def __call__(self, /, *arguments: Any, **named: Any) -> None:
        """Do nothing; but a number of arguments that the kernel does not take is a TypeError here too."""
        self.kernel.bound(arguments, named)


def check_on_host(kernel: Kernel) -> None:
    """Refuse to be called by a kernel that runs in Python."""
    if this_thread.item is not None:
        raise UnsupportedError(
            f"{kernel} is called by a kernel, and kernels are launched by the host alone: make a device function of it, "
            f"@devmem.kernel(device=True), or launch it behind this one"
        )


def _place(arguments: tuple[Any, ...], argument: object) -> int:
    return next(place for place, each in enumerate(arguments) if each is argument)


def _order(array: DeviceNDArray[Any]) -> str:
    order, aligned = arrangement(array)
    return order if aligned else f"{order}, not aligned"


def _check_not_captured(stream: Stream, opened: OpenDevice) -> None:
    """Refuse host arrays where a graph would run again on memory that they had for one launch. The device is entered."""
    if Capability.CAPTURE in opened.handle.capabilities and opened.handle.driver.capturing(stream.handle):
        raise UnsupportedError(
            f"{stream!r} is capturing a graph, and host arrays are on the device for one launch alone: keep them there, "
            f"devmem.to_device(), before the capture begins"
        )


def _key(argument: Any) -> tuple[Any, ...]:
    """What decides on the code for an argument that is on the device; nothing of what the compiler has to be asked about."""
    if isinstance(argument, DeviceNDArray):
        order = "C" if argument._strides is None and not argument._ptr & ALIGNED else _order(argument)
        return argument._dtype, len(argument._shape), order, argument.allocation.read_only
    if isinstance(argument, DeviceRecord):
        return DeviceRecord, argument.dtype
    return ()
