"""What the names in a module mean, as far as they are numba's and move to devmem."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import libcst as cst
from libcst import metadata

#: What is moved: numba's name, the package that has ours, and ours.
TARGETS = {
    "cuda": ("devmem.compat", "numba_cuda"),
    "roc": ("devmem.compat", "numba_roc"),
    "hsa": ("devmem.compat", "numba_roc"),
    "SmartArray": ("devmem", "SmartArray"),
}

#: Names that are there and differ enough to be looked at.
DIFFERENT = {
    "numba.hsa": "numba.hsa was renamed to numba.roc: look at old calls",
    "numba.roc.finegrain_array": "is really fine-grained, as its documentation said; numba.roc's was coarse",
    "numba.roc.ds_permute": "is NotImplementedError: exchange values through shared.array()",
    "numba.roc.ds_bpermute": "is NotImplementedError: exchange values through shared.array()",
    "numba.roc.activelanepermute_wavewidth": "is NotImplementedError: exchange values through shared.array()",
    "numba.SmartArray": "indexing it shares memory with the whole, numpy.asarray() of it is read-only",
}


OURS = frozenset(name for _, name in TARGETS.values())


@dataclass(frozen=True)
class Finding:
    """A name that has to be looked at by a person."""

    line: int
    name: str
    what: str


class Mentions(NamedTuple):
    """How an import of numba is used: of which targets in full, and whether for anything else."""

    targets: set[str]
    others: bool


class Uses(cst.CSTVisitor):
    """What each import of numba is used for, which expressions mean a target, and which names devmem does not have."""

    METADATA_DEPENDENCIES = (
        metadata.ScopeProvider,
        metadata.QualifiedNameProvider,
        metadata.ParentNodeProvider,
        metadata.PositionProvider,
    )

    def __init__(self) -> None:
        super().__init__()
        #: By import statement.
        self.mentions: dict[cst.CSTNode, Mentions] = {}
        #: ``numba.cuda``, by the node that says it.
        self.spelled: dict[cst.CSTNode, str] = {}
        self.taken: set[str] = set()
        self.findings: set[Finding] = set()
        self._importing = False

    def visit_Import(self, node: cst.Import) -> None:
        """Look for what is missing; names in imports are no uses."""
        self._importing = True
        for alias in node.names:
            self._look_for(alias, dotted(alias.name))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        """The same for ``from``."""
        self._importing = True
        module = dotted(node.module) if node.module is not None and not node.relative else ""
        if isinstance(node.names, cst.ImportStar):
            if module == "numba" or target_of(module):
                self._find(node, f"{module}.*", "cannot be changed by name: import what is used")
            return
        for alias in node.names:
            self._look_for(alias, f"{module}.{dotted(alias.name)}", module)

    def leave_Import(self, original_node: cst.Import) -> None:
        """Names are uses again."""
        self._importing = False

    def leave_ImportFrom(self, original_node: cst.ImportFrom) -> None:
        """Names are uses again."""
        self._importing = False

    def visit_Name(self, node: cst.Name) -> None:
        """Note which import a use of ``numba`` itself belongs to."""
        if not self._importing and "numba" in self._meanings(node):
            parent = self._parent(node)
            said = parent.attr.value if isinstance(parent, cst.Attribute) and parent.value is node else ""
            scope = self.get_metadata(metadata.ScopeProvider, node, None)
            imports: list[Any] = [
                each.node
                for each in (scope[node.value] if scope is not None else ())
                if isinstance(each, metadata.ImportAssignment) and isinstance(each.node, cst.Import)
            ]
            # Of several imports the one that says it has it: `import numba` beside `import numba.cuda`.
            exact = f"numba.{said}" if said in TARGETS else "numba"
            for each in [one for one in imports if exact in plain_names(one)] or imports:
                found = self.mentions.setdefault(each, Mentions(set(), False))
                if said in TARGETS:
                    found.targets.add(said)
                else:
                    self.mentions[each] = found._replace(others=True)
        elif node.value in OURS and not any(name.startswith("devmem") for name in self._meanings(node)):
            parent = self._parent(node)
            if not (isinstance(parent, cst.Attribute) and parent.attr is node):
                self.taken.add(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Note a target that is said in full, and names that are missing."""
        if self._importing:
            return
        for name in self._meanings(node):
            target = target_of(name)
            if target == name:
                root = node.value
                if isinstance(root, cst.Name) and "numba" in self._meanings(root):
                    self.spelled[node] = name.removeprefix("numba.")
            parent = self._parent(node)
            longest = not (isinstance(parent, cst.Attribute) and parent.value is node)
            if target and (longest or name in DIFFERENT):
                self._look_for(node, name)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        """Note a module's name in a text."""
        text = node.raw_value
        if target_of(text) and text.replace(".", "").replace("_", "").isalnum():
            self._find(node, text, "is text, which is left as it is")

    def _look_for(self, node: cst.CSTNode, name: str, module: str = "") -> None:
        """Note a name that devmem does not have, or has otherwise; with the module that it is imported from."""
        target = target_of(name)
        if not target:
            return
        for known, what in DIFFERENT.items():
            if name == known or name.startswith(f"{known}."):
                self._find(node, known, what)
        missing = first_missing(name) or missing_module(module)
        if missing:
            self._find(node, missing, "is not in devmem: it is left to numba, or has to be done otherwise")

    def _find(self, node: cst.CSTNode, name: str, what: str) -> None:
        position = self.get_metadata(metadata.PositionProvider, node)
        self.findings.add(Finding(position.start.line, name, what))

    def _meanings(self, node: cst.CSTNode) -> set[str]:
        found: Iterable[Any] = self.get_metadata(metadata.QualifiedNameProvider, node, ())
        return {each.name for each in found if each.source is metadata.QualifiedNameSource.IMPORT}

    def _parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.get_metadata(metadata.ParentNodeProvider, node, None)


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


