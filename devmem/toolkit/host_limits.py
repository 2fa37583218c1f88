"""The size of the host's memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = Path("/")
#: Where a control group says how much memory its processes may have: version 2, and 1.
CONTROL_GROUP = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_bytes(root: Path = _ROOT) -> int:
    """Bytes of memory that this process may use: the machine's, or what its control group allows; ``root`` is for tests."""
    found = [machine_bytes()]
    for limit in CONTROL_GROUP:
        try:
            told = (root / limit).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if told.isdecimal():
            found.append(int(told))
    return min(found)


def machine_bytes() -> int:
    """Bytes of memory that the machine has; 8 GiB where the system does not say."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _physical_on_windows() if sys.platform == "win32" else 8 << 30


def _physical_on_windows() -> int:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
            (name, ctypes.c_ulonglong) for name in ("total", "free", "page", "page_free", "virtual", "v_free", "ext")
        ]

    status = Status(length=ctypes.sizeof(Status))
    ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined,unused-ignore]
    return int(status.total)
