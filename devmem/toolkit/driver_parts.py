"""A driver that is put together from parts, each with some methods of the contract, and the facts of its device.

A backend writes a part for each of its own concerns (memory, copies, code) and takes the others from the toolkit. All parts of
an open device share one `DriverState`. `ComposedDriver` makes the parts' bound methods attributes of the driver: so the flat
contract costs no frame more than the part's own method, and ``driver.alloc`` is a memory resource as it stands. No part refers to
the driver, so there is no reference cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..spi.driver import PROTOCOLS, Driver, TellsWhatIsOut
from ..spi.errors import DevmemError
from ..spi.types import Capability, DeviceInfo, MemoryKind
from .deferred_errors import FirstError
from .handles import Handles
from .vendor_functions import RelaxedCapture, StatusErrors, VendorFunctions

#: The methods of the contract and of all its optional protocols.
CONTRACT = [
    name
    for protocol in (Driver, TellsWhatIsOut, *PROTOCOLS.values())
    for name in vars(protocol)
    if not name.startswith("_")
]

#: While devmem opens a device, the drivers that have begun to open: it closes those that come to no use.
opening: ContextVar[list[Any]] = ContextVar("the drivers that have begun to open")

#: The advice for managed memory, in the order of the vendors' numbers, which begin at 1.
ADVICE = tuple(
    f"{verb}_{what}" for what in ("read_mostly", "preferred_location", "accessed_by") for verb in ("set", "unset")
)


class DriverState:
    """State that the parts of one open device share."""

    def __init__(
        self,
        ordinal: int,
        functions: VendorFunctions,
        errors: StatusErrors,
        relaxed_capture: RelaxedCapture,
        streams: Handles[Any],
        events: Handles[Any],
    ) -> None:
        self.ordinal = ordinal
        self.functions = functions
        self.errors = errors
        self.relaxed_capture = relaxed_capture
        self.streams = streams
        self.events = events
        self.graphs: dict[int, Any] = {}


class Part:
    """Some methods of the contract, with what they use of the state at hand."""

    def __init__(self, state: DriverState) -> None:
        self._functions = state.functions
        self._recorded = state.functions.recorded
        self._errors = state.errors
        self._relaxed = state.relaxed_capture.run
        self._streams = state.streams
        self._events = state.events
        self._graphs = state.graphs
        self._ordinal = state.ordinal


class Taken:
    """A context, a pool or the like that a driver takes, by functions in the form of `vendor_functions.recorded`.

    What these record stays here until it is given back, so an interrupt at any point loses nothing: `give_back` is called again.
    """

    def __init__(self) -> None:
        self._records: list[list[Any]] = []

    def take(self, make: Callable[..., None], *arguments: Any) -> Any:
        """Call the function that makes one; returns it."""
        record: list[Any] = []
        self._records.append(record)
        make(record, *arguments)
        return record[0]

    def give_back(self, end: Callable[[list[Any], Any], None]) -> None:
        """End all by a function; then raise the first error."""
        with FirstError() as first:
            for record in list(self._records):
                first.attempt(self._end, record, end)

    def _end(self, record: list[Any], end: Callable[[list[Any], Any], None]) -> None:
        ended: list[Any] = []
        try:
            if record:
                end(ended, record[0])
        except DevmemError:
            ended.append(record)  # it is given back even so, as the contract says
            raise
        finally:
            if ended:
                record.clear()
        self._records.remove(record)


class StridedCopies:
    """A base class for strided copies that backends of contract 1 inherited; it is empty now."""


class ComposedDriver:
    """A driver with the methods of the contract that its parts have; ``info`` and ``close`` are the subclass's."""

    info: DeviceInfo
    #: Whether ``close`` is right at every stage of opening and closing, and may be called again; see `begin`.
    closes_at_any_stage = False

    def begin(self) -> None:
        """Say that from now on ``close`` gives back what has been taken so far, whatever that is, also when called again.

        To be called before anything is taken. Then nothing is lost if an interrupt comes while the device opens, or while it
        closes: devmem closes the driver later.
        """
        self.closes_at_any_stage = True
        opening.get([]).append(self)

    def compose(self, *parts: object) -> None:
        """Take in the methods of some parts."""
        for part in parts:
            for name in CONTRACT:
                if hasattr(part, name):
                    setattr(self, name, getattr(part, name))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


#: How a driver of contract 1 declares its strided copies: those of rows, and those of slices.
STRIDED = frozenset({Capability.STRIDED_COPY, "volume_copy"})


class WithoutStridedCopies(ComposedDriver):
    """A driver of contract 1, whose strided copies are not those of today: it is left without."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.compose(driver)
        vars(self).pop("copy_strided", None)  # that of the protocol, by inheritance
        self.info = replace(driver.info, capabilities=driver.info.capabilities - STRIDED)

    def __getattr__(self, name: str) -> Any:
        if name in ("copy_strided", "_driver"):
            raise AttributeError(name)
        return getattr(self._driver, name)


def lacking(driver: object, protocol: type) -> list[str]:
    """The methods of a protocol that a driver has not, or only as the protocol's own, by inheritance: those do nothing."""
    methods = {name: method for name, method in vars(protocol).items() if not name.startswith("_")}
    return [
        name
        for name, method in methods.items()
        if not hasattr(driver, name) or getattr(getattr(driver, name), "__func__", None) is method
    ]


def memory_kinds(facts: Mapping[str, int], *, managed: bool = True) -> frozenset[MemoryKind]:
    """The kinds of memory that a device has; ``managed``: whether the library has the function that allocates it."""
    kinds = {MemoryKind.DEVICE, MemoryKind.PINNED}
    if facts["can_map_host_memory"]:
        kinds.add(MemoryKind.MAPPED)
    if facts["managed_memory"] and managed:
        kinds.add(MemoryKind.MANAGED)
    return frozenset(kinds)


def coherence(facts: Mapping[str, int]) -> str:
    """`DeviceInfo.coherence`, by the vendors' attributes."""
    if not facts["pageable_memory_access"]:
        return ""
    return "ATS" if facts["host_page_tables"] else "HMM"


def text(raw: bytes) -> str:
    """The text in a buffer that ends with a zero."""
    return raw.partition(b"\0")[0].decode(errors="replace")


def typed_facts(facts: Mapping[str, int], counts: frozenset[str]) -> dict[str, int]:
    """The facts as integers where they count something, else as True or False."""
    return {name: value if name in counts else bool(value) for name, value in facts.items()}
