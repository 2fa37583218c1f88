"""Access from one device to another's memory is asked for, enabled and disabled by verb; copies are right either way."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.spi.types import Capability

DATA = np.arange(5000.0)


@pytest.fixture
def peers(device, second, need):
    need("peer", "peer_access")
    if not device.can_access_peer(second):
        pytest.skip(f"{device} cannot reach memory of {second}")
    yield second
    device.enable_peer_access(second)


def path_between(device, second):
    there = dm.to_device(DATA, device=second)
    dm.transfer_stats(reset=True)
    assert np.array_equal(dm.to_device(there, device=device).copy_to_host(), DATA)
    [path] = {path for path in dm.transfer_stats(device=device) if path.startswith("peer")}
    return path


@pytest.mark.parametrize("stack", ["pool", "driver"])
def test_disabled_access_sends_copies_through_the_host(device, peers, stack):
    with peers, dm.use_memory(stack), device, dm.use_memory(stack):
        assert path_between(device, peers) == "peer"
        for _ in range(2):
            device.disable_peer_access(peers)
            assert path_between(device, peers) != "peer"
        assert path_between(peers, device) == "peer", "the other way is the other device's to say"
        for _ in range(2):
            device.enable_peer_access(peers)
            assert path_between(device, peers) == "peer"
    assert device.can_access_peer(peers), "that it could"


def test_access_may_be_enabled_before_the_first_copy_and_a_reset_forgets(device, peers):
    device.enable_peer_access(str(peers))
    assert path_between(device, peers) == "peer"
    device.disable_peer_access(peers.ordinal)
    device.reset()
    assert path_between(device, peers) == "peer"


def test_a_device_reaches_its_own_memory_and_is_no_peer_of_its_own(device, need):
    need("peer")
    assert device.can_access_peer(device)


def test_the_trace_says_that_access_is_disabled(device, peers, monkeypatch):
    from devmem._core.telemetry.copy_statistics import CopyStatistics

    device.disable_peer_access(peers)
    there = dm.to_device(DATA, device=peers)
    told, count = [], CopyStatistics.count

    def counting(self, *args, **more):
        told.append(str(args))
        return count(self, *args, **more)

    monkeypatch.setattr(CopyStatistics, "count", counting)
    dm.to_device(there, device=device)
    assert any("access to the other's memory is disabled" in each for each in told)


def test_devices_that_cannot_reach_each_other_are_told(device, second, monkeypatch):
    handle = device.opened().handle
    monkeypatch.setattr(handle, "capabilities", handle.capabilities - {Capability.PEER})
    assert not device.can_access_peer(second)
    for call in (device.enable_peer_access, device.disable_peer_access):
        with pytest.raises(dm.UnsupportedError, match="cannot reach memory of"):
            call(second)


def test_a_driver_without_the_switch_is_told(device, second, need, monkeypatch):
    need("peer")
    if not device.can_access_peer(second):
        pytest.skip(f"{device} cannot reach memory of {second}")
    handle = device.opened().handle
    monkeypatch.setattr(handle, "capabilities", handle.capabilities - {Capability.PEER_ACCESS})
    with pytest.raises(dm.UnsupportedError, match="it lacks 'peer_access'"):
        device.disable_peer_access(second)
