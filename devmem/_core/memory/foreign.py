"""Third-party resources: what is checked when one is installed, and at every call of it."""

# Decision: docs/adr/0006-any-allocator-fits-into-a-memory-stack.md
from __future__ import annotations

import inspect
import reprlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection
from functools import lru_cache
from types import CodeType, TracebackType
from typing import cast

from ...spi import SPI_VERSION
from ...spi.driver import Driver, FullDriver
from ...spi.errors import DevmemError, PluginError
from ...spi.memory import MemoryResource
from ...spi.sizes import exact_size
from ...spi.types import MemoryKind
from ...toolkit.locks import Rank, lock
from ..base.device_handle import checks_memory, known_or_all
from ..base.interrupts import calls_verb

#: What each method must take, positionally. A resource need not have the last three.
METHODS = {
    "allocate": ("nbytes", "stream"),
    "deallocate": ("ptr", "nbytes", "stream"),
    "bind": ("driver",),
    "trim": ("keep_bytes",),
    "forget_stream": ("stream",),
}
#: So many live blocks of a resource are compared with a new one: each step takes time that grows with their number.
MOST_COMPARED = 10_000
#: What is read, not called.
FACTS = ("stream_ordered", "cached_bytes", "largest_free_block", "kind")


class Boundary:
    """The verbs of a third-party resource, where code of ours calls it: an adaptor that stands over it, or a heap.

    What it returns is checked, and what it raises is explained. ``driver``: the device's, which is asked of each block of its
    memory whether it is any.
    """

    def __init__(self, resource: MemoryResource, place: str = "", driver: Driver | None = None) -> None:
        self.resource = resource
        self.place = place
        asked = driver is not None and checks_memory(driver.info)
        of_device = getattr(resource, "kind", MemoryKind.DEVICE) == MemoryKind.DEVICE
        self.driver = cast(FullDriver, driver) if asked and of_device else None
        self.alignment = driver.info.alignment if driver is not None and of_device else 1
        self.live: dict[int, int] = {}
        #: The same addresses in order, to find neighbours.
        self.starts: list[int] = []
        self._lock = lock("third party's blocks", Rank.LEAF)

    @calls_verb
    def allocate(self, nbytes: int, stream: int) -> int:
        """Ask the resource, and check what it returns."""
        try:
            ptr = self.resource.allocate(nbytes, stream)
        except (Exception, SystemExit) as error:
            explain(error, self.resource, f"allocate of {exact_size(nbytes)}{self.place}")
            raise
        self.live[self._checked(ptr, nbytes)] = nbytes
        with self._lock:
            if len(self.starts) < MOST_COMPARED:
                insort(self.starts, ptr)
        return ptr

    @calls_verb
    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Give the block back to the resource."""
        # Forgotten first: once it is given back, another thread may be handed the address.
        if self.live.pop(ptr, None) is not None:
            self._forget(ptr)
        try:
            self.resource.deallocate(ptr, nbytes, stream)
        except (Exception, SystemExit) as error:
            explain(error, self.resource, f"deallocate of {exact_size(nbytes)}{self.place}")
            raise

    def _forget(self, ptr: int) -> None:
        with self._lock:
            at = bisect_left(self.starts, ptr)
            if at < len(self.starts) and self.starts[at] == ptr:
                del self.starts[at]

    def _checked(self, ptr: object, nbytes: int) -> int:
        resource = self.resource
        if not isinstance(ptr, int) or isinstance(ptr, bool) or not 0 < ptr <= (1 << 64) - nbytes:
            problem = f"returned {ptr!r} for {exact_size(nbytes)}: an address is a positive int, and the block ends below 2**64"
        elif ptr in self.live:
            problem = (
                f"returned the address {ptr:#x} for {exact_size(nbytes)}, which it gave out before "
                f"({exact_size(self.live[ptr])}) and which was not returned"
            )
        elif shared := self._neighbours(ptr, nbytes):
            problem = (
                f"returned {ptr:#x} for {exact_size(nbytes)}, some of which it gave out before "
                f"({exact_size(self.live.get(shared[0], 0))} at {shared[0]:#x}) and which were not returned"
            )
        elif self.driver is not None and (known := known_or_all(self.driver, ptr, nbytes)) < nbytes:
            problem = (
                f"returned {ptr:#x} for {exact_size(nbytes)}, of which {self.driver.info.name} knows {exact_size(known)}: "
                f"the rest is no memory of its, or was freed"
            )
        elif ptr % self.alignment:
            problem = f"returned {ptr:#x} for {exact_size(nbytes)}: an address is a multiple of {self.alignment}"
        else:
            return ptr
        origin = defined_at(getattr(resource, "allocate", None) or type(resource))
        raise PluginError(
            f"the memory resource {shown(resource)} {problem} (from {package_of(type(resource).__module__)}{origin})"
        )

    def _neighbours(self, ptr: int, nbytes: int) -> list[int]:
        """Addresses of live blocks that share bytes with these."""
        with self._lock:
            at = bisect_right(self.starts, ptr)
            near = self.starts[max(at - 1, 0) : at + 1]
        # A handler that came into a change of the list may leave an address there that is out no more.
        return [each for each in near if each < ptr + nbytes and each in self.live and each + self.live[each] > ptr]


def is_ours(resource: object) -> bool:
    """Whether a resource is one of devmem's own, whose answers need no looking at."""
    return type(resource).__module__.startswith("devmem._core.")


