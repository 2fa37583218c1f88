"""The rules of ``devmem migrate``: what is moved from numba to devmem, and what has to be said of which name.

Which names devmem has, the drop-ins themselves are asked. Written down here is what they cannot tell.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import warnings
from enum import StrEnum
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

from ..kernels.neutral import instead

#: What is moved: numba's name, the package that has ours, and ours.
TARGETS = {
    "cuda": ("devmem.compat", "numba_cuda"),
    "roc": ("devmem.compat", "numba_roc"),
    "hsa": ("devmem.compat", "numba_roc"),
    "SmartArray": ("devmem", "SmartArray"),
}
OURS = {f"{package}.{name}": f"numba.{target}" for target, (package, name) in TARGETS.items() if target != "hsa"}


class Kind(StrEnum):
    """How much a finding matters."""

    LOOK = "look"  #: missing, or otherwise than in numba: somebody has to look, and the exit status says so
    CUDA = "cuda"  #: numba-cuda's own: works where it worked, on CUDA, and nowhere else
    NUMBA = "numba"  #: stays numba's, which the program needs as before


class Verdict(NamedTuple):
    """What is said of a name; ``here``: whether devmem has it, so that an import of it moves."""

    kind: Kind
    name: str
    what: str
    here: bool = True


class Keyword(NamedTuple):
    """An argument that matters: of any value that is true, or of some."""

    functions: tuple[str, ...]
    keyword: str
    values: tuple[str, ...]
    kind: Kind
    what: str


MISSING = "is not in devmem: it is left to numba, or has to be done otherwise"
ON_CUDA = "is numba-cuda's own: it works on CUDA alone"
ANOTHER_WAY = "is reached in a way that is left as it is: import the drop-in there"
COMPUTED = "asks for a name that only a run shows: look whether devmem has it"
BOUNDS = "is refused: on the host backend kernels tell of stray indices"
WRITE_ONE = "is not in devmem: write a kernel, with jit of the drop-in"

#: Names that are there and differ enough to be looked at.
DIFFERENT = {
    "numba.hsa": "was renamed to numba.roc: look at old calls",
    "numba.roc.finegrain_array": "is really fine-grained, as its documentation said; numba.roc's was coarse",
    "numba.SmartArray": "indexing it shares memory with the whole, numpy.asarray() of it is read-only",
}

#: Settings of numba's that mean nothing to devmem.
VARIABLES = {
    "NUMBA_ENABLE_CUDASIM": "DEVMEM_BACKEND=host stands for it",
    "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM": "DEVMEM_DEFAULT_STREAM=per_thread stands for it",
    "NUMBA_CUDA_DRIVER": "devmem finds the driver by itself",
    "NUMBA_HSA_DRIVER": "devmem finds ROCm by itself",
    "NUMBA_DISABLE_HSA": "DEVMEM_BACKEND chooses another one",
}

#: Settings of numba's that the drop-ins look for, in the environment.
READ = {
    "NUMBA_CUDA_ARRAY_INTERFACE_SYNC",
    "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT",
    "NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO",
    "NUMBA_CUDA_MEMORY_MANAGER",
    "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY",
    "NUMBA_DISABLE_CUDA",
    "NUMBA_DISABLE_PERFORMANCE_WARNINGS",
}
#: Settings of numba's that are not of its GPU namespaces alone.
SHARED = frozenset({"DISABLE_PERFORMANCE_WARNINGS", "NumbaPerformanceWarning"})
#: Where numba and numba-cuda have their settings and warnings.
SETTING = re.compile(
    r"numba\.(?:cuda\.)?(?:core\.)?(?:config\.((?:CUDA|ROC|HSA|ENABLE_CUDASIM|DISABLE_CUDA|DISABLE_HSA|DISABLE_PERF)\w*)"
    r"|(?:errors\.)?(NumbaPerformanceWarning))"
)

#: Plugins of others for numba's memory, which import numba themselves.
PLUGINS = {"rmm.allocators.numba": 'devmem.use_memory("rmm")'}
FOR_NUMBA = "is for Numba's own contexts, and refused by the drop-in: write {}"

#: What makes kernels.
KERNELS = ("numba.cuda.jit", "numba.roc.jit")

#: Numba's types, which kernels can do without.
TYPES = re.compile(r"(u?int|float|complex)\d+|u?int[pc]|boolean|b1|[iufc]\d+|void|types")

#: The module of the names that kernels use.
OWN_NAMES = "devmem.kernels.names"

#: Of a text without this there is no need to ask whether it is Python.
SAID = re.compile(r"\bnumba\b")

#: Arguments of functions.
KEYWORDS = (
    Keyword(("numba.cuda.jit",), "link", (), Kind.LOOK, "is refused: devmem links no other code into kernels"),
    Keyword(("numba.cuda.jit",), "boundscheck", (), Kind.LOOK, BOUNDS),
    Keyword(("numba.vectorize", "numba.guvectorize"), "target", ("cuda",), Kind.CUDA, ON_CUDA),
    Keyword(("numba.vectorize", "numba.guvectorize"), "target", ("roc", "hsa", "gpu"), Kind.LOOK, WRITE_ONE),
    Keyword(("numba.jit",), "target", ("cuda", "roc", "hsa", "gpu"), Kind.LOOK, WRITE_ONE),
)


def setting(name: str) -> tuple[str, str] | None:
    """A setting or a warning of numba's by its own name, and what is to be said of it."""
    found = SETTING.fullmatch(name)
    if found is None:
        return None
    own = found[1] or found[2]
    variable = f"NUMBA_{own}"
    if own == "NumbaPerformanceWarning":
        return own, "is given by nothing here: filter devmem.DevmemWarning"
    if variable in READ:
        return own, f"is not asked here: set {variable} in the environment"
    return own, f"means nothing to devmem{f': {VARIABLES[variable]}' if variable in VARIABLES else ''}"


