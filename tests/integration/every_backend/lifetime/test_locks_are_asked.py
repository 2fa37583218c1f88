"""A signal's handler, or a collector's run, in each lock's critical section: nothing waits for ever or is lost.

Nor is a lock taken under another one of rank LEAF: a handler may want that one while its thread has the first.

Each lock that a module of devmem makes or keeps is one that tells who holds it (`scheduler.replaced`). Verbs run, and at each
point of devmem's own code at which Python may run other code, once for each lock, a handler calls a verb on the same thread: on
arrays of its own, and on the same pools, stacks, store and host memory. The collector finds a finalizer that copies.

The table of locks in ARCHITECTURE.md says which locks there are. Each of them is asked, or named here with the reason.
"""

from __future__ import annotations

import functools
import gc
import itertools
import re
import sys
import threading
from pathlib import Path

import campaign
import numpy as np
import pytest
import scheduler
from interrupts import watch
from waits import patience

import devmem as dm
from devmem._core.base import outer_lock
from devmem._core.lifetime import page_locks
from devmem.toolkit import locks

pytestmark = [
    pytest.mark.races("the scheduler replaces the modules that make locks"),
    pytest.mark.own_thread,
    pytest.mark.comes_between,
    pytest.mark.timeout(300),
]
PACKAGE = Path(dm.__file__).parent
DATA = np.arange(4000, dtype=np.float32)
TABLE = (
    (Path(__file__).parents[4] / "ARCHITECTURE.md")
    .read_text(encoding="utf-8")
    .partition("## Locks")[2]
    .partition("\n## ")[0]
)
ROWS = re.findall(r"^\|[^|]+\| `(\w+)` \| `([\w/.]+)` \|", TABLE, flags=re.MULTILINE)
FILES = {file for _, file in ROWS}
#: Those of locks under which others are taken.
OUTER = {file for rank, file in ROWS if rank != "LEAF"}

#: Locks that no verb below comes by on this thread, and why.
NOT_ASKED = {
    "_core/base/scopes.py": "taken where there is no GIL",
    "_core/bulk/files/disk.py": "taken where the system has no pread",
    "_core/device/opening.py": "taken as a device is opened, before all verbs",
    "_core/telemetry/trace.py": "taken where DEVMEM_TRACE names a file",
    "_core/interop/ipc.py": "taken as a block of another process's pool is opened and let go of",
    "_core/interop/sharing.py": "taken for the first handle; should a handler make a second listener, both answer",
    "adapters/torch.py": "compiles for PyTorch",
    "backends/cuda/kernels.py": "kernels, which emulated drivers do not load",
    "backends/roc/runtime.py": "taken once, as the runtime is loaded",
    "compat/numba_cuda/cudadrv/state.py": "the drop-in",
    "kernels/code.py": "compiling; no verb of memory holds the simulator's locks",
    "kernels/compilers/simulator/atomics.py": "the same",
    "kernels/compilers/simulator/compiled_blocks.py": "the same",
    "kernels/compilers/simulator/launch.py": "the same",
    "toolkit/races.py": "taken where DEVMEM_RACES is set",
}
SETTINGS = {
    "STAGING_THRESHOLD": str(64 << 10),
    "STAGING_SLOT_BYTES": str(16 << 10),
    "STAGING_THREADS": "2",
    "MEMORY_MANAGER": "",
}


class Theirs:
    """A third party's resource over plain driver memory."""

    def __init__(self):
        self.upstream = dm.memory.DriverMemory()

    def bind(self, driver):
        self.upstream.bind(driver)

    def allocate(self, nbytes, stream):
        return self.upstream.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.upstream.deallocate(ptr, nbytes, stream)


