"""Run numba-cuda's own tests through the drop-in, and list every test that numba passes and devmem does not.

    python scripts/numba_suite.py [--write] [--paths cudadrv cudapy/test_ipc.py ...]

The tests of the installed wheel are copied twice. One copy is left as it is; in the other ``devmem migrate --write`` changes the
imports, and Python code in strings is changed in the same way. Each copy runs twice:

- host: the plain one in numba's simulator, the migrated one on the host backend. Tests that numba's simulator skips are skipped.
- cuda: both over the emulated driver, which launches no kernels: the folders and files of `MEMORY`.

Besides, those of `KERNELS` run as they are installed, under ``devmem simulate`` and in numba's simulator: by unittest and
each module in a process of its own, as pytest would import the package around them by its files.

``scripts/numba_suite.toml`` has the classes of tests that numba passes and devmem does not, each with its reason. A test that
fails and is in no class makes the exit code 1. ``--write`` writes docs/reference/numba-suite.md.
Needs numba-cuda with its tests, pytest, pytest-timeout, filecheck, cffi and psutil: ``nox -s numba_suite``.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import unittest
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "numba-suite.md"
CLASSES = Path(__file__).with_suffix(".toml")
#: What also runs over the emulated driver: memory, streams, contexts, and what refuses arguments before a launch.
MEMORY = ["cudadrv", "nocuda"]
MEMORY += [f"cudapy/test_{each}.py" for each in ("cuda_array_interface", "errors", "ipc", "multithreads", "stream_api")]
#: What also runs as it is installed.
KERNELS = ("cudapy", "nocuda")
PREFIX = "numba.cuda.tests."
#: Seconds for a run of a copy: the limit of each test is a signal, which a test that hangs in C does not see.
LIMIT = 1800
#: Of what runs as it is installed, seconds for a test, and for a module.
TEST_LIMIT, MODULE_LIMIT = 120, 600
PLUGIN = """
import pytest
import devmem.compat.numba_cuda.cudadrv.driver as driver

driver._have_nvjitlink = lambda: False  # asked by a decorator of the tests


@pytest.fixture
def initialize_from_pytest_config(request):
    request.instance._dump_failed_filechecks = False
