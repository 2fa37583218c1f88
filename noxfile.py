"""Environments of their own, for what one environment cannot hold: ``nox``, or ``scripts/test --all``."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
from nox_steps import (
    CUDA_TORCH,
    TORCH_NEEDS,
    built,
    debian_rocm,
    emulated,
    install_host_torch,
    lowest_pins,
    pinned,
    tools,
)

nox.options.sessions = [
    "minimal",
    "sdist",
    "lowest",
    "numpy22",
    "peers",
    "opencl",
    "allocators",
    "exchange",
    "engines",
    "judges",
    "kernels",
    "kernels_mlir",
    "programs",
    "numba_suite",
    "numba_hip",
    "cuda12",
    "rocm7",
    "rocm10",
    "interop",
    "loaders",
    "types",
    "browser",
]
nox.options.reuse_venv = "yes"
nox.needs_version = ">=2025"

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
    session.run("python", "scripts/check_wheel.py", str(wheel))
    session.run("python", "-m", "venv", "--clear", str(tmp / "fresh"))
    python = str(tmp / "fresh" / "bin" / "python")
    no_compiler = {"PATH": str(tmp / "fresh" / "bin"), "CC": "/bin/false", "CXX": "/bin/false"}
    # pip keeps the wheel that it builds of an sdist under the sdist's address, which is the same one the next time.
    install = [python, "-m", "pip", "install", "-q", "--no-cache-dir"]
    install += [f"devmem-arrays[cli] @ {archive.resolve().as_uri()}"]
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
    session.run("python", "-m", "pytest", "-q", "tests/unit/interop", "tests/fuzz/test_capsules.py", *rooms)


@nox.session
def peers(session: nox.Session) -> None:
    """Other people's packages, really installed: a backend and an allocator that entry points must find."""
    plugins = "examples/backend", "examples/arena-allocator"
    session.install(str(built(session)), *plugins, *pinned("test"), *pinned("cli"))
    # Not "python -m pytest": that puts the working tree before what was installed.
    session.run("pytest", "-q", "-c", "pyproject.toml", "examples/backend/test_conformance.py")
    arena = "examples/arena-allocator/test_conformance.py"
    session.run("pytest", "-q", "-c", "pyproject.toml", arena, env={"DEVMEM_BACKEND": "host"})
    session.run("devmem", "doctor", env={"DEVMEM_BACKEND": "example"})
    session.run("devmem", "doctor", env={"DEVMEM_BACKEND": "host", "DEVMEM_MEMORY_MANAGER": "arena"})


PYOPENCL, POCL = "pyopencl==2026.1.4", "pocl-binary-distribution==3.0"


@nox.session
def opencl(session: nox.Session) -> None:
    """A real asynchronous runtime that is not ours: the OpenCL backend on PoCL; and the example of a third party's backend."""
    session.install(str(built(session)), *tools(), *pinned("cli"), PYOPENCL, POCL)
    session.install("--no-deps", "./examples/backend")
    session.run("pytest", "-q", "-c", "pyproject.toml", "examples/backend/test_conformance.py")
    on_opencl(session)
    # With two devices, which PoCL makes of one processor; the verbs in handlers want two.
    two = {"POCL_DEVICES": "pthread pthread", "DEVMEM_BACKEND": "opencl"}
    session.run("pytest", "-q", "-c", "pyproject.toml", "tests/contract/drivers/test_opencl.py", env=two)
    handlers = f"{EVERY_BACKEND}/lifetime/test_handlers_call_every_verb.py"
    rooms = [f"{EVERY_BACKEND}/{room}" for room in ("device", "ordering")]
    session.run("pytest", "-q", "--devmem-backend", "opencl", *rooms, handlers, env=two)
    # The example's driver keeps copies of pageable sources, which the test takes for devmem's.
    not_example = "not without_slots_it_is_bounded_too"
    example = {"DEVMEM_BACKEND": "example"}
    session.run("pytest", "-q", "--devmem-backend", "example", "-k", not_example, *ROOMS, env=example)
    session.run("devmem", "doctor", env=example)
    # What the runtimes do with the same programs. The vendors' bindings come last, so that nothing above chooses them.
    session.install(*pinned("test"))
    session.run("python", "tests/helpers/differential.py", "0", "--steps", "10000")


@nox.session
def opencl_intel(session: nox.Session) -> None:
    """The OpenCL backend on Intel's runtime for the CPU, and all five compared: not by default, as it is 0.7 GB to fetch."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        session.skip("the wheels are for Linux on x86-64")
    # The second wheel has libraries that the first one is linked with, and does not ask for.
    session.install(str(built(session)), *tools(), *pinned("cli"), PYOPENCL)
    session.install("intel-opencl-rt==2026.2.0", "intel-cmplr-lib-rt==2026.2.0")
    vendors = Path(session.create_tmp()).resolve() / "vendors"  # the wheel's own file names a path that does not exist
    vendors.mkdir(exist_ok=True)
    (vendors / "intel.icd").write_text(f"{Path(session.virtualenv.location).resolve() / 'lib' / 'libintelocl.so'}\n")
    found = {"OCL_ICD_VENDORS": str(vendors), "DEVMEM_OPENCL_PLATFORM": "intel"}
    on_opencl(session, **found)
    session.install(*pinned("test"), POCL)
    session.run("python", "tests/helpers/differential.py", "0", "--steps", "10000", env=found)


#: The rooms of tests for every backend that third parties' backends pass as well.
ROOMS = [f"{EVERY_BACKEND}/{room}" for room in ("arrays", "memory", "ordering", "bulk")]


def on_opencl(session: nox.Session, **variables: str) -> None:
    """The backend's own tests, conformance first, and those of every backend, on the runtime that OpenCL's loader finds."""
    # Not "python -m pytest": that puts the working tree before what was installed.
    session.run("pytest", "-q", "-c", "pyproject.toml", "tests/contract/drivers/test_opencl.py", env=variables)
    # What needs a driver that counts its handles (interrupts, locks), a runtime that a fork's child can use, or 20 GiB of copies
    # is left out; so is "compat", the drop-ins for code that expects CUDA's array interface.
    chosen = "not test_interrupts and not test_locks and not of_a_fork_that_may_use_devices and not twenty_gibibytes"
    rooms = [*ROOMS, *(f"{EVERY_BACKEND}/{room}" for room in ("copy", "device", "interop", "lifetime", "kernels"))]
    environment = variables | {"DEVMEM_BACKEND": "opencl"}
    session.run("pytest", "-q", "--devmem-backend", "opencl", "-k", chosen, *rooms, env=environment)
    session.run("devmem", "doctor", env=environment)


@nox.session
def allocators(session: nox.Session) -> None:
    """Other people's allocators, as far as they go without a GPU: numba-cuda and cuda.core on the emulated driver; the rest.

    ``nox -s allocators -- write`` writes the tables of the two in docs/reference/real-libraries.md anew.
    """
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
    install_host_torch(session)
    ours, host = (
        "tests/integration/adapters",
        ("tests/contract/resources/test_adapters.py", "tests/unit/compat/test_cuda.py"),
    )
    session.run("python", "-m", "pytest", "-q", *host, ours)
    inside = {"JUDGES": "librmm-cu13 cupy-cuda13x"}
    session.run("python", "-m", "pytest", "-q", "tests/peers/test_runtime_inside.py", env=inside)
    emulated(session, "cuda", ours, JUDGES="numba_cuda cuda.core")
    mode = {"EXCHANGE_MATRIX": "write" if "write" in session.posargs else "check", "JUDGES": "numba_cuda cuda_core"}
    emulated(session, "cuda", "tests/peers/test_verbs.py", "-k", "numba_cuda or cuda_core", **mode)


@nox.session
def exchange(session: nox.Session) -> None:
    """Other people's arrays: every cell of docs/reference/exchange-matrix.md; two ranks of MPI, two processes of Dask.

    ``nox -s exchange -- write`` writes the page anew.
    """
    names = ["numpy==2.4.6", "jax==0.10.2", "ml_dtypes==0.6.0", "array-api-strict==2.6.1"]
    names += ["mpi4py==4.1.2", "mpich==5.0.2", "distributed==2026.8.0", "numba-cuda==0.30.4", "cuda-core==1.2.2"]
    others = [item for item in pinned("test") if not item.startswith("ml_dtypes")]  # here with the newest NumPy's
    session.install("-e", ".[cli,dask,mpi]", *others, *names)
    install_host_torch(session)
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
    own = "tests/peers/test_gpu.py"
    emulated(session, "cuda", "tests/peers", "--ignore", own, **mode)
    emulated(session, "cuda", own, "-k", "numba", JUDGES="numba.cuda")


@nox.session
def engines(session: nox.Session) -> None:
    """Dask, Ray, MPI and NCCL with arrays of each backend: every cell of docs/reference/engines.md; and the job of examples/.

    ``nox -s engines -- write`` writes the page anew.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        session.skip("the wheels are for Linux on x86-64")
    names = "distributed==2026.8.0", "mpi4py==4.1.2", "mpich==5.0.2", "ray==2.60.0", "cuda-core==1.2.2", "bokeh==3.9.2"
    session.install("-e", ".[cli,dask,mpi,ray]", *pinned("test"), *names)
    # Without what they depend on: gigabytes of libraries that only a GPU needs.
    ucxx = "ucxx-cu13==0.52.0", "libucxx-cu13==0.52.0", "libucx-cu13==1.21.0", "librmm-cu13==26.10.0"
    session.install("--no-deps", *ucxx, "distributed-ucxx-cu13==0.52.0", "rapids-logger==0.3.0", "nccl4py==0.6.0")
    mode = {"ENGINES": "write" if "write" in session.posargs else "check"}
    tests = "tests/peers/test_engines.py"
    session.run("python", "-m", "pytest", "-q", tests, "tests/docs/test_engines_page.py", env=mode)
    emulated(session, "roc", tests, **mode)
    emulated(session, "cuda", tests, **mode)
    job = {"DEVMEM_BACKEND": "host", "DEVMEM_HOST_DEVICES": "4"}
    session.run("python", "examples/beyond_memory/job.py", "--scale", "0.1", "--dashboard", env=job)


