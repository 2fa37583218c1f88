"""Where the HIP runtime library is: found once, so that a process never gets a second copy of it.

The runtime keeps its table of addresses to itself: memory of one copy is unknown to the other, which then touches it with the
CPU. So a library that PyTorch or CuPy has brought is the one to use, wherever it lies.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NAME = "libamdhip64.so"
#: The unversioned name comes with development packages only.
NAMES = (NAME, f"{NAME}.7", f"{NAME}.6", f"{NAME}.5")
MAPS = Path("/proc/self/maps")
DEFAULT_ROOT = "/opt/rocm"
#: The package by which a ROCm that pip installed says where it is.
ROCM_SDK = "rocm_sdk"


class Missing(LookupError):
    """There is no runtime, or it cannot be loaded; the text is a whole sentence."""


@dataclass(frozen=True)
class Library:
    """The runtime: its file, how it was found, and the loader's handle."""

    path: str
    how: str
    handle: ctypes.CDLL

    def exports(self, name: str) -> bool:
        """Whether the runtime has a function."""
        return hasattr(self.handle, name)

    @property
    def versioned_only(self) -> str:
        """What to know where the library has no unversioned name, under which others look for it; else nothing."""
        path = Path(self.path)
        if path.name == NAME or path.with_name(NAME).exists():
            return ""
        return (
            f"the library is there under its versioned name only ({path.name}), as without ROCm's development files: enough for "
            f"devmem, not for programs that look for {NAME}"
        )


def find(setting: str = "") -> Library:
    """Load the runtime, or find the one that is loaded.

    Raises
    ------
    Missing
        There is none, or the one that was asked for or found first cannot be loaded.
    """
    for path in mapped():
        return _load(path, "loaded already in this process")
    searched: dict[str, None] = {}
    for path, how in _files(setting):
        searched[str(Path(path).parent)] = None
        if Path(path).exists():
            return _load(path, how)
    if setting:
        raise Missing(f"DEVMEM_ROC_LIBRARY={setting!r} is no file: name the {NAME} of the ROCm that is to be used")
    for name in NAMES:
        try:
            handle = ctypes.CDLL(name)
        except OSError:
            continue
        # By its full name from here on: it is to be the same file for everybody who loads it.
        return Library(next(mapped(), name), "the loader's search path", handle)
    raise Missing(
        f"no HIP runtime was found ({NAME}, also .7, .6, .5, in {', '.join(searched)} and on the loader's path): install ROCm "
        f"(package hip-runtime-amd, or libamdhip64 on Debian and Ubuntu), or set DEVMEM_ROC_LIBRARY or ROCM_PATH"
    )


def mapped() -> Iterator[str]:
    """The HIP runtimes in this process, each file once, in the order of their addresses."""
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return
    seen = set()
    for line in lines:
        fields = line.split(maxsplit=5)
        # What follows the permissions is the device and the inode: one file may be known by several names.
        if len(fields) == 6 and fields[5].rpartition("/")[2].startswith(NAME) and (fields[3], fields[4]) not in seen:
            seen.add((fields[3], fields[4]))
            yield fields[5]


def _files(setting: str) -> Iterator[tuple[str, str]]:
    if setting:
        yield setting, "DEVMEM_ROC_LIBRARY"
        return
    for path in _of_rocm_sdk():
        yield path, ROCM_SDK
    roots = {variable: os.environ.get(variable, "") for variable in ("ROCM_PATH", "ROCM_HOME")}
    for how, root in {**roots, DEFAULT_ROOT: DEFAULT_ROOT}.items():
        for name in NAMES if root else ():
            yield str(Path(root, "lib", name)), how


def _of_rocm_sdk() -> list[str]:
    """What a ROCm that was installed by pip says of itself."""
    try:
        return [os.fspath(path) for path in importlib.import_module(ROCM_SDK).find_libraries("amdhip64")]
    except Exception:  # not installed, or without a runtime: it has errors of its own for that
        return []


def _load(path: str, how: str) -> Library:
    try:
        return Library(path, how, ctypes.CDLL(path))
    except OSError as error:
        raise Missing(f"the HIP runtime {path} ({how}) cannot be loaded: {' '.join(str(error).split())}") from None
