"""Who may import whom: the table of layers, read from the source of every file of devmem.

What counts as an import:

* every ``import`` statement, wherever it stands: at the top, inside a function, in an ``if`` or a ``try``;
* those under ``TYPE_CHECKING`` too: a layer that annotates with the types of another one knows that layer. They are left out of
  exactly two checks, because they cannot happen at run time: the search for import cycles at run time, and the rule that a
  foreign library is imported lazily. `circles` counts them;
* ``import_module("...")`` and ``__import__("...")`` of a literal name, except in ``plugins``, whose purpose it is.

The rules are data (`RULES`); `problems` applies them to one module's source, so that a test can feed it a bad one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "devmem"


@dataclass(frozen=True)
class Import:
    """One imported module; ``top``: executed when the importing module is, ``typing``: never executed."""

    name: str
    line: int
    top: bool
    typing: bool = False


@dataclass(frozen=True)
class Rule:
    """What a package may import besides the standard library and itself.

    ``lazily``: names that may be imported inside functions only; ``None`` stands for any foreign library. ``exactly``: modules
    of ours without what is below them.
    """

    ours: frozenset[str] = frozenset()
    theirs: frozenset[str] = frozenset()
    lazily: frozenset[str] | None = frozenset()
    exactly: frozenset[str] = frozenset()


def rule(ours: str = "", theirs: str = "", lazily: str | None = "", exactly: str = "") -> Rule:
    return Rule(
        frozenset(f"devmem.{name}" if name != "devmem" else name for name in ours.split()),
        frozenset(theirs.split()),
        None if lazily is None else frozenset(lazily.split()),
        frozenset(exactly.split()),
    )


#: The rooms of the core, in order: each imports only the rooms before it, for annotations too.
ROOMS = (
    "base",
    "ordering",
    "memory",
    "pool",
    "telemetry",
    "stacks",
    "lifetime",
    "copy",
    "device",
    "interop",
    "arrays",
    "smart",
    "bulk",
)

#: The longest prefix of a module's name decides. "devmem" among ``ours`` is the public namespace, the root module.
RULES: Mapping[str, Rule] = {
    # The folder of the backends, which is empty, is imported first: later, it would replace the function `devmem.backends`.
    "devmem": rule("api spi _core errors memory spill kernels", exactly="devmem.backends"),
    "devmem.__main__": rule("cli"),
    "devmem.errors": rule("spi"),
    "devmem.memory": rule("spi _core.memory _core.pool _core.telemetry"),
    "devmem.spill": rule("_core.bulk.spill.store"),
    "devmem.typing": rule("_core"),
    "devmem.spi": rule(),
    "devmem.toolkit": rule("spi"),
    "devmem.plugins": rule("spi toolkit.locks", "pluggy"),
    "devmem._native": rule(),
    "devmem._core": rule(),
    **{
        f"devmem._core.{room}": rule(
            f"spi toolkit plugins _native {' '.join(f'_core.{before}' for before in ROOMS[:at])}",
            "numpy",
            lazily="ml_dtypes",  # a capsule of bfloat16 asks for it
        )
        for at, room in enumerate(ROOMS)
    },
    "devmem.kernels": rule("spi toolkit _core", "numpy", lazily="cloudpickle"),
    "devmem.kernels.compilers.numba_cuda": rule("spi toolkit _core kernels", "numpy numba"),
    "devmem.kernels.compilers.numba_cuda_mlir": rule("spi toolkit _core kernels", "numpy numba_cuda_mlir"),
    "devmem.kernels.compilers.numba_hip": rule("spi toolkit _core kernels", "numpy numba"),
    "devmem.kernels.compilers.simulator_fast": rule("kernels", "numpy numba"),
    "devmem.kernels.compilers.simulator": rule("spi toolkit _native _core kernels", "numpy greenlet", lazily="numba"),
    "devmem.api": rule("_core _native kernels plugins spi toolkit", "numpy"),
    "devmem.backends": rule(),
    "devmem.backends.host": rule("spi toolkit", "numpy"),
    "devmem.backends.cuda": rule("spi toolkit", "cuda"),
    "devmem.backends.roc": rule("spi toolkit", "hip rocm"),
    "devmem.backends.opencl": rule("spi toolkit", "pyopencl"),
    # Both speak to foreign arrays and allocators; numpy is the library's own dependency and no foreign one.
    # An old EMM plugin is a resource in the same way for both: adapters.emm has it.
    "devmem.compat": rule(
        "devmem api spi toolkit.locks adapters.emm _core.lifetime.allocation _core.ordering.leases _core.ordering.stream "
        "_core.memory",
        "numpy",
        lazily=None,
    ),
    # Its kernels are functions that kernels call, too; and what a device is that kernels are simulated on.
    "devmem.compat.numba_cuda.cg": rule("kernels.names"),
    "devmem.compat.numba_cuda.device_functions": rule("kernels.functions"),
    "devmem.compat.numba_cuda.fp16": rule("compat kernels.compilers.simulator.half_precision"),
    "devmem.compat.numba_cuda.libdevice": rule("compat kernels.compilers.simulator.libdevice"),
    "devmem.compat.numba_cuda.kernel": rule(
        "devmem api spi compat kernels.decorated kernels.functions kernels.work_items", lazily=None
    ),
    "devmem.compat.numba_roc.compiler": rule("devmem api spi compat kernels.work_items", "numpy", lazily=None),
    "devmem.compat.numba_cuda.cudadrv.device": rule("devmem api spi compat kernels.simulation", lazily=None),
    "devmem.compat.numba_cuda.cudadrv.streams": rule("devmem api spi compat _core.base.interrupts", lazily=None),
    "devmem.compat.numba_roc.hsadrv.devices": rule("devmem api spi compat kernels.simulation", lazily=None),
    "devmem.adapters": rule(
        "devmem api spi toolkit spill _core.lifetime.allocation _core.ordering.stream _core.memory",
        "numpy",
        lazily=None,
    ),
    "devmem.cli": rule(
        "devmem api _native simulate.command toolkit.host_limits spi.sizes testing.emulator testing.replay",
        "click numpy rich",
        lazily="matplotlib",
    ),
    # Asks the drop-ins which names they have. Loaded by `devmem migrate`.
    "devmem.cli.import_rewriter": rule(
        "cli.usage_scan cli.name_resolution cli.migration_rules cli.kernel_refusals cli.relevant_statements", "libcst"
    ),
    "devmem.cli.kernel_refusals": rule("cli.migration_rules kernels.compilers.simulator.kernel_check spi", "libcst"),
    "devmem.cli.notebooks": rule("cli.import_rewriter cli.migration_rules cli.name_resolution"),
    "devmem.cli.usage_scan": rule("cli.name_resolution cli.migration_rules", "libcst"),
    "devmem.cli.name_resolution": rule("cli.migration_rules", "libcst"),
    "devmem.cli.reexports": rule("cli.migration_rules cli.import_bindings"),
    "devmem.cli.relevant_statements": rule("cli.migration_rules cli.import_bindings"),
    "devmem.cli.migration_rules": rule("compat kernels"),
    # Found by its own name: every process of a simulated command has it before the program, and so without devmem.
    "devmem.simulate": rule("devmem _core.device.opening cli.execution", "devmem_redirect"),
    "devmem.simulate.startup": rule("", "devmem_redirect", lazily="numba"),
    # The suites are numpy users, as any user of devmem is; hypothesis only where a plugin author asks for it.
    "devmem.testing": rule("devmem api spi toolkit errors memory simulate", "numpy pytest hypothesis"),
    "devmem.testing.emulator": rule("spi toolkit"),
}

#: The vendor binding of each backend: out of reach until ``open()`` has been called.
VENDORS = {
    "devmem.backends.cuda": {"cuda"},
    "devmem.backends.roc": {"hip", "rocm"},
    "devmem.backends.opencl": {"pyopencl"},
}


def modules() -> dict[str, Path]:
    """Every module of devmem by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("devmem", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(module: str, source: str, known: Iterable[str] = MODULES, *, is_package: bool = False) -> list[Import]:
    """The imports of a module's source, relative ones resolved, ``from p import m`` as ``p.m`` where that is a module."""
    known = frozenset(known)
    package = module.split(".") if is_package else module.split(".")[:-1]
    found = []
    for node, top, typing in _walk(ast.parse(source), True, False):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, top, typing) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], node.module or ""]).strip(".")
            base = base if node.level else node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.append(Import(full if full in known else base, node.lineno, top, typing))
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)) and module != "devmem.plugins":
            found.append(Import(name, node.lineno, top, typing))
    return found


