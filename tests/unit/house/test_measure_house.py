"""`scripts/measure-house` finds what it counts, in a package that is made for it and in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "measure-house"

pytestmark = pytest.mark.skipif(
    not SCRIPT.is_file(), reason="these are not the sources: there is no scripts/measure-house"
)


def measures(root):
    run = subprocess.run([sys.executable, str(SCRIPT), "--json", "--root", str(root)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    root = tmp_path_factory.mktemp("house")
    files = {
        "__init__.py": "raise ImportError('not to be run')",
        "spi/__init__.py": "from .a import A",
        "spi/a.py": "def late():\n    'As soon.'\n    from .b import B\nA = 1",
        "spi/b.py": "'Whatever.'\nfrom . import A\nB = 1",
        "_core/__init__.py": '"""A room.\n\nNo code.\n"""\n# Nor here.',
        "_core/flat.py": "import ctypes, sys\nwords = (ctypes.c_char * sys.maxsize).from_address(0)\nat = id(words) // 8",
        "_core/device/__init__.py": '"""\nWhat opens.\n"""',
        "_core/device/open_device.py": "class D:\n  'How.'\n  def f(self):\n    self.a: int = 1\n    self.b = self.a = 2",
        "_core/copy/__init__.py": "",
        "_core/copy/frames.py": "import sys\nframe = sys._getframe(1).f_back",
        "_core/copy/mapped.py": "[x] = map(f, (a,))\nfirst, second = map(f, b)",
        "_core/copy/once.py": "do = partial(next, map(f, (a,)), None)",
        "_core/copy/submit.py": "\n".join(
            [
                "def direct(driver, x: Any):",
                "    if driver.copy(1, x):",
                "        pass",
                "def blocking(device):",
                "    device.driver.copy(1, 2)",
                "def rows(driver, running):",
                "    running |= driver.copy(1, 2)",
                "def pattern(driver):",
                "    made = page_aligned_empty(1)",
                "    if driver.copy(1, address(made)):",
                "        pass",
            ]
        ),
    }
    for name, text in files.items():
        path = root / "devmem" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text("Who" + "ever asks.\nA NO" + "BODY.\nAny" + "body.\n")
    return measures(root)


@pytest.mark.parametrize(
    ("measure", "value"),
    {
        "files flat in `_core`": 2,
        "circles of imports": 1,
        "circles of imports in `_core`": 0,
        "circles of imports without the `__init__`s": 1,
        "places where the direct copy stands": 1,
        "mentions of a driver's `copy` in `_core`": 4,
        "ctypes views over all memory in `_core`": 1,
        "`id()` as an address in `_core`": 1,
        "`sys._getframe` in `_core`": 1,
        "modules of `_core` that look at frames": "`_core/copy/frames.py`",
        "modules of `_core` that call through `map` alone": "`_core/copy/mapped.py`, `_core/copy/once.py`",
        "lines with `: Any` in `_core`": 1,
        "attributes of the open device": 2,
        "lines of `_core/copy`": 16,
        "of these, lines of code": 29,
        "lines of code of `_core/copy`": 16,
        "lines of code of `spi`": 6,
        "lines with an unnamed actor in devmem, docs and *.md": 2,
        "docstrings that begin with a clause": 3,
    }.items(),
)
def test_it_counts(house, measure, value):
    assert house[measure] == value


#: What the measures of this package have reached, and keep.
REACHED = {
    "files flat in `_core`": 1,
    "circles of imports": 0,
    "circles of imports without the `__init__`s": 0,
    "ctypes views over all memory in `_core`": 0,
    "`id()` as an address in `_core`": 0,
    "`getrefcount` in `_core`": 0,
    "`sys._getframe` in `_core`": 0,
    "attributes of the open device": 12,
    "lines with an unnamed actor in devmem, docs and *.md": 0,
    "docstrings that begin with a clause": 0,
    "frames from `to_device` to the driver": 3,
    "frames from `copy_to_host(out)` to the driver": 2,
    "frames from `copy_to_device` to the driver": 3,
    "Python calls of `to_device(array)`": 11,
    "Python calls of `copy_to_host(out)`": 7,
    "Python calls of `to_device(array), strided`": 41,
    "Python calls of `copy_to_host(), strided`": 56,
    "Python calls of `copy_to_device(array, stream)`": 27,
    "Python calls of `copy_to_host(out, stream)`": 18,
}

#: Lines of code that a part may have, in hundreds. Lower one when the part has become smaller; raise one in the commit of the
#: feature that needs the lines, and say so there.
# Decision: docs/adr/0018-lines-of-code-have-a-ceiling-in-each-room.md
CEILINGS = {
    "spi": 6,
    "toolkit": 24,
    "_core/base": 20,
    "_core/ordering": 13,
    "_core/memory": 12,
    "_core/pool": 10,
    "_core/telemetry": 6,
    "_core/stacks": 5,
    "_core/lifetime": 12,
    "_core/copy": 18,
    "_core/device": 10,
    "_core/interop": 15,
    "_core/arrays": 14,
    "_core/smart": 5,
    "_core/bulk": 32,
    "backends/cuda": 9,
    "backends/roc": 12,
    "backends/host": 15,
    "backends/opencl": 7,
    "api": 11,
}


@pytest.fixture(scope="module")
def found():
    """The measures of this package."""
    return measures(ROOT)


@pytest.mark.parametrize(("part", "hundreds"), CEILINGS.items())
def test_a_part_has_no_more_lines_of_code_than_its_ceiling(found, part, hundreds):
    """More lines are for a feature that the commit names, which raises the ceiling; a part with far fewer lowers it."""
    assert 100 * (hundreds - 2) < found[f"lines of code of `{part}`"] <= 100 * hundreds


def test_each_part_has_a_ceiling(found):
    assert {name for name in found if name.startswith("lines of code of")} == {
        f"lines of code of `{part}`" for part in CEILINGS
    }


def test_what_this_package_has_reached_it_keeps(found):
    assert {name: found[name] for name, most in REACHED.items() if found[name] > most} == {}
    assert found["places where the direct copy stands"] == 1
    # Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
    frames = "`_core/base/call_site.py`, `_core/base/interrupts.py`, `_core/memory/guard.py`"
    assert found["modules of `_core` that look at frames"] == frames
    assert (
        found["modules of `_core` that call through `map` alone"]
        == "`_core/base/outer_lock.py`, `_core/interop/dlpack.py`"
    )
    assert found["Python calls of `copy_to_host(out)`"] > 1
