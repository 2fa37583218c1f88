"""The injection loop over the whole public API: every driver call fails once, nothing leaks, and the next call works.

The form is SQLite's: fail the first driver call of an entry point, then the second, until a run in which none is left to
fail. After each run the books of the driver must say what they said before, host and device memory that the call had no
business with must be untouched, and the same call must work.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import itertools
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import campaign
import numpy as np
import pytest
import standin_compiler
from waits import patience

import devmem as dm
from devmem import plugins
from devmem.backends.host.hooks import HostBackend
from devmem.kernels import names as kernel_names
from devmem.spi.driver import Driver
from devmem.spi.errors import BackendError
from devmem.spi.types import Capability
from devmem.testing import FaultyBackend, FaultyDriver, StreamHold, every_failure

#: What destinations hold before a call, and what `fill` stores.
OLD, FILLED = -7, 3
RECORD = np.dtype([("x", "<i4"), ("y", "<f8", (2,))])

Call = Callable[["Env"], object]
ENTRIES: dict[str, Call] = {}
BARE: set[str] = set()  # entry points that close the device: they get no arrays made beforehand


def entry(name: str, *, bare: bool = False) -> Callable[[Call], Call]:
    """Put a callable into the table under the public name that it exercises."""

    def add(call: Call) -> Call:
        ENTRIES[name] = call
        if bare:
            BARE.add(name)
        return call

    return add


class Backend(FaultyBackend):
    """Remembers every driver that it opened, until it is closed."""

    def __init__(self, inner: HostBackend, name: str = "faulty") -> None:
        super().__init__(inner, name)
        self.opened: list[FaultyDriver] = []

    def open(self, ordinal: int) -> Driver:
        driver = super().open(ordinal)
        assert isinstance(driver, FaultyDriver)
        self.opened.append(driver)
        return driver

    def forgotten(self) -> list[FaultyDriver]:
        """Drivers that were replaced without having been closed."""
        self.opened = [driver for driver in self.opened if not closed(driver)]  # the closed ones would grow without end
        current = self.drivers.values()
        return [driver for driver in self.opened if not any(driver is each for each in current)]


def closed(driver: FaultyDriver) -> bool:
    try:
        driver.inner.exit(driver.inner.enter())
    except BackendError:
        return True
    return False


@dataclass(frozen=True)
class World:
    """One combination of what an entry point may meet."""

    layout: str = "contiguous"
    stream: bool = False
    memory: str = "stream_ordered"

    def __str__(self) -> str:
        return f"{self.layout}-{'stream' if self.stream else 'default'}-{self.memory}"


#: Memory stacks: what the device begins with, and what is installed for all of it.
BEGINNING, INSTALLED = "stream_ordered", ["driver", "pool", "limit:1GiB,statistics,pool", "scrub,statistics"]


def worlds(*usual: World) -> list[World]:
    """These; in a campaign as many of all that there are."""
    every = itertools.product(("contiguous", "rows", "columns"), (False, True), (BEGINNING, *INSTALLED))
    return campaign.sample([World(*each) for each in every], len(usual)) if campaign.SEED else list(usual)


WORLDS = worlds(
    World(),
    World(stream=True),
    World("rows", stream=True),
    World("columns", stream=True),
    World("rows", memory="driver"),
)


class Env:
    """What the calls work on, made with nothing armed, and the books as they stood then."""

    def __init__(self, backend: Backend, world: World, bare: bool = False) -> None:
        self.backend = backend
        self.world = world
        if world.memory in INSTALLED and not bare:
            dm.use_memory(world.memory)
        self.host = laid_out(np.arange(4 * 6 * 256, dtype=np.int32).reshape(4, 6, 256), world.layout)
        self.shape = self.host.shape
        if not bare:
            self._make()
            self.settle()  # spare events are destroyed, as they are before the comparison
        self.before = backend.live()
        self.registered = self._registered()
        self.live = (0, 0) if bare else (dm.memory_info().live, dm.memory_info().host.live)

    def _make(self) -> None:
        base = np.ascontiguousarray(np.arange(4 * 6 * 256, dtype=np.int32).reshape(4, 6, 256))
        self.stream: Any = dm.stream() if self.world.stream else 0
        self.side = dm.stream()
        self.array = laid_out(dm.to_device(base), self.world.layout)
        self.target_base = dm.full((4, 6, 256), OLD, np.int32)
        self.target = laid_out(self.target_base, self.world.layout)
        self.out_base = np.full((4, 6, 256), OLD, np.int32)
        self.out = laid_out(self.out_base, self.world.layout)
        self.pinned_base = dm.pinned_array((4, 6, 256), np.int32)
        self.pinned_base[...] = base
        self.pinned = laid_out(self.pinned_base, self.world.layout)
        self.one = dm.to_device(np.float64([2.0]))
        self.count = dm.to_device(np.array(3))
        self.records = dm.to_device(np.zeros(3, RECORD))
        self.record = self.records[1]
        self.mapped = dm.mapped_array(64, np.int32)
        self.managed = dm.managed_array(64, np.int32)
        dm.current_device().opened().streams.side_stream()  # made at its first use, and kept
        # Far enough apart that they share no page.
        self.plain, _, self.other_plain = np.zeros((3, 5000), np.int32)
        self.event = dm.event()
        self.event.record(self.stream)
        driver = dm.current_device().driver()
        with dm.current_device().entered():
            self.foreign = driver.stream_create(0, False)
        with dm.device(1):
            self.far = dm.to_device(np.ascontiguousarray(base))
            self.far_array = laid_out(self.far, self.world.layout)

    def settle(self) -> None:
        """Bring everything to rest."""
        gc.collect()
        for ordinal in range(2):
            dm.device(ordinal).synchronize()
        dm.trim()

    def check(self) -> None:
        """Nothing leaked, and nothing was written that should not have been."""
        self.settle()
        assert self.backend.live() == self.before
        assert self._registered() == self.registered
        assert self.backend.mistakes() == []
        assert self.backend.forgotten() == []
        info = dm.memory_info()
        assert ((info.live, info.host.live), info.pending, info.host.pending) == (self.live, 0, 0)
        if hasattr(self, "target_base"):
            self._check_destinations()

    def _check_destinations(self) -> None:
        seen = self.target_base.copy_to_host()
        self.target_base.copy_to_device(np.full_like(seen, OLD))
        for got in (seen, self.out_base):
            elements = laid_out(got, self.world.layout)
            assert np.all((elements == OLD) | (elements == self.host) | (elements == FILLED))
            elements[...] = OLD
            assert np.all(got == OLD), "the gaps between elements were written to"
        assert np.array_equal(self.array.copy_to_host(), self.host), "the source was written to"
        assert np.array_equal(self.pinned, self.host), "the host source was written to"

    def _registered(self) -> int:
        return sum(sum(driver.registered().values()) for driver in self.backend.drivers.values())


def laid_out(base: Any, layout: str) -> Any:
    """A view of a (4, 6, 256) array: all of it, rows that a driver copies in two calls, or columns that have to be gathered."""
    if layout == "rows":
        return base[::2, ::2, :160]
    return base[1:, ::-2, ::3] if layout == "columns" else base


@pytest.fixture
def backend() -> Iterator[Backend]:
    dm.close()
    made = Backend(HostBackend())
    made.configure({"strict": True, "devices": 2})
    dm.register_backend(made)
    gc.collect()
    try:
        with dm.use_backend("faulty"):
            yield made
    finally:
        made.disarm()
        dm.unregister_backend("faulty")
        dm.close()


# -- the table: verbs --------------------------------------------------------------------------------------------------


@entry("to_device_many")
def _(env: Env) -> object:
    up = dm.to_device_many({"a": env.host, "b": [env.host[0], 3]}, env.stream)
    dm.synchronize()
    np.testing.assert_array_equal(up["a"].copy_to_host(), env.host)
    np.testing.assert_array_equal(up["b"][0].copy_to_host(), env.host[0])
    return up


@entry("pitched_array")
def _(env: Env) -> None:
    assert dm.pitched_array((3, 5), np.int32, stream=env.stream).strides[0] % 64 == 0


@entry("copy_pitched")
def _(env: Env) -> None:
    base = dm.zeros(600, np.uint8)
    dm.copy_pitched(base, env.pinned_base, 20, 5, 2, dst_pitch=32, dst_rows=7, src_pitch=40, stream=env.stream)
    dm.copy_pitched(np.zeros(600, np.uint8), base, 20, 5, 2, dst_pitch=32, stream=env.stream)


@entry("kernel")
def _(env: Env) -> None:
    src, both, out = np.full(64, 5, np.int32), np.full(64, 5, np.int32), np.zeros(64, np.int32)
    with standin_compiler.standing_in(dm.current_device().backend):
        copying = dm.kernel(copy_elements)
        try:
            copying[2, 32, env.stream](dm.In(src), dm.InOut(both))
            copying[2, 32, env.stream](dm.InOut(both), dm.Out(out))
            dm.synchronize()
            assert np.all(out == 5)
        finally:
            assert np.all(src == 5), "what was only to be read was written"
            assert np.all(both == 5)
            assert np.all(out == out[0]), "half of it came back"
            assert out[0] in (0, 5)
        copying.forall(64, stream=env.side)(dm.In(src), dm.to_device(src))
        copying[1, 64](dm.to_device(src, stream=env.stream), dm.device_array(64, np.int32, stream=env.stream))


def copy_elements(src, dst):
    """copy"""


@entry("to_host_many")
def _(env: Env) -> object:
    down = dm.to_host_many([env.array, env.target, env.one], env.stream)
    np.testing.assert_array_equal(down[0], env.host)
    return down


@entry("scatter")
def _(env: Env) -> object:
    pieces = dm.scatter(env.host, [0, 1, 0], axis=1)
    for piece, wanted in zip(pieces, np.array_split(env.host, 3, axis=1), strict=True):
        np.testing.assert_array_equal(piece.copy_to_host(), wanted)
    return pieces


@entry("gather")
def _(env: Env) -> object:
    found = dm.gather([env.array, env.far_array])
    np.testing.assert_array_equal(found, np.concatenate([env.host, env.host]))
    return found


@entry("load")
def _(env: Env) -> object:
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/a.npy", env.host)
        there = dm.load(f"{folder}/a.npy", stream=env.stream)
        dm.synchronize()
        np.testing.assert_array_equal(there.copy_to_host(), env.host)
        return there


@entry("save")
def _(env: Env) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            dm.save(env.array, f"{folder}/a.npy")
        finally:
            for left in Path(folder).iterdir():  # one file, and whole
                assert left.name == "a.npy"
                np.testing.assert_array_equal(np.load(left), env.host)


@entry("copy_async")
def _(env: Env) -> None:
    assert np.array_equal(dm.copy_async(env.array, stream=env.stream, pinned=True).result(), env.host)
    up = dm.copy_async(env.pinned, env.target, stream=env.stream)
    down = dm.copy_async(env.array, env.out, stream=env.stream)
    assert up.wait(timeout=patience())
    with down:
        pass
    assert down.done()
    assert dm.copy_async(env.host, stream=env.stream).result().shape == env.shape
    assert np.array_equal(dm.copy_async(env.array, stream=env.stream).result(timeout=patience()), env.host)
    dm.copy_async(env.array, env.target, stream=env.side)
    dm.copy_async(env.array, env.out, stream=env.side)  # dropped, both of them
    dm.synchronize()


@entry("capture")
def _(env: Env) -> None:
    device, back = dm.to_device(env.pinned_base, stream=env.side), dm.pinned_array((4, 6, 256), np.int32)
    back.fill(OLD)
    with contextlib.closing(dm.capture(env.side)) as plan:
        with plan:
            device.copy_to_device(env.pinned_base, stream=env.side)
            device.copy_to_host(back, stream=env.side)
        plan.replay()
        plan.update(src=[back, None])
        plan.replay()
        env.side.synchronize()
    assert np.array_equal(back, env.pinned_base)


@entry("to_device")
def _(env: Env) -> None:
    dm.to_device(env.host, stream=env.stream)
    dm.to_device(env.pinned, stream=env.stream)
    dm.to_device(env.host, stream=env.stream, to=env.target)
    dm.to_device(env.array, device=1)
    dm.to_device([1, 2, 3])


@entry("as_device_array")
def _(env: Env) -> None:
    dm.as_device_array(env.mapped).copy_to_host()


@entry("is_device_array")
def _(env: Env) -> None:
    assert dm.is_device_array(env.array)


@entry("from_dlpack")
def _(env: Env) -> None:
    dm.from_dlpack(env.array).copy_to_host(stream=env.stream)
    dm.from_dlpack(env.array, copy=True)
    dm.from_dlpack(env.array, device=1)
    dm.from_dlpack(env.plain)


@entry("device_array")
def _(env: Env) -> None:
    dm.device_array(env.shape, np.int32, stream=env.stream)


@entry("device_array_like")
def _(env: Env) -> None:
    dm.device_array_like(env.array, stream=env.stream)


@entry("zeros")
def _(env: Env) -> None:
    dm.zeros(env.shape, np.int16, stream=env.stream)


@entry("full")
def _(env: Env) -> None:
    dm.full(env.shape, 2.5, stream=env.stream)
    dm.full(7, 1 + 2j, np.complex128, stream=env.stream)


@entry("empty")
def _(env: Env) -> None:
    dm.empty(env.shape, np.int32, stream=env.stream)


@entry("ones")
def _(env: Env) -> None:
    dm.ones(env.shape, np.int16, stream=env.stream)


@entry("empty_like")
def _(env: Env) -> None:
    dm.empty_like(env.array, stream=env.stream)


@entry("zeros_like")
def _(env: Env) -> None:
    dm.zeros_like(env.array, stream=env.stream)


@entry("ones_like")
def _(env: Env) -> None:
    dm.ones_like(env.array, stream=env.stream)


@entry("full_like")
def _(env: Env) -> None:
    dm.full_like(env.array, 7, stream=env.stream)


@entry("asarray")
def _(env: Env) -> None:
    assert dm.asarray(env.array) is env.array
    dm.asarray([1, 2, 3], np.float32)


@entry("DeviceNDArray.to")
def _(env: Env) -> None:
    assert env.array.to(0) is env.array
    env.array.to(1)


@entry("DeviceNDArray.numpy")
def _(env: Env) -> None:
    np.testing.assert_array_equal(env.array.numpy(), env.host)


@entry("prefetch")
def _(env: Env) -> None:
    with contextlib.closing(dm.prefetch([env.host, {"a": env.pinned}, env.host], stream=env.stream)) as items:
        first, second, _ = items
        np.testing.assert_array_equal(first.copy_to_host(), env.host)
        np.testing.assert_array_equal(second["a"].copy_to_host(), env.host)


@entry("load_many")
def _(env: Env) -> object:
    with tempfile.TemporaryDirectory() as folder:
        for name in "ab":
            np.save(f"{folder}/{name}.npy", env.host)
        both = dm.load_many([f"{folder}/a.npy", f"{folder}/b.npy"], stream=env.stream)
        dm.synchronize()
        np.testing.assert_array_equal(both[1].copy_to_host(), env.host)
        return both


@entry("pinned_array")
def _(env: Env) -> None:
    dm.pinned_array(env.shape, np.int32)[...] = 1


@entry("pinned_array_like")
def _(env: Env) -> None:
    dm.pinned_array_like(env.host)[...] = 1


@entry("mapped_array")
def _(env: Env) -> None:
    dm.mapped_array(env.shape, np.int32, stream=env.stream)[...] = 1


@entry("mapped_array_like")
def _(env: Env) -> None:
    dm.mapped_array_like(env.host)[...] = 1


@entry("managed_array")
def _(env: Env) -> None:
    dm.managed_array(env.shape, np.int32, stream=env.stream)[...] = 1


@entry("managed_array_like")
def _(env: Env) -> None:
    dm.managed_array_like(env.host)[...] = 1


@entry("prefetch_managed")
def _(env: Env) -> None:
    with contextlib.suppress(dm.UnsupportedError):
        dm.prefetch_managed([env.managed], stream=env.stream, numa_node=0)


@entry("discard_managed")
def _(env: Env) -> None:
    with contextlib.suppress(dm.UnsupportedError):
        dm.discard_managed([env.managed], env.stream)


@entry("pinned")
def _(env: Env) -> None:
    held = dm.pinned(env.plain[:100], env.plain[50:], env.plain[2000:3000])
    with Closing(env, held):
        dm.to_device(env.plain, stream=env.stream)


@entry("mapped")
def _(env: Env) -> None:
    held = dm.mapped(env.plain, env.other_plain, stream=env.stream)
    with Closing(env, held), held as (first, second):
        first.fill(1, stream=env.stream)
        second.copy_to_device(first, stream=env.side)


@entry("register")
def _(env: Env) -> None:
    held = dm.register(env.plain[:1000], env.plain)
    finish(env, held.close)


@entry("deregister")
def _(env: Env) -> None:
    arrays = env.plain[:1000], env.plain[500:]
    dm.register(*arrays)
    try:
        dm.deregister(*arrays)
    except dm.DevmemError:
        env.backend.disarm()
        with contextlib.suppress(dm.DevmemError):  # all of them, or none
            dm.deregister(*arrays)
        raise


@entry("stream")
def _(env: Env) -> None:
    dm.stream(non_blocking=True)


@entry("default_stream")
def _(env: Env) -> None:
    dm.default_stream().synchronize()


@entry("legacy_default_stream")
def _(env: Env) -> None:
    dm.legacy_default_stream().query()


@entry("per_thread_default_stream")
def _(env: Env) -> None:
    stream = dm.per_thread_default_stream()
    dm.to_device(env.pinned, stream=stream)
    stream.synchronize()


@entry("external_stream")
def _(env: Env) -> None:
    stream = dm.external_stream(env.foreign)
    array = dm.to_device(env.pinned, stream=stream)
    array.fill(1, stream=stream)
    array.copy_to_host()
    stream.synchronize()


@entry("event")
def _(env: Env) -> None:
    dm.event().record(env.stream)


@entry("event_elapsed_time")
def _(env: Env) -> None:
    start, end = dm.event(), dm.event()
    start.record(env.stream)
    end.record(env.stream)
    end.synchronize()
    assert dm.event_elapsed_time(start, end) >= 0


@entry("synchronize")
def _(env: Env) -> None:
    dm.to_device(env.pinned, stream=env.side)
    dm.synchronize()


@entry("defer_cleanup")
def _(env: Env) -> None:
    with dm.defer_cleanup():
        for _ in range(12):
            dm.to_device(env.host, stream=env.stream)


@entry("memory_info")
def _(env: Env) -> None:
    assert dm.memory_info().total > 0


@entry("memory_summary")
def _(env: Env) -> None:
    assert "live" in str(dm.memory_summary(dm.current_device()))


@entry("memory_snapshot")
def _(env: Env) -> None:
    assert dm.memory_snapshot(dm.current_device()).summary.devices


@entry("use_memory")
def _(env: Env) -> None:
    with dm.use_memory("driver" if env.world.memory != "driver" else "stream_ordered"):
        dm.to_device(env.host, stream=env.stream)
    with dm.use_memory("managed"):
        dm.device_array(10)


@entry("trim")
def _(env: Env) -> None:
    array = dm.to_device(env.host, stream=env.stream)
    if env.stream:
        env.side.wait(env.stream)
    array.copy(stream=env.side)
    dm.stream()
    del array
    dm.trim()


@entry("transfer_stats")
def _(env: Env) -> None:
    assert dm.transfer_stats()


@entry("device")
def _(env: Env) -> None:
    with dm.device(1):
        dm.to_device(env.host)


@entry("devices")
def _(env: Env) -> None:
    assert dm.devices()


@entry("select_device")
def _(env: Env) -> None:
    with dm.select_device(1):
        dm.device_array(10)


@entry("current_device")
def _(env: Env) -> None:
    dm.current_device().synchronize()


@entry("use_backend")
def _(env: Env) -> None:
    with dm.use_backend("faulty"):
        dm.device_array(10)


@entry("backends")
def _(env: Env) -> None:
    assert dm.backends()


@entry("settings")
def _(env: Env) -> None:
    assert dm.settings()


@entry("unregister_backend")
def _(env: Env) -> None:
    second = Backend(HostBackend(), "second")
    second.faults = env.backend.faults
    dm.register_backend(second)
    try:
        with dm.device("second:0"):
            array = dm.to_device(np.arange(10))
            del array
        dm.unregister_backend("second")
    except dm.DevmemError:
        env.backend.disarm()
        dm.unregister_backend("second")
        raise
    finally:
        assert all(map(closed, second.opened))
        assert not second.mistakes()


@entry("close", bare=True)
def _(env: Env) -> None:
    finish(env, use_everything, dm.close)


@entry("reset", bare=True)
def _(env: Env) -> None:
    finish(env, use_everything, dm.reset, dm.close)


# -- the table: arrays -------------------------------------------------------------------------------------------------


@entry("DeviceNDArray.copy_to_host")
def _(env: Env) -> None:
    env.array.copy_to_host(stream=env.stream)
    env.array.copy_to_host(env.out, stream=env.stream)
    env.array.copy_to_host(env.pinned, stream=env.side)
    env.side.synchronize()


@entry("DeviceNDArray.copy_to_device")
def _(env: Env) -> None:
    env.target.copy_to_device(env.host, stream=env.stream)
    env.target.copy_to_device(env.pinned, stream=env.stream)
    env.target.copy_to_device(env.array, stream=env.stream)
    env.target.copy_to_device(env.far_array, stream=env.stream)


@entry("DeviceNDArray.copy")
def _(env: Env) -> None:
    env.array.copy(stream=env.stream)


@entry("DeviceNDArray.fill")
def _(env: Env) -> None:
    env.target.fill(FILLED, stream=env.stream)


@entry("DeviceNDArray.item")
def _(env: Env) -> None:
    assert env.array.item(0, 0, 0) == env.host[0, 0, 0]


@entry("DeviceNDArray.tolist")
def _(env: Env) -> None:
    assert env.one.tolist() == [2.0]


@entry("DeviceNDArray.__getitem__")
def _(env: Env) -> None:
    assert env.array[1, 1, 1] == env.host[1, 1, 1]
    assert env.array[..., ::-1].copy_to_host().shape == env.shape


@entry("DeviceNDArray.__setitem__")
def _(env: Env) -> None:
    env.target[...] = FILLED
    env.target[..., 1:] = env.target[..., :-1]  # overlaps itself
    env.target[...] = env.host
    env.target[:1] = env.array[:1]
    env.target[...] = env.host.astype(np.int64)


@entry("DeviceNDArray.__iter__")
def _(env: Env) -> None:
    assert list(env.one) == [2.0]


@entry("DeviceNDArray.__array__")
def _(env: Env) -> None:
    assert np.array_equal(np.asarray(env.array), env.host)


@entry("DeviceNDArray.__bytes__")
def _(env: Env) -> None:
    assert bytes(env.array) == env.host.tobytes()


@entry("DeviceNDArray.__dlpack__")
def _(env: Env) -> None:
    env.array.__dlpack__()
    env.array.__dlpack__(stream=-1, copy=True)
    env.array.__dlpack__(dl_device=(1, 0), max_version=(1, 0))


@entry("DeviceNDArray.__bool__")
def _(env: Env) -> None:
    assert env.one


@entry("DeviceNDArray.__int__")
def _(env: Env) -> None:
    assert int(env.one) == 2


@entry("DeviceNDArray.__float__")
def _(env: Env) -> None:
    assert float(env.one) == 2.0


@entry("DeviceNDArray.__complex__")
def _(env: Env) -> None:
    assert complex(env.one) == 2.0


@entry("DeviceNDArray.__index__")
def _(env: Env) -> None:
    assert range(10)[env.count] == 3


@entry("DeviceNDArray.__copy__")
def _(env: Env) -> None:
    copy.copy(env.array)


@entry("DeviceNDArray.__deepcopy__")
def _(env: Env) -> None:
    copy.deepcopy(env.array)


@entry("DeviceNDArray.__reduce__")
def _(env: Env) -> None:
    rebuild, arguments = env.array.__reduce__()
    rebuild(*arguments)


@entry("DeviceNDArray.__enter__")
def _(env: Env) -> None:
    with dm.to_device(env.host, stream=env.stream) as array:
        array.fill(1)


@entry("DeviceNDArray.__exit__")
def _(env: Env) -> None:
    with dm.device_array(10, stream=env.stream):
        pass


@entry("DeviceNDArray.free")
def _(env: Env) -> None:
    array = dm.to_device(env.host)
    array.copy_to_host(env.pinned, stream=env.side)
    array.free()
    array.free()


@entry("DeviceNDArray.reshape")
def _(env: Env) -> None:
    env.array.reshape(-1)
    env.array.reshape(-1, order="F")


@entry("DeviceNDArray.ravel")
def _(env: Env) -> None:
    env.array.ravel(stream=env.stream)


@entry("DeviceNDArray.bind")
def _(env: Env) -> None:
    env.array.bind(env.stream).copy()


@entry("DeviceNDArray.split")
def _(env: Env) -> None:
    for part in env.target.split(1, stream=env.stream):
        part.fill(FILLED)


@entry("DeviceNDArray.squeeze")
def _(env: Env) -> None:
    env.array[:1].squeeze(stream=env.stream).copy()


@entry("DeviceNDArray.transpose")
def _(env: Env) -> None:
    env.array.transpose(1, 2, 0).copy_to_host()


@entry("DeviceNDArray.T")
def _(env: Env) -> None:
    env.target.T.copy_to_device(env.host.T)


@entry("DeviceNDArray.view")
def _(env: Env) -> None:
    assert env.array.view(np.uint32).copy_to_host().dtype == np.uint32


@entry("DeviceNDArray.is_c_contiguous")
def _(env: Env) -> None:
    env.array.is_c_contiguous()


@entry("DeviceNDArray.is_f_contiguous")
def _(env: Env) -> None:
    env.array.is_f_contiguous()


@entry("DeviceRecord.__getitem__")
def _(env: Env) -> None:
    assert env.record["x"] in (0, 1, 2)
    assert env.record["y"].copy_to_host().shape == (2,)


@entry("DeviceRecord.__setitem__")
def _(env: Env) -> None:
    env.record["x"] = 1
    env.record["y"] = [1.0, 2.0]


@entry("DeviceRecord.__iter__")
def _(env: Env) -> None:
    assert len(list(env.record)) == len(env.record)


@entry("DeviceRecord.__ne__")
def _(env: Env) -> None:
    assert bool(env.record != env.record.copy_to_host()) is False


@entry("DeviceRecord.__bool__")
def _(env: Env) -> None:
    bool(env.record)


@entry("DeviceRecord.__array__")
def _(env: Env) -> None:
    assert np.asarray(env.record).dtype == env.record.dtype


@entry("DeviceRecord.__bytes__")
def _(env: Env) -> None:
    assert len(bytes(env.record)) == env.record.nbytes


@entry("DeviceRecord.__copy__")
def _(env: Env) -> None:
    copy.copy(env.record)


@entry("DeviceRecord.__deepcopy__")
def _(env: Env) -> None:
    copy.deepcopy(env.record)


@entry("DeviceRecord.__reduce__")
def _(env: Env) -> None:
    env.record.__reduce__()


@entry("DeviceRecord.copy_to_host")
def _(env: Env) -> None:
    env.record.copy_to_host(stream=env.stream)


@entry("DeviceRecord.copy_to_device")
def _(env: Env) -> None:
    env.record.copy_to_device((2, (3.0, 4.0)), stream=env.stream)


@entry("DeviceRecord.free")
def _(env: Env) -> None:
    dm.to_device(np.zeros((), RECORD)[()]).free()


def _visible(kind: str) -> None:
    @entry(f"{kind}NDArray.copy_to_host")
    def _(env: Env) -> None:
        getattr(env, kind.lower()).copy_to_host(stream=env.stream)
        getattr(env, kind.lower())[::2].copy_to_host()

    @entry(f"{kind}NDArray.copy_to_device")
    def _(env: Env) -> None:
        getattr(env, kind.lower()).copy_to_device(np.arange(64, dtype=np.int32), stream=env.stream)

    @entry(f"{kind}NDArray.split")
    def _(env: Env) -> None:
        for part in getattr(env, kind.lower()).split(40):
            dm.to_device(part)

    @entry(f"{kind}NDArray.__dlpack__")
    def _(env: Env) -> None:
        array = getattr(env, kind.lower())
        env.target.reshape(-1)[:64].copy_to_host(array, stream=env.side)
        array.__dlpack__()
        array.__dlpack__(dl_device=(1, 0), copy=True)
        array[:] = 0

    @entry(f"{kind}NDArray.__reduce__")
    def _(env: Env) -> None:
        getattr(env, kind.lower()).__reduce__()


_visible("Mapped")
_visible("Managed")


@entry("ManagedNDArray.prefetch")
def _(env: Env) -> None:
    env.managed.prefetch(stream=env.stream)
    env.managed.prefetch(to_host=True, stream=env.side)


@entry("ManagedNDArray.discard")
def _(env: Env) -> None:
    with contextlib.suppress(dm.UnsupportedError):
        env.managed.discard(env.stream)


@entry("ManagedNDArray.advise")
def _(env: Env) -> None:
    env.managed.advise("set_read_mostly")


# -- the table: streams, events, devices -------------------------------------------------------------------------------


@entry("Stream.synchronize")
def _(env: Env) -> None:
    dm.to_device(env.pinned, stream=env.side)
    env.side.synchronize()


@entry("Stream.query")
def _(env: Env) -> None:
    env.side.query()


@entry("Stream.wait")
def _(env: Env) -> None:
    env.side.wait(env.event)
    env.side.wait(dm.default_stream())
    with dm.device(1):
        dm.default_stream().wait(env.side)


@entry("Stream.record")
def _(env: Env) -> None:
    env.side.record().synchronize()
    env.side.record(env.event)


@entry("Stream.add_callback")
def _(env: Env) -> None:
    called = threading.Event()
    env.side.add_callback(lambda error: called.set())
    assert called.wait(patience()), "also where the wait fails"


@entry("DeviceNDArray.record_stream")
def _(env: Env) -> None:
    array = dm.to_device(env.host)
    array.record_stream(env.side)
    array.record_stream(dm.external_stream(env.foreign))


@entry("Stream.auto_synchronize")
def _(env: Env) -> None:
    with env.side.auto_synchronize():
        env.target.copy_to_device(env.pinned, stream=env.side)


@entry("Stream.close")
def _(env: Env) -> None:
    stream = dm.stream()
    dm.to_device(env.pinned, stream=stream).copy_to_host(env.out, stream=stream)
    finish(env, stream.close)
    assert stream.closed


@entry("Stream.__enter__")
def _(env: Env) -> None:
    with env.side:
        dm.to_device(env.host)


@entry("Stream.__exit__")
def _(env: Env) -> None:
    with env.side:
        pass


@entry("Event.record")
def _(env: Env) -> None:
    env.event.record(env.stream)


@entry("Event.query")
def _(env: Env) -> None:
    env.event.query()


@entry("Event.synchronize")
def _(env: Env) -> None:
    env.event.synchronize()


@entry("Event.wait")
def _(env: Env) -> None:
    env.event.wait(env.side)


@entry("Event.elapsed_time")
def _(env: Env) -> None:
    end = dm.event()
    end.record(env.stream)
    end.synchronize()
    env.event.elapsed_time(end)


@entry("Event.close")
def _(env: Env) -> None:
    event = dm.event()
    finish(env, event.close)


@entry("Device.memory_info")
def _(env: Env) -> None:
    dm.device(1).memory_info()


@entry("Device.synchronize")
def _(env: Env) -> None:
    dm.to_device(env.pinned, stream=env.side)
    dm.current_device().synchronize()


@entry("Device.can_access_peer")
def _(env: Env) -> None:
    assert dm.device(0).can_access_peer(1) == (Capability.PEER in dm.device(0).info.capabilities)


@entry("Device.enable_peer_access")
def _(env: Env) -> None:
    dm.device(0).enable_peer_access(1)


@entry("Device.disable_peer_access")
def _(env: Env) -> None:
    try:
        dm.device(0).disable_peer_access(1)
        env.target.copy_to_device(env.far_array)
    finally:
        dm.device(0).opened().copies.apart.clear()


@entry("Device.reset", bare=True)
def _(env: Env) -> None:
    finish(env, use_everything, dm.device(0).reset, dm.device(1).reset, dm.close)


@entry("Device.entered")
def _(env: Env) -> None:
    with dm.device(1).entered() as driver:
        driver.memory_info()


@entry("Device.__enter__")
def _(env: Env) -> None:
    with dm.device(1):
        dm.synchronize()


@entry("Device.__exit__")
def _(env: Env) -> None:
    with dm.device(1):
        pass


@entry("Device.info", bare=True)
def _(env: Env) -> None:
    assert dm.device(1).info.backend == "faulty"
    dm.close()


@entry("Device.name", bare=True)
def _(env: Env) -> None:
    assert dm.device(0).name
    dm.close()


#: Public names that make no driver call which could fail, and why.
EXCLUDED = {
    **dict.fromkeys(kernel_names.PUBLIC, "belongs in a kernel: on the host it raises"),
    "register_backend": "adds a name to a table",
    "open_ipc_array": "needs two processes: its loop is in test_ipc.py",
    "receive_ipc_array": "needs two processes: it opens as open_ipc_array does, see test_ipc_passing.py",
    "send_ipc_array": "needs two processes: it exports as get_ipc_handle does, see test_ipc_passing.py",
    "errors": "a module",
    "memory": "a module",
    "spill": "a module: the failures of its copies are in test_spill.py",
    "is_available": "asks the backend, and opens no device",
    "device_count": "asks the backend, and opens no device",
    "simulator": "settings for a while; what it changes is Python, and calls no driver",
    "DeviceNDArray.shape": "a field",
    "DeviceNDArray.strides": "a field",
    "DeviceNDArray.dtype": "a field",
    "DeviceNDArray.open_device": "a field",
    "DeviceNDArray.device": "a field",
    "DeviceNDArray.stream": "a field",
    "DeviceNDArray.ptr": "a field, checked",
    "DeviceNDArray.data_ptr": "a field, checked",
    "DeviceNDArray.flags": "arithmetic",
    "DeviceNDArray.itemsize": "arithmetic",
    "DeviceNDArray.nbytes": "arithmetic",
    "DeviceNDArray.ndim": "arithmetic",
    "DeviceNDArray.size": "arithmetic",
    "DeviceNDArray.__dlpack_device__": "a field",
    "DeviceNDArray.get_ipc_handle": "needs two processes: its loop is in test_ipc.py",
    "DeviceNDArray.like": "for the machinery; copy() goes through it",
    "DeviceNDArray.stream_in_force": "for the machinery",
    "DeviceNDArray.put": "for the machinery; copy_to_device() and assignment go through it",
    "DeviceRecord.open_device": "a field",
    "DeviceRecord.device": "a field",
    "DeviceRecord.dtype": "a field",
    "DeviceRecord.nbytes": "arithmetic",
    "DeviceRecord.ptr": "a field, checked",
    "MappedNDArray.__dlpack_device__": "a field",
    "MappedNDArray.device": "a field",
    "MappedNDArray.ptr": "arithmetic",
    "MappedNDArray.data_ptr": "arithmetic",
    "MappedNDArray.free": "always refuses",
    "ManagedNDArray.__dlpack_device__": "a field",
    "ManagedNDArray.device": "a field",
    "ManagedNDArray.ptr": "arithmetic",
    "ManagedNDArray.data_ptr": "arithmetic",
    "ManagedNDArray.free": "always refuses",
    "Stream.__int__": "a field",
    "Stream.__reduce__": "always refuses",
    "Stream.__cuda_stream__": "a field",
    "Stream.check_not_captured": "for the machinery; every call that cannot be captured goes through it",
    "Stream.check_not_recorded": "a field, checked",
    "Stream.check_waitable": "for the machinery; every call that waits goes through it",
    "Stream.closed": "a field",
    "Stream.destroy": "for the queue; close() and trim() go through it",
    "Stream.device": "a field",
    "Stream.is_capturing": "for the machinery; every call that waits goes through it",
    "Stream.is_out": "for the queue",
    "Stream.order_handle": "for the queue",
    "Stream.passed": "for the queue; trim() goes through it",
    "Stream.ordering_stream": "for the machinery; __cuda_array_interface__ goes through it",
    "Stream.release": "for the queue; trim() goes through it",
    "Stream.release_at_close": "for the queue; close() goes through it",
    "Stream.waits_for": "a fact",
    "Event.__reduce__": "always refuses",
    "Event.is_out": "for the queue",
    "Event.release": "for the queue; trim() goes through it",
    "Event.release_at_close": "for the queue; close() goes through it",
    "Event.destroy": "for the queue; close() and trim() go through it",
    "Event.device": "a field",
    "Device.__reduce__": "names the device",
    "Device.opened": "for the machinery; every verb that opens goes through it",
    "Device.driver": "for tests; opens as opened() does",
    "Device.id": "a field",
}


# What __del__ leads to is under trim.
PLUMBING = {"__init__", "__del__", "__getattr__", "__setattr__", "__eq__", "__hash__", "__repr__", "__str__", "__len__"}
PLUMBING |= {"__new__", "__dir__", "__array_finalize__", "__array_wrap__", "__devmem_view__"}


def public_names() -> set[str]:
    """Every verb of devmem, and every public method, property and Python protocol of its classes."""
    names = {name for name in dm.__all__ if not isinstance(getattr(dm, name), type) or name == "defer_cleanup"}
    for kind in (
        dm.DeviceNDArray,
        dm.DeviceRecord,
        dm.MappedNDArray,
        dm.ManagedNDArray,
        dm.Stream,
        dm.Event,
        dm.Device,
    ):
        ours = [base for base in kind.__mro__ if base.__module__.startswith("devmem.") and base.__name__ != "Operators"]
        members = {name for base in ours for name, what in vars(base).items() if belongs(name, what)}
        names |= {f"{kind.__name__}.{name}" for name in members}
    return names


def belongs(name: str, what: object) -> bool:
    """Not private, and not just a field or a constant, nor how Python makes and shows an object."""
    if name.startswith("__"):
        return inspect.isfunction(what) and name not in PLUMBING
    return not name.startswith("_") and (callable(what) or isinstance(what, property))


def test_every_public_name_is_in_the_table_or_excluded() -> None:
    names = public_names()
    assert names - ENTRIES.keys() - EXCLUDED.keys() == set(), "without an injection loop, and without a reason"
    assert ENTRIES.keys() - names == set(), "in the table, but not public any more"
    assert ENTRIES.keys() & EXCLUDED.keys() == set()


# -- the loops ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_driver_call_fails_once(name: str, world: World, backend: Backend) -> None:
    if name in BARE and world != WORLDS[0]:
        pytest.skip("closes the device: the same in every world")
    env = Env(backend, world, bare=name in BARE)
    loop(env, functools.partial(ENTRIES[name], env), backend)


@pytest.mark.parametrize("method", ["alloc_async", "alloc", "event_create", "event_record"])
@pytest.mark.parametrize("name", sorted(ENTRIES.keys() - BARE))
def test_every_call_from_one_on_fails(name: str, method: str, backend: Backend) -> None:
    """Out of memory for good, and of events: what the ladder and the queue cannot retry away."""
    memory = "driver" if method == "alloc" else "stream_ordered"
    env = Env(backend, World("rows", stream=True, memory=memory))
    loop(env, functools.partial(ENTRIES[name], env), OneMethod(backend, method), repeat=True)


def test_opening_a_device(backend: Backend) -> None:
    env = Env(backend, World(), bare=True)

    def call() -> None:
        dm.memory_info()
        dm.close()

    assert loop(env, call, backend) >= 3


def in_flight_up(env: Env) -> None:
    dm.to_device(env.pinned, stream=env.side)


def in_flight_down(env: Env) -> None:
    env.array.copy_to_host(dm.pinned_array_like(env.host), stream=env.side)


def in_flight_both(env: Env) -> None:
    array = dm.to_device(env.pinned, stream=env.side)
    array.copy_to_host(dm.pinned_array_like(env.host), stream=env.side)
    env.target.copy_to_device(array, stream=env.side)
    array.copy(stream=dm.stream())


def in_flight_fill(env: Env) -> None:
    env.target.fill(FILLED, stream=env.side)
    dm.full(1000, 1.5, stream=env.side)


@pytest.mark.parametrize("call", [in_flight_up, in_flight_down, in_flight_both, in_flight_fill])
@pytest.mark.parametrize(
    "world", worlds(World(), World("rows"), World("columns"), World("rows", memory="driver")), ids=str
)
def test_with_copies_held_back(world: World, call: Call, backend: Backend) -> None:
    """The stream stands still while its calls fail; calls that have to wait for it get it going when the latch gives up."""
    env = Env(backend, world)

    def held() -> None:
        # Through the inner driver: a latch that failed to open would hold everything for good.
        with StreamHold(backend.drivers[0].inner, env.side.handle, patience=0.02, tolerant=True):
            call(env)

    loop(env, held, backend)


@pytest.fixture
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the backend: what is 1,000 bytes or more passes through three slots, in many blocks."""
    for name, value in {"THRESHOLD": 1000, "SLOT_BYTES": 2500, "SLOTS": 3, "THREADS": 2}.items():
        monkeypatch.setenv(f"DEVMEM_STAGING_{name}", str(value))


