"""Runs test files under pytest, and continues after tests that kill the process."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from .process import child, ended
from .seen import Seen
from .step import LONGEST_TAIL, ROOT, SCRIPT, Run, Step, clean

#: Seconds after which a test counts as hung: for pytest-timeout if installed, and then for ending the process.
PATIENCE, LAST_PATIENCE = 30, 45
#: How many further processes continue after a test that killed the process.
RESTARTS = 8
QUICK_TESTS = 6


def tests(
    run: Run,
    step: Step,
    paths: list[Path],
    *,
    only_backend: bool,
    without: Sequence[Path] = (),  # noqa: PT028
) -> dict[str, str]:
    """Run test files and folders under pytest, in as many processes as needed; count the outcomes, and return them by test."""
    until = time.monotonic() + run.left(step.name)
    seen = Seen()
    ignored = [f"--ignore={path}" for path in without]
    endings = [
        pytest_to_the_end(run, step, seen, [*args, *ignored], until, only_backend)
        for args in invocations(run, step, paths)
    ]
    seen.into(step)
    step.notes += [each for each in endings if each]
    if not seen.outcomes and not seen.broken:
        step.status = "broken" if endings else "skipped"
    elif seen.bad():
        step.status = "failed"
    else:
        step.status = "unfinished" if any(endings) else "passed"
    return seen.outcomes


def pytest_to_the_end(run: Run, step: Step, seen: Seen, args: list[str], until: float, only_backend: bool) -> str:
    """Run pytest, and continue in a new process after a test that killed it; return the reason if it did not finish."""
    first = QUICK_TESTS if run.quick else 0
    settings = {"done": [], "first": first, "only_backend": only_backend, "patience": LAST_PATIENCE}
    told = ""
    for attempt in range(RESTARTS + 1):
        left = until - time.monotonic()
        if left < 2:
            return "its time was up"
        events = run.work / f"{step.name}-{len(list(run.work.glob('*.jsonl')))}.jsonl"
        settings["done"] = sorted(seen.started)
        asked = run.work / f"{step.name}.settings.json"
        asked.write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, str(SCRIPT), "--child", "pytest", str(events), str(asked), *args]
        code, text = child(run, step, command, left)
        before = len(seen.started)
        finished = seen.take(events)
        if finished is not None and not seen.lost:
            return "" if finished in (0, 1, 5) else f"pytest ended with status {finished}: {clean(text)[-800:]}"
        if code is None:
            return f"stopped at the time limit{seen.cut()}"
        told = f"the process was lost {attempt + 1} times ({ended(code)}); the remaining tests ran in a new process"
        last_words = max(text.rfind("Fatal Python error"), text.rfind("Timeout ("))
        hung = last_words >= 0 and text.startswith("Timeout (", last_words)
        how = f"hung, and was ended after {LAST_PATIENCE} seconds" if hung else ended(code)
        tail = clean(text[last_words:] if last_words >= 0 else text[-LONGEST_TAIL:])[:LONGEST_TAIL]
        seen.crash("the device was lost" if seen.lost else how, tail)
        if len(seen.started) == before:
            return f"pytest did not start ({ended(code)}): {clean(text)[-800:]}"
        seen.lost = False
        step.notes = [note for note in step.notes if not note.startswith("the process was lost")] + [told]
    return "given up: " + told


def invocations(run: Run, step: Step, paths: list[Path]) -> Iterator[list[str]]:
    """The arguments of each pytest run: one run, or without hypothesis one for each folder with a conftest.py."""
    have = {name: importlib.util.find_spec(name) is not None for name in ("_hypothesis_pytestplugin", "pytest_timeout")}
    common = ["-c", str(settings_file(run, have["pytest_timeout"])), "--rootdir", str(ROOT), "--import-mode=importlib"]
    common += [
        "-q",
        "--tb=short",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        "-p",
        "devmem.testing.plugin",
    ]
    for name, there in have.items():
        common += ["-p", name] if there else []
    common += ["--devmem-backend", run.vendor.backend]
    present = []
    for path in paths:
        if path.is_file() or (path.is_dir() and any(path.rglob("test_*.py"))):
            present.append(path)
        else:
            step.notes.append(f"{path.relative_to(ROOT)} has no tests")
    if have["_hypothesis_pytestplugin"]:
        if present:
            yield [*common, *map(str, present)]
        return
    # tests/conftest.py needs it only for its setup, and these tests need nothing else of that file.
    for path in present:
        folder = kind_of(path)
        needing = [each for each in path.rglob("*.py") if needs_hypothesis(each)] if path.is_dir() else []
        if folder / "conftest.py" in needing:
            step.notes.append(f"{path.relative_to(ROOT)} left out: it needs hypothesis, which is not installed")
            continue
        for each in needing:
            step.notes.append(f"{each.relative_to(ROOT)} left out: it needs hypothesis, which is not installed")
        yield [*common, "--confcutdir", str(folder), *[f"--ignore={each}" for each in needing], str(path)]


def kind_of(path: Path) -> Path:
    """The folder of tests/ that holds a path, with the conftest.py of its kind; outside of tests/, the path's own folder."""
    tests = ROOT / "tests"
    if path.is_relative_to(tests):
        return tests / path.relative_to(tests).parts[0]
    return path if path.is_dir() else path.parent


def needs_hypothesis(path: Path) -> bool:
    """Whether a file imports hypothesis."""
    return re.search(r"^\s*(?:from|import) hypothesis", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def settings_file(run: Run, has_timeout: bool) -> Path:
    """The project's pytest settings, without those that the installed pytest and plugins may not support."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    markers = [
        *project.get("markers", []),
        *([] if has_timeout else ["timeout: not enforced, pytest-timeout is missing"]),
    ]
    # A deprecation in an installed package is not a failure of devmem; warnings about devmem's own errors are.
    later = [f"default::{kind}Warning" for kind in ("Deprecation", "PendingDeprecation", "Future")]
    lines = ["[pytest]", "xfail_strict = true", "addopts ="]
    lines += ["pythonpath =", *[f"    {ROOT / each}" for each in project["pythonpath"]]]
    lines += ["markers =", *[f"    {marker}" for marker in markers]]
    lines += ["filterwarnings =", *[f"    {each}" for each in [*project.get("filterwarnings", []), *later]]]
    lines += [f"timeout = {PATIENCE}"] if has_timeout else []
    path = run.work / "pytest.ini"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
