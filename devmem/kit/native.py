"""A C compiler, where there is one: for the few lines that cannot be Python."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..spi.errors import BackendUnavailable

FLAGS = ("-std=c11", "-O2", "-fPIC", "-fexceptions", "-fvisibility=hidden", "-Wall", "-Wextra", "-shared")


def compiler() -> list[str]:
    """The command of a C compiler: ``$CC``, one on the path, or the one that the package ``ziglang`` brings.

    Raises
    ------
    BackendUnavailable
        There is none; the message says what to install.
    """
    chosen = os.environ.get("CC")
    if chosen:
        return shlex.split(chosen)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        # zig turns undefined-behaviour traps on, which need a runtime that a shared library has not got
        return [sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=all"]
    raise BackendUnavailable("no C compiler was found: install one (cc), or `pip install ziglang`")


def shared_library(source: Path, flags: Sequence[str] = FLAGS) -> Path:
    """The shared library of one C file, compiled into the user's cache where that lacks it.

    Raises
    ------
    BackendUnavailable
        There is no compiler, or it failed; the message has its output.
    """
    command = compiler()
    parts = repr((command, tuple(flags), platform.machine())).encode() + source.read_bytes()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "devmem" / "native"
    target = base / f"{source.stem}-{hashlib.sha256(parts).hexdigest()[:20]}.so"
    if not target.exists():
        _compile([*command, *flags, str(source)], target)
    return target


def _compile(command: list[str], target: Path) -> None:
    """Compile beside the final place, then rename: another process sees the whole library or none."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="building-", dir=target.parent) as scratch:
            built = Path(scratch) / target.name
            command = [*command, "-o", str(built), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not built.exists():
                said = done.stderr.strip()
                raise BackendUnavailable(f"{shlex.join(command)}\nfailed with exit status {done.returncode}:\n{said}")
            built.replace(target)
    except OSError as error:
        raise BackendUnavailable(f"{target.name} cannot be built with {command[0]}: {error}") from error
