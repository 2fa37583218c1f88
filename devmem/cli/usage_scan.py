"""What a module does with numba's names, and what has to be said of that: the places that the rules are asked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst
from libcst import metadata

from . import migration_rules
from .migration_rules import TARGETS, Kind, target_of, theirs
from .name_resolution import IMPORTERS, Meanings, Others, begins, dotted, is_false, plain_names, text_of

#: The last parts of our names, which a program may use for something else.
OURS = frozenset(name for _, name in TARGETS.values())


@dataclass(frozen=True)
class Finding:
    """A name that something has to be said of."""

    line: int
    name: str
    what: str
    kind: Kind = Kind.LOOK


class Mentions(NamedTuple):
    """How an import of numba is used: of which targets in full, and for which others of its names."""

    targets: set[str]
    others: set[str]


class Uses(Meanings):
    """What each import of numba is used for, which expressions say a target, and what has to be said of the names."""

    def __init__(self, others: Others) -> None:
        super().__init__(others)
        #: By import statement.
        self.mentions: dict[cst.CSTNode, Mentions] = {}
        #: ``numba.cuda``, by the node that says it.
        self.spelled: dict[cst.CSTNode, str] = {}
        self.taken: set[str] = set()
        self.findings: set[Finding] = set()
        self._importing = False
        self._moving = False
        self._staying: dict[cst.CSTNode, set[str]] = {}
        self._settings: list[tuple[cst.CSTNode, str, str]] = []

    # -- imports -------------------------------------------------------------------------------------------------------

    def visit_Import(self, node: cst.Import) -> None:
        """Look for what is missing; names in imports are no uses."""
        self._importing = True
        for alias in node.names:
            self._import(node, alias, dotted(alias.name))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        """The same for ``from``."""
        self._importing = True
        module = dotted(node.module) if node.module is not None and not node.relative else ""
        if isinstance(node.names, cst.ImportStar):
            if module == "numba" or target_of(module):
                self._find(node, f"{module}.*", "cannot be changed by name: import what is used")
            return
        for alias in node.names:
            self._import(node, alias, f"{module}.{dotted(alias.name)}")

    def leave_Import(self, original_node: cst.Import) -> None:
        """Names are uses again."""
        self._importing = False

    def leave_ImportFrom(self, original_node: cst.ImportFrom) -> None:
        """Names are uses again."""
        self._importing = False

    def leave_Module(self, original_node: cst.Module) -> None:
        """Say what stays numba's beside what moves."""
        for node, mentions in self.mentions.items():
            self._staying.setdefault(node, set()).update(mentions.others)
        for at, name, what in self._settings:
            if self._moving or name not in migration_rules.SHARED:
                self._find(at, name, what)
        for node, names in self._staying.items():
            if names and self._moving:
                self._find(node, "numba", migration_rules.staying(names), Kind.NUMBA)

    def _import(self, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias, name: str) -> None:
        for each in {name, target_of(name)} - {""}:
            self._judge(alias, each)
        told = migration_rules.plugin(name)
        if told:
            self._find(alias, name, told)
        if target_of(theirs(name)):
            self._moving |= migration_rules.is_here(theirs(name))
        elif name.startswith("numba."):
            self._staying.setdefault(node, set()).add(name.removeprefix("numba."))

    # -- uses ----------------------------------------------------------------------------------------------------------

    def visit_Name(self, node: cst.Name) -> None:
        """Note which import a use of ``numba`` itself belongs to."""
        meanings = self.imported(node)
        if not self._importing:
            self._set(node, meanings)
        parent = self.parent(node)
        attribute = parent if isinstance(parent, cst.Attribute) else None
        if not self._importing and "numba" in meanings:
            self._mention(node, attribute.attr.value if attribute and attribute.value is node else "")
        elif node.value in OURS and not (attribute and attribute.attr is node):
            self.taken |= set() if any(name.startswith("devmem") for name in meanings) else {node.value}

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Note a target that is said in full, and what has to be said of a name."""
        if self._importing:
            return
        parent = self.parent(node)
        longest = not (isinstance(parent, cst.Attribute) and parent.value is node)
        said = self.said(node)
        for name in self.meanings(node):
            if (
                target_of(name) == name and name in said
            ):  # else another file has it, or another line, and moves it there
                if "numba" in self.imported(node.value):
                    self.spelled[node] = name.removeprefix("numba.")
                else:
                    self._find(node, name, migration_rules.ANOTHER_WAY)
            if longest or name in migration_rules.DIFFERENT:
                self._judge(node, name)
            if longest:
                self._set(node, {name})
        for decorator, given in self.decorators(node.value):
            device = "device" in given and not is_false(given["device"])
            for verdict in migration_rules.member(theirs(decorator), node.attr.value, device):
                self._find(node, dotted(node), verdict)

    def visit_Call(self, node: cst.Call) -> None:
        """Note what is asked for by a text, and arguments that devmem has not."""
        called = self.called(node)
        for name in self.meanings(node):
            if target_of(name) == name != text_of(node, 0):
                self._find(node, name, migration_rules.ANOTHER_WAY)
            self._judge(node, name)
        for name in self._computed(node, called):
            self._find(node, name, migration_rules.COMPUTED)
        for rule in migration_rules.KEYWORDS:
            if called & set(rule.functions):
                self._argument(node, rule)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        """Note settings, modules' names but for those of loggers, and Python in texts, docstrings left out."""
        text = node.raw_value
        if text in migration_rules.PLUGINS:
            self._find(node, text, str(migration_rules.plugin(text)))
        if text in migration_rules.VARIABLES:
            self._find(node, text, f"means nothing to devmem: {migration_rules.VARIABLES[text]}")
        if target_of(text) and text.replace(".", "").replace("_", "").isalnum():
            call = self.parent(self.parent(node))
            if not (isinstance(call, cst.Call) and dotted(call.func).endswith("getLogger")):
                self._find(node, text, f"is text, which is left as it is: ours is {migration_rules.ours(text)}")
        elif not isinstance(self.parent(node), cst.Expr) and migration_rules.is_code(str(node.evaluated_value)):
            shown = next(
                line.strip() for line in str(node.evaluated_value).splitlines() if migration_rules.SAID.search(line)
            )
            self._find(node, repr(shown), "is text that Python may run, which is left as it is: change it there")

    def _mention(self, node: cst.Name, said: str) -> None:
        """What of ``numba`` is used here, for the import that it comes from."""
        imports = [each for each in self.assigned(node) if isinstance(each, cst.Import)]
        # Of several imports the one that says it has it: `import numba` beside `import numba.cuda`.
        exact = f"numba.{said}" if said in TARGETS else "numba"
        for each in [one for one in imports if exact in plain_names(one)] or imports:
            found = self.mentions.setdefault(each, Mentions(set(), set()))
            (found.targets if said in TARGETS else found.others).add(said)
            self._moving |= said in TARGETS

    def _computed(self, node: cst.Call, called: set[str]) -> set[str]:
        """What is asked for a name, or for a module of numba's, that is made when the program runs."""
        if "builtins.getattr" in called and len(node.args) == 2 and text_of(node, 1) is None:
            return {f"getattr({name}, ...)" for name in self.meanings(node.args[0].value) if target_of(theirs(name))}
        if called & IMPORTERS and node.args and text_of(node, 0) is None:
            return {f"{name}(...)" for name in called if begins(node.args[0].value).startswith("numba.")}
        return set()

    def _argument(self, node: cst.Call, rule: migration_rules.Keyword) -> None:
        """Hold the arguments of a call to a rule."""
        for each in node.args:
            if each.keyword is not None and each.keyword.value == rule.keyword:
                text = each.value.raw_value if isinstance(each.value, cst.SimpleString) else ""
                if text in rule.values if rule.values else not is_false(each.value):
                    shown = repr(text) if rule.values else "..."
                    self._find(node, f"{max(self.called(node))}({rule.keyword}={shown})", rule.what, rule.kind)

    def _set(self, node: cst.CSTNode, names: set[str]) -> None:
        """Note settings of numba's that Python code sets or asks for, and its warnings."""
        self._settings += [(node, *told) for told in map(migration_rules.setting, names) if told is not None]

    def _judge(self, node: cst.CSTNode, name: str) -> None:
        for verdict in migration_rules.verdicts(name):
            self._find(node, verdict.name, verdict.what, verdict.kind)

    def _find(self, node: cst.CSTNode, name: str, what: str, kind: Kind = Kind.LOOK) -> None:
        position = self.get_metadata(metadata.PositionProvider, node)
        self.findings.add(Finding(position.start.line, name, what, kind))
