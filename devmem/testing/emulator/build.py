"""Build an emulated driver library once, into a cache, and say how a command gets to see it."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
CORE = ("core.c", "device.c", "heap.c", "memory.c", "copy.c", "stream.c", "event.c", "pool.c", "ipc.c", "fault.c")
FLAGS = ("-std=c11", "-O2", "-g", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-shared")
# Bound within the library: two emulated drivers in one process must not find each other's core.
LINK = ("-Wl,-Bsymbolic", "-Wl,-z,nodelete")


class BuildError(OSError):
    """The emulated driver is not to be had: unknown, not for this platform, or not compiled."""


@dataclass(frozen=True)
class Front:
    """What makes one vendor's library of the core."""

    soname: str
    sources: tuple[str, ...]
    links: tuple[str, ...] = ()


FRONTS = {
    "cuda": Front(
        "libcuda.so.1",
        ("cuda.c", "cuda_memory.c", "cuda_streamed.c", "cuda_per_thread.c", "cuda_table.c", "cuda_null.c"),
        ("libcuda.so",),
    ),
}


def environment(backend: str) -> dict[str, str]:
    """Return the variables under which a command, and all that it spawns, finds the emulated driver of `backend`.

    Builds it if need be. ``DEVMEM_BACKEND`` is set to `backend` unless it is set already.

    Raises
    ------
    BuildError
        If there is no compiler, or the sources do not compile.
    """
    folder = str(library(backend).parent)
    paths = [folder, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(dict.fromkeys(paths)),
        "DEVMEM_BACKEND": os.environ.get("DEVMEM_BACKEND") or backend,
        "DEVMEM_EMULATOR": backend,
    }


def library(backend: str) -> Path:
    """Return the path of the emulated driver library of `backend`, building it where the cache lacks it."""
    if not sys.platform.startswith("linux"):
        raise BuildError(f"the emulated drivers need Linux (memfd, /proc); this is {sys.platform}")
    if backend not in FRONTS:
        raise BuildError(f"there is no emulated driver for {backend!r}: choose from {', '.join(FRONTS)}")
    front, compiler = FRONTS[backend], _compiler()
    folder = _cache() / _fingerprint(front, compiler)
    if not (folder / front.soname).exists():
        _build(front, compiler, folder)
    return folder / front.soname


def load(backend: str) -> Path:
    """Map the emulated driver into this process, ahead of the bindings' own search, and return its path.

    Works only before anything has loaded a driver of that name: the loader then hands out this one by its soname.
    """
    path = library(backend)
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return path


def _compiler() -> list[str]:
    chosen = os.environ.get("CC")
    if chosen:
        return shlex.split(chosen)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        # zig turns undefined-behaviour traps on, which need a runtime that a shared library has not got
        return [sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=all"]
    raise BuildError("no C compiler for the emulated driver: install one (cc), or `pip install ziglang`")


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "devmem" / "emulator"


def _extra_flags() -> list[str]:
    """Read further compiler flags, for sanitizers."""
    return shlex.split(os.environ.get("DEVMEM_EMULATOR_CFLAGS", ""))


def _fingerprint(front: Front, compiler: list[str]) -> str:
    digest = hashlib.sha256(repr((front, compiler, FLAGS, LINK, _extra_flags(), platform.machine())).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def _build(front: Front, compiler: list[str], folder: Path) -> None:
    """Compile beside the final place, then rename: another process sees the whole library or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        target = scratch / front.soname
        sources = [str(SOURCES / name) for name in (*CORE, *front.sources)]
        linked = [f"-Wl,-soname,{front.soname}", *LINK, "-o", str(target)]
        command = [*compiler, *FLAGS, *_extra_flags(), *sources, *linked]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not target.exists():
            said = done.stderr.strip()
            raise BuildError(f"{shlex.join(command)}\nfailed with exit status {done.returncode}:\n{said}")
        for link in front.links:
            (scratch / link).symlink_to(front.soname)
        _publish(scratch, folder)
    except BuildError:
        raise
    except OSError as error:
        raise BuildError(f"cannot build the emulated driver with {shlex.join(compiler)}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        if not folder.exists():  # not simply another process that was faster
            raise
