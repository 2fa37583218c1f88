"""The statements of a module that can concern numba's GPU namespaces, so that libcst, which is slow, reads no others.

A statement of the module's own level is relevant if its text has one of some words: the names of numba and devmem, and what a
relevant import, assignment, class or decorated function binds. That is asked until no new word is found. All other statements
but imports are hidden: a string takes the place of each, of as many lines, so that lines keep their numbers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .import_bindings import bindings
from .migration_rules import may_be_reported

#: Statements with these words are never hidden.
ALWAYS = r"numba\w*|NUMBA_\w*|devmem\w*|SmartArray|cuda|roc|hsa"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def hide_irrelevant(source: bytes, tree: ast.Module, foreign: frozenset[str] = frozenset()) -> bytes:
    """The source with its irrelevant statements hidden; ``foreign``: what other modules of the program call names of numba."""
    lines = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+", source)
    waiting = [
        (first, last, statements)
        for first, last, statements in _runs_of_lines(tree.body)
        if not any(isinstance(each, _IMPORTS) for one in statements for each in _at_this_level(one))
    ]
    known: set[str] = set()
    new = set(foreign) | {
        name
        for node in ast.walk(tree)
        if isinstance(node, _IMPORTS)
        for name, given in bindings(node)
        if may_be_reported(given) or given.rpartition(".")[2] in foreign
    }
    while True:
        known |= new
        if not all(map(str.isascii, known)):  # the source may have any encoding
            return source
        pattern = re.compile(rf"\b(?:{'|'.join([ALWAYS, *map(re.escape, sorted(known))])})\b".encode())
        rest, new = [], set()
        for first, last, statements in waiting:
            if any(map(pattern.search, lines[first:last])):
                new |= {name for one in statements for name in _bound(one)}
            else:
                rest.append((first, last, statements))
        waiting = rest
        if new <= known:
            break
    for first, last, _ in waiting:
        for at in range(first, last):
            end = lines[at][len(lines[at].rstrip(b"\r\n")) :]
            lines[at] = b"%s%d%s%s" % (b"'''" * (at == first), at, b"'''" * (at == last - 1), end)
    return b"".join(lines)


def _runs_of_lines(body: list[ast.stmt]) -> Iterator[tuple[int, int, list[ast.stmt]]]:
    """The statements, together where they share a line, with the first line and the one after the last, from 0."""
    run: list[ast.stmt] = []
    first = last = 0
    for each in body:
        start = min([each.lineno, *(one.lineno for one in getattr(each, "decorator_list", ()))]) - 1
        if run and start >= last:
            yield first, last, run
            run = []
        first, last, run = first if run else start, each.end_lineno or each.lineno, [*run, each]
    if run:
        yield first, last, run


def _at_this_level(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement and what is in it, but for the bodies of functions and classes."""
    yield statement
    if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        waiting = list(ast.iter_child_nodes(statement))
        while waiting:
            node = waiting.pop()
            yield node
            if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                waiting += ast.iter_child_nodes(node)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds in the module, but for functions without decorators."""
    for node in _at_this_level(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case (
                ast.FunctionDef(name=name, decorator_list=[_, *_])
                | ast.AsyncFunctionDef(name=name, decorator_list=[_, *_])
            ):
                yield name
    for node in ast.walk(statement):
        if isinstance(node, ast.Global):
            yield from node.names
