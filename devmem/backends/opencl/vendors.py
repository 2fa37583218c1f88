"""The files by which OpenCL's loader finds the runtimes of vendors: each names a library.

The wheel of Intel's runtime for processors installs such a file with a path that its installer was to replace, and did not; and
it does not ask for the wheel of what its library is linked with. The loader says nothing of a library that it cannot load.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def broken_vendors() -> list[str]:
    """Of each file that names a library which is not there, what to do."""
    folders = [os.environ.get("OCL_ICD_VENDORS", ""), f"{sys.prefix}/etc/OpenCL/vendors", "/etc/OpenCL/vendors"]
    files = sorted({file for folder in folders if folder for file in Path(folder).glob("*.icd")})
    return [told for file in files if (told := _broken(file))]


def _broken(file: Path) -> str:
    try:
        library = Path(file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        return f"{file} cannot be read ({error})"
    if not library.is_absolute():  # a plain name is for the system's search, which may find it
        return ""
    if library.exists():
        return _unloadable(library)
    wrong = f"{file} names {library}, which does not exist"
    here = Path(sys.prefix, "lib", library.name)
    if not here.exists():
        return f"{wrong}: install that runtime again, or remove the file"
    wrong, more = f"{wrong}, but {here} does", _unloadable(here)
    cure = f"mkdir -p ~/.opencl && echo {here} > ~/.opencl/{file.name}, then set OCL_ICD_VENDORS=$HOME/.opencl"
    return f"{wrong}: {cure}{more and '; ' + more}"


def _unloadable(library: Path) -> str:
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        cure = "pip install intel-cmplr-lib-rt" if "intelocl" in library.name else "install what it needs"
        return f"{library} cannot be loaded ({error}): {cure}"
    return ""
