"""One value in every element of an array on a device."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spi.types import CopyKind
from ..base.address import address
from ..base.array_view import ArrayView
from ..base.layout import is_contiguous
from ..ordering.stream import Stream
from ..telemetry.copy_statistics import begin
from .engine import CopyEngine
from .host_copy import page_aligned_empty

#: Bytes of a pattern that are made on the host before doubling on the device begins.
PATTERN_BYTES = 4096


def fill_elements(
    engine: CopyEngine, dst: ArrayView[Any], item: npt.NDArray[Any], stream: Stream, blocking: bool
) -> None:
    """Store one value, an array without axes of the same dtype, in every element, and count it."""
    if not dst.nbytes:
        return
    began = begin()
    pattern = item.tobytes()
    layout = dst.shape, dst.strides, dst.itemsize
    # No generator: what an interrupt raises as one is closed is kept by the interpreter's hook, and so would the array be.
    if not is_contiguous(*layout, "C") and not is_contiguous(*layout, "F"):
        stream.check_not_recorded("to fill elements that do not lie side by side")
        plan = engine.upload_part(dst, np.broadcast_to(item, dst.shape), stream, blocking)
        engine.statistics.count("fill", dst.nbytes, began, None, plan.why, dst, stream, plan.rows)
        return
    width = _word_width(pattern)
    if width and dst._ptr % width == 0:
        word = int.from_bytes(pattern[:width], sys.byteorder)
        (stream.recorder or engine.handle.driver).fill(dst._ptr, word, width, dst.nbytes // width, stream.handle)
    else:
        if stream.recorder is not None:
            engine.device_side(dst, stream.recorder)  # it is copied to
        _by_doubling(engine, dst._ptr, pattern, dst.nbytes, stream)
    if blocking:
        engine.wait_for(stream)
    engine.statistics.count("fill", dst.nbytes, began, None, "one run of bytes", dst, stream)


def _by_doubling(engine: CopyEngine, ptr: int, pattern: bytes, nbytes: int, stream: Stream) -> None:
    """Fill with a pattern of any length: some of it from the host, then each copy doubles what is there."""
    repeats = max(1, min(PATTERN_BYTES, nbytes) // len(pattern))
    recorder, nbytes_of_first = stream.recorder, repeats * len(pattern)
    first = (
        page_aligned_empty((nbytes_of_first,), np.uint8) if recorder is None else recorder.page_locked(nbytes_of_first)
    )
    first[:] = np.frombuffer(pattern * repeats, np.uint8)
    copy = engine.submitter.copy
    with nullcontext() if recorder is None else recorder.reading(first):
        copy(ptr, address(first), first.nbytes, CopyKind.H2D, stream, host=first)
    done = first.nbytes
    while done < nbytes:
        step = min(done, nbytes - done)
        copy(ptr + done, ptr, step, CopyKind.D2D, stream)
        done += step


def _word_width(pattern: bytes) -> int:
    """Bytes of the smallest word that drivers fill with and that the pattern repeats; 0 if there is none."""
    for width in (1, 2, 4):
        if _repeats(pattern, width):
            return width
    return 0


def _repeats(pattern: bytes, width: int) -> bool:
    return len(pattern) % width == 0 and pattern == pattern[:width] * (len(pattern) // width)
