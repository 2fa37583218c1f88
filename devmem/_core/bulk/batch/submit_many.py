"""Copies of several runs of bytes, in one call of the driver where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ....spi.errors import DevmemError
from ....spi.types import Capability, CopyKind
from ...copy.statistics import begin
from ...device.open_device import OpenDevice
from ...ordering.stream import Stream

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
    driver, handle, began = opened.handle.driver, stream.handle, begin()
    running = False
    try:
        if opened.handle.has(Capability.BATCH_COPY) and len(sizes) > 1:
            running = driver.copy_batch(dsts, srcs, sizes, kind, handle)
            why = "one call of the driver for several copies"
        else:
            why = "the driver is called for each: it has no call for several copies"
            # A copy to the host is waited for: most drivers wait anyway where the destination is pageable memory.
            copy, blocking = opened.copies.submitter.copy_run, kind is CopyKind.D2H
            for dst, src, nbytes in zip(dsts, srcs, sizes, strict=True):
                running |= copy(dst, src, nbytes, kind, handle, blocking=blocking)
    except BaseException:
        with suppress(DevmemError):  # some of it may be on its way, and the caller is about to let go of both sides
            driver.stream_synchronize(handle)
        raise
    if running:
        opened.completions.keep_until_complete(stream, *keep)
    if kind in _PATHS:
        opened.statistics.count(_PATHS[kind], sum(sizes), began, why=why, stream=stream)
