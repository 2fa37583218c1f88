"""A deterministic scheduler of threads: one runs at a time, and a seed says which goes on at each point where they may switch.

Threads are real, so that thread locals, context variables and vendors' libraries see what they always see; a baton goes from one
to the next. Within `Scheduler.run` the modules of devmem that name ``threading``, ``SimpleQueue`` or ``time`` are given those of
this file, and the locks that they keep at module level are replaced.

Threads may switch where they take or let go of a lock, wait, start another thread or sleep, and where the program under test
calls `point`: `schedules.ScheduledDriver` does so at both ends of each call of a driver. A ``fine`` scheduler switches besides
where the interpreter may: behind each call, where a function of devmem begins, and where a loop goes round.

A thread that waits is not chosen until what it waits for has come. A time limit passes when nothing else can go on. If nothing
can, that is a deadlock: each thread gets an error, and `run` raises one with the stacks of all. A run that does not end within so
many points is told likewise.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import queue
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from os import sep as SEP
from types import CodeType, ModuleType
from typing import Any

import interrupts
from waits import patience

#: Points of one run after which it is taken to go round for ever, and seconds after which it is taken to wait in a driver.
MANY_POINTS, PATIENCE = 200_000, patience(60)
#: How likely another thread goes on at a point; one of them is drawn for each run, as faults differ in how often they want it.
CHANCES = (0.02, 0.1, 0.3, 1.0)

_mine = threading.local()


class Stuck(Exception):
    """The threads of a run wait for one another, or do not come to an end."""


class _Ended(BaseException):
    """Raised in the threads of a run that has failed."""


class Task:
    """One thread of a run."""

    def __init__(self, scheduler: Scheduler, thread: threading.Thread) -> None:
        self.scheduler = scheduler
        self.thread = thread
        self.number = len(scheduler.tasks)
        self.baton = threading.Lock()
        self.baton.acquire()
        self.waits_for: Callable[[], bool] | None = None
        self.what = ""
        self.has_limit = False
        self.done = False
        self.stop_watching: Callable[[], None] = lambda: None

    def can_go_on(self) -> bool:
        return self.waits_for is None or self.waits_for()


class Scheduler:
    """The threads of one run, and which of them has the baton.

    Attributes
    ----------
    points : int
        How often threads could switch.
    path : list of int
        The numbers of the threads in the order in which they went on: the same for the same seed.
    """

    def __init__(self, seed: int, *, fine: bool = False, chances: tuple[float, ...] = CHANCES) -> None:
        self.random = random.Random(seed)
        self.chance = self.random.choice(chances)
        self.fine = fine
        self.tasks: list[Task] = []
        self.points = 0
        self.path: list[int] = []
        self.failed: BaseException | None = None
        self._is_ending = False
        self._over = threading.Lock()
        self._over.acquire()

    def run(self, *bodies: Callable[[], object]) -> None:
        """Run these, each on a thread of its own, until all have returned; raise the first error of one."""
        with replaced():
            for body in bodies:
                self.add(Thread(target=body, name=getattr(body, "__qualname__", "body")))
            self._hand_on(None)
            if not self._over.acquire(timeout=PATIENCE):
                self.failed = Stuck(f"no thread has come to a point for {PATIENCE} s\n{self.stacks()}")
            self._end_all()
        if self.failed is not None:
            failed, self.failed = self.failed, None
            raise failed

    def add(self, thread: Thread) -> None:
        """Start a thread that goes on when it is chosen."""
        task = thread.task = Task(self, thread)
        self.tasks.append(task)
        threading.Thread.start(thread)

    def point(self, *, always: bool = False) -> None:
        """Let another thread go on, perhaps."""
        task: Task = _mine.task
        self._check()
        self.points += 1
        if self.points > MANY_POINTS:
            self._fail(Stuck(f"the threads have not come to an end after {MANY_POINTS} points\n{self.stacks()}"))
        if always or self.random.random() < self.chance:
            self._hand_on(task)

    def wait(self, condition: Callable[[], bool], what: str, *, limited: bool = False) -> bool:
        """Let others go on until a condition holds, or, ``limited``, until nothing else can go on; return whether it holds."""
        task: Task = _mine.task
        self._check()
        task.waits_for, task.what, task.has_limit = condition, what, limited
        try:
            self._hand_on(task)
        finally:
            task.waits_for = None
        return condition()

    def stacks(self) -> str:
        """Where each thread is, and what it waits for."""
        frames = sys._current_frames()
        told = []
        for task in self.tasks:
            frame = None if task.done else frames.get(task.thread.ident or 0)
            if frame is not None:
                lines = [line for line in traceback.format_stack(frame) if __file__ not in line]
                state = f"waits for {task.what}" if task.waits_for else "can run"
                told.append(f"{task.number}, {task.thread.name}, {state}:\n{''.join(lines)}")
        return "\n".join(told)

    # -- below ---------------------------------------------------------------------------------------------------------

    def _hand_on(self, task: Task | None) -> None:
        """Give the baton to a thread that can go on, and wait for it; the task may be the next itself."""
        following = self._choose()
        if following is None:
            if all(each.done or each.thread.daemon for each in self.tasks):
                self._over.release()
            else:
                self._fail(Stuck(f"the threads wait for one another\n{self.stacks()}"))
        elif following is not task:
            self.path.append(following.number)
            following.baton.release()
        if following is not task and task is not None and not task.done:
            task.baton.acquire()
            self._check()

    def _choose(self) -> Task | None:
        left = [task for task in self.tasks if not task.done]
        able = [task for task in left if task.can_go_on()]
        able = able or [task for task in left if task.has_limit and task.waits_for]
        return self.random.choice(able) if able else None

    def enter(self, task: Task) -> None:
        """Begin a thread: wait to be chosen."""
        _mine.task = task
        task.baton.acquire()
        if self.fine:
            task.stop_watching = interrupts.watch(_is_watched, lambda frame: point())

    def leave(self, task: Task) -> None:
        """End a thread."""
        task.stop_watching()
        task.done = True
        _mine.task = None
        if not self._is_ending:
            self._hand_on(task)

    def _check(self) -> None:
        if self._is_ending:
            raise _Ended

    def _fail(self, why: Stuck) -> None:
        self.failed, self._is_ending = why, True
        self._over.release()
        raise _Ended

    def _end_all(self) -> None:
        """Let every thread end that still waits: those that serve queues, or all where the run is stuck."""
        self._is_ending = True
        left = [task for task in self.tasks if not task.done]
        for task in left:
            if task.baton.locked():
                task.baton.release()
        for task in left:
            task.thread.join(1.0)


def current() -> Scheduler | None:
    """The scheduler of the calling thread."""
    task: Task | None = getattr(_mine, "task", None)
    return None if task is None else task.scheduler


def point() -> None:
    """Let another thread go on, perhaps; nothing outside of a run."""
    scheduler = current()
    if scheduler is not None:
        scheduler.point()


# -- what devmem's modules are given -----------------------------------------------------------------------------------


class Lock:
    """As `threading.Lock`; outside of a run it is one."""

    make: Callable[[], Any] = staticmethod(threading.Lock)

    def __init__(self) -> None:
        self.inner = self.make()
        self.owner: threading.Thread | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = current()
        if scheduler is None:
            taken: bool = self.inner.acquire(blocking, timeout)
        else:
            scheduler.point()
            while not (taken := self.inner.acquire(blocking=False)) and blocking:
                if not scheduler.wait(self._is_free, f"a lock of {self.owner}", limited=timeout >= 0):
                    return False
        if taken:
            self.owner, self.depth = threading.current_thread(), self.depth + 1
        return taken

    def release(self) -> None:
        self._let_go()
        self.inner.release()

    def locked(self) -> bool:
        return self.owner is not None

    def _is_free(self) -> bool:
        return self.owner is None

    def _let_go(self) -> None:
        self.depth -= 1
        if not self.depth:
            self.owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """As `threading.RLock`."""

    make = staticmethod(threading.RLock)

    def release(self) -> None:
        super().release()
        if not self.depth:
            point()

    def _is_owned(self) -> bool:
        return self.owner is threading.current_thread()

    def _at_fork_reinit(self) -> None:
        self.inner, self.owner, self.depth = self.make(), None, 0

    def _release_save(self) -> int:
        depth = self.depth
        for _ in range(depth):
            super().release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        for _ in range(depth):
            self.acquire()


class Condition(threading.Condition):
    """As `threading.Condition`."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock or RLock())

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = current()
        if scheduler is None:
            return super().wait(timeout)
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        saved = self._release_save()
        try:
            told = scheduler.wait(lambda: not waiter.locked(), "a condition", limited=timeout is not None)
        finally:
            self._acquire_restore(saved)
        if not told:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
        return told


