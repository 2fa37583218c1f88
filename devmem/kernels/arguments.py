"""The arguments of a launch: host arrays, arrays of other libraries and SmartArrays are converted to device arrays."""

from __future__ import annotations

import operator
import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from .._core.arrays.creation import empty, upload
from .._core.arrays.ndarray import DeviceNDArray, DeviceRecord, device_view
from .._core.base.address import address
from .._core.base.arguments import check_destination
from .._core.base.call_site import caller_level
from .._core.base.transfer_guard import guard
from .._core.interop.host_objects import host_array
from .._core.smart import SmartArray
from ..spi.errors import DevmemError, DevmemWarning, LayoutError
from ..toolkit.deferred_errors import FirstError
from .code import argument
from .functions import KernelFunction
from .read_only import only_read
from .tuples import tuple_like

if TYPE_CHECKING:
    import numpy.typing as npt

    from .._core.device.open_device import OpenDevice

#: Scalars whose class alone determines the compiled code.
PLAIN_SCALARS = frozenset({bool, float, complex})

E = TypeVar("E", bound=Exception)
#: A device array that was given as `In`, `Out` or `InOut`, and whether the kernel writes it.
Declared: TypeAlias = "tuple[DeviceNDArray[Any], bool]"

_warned_sites: set[tuple[str, int]] = set()


class Hint:
    """An argument with the directions in which it is copied."""

    __slots__ = ("value",)

    upload = True
    download = True

    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if isinstance(value, Hint) else value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.value).__name__})"


class In(Hint):
    """A host array that a kernel only reads: it is uploaded before the launch, and not copied back. It may be read-only.

    Writes of a kernel to it are lost; the simulator reports them.

    Examples
    --------
    >>> @dm.kernel
    ... def double(x, y):
    ...     i = dm.grid(1)
    ...     if i < x.size:
    ...         y[i] = 2 * x[i]
    >>> x, y = np.arange(3), np.empty(3, np.int64)
    >>> double.forall(3)(dm.In(x), dm.Out(y))
    >>> y
    array([0, 2, 4])
    """

    __slots__ = ()
    download = False


class Out(Hint):
    """A host array that a kernel writes in full: it is copied back after the launch, and not uploaded before.

    A SmartArray's device side is not updated before, and its host side stays the newest if the launch fails.

    Examples
    --------
    >>> @dm.kernel
    ... def count(y):
    ...     i = dm.grid(1)
    ...     if i < y.size:
    ...         y[i] = i
    >>> y = np.empty(3, np.int64)
    >>> count.forall(3)(dm.Out(y))
    >>> y
    array([0, 1, 2])
    """

    __slots__ = ()
    upload = False


class InOut(Hint):
    """A host array that a kernel reads and writes: uploaded before the launch, copied back after, without a warning.

    Examples
    --------
    >>> @dm.kernel
    ... def double(x):
    ...     i = dm.grid(1)
    ...     if i < x.size:
    ...         x[i] *= 2
    >>> x = np.arange(3)
    >>> double.forall(3)(dm.InOut(x))
    >>> x
    array([0, 2, 4])
    """

    __slots__ = ()


