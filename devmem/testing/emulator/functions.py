"""Every function of the emulated drivers, with the checks of its arguments and of the order of calls."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from devmem.testing.emulator import cuda_functions, hip_functions, runtime_functions

#: By emulated library: the module that describes the checks common to all functions (COMMON) and those of each (FUNCTIONS).
TABLES: dict[str, ModuleType] = {
    "cuda": cuda_functions,
    "cuda runtime": runtime_functions,
    "roc": hip_functions,
}

_LISTS = {
    "cuda": ("cuda.h", "CUDA_UNSUPPORTED"),
    "cuda runtime": ("runtime.h", "RUNTIME_UNSUPPORTED"),
    "roc": ("hip.h", "HIP_UNSUPPORTED"),
}


def unsupported(backend: str) -> list[str]:
    """Return the functions that are exported, are counted, and return "not supported" (801)."""
    return listed(*_LISTS[backend])


def listed(header: str, macro: str) -> list[str]:
    """Return the functions that a list macro of a header names: ``#define MACRO(X) X(one) X(two)``."""
    text = (Path(__file__).parent / header).read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(rf"^#define {macro}\(X\)(.*)$", text, re.MULTILINE)
    return re.findall(r"\bX\((\w+)\)", line)


def as_markdown(backend: str) -> str:
    """Return the table of an emulated library as Markdown, for the documentation."""
    table = TABLES[backend]
    lines = [f"{table.COMMON} A number in brackets is the status that the call returns.", ""]
    for title, functions in table.FUNCTIONS.items():
        lines += [f"### {title}", "", "| function | checks and behaviour |", "| --- | --- |"]
        lines += [f"| `{name}` | {what.removesuffix('; ')} |" for name, what in functions.items()] + [""]
    names = ", ".join(f"`{name}`" for name in unsupported(backend))
    lines += ["### Not supported", "", f"These are exported and return 801: {names}."]
    return "\n".join(lines) + "\n"