class SimpleQueue:
    """As `queue.SimpleQueue`. To put something in is no point: it stands where nothing may come between."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.put = self.items.append

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        scheduler = current()
        if scheduler is not None and block:
            scheduler.wait(lambda: bool(self.items), "a queue", limited=timeout is not None)
        try:
            return self.items.popleft()
        except IndexError:
            raise queue.Empty from None

    def get_nowait(self) -> Any:
        return self.get(False)


class Thread(threading.Thread):
    """As `threading.Thread`; started within a run it takes part in it."""

    task: Task | None = None

    def start(self) -> None:
        scheduler = current()
        if scheduler is None:
            super().start()
        else:
            scheduler.add(self)
            scheduler.point()

    def run(self) -> None:
        task = self.task
        if task is None:
            super().run()
            return
        try:
            task.scheduler.enter(task)
            super().run()
        except _Ended:
            pass
        except BaseException as error:
            task.scheduler.failed = task.scheduler.failed or error
        with contextlib.suppress(_Ended):
            task.scheduler.leave(task)

    def is_alive(self) -> bool:
        return super().is_alive() if self.task is None else not self.task.done

    def join(self, timeout: float | None = None) -> None:
        scheduler, task = current(), self.task
        if scheduler is None or task is None:
            super().join(timeout)
        else:
            scheduler.wait(lambda: task.done, f"the end of {self.name}", limited=timeout is not None)


def start_new_thread(function: Callable[..., object], args: tuple[Any, ...]) -> int:
    """As `_thread.start_new_thread`. It is no point: it stands where nothing may come between."""
    thread, scheduler = Thread(target=function, args=args, daemon=True), current()
    if scheduler is None:
        thread.start()
    else:
        scheduler.add(thread)
    return thread.ident or 0


class _Instead:
    """A module with some of its names replaced."""

    def __init__(self, module: ModuleType, **names: object) -> None:
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


def sleep(seconds: float) -> None:
    """As `time.sleep`, but that it may pass at once."""
    scheduler = current()
    if scheduler is None:
        time.sleep(seconds)
    else:
        scheduler.point(always=True)


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Give devmem's modules the scheduler's locks, queues and threads."""
    locks: dict[int, Lock] = {}  # one for one, also where two names mean the same
    undo = []
    for holder, name in places():
        before = getattr(holder, name)
        undo.append((holder, name, before))
        instead = INSTEAD.get(id(before)) or locks.setdefault(id(before), RLock())
        setattr(holder, name, instead)
    try:
        yield
    finally:
        for holder, name, before in undo:
            setattr(holder, name, before)


