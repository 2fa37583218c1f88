"""Rewriting imports of numba's GPU namespaces, in source that keeps its comments, its format and its encoding otherwise.

Nothing is imported of what is read. A module is walked twice: `Uses` finds what the names in it mean, by its scopes; `Rewriter`
changes import statements, and ``numba.cuda`` where a program says it in full.
"""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst import metadata

from .migration_rules import TARGETS, VARIABLES, is_here, is_module, ours, target_of
from .name_resolution import Others, dotted, plain_names
from .usage_scan import OURS, Finding, Mentions, Uses

#: Of what has neither there is nothing to be said: to take a long module apart takes seconds.
NUMBA = re.compile(rb"\bnumba(_cuda|_roc)?\b|NUMBA_")
MENTIONED = re.compile(rb"\b(?:" + "|".join((*TARGETS, *OURS, *VARIABLES)).encode() + rb")\b|import\s*\*")


TOO_DEEP = "it is nested too deeply"


@dataclass
class Rewritten:
    """What became of a module."""

    before: bytes
    after: bytes
    findings: list[Finding] = field(default_factory=list)


class Unparsable(Exception):
    """Source that is no Python; the message says where."""


def rewrite(source: bytes, others: Others | None = None) -> Rewritten:
    """The source of a module with its imports changed, and what has to be looked at.

    ``others``: what it has of numba's by way of other modules.

    Raises
    ------
    Unparsable
        It is no Python of a version that is known.
    """
    if others is None and not is_of_numba(source):
        return Rewritten(source, source)
    mark = b"\xef\xbb\xbf" if source.startswith(b"\xef\xbb\xbf") else b""
    try:
        module = _parsed(source[len(mark) :])
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        uses = Uses(others or Others())
        wrapper.visit(uses)
        changed = wrapper.module.visit(Rewriter(uses))
    except RecursionError as error:
        raise Unparsable(TOO_DEEP) from error
    findings = sorted(uses.findings, key=lambda each: (each.line, each.name))
    if changed.code == module.code:
        return Rewritten(source, source, findings)
    return Rewritten(source, mark + _patched(source[len(mark) :], module, changed), findings)


def is_of_numba(source: bytes) -> bool:
    """Whether a module says something of numba's GPU namespaces."""
    return bool(NUMBA.search(source) and MENTIONED.search(source))


def _parsed(source: bytes) -> cst.Module:
    """The tree of a module. Python itself is asked first: it refuses depths that end the process in the other parser."""
    refusal = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's own backslashes
            ast.parse(source)
    except (RecursionError, MemoryError) as error:
        raise Unparsable(TOO_DEEP) from error
    except (SyntaxError, ValueError) as error:  # of Python that is newer than this one, maybe
        if "too many nested" in str(error):
            raise Unparsable(TOO_DEEP) from error
        refusal = error.with_traceback(None)
    try:
        module = cst.parse_module(source)
        module.code.encode(module.encoding)
    except cst.ParserSyntaxError as error:
        why = refusal.msg if isinstance(refusal, SyntaxError) else error.message
        line = getattr(refusal, "lineno", None) or error.raw_line
        raise Unparsable(f"line {line}: {why}") from error
    except (UnicodeError, LookupError, SyntaxError) as error:
        raise Unparsable(str(error)) from error
    return module


class Rewriter(cst.CSTTransformer):
    """Import statements changed in their places, and targets that are said in full by the names that they import."""

    def __init__(self, uses: Uses) -> None:
        super().__init__()
        self.uses = uses

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Say a target by its new name."""
        said = self.uses.spelled.get(original_node)
        if said is None:
            return updated_node
        return cst.Name(self._bound(said), lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Change the imports of a line: where it is one statement, what it becomes has a line each."""
        parts = self._parts(original_node, updated_node)
        if parts is None:
            return updated_node
        if len(original_node.body) > 1:
            return updated_node.with_changes(body=_joined(parts))
        first, *rest = parts
        # What stands before the statement, and the comment behind it, stay with the first.
        lines = [updated_node.with_changes(body=[first]), *(cst.SimpleStatementLine([each]) for each in rest)]
        return cst.FlattenSentinel(lines)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        """Change the imports behind a colon, on its line."""
        parts = self._parts(original_node, updated_node)
        return updated_node if parts is None else updated_node.with_changes(body=_joined(parts))

    def _parts(self, original: Any, updated: Any) -> list[cst.BaseSmallStatement] | None:
        """The statements of a line, with imports changed; None if none of them was."""
        parts: list[cst.BaseSmallStatement] = []
        for before, after in zip(original.body, updated.body, strict=True):
            made = None
            if isinstance(before, cst.Import):
                made = self._import(before)
            elif isinstance(before, cst.ImportFrom):
                made = self._import_from(before)
            parts += [after] if made is None else made
        return None if len(parts) == len(updated.body) and all(map(_same, parts, updated.body)) else parts

    def _import(self, node: cst.Import) -> list[cst.BaseSmallStatement] | None:
        """``import numba``, ``import numba.cuda``, ``import numba.cuda.cudadrv.driver as d``, and others beside them."""
        kept: list[cst.ImportAlias] = []
        added: dict[str, cst.BaseSmallStatement] = {}
        mentions = self.uses.mentions.get(node, Mentions(set(), set()))
        names = plain_names(node)
        for alias in node.names:
            name = dotted(alias.name)
            target = target_of(name)
            if target and alias.asname is not None and is_here(name):
                package, _, last = ours(name).rpartition(".")
                added[name] = _from(package, last, alias.evaluated_alias)
            elif (target and alias.asname is None) or (name == "numba" and mentions.targets):
                said = {target.removeprefix("numba.")} if target else set()
                for each in sorted(said | mentions.targets):
                    added[each] = self._from_target(each)
                if mentions.others and (name == "numba" or "numba" not in names):
                    kept.append(alias.with_changes(name=cst.Name("numba")))
            else:
                kept.append(alias)
        if not added:
            return None
        made: list[cst.BaseSmallStatement] = list(added.values())
        return [node.with_changes(names=_tidy(kept)), *made] if kept else made

    def _import_from(self, node: cst.ImportFrom) -> list[cst.BaseSmallStatement] | None:
        """``from numba import cuda, njit``, ``from numba.cuda import to_device``, ``from numba.cuda.cudadrv import driver``."""
        if node.module is None or node.relative or isinstance(node.names, cst.ImportStar):
            return None
        module = dotted(node.module)
        if module != "numba" and not (target_of(module) and is_module(module)):
            return None
        moves = [_moves(f"{module}.{dotted(alias.name)}") for alias in node.names]
        if not any(moves):
            return None
        kept = [alias for alias, moving in zip(node.names, moves, strict=True) if not moving]
        made: list[cst.BaseSmallStatement] = [_only(node, kept)] if kept else []
        if module != "numba":
            moved = [alias for alias, moving in zip(node.names, moves, strict=True) if moving]
            return [*made, _only(node, moved).with_changes(module=_expression(ours(module)))]
        packages: dict[str, list[cst.ImportAlias]] = {}
        for alias, moving in zip(node.names, moves, strict=True):
            if moving:
                package, name = TARGETS[dotted(alias.name)]
                packages.setdefault(package, []).append(_renamed(alias, name))
        found = [_only(node, names).with_changes(module=_expression(package)) for package, names in packages.items()]
        return [*made, *found]

    def _from_target(self, target: str) -> cst.BaseSmallStatement:
        package, name = TARGETS[target]
        return _from(package, name, self._bound(target))

    def _bound(self, target: str) -> str:
        """What a target that was said in full is called here."""
        name = TARGETS[target][1]
        return f"devmem_{name}" if name in self.uses.taken else name