class StagedEnv(Env):
    """The slots are made when they are needed: they are given back before the books are looked at, and all can be."""

    def __init__(self, backend: Backend, world: World) -> None:
        super().__init__(backend, world)
        self.settle()
        self.before = backend.live()

    def settle(self) -> None:
        super().settle()
        for ordinal in range(2):
            ring = dm.device(ordinal).opened().ring
            assert set(ring.free_slots()) == set(ring.made), "a slot got lost"
            with dm.device(ordinal).entered():
                ring.trim()
            assert not ring.made


def staged_up(env: Env) -> None:
    env.target.copy_to_device(env.host, stream=env.stream)
    dm.to_device(env.host, stream=env.stream)


def staged_down(env: Env) -> None:
    env.array.copy_to_host(env.out, stream=env.stream)


def staged_async(env: Env) -> None:
    down = dm.copy_async(env.array, env.out, stream=env.stream)
    up = dm.copy_async(env.host, env.target, stream=env.side)
    dm.copy_async(env.array, stream=env.side)
    assert down.result() is env.out
    assert np.array_equal(env.out, env.host)
    up.wait()


def staged_across(env: Env) -> None:
    """By way of the slots: neither device reaches the other's memory."""
    context = dm.device(0).opened()
    able = context.handle.capabilities
    context.handle.capabilities = able - {Capability.PEER}
    try:
        env.target.copy_to_device(env.far_array, stream=env.stream)
    finally:
        context.handle.capabilities = able