INSTEAD: dict[int, object] = {
    id(threading): _Instead(threading, Lock=Lock, RLock=RLock, Condition=Condition, Thread=Thread),
    id(time): _Instead(time, sleep=sleep),
    id(queue.SimpleQueue): SimpleQueue,
    id(_thread.start_new_thread): start_new_thread,
}


#: What is taken for a lock.
KINDS: list[type] = [type(threading.RLock()), type(threading.Lock())]


def places() -> list[tuple[object, str]]:
    """Where devmem's modules name what is replaced, or keep a lock: in a global, or in an object that is one."""
    return _places(len(sys.modules))


@functools.lru_cache(maxsize=1)
def _places(modules: int) -> list[tuple[object, str]]:
    kinds = tuple(KINDS)
    found: list[tuple[object, str]] = []
    for path, module in list(sys.modules.items()):
        if path.startswith("devmem.") and not path.startswith("devmem.testing"):
            for name, value in vars(module).items():
                if id(value) in INSTEAD or isinstance(value, kinds):
                    found.append((module, name))
                elif type(value).__module__ in (path, "devmem._core.base.outer_lock"):
                    names = {*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())}
                    found += [(value, each) for each in sorted(names) if isinstance(getattr(value, each, None), kinds)]
    return found


# -- points between instructions ---------------------------------------------------------------------------------------


#: What tests stand on has real locks. Where the other files look, and how often, depends on addresses, which no seed chooses.
NOT_WATCHED = [f"{SEP}testing{SEP}"] + [
    f"{SEP}{name}.py" for name in ("address_space", "arena", "libraries", "page_locks", "ranges")
]


@functools.cache
def _is_watched(code: CodeType) -> bool:
    """Whether threads may switch inside a piece of code."""
    return f"{SEP}devmem{SEP}" in code.co_filename and not any(part in code.co_filename for part in NOT_WATCHED)