def target_of(name: str) -> str:
    """``numba.cuda`` of ``numba.cuda.to_device``; nothing of what is not moved."""
    root, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    return f"numba.{first}" if root == "numba" and first in TARGETS else ""


def ours(name: str) -> str:
    """What a name of numba's is called in devmem."""
    target = target_of(name)
    return ".".join(TARGETS[target.removeprefix("numba.")]) + name.removeprefix(target)


@lru_cache
def first_missing(name: str) -> str:
    """The first part of a name of numba's that devmem does not have, as numba has it; nothing if it has all."""
    target = target_of(name)
    package, attribute = TARGETS[target.removeprefix("numba.")]
    found: Any = getattr(importlib.import_module(package), attribute, None) or importlib.import_module(
        f"{package}.{attribute}"
    )
    path = target
    for part in name.removeprefix(target).split(".")[1:]:
        path = f"{path}.{part}"
        if part in vars(found).get("COMPILER_ONLY", ()):
            return ""  # numba-cuda's own, whether or not that is installed here
        if part in getattr(found, "__all__", ()) and part not in vars(found):
            return ""  # made when somebody asks: nobody does here
        try:
            found = getattr(found, part)
        except ImportError:
            return ""  # there, with a library that is not installed
        except AttributeError:
            try:
                found = importlib.import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return path
        if not hasattr(found, "__path__") and not hasattr(found, "__file__"):
            return ""  # no module: of classes and objects the members are not looked at
    return ""


@lru_cache
def missing_module(name: str) -> str:
    """The name of a module of numba's that is none in devmem; nothing if it is one, or does not move."""
    if not target_of(name):
        return ""
    try:
        importlib.import_module(ours(name))
    except ModuleNotFoundError as error:
        return name if error.name == ours(name) else ""
    except ImportError:
        pass  # there, with a library that is not installed
    return ""
