"""Look into a wheel: ``python check_wheel.py WHEEL LIMIT`` fails if it has more bytes, or holds what it should not."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SUFFIXES = {".py", ".typed", ".c", ".h", ".md"}

wheel, limit = Path(sys.argv[1]), int(sys.argv[2])
with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()

strangers = [name for name in names if not name.startswith("devmem/") and ".dist-info/" not in name]
odd = [name for name in names if name.startswith("devmem/") and Path(name).suffix not in SUFFIXES]
missing = {"devmem/__init__.py", "devmem/py.typed"} - set(names)
size = wheel.stat().st_size

for complaint in (strangers, odd, missing):
    assert not complaint, complaint
assert size <= limit, f"{size} bytes, more than {limit}"
print(f"{wheel.name}: {size:,} bytes, {len(names)} files")
