"""Run numba-cuda's own tests through the drop-in, and list every test that numba passes and devmem does not.

    python scripts/numba_suite.py [--write] [--paths cudadrv cudapy/test_ipc.py ...]

The tests of the installed wheel are copied twice. One copy is left as it is; in the other ``devmem migrate --write`` changes the
imports, and Python code in strings is changed in the same way. Each copy runs twice:

- host: the plain one in numba's simulator, the migrated one on the host backend. Tests that numba's simulator skips are skipped.
- cuda: both over the emulated driver, which launches no kernels: the folders and files of `MEMORY`.

``scripts/numba_suite.toml`` has the classes of tests that numba passes and devmem does not, each with its reason. A test that
fails and is in no class makes the exit code 1. ``--write`` writes docs/reference/numba-suite.md.
Needs numba-cuda with its tests, pytest, pytest-timeout, filecheck, cffi and psutil: ``nox -s numba_suite``.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "numba-suite.md"
CLASSES = Path(__file__).with_suffix(".toml")
#: What also runs over the emulated driver: memory, streams, contexts, and what refuses arguments before a launch.
MEMORY = ["cudadrv", "nocuda"]
MEMORY += [f"cudapy/test_{each}.py" for each in ("cuda_array_interface", "errors", "ipc", "multithreads", "stream_api")]
#: Seconds for a run of a copy: the limit of each test is a signal, which a test that hangs in C does not see.
LIMIT = 1800
PLUGIN = """
import pytest
import devmem.compat.numba_cuda.cudadrv.driver as driver

driver._have_nvjitlink = lambda: False  # asked by a decorator of the tests


@pytest.fixture
def initialize_from_pytest_config(request):
    request.instance._dump_failed_filechecks = False
"""


def copies(folder: Path, paths: list[str]) -> None:
    """The tests as they are, in ``plain``, and migrated, in ``changed``: all, or some folders and files."""
    tests = next(each for each in importlib.metadata.files("numba-cuda") or () if each.match("*/cuda/tests/support.py"))
    for name in ("plain", "changed"):
        shutil.copytree(Path(str(tests.locate())).parent, folder / name / "suite")
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
numba-cuda itself. Listed is every test that numba passes there and devmem does not, with the reason. Tests that numba's simulator
skips are not run on host: whether devmem would pass them, fail them or hang in them is not known. Over the emulated driver no
kernel is launched. A test is ended after two minutes, and a run of all after thirty.
Continuous integration runs a sample on host: `cudadrv`, and of `cudapy` atomics, printing, records and synchronisation.
"""


def page(parts: list[str]) -> str:
    """The page, of its parts."""
    return "\n".join([INTRODUCTION.format(version=importlib.metadata.version("numba-cuda")), *parts])


def main() -> int:
    """Copy, run, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--paths", nargs="*", default=[], help="some folders and files of the tests, on host alone")
    options = parser.parse_args()
    classes = tomllib.loads(CLASSES.read_text(encoding="utf-8"))["class"]
    parts, failed = [], False
    with tempfile.TemporaryDirectory(prefix="numba-suite-") as name:
        folder = Path(name)
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
