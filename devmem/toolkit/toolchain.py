"""A C compiler, where there is one: for what cannot be Python."""

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..spi.errors import BackendUnavailable

FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-shared")


def compiler() -> list[str]:
    """The command of a C compiler: ``$CC``, one on the path, or that of the package ``ziglang``; else `BackendUnavailable`."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        # zig turns undefined-behaviour traps on, which need a runtime that a shared library has not got
        return [sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=all"]
    raise BackendUnavailable("no C compiler was found: install one (cc), or `pip install ziglang`")


def shared_library(
    target: str,
    sources: Sequence[Path],
    flags: Sequence[str] = (),
    *,
    headers: Sequence[Path] = (),
    links: Sequence[str] = (),
    cache: str = "native",
) -> Path:
    """The shared library of some C files, compiled into the user's cache where that lacks it.

    Each state of the sources and of the command has a folder of its own there. ``target`` is where in that folder the library
    lies, such as ``lib/libone.so``; ``links`` are further names for it, beside it. ``flags`` come behind the sources, besides
    `FLAGS`. ``headers`` are what the sources include, ``cache`` the part of devmem's cache. Raises BackendUnavailable where there
    is no compiler, or it fails; the message then has its output.
    """
    command = [*compiler(), *FLAGS]
    digest = hashlib.sha256(repr((command, target, *flags, *links, platform.machine())).encode())
    for path in (*sources, *headers):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    folder = cache_folder(cache) / digest.hexdigest()[:20]
    if not (folder / target).exists():
        _compile([*command, *map(str, sources), *flags], folder, target, links)
    return folder / target


def cache_folder(name: str) -> Path:
    """A part of devmem's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "devmem" / name


def compile_library(command: list[str], built: Path) -> None:
    """Run a command that compiles `built`; raises BackendUnavailable with its output where it fails."""
    command = [*command, "-o", str(built)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BackendUnavailable(f"{built.name} cannot be built with {command[0]}: {error}") from error
    if done.returncode or not built.exists():
        said = done.stderr.strip()
        raise BackendUnavailable(f"{shlex.join(command)}\nfailed with exit status {done.returncode}:\n{said}")


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A scratch folder that gets the name `folder` at the end: another process sees the whole folder or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        yield scratch
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.exists():  # not simply another process that was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _compile(command: list[str], folder: Path, target: str, links: Sequence[str]) -> None:
    try:
        with published(folder) as scratch:
            built = scratch / target
            built.parent.mkdir(parents=True, exist_ok=True)
            compile_library(command, built)
            for link in links:
                (built.parent / link).symlink_to(built.name)
    except OSError as error:
        raise BackendUnavailable(f"{target} cannot be built with {command[0]}: {error}") from error
