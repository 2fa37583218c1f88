"""Constructs in a module's kernels that no compiler takes, and the simulator refuses, found without running the module.

The module is compiled to Python's bytecode, which the simulator's own check reads. It sees the functions and constants of the
module, and no other value; so it may miss a refusal. Each kernel is checked up to its first one.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

import libcst as cst

from ..kernels.compilers.simulator.kernel_check import check_kernel
from ..spi.errors import SimulatorError, UnsupportedError
from .migration_rules import EVERYWHERE, Finding, FindingKind


def refusals(source: bytes, kernels: Sequence[cst.FunctionDef]) -> Iterator[Finding]:
    """A finding for each kernel that has something that no compiler takes, at its line."""
    if not kernels:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's source
            tree = ast.parse(source)
            code = compile(tree, "<module>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):  # of a newer Python
        return
    names = {each.name.value for each in kernels}
    known = _constants(tree) | _plain_functions(tree, code)
    for each in _functions(code):
        if each.co_name in names:
            function = FunctionType(each, known, closure=tuple(CellType() for _ in each.co_freevars))
            try:
                check_kernel(function, {}, all_globals=False)
            except SimulatorError as error:
                what = str(error).removeprefix("misuse: ").partition("\n")[0]
                told = f"is refused by {', '.join(EVERYWHERE[:-1])} and {EVERYWHERE[-1]}: {what}"
                yield Finding(error.lineno or each.co_firstlineno, each.co_name, told, FindingKind.LOOK, EVERYWHERE)
            except UnsupportedError:
                pass  # a name that is reported where it is written


def _functions(code: CodeType) -> Iterator[CodeType]:
    """All functions in a code."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if not each.co_name.startswith("<"):
                yield each
            yield from _functions(each)


def _constants(tree: ast.Module) -> dict[str, Any]:
    """The numbers that a module assigns once: conditions on them exclude branches, as in compilers."""
    found: dict[str, list[Any]] = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(getattr(each.value, "value", each))
    return {
        name: values[0]
        for name, values in found.items()
        if len(values) == 1 and isinstance(values[0], bool | int | float | None)
    }


def _plain_functions(tree: ast.Module, code: CodeType) -> dict[str, Any]:
    """The functions of a module that nothing decorates and that it binds once."""
    names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    plain = {each.name for each in tree.body if isinstance(each, ast.FunctionDef) and not each.decorator_list}
    wrapped = {
        argument.id
        for each in ast.walk(tree)
        if isinstance(each, ast.Call)
        for argument in each.args
        if isinstance(argument, ast.Name)
    }
    return {
        each.co_name: FunctionType(each, {"__name__": "the_module"})
        for each in code.co_consts
        if isinstance(each, CodeType)
        and each.co_name in plain - wrapped
        and names.count(each.co_name) == 1
        and not each.co_freevars
    }
