"""A strided copy as rows and slices, the way that drivers copy them, and the calls that it takes: stride algebra."""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

from ...spi.types import Box, Capability, CopyKind
from .device_handle import DeviceHandle
from .layout import Shape, contiguous_strides

_by_destination = itemgetter(1)
_D2D = CopyKind.D2D  # an enum's attribute takes as long as a call


class Slices(NamedTuple):
    """Arguments of a three-dimensional copy besides its rows: slices, pitches between them, and where each call begins."""

    depth: int
    dst_rows: int
    src_rows: int
    offsets: list[tuple[int, int]]


class Rows(NamedTuple):
    """A strided copy as a driver can do it: rows of ``width`` bytes, ``height`` of them a pitch apart, and that again at
    every offset of the ``outer`` axes (count, destination stride, source stride).
    """

    width: int
    height: int
    dst_pitch: int
    src_pitch: int
    outer: list[tuple[int, int, int]]
    dst_offset: int
    src_offset: int

    @property
    def calls(self) -> int:
        """The number of times that the rows are repeated: once for each offset of the outer axes."""
        found = 1
        for count, _, _ in self.outer:
            found *= count
        return found

    @property
    def is_run(self) -> bool:
        """Whether it is one run of bytes on both sides."""
        return self.height == 1 and not self.outer

    def slices(self) -> Slices | None:
        """The same with one outer axis done in the same call: one that lies whole pitches apart, on both sides."""
        for at in range(len(self.outer) - 1, -1, -1):
            count, dst, src = self.outer[at]
            dst_rows, dst_rest = divmod(dst, self.dst_pitch)
            src_rows, src_rest = divmod(src, self.src_pitch)
            if self.height > 1 and not dst_rest and not src_rest and min(dst_rows, src_rows) >= self.height:
                rest = self._replace(outer=[*self.outer[:at], *self.outer[at + 1 :]])
                return Slices(count, dst_rows, src_rows, rest.offsets())
        return None

    def boxes(self, dst: int, src: int) -> list[Box]:
        """The strided copies between these addresses: one for each call that they take."""
        slices = self.slices()
        if slices is None:
            slices = Slices(1, self.height, self.height, self.offsets())
        size = self.width, self.height, slices.depth
        return [
            Box(dst + to, self.dst_pitch, slices.dst_rows, src + origin, self.src_pitch, slices.src_rows, *size)
            for to, origin in slices.offsets
        ]

    def offsets(self) -> list[tuple[int, int]]:
        """(destination, source) offsets of every call."""
        found = [(self.dst_offset, self.src_offset)]
        for count, dst, src in self.outer:
            found = [(d + i * dst, s + i * src) for d, s in found for i in range(count)]
        return found


def rows(shape: Shape, itemsize: int, dst_strides: Shape, src_strides: Shape) -> Rows:
    """Break a copy between two layouts of one shape into as few two-dimensional copies as it can be.

    Source axes may have any stride (0 repeats, negative runs backwards); destination elements do not overlap.
    """
    dst_offset = src_offset = 0
    axes = []
    for count, dst, src in zip(shape, dst_strides, src_strides, strict=True):
        if count == 1:
            continue
        if dst < 0:  # walk the axis the other way, on both sides
            dst_offset += (count - 1) * dst
            src_offset += (count - 1) * src
            dst, src = -dst, -src
        axes.append((count, dst, src))
    axes.sort(key=_by_destination)
    width = itemsize
    while axes and axes[0][1] == width == axes[0][2]:
        width *= axes.pop(0)[0]
    axes = _merged(axes)
    best = None
    for axis in axes:
        if axis[1] >= width and axis[2] >= width and (best is None or axis > best):
            best = axis
    if best is None:
        return Rows(width, 1, width, width, axes[::-1], dst_offset, src_offset)
    axes.remove(best)
    return Rows(width, best[0], best[1], best[2], axes[::-1], dst_offset, src_offset)


def _merged(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join neighbouring axes that lie one inside the other on both sides; from the innermost out."""
    joined: list[tuple[int, int, int]] = []
    for count, dst, src in axes:
        if joined:
            inner, inner_dst, inner_src = joined[-1]
            if dst == inner * inner_dst and src == inner * inner_src:
                joined[-1] = (inner * count, inner_dst, inner_src)
                continue
        joined.append((count, dst, src))
    return joined


def unpacking_rows(shape: Shape, strides: Shape, itemsize: int) -> Rows:
    """The rows of a copy from one run of bytes to elements with these strides, which lie in memory in the order of the axes."""
    return rows(shape, itemsize, strides, contiguous_strides(shape, itemsize))


def calls(handle: DeviceHandle, rows: Rows, kind: CopyKind = CopyKind.H2D) -> int:
    """Driver calls that rows take on a device: between it and the host, either way, or on it."""
    if not is_pitched(handle, rows, kind):
        return rows.calls * rows.height
    slices = rows.slices()
    return rows.calls if slices is None else len(slices.offsets)


def is_pitched(handle: DeviceHandle, rows: Rows, kind: CopyKind = CopyKind.H2D) -> bool:
    """Whether the device copies these rows in one call, and better so than one by one."""
    info = handle.info
    multiple = 1 if kind is _D2D else info.strided_pitch_multiple
    return (
        Capability.STRIDED_COPY in handle.capabilities
        and not (rows.dst_pitch % multiple or rows.src_pitch % multiple)
        and max(rows.dst_pitch, rows.src_pitch) <= info.max_pitch
    )
