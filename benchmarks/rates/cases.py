"""The rows of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np

import devmem as dm
from devmem.spill import Store

from .driver import Array
from .libraries import Devmem, Library
from .sizes import KiB, shown
from .tasks import Case, Data, Effort, Task, on_device, poison, same


def cases(effort: Effort, data: Data) -> Iterator[Case]:
    """All rows: the quick ones first, then the most important ones, because time may run out."""
    largest = effort.sizes[0]
    yield from calls(effort)
    if 4 * KiB in effort.sizes:
        yield from contiguous(4 * KiB, data, "-4KiB")
    yield from many(effort, data)
    yield from contiguous(largest, data, "")
    yield spilling(largest, data)
    yield from strided(effort, data)
    for nbytes in effort.sizes[1:]:
        if nbytes != 4 * KiB:
            yield from contiguous(nbytes, data, f"-{shown(nbytes).replace(' ', '')}")
    for nbytes in effort.sizes:
        yield device_to_device(nbytes, data, "" if nbytes == largest else f"-{shown(nbytes).replace(' ', '')}")


def contiguous(nbytes: int, data: Data, suffix: str) -> Iterator[Case]:
    """Contiguous arrays in both directions, into new and existing arrays, pageable and pinned."""
    unit = "us" if nbytes <= 4 * KiB else "GB/s"

    def upload(library: Library) -> Task:
        src = data.src(nbytes)
        return Task(
            lambda: library.upload(src), lambda made: on_device(library, made, src), prepare=lambda: data.renew(src)
        )

    def write(pinned: bool) -> Callable[[Library], Task]:
        def build(library: Library) -> Task:
            src, device = data.src(nbytes, pinned), library.allocate((nbytes // 4,))
            return Task(
                lambda: library.write(device, src),
                lambda _: on_device(library, device, src),
                prepare=lambda: data.renew(src),
            )

        return build

    def download(library: Library) -> Task:
        src = data.src(nbytes)
        device = library.upload(src)
        return Task(lambda: library.download(device), lambda made: same(made, src))

    def read(pinned: bool) -> Callable[[Library], Task]:
        def build(library: Library) -> Task:
            src, out = data.src(nbytes), data.out(nbytes, pinned)
            device = library.upload(src)
            return Task(lambda: library.read(device, out), lambda _: same(out, src), prepare=lambda: poison(out))

        return build

    size = shown(nbytes)
    rows: list[tuple[str, str, Callable[[Library], Task]]] = [
        ("h2d-into", "up, pageable, into an existing array", write(False)),
        ("d2h-into", "down, pageable, into an existing array", read(False)),
        ("h2d-new", "up, pageable, into a new array", upload),
        ("d2h-new", "down, into a new array", download),
        ("h2d-into-pinned", "up, pinned, into an existing array", write(True)),
        ("d2h-into-pinned", "down, pinned, into an existing array", read(True)),
    ]
    for name, title, build in rows:
        yield Case(name + suffix, f"{size} {title}", f"Contiguous, {size}", nbytes, unit, build, name[:3])


def spilling(nbytes: int, data: Data) -> Case:
    """An array comes back to the device from page-locked memory, and another one leaves for there: both are counted."""

    def build(library: Library) -> Task:
        if not isinstance(library, Devmem):
            raise NotImplementedError
        src, store, keys = data.src(nbytes), Store(2 * nbytes), range(4)
        for key in keys:
            store[key] = dm.to_device(src)
        order = cycle(keys)
        return Task(lambda: store[next(order)], lambda made: same(made.copy_to_host(), src), uses=2)

    title = f"{shown(nbytes)} comes back as another leaves, each way"
    return Case("spill-swap", title, f"Spilling, {shown(nbytes)}", nbytes, "GB/s", build, "h2d")


def device_to_device(nbytes: int, data: Data, suffix: str) -> Case:
    """Within one device."""

    def build(library: Library) -> Task:
        src = data.src(nbytes)
        data.renew(src)
        origin, target = library.upload(src), library.allocate((nbytes // 4,))
        return Task(lambda: library.move(target, origin), lambda _: on_device(library, target, src))

    title = f"{shown(nbytes)} within the device (bytes copied; the device reads and writes each once)"
    return Case(f"d2d{suffix}", title, "Within the device", nbytes, "GB/s", build)


def strided(effort: Effort, data: Data) -> Iterator[Case]:
    """Layouts that need more than one contiguous copy."""
    n = effort.square
    nbytes = n * n * 4
    square = (n, n)

    def write_transposed(library: Library) -> Task:
        src, device = data.src(nbytes).reshape(square), library.allocate(square)
        return Task(
            lambda: library.write_transposed(device, src),
            lambda _: on_device(library, device, np.ascontiguousarray(src.T)),
            prepare=lambda: data.renew(src),
        )

    def read_transposed(library: Library) -> Task:
        src, out = data.src(nbytes).reshape(square), data.out(nbytes).reshape(square)
        device = library.upload(src)
        return Task(
            lambda: library.read_transposed(device, out),
            lambda _: same(out, np.ascontiguousarray(src.T)),
            prepare=lambda: poison(out),
        )

    def upload_half(library: Library) -> Task:
        src = data.src(nbytes).reshape(square)
        half = src[:, ::2]
        return Task(
            lambda: library.upload(half),
            lambda made: on_device(library, made, np.ascontiguousarray(half)),
            prepare=lambda: data.renew(src),
        )

    def download_half(library: Library) -> Task:
        src = data.src(nbytes).reshape(square)
        device = library.upload(src)
        return Task(lambda: library.download_every_second(device), lambda made: same(made, src[:, ::2]))

    group = f"Strided, of {n} x {n} f4"
    yield Case("h2d-transposed", "up: host.T into a C-contiguous array", group, nbytes, "GB/s", write_transposed)
    yield Case("d2h-transposed", "down: device.T into a C-contiguous array", group, nbytes, "GB/s", read_transposed)
    yield Case("h2d-every-second", "up: host[:, ::2] into a new array", group, nbytes // 2, "GB/s", upload_half)
    yield Case("d2h-every-second", "down: device[:, ::2] into a new array", group, nbytes // 2, "GB/s", download_half)


def many(effort: Effort, data: Data) -> Iterator[Case]:
    """Many small arrays."""
    count, each = effort.many, 4 * KiB

    def hosts() -> list[Array]:
        # Separate arrays, as in a program, and not adjacent parts of one block.
        return [data.src(each).copy() for _ in range(count)]

    def upload(library: Library) -> Task:
        sources = hosts()

        def renew() -> None:
            for source in sources:
                data.renew(source)

        def verify(made: Any) -> None:
            for device, source in zip(made, sources, strict=True):
                on_device(library, device, source)

        note = "to_device_many" if isinstance(library, Devmem) else "a loop"
        return Task(lambda: library.upload_many(sources), verify, renew, uses=count, note=note)

    def download(library: Library) -> Task:
        sources = hosts()
        for source in sources:
            data.renew(source)
        devices = library.upload_many(sources)

        def verify(made: Any) -> None:
            for found, source in zip(made, sources, strict=True):
                same(found, source)

        note = "to_host_many" if isinstance(library, Devmem) else "a loop"
        return Task(lambda: library.download_many(devices), verify, uses=count, note=note)

    group = f"{count:,} arrays of 4 KiB, each (the fastest function of each library, or a loop)"
    yield Case("h2d-many", "up, into new arrays", group, each, "us", upload)
    yield Case("d2h-many", "down, into new arrays", group, each, "us", download)
    yield from on_streams(effort)


def on_streams(effort: Effort) -> Iterator[Case]:
    """Page-locked blocks on a stream of their own: one by one, by one call for many, and by replays of a plan."""
    count, each = effort.many, 32 * KiB

    def blocks(library: Library) -> tuple[Any, list[Array]]:
        if not isinstance(library, Devmem):
            raise NotImplementedError
        source = dm.pinned_array((count, each // 4), np.float32)
        source[...] = np.random.default_rng().random(source.shape, np.float32)
        return dm.stream(non_blocking=True), list(source)

    def singles(library: Library) -> Task:
        stream, sources = blocks(library)
        devices = [dm.device_array(source.shape, source.dtype) for source in sources]

        def run() -> None:
            for device, source in zip(devices, sources, strict=True):
                device.copy_to_device(source, stream=stream)
            stream.synchronize()

        told = str(dm.current_device().info.facts.get("copy_calls", "the driver's one call"))
        return Task(run, lambda _: _all_on_device(library, devices, sources), uses=count, note=told)

    def batch(library: Library) -> Task:
        stream, sources = blocks(library)

        def run() -> Any:
            made = dm.to_device_many(sources, stream)
            stream.synchronize()
            return made

        return Task(run, lambda made: _all_on_device(library, made, sources), uses=count, note="to_device_many")

    def replay(library: Library) -> Task:
        stream, sources = blocks(library)
        devices = [dm.device_array(source.shape, source.dtype) for source in sources]
        dm.synchronize()
        with dm.capture(stream) as plan:
            for device, source in zip(devices, sources, strict=True):
                device.copy_to_device(source, stream=stream)

        def run() -> None:
            plan.replay()
            stream.synchronize()

        return Task(run, lambda _: _all_on_device(library, devices, sources), uses=count, note="capture, plan.replay")

    group = f"{count:,} page-locked arrays of 32 KiB, on a stream"
    yield Case("h2d-batch", "up, into new arrays, by one verb", group, each, "GB/s", batch)
    yield Case("h2d-singles", "up, into the same arrays, one by one", group, each, "GB/s", singles)
    yield Case("h2d-replay", "up, into the same arrays, by a recorded plan", group, each, "GB/s", replay)


def _all_on_device(library: Library, devices: Any, sources: list[Array]) -> None:
    for device, source in zip(devices, sources, strict=True):
        on_device(library, device, source)


def calls(effort: Effort) -> Iterator[Case]:
    """Time of a call at 16 elements until it returns; the device is waited for after many calls."""
    titles = {
        "upload": "to_device + free",
        "read": "copy_to_host(out)",
        "create": "device_array + free",
    }
    for verb, title in titles.items():

        def build(library: Library, verb: str = verb) -> Task:
            host, out = np.random.default_rng().random(16, np.float32), np.empty(16, np.float32)
            device = library.upload(host)
            once = library.calls(host, device, out)[verb]
            poison(out)

            def run() -> None:
                for _ in range(effort.calls):
                    once()

            def verify(_: Any) -> None:
                on_device(library, device, host)
                if verb == "read":
                    same(out, host)

            return Task(run, verify, uses=effort.calls)

        yield Case(f"call-{verb}", title, "One call at 16 elements", 0, "us", build)
