"""Arrays with padded rows, and copies of rows of bytes that lie a pitch apart: what vendors call 2-D and 3-D memory.

Neither is a mechanism of its own. A pitched array is an array with strides; a pitched copy is a copy between views of bytes, of
shape (depth, height, width), which the copy engine hands to the driver's copies in two and three dimensions where it has them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...spi.errors import LayoutError
from ..arrays.creation import empty
from ..arrays.ndarray import DeviceNDArray, device_view
from ..base.arguments import integer_of, layout_of
from ..base.array_view import address_range
from ..base.layout import Shape
from ..device.open_device import OpenDevice
from ..interop.host_objects import host_array
from ..ordering.event import StreamLike

_BYTE = np.dtype(np.uint8)

#: Three integers as the caller gives them; None for a pitch and a number of rows that follow from the copy's own size.
Given = tuple[object, object, object]


class Rows(NamedTuple):
    """The rows of one side, in bytes: offset of the first row, pitch of the rows, pitch of the slices."""

    offset: int
    pitch: int
    slice_pitch: int


def pitched_array(
    opened: OpenDevice, shape: object, dtype: npt.DTypeLike, pitch: object, stream: StreamLike
) -> DeviceNDArray[Any]:
    """See `devmem.pitched_array`."""
    lengths, kind, _, nbytes = layout_of(shape, dtype, None, "C")
    if len(lengths) < 2:
        raise LayoutError(f"shape {lengths} has no rows to pad: pitched arrays have two axes or more")
    width = lengths[-1] * kind.itemsize
    step = -(-width // opened.handle.info.alignment) * opened.handle.info.alignment
    if pitch is not None:
        step = _integer("pitch", pitch)
        if step < width:
            raise LayoutError(f"pitch={step}: rows have {width} bytes, and begin at least as far apart")
    strides = [kind.itemsize]
    for length in reversed(lengths[1:]):
        strides.append(step if len(strides) == 1 else strides[-1] * length)
    lengths, kind, steps, nbytes = layout_of(lengths, kind, tuple(reversed(strides)), "C")
    return empty(opened, lengths, kind, steps, nbytes, stream)


def copy_pitched(dst: object, src: object, shape: Given, to: Given, origin: Given, stream: StreamLike) -> None:
    """See `devmem.copy_pitched`; ``shape`` is (depth, height, width), ``to`` and ``origin`` are (offset, pitch, rows)."""
    depth, height, width = (_integer(name, n) for name, n in zip(("depth", "height", "width"), shape, strict=True))
    extent = depth, height, width
    if min(extent) < 0:
        raise LayoutError(f"width={width}, height={height}, depth={depth}: none of them may be negative")
    target, source = device_view(dst), device_view(src)
    if target is None and source is None:
        raise TypeError("copy_pitched takes a device array on one side at least: between host arrays NumPy copies")
    there = _side("dst", dst, target, extent, to)
    here = _side("src", src, source, extent, origin)
    if isinstance(there, DeviceNDArray):
        there.put(here, stream)
    elif isinstance(here, DeviceNDArray):
        here.copy_to_host(there, stream)


def _side(
    name: str, given: object, view: DeviceNDArray[Any] | None, extent: Shape, where: Given
) -> DeviceNDArray[Any] | npt.NDArray[Any]:
    """The bytes of one side as an array of shape (depth, height, width)."""
    if view is not None:
        view.allocation.check()
        low, high = address_range(view)
        rows = _rows(name, high - low, extent, where)
        ptr, strides = low + rows.offset, (rows.slice_pitch, rows.pitch, 1)
        return view._view(ptr, extent, strides, _BYTE)
    if name == "dst" and not isinstance(given, np.ndarray):
        raise TypeError(f"dst must be a device array or an ndarray, not a {type(given).__name__}")
    host = host_array(given)
    if not host.flags.c_contiguous:
        raise LayoutError(
            f"{name}: a host array of strides {host.strides} has gaps of its own: give a C-contiguous one"
        )
    flat = host.reshape(-1).view(_BYTE) if host.nbytes else np.empty(0, _BYTE)
    rows = _rows(name, host.nbytes, extent, where)
    if name == "dst" and not host.flags.writeable:
        raise LayoutError("dst is read-only: give a writable array")
    if not min(extent):
        return np.empty(extent, _BYTE)
    return np.ndarray(extent, _BYTE, flat, rows.offset, (rows.slice_pitch, rows.pitch, 1))


def _rows(name: str, nbytes: int, extent: Shape, where: Given) -> Rows:
    """Return a side's rows; LayoutError where they overlap, or are not all within the side's bytes."""
    depth, height, width = extent
    offset = _integer(f"{name}_offset", where[0])
    pitch = width if where[1] is None else _integer(f"{name}_pitch", where[1])
    rows = height if where[2] is None else _integer(f"{name}_rows", where[2])
    if pitch < width or rows < height or offset < 0:
        raise LayoutError(
            f"{name}_offset={offset}, {name}_pitch={pitch}, {name}_rows={rows}: a pitch has at least the {width} bytes of a row, "
            f"a slice at least its {height} rows, and an offset is not negative"
        )
    end = offset + (depth - 1) * rows * pitch + (height - 1) * pitch + width if min(extent) else offset
    if end > nbytes:
        raise LayoutError(f"{name} has {nbytes} bytes, and the last row ends at byte {end}")
    return Rows(offset, pitch, rows * pitch)


def _integer(name: str, value: object) -> int:
    return integer_of(value, f"{name} is a number of bytes, rows or slices, an integer")
