"""Where the HIP runtime library is."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...toolkit import libraries
from ...toolkit.libraries import Library, LibraryMissing

NAME = "libamdhip64.so"
#: The unversioned name comes with development packages only.
NAMES = (NAME, f"{NAME}.7", f"{NAME}.6", f"{NAME}.5")
DEFAULT_ROOT = "/opt/rocm"
#: The package that a ROCm installed by pip brings, which says where its libraries are.
ROCM_SDK = "rocm_sdk"
#: The HIP runtimes in this process.
mapped = partial(libraries.mapped, NAME)


def find(setting: str = "") -> Library:
    """Load the runtime, or find the one that is loaded; LibraryMissing where there is none, or it cannot be loaded."""
    searched: dict[str, None] = {}
    found = libraries.find(NAME, _candidates(setting), () if setting else NAMES, searched)
    if found is not None:
        return found
    if setting:
        raise LibraryMissing(
            f"DEVMEM_ROC_LIBRARY={setting!r} is no file: name the {NAME} of the ROCm that is to be used"
        )
    raise LibraryMissing(
        f"no HIP runtime was found ({NAME}, also .7, .6, .5, in {', '.join(searched)} and on the loader's path): install ROCm "
        f"(package hip-runtime-amd, or libamdhip64 on Debian and Ubuntu), or set DEVMEM_ROC_LIBRARY or ROCM_PATH"
    )


def versioned_only(library: Library) -> str:
    """A remark where the library has no unversioned name, under which other programs look for it; else nothing."""
    path = Path(library.path)
    if path.name == NAME or path.with_name(NAME).exists():
        return ""
    return (
        f"the library is there under its versioned name only ({path.name}), as without ROCm's development files: enough for "
        f"devmem, not for programs that look for {NAME}"
    )


def _candidates(setting: str) -> Iterator[tuple[str, str]]:
    if setting:
        yield setting, "DEVMEM_ROC_LIBRARY"
        return
    try:
        of_package = [os.fspath(path) for path in importlib.import_module(ROCM_SDK).find_libraries("amdhip64")]
    except Exception:  # not installed, or without a runtime: the package has errors of its own for that
        of_package = []
    for path in of_package:
        yield path, ROCM_SDK
    roots = {variable: os.environ.get(variable, "") for variable in ("ROCM_PATH", "ROCM_HOME")}
    for how, root in {**roots, DEFAULT_ROOT: DEFAULT_ROOT}.items():
        for name in NAMES if root else ():
            yield str(Path(root, "lib", name)), how
