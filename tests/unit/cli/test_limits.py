"""The rows of `devmem doctor` about what the system, a container and a slice of a GPU let a process have."""

from __future__ import annotations

import os

import pytest

from devmem.cli import limits
from devmem.cli.checks import Verdict
from devmem.toolkit import host_limits

resource = pytest.importorskip("resource")


def rows(checks):
    return {check.name: check for check in checks}


@pytest.fixture
def limit(monkeypatch):
    def change(**values):
        found = {getattr(resource, f"RLIMIT_{name}"): value for name, value in values.items()}
        monkeypatch.setattr(resource, "getrlimit", lambda which: (found.get(which, resource.RLIM_INFINITY),) * 2)

    return change


def test_small_limits_are_told_with_what_raises_them(limit, tmp_path):
    limit(MEMLOCK=8 << 20, NOFILE=256)
    found = rows(limits.system_limits(tmp_path))
    locked, files = found["locked memory (ulimit -l)"], found["open files (ulimit -n)"]
    assert (locked.verdict, files.verdict) == (Verdict.INFO, Verdict.WARN)
    assert "8.0 MiB" in locked.found
    assert "memlock" in locked.advice
    assert "256" in files.found


def test_large_limits_are_ok(limit, tmp_path):
    limit(MEMLOCK=1 << 30)
    assert {check.verdict for check in limits.system_limits(tmp_path)} == {Verdict.OK}


def test_a_containers_shared_memory(tmp_path, monkeypatch):
    (tmp_path / "dev/shm").mkdir(parents=True)
    size = os.statvfs_result((4096, 4096, 16384, 16000, 16000, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: size)
    check = rows(limits.system_limits(tmp_path))["shared memory (/dev/shm)"]
    assert check.verdict is Verdict.WARN
    assert "of 64.0 MiB" in check.found
    assert "--shm-size" in check.advice


@pytest.mark.parametrize("place", host_limits.CONTROL_GROUP)
def test_a_containers_memory(place, tmp_path):
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("67108864\n")
    check = rows(limits.system_limits(tmp_path))["memory of the container"]
    assert check.found.startswith("64.0 MiB of the machine's")
    (tmp_path / place).write_text("max\n")
    assert "memory of the container" not in rows(limits.system_limits(tmp_path))


def device(**facts):
    return {
        "device": "cuda:0",
        "backend": "cuda",
        "name": "NVIDIA H100",
        "uuid": "GPU-1",
        "total_bytes": 10 << 30,
        "capabilities": [],
    } | facts


def test_a_slice_of_a_gpu_is_told():
    for facts in ({"uuid": "MIG-1"}, {"name": "NVIDIA H100 MIG 1g.10gb"}):
        check = rows(limits.device_limits([device(**facts)]))["MIG: cuda:0"]
        assert "10.0 GiB" in check.found
        assert "CUDA_VISIBLE_DEVICES" in check.advice
    assert list(rows(limits.device_limits([device()]))) == ["IPC of cuda:0"]


def test_whether_memory_can_be_shared_is_told():
    assert rows(limits.device_limits([device()]))["IPC of cuda:0"].verdict is Verdict.INFO
    assert rows(limits.device_limits([device(capabilities=["ipc"])]))["IPC of cuda:0"].verdict is Verdict.OK
