"""A part of an image is uploaded row by row, without a copy of it on the host, and is written back into the middle of another."""

import numpy as np

import devmem as dm

y, x = np.mgrid[0:120, 0:160]
image = ((x // 10 + y // 10) % 2 * 200 + x / 4).astype("u1")

crop = dm.to_device(image[30:90, 40:120])  # no copy on the host: rows with gaps between them
print(f"{crop.shape}, {crop.nbytes:,} bytes on the device")

crop[::2, :] = 0  # every other row; those in between are not written
frame = np.full((120, 160), 90, "u1")
crop.copy_to_host(frame[30:90, 40:120])  # into the middle, around which nothing is touched
assert (frame[:30] == 90).all()

for path, counted in dm.transfer_stats().items():
    print(f"{path}: {counted['bytes']:,} bytes in {counted['copies']} copies")

picture = {"images": {"image": image.tolist(), "frame": frame.tolist()}}
