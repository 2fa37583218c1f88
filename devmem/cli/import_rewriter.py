"""Rewrite imports of numba's GPU namespaces in source that otherwise keeps its comments, format and encoding.

The source is parsed, never imported. Two passes walk it: `UsageScan` resolves names by Python's scopes; `ImportRewriter` changes
the import statements, and expressions such as ``numba.cuda``.
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

from .kernel_refusals import refusals
from .migration_rules import (
    SUCCESSOR,
    TARGETS,
    VARIABLES,
    Finding,
    devmem_name,
    is_module,
    is_provided,
    numba_name,
    target_of,
)
from .name_resolution import ForeignNames, dotted, plain_names
from .relevant_statements import hide_irrelevant
from .usage_scan import DEVMEM_NAMES, NumbaUse, UsageScan

#: Only sources that match both are parsed, which takes seconds for a long module.
NUMBA_BYTES = re.compile(rb"\bnumba(_cuda|_roc|_cuda_mlir)?\b|NUMBA_")
MENTIONS_TARGET = re.compile(rb"\b(?:" + "|".join((*TARGETS, *DEVMEM_NAMES, *VARIABLES)).encode() + rb")\b|import\s*\*")


TOO_DEEP = "it is nested too deeply"


@dataclass
class Rewritten:
    """The result of rewriting a module."""

    before: bytes
    after: bytes
    findings: list[Finding] = field(default_factory=list)


class Unparsable(Exception):
    """The source is not valid Python; the message says where."""


def rewrite(source: bytes, others: ForeignNames | None = None) -> Rewritten:
    """Rewrite the imports of a module's source, and collect the findings.

    ``others``: numba's names that it imports by way of other modules.

    Raises
    ------
    Unparsable
        The source is not Python of a known version.
    """
    if others is None and not mentions_numba(source):
        return Rewritten(source, source)
    mark = b"\xef\xbb\xbf" if source.startswith(b"\xef\xbb\xbf") else b""
    names = others or ForeignNames()
    try:
        module, code = _parsed(source[len(mark) :], names)
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        uses = UsageScan(names)
        wrapper.visit(uses)
        changed = wrapper.module.visit(ImportRewriter(uses)).code if uses.to_rewrite() else code
        found = uses.findings(wrapper) | set(refusals(source[len(mark) :], uses.kernels))
    except RecursionError as error:
        raise Unparsable(TOO_DEEP) from error
    findings = sorted(found, key=lambda each: (each.line, each.name))
    if changed == code:
        return Rewritten(source, source, findings)
    merged = _merge_into_source(source[len(mark) :].decode(module.encoding), code, changed)
    return Rewritten(source, mark + merged.encode(module.encoding), findings)


def mentions_numba(source: bytes) -> bool:
    """Whether a source may use numba's GPU namespaces, by a search of its text."""
    return bool(NUMBA_BYTES.search(source) and MENTIONS_TARGET.search(source))


def _parsed(source: bytes, others: ForeignNames) -> tuple[cst.Module, str]:
    """The syntax tree of what can concern numba, and its code.

    Python's own parser runs first: it refuses nesting so deep that libcst would crash the process.
    """
    refusal = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in the user's source
            tree = ast.parse(source)
        if not others.star_modules and others.words is not None:
            source = hide_irrelevant(source, tree, others.words)
    except (RecursionError, MemoryError) as error:
        raise Unparsable(TOO_DEEP) from error
    except (SyntaxError, ValueError) as error:  # perhaps syntax of a newer Python
        if "too many nested" in str(error):
            raise Unparsable(TOO_DEEP) from error
        refusal = error.with_traceback(None)
    try:
        module = cst.parse_module(source)
        code = module.code
        code.encode(module.encoding)
    except cst.ParserSyntaxError as error:
        why = refusal.msg if isinstance(refusal, SyntaxError) else error.message
        line = getattr(refusal, "lineno", None) or error.raw_line
        raise Unparsable(f"line {line}: {why}") from error
    except (UnicodeError, LookupError, SyntaxError) as error:
        raise Unparsable(str(error)) from error
    return module, code


