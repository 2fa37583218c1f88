"""Looks, in every test but those of interrupts, at the order in which threads take devmem's locks: see devmem/toolkit/locks.py.

A lock that is taken anew has to have a higher rank than all that the thread has, and under one of rank LEAF no method of a driver
is asked for. What does not keep to that is noted, as an error might be swallowed where it comes, and fails the test at its end.

A function that devmem has called under a lock is looked at, too: its own lock, of which nothing is known here, may be held by a
thread that waits for devmem's. Not so a finalizer, or a signal's handler: those come anywhere.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any

import scheduler

from devmem._core.base import outer_lock
from devmem._core.base.device_handle import checked_driver
from devmem._core.device import opening
from devmem.spi.driver import PROTOCOLS, REQUIRED, Driver
from devmem.toolkit import locks
from devmem.toolkit.locks import Rank

#: Whether ranks are looked at.
is_looking = True
#: What was noted since the last test.
noted: list[str] = []
_mine = threading.local()
_plain = locks.make


class CheckedLock:
    """A lock whose rank is looked at before it is taken. As with the lock itself, it is taken and given back in C."""

    def __init__(self, name: str, rank: Rank, inner: Any = None) -> None:
        self.name, self.rank = name, rank
        self.inner = inner or _plain(name, rank)
        self.release = self.inner.release
        self._is_owned = self.inner._is_owned

    @property
    def __enter__(self) -> Any:
        _look_at(self)
        return self.inner.__enter__

    @property
    def acquire(self) -> Any:
        _look_at(self)
        return self.inner.acquire

    __exit__: Any = property(attrgetter("inner.__exit__"))

    def __repr__(self) -> str:
        return repr(self.inner)

    def _at_fork_reinit(self) -> None:
        self.inner._at_fork_reinit()


def held() -> list[tuple[CheckedLock, CodeType]]:
    """What this thread has, in the order in which it was taken, and where."""
    before = getattr(_mine, "held", ())
    _mine.held = [each for each in before if each[0]._is_owned()]
    return _mine.held


def _look_at(lock: CheckedLock) -> None:
    if not is_looking or lock._is_owned():
        return
    mine, frame = held(), sys._getframe(2)
    if frame.f_code.co_filename == outer_lock.__file__ and frame.f_back is not None:
        frame = frame.f_back  # who takes it
    for other, code in mine:
        if other.rank >= lock.rank and not _comes_between(frame, code):
            note(f"{lock.name!r} ({lock.rank.name}) is taken under {other.name!r} ({other.rank.name})", frame)
    mine.append((lock, frame.f_code))


def _comes_between(frame: FrameType | None, code: CodeType) -> bool:
    """Whether a finalizer came while a function had a lock."""
    while frame is not None and frame.f_code is not code:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def note(what: str, frame: FrameType) -> None:
    noted.append(f"{what}:\n{''.join(traceback.format_stack(frame, 12))}")


class Method:
    """A driver's method. Whoever asks for it calls it: so no frame stands in between."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, driver: object, kind: type) -> Any:
        if driver is not None and getattr(_mine, "held", ()):
            for lock, code in held():
                frame = sys._getframe(1)
                if lock.rank is Rank.LEAF and not _comes_between(frame, code):
                    note(f"the driver's {self.function.__name__} is called under {lock.name!r} (LEAF)", frame)
        return self.function.__get__(driver, kind)


def install() -> None:
    """Have devmem make such locks, and exchange those that it has made already."""
    names = {id(each()): each for each in locks.known}
    scheduler.KINDS.append(CheckedLock)
    for holder, name in scheduler.places():
        if (known := names.get(id(before := getattr(holder, name)))) is not None:
            setattr(holder, name, CheckedLock(known.name, known.rank, before))
    locks.make = CheckedLock  # type: ignore[assignment]
    opening.checked_driver = watch


def watch(driver: Driver, *where: Any) -> Driver:
    """As `checked_driver`; the calls of a driver's class are looked at."""
    names = {*REQUIRED, *(name for protocol in PROTOCOLS.values() for name in vars(protocol))}
    for kind in type(driver).__mro__:
        if kind.__module__.startswith(("devmem.backends.", "devmem.toolkit.")):
            for name, value in list(vars(kind).items()):
                if name in names and callable(value) and not name.startswith("_") and not isinstance(value, type):
                    setattr(kind, name, Method(value))
    return checked_driver(driver, *where)
