"""What the sessions of noxfile.py have in common: requirements of an extra, the wheel, runs over an emulated driver."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nox

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
HOST_TORCH = "torch==2.13.0+cpu"
#: PyTorch's build for CUDA, and what it imports. The page "Run your library's memory tests without a GPU" names the same.
CUDA_TORCH = "torch==2.14.1"
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions>=4.10")

#: The first numpy with wheels for a Python that the lower bound in pyproject.toml is too old for.
FIRST_NUMPY = {(3, 13): "2.1.0", (3, 14): "2.3.3"}


def install_host_torch(session: nox.Session) -> None:
    """PyTorch's build for the host alone; that of the package index for Linux brings gigabytes of CUDA.

    PyPI takes no version with a local label: where no index that pip is configured with has the build, PyTorch's own has.
    """
    try:
        session.install(HOST_TORCH)
    except nox.command.CommandFailed:
        session.install(HOST_TORCH, "--extra-index-url", "https://download.pytorch.org/whl/cpu")


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
    session.run("python", "scripts/check_wheel.py", str(wheel))
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
