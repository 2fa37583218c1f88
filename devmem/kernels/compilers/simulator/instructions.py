"""Checks of single bytecode instructions: statements, stores and array shapes that no compiler takes."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import numpy as np

from ...names import Local, Position, Shared

_SIZED = "are not for kernels, where all sizes are known at compile time: use a tuple, or devmem.local.array"
#: Messages by instruction.
_REFUSED = {
    "BUILD_CONST_KEY_MAP": f"dicts {_SIZED}",
    "BUILD_LIST": f"lists {_SIZED}",
    "BUILD_MAP": f"dicts {_SIZED}",
    "BUILD_SET": f"sets {_SIZED}",
    "IMPORT_NAME": "imports are not for kernels: write them at the top of the module",
    "LOAD_BUILD_CLASS": "classes are not for kernels: use numbers, arrays and tuples",
    "STORE_GLOBAL": "globals are constants in kernels: write results into an array argument",
}
_CONSTANT = "make it a global, or use the dynamic shared memory of the launch, devmem.shared.array(0, dtype)"

#: The value that the instruction at an index loads from outside the function, through modules.
Outside = Callable[[int], Any]


def why_refused(code: CodeType, found: Sequence[dis.Instruction], at: int, outside: Outside) -> str | None:
    """Why no compiler takes the instruction at index ``at``; None if one may."""
    step = found[at]
    if step.opname.startswith("BUILD_") and any(name.startswith("@") for name in code.co_names):
        return None  # pytest's rewritten `assert`
    if step.opname == "LOAD_CONST" and isinstance(step.argval, frozenset):
        return _REFUSED["BUILD_SET"]
    if step.opname == "IS_OP" and any(isinstance(each.argval, bool) for each in found[max(at - 1, 0) : at]):
        return f"a bool of a kernel is no object that could be {found[at - 1].argval}: write if x, or if not x"
    if step.opname == "STORE_SUBSCR":
        made = _container(found, at)
        if made is not None and isinstance(outside(made), np.ndarray):
            return f"{found[made].argval} is a global, and a constant in kernels: pass the array as an argument to write it"
    if step.opname == "BUILD_LIST" and any("LIST_TO_TUPLE" in each.opname + each.argrepr for each in found[at:]):
        return None  # (*a, b), whose result is a tuple
    return _REFUSED.get(step.opname)


def why_no_kernel_code(code: CodeType) -> str | None:
    """Why a function with this code cannot run on a device; None if it may."""
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "async functions are not for kernels: leave out async and await, as a launch does not block anyway"
    if code.co_flags & inspect.CO_GENERATOR:
        return "generators are not for kernels: write a loop that stores results in an array"
    return None


def why_not_constant(
    found: Sequence[dis.Instruction], at: int, value: Any, given: Sequence[str], outside: Outside
) -> str | None:
    """Why the shape in a call of ``shared.array`` or ``local.array`` is not constant; None if it may be.

    The instruction at ``at`` loads ``shared`` or ``local``; ``given`` are the kernel's arguments. Only clear cases are reported:
    an argument of the kernel, its shape or size, or a length of the launch.
    """
    if not isinstance(value, Shared | Local) or at + 2 >= len(found) or found[at + 1].argval != "array":
        return None
    told = f"the shape of devmem.{value.name}.array() is a constant, and"
    for place in _shape(found, at + 2):
        loaded = set(_words(found[place])) & set(given)
        changed = {word for step in found if "STORE" in step.opname for word in _words(step)}
        alone = _loads(found[place + 1]) or found[place + 1].opname == "BUILD_TUPLE"  # used as it is, not indexed
        if "FAST" in found[place].opname and loaded and not loaded & changed:
            if alone:
                return f"{told} {min(loaded)} is an argument: {_CONSTANT}"
            if found[place + 1].opname == "LOAD_ATTR" and found[place + 1].argval in ("shape", "size"):
                return f"{told} {min(loaded)}.{found[place + 1].argval} is that of an argument: {_CONSTANT}"
        if isinstance(asked := outside(place), Position):
            return f"{told} devmem.{asked.name} is not: {_CONSTANT}"
    return None


def _shape(found: Sequence[dis.Instruction], at: int) -> Iterator[int]:
    """The indices of the instructions that load the shape, the call's first argument: a single value, or a tuple's items."""
    while found[at].opname == "PUSH_NULL":
        at += 1
    yield at
    while _loads(found[at]) and at + 1 < len(found):
        at += 1
    if found[at].opname == "BUILD_TUPLE":
        yield from range(at - (found[at].arg or 0), at)


def _container(found: Sequence[dis.Instruction], at: int) -> int | None:
    """The index of the instruction that loads the array of a STORE_SUBSCR; None if that is computed or ambiguous."""
    depth = 1  # the array is on the stack below the index
    while at > 0 and not found[at].is_jump_target:
        at -= 1
        step = found[at]
        if "JUMP" in step.opname or step.opname in ("FOR_ITER", "SEND"):
            return None
        if step.opname in ("COPY", "SWAP"):
            depth = _moved(step.opname, step.arg or 0, depth)
            continue
        effect = dis.stack_effect(step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        if depth < (max(effect, 1) if _loads(step) else 1):
            return at if _loads(step) else None
        depth -= effect
    return None


def _moved(name: str, place: int, depth: int) -> int:
    """The stack depth of a value before a COPY or SWAP instruction."""
    if name == "COPY":
        return depth - 1 if depth else place - 1
    return {0: place - 1, place - 1: 0}.get(depth, depth)


def _loads(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_") and step.opname not in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")


def _words(step: dis.Instruction) -> tuple[Any, ...]:
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)