@nox.session
def judges(session: nox.Session) -> None:
    """Real libraries over the emulators, a verb at a time; and tests of memory that else need a GPU.

    ``nox -s judges -- write`` writes docs/reference/real-libraries.md and the judges' cells of the exchange matrix anew.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        session.skip("the wheels are for Linux on x86-64")
    session.install("-e", ".[cli]", *pinned("test"), "numpy==2.4.6", *TORCH_NEEDS)
    # Without the libraries that only a GPU needs, gigabytes of them: stand-ins are generated.
    session.install("--no-deps", CUDA_TORCH, "cupy-rocm-7-0==14.2.0")
    ucxx = "ucxx-cu13==0.52.0", "libucxx-cu13==0.52.0", "libucx-cu13==1.21.0", "librmm-cu13==26.10.0"
    kvikio = "kvikio-cu13==26.10.0", "libkvikio-cu13==26.10.0", "nvidia-cufile==1.20.0.107"
    session.install("--no-deps", *ucxx, *kvikio, "rapids-logger==0.3.0", "packaging")
    mode = {"EXCHANGE_MATRIX": "write" if "write" in session.posargs else "check"}

    def judge(library: str, options: list[str], *tests: str) -> None:
        over = ["python", "-m", "devmem.cli", "emulate", *options, "--", "python", "-m", "pytest", "-q"]
        session.run(*over, "--devmem-backend", options[0], *tests, env={"JUDGES": library, **mode})

    ours = "tests/peers/test_verbs.py", "tests/peers/test_gpu.py", "tests/integration/adapters/test_gpu.py"
    over_cuda = ["cuda", "--runtime", "--stand-ins", "torch"]
    judge("torch", over_cuda, *ours, "-k", "torch")
    judge("torch", over_cuda, "tests/docs/test_without_a_gpu.py")
    judge("torch", over_cuda, "tests/peers/test_matrix.py", "-k", "torch-cuda")
    parts = [word for part in ("cupy", "cupy_backends", "cupyx") for word in ("--stand-ins", part)]
    over_roc = ["roc", "--layout", "versioned", *parts]
    judge("cupy", over_roc, *ours, "-k", "cupy")
    judge("cupy", over_roc, "tests/peers/test_matrix.py")
    judge("kvikio", ["cuda"], "tests/peers/test_verbs.py", "-k", "kvikio")
    judge("ucxx", ["cuda", "--stand-ins", "libucx"], "tests/peers/test_verbs.py", "-k", "ucxx")
    inside = "torch", "cuda-bindings", *(f"{each}-cu13" for each in ("librmm", "libkvikio", "libucx", "libucxx"))
    session.run("python", "-m", "pytest", "-q", "tests/peers/test_runtime_inside.py", env={"JUDGES": " ".join(inside)})


@nox.session
def kernels(session: nox.Session) -> None:
    """Kernels with numba-cuda: to PTX with no GPU, through its own simulator, and launched where launches are dropped."""
    session.install("-e", ".[cli,cuda-kernels,sim]", *pinned("test"), "numba-cuda==0.30.4")
    launched = f"{EVERY_BACKEND}/kernels"
    # Numba registers names as they are used, also those that other tests use: its own process.
    refused = "tests/unit/kernels/test_refused_names.py"
    session.run("python", "-m", "pytest", "-q", refused)
    session.run("python", "-m", "pytest", "-q", "tests/unit/kernels", launched, "--ignore", refused)
    emulated(session, "cuda", f"{launched}/test_launch.py")


@nox.session
def kernels_mlir(session: nox.Session) -> None:
    """Kernels and arrays of numba-cuda's successor, beside numba-cuda, over the emulated driver, which it asks for a device.

    ``nox -s kernels_mlir -- write`` writes its cells of the exchange matrix anew.
    """
    names = "numba-cuda==0.30.4", "numba-cuda-mlir==0.6.0", "cuda-core==1.2.2"
    session.install("-e", ".[cli,cuda-kernels,cuda-kernels-mlir]", *pinned("test"), *names)
    emulated(session, "cuda", "tests/unit/kernels/test_numba_cuda_mlir.py")
    session.run("python", "-m", "pytest", "-q", "tests/programs/test_simulate.py")
    mode = {"EXCHANGE_MATRIX": "write" if "write" in session.posargs else "check", "JUDGES": "numba-cuda-mlir"}
    emulated(session, "cuda", "tests/peers/test_matrix.py", "-k", "numba_cuda_mlir", **mode)


@nox.session
def programs(session: nox.Session) -> None:
    """Public programs for numba.cuda, fetched and migrated: the same results on host as unchanged in numba's simulator.

    And programs' own tests, unchanged, under ``devmem simulate``.

    ``nox -s programs -- write`` writes docs/reference/real-programs.md and docs/reference/programs-own-tests.md.
    """
    # What the programs' own modules import, and the simulator.
    needed = ["numba-cuda==0.30.4", "scipy==1.17.1", "pandas==3.1.1"]
    needed += ["aquacrop==3.1.0", "xarray==2026.9.0"]  # aquagrid's tests
    needed += ["qiskit==2.6.2", "qiskit-aer==0.18.2", "networkx==3.6.1", "importlib_resources==7.1.0"]  # qokit's
    needed += ["matplotlib==3.11.2"]  # disimpy's
    needed += ["h5py==3.16.0", "sparse==0.19.3"]  # clifford's and tvb-library's
    needed += ["deprecated==1.3.1", "docutils==0.23", "numexpr==2.14.2", "six==1.17.0", "tvb-gdist==2.9.2"]
    session.install("-e", ".[cli,migrate,sim]", *pinned("test"), *needed)
    mode = {"PROGRAMS": "write" if "write" in session.posargs else "check"}
    # As long as a test may take on a slow machine, and more than the configured limit of the process.
    limit = "-o", "faulthandler_timeout=7200"
    session.run("python", "-m", "pytest", "-q", *limit, "tests/programs", env=mode)


@nox.session
def numba_suite(session: nox.Session) -> None:
    """Some of numba-cuda's own tests through the drop-in; by hand, ``nox -s numba_suite -- all``: all, over the emulator too.

    ``nox -s numba_suite -- all write`` writes docs/reference/numba-suite.md.
    """
    tools = "numba-cuda==0.30.4", "filecheck==1.0.6", "cffi==2.1.1", "psutil==7.2.2"
    session.install("-e", ".[cli,cuda-kernels,migrate,sim]", *pinned("test"), *tools)
    some = ["--paths", "cudadrv", *(f"cudapy/test_{each}.py" for each in ("atomics", "print", "record_dtype", "sync"))]
    options = ["--write"] * ("write" in session.posargs) if "all" in session.posargs else some
    session.run("python", "scripts/numba_suite.py", *options)


@nox.session
def numba_hip(session: nox.Session) -> None:
    """numba-hip, which brings what NVIDIA's bindings cannot be beside: names in kernels against its registries; its memory."""
    session.install("-e", ".[cli,rocm-kernels]", *tools(), "numba-hip==0.2.1")
    files = "tests/unit/kernels/test_numba_hip.py", "tests/unit/kernels/test_names.py"
    session.run("python", "-m", "pytest", "-q", *files)
    emulated(session, "roc", "tests/integration/adapters/test_numba_hip.py", JUDGES="numba_hip")


