"""The names that import statements bind."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def bindings(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that an import statement binds, with the full names of what they are bound to."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (first, first)
        return
    whole = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name == "*":
            yield "*", whole
        else:
            yield alias.asname or alias.name, f"{whole}{'' if whole.endswith('.') else '.'}{alias.name}"
