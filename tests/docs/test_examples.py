"""Every public verb, class and method of the main classes has an example in its docstring, and the examples run."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from waits import patience

import devmem
from devmem.kernels.names import PUBLIC

ROOT = Path(__file__).parents[2]
NAMES = [
    name
    for name in devmem.__all__
    if name not in PUBLIC and not inspect.ismodule(getattr(devmem, name)) and name not in devmem.errors.__all__
]
NAMES += [f"memory.{name}" for name in devmem.memory.__all__] + [f"spill.{name}" for name in devmem.spill.__all__]
#: Methods that only devmem itself calls, and writers of extensions.
INTERNAL = {"put", "like", "stream_in_force", "destroy", "waits_for", "is_capturing", "relieve"}
INTERNAL |= {
    "check_not_captured",
    "check_not_recorded",
    "check_waitable",
    "order_handle",
    "ordering_stream",
    "driver",
    "entered",
    "opened",
}
NAMES += [
    f"{name}.{method}"
    for name in ("DeviceNDArray", "Stream", "Event", "Device", "spill.Store")
    for method, function in inspect.getmembers(attrgetter(name)(devmem), inspect.isfunction)
    if method not in INTERNAL and not method.startswith("_") and function.__module__.startswith("devmem.")
]
#: Where kernels' names are explained, as their examples are whole kernels.
KERNEL_PAGES = "reference/kernels.md", "tutorial/blocks-and-barriers.md"
#: Pages of reference that are no lists of names to call.
NO_CODE = {
    "assumptions": "what devmem takes for granted of drivers",
    "capabilities": "a table of what each backend has",
    "cli": "commands; their examples are in --help",
    "emulator": "commands and variables",
    "exchange-matrix": "results",
    "features": "a list of tests",
    "real-libraries": "results",
    "numba-names": "a list of names",
    "numba-suite": "results",
    "programs-own-tests": "results",
    "real-programs": "results",
    "refused-names": "what is not there",
}

#: Runs the examples of the names that it is given, in an empty folder; exit status 1 if one fails.
RUNNER = """
import doctest, sys
from operator import attrgetter

import numpy as np
import devmem as dm

flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
failed = 0
for name in sys.argv[1:]:
    found = doctest.DocTestParser().get_doctest(attrgetter(name)(dm).__doc__, {"np": np, "dm": dm}, name, None, None)
    failed += doctest.DocTestRunner(optionflags=flags).run(found).failed
    dm.close()
sys.exit(failed > 0)
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    assert doctest.DocTestParser().get_examples(inspect.getdoc(attrgetter(name)(devmem)) or "")


def test_the_examples_run(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("DEVMEM_")}
    env |= {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", RUNNER, *NAMES]
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=patience(140), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_a_name_of_kernels_is_in_the_code_of_a_page(name):
    pages = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in KERNEL_PAGES]
    code = "\n".join(block for page in pages for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
    assert re.search(rf"\b{name}\b", code)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_reference_has_an_example(page):
    has_code = "```python" in page.read_text(encoding="utf-8")
    assert has_code or page.stem == "api" or page.stem in NO_CODE
