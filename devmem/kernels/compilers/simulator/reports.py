"""Saying what went wrong in a kernel: which block, which thread, which line."""

from __future__ import annotations

import itertools
import linecache
import sysconfig
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from ....spi.errors import SimulatorError
from ... import names
from ...functions import DeviceFunction
from ...work_items import WorkItem
from . import advice
from .interrupts import Interrupted

#: Modules whose frames are not the kernel's, although they are above it on the stack: the names that it uses.
OURS = "devmem."
_NAMES = vars(names)
_LIBRARIES = frozenset({"devmem", "greenlet", "numba", "numpy"})
_STDLIB = sysconfig.get_path("stdlib")
_CALL = DeviceFunction.__call__.__code__

#: A line of a kernel that asks for memory: the code by its identity (its hash, as its equality, goes by all that is in it), the
#: offset, and the device function: of those made by one factory each has memory of its own, as it is compiled by itself.
Site = tuple[int, int, DeviceFunction | None]


class Misuse(BaseException):
    """What a work-item did wrong, raised where it did it. No ``except Exception`` on the way takes it for something else."""

    def __init__(self, kind: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.line = line  #: of the kernel, where the work-item has left it already


class Place:
    """A call in a kernel: its code and offset, and those of the calls that led to it, innermost first.

    Two are the same if all of that is: what a device function waits at is another barrier at each place where that is called.
    """

    __slots__ = ("chain",)

    def __init__(self, chain: tuple[object, ...]) -> None:
        self.chain = chain

    def __str__(self) -> str:
        return describe(*self.innermost())

    def innermost(self) -> tuple[CodeType, int]:
        """The code that the call stands in, and the line."""
        code, offset = self.chain[:2]
        assert isinstance(code, CodeType) and isinstance(offset, int)
        return code, _line(code, offset)


def caller(frame: FrameType | None) -> FrameType:
    """The first frame of the user's, from this one outwards."""
    if frame is not None and frame.f_globals is _NAMES:  # as nearly always
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").startswith(OURS):
        frame = frame.f_back
    assert frame is not None, "a kernel is called by somebody"
    return frame


def chain_of(frame: FrameType, end: CodeType) -> tuple[object, ...]:
    """What identifies the call that a frame of the user's is at: up to the frame that runs ``end``, which is not part of it."""
    outer = frame.f_back
    if outer is None or outer.f_code is end:  # in the kernel itself, as nearly always
        return frame.f_code, frame.f_lasti
    chain: list[object] = []
    at: FrameType | None = frame
    while at is not None and at.f_code is not end:
        if not at.f_globals.get("__name__", "").startswith(OURS):
            chain += at.f_code, at.f_lasti
        at = at.f_back
    return tuple(chain)


def site_of(frame: FrameType) -> Site:
    """What identifies the memory that a frame of the user's asks for, whatever calls led there."""
    outer, owner = frame.f_back, None
    if outer is not None and outer.f_code is _CALL:
        owner = outer.f_locals["self"]
    return id(frame.f_code), frame.f_lasti, owner


def describe(code: CodeType, line: int) -> str:
    """File, line, function and text of a line."""
    text = linecache.getline(code.co_filename, line).strip()
    return f"{Path(code.co_filename).name}:{line} in {code.co_name}" + (f": {text}" if text else "")


def report(kind: str, message: str, item: WorkItem, code: CodeType, line: int) -> SimulatorError:
    """The error to raise for what a work-item did in a line."""
    (i, j, k), (x, y, z) = item.block, item.thread
    return SimulatorError(
        f"{kind}: {message}\n  block {(i, j, k)}, thread {(x, y, z)}\n  {describe(code, line)}",
        kind=kind,
        block=(i, j, k),
        thread=(x, y, z),
        filename=code.co_filename,
        lineno=line,
    )


def explain(error: BaseException, item: WorkItem, kernel: CodeType) -> SimulatorError:
    """The report of an exception that came out of a kernel: where it was raised, or where the kernel called what raised it."""
    waits = getattr(item, "place", ())
    # Where there is no line of the user's the call itself failed: the wrong number of arguments.
    code, line = _raised_at(error.__traceback__, kernel) or (
        Place(waits[1:]).innermost() if waits else (kernel, kernel.co_firstlineno)
    )
    if isinstance(error, Misuse):
        line = error.line or line
        told = report(error.kind, str(error), item, code, line)
        told.__cause__ = error.__cause__
        return told
    if isinstance(error, Interrupted):
        return report("interrupted", "the launch was ended here, by who waited for it", item, code, line)
    told = report("exception", f"{type(error).__name__}: {error}{advice.on_exception(error)}", item, code, line)
    told.__cause__ = error
    return told


def locals_of(error: BaseException) -> list[Any]:
    """The values of all local variables of the frames that an exception, or what led to it, keeps alive."""
    values: list[Any] = []
    link: BaseException | None = error
    while link is not None:
        trace = link.__traceback__
        while trace is not None:
            values += trace.tb_frame.f_locals.values()
            trace = trace.tb_next
        link = link.__cause__ or link.__context__
    return values


def _raised_at(trace: TracebackType | None, kernel: CodeType) -> tuple[CodeType, int] | None:
    """The innermost line of a traceback that is the user's: not a library's that is installed, unless the kernel is its."""
    found, home = None, None
    while trace is not None:
        code = trace.tb_frame.f_code
        package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if code is kernel:
            home = package
        if package not in _LIBRARIES and (package == home or not _installed(code.co_filename)):
            found = code, trace.tb_lineno
        trace = trace.tb_next
    return found


def _installed(filename: str) -> bool:
    return filename.startswith((_STDLIB, "<frozen ")) or not {"site-packages", "dist-packages"}.isdisjoint(
        Path(filename).parts
    )


def _line(code: CodeType, offset: int) -> int:
    position = next(itertools.islice(code.co_positions(), offset // 2, None), None)
    return (position[0] if position is not None else None) or code.co_firstlineno
