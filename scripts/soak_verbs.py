"""The verbs that ``scripts/soak`` and ``scripts/signals`` mix. Each draws what it works on, and compares all bytes it gets back.

A verb takes what one thread works on (`Things`) and leaves nothing behind but what is in there. What it draws depends on the
generator alone, so a seed repeats it.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import devmem as dm

Array = npt.NDArray[Any]
Verb = Callable[["Things"], object]

#: Each verb by its name, and how often it is drawn.
VERBS: dict[str, Verb] = {}
WEIGHTS: dict[str, int] = {}

DTYPES = ("u1", "i2", "f4", "f8", "c16")
#: Where contents are taken from: pieces of it at any place differ from one another.
POOL = np.random.default_rng(0).integers(0, 256, 8 << 20, np.uint8)
POOL.setflags(write=False)
PAGE = 4096
#: Bytes from which pageable copies are staged here, and the size of a slot (`ENVIRONMENT`).
STAGED = 1 << 20

#: Settings under which all of devmem's ways are taken with little memory. They are read when a device is opened.
ENVIRONMENT = {
    "DEVMEM_HOST_STRICT": "1",
    "DEVMEM_HOST_DEVICES": "2",
    "DEVMEM_STAGING_THRESHOLD": str(STAGED),
    "DEVMEM_STAGING_SLOT_BYTES": str(STAGED // 4),
}


class WrongBytes(AssertionError):
    """What came back is not what was sent."""


@functools.cache
def count_of_devices(backend: str) -> int:
    """How many devices a backend has; asked once, as all backends are asked."""
    return sum(device.backend == backend for device in dm.devices())


class Things:
    """What one thread works on."""

    def __init__(
        self, rng: random.Random, folder: str, number: int = 0, handed_on: list[tuple[Any, Array]] | None = None
    ) -> None:
        self.rng, self.folder, self.number = rng, folder, number
        self.devices = count_of_devices(dm.current_device().backend)
        self.stream = dm.stream(non_blocking=rng.random() < 0.5)
        self.pool = dm.memory.PoolMemory()
        self.kept: list[tuple[Any, Array]] = []
        #: Arrays that threads pass to one another.
        self.handed_on: list[tuple[Any, Array]] = [] if handed_on is None else handed_on

    def data(self, largest: int = 200_000) -> Array:
        """A read-only array of some dtype and shape; small ones are drawn more often than large ones."""
        kind = np.dtype(self.rng.choice(DTYPES))
        count = int(largest ** self.rng.random()) // kind.itemsize + 1
        start = self.rng.randrange((POOL.size - count * kind.itemsize) // 16) * 16
        found = POOL[start : start + count * kind.itemsize].view(kind)
        columns = self.rng.choice((1, 1, 2, 3, 10))
        return found.reshape(-1, columns) if count % columns == 0 else found

    def pinned(self, content: Array) -> Any:
        """A page-locked array with a content."""
        made = dm.pinned_array(content.shape, content.dtype)
        made[...] = content
        return made

    def other_stream(self) -> Any:
        """A stream that is gone soon, or a default one."""
        choice = self.rng.randrange(4)
        if choice < 2:
            return dm.stream(non_blocking=choice == 1)
        return dm.default_stream() if choice == 2 else dm.per_thread_default_stream()


def same(actual: Any, expected: Any, what: str) -> None:
    """Raise WrongBytes unless two host arrays are equal, byte by byte."""
    actual, expected = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    if actual.shape == expected.shape and actual.dtype == expected.dtype:
        wrong = np.flatnonzero(actual.reshape(-1).view("u1") != expected.reshape(-1).view("u1"))
        if not wrong.size:
            return
        raise WrongBytes(
            f"{what}: {wrong.size} of {actual.nbytes} bytes are wrong, the first at {wrong[0]}: "
            f"{actual.reshape(-1).view('u1')[wrong[0]]}, not {expected.reshape(-1).view('u1')[wrong[0]]}"
        )
    raise WrongBytes(f"{what}: {actual.dtype} {actual.shape} came back, not {expected.dtype} {expected.shape}")


def verb(name: str, weight: int = 4) -> Callable[[Verb], Verb]:
    """Add a verb."""

    def add(call: Verb) -> Verb:
        VERBS[name], WEIGHTS[name] = call, weight
        return call

    return add


def draw(rng: random.Random) -> str:
    """The name of the next verb."""
    return rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]


@verb("upload and download", 12)
def _(things: Things) -> None:
    data = things.data()
    same(dm.to_device(data).copy_to_host(), data, "download")


@verb("upload and download of a layout", 8)
def _(things: Things) -> None:
    data = things.data()
    part = things.rng.choice((data.T, data[::2], data[::-1], data[1:-1], data[..., ::2]))
    array = dm.to_device(part)
    out = np.empty(part.shape, part.dtype, order=things.rng.choice(("C", "F")))
    array.copy_to_host(out)
    same(out, part, "download of a layout")


@verb("staged copies", 2)
def _(things: Things) -> None:
    start = things.rng.randrange(1 << 20)
    data = POOL[start : start + STAGED + things.rng.randrange(1 << 20)]
    stream = things.rng.choice((0, things.stream))
    array = dm.to_device(data, stream=stream)
    out = np.empty_like(data)
    array.copy_to_host(out, stream=stream)
    things.stream.synchronize()
    same(out, data, "staged download")


@verb("copies on a stream", 10)
def _(things: Things) -> None:
    data = things.data()
    source, out = things.pinned(data), dm.pinned_array(data.shape, data.dtype)
    stream = things.rng.choice((things.stream, things.other_stream()))
    array = dm.to_device(source, stream=stream)
    del source  # the copy keeps it
    array.copy_to_host(out, stream=stream)
    if things.rng.random() < 0.3:
        array.free()
    stream.synchronize()
    same(out, data, "download on a stream")


@verb("streams and events that come and go", 10)
def _(things: Things) -> None:
    data = things.data(20_000)
    first, second = dm.stream(), dm.stream(non_blocking=True)
    array = dm.to_device(things.pinned(data), stream=first)
    event = dm.event()
    event.record(first)
    event.wait(second)
    out = dm.pinned_array(data.shape, data.dtype)
    array.copy_to_host(out, stream=second)
    if things.rng.random() < 0.5:
        second.synchronize()
    else:
        second.record().synchronize()
    same(out, data, "download behind an event")
    if things.rng.random() < 0.3:
        first.close()


@verb("a dropped stream with work on it", 6)
def _(things: Things) -> None:
    dm.to_device(things.pinned(things.data(20_000)), stream=dm.stream())


@verb("views", 8)
def _(things: Things) -> None:
    data = things.data()
    array = dm.to_device(data)
    first = things.rng.randrange(len(data))
    same(array[first:].copy_to_host(), data[first:], "slice")
    same(array.T.copy_to_host(), data.T, "transpose")
    same(array.reshape(-1)[::3].copy().copy_to_host(), data.reshape(-1)[::3], "copy of a strided view")
    same(array.view("u1").ravel().copy_to_host(), data.view("u1").ravel(), "bytes")


@verb("assignment", 6)
def _(things: Things) -> None:
    data, value = things.data(20_000), things.rng.randrange(100)
    expected, array = data.copy(), dm.to_device(data)
    first = things.rng.randrange(len(data))
    expected[first:] = value
    array[first:] = value
    expected[: first // 2] = data[first // 2 : first // 2 * 2][::-1]
    array[: first // 2] = data[first // 2 : first // 2 * 2][::-1]
    same(array.copy_to_host(), expected, "assignment")


@verb("fills", 8)
def _(things: Things) -> None:
    count, value = things.rng.randrange(1, 5000), things.rng.randrange(100)
    same(dm.zeros(count, "f4").copy_to_host(), np.zeros(count, "f4"), "zeros")
    same(dm.full(count, value, "i2").copy_to_host(), np.full(count, value, "i2"), "full")
    array = dm.device_array(count, "c16")
    array.fill(value + 1j, stream=things.stream)
    out = array.copy_to_host(stream=things.stream)
    things.stream.synchronize()
    same(out, np.full(count, value + 1j, "c16"), "fill")


@verb("pool", 8)
def _(things: Things) -> None:
    datas = [things.data(50_000) for _ in range(3)]
    with dm.use_memory(things.pool):
        arrays = [dm.to_device(data, stream=things.rng.choice((0, things.stream))) for data in datas]
        arrays.append(dm.device_array(1000, "u1", stream=dm.stream()))
        del arrays[-1]
        for array, data in zip(arrays, datas, strict=True):
            same(array.copy_to_host(), data, "download from a pool")


@verb("stack", 3)
def _(things: Things) -> None:
    data = things.data()
    with dm.use_memory(things.rng.choice(("limit:1GiB,statistics,pool", "driver", "guard,driver"))):
        same(dm.to_device(data).copy_to_host(), data, "download from a stack")


@verb("registering", 6)
def _(things: Things) -> None:
    data = things.data().copy()
    with dm.pinned(data), dm.pinned(data[: len(data) // 2]):
        array = dm.to_device(data, stream=things.stream)
        out = np.empty_like(data)
        array.copy_to_host(out, stream=things.stream)
        things.stream.synchronize()
    same(out, data, "download of registered memory")


@verb("mapped and managed", 5)
def _(things: Things) -> None:
    data = things.data(20_000)
    made = things.rng.choice((dm.mapped_array, dm.managed_array))(data.shape, data.dtype)
    dm.as_device_array(made).copy_to_device(data)
    dm.synchronize()
    same(made, data, "host side of mapped or managed memory")


@verb("mapping", 4)
def _(things: Things) -> None:
    # Pages that it shares with no other array: neighbours cannot be mapped by two threads at the same time.
    memory, value = np.empty(1 << 15, np.uint8), things.rng.randrange(200)
    start = -memory.ctypes.data % PAGE
    pages = memory[start : start + things.rng.randrange(1, 7 * PAGE)]
    view: Any
    with dm.mapped(pages, stream=things.stream) as view:
        view.fill(value)
        things.stream.synchronize()
    same(pages, np.full(pages.shape, value, np.uint8), "mapped pages")


@verb("batches", 6)
def _(things: Things) -> None:
    tree = {"a": [things.data(5000) for _ in range(things.rng.randrange(1, 12))], "b": (things.data(), 7)}
    found = dm.to_host_many(dm.to_device_many(tree, stream=things.rng.choice((0, things.stream))))
    things.stream.synchronize()
    for actual, expected in zip([*found["a"], *found["b"]], [*tree["a"], tree["b"][0], np.asarray(7)], strict=True):
        same(actual, expected, "batch")


@verb("copies in the background", 8)
def _(things: Things) -> None:
    data = things.data(STAGED * 2) if things.rng.random() < 0.2 else things.data()
    stream = things.rng.choice((None, things.stream, things.other_stream()))
    up = dm.copy_async(data, stream=stream)
    down = dm.copy_async(up.result(), stream=stream, pinned=things.rng.random() < 0.5)
    if things.rng.random() < 0.2:
        return  # dropped
    while not down.done():
        down.wait()
    same(down.result(), data, "download in the background")


@verb("scatter and gather", 3)
def _(things: Things) -> None:
    data = things.data()
    same(dm.gather(dm.scatter(data, list(range(min(2, things.devices))))), data, "gather")


@verb("another device", 3)
def _(things: Things) -> None:
    data = things.data()
    with dm.device(things.devices - 1):
        far = dm.to_device(data)
    near = dm.device_array_like(data)
    near.copy_to_device(far)
    same(near.copy_to_host(), data, "copy between devices")


@verb("both sides", 3)
def _(things: Things) -> None:
    data = things.data(20_000).copy()
    array = dm.SmartArray(data.copy())
    array.gpu()
    array.host()[...] = data
    same(array.gpu().copy_to_host(), data, "SmartArray")


@verb("exchange", 3)
def _(things: Things) -> None:
    data = things.data(20_000)
    same(dm.from_dlpack(dm.to_device(data)).copy_to_host(), data, "exchange")


@verb("files", 2)
def _(things: Things) -> None:
    data = things.data()
    path = Path(things.folder, f"{things.number}.npy")
    dm.save(dm.to_device(data), path)
    same(dm.load(path).copy_to_host(), data, "file")


@verb("garbage in cycles", 6)
def _(things: Things) -> None:
    data = things.data(20_000)
    cycle: list[Any] = [dm.to_device(data), dm.stream(), dm.event(), dm.pinned_array(100), dm.default_stream().record()]
    cycle.append(cycle)


@verb("what is kept", 8)
def _(things: Things) -> None:
    """Arrays that live longer than a verb, and are changed by nothing."""
    if len(things.kept) > 5:
        array, data = things.kept.pop(things.rng.randrange(len(things.kept)))
        same(array.copy_to_host(), data, "what was kept")
    else:
        data = things.data()
        things.kept.append((dm.to_device(data), data))


@verb("what another thread made", 8)
def _(things: Things) -> None:
    data = things.data(50_000)
    things.handed_on.append((dm.to_device(data), data))
    if len(things.handed_on) > 8:
        with contextlib.suppress(IndexError):
            array, data = things.handed_on.pop(0)
            same(array.copy_to_host(), data, "what another thread made")


@verb("a thread that comes and goes", 3)
def _(things: Things) -> None:
    data = things.data(20_000)
    found: list[Any] = []
    backend = dm.current_device().backend

    def work() -> None:
        try:
            with dm.use_backend(backend):
                stream = dm.per_thread_default_stream()
                array, out = dm.to_device(things.pinned(data), stream=stream), dm.pinned_array(data.shape, data.dtype)
                array.copy_to_host(out, stream=stream)
                stream.synchronize()
                found.append(out)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    same(found[0], data, "download by a thread that is gone")


@verb("deferred cleanup", 2)
def _(things: Things) -> None:
    with dm.defer_cleanup():
        data = things.data(5000)
        same(dm.to_device(data).copy_to_host(), data, "download while cleanup is deferred")


@verb("looking", 4)
def _(things: Things) -> None:
    info = dm.memory_info()
    if min(*info[:5], *info.host) < 0 or info.free > info.total:
        raise WrongBytes(f"memory_info() says {info}")
    dm.transfer_stats()
    repr(things.stream)


@verb("trim", 2)
def _(things: Things) -> None:
    dm.trim(things.rng.choice((0, 1 << 20)))


@verb("errors", 3)
def _(things: Things) -> None:
    array = dm.device_array(3)
    for wrong in (lambda: array.copy_to_device(np.zeros(4)), lambda: dm.to_device("text").copy_to_host(np.zeros(1))):
        try:
            wrong()
        except (dm.LayoutError, TypeError):
            continue
        raise WrongBytes("a wrong copy was not refused")
    array.free()
    try:
        array.copy_to_host()
    except dm.ClosedError:
        return
    raise WrongBytes("an array that was freed can still be read")


@verb("kernel", 1)
def _(things: Things) -> None:
    data = things.data(64)
    array = dm.to_device(data.reshape(-1).view("u1"))
    double[1, array.size](array)
    same(array.copy_to_host(), data.reshape(-1).view("u1") * np.uint8(2), "kernel")


@dm.kernel
def double(array: Any) -> None:
    """Double each byte."""
    at = dm.grid(1)
    if at < array.size:
        array[at] = array[at] * 2
