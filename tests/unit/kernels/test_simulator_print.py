"""``print`` in kernels."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from waits import patience

import devmem as dm

pytest.importorskip("greenlet", reason="the simulator needs greenlet")


class Meeting:
    """An output of which two threads begin to write at the same time."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.writers: set[int] = set()
        self.both = threading.Barrier(2)

    def write(self, text: str) -> None:
        self.pieces.append(text)
        if threading.get_ident() not in self.writers:
            self.writers.add(threading.get_ident())
            self.both.wait(patience())

    def flush(self) -> None:
        """Nothing to do."""


@dm.kernel(device=True)
def tell(block, value):
    print("block", block, "has", value)


@pytest.mark.parametrize("shuffle", [None, 3])
def test_what_blocks_print_does_not_mix_in_a_line(simulated, monkeypatch, shuffle):
    def kernel(a):
        tell(dm.blockIdx.x, a[dm.threadIdx.x])
        dm.barrier()
        print(sep="", end=f"{dm.blockIdx.x}\n")

    output = Meeting()
    if shuffle is not None:
        output.both = threading.Barrier(1)  # a reproducible order takes a single thread
    monkeypatch.setattr(sys, "stdout", output)
    with dm.simulator(shuffle=shuffle):
        simulated.run(kernel, 2, 2, np.array([1.5, 2.5], np.float32))
    pieces = [each for each in output.pieces if each]
    assert all(each.endswith("\n") for each in pieces)
    told = [f"block {block} has {value}\n" for block in (0, 1) for value in (1.5, 2.5)]
    assert sorted(pieces) == sorted([*told, *["0\n"] * 2, *["1\n"] * 2])
