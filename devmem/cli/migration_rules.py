"""The rules of ``devmem migrate``: which of numba's namespaces move to devmem, and what to report of which name.

Whether devmem has a name is looked up in the drop-in modules; the tables below hold what cannot be looked up there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import warnings
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

from ..kernels.portable_names import portable_advice

#: What moves: numba's name, the package of its replacement, and the replacement's name.
TARGETS = {
    "cuda": ("devmem.compat", "numba_cuda"),
    "roc": ("devmem.compat", "numba_roc"),
    "hsa": ("devmem.compat", "numba_roc"),
    "SmartArray": ("devmem", "SmartArray"),
}
DEVMEM_NAMES = {
    f"{package}.{name}": f"numba.{target}" for target, (package, name) in TARGETS.items() if target != "hsa"
}
#: The successor of numba-cuda has the same names.
SUCCESSOR = "numba_cuda_mlir"
OTHER_NAMES = DEVMEM_NAMES | {f"{SUCCESSOR}.cuda": "numba.cuda"}


class FindingKind(StrEnum):
    """The action that a finding asks of the user."""

    LOOK = "look"  #: missing in devmem, or different there: the user has to look, and the exit code says so
    CUDA = "cuda"  #: provided by numba-cuda: works on CUDA only
    NUMBA = "numba"  #: stays in numba, which the program still needs


@dataclass(frozen=True)
class Finding:
    """One line of the report: a name, where it stands, and what the user has to know about it."""

    line: int
    name: str
    what: str
    kind: FindingKind = FindingKind.LOOK
    #: Who refuses it in a kernel: `EVERYWHERE`, or some of them.
    refused_by: tuple[str, ...] = ()


#: Who runs or compiles kernels.
EVERYWHERE = SIMULATOR, CUDA, ROCM = "the simulator", "CUDA", "ROCm"


class Verdict(NamedTuple):
    """The report of a name; ``provided``: devmem has it, so imports of it move."""

    kind: FindingKind
    name: str
    what: str
    provided: bool = True
    refused_by: tuple[str, ...] = ()


class Keyword(NamedTuple):
    """A keyword argument to report: with one of ``values``, or with any true value if there are none."""

    functions: tuple[str, ...]
    keyword: str
    values: tuple[str, ...]
    kind: FindingKind
    what: str


MISSING = "is not in devmem: keep numba for it, or do it another way"
ON_CUDA = "is provided by numba-cuda: it works on CUDA alone"
NOT_ON_ROCM = "works on CUDA and in the simulator, and not on ROCm"
OTHER_ACCESS = "is reached in a way that migrate does not change: import the drop-in there"
OTHER_IMPORT = "is imported in a way that migrate does not change: write from numba_cuda_mlir import cuda"
COMPUTED = "looks up a name that is computed at run time: check that devmem has it"
NO_BOUNDSCHECK = "is refused: run on the host backend, whose simulator reports stray indices"
WRITE_KERNEL = "is not in devmem: write a kernel, with jit of the drop-in"

#: Names that devmem has, but that behave differently enough for a look.
DIFFERENT = {
    "numba.hsa": "was renamed to numba.roc: look at old calls",
    "numba.roc.finegrain_array": "is fine-grained, as documented; numba.roc's was coarse-grained",
    "numba.SmartArray": "indexing it gives a view of its memory, numpy.asarray() of it is read-only",
}

#: Numba's settings that have no effect on devmem.
VARIABLES = {
    "NUMBA_ENABLE_CUDASIM": "use DEVMEM_BACKEND=host",
    "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM": "use DEVMEM_DEFAULT_STREAM=per_thread",
    "NUMBA_CUDA_DRIVER": "devmem finds the driver itself",
    "NUMBA_HSA_DRIVER": "devmem finds ROCm itself",
    "NUMBA_DISABLE_HSA": "choose another backend with DEVMEM_BACKEND",
}

#: Numba's settings that the drop-ins read from the environment.
READ_BY_DROP_INS = {
    "NUMBA_CUDA_ARRAY_INTERFACE_SYNC",
    "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT",
    "NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO",
    "NUMBA_CUDA_MEMORY_MANAGER",
    "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY",
    "NUMBA_DISABLE_CUDA",
    "NUMBA_DISABLE_PERFORMANCE_WARNINGS",
}
#: Those that they read from ``numba.config`` too.
OBEYED = frozenset(
    {"CUDA_ARRAY_INTERFACE_SYNC", "CUDA_WARN_ON_IMPLICIT_COPY", "DISABLE_CUDA", "DISABLE_PERFORMANCE_WARNINGS"}
)
#: The full names of settings in numba and numba-cuda.
SETTING_NAME = re.compile(
    r"numba\.(?:cuda\.)?(?:core\.)?config\.((?:CUDA|ROC|HSA|ENABLE_CUDASIM|DISABLE_CUDA|DISABLE_HSA|DISABLE_PERF)\w*)"
)

#: Third-party plugins for numba's memory, with the replacement to write.
PLUGINS = {"rmm.allocators.numba": 'devmem.use_memory("rmm")'}
NUMBA_ONLY_PLUGIN = "works with Numba's own contexts only, and the drop-in refuses it: write {}"

#: The decorators that make kernels.
KERNEL_DECORATORS = ("numba.cuda.jit", "numba.roc.jit")
KERNEL_MAKERS = frozenset((*KERNEL_DECORATORS, "devmem.kernel"))

#: Numba's types, which kernels can replace by NumPy's.
TYPES = re.compile(r"(u?int|float|complex)\d+|u?int[pc]|boolean|b1|[iufc]\d+|void|types")

#: The module that defines the names for use in kernels.
KERNEL_NAMES_MODULE = "devmem.kernels.names"

#: Strings without this are not parsed as Python.
MENTIONS_NUMBA = re.compile(r"\bnumba\b")

#: Keyword arguments to report.
KEYWORDS = (
    Keyword(("numba.cuda.jit",), "link", (), FindingKind.LOOK, "is refused: devmem links no other code into kernels"),
    Keyword(("numba.cuda.jit",), "boundscheck", (), FindingKind.LOOK, NO_BOUNDSCHECK),
    Keyword(("numba.vectorize", "numba.guvectorize"), "target", ("cuda",), FindingKind.CUDA, ON_CUDA),
    Keyword(("numba.vectorize", "numba.guvectorize"), "target", ("roc", "hsa", "gpu"), FindingKind.LOOK, WRITE_KERNEL),
    Keyword(("numba.jit",), "target", ("cuda", "roc", "hsa", "gpu"), FindingKind.LOOK, WRITE_KERNEL),
)

#: Names outside the targets that have rules, or hold names that have.
WITH_RULES = (
    *OTHER_NAMES,
    *KERNEL_MAKERS,
    *PLUGINS,
    *(function for rule in KEYWORDS for function in rule.functions),
    *(f"numba.{each}" for each in ("config", "core.config", "errors", "core.errors")),
)


def setting(name: str) -> tuple[str, str] | None:
    """A setting of numba's by its last name, with what to report of it; None if it is none, or one that devmem obeys."""
    found = SETTING_NAME.fullmatch(name)
    if found is None or found[1] in OBEYED:
        return None
    own = found[1]
    variable = f"NUMBA_{own}"
    if variable in READ_BY_DROP_INS:
        return own, f"has no effect on devmem: set {variable} in the environment"
    return own, f"has no effect on devmem{f': {VARIABLES[variable]}' if variable in VARIABLES else ''}"


