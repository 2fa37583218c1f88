"""NUMA nodes of the host (Linux), and on which of them the memory comes to lie that a thread allocates.

The kernel takes pages for a thread, those that a driver locks included, by the thread's policy. One that the program has chosen
for itself (with numactl or libnuma) is only replaced where the program names a node to devmem.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from ..spi.errors import ConfigError, UnsupportedError

#: Numbers of the system calls (set_mempolicy, get_mempolicy) by architecture: the C library has no names for them.
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
_PREFERRED, _BIND = 1, 2
_MASK_BITS = 4096
_Mask = ctypes.c_ulong * (_MASK_BITS // (8 * ctypes.sizeof(ctypes.c_ulong)))
_Nodes: TypeAlias = ctypes.Array[ctypes.c_ulong]
T = TypeVar("T")
_ONLINE = Path("/sys/devices/system/node/online")


def check_node(node: int) -> None:
    """See whether memory can be bound to a node.

    Raises
    ------
    ConfigError
        The machine has no such node.
    UnsupportedError
        Not here: no Linux, an unknown architecture, or a kernel or sandbox that forbids it.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in _CALLS:
        raise UnsupportedError(
            f"numa_node={node}: memory is bound to a node on Linux ({', '.join(_CALLS)}) only, this is {sys.platform} "
            f"({platform.machine()}): leave numa_node out"
        )
    nodes = online_nodes()
    if node not in nodes:
        raise ConfigError(f"numa_node={node}: this machine has {', '.join(map(str, nodes))}")
    on_node(node, lambda: None)


def online_nodes() -> list[int]:
    """The nodes of this machine; without NUMA that is node 0."""
    try:
        told = _ONLINE.read_text(encoding="ascii").strip() or "0"  # some sandboxes have an empty file
    except OSError:
        return [0]
    nodes: list[int] = []
    for part in told.split(","):
        first, _, last = part.partition("-")
        nodes += range(int(first), int(last or first) + 1)
    return nodes


def own_node(node: int) -> tuple[int, str]:
    """The node for memory that a driver locks, or -1 where the system chooses, and what is to be told of it.

    ``node`` is the nearest to the device, as its driver says; -1 where that says nothing. On a machine with one node there is
    nothing to choose, and nothing to tell.
    """
    nodes = online_nodes()
    if len(nodes) < 2 or platform.machine() not in _CALLS:
        return -1, ""
    found, where = -1, "on any of the NUMA nodes: the driver does not tell which is nearest to the device"
    if has_policy():
        where = "on the NUMA nodes that the program's own memory policy says"
    elif node in nodes:
        try:
            on_node(node, lambda: None)
            found, where = node, f"on NUMA node {node}, the nearest to the device, as long as that has room"
        except UnsupportedError as error:
            where = f"on any of the NUMA nodes, not on {node}, the nearest to the device: {error}"
    return found, f"page-locked memory lies {where}"


def on_node(node: int, function: Callable[[], T]) -> T:
    """Call a function, and bind what this thread allocates in it to a node; afterwards the policy is what it was."""
    return _under(_BIND, node, function, *policy())


def near_node(node: int, function: Callable[[], object]) -> None:
    """Call a function; what this thread allocates in it lies on a node as long as that has room.

    A policy of the program's own is left alone. Where the system does not let it be set any more, memory lies anywhere.
    """
    with suppress(UnsupportedError):
        before, mask = policy()
        if not before:
            _under(_PREFERRED, node, function, before, mask)
            return
    function()


def _under(mode: int, node: int, function: Callable[[], T], before: int, mask: _Nodes) -> T:
    wanted, bits = _Mask(), 8 * ctypes.sizeof(ctypes.c_ulong)
    wanted[node // bits] = 1 << node % bits
    restore = partial(_syscall, *_setting(before, mask))
    try:
        _system_call(*_setting(mode, wanted))
        return function()
    finally:
        restore()  # C alone: no interrupt comes before it


def policy() -> tuple[int, _Nodes]:
    """The policy of this thread: its mode, 0 if none was chosen, and its nodes as bits."""
    mode, mask = ctypes.c_int(), _Mask()
    ask = _CALLS[platform.machine()][1]
    _system_call(ctypes.c_long(ask), ctypes.byref(mode), mask, ctypes.c_ulong(_MASK_BITS), None, ctypes.c_ulong(0))
    return mode.value, mask


def has_policy() -> bool:
    """Whether this thread has a policy of the program's; False where the system does not say."""
    with suppress(UnsupportedError, KeyError):
        return policy()[0] != 0
    return False


def _setting(mode: int, mask: _Nodes) -> tuple[object, ...]:
    """The system call that sets a policy of this thread."""
    number = _CALLS[platform.machine()][0]
    return ctypes.c_long(number), ctypes.c_int(mode), mask, ctypes.c_ulong(_MASK_BITS)


def _system_call(*arguments: object) -> None:
    if _syscall(*arguments) != 0:
        code = ctypes.get_errno()
        raise UnsupportedError(
            f"memory cannot be bound to a NUMA node here: {os.strerror(code)} (errno {code}); containers often forbid it "
            f"(CAP_SYS_NICE allows it): leave numa_node out, or start the program under numactl"
        )


_syscall = ctypes.CDLL(None, use_errno=True).syscall if sys.platform.startswith("linux") else lambda *_: -1
