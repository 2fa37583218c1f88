"""Stand-ins for the libraries that a package links and this machine lacks, generated from the symbols that the package needs.

A package built for GPUs links libraries that do its arithmetic (cuBLAS, cuDNN, MIOpen ...), which a machine without a GPU
need not have. With stand-ins the package loads. They compute nothing: each function says its name and ends the process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devmem.testing.emulator import elf
from devmem.toolkit import toolchain

PRELUDE = """
#include <stdio.h>
#include <stdlib.h>
static void called(const char *name)
{
    fprintf(stderr, "devmem stand-in: %s was called. " LIBRARY " is missing, and this function computes nothing.\\n", name);
    fflush(stderr);
    abort();
}
"""


@dataclass(frozen=True)
class StandIn:
    """One library to generate: the functions by version ("" where they have none)."""

    soname: str
    functions: dict[str, frozenset[str]]


def folder(packages: Iterable[str], emulated: Iterable[str] = ()) -> Path | None:
    """Generate the stand-ins that installed packages need; return their folder, or None if nothing is missing.

    Parameters
    ----------
    packages
        Names of installed packages as they are imported: ``"torch"``. They are searched, not imported.
    emulated
        Beginnings of the names of libraries that are emulated, and need no stand-in.
    """
    wanted = missing([elf.read(path) for package in packages for path in modules(package)], tuple(emulated))
    return build(wanted) if wanted else None


def modules(package: str) -> list[Path]:
    """Every shared library in the folder of an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"no stand-ins for {package!r}: no such package is installed")
    found = [path for root in spec.submodule_search_locations for path in Path(root).rglob("*.so*") if path.is_file()]
    return sorted(path for path in found if path.read_bytes()[:4] == b"\x7fELF")


def missing(found: list[elf.Module], emulated: tuple[str, ...]) -> list[StandIn]:
    """Return the libraries that the modules link and the loader would not find, with the functions that they use of each.

    A function without a version could be in any of the libraries: where no other module defines it, the first missing library of
    the module that needs it gets it.
    """
    own = {module.path.name for module in found}
    defined = set().union(*(module.defined for module in found))
    functions: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    known = _loader_names()
    given: set[str] = set()
    for module in found:
        absent = [name for name in module.needed if name not in own and not _is_found(name, module, known, emulated)]
        for name in absent:
            functions[name]  # linked, even if nothing of it is used
        for symbol, (library, version) in sorted(module.undefined.items()):
            if library in absent:
                functions[library][version].add(symbol)
            elif absent and not library and symbol not in defined and symbol not in given:
                given.add(symbol)
                functions[_likely(symbol, absent)][""].add(symbol)
    return [
        StandIn(name, {version: frozenset(symbols) for version, symbols in sorted(by_version.items())})
        for name, by_version in sorted(functions.items())
    ]


def build(wanted: list[StandIn]) -> Path:
    """Compile the stand-ins into a folder of devmem's cache, and return it."""
    command = [*toolchain.compiler(), *toolchain.FLAGS]
    texts = {each.soname: ("".join(_source(each)), "".join(_versions(each))) for each in wanted}
    key = hashlib.sha256(repr((command, texts)).encode()).hexdigest()[:20]
    place = toolchain.cache_folder("stand-ins") / key
    if not place.exists():
        with toolchain.published(place) as scratch:
            for soname, (source, versions) in texts.items():
                code, script = scratch / "code.c", scratch / "versions.map"
                code.write_text(source, encoding="utf-8")
                script.write_text(versions, encoding="utf-8")
                flags = [str(code), f"-Wl,-soname,{soname}"]
                if versions:
                    flags.append(f"-Wl,--version-script={script}")
                toolchain.compile_library([*command, *flags], scratch / soname)
            code.unlink()
            script.unlink()
    return place


def _source(wanted: StandIn) -> Iterator[str]:
    yield f'#define LIBRARY "{wanted.soname}"\n{PRELUDE}'
    for index, symbol in enumerate(sorted(set().union(*wanted.functions.values()))):
        yield f'__attribute__((visibility("default"))) void stand_in_{index}(void) __asm__("{symbol}");\n'
        yield f'void stand_in_{index}(void) {{ called("{symbol}"); }}\n'


def _versions(wanted: StandIn) -> Iterator[str]:
    """The script of the linker; functions without a version are beside those that have one."""
    for version, symbols in wanted.functions.items():
        names = " ".join(f'"{symbol}";' for symbol in sorted(symbols))
        yield f"{version} {{ global: {names} }};\n" if version else ""


def _likely(symbol: str, absent: list[str]) -> str:
    """The library whose name begins like the symbol, else the first."""
    for library in absent:
        if symbol.lower().startswith(library.removeprefix("lib").partition(".")[0].lower()):
            return library
    return absent[0]


def _is_found(name: str, module: elf.Module, known: frozenset[str], emulated: tuple[str, ...]) -> bool:
    return name in known or name.startswith(emulated) or any((place / name).exists() for place in module.search)


def _loader_names() -> frozenset[str]:
    """The libraries that the loader finds by name: in its cache, and on LD_LIBRARY_PATH."""
    names = set()
    command = shutil.which("ldconfig") or "/sbin/ldconfig"
    listed = subprocess.run([command, "-p"], capture_output=True, text=True, check=False).stdout
    names |= {line.split()[0] for line in listed.splitlines()[1:] if line.strip()}
    for place in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        if Path(place).is_dir():
            names |= {path.name for path in Path(place).iterdir()}
    return frozenset(names)
