"""``devmem doctor``: check what ``devmem info`` shows, and give advice."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

import click
import numpy as np

import devmem

from .. import _native
from ..api.kernels import kernel_compilers
from ..spi.sizes import exact_size
from .bitwise_compare import first_difference
from .checks import Check, Verdict
from .emulate import is_emulated
from .info import Report, by_name, collect
from .limits import device_limits, system_limits
from .output import FAILED, OK, collected_warnings, example, print_json, print_table

#: The backend that needs no hardware.
WITHOUT_GPU = "host"
#: The setting that lists plugins to leave out, and its value that stands for all plugins.
BLOCKED, EVERY_PLUGIN = "DEVMEM_BLOCK_PLUGINS", "*"
#: What each kernel compiler needs, and what it compiles and links with.
KERNEL_PACKAGES = {
    "simulator": ("greenlet", "numba"),
    "numba_cuda": ("numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"),
    "numba_cuda_mlir": ("numba-cuda-mlir", "cuda-core", "nvidia-nvvm", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"),
    "numba_hip": ("numba-hip",),
}
#: The array of the round trip: its strides make it go through packing.
SAMPLE = np.arange(4096, dtype=np.uint16)[::-3]


@click.command(epilog=example("DEVMEM_BACKEND=cuda devmem doctor"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check this installation, and advise how to fix what is wrong.

    Exit code 0: arrays can be moved, on a GPU or, where no GPU is usable, on the host backend; the rows say why no GPU is.
    Exit code 1: at least one check failed, and its row says what to do. The lack of a GPU is no failure, unless
    DEVMEM_BACKEND names a GPU backend.
    """
    checks = list(examine(collect()))
    healthy = all(check.verdict is not Verdict.FAIL for check in checks)
    if as_json:
        print_json({"healthy": healthy, "checks": checks})
    else:
        print_table(
            ("check", "verdict", "found", "what to do"),
            ((check.name, check.verdict, check.found, check.advice) for check in checks),
        )
    context.exit(OK if healthy else FAILED)


def examine(report: Report) -> Iterator[Check]:
    """All checks, from the most basic to a transfer that depends on all of them."""
    yield Check("devmem", Verdict.OK, ", ".join(f"{name} {version}" for name, version in report.versions.items()))
    yield _core()
    yield from _settings(report)
    for problem in report.problems:
        yield Check("problem", Verdict.FAIL, problem, "fix this first: it may hide further problems")
    told = {status.reason for status in report.backends if not status.usable} | {item.help for item in report.settings}
    for message in report.warnings:
        if message not in told:
            yield Check("warning", Verdict.WARN, message)
    yield from _backends(report)
    yield from _devices(report)
    yield _choice(report)
    yield from _kernels(report)
    yield from _compilers()
    yield from system_limits()
    yield from device_limits(report.devices)
    moved = _transfer()
    yield moved
    if moved.verdict is Verdict.OK:
        yield _pinned()


def _core() -> Check:
    """Report the core that runs: the compiled one, or Python."""
    if _native.core is not None or _native.VARIABLE in os.environ:
        return Check("core", Verdict.OK, _native.why)
    advice = (
        "nothing has to be done: small calls take longer; to build it, install a C compiler and reinstall devmem-arrays"
    )
    return Check("core", Verdict.INFO, _native.why, advice)


def _settings(report: Report) -> Iterator[Check]:
    changed = [f"{item.name}={item.value}" for item in report.settings if item.source == "environment"]
    if report.settings:
        yield Check("settings", Verdict.OK, ", ".join(changed) or "all at their defaults")
    for item in report.settings:
        if item.source == "unknown":
            what, _, advice = item.help.partition(": ")
            yield Check("unknown setting", Verdict.WARN, what, advice)
        elif item.name == BLOCKED and isinstance(item.value, tuple):
            yield from _blocked(item.value)


def _blocked(names: Iterable[str]) -> Iterator[Check]:
    """Names in the list of plugins to leave out that match no installed plugin."""
    installed = sorted({entry.name for entry in importlib.metadata.entry_points(group="devmem")})
    for name in names:
        if name not in (EVERY_PLUGIN, *installed):
            near = difflib.get_close_matches(name, installed, 1)
            known = f"did you mean {near[0]}?" if near else f"there are: {', '.join(installed) or 'none'}"
            found = f"{BLOCKED} names {name!r}, and no plugin of that name is installed"
            yield Check("blocked plugins", Verdict.WARN, found, f"{known}; built-in plugins cannot be left out")


def _backends(report: Report) -> Iterator[Check]:
    chosen = _chosen(report)
    for status in report.backends:
        name = f"backend {status.name}"
        if status.usable:
            advice = "" if status.name == chosen else by_name(status)
            yield Check(name, Verdict.OK, f"{status.devices} device(s), {status.origin}", advice)
            if is_emulated(status.name):
                found = "the driver is emulated: nothing runs on a GPU, and its speed means nothing"
                yield Check(
                    f"driver of {status.name}", Verdict.INFO, found, "for the real driver, run without `devmem emulate`"
                )
        elif status.reason in report.warnings:
            # The plugin raised when it was loaded. It was installed on purpose, so this is a failure.
            advice = f"upgrade or uninstall it, or leave it out: DEVMEM_BLOCK_PLUGINS={status.name}"
            yield Check(name, Verdict.FAIL, str(status.reason), advice)
        else:
            asked = "DEVMEM_BACKEND asks for it: fix this, or unset DEVMEM_BACKEND"
            advice = asked if status.name == chosen else "only needed for that hardware"
            yield Check(name, Verdict.INFO, f"not usable: {status.reason}", advice)


