"""``devmem migrate``: change a code base's imports from numba's GPU namespaces to devmem's."""

from __future__ import annotations

import difflib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from .output import FAILED, OK, UNUSABLE, complain, print_json

#: Folders that are nobody's source.
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
#: How files with Python end; scripts have no ending.
PYTHON = frozenset({".py", ".pyi", ".pyw", ""})
NOTEBOOK = "is a notebook: convert it with jupyter nbconvert --to script"
#: What is counted in the last line, by the kind of the finding.
LEFT = {"look": "to look at", "cuda": "on CUDA alone"}


@dataclass
class File:
    """What became of one file."""

    path: Path
    changed: bool = False
    written: bool = False
    diff: str = ""
    findings: list[Any] = field(default_factory=list)
    error: str = ""


@click.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--write", is_flag=True, help="Change the files; without it they are only read.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a diff.")
@click.pass_context
def migrate(context: click.Context, paths: tuple[Path, ...], write: bool, as_json: bool) -> None:
    """Show how the imports of FILE... would change from numba.cuda and numba.roc to devmem, as a diff.

    Folders are searched for *.py. Nothing is changed without --write. Names that devmem does not have, or has otherwise, are told
    with their lines. Notes tell what works on CUDA alone, and what needs Numba as before.

    Exit code 0: done, notes or none. 1: some names have to be looked at. 2: a file is no Python, or could not be
    read, parsed or written.
    """
    if importlib.util.find_spec("libcst") is None:
        complain("migrate needs libcst: pip install 'devmem-arrays[migrate]'")
        context.exit(UNUSABLE)
    results = _all(list(_files(paths)))
    if write:
        for each, source in results:
            if each.changed:
                _write(each, source)
    files = [each for each, _ in results]
    if as_json:
        print_json({"files": [_document(each) for each in files], "write": write})
    else:
        _show(files)
    failed = any(each.error for each in files)
    context.exit(UNUSABLE if failed else FAILED if _count(files, "look") else OK)


def _all(paths: list[Path]) -> list[tuple[File, Any]]:
    """What would become of each file."""
    # With its library, which is an extra: the command has to be listed without it.
    from .reexports import Modules

    # Where nobody has anything of numba's, there is nothing to be handed on, and no need to read all that is imported.
    modules = Modules(paths if any(map(_is_of_numba, paths)) else ())
    return [_look(path, modules) for path in paths]


def _is_of_numba(path: Path) -> bool:
    from .import_rewriter import is_of_numba

    try:
        return is_of_numba(path.read_bytes())
    except OSError:
        return False  # told when its turn comes


def _look(path: Path, modules: Any) -> tuple[File, Any]:
    """Read one file, and find out what would become of it."""
    from .import_rewriter import Unparsable, is_of_numba, rewrite
    from .name_resolution import Others

    found = File(path)
    if path.suffix not in PYTHON:
        found.error = NOTEBOOK if path.suffix == ".ipynb" else f"is no Python, by its ending {path.suffix!r}"
        return found, None
    try:
        source = path.read_bytes()
        concerned = is_of_numba(source) or modules.reaches(path)
        others = Others(partial(modules.known, path), modules.stars(path)) if concerned else None
        made = rewrite(source, others)
    except OSError as error:
        found.error = error.strerror or str(error)
        return found, None
    except Unparsable as error:
        found.error = f"cannot be parsed: {error}"
        return found, None
    found.changed = made.after != made.before
    found.findings = made.findings
    if found.changed:
        found.diff = _diff(path, made.before, made.after)
    return found, made


def _write(file: File, made: Any) -> None:
    """Put the new source in the place of the old one, at once or not at all."""
    target = Path(os.path.realpath(file.path))  # what a link leads to, not the link
    temporary = ""
    try:
        if target.read_bytes() != made.before:
            file.error = "was changed by somebody else meanwhile, and is left as it is: run it again"
            return
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as new:
            temporary = new.name
            new.write(made.after)
            new.flush()
            os.fsync(new.fileno())
        shutil.copymode(target, temporary)
        Path(temporary).replace(target)
        file.written = True
    except OSError as error:
        file.error = f"could not be written, and is as it was: {error.strerror or error}"
    finally:
        if temporary and not file.written:
            Path(temporary).unlink(missing_ok=True)


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    """The files that are named, and those in the folders that are named; each once."""
    seen: set[str] = set()
    for path in paths:
        for each in _walk(path) if path.is_dir() else (path,):
            real = os.path.realpath(each)
            if real not in seen:
                seen.add(real)
                yield each


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED and not name.startswith(".") and not (Path(root) / name / "pyvenv.cfg").exists()
        )
        yield from (Path(root) / name for name in sorted(names) if name.endswith((".py", ".pyi")))


def _diff(path: Path, before: bytes, after: bytes) -> str:
    from .import_rewriter import lines

    name = path.as_posix().lstrip("/")
    # Bytes that are no UTF-8 are shown, not lost: a diff is for reading, and files are written as bytes.
    old, new = (lines(each.decode("utf-8", "surrogateescape")) for each in (before, after))
    return "".join(
        line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    )


def _show(files: list[File]) -> None:
    for each in files:
        sys.stdout.write(each.diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    sys.stdout.flush()
    for each in files:
        if each.error:
            complain(f"{each.path}: {each.error}")
        for finding in each.findings:
            note = "" if finding.kind == "look" else "note: "
            complain(f"{each.path}:{finding.line}: {note}{finding.name} {finding.what}")
    complain(_summary(files))


def _summary(files: list[File]) -> str:
    changed = sum(each.changed for each in files)
    written = sum(each.written for each in files)
    failed = sum(bool(each.error) for each in files)
    what = f"{written} written" if written else "nothing written; --write does" if changed else "nothing to do"
    counts = [f"{len(files)} file{'s' * (len(files) != 1)}", f"{changed} to change"]
    counts += [f"{failed} failed"] * bool(failed)
    left = [f"{count} {how}" for kind, how in LEFT.items() if (count := _count(files, kind))]
    return "; ".join([f"{', '.join(counts)}: {what}", *left])


def _count(files: list[File], kind: str) -> int:
    return sum(finding.kind == kind for each in files for finding in each.findings)


def _document(file: File) -> dict[str, object]:
    return {
        "path": str(file.path),
        "changed": file.changed,
        "written": file.written,
        "diff": file.diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "findings": [
            {"line": each.line, "kind": each.kind, "name": each.name, "what": each.what} for each in file.findings
        ],
        "error": file.error or None,
    }
