"""Build the emulated driver libraries into a cache, and return the environment in which a command loads them."""

from __future__ import annotations

import ctypes
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from devmem.spi.errors import BackendUnavailable
from devmem.testing.emulator import stand_ins as generated
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
    "virtual.c",
    "fault.c",
    "calls.c",
    "coherence.c",
    "capture.c",
    "graph.c",
)
FLAGS = ("-g", "-pthread")
# Symbols bind within the library: two emulated drivers in one process have a core each.
LINK = ("-Wl,-Bsymbolic", "-Wl,-z,nodelete")


class BuildError(OSError):
    """There is no such emulated driver, not on this platform, or it does not compile."""


@dataclass(frozen=True)
class Front:
    """The build of one vendor's library from the core, and its path in the folder that programs search."""

    soname: str
    sources: tuple[str, ...]
    links: tuple[str, ...] = ()
    folder: str = "."
    home_variables: tuple[str, ...] = ()  # environment variables that name the folder
    flags: tuple[str, ...] = ()
    core: tuple[str, ...] = CORE

    @property
    def target(self) -> str:
        """The path of the library below its folder."""
        return str(Path(self.folder, self.soname))


_HIP = Front(
    "libamdhip64.so",
    ("hip.c", "hip_memory.c", "hip_streamed.c", "hip_per_thread.c", "hip_code.c", "hip_table.c", "hip_null.c"),
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


def _runtime(version: int) -> Front:
    parts = ("", "_memory", "_streamed", "_per_thread", "_code", "_table")
    flags = (f"-DRUNTIME={version}", f"-Wl,--version-script={SOURCES / f'runtime{version}.map'}", "-ldl")
    return Front(f"libcudart.so.{version}", (*(f"runtime{part}.c" for part in parts), "calls.c"), flags=flags, core=())


#: The emulated CUDA runtimes, which call the driver: one for each version of the API that programs are linked with.
RUNTIMES = (_runtime(13), _runtime(12))


def environment(
    backends: str, layout: str = "full", *, runtime: bool = False, stand_ins: Sequence[str] = ()
) -> dict[str, str]:
    """Return the environment variables with which a command and its child processes load emulated drivers.

    Builds the libraries that the cache lacks. ``DEVMEM_BACKEND`` is the first backend, unless it is set already.

    Parameters
    ----------
    backends
        The backend whose driver is emulated, or several separated by commas: ``"cuda,roc"``.
    layout
        How the library is installed: ``"full"``; for ``"roc"`` also ``"versioned"`` (only ``libamdhip64.so.7``) and
        ``"old"`` (without the functions that old runtimes lack).
    runtime
        Also emulate the CUDA runtime. It is preloaded: packages that bring NVIDIA's find that one first.
    stand_ins
        Installed packages. Libraries that they link and this machine lacks are generated: their functions end the process.

    Raises
    ------
    BuildError
        If there is no compiler or no such backend, layout or package, or if the sources do not compile.
    """
    names = [name.strip() for name in backends.split(",")]
    found: dict[str, str] = {}
    paths = list(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    for name in reversed(names):
        path = library(name, layout)
        paths.insert(0, str(path.parent))
        front = FRONTS[name][layout]
        found |= dict.fromkeys(front.home_variables, str(path.parent.parent))
    if runtime:
        if "cuda" not in names:
            raise BuildError(f"the emulated CUDA runtime needs the emulated driver cuda, not {backends!r} alone")
        preloaded = list(filter(None, os.environ.get("LD_PRELOAD", "").split()))
        found["LD_PRELOAD"] = " ".join(dict.fromkeys([*(str(_built(each)) for each in RUNTIMES), *preloaded]))
    if stand_ins:
        paths += filter(None, [_stand_ins(stand_ins)])
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
    return _built(FRONTS[backend][layout])


def _built(front: Front) -> Path:
    try:
        return toolchain.shared_library(
            front.target,
            [SOURCES / name for name in (*front.core, *front.sources)],
            [*FLAGS, *front.flags, *_extra_flags(), f"-Wl,-soname,{front.soname}", *LINK],
            headers=sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.map")]),
            links=front.links,
            cache="emulator",
        )
    except BackendUnavailable as error:
        raise BuildError(f"the emulated {front.soname} cannot be built: {error}") from error


def _stand_ins(packages: Sequence[str]) -> str | None:
    emulated = [front.soname.partition(".so")[0] for front in [*RUNTIMES, *(one["full"] for one in FRONTS.values())]]
    try:
        place = generated.folder(packages, [f"{name}.so" for name in emulated])
    except (BackendUnavailable, LookupError) as error:
        raise BuildError(str(error)) from error
    return str(place) if place else None


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
