"""``devmem migrate``: change a code base's imports from numba's GPU namespaces to devmem's."""

from __future__ import annotations

import difflib
import gc
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from .output import FAILED, OK, UNUSABLE, complain, example, print_json, progress

#: Folders without source of the user's own.
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
#: Suffixes of Python files; scripts have none.
PYTHON_SUFFIXES = frozenset({".py", ".pyi", ".pyw", ""})
NOTEBOOK = ".ipynb"
#: A process is started for so many files that mention numba: examining one takes about a tenth of a second.
FILES_PER_WORKER = 3
#: What each process knows of the other files.
_modules: Any = None
#: The words for counts in the summary line, by the kind of the finding.
SUMMARY_WORDS = {"look": "to look at", "cuda": "not on every backend"}


@dataclass
class File:
    """The result for one file."""

    path: Path
    changed: bool = False
    written: bool = False
    diff: str = ""
    findings: list[Any] = field(default_factory=list)
    error: str = ""


@click.command(epilog=example("devmem migrate program.py --write"))
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--write", is_flag=True, help="Change the files; without it they are only read.")
@click.option("--check", is_flag=True, help="Print no diff, and exit with 1 if a file would change; for CI.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a diff.")
@click.pass_context
def migrate(context: click.Context, paths: tuple[Path, ...], write: bool, check: bool, as_json: bool) -> None:
    """Show how the imports of FILE... would change from numba.cuda and numba.roc to devmem, as a diff.

    Folders are searched for *.py and notebooks. Nothing is changed without --write. Names that devmem lacks, or that behave
    differently, are reported with their lines, as is what the simulator, CUDA and ROCm refuse in kernels. Notes name what
    works only on CUDA, and what still needs Numba.

    Exit code 0: done, with or without notes. 1: some names need a look; with --check also if a file would change. 2: a file is
    not Python, or could not be read, parsed or written.
    """
    if write and check:
        raise click.UsageError("--check changes nothing: leave out --write")
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
        _show(files, diffs=not check)
    failed = any(each.error for each in files)
    unfinished = _count(files, "look") or (check and any(each.changed for each in files))
    context.exit(UNUSABLE if failed else FAILED if unfinished else OK)


def _examine_all(paths: list[Path]) -> list[tuple[File, Any]]:
    """Determine the result for each file."""
    # Imported late, as libcst is an extra: `devmem --help` lists the command without it.
    from .reexports import ReexportIndex

    # If no file mentions numba, no module can re-export its names, and imports need not be followed.
    mentions = {path for path in paths if _file_mentions_numba(path)}
    followed, related = (paths, _related(paths, mentions)) if mentions else ([], set())
    workers = min(os.cpu_count() or 1, len(mentions) // FILES_PER_WORKER)
    with progress("migrate", len(paths)) as advance, ExitStack() as stack:
        if workers < 2:
            modules = ReexportIndex(followed, related)
            found: Iterator[tuple[File, Any]] = (_examine(path, modules) for path in paths)
        else:
            pool = ProcessPoolExecutor(workers, initializer=_prepare_worker, initargs=(followed, related))
            stack.callback(pool.shutdown, cancel_futures=True)
            found = pool.map(_examine_in_worker, paths)
        results = []
        for each in found:
            results.append(each)
            advance()
        return results


def _related(paths: list[Path], mentions: set[Path]) -> set[Path]:
    """The files that mention numba, or the name of a module that does, and so on: others cannot import its names."""
    found, new, rest = set(mentions), set(mentions), set(paths) - mentions
    while new:
        names = {path.parent.name if path.stem == "__init__" else path.stem for path in new}
        relative = "|from +[.]+ +import" * any(path.stem == "__init__" for path in new)
        pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b{relative}".encode())
        new = {path for path in rest if pattern.search(_text(path))}
        found |= new
        rest -= new
    return found


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # _examine reports it


def _prepare_worker(paths: list[Path], related: set[Path]) -> None:
    from .reexports import ReexportIndex

    global _modules
    gc.set_threshold(
        200_000, 20, 100
    )  # syntax trees are millions of objects, of which few are garbage before the file is done
    _modules = ReexportIndex(paths, related)


def _examine_in_worker(path: Path) -> tuple[File, Any]:
    return _examine(path, _modules)


def _file_mentions_numba(path: Path) -> bool:
    from .import_rewriter import mentions_numba

    return mentions_numba(_text(path))


def _examine(path: Path, modules: Any) -> tuple[File, Any]:
    """Read one file and determine its result."""
    from .import_rewriter import Unparsable, mentions_numba, rewrite
    from .name_resolution import ForeignNames
    from .notebooks import rewrite_notebook

    found = File(path)
    if path.suffix not in PYTHON_SUFFIXES | {NOTEBOOK}:
        found.error = f"is no Python, by its ending {path.suffix!r}"
        return found, None
    try:
        source = path.read_bytes()
        if path.suffix == NOTEBOOK:
            made = rewrite_notebook(source)
        else:
            concerned = mentions_numba(source) or modules.imports_numba_names(path)
            others = (
                ForeignNames(partial(modules.lookup, path), modules.stars(path), modules.words) if concerned else None
            )
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
        yield from (Path(root) / name for name in sorted(names) if name.endswith((".py", ".pyi", NOTEBOOK)))


def _diff(path: Path, before: bytes, after: bytes) -> str:
    from .import_rewriter import lines

    name = path.as_posix().lstrip("/")
    # Bytes that are not UTF-8 are shown as escapes: the diff is for reading; files are written as bytes.
    old, new = (lines(each.decode("utf-8", "surrogateescape")) for each in (before, after))
    return "".join(
        line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    )


def _show(files: list[File], diffs: bool) -> None:
    for each in files if diffs else ():
        sys.stdout.write(each.diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    sys.stdout.flush()
    for each in files:
        if each.error:
            complain(f"{each.path}: {each.error}")
        for finding in each.findings:
            note = "" if finding.kind == "look" else "note: "
            cell = f"cell {finding.cell}, line " if hasattr(finding, "cell") else ""
            complain(f"{each.path}:{cell}{finding.line}: {note}{finding.name} {finding.what}")
    complain(_summary(files))


def _summary(files: list[File]) -> str:
    changed = sum(each.changed for each in files)
    written = sum(each.written for each in files)
    failed = sum(bool(each.error) for each in files)
    what = f"{written} written" if written else "nothing written; --write does" if changed else "nothing to do"
    counts = [f"{len(files)} file{'s' * (len(files) != 1)}", f"{changed} to change"]
    counts += [f"{failed} failed"] * bool(failed)
    left = [f"{count} {how}" for kind, how in SUMMARY_WORDS.items() if (count := _count(files, kind))]
    refused = Counter(who for each in files for finding in each.findings for who in finding.refused_by)
    kernels = (
        [f"refused in kernels: {', '.join(f'{refused[who]} by {who}' for who in sorted(refused))}"] if refused else []
    )
    return "; ".join([f"{', '.join(counts)}: {what}", *left, *kernels])


def _count(files: list[File], kind: str) -> int:
    return sum(finding.kind == kind for each in files for finding in each.findings)


def _document(file: File) -> dict[str, object]:
    return {
        "path": str(file.path),
        "changed": file.changed,
        "written": file.written,
        "diff": file.diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "findings": [
            {
                "line": each.line,
                "cell": getattr(each, "cell", None),
                "kind": each.kind,
                "name": each.name,
                "what": each.what,
                "refused_by": list(each.refused_by),
            }
            for each in file.findings
        ],
        "error": file.error or None,
    }
