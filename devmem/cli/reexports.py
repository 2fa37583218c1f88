"""What the modules of a code base hand on to each other of numba's names: ``from .gpu import cuda``. Nothing of them is run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .migration_rules import theirs

#: Statements whose bodies are a module's own: `if` of a version, `try` of an import.
BLOCKS = (ast.If, ast.Try, ast.TryStar, ast.With)


class Place(NamedTuple):
    """Where a module is: the folder that its whole name starts from, and the parts of that."""

    root: Path
    parts: tuple[str, ...]


@dataclass
class Module:
    """What a module's names are given by its imports; names with dots before them start at its own package."""

    place: Place
    package: tuple[str, ...]
    names: dict[str, set[str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    tree: ast.Module | None = None


class Modules:
    """The modules among some files, and what of numba's each of their names means; each is read when somebody asks."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        # Of a module and its stub the module, which comes last.
        self._places = {path: place_of(path) for path in sorted(paths, key=lambda path: path.suffix, reverse=True)}
        self._paths = {place: path for path, place in self._places.items()}
        self._by_parts: dict[tuple[str, ...], list[Place]] = {}
        for place in self._paths:
            self._by_parts.setdefault(place.parts, []).append(place)
        self._read: dict[Place, Module] = {}
        self._asked: set[tuple[Place, str]] = set()

    def known(self, path: Path, name: str) -> set[str]:
        """What of numba's, or of the drop-ins', a name means in a file, if that is by way of other files.

        ``name`` is whole as its import has it: ``.gpu.cuda.jit`` of ``from .gpu import cuda``.
        """
        return {each for each in self._resolved(self._place(path), name) if each != name}

    def stars(self, path: Path) -> list[str]:
        """The modules that a file imports all names of."""
        return self._module(self._place(path)).stars

    def reaches(self, path: Path) -> bool:
        """Whether a file imports something from another one that may be numba's."""
        module = self._module(self._place(path))
        return module.tree is not None and any(
            any(self._resolved(module.place, name) or self._hands_on(module, name)) for name in _imported(module.tree)
        )

    def _place(self, path: Path) -> Place:
        return self._places.get(path) or place_of(path)

    def _hands_on(self, module: Module, name: str) -> Iterator[bool]:
        """Whether what a name says is a module with names of numba's in it."""
        place = self._found(module, _whole(module, name))
        if place is not None and place != module.place:
            other = self._module(place)
            for each in [*other.names, *(f"{star}.*" for star in other.stars)]:
                yield each.endswith("*") or bool(self._resolved(place, each, own=True))

    def _resolved(self, place: Place, name: str, own: bool = False) -> set[str]:
        """What a name comes to, in a module that was given; ``own``: it is one of the module's names."""
        if theirs(name).partition(".")[0] == "numba" and not own:
            return {name}
        if (place, name) in self._asked:  # modules that import each other
            return set()
        self._asked.add((place, name))
        try:
            module = self._module(place)
            if own:
                first, *rest = name.split(".")
                given = module.names.get(first, set()) | {f"{star}.{first}" for star in module.stars}
                return {each for one in given for each in self._resolved(place, ".".join([one, *rest]))}
            parts = _whole(module, name)
            for count in range(len(parts) - 1, 0, -1):
                other = self._found(module, parts[:count])
                if other is not None and other != place:
                    return self._resolved(other, ".".join(parts[count:]), own=True)
            return set()
        finally:
            self._asked.discard((place, name))

    def _found(self, module: Module, parts: tuple[str, ...]) -> Place | None:
        """The module of a name: beside the one that says it, or the only one that is called so."""
        near = Place(module.place.root, parts)
        if near in self._paths:
            return near
        found = self._by_parts.get(parts, [])
        return found[0] if len(found) == 1 else None

    def _module(self, place: Place) -> Module:
        found = self._read.get(place)
        if found is None:
            path = self._paths.get(place)
            is_package = path is not None and path.stem == "__init__"
            found = self._read[place] = Module(place, place.parts if is_package else place.parts[:-1])
            if path is not None:
                found.tree = _parsed(path)
                _collect(found, found.tree.body if found.tree else [])
        return found


def place_of(path: Path) -> Place:
    """Where a module is, by the packages around it."""
    full = path.absolute()
    parts, folder = () if full.stem == "__init__" else (full.stem,), full.parent
    while (folder / "__init__.py").exists() and folder.name:
        parts, folder = (folder.name, *parts), folder.parent
    return Place(folder, parts)


def _parsed(path: Path) -> ast.Module | None:
    """The tree of a file; what cannot be read is told of by those who have to change it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's own backslashes
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _collect(module: Module, body: list[ast.stmt]) -> None:
    """Note what the names of a module are given: by imports, and by assignments of names."""
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                for name, given in _of_import(statement):
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


def _of_import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that a statement binds, and what they mean."""
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


def _imported(tree: ast.Module) -> Iterator[str]:
    """All that is imported anywhere in a file, by whole names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (given for _, given in _of_import(node))


def _whole(module: Module, name: str) -> tuple[str, ...]:
    """The parts of a name from its root on: one dot stands for the module's package, each more for one further out."""
    rest = name.lstrip(".")
    dots = len(name) - len(rest)
    parts = tuple(rest.split(".")) if rest else ()
    return (*module.package[: len(module.package) + 1 - dots], *parts) if dots else parts


def _dotted(node: ast.expr) -> list[str]:
    """The parts of a dotted name."""
    if isinstance(node, ast.Attribute):
        return [*_dotted(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]
