"""The chunks of a Zarr array, decoded and uploaded while the program works on the one before."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import zarr

import devmem as dm

with TemporaryDirectory() as folder:
    data = np.random.default_rng(0).random((1000, 64), "f4")
    stored = zarr.create_array(Path(folder) / "data.zarr", data=data, chunks=(128, 64))

    def chunks():
        rows = stored.chunks[0]
        for start in range(0, stored.shape[0], rows):
            yield stored[start : start + rows]

    total = 0.0
    for chunk in dm.prefetch(chunks(), depth=2):
        total += float(chunk.numpy().sum())  # your work
    assert np.isclose(total, data.sum(), rtol=1e-4)
    print(f"{len(range(0, 1000, 128))} chunks, sum {total:.1f}")