class ImportRewriter(cst.CSTTransformer):
    """Rewrites import statements in place, and replaces ``numba.cuda`` by the name that the new import binds."""

    def __init__(self, uses: UsageScan) -> None:
        super().__init__()
        self.uses = uses
        self.to_rewrite = uses.to_rewrite()

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        """Do nothing, fast."""

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None:
        """Do nothing, fast."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Pass over what has neither imports nor expressions to replace in it."""
        return node in self.to_rewrite

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Replace ``numba.cuda`` by its new name."""
        said = self.uses.target_expressions.get(original_node)
        if said is None:
            return updated_node
        return cst.Name(self._local_name(said), lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Change the imports of a line; a single statement that becomes several gets a line for each."""
        parts = self._parts(original_node, updated_node)
        if parts is None:
            return updated_node
        if len(original_node.body) > 1:
            return updated_node.with_changes(body=_on_one_line(parts))
        first, *rest = parts
        # Lines before the statement and the comment behind it stay with the first.
        lines = [updated_node.with_changes(body=[first]), *(cst.SimpleStatementLine([each]) for each in rest)]
        return cst.FlattenSentinel(lines)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        """Change imports that follow a colon on the same line."""
        parts = self._parts(original_node, updated_node)
        return updated_node if parts is None else updated_node.with_changes(body=_on_one_line(parts))

    def _parts(self, original: Any, updated: Any) -> list[cst.BaseSmallStatement] | None:
        """The statements of a line with imports changed; None if none was."""
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
        mentions = self.uses.mentions.get(node, NumbaUse(set(), set()))
        names = plain_names(node)
        for alias in node.names:
            name = dotted(alias.name)
            if alias.asname is not None:
                name = numba_name(name)
            target = target_of(name)
            if target and alias.asname is not None and is_provided(name):
                package, _, last = devmem_name(name).rpartition(".")
                added[name] = _import_statement(package, last, alias.evaluated_alias)
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
        return [node.with_changes(names=_fix_commas(kept)), *made] if kept else made

    def _import_from(self, node: cst.ImportFrom) -> list[cst.BaseSmallStatement] | None:
        """``from numba import cuda, njit``, ``from numba.cuda import to_device``, ``from numba.cuda.cudadrv import driver``."""
        if node.module is None or node.relative or isinstance(node.names, cst.ImportStar):
            return None
        module = numba_name(dotted(node.module))
        if module == SUCCESSOR:
            moves = [dotted(alias.name) == "cuda" for alias in node.names]
            return self._moved(node, "numba", moves) if any(moves) else None
        if module != "numba" and not (target_of(module) and is_module(module)):
            return None
        moves = [_is_provided_target(f"{module}.{dotted(alias.name)}") for alias in node.names]
        return self._moved(node, module, moves) if any(moves) else None

    def _moved(self, node: cst.ImportFrom, module: str, moves: Sequence[bool]) -> list[cst.BaseSmallStatement]:
        """The statements for the names that stay and for those that move."""
        assert not isinstance(node.names, cst.ImportStar)
        kept = [alias for alias, moving in zip(node.names, moves, strict=True) if not moving]
        made: list[cst.BaseSmallStatement] = [_keep_aliases(node, kept)] if kept else []
        if module != "numba":
            moved = [alias for alias, moving in zip(node.names, moves, strict=True) if moving]
            return [*made, _keep_aliases(node, moved).with_changes(module=_dotted_expression(devmem_name(module)))]
        packages: dict[str, list[cst.ImportAlias]] = {}
        for alias, moving in zip(node.names, moves, strict=True):
            if moving:
                package, name = TARGETS[dotted(alias.name)]
                packages.setdefault(package, []).append(_with_new_name(alias, name))
        found = [
            _keep_aliases(node, names).with_changes(module=_dotted_expression(package))
            for package, names in packages.items()
        ]
        return [*made, *found]

    def _from_target(self, target: str) -> cst.BaseSmallStatement:
        package, name = TARGETS[target]
        return _import_statement(package, name, self._local_name(target))

    def _local_name(self, target: str) -> str:
        """The name that replaces ``numba.cuda`` in this module."""
        name = TARGETS[target][1]
        return f"devmem_{name}" if name in self.uses.names_in_use else name


