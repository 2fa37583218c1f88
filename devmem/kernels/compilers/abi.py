"""Arguments of numba's kernels, on every vendor: flattened into words, whose addresses the driver gets.

An array is five words and two for each axis: two zeros (meminfo and parent, which the host alone uses), the number of elements,
the item size, the address, then the lengths and the strides. A record is its address, a complex number its two parts, a tuple
its items. numba-cuda-mlir differs in arrays (`memref`) and complex numbers (`packed_complex`).
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..._core.arrays.ndarray import DeviceNDArray

_WORD = 8
_MASK = (1 << 64) - 1
#: Words of an array before its lengths, and the index of the address.
_HEAD, _ADDRESS = 5, 4


class Slot(NamedTuple):
    """The parameters of one argument: the bytes of each, and ``put(argument, words, at)``, which writes them.

    ``put`` gets the frame's bytes. A parameter begins at a word; one shorter than a word is written at its beginning.
    """

    sizes: tuple[int, ...]
    put: Callable[[Any, memoryview, int], None] | None = None
    axes: int = 0

    @property
    def words(self) -> int:
        """The number of words of the parameters."""
        return sum(map(_words_of, self.sizes))


class Frame:
    """The words of one launch, with the array of their addresses for the driver. One launch at a time uses a frame."""

    __slots__ = ("address", "bytes", "last", "places", "pointers", "puts", "store", "words")

    def __init__(self, slots: Sequence[Slot]) -> None:
        count = sum(slot.words for slot in slots)
        self.store = (ctypes.c_uint64 * max(count, 1))()
        starts = [0, *itertools.accumulate(_WORD * _words_of(size) for slot in slots for size in slot.sizes)][:-1]
        first = ctypes.addressof(self.store)
        self.pointers = (ctypes.c_void_p * max(len(starts), 1))(*(first + start for start in starts))
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
        for offset, value in enumerate(_layout(array, 0)):
            self.words[at + offset] = value


class Frames:
    """Idle frames for the launches of one kernel; there are as many as threads launch it at the same time."""

    __slots__ = ("idle", "sizes", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        #: The bytes of each word that the driver reads.
        self.sizes = tuple(size for slot in slots for size in slot.sizes)
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
    return Slot((_WORD,) * (_HEAD + 2 * axes), None, axes)


def memref(axes: int, unit: int) -> Slot:
    """An array with this number of axes as MLIR describes it, its strides counted in units of this many bytes.

    The address twice (of the allocation, and of the data), an offset of 0, the lengths, the strides.
    """
    pack = struct.Struct(f"{3 + 2 * axes}q").pack_into

    def put(argument: Any, words: memoryview, at: int) -> None:
        strides = (stride // unit for stride in argument.strides)
        pack(words, at, argument._ptr, argument._ptr, 0, *argument._shape, *strides)

    return Slot((_WORD,) * (3 + 2 * axes), put)


def record() -> Slot:
    """A record, by its device address."""

    def put(argument: Any, words: memoryview, at: int) -> None:
        struct.pack_into("Q", words, at, argument.ptr)

    return Slot((_WORD,), put)


def scalar(code: str, convert: Callable[[Any], Any]) -> Slot:
    """A scalar packed by `struct`, after a conversion that raises if the value does not fit."""
    pack = struct.Struct(code).pack_into

    def put(argument: Any, words: memoryview, at: int) -> None:
        pack(words, at, convert(argument))

    return Slot((struct.calcsize(code),), put)


def complex_number(code: str) -> Slot:
    """A complex number, in two words."""
    pack = struct.Struct(code).pack_into

    def put(argument: Any, words: memoryview, at: int) -> None:
        value = complex(argument)
        pack(words, at, value.real)
        pack(words, at + _WORD, value.imag)

    return Slot((struct.calcsize(code),) * 2, put)


def packed_complex(code: str) -> Slot:
    """A complex number, its two parts in one parameter."""
    pack = struct.Struct(f"2{code}").pack_into

    def put(argument: Any, words: memoryview, at: int) -> None:
        value = complex(argument)
        pack(words, at, value.real, value.imag)

    return Slot((2 * struct.calcsize(code),), put)


def enum_member(slot: Slot) -> Slot:
    """A member of an enumeration, by its value."""

    def put(argument: Any, words: memoryview, at: int) -> None:
        assert slot.put is not None
        slot.put(argument.value, words, at)

    return Slot(slot.sizes, put)


def tuple_of(slots: Sequence[Slot]) -> Slot:
    """A tuple, whose items follow each other."""
    offsets = []
    at = 0
    for slot in slots:
        offsets.append((slot, at * _WORD))
        at += slot.words

    def put(argument: Any, words: memoryview, start: int) -> None:
        for each, (slot, offset) in zip(argument, offsets, strict=True):
            (slot.put or _put_array)(each, words, start + offset)

    return Slot(tuple(size for slot in slots for size in slot.sizes), put)


def _words_of(size: int) -> int:
    return -(-size // _WORD)


def _put_array(argument: DeviceNDArray[Any], words: memoryview, at: int) -> None:
    values = _layout(argument, argument._ptr)
    struct.pack_into(f"{len(values)}Q", words, at, *values)


def _layout(array: DeviceNDArray[Any], address: int) -> list[int]:
    """The words of an array."""
    return [value & _MASK for value in (0, 0, array.size, array.itemsize, address, *array.shape, *array.strides)]
