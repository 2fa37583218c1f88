"""Heat that spreads on a plate: a stencil on two arrays that take turns, in two dimensions of blocks and threads."""

import numpy as np

import devmem as dm

N, STEPS = 32, 30


@dm.kernel
def spread(old, new):
    i, j = dm.grid(2)
    if 0 < i < N - 1 and 0 < j < N - 1:
        new[i, j] = 0.25 * (old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1])


plate = np.zeros((N, N), "f4")
plate[0, :] = 100.0  # a hot edge
plate[20:24, 4:8] = 60.0

old, new = dm.to_device(plate), dm.to_device(plate)
for _ in range(STEPS):
    spread[(4, 4), (8, 8)](old, new)
    old, new = new, old

result = old.numpy()
print(f"after {STEPS} steps the plate has {result[1:-1, 1:-1].mean():.2f} degrees on average")

picture = {"images": {"before": plate.tolist(), f"after {STEPS} steps": result.tolist()}}