def lines(text: str) -> list[str]:
    """Lines with their endings; unlike with ``splitlines``, a form feed ends no line."""
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+", text)


def _merge_into_source(source: str, code: str, changed: str) -> str:
    """The source with the changed lines replaced. All others stay as they were: libcst loses form feeds, for example."""
    own, before, after = (lines(each) for each in (source, code, changed))
    if len(own) != len(before):
        raise Unparsable("libcst would change lines that need no change")
    made: list[str] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for what, first, last, start, end in matcher.get_opcodes():
        made += own[first:last] if what == "equal" else after[start:end]
    return "".join(made)


def _is_provided_target(name: str) -> bool:
    return bool(target_of(name)) and is_provided(name)


def _import_statement(package: str, name: str, bound: str | None) -> cst.ImportFrom:
    asname = cst.AsName(cst.Name(bound)) if bound and bound != name else None
    return cst.ImportFrom(_dotted_expression(package), [cst.ImportAlias(cst.Name(name), asname)])


def _dotted_expression(name: str) -> Any:
    first, *rest = name.split(".")
    found: Any = cst.Name(first)
    for part in rest:
        found = cst.Attribute(found, cst.Name(part))
    return found


def _with_new_name(alias: cst.ImportAlias, name: str) -> cst.ImportAlias:
    """The alias with another imported name, bound to the same local name."""
    bound = alias.evaluated_alias or dotted(alias.name)
    asname = alias.asname or (cst.AsName(cst.Name(bound)) if bound != name else None)
    return alias.with_changes(name=cst.Name(name), asname=None if bound == name else asname)


def _keep_aliases(node: cst.ImportFrom, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """The statement with some of its names, each with its trailing comment; the closing parenthesis stays in place."""
    assert not isinstance(node.names, cst.ImportStar)
    names, last, rpar = list(aliases), node.names[-1], node.rpar
    mine = _trailing_whitespace(names[-1])
    if rpar is None or mine is None:
        return node.with_changes(names=_fix_commas(names))
    closing = _trailing_whitespace(last)
    if closing is None and isinstance(rpar.whitespace_before, cst.ParenthesizedWhitespace):
        closing, rpar = rpar.whitespace_before, rpar.with_changes(whitespace_before=cst.SimpleWhitespace(""))
    if closing is not None:
        mine = mine.with_changes(indent=closing.indent, last_line=closing.last_line)
    comma = cst.Comma(whitespace_after=mine)
    return node.with_changes(names=[*names[:-1], names[-1].with_changes(comma=comma)], rpar=rpar)


def _trailing_whitespace(alias: cst.ImportAlias) -> cst.ParenthesizedWhitespace | None:
    """The rest of the line behind an alias and its comma."""
    comma = alias.comma
    if isinstance(comma, cst.Comma) and isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
        return comma.whitespace_after
    return None


def _fix_commas(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    """The aliases without a trailing comma."""
    *head, last = aliases
    return [*head, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _on_one_line(parts: Sequence[cst.BaseSmallStatement]) -> list[cst.BaseSmallStatement]:
    """Statements separated by semicolons."""
    *head, last = parts
    apart = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))
    made = [
        each if isinstance(getattr(each, "semicolon", None), cst.Semicolon) else each.with_changes(semicolon=apart)
        for each in head
    ]
    return [*made, last]


def _same(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    return one is other
