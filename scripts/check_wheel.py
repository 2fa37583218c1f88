"""Check a wheel: ``python check_wheel.py WHEEL`` fails where it is too large, and where a file is missing or wrong."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

#: Bytes of a wheel.
LIMIT = 1_300_000
SUFFIXES = {".py", ".typed", ".c", ".h", ".html", ".map", ".md"}  # .map: versions of symbols, for the linker
#: The one file that is no source: in a wheel that was built where there is a C compiler, whose tag then names a platform.
COMPILED_CORE = "devmem/_native/core.abi3.so"

wheel = Path(sys.argv[1])
with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()

outside = [name for name in names if not name.startswith("devmem/") and ".dist-info/" not in name]
wrong = [
    name for name in names if name.startswith("devmem/") and Path(name).suffix not in SUFFIXES and name != COMPILED_CORE
]
missing = {"devmem/__init__.py", "devmem/py.typed"} - set(names)
size = wheel.stat().st_size

assert not outside, f"files outside of devmem: {outside}"
assert not wrong, f"files that are no source: {wrong}"
assert (COMPILED_CORE in names) == ("-abi3-" in wheel.name), f"the tag does not fit the content: {wheel.name}"
assert not missing, f"files that are missing: {missing}"
assert size <= LIMIT, f"{size} bytes, more than {LIMIT}"
print(f"{wheel.name}: {size:,} bytes, {len(names)} files")
