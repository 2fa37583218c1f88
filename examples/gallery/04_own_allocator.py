"""An allocator of your own: two methods. This one counts the sizes that a program asks for, and takes memory from a pool."""

from collections import Counter

import numpy as np

import devmem as dm


class Counting:
    stream_ordered = True  # the pool below is

    def __init__(self, upstream):
        self.upstream, self.sizes = upstream, Counter()

    def bind(self, driver):
        self.upstream.bind(driver)

    def allocate(self, nbytes, stream):
        self.sizes[nbytes] += 1
        return self.upstream.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.upstream.deallocate(ptr, nbytes, stream)


counting = Counting(dm.memory.PoolMemory())
with dm.use_memory(counting):
    for number in range(100):
        dm.to_device(np.zeros(1000 * (1 + number % 3)))

for nbytes, count in sorted(counting.sizes.items()):
    print(f"{count} blocks of {nbytes:,} bytes")

picture = {"bars": {"blocks": list(counting.sizes.values())}, "names": [f"{n:,} B" for n in counting.sizes]}
