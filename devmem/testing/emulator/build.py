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
from dataclasses import dataclass, replace
from pathlib import Path

SOURCES = Path(__file__).parent
CORE = (
    "core.c",
    "device.c",
    "heap.c",
    "memory.c",
    "copy.c",
    "stream.c",
    "event.c",
    "pool.c",
    "ipc.c",
    "fault.c",
    "coherence.c",
)
FLAGS = ("-std=c11", "-O2", "-g", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-shared")
# Bound within the library: two emulated drivers in one process must not find each other's core.
LINK = ("-Wl,-Bsymbolic", "-Wl,-z,nodelete")


class BuildError(OSError):
    """The emulated driver is not to be had: unknown, not for this platform, or not compiled."""


@dataclass(frozen=True)
class Front:
    """What makes one vendor's library of the core, and where in its folder the vendor's programs look for it."""

    soname: str
    sources: tuple[str, ...]
    links: tuple[str, ...] = ()
    below: str = "."
    home: tuple[str, ...] = ()  # variables that name the folder
    flags: tuple[str, ...] = ()

    def within(self, folder: Path) -> Path:
        """Return where the library lies in a folder of this front."""
        return folder / self.below / self.soname


_HIP = Front(
    "libamdhip64.so",
    ("hip.c", "hip_memory.c", "hip_streamed.c", "hip_per_thread.c", "hip_table.c", "hip_null.c"),
    below="lib",
    home=("ROCM_PATH", "ROCM_HOME"),
)

#: The emulated libraries by backend, and by how they are installed: whole, as packages without development files leave
#: them (no unversioned name), and as old releases that lack newer functions.
FRONTS = {
    "cuda": {
        "full": Front(
            "libcuda.so.1",
            ("cuda.c", "cuda_memory.c", "cuda_streamed.c", "cuda_per_thread.c", "cuda_table.c", "cuda_null.c"),
            ("libcuda.so",),
        )
    },
    "roc": {
        "full": _HIP,
        "versioned": replace(_HIP, soname="libamdhip64.so.7"),
        "old": replace(_HIP, flags=("-DOLD_RUNTIME",)),
    },
}


def environment(backends: str, layout: str = "full") -> dict[str, str]:
    """Return the variables under which a command, and all that it spawns, finds emulated drivers.

    Builds them if need be. ``DEVMEM_BACKEND`` is set to the first backend unless it is set already.

    Parameters
    ----------
    backends
        The backend whose driver is emulated, or several with commas between: ``"cuda,roc"``.
    layout
        How the library is installed. ``"full"`` for all backends; for ``"roc"`` also ``"versioned"``, only as
        ``libamdhip64.so.7``, and ``"old"``, without the functions that old runtimes lack.

    Raises
    ------
    BuildError
        If there is no compiler, no such backend or layout, or the sources do not compile.
    """
    names = [name.strip() for name in backends.split(",")]
    found: dict[str, str] = {}
    paths = list(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    for name in reversed(names):
        path = library(name, layout)
        paths.insert(0, str(path.parent))
        front = FRONTS[name][layout]
        found |= dict.fromkeys(front.home, str(path.parent.parent))
    outer = filter(None, os.environ.get("DEVMEM_EMULATOR", "").split(","))
    return found | {
        "LD_LIBRARY_PATH": os.pathsep.join(dict.fromkeys(paths)),
        "DEVMEM_BACKEND": os.environ.get("DEVMEM_BACKEND") or names[0],
        "DEVMEM_EMULATOR": ",".join(dict.fromkeys([*outer, *names])),
    }


def library(backend: str, layout: str = "full") -> Path:
    """Return the path of the emulated driver library of `backend`, building it where the cache lacks it."""
    if not sys.platform.startswith("linux"):
        raise BuildError(f"the emulated drivers need Linux (memfd, /proc); this is {sys.platform}")
    if backend not in FRONTS:
        raise BuildError(f"there is no emulated driver for {backend!r}: choose from {', '.join(FRONTS)}")
    if layout not in FRONTS[backend]:
        raise BuildError(f"no layout {layout!r} of the emulated {backend}: choose from {', '.join(FRONTS[backend])}")
    front, compiler = FRONTS[backend][layout], _compiler()
    folder = _cache() / _fingerprint(front, compiler)
    if not front.within(folder).exists():
        _build(front, compiler, folder)
    return front.within(folder)


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
        target = front.within(scratch)
        target.parent.mkdir(exist_ok=True)
        sources = [str(SOURCES / name) for name in (*CORE, *front.sources)]
        linked = [f"-Wl,-soname,{front.soname}", *LINK, "-o", str(target)]
        command = [*compiler, *FLAGS, *front.flags, *_extra_flags(), *sources, *linked]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not target.exists():
            said = done.stderr.strip()
            raise BuildError(f"{shlex.join(command)}\nfailed with exit status {done.returncode}:\n{said}")
        for link in front.links:
            (target.parent / link).symlink_to(front.soname)
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