class World:
    """What verbs work on: arrays of its own, and what another world shares with it."""

    def __init__(self, folder, shared=None):
        self.name = "first" if shared is None else "handler"
        self.array, self.out = dm.to_device(DATA), np.empty_like(DATA)
        self.large = np.arange(1 << 18, dtype=np.uint8)
        self.large_array = dm.to_device(self.large)
        self.pages = np.arange(8192, dtype=np.uint8) if shared is None else shared.pages
        self.pool = dm.memory.PoolMemory() if shared is None else shared.pool
        self.theirs = Theirs() if shared is None else shared.theirs
        self.smart = dm.SmartArray(DATA) if shared is None else shared.smart
        self.store = dm.spill.Store("64KiB", "64KiB", folder) if shared is None else shared.store
        names = ("limit:1GiB", "statistics", "guard", "fail_nth:99999999")
        self.stacks = [f"{name},log:{folder / name}.log" for name in names]


def copies(world):
    world.array.copy_to_device(DATA)
    world.array.copy_to_host(world.out)
    assert np.array_equal(world.out, DATA)
    world.large_array.copy_to_device(world.large)
    assert np.array_equal(world.large_array.copy_to_host(), world.large)
    world.array.fill(3)


def streams(world):
    stream, event, called = dm.stream(), dm.event(), threading.Event()
    array = dm.to_device(DATA, stream=stream)
    event.record(stream)
    stream.add_callback(lambda *_: called.set())
    dm.copy_async(world.array, stream=stream).wait()
    del array
    stream.close()
    assert called.wait(patience())


def memory(world):
    with dm.use_memory(world.pool):
        first = dm.device_array(3000, np.uint8)
        stream = dm.stream()
        second = dm.device_array(2 << 20, np.uint8, stream=stream)
        del first, second
        stream.close()
        dm.device_array(2 << 20, np.uint8).free()
    for stack in [*world.stacks, world.theirs]:
        with dm.use_memory(stack):
            dm.device_array(1000, np.uint8)


def host_memory(world):
    dm.pinned_array(300, np.uint8)
    with dm.pinned(world.pages):
        world.array.copy_to_device(DATA)


def kept(world):
    world.smart.gpu()
    world.smart.gpu_changed()
    assert np.array_equal(world.smart.host(), DATA)
    for number in range(3):
        world.store[world.name, number] = dm.to_device(world.large[: 40 << 10])
    assert np.array_equal(world.store[world.name, 0].copy_to_host(), world.large[: 40 << 10])


def looks(world):
    dm.devices()
    dm.memory_info()
    dm.trim()
    dm.synchronize()


VERBS = [copies, streams, memory, host_memory, kept, looks]


class Copying:
    """What only the collector can end, and a finalizer that copies."""

    def __init__(self, world):
        self.array, self.dropped = world.array, (dm.to_device(DATA), dm.stream(), dm.event())
        self.itself = self

    def __del__(self):
        self.array.copy_to_device(DATA)


class Asking:
    """Calls something at each point of devmem's code at which this thread holds a lock, once for each lock and point."""

    def __init__(self, monkeypatch, call):
        self.call, self.held, self.files, self.kept = call, [], {}, []
        self.asked, self.asked_files, self.nested, self.active = set(), set(), set(), False
        self.thread = threading.get_ident()
        made, acquire, release = scheduler.Lock.__init__, scheduler.Lock.acquire, scheduler.Lock.release

        def make(lock):
            made(lock)
            self.files[lock] = maker_of(sys._getframe(1))

        def take(lock, *arguments, **named):
            taken = acquire(lock, *arguments, **named)
            if taken and isinstance(lock, scheduler.RLock) and threading.get_ident() == self.thread:
                inner = {self.files[each] for each in self.held if each is not lock and self.active} - OUTER
                self.nested.update((file, self.files[lock]) for file in inner)
                self.held.append(lock)
                if self.active and self.files[lock] not in self.asked_files:  # some hold it for a line without a call
                    self.ask(self.files[lock])
            return taken

        def let_go(lock):
            if threading.get_ident() == self.thread and lock in self.held:
                self.held.reverse()
                self.held.remove(lock)
                self.held.reverse()
            release(lock)

        monkeypatch.setattr(scheduler.Lock, "__init__", make)
        monkeypatch.setattr(scheduler.Lock, "acquire", take)
        monkeypatch.setattr(scheduler.Lock, "release", let_go)

    def find_kept(self):
        """Say of each lock that a module keeps whose it is."""
        for holder, name in scheduler.places():
            module = holder if hasattr(holder, "__file__") else sys.modules[type(holder).__module__]
            if isinstance(lock := getattr(holder, name), scheduler.Lock):
                self.files[lock] = short(module.__file__)

    def ask(self, file):
        self.asked_files.add(file)
        self.active = False  # what is called takes locks too, and is left alone
        self.stop()
        self.kept.append(self.stop)  # what it ends may be about to be called
        try:
            self.call()
        finally:
            self.active = True
            self.stop = watch(is_watched, self._at_point)

    def __enter__(self):
        self.active = True
        self.stop = watch(is_watched, self._at_point)
        return self

    def __exit__(self, *_):
        self.stop()
        self.active = False

    def _at_point(self, frame):
        if self.active and self.held:
            key = self.files[self.held[-1]], frame.f_code, frame.f_lasti
            if key not in self.asked:
                self.asked.add(key)
                self.ask(key[0])


