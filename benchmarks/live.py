"""The cost of many live arrays: time for the next one, and memory per array."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

from timing import Spread, spread

import devmem as dm

ELEMENTS = 16
#: Arrays that are created or freed between two readings of the clock.
BATCH = 500

MADE, FREED = "device_array", "free, last in first out"
MADE_IN_HOLES, FREED_AT_RANDOM = "device_array after those", "free in random order"


def cost_by_live(levels: list[int], rounds: int) -> dict[str, dict[int, Spread]]:
    """Seconds for one ``device_array`` and one ``free`` by operation and number of live arrays.

    Each level is measured on the way up and again on the way down, so that a machine that slows down meanwhile does not look like
    a growing cost. The garbage collector is enabled.
    """
    times: dict[str, dict[int, list[float]]] = {
        what: {level: [] for level in levels} for what in (MADE, FREED, MADE_IN_HOLES, FREED_AT_RANDOM)
    }
    arrays: list[Any] = []
    chance = random.Random(1)
    for level in [*levels, *reversed(levels)]:
        while len(arrays) < level:
            arrays.append(dm.device_array(ELEMENTS))
        while len(arrays) > level:
            arrays.pop().free()
        gc.collect()
        for _ in range(rounds):
            for what, took in {**_last_in_first_out(arrays), **_in_random_order(arrays, chance)}.items():
                times[what][level].append(took)
    for array in arrays:
        array.free()
    return {what: {level: spread(found) for level, found in by.items()} for what, by in times.items()}


def _last_in_first_out(arrays: list[Any]) -> dict[str, float]:
    start = time.perf_counter()
    for _ in range(BATCH):
        arrays.append(dm.device_array(ELEMENTS))  # noqa: PERF401 -- each append is part of the workload
    made = time.perf_counter()
    for _ in range(BATCH):
        arrays.pop().free()
    freed = time.perf_counter()
    return {MADE: (made - start) / BATCH, FREED: (freed - made) / BATCH}


def _in_random_order(arrays: list[Any], chance: random.Random) -> dict[str, float]:
    """Free randomly chosen arrays, and create as many again."""
    count = min(BATCH, len(arrays))
    places = chance.sample(range(len(arrays)), count)
    start = time.perf_counter()
    for place in places:
        arrays[place].free()
    freed = time.perf_counter()
    for place in places:
        arrays[place] = dm.device_array(ELEMENTS)
    made = time.perf_counter()
    return {MADE_IN_HOLES: (made - freed) / count, FREED_AT_RANDOM: (freed - start) / count}


def bytes_per_array(backend: str, count: int, script: Path, environment: dict[str, str]) -> dict[str, float]:
    """Bytes of host memory for each of ``count`` live arrays, by tracemalloc and by resident size; in a process of its own."""
    command = [sys.executable, str(script), "--count-bytes", backend, str(count)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def count_bytes(count: int) -> dict[str, float]:
    """The measurement of `bytes_per_array`, in the child process."""
    dm.to_device([0.0] * ELEMENTS).free()  # the device is open, the modules are loaded
    found = {}
    resident = _resident()
    if resident:
        arrays = _make(count)
        found["resident"] = (_resident() - resident) / count - 8  # 8: the list that holds the array
        for array in reversed(arrays):
            array.free()
        del arrays
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    arrays = _make(count)
    found["traced"] = (tracemalloc.get_traced_memory()[0] - before) / count - 8
    tracemalloc.stop()
    return found


def _make(count: int) -> list[Any]:
    arrays: list[Any] = [None] * count
    for i in range(count):
        arrays[i] = dm.device_array(ELEMENTS)
    return arrays


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0
