"""Ctrl-C at points of every verb; a handler that calls devmem, and the collector, at points of every verb.

Behind an interrupt three things hold (docs/explanation/ordering-and-lifetime.md): no address dangles or is used twice, nothing
deadlocks, and the next call works, until a reset gives everything back. What an interrupt may leave for a moment (a block too
many, a count too high) is not looked at. The points are drawn with a seed of their own for each verb; ``INTERRUPT_POINTS=all``
goes through every one.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import itertools
import os
import random
import sys
from pathlib import Path

import campaign
import interrupts
import numpy as np
import pytest

import devmem as dm
from devmem._core.device.device import current_open_device
from devmem.testing.emulator.control import EmulatorNotLoaded, control

POINTS = os.environ.get("INTERRUPT_POINTS", "20")
#: A handler takes longer: it calls devmem in all ways.
REENTRIES = POINTS if POINTS == "all" else "6"
DATA = np.arange(4000, dtype=np.float32).reshape(40, 100)
PACKAGE = Path(dm.__file__).parent
#: The fault injection and the emulators are no part of devmem. The host backend has a test of its own, with other rules:
#: its threads complete jobs whatever comes.
ELSEWHERE = (PACKAGE / "testing", PACKAGE / "backends" / "host")


@functools.cache
def watched(code):
    path = Path(code.co_filename)
    return path.is_relative_to(PACKAGE) and not any(map(path.is_relative_to, ELSEWHERE))


@pytest.fixture(autouse=True)
def fresh_device_afterwards():
    """An interrupt at the beginning of ``with use_memory()`` may leave the stack in force."""
    yield
    dm.close()


class World:
    """What the verbs work on, and what they leave."""

    def __init__(self, folder):
        self.stream = dm.stream()
        self.array, self.other = dm.to_device(DATA), dm.to_device(DATA)
        self.large = np.arange(3 << 20, dtype=np.uint8)
        self.large_array = dm.to_device(self.large)
        self.out, self.pages = np.empty_like(DATA), np.arange(8192, dtype=np.uint8)
        self.pool = dm.memory.PoolMemory()
        with dm.use_memory(self.pool):
            dm.device_array(3000, np.uint8)  # binds it
        self.counting = dm.memory.Limit(dm.memory.Statistics(), max_bytes=1 << 20)
        with dm.use_memory(self.counting):
            dm.device_array(3000, np.uint8)
        self.pinned = dm.pinned_array(DATA.shape, DATA.dtype)
        self.smart = dm.SmartArray(DATA)
        folder.mkdir(exist_ok=True)
        self.file = folder / "array.npy"
        dm.save(self.array, self.file)
        self.large_file = folder / "large.npy"
        dm.save(self.large_array, self.large_file)
        self.foreign = dm.external_stream(int(self.stream.handle))


def deferred(world):
    with dm.defer_cleanup():
        dm.to_device(DATA)


def pinned(world):
    with dm.pinned(world.pages):
        world.array.copy_to_device(DATA)


def pinned_upload(world):
    with dm.pinned(world.out):
        world.array.copy_to_device(world.out, stream=world.stream)
        world.array.copy_to_host(world.out, stream=world.stream)


def registered(world):
    dm.register(world.pages, world.out)
    dm.deregister(world.out, world.pages)


def mapped(world):
    with dm.mapped(world.pages) as view:
        view.copy_to_host()


def with_event(world):
    event = dm.event()
    event.record(world.stream)
    event.wait(0)
    event.synchronize()


def timed(world):
    start, end = world.stream.record(dm.event()), world.stream.record(dm.event())
    end.synchronize()
    dm.event_elapsed_time(start, end)


def on_a_stream(world):
    array = dm.to_device(world.pinned, stream=world.stream)
    array.copy_to_host(world.pinned, stream=world.stream)
    world.stream.synchronize()


def two_streams(world):
    stream = dm.stream()
    array = dm.to_device(DATA, stream=world.stream)
    stream.wait(world.stream)
    array.copy_to_device(world.pinned, stream=stream)
    del array
    stream.close()


def closed(world):
    stream, event = dm.stream(), dm.event()
    event.record(stream)
    event.close()
    stream.close()


def current_stream(world):
    def block():
        with world.stream, world.stream.auto_synchronize():
            dm.to_device(world.pinned).copy_to_host(world.pinned)

    # In a context of its own: an interrupt between two lines of `__enter__` or `__exit__` leaves the stream in force.
    contextvars.copy_context().run(block)


def use_pool(pool):
    with dm.use_memory(pool):
        first, second = dm.device_array(3000, np.uint8), dm.device_array(5000, np.uint8)
        del first
        dm.device_array(3000, np.uint8).free()
        stream = dm.stream()
        dm.device_array(2 << 20, np.uint8, stream=stream)
        del second


def counted(world):
    with dm.use_memory(world.counting):
        dm.device_array(1000, np.uint8).free()
        dm.device_array(1000, np.uint8)
        dm.trim()


def guarded(world):
    with dm.use_memory("guard,log:/dev/null"):
        dm.device_array(1000, np.uint8)


def both_sides(world):
    array = dm.SmartArray(DATA)
    array.gpu()
    array.host()


def smart(world):
    world.smart.gpu()
    world.smart.gpu_changed()
    world.smart.host()
    world.smart.host_changed()


def recorded(world):
    with dm.capture(world.stream) as plan:
        world.array.copy_to_device(world.pinned, stream=world.stream)
        dm.zeros(100, np.uint8, stream=world.stream)
        world.array.copy_to_host(world.pinned, stream=world.stream)
    plan.replay()
    plan.update(dst=[world.other, None])
    plan.replay()
    world.stream.synchronize()
    plan.close()


def pieces(world):
    devices = [dm.current_device(), dm.current_device()]
    dm.gather(dm.scatter(world.large, devices), 0)


VERBS = {
    "upload": lambda world: dm.to_device(DATA),
    "upload of F order": lambda world: dm.to_device(DATA.T),
    "upload into": lambda world: world.array.copy_to_device(DATA),
    "staged upload": lambda world: world.large_array.copy_to_device(world.large),
    "staged upload on a stream": lambda world: world.large_array.copy_to_device(world.large, stream=world.stream),
    "upload of columns": lambda world: world.array.__setitem__(np.s_[:, ::2], DATA[:, ::2]),
    "upload in pinned pages": pinned_upload,
    "download": lambda world: world.array.copy_to_host(),
    "download into": lambda world: world.array.copy_to_host(world.out),
    "staged download": lambda world: world.large_array.copy_to_host(),
    "download of columns": lambda world: world.array[:, ::2].copy_to_host(),
    "on a stream": on_a_stream,
    "on two streams": two_streams,
    "current stream": current_stream,
    "copy": lambda world: world.array.copy(),
    "copy of a view": lambda world: world.array.reshape(-1)[::3].copy(),
    "copy on the device": lambda world: world.array.copy_to_device(world.other),
    "fill": lambda world: world.array.fill(3),
    "fill of wide items": lambda world: dm.full(300, 1 + 2j, np.complex128),
    "setitem": lambda world: world.array.__setitem__(np.s_[3:9, ::2], 0),
    "view": lambda world: world.array[3:9].T,
    "device_array": lambda world: dm.device_array(1000, np.uint8),
    "free": lambda world: dm.device_array(1000, np.uint8).free(),
    "zeros": lambda world: dm.zeros(1000, np.uint8),
    "pinned_array": lambda world: dm.pinned_array(5000, np.uint8),
    "mapped_array": lambda world: dm.mapped_array(5000, np.uint8),
    "managed_array": lambda world: dm.managed_array(5000, np.uint8),
    "pinned": pinned,
    "register": registered,
    "mapped": mapped,
    "stream": lambda world: dm.stream().synchronize(),
    "event": with_event,
    "timed events": timed,
    "closed stream and event": closed,
    "to_device_many": lambda world: dm.to_device_many([DATA, DATA[:10]]),
    "to_host_many": lambda world: dm.to_host_many([world.array, world.other]),
    "copy_async": lambda world: dm.copy_async(world.array, stream=world.stream).wait(),
    "copy_async up": lambda world: dm.copy_async(world.large, stream=world.stream).wait(),
    "recorded plan": recorded,
    "scatter and gather": pieces,
    "save": lambda world: dm.save(world.array, world.file),
    "load": lambda world: dm.load(world.file),
    "save a large array": lambda world: dm.save(world.large_array, world.large_file),
    "load a large array": lambda world: dm.load(world.large_file),
    "from_dlpack": lambda world: dm.from_dlpack(world.array),
    "capsule": lambda world: world.array.__dlpack__(),
    "IPC handle": lambda world: world.array.get_ipc_handle(),
    "SmartArray": both_sides,
    "SmartArray of two sides": smart,
    "defer_cleanup": deferred,
    "trim": lambda world: dm.trim(),
    "pool": lambda world: use_pool(world.pool),
    "limit and statistics": counted,
    "guard and log": guarded,
    "memory_info": lambda world: dm.memory_info(),
    "synchronize": lambda world: dm.synchronize(),
}


def outside():
    """What the driver counts, bytes and then handles, without the slots of the ring, which are kept."""
    opened = current_open_device()
    try:
        nbytes, *handles = control(opened.handle.info.backend).live()
    except (EmulatorNotLoaded, KeyError):
        nbytes, _, *handles = opened.handle.driver.live_counts()
    return nbytes - len(opened.ring.made) * opened.ring.slot_bytes, *handles


def in_use(world):
    """What is live when everything that can go has gone: by devmem's count, the pool's, and the driver's."""
    opened = current_open_device()
    for array in (
        world.pages,
        world.out,
    ):  # an interrupt may have come before the end of a registration, which can be made up for
        while opened.page_locks.holds(opened.handle, array):
            dm.deregister(array)
    gc.collect()
    dm.synchronize()
    dm.trim()
    counting = (
        world.counting.current_bytes,
        world.counting.upstream.current_bytes,
        world.counting.upstream.current_count,
    )
    info = dm.memory_info()
    return info.live + info.host.live, world.pool.report().live_bytes, counting, outside()