def shown(resource: object) -> str:
    """A resource in a message, which has to be told even where the resource cannot be shown."""
    try:
        return repr(resource)
    except Exception:
        return f"of {type(resource).__qualname__}"


def explain(error: BaseException, resource: object, call: str) -> None:
    """Note on an exception which resource raised it, and where; it stays the exception that it is.

    A resource does not end the program: for SystemExit, PluginError is raised.
    """
    if isinstance(error, DevmemError) or any("memory resource" in note for note in getattr(error, "__notes__", ())):
        return
    by = (
        f"raised by the memory resource {type(resource).__qualname__} ({package_of(type(resource).__module__)})"
        f"{where(error.__traceback__)} in {call}"
    )
    if isinstance(error, SystemExit):
        raise PluginError(f"SystemExit({error}) was {by}") from error
    error.add_note(f"devmem: {by}")


def check_resource(found: object, spelled: str, origin: str = "") -> MemoryResource:
    """An object that can serve as a resource.

    Raises
    ------
    PluginError
        It lacks a verb, has one that cannot be called as it will be, or is written for a newer contract. Names the package
        that it is from, and the line.
    """
    if is_ours(found) and hasattr(found, "allocate") and hasattr(found, "deallocate"):
        return found  # before the protocol is asked, which takes 10 us on CPython 3.11
    if isinstance(found, type) or not isinstance(found, MemoryResource):
        source = f" (from {origin})" if origin else ""
        if isinstance(found, type) and issubclass(found, MemoryResource):
            raise PluginError(
                f"{found.__name__}{source} is not a memory resource but a class of them: give an instance"
            )
        raise PluginError(
            f"{spelled}{source} is not a memory resource: it needs allocate(nbytes, stream) -> int and "
            f"deallocate(ptr, nbytes, stream) (see devmem.spi.memory)"
        )
    origin = origin or package_of(type(found).__module__)
    check_version(found, spelled, origin)
    for name, parameters in METHODS.items():
        if hasattr(found, name):
            _check_method(getattr(found, name), f"{spelled}.{name}", parameters, origin)
    for fact in FACTS:
        value = inspect.getattr_static(found, fact, None)
        if inspect.isfunction(value):
            raise PluginError(f"{spelled}.{fact} is a method: make it a property (from {origin}{defined_at(value)})")
    try:
        ordered = getattr(found, "stream_ordered", False)
    except (Exception, SystemExit) as error:
        raise PluginError(f"{spelled}.stream_ordered raises (from {origin}): {error!r}") from error
    try:
        bool(ordered)
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{spelled}.stream_ordered is {reprlib.repr(ordered)}, not true or false (from {origin})"
        ) from error
    return found


def tell(resource: object, verb: str, argument: object) -> None:
    """Call one of the verbs that a resource need not have."""
    method = getattr(resource, verb, None)
    if method is not None:
        try:
            method(argument)
        except (Exception, SystemExit) as error:
            if not is_ours(resource):
                explain(error, resource, verb)
            raise


def check_version(found: object, spelled: str, origin: str) -> None:
    """Refuse what says that it is written for another contract; the previous one asked the same of resources."""
    try:
        version = getattr(found, "spi_version", SPI_VERSION)
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"the memory resource {spelled} from {origin} does not say for which contract it is written: {error!r}"
        ) from error
    if not isinstance(version, int) or version not in (SPI_VERSION - 1, SPI_VERSION):
        other = "upgrade devmem" if isinstance(version, int) and version > SPI_VERSION else f"upgrade {origin}"
        raise PluginError(
            f"the memory resource {spelled} from {origin} is written for contract {version}, this devmem has "
            f"contract {SPI_VERSION}: {other}"
        )


@lru_cache(maxsize=64)  # reads what is known of every distribution
def package_of(module: str) -> str:
    """The distribution that a module comes from, with its version; the module's own name if none is known."""
    import importlib.metadata  # only where something is wrong: half of what `import devmem` would take

    top = module.partition(".")[0]
    try:
        names = importlib.metadata.packages_distributions().get(top, [])
        return f"{names[0]} {importlib.metadata.version(names[0])}" if names else f"module {module}"
    except Exception:  # broken metadata must not hide the error that is to be told
        return f"module {module}"


def where(trace: TracebackType | None, but: Collection[str] = ()) -> str:
    """The file and line where an exception was raised, as a phrase; none of the files ``but``."""
    import traceback  # only where something is wrong

    found = traceback.extract_tb(trace)
    frames = [frame for frame in found if not frame.filename.startswith("<frozen") and frame.filename not in but]
    return f", {frames[-1].filename}:{frames[-1].lineno}," if frames else ""


def _check_method(function: object, spelled: str, parameters: tuple[str, ...], origin: str) -> None:
    if not callable(function):
        raise PluginError(f"{spelled} is not callable (from {origin})")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled: it cannot be asked, and says so when it is called
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise PluginError(
            f"{spelled}{signature} cannot be called as ({', '.join(parameters)}): {error} "
            f"(from {origin}{defined_at(function)})"
        ) from None


def defined_at(function: Callable[..., object]) -> str:
    """The file and line of a function, as the end of a phrase; nothing for a compiled one."""
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(function.__init__, "__code__", None)
    return f", {code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""
