"""Array layouts without memory: offsets, shapes and strides under slicing and reshaping."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Extent(NamedTuple):
    """The range of bytes of an array, relative to the array that it was cut from."""

    begin: int
    end: int


class Dim:
    """One axis: its range of bytes, its length and its stride; ``single`` if an index selected one element."""

    __slots__ = ("single", "size", "start", "stop", "stride")

    def __init__(self, start: int, stop: int, size: int, stride: int, single: bool) -> None:
        self.start = start
        self.stop = stop
        self.size = size
        self.stride = stride
        self.single = single
        assert not single or size == 1

    def __repr__(self) -> str:
        return f"Dim(start={self.start}, stop={self.stop}, size={self.size}, stride={self.stride})"

    def __getitem__(self, item: Any) -> Dim:
        if isinstance(item, slice):
            first, last, step = item.indices(self.size)
            size = len(range(first, last, step)) if self.stride else 1
            start = self.start + first * abs(self.stride)
            return Dim(start, self.start + last * abs(self.stride), size, step * self.stride, False)
        if not -self.size <= item < self.size:
            raise IndexError(f"index {item} is out of range for an axis of length {self.size}")
        start = self.start + (item % self.size) * self.stride
        return Dim(start, start + self.stride, 1, self.stride, True)

    def get_offset(self, idx: int) -> int:
        """The offset of an element of the axis."""
        return self.start + idx * self.stride

    def is_contiguous(self, itemsize: int) -> bool:
        """Whether its elements are contiguous."""
        return self.stride == itemsize


class Element:
    """A single element, the result of an index on every axis."""

    is_array = False

    def __init__(self, extent: Extent) -> None:
        self.extent = extent

    def iter_contiguous_extent(self) -> Iterator[Extent]:
        """The one range of bytes."""
        yield self.extent


class Array:
    """A layout: its axes, and the properties derived from them."""

    is_array = True

    def __init__(self, dims: Any, itemsize: int) -> None:
        self.dims: tuple[Dim, ...] = tuple(dims)
        self.itemsize = itemsize
        self.ndim = len(self.dims)
        self.shape: Shape = tuple(dim.size for dim in self.dims)
        self.strides: Shape = tuple(dim.stride for dim in self.dims)
        self.size = math.prod(self.shape)
        first = compute_index([0] * self.ndim, self.dims)
        last = compute_index([count - 1 for count in self.shape], self.dims) + itemsize
        self.extent = Extent(first, max(first, last))
        order = (self._is_packed(reversed(self.dims)), self._is_packed(self.dims))
        self.flags = {"C_CONTIGUOUS": order[0], "F_CONTIGUOUS": order[1]}

    @classmethod
    def from_desc(cls, offset: int, shape: Any, strides: Any, itemsize: int) -> Array:
        """A layout from the description of an array; ``offset`` is that of its first element."""
        dims = []
        for count, stride in zip(shape, strides, strict=True):
            if not isinstance(count, int | np.integer):
                raise TypeError("all elements of shape must be ints")
            count, stride = int(count), int(stride)
            dims.append(Dim(offset, offset + count * stride, count, stride, False))
            offset = 0  # only the first axis carries it
        return cls(dims, itemsize)

    def __repr__(self) -> str:
        return f"<Array dims={self.dims} itemsize={self.itemsize}>"

    def __getitem__(self, item: Any) -> Array | Element:
        parts = list(item) if isinstance(item, tuple) else [item]
        if len(parts) > self.ndim:
            raise IndexError(f"{len(parts) - self.ndim} extra indices given")
        parts += [slice(None)] * (self.ndim - len(parts))
        chosen = [dim[part] for dim, part in zip(self.dims, parts, strict=True)]
        kept = [dim for dim in chosen if not dim.single]
        begin = sum(dim.start for dim in chosen)
        if not kept:
            return Element(Extent(begin, begin + self.itemsize))
        dims = [Dim(dim.start, dim.stop, dim.size, dim.stride, False) for dim in kept]
        shift = begin - sum(dim.start for dim in dims)  # the offset from axes that an index removed
        dims[0].start, dims[0].stop = dims[0].start + shift, dims[0].stop + shift
        return Array(dims, self.itemsize)

    @property
    def is_c_contig(self) -> bool:
        """Whether the elements are contiguous in C order."""
        return self.flags["C_CONTIGUOUS"]

    @property
    def is_f_contig(self) -> bool:
        """Whether the elements are contiguous in Fortran order."""
        return self.flags["F_CONTIGUOUS"]

    def iter_contiguous_extent(self) -> Iterator[Any]:
        """The ranges of bytes that make up the elements: a single one, rows, or single elements."""
        if self.is_c_contig or self.is_f_contig:
            yield self.extent
            return
        at = 0 if self.dims[0].stride < self.dims[-1].stride else self.ndim - 1
        inner = self.dims[at]
        outer = self.dims[:at] + self.dims[at + 1 :]
        if inner.is_contiguous(self.itemsize):
            for indices in itertools.product(*(range(dim.size) for dim in outer)):
                begin = compute_index(indices, outer) + inner.start
                yield begin, begin + inner.size * self.itemsize
        else:
            for indices in itertools.product(*map(range, self.shape)):
                begin = compute_index(indices, self.dims)
                yield begin, begin + self.itemsize

    def reshape(self, *newdims: int, **kws: Any) -> tuple[Array, Any]:
        """The layout of the same elements in another shape, and their ranges of bytes.

        Raises
        ------
        NotImplementedError
            The shape requires a copy.
        ValueError
            Another number of elements, two unknown lengths, or an unknown order.
        """
        order = kws.pop("order", "C")
        if kws:
            raise TypeError(f"unknown keyword arguments {', '.join(kws)}")
        if order not in ("C", "F", "A"):
            raise ValueError("order not C|F|A")
        if tuple(newdims) == self.shape:
            return self, None
        shape = self.filled_in(newdims)
        order = ("F" if self.is_f_contig else "C") if order == "A" else order
        strides = self._strides_as(shape, order)
        found = self.from_desc(self.extent.begin, shape, strides, self.itemsize)
        return found, list(self.iter_contiguous_extent())

    def squeeze(self, axis: Any = None) -> tuple[Array, Any]:
        """The layout without axes of length one, all or some, and the elements' ranges of bytes."""
        if axis is None:
            gone = {at for at, count in enumerate(self.shape) if count == 1}
        else:
            gone = set(axis if isinstance(axis, tuple) else (axis,))
            if any(self.shape[at] != 1 for at in gone):
                raise ValueError("cannot squeeze out an axis whose length is not one")
        kept = [at for at in range(self.ndim) if at not in gone]
        shape, strides = [self.shape[at] for at in kept], [self.strides[at] for at in kept]
        found = self.from_desc(self.extent.begin, shape, strides, self.itemsize)
        return found, list(self.iter_contiguous_extent())

    def ravel(self, order: str = "C") -> tuple[Array, Any]:
        """The layout with a single axis, and the elements' ranges of bytes; NotImplementedError if it requires a copy."""
        if order not in ("C", "F", "A"):
            raise ValueError("order not C|F|A")
        if not ((order in "CA" and self.is_c_contig) or (order in "FA" and self.is_f_contig)):
            raise NotImplementedError("ravel on non-contiguous array")
        found = self.from_desc(self.extent.begin, (self.size,), (self.itemsize,), self.itemsize)
        return found, list(self.iter_contiguous_extent())

    def _is_packed(self, dims: Any) -> bool:
        if not self.ndim or not self.size:
            return True
        step = self.itemsize
        for dim in dims:
            if not dim.stride or (dim.size != 1 and dim.stride != step):
                return False
            step *= dim.size
        return True

    def filled_in(self, newdims: tuple[int, ...]) -> Shape:
        """The shape with an unknown length (negative) computed; ValueError if it does not match the number of elements."""
        if sum(count < 0 for count in newdims) > 1:
            raise ValueError("can only specify one unknown dimension")
        known = math.prod(count for count in newdims if count >= 0)
        if any(count < 0 for count in newdims):
            if not known or self.size % known:
                raise ValueError("cannot infer valid shape for unknown dimension")
            newdims = tuple(self.size // known if count < 0 else count for count in newdims)
        elif known != self.size:
            raise ValueError("reshape changes the size of the array")
        return tuple(newdims)

    def _strides_as(self, shape: Shape, order: str) -> Shape:
        """The strides of the same elements in another shape."""
        if not self.size:
            return (self.itemsize,) * len(shape)
        turn = -1 if order == "F" else 1
        # Merge axes that are contiguous with each other; the innermost is last.
        blocks: list[tuple[int, int]] = [(1, self.itemsize)]
        for count, stride in list(zip(self.shape, self.strides, strict=True))[::turn]:
            if count != 1:
                merges = blocks[-1][1] == count * stride
                blocks.append((blocks.pop()[0] * count if merges else count, stride))
        left, step = blocks.pop()
        strides = []
        for count in shape[::-turn]:
            if left == 1 and count != 1:
                left, step = blocks.pop()
            if left % count:
                raise NotImplementedError("reshape would require copy")
            strides.append(step)
            left, step = left // count, step * count
        return tuple(strides[::-turn])


def compute_index(indices: Any, dims: Any) -> int:
    """The offset of the element with these indices."""
    return sum(dim.get_offset(at) for at, dim in zip(indices, dims, strict=True))


def is_element_indexing(item: Any, ndim: int) -> bool:
    """Whether an index selects a single element of an array with ``ndim`` axes."""
    if isinstance(item, slice):
        return False
    if isinstance(item, tuple):
        return len(item) == ndim and not any(isinstance(part, slice) for part in item)
    return True