def chosen(count, points, seed):
    """The numbers of the points that are looked at: all, or some that are drawn, from the first to the last."""
    if points == "all" or count <= int(points):
        return range(1, count + 1)
    return sorted({1, count, *random.Random(seed + campaign.SEED).sample(range(2, count), int(points) - 2)})


#: Memory stacks: all verbs run over the driver's own, and these over a pool and over devmem's adaptors too.
ALLOCATING = {
    "upload",
    "staged upload on a stream",
    "download of columns",
    "on two streams",
    "copy of a view",
    "fill of wide items",
    "device_array",
    "free",
    "zeros",
    "to_device_many",
    "copy_async up",
    "recorded plan",
    "from_dlpack",
    "defer_cleanup",
    "trim",
    "memory_info",
}
STACKS = ["driver", "pool", "limit:64MiB,statistics,pool", "guard,log:/dev/null", "scrub,statistics"]


@pytest.mark.filterwarnings("ignore::devmem.DevmemWarning")  # a guard finds blocks that an interrupt has left
@pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # Python closes one that has no name yet, and says so
@pytest.mark.parametrize(
    ("name", "stack"),
    [(name, stack) for name in VERBS for stack in STACKS if stack == "driver" or name in ALLOCATING],
)
def test_what_holds_behind_an_interrupt(name, stack, at_point, still, in_thread, tmp_path):
    backend = dm.current_device().backend
    dm.reset()
    before = what_the_driver_has()
    # In a context of its own: an interrupt between two lines of a scope may leave its choice in force.
    contextvars.copy_context().run(interrupt_at_points, name, stack, at_point, in_thread, tmp_path)
    gc.collect()
    dm.reset()
    assert dm.current_device().backend == backend
    assert what_the_driver_has() == before
    array = dm.to_device(DATA)
    assert (array.copy_to_host() == DATA).all()


