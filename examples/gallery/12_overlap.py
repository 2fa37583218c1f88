"""Two streams: results of one batch come back while the next one goes up. Events say in which order things were done."""

import numpy as np

import devmem as dm

up, down = dm.Stream(), dm.Stream()
sources = [np.full(100_000, number, "f4") for number in range(4)]
results, order = [], []

for source in sources:
    array = dm.to_device(source, stream=up)
    down.wait(up.record())  # the download begins when this upload is done, and not before
    host = dm.pinned_array(source.shape, source.dtype)
    transfer = dm.copy_async(array, host, stream=down)  # returns at once, and keeps both sides alive
    results.append(transfer)
    order.append(down.record(timing=True))

print([float(each.result()[0]) for each in results])
print(results[0])
order[-1].synchronize()
passed = [0.0, *(order[0].elapsed_time(event) for event in order[1:])]
assert passed == sorted(passed)
print("the downloads were done in order")

picture = {"lines": {"first element of each result": [float(each.result()[0]) for each in results]}, "x": "batch"}
