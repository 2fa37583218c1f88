"""Random programs on one core, told as JSON: ``python core_programs.py FIRST LAST`` runs those seeds.

Every third program has a pool, every second one a table whose copies take the stream.

A program makes, copies, slices, reshapes, drops and frees arrays, with failures of the driver, streams, scopes, deferred cleanup
and registered memory in between. A line has what each step gave (values or the error), the driver's calls in order, the counters
and what is left alive. The same seed must give the same line on both cores.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import warnings

import numpy as np
from table_driver import TableBackend

import devmem as dm
from devmem._core.device.device import current_open_device

DTYPES = ("u1", "i4", "f8", "c16", "M8[s]", [("a", "i4"), ("b", "f8")])
#: What asks and says which device is current. On the way out of a failure the cores do that in other places.
CONTEXT = ("get_current", "set_current")
FUNCTIONS = (
    *("get_current", "set_current", "allocate", "free", "copy_up", "copy_down", "synchronize"),
    *("enqueue_up", "enqueue_down", "event_record"),
)


class Program:
    """The state of one program, and the steps that it is made of."""

    def __init__(self, seed, backend, pooled):
        self.random, self.pooled = random.Random(seed), pooled
        self.backend = backend
        self.arrays, self.streams, self.told = [], [], []

    # -- steps: each returns what it gave ------------------------------------------------------------------------------

    def host(self):
        shape = self.random.choice([(3,), (16,), (4, 5), (2, 3, 4), (0,), (), (1000,), (1, 7)])
        kind = self.random.choice(DTYPES)
        size = int(np.prod(shape)) if shape else 1
        made = np.arange(size).astype("i8").astype("i4" if isinstance(kind, list) or kind.startswith("M") else kind)
        if isinstance(kind, list):
            filled = np.zeros(size, kind)
            filled["a"], filled["b"] = made, made
            made = filled
        elif kind.startswith("M"):
            made = made.astype("i8").view(kind)
        made = made.reshape(shape)
        twist = self.random.randrange(8)
        if twist == 0:
            made = made.T
        elif twist == 1 and made.ndim:
            made = made[::2]
        elif twist == 2:
            made.flags.writeable = False
        elif twist == 3 and made.ndim:
            made = made[::-1]
        return made

    def pick(self):
        return self.random.choice(self.arrays) if self.arrays else dm.device_array(4)

    def keep(self, array):
        self.arrays.append(array)
        return self.shown(array)

    def shown(self, array):
        return [list(array.shape), list(array.strides), str(array.dtype), array.is_c_contiguous(), bool(array.ptr)]

    def upload(self):
        return self.keep(dm.to_device(self.host(), copy=self.random.random() < 0.9))

    def many(self):
        hosts = [self.host() for _ in range(self.random.randrange(5))]
        made = dm.to_device_many([each for each in hosts if each.flags.c_contiguous] or hosts)
        return [[self.keep(each), self.values(each.copy_to_host())] for each in made]

    def allocate(self):
        shape = self.random.choice([3, 16, (4, 5), (0,), (2, 2, 2), -1, 1 << 30])
        order = self.random.choice(["C", "C", "F", "X"])
        return self.keep(
            dm.device_array(shape, self.random.choice(["f8", np.float32, np.dtype("u2"), object]), order=order)
        )

    def drop(self):
        for _ in range(self.random.randrange(1, 14)):
            dm.to_device(np.arange(5.0))

    def forget(self):
        if self.arrays:
            self.arrays.pop(self.random.randrange(len(self.arrays)))

    def free(self):
        self.pick().free()

    def download(self):
        return self.values(self.pick().copy_to_host())

    def download_into(self):
        array = self.pick()
        out = np.zeros(array.shape, array.dtype)
        twist = self.random.randrange(6)
        if twist == 0:
            out = np.zeros(7, "i2")
        elif twist == 1:
            out.flags.writeable = False
        elif twist == 2:
            out = np.zeros(array.shape, array.dtype, "F")
        assert array.copy_to_host(out) is out
        return self.values(out)

    def values(self, host):
        return [str(host.dtype), host.reshape(-1)[:5].tolist().__repr__()]

    def upload_into(self):
        array = self.pick()
        source = self.host() if self.random.random() < 0.3 else np.full(array.shape, 7).astype(array.dtype)
        dm.to_device(source, to=array) if self.random.random() < 0.5 else array.copy_to_device(source)

    def part(self):
        choose, array = self.random.choice, self.pick()
        kept = [
            slice(1, 3),
            slice(None),
            slice(None, None, 2),
            slice(5, 1, -2),
            slice(-3, None),
            slice(0, 0),
            slice(10**30),
        ]
        key = choose(
            [
                *kept,
                0,
                1,
                -1,
                (slice(1), 0),
                slice("a"),
                slice(None, None, 0),
                Ellipsis,
                None,
                slice(None, None, -(10**20)),
            ]
        )
        found = array[key]
        return self.keep(found) if isinstance(found, dm.DeviceNDArray) else repr(found)

    def reshape(self):
        shapes = [(-1,), (4, 4), (2, -1), (1, 3, 1), (16, 1), (5, 4), (-1, -1), (0,), (2.5,), ((4, 4),), ([2, 8],), ()]
        return self.keep(self.pick().reshape(*self.random.choice(shapes)))

    def on_a_stream(self):
        stream = dm.stream()
        array = dm.to_device(np.arange(6.0), stream=stream)
        array.copy_to_host(stream=stream)
        self.keep(array)
        if self.random.random() < 0.5:
            stream.close()

    def enqueued(self):
        array, gave = self.pick(), []
        if not self.streams or self.random.random() < 0.2:
            self.streams.append(dm.stream(non_blocking=self.random.random() < 0.3))
        stream = self.random.choice(self.streams)
        for _ in range(self.random.randrange(4)):
            source, out = np.full(array.shape, 7).astype(array.dtype), np.zeros(array.shape, array.dtype)
            if self.random.random() < 0.1:
                source = self.host()
            array.copy_to_device(source, stream)
            array.copy_to_host(out, stream)
            gave.append(self.values(out))
        if self.random.random() < 0.5:
            stream.synchronize()
        if self.random.random() < 0.1:
            self.streams.remove(stream)
            stream.close()
        return [*gave, len(current_open_device().completions.in_flight)]

    def used_again(self):
        choose = self.random.choice
        for name in CONTEXT:  # where the core cannot look at a spare handle, Python does once more
            self.backend.driver.failing.pop(name, None)
        stream = dm.stream(priority=choose([0, 0, 0, -9, 1.5]), non_blocking=choose([False, True]))
        event = dm.event(choose([True, False]))
        event.record(choose([0, None, 1, stream, dm.default_stream()]))
        seen = [stream.handle, stream.non_blocking, stream.simple, event.handle, event.recorded, event.query()]
        for each in self.random.sample([stream, event, stream, event], self.random.randrange(5)):
            each.close()
        return [*seen, repr(stream), stream.closed, stream.plain, type(event).__name__]

    def bound(self):
        return self.keep(self.pick().bind(1))

    def current_stream(self):
        with dm.stream():
            return self.values(dm.to_device(np.arange(3.0)).copy_to_host())

    def scoped(self):
        with dm.use_memory(self.random.choice(["statistics", "limit:1000000", "pool"])):
            self.keep(dm.to_device(np.arange(8.0)))

    def deferred(self):
        with dm.defer_cleanup():
            self.drop()
            self.free()

    def registered(self):
        pages = np.zeros(8192, "u1")
        with dm.pinned(pages):
            dm.to_device(np.arange(3.0)).copy_to_host()

    def fail(self):
        # A hit of a pool asks nothing on the compiled core, not even what is current.
        name, nth = self.random.choice(FUNCTIONS[2 * self.pooled :]), self.random.randrange(1, 6)
        if name in CONTEXT:
            nth = 1
        self.backend.driver.fail(name, nth, self.random.choice([2, 5]))

    def elsewhere(self):
        self.backend.driver.current = self.random.choice([0, 7])

    def trim(self):
        dm.trim()

    def exchanged(self):
        for name in CONTEXT:  # an import on the compiled core asks no driver
            self.backend.driver.failing.pop(name, None)
        seen = self.shown(dm.from_dlpack(self.pick()))  # not kept: its memory is freed when the array's is
        source = dm.to_device(
            np.arange(12.0).reshape(3, 4)[self.random.choice([slice(None), slice(1, 1), slice(1, 2)])]
        )
        return [seen, self.keep(dm.from_dlpack(self.random.choice([source, source.T, source[::2]])))]

    def exported(self):
        # Not what was imported: its owner is let go of at the next safe point, and the cores have these in other places.
        choose, array = self.random.choice, dm.to_device(self.host())
        for name in CONTEXT:
            self.backend.driver.failing.pop(name, None)
        options = {
            "stream": choose([None, 1, -1, 2, 0, "x"]),
            "max_version": choose([None, (1, 0), (0, 5), "x", (1, "y")]),
        }
        capsule = array.__dlpack__(**options, copy=choose([None, None, False, True]))
        lent = len(current_open_device().memory.stacks.heap.lent)
        version = "versioned" in repr(capsule)
        return [version, lent]

    def looked_at(self):
        return [*dm.memory_info()[2:4], *dm.memory_info().host[:2]]

    STEPS = (
        [upload] * 8 + [many] * 2 + [allocate] * 4 + [drop] * 3 + [forget] * 4 + [free] * 3 + [download] * 5 + [download_into] * 5
        + [upload_into] * 5 + [part] * 6 + [reshape] * 4 + [on_a_stream, bound, current_stream, scoped, deferred]
        + [used_again] * 5 + [enqueued] * 8
        + [registered, elsewhere, trim, looked_at] + [fail] * 2 + [exchanged, exported] * 2
    )  # fmt: skip

    def run(self, steps):
        for _ in range(steps):
            step = self.random.choice(self.STEPS)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    gave = step(self)
                except Exception as error:
                    gave = f"{type(error).__name__}: {error}"
                    del error
            self.told.append([step.__name__, gave, sorted(str(each.message) for each in warned)])


def outcome(seed, steps=60):
    backend = TableBackend(f"table{seed}", copies_take_stream=seed % 2 == 1)
    dm.register_backend(backend)
    with dm.use_backend(backend.name):
        pooled = seed % 3 == 1
        if pooled:
            dm.use_memory(dm.memory.PoolMemory())
        program = Program(seed, backend, pooled)
        opened = current_open_device()
        program.run(steps)
        backend.driver.failing.clear()
        stats = {path: [line["copies"], line["bytes"]] for path, line in dm.transfer_stats().items()}
        program.arrays.clear()
        gc.collect()
        dm.trim()
        heap = opened.memory.stacks.heap
        left = [
            len(heap.live),
            len(backend.driver.memory),
            set(backend.driver.table_blocks) <= set(backend.driver.memory),
            len(opened.free_queue.pending),
        ]
        # Where an owner is let go of, the default stream is asked at the next safe point, which the cores have in other places.
        calls = [list(call) for call in backend.driver.calls if call[0] not in CONTEXT and call != ("stream_query", 1)]
        taken = opened.statistics.compiled(False) if opened.statistics.compiled else ((0,), (0,))
    return {"seed": seed, "told": program.told, "calls": calls, "stats": stats, "left": left}, sum(
        each[0] for each in taken
    )


if __name__ == "__main__":
    compiled = 0
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        line, copies = outcome(number)
        compiled += copies
        print(json.dumps(line))
    print(json.dumps(compiled))
