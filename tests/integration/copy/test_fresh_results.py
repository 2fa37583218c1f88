"""Memory that has not been touched yet: huge pages are asked for, and several threads touch it: results and mapped files."""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem import plugins
from devmem._core.copy.staging.workers import CopyWorkers

SMAPS = Path("/proc/self/smaps")
LARGE = 8 << 20


@pytest.fixture(autouse=True)
def staged(with_settings, need_kind):
    need_kind("pinned")
    with_settings(STAGING_THRESHOLD="100", STAGING_SLOT_BYTES=str(4 << 20), STAGING_SLOTS="2", STAGING_THREADS="2")


@pytest.fixture
def threads(monkeypatch):
    """The threads that moved host bytes."""
    seen, run, met = set(), CopyWorkers.run, threading.Barrier(2)

    def noted(step):
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            met.wait(patience())  # or the caller may be so quick that it does the other's part as well
        step()

    monkeypatch.setattr(CopyWorkers, "run", lambda self, steps: run(self, [partial(noted, step) for step in steps]))
    return seen


RESULTS = {
    "copy_to_host": lambda array: array.copy_to_host(),
    "in Fortran order": lambda array: array.T.copy_to_host(),
    "of rows": lambda array: array[:, :-8].copy_to_host(),
    "copy_async": lambda array: dm.copy_async(array).result(),
    "to_host_many": lambda array: dm.to_host_many([array])[0],
    "gather": lambda array: dm.gather([array, array]),
}


@pytest.mark.skipif(
    not SMAPS.exists() or not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="this system has no huge pages",
)
@pytest.mark.parametrize("how", RESULTS)
def test_huge_pages_are_asked_for(how):
    """By NumPy, for arrays from 4 MiB on: so devmem's results have to be NumPy's own allocations."""
    plain = np.ones(LARGE, "u1")
    if "hg" not in flags_at(plain.ctypes.data + LARGE // 2):
        pytest.skip("NumPy does not ask for them here (NUMPY_MADVISE_HUGEPAGE=0, or an old system)")
    found = RESULTS[how](dm.zeros((1024, LARGE // 1024), "u1"))
    middle = found.ctypes.data + found.nbytes // 2
    assert "hg" in flags_at(middle)


def test_a_fresh_result_is_touched_by_several_threads(threads):
    array = dm.zeros(LARGE, "u1")
    threads.clear()
    assert not array.copy_to_host().any()
    assert len(threads) == 2


def test_a_mapped_file_is_touched_by_several_threads(threads, tmp_path):
    """Not by the caller beforehand: what it is, is found out without a look at its pages (tests/unit/copy/test_plan.py)."""
    data = np.random.default_rng(0).integers(0, 256, LARGE, np.uint8)
    data.tofile(tmp_path / "data")
    there = dm.to_device(np.memmap(tmp_path / "data", "u1", "r"))
    assert len(threads) == 2
    assert np.array_equal(there.copy_to_host(), data)


def test_a_file_is_read_into_slots_by_several_threads(threads, device, monkeypatch, tmp_path):
    monkeypatch.setitem(plugins.registry.files, device.backend, None)  # not past the slots
    data = np.random.default_rng(0).integers(0, 256, LARGE, np.uint8)
    np.save(tmp_path / "data.npy", data)
    there = dm.load(tmp_path / "data.npy")
    assert len(threads) == 2
    assert np.array_equal(there.copy_to_host(), data)


def flags_at(address):
    """What the system knows of the mapping around an address."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if head:
            inside = int(head[1], 16) <= address < int(head[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no mapping there")
