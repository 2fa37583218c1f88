"""Check a wheel: ``python check_wheel.py WHEEL LIMIT`` fails over LIMIT bytes, and where a file is missing or wrong."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SUFFIXES = {".py", ".typed", ".c", ".h", ".md"}

wheel, limit = Path(sys.argv[1]), int(sys.argv[2])
with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()

outside = [name for name in names if not name.startswith("devmem/") and ".dist-info/" not in name]
wrong = [name for name in names if name.startswith("devmem/") and Path(name).suffix not in SUFFIXES]
missing = {"devmem/__init__.py", "devmem/py.typed"} - set(names)
size = wheel.stat().st_size

assert not outside, f"files outside of devmem: {outside}"
assert not wrong, f"files that are no source: {wrong}"
assert not missing, f"files that are missing: {missing}"
assert size <= limit, f"{size} bytes, more than {limit}"
print(f"{wheel.name}: {size:,} bytes, {len(names)} files")
