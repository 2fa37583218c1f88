"""Environments of their own, for what one environment cannot hold: ``nox``, or ``scripts/test --all``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nox

nox.options.sessions = ["minimal", "lowest", "peers", "cuda12"]
nox.options.reuse_venv = "yes"
nox.needs_version = ">=2025"

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
WHEEL_LIMIT = 1_000_000

#: The first numpy with wheels for a Python that the lower bound in pyproject.toml is too old for.
FIRST_NUMPY = {(3, 13): "2.1.0", (3, 14): "2.3.3"}


@nox.session
def minimal(session: nox.Session) -> None:
    """The wheel alone, with no extra: it is small, holds devmem only, and does its work."""
    wheel = built(session)
    session.install(str(wheel))
    session.run("python", "-I", "-W", "error", "scripts/minimal_smoke.py")


@nox.session
def lowest(session: nox.Session) -> None:
    """The oldest versions that pyproject.toml allows."""
    pins = Path(session.create_tmp()) / "lowest.txt"
    pins.write_text("\n".join(lowest_pins()) + "\n")
    session.install("-c", str(pins), "-e", ".[demo,test]")
    session.run("python", "-m", "pytest", "-q", "tests/unit", "tests/contract", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Other people's packages, really installed: today a backend that entry points must find."""
    session.install(str(built(session)), "tests/plugin_pkg", *pinned("test"), *pinned("cli"))
    # Not "python -m pytest": that puts the working tree before what was installed.
    session.run("pytest", "-q", "-c", "pyproject.toml", "tests/plugin_pkg/test_conformance.py")
    session.run("devmem", "doctor", env={"DEVMEM_BACKEND": "example"})


@nox.session
def cuda12(session: nox.Session) -> None:
    """The older series of NVIDIA's bindings, over the emulated driver."""
    tools = [item for item in pinned("test") if not item.startswith("cuda-bindings")]
    session.install("-e", ".[cli]", "cuda-bindings==12.9.10", *tools)
    own = Path("tests/contract").glob("test_cuda_*.py")
    emulated(session, "tests/contract/test_emulator_truth.py")  # it holds the primary context: a process of its own
    emulated(session, "tests/contract/test_driver_cuda.py")
    emulated(session, *map(str, sorted(own)))
    emulated(session, *map(str, sorted(Path("tests/integration").glob("test_api_*.py"))))


def emulated(session: nox.Session, *tests: str) -> None:
    """Run tests in a process that sees the emulated CUDA driver."""
    command = ["python", "-m", "pytest", "-q", "--devmem-backend", "cuda", *tests]
    session.run("python", "-m", "devmem.cli", "emulate", "cuda", "--", *command)


def built(session: nox.Session) -> Path:
    """The wheel of the working tree, built afresh and looked into."""
    session.install(*pinned("dev", "build", "hatchling"))
    folder = Path(session.create_tmp()) / "wheel"
    for old in folder.glob("*.whl"):
        old.unlink()
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
