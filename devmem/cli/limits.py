"""Limits of the system, a container and a partition of a GPU for a process; rows of ``devmem doctor``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..spi.sizes import size_text
from ..toolkit.host_limits import host_bytes, machine_bytes
from .checks import Check, Verdict

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

ROOT = Path("/")
#: Below so many bytes of locked memory, of shared memory, and of files, programs with GPUs meet the limit.
LOCKED, SHARED, FILES = 64 << 20, 1 << 30, 1024


def system_limits(root: Path = ROOT) -> Iterator[Check]:
    """Locked memory, open files, shared memory and the memory of a container."""
    yield from _locked()
    yield from _files()
    yield from _shared(root)
    yield from _cgroup(root)


def device_limits(devices: Iterable[Mapping[str, object]]) -> Iterator[Check]:
    """Whether devices can share memory with other processes, and which are slices of a GPU."""
    for device in devices:
        name, capabilities = device["device"], device["capabilities"]
        if isinstance(capabilities, list) and device["backend"] != "host":
            if "ipc" in capabilities:
                found, advice = (
                    "memory can be shared with other processes",
                    "in containers: one with --ipc=host, or the same one",
                )
                yield Check(f"IPC of {name}", Verdict.OK, found, advice)
            else:
                yield Check(f"IPC of {name}", Verdict.INFO, "memory cannot be shared with other processes")
        if str(device["uuid"]).startswith("MIG-") or " MIG " in f" {device['name']} ":
            yield Check(
                f"MIG: {name}",
                Verdict.INFO,
                f"a slice of a GPU with {size_text(_bytes(device))}",
                "a process sees one slice, CUDA_VISIBLE_DEVICES chooses it; slices neither copy to each other nor share memory",
            )


def _locked() -> Iterator[Check]:
    if resource is None:
        return
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    name = "locked memory (ulimit -l)"
    if limit == resource.RLIM_INFINITY:
        yield Check(name, Verdict.OK, "unlimited")
    elif limit >= LOCKED:
        yield Check(name, Verdict.OK, size_text(limit))
    else:
        yield Check(
            name,
            Verdict.INFO,
            f"{size_text(limit)}; GPU drivers that lock pages by themselves are not held to it, RDMA (UCX) is",
            "ulimit -l unlimited, or memlock in /etc/security/limits.conf; docker run --ulimit memlock=-1",
        )


def _files() -> Iterator[Check]:
    if resource is None:
        return
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    name = "open files (ulimit -n)"
    if limit == resource.RLIM_INFINITY or limit >= FILES:
        yield Check(name, Verdict.OK, "unlimited" if limit == resource.RLIM_INFINITY else str(limit))
    else:
        yield Check(
            name, Verdict.WARN, f"{limit}: memory that processes share takes a file each", f"ulimit -n {4 * FILES}"
        )


def _shared(root: Path) -> Iterator[Check]:
    folder = root / "dev/shm"
    if not hasattr(os, "statvfs") or not folder.is_dir():
        return
    found = os.statvfs(folder)
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    told = f"{size_text(free)} free of {size_text(size)}"
    if size >= SHARED:
        yield Check("shared memory (/dev/shm)", Verdict.OK, told)
    else:
        advice = "docker run --shm-size=8g, or --ipc=host: loaders with several processes, UCX and NCCL put their buffers there"
        yield Check("shared memory (/dev/shm)", Verdict.WARN, told, advice)


def _cgroup(root: Path) -> Iterator[Check]:
    allowed, there = host_bytes(root), machine_bytes()
    if allowed < there:
        yield Check(
            "memory of the container",
            Verdict.INFO,
            f"{size_text(allowed)} of the machine's {size_text(there)}",
            "page-locked memory and staging slots count; what is above the limit ends the process: DEVMEM_STAGING_LIMIT",
        )


def _bytes(device: Mapping[str, object]) -> int:
    total = device["total_bytes"]
    return total if isinstance(total, int) else 0