def lines(text: str) -> list[str]:
    """Lines with their ends, as an editor has them: not cut at form feeds, as ``splitlines`` would."""
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+", text)


def _patched(source: bytes, module: cst.Module, changed: cst.Module) -> bytes:
    """The source with the lines that changed; all others are the user's own, where the parser would lose a form feed, say."""
    own, before, after = (lines(each) for each in (source.decode(module.encoding), module.code, changed.code))
    if len(own) != len(before):
        raise Unparsable("it has lines that would not be kept as they are")
    made: list[str] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for what, first, last, start, end in matcher.get_opcodes():
        made += own[first:last] if what == "equal" else after[start:end]
    return "".join(made).encode(module.encoding)


def _moves(name: str) -> bool:
    return bool(target_of(name)) and is_here(name)


def _from(package: str, name: str, bound: str | None) -> cst.ImportFrom:
    asname = cst.AsName(cst.Name(bound)) if bound and bound != name else None
    return cst.ImportFrom(_expression(package), [cst.ImportAlias(cst.Name(name), asname)])


def _expression(name: str) -> Any:
    first, *rest = name.split(".")
    found: Any = cst.Name(first)
    for part in rest:
        found = cst.Attribute(found, cst.Name(part))
    return found


def _renamed(alias: cst.ImportAlias, name: str) -> cst.ImportAlias:
    """The same name bound to another one of ours."""
    bound = alias.evaluated_alias or dotted(alias.name)
    asname = alias.asname or (cst.AsName(cst.Name(bound)) if bound != name else None)
    return alias.with_changes(name=cst.Name(name), asname=None if bound == name else asname)


def _only(node: cst.ImportFrom, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """The statement with some of its names, each with the comment behind it; the closing parenthesis stays where it was."""
    assert not isinstance(node.names, cst.ImportStar)
    names, last, rpar = list(aliases), node.names[-1], node.rpar
    mine = _behind(names[-1])
    if rpar is None or mine is None:
        return node.with_changes(names=_tidy(names))
    closing = _behind(last)
    if closing is None and isinstance(rpar.whitespace_before, cst.ParenthesizedWhitespace):
        closing, rpar = rpar.whitespace_before, rpar.with_changes(whitespace_before=cst.SimpleWhitespace(""))
    if closing is not None:
        mine = mine.with_changes(indent=closing.indent, last_line=closing.last_line)
    comma = cst.Comma(whitespace_after=mine)
    return node.with_changes(names=[*names[:-1], names[-1].with_changes(comma=comma)], rpar=rpar)


def _behind(alias: cst.ImportAlias) -> cst.ParenthesizedWhitespace | None:
    """The end of the line that an alias with a comma stands on."""
    comma = alias.comma
    if isinstance(comma, cst.Comma) and isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
        return comma.whitespace_after
    return None


def _tidy(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    """Aliases with commas between them, and none behind the last."""
    *head, last = aliases
    return [*head, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _joined(parts: Sequence[cst.BaseSmallStatement]) -> list[cst.BaseSmallStatement]:
    """Statements on one line."""
    *head, last = parts
    apart = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))
    made = [
        each if isinstance(getattr(each, "semicolon", None), cst.Semicolon) else each.with_changes(semicolon=apart)
        for each in head
    ]
    return [*made, last]


def _same(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    return one is other
