"""A model in a .safetensors file: written from the device, listed without loading, and read by name."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import devmem as dm

rng = np.random.default_rng(0)
weights = {f"layer.{n}.weight": dm.to_device(rng.normal(size=(64, 64 * n)).astype("f4")) for n in range(1, 5)}
weights |= {f"layer.{n}.bias": dm.zeros(64, "f4") for n in range(1, 5)}

with TemporaryDirectory() as folder:
    path = Path(folder) / "model.safetensors"
    dm.save(weights, path, metadata={"step": "1000"})
    stored = dm.load(path, lazy=True)  # reads the header
    print(f"{len(stored)} arrays of step {stored.metadata['step']}")
    last = stored["layer.4.weight"]  # reads this one
    print(f"layer.4.weight: {last.shape}, {last.dtype}, on {last.device}")
    everything = dm.load(path)  # all of it

same = all(np.array_equal(everything[name].numpy(), array.numpy()) for name, array in weights.items())
print(f"unchanged: {same}")

sizes = {name: array.nbytes / 1024 for name, array in weights.items() if array.nbytes > 1000}
picture = {"bars": {"KiB": list(sizes.values())}, "names": list(sizes)}
