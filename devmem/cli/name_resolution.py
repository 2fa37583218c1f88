"""Resolve expressions of a parsed module to dotted names, by Python's scopes. Nothing of the module is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import libcst as cst
from libcst import metadata

from .migration_rules import numba_name

#: All kinds of nodes, and those of white space.
_KINDS = tuple(each for each in vars(cst).values() if isinstance(each, type) and issubclass(each, cst.CSTNode))
_WHITE_SPACE = frozenset(
    (cst.Comment, cst.EmptyLine, cst.Newline, cst.ParenthesizedWhitespace, cst.SimpleWhitespace, cst.TrailingWhitespace)
)
IMPORTERS = frozenset({"importlib.import_module", "builtins.__import__"})


class ForeignNames:
    """Numba's names that a module imports by way of other modules; by default none."""

    def __init__(
        self,
        lookup: Callable[[str], set[str]] = lambda name: set(),
        stars: Iterable[str] = (),
        words: frozenset[str] | None = frozenset(),
    ) -> None:
        #: Resolves a full name to numba's: ``.gpu.cuda`` to ``numba.cuda``.
        self.lookup = lookup
        #: The modules of the star imports.
        self.star_modules = tuple(stars)
        #: What other modules call names of numba; None: not known.
        self.words = words


class NameResolver(cst.CSTVisitor):
    """A visitor that resolves expressions to dotted names: ``cu.to_device`` to ``numba.cuda.to_device``."""

    # Not those of parents, full names and positions: libcst takes seconds to compute them for all nodes of long modules.
    METADATA_DEPENDENCIES = (metadata.ScopeProvider,)

    def __init__(self, others: ForeignNames) -> None:
        super().__init__()
        self._others = others
        self._followed: set[cst.CSTNode] = set()
        self._members: dict[cst.CSTNode, ClassAttributes] = {}
        self._parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._visits = {kind: getattr(self, f"visit_{kind.__name__}", None) for kind in _KINDS}
        self._leaves = {kind: getattr(self, f"leave_{kind.__name__}", None) for kind in _KINDS}

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Call the method for a node; white space is passed over."""
        kind = type(node)
        if kind is cst.Module:
            self._parents = parents_below(node)
        elif kind in _WHITE_SPACE:
            return False
        visit = self._visits.get(kind)
        return visit is None or visit(node) is not False

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Call the method for a node."""
        leave = self._leaves.get(type(original_node))
        if leave is not None:
            leave(original_node)

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        """Do nothing, fast."""

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None:
        """Do nothing, fast."""

    def full_names(self, node: cst.CSTNode | None) -> set[str]:
        """The names that an expression resolves to: by an import, an assigned variable, or the string of a lookup."""
        if node is None or node in self._followed:  # a variable assigned to itself
            return set()
        self._followed.add(node)
        try:
            match node:
                case cst.Name():
                    return self._via_modules(
                        self.imported(node) or self._assigned_value(node) or self._from_star_imports(node)
                    )
                case cst.Attribute():
                    return self._via_modules(self.attribute_names(node)) or self._class_attribute(node)
                case cst.Call():
                    return self._named_by_string(node)
            return set()
        finally:
            self._followed.discard(node)

    def attribute_names(self, node: cst.Attribute) -> set[str]:
        """The full names of the expression before the dot, each with the attribute appended as written."""
        return {f"{each}.{node.attr.value}" for each in self.full_names(node.value)}

    def imported(self, node: cst.CSTNode) -> set[str]:
        """The full names that an import binds a name to."""
        return self._qualified_names(node, metadata.QualifiedNameSource.IMPORT)

    def called(self, node: cst.Call) -> set[str]:
        """The full names of a called function; names of drop-ins as numba's, builtins as ``builtins.getattr``."""
        builtin = self._qualified_names(node.func, metadata.QualifiedNameSource.BUILTIN)
        return builtin or {numba_name(name) for name in self.full_names(node.func)}

    def assigned(self, node: cst.CSTNode) -> list[Any]:
        """The nodes that bind a name: import statements, definitions, and targets of assignments."""
        scope = self.get_metadata(metadata.ScopeProvider, node, None)
        assignments = scope[node.value] if scope is not None and isinstance(node, cst.Name) else ()
        return [each.node for each in assignments if isinstance(each, metadata.Assignment)]

    def decorators(self, node: cst.CSTNode) -> Iterator[tuple[str, dict[str, cst.BaseExpression]]]:
        """The full names of the decorators of the function of this name, with their keyword arguments."""
        match self.assigned(node):
            case [cst.FunctionDef(decorators=decorators)]:
                for each in decorators:
                    call = each.decorator if isinstance(each.decorator, cst.Call) else cst.Call(each.decorator)
                    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
                    yield from ((name, given) for name in self.full_names(call.func))

    def parent(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        """The node around a node."""
        return None if node is None else self._parents.get(node)

    def _assigned_value(self, node: cst.Name) -> set[str]:
        """The full names of the value of a variable that is assigned exactly once."""
        match [self.parent(self.parent(each)) for each in self.assigned(node)]:
            case [cst.Assign(value=value)]:
                return self.full_names(value)
        return set()

    def _via_modules(self, names: set[str]) -> set[str]:
        """The names, with those re-exported by other modules replaced by their origins."""
        return {each for name in names for each in self._others.lookup(name) or {name}}

    def _from_star_imports(self, node: cst.Name) -> set[str]:
        """The full names of a name that this module does not bind, if a star import provides it."""
        if not self._others.star_modules or self.assigned(node):
            return set()
        return {name for star in self._others.star_modules for name in self._others.lookup(f"{star}.{node.value}")}

    def _class_attribute(self, node: cst.Attribute) -> set[str]:
        """The full names of an attribute of a class, or of its ``self``, that is assigned exactly once."""
        match self.assigned(node.value):
            case [cst.Param() as given]:
                method = self.parent(self.parent(given))
                first = method.params.params[:1] if isinstance(method, cst.FunctionDef) else ()
                owner = self.parent(self.parent(method)) if first and first[0] is given else None
            case [owner]:
                pass
            case _:
                return set()
        if not isinstance(owner, cst.ClassDef):
            return set()
        members = self._members.get(owner)
        if members is None:
            members = self._members[owner] = ClassAttributes()
            owner.body.visit(members)
        match members.values.get(node.attr.value, []):
            case [str() as imported]:
                return self._via_modules({imported})
            case [cst.CSTNode() as value]:
                return self.full_names(value)
        return set()

    def _named_by_string(self, node: cst.Call) -> set[str]:
        """The full names that ``getattr``, ``import_module`` and ``__import__`` look up, given as string literals."""
        called, text = self.called(node), text_of(node, 0)
        if "builtins.getattr" in called and len(node.args) == 2:
            return {f"{each}.{text_of(node, 1)}" for each in self.full_names(node.args[0].value) if text_of(node, 1)}
        if "importlib.import_module" in called and text:
            return {f"{text_of(node, 1) or ''}{text}" if text.startswith(".") else text}
        if "builtins.__import__" in called and text:
            return {text.partition(".")[0]}
        return set()

    def _qualified_names(self, node: cst.CSTNode, source: metadata.QualifiedNameSource) -> set[str]:
        scope = self.get_metadata(metadata.ScopeProvider, node, None)
        found: Iterable[Any] = scope.get_qualified_names_for(node) if scope is not None else ()
        return {each.name for each in found if each.source is source}


class ClassAttributes(cst.CSTVisitor):
    """Collects what the attributes of a class are assigned: in its body, and by its methods, as in ``self.xp = cuda``."""

    def __init__(self) -> None:
        super().__init__()
        #: Assigned expressions, and full names of imports.
        self.values: dict[str, list[cst.CSTNode | str]] = {}
        self._depth = 0

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """Skip nested classes, which have attributes of their own."""
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Enter a method, whose local names are no attributes."""
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        """Leave the method."""
        self._depth -= 1

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        """Collect ``from numba import cuda`` in the class's body."""
        if not self._depth and node.module is not None and not isinstance(node.names, cst.ImportStar):
            module = "." * len(node.relative) + dotted(node.module)
            for alias in node.names:
                bound = alias.evaluated_alias or dotted(alias.name)
                self.values.setdefault(bound, []).append(f"{module}.{dotted(alias.name)}")

    def visit_Assign(self, node: cst.Assign) -> None:
        """Collect a name in the body, or an attribute of ``self``."""
        for each in node.targets:
            match each.target:
                case cst.Name(value=name) if not self._depth:
                    self.values.setdefault(name, []).append(node.value)
                case cst.Attribute(value=cst.Name(value="self" | "cls"), attr=cst.Name(value=name)):
                    self.values.setdefault(name, []).append(node.value)


def parents_below(root: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """The node around each node below a root, but for white space."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for name in _fields(type(node)):
            value = getattr(node, name)
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, cst.CSTNode) and type(each) not in _WHITE_SPACE:
                    found[each] = node
                    waiting.append(each)
    return found


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """The names of the fields of a kind of nodes."""
    return tuple(each.name for each in dataclasses.fields(kind))


def dotted(node: cst.BaseExpression) -> str:
    """The text of a dotted name."""
    if isinstance(node, cst.Attribute):
        return f"{dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def plain_names(node: cst.Import) -> set[str]:
    """The names that a statement imports without ``as``; ``numba`` in any case."""
    return {dotted(alias.name) for alias in node.names if alias.asname is None} | {
        dotted(alias.name) for alias in node.names if dotted(alias.name) == "numba"
    }


def text_of(node: cst.Call, place: int) -> str | None:
    """The string literal at a positional argument of a call; None if there is none."""
    value = node.args[place].value if place < len(node.args) and node.args[place].keyword is None else None
    found = value.evaluated_value if isinstance(value, cst.SimpleString | cst.ConcatenatedString) else None
    return found if isinstance(found, str) else None


def leading_text(node: cst.CSTNode) -> str:
    """The literal start of a string expression: ``numba.`` of ``f"numba.{name}"`` and of ``"numba." + name``."""
    match node:
        case cst.SimpleString():
            return node.raw_value
        case cst.FormattedString(parts=[cst.FormattedStringText(value=text), *_]):
            return text
        case cst.BinaryOperation(left=left) | cst.ConcatenatedString(left=left):
            return leading_text(left)
    return ""


def is_empty_literal(node: cst.BaseExpression) -> bool:
    """Whether an expression is None, False, 0 or an empty list or tuple."""
    match node:
        case cst.Name(value="None" | "False") | cst.Integer(value="0"):
            return True
        case cst.List(elements=[]) | cst.Tuple(elements=[]):
            return True
    return False
