"""The allocators and the backend of the pages pass the suites that the pages name: their blocks, as files of a package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from waits import patience

ROOT = Path(__file__).parents[2]

specification = importlib.util.spec_from_file_location("run_page", Path(__file__).with_name("run_page.py"))
run_page = sys.modules.get("run_page") or importlib.util.module_from_spec(specification)
if "run_page" not in sys.modules:
    sys.modules["run_page"] = run_page  # dataclasses look their module up
    specification.loader.exec_module(run_page)


@pytest.mark.parametrize(
    ("page", "classes", "tests"),
    [
        ("how-to/write-an-allocator.md", ["Recycle"], "TestRecycle"),
        ("tutorial/an-allocator.md", ["Slab"], "TestSlab"),
        ("tutorial/a-backend.md", ["DeskDriver", "DeskBackend"], "TestDesk"),
        # Its package is examples/backend, whose own test nox -s peers runs.
        pytest.param("how-to/write-a-backend.md", [], "TestExample", marks=pytest.mark.exhaustive),
    ],
)
def test_what_a_page_writes_passes_the_suite(page, classes, tests, tmp_path):
    blocks = [block.text for block in run_page.blocks((ROOT / "docs" / page).read_text(encoding="utf-8"))]
    package = [code for code in blocks if any(f"class {name}:" in code for name in classes)]
    [suite] = [code for code in blocks if f"class {tests}(" in code]
    assert len(package) == len(classes)
    (tmp_path / "my_package.py").write_text("\n".join(package))
    (tmp_path / "test_page.py").write_text(suite)
    folders = [ROOT, tmp_path, ROOT / "examples" / "backend" / "src"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=patience(140), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert passed > 20, done.stdout


@pytest.mark.parametrize("test", sorted(ROOT.glob("examples/*/test_*.py")), ids=lambda test: test.parent.name)
def test_an_example_package_takes_no_configuration_of_pytest_from_around_it(test):
    """The repository's asks for plugins that the example's README does not install."""
    project = tomllib.loads((test.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["pytest"]["ini_options"]["testpaths"] == [test.name]
