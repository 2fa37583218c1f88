"""One runtime of `differential`: reads programs as lines of JSON, runs each, and answers each step with a line of what it gave.

A step is a verb and its arguments; things are told by name (``d`` for device arrays, ``h`` for host arrays, ``s`` for streams,
``e`` for events, ``t`` for transfers). An answer is a pair: what is compared (a checksum and the first elements, an error's type,
or nothing), and what is told besides.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import devmem as dm
from devmem.testing import emulator

#: The most microseconds by which an emulated driver delays an operation.
JITTER = 100


def values(shape: Any, dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """What host arrays are filled with."""
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def place(key: Any) -> Any:
    """A key out of start, count and step on each axis; None is all of it."""
    if key is None:
        return ...
    ends = [start + count * step for start, count, step in key]
    return tuple(slice(start, None if end < 0 else end, step) for (start, _, step), end in zip(key, ends, strict=True))


class Program:
    """The things of one program, and the verbs."""

    def __init__(self) -> None:
        self.things: dict[str, Any] = {"s0": dm.legacy_default_stream()}
        self.memory: Any = None

    def on(self, stream: Any) -> Any:
        return self.things[stream] if stream else 0

    def part(self, name: str, key: Any) -> Any:
        return self.things[name][place(key)]

    # -- streams and events --------------------------------------------------------------------------------------------

    def stream(self, name: str, non_blocking: bool) -> None:
        self.things[name] = dm.stream(non_blocking=non_blocking)

    def close_stream(self, name: str) -> None:
        self.things.pop(name).close()

    def sync(self, stream: str) -> None:
        self.things[stream].synchronize()

    def sync_all(self) -> None:
        dm.synchronize()

    def query(self, stream: str) -> None:
        self.things[stream].query()  # what it says is a matter of time

    def record(self, name: str, stream: str) -> None:
        self.things[name] = self.things[stream].record()

    def sync_event(self, name: str) -> None:
        self.things[name].synchronize()

    def wait_event(self, stream: str, event: str) -> None:
        self.things[stream].wait(self.things[event])

    def wait_stream(self, stream: str, other: str) -> None:
        self.things[stream].wait(self.things[other])

    # -- memory --------------------------------------------------------------------------------------------------------

    def use_memory(self, text: str) -> None:
        if self.memory is not None:
            self.memory.close()
        self.memory = dm.use_memory(text)

    def host(self, name: str, shape: Any, dtype: str, kind: str, seed: int) -> None:
        makers: dict[str, Callable[..., Any]] = {"pinned": dm.pinned_array, "mapped": dm.mapped_array}
        made = makers.get(kind, np.empty)(shape, dtype)
        made[...] = values(shape, dtype, seed)
        self.things[name] = made

    def write(self, name: str, seed: int) -> None:
        host = self.things[name]
        host[...] = values(host.shape, host.dtype.str, seed)

    def empty(self, name: str, shape: Any, dtype: str, stream: Any) -> None:
        self.things[name] = dm.empty(shape, dtype, stream=self.on(stream))

    def drop(self, name: str) -> None:
        """Drop it, whatever still runs. What overwrites memory that was given back too early comes behind."""
        del self.things[name]
        np.full(5000, 0xA5, np.uint8)
        dm.pinned_array(5000, np.uint8)[...] = 0xA5

    def free(self, name: str) -> None:
        self.things[name].free()
        self.drop(name)

    def rebind(self, name: str) -> None:
        self.things[name] = self.things[name].bind(0)

    def trim(self) -> None:
        dm.trim()

    def collect(self) -> None:
        gc.collect()

    # -- copies --------------------------------------------------------------------------------------------------------

    def new(self, name: str, shape: Any, dtype: str, kind: str, seed: int, stream: Any) -> None:
        """An upload whose source is dropped at once."""
        self.host("source", shape, dtype, kind, seed)
        try:
            self.things[name] = dm.to_device(self.things["source"], stream=self.on(stream))
        finally:
            self.drop("source")

    def to_device(self, name: str, host: str, stream: Any) -> None:
        self.things[name] = dm.to_device(self.things[host], stream=self.on(stream))

    def copy(self, to: str, to_key: Any, source: str, key: Any, stream: Any) -> None:
        if to.startswith("d"):
            self.part(to, to_key).copy_to_device(self.part(source, key), stream=self.on(stream))
        else:
            self.part(source, key).copy_to_host(self.part(to, to_key), stream=self.on(stream))

    def copy_async(self, name: str, to: str, to_key: Any, source: str, key: Any, stream: Any) -> None:
        self.things[name] = dm.copy_async(self.part(source, key), self.part(to, to_key), stream=self.on(stream))

    def finish(self, name: str) -> None:
        self.things.pop(name).wait()

    def duplicate(self, name: str, source: str, stream: Any) -> None:
        self.things[name] = self.things[source].copy(stream=self.on(stream))

    def fill(self, name: str, key: Any, value: int, stream: Any) -> None:
        self.part(name, key).fill(value, stream=self.on(stream))

    def many_up(self, names: list[str], hosts: list[str], stream: Any) -> None:
        made = dm.to_device_many([self.things[each] for each in hosts], self.on(stream))
        self.things.update(zip(names, made, strict=True))

    def many_down(self, names: list[str]) -> Any:
        return np.concatenate([each.ravel().view("u1") for each in dm.to_host_many([self.things[n] for n in names])])

    def abandon(self, source: str, key: Any, stream: Any) -> None:
        """A download whose destination is dropped at once."""
        self.part(source, key).copy_to_host(stream=self.on(stream))

    def read(self, name: str, key: Any) -> Any:
        return self.part(name, key).copy_to_host()

    def look(self, name: str) -> Any:
        return np.array(self.things[name])

    # -- what is wrong -------------------------------------------------------------------------------------------------

    def wrong(self, which: int) -> Any:
        return WRONG[which % len(WRONG)]()

    def end(self) -> Any:
        """What is left when all is dropped."""
        self.things.clear()
        if self.memory is not None:
            self.memory.close()
        gc.collect()
        dm.synchronize()
        dm.trim()
        return np.array([dm.memory_info().live, dm.memory_info().pending])


def _closed_stream() -> None:
    stream = dm.stream()
    stream.close()
    dm.to_device(np.arange(3), stream=stream)


def _freed_array() -> None:
    array = dm.zeros(3)
    array.free()
    array.copy_to_host()


def _read_only() -> None:
    host = np.zeros(3)
    host.flags.writeable = False
    dm.zeros(3).copy_to_host(host)


WRONG: list[Callable[[], Any]] = [
    _closed_stream,
    _freed_array,
    _read_only,
    lambda: dm.empty(1 << 60, "u1"),
    lambda: dm.pinned_array(1 << 60, "u1"),
    lambda: dm.empty(-3),
    lambda: dm.empty(3, object),
    lambda: dm.zeros(3).copy_to_device(np.zeros(4)),
    lambda: dm.zeros(3).copy_to_device(np.zeros(3, "i4")),
    lambda: dm.zeros(3).copy_to_host(np.zeros((3, 1))),
    lambda: dm.copy_async(np.zeros(3), dm.zeros(2)),
    lambda: dm.zeros(3)[5],
    lambda: dm.zeros(3).fill("x"),
    lambda: dm.to_device(np.zeros(3), stream="s1"),
    lambda: dm.to_device_many([np.zeros(3), object()]),
    lambda: dm.event(timing=False).elapsed_time(dm.event(timing=False)),
    lambda: dm.use_memory("no such part"),
    lambda: dm.legacy_default_stream().close(),
]


def answer(run: Callable[[], Any]) -> tuple[str, str]:
    """What a step gave: to be compared, and to be told."""
    try:
        given = run()
    except Exception as error:
        return f"!{type(error).__name__}", str(error)[:300]
    if given is None:
        return "", ""
    data = np.ascontiguousarray(given)
    return f"{zlib.crc32(data.tobytes()):08x} {data.dtype} {data.shape} {data.ravel()[:4].tolist()}", ""


def main() -> int:
    """Say what the device can do, or why there is none; then programs until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a runtime prints is no answer
    try:
        device = dm.current_device()
        can = sorted(str(each) for each in device.info.capabilities | device.info.memory_kinds)
    except dm.DevmemError as error:
        print(json.dumps({"absent": str(error)}), file=answers, flush=True)
        return 0
    print(json.dumps({"device": device.info.name, "can": can}), file=answers, flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        if emulated := os.environ.get("DEVMEM_EMULATOR"):
            emulator.control(emulated).delay(0, jitter=JITTER, seed=told["seed"])
        program = Program()
        for verb, *arguments in told["steps"]:
            given = answer(partial(getattr(program, verb), *arguments))
            print(json.dumps(given), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
