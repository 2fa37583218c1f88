"""Reading files into device memory, and writing it to files, past the host's."""

from __future__ import annotations

from typing import Protocol


class DirectFiles(Protocol):
    """A library that moves bytes between files and device memory by itself.

    It is called with the device entered, and when nothing that was enqueued uses the memory any more: it has no stream, and is
    done on return.
    """

    def unavailable(self) -> str | None:
        """Why it cannot be used on this machine; None if it can. Asked before each file: it remembers what takes long."""

    def read(self, path: str, offset: int, ptr: int, nbytes: int) -> int:
        """Read from an offset of a file to an address. How many bytes came; OSError if it goes wrong.

        The path may lead to a file that is open (``/dev/fd/3``), and has no other name any more.
        """

    def write(self, path: str, offset: int, ptr: int, nbytes: int) -> int:
        """Write to an offset of a file, which exists. How many bytes went; OSError if it goes wrong."""
