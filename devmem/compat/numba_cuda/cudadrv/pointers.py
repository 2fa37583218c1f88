"""numba.cuda's memory objects for plugins: pointers that own memory, share it, or view a part of it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

import devmem

from ...._core.lifetime.allocation import Allocation
from ....spi.errors import DevmemError
from .error import translated
from .streams import native_stream


class DevicePointer(int):
    """A device address: an int with the attribute ``value`` of a ctypes pointer."""

    __slots__ = ()

    @property
    def value(self) -> int:
        """The address."""
        return int(self)


class MemoryPointer:
    """A block of device memory, freed by a finalizer when the pointer dies.

    Parameters
    ----------
    context : Context
        Where it was allocated.
    pointer : int, ctypes pointer, or a binding's pointer
        Its address.
    size : int
        Its bytes.
    owner : object, optional
        The object that keeps the memory alive, if that is not the pointer.
    finalizer : callable, optional
        Called once, when the pointer dies or `free` is called.
    """

    __cuda_memory__ = True

    def __init__(
        self,
        context: Any,
        pointer: Any,
        size: int,
        owner: Any = None,
        finalizer: Callable[[], object] | None = None,
    ) -> None:
        self.context = context
        self.device_pointer = DevicePointer(address_of(pointer))
        self.size = size
        self._cuda_memsize_ = size
        self.is_managed = finalizer is not None
        self.refct = 1
        self.handle: Any = self.device_pointer
        self._owner = owner
        if finalizer is not None:
            self._finalizer = weakref.finalize(self, finalizer)

    @property
    def owner(self) -> Any:
        """The object that keeps the memory alive."""
        return self if self._owner is None else self._owner

    @property
    def device_ctypes_pointer(self) -> ctypes.c_size_t:
        """The address, for ctypes."""
        return ctypes.c_size_t(self.device_pointer)

    @property
    def device_pointer_value(self) -> int | None:
        """The address; None for an empty block."""
        return int(self.device_pointer) or None

    def own(self) -> OwnedPointer:
        """A pointer that counts as one reference to this one."""
        return OwnedPointer(weakref.proxy(self))

    def free(self) -> None:
        """Free the memory now; RuntimeError if it was freed already."""
        if self.is_managed:
            if not self._finalizer.alive:
                raise RuntimeError("Freeing dead memory")
            self._finalizer()

    def memset(self, byte: int, count: int | None = None, stream: Any = 0) -> None:
        """Set ``count`` bytes, by default all; complete on return unless a stream is given."""
        fill(int(self.device_pointer), byte, self.size if count is None else count, stream)

    def view(self, start: int, stop: int | None = None) -> Any:
        """A part of the memory, from byte to byte, which keeps all of it alive."""
        size = (self.size if stop is None else stop) - start
        part: Any = self
        if self.device_pointer:
            if size < 0:
                raise RuntimeError("size cannot be negative")
            part = MemoryPointer(self.context, int(self.device_pointer) + start, size, owner=self.owner)
        elif size:
            raise RuntimeError("non-empty slice into empty slice")
        if part is not self and isinstance(self.owner, MemoryPointer | OwnedPointer):
            return OwnedPointer(weakref.proxy(self.owner), part)
        return part


class AutoFreePointer(MemoryPointer):
    """A `MemoryPointer` whose memory is freed when its last `OwnedPointer` dies."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.refct -= 1


class MappedMemory(AutoFreePointer):
    """Host memory mapped at a device address; `host_pointer` is the host address."""

    __cuda_memory__ = True

    def __init__(
        self,
        context: Any,
        pointer: Any,
        size: int,
        owner: Any = None,
        finalizer: Callable[[], object] | None = None,
    ) -> None:
        self.owned = owner
        self.host_pointer = address_of(pointer)
        try:
            with devmem.current_device().entered() as driver:
                on_device = driver.device_pointer(self.host_pointer)
        except DevmemError as error:
            raise translated(error) from error
        super().__init__(context, on_device, size, finalizer=finalizer)
        self.handle = self.host_pointer

    def own(self) -> Any:
        """The memory as a buffer of the host's, which counts as one reference."""
        return MappedOwnedPointer(self, self.host_pointer)


class ManagedMemory(AutoFreePointer):
    """Memory with one address for host and device."""

    __cuda_memory__ = True

    def __init__(
        self,
        context: Any,
        pointer: Any,
        size: int,
        owner: Any = None,
        finalizer: Callable[[], object] | None = None,
    ) -> None:
        self.owned = owner
        super().__init__(context, pointer, size, finalizer=finalizer)

    def own(self) -> Any:
        """The memory as a buffer of the host's, which counts as one reference."""
        return ManagedOwnedPointer(self, int(self.device_pointer))


class OwnedPointer:
    """A counted reference to a `MemoryPointer`, or to a part of one, with its attributes."""

    __cuda_memory__ = True

    def __init__(self, memptr: Any, view: Any = None) -> None:
        self._mem = memptr
        self._view = memptr if view is None else view
        _count(self, memptr)
        self.device_ctypes_pointer = self._view.device_ctypes_pointer

    def __getattr__(self, name: str) -> Any:
        if name in {"_view", "_mem"}:
            raise AttributeError(name)
        return getattr(self._view, name)


class HostBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """Host memory as an object with a buffer."""

    def __reduce__(self) -> Any:
        return np.asarray(self).copy().__reduce__()

    __hash__ = object.__hash__  # type: ignore[assignment]  # a handle, not a value

    @classmethod
    def at(cls, address: int, size: int) -> Any:
        """The bytes at an address."""
        if not size:
            return np.empty(0, np.uint8).view(cls)
        raw: Any = (ctypes.c_uint8 * size).from_address(address)
        return np.frombuffer(raw, np.uint8).view(cls)


class PinnedMemory(HostBytes):
    """Page-locked host memory, as an object with a buffer of ``size`` bytes. ``owner`` keeps registered memory alive."""

    def __new__(  # noqa: D102
        cls,
        context: Any,
        pointer: Any,
        size: int,
        owner: Any = None,
        finalizer: Callable[[], object] | None = None,
    ) -> PinnedMemory:
        found: PinnedMemory = cls.at(address_of(pointer), size)
        found.context = context
        found.owned = owner
        found.host_pointer = found.handle = address_of(pointer)
        found.is_managed = finalizer is not None
        if finalizer is not None:
            weakref.finalize(found, finalizer)
        return found

    context: Any
    owned: Any
    host_pointer: int
    handle: int
    is_managed: bool

    def own(self) -> PinnedMemory:
        """The memory itself, which any reference keeps alive."""
        return self


class MappedOwnedPointer(HostBytes):
    """A counted reference to mapped memory, with its buffer."""

    __cuda_memory__ = True
    _mem: Any

    def __new__(cls, memory: Any, address: int) -> MappedOwnedPointer:  # noqa: D102
        found: MappedOwnedPointer = cls.at(address, memory.size)
        found._mem = memory
        _count(found, memory)
        return found

    def view(self, *where: Any) -> Any:  # type: ignore[override]
        """With two integers, a part of the device memory from byte to byte; otherwise NumPy's view."""
        if where and all(type(each) is int for each in where):
            return self._mem.view(*where)
        return super().view(*where)

    def __getattr__(self, name: str) -> Any:
        memory = self.__dict__.get("_mem")
        if memory is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(memory, name)


class ManagedOwnedPointer(MappedOwnedPointer):
    """A counted reference to managed memory, with its buffer."""


class ArrayMemory(MemoryPointer):
    """The memory of a devmem array, from the array's first byte on."""

    def __init__(self, allocation: Allocation, address: int, size: int, context: Any) -> None:
        super().__init__(context, address, size)
        self.allocation = allocation
        self.is_managed = True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayMemory):
            return NotImplemented
        mine, theirs = (self.allocation, self.device_pointer, self.size), (other.device_pointer, other.size)
        return mine[0] is other.allocation and mine[1:] == theirs

    def __hash__(self) -> int:
        return hash((id(self.allocation), self.device_pointer, self.size))

    def own(self) -> Any:
        """The memory itself, which any reference keeps alive."""
        return self

    def free(self) -> None:
        """Free the memory of the array and all its views; ReferenceError if it was freed already."""
        if self.allocation.freed:
            raise ReferenceError("this memory was freed already")
        try:
            self.allocation.free()
        except DevmemError as error:
            raise translated(error) from error

    def view(self, start: int, stop: int | None = None) -> Any:
        """A part of the memory, from byte to byte, which keeps all of it alive."""
        size = (self.size if stop is None else stop) - start
        if not self.device_pointer:
            if size:
                raise RuntimeError("non-empty slice into empty slice")
            return self
        if size < 0:
            raise RuntimeError("size cannot be negative")
        return ArrayMemory(self.allocation, int(self.device_pointer) + start, size, self.context)


def address_of(pointer: Any) -> int:
    """The address in an int, a ctypes pointer, or a pointer object of a binding."""
    return int(getattr(pointer, "value", pointer) or 0)


def fill(address: int, byte: int, count: int, stream: Any) -> None:
    """Set device bytes, ordered on a stream."""
    device = devmem.current_device()
    chosen = device.opened().streams.stream_of(native_stream(stream))
    try:
        with device.entered() as driver:
            if count:
                driver.fill(address, int(byte) & 0xFF, 1, count, chosen.handle)
            if not stream:
                driver.stream_synchronize(chosen.handle)
    except DevmemError as error:
        raise translated(error) from error


def _count(reference: Any, memory: Any) -> None:
    """Count a reference to memory until it dies; the last one frees the memory."""
    memory.refct += 1
    weakref.finalize(reference, _let_go, memory)


def _let_go(memory: Any) -> None:
    try:
        memory.refct -= 1
        if memory.refct == 0:
            memory.free()
    except ReferenceError:
        pass  # a reset has freed it before its references died
