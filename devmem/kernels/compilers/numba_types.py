"""Arguments and signatures as numba types them, the same for every vendor: numba-cuda has a copy of numba's types, numba-hip
takes numba's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._core.array import DeviceNDArray
from ..._core.layout import is_contiguous
from ..._core.record import DeviceRecord
from ...spi.driver import SupportsLaunch
from ...spi.types import Extent
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
    """One numba: its module of types, and three functions of it."""

    name: str
    types: Any
    typeof: Callable[[object], Any]
    from_dtype: Callable[[Any], Any]
    normalize_signature: Callable[[str], tuple[Any, Any]]

    def type_of(self, argument: object) -> Hashable:
        """Its type of a device array, a record on the device, or a scalar.

        Raises
        ------
        TypeError
            It has none.
        """
        try:
            if isinstance(argument, DeviceNDArray):
                found = self._array(argument)
            elif isinstance(argument, DeviceRecord):
                found = self.from_dtype(argument.dtype)
            else:
                found = self.typeof(argument)
            self.slot(found)
        except (ValueError, NotImplementedError, TypeError) as error:
            kind = type(argument).__name__
            raise TypeError(f"{self.name} takes no {kind} as the argument of a kernel ({error})") from None
        kept: Hashable = found
        return kept

    def types_of(self, signature: str) -> tuple[Hashable, ...]:
        """Its types of ``void(float32[::1], int64)``, or of ``(float32[::1], int64)``."""
        try:
            arguments, result = self.normalize_signature(signature)
        except Exception as error:  # it evaluates the text
            raise TypeError(
                f"{signature!r} is no signature of numba's ({error}): write void(float32[::1], int64)"
            ) from None
        if result not in (None, self.types.void):
            raise TypeError(f"a kernel returns nothing, but {signature!r} says {result}: write void(...)")
        for each in arguments:
            self.slot(each)
        return tuple(arguments)

    def fits(self, declared: Any, given: Any) -> bool:
        """Whether code for one type takes an argument of another."""
        types = self.types
        if declared == given:
            return True
        if isinstance(declared, types.Array) and isinstance(given, types.Array):
            return (
                declared.dtype == given.dtype
                and declared.ndim == given.ndim
                and declared.layout in ("A", given.layout)
                and (given.mutable or not declared.mutable)
            )
        order = (types.Boolean, types.Integer, types.Float, types.Complex)
        ranks = [
            next((at for at, kind in enumerate(order) if isinstance(each, kind)), None) for each in (declared, given)
        ]
        return ranks[0] is not None and ranks[1] is not None and ranks[0] >= ranks[1]

    def slot(self, kind: Any) -> abi.Slot:
        """How an argument of a type is handed over; NotImplementedError for what is not."""
        types = self.types
        if isinstance(kind, types.Array):
            return abi.array(kind.ndim)
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
            return abi.complex_number("f" if kind == types.complex64 else "d")
        if isinstance(kind, types.NPDatetime | types.NPTimedelta):
            return abi.scalar("q", lambda value: int(value.view(np.int64)))
        if isinstance(kind, types.BaseTuple):
            slots = [self.slot(each) for each in kind]
            if any(slot.put is None for slot in slots):
                raise NotImplementedError("arrays in a tuple: give them one by one")
            return abi.several(slots)
        raise NotImplementedError(f"arguments of type {kind}")

    def _array(self, array: DeviceNDArray[Any]) -> Any:
        shape, strides, itemsize = array.shape, array.strides, array.itemsize
        layout = "A"
        if is_contiguous(shape, strides, itemsize):
            layout = "C"
        elif is_contiguous(shape, strides, itemsize, "F"):
            layout = "F"
        kind = self.from_dtype(array.dtype)
        return self.types.Array(kind, array.ndim, layout, readonly=array.allocation.read_only)


class LoadedKernel:
    """Code that the vendor's driver has loaded, and the words that it takes."""

    __slots__ = ("driver", "frames", "function")

    def __init__(self, driver: SupportsLaunch, image: bytes, name: str, slots: Sequence[abi.Slot]) -> None:
        self.driver = driver
        self.frames = abi.Frames(slots)
        self.function = driver.load(image, name)

    def launch(self, grid: Extent, block: Extent, shared_bytes: int, stream: int, arguments: Sequence[object]) -> None:
        """Enqueue it; the driver has read the words when this returns."""
        frames = self.frames
        frame = frames.take()
        try:
            frame.fill(arguments)
            self.driver.launch(self.function, grid, block, shared_bytes, stream, frame.address)
        finally:
            frames.put_back(frame)

    def close(self) -> None:
        """Unload it."""
        self.driver.unload(self.function)