@pytest.mark.filterwarnings("ignore::devmem.DevmemWarning")
def test_a_graph_is_destroyed_wherever_an_interrupt_comes(at_point, still):
    dm.reset()
    before = what_the_driver_has()
    contextvars.copy_context().run(interrupt_each_point_of_a_plan_s_end, at_point)
    gc.collect()
    dm.reset()
    assert what_the_driver_has() == before


def interrupt_each_point_of_a_plan_s_end(at_point):
    stream, array = dm.stream(non_blocking=True), dm.zeros(16, "u1")

    def interrupted(number):
        with dm.capture(stream) as plan:
            array.fill(1, stream=stream)
        with at_point(number, watched) as point:
            plan.close()
        return point

    try:
        count = (1 << 40) - interrupted(1 << 40).left
    except dm.UnsupportedError as error:
        pytest.skip(str(error))
    for number in range(count):
        interrupted(number)


def interrupt_at_points(name, stack, at_point, in_thread, folder):
    verb = VERBS[name]
    with dm.use_memory(stack):
        world = World(folder)
        canary, expected = dm.full(5000, 7, np.int32), np.full(5000, 7, np.int32)
        try:
            for _ in range(3):  # what is made only once is there
                verb(world)
        except dm.UnsupportedError as error:
            pytest.skip(str(error))
        with at_point(1 << 40, watched) as counted:
            verb(world)
        count = (1 << 40) - counted.left
        for number in chosen(count, POINTS, f"{name} {stack}"):
            with at_point(number, watched, (interrupts.interrupt, interrupts.alarm)[number % 2]) as point:
                verb(world)
            verb(world)
            # Memory that is handed out now is nobody else's.
            fresh = [dm.full(nbytes, 1, np.uint8) for nbytes in (1000, 3000, 5000, 20_000)]
            spans = sorted((each.ptr, each.ptr + each.nbytes) for each in (*fresh, canary, world.array, world.other))
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), point.where
            assert (canary.copy_to_host() == expected).all(), point.where
            for each in fresh:
                each.free()
        in_thread(lambda: work(stack))  # no lock is left locked