@nox.session
def cuda12(session: nox.Session) -> None:
    """The older series of NVIDIA's bindings, over the emulated driver."""
    session.install("-e", ".[cli]", "cuda-bindings==12.9.10", *tools())
    # It holds the primary context: a process of its own.
    emulated(session, "cuda", "tests/contract/emulator/test_truth_cuda.py")
    emulated(session, "cuda", "tests/contract/drivers/test_cuda.py")
    emulated(session, "cuda", "tests/contract/cuda")
    # What raises in the middle of the library has a process of its own, which no other test has left anything in.
    for raising in ("not interrupts", "interrupts"):
        emulated(session, "cuda", EVERY_BACKEND, "-m", raising)


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
    for raising in ("not interrupts", "interrupts"):
        emulated(session, "roc", EVERY_BACKEND, "-m", raising, DEVMEM_ROC_PROVIDER="hip")
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


@nox.session
def loaders(session: nox.Session) -> None:
    """The recipes for other libraries' data: Zarr's chunks, Parquet's columns."""
    session.install("-e", ".", "zarr==3.1.6", "pyarrow==26.0.1")
    for recipe in ("zarr_chunks", "parquet_batches"):
        session.run("python", f"examples/loaders/{recipe}.py", env={"DEVMEM_BACKEND": "host"})


