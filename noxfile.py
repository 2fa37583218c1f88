"""Environments of their own, for what one environment cannot hold: ``nox``, or ``scripts/test --all``."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import nox

nox.options.sessions = [
    "minimal",
    "sdist",
    "lowest",
    "numpy22",
    "peers",
    "allocators",
    "exchange",
    "kernels",
    "numba_hip",
    "cuda12",
    "rocm7",
    "rocm10",
    "interop",
]
nox.options.reuse_venv = "yes"
nox.needs_version = ">=2025"

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
WHEEL_LIMIT = 1_000_000
#: The tests that take the backend as a parameter: one folder, with a folder for each room in it.
EVERY_BACKEND = "tests/integration/every_backend"

#: Tests of the API which expect that the host cannot read device memory. The host backend hides it on Linux only.
NEED_HIDDEN_MEMORY = (
    "test_a_capsule_that_describes_what_cannot_be",
    "test_b4_results_of_arithmetic_have_no_address",
    "test_host_types_of_ml_dtypes_are_copied",
    "test_import_stays_on_its_own_device",
    "test_import_to_another_device",
    "test_is_device_array_and_as_device_array",
    "test_memory_of_another_library",
    "test_the_device_is_current_while_its_producer_works",
)

#: The first numpy with wheels for a Python that the lower bound in pyproject.toml is too old for.
FIRST_NUMPY = {(3, 13): "2.1.0", (3, 14): "2.3.3"}


@nox.session
def minimal(session: nox.Session) -> None:
    """The wheel alone, with no extra: it is small, holds devmem only, and does its work."""
    wheel = built(session)
    session.install(str(wheel))
    session.run("python", "-I", "-W", "error", "scripts/install_smoke.py", "wheel")


@nox.session
def sdist(session: nox.Session) -> None:
    """The sdist and the wheel made from it: twine accepts both, and the sdist installs where there is no C compiler."""
    session.install(*pinned("dev", "build", "hatchling", "twine"))
    tmp = Path(session.create_tmp())
    shutil.rmtree(tmp / "dist", ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation", "--outdir", str(tmp / "dist"), silent=True)
    [archive], [wheel] = (tmp / "dist").glob("*.tar.gz"), (tmp / "dist").glob("*.whl")
    session.run("twine", "check", "--strict", str(archive), str(wheel))
    session.run("python", "scripts/check_wheel.py", str(wheel), str(WHEEL_LIMIT))
    session.run("python", "-m", "venv", "--clear", str(tmp / "fresh"))
    python = str(tmp / "fresh" / "bin" / "python")
    no_compiler = {"PATH": str(tmp / "fresh" / "bin"), "CC": "/bin/false", "CXX": "/bin/false"}
    install = [python, "-m", "pip", "install", "-q", f"devmem-arrays[cli] @ {archive.resolve().as_uri()}"]
    session.run(*install, env=no_compiler, external=True)
    smoke = [python, "-I", "-W", "error", "scripts/install_smoke.py", "sdist"]
    session.run(*smoke, env=no_compiler, external=True)


@nox.session
def host(session: nox.Session) -> None:
    """The host backend, not strict, without vendors' bindings and emulators: what macOS and Windows can run."""
    session.install("-e", ".[cli]", *tools())
    # Tests of single modules provoke faults that a process survives only where memory is hidden.
    tests = session.posargs or [EVERY_BACKEND, "tests/property", "-k", f"not ({' or '.join(NEED_HIDDEN_MEMORY)})"]
    session.run("python", "-m", "pytest", "-q", *tests, env={"DEVMEM_HOST_STRICT": "0"})


@nox.session
def lowest(session: nox.Session) -> None:
    """The oldest versions that pyproject.toml allows."""
    pins = Path(session.create_tmp()) / "lowest.txt"
    pins.write_text("\n".join(lowest_pins()) + "\n")
    session.install("-c", str(pins), "-e", ".[demo,test]")
    session.run("python", "-m", "pytest", "-q", "tests/unit", "tests/contract", *session.posargs)


@nox.session
def numpy22(session: nox.Session) -> None:
    """A NumPy of the middle: its capsules of DLPack are laid out like neither the oldest's nor the newest's."""
    if sys.version_info >= (3, 14):
        session.skip("NumPy 2.2 has no wheels for this Python")
    session.install("-e", ".[cli]", *pinned("test"), "numpy==2.2.6")
    rooms = [f"{EVERY_BACKEND}/{room}" for room in ("interop", "arrays", "copy", "bulk")]
    session.run("python", "-m", "pytest", "-q", "tests/unit/interop", "tests/property/interop", *rooms)


