"""Red zones, fill patterns and quarantine, which show how memory is misused.

Each block is bracketed by red zones of `FRESH` bytes; a freed one is filled with `FREED` and kept. Blocks are read when they
are given back, when they leave the quarantine, and by `Guard.check`. One lock guards the tables and is not held across a call
of the driver; while `Guard.check` reads, no block leaves the quarantine.
"""

from __future__ import annotations

import traceback
import warnings
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from inspect import currentframe
from itertools import islice
from pathlib import Path

from ...spi.driver import Driver
from ...spi.errors import ConfigError, DevmemError, DevmemWarning, GuardError, UnsupportedError
from ...spi.memory import MemoryResource
from ...spi.sizes import exact_size
from ...spi.types import LEGACY_STREAM
from ...toolkit.deferred_errors import FirstError
from ..base.interrupts import CannotWait
from ..base.size_text import parse_size
from .adaptor import Adaptor
from .device_access import MemoryAccess

#: What is in front of and behind a block, and in a new one.
FRESH = 0xFA
#: What is in a block that was given back.
FREED = 0xDD
#: Every address is a multiple of this, so that is what red zones are rounded up to.
ALIGNMENT = 256
#: A block and its red zones have fewer bytes than there are addresses.
MAX_REDZONE = 1 << 40
#: Lines of the program that are remembered of each allocation.
DEPTH = 16
#: Addresses that are remembered after their block has left the quarantine, to tell a second free from a foreign one.
REMEMBERED = 1000

_ROOT = str(Path(__file__).parents[2] / "_")[:-1]


