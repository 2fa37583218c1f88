"""The code of the documentation that needs PyTorch, run with its CPU build: ``nox -s exchange``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER, PAGE = ROOT / "tests" / "docs" / "run_page.py", ROOT / "docs" / "tutorial" / "from-pytorch.md"

#: To import PyTorch takes half a minute where others want the processors too.
pytestmark = pytest.mark.timeout(300)


def run(page: Path, strict: int) -> subprocess.CompletedProcess[str]:
    """Run all blocks of a page on the host backend, those that need PyTorch too."""
    if not importlib.util.find_spec("torch"):
        if os.environ.get("EXCHANGE_MATRIX"):
            pytest.fail("torch is missing")
        pytest.skip("torch is not installed")
    environment = os.environ | {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_STRICT": str(strict), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(RUNNER), str(page), "needs PyTorch; tests/peers/test_pytorch_page.py runs it"]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_page_for_users_of_pytorch_runs():
    result = run(PAGE, strict=0)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "2\n"


def test_memory_like_a_gpus_is_refused_as_the_page_says():
    result = run(PAGE, strict=1)
    assert "No module named 'torch.privateuseone'" in result.stderr
    assert "No module named\n'torch.privateuseone'" in PAGE.read_text(encoding="utf-8")
