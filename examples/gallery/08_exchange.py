"""Memory shared with another library, without a copy: DLPack in both directions. NumPy stands here for PyTorch, JAX or CuPy."""

import os

import numpy as np

os.environ["DEVMEM_HOST_STRICT"] = "0"  # so that NumPy may look at the host backend's memory
import devmem as dm

array = dm.to_device(np.arange(6.0).reshape(2, 3))

theirs = np.from_dlpack(array)  # torch.from_dlpack(array), jax.dlpack.from_dlpack(array), cupy.from_dlpack(array)
same = theirs.__array_interface__["data"][0] == array.ptr
print(f"the other library sees the same memory: {same}")

before = theirs.tolist()
array.fill(7)
print(f"what devmem writes, it reads: {theirs.sum():.0f}")

ours = dm.from_dlpack(np.arange(4.0))  # and back: any array with __dlpack__
print(f"devmem's view of their array: {ours.shape}, {ours.dtype}, {ours.tolist()}")

del array  # the memory lives as long as one of the two uses it
print(f"still there: {theirs[0, 0]:.0f}")

picture = {"images": {"what NumPy sees": before, "after array.fill(7)": theirs.tolist()}}