@nox.session
def peers(session: nox.Session) -> None:
    """Other people's packages, really installed: a backend and an allocator that entry points must find."""
    plugins = "tests/plugin_pkg", "examples/arena-allocator"
    session.install(str(built(session)), *plugins, *pinned("test"), *pinned("cli"))
    # Not "python -m pytest": that puts the working tree before what was installed.
    session.run("pytest", "-q", "-c", "pyproject.toml", "tests/plugin_pkg/test_conformance.py")
    arena = "examples/arena-allocator/test_conformance.py"
    session.run("pytest", "-q", "-c", "pyproject.toml", arena, env={"DEVMEM_BACKEND": "host"})
    session.run("devmem", "doctor", env={"DEVMEM_BACKEND": "example"})
    session.run("devmem", "doctor", env={"DEVMEM_BACKEND": "host", "DEVMEM_MEMORY_MANAGER": "arena"})


@nox.session
def allocators(session: nox.Session) -> None:
    """Other people's allocators, as far as they go without a GPU: numba-cuda and cuda.core on the emulated driver; the rest."""
    session.install("-e", ".[cli]", *pinned("test"), "numba-cuda==0.30.4", "cuda-core==1.2.2")
    # Without what they depend on: gigabytes of libraries that only a GPU needs.
    names = (
        "rmm-cu13==26.10.0",
        "librmm-cu13==26.10.0",
        "rapids-logger==0.3.0",
        "cupy-cuda13x==14.2.0",
        "fastrlock==0.8.4",
    )
    session.install("--no-deps", *names)
    # The build for the host alone, which not every index has; where it is missing its tests are skipped.
    session.run("python", "-m", "pip", "install", "-q", "torch==2.13.0+cpu", success_codes=[0, 1])
    ours, host = (
        "tests/integration/adapters",
        ("tests/contract/resources/test_adapters.py", "tests/unit/compat/test_cuda.py"),
    )
    session.run("python", "-m", "pytest", "-q", *host, ours)
    emulated(session, "cuda", ours)


@nox.session
def exchange(session: nox.Session) -> None:
    """Other people's arrays: every cell of docs/reference/exchange-matrix.md; two ranks of MPI, two processes of Dask.

    ``nox -s exchange -- write`` writes the page anew.
    """
    names = ["numpy==2.4.6", "jax==0.10.2", "ml_dtypes==0.6.0", "array-api-strict==2.6.1"]
    names += ["mpi4py==4.1.2", "mpich==5.0.2", "distributed==2026.8.0", "numba-cuda==0.30.4", "cuda-core==1.2.2"]
    # Where the index has the build for the CPU, it is this version's; the other one brings gigabytes of CUDA.
    others = [item for item in pinned("test") if not item.startswith("ml_dtypes")]  # here with the newest NumPy's
    session.install("-e", ".[cli,dask,mpi]", *others, *names, "torch==2.13.0")
    session.install("--no-deps", "cupy-cuda13x==14.2.0", "fastrlock==0.8.4")
    mode = {"EXCHANGE_MATRIX": "write" if "write" in session.posargs else "check"}
    # Memory that is the host's, or libraries of the host could share nothing; then as strict as elsewhere.
    session.run("python", "-m", "pytest", "-q", "tests/peers", env=mode | {"DEVMEM_HOST_STRICT": "0"})
    session.run(
        "python",
        "-m",
        "pytest",
        "-q",
        "tests/peers/test_dask.py",
        "tests/peers/test_mpi.py",
        env={"DEVMEM_HOST_STRICT": "1"},
    )
    emulated(session, "cuda", "tests/peers", **mode)


@nox.session
def kernels(session: nox.Session) -> None:
    """Kernels with numba-cuda: to PTX with no GPU, through its own simulator, and launched where launches are dropped."""
    session.install("-e", ".[cli,cuda-kernels,sim]", *pinned("test"), "numba-cuda==0.30.4")
    launched = f"{EVERY_BACKEND}/kernels"
    session.run("python", "-m", "pytest", "-q", "tests/unit/kernels", launched)
    emulated(session, "cuda", f"{launched}/test_launch.py")


@nox.session
def numba_hip(session: nox.Session) -> None:
    """Names in kernels against numba-hip's own registries, which brings what NVIDIA's bindings cannot be beside."""
    session.install("-e", ".[rocm-kernels]", *tools(), "numba-hip==0.2.1")
    files = "tests/unit/kernels/test_numba_hip.py", "tests/unit/kernels/test_names.py"
    session.run("python", "-m", "pytest", "-q", *files)


@nox.session
def cuda12(session: nox.Session) -> None:
    """The older series of NVIDIA's bindings, over the emulated driver."""
    session.install("-e", ".[cli]", "cuda-bindings==12.9.10", *tools())
    # It holds the primary context: a process of its own.
    emulated(session, "cuda", "tests/contract/emulator/test_truth_cuda.py")
    emulated(session, "cuda", "tests/contract/drivers/test_cuda.py")
    emulated(session, "cuda", "tests/contract/cuda")
    emulated(session, "cuda", EVERY_BACKEND)


