"""Public programs' own tests for numba.cuda, from their sdists, unchanged, under ``devmem simulate``; ``nox -s programs``.

The page docs/reference/programs-own-tests.md is made of what is found: ``PROGRAMS=write`` runs each file in numba's own
simulator, too, and writes its row; ``PROGRAMS=check`` compares what devmem did, and leaves numba's simulator and the times.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from waits import patience

MODE = os.environ.get("PROGRAMS", "")
if not MODE:
    pytest.skip("fetches public programs from the package index: nox -s programs", allow_module_level=True)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "programs-own-tests.md"
#: What each needs of packages that only other parts of it use: a conftest of ours gives stand-ins.
STAND_INS = "import sys\nfrom unittest.mock import MagicMock\n\nsys.modules |= {{each: MagicMock() for each in {!r}}}\n"


class Suite(NamedTuple):
    """An sdist, and its files of tests that launch kernels, each with the number of tests."""

    sdist: str
    sha256: str
    about: str
    files: dict[str, int]
    options: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    folder: str = "tests"

    def key(self, name: str) -> str:
        """How the row of a file begins."""
        return f"| `{self.sdist}` | `{name}` |"


SUITES = [
    Suite(
        "stumpy==1.14.1",
        "1cb13696724ddab4b512b16843d37ccf4047aee19e072d1ad83024e1fa6fde96",
        "Matrix profiles of time series; all tests of its GPU functions.",
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
    Suite(
        "aquagrid==0.3.2",
        "e321274d6adee8ccd0b5eda8f8522183450da419ad130a625cafb46d248d553b",
        "A crop model of thousands of lines in device functions, against itself compiled by `njit`; its file of GPU tests.",
        {"test_gpu.py": 1},
    ),
    Suite(
        "qokit==0.1.4",
        "ed0f4beb48b1d100b0611eca16cf21ecc4c5a1d8835a859f5b3596f9321f7c95",
        "Quantum circuits: its GPU simulators with XY mixers, against Qiskit. Those with X mixers call a kernel in C++ through "
        "CuPy, and are not run. Stand-ins take the place of pytket and yfinance, which these tests do not use.",
        {"test_simulators_rxy.py": 10},
        ("-k", "GPU"),
        (
            *("pytket", "pytket.circuit", "pytket.extensions", "pytket.extensions.quantinuum", "pytket.passes"),
            *("pytket.extensions.qiskit", "yfinance"),
        ),
    ),
    Suite(
        "disimpy==0.3.0",
        "e03b7216ebd80cc8c1ed7c0844be08db1bb59da11b273cae96bb64a1c7e9c34d",
        "Diffusion MRI: its device functions and the kernels that place random walkers, against NumPy. Those that let 100 000 "
        "walkers go 1 000 steps, and one that names `np.product`, which NumPy no longer has, are not run.",
        {"test_simulations.py": 15},
        ("-k", "not diffusion and not random_step and not fill_mesh"),
        folder="disimpy/tests",
    ),
    Suite(
        "tvb-library==2.10.0",
        "cd4ad32dcf4c58a8b926bd30baed269272d217d92605e308d7d3f22d900b8641",
        "Networks of brain regions: its coupling functions, and device functions made of texts. Two tests that fail before they "
        "launch anything, as the library around them has changed, are not run.",
        {"_numba_tests.py": 11},
        ("-k", "not dcfun_horizons and not kuramoto"),
        folder="tvb/tests/library/simulator",
    ),
    Suite(
        "clifford==1.5.1",
        "3484b312cff0e2d5e14fb99409b8242193c358dfaa6af7bc6ea230c4606e66f3",
        "Geometric algebra: products of multivectors, and rotors between lines, against itself compiled by `njit`. Not run "
        "are those of larger searches, and one that fails before a launch, as NumPy 2 calls its `__array__` with a dtype.",
        {"test_g3c_CUDA.py": 6},
        ("-k", "normalise or test_gp or test_ip or adjoint or rotor_cost or between_lines"),
        folder="clifford/test",
    ),
]


FILES = [(suite, name) for suite in SUITES for name in suite.files]
ROWS: dict[str, str] = {}
STALE = "stale: nox -s programs -- write"
TEXT = """\
# Programs' own tests

The tests that public programs have of their kernels for numba.cuda, from sdists of the package index at pinned versions and
hashes, under [`devmem simulate`](../how-to/run-numba-cuda-without-a-gpu.md): neither program nor tests are changed. All tests
of a file pass, none is skipped, and no mistake is reported in a kernel. `nox -s programs -- write` makes this page;
`nox -s programs` fails where devmem does not do what it says.

