"""Reports of errors in kernels: the block, the thread and the line."""

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

#: Frames of these modules are not the kernel's, but those of the names that it calls.
DEVMEM_PREFIX = "devmem."
_KERNEL_NAMES = vars(names)
_LIBRARIES = frozenset({"devmem", "devmem_redirect", "greenlet", "numba", "numpy"})
_STDLIB = sysconfig.get_path("stdlib")
_CALL = DeviceFunction.__call__.__code__

#: A call in a kernel that allocates memory: the id of its code (hashing a code object looks at all of it), the offset, and the
#: device function, as functions made by one factory share their code and have memory of their own.
MemorySite = tuple[int, int, DeviceFunction | None]


class Misuse(BaseException):
    """A mistake of a work-item, raised where it happens; a BaseException, so that no ``except Exception`` swallows it."""

    def __init__(self, kind: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.line = line  #: in the kernel, if the work-item has left it already


class CallSite:
    """A call in a kernel: its code and offset, and those of the calls that led to it, innermost first.

    Call sites are equal if all of that is: a barrier in a device function is a different one for each call of the function.
    """

    __slots__ = ("chain",)

    def __init__(self, chain: tuple[object, ...]) -> None:
        self.chain = chain

    def __str__(self) -> str:
        return describe(*self.innermost())

    def innermost(self) -> tuple[CodeType, int]:
        """The code that contains the call, and the line."""
        code, offset = self.chain[:2]
        assert isinstance(code, CodeType) and isinstance(offset, int)
        return code, _line(code, offset)


def user_frame(frame: FrameType | None) -> FrameType:
    """The innermost frame of the user's code, from this one outwards."""
    if frame is not None and frame.f_globals is _KERNEL_NAMES:  # the common case
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").startswith(DEVMEM_PREFIX):
        frame = frame.f_back
    assert frame is not None, "a kernel has a caller"
    return frame


def call_chain(frame: FrameType, end: CodeType) -> tuple[object, ...]:
    """Codes and offsets of a user's frame and its callers, up to the frame that runs ``end``, which is left out."""
    outer = frame.f_back
    if outer is None or outer.f_code is end:  # in the kernel itself, the common case
        return frame.f_code, frame.f_lasti
    chain: list[object] = []
    at: FrameType | None = frame
    while at is not None and at.f_code is not end:
        if not at.f_globals.get("__name__", "").startswith(DEVMEM_PREFIX):
            chain += at.f_code, at.f_lasti
        at = at.f_back
    return tuple(chain)


def memory_site(frame: FrameType) -> MemorySite:
    """The key of the memory that a user's frame allocates; it does not depend on the calls that led there."""
    outer, owner = frame.f_back, None
    if outer is not None and outer.f_code is _CALL:
        owner = outer.f_locals["self"]
    return id(frame.f_code), frame.f_lasti, owner


def describe(code: CodeType, line: int) -> str:
    """File, line, function and text of a line."""
    text = linecache.getline(code.co_filename, line).strip()
    return f"{Path(code.co_filename).name}:{line} in {code.co_name}" + (f": {text}" if text else "")


def report(kind: str, message: str, item: WorkItem, code: CodeType, line: int) -> SimulatorError:
    """The error to raise for a mistake of a work-item in a line."""
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
    """The report of an exception from a kernel, with the user's innermost line in the traceback."""
    waits = getattr(item, "place", ())
    # Without a line of the user's, the call of the kernel failed: a wrong number of arguments.
    code, line = _raised_at(error.__traceback__, kernel) or (
        CallSite(waits[1:]).innermost() if waits else (kernel, kernel.co_firstlineno)
    )
    if isinstance(error, Misuse):
        line = error.line or line
        told = report(error.kind, str(error), item, code, line)
        told.__cause__ = error.__cause__
        return told
    if isinstance(error, Interrupted):
        return report("interrupted", "the launch was interrupted here", item, code, line)
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
    """The innermost line of a traceback in the user's code: not in an installed library, unless that contains the kernel."""
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
