"""Programs of several threads, on the deterministic scheduler: none fails, and it finds what it is there to find."""

from __future__ import annotations

import gc
import re

import pytest
import schedules

import devmem as dm
from devmem._core.base.device_handle import DeviceHandle
from devmem._core.ordering.stream_table import StreamTable

pytestmark = pytest.mark.races("the scheduler replaces the modules that make locks")

#: Enough that each of the faults below is found with room to spare.
SEEDS = 200


@pytest.fixture
def backend(devmem_backend, monkeypatch, need):
    need("host_register")
    for name, value in schedules.SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DEVMEM_MEMORY_MANAGER", "")
    yield schedules.backend_for(devmem_backend)
    dm.unregister_backend(schedules.NAME)
    monkeypatch.undo()
    dm.close()


def test_no_schedule_fails(backend):
    for seed in range(SEEDS):
        schedules.run(backend, seed)


def test_no_schedule_fails_that_switches_wherever_the_interpreter_may(backend):
    for seed in range(16):
        schedules.run(backend, seed, fine=True)


@pytest.mark.parametrize("fine", [False, True])
def test_a_seed_is_repeated_exactly(backend, fine, devmem_backend):
    if fine and devmem_backend == "roc":
        pytest.skip("the steps of the ROCm backend's table of ranges depend on addresses")
    for seed in (3, 8):
        # The first run binds what is bound at first use, which has points of its own.
        [_, first, second] = [schedules.run(backend, seed, fine=fine)[1] for _ in range(3)]
        assert first.path == second.path
        assert first.points == second.points


def found(backend, *steps):
    """How the first program fails that takes these steps only: the same when its seed is repeated."""
    for seed in range(SEEDS):
        if (failure := failure_of(backend, seed, steps)) is not None:
            assert failure_of(backend, seed, steps) == failure
            return failure
    return None


def failure_of(backend, seed, steps):
    try:
        schedules.run(backend, seed, only=steps)
    except Exception as error:
        return re.sub("0x[0-9a-f]+", "N", str(error))
    finally:
        gc.collect()
    return None


def test_it_finds_work_on_the_default_stream_of_another_thread(backend, monkeypatch):
    """Without the order between the default streams of two threads: the other one's copy may not have run."""
    if backend.inner.name != "host":
        pytest.skip("the copies of this driver run on threads of its own, whenever they like")
    monkeypatch.setattr(StreamTable, "_of_this_thread", lambda self, stream: self.per_thread)
    assert "wrong bytes" in found(backend, "own_default_stream", "others_default_stream")


def test_it_finds_a_reset_that_does_not_wait_for_calls(backend, monkeypatch):
    monkeypatch.setattr(DeviceHandle, "refuse", lambda self, reason, patience: True)
    assert found(backend, "come_and_go", "reset")
