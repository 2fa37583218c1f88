"""Public programs' own tests for numba.cuda, from their sdists, unchanged, under ``devmem simulate``; ``nox -s programs``."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from waits import patience

if not os.environ.get("PROGRAMS"):
    pytest.skip("fetches public programs from the package index: nox -s programs", allow_module_level=True)

ROOT = Path(__file__).parents[2]
#: What each needs of packages that only other parts of it use: a conftest of ours gives stand-ins.
STAND_INS = "import sys\nfrom unittest.mock import MagicMock\n\nsys.modules |= {{each: MagicMock() for each in {!r}}}\n"


class Suite(NamedTuple):
    """An sdist, and its files of tests that launch kernels, each with the number of tests."""

    sdist: str
    sha256: str
    files: dict[str, int]
    options: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


SUITES = [
    Suite(
        "stumpy==1.14.1",
        "1cb13696724ddab4b512b16843d37ccf4047aee19e072d1ad83024e1fa6fde96",
        {
            "test_gpu_aamp.py": 37,
            "test_gpu_aamp_ostinato.py": 6,
            "test_gpu_aamp_stimp.py": 2,
            "test_gpu_aampdist.py": 2,
            "test_gpu_mpdist.py": 4,
            "test_gpu_ostinato.py": 41,
            "test_gpu_stimp.py": 3,
            "test_gpu_stump.py": 39,
        },
    ),
    # A crop model of thousands of lines in device functions, compared with the same compiled by njit.
    Suite(
        "aquagrid==0.3.2",
        "e321274d6adee8ccd0b5eda8f8522183450da419ad130a625cafb46d248d553b",
        {"test_gpu.py": 1},
    ),
    # Simulators of quantum circuits, compared with qiskit; those of its simulators "x" call a kernel in C++ by way of CuPy.
    Suite(
        "qokit==0.1.4",
        "ed0f4beb48b1d100b0611eca16cf21ecc4c5a1d8835a859f5b3596f9321f7c95",
        {"test_simulators_rxy.py": 10},
        ("-k", "GPU"),
        (
            *("pytket", "pytket.circuit", "pytket.extensions", "pytket.extensions.quantinuum", "pytket.passes"),
            *("pytket.extensions.qiskit", "yfinance"),
        ),
    ),
]


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Suite], Path]:
    """The folder of a suite's sdist; pip compares its hash."""

    @functools.cache
    def made(sdist: str, sha256: str) -> Path:
        folder = tmp_path_factory.mktemp("sdist")
        (folder / "requirements.txt").write_text(f"{sdist} --hash=sha256:{sha256}\n")
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--no-binary", ":all:"]
        command = [*pip, "-r", str(folder / "requirements.txt"), "-d", str(folder)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        [archive] = folder.glob("*.tar.gz")
        with tarfile.open(archive) as contents:
            contents.extractall(folder, filter="data")
        [found] = (each for each in folder.iterdir() if each.is_dir())
        return found

    return lambda suite: made(suite.sdist, suite.sha256)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("suite", "name"), [pytest.param(each, name, id=name) for each in SUITES for name in each.files]
)
def test_its_own_tests_pass_and_nothing_is_found_in_its_kernels(unpacked, suite, name, tmp_path):
    folder = unpacked(suite)
    if suite.absent:
        (folder / "conftest.py").write_text(STAND_INS.format(suite.absent))
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", f"--junitxml={tmp_path / 'tests.xml'}"]
    over = [sys.executable, "-m", "devmem.simulate", "-o", str(tmp_path / "report.json"), "-m", "pytest", *options]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DEVMEM_", "NUMBA_"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(folder)])
    command, limit = [*over, *suite.options, f"tests/{name}"], patience(1700)
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=limit)
    assert done.returncode == 0, done.stdout
    cases = list(ElementTree.parse(tmp_path / "tests.xml").iter("testcase"))
    # None is skipped.
    assert (len(cases), [each.get("name") for each in cases if len(each)]) == (suite.files[name], [])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["kernels"]
    assert report["findings"] == []