def _walk(node: ast.AST, top: bool, typing: bool) -> Iterator[tuple[ast.AST, bool, bool]]:
    yield node, top, typing
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for child in node.body:
            yield from _walk(child, top, True)
        for child in node.orelse:
            yield from _walk(child, top, typing)
        return
    inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, top and not inside, typing)


def _imported_by_call(node: ast.Call) -> str | None:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called in {"import_module", "__import__"} and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return None


def within(name: str, prefixes: Iterable[str]) -> bool:
    # The root is a namespace of names, not a prefix: "may import devmem" does not open devmem._core.
    return any(name == prefix or (prefix != "devmem" and name.startswith(f"{prefix}.")) for prefix in prefixes)


def rule_for(module: str) -> tuple[str, Rule]:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in RULES and (prefix != "devmem" or module == "devmem"):
            return prefix, RULES[prefix]
    raise AssertionError(f"no layer rule for {module}: add its package to RULES, and to the design")


def problems(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one module."""
    home, allowed = rule_for(module)
    wrong = []
    for item in imports(module, source, is_package=is_package):
        root = item.name.split(".")[0]
        if root in sys.stdlib_module_names:
            continue
        if root == "devmem":
            fine = item.name in allowed.exactly or within(item.name, allowed.ours)
            fine = fine or (home != "devmem" and within(item.name, {home}))
        else:
            deferred = item.typing or not item.top
            fine = root in allowed.theirs or (deferred and (allowed.lazily is None or root in allowed.lazily))
        if not fine:
            wrong.append(f"{module}:{item.line} imports {item.name}, which {home} may not")
    return wrong


# -- the two rules that need more than one file ------------------------------------------------------------------------

Sources = Mapping[str, tuple[str, bool]]


def real_sources(prefix: str) -> dict[str, tuple[str, bool]]:
    return {
        name: (path.read_text(encoding="utf-8"), path.name == "__init__.py")
        for name, path in MODULES.items()
        if within(name, {prefix})
    }


def graph(sources: Sources, *, at_import: bool) -> dict[str, set[str]]:
    """Edges between the modules of ``sources``: those executed at import, or those inside functions."""
    edges: dict[str, set[str]] = {name: set() for name in sources}
    for name, (source, is_package) in sources.items():
        for item in imports(name, source, sources, is_package=is_package):
            if item.typing or item.top is not at_import:
                continue
            # Importing a.b.c runs a and a.b first; the importer's own ancestors are already running.
            parts = item.name.split(".")
            for length in range(1, len(parts) + 1):
                target = ".".join(parts[:length])
                if target in sources and target != name and not name.startswith(f"{target}."):
                    edges[name].add(target)
    return edges


def reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in edges.get(waiting.pop(), ()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def cycles(sources: Sources) -> list[str]:
    edges = graph(sources, at_import=True)
    return [f"{name} imports itself through {sorted(edges[name])}" for name in edges if name in reachable(edges, name)]


def hidden_cycles(sources: Sources) -> list[str]:
    """Imports inside functions that could not stand at the top, because the imported module needs the importing one."""
    edges = graph(sources, at_import=True)
    return [
        f"{name} imports {target} inside a function, and {target} imports {name}: one of them is in the wrong layer"
        for name, targets in graph(sources, at_import=False).items()
        for target in targets
        if target == name or name in reachable(edges, target)
    ]


def circles(sources: Sources, *, packages: bool = False) -> list[list[str]]:
    """Groups of modules that import each other, by imports of any kind; ``packages``: their ``__init__``s are among them."""
    modules = {name for name, (_, is_package) in sources.items() if packages or not is_package}
    edges = {
        name: {item.name for item in imports(name, source, sources, is_package=is_package)} & modules - {name}
        for name, (source, is_package) in sources.items()
        if name in modules
    }
    reached = {name: reachable(edges, name) for name in modules}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in modules}
    return sorted(sorted(group) for group in groups if group)


def early_vendors(backend: str, sources: Sources) -> list[str]:
    """Vendor imports in ``hooks`` or in what ``hooks`` imports before ``open()`` is called."""
    early = {f"{backend}.hooks"} | reachable(graph(sources, at_import=True), f"{backend}.hooks") | {backend}
    return [
        f"{name}:{item.line} imports {item.name} before the backend is opened"
        for name, (source, is_package) in sources.items()
        if name in early
        for item in imports(name, source, sources, is_package=is_package)
        if item.name.split(".")[0] in VENDORS[backend] and not item.typing
    ]


# -- devmem as it is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_imports_stay_in_their_layer(module):
    path = MODULES[module]
    assert problems(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py") == []


def test_the_core_has_rooms_and_no_files_beside_them():
    paths = (PACKAGE / "_core").iterdir()
    assert {path.name for path in paths if path.suffix == ".py" or any(path.rglob("*.py"))} == {"__init__.py", *ROOMS}


def test_core_has_no_cycles():
    assert cycles(real_sources("devmem._core")) == []


def test_no_modules_import_each_other_even_for_typing():
    everything = {
        name: (path.read_text(encoding="utf-8"), path.name == "__init__.py") for name, path in MODULES.items()
    }
    assert circles(everything) == []
    assert circles(everything, packages=True) == []


def test_no_import_inside_a_function_hides_a_cycle():
    assert hidden_cycles(real_sources("devmem._core")) == []
    assert hidden_cycles(real_sources("devmem.api")) == []


@pytest.mark.parametrize("backend", VENDORS)
def test_vendor_bindings_wait_for_open(backend):
    assert early_vendors(backend, real_sources(backend)) == []


def test_every_rule_names_a_package_of_the_design():
    built = {name for name in RULES if name in MODULES}
    assert {"devmem.spi", "devmem.cli"} <= built


# -- the check itself can fail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("devmem", "from .backends import host"),
        ("devmem", "from .backends.host import hooks"),
        ("devmem", "import numpy"),
        ("devmem.errors", "from . import _core"),
        ("devmem.memory", "from ._core import device"),
        ("devmem.spi.types", "import numpy"),
        ("devmem.spi.types", "from .. import plugins"),
        ("devmem.spi.types", "import cuda.bindings.driver"),
        ("devmem.toolkit.status", "import numpy as np"),
        ("devmem.toolkit.status", "from .._core import device"),
        ("devmem.toolkit.status", "from devmem.api import arrays"),
        ("devmem.backends.host.driver", "from ..._core import device"),
        ("devmem.backends.host.driver", "from ..cuda import driver"),
        ("devmem.backends.host.driver", "import cuda"),
        ("devmem.backends.cuda.driver", "import numpy"),
        ("devmem.backends.cuda.driver", "import hip"),
        ("devmem.backends.other.hooks", "from ...spi import driver"),
        ("devmem.plugins", "from ._core import config"),
        ("devmem.plugins", "import cuda"),
        ("devmem.plugins", "from .backends.host import hooks"),
        ("devmem._core.device.device", "import pluggy"),
        ("devmem._core.device.device", "from ...api import arrays"),
        ("devmem._core.device.device", "from ...backends import host"),
        ("devmem._core.device.device", "def f():\n    from ...backends.host import hooks"),
        ("devmem._core.device.device", "import importlib\nimportlib.import_module('devmem.backends.host')"),
        (
            "devmem._core.device.device",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ...api import arrays",
        ),
        ("devmem._core.device.device", "try:\n    import cupy\nexcept ImportError:\n    pass"),
        ("devmem.kernels.launch", "from ..backends import cuda"),
        ("devmem.kernels.launch", "import numba"),
        ("devmem.kernels.compilers.simulator", "import numba"),
        ("devmem.api.arrays", "from ..backends.host import driver"),
        ("devmem.api.arrays", "import pluggy"),
        ("devmem.adapters.torch", "import torch"),
        ("devmem.adapters.torch", "from .._core import reclaim"),
        ("devmem.compat.numba_cuda", "from .._core.copy.host_device import upload"),
        ("devmem.cli.info", "from .._core import config"),
        ("devmem.cli.info", "from ..testing import plugin"),
        ("devmem.cli.sample_arrays", "import matplotlib"),
        ("devmem.testing.plugin", "from .._core import device"),
        ("devmem.testing.emulator.control", "import pytest"),
    ],
)
def test_a_forbidden_import_is_found(module, source):
    assert len(problems(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("devmem.plugins", "import importlib\nimportlib.import_module('devmem.backends.host.hooks')"),
        ("devmem.adapters.torch", "def f():\n    import torch"),
        ("devmem.adapters.torch", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("devmem.adapters.torch", "from .._core.memory import direct"),
        ("devmem.cli.info", "import devmem"),
        ("devmem.cli.sample_arrays", "def f():\n    from matplotlib import cbook"),
        ("devmem.backends.cuda.driver", "from cuda.bindings import driver"),
        ("devmem._core.device.device", "from ...spi.driver import Driver\nfrom . import backends\nimport ctypes.util"),
    ],
)
def test_an_allowed_import_is_not(module, source):
    assert problems(module, source) == []


def test_an_unknown_package_needs_a_rule():
    with pytest.raises(AssertionError, match="no layer rule"):
        problems("devmem.surprise", "import os")


def test_a_cycle_is_found():
    good = {"p": ("", True), "p.a": ("from . import b", False), "p.b": ("import os", False)}
    assert cycles(good) == []
    assert len(cycles(good | {"p.b": ("from .a import x", False)})) == 2
    assert cycles(good | {"p.b": ("def f():\n    from .a import x", False)}) == []
    typing = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x"
    assert cycles(good | {"p.b": (typing, False)}) == []


def test_a_circle_of_typing_imports_is_found():
    typing = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x"
    tree = {
        "p": ("", True),
        "p.a": ("from . import b", False),
        "p.b": (typing, False),
        "p.c": ("from . import a", False),
    }
    assert circles(tree) == [["p.a", "p.b"]]
    assert circles(tree | {"p.b": ("import os", False)}) == []
    assert circles(tree | {"p.b": ("def f():\n    from .a import x", False)}) == [["p.a", "p.b"]]


def test_a_circle_of_a_package_and_its_module_is_found():
    tree = {"p": ("def f():\n    from . import a\n    return a", True), "p.a": ("from . import f", False)}
    assert circles(tree) == []
    assert circles(tree, packages=True) == [["p", "p.a"]]


def test_a_cycle_through_a_package_is_found():
    tree = {
        "p": ("", True),
        "p.a": ("from .q.x import y", False),
        "p.q": ("from . import z", True),
        "p.q.x": ("", False),
        "p.q.z": ("from ..a import w", False),
    }
    assert cycles(tree) != []


def test_a_cycle_hidden_in_a_function_is_found():
    tree = {"p.a": ("import p.b", False), "p.b": ("def f():\n    import p.a", False)}
    assert len(hidden_cycles(tree)) == 1
    assert hidden_cycles({"p.a": ("def f():\n    import p.b", False), "p.b": ("", False)}) == []


@pytest.mark.parametrize("late", [True, False])
def test_an_early_vendor_import_is_found(late):
    backend = "devmem.backends.cuda"
    opened = "def open():\n    from . import driver" if late else "from . import driver"
    tree = {
        backend: ("", True),
        f"{backend}.hooks": (opened, False),
        f"{backend}.driver": ("from cuda.bindings import driver", False),
    }
    assert len(early_vendors(backend, tree)) == (0 if late else 1)


def test_a_vendor_import_inside_a_function_of_hooks_is_found():
    tree = {"devmem.backends.roc.hooks": ("def unavailable():\n    import hip", False)}
    assert len(early_vendors("devmem.backends.roc", tree)) == 1
