"""What ``import devmem`` does, which is little, and what it exports, which is all documented."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from waits import patience

import devmem
from devmem.spi import hookspecs

DOCS = Path(__file__).parents[3] / "docs"

#: Top-level modules that no import of devmem may load: vendors, optional extras, test tools, compilers.
UNWANTED = [
    "cuda",
    "hip",
    "rocm",
    "numba",
    "cupy",
    "torch",
    "click",
    "rich",
    "matplotlib",
    "pytest",
    "hypothesis",
    "greenlet",
]

#: What is imported on first use: each costs a tenth of a millisecond or more, and not every program uses it.
LATER = [
    "devmem._core.lifetime.oom",
    "devmem._core.bulk.async_copy",
    "devmem._core.bulk.batch",
    "devmem._core.bulk.files",
    "devmem._core.bulk.pitched",
    "devmem._core.bulk.prefetch",
    "devmem._core.bulk.scatter",
    "devmem._core.memory",
    "devmem._core.pool",
    "devmem._core.smart",
    "devmem._core.stacks.stack_spec",
    "devmem.adapters",
    "devmem.api.stacks",
    "devmem.api.transfers",
    "devmem.compat",
    "devmem.kernels",
    "devmem.toolkit.host_functions",
    "devmem.toolkit.toolchain",
    "devmem.memory",
    "devmem.spill",
    "difflib",
    "email",
    "importlib.metadata",
    "importlib.util",
    "json",
    "logging",
    "pathlib",
    "socket",
    "subprocess",
    "tempfile",
    "zipfile",
]

#: Of the memory stacks, what a device takes its memory from by default.
STACK = {"adaptor", "direct", "foreign", "heap"}

PROBE = """
import json, os, sys, threading
import numpy

def handles():
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{fd}")) if os.path.isdir("/proc/self/fd") else []

def tasks():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()

before = handles(), tasks()
loaded = set(sys.modules)
import devmem
after = handles(), tasks()
print(json.dumps({
    "modules": sorted(sys.modules), "new": sorted(set(sys.modules) - loaded), "threads": threading.active_count(),
    "before": before, "after": after,
}))
"""


@pytest.fixture(scope="module")
def imported():
    run = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    return json.loads(run.stdout)


def test_import_loads_no_vendor_and_no_extra(imported):
    tops = {name.split(".")[0] for name in imported["modules"]}
    assert tops.isdisjoint(UNWANTED)


def test_import_loads_no_backend_and_no_test_tool(imported):
    loaded = [
        name for name in imported["modules"] if name.startswith(("devmem.backends.", "devmem.testing", "devmem.cli"))
    ]
    assert loaded == []


def test_import_loads_nothing_that_only_some_programs_use(imported):
    needed = {"devmem._core.memory", *(f"devmem._core.memory.{name}" for name in STACK)}
    early = [name for name in imported["new"] if any(name == each or name.startswith(f"{each}.") for each in LATER)]
    assert set(early) - needed == set()


def test_what_waits_exists():
    # A module that was renamed would be watched no more.
    for name in [*LATER, *(f"devmem._core.memory.{name}" for name in STACK)]:
        assert importlib.util.find_spec(name) is not None, name


IN_ANOTHER_INTERPRETER = """
import sys
try:
    import _interpreters as interpreters
    other = interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    other = interpreters.create(isolated=False)
