"""The page on running a library's memory tests without a GPU: its recipe installs what the judges do, its samples pass."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from .test_pages import ROOT, run_page

TEXT = (ROOT / "docs" / "how-to" / "test-your-library-without-a-gpu.md").read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[=<>]", each)[0] for each in requirements}


def test_the_recipe_installs_what_the_session_of_the_judges_does():
    tree = ast.parse((ROOT / "scripts" / "nox_steps.py").read_text(encoding="utf-8"))
    constants = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and getattr(statement.targets[0], "id", "") in ("CUDA_TORCH", "TORCH_NEEDS")
    }
    without, needs = (line.split() for line in re.findall(r"- run: pip install (.*)", TEXT))
    assert without == ["--no-deps", constants["CUDA_TORCH"]]
    assert names(needs) == names(constants["TORCH_NEEDS"]) | {"numpy", "pytest", "'devmem-arrays[cli]'"}


@pytest.mark.timeout(300)
def test_the_samples_pass_over_the_emulated_runtime(tmp_path: Path):
    if "torch" not in os.environ.get("JUDGES", ""):
        pytest.skip("PyTorch's CUDA build runs over an emulated runtime: nox -s judges")
    [samples] = run_page.blocks(TEXT)
    (tmp_path / "test_samples.py").write_text(samples.text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_samples.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{samples.text.count('def test_')} passed" in done.stdout