@nox.session
def types(session: nox.Session) -> None:
    """What another type checker than mypy, which scripts/check runs, knows of the verbs: pyright, as basedpyright packs it."""
    session.install("-e", ".", "basedpyright==1.40.2")
    session.run("basedpyright", "--project", "tests/types/pyrightconfig.json")


@nox.session
def browser(session: nox.Session) -> None:
    """The page of ``devmem view`` in a real browser, Debian's Chromium; where it is not installed, that is told.

    ``nox -s browser -- pictures [PAGE...]`` takes pictures of the site's pages, for eyes, into docs/_build/pictures.
    """
    session.install("-e", ".[cli]", *pinned("test"), "selenium==4.45.0")
    if "pictures" in session.posargs:
        session.run("python", "scripts/look_at_site.py", *session.posargs[1:])
        return
    env = {"BROWSER_NEEDED": "1"} if shutil.which("chromedriver") else {}
    session.run("python", "-m", "pytest", "-q", "-rs", "tests/integration/browser", env=env)


@nox.session(python=["3.12", "3.13", "3.14"])
def newer(session: nox.Session) -> None:
    """All of the main run on a newer Python: by hand, as far as there is one. The README says on which it last passed."""
    session.install("-e", ".[demo,test]")
    session.run("python", "-m", "pytest", "-q", *session.posargs)


@nox.session(python="3.14t")
def free_threaded(session: nox.Session) -> None:
    """The whole suite without a GIL, on the host and over both emulated drivers, by hand: devmem is not said to work there.

    On Python's core, as the compiled one is not loaded there. AMD's binding has no wheel for it: HIP is called through ctypes.
    """
    session.install("-e", ".[demo]", *(each for each in pinned("test") if not each.startswith("hip-python")))
    core, ctypes = {"DEVMEM_NATIVE": "0"}, {"DEVMEM_ROC_PROVIDER": "ctypes"}
    if session.posargs:
        session.run("python", "-m", "pytest", "-q", *session.posargs, env=core)
        return
    session.run("python", "-m", "pytest", "-q", env=core)
    for backend, own, settings in (
        ("cuda", "tests/contract/cuda", {}),
        ("roc", "tests/contract/roc/test_traps.py", ctypes),
    ):
        emulated(session, backend, EVERY_BACKEND, "tests/fuzz", **core, **settings)
        for alone in (f"tests/contract/drivers/test_{backend}.py", own):  # these want the driver to themselves
            emulated(session, backend, alone, **core, **settings)
