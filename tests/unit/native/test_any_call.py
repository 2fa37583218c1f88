"""The functions of the compiled core take anything: `scripts/sanitize` runs more of the same under the address sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devmem import _native

PROGRAM = Path(__file__).parents[2] / "helpers" / "core_calls.py"


@pytest.mark.skipif(_native.core is None, reason=_native.why)
def test_any_function_of_the_core_takes_anything():
    environment = os.environ | {"DEVMEM_BACKEND": "host", "DEVMEM_NATIVE": "1"}
    run = subprocess.run(
        [sys.executable, str(PROGRAM), "0", "20"], capture_output=True, text=True, env=environment, check=False
    )
    assert (run.returncode, run.stdout) == (0, "ends\n"), run.stderr