class LaunchArguments:
    """The arguments of one launch as the compiler sees them, with the copies that have to be made before and after.

    The constructor only checks: nothing was copied if it raises. `upload` copies host arrays to the device, `fetch` copies back.
    """

    __slots__ = (
        "arguments",
        "arrays",
        "copies",
        "declared",
        "implicit",
        "kernel",
        "only_read",
        "open_device",
        "overwritten",
        "smart",
    )

    def __init__(self, kernel: KernelFunction, given: tuple[Any, ...]) -> None:
        self.kernel = kernel
        self.arguments: list[Any] = []
        #: All device arrays of the launch.
        self.arrays: list[DeviceNDArray[Any]] = []
        self.declared: list[Declared] = []
        #: Host arrays by address and layout: an array that is given twice gets one device copy.
        self.copies: dict[tuple[Any, ...], HostArgument] = {}
        #: SmartArrays whose device side the kernel may write, and those that it overwrites in full.
        self.smart: list[SmartArray] = []
        self.overwritten: list[SmartArray] = []
        self.only_read = frozenset(place for place, each in enumerate(given) if isinstance(each, In))
        self.open_device: OpenDevice | None = None
        #: The first host array that is copied without a hint.
        self.implicit: HostArgument | None = None
        smart = []
        for place, each in enumerate(given):
            hint, value = (each, each.value) if isinstance(each, Hint) else (None, each)
            try:
                found = self._look(value, hint, place)
            except (DevmemError, TypeError) as error:
                name_argument(error, kernel, place)
                raise
            if isinstance(found, SmartArray):
                smart.append((_only_written(hint), place, found))
            self.arguments.append(found)
        self._check_overlaps()
        if self.implicit is not None:
            _report_implicit(self.implicit)
        # After all checks, as these may copy. Overwritten ones come last: nothing is then copied to them.
        for _, place, each in sorted(smart, key=operator.itemgetter(0)):
            try:
                self.arguments[place] = self._on_device(self._side(each, given[place]))
            except DevmemError as error:
                name_argument(error, kernel, place)
                raise

    def upload(self, opened: OpenDevice, stream: Any) -> None:
        """Upload the host arrays; if one upload fails, the memory of the others is freed."""
        try:
            for copy in self.copies.values():
                self.arrays.append(copy.to_device(opened, stream))
        except BaseException:
            self.discard()
            raise
        self.arguments = [_on_device(each) for each in self.arguments]

    def for_compiler(self) -> tuple[Any, ...]:
        """The arguments as the compiler sees them, once all are on the device."""
        return tuple(only_read(each) if place in self.only_read else each for place, each in enumerate(self.arguments))

    def launched(self, enqueued: bool) -> None:
        """Mark the device side of SmartArrays as changed; if the launch was enqueued, `overwritten` ones as written in full."""
        if enqueued:
            for each in self.overwritten:
                each._gpu_overwritten()
        for each in self.smart:
            each.gpu_changed()

    def fetch(self, stream: Any) -> None:
        """Copy all results back, then raise the first error of these copies.

        With a stream, the copies may still run on return.
        """
        with FirstError() as first:
            for copy in self.copies.values():
                try:
                    copy.fetch(stream)
                except DevmemError as error:
                    first.put(error)
            self.discard()

    def discard(self) -> None:
        """Free the memory of the uploads, after the work that uses it."""
        for copy in self.copies.values():
            if copy.array is not None:
                copy.array.allocation.discard()

    def _look(self, value: Any, hint: Hint | None, place: int) -> Any:
        if isinstance(value, SmartArray):
            return value
        if isinstance(value, DeviceRecord):
            self._on_device(value.__devmem_view__())
            return value
        if isinstance(value, np.void) and value.dtype.fields is not None:
            return self._copy(value, hint, place)
        if isinstance(value, np.generic | bool | int | float | complex) and hint is None:
            return value
        if isinstance(value, tuple) and hint is None:
            items = [self._look(each, None, place) for each in value]
            if any(isinstance(each, SmartArray) for each in items):
                raise TypeError("a tuple with a SmartArray is no argument for a kernel: pass that by itself")
            return value if all(map(operator.is_, items, value)) else tuple_like(value, items)
        view = device_view(value)
        if view is not None:
            if hint is not None:
                self.declared.append((view, hint.download))
            return self._on_device(view)
        if not isinstance(value, np.ndarray):
            if hint is None:
                return value  # the compiler accepts or refuses it
            raise TypeError(
                f"devmem.{type(hint).__name__}() takes an array, not a {type(value).__name__}: pass numbers without it, and "
                f"lists as arrays, numpy.asarray(...)"
            )
        return self._copy(value, hint, place)

    def _side(self, smart: SmartArray, hint: object) -> DeviceNDArray[Any]:
        """The device side of a SmartArray, up to date unless the hint says that it is overwritten."""
        if not isinstance(hint, Hint) or hint.download:
            unread = smart._gpu_unread() if _only_written(hint) else None
            if unread is not None:
                self.overwritten.append(smart)
                return unread
            self.smart.append(smart)
        return smart.gpu()

    def _on_device(self, array: DeviceNDArray[Any]) -> DeviceNDArray[Any]:
        array.allocation.check()
        if self.open_device is None:
            self.open_device = array.open_device
        elif array.open_device is not self.open_device:
            raise two_devices_error(self.open_device, array)
        self.arrays.append(array)
        return array

    def _copy(self, value: Any, hint: Hint | None, place: int) -> HostArgument:
        copy = HostArgument(value, self.kernel, place)
        copy = self.copies.setdefault(copy.memory(), copy)
        copy.want(hint)
        if hint is None and self.implicit is None:
            self.implicit = copy
        return copy

    def _check_overlaps(self) -> None:
        """Refuse host arrays that share memory and would both be copied back: one copy would overwrite the other's results."""
        back = [copy for copy in self.copies.values() if copy.download]
        for at, copy in enumerate(back):
            for other in back[:at]:
                if np.may_share_memory(copy.host, other.host) and np.shares_memory(copy.host, other.host):
                    raise LayoutError(
                        f"{other} and {copy} share memory, and both would be copied back, one over the other: pass the one that "
                        f"is only read as devmem.In(), or the whole array once"
                    )


