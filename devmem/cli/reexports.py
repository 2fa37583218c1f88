"""Names of numba's that the modules of a code base re-export: ``from .gpu import cuda``. The modules are parsed, never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from .import_bindings import bindings
from .migration_rules import may_be_reported, numba_name

#: Statements whose bodies belong to the module's scope: `if` of a version, `try` of an import.
BLOCKS = (ast.If, ast.Try, ast.TryStar, ast.With)


class ModuleLocation(NamedTuple):
    """The folder that a module's dotted name starts from, and the parts of the name."""

    root: Path
    parts: tuple[str, ...]


@dataclass
class Module:
    """A module's names and what its imports bind them to; relative names begin with dots, as in the import."""

    place: ModuleLocation
    package: tuple[str, ...]
    names: dict[str, set[str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    tree: ast.Module | None = None


class ReexportIndex:
    """Resolves names of modules among some files to names of numba's; a module is parsed at its first lookup."""

    def __init__(self, paths: Iterable[Path] = (), related: Container[Path] | None = None) -> None:
        #: The files that may import names of numba's; None: any.
        self._related = related
        # A module comes after its stub, and so replaces it in the dicts below.
        self._locations = {
            path: locate_module(path) for path in sorted(paths, key=lambda path: path.suffix, reverse=True)
        }
        self._paths = {place: path for path, place in self._locations.items()}
        self._by_parts: dict[tuple[str, ...], list[ModuleLocation]] = {}
        for place in self._paths:
            self._by_parts.setdefault(place.parts, []).append(place)
        self._read: dict[ModuleLocation, Module] = {}
        self._resolving: set[tuple[ModuleLocation, str]] = set()

    def lookup(self, path: Path, name: str) -> set[str]:
        """Return the names of numba's, or of the drop-ins', that a name resolves to by way of other files.

        ``name`` begins with the module of its import: ``.gpu.cuda.jit`` for ``cuda.jit`` after ``from .gpu import cuda``.
        """
        return {each for each in self._resolved(self._place(path), name) if each != name}

    @cached_property
    def words(self) -> frozenset[str] | None:
        """The modules' own names for names of numba that have rules: the last parts of what `lookup` resolves to those.

        None: any word may be one, as a module imports all names of numba's.
        """
        modules = [
            self._module(place)
            for path, place in self._locations.items()
            if self._related is None or path in self._related
        ]
        if any(may_be_reported(star) for module in modules for star in module.stars):
            return None
        bound = [(name, given) for each in modules for name, all_given in each.names.items() for given in all_given]
        found: set[str] = set()
        new = {name for name, given in bound if may_be_reported(given)}
        while new - found:
            found |= new
            new = {name for name, given in bound if given.rpartition(".")[2] in found}
        return frozenset(found)

    def stars(self, path: Path) -> list[str]:
        """The modules of a file's star imports."""
        return self._module(self._place(path)).stars

    def imports_numba_names(self, path: Path) -> bool:
        """Whether a file imports, from another file, a name that may be numba's."""
        if self._related is not None and path not in self._related:
            return False
        module = self._module(self._place(path))
        return module.tree is not None and any(
            any(self._resolved(module.place, name) or self._reexports(module, name)) for name in _imported(module.tree)
        )

    def _place(self, path: Path) -> ModuleLocation:
        return self._locations.get(path) or locate_module(path)

    def _reexports(self, module: Module, name: str) -> Iterator[bool]:
        """For each name of the module that ``name`` refers to, whether it may be numba's."""
        place = self._found(module, _absolute_parts(module, name))
        if place is not None and place != module.place:
            other = self._module(place)
            for each in [*other.names, *(f"{star}.*" for star in other.stars)]:
                yield each.endswith("*") or bool(self._resolved(place, each, own=True))

    def _resolved(self, place: ModuleLocation, name: str, own: bool = False) -> set[str]:
        """Return what a name resolves to in the module at ``place``; ``own``: it is one of the module's own names."""
        if numba_name(name).partition(".")[0] == "numba" and not own:
            return {name}
        if (place, name) in self._resolving:  # modules that import each other
            return set()
        self._resolving.add((place, name))
        try:
            module = self._module(place)
            if own:
                first, *rest = name.split(".")
                given = module.names.get(first, set()) | {f"{star}.{first}" for star in module.stars}
                return {each for one in given for each in self._resolved(place, ".".join([one, *rest]))}
            parts = _absolute_parts(module, name)
            for count in range(len(parts) - 1, 0, -1):
                other = self._found(module, parts[:count])
                if other is not None and other != place:
                    return self._resolved(other, ".".join(parts[count:]), own=True)
            return set()
        finally:
            self._resolving.discard((place, name))

    def _found(self, module: Module, parts: tuple[str, ...]) -> ModuleLocation | None:
        """The module of this dotted name: under the same root folder, or else the only one of that name."""
        near = ModuleLocation(module.place.root, parts)
        if near in self._paths:
            return near
        found = self._by_parts.get(parts, [])
        return found[0] if len(found) == 1 else None

    def _module(self, place: ModuleLocation) -> Module:
        found = self._read.get(place)
        if found is None:
            path = self._paths.get(place)
            is_package = path is not None and path.stem == "__init__"
            found = self._read[place] = Module(place, place.parts if is_package else place.parts[:-1])
            if path is not None:
                found.tree = _parsed(path)
                _collect(found, found.tree.body if found.tree else [])
        return found


def locate_module(path: Path) -> ModuleLocation:
    """The location of a module, by the packages around it."""
    full = path.absolute()
    parts, folder = () if full.stem == "__init__" else (full.stem,), full.parent
    while (folder / "__init__.py").exists() and folder.name:
        parts, folder = (folder.name, *parts), folder.parent
    return ModuleLocation(folder, parts)


def _parsed(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None if it cannot be read or parsed, which the rewriting of that file reports."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in the user's source
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _collect(module: Module, body: list[ast.stmt]) -> None:
    """Collect what the names of a module are bound to: by imports, and by assignments of names."""
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                for name, given in bindings(statement):
                    if name == "*":
                        module.stars.append(given)
                    else:
                        module.names.setdefault(name, set()).add(given)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                first, *rest = _dotted(value)
                for given in list(module.names.get(first, ())):
                    module.names.setdefault(name, set()).add(".".join([given, *rest]))
            case _ if isinstance(statement, BLOCKS):
                blocks = [getattr(statement, each, []) for each in ("body", "orelse", "finalbody")]
                blocks += [each.body for each in getattr(statement, "handlers", [])]
                for each in blocks:
                    _collect(module, each)


def _imported(tree: ast.Module) -> Iterator[str]:
    """The full names of all imports in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (given for _, given in bindings(node))


def _absolute_parts(module: Module, name: str) -> tuple[str, ...]:
    """The parts of a name with a relative import resolved: one dot is the module's package, each further dot its parent."""
    rest = name.lstrip(".")
    dots = len(name) - len(rest)
    parts = tuple(rest.split(".")) if rest else ()
    return (*module.package[: len(module.package) + 1 - dots], *parts) if dots else parts


def _dotted(node: ast.expr) -> list[str]:
    """The parts of a dotted name."""
    if isinstance(node, ast.Attribute):
        return [*_dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]
