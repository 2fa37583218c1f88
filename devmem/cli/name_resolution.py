"""What expressions mean, by Python's scopes: names of modules and of what is in them. Nothing is imported of what is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst as cst
from libcst import metadata

from .migration_rules import theirs

IMPORTERS = frozenset({"importlib.import_module", "builtins.__import__"})


class Others:
    """What a module has of numba's by way of others: of none, nothing."""

    def __init__(self, known: Callable[[str], set[str]] = lambda name: set(), stars: Iterable[str] = ()) -> None:
        #: What of numba's a whole name means: ``numba.cuda`` of ``.gpu.cuda``.
        self.known = known
        #: The modules that all names are imported of.
        self.stars = tuple(stars)


class Meanings(cst.CSTVisitor):
    """A visitor that knows the dotted name of what an expression means: ``numba.cuda.to_device`` of ``cu.to_device``."""

    METADATA_DEPENDENCIES = (
        metadata.ScopeProvider,
        metadata.QualifiedNameProvider,
        metadata.ParentNodeProvider,
        metadata.PositionProvider,
    )

    def __init__(self, others: Others) -> None:
        super().__init__()
        self._others = others
        self._followed: set[cst.CSTNode] = set()
        self._members: dict[cst.CSTNode, Members] = {}

    def meanings(self, node: cst.CSTNode | None) -> set[str]:
        """What an expression means: by an import, by a variable that was given one, or by a text that is asked for."""
        if node is None or node in self._followed:  # a variable that was given itself
            return set()
        self._followed.add(node)
        try:
            match node:
                case cst.Name():
                    return self._through(self.imported(node) or self._given(node) or self._starred(node))
                case cst.Attribute():
                    return self._through(self.said(node)) or self._of_class(node)
                case cst.Call():
                    return self._by_text(node)
            return set()
        finally:
            self._followed.discard(node)

    def said(self, node: cst.Attribute) -> set[str]:
        """What an attribute says: the name, as it is written, of what its value means."""
        return {f"{each}.{node.attr.value}" for each in self.meanings(node.value)}

    def imported(self, node: cst.CSTNode) -> set[str]:
        """What a name means by the import that it comes from."""
        return self._named(node, metadata.QualifiedNameSource.IMPORT)

    def called(self, node: cst.Call) -> set[str]:
        """What is called: names of numba's also where it is ours, ``builtins.getattr``."""
        builtin = self._named(node.func, metadata.QualifiedNameSource.BUILTIN)
        return builtin or {theirs(name) for name in self.meanings(node.func)}

    def assigned(self, node: cst.CSTNode) -> list[Any]:
        """What gives a name its meaning: import statements, definitions, and targets of assignments."""
        scope = self.get_metadata(metadata.ScopeProvider, node, None)
        assignments = scope[node.value] if scope is not None and isinstance(node, cst.Name) else ()
        return [each.node for each in assignments if isinstance(each, metadata.Assignment)]

    def decorators(self, node: cst.CSTNode) -> Iterator[tuple[str, dict[str, cst.BaseExpression]]]:
        """What the function of this name is decorated with, and the keywords of that."""
        match self.assigned(node):
            case [cst.FunctionDef(decorators=decorators)]:
                for each in decorators:
                    call = each.decorator if isinstance(each.decorator, cst.Call) else cst.Call(each.decorator)
                    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
                    yield from ((name, given) for name in self.meanings(call.func))

    def parent(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        """What a node stands in."""
        return None if node is None else self.get_metadata(metadata.ParentNodeProvider, node, None)

    def _given(self, node: cst.Name) -> set[str]:
        """What a variable means that is given one value, in one place."""
        match [self.parent(self.parent(each)) for each in self.assigned(node)]:
            case [cst.Assign(value=value)]:
                return self.meanings(value)
        return set()

    def _through(self, names: set[str]) -> set[str]:
        """Names of other modules by what those have them from."""
        return {each for name in names for each in self._others.known(name) or {name}}

    def _starred(self, node: cst.Name) -> set[str]:
        """What a name means that nothing here gives a meaning, where others' names are imported, all of them."""
        if not self._others.stars or self.assigned(node):
            return set()
        return {name for star in self._others.stars for name in self._others.known(f"{star}.{node.value}")}

    def _of_class(self, node: cst.Attribute) -> set[str]:
        """What an attribute of a class means, or of its ``self``, that is given one value, in one place."""
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
            members = self._members[owner] = Members()
            owner.body.visit(members)
        match members.values.get(node.attr.value, []):
            case [str() as imported]:
                return self._through({imported})
            case [cst.CSTNode() as value]:
                return self.meanings(value)
        return set()

    def _by_text(self, node: cst.Call) -> set[str]:
        """What ``getattr``, ``import_module`` and ``__import__`` are asked for, where that is written there."""
        called, text = self.called(node), text_of(node, 0)
        if "builtins.getattr" in called and len(node.args) == 2:
            return {f"{each}.{text_of(node, 1)}" for each in self.meanings(node.args[0].value) if text_of(node, 1)}
        if "importlib.import_module" in called and text:
            return {f"{text_of(node, 1) or ''}{text}" if text.startswith(".") else text}
        if "builtins.__import__" in called and text:
            return {text.partition(".")[0]}
        return set()

    def _named(self, node: cst.CSTNode, source: metadata.QualifiedNameSource) -> set[str]:
        found: Iterable[Any] = self.get_metadata(metadata.QualifiedNameProvider, node, ())
        return {each.name for each in found if each.source is source}


class Members(cst.CSTVisitor):
    """What the attributes of a class are given: in its body, and by its methods, as ``self.xp = cuda``."""

    def __init__(self) -> None:
        super().__init__()
        #: Values, and whole names of what is imported.
        self.values: dict[str, list[cst.CSTNode | str]] = {}
        self._depth = 0

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """One inside has a `self` of its own."""
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Names in methods are none of the class's."""
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        """Back in the body, maybe."""
        self._depth -= 1

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        """``from numba import cuda``, in the body."""
        if not self._depth and node.module is not None and not isinstance(node.names, cst.ImportStar):
            module = "." * len(node.relative) + dotted(node.module)
            for alias in node.names:
                bound = alias.evaluated_alias or dotted(alias.name)
                self.values.setdefault(bound, []).append(f"{module}.{dotted(alias.name)}")

    def visit_Assign(self, node: cst.Assign) -> None:
        """A name in the body, or an attribute of `self`."""
        for each in node.targets:
            match each.target:
                case cst.Name(value=name) if not self._depth:
                    self.values.setdefault(name, []).append(node.value)
                case cst.Attribute(value=cst.Name(value="self" | "cls"), attr=cst.Name(value=name)):
                    self.values.setdefault(name, []).append(node.value)


def dotted(node: cst.BaseExpression) -> str:
    """The text of a dotted name."""
    if isinstance(node, cst.Attribute):
        return f"{dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def plain_names(node: cst.Import) -> set[str]:
    """What a statement imports under its own name."""
    return {dotted(alias.name) for alias in node.names if alias.asname is None} | {
        dotted(alias.name) for alias in node.names if dotted(alias.name) == "numba"
    }


def text_of(node: cst.Call, place: int) -> str | None:
    """The text that stands as an argument of a call; None if none does."""
    value = node.args[place].value if place < len(node.args) and node.args[place].keyword is None else None
    found = value.evaluated_value if isinstance(value, cst.SimpleString | cst.ConcatenatedString) else None
    return found if isinstance(found, str) else None


def begins(node: cst.CSTNode) -> str:
    """The text that an expression begins with: ``numba.`` of ``f"numba.{name}"`` and of ``"numba." + name``."""
    match node:
        case cst.SimpleString():
            return node.raw_value
        case cst.FormattedString(parts=[cst.FormattedStringText(value=text), *_]):
            return text
        case cst.BinaryOperation(left=left) | cst.ConcatenatedString(left=left):
            return begins(left)
    return ""


def is_false(node: cst.BaseExpression) -> bool:
    """Whether a literal says nothing: None, False, 0 and what is empty."""
    match node:
        case cst.Name(value="None" | "False") | cst.Integer(value="0"):
            return True
        case cst.List(elements=[]) | cst.Tuple(elements=[]):
            return True
    return False
