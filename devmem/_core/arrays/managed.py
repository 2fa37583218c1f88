"""Managed arrays, and hints for them: where their pages are to be, and which of them are not needed any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...spi.errors import LayoutError
from ...spi.sizes import exact_size
from ...spi.types import LEGACY_STREAM, Capability, Place, PlaceKind
from ..base.address import extent
from ..base.advice import made_by
from ..base.arguments import integer_of
from ..base.device_handle import CurrentDevice
from ..device.device import DeviceLike, device_of
from ..interop.dlpack import CPU
from ..lifetime.allocation import Allocation, StreamUse
from ..ordering.event import StreamLike
from .host_visible import HostVisible

if TYPE_CHECKING:
    from ..device.open_device import OpenDevice
    from ..ordering.stream import Stream

WITHOUT = "leave it to the driver"


@made_by("managed_array(shape) and managed_array_like(x) make arrays in managed memory")
class ManagedNDArray(HostVisible):
    """An array with one address for host and device, moved or shared by the driver.

    Examples
    --------
    >>> a = dm.managed_array(3)
    >>> a[...] = 1
    >>> a.prefetch()
    """

    def _dlpack_device_of(self, allocation: Allocation) -> tuple[int, int]:
        opened = self._open_device
        kind = opened.handle.info.exchange.managed_type
        return kind, 0 if kind == CPU else opened.handle.info.ordinal

    def prefetch(
        self,
        to_host: bool = False,
        stream: StreamLike = 0,
        *,
        device: DeviceLike = None,
        numa_node: int | None = None,
        discard: bool = False,
    ) -> None:
        """Move the pages to the device ahead of use, ordered on the stream. A hint.

        With ``to_host`` they are moved to the host, with ``numa_node`` to one NUMA node of it, with ``device`` to another device
        of the backend. `devmem.prefetch_managed` does that for many arrays at once, and says what ``discard`` is.

        Raises
        ------
        UnsupportedError
            The device has no managed memory that moves, or not to that place.
        """
        prefetch([self], to_host, stream, device, numa_node, discard)

    def discard(self, stream: StreamLike = 0) -> None:
        """Say that the elements are not needed any more, in stream order; see `devmem.discard_managed`."""
        discard([self], stream)

    def advise(
        self, advice: str, to_host: bool = False, *, device: DeviceLike = None, numa_node: int | None = None
    ) -> None:
        """Tell the driver how the pages will be used.

        ``advice`` is ``set_`` or ``unset_`` followed by ``read_mostly``, ``preferred_location`` or ``accessed_by``; of the last
        two, the place is what `prefetch` has.
        """
        words = [a + b for a in ("set_", "unset_") for b in ("read_mostly", "preferred_location", "accessed_by")]
        if advice not in words:
            raise LayoutError(f"advice is one of {', '.join(words)}, not {advice!r}")
        for opened, [(ptr, nbytes)], _ in _by_device([self], False):
            opened.handle.require(Capability.MANAGED, "advise on managed memory", WITHOUT)
            to = _place_of(opened, to_host, device, numa_node)
            with CurrentDevice(opened.handle) as driver:
                if to.kind is PlaceKind.HOST or to == Place(PlaceKind.DEVICE, opened.handle.info.ordinal):
                    driver.advise(ptr, nbytes, advice, to.kind is PlaceKind.HOST)
                else:
                    opened.handle.require(Capability.MANAGED_PLACES, f"advise for {to.kind} {to.number}", WITHOUT)
                    driver.advise_for(ptr, nbytes, advice, to)


def prefetch(
    arrays: Iterable[ManagedNDArray],
    to_host: bool,
    stream: StreamLike,
    device: object,
    numa_node: object,
    discard: bool,
) -> None:
    """Move pages ahead of use; see `devmem.prefetch_managed`."""
    for opened, ranges, owners in _by_device(arrays, discard):
        opened.handle.require(Capability.MANAGED, "prefetch managed memory", WITHOUT)
        to, chosen = _place_of(opened, to_host, device, numa_node), opened.streams.stream_of(stream)
        chosen.check_not_recorded("to prefetch managed memory")
        plain = to.kind is PlaceKind.HOST or to == Place(PlaceKind.DEVICE, opened.handle.info.ordinal)
        each = plain and not discard and (len(ranges) == 1 or not opened.handle.has(Capability.MANAGED_PLACES))
        if not each:
            opened.handle.require(
                Capability.MANAGED_PLACES, f"prefetch managed memory to {to.kind} {to.number}", WITHOUT
            )
        with CurrentDevice(opened.handle) as driver:
            chosen.check_not_captured("a prefetch of managed memory")
            with StreamUse(chosen, *owners):
                if each:
                    for ptr, nbytes in ranges:
                        driver.prefetch(ptr, nbytes, to.kind is PlaceKind.HOST, chosen.handle)
                    continue
                ptrs, sizes = zip(*ranges, strict=True)
                _on_created(opened, chosen, lambda on: driver.prefetch_to(ptrs, sizes, to, on, discard=discard))  # noqa: B023


def discard(arrays: Iterable[ManagedNDArray], stream: StreamLike) -> None:
    """Give up contents; see `devmem.discard_managed`."""
    for opened, ranges, owners in _by_device(arrays, True):
        opened.handle.require(Capability.MANAGED_PLACES, "discard managed memory", WITHOUT)
        chosen = opened.streams.stream_of(stream)
        chosen.check_not_recorded("to discard managed memory")
        ptrs, sizes = zip(*ranges, strict=True)
        with CurrentDevice(opened.handle) as driver:
            chosen.check_not_captured("managed memory that is discarded")
            with StreamUse(chosen, *owners):
                _on_created(opened, chosen, lambda on: driver.discard(ptrs, sizes, on))  # noqa: B023


def _place_of(opened: OpenDevice, to_host: bool, device: object, numa_node: object) -> Place:
    """The place that arguments name: a NUMA node, a device, the host, or else the arrays' own device."""
    if device is not None and (to_host or numa_node is not None):
        raise LayoutError("pages are moved to one place: give device=, or to_host=True with or without numa_node=")
    if numa_node is not None:
        node = integer_of(numa_node, "numa_node= is the number of a NUMA node, an integer")
        if not 0 <= node < 1 << 31:
            raise LayoutError(f"numa_node={node} is no NUMA node: they are counted from 0")
        return Place(PlaceKind.NUMA_NODE, node)
    if device is None:
        return Place(PlaceKind.HOST) if to_host else Place(PlaceKind.DEVICE, opened.handle.info.ordinal)
    other = device_of(device)
    if other.backend != opened.handle.info.backend:
        raise LayoutError(
            f"managed memory of {opened.device} cannot be moved to {other}, which is another backend's device"
        )
    return Place(PlaceKind.DEVICE, other.ordinal)


