"""A kernel, y = a x + y, under the same names on every backend: here a simulator runs it, with a GPU its vendor's compiler."""

import numpy as np

import devmem as dm


@dm.kernel
def saxpy(a, x, y):
    i = dm.grid(1)
    if i < x.size:
        y[i] += a * x[i]


x = np.linspace(0, 1, 1000, dtype="f4")
y = np.sin(6 * x).astype("f4")
dx, dy = dm.to_device(x), dm.to_device(y)

block = 128
saxpy[(x.size + block - 1) // block, block](np.float32(2), dx, dy)

result = dy.numpy()
assert np.allclose(result, 2 * x + y, atol=1e-6)
print(f"{result.size} elements, the last is {result[-1]:.3f}")

picture = {"lines": {"y before": y.tolist(), "y after": result.tolist()}, "x": "element"}
