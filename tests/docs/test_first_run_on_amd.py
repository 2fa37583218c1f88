"""What the page for the first AMD GPU tells people to run is there: each choice of tests chooses some."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devmem.testing import emulator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "first-run-on-amd.md"
FILES = {
    "truth": ["tests/contract/emulator/test_truth_roc.py"],
    "suite": ["tests/contract/drivers/test_roc.py"],
    "api": ["tests/integration/every_backend"],
}
CHOICES = sorted(set(re.findall(r"`(truth|suite|api) -k (\w+)`", PAGE.read_text(encoding="utf-8"))))


def test_every_assumption_is_settled_by_something() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 11
    assert [row for row in rows if " -k " not in row] == []


@pytest.mark.parametrize("kind", FILES)
def test_the_tests_that_are_named_exist(kind: str) -> None:
    """All names are collected once for each kind: over the emulator, where the statements run one by one."""
    try:
        variables = emulator.environment("roc")
    except emulator.BuildError as error:
        pytest.skip(f"no emulator: {error}")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *FILES[kind]]
    command += ["--devmem-backend", "roc"]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    words = [word for found, word in CHOICES if found == kind]
    assert words
    collected = [line.lower() for line in done.stdout.splitlines() if "::" in line]
    assert [word for word in words if not any(word.lower() in line for line in collected)] == []