class Guard(Adaptor):
    """Find writes outside of a block, double and foreign frees, and uses after free.

    Every block lies between two red zones. When it is given back they are read, the whole block is filled with a pattern, and
    it is kept in quarantine, where a later write shows. Kept blocks leave oldest first, when ``quarantine_bytes`` is passed,
    at ``trim``, and when memory runs out; each is checked once more before the upstream gets it.

    A mistake with the block that is being given back raises GuardError, with the lines that allocated (and freed) it, from an
    explicit ``free()`` or ``deallocate``. From an array that was dropped, and of a block that leaves the quarantine, it
    becomes a DevmemWarning. Either way it is in `reports`, and the block has been given back.

    For finding mistakes, not for speed. ``deallocate`` waits for the stream, to read; so the stack does not count as
    stream-ordered, and devmem gives blocks back only when every stream that it knows of has passed them. ``allocate`` waits for
    the stream unless the upstream is stream-ordered. Writes by streams that devmem does not know of are found if they have
    happened by then. Put it outermost: a `Scrub` above it would write into a block that comes back twice.

    Parameters
    ----------
    upstream : MemoryResource, optional
        Where the memory comes from.
    redzone : int or str
        Bytes in front of and behind each block, rounded up to a multiple of 256.
    quarantine_bytes : int or str
        Bytes that are kept after they were given back; a larger block is not kept at all.

    Attributes
    ----------
    reports : list of str
        Everything that was found, in order.

    Examples
    --------
    >>> with dm.use_memory(dm.memory.Guard()) as guard:
    ...     d = dm.zeros(3)
    ...     d.free()                            # GuardError, had anything been written beside the array
    >>> guard.reports
    []
    """

    #: Red zones are read when a block is given back, which waits.
    stream_ordered = False

    _shown = ("redzone", "quarantine_bytes")

    def __init__(
        self,
        upstream: MemoryResource | None = None,
        *,
        redzone: int | str = 256,
        quarantine_bytes: int | str = 64 << 20,
    ) -> None:
        super().__init__(upstream)
        self.redzone = -(-parse_size(redzone) // ALIGNMENT) * ALIGNMENT
        if self.redzone > MAX_REDZONE:
            raise ConfigError(f"Guard(redzone={redzone!r}): a red zone has at most {MAX_REDZONE} bytes")
        self.quarantine_bytes = parse_size(quarantine_bytes)
        self.reports: list[str] = []
        self._checks: set[object] = set()
        self._waits = True
        self._access: MemoryAccess
        self._start_anew()

    def _start_anew(self) -> None:
        self._live: dict[int, _Block] = {}
        self._kept: OrderedDict[int, _Block] = OrderedDict()
        self._kept_bytes = 0
        self._gone: OrderedDict[int, _Block] = OrderedDict()

    def bind(self, driver: Driver) -> None:
        """Take the device that fills and reads."""
        super().bind(driver)
        self._access = MemoryAccess(driver, self.kind)
        self._waits = not getattr(self.upstream, "stream_ordered", False)

    # -- the two verbs -------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int) -> int:
        """A block between red zones, filled with a pattern.

        Raises
        ------
        UnsupportedError
            The stream is capturing a graph.
        """
        if not nbytes:
            return 0
        if self._access.capturing(stream):
            raise UnsupportedError(
                f"{self!r} cannot allocate {exact_size(nbytes)} for a stream that is capturing a graph, which would fill the "
                f"red zones whenever it runs: allocate before the capture, or leave the Guard out"
            )
        size = nbytes + 2 * self.redzone
        base = self._allocate(size, stream)
        try:
            self._access.fill(base, FRESH, size, stream)
            if self._waits:
                # The memory may be used on every stream at once, so the fill must not overwrite what another stream wrote.
                self._access.driver.stream_synchronize(stream)
        except DevmemError:  # not behind an interrupt: the stream may still fill it
            with suppress(Exception):  # the failure that is told is the first
                self._deallocate(base, size, stream)
            raise
        block = _Block(base, size, base + self.redzone, nbytes, _stack())
        with self._lock:
            self._gone.pop(block.ptr, None)
            self._live[block.ptr] = block
        return block.ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        """Check the red zones, overwrite the block and put it into quarantine. Waits for the stream.

        Raises
        ------
        GuardError
            Something wrote outside of the block, or it has another size (then it was given back all the same); it was given
            back before, or never handed out, or the stream is capturing a graph (then nothing was).
        """
        if not ptr:
            return
        capturing = self._access.capturing(stream)
        with self._lock:
            block = self._live.get(ptr) if capturing else self._live.pop(ptr, None)
            if block is None:
                problem = self._unknown(ptr, nbytes)
                self.reports.append(problem)
                raise _refusal(problem)
            if capturing:
                raise _refusal(
                    f"{block} was given back on a stream that is capturing a graph, where it cannot be looked at: give it "
                    f"back when the capture has ended" + block.history()
                )
        self._take(block, nbytes, stream)

    def _take(self, block: _Block, nbytes: int, stream: int) -> None:
        """Put a block into quarantine, or give it back."""
        block.freed, ptr = _stack(), block.ptr
        try:
            wrong = self._damage(block, stream)
            if nbytes != block.nbytes:
                wrong.insert(0, f"{exact_size(nbytes)} were given back at {ptr:#x}, where {block} is")
            self._access.fill(block.base, FREED, block.size, stream)
            self._access.driver.stream_synchronize(stream)
        except DevmemError:  # not behind an interrupt: the stream may still fill it
            with suppress(Exception):
                self._deallocate(block.base, block.size, stream)
            raise
        with self._lock:
            self.reports += wrong
            # Blocks that `check` reads right now stay, however large.
            keep = block.size <= self.quarantine_bytes or bool(self._checks)
            if keep:
                self._keep(block)
            else:
                self._gone[ptr] = block
        try:
            if not keep:
                self._give(block, stream)
            self._release(self.quarantine_bytes, stream)
        except Exception as error:
            if wrong:
                raise _refusal("\n".join(wrong), block.nbytes) from error
            raise
        if wrong:
            raise _refusal("\n".join(wrong), block.nbytes)

    def _keep(self, block: _Block) -> None:
        with self._lock:
            self._kept[block.ptr] = block
            self._kept_bytes += block.size

    def _give(self, block: _Block, stream: int) -> None:
        """Give a block back to the upstream; where that would have to wait, it stays in quarantine for the next `trim`."""
        try:
            self._deallocate(block.base, block.size, stream)
        except CannotWait:
            self._keep(block)

    # -- looking -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the red zones of every live block, and all blocks in quarantine. Waits for the whole device.

        Raises
        ------
        GuardError
            A byte outside of the blocks was overwritten; it stays in `reports`, and is found again.
        UnsupportedError
            A graph is being captured, which waiting would end.
        """
        if self.driver is None:
            return
        if self._access.capturing(LEGACY_STREAM):
            raise UnsupportedError(
                f"{self!r} cannot look at its blocks while a graph is captured: check before, or after"
            )
        check, token = object(), None
        try:
            with self._lock:
                self._checks.add(check)  # from here on no block leaves the quarantine
                live, kept = list(self._live.values()), list(self._kept.values())
            token = self.driver.enter()
            self.driver.synchronize()
            wrong = []
            for block in live:
                damage = self._damage(block, LEGACY_STREAM)
                # One that another thread gives back meanwhile is overwritten, and checked there.
                wrong += damage if self._live.get(block.ptr) is block else []
            wrong += [each for block in kept for each in self._late_writes(block, LEGACY_STREAM)]
        finally:
            with self._lock:
                self._checks.discard(check)
            if token is not None:
                self.driver.exit(token)
        if wrong:
            with self._lock:
                self.reports += [each for each in wrong if each not in self.reports]
            raise GuardError("\n".join(wrong))

    # -- the quarantine ------------------------------------------------------------------------------------------------

    @property
    def cached_bytes(self) -> int:
        """Bytes that the stack keeps, with those in quarantine."""
        return super().cached_bytes + self._kept_bytes

    def trim(self, keep_bytes: int) -> None:
        """Let blocks out of quarantine, oldest first, and the upstream trim, until at most ``keep_bytes`` are kept.

        While a graph is captured no block leaves, as it cannot be looked at.
        """
        try:
            if self._kept and not self._access.capturing(LEGACY_STREAM):
                self._release(keep_bytes, LEGACY_STREAM)
        finally:
            super().trim(max(0, keep_bytes - self._kept_bytes))

    def _release(self, keep_bytes: int, stream: int) -> None:
        """Let the oldest blocks out of quarantine; all that are too much, also where one cannot be read or given back."""
        wrong: list[str] = []
        with FirstError() as first:
            for _ in range(len(self._kept)):  # once: one that cannot be given back now is kept anew
                with self._lock:
                    if self._checks or not self._kept or self._kept_bytes <= keep_bytes:
                        break
                    ptr, block = self._kept.popitem(last=False)
                    self._kept_bytes -= block.size
                    self._gone[ptr] = block
                try:
                    try:
                        wrong += self._late_writes(block, stream)
                    finally:
                        self._give(block, stream)
                except Exception as error:
                    first.put(error)
            with self._lock:
                while len(self._gone) > REMEMBERED:
                    self._gone.popitem(last=False)
        if wrong:
            with self._lock:
                self.reports += wrong
            warnings.warn("\n".join(wrong), DevmemWarning, stacklevel=4)

    # -- what is wrong -------------------------------------------------------------------------------------------------

    def _damage(self, block: _Block, stream: int) -> list[str]:
        """Return the damage in the red zones of a block, as lines of text."""
        wrong = []
        end = block.ptr + block.nbytes
        if (found := self._access.first_other(block.base, FRESH, self.redzone, stream)) is not None:
            before = self.redzone - found[0]
            wrong.append(f"underrun: the byte {before} before {block} was overwritten with {found[1]:#04x}")
        if (found := self._access.first_other(end, FRESH, self.redzone, stream)) is not None:
            wrong.append(f"overrun: the byte {found[0]} behind the end of {block} was overwritten with {found[1]:#04x}")
        return [text + block.history() for text in wrong]

    def _late_writes(self, block: _Block, stream: int) -> list[str]:
        """Return the damage in a block that was given back, as lines of text."""
        if (found := self._access.first_other(block.base, FREED, block.size, stream)) is None:
            return []
        at = found[0] - self.redzone
        return [f"use after free: the byte {at} of {block} was overwritten with {found[1]:#04x}" + block.history()]

    def _unknown(self, ptr: int, nbytes: int) -> str:
        """Why an address cannot be given back."""
        before = self._kept.get(ptr) or self._gone.get(ptr)
        if before is not None:
            return f"double free: {before} was given back already" + before.history()
        for block in list(self._live.values()):
            if block.base <= ptr < block.base + block.size:
                at = ptr - block.ptr
                return (
                    f"foreign free: {ptr:#x} ({exact_size(nbytes)}) is no block, but {at:+} bytes from {block}"
                    + block.history()
                )
        return f"foreign free: {ptr:#x} ({exact_size(nbytes)}) was never handed out by this Guard"


@dataclass(eq=False, slots=True)
class _Block:
    base: int
    size: int
    ptr: int
    nbytes: int
    allocated: traceback.StackSummary
    freed: traceback.StackSummary | None = None

    def __str__(self) -> str:
        return f"the block of {exact_size(self.nbytes)} at {self.ptr:#x}"

    def history(self) -> str:
        """Return the tracebacks of the block's allocation and of its free."""
        text = "\nallocated at (most recent call last):\n" + "".join(_lines(self.allocated))
        if self.freed is not None:
            text += "freed at (most recent call last):\n" + "".join(_lines(self.freed))
        return text.rstrip()


def _refusal(problem: str, taken: int = 0) -> GuardError:
    refused = GuardError(problem)
    refused.taken = taken
    return refused


def _stack() -> traceback.StackSummary:
    """The lines that led here; their source is read only when it is printed."""
    callers = islice(traceback.walk_stack(currentframe()), 2, None)
    stack = traceback.StackSummary.extract(callers, limit=DEPTH, lookup_lines=False)
    stack.reverse()
    return stack


def _lines(stack: traceback.StackSummary) -> list[str]:
    """The program's lines; devmem's own only where there are no others."""
    program = [frame for frame in stack if not frame.filename.startswith(_ROOT)]
    return traceback.StackSummary.from_list(program or list(stack)).format()