def _by_device(
    arrays: Iterable[ManagedNDArray], whole: bool
) -> list[tuple[OpenDevice, list[tuple[int, int]], list[Allocation]]]:
    """The ranges of arrays and what owns them, by device; of ``whole`` ones, every byte of a range is an element's."""
    found: dict[OpenDevice, tuple[list[tuple[int, int]], list[Allocation]]] = {}
    for array in arrays:
        owner, (low, high) = array._owner(), extent(array)
        if whole and high - low != array.nbytes:
            raise LayoutError(
                f"an array of {exact_size(array.nbytes)} spans {high - low}: the bytes between its elements would be discarded "
                f"too; give arrays without gaps"
            )
        if high > low:
            ranges, owners = found.setdefault(array._open_device, ([], []))
            ranges.append((low, high - low))
            owners.append(owner)
    return [(opened, *parts) for opened, parts in found.items()]


def _on_created(opened: OpenDevice, stream: Stream, call: Callable[[int], None]) -> None:
    """Call with the handle of a stream; for the legacy one, which drivers refuse, of one that two events order with it."""
    if stream.handle != LEGACY_STREAM:
        call(stream.handle)
        return
    side = opened.streams.side_stream().handle
    opened.completions.order(side, stream.handle)
    call(side)
    opened.completions.order(stream.handle, side)
