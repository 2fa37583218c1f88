"""Host memory that copies can read and write directly: pinned, mapped, managed, registered."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.arrays.creation import host_visible, like
from .._core.arrays.host_visible import MappedNDArray
from .._core.arrays.managed import ManagedNDArray
from .._core.arrays.mapping import Mapping
from .._core.arrays.ndarray import ArrayLike
from .._core.arrays.pinned import PinnedNDArray
from .._core.base.argument_types import ShapeLike, StridesLike
from .._core.base.arguments import alloc_flags, is_named, layout_of
from .._core.base.device_handle import CurrentDevice
from .._core.device.device import current_open_device
from .._core.interop.host_objects import pinnable
from .._core.lifetime.registration import Registration
from .._core.ordering.event import StreamLike
from ..spi.types import AllocFlags, MemoryKind


def pinned_array(
    shape: ShapeLike,
    dtype: npt.DTypeLike = np.float64,
    strides: StridesLike | None = None,
    order: str = "C",
    *,
    portable: bool = False,
    wc: bool = False,
    coherence: str = "fine",
) -> PinnedNDArray:
    """Allocate an uninitialised ndarray in page-locked memory, which copies reach directly and asynchronously.

    Parameters
    ----------
    shape, dtype, strides, order
        As for `device_array`.
    portable : bool
        Page-locked for every device, not only the current one.
    wc : bool
        Write-combined: faster for the device to read, very slow for the host to read.
    coherence : {'fine', 'coarse'}
        On AMD, whether device and host see each other's writes while work runs, or only at synchronisation. Elsewhere ignored.

    Returns
    -------
    PinnedNDArray
        An ndarray; its memory is given back when the last view of it is dropped, after copies that use it.

    Examples
    --------
    >>> a = dm.pinned_array(3)
    >>> a[...] = 1                              # an ndarray
    >>> dm.to_device(a).copy_to_host()
    array([1., 1., 1.])
    """
    lengths, kind, steps, nbytes = layout_of(shape, dtype, strides, order)
    flags = alloc_flags(portable, wc, coherence)
    array = host_visible(current_open_device(), MemoryKind.PINNED, lengths, kind, steps, nbytes, flags)
    assert isinstance(array, PinnedNDArray)
    return array


def pinned_array_like(
    ary: ArrayLike, *, portable: bool = False, wc: bool = False, coherence: str = "fine"
) -> PinnedNDArray:
    """Allocate a `pinned_array` with the shape, dtype and order of axes of an array.

    Examples
    --------
    >>> dm.pinned_array_like(np.zeros((2, 3), "f4")).shape
    (2, 3)
    """
    shape, dtype, strides, nbytes = like(ary)
    flags = alloc_flags(portable, wc, coherence)
    array = host_visible(current_open_device(), MemoryKind.PINNED, shape, dtype, strides, nbytes, flags)
    assert isinstance(array, PinnedNDArray)
    return array


def mapped_array(
    shape: ShapeLike,
    dtype: npt.DTypeLike = np.float64,
    strides: StridesLike | None = None,
    order: str = "C",
    stream: StreamLike = 0,
    portable: bool = False,
    wc: bool = False,
    *,
    coherence: str = "fine",
) -> MappedNDArray:
    """Allocate an uninitialised ndarray in page-locked memory that the device reads and writes in place.

    ``portable``, ``wc`` and ``coherence`` as for `pinned_array`; ``stream`` is where copies through the array's own methods are
    ordered.

    Returns
    -------
    MappedNDArray
        An ndarray; ``.ptr`` is the device's address, right in every slice.

    Examples
    --------
    >>> a = dm.mapped_array(3)
    >>> a[...] = 1                              # the device sees it at a.ptr
    >>> dm.as_device_array(a).copy_to_host()
    array([1., 1., 1.])
    """
    lengths, kind, steps, nbytes = layout_of(shape, dtype, strides, order)
    return _mapped(lengths, kind, steps, nbytes, stream, alloc_flags(portable, wc, coherence))


def mapped_array_like(
    ary: ArrayLike, stream: StreamLike = 0, portable: bool = False, wc: bool = False, *, coherence: str = "fine"
) -> MappedNDArray:
    """Allocate a `mapped_array` with the shape, dtype and order of axes of an array.

    Examples
    --------
    >>> dm.mapped_array_like(np.zeros((2, 3), "f4")).shape
    (2, 3)
    """
    shape, dtype, strides, nbytes = like(ary)
    return _mapped(shape, dtype, strides, nbytes, stream, alloc_flags(portable, wc, coherence))


def managed_array(
    shape: ShapeLike,
    dtype: npt.DTypeLike = np.float64,
    strides: StridesLike | None = None,
    order: str = "C",
    stream: StreamLike = 0,
    attach_global: bool = True,
) -> ManagedNDArray:
    """Allocate an uninitialised ndarray in managed memory: one address for host and device.

    ``attach_global=False`` attaches it to the host until work uses it. Synchronize before the host reads what the device wrote.

    Examples
    --------
    >>> a = dm.managed_array(3)
    >>> a[...] = 1
    >>> dm.as_device_array(a).copy_to_host()
    array([1., 1., 1.])
    """
    lengths, kind, steps, nbytes = layout_of(shape, dtype, strides, order)
    return _managed(lengths, kind, steps, nbytes, stream, attach_global)


def managed_array_like(ary: ArrayLike, stream: StreamLike = 0, attach_global: bool = True) -> ManagedNDArray:
    """Allocate a `managed_array` with the shape, dtype and order of axes of an array.

    Examples
    --------
    >>> dm.managed_array_like(np.zeros((2, 3), "f4")).shape
    (2, 3)
    """
    shape, dtype, strides, nbytes = like(ary)
    return _managed(shape, dtype, strides, nbytes, stream, attach_global)


def pinned(*arrays: npt.NDArray[Any]) -> Registration:
    """Page-lock ndarrays that exist, until the end of a ``with`` block.

    Leaving it waits for copies that use them, then unlocks at once. Arrays may overlap, or be pinned already: that is counted.

    Examples
    --------
    >>> a = np.arange(3.0)
    >>> with dm.pinned(a):
    ...     d = dm.to_device(a, stream=dm.Stream())    # reads the memory of a itself
    >>> d.copy_to_host()
    array([0., 1., 2.])
    """
    opened = current_open_device()
    return Registration(opened.handle, opened.page_locks, tuple(map(pinnable, arrays)), scoped=True)


def register(*arrays: npt.NDArray[Any]) -> Registration:
    """Page-lock ndarrays until `deregister`, or until the end of a ``with`` block.

    Counted: each array has to be deregistered as often as it was registered. The arrays are kept alive meanwhile.

    Raises
    ------
    UnsupportedError
        The device cannot page-lock memory that it did not allocate.
    BackendError
        The driver refused; none of the arrays is registered then.

    Examples
    --------
    >>> a = np.arange(3.0)
    >>> with dm.register(a):
    ...     dm.to_device(a).copy_to_host()
    array([0., 1., 2.])
    """
    opened = current_open_device()
    return Registration(opened.handle, opened.page_locks, tuple(map(pinnable, arrays)))


def deregister(*arrays: npt.NDArray[Any]) -> None:
    """Undo one `register` of each array, after the copies that use it.

    Raises
    ------
    DevmemError
        An array is not registered; nothing is touched.
    BackendError
        The wait failed, and nothing was touched; or the driver complained when it let go, which it has then done.

    Examples
    --------
    >>> a = np.arange(3.0)
    >>> registration = dm.register(a)
    >>> dm.deregister(a)
    """
    opened = current_open_device()
    checked = list(map(pinnable, arrays))
    with CurrentDevice(opened.handle):
        opened.page_locks.deregister(opened.handle, *checked)


def mapped(*arrays: npt.NDArray[Any], stream: StreamLike = 0) -> Mapping:
    """Let the device reach ndarrays that exist, in place, until the end of a ``with`` block.

    The block gets their device views: one array, or a list of several. At its end, after the work that uses them, they raise
    ClosedError.

    Examples
    --------
    >>> a = np.arange(3.0)
    >>> with dm.mapped(a) as d:
    ...     d[0] = 7                            # written in place
    >>> a
    array([7., 1., 2.])
    """
    opened = current_open_device()
    chosen = opened.streams.stream_of(stream) if is_named(stream) else None
    return Mapping(opened, tuple(map(pinnable, arrays)), chosen)


def _mapped(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...],
    nbytes: int,
    stream: StreamLike,
    flags: AllocFlags,
) -> MappedNDArray:
    opened = current_open_device()
    bound = opened.streams.stream_of(stream) if is_named(stream) else None
    array = host_visible(opened, MemoryKind.MAPPED, shape, dtype, strides, nbytes, flags, bound)
    assert isinstance(array, MappedNDArray)
    return array


def _managed(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    strides: tuple[int, ...],
    nbytes: int,
    stream: StreamLike,
    attach_global: bool,
) -> ManagedNDArray:
    opened = current_open_device()
    bound = opened.streams.stream_of(stream) if is_named(stream) else None
    flags = AllocFlags.NONE if attach_global else AllocFlags.ATTACH_HOST
    array = host_visible(opened, MemoryKind.MANAGED, shape, dtype, strides, nbytes, flags, bound)
    assert isinstance(array, ManagedNDArray)
    return array
