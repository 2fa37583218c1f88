"""On which NUMA node memory comes to lie that a driver locks, with a kernel that is played."""

from __future__ import annotations

import contextlib
import platform
import sys
from pathlib import Path

import pytest

from devmem.spi.errors import UnsupportedError
from devmem.toolkit import numa
from tests.helpers.memory_policy import MemoryPolicy

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in numa._CALLS,
    reason="not here: no policies of memory",
)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryPolicy:
    return MemoryPolicy(monkeypatch, tmp_path)


def test_on_a_machine_with_one_node_no_call_is_made(kernel: MemoryPolicy) -> None:
    kernel.has_nodes("0\n")
    assert numa.own_node(0) == numa.own_node(-1) == (-1, "")
    assert not kernel.asked and not kernel.set


def test_the_nearest_of_several_nodes_is_preferred(kernel: MemoryPolicy) -> None:
    kernel.has_nodes("0-1\n")
    node, told = numa.own_node(1)
    assert node == 1 and "NUMA node 1, the nearest to the device" in told
    kernel.set.clear()
    during = []
    numa.near_node(1, lambda: during.append(kernel.policy))
    assert during == [(1, 2)] and kernel.set == [(1, 2), (0, 0)]


def test_a_policy_of_the_program_is_left_alone(kernel: MemoryPolicy) -> None:
    kernel.has_nodes("0-1\n")
    kernel.policy = 3, 3  # interleaved
    assert numa.has_policy()
    assert numa.own_node(1) == (
        -1,
        "page-locked memory lies on the NUMA nodes that the program's own memory policy says",
    )
    during = []
    numa.near_node(1, lambda: during.append(kernel.policy))
    assert during == [(3, 3)] and not kernel.set
    numa.on_node(1, lambda: during.append(kernel.policy))  # named by the program
    assert during[1:] == [(2, 2)] and kernel.policy == (3, 3)


def test_where_the_driver_does_not_say_which_is_nearest(kernel: MemoryPolicy) -> None:
    kernel.has_nodes("0-1\n")
    assert numa.own_node(-1)[0] == numa.own_node(5)[0] == -1
    assert "does not tell" in numa.own_node(-1)[1]
    assert not kernel.set


def test_where_the_system_forbids_it_the_reason_is_told(kernel: MemoryPolicy) -> None:
    kernel.has_nodes("0-1\n")
    kernel.status = -1
    node, told = numa.own_node(1)
    assert node == -1 and "not on 1" in told and "CAP_SYS_NICE" in told


def test_where_no_policy_can_be_asked_for_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "_syscall", lambda *_: -1)
    assert not numa.has_policy()
    with pytest.raises(UnsupportedError, match="NUMA"):
        numa.policy()


def test_where_the_system_forbids_it_later_memory_is_allocated_all_the_same(kernel: MemoryPolicy) -> None:
    """A sandbox that the program enters, or nodes that its control group loses."""
    kernel.has_nodes("0-1\n")
    assert numa.own_node(1)[0] == 1
    kernel.status = -1
    during: list[str] = []
    numa.near_node(1, lambda: during.append("allocated"))
    assert during == ["allocated"]
    with pytest.raises(UnsupportedError, match="NUMA"):
        numa.on_node(1, lambda: during.append("on the node that was named"))
    assert during == ["allocated"]


@pytest.mark.parametrize("call", [numa.on_node, numa.near_node])
def test_no_interrupt_leaves_a_policy_in_force(kernel: MemoryPolicy, at_point, call) -> None:
    number, left = 0, 0
    while left <= 0:
        number += 1
        with at_point(number, lambda code: code.co_filename in (numa.__file__, contextlib.__file__)) as point:
            call(1, lambda: None)
        left = point.left
        assert kernel.policy == (0, 0), point.where
    assert number > 10
