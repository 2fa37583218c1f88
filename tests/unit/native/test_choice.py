"""Which core runs, and who says so."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devmem import _native

ROOT = Path(__file__).parents[3]
FREE_THREADED = "t" in getattr(sys, "abiflags", "")
with_gil = pytest.mark.skipif(FREE_THREADED, reason="the compiled core is not looked for")
BUILT = importlib.util.find_spec("devmem._native.core") is not None and not FREE_THREADED
SAY = "from devmem import _native; print(_native.core is not None, _native.why)"
needs_core = pytest.mark.skipif(not BUILT, reason="the compiled core was not built here")


def run(code, **variables):
    environment = {name: value for name, value in os.environ.items() if name != _native.VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment | variables, cwd=ROOT
    )


@needs_core
@pytest.mark.parametrize("variables", [{}, {"DEVMEM_NATIVE": "1"}])
def test_what_was_built_runs(variables):
    assert run(SAY, **variables).stdout.split()[:2] == ["True", "compiled"]


def test_python_on_request():
    assert run(SAY, DEVMEM_NATIVE="0").stdout == "False Python, as DEVMEM_NATIVE=0 says\n"


HIDDEN = "import sys; sys.modules['devmem._native.core'] = None; "


@with_gil
def test_without_it_python_runs_and_says_why():
    assert run(HIDDEN + SAY).stdout.startswith("False Python, without the compiled core: it was not built")


OLDER = "import sys, types; sys.modules['devmem._native.core'] = types.ModuleType('core'); "


@with_gil
def test_a_core_that_was_built_before_the_sources_changed_is_not_used():
    assert run(OLDER + SAY).stdout.startswith(
        "False Python, without the compiled core: it was built from older sources"
    )


def test_a_free_threaded_interpreter_does_not_load_it():
    """It has been compiled for other objects, and would crash."""
    said = run("import sys; sys.abiflags = 't'; " + SAY).stdout
    assert said.startswith("False Python, without the compiled core: a free-threaded interpreter")


def test_what_is_asked_for_has_to_be_there():
    failed = run(HIDDEN + SAY, DEVMEM_NATIVE="1")
    assert "ImportError: DEVMEM_NATIVE=1, but the compiled core cannot be imported" in failed.stderr


@with_gil
def test_a_wrong_value_is_told_with_what_is_allowed():
    failed = run("import devmem; devmem.settings()", DEVMEM_NATIVE="perhaps")
    assert "DEVMEM_NATIVE='perhaps' is not allowed: give 0 | 1" in failed.stderr


@pytest.mark.parametrize("command", ["info", "doctor"])
def test_the_command_says_which_runs(command):
    pytest.importorskip("click")
    environment = os.environ | {"DEVMEM_NATIVE": "0", "DEVMEM_BACKEND": "host"}
    done = subprocess.run(
        [sys.executable, "-m", "devmem.cli", command, "--json"], capture_output=True, text=True, env=environment
    )
    told = json.loads(done.stdout)
    if command == "info":
        assert told["versions"]["core"] == "Python, as DEVMEM_NATIVE=0 says"
    else:
        assert {"core": "Python, as DEVMEM_NATIVE=0 says"}.items() <= {
            c["name"]: c["found"] for c in told["checks"]
        }.items()
