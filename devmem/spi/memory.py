"""The contract of an allocator: two verbs, and a few facts if it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from .driver import Driver


@runtime_checkable
class MemoryResource(Protocol):
    """Somewhere that device memory comes from.

    ``allocate`` returns the address of at least ``nbytes`` usable bytes, aligned to 256, valid for work that is enqueued
    on ``stream`` from now on; it raises `OutOfMemory` (or any `MemoryError`) if it cannot. ``deallocate`` takes back
    exactly what ``allocate`` returned, with the same ``nbytes``. Zero bytes never arrive; asked for them, return 0.

    A resource whose ``stream_ordered`` is true promises that ``deallocate`` neither waits nor lets the memory reach another
    stream before ``stream`` has passed. Of any other, devmem asks only after every stream has passed the memory.

    Examples
    --------
    >>> class NoWayBack:
    ...     def allocate(self, nbytes, stream):
    ...         return 0
    >>> isinstance(dm.memory.PoolMemory(), dm.memory.MemoryResource)
    True
    >>> isinstance(NoWayBack(), dm.memory.MemoryResource)
    False
    """

    def allocate(self, nbytes: int, stream: int) -> int: ...

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None: ...


@runtime_checkable
class SupportsBind(Protocol):
    """A resource that needs its device. Called once, before the first allocation, from the outermost resource down; the device
    is entered, as it is for every call of a resource.
    """

    def bind(self, driver: Driver) -> None: ...


@runtime_checkable
class SupportsTrim(Protocol):
    """A resource that keeps memory for reuse."""

    @property
    def cached_bytes(self) -> int:
        """Bytes held for reuse."""

    def trim(self, keep_bytes: int) -> None:
        """Give cached memory back upstream until at most ``keep_bytes`` are held; what shares a piece with a live block stays."""


@runtime_checkable
class SupportsForgetStream(Protocol):
    """A resource that remembers streams by their handles, which the driver uses again."""

    def forget_stream(self, stream: int) -> None:
        """Take note that a stream is about to be destroyed; it is still there during the call. Raises nothing."""


#: How a plugin names a resource. Called for each device that uses it. In a stack that is spelled as text (``mine:4GiB,pool``):
#: with what stands behind the colon, a str that may be empty, and the resource below, which is None for the last. Without
#: arguments where there is neither.
ResourceFactory = Callable[..., MemoryResource]