text = "try:\\n    import devmem\\nexcept ImportError as error:\\n    print(error, flush=True)"
interpreters.run_string(other, text)
interpreters.run_string(other, text)
interpreters.destroy(other)
import devmem
"""


def test_import_refuses_a_sub_interpreter_and_says_what_to_set():
    """There the import waited for ever, and where it did not, streams and capsules did."""
    command = [sys.executable, "-c", IN_ANOTHER_INTERPRETER]
    run = subprocess.run(command, capture_output=True, text=True, timeout=patience())
    assert run.returncode == 0, run.stderr
    assert len(re.findall("in the main interpreter alone.*WSGIApplicationGroup %{GLOBAL}", run.stdout)) == 2


def test_import_opens_nothing(imported):
    assert imported["before"][0] == imported["after"][0]


def test_import_starts_no_thread(imported):
    assert imported["threads"] == 1
    assert imported["before"][1] == imported["after"][1]


def test_import_works_with_a_bad_setting(monkeypatch):
    monkeypatch.setenv("DEVMEM_HOST_DEVICES", "several")
    subprocess.run([sys.executable, "-W", "error", "-c", "import devmem"], check=True)


def waiting():
    """Names that are imported on first use, as a type checker sees them, by their module."""
    tree = ast.parse(Path(devmem.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    return {
        alias.name: f".{node.module}" if node.module else ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_names_that_wait_are_found_where_type_checkers_find_them():
    assert waiting() == {**devmem._HOMES, "memory": "", "spill": ""}
    assert waiting().keys() <= set(devmem.__all__)


def test_names_that_wait_are_there_from_the_beginning():
    use = f"""
import devmem
for name in {[*waiting()]}:
    assert name not in vars(devmem), name
    assert name in dir(devmem), name
    taken = {{}}
    exec(f"from devmem import {{name}}", taken)
    assert vars(devmem)[name] is taken[name] is getattr(devmem, name), name
"""
    subprocess.run([sys.executable, "-W", "error", "-c", use], check=True)


@pytest.mark.parametrize("name", ["In", "Out", "InOut", "kernel", "load", "save", "simulator"])
def test_a_name_that_waits_can_be_pickled(name):
    assert pickle.loads(pickle.dumps(getattr(devmem, name))) is getattr(devmem, name)


def test_all_is_what_is_exported():
    # Names that are no identifiers are pytest's: it rewrites the asserts of packages that bring it a plugin.
    public = {name for name in dir(devmem) if name.isidentifier() and not name.startswith("_")} - {"annotations"}
    # Submodules become attributes when something imports them; only those that are meant to be used are listed.
    modules = {name for name in public if isinstance(getattr(devmem, name), types.ModuleType)}
    assert public - modules == {name for name in devmem.__all__ if not name.startswith("__")} - modules
    assert {name: getattr(devmem, name).__name__ for name in modules} == {name: f"devmem.{name}" for name in modules}
    assert len(devmem.__all__) == len(set(devmem.__all__))


def test_using_devmem_replaces_none_of_its_names():
    # Importing a submodule sets it on its parent: the folder devmem.backends once replaced the function of that name.
    use = """
import devmem
before = {name: getattr(devmem, name) for name in devmem.__all__}
devmem.to_device([1, 2, 3]).copy_to_host()
assert {name: getattr(devmem, name) for name in devmem.__all__} == before
assert devmem.backends()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", use], check=True)


def test_star_import_works():
    namespace: dict[str, object] = {}
    exec("from devmem import *", namespace)
    assert set(devmem.__all__) <= set(namespace)


def test_the_version_is_three_numbers():
    assert re.fullmatch(r"\d+\.\d+\.\d+", devmem.__version__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = devmem.nonsense


@pytest.mark.parametrize("name", [name for name in devmem.__all__ if not name.startswith("__")])
def test_every_public_name_has_a_docstring(name):
    assert (getattr(devmem, name).__doc__ or "").strip()


def public_members():
    for name in devmem.__all__:
        owner = getattr(devmem, name)
        if inspect.isclass(owner):
            for member, value in vars(owner).items():
                if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    yield f"{name}.{member}", value


@pytest.mark.parametrize(("name", "value"), list(public_members()))
def test_every_public_member_has_a_docstring(name, value):
    owner, member = name.split(".")
    assert (inspect.getdoc(getattr(getattr(devmem, owner), member)) or "").strip(), name


@pytest.mark.parametrize("hook", [name for name in vars(hookspecs) if name.startswith("devmem_")])
def test_every_hook_is_documented(hook):
    assert any(hook in page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
