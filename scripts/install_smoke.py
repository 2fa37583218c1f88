"""Use an installed devmem: ``python -I install_smoke.py wheel`` with no extra, ``... sdist`` with the extra ``cli``.

``wheel``: it imports, moves an array, and its command names the extra that it lacks. ``sdist``: there is no C compiler on the
path, and the same array and ``devmem info`` work.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np

import devmem as dm
from devmem import _native

ABSENT = {"wheel": ("click", "rich", "matplotlib", "pytest"), "sdist": ("matplotlib", "pytest")}

kind = sys.argv[1]
for extra in ABSENT[kind]:
    assert importlib.util.find_spec(extra) is None, f"{extra} is installed, so this shows nothing"
assert "site-packages" in str(dm.__file__), f"this is the working tree, not the {kind}: {dm.__file__}"

os.environ["DEVMEM_BACKEND"] = "host"
array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)[::-1, :, ::2]
assert (dm.to_device(array).copy_to_host() == array).all()
dm.close()

# The compiled core is in the wheel where it was built on a machine with a compiler, and missing where there is none.
assert (_native.core is None) == (kind == "sdist" or not shutil.which("cc")), _native.why

command = Path(sysconfig.get_path("scripts")) / "devmem"
run = subprocess.run([command, "info"], capture_output=True, text=True)
if kind == "wheel":
    assert run.returncode == 2, run
    assert run.stderr.count("\n") == 1, run
    assert "pip install 'devmem-arrays[cli]'" in run.stderr, run
else:
    compilers = [found for name in ("cc", "gcc", "clang", "c99") if (found := shutil.which(name))]
    assert not compilers, f"a C compiler is on the path, so this shows nothing: {compilers}"
    assert run.returncode == 0, run
    assert "host:0" in run.stdout, run

print(f"devmem {dm.__version__} from its {kind} works on Python {sys.version.split()[0]}, numpy {np.__version__}")
