"""The base of resources that stand over another one."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterable
from os import PathLike
from types import FunctionType
from typing import Any, NoReturn

from ...spi.driver import Driver
from ...spi.errors import DevmemError, DevmemWarning, GuardError, PluginError
from ...spi.memory import MemoryResource
from ...spi.types import MemoryKind
from ...toolkit.locks import Rank, lock
from ..base.interrupts import CannotWait
from ..base.shown import with_unit
from .direct import NOT_PICKLED, DriverMemory, already_bound, unbound
from .foreign import Boundary, check_resource, is_ours, shown, tell


class Adaptor:
    """A resource that stands over another one, its ``upstream``: the device's plain memory unless one is given.

    It passes on everything but what a subclass overrides. The verbs of the upstream are looked up once, when the stack is
    bound, as ``_allocate`` and ``_deallocate``: an adaptor costs one frame. Zero bytes end here: they never reach the upstream.

    Examples
    --------
    >>> class Counter(dm.memory.Adaptor):
    ...     blocks = 0
    ...     def allocate(self, nbytes, stream):
    ...         self.blocks += 1
    ...         return super().allocate(nbytes, stream)
    >>> with dm.use_memory(Counter(dm.memory.PoolMemory())) as counter:
    ...     d = dm.zeros(3)
    >>> counter.blocks
    1
    """

    #: Attributes that `repr` shows besides the upstream, where they are not None.
    _shown: tuple[str, ...] = ()
    _allocate: Callable[[int, int], int]
    _deallocate: Callable[[int, int, int], None]

    def __init__(self, upstream: MemoryResource | None = None) -> None:
        if isinstance(upstream, (int, str, PathLike, FunctionType)):
            given = inspect.signature(type(self)).parameters.values()
            call = ", ".join(f"{each.name}=..." if each.kind is each.KEYWORD_ONLY else each.name for each in given)
            raise PluginError(
                f"{upstream!r} is not a memory resource, which comes first: {type(self).__name__}({call})"
            )
        self.upstream = DriverMemory() if upstream is None else check_resource(upstream, repr(upstream))
        self.driver: Driver | None = None
        self._allocate = self._deallocate = unbound
        below = self.upstream
        #: The one lock of a stack: what its parts count, remember and keep. No part holds it while it calls the next.
        self._lock: threading.RLock = (
            below._lock if isinstance(below, Adaptor) and is_ours(below) else lock("memory stack", Rank.LEAF)
        )

    def __repr__(self) -> str:
        # The whole chain, as it is built: Limit(PoolMemory(DriverMemory(host)), max_bytes=4096 bytes (4.0 KiB))
        values = ((name, getattr(self, name)) for name in self._shown)
        facts = "".join(f", {name}={with_unit(name, value)}" for name, value in values if value is not None)
        return f"{type(self).__name__}({self.upstream!r}{facts})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_PICKLED.format(name=type(self).__name__))

    def bind(self, driver: Driver) -> None:
        """Take the device, and pass it down the chain; a stack serves one device. Again with the same one: nothing."""
        if already_bound(self, self.driver, driver, "stack"):
            return
        tell(self.upstream, "bind", driver)
        below = self.upstream if is_ours(self.upstream) else Boundary(self.upstream, driver=driver)
        self._allocate, self._deallocate = below.allocate, below.deallocate
        self._start_anew()
        self.driver = driver

    def unbind(self) -> None:
        """Let go of a device that was closed, to which nothing of this stack is out; it may be bound again."""
        self.driver = None
        self._allocate = self._deallocate = unbound

    def _start_anew(self) -> None:
        """Count from zero: nothing is out. Called when it is made, and each time it is bound."""

    def allocate(self, nbytes: int, stream: int) -> int:
        """Allocate from the upstream."""
        return self._allocate(nbytes, stream) if nbytes else 0

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Give the block back to the upstream."""
        if ptr:
            self._deallocate(ptr, nbytes, stream)

    @property
    def stream_ordered(self) -> bool:
        """Whether blocks may come back while work on their stream still uses them."""
        return bool(getattr(self.upstream, "stream_ordered", False))

    @property
    def kind(self) -> MemoryKind:
        """The kind of the memory: the device's, unless the bottom of the stack says otherwise."""
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
        tell(self.upstream, "trim", keep_bytes)

    def forget_stream(self, stream: int) -> None:
        """Take note that an idle stream is about to be destroyed: its handle may mean another one soon."""
        tell(part_with(self.upstream, "forget_stream"), "forget_stream", stream)

    def detach(self, streams: Iterable[int]) -> None:
        """Keep nothing for these streams: the stack may be used again, but is not told of their ends meanwhile."""
        detach(self.upstream, streams)


def taken_of(error: BaseException, nbytes: int) -> int:
    """Bytes that the upstream has, after its ``deallocate`` of a block has raised.

    All: what fails has the block even so. But for what a `Guard` refuses, and for a call that could not wait.
    """
    if isinstance(error, GuardError):
        return nbytes if error.taken is None else error.taken
    return 0 if isinstance(error, CannotWait) else nbytes


def part_with(resource: object, verb: str) -> object:
    """The first part of a stack that has an optional method, also below a third party's that does not pass it on; or None."""
    return next((each for each in chain(resource) if hasattr(each, verb)), None)


def detach(resource: object, streams: Iterable[int]) -> None:
    """Have a stack keep nothing for these streams. The word is ours alone: a third party's may mean anything by it."""
    part = next((each for each in chain(resource) if isinstance(each, Adaptor)), None)
    if part is not None:
        part.detach(streams)


def stream_tables(resource: object) -> tuple[dict[int, Any], ...] | None:
    """Tables by stream: a stack need not be told of the end of a stream that is in none. None: it has to be told of each."""
    parts = [each for each in chain(resource) if hasattr(each, "forget_stream")]
    asked = [each for each in parts if getattr(type(each), "forget_stream", None) is not Adaptor.forget_stream]
    tables: list[Any] = [each._by_stream if is_ours(each) else None for each in asked]  # else a name of another's
    return None if None in tables else tuple(tables)


def kind_of(resource: object) -> MemoryKind:
    """The kind of memory that a resource says it has; device memory, if it says nothing. PluginError if there is no such kind."""
    says = getattr(resource, "kind", MemoryKind.DEVICE)
    try:
        return MemoryKind(says)
    except ValueError:
        raise PluginError(
            f"{shown(resource)} says that its kind is {says!r}: it is one of {', '.join(MemoryKind)}"
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
    except (Exception, SystemExit) as error:
        if isinstance(error, DevmemError) and is_ours(resource):
            raise
        warnings.warn(
            f"{shown(resource)} cannot say what it keeps: {error!r}; counted as 0", DevmemWarning, stacklevel=2
        )
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
