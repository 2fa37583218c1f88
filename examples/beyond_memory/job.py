#!/usr/bin/env python3
"""An array that is larger than all devices: shifted and reduced on four workers that spill, one of which is killed on the way.

    pip install 'devmem-arrays[dask]' bokeh
    DEVMEM_BACKEND=host DEVMEM_HOST_DEVICES=4 python examples/beyond_memory/job.py --dashboard

20 GiB in chunks of 64 MiB, on workers whose devices hold 1 GiB, and not a byte more (the memory stack "limit:1GiB"): half of it
for results, half for what tasks use and what is on its way. They keep 1 GiB on the host; the rest is in files. No GPU is
needed: the devices are the host's, or those of the backend that DEVMEM_BACKEND names. ``--scale 0.1`` makes everything a tenth as
large. It prints what the workers moved and needed, and ends with an error if the result is wrong, if a worker needed too much, or
if the dashboard does not show what was spilled, or not the workers of each device.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import tempfile
import time
import urllib.request
from typing import Any

import dask
import numpy as np
from distributed import Client, wait

import devmem as dm
from devmem.adapters.dask_cluster import local_cluster

GIB = 1 << 30
WORKERS = 4
#: For a machine that has other work: Dask gives up a connection that is silent for 30 s.
PATIENT = {f"distributed.comm.timeouts.{what}": "600s" for what in ("connect", "tcp")}
#: Elements by which the array is shifted.
SHIFT = 1000


def values(start: int, count: int) -> np.ndarray[Any, Any]:
    """Elements of the array: each is another number, which depends on where it is."""
    return np.arange(start, start + count, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(1 << 31)


def make(number: int, count: int) -> dm.DeviceNDArray[Any]:
    """One chunk, on the worker's device."""
    return dm.to_device(values(number * count, count))


def shifted(before: dm.DeviceNDArray[Any], chunk: dm.DeviceNDArray[Any]) -> dm.DeviceNDArray[Any]:
    """A chunk of the shifted array, put together on the device: the end of the chunk before, then the beginning of this one."""
    result = dm.device_array_like(chunk)
    result[:SHIFT] = before[-SHIFT:]
    result[SHIFT:] = chunk[:-SHIFT]
    return result


def reduced(chunk: dm.DeviceNDArray[Any], start: int) -> int:
    """The sum of a chunk, each element times a number that depends on where it is."""
    return checksum(chunk.copy_to_host(), start)


def checksum(elements: np.ndarray[Any, Any], start: int) -> int:
    """Compute what `reduced` computes, for a host array, in arithmetic modulo 2**64."""
    places = np.arange(start, start + elements.size, dtype=np.uint64)
    return int((elements * (places % np.uint64(1009) + np.uint64(1))).sum(dtype=np.uint64))


def expected(chunks: int, count: int) -> int:
    """The right answer, without a device."""
    total = 0
    for number in range(chunks):
        start = number * count
        tail = values((start - SHIFT) % (chunks * count), SHIFT)
        total += checksum(np.concatenate([tail, values(start, count)[:-SHIFT]]), start)
    return total % (1 << 64)


def needed(dask_worker: Any) -> dict[str, Any]:
    """Return the bytes that a worker moved, and the most memory that its process had."""
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, **dask_worker.data.stats()}


def shown(link: str, devices: list[dm.Device]) -> str:
    """Return the title of the memory bar on Dask's dashboard, once the workers have told what they spilled.

    Raises
    ------
    LookupError
        Nothing was shown as spilled within a minute, or a device is not in the table of workers.
    """
    from bokeh.client import pull_session

    with urllib.request.urlopen(link.replace("/status", "/info/main/workers.html")) as page:
        table = page.read().decode()
    missing = [str(each) for number, each in enumerate(devices) if f"{each}-{number}" not in table]
    if missing:
        raise LookupError(f"the dashboard's workers are not on {missing}")
    title, until = "", time.monotonic() + 60
    while "spilled to disk" not in title:
        if time.monotonic() > until:
            raise LookupError(f"the dashboard shows nothing as spilled: {title!r}")
        session = pull_session(url=link)
        title = session.document.get_model_by_name("cluster_memory").title.text
        session.close()
    return title


def emptied(dask_worker: Any) -> None:
    """Remove a worker's files: it has a few seconds only when it is closed."""
    dask_worker.data.close()


def kill() -> None:
    """End this process at once."""
    signal.raise_signal(signal.SIGKILL)


def main() -> int:
    """Run the job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="1: 20 GiB")
    parser.add_argument("--dashboard", action="store_true", help="show Dask's dashboard (needs bokeh)")
    parser.add_argument("--keep", action="store_true", help="wait for Enter before the end, for the dashboard")
    options = parser.parse_args()
    chunks, chunk_bytes, tier = 320, int(64 * (1 << 20) * options.scale) // 8 * 8, int(GIB * options.scale)
    count, began = chunk_bytes // 8, time.perf_counter()
    devices = [each for each in dm.devices() if each.backend == dm.current_device().backend]
    devices = [devices[at % len(devices)] for at in range(WORKERS)]
    address = ":8787" if options.dashboard else None
    with (
        tempfile.TemporaryDirectory(prefix="devmem-job-") as folder,
        dask.config.set(PATIENT),
        local_cluster(
            devices,
            memory=f"limit:{tier}",
            device_limit=tier // 2,
            host_limit=tier,
            disk=folder,
            dashboard_address=address,
            config=PATIENT | {"distributed.worker.transfer.message-bytes-limit": chunk_bytes},
        ) as cluster,
        Client(cluster) as client,
    ):
        if options.dashboard:
            print(f"dashboard: {cluster.dashboard_link}", flush=True)
        array = [client.submit(make, number, count) for number in range(chunks)]
        wait(array)
        print(f"{chunks * chunk_bytes / GIB:.1f} GiB made after {time.perf_counter() - began:.0f} s", flush=True)
        if options.dashboard:
            print(f"the dashboard shows: {shown(cluster.dashboard_link, devices)}", flush=True)
        moved = [client.submit(shifted, array[number - 1], array[number]) for number in range(chunks)]
        sums = [client.submit(reduced, chunk, number * count) for number, chunk in enumerate(moved)]
        del moved  # each chunk is dropped when it has been reduced
        victim = next(iter(client.scheduler_info()["workers"]))
        client.submit(kill, workers=[victim], retries=0, pure=False)
        total = sum(client.gather(sums)) % (1 << 64)
        found = client.run(needed)
        seconds = time.perf_counter() - began
        peak = max(each["peak"] for each in found.values())
        spilled = sum(move["bytes"] for each in found.values() for move in each["moves"].values())
        # The tiers are both in the process where the devices are the host's. Beside them: the three chunks of a task; those of
        # four transfers, on the host and on the device; Python, 150 MiB; and what the host's device memory and its page-locked
        # memory keep of what was freed, 256 MiB each.
        bound = 2 * tier + 12 * chunk_bytes + 662 * (1 << 20)
        right = total == expected(chunks, count)
        result = {"right": right, "seconds": round(seconds, 1), "peak": peak, "bound": bound, "moved": spilled}
        print(json.dumps(result), flush=True)
        if options.keep:
            input("Enter ends it")
        client.run(emptied)
    return 0 if right and peak <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
