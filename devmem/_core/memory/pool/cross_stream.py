"""How free blocks get from one stream to another: by events, and by waiting for the device."""

from __future__ import annotations

from ....spi.driver import Driver
from ....spi.errors import BackendError
from ....spi.types import LEGACY_STREAM, Capability
from ....toolkit.deferred_errors import FirstError
from .free_lists import Books
from .stream_cache import Fence, Home

#: A stream is asked if what came back on it makes up one part in so many of what is looked for.
WORTH = 2
#: So many events are kept for the next time.
SPARE = 64


class Crossing:
    """Asks the driver what streams have passed, and writes it into the books of a pool; the books are never open meanwhile.

    The handle of a stream is named only while it surely is one: by the call that is given it, or as long as `Books` trust it.
    """

    def __init__(self, books: Books, driver: Driver) -> None:
        self.books = books
        self.driver = driver
        self._spare: list[int] = []
        self.captures = Capability.CAPTURE in driver.info.capabilities

    def open_to_all(self, stream: int, size: int = 0) -> None:
        """Make everyone's what streams have passed, for the sake of one that found no block of this size of its own.

        Streams that have little in comparison are not asked; and it itself only where there are others' blocks that its own may
        merge with. Without a size all are asked: only what is everyone's can go back.
        """
        self.poll()
        books = self.books
        made: list[tuple[Fence, int]] = []
        with books.open() as ours:
            mine = books.home(stream) if ours else None
            fenced = {id(fence.home) for fence in books.fences}
            homes = books.homes() if ours else []
            own = not size or bool(books.idle.nbytes) or any(home.free.nbytes for home in homes if home is not mine)
            for home in homes:
                if not home.trusted or home.lost or id(home) in fenced or (home is mine and not own):
                    continue
                if home.cached() >= size // WORTH:
                    fence = books.fence(home, recording=True)
                    if fence is not None:
                        made.append((fence, self._handle(home)))
        try:
            for fence, handle in made:
                if not self.capturing(handle) and not self._record(fence, handle) and fence.home is not None:
                    fence.home.lost = True  # a stream that cannot be asked is waited for by trim, with all others
        finally:
            for fence, _ in made:
                fence.recorded()
            with books.open():
                for fence, _ in made:
                    if not fence.event:
                        books.unfence(fence)
        if made:
            self.poll()

    def mark(self, fence: Fence, stream: int) -> None:
        """Record the event of a new fence on a stream that surely lives now. Without one the blocks wait for the device."""
        try:
            if not self.capturing(stream):
                self._record(fence, stream)
        except BackendError:
            pass  # whoever calls did not come for this
        finally:
            fence.recorded()

    def forget(self, stream: int) -> None:
        """Put an event behind what came back on a stream that is about to be destroyed, and do not name it again."""
        with self.books.open() as ours:
            if not ours:
                self.books.later.append(lambda: self.books.forget(stream, recording=False))
                return
            fence, recordings = self.books.forget(stream, recording=True)
        if fence is not None:
            self.mark(fence, stream)
        for recording in recordings:
            with recording:  # another thread is recording an event on it right now
                pass

    def _handle(self, home: Home) -> int:
        if home.thread is None or home is getattr(self.books.mine, "home", None):
            return home.stream
        # Another thread's default stream has no name here, but the legacy stream waits for it.
        return LEGACY_STREAM

    def _record(self, fence: Fence, handle: int) -> bool:
        """Record the event of a fence; False if the driver will not."""
        driver = self.driver
        try:
            event = self._spare.pop()
        except IndexError:
            event = driver.event_create(False)
        try:
            driver.event_record(event, handle)
        except BaseException as error:
            driver.event_destroy(event)
            if isinstance(error, BackendError):
                return False
            raise
        fence.event = event
        return True

    def poll(self) -> None:
        """Make everyone's what lies behind events that have passed."""
        books, driver = self.books, self.driver
        if not books.fences:
            return
        with books.open() as ours:
            asked = [each for each in books.fences if each.event and not each.asked] if ours else []
            for fence in asked:
                fence.asked = True
        passed: list[Fence] = []
        try:
            for fence in asked:
                if driver.event_query(fence.event):
                    passed.append(fence)  # noqa: PERF401 -- what had passed before one failed has passed
        finally:
            with books.open():
                for fence in asked:
                    fence.asked = False
                for fence in passed:
                    books.fences.remove(fence)
                    fence.pass_to(books.idle)
                books.drop_empty_homes()
            self._spare += [fence.event for fence in passed]
        self.drop_events(SPARE)

    def drop_events(self, keep: int = 0) -> None:
        """Destroy events that nobody uses, but for so many."""
        if len(self._spare) <= keep:
            return
        with FirstError() as first:
            while len(self._spare) > keep:
                try:
                    self.driver.event_destroy(self._spare.pop())
                except IndexError:  # another thread had it
                    break
                except Exception as error:  # the others are still to be
                    first.put(error)

    def wait_for_all(self) -> None:
        """Make everyone's all that is free by now, after the whole device has passed it."""
        books = self.books
        with books.open() as ours:
            if not ours:
                return
            made = [books.fence(home, recording=False) for home in books.homes()]
            before = list(books.fences)
        try:
            # The whole device: then no handle has to be named that might be gone by now.
            self.driver.synchronize()
        except BaseException:
            with books.open():
                for fence in made:
                    if fence is not None:
                        books.unfence(fence)
            raise
        with books.open():
            for fence in before:
                fence.pass_to(books.idle)
                if not fence.event and fence.recording is None and fence in books.fences:
                    books.fences.remove(fence)
        self.poll()

    def capturing(self, stream: int) -> bool:
        """Whether work on the stream is recorded into a graph, where no call of ours has a place."""
        return self.captures and bool(self.driver.capturing(stream))  # type: ignore[attr-defined]

    def any_capturing(self) -> bool:
        """Whether some stream that can be asked captures a graph: then nothing may be waited for."""
        if not self.captures:
            return False
        with self.books.open():
            handles = [home.stream for home in self.books.streams.values() if home.trusted and not home.lost]
        # The legacy stream first: it cannot be asked where some other is capturing, and that is the answer.
        return any(self.capturing(handle) for handle in (LEGACY_STREAM, *handles))
