"""Build the compiled core, `devmem._native.core`, into the wheel; where that cannot be done, leave it out.

A build of the wheel compiles ``devmem/_native/src`` with the C compiler that ``$CC`` names or that is on the path, against the
limited API, so one wheel serves every CPython from 3.11 on. An editable installation compiles it into the source tree. Without a
compiler, without Python's headers, or on an interpreter that the limited API does not serve, the package is built without it:
everything works, in Python. ``DEVMEM_BUILD_NATIVE=0`` leaves it out, ``DEVMEM_BUILD_NATIVE=1`` makes its absence an error.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "devmem/_native/core.abi3.so"
FLAGS = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall", "-Wextra", "-shared")
#: The first CPython whose limited API has all that the core uses: buffers, above all.
LIMITED_API = "0x030B0000"
VARIABLE = "DEVMEM_BUILD_NATIVE"


class NativeBuildHook(BuildHookInterface[Any]):
    """Compiles the core before a wheel is built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say where the library lies; ``version`` is "standard" or "editable"."""
        if self.target_name != "wheel":
            return
        wish = os.environ.get(VARIABLE, "")
        missing = f"{VARIABLE}=0" if wish == "0" else reason_against()
        if not missing:
            folder = Path(self.root) / Path(PLACE).parent if version == "editable" else Path(tempfile.mkdtemp())
            missing = compile_core(Path(self.root) / "devmem/_native/src", folder / Path(PLACE).name)
            if not missing and version != "editable":
                build_data["force_include"][str(folder / Path(PLACE).name)] = PLACE
                build_data["pure_python"] = False
                build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        if missing:
            if wish == "1":
                raise RuntimeError(f"{VARIABLE}=1, but the compiled core cannot be built: {missing}")
            self.app.display_warning(f"devmem is built without its compiled core: {missing}")


def reason_against() -> str:
    """Why the core cannot be built here, as far as it is known without trying; or nothing."""
    if sys.implementation.name != "cpython":
        return f"it is for CPython, this is {sys.implementation.name}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the limited API does not serve a free-threaded interpreter"
    if os.name != "posix":
        return f"it was never built on {sys.platform}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's headers are not installed (python3-dev)"
    return "" if compiler() else "no C compiler was found (cc, gcc, clang, or $CC)"


def compiler() -> list[str]:
    """The command of a C compiler, or nothing."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), [])


def compile_core(sources: Path, target: Path, flags: tuple[str, ...] = ()) -> str:
    """Compile the core into a file, which is there as a whole or not at all; returns why it failed, or nothing."""
    files = [str(path) for path in sorted(sources.glob("*.c"))]
    # Without a table of jumps: nearly all that the core calls are functions of CPython, each a jump less far away.
    linking = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-Wl,-s", "-fno-plt")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as scratch:
        built = Path(scratch) / target.name
        options = [f"-DPy_LIMITED_API={LIMITED_API}", f"-I{sysconfig.get_path('include')}", *FLAGS, *linking, *flags]
        command = [*compiler(), *options, *files, "-o", str(built)]
        try:
            # Optimized as a whole, a tenth faster, where the linker can do that.
            for whole in (("-flto=auto",), ()):
                done = subprocess.run([*command, *whole], capture_output=True, text=True)
                if not done.returncode:
                    break
        except OSError as error:
            return str(error)
        if done.returncode or not built.is_file():
            return f"the compiler ended with {done.returncode}: {done.stderr.strip()[-2000:]}"
        built.replace(target)
    return ""
