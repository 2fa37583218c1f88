"""Statistics of a dataset that is read in batches, each uploaded while the one before is worked on."""

import numpy as np

import devmem as dm

data = np.random.default_rng(0).normal(loc=3.0, scale=2.0, size=(20_000, 8)).astype("f4")


def batches(rows):
    for start in range(0, len(data), rows):
        yield data[start : start + rows]


total, squares, count, means = 0.0, 0.0, 0, []
for batch in dm.prefetch(batches(1000), depth=2):
    host = batch.numpy()  # here: your work on the device
    total, squares = total + host.sum(), squares + (host**2).sum()
    count += host.size
    means.append(total / count)

mean = total / count
deviation = np.sqrt(squares / count - mean**2)
print(f"{len(means)} batches, mean {mean:.2f}, deviation {deviation:.2f}")

picture = {"lines": {"mean of the batches so far": means}, "x": "batch"}