class HostArgument:
    """A host array, or a record, with its copy on the device for one launch."""

    __slots__ = ("array", "download", "host", "kernel", "place", "upload", "value")

    def __init__(self, value: Any, kernel: KernelFunction, place: int) -> None:
        self.value = value
        self.kernel = kernel
        self.place = place
        self.host: npt.NDArray[Any] = host_array(value)
        self.upload = self.download = False
        self.array: DeviceNDArray[Any] | None = None

    def __str__(self) -> str:
        return f"{argument(self.kernel, self.place)}, {self.what()}"

    def what(self) -> str:
        """A description for messages, without the argument's position."""
        return f"a host array of shape {self.host.shape} and dtype {self.host.dtype}"

    def memory(self) -> tuple[Any, ...]:
        """A key that is equal for two arguments which are the same array."""
        host = self.host
        return address(host), host.shape, host.strides, host.dtype, isinstance(self.value, np.void)

    def want(self, hint: Hint | None) -> None:
        """Add the directions of a hint; raise if the array cannot be copied back."""
        self.upload |= hint is None or hint.upload
        if hint is not None and not hint.download:
            return
        self.download = True
        if not (self.value if isinstance(self.value, np.void) else self.host).flags.writeable:
            if hint is None:
                advice = "pass devmem.In(array) to a kernel that only reads it, or a writable array"
            else:
                advice = f"devmem.{type(hint).__name__}() needs a writable array; devmem.In() is for arrays that are only read"
            raise LayoutError(f"{self.what()} is read-only, and would have to be copied back: {advice}")
        if isinstance(self.value, np.ndarray):
            check_destination(self.value, self.host.shape, self.host.dtype, self.what())

    def to_device(self, opened: OpenDevice, stream: Any) -> DeviceNDArray[Any]:
        """Make the device array, uploaded if the kernel reads it."""
        host = self.host
        if self.upload:
            self.array = upload(opened, host, stream, True)
        else:
            only_f = host.flags.f_contiguous and not host.flags.c_contiguous
            strides = host.strides if only_f else None
            self.array = empty(opened, host.shape, host.dtype, strides, host.nbytes, stream)
        return self.array

    def argument(self) -> Any:
        """The argument of the kernel."""
        assert self.array is not None
        return DeviceRecord(self.array) if isinstance(self.value, np.void) else self.array

    def fetch(self, stream: Any) -> None:
        """Copy the elements back, unless the kernel only reads them."""
        if not self.download:
            return
        assert self.array is not None
        if isinstance(self.value, np.void):
            found = self.array.copy_to_host()[()]
            for name in self.host.dtype.names or ():
                self.value[name] = found[name]
        else:
            self.array.copy_to_host(self.host, stream)


def name_argument(error: E, kernel: KernelFunction, place: int) -> E:
    """Prefix an error's message with the argument of the launch that it concerns."""
    error.args = f"{argument(kernel, place)}: {error}", *error.args[1:]
    return error


def two_devices_error(opened: OpenDevice, array: DeviceNDArray[Any]) -> LayoutError:
    """The error for arrays of two devices in one launch."""
    return LayoutError(
        f"a kernel runs on one device, and this array is on {array.device}, those before it on {opened.device}: copy it "
        f"there, devmem.to_device(array, device={str(opened.device)!r})"
    )


def _on_device(found: Any) -> Any:
    """An argument once host arrays are uploaded; those in tuples, too."""
    if isinstance(found, HostArgument):
        return found.argument()
    if isinstance(found, tuple):
        return tuple_like(found, [_on_device(each) for each in found])
    return found


def _only_written(given: object) -> bool:
    return isinstance(given, Hint) and not given.upload


def _report_implicit(copy: HostArgument) -> None:
    """Apply DEVMEM_TRANSFER_GUARD to an implicit copy, then warn of it: devmem once per place in the program."""
    guard(f"a kernel launch ({copy})")
    if copy.kernel.warn_of_copy is not None:
        copy.kernel.warn_of_copy(argument(copy.kernel, copy.place))
        return
    level = caller_level()
    frame = sys._getframe(level - 1)
    site = frame.f_code.co_filename, frame.f_lineno
    if site in _warned_sites:
        return
    _warned_sites.add(site)
    warnings.warn(
        f"{copy} is uploaded before this launch and copied back after it, at every launch: keep it on the device with "
        f"devmem.to_device(), or choose the directions with devmem.In, Out or InOut",
        DevmemWarning,
        stacklevel=level,
    )