def work(stack):
    with dm.use_memory(stack):
        dm.to_device(DATA).free()
    dm.synchronize()
    dm.trim()


def what_the_driver_has():
    """Bytes and handles, as the driver counts them, of a device that was just reset and opened again."""
    dm.synchronize()
    return outside()


def opened():
    return dm.current_device().opened()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python reports what a finalizer raises
@pytest.mark.parametrize("action", [opened, dm.reset, dm.close])
def test_close_gives_back_the_driver_of_an_interrupted_opening_or_reset(action, at_point):
    try:
        live = control(opened().handle.info.backend).live
    except (EmulatorNotLoaded, KeyError):
        pytest.skip("contexts and pools are counted by an emulator alone")

    def begin():
        dm.close()
        if action is not opened:
            opened()

    dm.close()
    before = live()
    begin()
    with at_point(1 << 40, watched) as counted:
        action()
    for number in chosen((1 << 40) - counted.left, POINTS, action.__name__):
        begin()
        with at_point(number, watched) as point:
            action()
        assert (dm.to_device(DATA).copy_to_host() == DATA).all()
        dm.close()
        assert live() == before, point.where


#: What a handler does, each on its own arrays.
HANDLED = [
    "upload into",
    "staged download",
    "download of columns",
    "on two streams",
    "zeros",
    "free",
    "pinned",
    "timed events",
    "to_device_many",
    "copy_async",
    "SmartArray",
    "pool",
    "limit and statistics",
    "memory_info",
    "trim",
    "synchronize",
]


def handled(world):
    for name in HANDLED:
        VERBS[name](world)


def collected(world):
    """The collector finds finalizers of devmem's, and one of the user's that copies."""

    class Cycle:
        def __init__(self):
            self.itself = self
            self.stream = dm.stream()
            self.kept = dm.to_device(DATA), dm.to_device(DATA, stream=self.stream), dm.event(), dm.SmartArray(DATA)
            self.pinned, self.copying = dm.pinned_array(300, np.uint8), world.array

        def __del__(self):
            self.copying.copy_to_device(DATA)

    Cycle()
    gc.collect(0)


@pytest.mark.parametrize("action", [handled, collected])
# CUDA refuses to wait for the device while it records a graph, in whichever mode: a handler of that very thread cannot be served.
@pytest.mark.parametrize("verb", [pytest.param(VERBS[name], id=name) for name in VERBS if name != "recorded plan"])
def test_devmem_may_be_called_at_any_point(verb, action, at_point, still, in_thread, tmp_path):
    with dm.use_memory("driver"):
        reenter(verb, action, at_point, tmp_path)
    in_thread(lambda: dm.to_device(DATA).free())


def reenter(verb, action, at_point, folder):
    world, other = World(folder), World(folder / "other")
    ran = []

    def call():
        sys.settrace(None)
        action(other)
        ran.append(True)

    try:
        for _ in range(3):
            verb(world)
            action(other)
    except dm.UnsupportedError as error:
        pytest.skip(str(error))
    before = in_use(world), in_use(other)
    with at_point(1 << 40, watched) as counted:
        verb(world)
    numbers = chosen((1 << 40) - counted.left, REENTRIES, verb.__code__.co_name)
    for number in numbers:
        with at_point(number, watched, call) as point:
            verb(world)
        verb(world)
        assert (in_use(world), in_use(other)) == before, point.where
    assert ran
    world.array.copy_to_device(DATA)
    assert (world.array.copy_to_host() == DATA).all()