The last column is Numba's own simulator, that of numba-cuda, in the same environment: how many tests pass. Times are the
processor's, of the whole process, with imports and the compilation of what the tests compare with, on a shared machine: they
tell orders of magnitude.

| sdist | file | tests | pass | devmem | pass in Numba's simulator |
|---|---|---|---|---|---|
{table}

{about}

The sdists of frbb 1.0.0, gpumap 0.1.1, hepaccelerate 0.2.3, minitorch 0.1.0, pyphasefield 3.0.3 and sgkit 0.10.0 hold no tests
of their kernels. That of cubie 0.17.0 has a few of its tests, without their conftest, and needs a build of its own of
numba-cuda-mlir. Those of fbpic 0.27.1 launch its kernels only where CuPy can be used, which needs a GPU.

Those of gamdpy 0.8.3 do not pass. Two mistakes are reported in its kernels: `rdf_calculator_full` reads `ptype[other_global_id]`
past the end, before it compares the index, and a thread without neighbours reads `my_num_nbs` in `nblist_update`, which it has
not assigned. Its other tests that launch kernels compare all pairs of some thousand particles, which takes minutes a launch.
"""


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


class Ran(NamedTuple):
    """What became of a file of tests, and the processor's seconds."""

    exit_status: int
    output: str
    tests: int
    passed: int
    seconds: float


def run(suite: Suite, name: str, folder: Path, out: Path, *over: str, **variables: str) -> Ran:
    """Run a file of a suite's tests in a process of its own, as the options of Python say."""
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", f"--junitxml={out}", *suite.options]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DEVMEM_", "NUMBA_"))}
    # An empty cache: or the second run would find what the first one compiled of the programs' functions for the host.
    environment |= {
        "NUMBA_CACHE_DIR": str(out.with_suffix(".cache")),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
    }
    command, limit = [sys.executable, *over, "-m", "pytest", *options, f"{suite.folder}/{name}"], patience(1700)
    began = os.times()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment | variables, timeout=limit
    )
    ended = os.times()
    cases = list(ElementTree.parse(out).iter("testcase"))
    # What failed or was skipped has an element that says so.
    passed = sum(not len(each) for each in cases)
    seconds = sum(ended[2:4]) - sum(began[2:4])  # of child processes that ended, as user and system
    return Ran(done.returncode, done.stdout, len(cases), passed, seconds)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("suite", "name"), [pytest.param(*each, id=each[1]) for each in FILES])
def test_its_own_tests_pass_and_nothing_is_found_in_its_kernels(unpacked, suite, name, tmp_path):
    folder = unpacked(suite)
    if suite.absent:
        (folder / "conftest.py").write_text(STAND_INS.format(suite.absent))
    report = tmp_path / "report.json"
    ours = run(suite, name, folder, tmp_path / "ours.xml", "-m", "devmem.simulate", "-o", str(report))
    assert ours.exit_status == 0, ours.output
    assert ours.tests == ours.passed == suite.files[name], ours.output  # none is skipped
    found = json.loads(report.read_text())
    assert found["kernels"]
    assert found["findings"] == []
    row = f"{suite.key(name)} {ours.tests} | {ours.passed} |"
    if MODE == "write":
        theirs = run(suite, name, folder, tmp_path / "numba.xml", NUMBA_ENABLE_CUDASIM="1")
        ROWS[suite.key(name)] = f"{row} {ours.seconds:.1f} s | {theirs.passed}, {theirs.seconds:.1f} s |"
    else:
        assert any(line.startswith(row) for line in PAGE.read_text(encoding="utf-8").splitlines()), STALE


def page(rows: dict[str, str]) -> str:
    """The page, with the rows of the files."""
    keys = (suite.key(name) for suite, name in FILES)
    table = "\n".join(rows[key] for key in keys if key in rows)
    return TEXT.format(table=table, about="\n".join(f"- `{suite.sdist}`: {suite.about}" for suite in SUITES))


@pytest.fixture(scope="session", autouse=True)
def written() -> Iterator[None]:
    """After the last file the page is written with the rows of this run and the other rows that it had, or compared."""
    yield
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    rows = {f"{line.rsplit(' |', 5)[0]} |": line for line in text.splitlines() if line.startswith("| `")} | ROWS
    if MODE == "write":
        PAGE.write_text(page(rows), encoding="utf-8")
    else:
        assert page(rows) == text, STALE
