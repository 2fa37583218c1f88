"""Build the emulated driver libraries into a cache, and return the environment in which a command loads them."""

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
# Symbols bind within the library: two emulated drivers in one process have a core each.
LINK = ("-Wl,-Bsymbolic", "-Wl,-z,nodelete")


class BuildError(OSError):
    """There is no such emulated driver, not on this platform, or it does not compile."""


@dataclass(frozen=True)
class Front:
    """How one vendor's library is built from the core, and its path in the folder that programs search."""

    soname: str
    sources: tuple[str, ...]
    links: tuple[str, ...] = ()
    folder: str = "."
    home_variables: tuple[str, ...] = ()  # environment variables that name the folder
    flags: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The path of the library below its folder."""
        return str(Path(self.folder, self.soname))


_HIP = Front(
    "libamdhip64.so",
    ("hip.c", "hip_memory.c", "hip_streamed.c", "hip_per_thread.c", "hip_table.c", "hip_null.c"),
    folder="lib",
    home_variables=("ROCM_PATH", "ROCM_HOME"),
)

#: The emulated libraries by backend and layout: "full"; "versioned", as packages without development files install them
#: (no unversioned name); "old", without the functions that old releases lack.
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
    """Return the environment variables with which a command and its child processes load emulated drivers.

    Builds the libraries that the cache lacks. ``DEVMEM_BACKEND`` is the first backend, unless it is set already.

    Parameters
    ----------
    backends
        The backend whose driver is emulated, or several separated by commas: ``"cuda,roc"``.
    layout
        How the library is installed: ``"full"``; for ``"roc"`` also ``"versioned"`` (only ``libamdhip64.so.7``) and
        ``"old"`` (without the functions that old runtimes lack).

    Raises
    ------
    BuildError
        If there is no compiler or no such backend or layout, or if the sources do not compile.
    """
    names = [name.strip() for name in backends.split(",")]
    found: dict[str, str] = {}
    paths = list(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    for name in reversed(names):
        path = library(name, layout)
        paths.insert(0, str(path.parent))
        front = FRONTS[name][layout]
        found |= dict.fromkeys(front.home_variables, str(path.parent.parent))
    outer = filter(None, os.environ.get("DEVMEM_EMULATOR", "").split(","))
    return found | {
        "LD_LIBRARY_PATH": os.pathsep.join(dict.fromkeys(paths)),
        "DEVMEM_BACKEND": os.environ.get("DEVMEM_BACKEND") or names[0],
        "DEVMEM_EMULATOR": ",".join(dict.fromkeys([*outer, *names])),
    }


def library(backend: str, layout: str = "full") -> Path:
    """Return the path of the emulated driver library of `backend`; build it if the cache lacks it."""
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
    """Load the emulated driver into this process and return its path.

    To be called before anything else loads the vendor's library: the loader then resolves its soname to this library.
    """
    path = library(backend)
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return path


def _extra_flags() -> list[str]:
    """Read further compiler flags from the environment, for sanitizers."""
    return shlex.split(os.environ.get("DEVMEM_EMULATOR_CFLAGS", ""))
