"""The version that was tested, and the machine."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from .step import ROOT, Run


def describe(run: Run) -> dict[str, Any]:
    """Versions, machine and settings that the numbers depend on."""
    distributions = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    told = {} if run.emulated else run.vendor.tool()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "time": time.strftime("%H:%M:%S %z"),
        "backend": run.vendor.backend,
        "emulated": run.emulated,
        "quick": run.quick,
        "device": run.facts,
        "driver": told.get("driver_version", "emulated" if run.emulated else "unknown"),
        "tool": told,
        "devmem": {"version": source_version(), "commit": commit(), "sources_sha256": sources_hash()},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": dict(sorted(distributions.items(), key=lambda each: each[0].lower())),
        "host": host(),
    }


def source_version() -> str:
    """The version in the sources, read without importing them: the report is written also where the import fails."""
    text = (ROOT / "devmem" / "__init__.py").read_text(encoding="utf-8")
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("__version__"))


def commit() -> str:
    """The git commit of the sources: from GIT_COMMIT, from git, or from its files; else 'unknown'."""
    if told := os.environ.get("GIT_COMMIT"):
        return told
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = {"capture_output": True, "text": True, "timeout": 20, "check": True}
        found = subprocess.run([*git, "rev-parse", "HEAD"], **asked).stdout.strip()  # type: ignore[call-overload]
        changed = subprocess.run([*git, "status", "--porcelain"], **asked).stdout.strip()  # type: ignore[call-overload]
        return f"{found}, with uncommitted changes" if changed else str(found)
    with contextlib.suppress(OSError):
        return commit_by_hand(ROOT / ".git")
    return "unknown"


def commit_by_hand(folder: Path) -> str:
    """Without git: read HEAD, the branch that it names, or the packed refs."""
    if folder.is_file():  # a worktree's .git file names its folder
        folder = (ROOT / folder.read_text(encoding="utf-8").partition("gitdir:")[2].strip()).resolve()
    head = (folder / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head
    name = head.partition(":")[2].strip()
    common = folder
    if (folder / "commondir").exists():
        common = (folder / (folder / "commondir").read_text(encoding="utf-8").strip()).resolve()
    for place in (folder / name, common / name):
        if place.exists():
            return place.read_text(encoding="utf-8").strip()
    for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
        if line.endswith(f" {name}"):
            return line.split()[0]
    return "unknown"


def sources_hash() -> str:
    """A hash over every source file of the package: identifies the sources without a commit."""
    digest = hashlib.sha256()
    for path in sorted(each for each in (ROOT / "devmem").rglob("*") if each.suffix in (".py", ".c", ".h")):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def host() -> dict[str, Any]:
    """The host's processor, memory and system, without its name."""
    found: dict[str, Any] = {"machine": platform.machine(), "kernel": platform.release(), "cpus": os.cpu_count()}
    with contextlib.suppress(OSError, AttributeError):
        found["cpus_usable"] = len(os.sched_getaffinity(0))
    wanted = {
        "cpu": ("/proc/cpuinfo", r"^model name\s*:\s*(.+)$"),
        "memory": ("/proc/meminfo", r"^MemTotal:\s*(.+)$"),
        "huge_pages": ("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"),
        "numa_nodes": ("/sys/devices/system/node/online", r"(.+)"),
    }
    for name, (path, pattern) in wanted.items():
        with contextlib.suppress(OSError):
            if match := re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE):
                found[name] = match[1]
    found["libc"] = " ".join(platform.libc_ver())
    return found
