"""Numba's types of arguments and signatures, for every vendor: numba-cuda has a copy of numba's types, numba-hip uses numba's."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._core.arrays.ndarray import DeviceNDArray, DeviceRecord
from ...spi.driver import SupportsLaunch
from ...spi.types import Extent
from ..array_layout import order_and_alignment, type_text
from . import abi

_INTEGERS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
}


@dataclass(frozen=True)
class Typing:
    """The types of one numba: its module of types, and three of its functions."""

    name: str
    types: Any
    typeof: Callable[[object], Any]
    from_dtype: Callable[[Any], Any]
    normalize_signature: Callable[[str], tuple[Any, Any]]

    def type_of(self, argument: object) -> Hashable:
        """Numba's type of a device array, a device record, or a scalar.

        Raises
        ------
        TypeError
            Numba has no type for it, or kernels take no arguments of that type.
        """
        try:
            found = self._type_of(argument)
            self.slot(found)
        except Exception as error:  # numba's own errors have no common base class in all versions
            kind, dtype = type(argument).__name__, getattr(argument, "dtype", None)
            what = kind if dtype is None else f"{kind} of dtype {dtype}"
            raise TypeError(
                f"{self.name} takes no {what} for a kernel ({error}): pass arrays, records, numbers, or tuples of these"
            ) from None
        kept: Hashable = found
        return kept

    def _type_of(self, argument: object) -> Any:
        if isinstance(argument, DeviceNDArray):
            return self._array(argument)
        if isinstance(argument, DeviceRecord):
            return self.from_dtype(argument.dtype)
        if isinstance(argument, tuple):
            return self.types.BaseTuple.from_types(
                tuple(map(self._type_of, argument)), type(argument) if hasattr(argument, "_fields") else None
            )
        return self.typeof(argument)

    def types_of(self, signature: str) -> tuple[Hashable, ...]:
        """Numba's types of the signature ``void(float32[::1], int64)``, or ``(float32[::1], int64)``."""
        try:
            arguments, result = self.normalize_signature(signature)
        except Exception as error:  # numba evaluates the text as Python
            raise TypeError(
                f"{signature!r} is no signature of numba's ({error}): write void(float32[::1], int64)"
            ) from None
        if result not in (None, self.types.void):
            raise TypeError(f"a kernel returns nothing, but {signature!r} says {result}: write void(...)")
        for each in arguments:
            self.slot(each)
        return tuple(arguments)

    def spelled(self, kind: Any) -> str:
        """A type as written in signatures, with the properties that a signature cannot express."""
        if not isinstance(kind, self.types.Array):
            return str(kind)
        found = type_text(self.spelled(kind.dtype), kind.ndim, kind.layout)
        return f"{found}{'' if kind.mutable else ' read-only'}{'' if kind.aligned else ' not aligned'}"

    def fits(self, declared: Any, given: Any) -> bool:
        """Whether code compiled for one type takes an argument of another."""
        types = self.types
        if declared == given:
            return True
        if isinstance(declared, types.Array) and isinstance(given, types.Array):
            return (
                declared.dtype == given.dtype
                and declared.ndim == given.ndim
                and declared.layout in ("A", given.layout)
                and (given.aligned or not declared.aligned)
                and (given.mutable or not declared.mutable)
            )
        if isinstance(declared, types.CPointer):  # an address
            return isinstance(given, types.Integer)
        order = (types.Boolean, types.Integer, types.Float, types.Complex)
        ranks = [
            next((at for at, kind in enumerate(order) if isinstance(each, kind)), None) for each in (declared, given)
        ]
        return ranks[0] is not None and ranks[1] is not None and ranks[0] >= ranks[1]

    def slot(self, kind: Any) -> abi.Slot:
        """Return the slot of an argument of a type; NotImplementedError if it cannot be passed."""
        types = self.types
        if isinstance(kind, types.Array):
            return self.array_slot(kind)
        if isinstance(kind, types.Record):
            return abi.record()
        if isinstance(kind, types.Boolean):
            return abi.scalar("?", bool)
        if isinstance(kind, types.Integer):
            return abi.scalar(_INTEGERS[str(kind)], int)
        if kind == types.float16:
            return abi.scalar("e", float)
        if kind in (types.float32, types.float64):
            return abi.scalar("f" if kind == types.float32 else "d", float)
        if kind in (types.complex64, types.complex128):
            return self.complex_slot("f" if kind == types.complex64 else "d")
        if isinstance(kind, types.NPDatetime | types.NPTimedelta):
            return abi.scalar("q", lambda value: int(value.view(np.int64)))
        if isinstance(kind, types.EnumMember):
            return abi.enum_member(self.slot(kind.dtype))
        if isinstance(kind, types.CPointer):
            return abi.scalar("Q", int)
        if isinstance(kind, types.BaseTuple):
            return abi.tuple_of([self.slot(each) for each in kind])
        raise NotImplementedError(f"arguments of type {kind}")

    def array_slot(self, kind: Any) -> abi.Slot:
        """Return the slot of an array."""
        return abi.array(kind.ndim)

    def complex_slot(self, code: str) -> abi.Slot:
        """Return the slot of a complex number, by `struct`'s code of its parts."""
        return abi.complex_number(code)

    def _array(self, array: DeviceNDArray[Any]) -> Any:
        layout, aligned = order_and_alignment(array)
        kind = self.from_dtype(array.dtype)
        read_only = array.allocation.read_only
        return self.types.Array(kind, array.ndim, layout, readonly=read_only, aligned=aligned)


class LoadedKernel:
    """A kernel that the driver has loaded, with the slots of its arguments."""

    __slots__ = ("driver", "frames", "function")

    def __init__(self, driver: SupportsLaunch, image: bytes, name: str, slots: Sequence[abi.Slot]) -> None:
        self.driver = driver
        self.frames = abi.Frames(slots)
        self.function = driver.load(image, name)

    def launch(self, grid: Extent, block: Extent, shared_bytes: int, stream: int, arguments: Sequence[object]) -> None:
        """Enqueue the kernel; the driver has read the words on return."""
        frames = self.frames
        frame = frames.take()
        try:
            frame.fill(arguments)
        except (struct.error, OverflowError) as error:
            raise self._unfit(arguments) or error from None
        self.driver.launch(self.function, grid, block, shared_bytes, stream, frame.address, frames.sizes)
        # Not after a failure: it is unknown which words an interrupted frame contains.
        frames.put_back(frame)

    def close(self) -> None:
        """Unload the kernel."""
        self.driver.unload(self.function)

    def _unfit(self, arguments: Sequence[object]) -> OverflowError | None:
        """The error for the argument that is too large for its type."""
        for place, (argument, slot) in enumerate(zip(arguments, self.frames.slots, strict=True)):
            if slot.put is not None:
                try:
                    slot.put(argument, memoryview(bytearray(8 * slot.words)), 0)
                except (struct.error, OverflowError) as error:
                    return OverflowError(
                        f"argument {place}, {argument!r}, does not fit the type that the kernel was declared or compiled for "
                        f"({error}): give a smaller value, or declare a wider type"
                    )
        return None
