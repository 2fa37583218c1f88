"""Run the PTX of a function on one thread: each instruction gives what the PTX ISA says, bit for bit.

It has the instructions that numba-cuda compiles operators and conversions to; `Unknown` names any other. A register holds the
bits of its value as an unsigned integer, or a signed one where an instruction of signed type wrote it.
"""

# Rules: https://docs.nvidia.com/cuda/parallel-thread-execution
from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}
ROUNDINGS: dict[str, Callable[[float], int]] = {"rzi": math.trunc, "rni": round, "rmi": math.floor, "rpi": math.ceil}
#: Comparisons of unsigned integers have names of their own.
COMPARISONS = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "abs": abs,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "sqrt": np.sqrt,
    "rcp": lambda a: type(a)(1) / a,
    "copysign": lambda sign, a: np.copysign(a, sign),
}


class Unknown(Exception):
    """An instruction, or a function that is called, that is not among those known here."""


class Type:
    """A type of PTX, such as ``s32``, ``f64``, ``pred``."""

    def __init__(self, name: str) -> None:
        self.kind, self.width = ("b", 1) if name == "pred" else (name[0], int(name[1:]))
        self.mask = (1 << self.width) - 1

    def read(self, bits: int) -> Any:
        """The value of bits."""
        bits &= self.mask
        if self.kind == "f":
            return np.array(bits, f"u{self.width // 8}").view(FLOATS[self.width])[()]
        return bits - (1 << self.width) if self.kind == "s" and bits >> (self.width - 1) else bits

    def write(self, value: Any) -> int:
        """The bits of a value, which is rounded, or wraps."""
        if self.kind == "f":
            return bits_of(FLOATS[self.width](value))
        return int(value) & self.mask


def bits_of(value: Any) -> int:
    """The bits of a NumPy number."""
    found = np.asarray(value)
    return int(found.view(f"u{found.itemsize}")[()])


class Program:
    """The first function of a PTX module."""

    def __init__(self, text: str) -> None:
        head, _, body = text[text.index(".visible") :].partition("\n{\n")
        closing = re.search(r"^}", body, re.MULTILINE)
        assert closing is not None, head
        body = re.sub(r"//.*", "", body[: closing.start()])
        body = re.sub(r"^\s*(\$\w+):", r" LABEL \1;", body, flags=re.MULTILINE)
        self.steps: list[tuple[tuple[str, str] | None, str, list[str], list[str]]] = []
        self.labels: dict[str, int] = {}
        for each in body.split(";"):
            statement = re.sub(r"^[\s{}]+", "", each)  # a block has registers of its own, with names of their own
            if statement.startswith("LABEL"):
                self.labels[statement.split()[1]] = len(self.steps)
            elif statement and statement[0] != ".":
                self.steps.append(self._step(statement))

    @staticmethod
    def _step(statement: str) -> tuple[tuple[str, str] | None, str, list[str], list[str]]:
        found = re.match(r"(?:@(!?)(%\w+)\s+)?(\w+)([\w.]*)\s*(.*)$", statement, re.DOTALL)
        assert found is not None, statement
        no, predicate, name, parts, rest = found.groups()
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s]+", rest)
        return (no, predicate) if predicate else None, name, parts.split(".")[1:], operands

    def instructions(self) -> set[str]:
        """The names of all instructions, with their types."""
        return {".".join([name, *parts]) for _, name, parts, _ in self.steps}

    def run(self, *arguments: int) -> dict[int, int]:
        """Run it with the bits of its parameters; the bits that lie in memory afterwards, by address."""
        thread = _Thread(arguments)
        at = 0
        with np.errstate(all="ignore"):
            while at < len(self.steps):
                condition, name, parts, operands = self.steps[at]
                at += 1
                if condition is not None and bool(thread.registers[condition[1]]) is bool(condition[0]):
                    continue
                if name == "bra":
                    at = self.labels[operands[0]]
                elif name == "ret":
                    break
                else:
                    thread.step(name, parts, operands)
        return thread.memory


