"""devmem with no extra installed: it imports, moves arrays, and its command says what it lacks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np

import devmem as dm

for extra in ("click", "rich", "matplotlib", "pytest"):
    assert importlib.util.find_spec(extra) is None, f"{extra} is installed, so this shows nothing"

os.environ["DEVMEM_BACKEND"] = "host"
assert "site-packages" in str(dm.__file__), f"this is the working tree, not the wheel: {dm.__file__}"

array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)[::-1, :, ::2]
assert (dm.to_device(array).copy_to_host() == array).all()
dm.close()

command = Path(sysconfig.get_path("scripts")) / "devmem"
run = subprocess.run([command, "info"], capture_output=True, text=True)
assert run.returncode == 2, run
assert run.stderr.count("\n") == 1, run
assert "pip install 'devmem-arrays[cli]'" in run.stderr, run

print(f"devmem {dm.__version__} works without extras on Python {sys.version.split()[0]}, numpy {np.__version__}")
