"""Find the uses of numba's names in a module, and report what the migration rules say of each."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst
from libcst import metadata

from . import migration_rules
from .migration_rules import TARGETS, Finding, FindingKind, numba_name, target_of
from .name_resolution import (
    IMPORTERS,
    ForeignNames,
    NameResolver,
    dotted,
    is_empty_literal,
    leading_text,
    plain_names,
    text_of,
)

#: The names that rewritten imports bind; a program may use them for something else already.
DEVMEM_NAMES = frozenset(name for _, name in TARGETS.values())


class NumbaUse(NamedTuple):
    """The names of ``numba`` that a module uses through ``import numba``: targets of the migration, and others."""

    targets: set[str]
    others: set[str]


class UsageScan(NameResolver):
    """Collects the uses of each import of numba, the expressions that name a target, and the findings."""

    def __init__(self, others: ForeignNames) -> None:
        super().__init__(others)
        #: By import statement.
        self.mentions: dict[cst.CSTNode, NumbaUse] = {}
        #: Expressions such as ``numba.cuda``, with the name of their target.
        self.target_expressions: dict[cst.CSTNode, str] = {}
        self.names_in_use: set[str] = set()
        #: The functions that become kernels, or functions that kernels call.
        self.kernels: list[cst.FunctionDef] = []
        self._found: set[tuple[cst.CSTNode, str, str, FindingKind, tuple[str, ...]]] = set()
        self._importing = False
        self._imports: list[cst.CSTNode] = []
        self._any_moved = False
        self._kept_names: dict[cst.CSTNode, set[str]] = {}

    # -- imports -------------------------------------------------------------------------------------------------------

    def visit_Import(self, node: cst.Import) -> None:
        """Check the imported names; names inside the statement are no uses."""
        self._importing = True
        self._imports.append(node)
        for alias in node.names:
            self._import(node, alias, dotted(alias.name))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        """The same for ``from``."""
        self._importing = True
        self._imports.append(node)
        module = dotted(node.module) if node.module is not None and not node.relative else ""
        if isinstance(node.names, cst.ImportStar):
            if module == "numba" or target_of(module):
                self._add(node, f"{module}.*", "cannot be changed by name: import what is used")
            return
        for alias in node.names:
            self._import(node, alias, f"{module}.{dotted(alias.name)}")

    def leave_Import(self, original_node: cst.Import) -> None:
        """End the statement."""
        self._importing = False

    def leave_ImportFrom(self, original_node: cst.ImportFrom) -> None:
        """End the statement."""
        self._importing = False

    def leave_Module(self, original_node: cst.Module) -> None:
        """Report the names that still need numba."""
        for node, mentions in self.mentions.items():
            self._kept_names.setdefault(node, set()).update(mentions.others)
        for node, names in self._kept_names.items():
            if names and self._any_moved:
                self._add(node, "numba", migration_rules.kept_by_numba(names), FindingKind.NUMBA)

    def _import(self, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias, name: str) -> None:
        for each in {name, target_of(name)} - {""}:
            self._add_verdicts(alias, each)
        message = migration_rules.plugin(name)
        if message:
            self._add(alias, name, message)
        if name.startswith("numba_cuda_mlir.cuda") and isinstance(node, cst.Import) and alias.asname is None:
            self._add(alias, name, migration_rules.OTHER_IMPORT)
        if target_of(numba_name(name)):
            self._any_moved |= migration_rules.is_provided(numba_name(name))
        elif name.startswith("numba."):
            self._kept_names.setdefault(node, set()).add(name.removeprefix("numba."))

    # -- uses ----------------------------------------------------------------------------------------------------------

    def visit_Name(self, node: cst.Name) -> None:
        """Note to which import a use of ``numba`` itself belongs."""
        meanings = self.imported(node)
        if not self._importing:
            self._add_settings(node, meanings)
        parent = self.parent(node)
        attribute = parent if isinstance(parent, cst.Attribute) else None
        if not self._importing and "numba" in meanings:
            self._note_use(node, attribute.attr.value if attribute and attribute.value is node else "")
        elif node.value in DEVMEM_NAMES and not (attribute and attribute.attr is node):
            self.names_in_use |= set() if any(name.startswith("devmem") for name in meanings) else {node.value}

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Note expressions such as ``numba.cuda``, and check the full names of attributes."""
        if self._importing:
            return
        parent = self.parent(node)
        longest = not (isinstance(parent, cst.Attribute) and parent.value is node)
        said = self.attribute_names(node)
        for name in self.full_names(node):
            if target_of(name) == name and name in said:  # else it is imported elsewhere and rewritten there
                if "numba" in self.imported(node.value):
                    self.target_expressions[node] = name.removeprefix("numba.")
                else:
                    self._add(node, name, migration_rules.OTHER_ACCESS)
            if longest or name in migration_rules.DIFFERENT:
                self._add_verdicts(node, name)
            if longest:
                self._add_settings(node, {name})
        for decorator, given in self.decorators(node.value):
            device = "device" in given and not is_empty_literal(given["device"])
            for verdict in migration_rules.member(numba_name(decorator), node.attr.value, device):
                self._add(node, dotted(node), verdict)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Note kernels, and the functions for them."""
        for each in node.decorators:
            called = each.decorator.func if isinstance(each.decorator, cst.Call) else each.decorator
            if {numba_name(name) for name in self.full_names(called)} & migration_rules.KERNEL_MAKERS:
                self.kernels.append(node)

    def visit_Call(self, node: cst.Call) -> None:
        """Check names given as strings (``getattr``, ``import_module``), and arguments that devmem does not support."""
        called = self.called(node)
        for name in self.full_names(node):
            if target_of(name) == name != text_of(node, 0):
                self._add(node, name, migration_rules.OTHER_ACCESS)
            self._add_verdicts(node, name)
        for name in self._computed_names(node, called):
            self._add(node, name, migration_rules.COMPUTED)
        for rule in migration_rules.KEYWORDS:
            if called & set(rule.functions):
                self._check_argument(node, rule)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        """Check strings for settings, module names (except of loggers) and Python code; docstrings are skipped."""
        text = node.raw_value
        if text in migration_rules.PLUGINS:
            self._add(node, text, str(migration_rules.plugin(text)))
        if text in migration_rules.VARIABLES:
            self._add(node, text, f"has no effect on devmem: {migration_rules.VARIABLES[text]}")
        if target_of(text) and text.replace(".", "").replace("_", "").isalnum():
            call = self.parent(self.parent(node))
            if not (isinstance(call, cst.Call) and dotted(call.func).endswith("getLogger")):
                self._add(
                    node,
                    text,
                    f"is in a string, which migrate does not change: devmem's name is {migration_rules.devmem_name(text)}",
                )
        elif not isinstance(self.parent(node), cst.Expr) and migration_rules.is_code(str(node.evaluated_value)):
            shown = next(
                line.strip()
                for line in str(node.evaluated_value).splitlines()
                if migration_rules.MENTIONS_NUMBA.search(line)
            )
            self._add(node, repr(shown), "is Python code in a string, which migrate does not change: change it there")

    def _note_use(self, node: cst.Name, said: str) -> None:
        """Record a use of ``numba.<said>`` for the import that binds ``numba``."""
        imports = [each for each in self.assigned(node) if isinstance(each, cst.Import)]
        # Beside `import numba`, `import numba.cuda` is the one that provides numba.cuda.
        exact = f"numba.{said}" if said in TARGETS else "numba"
        for each in [one for one in imports if exact in plain_names(one)] or imports:
            found = self.mentions.setdefault(each, NumbaUse(set(), set()))
            (found.targets if said in TARGETS else found.others).add(said)
            self._any_moved |= said in TARGETS

    def _computed_names(self, node: cst.Call, called: set[str]) -> set[str]:
        """Lookups whose name is computed at run time."""
        if "builtins.getattr" in called and len(node.args) == 2 and text_of(node, 1) is None:
            return {
                f"getattr({name}, ...)" for name in self.full_names(node.args[0].value) if target_of(numba_name(name))
            }
        if called & IMPORTERS and node.args and text_of(node, 0) is None:
            return {f"{name}(...)" for name in called if leading_text(node.args[0].value).startswith("numba.")}
        return set()

    def _check_argument(self, node: cst.Call, rule: migration_rules.Keyword) -> None:
        """Check the arguments of a call against a rule."""
        for each in node.args:
            if each.keyword is not None and each.keyword.value == rule.keyword:
                text = each.value.raw_value if isinstance(each.value, cst.SimpleString) else ""
                if text in rule.values if rule.values else not is_empty_literal(each.value):
                    shown = repr(text) if rule.values else "..."
                    self._add(node, f"{max(self.called(node))}({rule.keyword}={shown})", rule.what, rule.kind)

    def _add_settings(self, node: cst.CSTNode, names: set[str]) -> None:
        """Report numba's settings that the code reads or sets."""
        for message in map(migration_rules.setting, names):
            if message is not None:
                self._add(node, *message)

    def _add_verdicts(self, node: cst.CSTNode, name: str) -> None:
        for verdict in migration_rules.verdicts_on(name):
            self._add(node, verdict.name, verdict.what, verdict.kind, verdict.refused_by)

    def _add(
        self,
        node: cst.CSTNode,
        name: str,
        what: str,
        kind: FindingKind = FindingKind.LOOK,
        refused_by: tuple[str, ...] = (),
    ) -> None:
        self._found.add((node, name, what, kind, refused_by))

    def to_rewrite(self) -> set[cst.CSTNode]:
        """The imports, the expressions that name a target, and the nodes around them."""
        found: set[cst.CSTNode] = set()
        for each in (*self._imports, *self.target_expressions):
            node: cst.CSTNode | None = each
            while node is not None and node not in found:
                found.add(node)
                node = self.parent(node)
        return found

    def findings(self, wrapper: metadata.MetadataWrapper) -> set[Finding]:
        """Return the findings with their lines, which are computed for the whole module."""
        lines = wrapper.resolve(metadata.PositionProvider) if self._found else {}
        return {
            Finding(lines[node].start.line, name, what, kind, refused_by)
            for node, name, what, kind, refused_by in self._found
        }
