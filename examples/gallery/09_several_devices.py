"""One array on several devices: cut along an axis, uploaded to all of them at once, and put together again."""

import numpy as np

import devmem as dm

devices = dm.devices()[-2:]  # two of the host backend's; GPUs of several vendors go as well
image = np.add.outer(np.arange(60), np.arange(80)).astype("f4")

pieces = dm.scatter(image, devices)
for piece in pieces:
    print(f"{piece.device}: rows {piece.shape[0]}, {piece.nbytes:,} bytes")

for number, piece in enumerate(pieces):
    with piece.device:  # work on each where it is
        piece[:, :10] = 150.0 * number

together = dm.gather(pieces)
assert together.shape == image.shape
print(f"together: {together.shape}, left edge {together[0, 0]:.0f} and {together[-1, 0]:.0f}")

picture = {"images": {"before": image.tolist(), "put together": together.tolist()}}
