"""Copies of several runs of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ....spi.errors import DevmemError
from ....spi.types import Capability, CopyKind
from ...copy.statistics import begin

if TYPE_CHECKING:
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
    """Enqueue them: in one call of the driver, where it can. The device is entered.

    What holds the host's side (``keep``) lives until the stream has passed them. Those within the device, which gather what
    is copied on, are not counted.
    """
    driver, handle, began = opened.handle.driver, stream.handle, begin()
    running = False
    try:
        if opened.handle.has(Capability.BATCH_COPY) and len(sizes) > 1:
            running = driver.copy_batch(dsts, srcs, sizes, kind, handle)
            why = "one call of the driver for several copies"
        else:
            why = "the driver is called for each: it has no call for several copies"
            for to, source, nbytes in zip(dsts, srcs, sizes, strict=True):
                # To the host it is waited for: into pageable memory, which it goes to, most drivers wait anyway.
                running |= opened.copies.submitter.copy_run(
                    to, source, nbytes, kind, handle, blocking=kind is CopyKind.D2H
                )
    except BaseException:
        with suppress(DevmemError):  # some of it may be on its way, and the caller is about to let go of both sides
            driver.stream_synchronize(handle)
        raise
    if running:
        opened.completions.keep_until_complete(stream, *keep)
    if kind in _PATHS:
        opened.statistics.count(_PATHS[kind], sum(sizes), began, why=why, stream=stream)
