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

#: Folders without source of the user's own.
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
#: Suffixes of Python files; scripts have none.
PYTHON_SUFFIXES = frozenset({".py", ".pyi", ".pyw", ""})
NOTEBOOK = "is a notebook: convert it with jupyter nbconvert --to script"
#: The words for counts in the summary line, by the kind of the finding.
SUMMARY_WORDS = {"look": "to look at", "cuda": "on CUDA alone"}


@dataclass
class File:
    """The result for one file."""

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

    Folders are searched for *.py. Nothing is changed without --write. Names that devmem lacks, or that behave differently, are
    reported with their lines. Notes name what works only on CUDA, and what still needs Numba.

    Exit code 0: done, with or without notes. 1: some names need a look. 2: a file is not Python, or could not be read, parsed
    or written.
    """
    if importlib.util.find_spec("libcst") is None:
        complain("migrate needs libcst: pip install 'devmem-arrays[migrate]'")
        context.exit(UNUSABLE)
    results = _examine_all(list(_files(paths)))
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


def _examine_all(paths: list[Path]) -> list[tuple[File, Any]]:
    """Determine the result for each file."""
    # Imported late, as libcst is an extra: `devmem --help` lists the command without it.
    from .reexports import ReexportIndex

    # If no file mentions numba, no module can re-export its names, and imports need not be followed.
    modules = ReexportIndex(paths if any(map(_file_mentions_numba, paths)) else ())
    return [_examine(path, modules) for path in paths]


def _file_mentions_numba(path: Path) -> bool:
    from .import_rewriter import mentions_numba

    try:
        return mentions_numba(path.read_bytes())
    except OSError:
        return False  # _examine reports it


def _examine(path: Path, modules: Any) -> tuple[File, Any]:
    """Read one file and determine its result."""
    from .import_rewriter import Unparsable, mentions_numba, rewrite
    from .name_resolution import ForeignNames

    found = File(path)
    if path.suffix not in PYTHON_SUFFIXES:
        found.error = NOTEBOOK if path.suffix == ".ipynb" else f"is no Python, by its ending {path.suffix!r}"
        return found, None
    try:
        source = path.read_bytes()
        concerned = mentions_numba(source) or modules.imports_numba_names(path)
        others = ForeignNames(partial(modules.lookup, path), modules.stars(path)) if concerned else None
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
    """Replace the old source by the new one, atomically."""
    target = Path(os.path.realpath(file.path))  # the target of a symbolic link, not the link
    temporary = ""
    try:
        if target.read_bytes() != made.before:
            file.error = "was changed by another program meanwhile, and is left as it is: run migrate again"
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
    """The given files, and the Python files in the given folders; each once."""
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
            if name not in SKIPPED_FOLDERS
            and not name.startswith(".")
            and not (Path(root) / name / "pyvenv.cfg").exists()
        )
        yield from (Path(root) / name for name in sorted(names) if name.endswith((".py", ".pyi")))


def _diff(path: Path, before: bytes, after: bytes) -> str:
    from .import_rewriter import lines

    name = path.as_posix().lstrip("/")
    # Bytes that are not UTF-8 are shown as escapes: the diff is for reading; files are written as bytes.
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
    left = [f"{count} {how}" for kind, how in SUMMARY_WORDS.items() if (count := _count(files, kind))]
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