class _Thread:
    def __init__(self, arguments: tuple[int, ...]) -> None:
        self.arguments = arguments
        self.registers: dict[str, int] = {}
        self.memory: dict[int, int] = {}

    def step(self, name: str, parts: list[str], operands: list[str]) -> None:
        """Run an instruction that is no jump."""
        if name in ("ld", "st"):
            self._access(name, parts, operands)
            return
        target, *given = operands
        kind = Type(parts[-1]) if name not in ("call", "cvta") else Type("b64")
        if name in ("mov", "cvta"):
            self._move(target, given[0], kind)
        elif name == "setp":
            self.registers[target] = int(_compare(parts[0], *(kind.read(self._bits(each)) for each in given)))
        elif name == "selp":
            self.registers[target] = self._bits(given[0] if self.registers[given[2]] else given[1])
        elif name == "cvt":
            to = Type(parts[-2])
            found = to.write(_converted(parts, kind.read(self._bits(given[0])), kind, to))
            self.registers[target] = to.read(found) if to.kind == "s" else found
        elif name in ("shl", "shr"):
            amount = self._bits(given[1]) & 0xFFFFFFFF
            value = kind.read(self._bits(given[0]))
            self.registers[target] = kind.write(value >> min(amount, 64) if name == "shr" else value << min(amount, 64))
        else:
            values = [kind.read(self._bits(each)) for each in given]
            result = Type(f"{kind.kind}{2 * kind.width}") if "wide" in parts else kind
            self.registers[target] = result.write(_computed(name, kind, values))

    def _bits(self, operand: str) -> int:
        if operand in self.registers:
            return self.registers[operand]
        if operand[:2] in ("0f", "0d"):
            return int(operand[2:], 16)
        return int(operand, 0)

    def _move(self, target: str, given: str, kind: Type) -> None:
        half = kind.width // 2
        if target[0] == "{":
            low, high = target.strip("{}").split(",")
            self.registers[low.strip()] = self._bits(given) & ((1 << half) - 1)
            self.registers[high.strip()] = self._bits(given) >> half & ((1 << half) - 1)
        elif given[0] == "{":
            low, high = (Type(f"b{half}").write(self._bits(each.strip())) for each in given.strip("{}").split(","))
            self.registers[target] = low | high << half
        else:
            self.registers[target] = self._bits(given)

    def _access(self, name: str, parts: list[str], operands: list[str]) -> None:
        kind, (register, place) = Type(parts[-1]), operands if name == "ld" else operands[::-1]
        parameter = re.search(r"_param_(\d+)\]$", place)
        if "param" in parts and (name == "st" or parameter is None):
            raise Unknown("call")
        if parameter is not None:
            found = kind.read(self.arguments[int(parameter[1])])
            self.registers[register] = found if kind.kind == "s" else kind.write(found)
            return
        if "global" not in parts or name != "st":
            raise Unknown(".".join([name, *parts]))
        base, _, offset = place.strip("[]").partition("+")
        self.memory[self._bits(base) + int(offset or 0)] = self._bits(register) & kind.mask


def _compare(how: str, a: Any, b: Any) -> bool:
    nan = a != a or b != b
    if how in ("num", "nan"):
        return nan is (how == "nan")
    if len(how) == 3:  # true of nan
        return nan or bool(COMPARISONS[how[:2]](a, b))
    return not nan and bool(COMPARISONS[how](a, b))


def _converted(parts: list[str], value: Any, source: Type, to: Type) -> Any:
    rounding = next((ROUNDINGS[each] for each in parts if each in ROUNDINGS), None)
    if to.kind == "f":
        if source.kind != "f":
            kind = np.int64 if source.kind == "s" else np.uint64
            return float(value) if to.width == 16 else kind(value).astype(FLOATS[to.width])
        return np.copysign(rounding(float(value)), value) if rounding and math.isfinite(value) else value
    if source.kind != "f":
        return value
    assert rounding is not None
    if value != value:
        return 0 if source.width < 64 and to.width < 64 else 1 << (to.width - 1)
    low, high = (0, to.mask) if to.kind == "u" else (-(1 << (to.width - 1)), (1 << (to.width - 1)) - 1)
    return min(max(rounding(float(value)), low), high) if math.isfinite(value) else high if value > 0 else low


def _computed(name: str, kind: Type, values: list[Any]) -> Any:
    a, b = values[0], values[-1]
    if name in ("min", "max") and kind.kind == "f":
        numbers = [each for each in values if each == each] or values[:1]  # nan is none
        # +0.0 is above -0.0.
        return (min if name == "min" else max)(numbers, key=lambda each: (each, math.copysign(1, each)))
    if name in ("min", "max"):
        return (min if name == "min" else max)(values)
    if name == "div" and kind.kind == "f":
        return a / b
    if name in ("div", "rem"):
        quotient = (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else -1
        return quotient if name == "div" else a - quotient * b if b else a
    if name not in OPERATIONS:
        raise Unknown(name)
    return OPERATIONS[name](*values)