def _devices(report: Report) -> Iterator[Check]:
    for device in report.devices:
        facts = device["facts"]
        if isinstance(facts, dict) and facts.get("remarks"):
            yield Check(f"driver of {device['device']}", Verdict.INFO, str(facts["remarks"]))
        if isinstance(facts, dict) and facts.get("notes"):
            yield Check(f"device {device['device']}", Verdict.WARN, str(facts["notes"]))


def _choice(report: Report) -> Check:
    name = "choice of backend"
    chosen = _chosen(report)
    usable = [status.name for status in report.backends if status.usable]
    gpus = [each.name for each in report.backends if each.usable and not each.by_name_only and each.name != WITHOUT_GPU]
    if chosen and chosen in usable:
        return Check(name, Verdict.OK, f"{chosen}, asked for by DEVMEM_BACKEND")
    if chosen:
        return Check(
            name,
            Verdict.FAIL,
            f"DEVMEM_BACKEND={chosen}, which is not usable",
            f"see the row of that backend, or set DEVMEM_BACKEND to one of: {', '.join(usable) or 'none is usable'}",
        )
    if gpus:
        return Check(name, Verdict.OK, f"{gpus[0]}, the first that is usable")
    if not usable:
        return Check(name, Verdict.FAIL, "no backend is usable", "see the rows of the backends")
    return Check(
        name,
        Verdict.INFO,
        f"{usable[0]}: no GPU backend is usable, for the reasons above",
        f"nothing, if this machine has no GPU; DEVMEM_BACKEND={WITHOUT_GPU} chooses the host backend and silences the warning",
    )


def _compilers() -> Iterator[Check]:
    """Whether kernel compilers of both vendors are installed: their dependencies overwrite each other's files."""
    versions = {}
    for name in ("numba-cuda", "numba-hip", "hip-python-interop"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    if "numba-cuda" in versions and len(versions) > 1:
        yield Check(
            "kernel compilers",
            Verdict.FAIL,
            f"{', '.join(f'{name} {version}' for name, version in versions.items())} in one environment: hip-python-interop, "
            f"which numba-hip needs, and NVIDIA's cuda-bindings overwrite each other's files",
            "devmem-arrays[cuda-kernels] and devmem-arrays[rocm-kernels] cannot share an environment: make a new one for each",
        )


def _kernels(report: Report) -> Iterator[Check]:
    """For each usable backend, which compiler takes its kernels, with the versions of what it needs; or how to install one."""
    for status in report.backends:
        if not status.usable:
            continue
        reasons = kernel_compilers(status.name)
        usable = next((name for name, reason in reasons.items() if reason is None), None)
        name = f"kernels: {status.name}"
        if usable is not None:
            found = (_version(each) for each in KERNEL_PACKAGES.get(usable, ()))
            yield Check(name, Verdict.OK, ", ".join([usable, *filter(None, found)]))
        else:
            yield Check(
                name, Verdict.INFO, "; ".join(f"{each}: {why}" for each, why in reasons.items()) or "no compiler"
            )


def _version(package: str) -> str | None:
    """An installed package with its version."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _chosen(report: Report) -> str:
    return next((str(item.value) for item in report.settings if item.name == "DEVMEM_BACKEND"), "")


def _transfer() -> Check:
    # The other checks can pass on a machine whose driver is installed but broken.
    name = "round trip"
    try:
        with collected_warnings():
            device = devmem.current_device()
            back = devmem.to_device(SAMPLE).copy_to_host()
    except Exception as error:
        return Check(name, Verdict.FAIL, f"{type(error).__name__}: {error}", "nothing can be moved until this works")
    return _compared(name, device, back)


def _pinned() -> Check:
    # Page-locked memory has a stack of its own (DEVMEM_PINNED_MEMORY_MANAGER), which no other check uses.
    name = "page-locked memory"
    try:
        with collected_warnings():
            device = devmem.current_device()
            if "pinned" not in device.info.memory_kinds:
                return Check(name, Verdict.INFO, f"{device} has none", "copies of ordinary arrays work all the same")
            array = devmem.pinned_array(SAMPLE.shape, SAMPLE.dtype)
            array[...] = SAMPLE
            back = devmem.to_device(array).copy_to_host()
    except Exception as error:
        advice = (
            "ordinary arrays do not need it; if this names DEVMEM_PINNED_MEMORY_MANAGER, fix that setting or unset it"
        )
        return Check(name, Verdict.FAIL, f"{type(error).__name__}: {error}", advice)
    return _compared(name, device, back)


def _compared(name: str, device: devmem.Device, back: object) -> Check:
    where = first_difference(SAMPLE, np.asarray(back))
    if where is not None:
        return Check(name, Verdict.FAIL, f"{device}: {where}", "report this as a bug: the copy changed bytes")
    return Check(name, Verdict.OK, f"{exact_size(SAMPLE.nbytes)} to {device} and back, unchanged")
