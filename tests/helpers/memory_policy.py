"""The system's calls for policies of memory, played, and what it says of its NUMA nodes."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

from devmem.toolkit import numa


class MemoryPolicy:
    """The two system calls; what was set, and the policy that holds: its mode, and its nodes as bits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.policy = (0, 0)
        self.asked = self.status = 0
        self.set: list[tuple[int, int]] = []
        self._online = folder / "online"
        monkeypatch.setattr(numa, "_syscall", self._call)
        monkeypatch.setattr(numa, "_ONLINE", self._online)

    def has_nodes(self, text: str) -> None:
        """Say which nodes the machine has, as the kernel does."""
        self._online.write_text(text)

    def _call(self, number, mode, mask, *rest):
        write, read = numa._CALLS[platform.machine()]
        if number.value == read:
            self.asked += 1
            mode._obj.value, mask[0] = self.policy
            return 0
        assert number.value == write
        if not self.status:
            self.policy = (mode.value, int(mask[0]))
            self.set.append(self.policy)
        ctypes.set_errno(-self.status)
        return self.status
