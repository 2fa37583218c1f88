"""An interrupt may come as an object is made: its finalizer runs all the same, and must not fail."""

from __future__ import annotations

import ast
import gc
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "devmem"


def classes():
    """The classes of devmem with a finalizer: (module, name)."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = (
                [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
                if isinstance(node, ast.ClassDef)
                else []
            )
            if "__del__" in names:
                yield ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts), node.name


@pytest.mark.parametrize(("module", "name"), sorted(classes()))
def test_it_is_silent_on_what_was_not_made(module, name):
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        pytest.skip(str(error))
    found.__new__(found).__del__()


#: Copies that no finalizer can meet: of arrays, of what one thread alone has, and of a deque, which copies step by step.
OWN_COPIES = {"self.foreign_releases.copy()"}


@pytest.mark.parametrize(
    "folder", ["toolkit", "backends", "_core/base", "_core/ordering", "_core/lifetime", "_core/device"]
)
def test_tables_that_finalizers_change_are_copied_by_their_constructors(folder):
    """CPython's ``dict.copy()`` and ``list.copy()`` read the length, make the copy, which may run the collector, then copy."""
    found = []
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "copy"
                and not node.args
            ):
                text = ast.unparse(node)
                if text not in OWN_COPIES and not text.startswith("_rows("):
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {text}")
    assert found == [], "write list(table), list(table.values()) or dict(table)"


def test_a_table_that_a_finalizer_changes_meanwhile_is_copied_whole():
    """As the constructors do it: with a collection in each allocation, and a finalizer that changes the table."""
    table = dict.fromkeys(range(64))

    class Changes:
        def __init__(self):
            self.me = self

        def __del__(self):
            table.pop(next(iter(table)), None)
            table[object()] = None

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Changes()
            for copied in (list(table), list(table.values()), dict(table)):
                assert len(copied) == 64
    finally:
        gc.set_threshold(*threshold)
