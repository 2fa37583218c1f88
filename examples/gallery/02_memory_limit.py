"""A limit of 2 GiB on what a program may allocate: what is above it is refused, and the error says where the memory is."""

import devmem as dm

MIB = 1 << 20

with dm.use_memory("limit:2GiB,statistics"):
    arrays, held = [], []
    try:
        while True:
            arrays.append(dm.empty(256 * MIB, "u1"))
            held.append(len(arrays) * 256)
    except dm.OutOfMemory as error:
        print(f"{type(error).__name__} after {len(arrays)} arrays of 256 MiB")
    del arrays[4:]  # dropping some makes room
    held += [len(arrays) * 256]
    arrays.append(dm.empty(1024 * MIB, "u1"))
    held += [held[-1] + 1024]
    print(f"and after dropping some, {arrays[-1].nbytes // MIB} MiB fit")

picture = {"bars": {"MiB that are held": held}, "x": "step", "line": 2048}
