"""What a pool saves: a program that allocates in a loop asks the driver for memory a few times, not at every step."""

import numpy as np

import devmem as dm

ROUNDS = 50


def work():
    x = dm.to_device(np.ones((64, 64)))
    y, z = dm.empty_like(x), dm.zeros(1000)
    y.copy_to_device(x)
    return y[0, 0] + z.size


calls = {}
for stack in ("driver", "pool"):
    below = dm.memory.Statistics(dm.memory.DriverMemory())
    resource = below if stack == "driver" else dm.memory.PoolMemory(below)
    with dm.use_memory(resource):
        for _ in range(ROUNDS):
            work()
    calls[stack] = below.total_count
    print(f"{stack}: the driver was asked {calls[stack]} times in {ROUNDS} rounds of 3 arrays")

picture = {"bars": {"allocations by the driver": list(calls.values())}, "names": list(calls)}