def is_watched(code):
    return code.co_filename.startswith(str(PACKAGE)) and not code.co_filename.startswith(str(PACKAGE / "testing"))


def short(path):
    return Path(path).relative_to(PACKAGE).as_posix()


def maker_of(frame):
    """The file of devmem's in which a lock is made."""
    makers = outer_lock.__file__, locks.__file__
    while frame is not None and (
        not frame.f_code.co_filename.startswith(str(PACKAGE)) or frame.f_code.co_filename in makers
    ):
        frame = frame.f_back
    return "" if frame is None else short(frame.f_code.co_filename)


def test_each_lock_can_be_met_by_a_handler_on_the_thread_that_holds_it(
    with_settings, monkeypatch, need, tmp_path, in_thread, devmem_backend
):
    need("host_register")
    with_settings(**SETTINGS)
    before = World(tmp_path)
    for verb in VERBS:  # what is imported at first use is there
        verb(before)
    before.store.close()
    del before
    dm.close()
    monkeypatch.setattr(page_locks, "_tables", {})
    turns, worlds = itertools.cycle(campaign.shuffled(VERBS)), []

    def handled():
        Copying(worlds[1])
        gc.collect(0)
        try:
            next(turns)(worlds[1])
        except RuntimeError as error:  # the one thing that a handler cannot wait for: its own thread
            if "is being moved by a call of this thread, which this one interrupted" not in str(error):
                raise

    asking = Asking(monkeypatch, handled)
    names = {name: getattr(scheduler, name) for name in ("Lock", "RLock", "Condition")}
    monkeypatch.setattr(scheduler, "INSTEAD", {id(threading): scheduler._Instead(threading, **names)})
    monkeypatch.setattr(scheduler, "_places", functools.cache(scheduler._places.__wrapped__))
    with scheduler.replaced():
        asking.find_kept()
        worlds += [first := World(tmp_path)]
        worlds += [World(tmp_path, first)]
        for verb in VERBS:
            verb(first)
            verb(worlds[1])
        with asking:
            for verb in campaign.shuffled(VERBS):
                verb(first)
        assert not asking.held
        gc.collect()  # what a handler has left, before the device is closed
        in_thread(lambda: copies(World(tmp_path, worlds[0])))  # no lock is left locked
        for each in worlds:
            for verb in VERBS:
                verb(each)
        first.store.close()
        del first, each
        worlds.clear()
        gc.collect()
        dm.trim()
        assert dm.memory_info()[2:] == (0, 0, 0, (0, 0, 0))
        dm.close()
    assert asking.asked_files <= FILES
    assert asking.nested == set()
    elsewhere = {file for file in FILES if re.match(rf"backends/(?!{devmem_backend}/)|toolkit/", file)}
    assert FILES - asking.asked_files - NOT_ASKED.keys() - elsewhere == set()
