"""Check a kernel's code before it runs for what no compiler takes: Python would run it, but a GPU would not."""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ...._core.arrays.ndarray import DeviceNDArray
from ....spi.errors import SimulatorError, UnsupportedError
from ...functions import DeviceFunction
from ...names import this_grid
from ...portable_names import portable_advice
from .device_code import jit_is_disabled, python_function
from .device_math import MATH
from .instructions import why_no_kernel_code, why_not_constant, why_refused
from .reports import describe

#: Options of the vendors' compilers, which have no effect in the simulator.
OPTIONS = frozenset({"debug", "fastmath", "launch_bounds", "lineinfo", "opt"})
#: Functions of these libraries are not checked: compilers have code for them, and devmem's raise their own errors.
_LIBRARIES = frozenset({"devmem", "numba", "numpy"})
_VENDORS = {"numba.cuda": "CUDA", "numba.hip": "ROCm"}
#: Modules whose functions work on the host only, and what to do instead.
_HOST_ONLY = {
    "time": "measure on the host, with devmem.event()",
    "random": "make the numbers on the host, and give the kernel an array of them",
    "numpy.random.mtrand": "make the numbers on the host, and give the kernel an array of them",
}
#: Functions of Python that compilers have no code for, and what to do instead.
_NOT_COMPILED = {
    **dict.fromkeys(("all", "any"), "join conditions with `and` and `or`, or write a loop"),
    **dict.fromkeys(
        ("bytearray", "dict", "frozenset", "list", "memoryview", "set"),
        "all sizes are known at compile time: use a tuple, or devmem.local.array",
    ),
    "reversed": "count down with range(n - 1, -1, -1)",
    **dict.fromkeys(("ascii", "bin", "format", "hex", "oct"), "print the number itself"),
    **dict.fromkeys(("input", "open"), "do it on the host"),
    **dict.fromkeys(("compile", "eval", "exec"), "write the code itself"),
    **dict.fromkeys(
        ("callable", "delattr", "dir", "globals", "id", "issubclass", "locals", "object", "setattr", "super", "vars"),
        "kernels compute with numbers, tuples and arrays alone",
    ),
}
_UNCONDITIONAL_JUMPS = frozenset({"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD"})
_BLOCK_ENDS = frozenset({"RAISE_VARARGS", "RERAISE", "RETURN_CONST", "RETURN_VALUE"})
_UNKNOWN: Any = object()


def check_kernel(function: Callable[..., object], options: Mapping[str, object], *, all_globals: bool = True) -> bool:
    """Check a kernel, and the device functions that it refers to, for code that a GPU would not run.

    Like compilers, skip branches that a constant condition excludes. Return whether its blocks may wait for each other.
    ``all_globals``: the function's globals are all that it will have, so a name that is not among them is an error.

    Raises
    ------
    TypeError
        An option that no compiler has.
    SimulatorError
        The code has what no compiler takes: a plain Python function, a ``try``, a list, an ``import``.
    UnsupportedError
        The code uses a name that only one vendor's compiler has.
    """
    _check_options(options)
    waiting: list[Any] = [function]
    seen: set[int] = set()
    cooperative = False
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        given = each.__code__.co_varnames[: each.__code__.co_argcount] if each is function else ()
        for code, line, written, value in UsedNames(each, given, all_globals).used(each.__code__):
            cooperative |= value is this_grid
            if isinstance(value, DeviceFunction):
                _check_options(value.options)
                waiting.append(value.function)
            elif (helper := python_function(value)) is not None:
                if not getattr(value, "_can_compile", True):
                    told = f"{written} has declared types and is compiled for the host alone: leave them out of njit()"
                    raise _misuse(told, code, line)
                waiting.append(helper)
            else:
                _check(value, written, code, line)
    return cooperative