def plugin(name: str) -> str | None:
    """Return the report of a name in a third-party plugin for numba; None for other names."""
    found = next((each for each in PLUGINS if name == each or name.startswith(f"{each}.")), None)
    return found and NUMBA_ONLY_PLUGIN.format(PLUGINS[found])


def is_code(text: str) -> bool:
    """Whether a string is Python code that uses numba.cuda or numba.roc, as given to ``exec`` or ``skipif``."""
    if not MENTIONS_NUMBA.search(text):
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
    return any(target_of(each) for node in nodes for each in _names_in(node))


def target_of(name: str) -> str:
    """``numba.cuda`` for ``numba.cuda.to_device``; empty for names that do not move."""
    root, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    return f"numba.{first}" if root == "numba" and first in TARGETS else ""


def devmem_name(name: str) -> str:
    """Devmem's name for a name of numba's."""
    target = target_of(name)
    return ".".join(TARGETS[target.removeprefix("numba.")]) + name.removeprefix(target)


def may_be_reported(name: str) -> bool:
    """Whether a name, or a name below it, moves or has a rule here: ``numba.core``, which holds numba's settings."""
    if target_of(numba_name(name)) or setting(name) is not None:
        return True
    return any(each == name or each.startswith(f"{name}.") for each in WITH_RULES)


def numba_name(name: str) -> str:
    """Numba's name for a name of a drop-in, or of numba-cuda's successor; any other name unchanged."""
    for mine, target in OTHER_NAMES.items():
        if name == mine or name.startswith(f"{mine}."):
            return target + name.removeprefix(mine)
    return name


