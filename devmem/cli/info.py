"""``devmem info``: backends, devices, settings and versions, with the reason for each backend that is not usable."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import click

import devmem

from .. import _native
from ..api.kernels import kernel_compilers
from ..spi.sizes import size_text
from .output import OK, UNUSABLE, collected_warnings, complain, example, print_json, print_table

#: The distributions whose versions matter for bug reports.
DISTRIBUTIONS = (
    "numpy",
    "pluggy",
    "cuda-bindings",
    "hip-python",
    "rocm-bindings-hip",
    "pyopencl",
    "pocl-binary-distribution",
    "numba-cuda",
    "numba-cuda-mlir",
    "numba-hip",
)

T = TypeVar("T")


@dataclass
class Report:
    """The answers to all questions; a question that raised is in ``problems``, so one bad setting does not hide the rest."""

    versions: dict[str, str] = field(default_factory=dict)
    settings: list[devmem.Setting] = field(default_factory=list)
    backends: list[devmem.BackendStatus] = field(default_factory=list)
    devices: list[dict[str, object]] = field(default_factory=list)
    compilers: list[dict[str, object]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def collect() -> Report:
    """Query devmem for everything; each query may fail on its own."""
    report = Report(versions=versions())
    with collected_warnings() as report.warnings:
        report.settings = _ask(devmem.settings, [], report.problems)
        report.backends = _ask(devmem.backends, [], report.problems)
        report.compilers = _ask(lambda: list(_compilers(report.backends)), [], report.problems)
        report.devices = _ask(lambda: [_describe(device) for device in devmem.devices()], [], report.problems)
    return report


def versions() -> dict[str, str]:
    """Versions of Python, devmem and the its dependencies; those not installed are left out."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "devmem": devmem.__version__}
    found["core"] = _native.why
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@click.command(epilog=example("devmem info --all"))
@click.option("--all", "everything", is_flag=True, help="Show settings that are at their defaults, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.pass_context
def info(context: click.Context, everything: bool, as_json: bool) -> None:
    """Show backends, devices, the settings that differ from their defaults, and versions.

    A backend that is not usable is shown with the reason and the command that would fix it. Exit code 2: a query failed, because
    a setting is wrong for example; the rest is shown all the same.
    """
    report = collect()
    if as_json:
        print_json(vars(report))
    else:
        _show(report, everything)
    for problem in report.problems:
        complain(problem)
    context.exit(UNUSABLE if report.problems else OK)


def by_name(status: devmem.BackendStatus) -> str:
    """The words for a backend that devmem does not choose by itself."""
    return f"chosen by name only: DEVMEM_BACKEND={status.name}" if status.by_name_only else ""


def _show(report: Report, everything: bool) -> None:
    print_table(
        ("backend", "usable", "devices", "origin", "reason"),
        ((b.name, "yes" if b.usable else "no", b.devices, b.origin, b.reason or by_name(b)) for b in report.backends),
        title="Backends",
        right="devices",
    )
    print_table(
        ("device", "name", "arch", "memory", "free", "pinned", "can"),
        (
            (
                d["device"],
                d["name"],
                d["arch"],
                _size(d["total_bytes"]),
                _size(d["free_bytes"]),
                _node(d["facts"]),
                _join(d["capabilities"]),
            )
            for d in report.devices
        ),
        title="Devices",
        right="memory,free",
    )
    print_table(
        ("compiler", "backend", "takes kernels", "reason"),
        ((c["name"], c["backend"], "yes" if c["used"] else "no", c["reason"] or "") for c in report.compilers),
        title="Kernel compilers",
    )
    settings = [s for s in report.settings if everything or s.source != "default"]
    defaults = len(report.settings) - len(settings)
    if settings:
        print_table(
            ("setting", "value", "from", "allowed", "meaning"),
            ((s.name, _value(s.value), s.source, s.allowed, s.help) for s in settings),
            title="Settings",
        )
    if defaults:
        print(f"{defaults} settings are at their defaults: devmem info --all shows them.\n")
    print_table(("what", "version"), report.versions.items(), title="Versions")
    for message in report.warnings:
        print(f"warning: {message}")


def _compilers(backends: list[devmem.BackendStatus]) -> Iterator[dict[str, object]]:
    """The kernel compilers of the usable backends; the first usable one of a backend takes its kernels."""
    for backend in backends:
        found = kernel_compilers(backend.name) if backend.usable else {}
        used = next((name for name, reason in found.items() if reason is None), None)
        for name, reason in found.items():
            other = f"{used} comes first: DEVMEM_KERNEL_COMPILER={name} chooses this one" if name != used else None
            yield {"name": name, "backend": backend.name, "used": name == used, "reason": reason or other}


def _describe(device: devmem.Device) -> dict[str, object]:
    facts = device.info
    memory = device.memory_info()
    return {
        "device": str(device),
        "backend": facts.backend,
        "ordinal": facts.ordinal,
        "name": facts.name,
        "uuid": facts.uuid,
        "arch": facts.arch,
        "pci_id": facts.pci_id,
        "total_bytes": memory.total,
        "free_bytes": memory.free,
        "memory_kinds": sorted(facts.memory_kinds),
        "capabilities": sorted(facts.capabilities),
        "facts": dict(facts.facts),
    }


def _ask(question: Callable[[], T], otherwise: T, problems: list[str]) -> T:
    # A broken plugin may raise anything, and these commands have to work all the same.
    try:
        return question()
    except Exception as error:
        message = str(error) if isinstance(error, devmem.DevmemError) else f"{type(error).__name__}: {error}"
        if message not in problems:
            problems.append(message)
        return otherwise


def _size(nbytes: object) -> str:
    return size_text(nbytes) if isinstance(nbytes, int) else ""


def _node(facts: object) -> str:
    """Return the node that page-locked memory lies on, if there are several."""
    node = facts.get("pinned_node", -1) if isinstance(facts, dict) else -1
    return f"node {node}" if isinstance(node, int) and node >= 0 else ""


def _join(names: object) -> str:
    return " ".join(map(str, names)) if isinstance(names, list) else ""


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
