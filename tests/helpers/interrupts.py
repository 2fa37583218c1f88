"""Something done at one of the points of a piece of code at which Python may run a signal's handler."""

from __future__ import annotations

import dis
import itertools
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Watched = Callable[[CodeType], bool]
_found: dict[int, tuple[CodeType, frozenset[int]]] = {}
BEFORE_A_POINT = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX"}


def points(code: CodeType) -> frozenset[int]:
    """`_points`, found by the code's identity: its own hash is made of all its instructions."""
    found = _found.get(id(code))
    if found is None:
        found = _found[id(code)] = code, _points(code)
    return found[1]


def _points(code: CodeType) -> frozenset[int]:
    """Offsets before which Python may run a handler: behind calls, where a function begins, and where a loop goes round."""
    instructions = list(dis.get_instructions(code))
    entries = dis.Bytecode(code).exception_entries

    def handlers(offset: int) -> list[int]:
        return [each.target for each in entries if each.start <= offset < each.end]

    # The handler runs at the end of the call. Here it is called at the beginning of the next instruction, which is left out where
    # other handlers of exceptions are in force: behind the last call of a `with` block its end would not be called.
    behind = {
        after.offset
        for each, after in itertools.pairwise(instructions)
        if each.opname in BEFORE_A_POINT and handlers(each.offset) == handlers(after.offset)
    }
    return frozenset(behind | {each.offset for each in instructions if each.opname.startswith("JUMP_BACKWARD")})


if sys.version_info >= (3, 12):
    # A tracer is told of a function's instructions from its second call on only, in 3.13 and newer: the interpreter's monitoring
    # is told of all of them.
    _TOOL, _INSTRUCTION = 4, sys.monitoring.events.INSTRUCTION
    _watching: dict[int, tuple[Watched, Callable[[FrameType], object]]] = {}

    def watch(watched: Watched, at_point: Callable[[FrameType], object]) -> Callable[[], None]:
        """Call ``at_point`` with the frame at each point of watched code that this thread comes by; returns what ends it."""
        if sys.monitoring.get_tool(_TOOL) is None:
            sys.monitoring.use_tool_id(_TOOL, __name__)
            sys.monitoring.register_callback(_TOOL, _INSTRUCTION, _at_instruction)
        me = threading.get_ident()
        before = _watching.get(me)
        answers: dict[int, tuple[CodeType, bool]] = {}  # by identity: to ask costs more than all else at an instruction

        def watched_once(code: CodeType) -> bool:
            found = answers.get(id(code))
            if found is None:
                found = answers[id(code)] = code, watched(code)
            return found[1]

        _watching[me] = watched_once, at_point
        sys.monitoring.restart_events()  # another code was watched before
        sys.monitoring.set_events(_TOOL, _INSTRUCTION)

        def stop() -> None:
            if before is not None:
                _watching[me] = before
            elif _watching.pop(me, None) and not _watching:
                sys.monitoring.set_events(_TOOL, 0)

        return stop

    def _at_instruction(code: CodeType, offset: int) -> object:
        if not any(watched(code) for watched, _ in list(_watching.values())):
            return sys.monitoring.DISABLE
        watched, at_point = _watching.get(threading.get_ident(), (None, None))
        if watched is not None and at_point is not None and watched(code) and offset in points(code):
            at_point(sys._getframe(1))
        return None

else:

    def watch(watched: Watched, at_point: Callable[[FrameType], object]) -> Callable[[], None]:
        """Call ``at_point`` with the frame at each point of watched code that this thread comes by; returns what ends it."""

        def at_call(frame: FrameType, event: str, arg: object) -> Any:
            if not watched(frame.f_code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return at_opcode

        def at_opcode(frame: FrameType, event: str, arg: object) -> Any:
            if event == "opcode" and frame.f_lasti in points(frame.f_code):
                at_point(frame)
            return at_opcode

        def stop(kept: object = at_call) -> None:
            sys.settrace(before)

        # CPython 3.11 calls a tracer though the collector ran meanwhile, and what that came by has taken the tracer away. What
        # ends it keeps it alive, or the process crashes.
        before = sys.gettrace()
        sys.settrace(at_call)
        return stop


class AtPoint:
    """Does something once, at the n-th point that the block comes by on this thread, in code that is ``watched``.

    ``left`` is above 0 afterwards if the block has not come so far. One of `INTERRUPTS` ends the block, and no more.
    """

    def __init__(self, number: int, action: Callable[[], object], watched: Callable[[CodeType], bool]) -> None:
        self.left, self.action, self.watched = number, action, watched
        self.where = ""

    def __enter__(self) -> AtPoint:
        self._stop = watch(self.watched, self._at_point)
        return self

    def _at_point(self, frame: FrameType) -> None:
        self.left -= 1
        if self.left == 0:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_qualname}"
            self.action()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._stop()
        del self._stop  # or it and this object would keep each other
        return kind in INTERRUPTS


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def alarm() -> None:
    """What handlers of an alarm do: an ``except Exception`` that is for the driver's errors catches it, too."""
    raise TimeoutError("the alarm")


#: What they raise.
INTERRUPTS = (KeyboardInterrupt, TimeoutError)