@nox.session
def rocm7(session: nox.Session) -> None:
    """The older series of AMD's bindings, which hold the GIL, over the emulated runtime; and on Debian's real one."""
    session.install("-e", ".[cli]", "hip-python==7.2.2.562.43", *tools())
    debian_rocm(session)
    # What is called without the binding is tested beside the newer series.
    worlds = "tests/contract/roc/test_debian.py", "tests/unit/backends/test_roc_worlds.py"
    session.run("python", "-m", "pytest", "-q", *worlds, "-k", "not ctypes")
    own = ["tests/contract/drivers/test_roc.py", "tests/contract/roc/test_traps.py"]
    emulated(session, "roc", *own, "-k", "not ctypes and not TestPool", DEVMEM_ROC_PROVIDER="hip")
    emulated(session, "roc", EVERY_BACKEND, DEVMEM_ROC_PROVIDER="hip")
    some = ["-k", "every_driver_function_fails or schedule"]
    emulated(session, "roc", "tests/integration/emulated", *some, DEVMEM_ROC_PROVIDER="hip", SCHEDULE_SEEDS="100")


@nox.session
def rocm10(session: nox.Session) -> None:
    """What ``pip install devmem-arrays[rocm]`` gives, without NVIDIA's bindings, on the ROCm runtime that Debian ships."""
    session.install("-e", ".[cli,rocm]", *tools())
    debian_rocm(session)
    session.run("python", "-m", "pytest", "-q", "tests/contract/roc/test_debian.py")
    session.run("python", "-m", "devmem.cli", "emulate", "roc", "--", "devmem", "doctor")


@nox.session
def interop(session: nox.Session) -> None:
    """AMD's imitation of cuda.bindings, really installed: refused, and the advice that comes with that helps."""
    session.install("-e", ".[cli]", "hip-python-interop==10.0.0.0.1.2", *tools())
    session.run("python", "-m", "pytest", "-q", "tests/contract/cuda/test_imitation.py")
    session.run("python", "-m", "pip", "uninstall", "-y", "-q", "hip-python-interop")
    session.run("python", "-m", "pip", "install", "-q", "--force-reinstall", *pinned("test", "cuda-bindings"))
    emulated(
        session, "cuda", "tests/integration/every_backend/copy/test_upload.py", "tests/contract/cuda/test_imitation.py"
    )


@nox.session(python=["3.12", "3.13", "3.14"])
def newer(session: nox.Session) -> None:
    """All of the main run on a newer Python: by hand, as far as there is one. The README says on which it last passed."""
    session.install("-e", ".[demo,test]")
    session.run("python", "-m", "pytest", "-q", *session.posargs)


def emulated(session: nox.Session, backend: str, *tests: str, **variables: str) -> None:
    """Run tests in a process that sees the emulated driver of a backend."""
    command = ["python", "-m", "pytest", "-q", "--devmem-backend", backend, *tests]
    session.run("python", "-m", "devmem.cli", "emulate", backend, "--", *command, env=variables)


def debian_rocm(session: nox.Session) -> None:
    """Fetch the ROCm runtime that Debian ships, for the tests that want a real one; where that cannot be, it is told why."""
    session.run("python", "scripts/debian_rocm.py", success_codes=[0, 3])


def tools() -> list[str]:
    """What the tests need besides a vendor's bindings."""
    return [item for item in pinned("test") if not item.startswith(("cuda-bindings", "hip-python"))]


def built(session: nox.Session) -> Path:
    """The wheel of the working tree, built afresh and looked into."""
    session.install(*pinned("dev", "build", "hatchling"))
    folder = Path(session.create_tmp()) / "wheel"
    for old in folder.glob("*.whl"):
        old.unlink()
    # pip keeps an installed devmem in place of a wheel of the same version.
    session.run("python", "-m", "pip", "uninstall", "-y", "-q", "devmem-arrays")
    session.run("python", "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), silent=True)
    [wheel] = folder.glob("*.whl")
    session.run("python", "scripts/check_wheel.py", str(wheel), str(WHEEL_LIMIT))
    return wheel


def pinned(extra: str, *names: str) -> list[str]:
    """The requirements of an extra, or those of them that are named."""
    wanted = PROJECT["optional-dependencies"][extra]
    return [item for item in wanted if not names or re.split(r"[=<>]", item)[0] in names]


def lowest_pins() -> list[str]:
    """Each runtime requirement at its lower bound."""
    extras = PROJECT["optional-dependencies"]
    found = {}
    for item in [*PROJECT["dependencies"], *extras["cli"], *extras["demo"]]:
        if bound := re.fullmatch(r"([\w-]+)>=([\d.]+),<[\d.]+", item):
            found[bound[1]] = bound[2]
    for version, numpy in FIRST_NUMPY.items():
        if sys.version_info >= version:
            found["numpy"] = numpy
    return [f"{name}=={version}" for name, version in found.items()]