class UsedNames:
    """The current values of the names in a function's code."""

    def __init__(self, function: Any, given: Sequence[str], all_globals: bool = True) -> None:
        self._given = given  #: arguments whose values are known at the launch
        self._all_globals = all_globals
        self._globals: dict[str, Any] = function.__globals__
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def used(self, code: CodeType) -> Iterator[tuple[CodeType, int, str, Any]]:
        """(code, line, name as written, value) of all names from outside the function in the reachable part of a code."""
        if (why := why_no_kernel_code(code)) is not None:
            raise _misuse(why, code, _first(code))
        _check_handlers(code)
        found = list(dis.get_instructions(code))

        def outside(at: int) -> Any:
            return self._loaded(found, at)[0]

        for at in sorted(self._reached(found)):
            step = found[at]
            if (why := why_refused(code, found, at, outside)) is not None:
                raise _misuse(why, code, _line(step, code))
            if step.opname == "LOAD_CONST" and isinstance(step.argval, CodeType):
                yield from self.used(step.argval)
            if self._all_globals and step.opname == "LOAD_GLOBAL" and not self._defines(step.argval):
                why = (
                    f"name {step.argval!r} is not defined: kernels are compiled with the globals of their first launch"
                )
                raise _misuse(why, code, _line(step, code))
            if step.opname == "LOAD_GLOBAL" and step.argval not in self._globals and step.argval in _NOT_COMPILED:
                told = f"{step.argval}() is a function that no compiler has: {_NOT_COMPILED[step.argval]}"
                raise _misuse(told, code, _line(step, code))
            value, written, end = self._loaded(found, at)
            if value is _UNKNOWN or written.startswith("@"):  # pytest's rewritten `assert`
                continue
            if (why := why_not_constant(found, end, value, self._given, outside)) is not None:
                raise _misuse(why, code, _line(step, code))
            yield code, _line(step, code), written, value

    def _defines(self, name: str) -> bool:
        return name in self._globals or hasattr(builtins, name)

    def _loaded(self, found: list[dis.Instruction], at: int) -> tuple[Any, str, int]:
        """(value, name as written, last instruction) of a load; attributes of modules are followed."""
        value, written = self._value(found[at]), str(found[at].argval)
        while isinstance(value, ModuleType) and found[at + 1].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            at += 1
            written += f".{found[at].argval}"
            try:
                value = getattr(value, found[at].argval)
            except Exception as error:  # reported when the line runs, unless the name is a vendor's
                value = error.with_traceback(None)
        return value, written, at

    def _reached(self, found: list[dis.Instruction]) -> set[int]:
        """The indices of the instructions that are reachable other than by an exception."""
        places = {step.offset: at for at, step in enumerate(found)}
        waiting, reached = [0], set[int]()
        while waiting:
            at = waiting.pop()
            known: Any = _UNKNOWN
            while at < len(found) and at not in reached:
                reached.add(at)
                step = found[at]
                if "JUMP" in step.opname or step.opname in ("FOR_ITER", "SEND"):
                    jumps = _jumps(step.opname, known)
                    if jumps is not False and step.argval in places:
                        waiting.append(places[step.argval])
                    if jumps:
                        break
                if step.opname in _BLOCK_ENDS:
                    break
                if step.opname != "TO_BOOL":
                    known = self._value(step)
                at += 1
        return reached

    def _value(self, step: dis.Instruction) -> Any:
        if step.opname == "LOAD_GLOBAL":
            return self._globals.get(step.argval, _UNKNOWN)
        if step.opname == "LOAD_DEREF" and step.argval in self._cells:
            try:
                return self._cells[step.argval].cell_contents
            except ValueError:  # not assigned yet
                pass
        return _UNKNOWN


def returned_at(code: CodeType, value: object) -> int:
    """The line where a function returned a value; the first of several candidates."""
    found: dict[int, list[int]] = {}  # by how likely it is
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname in ("RETURN_CONST", "RETURN_VALUE"):
            given = step if step.opname == "RETURN_CONST" else steps[at - 1]
            is_it = type(given.argval) is type(value) and given.argval == value
            rank = 1 if "CONST" not in given.opname else 0 if is_it else 3 if given.argval is None else 2
            found.setdefault(rank, []).append(_line(step, code))
    return min(found[min(found)]) if found and min(found) < 3 else code.co_firstlineno


def _jumps(name: str, known: Any) -> bool | None:
    """Whether an instruction jumps, if its condition is a constant for compilers; None: unknown."""
    if name in _UNCONDITIONAL_JUMPS:
        return True
    if name.endswith("NONE") and known is not _UNKNOWN:
        return (known is None) is not name.endswith("NOT_NONE")
    if "_IF_" in name and isinstance(known, bool | int | None):
        return bool(known) is ("IF_TRUE" in name)
    return None


