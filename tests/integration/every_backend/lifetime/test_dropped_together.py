"""A block and its home stream that the collector takes together."""

from __future__ import annotations

import gc

import numpy as np

import devmem as dm


def test_a_block_outlives_the_handle_of_its_stream(still):
    class Cycle:
        def __init__(self):
            self.itself = self
            self.stream = dm.stream()
            self.array = dm.to_device(np.arange(1000.0), stream=self.stream)
            self.stream.synchronize()

    for _ in range(3):
        Cycle()
        gc.collect()
        dm.trim()  # a warning is an error here
        dm.trim()
    assert dm.memory_info().live == 0