def plugin(name: str) -> str | None:
    """What is to be said of a name of somebody's plugin for numba."""
    found = next((each for each in PLUGINS if name == each or name.startswith(f"{each}.")), None)
    return found and FOR_NUMBA.format(PLUGINS[found])


def is_code(text: str) -> bool:
    """Whether a text is Python that imports a target, or says one in full: what ``exec`` and ``skipif`` are given."""
    if not SAID.search(text):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    if any(isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in nodes):  # "numba.cuda is not there"
        return False
    return any(target_of(each) for node in nodes for each in _said(node))


def target_of(name: str) -> str:
    """``numba.cuda`` of ``numba.cuda.to_device``; nothing of what is not moved."""
    root, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    return f"numba.{first}" if root == "numba" and first in TARGETS else ""


def ours(name: str) -> str:
    """What a name of numba's is called in devmem."""
    target = target_of(name)
    return ".".join(TARGETS[target.removeprefix("numba.")]) + name.removeprefix(target)


def theirs(name: str) -> str:
    """What a name of devmem's drop-ins is called in numba; any other name as it is."""
    for mine, target in OURS.items():
        if name == mine or name.startswith(f"{mine}."):
            return target + name.removeprefix(mine)
    return name


def verdicts(name: str) -> list[Verdict]:
    """All that is to be said of a name of numba's, or of a drop-in's that somebody has moved to already."""
    their = theirs(name)
    if not target_of(their):
        return []
    found = [Verdict(Kind.LOOK, name, DIFFERENT[name])] if name in DIFFERENT else []
    offered = _offered(their)
    if offered is not None:
        found.append(offered if their == name else offered._replace(name=ours(offered.name)))
    return found


def is_here(name: str) -> bool:
    """Whether devmem has a name of numba's."""
    offered = _offered(name)
    return offered is None or offered.here


@lru_cache
def is_module(name: str) -> bool:
    """Whether a module of numba's is one in devmem, too."""
    try:
        importlib.import_module(ours(name))
    except ModuleNotFoundError as error:
        return error.name != ours(name)
    except ImportError:
        pass  # there, with a library that is not installed
    return True


