"""What every resource over another one has in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ...spi.driver import Driver
from ...spi.errors import DevmemError, DevmemWarning, PluginError
from ...spi.memory import MemoryResource
from ...spi.types import MemoryKind
from .direct import NOT_PICKLED, DriverMemory, already_bound, unbound
from .foreign import Boundary, bind_down, check_resource, is_ours


class Adaptor:
    """A resource that stands over another one, its ``upstream``: the device's plain memory unless one is given.

    It passes on everything but what a subclass overrides. The verbs of the upstream are looked up once, when the stack is
    bound, as ``_allocate`` and ``_deallocate``: an adaptor costs one frame. Zero bytes end here: they never reach the upstream.
    """

    #: Attributes that `repr` shows besides the upstream, where they are not None.
    _shown: tuple[str, ...] = ()
    _allocate: Callable[[int, int], int]
    _deallocate: Callable[[int, int, int], None]

    def __init__(self, upstream: MemoryResource | None = None) -> None:
        self.upstream = DriverMemory() if upstream is None else check_resource(upstream, repr(upstream))
        self.driver: Driver | None = None
        self._allocate = self._deallocate = unbound

    def __repr__(self) -> str:
        # The whole chain, as it is built: Limit(PoolMemory(DriverMemory(host)), max_bytes=4096)
        values = ((name, getattr(self, name)) for name in self._shown)
        facts = "".join(f", {name}={value!r}" for name, value in values if value is not None)
        return f"{type(self).__name__}({self.upstream!r}{facts})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_PICKLED.format(name=type(self).__name__))

    def bind(self, driver: Driver) -> None:
        """Take the device, and pass it down the chain; a stack serves one device. Again with the same one: nothing."""
        if already_bound(self, self.driver, driver, "stack"):
            return
        bind_down(self.upstream, driver)
        below = self.upstream if is_ours(self.upstream) else Boundary(self.upstream)
        self._allocate, self._deallocate = below.allocate, below.deallocate
        self.driver = driver

    def allocate(self, nbytes: int, stream: int) -> int:
        """As the upstream does."""
        return self._allocate(nbytes, stream) if nbytes else 0

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """As the upstream does."""
        if ptr:
            self._deallocate(ptr, nbytes, stream)

    @property
    def stream_ordered(self) -> bool:
        """Whether blocks may come back while work on their stream still uses them."""
        return bool(getattr(self.upstream, "stream_ordered", False))

    @property
    def kind(self) -> MemoryKind:
        """Whose memory it is: the device's, unless the bottom of the stack says otherwise."""
        return kind_of(self.upstream)

    @property
    def cached_bytes(self) -> int:
        """Bytes that the stack keeps for reuse."""
        return kept_by(self.upstream)

    @property
    def largest_free_block(self) -> int:
        """Bytes of the largest block that the stack could hand out of what it keeps."""
        return int(getattr(self.upstream, "largest_free_block", 0))

    def trim(self, keep_bytes: int) -> None:
        """Give kept memory back until at most ``keep_bytes`` are kept."""
        getattr(self.upstream, "trim", nothing)(keep_bytes)

    def forget_stream(self, stream: int) -> None:
        """Take note that an idle stream is about to be destroyed: its handle may mean another one soon."""
        getattr(self.upstream, "forget_stream", nothing)(stream)


def nothing(_: int) -> None:
    """What a resource does that lacks an optional method."""


def kind_of(resource: object) -> MemoryKind:
    """The kind of memory that a resource says it has; device memory, if it says nothing. PluginError if there is no such kind."""
    says = getattr(resource, "kind", MemoryKind.DEVICE)
    try:
        return MemoryKind(says)
    except ValueError:
        raise PluginError(
            f"{resource!r} says that its kind is {says!r}: it is one of {', '.join(MemoryKind)}"
        ) from None


def chain(resource: object) -> list[Any]:
    """A resource and all that it stands on, outermost first."""
    found: list[Any] = []
    while resource is not None and not any(resource is other for other in found):
        found.append(resource)
        resource = getattr(resource, "upstream", None)
    return found


def kept_by(resource: object) -> int:
    """Bytes that a resource says it keeps for reuse. A broken one must not stop who asks about all; a failing driver does."""
    try:
        return int(getattr(resource, "cached_bytes", 0))
    except DevmemError:
        raise
    except Exception as error:
        warnings.warn(f"{resource!r} cannot say what it keeps: {error!r}; counted as 0", DevmemWarning, stacklevel=2)
        return 0


def cached_in(stacks: Iterable[object]) -> int:
    """Bytes that some stacks keep for reuse, each of their parts counted once: two may stand on one pool, or on the driver's.

    A part of ours counts its cache together with those below it. The count of a third-party part is taken as its own, and the
    parts below it are not asked. Parts that share one cache name it as ``shared_cache``.
    """
    caches: dict[int, int] = {}
    for stack in stacks:
        for each in chain(stack):
            kept = kept_by(each)
            ours = isinstance(each, Adaptor)
            if ours:
                kept -= kept_by(each.upstream)
            caches[id(getattr(each, "shared_cache", each))] = max(0, kept)
            if not ours:
                break
    return sum(caches.values())


def largest_free_block(resource: object) -> int | None:
    """Bytes of the largest block that a stack keeps in one piece; None if nothing in it can tell."""
    for each in chain(resource):
        passes_on = getattr(type(each), "largest_free_block", None) is Adaptor.largest_free_block
        if hasattr(each, "largest_free_block") and not passes_on:
            return int(each.largest_free_block)
    return None
