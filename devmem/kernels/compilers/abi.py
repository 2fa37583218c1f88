"""How numba's kernels take their arguments, on every vendor: each flattened into words, whose addresses the driver is given.

An array is seven words and more: two that are zero (whose memory it is, for the host's reference counts), its elements, the bytes
of one, its address, then its lengths and its strides. A record is an address, a complex number two parts, a tuple its items.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..._core.arrays.ndarray import DeviceNDArray

_WORD = 8
_MASK = (1 << 64) - 1
#: Words of an array before its lengths, and which of them is the address.
_HEAD, _ADDRESS = 5, 4


class Slot(NamedTuple):
    """How one argument becomes words: so many of them, put there by ``put(argument, words, at)``.

    ``words`` are the frame's bytes: a scalar of fewer bytes than a word stands at its beginning.
    """

    words: int
    put: Callable[[Any, memoryview, int], None] | None = None
    axes: int = 0


class Frame:
    """The words of one launch, and their addresses in an array for the driver. One launch at a time uses it."""

    __slots__ = ("address", "bytes", "last", "places", "pointers", "puts", "store", "words")

    def __init__(self, slots: Sequence[Slot]) -> None:
        count = sum(slot.words for slot in slots)
        self.store = (ctypes.c_uint64 * max(count, 1))()
        first = ctypes.addressof(self.store)
        self.pointers = (ctypes.c_void_p * max(count, 1))(*range(first, first + _WORD * count, _WORD))
        #: The address of the arguments' addresses.
        self.address = ctypes.addressof(self.pointers)
        self.bytes = memoryview(self.store).cast("B")
        self.words = self.bytes.cast("Q")
        self.puts = [slot.put for slot in slots]
        #: The first word of each argument.
        self.places = [sum(slot.words for slot in slots[:index]) for index in range(len(slots))]
        #: (shape, strides) of each array as its words are now: they seldom change from one launch to the next.
        self.last: dict[int, Any] = dict.fromkeys(self.places)

    def fill(self, arguments: Sequence[Any]) -> None:
        """Put the arguments' words in their places."""
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
    """Frames for the launches of one kernel; as many as threads launch it at the same time."""

    __slots__ = ("idle", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self.idle: list[Frame] = []

    def take(self) -> Frame:
        """One that nobody uses."""
        try:
            return self.idle.pop()
        except IndexError:
            return Frame(self.slots)

    def put_back(self, frame: Frame) -> None:
        """Let others use it; one that was not filled to the end is not put back."""
        self.idle.append(frame)


def array(axes: int) -> Slot:
    """An array of so many axes."""
    return Slot(_HEAD + 2 * axes, None, axes)


def record() -> Slot:
    """A record, by its address on the device."""

    def put(argument: Any, words: memoryview, at: int) -> None:
        struct.pack_into("Q", words, at, argument.ptr)

    return Slot(1, put)


def scalar(code: str, convert: Callable[[Any], Any]) -> Slot:
    """A scalar as `struct` packs it, after a conversion that raises where it does not fit."""
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


def member(slot: Slot) -> Slot:
    """A member of an enumeration, by its value."""

    def put(argument: Any, words: memoryview, at: int) -> None:
        assert slot.put is not None
        slot.put(argument.value, words, at)

    return Slot(slot.words, put)


def several(slots: Sequence[Slot]) -> Slot:
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
