"""Allocations on a chosen NUMA node (Linux)."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...spi.errors import ConfigError, UnsupportedError

#: Numbers of the system calls (set_mempolicy, get_mempolicy) by architecture: the C library has no names for them.
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
_BIND = 2
_MASK_BITS = 4096
_Mask = ctypes.c_ulong * (_MASK_BITS // (8 * ctypes.sizeof(ctypes.c_ulong)))
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
    with on_node(node):
        pass


def online_nodes() -> list[int]:
    """The nodes of this machine; without NUMA that is node 0."""
    try:
        told = _ONLINE.read_text(encoding="ascii").strip()
    except OSError:
        return [0]
    nodes: list[int] = []
    for part in told.split(","):
        first, _, last = part.partition("-")
        nodes += range(int(first), int(last or first) + 1)
    return nodes


@contextmanager
def on_node(node: int) -> Iterator[None]:
    """Bind what this thread allocates in the block to a node; afterwards the policy is what it was."""
    set_policy, get_policy = _CALLS[platform.machine()]
    before, mask = ctypes.c_int(), _Mask()
    _system_call(get_policy, ctypes.byref(before), mask, ctypes.c_ulong(_MASK_BITS), None, ctypes.c_ulong(0))
    wanted, bits = _Mask(), 8 * ctypes.sizeof(ctypes.c_ulong)
    wanted[node // bits] = 1 << node % bits
    _system_call(set_policy, ctypes.c_int(_BIND), wanted, ctypes.c_ulong(_MASK_BITS))
    try:
        yield
    finally:
        _system_call(set_policy, before, mask, ctypes.c_ulong(_MASK_BITS))


def _system_call(number: int, *arguments: object) -> None:
    if _syscall(ctypes.c_long(number), *arguments) != 0:
        code = ctypes.get_errno()
        raise UnsupportedError(
            f"memory cannot be bound to a NUMA node here: {os.strerror(code)} (errno {code}); containers often forbid it "
            f"(CAP_SYS_NICE allows it): leave numa_node out, or start the program under numactl"
        )


_syscall = ctypes.CDLL(None, use_errno=True).syscall if sys.platform.startswith("linux") else lambda *_: -1
