"""Give devmem's drop-in to programs that import ``numba.cuda`` or ``numba_cuda_mlir.cuda``.

Every Python process that a simulated command starts imports this module before the program: it needs the standard library alone,
and imports devmem when one of the names is imported. It is imported by this name only, so that a process has it once.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

DROP_IN = "devmem.compat.numba_cuda"
#: Where a name of what is simulated is looked up that the drop-in has not: there are the types, such as ``cuda.float32``.
TYPES = {"numba.cuda": "numba.cuda.types", "numba_cuda_mlir.cuda": "numba_cuda_mlir.types"}
#: What is simulated, with the folders in which installed packages have it: numba-cuda's takes the place of numba's own.
SIMULATED = {
    "numba.cuda": (("numba_cuda", "numba", "cuda"), ("numba", "cuda")),
    "numba_cuda_mlir.cuda": (("numba_cuda_mlir", "cuda"),),
}
#: Where the drop-in has functions that compile from. They do not work where ``numba.cuda`` is another module than theirs.
COMPILER = "numba.cuda.compiler"
PACKAGES = {name.partition(".")[0] for name in SIMULATED}


class SimulatedImports(MetaPathFinder):
    """Finds what is simulated, and of the package above an empty one where none is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module of the drop-in; else the installed one, found in its package's folder, as the drop-in has another."""
        for root in SIMULATED:
            if fullname == root or fullname.startswith(root + "."):
                found = _of_drop_in(fullname, DROP_IN + fullname[len(root) :], _folders(fullname, root))
                return found or PathFinder.find_spec(fullname, _folders(fullname.rpartition(".")[0], root))
            if fullname == root.partition(".")[0] and not self._elsewhere(fullname):
                return ModuleSpec(fullname, _Empty(), is_package=True)
        return None

    def _elsewhere(self, name: str) -> bool:
        others = (each for each in sys.meta_path if each is not self)
        return any(finder.find_spec(name, None) is not None for finder in others)


class _DropIn(Loader):
    """A module of the drop-in under a second name.

    A package has the drop-in's names and, as a module of its own, submodules that are installed.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give a package its names; put the drop-in's in the place of another module."""
        drop_in = importlib.import_module(self.name)
        if not hasattr(module, "__path__"):
            sys.modules[module.__name__] = drop_in
            return
        own = {"__name__", "__package__", "__spec__", "__loader__", "__path__", "__getattr__", "__dir__"}
        vars(module).update((name, value) for name, value in vars(drop_in).items() if name not in own)
        module.__getattr__ = partial(_name, drop_in, module.__name__)  # type: ignore[method-assign]
        module.__dir__ = partial(dir, drop_in)  # type: ignore[method-assign]


class _Empty(Loader):
    """A package that is not installed, for the sake of what is simulated in it."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Say what is missing, when it is asked for."""
        package = module.__name__

        def missing(name: str) -> object:
            raise AttributeError(
                f"{package} has no {name!r}: {package} is not installed, and devmem simulates {package}.cuda alone: "
                f"pip install {package.replace('_', '-')}"
            )

        module.__getattr__ = missing  # type: ignore[method-assign]


def _refuse_empty(original: Callable[..., ModuleType]) -> Callable[..., ModuleType]:
    """``__import__`` by which ``import numba`` fails where numba is not installed: a program that can do without it does.

    The import of the package itself cannot be refused by a finder: ``from numba import cuda`` begins with it.
    """

    @functools.wraps(original)
    def checked(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        found = original(name, globals, locals, fromlist, level)
        if (
            name in PACKAGES
            and level == 0
            and "cuda" not in (fromlist or ())
            and isinstance(getattr(found, "__loader__", None), _Empty)
        ):
            if f"{name}.cuda" not in sys.modules:
                sys.modules.pop(name, None)
            raise ModuleNotFoundError(
                f"No module named {name!r}: devmem simulates {name}.cuda alone: pip install {name.replace('_', '-')}",
                name=name,
            )
        return found

    return checked


def install() -> None:
    """Simulate in this process, from now on.

    Raises
    ------
    RuntimeError
        What is to be simulated is imported already.
    """
    for name in SIMULATED:
        if name in sys.modules and not isinstance(getattr(sys.modules[name], "__loader__", None), _DropIn):
            raise RuntimeError(f"{name} is imported already, before devmem could simulate it")
    if not any(isinstance(each, SimulatedImports) for each in sys.meta_path):
        is_missing = "numba" not in sys.modules and PathFinder.find_spec("numba") is None
        sys.meta_path.insert(0, SimulatedImports())
        if is_missing:  # else imports, and the lines that their warnings name, are as they were
            builtins.__import__ = _refuse_empty(builtins.__import__)


def run_next(name: str, before: str) -> None:
    """Import the module of that name that the folder ``before`` hides, in its place."""
    paths = [each for each in sys.path if not _same(each, before)]
    spec = PathFinder.find_spec(name, paths)
    if spec is None or spec.loader is None:
        return
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _name(drop_in: ModuleType, package: str, name: str) -> object:
    """Return a package's attribute: the drop-in's, else what the installed package has under that name."""
    kernel = importlib.import_module(f"{DROP_IN}.kernel")
    if package in TYPES and kernel.COMPILER_ONLY.get(name) == COMPILER:
        return partial(_refuse_to_compile, name)
    try:
        return getattr(drop_in, name)
    except AttributeError:
        if name.startswith("_"):
            raise
        if package in TYPES:
            if name in kernel.REFUSED:  # a kernel that uses it is refused, and the rest of the program runs
                return partial(kernel.LinkedFunction, kernel.REFUSED[name])
            if name == "HAS_NUMBA":  # numba-cuda's own modules ask it
                return importlib.util.find_spec("numba") is not None
            with suppress(ImportError):
                if name == "config":
                    return importlib.import_module("numba.core.config")
                types = importlib.import_module(TYPES[package])
                if name in getattr(types, "__all__", ()):
                    return getattr(types, name)
        with suppress(ImportError):  # a submodule that the installed package imports with itself
            return importlib.import_module(f"{package}.{name}")
        raise


def _refuse_to_compile(name: str, *arguments: object, **options: object) -> None:
    raise NotImplementedError(
        f"cuda.{name} compiles for a GPU, and numba.cuda is simulated here, which compiles nothing: "
        f"run this part of the program without devmem simulate"
    )


def _of_drop_in(fullname: str, name: str, folders: list[str]) -> ModuleSpec | None:
    """The module that the drop-in has under a name, or None; ``folders``: where the installed package of that name is."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.startswith(DROP_IN):
            return None  # it would be in a module that is no package, or that there is not
        raise ImportError(
            f"devmem simulate: {sys.executable} has no {missing.name}: pip install 'devmem-arrays[sim]' there"
        ) from missing
    if found is None:
        return None
    spec = ModuleSpec(fullname, _DropIn(name), origin=found.origin)
    if found.submodule_search_locations is not None:
        spec.submodule_search_locations = folders
    return spec


def _folders(package: str, root: str) -> list[str]:
    """Return the folders of the installed package, which the drop-in may replace."""
    below = package[len(root) + 1 :].split(".") if package != root else []
    for outer, *inner in SIMULATED[root]:
        spec = importlib.util.find_spec(outer)
        if spec is not None and spec.submodule_search_locations:
            return [os.path.join(folder, *inner, *below) for folder in spec.submodule_search_locations]
    return []


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one or os.curdir) == os.path.realpath(other)
