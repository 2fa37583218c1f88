"""An interrupt may come as an object is made: its finalizer runs all the same, and must not fail."""

from __future__ import annotations

import ast
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
