"""Build an emulated driver library once, into a cache, and say how a command gets to see it."""

from __future__ import annotations

import ctypes
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from devmem.spi.errors import BackendUnavailable
from devmem.toolkit import toolchain

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
    "capture.c",
)
FLAGS = ("-g", "-pthread")
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

    @property
    def target(self) -> str:
        """Where the library lies in its folder."""
        return str(Path(self.below, self.soname))


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
    front = FRONTS[backend][layout]
    try:
        return toolchain.shared_library(
            front.target,
            [SOURCES / name for name in (*CORE, *front.sources)],
            [*FLAGS, *front.flags, *_extra_flags(), f"-Wl,-soname,{front.soname}", *LINK],
            headers=sorted(SOURCES.glob("*.h")),
            links=front.links,
            cache="emulator",
        )
    except BackendUnavailable as error:
        raise BuildError(f"the emulated driver for {backend!r} cannot be built: {error}") from error


def load(backend: str) -> Path:
    """Map the emulated driver into this process, ahead of the bindings' own search, and return its path.

    Works only before anything has loaded a driver of that name: the loader then hands out this one by its soname.
    """
    path = library(backend)
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return path


def _extra_flags() -> list[str]:
    """Read further compiler flags, for sanitizers."""
    return shlex.split(os.environ.get("DEVMEM_EMULATOR_CFLAGS", ""))
