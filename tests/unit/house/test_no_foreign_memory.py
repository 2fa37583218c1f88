"""The source of devmem lays no view over all memory, treats no ``id()`` as an address and assumes no layout of Python's objects.

Memory of other libraries is reached through the buffer protocol, ``__array_interface__`` and the ``PyCapsule_*`` functions only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "devmem"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: Names that tell how the interpreter keeps its objects, or how often it refers to them.
INTERPRETER = {"getrefcount", "__basicsize__", "__itemsize__", "getsizeof"}
#: Functions that make a view, or a Python object, of the memory at an address.
VIEWS = {"from_address", "string_at", "wstring_at", "memmove", "memset", "cast"}


def name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_id(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"


def problems(source: str) -> Iterator[str]:
    """What a module does that it may not."""
    for node in ast.walk(ast.parse(source)):
        if name_of(node) in INTERPRETER:
            yield f"line {node.lineno}: {name_of(node)} is private to the interpreter"
        if isinstance(node, ast.ImportFrom):
            for imported in node.names:
                if imported.name in INTERPRETER:
                    yield f"line {node.lineno}: {imported.name} is private to the interpreter"
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.AugAssign)) and any(map(is_id, ast.iter_child_nodes(node))):
            yield f"line {node.lineno}: arithmetic on id(), as if it were an address"
        if isinstance(node, ast.Call) and name_of(node.func) in VIEWS and node.args:
            if any(map(is_id, ast.walk(node.args[0]))):
                yield f"line {node.lineno}: {name_of(node.func)} of id(), as if it were an address"
            if name_of(node.func) == "from_address" and isinstance(node.args[0], ast.Constant):
                yield f"line {node.lineno}: a view of memory at a fixed address"
        if isinstance(node, ast.BinOp) and name_of(node.left).startswith("c_") and is_endless(node.right):
            yield f"line {node.lineno}: an array of all memory"


def is_endless(length: ast.AST) -> bool:
    """Whether a length is about that of the address space: ``sys.maxsize``, ``1 << 62``."""
    parts = list(ast.walk(length))
    return "maxsize" in map(name_of, parts) or any(isinstance(part, ast.LShift) for part in parts)


def test_no_module_reads_memory_that_is_not_its_own():
    found = {str(path.relative_to(PACKAGE)): list(problems(path.read_text(encoding="utf-8"))) for path in MODULES}
    assert len(found) > 100
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "bad",
    [
        "memory = (c_char * sys.maxsize).from_address(0)",
        "words[id(capsule) // 8 + 2] = 0",
        "Anything = ctypes.c_char * (1 << 62)",
        "c_size_t.from_address(id(capsule))",
        "at = 8 + id(capsule)",
        "ctypes.cast(id(capsule), ctypes.py_object).value",
        "ctypes.string_at(id(capsule) + 16, 8)",
        "alone = sys.getrefcount(capsule) == 2",
        "from sys import getrefcount",
        "header = object.__basicsize__",
    ],
)
def test_what_is_forbidden_is_found(bad):
    assert list(problems(bad))


@pytest.mark.parametrize(
    "good",
    [
        "seen.add(id(node))",
        "tensor = DLManagedTensor.from_address(pointer)",
        "blocks = {id(each): each for each in all}",
    ],
)
def test_what_is_allowed_is_not(good):
    assert not list(problems(good))
