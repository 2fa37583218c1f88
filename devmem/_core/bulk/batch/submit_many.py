"""Copies of several runs of bytes, or of rows, in one call of the driver where it has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ....spi.errors import DevmemError, UnsupportedError
from ....spi.types import LEGACY_STREAM, Box, CopyKind
from ...device.open_device import OpenDevice
from ...ordering.stream import Stream
from ...telemetry.copy_statistics import begin

NO_CALL = "the driver is called for each: it has no call for several copies, or a slower one"
#: Drivers refuse several copies in one call on the legacy stream: a stream of devmem's takes them, ordered by two events. From so
#: many copies on that takes no longer than a call for each, over both emulated drivers in null mode.
WORTH_ORDERING = 8
_PATHS = {CopyKind.H2D: "h2d batch", CopyKind.D2H: "d2h batch"}


def copy_many(
    opened: OpenDevice,
    dsts: list[int],
    srcs: list[int],
    sizes: list[int],
    kind: CopyKind,
    stream: Stream,
    keep: Sequence[object] = (),
) -> None:
    """Enqueue the copies, and count them unless they are on the device alone; the device is entered.

    ``keep`` holds the host's side, and lives until the stream has completed the copies.
    """

    def together(on: int) -> bool:
        return opened.handle.driver.copy_batch(dsts, srcs, sizes, kind, on)

    def each() -> bool:
        copy, running = opened.copies.submitter.copy, False
        for dst, src, nbytes in zip(dsts, srcs, sizes, strict=True):
            running |= copy(dst, src, nbytes, kind, stream)
        return running

    _enqueue(opened, "batches", len(sizes), sum(sizes), together, each, kind, stream, keep)


def copy_boxes(
    opened: OpenDevice, boxes: list[Box], kind: CopyKind, stream: Stream, keep: Sequence[object] = ()
) -> None:
    """The same for copies of rows and slices, on a device that takes several of them in one call."""

    def together(on: int) -> bool:
        return opened.handle.driver.copy_3d_batch(boxes, kind, on)

    def each() -> bool:
        copy, running = opened.handle.driver.copy_strided, False
        for box in boxes:
            running |= copy(box, kind, stream.handle, blocking=False)
        return running

    _enqueue(opened, "volume_batches", len(boxes), sum(box.nbytes for box in boxes), together, each, kind, stream, keep)


def _enqueue(
    opened: OpenDevice,
    call: str,
    count: int,
    nbytes: int,
    together: Callable[[int], bool],
    each: Callable[[], bool],
    kind: CopyKind,
    stream: Stream,
    keep: Sequence[object],
) -> None:
    """Call the driver once, on a stream by its handle, or for each copy.

    ``call`` is the fact of the copy engine that says whether the driver has the one call; it is unset where it turns out not to.
    """
    driver, handle, began = opened.handle.driver, stream.handle, begin()
    running, on = False, handle
    try:
        batched, why = _in_one_call(getattr(opened.copies, call), count, stream)
        if batched:
            try:
                if handle == LEGACY_STREAM:
                    on = opened.streams.side_stream().handle
                    opened.completions.order(on, handle)
                running = together(on)
                if on != handle:
                    opened.completions.order(handle, on)
            except UnsupportedError:
                batched, why = False, NO_CALL
                setattr(opened.copies, call, False)
        if not batched:
            running = each()
        opened.completions.keep_host_side(running, stream, *keep)
    except BaseException:
        with suppress(DevmemError):
            stream.check_waitable()
            for one in {on, handle}:  # some of it may be on its way, and the caller is about to let go of both sides
                with suppress(DevmemError):
                    driver.stream_synchronize(one)
        raise
    if kind in _PATHS:
        opened.statistics.count(_PATHS[kind], nbytes, began, why=why, stream=stream)


def _in_one_call(there: bool, count: int, stream: Stream) -> tuple[bool, str]:
    """Whether the driver's call for several copies serves, if it is there, and why or why not, for the trace."""
    if not there:
        return False, NO_CALL
    if count == 1:
        return False, "there is one copy to make"
    if stream.is_capturing():
        return False, "the driver is called for each: a graph that is captured has single copies"
    if stream.handle != LEGACY_STREAM:
        return True, "one call of the driver for several copies"
    if count < WORTH_ORDERING:
        return False, f"the driver is called for each: fewer than {WORTH_ORDERING} copies, on the legacy stream"
    return (
        True,
        "one call of the driver for several copies, on a stream that is ordered with the legacy one by two events",
    )