def verdicts_on(name: str) -> list[Verdict]:
    """Return the reports of a name of numba's, or of a drop-in in code that was migrated already."""
    their = numba_name(name)
    if not target_of(their):
        return []
    found = [Verdict(FindingKind.LOOK, name, DIFFERENT[name])] if name in DIFFERENT else []
    offered = _offered(their)
    if offered is not None:
        found.append(offered if their == name else offered._replace(name=devmem_name(offered.name)))
    return found


def is_provided(name: str) -> bool:
    """Whether devmem has a name of numba's."""
    offered = _offered(name)
    return offered is None or offered.provided


@lru_cache
def is_module(name: str) -> bool:
    """Whether devmem has a module for a module of numba's."""
    try:
        importlib.import_module(devmem_name(name))
    except ModuleNotFoundError as error:
        return error.name != devmem_name(name)
    except ImportError:
        pass  # it exists, but imports a library that is not installed
    return True


def member(decorator: str, name: str, device: bool) -> list[str]:
    """Return the reports of an attribute of a decorated function: of a kernel, or of a device function (``device``)."""
    if decorator not in KERNEL_DECORATORS:
        return []
    made = _decorated(decorator, device)
    return [] if hasattr(made, name) else [f"is not in devmem, whose {type(made).__name__} has {_members(made)}"]


def kept_by_numba(names: set[str]) -> str:
    """Return the report of an import whose other names stay in numba."""
    used = ", ".join(sorted(names - {""}))
    types = "; kernels take NumPy's types, and signatures take strings" if any(map(TYPES.fullmatch, names)) else ""
    return f"stays{f' for {used}' if used else ''}, and has to be installed{types}"


def _names_in(node: ast.AST) -> list[str]:
    """The full names that one node imports or accesses."""
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
    """Return the report of a name of numba's, found part by part in the drop-in; None if it works on every backend."""
    path = target_of(name)
    found = _module(path)
    for part in name.removeprefix(path).split(".")[1:]:
        holder, path = found, f"{path}.{part}"
        if part in getattr(holder, "NOT_ON_ROCM", ()):
            return Verdict(FindingKind.CUDA, path, f"{NOT_ON_ROCM}; {portable_advice(part)}", refused_by=(ROCM,))
        if part in getattr(holder, "SIMULATOR_ONLY", ()):
            told = f"works in the simulator alone: {holder.SIMULATOR_ONLY[part]}"
            return Verdict(FindingKind.LOOK, path, told, refused_by=(CUDA, ROCM))
        if part in getattr(holder, "COMPILER_ONLY", ()):
            return Verdict(FindingKind.CUDA, path, f"{ON_CUDA}; {portable_advice(part)}", refused_by=(SIMULATOR, ROCM))
        if part in getattr(holder, "__all__", ()) and part not in vars(holder):
            return None  # a lazy attribute, which need not be created here
        try:
            found = _member(holder, part)
        except ImportError:
            return None  # it exists, but imports a library that is not installed
        except AttributeError:
            return Verdict(FindingKind.LOOK, path, _missing(holder, part), provided=False)
        if getattr(found, "__annotations__", {}).get("return") == "NoReturn":
            said = inspect.getdoc(found) or ""
            return Verdict(FindingKind.LOOK, path, f"is {said[:1].lower()}{said[1:].rstrip('.')}")
        if not (isinstance(found, ModuleType) or _is_plain(found)):
            return None  # attributes of classes, functions and run-time objects are not known
    return None


def _member(holder: Any, name: str) -> Any:
    """A member or submodule of a module, or a member of an object without calling its properties."""
    if not isinstance(holder, ModuleType):
        return inspect.getattr_static(holder, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names exist, too
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
    """Whether an object has exactly the members of its class."""
    # The names for kernels define __getattr__ only for their error messages.
    computes = hasattr(type(found), "__getattr__") and type(found).__module__ != KERNEL_NAMES_MODULE
    return not (callable(found) or inspect.isdatadescriptor(found) or computes)


def _missing(holder: Any, name: str) -> str:
    """Return the report of a name that the drop-in lacks."""
    why = getattr(holder, "REFUSED", {}).get(name)
    if why:
        return f"is not in devmem: {why}"
    if TYPES.fullmatch(name):
        return f"is not in devmem: {portable_advice('types')}"
    return MISSING if isinstance(holder, ModuleType) else f"is not in devmem, which has {_members(holder)}"


def _members(found: Any) -> str:
    return ", ".join(sorted(name for name in vars(type(found)) if not name.startswith("_")))
