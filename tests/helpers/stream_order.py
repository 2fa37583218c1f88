"""What is ordered before what, by the rules of streams and of nothing else: a vector clock for each stream, and one for the host.

Programs that draw their streams at random ask it where an operation would race with an earlier one, and order the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT = 0  #: the place of the legacy default stream
HOST = -1

Access = tuple[int, int]
Clock = dict[int, int]


@dataclass(eq=False)
class Touched:
    """Memory on either side, and who touched it."""

    written: Access | None = field(default=None, kw_only=True)
    read: list[Access] = field(default_factory=list, kw_only=True)

    def hazards(self, writes: bool) -> list[Access]:
        """What has to be ordered before the next access."""
        return [*([self.written] if self.written else []), *(self.read if writes else [])]

    def touched(self, access: Access | None, writes: bool) -> None:
        """Take note of an access; None is one that is complete, so nothing has to wait for it."""
        if access is None:
            if writes:
                self.written, self.read = None, []
        elif writes:
            self.written, self.read = access, []
        else:
            self.read.append(access)


class StreamOrder:
    """The clocks. A stream is a place, from 0 on, which is the legacy default stream."""

    def __init__(self) -> None:
        self.blocking = [True]
        self.clocks: list[Clock] = [{}]
        self.host: Clock = {}
        self.count = [0]

    def new_stream(self, blocking: bool) -> int:
        """A new place; a blocking stream is ordered with the legacy default stream."""
        self.blocking.append(blocking)
        self.clocks.append({})
        self.count.append(0)
        return len(self.count) - 1

    def before(self, place: int) -> Clock:
        """What an operation that is enqueued now on a stream comes after."""
        known = join(self.clocks[place], self.host)
        if place == DEFAULT:
            for other, blocking in enumerate(self.blocking):
                if blocking:
                    known = join(known, self.clocks[other])
        elif self.blocking[place]:
            known = join(known, self.clocks[DEFAULT])
        return known

    def enqueue(self, place: int, *, complete: bool) -> Access | None:
        """An operation on a stream; None where the call returns with it complete."""
        known = self.before(place)
        self.count[place] += 1
        known[place] = self.count[place]
        self.clocks[place] = known
        if complete:
            self.host = join(self.host, known)
            return None
        return place, self.count[place]

    def is_ordered(self, place: int, access: Access) -> bool:
        """Whether what comes next on a stream, or on the host, comes after an access."""
        other, count = access
        return (self.host if place == HOST else self.before(place)).get(other, 0) >= count

    def waited(self, clock: Clock | None = None) -> None:
        """The host has waited for a stream's work, or for that of all."""
        for each in self.clocks if clock is None else [clock]:
            self.host = join(self.host, each)

    def waits(self, place: int, clock: Clock) -> None:
        """A stream waits for another one's work."""
        self.clocks[place] = join(self.clocks[place], clock)


def join(one: Clock, other: Clock) -> Clock:
    """What is known where both are."""
    return {place: max(one.get(place, 0), other.get(place, 0)) for place in one.keys() | other.keys()}
