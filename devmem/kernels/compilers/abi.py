"""How numba's kernels take their arguments, on every vendor: flattened into words, whose addresses the driver gets.

An array is five words and two for each axis: two zeros (meminfo and parent, which the host alone uses), the number of elements,
the item size, the address, then the lengths and the strides. A record is its address, a complex number its two parts, a tuple
its items.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..._core.arrays.ndarray import DeviceNDArray

_WORD = 8
_MASK = (1 << 64) - 1
#: Words of an array before its lengths, and the index of the address.
_HEAD, _ADDRESS = 5, 4


class Slot(NamedTuple):
    """How one argument becomes words: their number, and ``put(argument, words, at)``, which writes them.

    ``put`` gets the frame's bytes; a scalar shorter than a word is written at its beginning.
    """

    words: int
    put: Callable[[Any, memoryview, int], None] | None = None
    axes: int = 0


class Frame:
    """The words of one launch, with the array of their addresses for the driver. One launch at a time uses a frame."""

    __slots__ = ("address", "bytes", "last", "places", "pointers", "puts", "store", "words")

    def __init__(self, slots: Sequence[Slot]) -> None:
        count = sum(slot.words for slot in slots)
        self.store = (ctypes.c_uint64 * max(count, 1))()
        first = ctypes.addressof(self.store)
        self.pointers = (ctypes.c_void_p * max(count, 1))(*range(first, first + _WORD * count, _WORD))
        #: The address of the array of addresses.
        self.address = ctypes.addressof(self.pointers)
        self.bytes = memoryview(self.store).cast("B")
        self.words = self.bytes.cast("Q")
        self.puts = [slot.put for slot in slots]
        #: The first word of each argument.
        self.places = [sum(slot.words for slot in slots[:index]) for index in range(len(slots))]
        #: (shape, strides) that the words of each array hold; they seldom change between launches.
        self.last: dict[int, Any] = dict.fromkeys(self.places)

    def fill(self, arguments: Sequence[Any]) -> None:
        """Write the words of the arguments."""
        words, last = self.words, self.last
        for argument, at, put in zip(arguments, self.places, self.puts, strict=True):
            if put is not None:
                put(argument, self.bytes, at * _WORD)
            else:
                layout = argument._shape, argument._strides
                if layout != last[at]:
                    self._lay_out(argument, at)
                    last[at] = layout
                words[at + _ADDRESS] = argument._ptr

    def _lay_out(self, array: DeviceNDArray[Any], at: int) -> None:
        values = (0, 0, array.size, array.itemsize, 0, *array.shape, *array.strides)
        for offset, value in enumerate(values):
            self.words[at + offset] = value & _MASK


class Frames:
    """Idle frames for the launches of one kernel; there are as many as threads launch it at the same time."""

    __slots__ = ("idle", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self.idle: list[Frame] = []

    def take(self) -> Frame:
        """Take an idle frame, or make a new one."""
        try:
            return self.idle.pop()
        except IndexError:
            return Frame(self.slots)

    def put_back(self, frame: Frame) -> None:
        """Return a frame after a launch; a frame whose filling failed is dropped instead."""
        self.idle.append(frame)


def array(axes: int) -> Slot:
    """An array with this number of axes."""
    return Slot(_HEAD + 2 * axes, None, axes)


def record() -> Slot:
    """A record, by its device address."""

    def put(argument: Any, words: memoryview, at: int) -> None:
        struct.pack_into("Q", words, at, argument.ptr)

    return Slot(1, put)


def scalar(code: str, convert: Callable[[Any], Any]) -> Slot:
    """A scalar packed by `struct`, after a conversion that raises if the value does not fit."""
    pack = struct.Struct(code).pack_into

    def put(argument: Any, words: memoryview, at: int) -> None:
        pack(words, at, convert(argument))

    return Slot(1, put)


def complex_number(code: str) -> Slot:
    """A complex number, in two words."""
    pack = struct.Struct(code).pack_into

    def put(argument: Any, words: memoryview, at: int) -> None:
        value = complex(argument)
        pack(words, at, value.real)
        pack(words, at + _WORD, value.imag)

    return Slot(2, put)


def enum_member(slot: Slot) -> Slot:
    """A member of an enumeration, by its value."""

    def put(argument: Any, words: memoryview, at: int) -> None:
        assert slot.put is not None
        slot.put(argument.value, words, at)

    return Slot(slot.words, put)


def tuple_of_scalars(slots: Sequence[Slot]) -> Slot:
    """A tuple of scalars."""
    offsets = []
    at = 0
    for slot in slots:
        offsets.append((slot, at * _WORD))
        at += slot.words

    def put(argument: Any, words: memoryview, start: int) -> None:
        for each, (slot, offset) in zip(argument, offsets, strict=True):
            assert slot.put is not None
            slot.put(each, words, start + offset)

    return Slot(at, put)