def member(decorator: str, name: str, device: bool) -> list[str]:
    """What is to be said of a member of what a ``jit`` of numba's makes: a kernel, or a function that kernels call."""
    if decorator not in KERNELS:
        return []
    made = _decorated(decorator, device)
    return [] if hasattr(made, name) else [f"is not in devmem, whose {type(made).__name__} has {_members(made)}"]


def staying(names: set[str]) -> str:
    """What is said of other names of numba's."""
    used = ", ".join(sorted(names - {""}))
    types = "; NumPy's types do in kernels, and text in signatures" if any(map(TYPES.fullmatch, names)) else ""
    return f"stays{f' for {used}' if used else ''}, and has to be installed{types}"


def _said(node: ast.AST) -> list[str]:
    """Names of modules and of what is in them, as one node says them."""
    match node:
        case ast.Import(names=names):
            return [each.name for each in names]
        case ast.ImportFrom(module=str() as module, names=names, level=0):
            return [f"{module}.{each.name}" for each in names]
        case ast.Attribute(value=ast.Name(id="numba"), attr=attr):
            return [f"numba.{attr}"]
    return []


@lru_cache
def _decorated(decorator: str, device: bool) -> Any:
    target = target_of(decorator)
    return _module(target).jit(device=device)(lambda: None)


def _module(target: str) -> Any:
    package, name = TARGETS[target.removeprefix("numba.")]
    found = getattr(importlib.import_module(package), name, None)
    return importlib.import_module(f"{package}.{name}") if found is None else found


@lru_cache
def _offered(name: str) -> Verdict | None:
    """What the drop-in says to a name of numba's, part by part; None if it has it, on every backend."""
    path = target_of(name)
    found = _module(path)
    for part in name.removeprefix(path).split(".")[1:]:
        holder, path = found, f"{path}.{part}"
        if part in getattr(holder, "COMPILER_ONLY", ()):
            return Verdict(Kind.CUDA, path, f"{ON_CUDA}; {instead(part)}")
        if part in getattr(holder, "__all__", ()) and part not in vars(holder):
            return None  # made when somebody asks: nobody does here
        try:
            found = _member(holder, part)
        except ImportError:
            return None  # there, with a library that is not installed
        except AttributeError:
            return Verdict(Kind.LOOK, path, _missing(holder, part), here=False)
        if getattr(found, "__annotations__", {}).get("return") == "NoReturn":
            said = inspect.getdoc(found) or ""
            return Verdict(Kind.LOOK, path, f"is {said[:1].lower()}{said[1:].rstrip('.')}")
        if not (isinstance(found, ModuleType) or _is_plain(found)):
            return None  # of classes, functions and what is made at run time the members are not known
    return None


def _member(holder: Any, name: str) -> Any:
    """A member of a module, a submodule among them, or of an object, whose properties are not called."""
    if not isinstance(holder, ModuleType):
        return inspect.getattr_static(holder, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is old is here
        try:
            return getattr(holder, name)
        except AttributeError:
            full = f"{holder.__name__}.{name}"
            if not hasattr(holder, "__path__"):
                raise
            try:
                return importlib.import_module(full)
            except ModuleNotFoundError as error:
                if error.name == full:
                    raise AttributeError(name) from None
                raise


def _is_plain(found: Any) -> bool:
    """Whether an object has the members that its class says, and no others."""
    # devmem's own names ask for a missing one to say what there is.
    computes = hasattr(type(found), "__getattr__") and type(found).__module__ != OWN_NAMES
    return not (callable(found) or inspect.isdatadescriptor(found) or computes)


def _missing(holder: Any, name: str) -> str:
    """What is said of a name that is not here."""
    why = getattr(holder, "REFUSED", {}).get(name)
    if why:
        return f"is not in devmem: {why}"
    if TYPES.fullmatch(name):
        return f"is not in devmem: {instead('types')}"
    return MISSING if isinstance(holder, ModuleType) else f"is not in devmem, which has {_members(holder)}"


def _members(found: Any) -> str:
    return ", ".join(sorted(name for name in vars(type(found)) if not name.startswith("_")))