def staged_files(env: Env) -> None:
    """By way of the slots, also where the backend moves files by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plugins.registry.files, env.array.device.backend, None)
        ENTRIES["save"](env)
        ENTRIES["load"](env)


@pytest.mark.parametrize("call", [staged_up, staged_down, staged_async, staged_across, staged_files])
@pytest.mark.parametrize(
    "world", worlds(World(), World(stream=True), World("rows"), World("columns", stream=True)), ids=str
)
def test_in_the_middle_of_a_staged_copy(small_slots: None, world: World, call: Call, backend: Backend) -> None:
    """The destination holds old or new elements, the ring is whole, nothing is left behind, and the next copy is right."""
    env = StagedEnv(backend, world)
    assert loop(env, functools.partial(call, env), backend) > 10


def test_verbs_with_copies_in_flight(backend: Backend) -> None:
    """Uploads from pinned memory run while other verbs fail: polling and draining are in the way of each."""
    env = Env(backend, World("rows", stream=True))

    def call() -> None:
        for _ in range(3):
            dm.to_device(env.pinned, stream=env.side)
            dm.to_device(env.pinned, stream=dm.stream())
        dm.to_device(env.host).copy_to_host()

    loop(env, call, backend)


class OneMethod:
    """Injects into one method only."""

    def __init__(self, backend: Backend, method: str) -> None:
        self.backend = backend
        self.method = method

    def fail_at(self, nth: int, method: object = None, error: object = None, *, repeat: bool = False) -> None:
        self.backend.fail_at(nth, self.method, repeat=repeat)

    def disarm(self) -> None:
        self.backend.disarm()

    @property
    def injected(self) -> list[str]:
        return self.backend.injected


def loop(env: Env, call: Callable[[], object], target: Any, *, repeat: bool = False) -> int:
    env.check()
    callers: list[weakref.ref[Caller]] = []

    def called() -> None:
        caller = Caller()
        callers.append(weakref.ref(caller))
        call()

    def check() -> None:
        assert callers[-1]() is None, (
            "what failed keeps the frames of its callers, and all that they have, until a collection"
        )
        env.check()
        call()
        env.check()

    gc.disable()
    try:
        return every_failure(called, target, check=check, repeat=repeat)
    finally:
        gc.enable()


class Caller:
    """Something that a caller has in a variable."""


def finish(env: Env, *steps: Callable[[], object]) -> None:
    """Close; where that fails, once more with nothing armed: what is still there must be closable."""
    try:
        for step in steps:
            step()
    except dm.DevmemError:
        env.backend.disarm()
        steps[-1]()
        raise


class Closing:
    """`finish` at the end of a ``with`` block."""

    def __init__(self, env: Env, held: Any) -> None:
        self.env = env
        self.held = held

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        finish(self.env, self.held.close)


def use_everything() -> None:
    """Something of each kind, dropped or pending when the device is closed."""
    stream = dm.stream()
    event = dm.event()
    event.record(stream)
    dm.pinned_array(10)
    array = dm.to_device(np.arange(100), stream=stream)
    array.copy()
    with dm.device(1):
        dm.to_device(np.arange(100))
    dm.register(np.zeros(1000))
