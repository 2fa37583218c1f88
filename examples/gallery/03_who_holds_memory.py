"""Which lines of a program hold its device memory: a snapshot of every live block, with the line that asked for it."""

from collections import Counter

import numpy as np

import devmem as dm


def load_weights():
    return dm.to_device(np.ones((512, 512), "f4")), dm.to_device(np.ones(512, "f4"))


def make_buffers():
    return dm.zeros((1024, 512), "f8"), dm.zeros(4096, "u1")


with dm.use_memory("statistics:owners,pool"):
    weights, buffers = load_weights(), make_buffers()
    held = Counter()
    for block in dm.memory_snapshot().blocks:
        file, line, function = block.site
        held[f"{function}, line {line}"] += block.nbytes

most = held.most_common()
for place, nbytes in most:
    print(f"{nbytes / 2**20:5.2f} MiB  {place}")

picture = {"bars": {"MiB": [nbytes / 2**20 for _, nbytes in most[::-1]]}, "names": [place for place, _ in most[::-1]]}
