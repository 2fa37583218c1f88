"""Something done at one of the points of a piece of code at which Python may run a signal's handler."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

BEFORE_A_POINT = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX"}


@functools.cache
def points(code: CodeType) -> frozenset[int]:
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


class AtPoint:
    """Does something once, at the n-th point that the block comes by on this thread, in code that is ``watched``.

    ``left`` is above 0 afterwards if the block has not come so far. A KeyboardInterrupt ends the block, and no more.
    """

    def __init__(self, number: int, action: Callable[[], object], watched: Callable[[CodeType], bool]) -> None:
        self.left, self.action, self.watched = number, action, watched
        self.where = ""

    def __enter__(self) -> AtPoint:
        self.before = sys.gettrace()
        sys.settrace(self._at_call)
        return self

    def _at_call(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self.watched(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._at_opcode

    def _at_opcode(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and frame.f_lasti in points(frame.f_code):
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_qualname}"
                self.action()
        return self._at_opcode

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self.before)
        return kind is KeyboardInterrupt


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt
