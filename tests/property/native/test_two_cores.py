"""The compiled core does what Python does: the same programs in two processes, one for each core.

``CORE_PROGRAMS`` is how many programs, 30 if it is not set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waits import patience

from devmem import _native

HELPERS = Path(__file__).parents[2] / "helpers"
PROGRAMS = int(os.environ.get("CORE_PROGRAMS", "30"))


def start(core):
    environment = os.environ | {"DEVMEM_NATIVE": core, "DEVMEM_BACKEND": "host"}
    command = [sys.executable, str(HELPERS / "core_programs.py"), "0", str(PROGRAMS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.timeout(60 + 4 * PROGRAMS)
def test_results_errors_driver_calls_counters_and_what_is_left_are_the_same():
    if _native.core is None:
        pytest.skip(_native.why)
    outcomes = {}
    for core, running in [(core, start(core)) for core in "01"]:
        said, wrong = running.communicate(timeout=patience())
        assert running.returncode == 0, wrong
        outcomes[core] = [json.loads(line) for line in said.splitlines()]
    *python, none = outcomes["0"]
    *compiled, copies = outcomes["1"]
    assert len(python) == len(compiled) == PROGRAMS
    for ours, theirs in zip(compiled, python, strict=True):
        for what, found in theirs.items():
            assert ours[what] == found, f"program {theirs['seed']}"
    assert none == 0
    assert copies > 20 * PROGRAMS  # or this compares Python with itself