"""


def installed() -> Path:
    """The folder of the tests."""
    tests = next(each for each in importlib.metadata.files("numba-cuda") or () if each.match("*/cuda/tests/support.py"))
    return Path(str(tests.locate())).parent


def copies(folder: Path, paths: list[str]) -> None:
    """The tests as they are, in ``plain``, and migrated, in ``changed``: all, or some folders and files."""
    for name in ("plain", "changed"):
        shutil.copytree(installed(), folder / name / "suite")
    command = [sys.executable, "-m", "devmem.cli", "migrate", "--write", "--json"]
    command += [str(folder / "changed" / "suite" / each) for each in paths or [""]]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for path in (folder / "changed").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found = re.sub(r"\bnumba\.cuda\.tests\b", "suite", text)
        found = found.replace("from numba import cuda", "from devmem.compat import numba_cuda as cuda")
        path.write_text(found, encoding="utf-8")
    (folder / "suite_plugin.py").write_text(PLUGIN)


def outcomes(folder: Path, name: str, where: str, paths: list[str]) -> dict[str, str]:
    """Run a copy; each test's outcome: ``passed``, ``skipped``, or why it failed."""
    report = folder / f"{name}-{where}.xml"
    options = ["-q", "-p", "suite_plugin", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=line", "-W", "ignore"]
    options += [
        "-c",
        os.devnull,
        "--rootdir",
        str(folder / name),
        "--timeout",
        "120",
        "--continue-on-collection-errors",
    ]
    tests = [str(folder / name / "suite" / each) for each in paths] or [str(folder / name / "suite")]
    command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *tests]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder / name, folder)))}
    if where == "cuda":
        command = [sys.executable, "-m", "devmem.cli", "emulate", "cuda", "--", *command]
        environment["DEVMEM_BACKEND"] = "cuda"
    else:
        environment |= {"NUMBA_ENABLE_CUDASIM": "1", "DEVMEM_BACKEND": "host"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        subprocess.run(command, check=False, env=environment, cwd=folder, timeout=LIMIT, **quiet)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        raise SystemExit(
            f"{name}, {where}: stopped after {LIMIT / 60:g} minutes: a test hangs, and holds its limit off"
        ) from None
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        test = f"{case.get('classname', '')}.{case.get('name', '')}".partition("suite.")[2]
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = (child.get("message") or child.text or child.tag).strip().partition("\n")[0]
            elif child.tag == "skipped" and outcome == "passed":
                outcome = "skipped"
        if found.get(test, "passed") in ("passed", "skipped"):  # subtests have a case each
            found[test] = outcome
    return found


class Late(BaseException):
    """A test took longer than it may."""


def child(module: str, report: Path) -> int:
    """Run the tests of a module in this process, and write the outcomes after each: ``passed``, ``skipped``, or why it failed."""

    def end(*_: object) -> None:
        raise Late

    def tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
        for each in suite:
            if isinstance(each, unittest.TestSuite):
                yield from tests(each)
            else:
                yield each

    signal.signal(signal.SIGALRM, end)
    found = {}
    for test in tests(unittest.defaultTestLoader.loadTestsFromName(module)):
        result = unittest.TestResult()
        signal.alarm(TEST_LIMIT)
        try:
            unittest.TestSuite([test]).run(result)
        except Late:
            result.errors.append((test, f"it takes more than {TEST_LIMIT} seconds"))
        signal.alarm(0)
        told = [text for _, text in (*result.errors, *result.failures, *result.expectedFailures)]
        told += ["it was expected to fail"] * len(result.unexpectedSuccesses)
        skipped = [f"skipped: {reason}" for _, reason in result.skipped]
        found[test.id()] = told[0].strip().rpartition("\n")[2] if told else (skipped or ["passed"])[0]
        report.write_text(json.dumps(found), encoding="utf-8")
    return 0


def unchanged(folder: Path, simulate: bool) -> dict[str, str]:
    """The outcomes of the tests of `KERNELS` as they are installed, under ``devmem simulate`` or in numba's simulator."""
    modules = [
        f"{PREFIX}{each}.{path.stem}" for each in KERNELS for path in sorted((installed() / each).glob("test_*.py"))
    ]
    how = ["-m", "devmem.simulate"] if simulate else []
    environment = os.environ | ({} if simulate else {"NUMBA_ENABLE_CUDASIM": "1"})

    def outcomes_of(module: str) -> dict[str, str]:
        report = folder / f"{module}-{simulate}.json"
        command = [sys.executable, *how, __file__, "--child", module, str(report)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            subprocess.run(command, check=False, env=environment, cwd=folder, timeout=MODULE_LIMIT, **quiet)  # type: ignore[call-overload]
        except subprocess.TimeoutExpired:
            print(f"{module}: stopped after {MODULE_LIMIT} seconds")
        found: dict[str, str] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        return {test.removeprefix(PREFIX): outcome for test, outcome in found.items()}

    found: dict[str, str] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each in pool.map(outcomes_of, modules):
            found |= each
    return found


def fallen(theirs: dict[str, str], ours: dict[str, str]) -> dict[str, str]:
    """The tests that numba passes and devmem does not, with how they fail; a module that cannot be imported has none."""
    passed = [test for test, outcome in theirs.items() if outcome == "passed"]
    return {test: ours.get(test, "its module cannot be imported") for test in passed if ours.get(test) != "passed"}


def classified(left: dict[str, str], where: str, classes: list[dict[str, object]]) -> Iterator[tuple[str, list[str]]]:
    """The reasons with the tests of each; tests without one come under an empty reason."""
    rest = dict(left)
    for each in classes:
        patterns = [str(pattern) for pattern in each["tests"]]  # type: ignore[attr-defined]
        tests = [test for test in rest if any(fnmatch.fnmatchcase(test, pattern) for pattern in patterns)]
        for test in tests:
            del rest[test]
        if tests:
            yield str(each["reason"]), tests
    if rest:
        yield "", [f"{test}: {why[:160]}" for test, why in rest.items()]


INTRODUCTION = """\
# numba-cuda's own tests

The tests that numba-cuda {version} ships, with their imports changed by `devmem migrate --write`, run by
`nox -s numba_suite -- all`:
on the host backend beside numba's own simulator, and those of memory, streams and contexts over the emulated driver beside
numba-cuda itself. Those of kernels (`cudapy`, `nocuda`) also run as they are installed, under `devmem simulate`, where nothing
is skipped for a simulator's sake, beside numba's own simulator. Listed is every test that numba passes there and devmem does
not, with the reason. Of the migrated ones, those that numba's simulator skips are not run. Over the emulated driver no kernel is
launched. A test is ended after two minutes, and a run of all after thirty.
Continuous integration runs a sample on host: `cudadrv`, and of `cudapy` atomics, printing, records and synchronisation.
"""


def page(parts: list[str]) -> str:
    """The page, of its parts."""
    return "\n".join([INTRODUCTION.format(version=importlib.metadata.version("numba-cuda")), *parts])


def unchanged_part(folder: Path, classes: list[dict[str, object]], parts: list[str]) -> list[str]:
    """Append the part of the page on tests as they are installed; return the tests without a reason."""
    theirs, ours = unchanged(folder, simulate=False), unchanged(folder, simulate=True)
    mine = {test for test, outcome in ours.items() if outcome == "passed"}
    passed = {test for test, outcome in theirs.items() if outcome == "passed"}
    skipped = [outcome for outcome in theirs.values() if outcome.startswith("skipped")]
    told = (
        f"Numba's simulator passes {len(passed)} tests, and skips {len(skipped)}. devmem passes {len(mine)}: "
        f"{len(mine & passed)} of those, and {len(mine - passed)} that Numba's simulator skips or fails."
    )
    print(told)
    parts += ["## Unchanged, under `devmem simulate`", "", told, ""]
    left, by_reason = fallen(theirs, ours), dict[str, list[str]]()
    for test in [test for test, outcome in left.items() if outcome.startswith("skipped")]:
        by_reason.setdefault(f"The test is {left.pop(test)}", []).append(test)
    for reason, tests in (*by_reason.items(), *classified(left, "simulate", classes)):
        if not reason:
            print("without a reason in numba_suite.toml:", *tests, sep="\n  ")
            return tests
        parts += [f"{reason} ({len(tests)}):", "", *(f"- `{test}`" for test in sorted(tests)), ""]
    return []


def main() -> int:
    """Copy, run, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--paths", nargs="*", default=[], help="some folders and files of the tests, on host alone")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        module, report = options.child
        return child(module, Path(report))
    classes = tomllib.loads(CLASSES.read_text(encoding="utf-8"))["class"]
    parts: list[str] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="numba-suite-") as name:
        folder = Path(name)
        if not options.paths:
            reasonless = unchanged_part(folder, classes, parts)
            failed |= bool(reasonless)
        copies(folder, options.paths)
        for where, paths in [("host", options.paths)] + [("cuda", MEMORY)] * (not options.paths):
            theirs, ours = (outcomes(folder, copy, where, paths) for copy in ("plain", "changed"))
            passed = sum(outcome == "passed" for outcome in theirs.values())
            left = fallen(theirs, ours)
            title = "On host" if where == "host" else "Over the emulated CUDA driver"
            print(f"{title}: numba passes {passed} tests, and devmem {passed - len(left)} of them")
            parts += [f"## {title}", "", f"Numba passes {passed} tests, and devmem {passed - len(left)} of them.", ""]
            for reason, tests in classified(left, where, classes):
                if not reason:
                    failed = True
                    print("without a reason in numba_suite.toml:", *tests, sep="\n  ")
                    continue
                parts += [f"{reason} ({len(tests)}):", "", *(f"- `{test}`" for test in sorted(tests)), ""]
    if options.write and not failed and not options.paths:
        PAGE.write_text(page(parts), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
