"""Public programs' own tests for numba.cuda, from their sdists, unchanged, under ``devmem simulate``; ``nox -s programs``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from waits import patience

if not os.environ.get("PROGRAMS"):
    pytest.skip("fetches public programs from the package index: nox -s programs", allow_module_level=True)

ROOT = Path(__file__).parents[2]
STUMPY = "stumpy==1.14.1", "1cb13696724ddab4b512b16843d37ccf4047aee19e072d1ad83024e1fa6fde96"
#: Its files of tests that use the GPU, each with the number of tests.
FILES = {
    "test_gpu_aamp.py": 37,
    "test_gpu_aamp_ostinato.py": 6,
    "test_gpu_aamp_stimp.py": 2,
    "test_gpu_aampdist.py": 2,
    "test_gpu_mpdist.py": 4,
    "test_gpu_ostinato.py": 41,
    "test_gpu_stimp.py": 3,
    "test_gpu_stump.py": 39,
}


@pytest.fixture(scope="session")
def stumpy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """STUMPY's sdist, unpacked; pip compares its hash."""
    folder = tmp_path_factory.mktemp("stumpy")
    (folder / "requirements.txt").write_text(f"{STUMPY[0]} --hash=sha256:{STUMPY[1]}\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--no-binary", "stumpy"]
    command = [*pip, "-r", str(folder / "requirements.txt"), "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as contents:
        contents.extractall(folder, filter="data")
    [unpacked] = folder.glob("stumpy-*/")
    return unpacked


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FILES)
def test_its_own_tests_pass_and_nothing_is_found_in_its_kernels(stumpy, name, tmp_path):
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", f"--junitxml={tmp_path / 'tests.xml'}"]
    over = [sys.executable, "-m", "devmem.simulate", "-o", str(tmp_path / "report.json"), "-m", "pytest", *options]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DEVMEM_", "NUMBA_"))}
    environment["PYTHONPATH"] = str(ROOT)
    command, limit = [*over, f"tests/{name}"], patience(1700)
    done = subprocess.run(command, capture_output=True, text=True, cwd=stumpy, env=environment, timeout=limit)
    assert done.returncode == 0, done.stdout
    cases = list(ElementTree.parse(tmp_path / "tests.xml").iter("testcase"))
    assert (len(cases), [each.get("name") for each in cases if len(each)]) == (FILES[name], [])  # none is skipped
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["kernels"]
    assert report["findings"] == []