def _line(step: dis.Instruction, code: CodeType) -> int:
    return (step.positions.lineno if step.positions is not None else None) or code.co_firstlineno


def _first(code: CodeType) -> int:
    """The first line of a function's body."""
    lines = (line for _, _, line in code.co_lines() if line)
    return min((line for line in lines if line > code.co_firstlineno), default=code.co_firstlineno)


def _check_options(options: Mapping[str, object]) -> None:
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise TypeError(
            f"no compiler has the option {', '.join(unknown)}: the options are {', '.join(sorted(OPTIONS))}"
        )


def _check_handlers(code: CodeType) -> None:
    """Refuse exception handlers: devices have none, and in the simulator they could swallow a report."""
    steps = {step.offset: step for step in dis.get_instructions(code)}
    for entry in getattr(dis.Bytecode(code), "exception_entries", ()):
        if steps[entry.target].opname == "PUSH_EXC_INFO":
            step = steps[max((offset for offset in steps if offset < entry.start), default=entry.start)]
            if step.opname != "NOP":  # a NOP stands for the `try`
                step = steps[entry.start]
            raise _misuse("try and with are not for kernels: compilers refuse them", code, _line(step, code))


def _check(value: Any, written: str, code: CodeType, line: int) -> None:
    if isinstance(value, DeviceNDArray):
        told = f"{written} is an array of the device, and a global: pass it as an argument, or make it a host array"
        raise _misuse(told, code, line)
    only = _only_platform(value)
    if only is not None:
        name = str(getattr(value, "__name__", None) or written.rpartition(".")[2])
        if type(value).__name__.endswith("Dispatcher"):
            advice = "decorate it with @devmem.kernel(device=True)"
        elif ".cg" in written or str(getattr(value, "__module__", "")).endswith(".cg"):
            advice = portable_advice("cg")
        elif hasattr(value, "why_refused"):
            advice = value.why_refused
        else:
            advice = portable_advice(name)
        raise UnsupportedError(f"{written} works on {only} alone: {advice}\n  {describe(code, line)}")
    if _module_of(value) in _HOST_ONLY:
        told = f"{written} is for the host, and no compiler has it: {_HOST_ONLY[_module_of(value)]}"
        raise _misuse(told, code, line)
    if _module_of(value) == "math" and value not in MATH:
        raise _misuse(f"{written} is a function that no compiler has", code, line)
    if (
        type(value) is FunctionType
        and (value.__module__ or "").partition(".")[0] not in _LIBRARIES
        and not _known_to_numba(value)
        and not jit_is_disabled()
    ):
        told = f"{written} is a plain function, which no compiler takes: decorate it with @devmem.kernel(device=True)"
        raise _misuse(told, code, line)


def _misuse(told: str, code: CodeType, line: int) -> SimulatorError:
    text = f"misuse: {told}\n  {describe(code, line)}"
    return SimulatorError(text, kind="misuse", filename=code.co_filename, lineno=line)


def _only_platform(value: Any) -> str | None:
    """The one platform that a value works on; None if it works on others too."""
    for owner in (value, type(value)):
        module = getattr(owner, "__module__", None)
        if isinstance(value, ModuleType) or not isinstance(module, str):
            continue
        vendor = next((each for each in _VENDORS if module == each or module.startswith(f"{each}.")), None)
        # Its types work everywhere, and its tests are programs like any other.
        if vendor is not None and not module.startswith((f"{vendor}.types", f"{vendor}.tests.")):
            return _VENDORS[vendor]
    only = getattr(type(value), "works_on", None)
    return only if isinstance(only, str) else None


def _module_of(function: Any) -> str:
    """The module of a C function, or of the type of the object that it is a method of."""
    if not isinstance(function, BuiltinFunctionType | MethodType):
        return ""
    owner = function.__self__
    return str(owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__)


def _known_to_numba(function: object) -> bool:
    """Whether numba has an implementation of a Python function, as by ``overload`` or ``register_jitable``."""
    for name in ("numba.core.typing.templates", "numba.cuda.typing.templates"):
        registry = getattr(sys.modules.get(name), "builtin_registry", None)
        if any(known is function for known, *_ in getattr(registry, "globals", ())):
            return True
    return False
