"""Every function of the emulated drivers, and what is checked of its arguments and its order."""

from __future__ import annotations

from types import ModuleType

from devmem.testing.emulator import cuda_functions, hip_functions

#: By backend: the module with what is said of all functions, of each, and of those that are not supported.
TABLES: dict[str, ModuleType] = {"cuda": cuda_functions, "roc": hip_functions}


def as_markdown(backend: str) -> str:
    """Return the table of a backend's emulated driver as Markdown, for the documentation."""
    table = TABLES[backend]
    lines = [f"{table.COMMON} A number in brackets is the status that the call returns.", ""]
    for title, functions in table.FUNCTIONS.items():
        lines += [f"### {title}", "", "| function | what is checked |", "| --- | --- |"]
        lines += [f"| `{name}` | {what.removesuffix('; ')} |" for name, what in functions.items()] + [""]
    lines += [
        "### Not supported",
        "",
        "These exist and say so (801): " + ", ".join(f"`{n}`" for n in table.UNSUPPORTED) + ".",
    ]
    return "\n".join(lines) + "\n"
