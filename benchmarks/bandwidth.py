#!/usr/bin/env python3
"""How fast arrays move between host and CUDA device: devmem, its peers and the machine's own limit, in one run.

    python benchmarks/bandwidth.py [--quick] [--budget SECONDS] [--json FILE]

Everything compared takes turns in every round, in an order that changes; medians are told, and the best. Each cell's bytes are
compared once before it is timed: uploads are read back through the driver, downloads go into poisoned memory. Every clock
stops when the device has finished (``cuCtxSynchronize`` for everybody, also for those that promise it anyway), and what a call
returned is dropped after that. The limit is timed by events around ``cuMemcpy*Async`` on page-locked memory, in the same rounds.

Over the emulated driver it runs with --quick, which shows that the script works and says nothing about speed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import devmem as dm

try:
    from cuda.bindings import driver as cu
except ImportError as _missing:
    raise SystemExit(f"this measures through cuda-bindings, which cannot be imported: {_missing}") from _missing

ROOT = Path(__file__).resolve().parents[1]
KiB, MiB = 1 << 10, 1 << 20
LIMIT = "pinned limit"
POISON = 0xA5
#: glibc raises this by itself once such a block was freed, and then a "new" array is recycled memory with its pages in place.
MMAP_THRESHOLD = 128 * KiB

Array = npt.NDArray[Any]


# -- what is predicted, and what is asked ------------------------------------------------------------------------------

PEERS = "peers.md"
#: (case, library) -> (from, to, where the numbers come from), in the unit of the case, for a PCIe Gen5 x16 machine (H100, H200).
PREDICTED: dict[tuple[str, str], tuple[float, float, str]] = {
    ("h2d-into-pinned", LIMIT): (50, 57, f"{PEERS} 4.2: 55.6 in NVIDIA's nvbandwidth, 63 on the wire"),
    ("d2h-into-pinned", LIMIT): (50, 57, f"{PEERS} 4.2: 56 inside a JAX trace (xla#12452)"),
    ("h2d-into-pinned", "devmem"): (48, 57, "one cuMemcpyHtoD from pinned memory: the limit, less a few us"),
    ("d2h-into-pinned", "devmem"): (48, 57, "one cuMemcpyDtoH into pinned memory: the limit, less a few us"),
    ("h2d-new", "devmem"): (8, 9, f"{PEERS} 4.2: pageable by the driver, kvikio#456 and #629"),
    ("h2d-into", "devmem"): (8, 9, f"{PEERS} 4.2: pageable by the driver, kvikio#456 and #629"),
    ("h2d-new", "numba-cuda"): (4.8, 9, f"{PEERS} 4.2: numba#4336 on a V100; the driver's 8-9 on newer machines"),
    ("d2h-into", "devmem"): (8, 12, "the driver's own staging, as for uploads; no published number"),
    ("d2h-new", "numba-cuda"): (1.7, 2.7, f"{PEERS} 4.2: numba#4336, jax#21438: pages touched for the first time"),
    ("d2h-new", "devmem"): (
        1.7,
        5,
        f"{PEERS} 4.2: 1.7-2.7 on 4 KiB pages; up to 6.8 where NumPy's huge pages are granted",
    ),
    ("d2d", "devmem"): (
        1400,
        2300,
        "datasheets: 3.35 (H100), 4.8 (H200) TB/s, of which a copy takes half, at about 90 %",
    ),
    ("h2d-transposed", "devmem"): (
        0.4,
        0.8,
        f"{PEERS} 4.2: NumPy packs a transpose at 0.41-0.47 GB/s on a small machine",
    ),
    ("d2h-transposed", "devmem"): (0.4, 0.8, f"{PEERS} 4.2: as above, on the way back"),
    ("h2d-every-second", "devmem"): (3, 5, f"{PEERS} 4.2: packing at 8.4, then pageable at 8.5: 1/(1/8.4 + 1/8.5)"),
    ("h2d-many", "devmem"): (4, 12, "a guess: 1-2 us in Python, and one small pageable copy"),
    ("d2h-many", "devmem"): (8, 16, "a guess: each waits for its copy"),
    ("h2d-new-4KiB", "devmem"): (5, 14, "a guess: one small pageable copy, and the wait for it"),
    ("call-create", "devmem"): (1, 3, f"{PEERS} 4.1: a hit in a pool, at most 2 us"),
    ("call-create", "CuPy"): (1, 2, f"{PEERS} 4.1: cp.empty(10) 1.48 us (cuda-python#756)"),
    ("call-create", "bare bindings"): (0.7, 2, f"{PEERS} 4.1: malloc and free, asynchronous, 1.94 us with the wait"),
    ("call-upload", "devmem"): (3, 10, f"{PEERS} 4.1: at most 1.5 times the bare calls"),
}
#: What the transfer engine is asked for: (case, against, at least so many times as fast). "largest" sizes only, where several.
ASKED = [
    *[(case, LIMIT, 0.80) for case in ("h2d-new", "h2d-into", "d2h-into")],
    *[(case, peer, 2.0) for case in ("h2d-new", "h2d-into", "d2h-into") for peer in ("CuPy", "PyTorch", "numba-cuda")],
    ("d2h-new", "numba-cuda", 5.0),
    *[(case, peer, 5.0) for case in ("h2d-many", "d2h-many") for peer in ("CuPy", "PyTorch")],
    *[(f"{case}-4KiB", "CuPy", 1.0) for case in ("h2d-new", "h2d-into", "d2h-new", "d2h-into")],
]


# -- libraries ---------------------------------------------------------------------------------------------------------


def checked(result: tuple[Any, ...]) -> Any:
    """The output of a driver call that succeeded."""
    if result[0]:
        raise RuntimeError(f"the driver said {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def wait() -> None:
    """Until the device has nothing left to do."""
    checked(cu.cuCtxSynchronize())


class Library:
    """One way of moving arrays. Every array is of float32; what is not overridden is not offered."""

    name = ""

    def version(self) -> str:
        raise NotImplementedError

    def upload(self, host: Array) -> Any:
        """A new device array."""
        raise NotImplementedError

    def allocate(self, shape: tuple[int, ...]) -> Any:
        raise NotImplementedError

    def write(self, device: Any, host: Array) -> None:
        """Into a device array that exists."""
        raise NotImplementedError

    def download(self, device: Any) -> Array:
        """A new host array."""
        raise NotImplementedError

    def read(self, device: Any, out: Array) -> None:
        """Into a host array that exists."""
        raise NotImplementedError

    def move(self, dst: Any, src: Any) -> None:
        """Device to device."""
        raise NotImplementedError

    def write_transposed(self, device: Any, host: Array) -> None:
        """``host.T`` into a C-contiguous device array."""
        raise NotImplementedError

    def read_transposed(self, device: Any, out: Array) -> None:
        """``device.T`` into a C-contiguous host array."""
        raise NotImplementedError

    def download_every_second(self, device: Any) -> Array:
        """``device[:, ::2]`` as a new host array."""
        raise NotImplementedError

    def upload_many(self, hosts: list[Array]) -> Any:
        return [self.upload(host) for host in hosts]

    def download_many(self, devices: Any) -> Any:
        return [self.download(device) for device in devices]

    def pointer(self, device: Any) -> int:
        return int(device.__cuda_array_interface__["data"][0])

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        """Small calls, with as little around them as can be: what they return is dropped, which frees it."""
        raise NotImplementedError


class Devmem(Library):
    """Its verbs."""

    name = "devmem"
    # More than one verb may be fastest for many arrays: that of the newest is taken.
    many_up, many_down = getattr(dm, "to_device_many", None), getattr(dm, "to_host_many", None)

    def version(self) -> str:
        return devmem_version()

    def upload(self, host: Array) -> Any:
        return dm.to_device(host)

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return dm.device_array(shape, np.float32)

    def write(self, device: Any, host: Array) -> None:
        device.copy_to_device(host)

    def download(self, device: Any) -> Array:
        made: Array = device.copy_to_host()
        return made

    def read(self, device: Any, out: Array) -> None:
        device.copy_to_host(out)

    def move(self, dst: Any, src: Any) -> None:
        dst.copy_to_device(src)

    def write_transposed(self, device: Any, host: Array) -> None:
        device.copy_to_device(host.T)

    def read_transposed(self, device: Any, out: Array) -> None:
        device.T.copy_to_host(out)

    def download_every_second(self, device: Any) -> Array:
        made: Array = device[:, ::2].copy_to_host()
        return made

    def upload_many(self, hosts: list[Array]) -> Any:
        return super().upload_many(hosts) if self.many_up is None else self.many_up(hosts)

    def download_many(self, devices: Any) -> Any:
        return super().download_many(devices) if self.many_down is None else self.many_down(devices)

    def pointer(self, device: Any) -> int:
        return int(device.ptr)

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        shape = host.shape
        return {
            "upload": lambda: dm.to_device(host).free(),
            "read": lambda: device.copy_to_host(out),
            "create": lambda: dm.device_array(shape, np.float32).free(),
        }


class Block:
    """Device memory of the driver's default pool."""

    def __init__(self, pool: Any, stream: Any, nbytes: int, shape: tuple[int, ...]) -> None:
        self.ptr = int(checked(cu.cuMemAllocFromPoolAsync(nbytes, pool, stream)))
        self.stream, self.nbytes, self.shape = stream, nbytes, shape

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            cu.cuMemFreeAsync(self.ptr, self.stream)


class Bare(Library):
    """The driver's calls and nothing else: where its own pool is kept warm, as devmem keeps its."""

    name = "bare bindings"

    def __init__(self) -> None:
        self.stream = cu.CUstream(1)  # legacy, as everybody's default
        self.pool = checked(cu.cuDeviceGetDefaultMemPool(checked(cu.cuDeviceGet(0))))
        threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        checked(cu.cuMemPoolSetAttribute(self.pool, threshold, cu.cuuint64_t((1 << 64) - 1)))

    def version(self) -> str:
        return f"cuda-bindings {importlib.metadata.version('cuda-bindings')}"

    def upload(self, host: Array) -> Any:
        if not host.flags.c_contiguous:
            raise NotImplementedError
        made = Block(self.pool, self.stream, host.nbytes, host.shape)
        checked(cu.cuMemcpyHtoD(made.ptr, host.ctypes.data, host.nbytes))
        return made

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return Block(self.pool, self.stream, int(np.prod(shape)) * 4, shape)

    def write(self, device: Any, host: Array) -> None:
        checked(cu.cuMemcpyHtoD(device.ptr, host.ctypes.data, host.nbytes))

    def download(self, device: Any) -> Array:
        out = np.empty(device.shape, np.float32)
        checked(cu.cuMemcpyDtoH(out.ctypes.data, device.ptr, device.nbytes))
        return out

    def read(self, device: Any, out: Array) -> None:
        checked(cu.cuMemcpyDtoH(out.ctypes.data, device.ptr, out.nbytes))

    def move(self, dst: Any, src: Any) -> None:
        checked(cu.cuMemcpyDtoDAsync(dst.ptr, src.ptr, src.nbytes, self.stream))

    def pointer(self, device: Any) -> int:
        return int(device.ptr)

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        pool, stream, nbytes = self.pool, self.stream, host.nbytes
        source, target, ptr = host.ctypes.data, out.ctypes.data, device.ptr

        def upload() -> None:
            no_memory, made = cu.cuMemAllocFromPoolAsync(nbytes, pool, stream)
            (not_copied,) = cu.cuMemcpyHtoD(made, source, nbytes)
            (not_freed,) = cu.cuMemFreeAsync(made, stream)
            if no_memory or not_copied or not_freed:
                raise RuntimeError(f"{no_memory!r} {not_copied!r} {not_freed!r}")

        def read() -> None:
            (not_copied,) = cu.cuMemcpyDtoH(target, ptr, nbytes)
            if not_copied:
                raise RuntimeError(repr(not_copied))

        def create() -> None:
            no_memory, made = cu.cuMemAllocFromPoolAsync(nbytes, pool, stream)
            (not_freed,) = cu.cuMemFreeAsync(made, stream)
            if no_memory or not_freed:
                raise RuntimeError(f"{no_memory!r} {not_freed!r}")

        return {"upload": upload, "read": read, "create": create}


class Cupy(Library):
    """CuPy, whose pools are warm."""

    name = "CuPy"

    def __init__(self) -> None:
        self.cp = importlib.import_module("cupy")

    def version(self) -> str:
        return str(self.cp.__version__)

    def upload(self, host: Array) -> Any:
        return self.cp.asarray(host)

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return self.cp.empty(shape, np.float32)

    def write(self, device: Any, host: Array) -> None:
        device.set(host)

    def download(self, device: Any) -> Array:
        made: Array = device.get()
        return made

    def read(self, device: Any, out: Array) -> None:
        device.get(out=out)

    def move(self, dst: Any, src: Any) -> None:
        self.cp.copyto(dst, src)

    def write_transposed(self, device: Any, host: Array) -> None:
        device[...] = self.cp.asarray(host).T

    def read_transposed(self, device: Any, out: Array) -> None:
        self.cp.ascontiguousarray(device.T).get(out=out)

    def download_every_second(self, device: Any) -> Array:
        made: Array = device[:, ::2].get()
        return made

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        asarray, empty, shape = self.cp.asarray, self.cp.empty, host.shape
        return {
            "upload": lambda: asarray(host),
            "read": lambda: device.get(out=out),
            "create": lambda: empty(shape, np.float32),
        }


class Torch(Library):
    """PyTorch, whose caching allocator is warm."""

    name = "PyTorch"

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise ImportError("torch.cuda.is_available() is False")

    def version(self) -> str:
        return str(self.torch.__version__)

    def upload(self, host: Array) -> Any:
        return self.torch.from_numpy(host).to("cuda")

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return self.torch.empty(shape, dtype=self.torch.float32, device="cuda")

    def write(self, device: Any, host: Array) -> None:
        device.copy_(self.torch.from_numpy(host))

    def download(self, device: Any) -> Array:
        made: Array = device.cpu().numpy()
        return made

    def read(self, device: Any, out: Array) -> None:
        self.torch.from_numpy(out).copy_(device)

    def move(self, dst: Any, src: Any) -> None:
        dst.copy_(src)

    def write_transposed(self, device: Any, host: Array) -> None:
        device.copy_(self.torch.from_numpy(host).to("cuda").T)

    def read_transposed(self, device: Any, out: Array) -> None:
        self.torch.from_numpy(out).copy_(device.T.contiguous())

    def download_every_second(self, device: Any) -> Array:
        made: Array = device[:, ::2].contiguous().cpu().numpy()
        return made

    def pointer(self, device: Any) -> int:
        return int(device.data_ptr())

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        torch, shape = self.torch, host.shape
        from_numpy, empty = torch.from_numpy, torch.empty
        return {
            "upload": lambda: from_numpy(host).to("cuda"),
            "read": lambda: from_numpy(out).copy_(device),
            "create": lambda: empty(shape, dtype=torch.float32, device="cuda"),
        }


class NumbaCuda(Library):
    """numba-cuda takes contiguous arrays only: where one is not, NumPy packs or unpacks it, as its users have to."""

    name = "numba-cuda"

    def __init__(self) -> None:
        self.cuda = importlib.import_module("numba.cuda")
        importlib.metadata.version("numba-cuda")

    def version(self) -> str:
        return importlib.metadata.version("numba-cuda")

    def upload(self, host: Array) -> Any:
        return self.cuda.to_device(host if host.flags.c_contiguous else np.ascontiguousarray(host))

    def allocate(self, shape: tuple[int, ...]) -> Any:
        return self.cuda.device_array(shape, np.float32)

    def write(self, device: Any, host: Array) -> None:
        device.copy_to_device(host)

    def download(self, device: Any) -> Array:
        made: Array = device.copy_to_host()
        return made

    def read(self, device: Any, out: Array) -> None:
        device.copy_to_host(out)

    def move(self, dst: Any, src: Any) -> None:
        dst.copy_to_device(src)

    def write_transposed(self, device: Any, host: Array) -> None:
        device.copy_to_device(np.ascontiguousarray(host.T))

    def read_transposed(self, device: Any, out: Array) -> None:
        np.copyto(out, device.copy_to_host().T)

    def download_every_second(self, device: Any) -> Array:
        return np.ascontiguousarray(device.copy_to_host()[:, ::2])

    def calls(self, host: Array, device: Any, out: Array) -> dict[str, Callable[[], object]]:
        cuda, shape = self.cuda, host.shape
        return {
            "upload": lambda: cuda.to_device(host),
            "read": lambda: device.copy_to_host(out),
            "create": lambda: cuda.device_array(shape, np.float32),
        }


# -- what is timed -----------------------------------------------------------------------------------------------------


def nothing() -> None:
    """No preparation."""


@dataclass
class Task:
    """One cell: ``run`` is timed, after ``prepare`` its outcome was once given to ``verify``."""

    run: Callable[[], Any]
    verify: Callable[[Any], None]
    prepare: Callable[[], None] = nothing
    waits: bool = True  # for the device, within the time
    timed_itself: bool = False  # run() returns the seconds
    uses: int = 1
    note: str = ""


@dataclass(frozen=True)
class Case:
    """One row of a table."""

    id: str
    title: str
    group: str
    nbytes: int  # that one use moves; 0: only the time is told
    unit: str
    build: Callable[[Library], Task]
    limit: str = ""  # h2d or d2h: the limit is timed along

    def value(self, seconds: float) -> float:
        return seconds * 1e6 if self.unit == "us" else self.nbytes / seconds / 1e9


@dataclass
class Effort:
    """How much to measure."""

    sizes: tuple[int, ...] = (256 * MiB, 16 * MiB, MiB, 64 * KiB, 4 * KiB)
    square: int = 4096
    many: int = 1000
    calls: int = 200
    rounds: int = 40
    rounds_small: int = 600  # of contiguous arrays up to 64 KiB
    fewest: int = 3


QUICK = Effort(sizes=(MiB, 4 * KiB), square=128, many=10, calls=20, rounds=3, rounds_small=3, fewest=1)


class Data:
    """The host side, shared by everybody: pageable and page-locked memory, whose pages have all been touched."""

    def __init__(self, nbytes: int) -> None:
        rng = np.random.default_rng()
        self._src = rng.random(nbytes // 4, np.float32)
        self._out = np.full(nbytes // 4, 1, np.float32)
        self._pinned_src = dm.pinned_array(nbytes // 4, np.float32)
        self._pinned_src[:] = self._src
        self._pinned_out = dm.pinned_array(nbytes // 4, np.float32)
        self._pinned_out[:] = 0
        self._keys = rng

    def src(self, nbytes: int, pinned: bool = False) -> Array:
        return (self._pinned_src if pinned else self._src)[: nbytes // 4]

    def out(self, nbytes: int, pinned: bool = False) -> Array:
        return (self._pinned_out if pinned else self._out)[: nbytes // 4]

    def renew(self, array: Array) -> None:
        """New bytes in place: what an earlier upload left on the device must not pass for this one."""
        words = array.reshape(-1).view(np.uint64)
        np.bitwise_xor(words, self._keys.integers(1, 1 << 64, dtype=np.uint64), out=words)


def poison(out: Array) -> None:
    """So that bytes which nobody wrote are seen."""
    out.view(np.uint8)[...] = POISON


def same(found: Array, wanted: Array) -> None:
    """Bytes, not values."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise AssertionError(f"{found.dtype}{found.shape} came back, not {wanted.dtype}{wanted.shape}")
    if not np.array_equal(np.ascontiguousarray(found).view(np.uint32), np.ascontiguousarray(wanted).view(np.uint32)):
        raise AssertionError("wrong bytes")


def on_device(library: Library, device: Any, wanted: Array) -> None:
    """Read through the driver, whatever the library would say."""
    wait()
    found = np.empty(wanted.shape, wanted.dtype)
    poison(found)
    checked(cu.cuMemcpyDtoH(found.ctypes.data, library.pointer(device), found.nbytes))
    same(found, wanted)


def cases(effort: Effort, data: Data) -> Iterator[Case]:
    """All rows: the quick ones, then the most wanted, because time may run out."""
    largest = effort.sizes[0]
    yield from calls(effort)
    if 4 * KiB in effort.sizes:
        yield from contiguous(4 * KiB, data, "-4KiB")
    yield from many(effort, data)
    yield from contiguous(largest, data, "")
    yield from strided(effort, data)
    for nbytes in effort.sizes[1:]:
        if nbytes != 4 * KiB:
            yield from contiguous(nbytes, data, f"-{shown(nbytes).replace(' ', '')}")
    for nbytes in effort.sizes:
        yield device_to_device(nbytes, data, "" if nbytes == largest else f"-{shown(nbytes).replace(' ', '')}")


def contiguous(nbytes: int, data: Data, suffix: str) -> Iterator[Case]:
    """Plain arrays, both ways, into new and into old memory, pageable and pinned."""
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


def device_to_device(nbytes: int, data: Data, suffix: str) -> Case:
    """Within one device."""

    def build(library: Library) -> Task:
        src = data.src(nbytes)
        data.renew(src)
        origin, target = library.upload(src), library.allocate((nbytes // 4,))
        return Task(lambda: library.move(target, origin), lambda _: on_device(library, target, src))

    title = f"{shown(nbytes)} within the device (bytes copied; its memory moves twice that)"
    return Case(f"d2d{suffix}", title, "Within the device", nbytes, "GB/s", build)


def strided(effort: Effort, data: Data) -> Iterator[Case]:
    """Layouts that no single copy moves."""
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
        # Arrays of their own, as a program has them, and not neighbours in one block.
        return [data.src(each).copy() for _ in range(count)]

    def upload(library: Library) -> Task:
        sources = hosts()

        def renew() -> None:
            for source in sources:
                data.renew(source)

        def verify(made: Any) -> None:
            for device, source in zip(made, sources, strict=True):
                on_device(library, device, source)

        note = "to_device_many" if isinstance(library, Devmem) and library.many_up else "a loop"
        return Task(lambda: library.upload_many(sources), verify, renew, uses=count, note=note)

    def download(library: Library) -> Task:
        sources = hosts()
        for source in sources:
            data.renew(source)
        devices = library.upload_many(sources)

        def verify(made: Any) -> None:
            for found, source in zip(made, sources, strict=True):
                same(found, source)

        note = "to_host_many" if isinstance(library, Devmem) and library.many_down else "a loop"
        return Task(lambda: library.download_many(devices), verify, uses=count, note=note)

    group = f"{count:,} arrays of 4 KiB, each (every library's fastest way; a loop where it has no other)"
    yield Case("h2d-many", "up, into new arrays", group, each, "us", upload)
    yield Case("d2h-many", "down, into new arrays", group, each, "us", download)


def calls(effort: Effort) -> Iterator[Case]:
    """What a call costs at 16 elements: until it returns, with one wait for the device after many of them."""
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


def limit(direction: str, nbytes: int, data: Data) -> Task:
    """The rate at which the driver copies from or to page-locked memory when it is given enough to do."""
    host = data.src(nbytes, True) if direction == "h2d" else data.out(nbytes, True)
    stream, device = checked(cu.cuStreamCreate(1)), int(checked(cu.cuMemAlloc(nbytes)))
    start, end = (checked(cu.cuEventCreate(0)) for _ in range(2))
    times = min(64, max(1, 64 * MiB // nbytes))
    at = host.ctypes.data

    def run() -> float:
        checked(cu.cuEventRecord(start, stream))
        for _ in range(times):
            if direction == "h2d":
                checked(cu.cuMemcpyHtoDAsync(device, at, nbytes, stream))
            else:
                checked(cu.cuMemcpyDtoHAsync(at, device, nbytes, stream))
        checked(cu.cuEventRecord(end, stream))
        checked(cu.cuEventSynchronize(end))
        return float(checked(cu.cuEventElapsedTime(start, end))) / 1e3

    def prepare() -> None:
        if direction == "h2d":
            data.renew(host)
        else:
            poison(host)
            checked(cu.cuMemcpyHtoD(device, data.src(nbytes).ctypes.data, nbytes))
            wait()  # it returns when the bytes have left the host, and the stream below waits for nobody

    def verify(_: Any) -> None:
        found = np.empty(nbytes // 4, np.float32)
        checked(cu.cuMemcpyDtoH(found.ctypes.data, device, nbytes))
        same(found, host)
        if direction == "d2h":
            same(host, data.src(nbytes))

    class Owner:
        def __del__(self) -> None:
            cu.cuStreamDestroy(stream)
            cu.cuEventDestroy(start)
            cu.cuEventDestroy(end)
            cu.cuMemFree(device)

    owner = Owner()
    return Task(lambda: (owner, run())[1], verify, prepare, waits=False, timed_itself=True, uses=times)


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One measured row: for each library its seconds, or why there are none."""

    id: str
    title: str
    group: str
    nbytes: int
    unit: str
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)


def measure(case: Case, libraries: list[Library], data: Data, effort: Effort, seconds: float) -> Row:
    """Verify each cell, then let all take turns until the time is up."""
    row = Row(case.id, case.title, case.group, case.nbytes, case.unit)
    builders: dict[str, Callable[[], Task]] = {each.name: lambda each=each: case.build(each) for each in libraries}  # type: ignore[misc]
    if case.limit:
        builders = {LIMIT: lambda: limit(case.limit, case.nbytes, data), **builders}
    tasks: dict[str, Task] = {}
    for name, build in builders.items():
        try:
            task = build()
            task.prepare()
            outcome = task.run()
            wait()
            task.verify(outcome)
            del outcome
            task.run()
            wait()
            tasks[name] = task
        except NotImplementedError:
            row.cells[name] = {"absent": "not offered"}
        except Exception as error:
            row.cells[name] = {"error": one_line(error)}
    times: dict[str, list[float]] = {name: [] for name in tasks}
    until = time.perf_counter() + seconds
    gc.collect()
    gc.disable()
    for turn in range(effort.rounds_small if case.limit and case.nbytes <= 64 * KiB else effort.rounds):
        late = time.perf_counter() - until
        if late > 0 and (turn >= effort.fewest or (turn and late > seconds)):
            break
        first = turn % max(1, len(tasks))
        for name in [*list(tasks)[first:], *list(tasks)[:first]]:
            try:
                times[name].append(timed(tasks[name]))
            except Exception as error:
                row.cells[name] = {"error": one_line(error)}
                del tasks[name]
    gc.enable()
    for name, task in tasks.items():
        found = times[name]
        row.cells[name] = {"median_s": statistics.median(found), "best_s": min(found), "rounds": len(found)}
        row.cells[name] |= {"median": case.value(row.cells[name]["median_s"]), "best": case.value(min(found))}
        if task.note:
            row.cells[name]["note"] = task.note
    for name in builders:  # in one order, whatever went wrong
        row.cells[name] = row.cells.pop(name)
    return row


def timed(task: Task) -> float:
    """Seconds for one use; what came of it is dropped after the clock has stopped."""
    start = time.perf_counter()
    outcome = task.run()
    if task.waits:
        wait()
    seconds = time.perf_counter() - start
    return (outcome if task.timed_itself else seconds) / task.uses


# -- judging and telling -----------------------------------------------------------------------------------------------


def speed(row: dict[str, Any], name: str) -> float | None:
    """Uses in a second, in the median."""
    seconds = row["cells"].get(name, {}).get("median_s")
    return None if not seconds else 1 / seconds


def judged(rows: list[dict[str, Any]], quick: bool) -> list[dict[str, Any]]:
    """What was asked for against what was measured; of a quick run only told."""
    by_id = {row["id"]: row for row in rows}
    found = []
    for case, against, at_least in ASKED:
        if case in by_id:
            ours, theirs = speed(by_id[case], "devmem"), speed(by_id[case], against)
            ratio = ours / theirs if ours and theirs else None
            verdict = "met" if ratio is not None and ratio >= at_least else "not met"
            verdict = "not measured" if ratio is None else "not judged" if quick else verdict
            title = by_id[case]["title"]
            found.append({"case": case, "title": title, "against": against, "asked": at_least, "ratio": ratio})
            found[-1]["verdict"] = verdict
    return found


def predicted(rows: list[dict[str, Any]], quick: bool) -> list[dict[str, Any]]:
    """What was written down beforehand, beside what was measured; of a quick run only told."""
    by_id = {row["id"]: row for row in rows}
    found = []
    for (case, library), (low, high, source) in PREDICTED.items():
        cell = by_id.get(case, {}).get("cells", {}).get(library, {})
        if "median" in cell:
            row = by_id[case]
            verdict = "as predicted" if low <= cell["median"] <= high else "lower" if cell["median"] < low else "higher"
            verdict = "not judged" if quick else verdict
            found.append({"title": row["title"], "library": library, "low": low, "high": high, "unit": row["unit"]})
            found[-1] |= {"measured": cell["median"], "verdict": verdict, "source": source}
    return found


def markdown(found: dict[str, Any]) -> str:
    """All tables."""
    lines = []
    if found["emulated"]:
        lines += ["**EMULATED: these numbers show that the script runs, and nothing else.**", ""]
    for name, state in found["libraries"].items():
        lines.append(f"- {name}: {state}")
    groups = dict.fromkeys(row["group"] for row in found["rows"])
    for group in groups:
        rows = [row for row in found["rows"] if row["group"] == group]
        names = list(dict.fromkeys(name for row in rows for name in row["cells"]))
        lines += ["", f"### {group}", "", "median (best); after it, how many times as fast devmem is", ""]
        lines += [table_row(["", "unit", *names]), table_row(["---"] * (len(names) + 2))]
        for row in rows:
            lines.append(table_row([row["title"], row["unit"], *[cell_text(row, name) for name in names]]))
    if asked := judged(found["rows"], found["quick"]):
        lines += [
            "",
            "### Asked of the transfer engine",
            "",
            "| | against | at least | measured | |",
            "|---|---|---|---|---|",
        ]
        for each in asked:
            ratio = "-" if each["ratio"] is None else f"{each['ratio']:.2f}x"
            lines.append(table_row([each["title"], each["against"], f"{each['asked']:g}x", ratio, each["verdict"]]))
    if told := predicted(found["rows"], found["quick"]):
        lines += ["", "### Predicted and measured", "", "Predictions are for a PCIe Gen5 x16 machine (H100, H200).", ""]
        lines += ["| | library | predicted | measured | unit | | source |", "|---|---|---|---|---|---|---|"]
        for each in told:
            span = f"{each['low']:g}-{each['high']:g}"
            value = number(each["measured"])
            lines.append(
                table_row([each["title"], each["library"], span, value, each["unit"], each["verdict"], each["source"]])
            )
    errors = [
        (row["title"], name, c["error"]) for row in found["rows"] for name, c in row["cells"].items() if "error" in c
    ]
    if errors:
        lines += ["", "### Errors", "", *[f"- {title}, {name}: {error}" for title, name, error in errors]]
    if found.get("unfinished"):
        lines += ["", f"Not measured, the time was up: {', '.join(found['unfinished'])}"]
    return "\n".join(lines) + "\n"


def cell_text(row: dict[str, Any], name: str) -> str:
    """Median, best, and how many times as fast devmem is."""
    cell = row["cells"].get(name, {})
    if "median" not in cell:
        return "error" if "error" in cell else "-"
    ours, theirs = speed(row, "devmem"), speed(row, name)
    text = f"{number(cell['median'])} ({number(cell['best'])})"
    if name != "devmem" and ours and theirs:
        text += f" {ours / theirs:.2f}x"
    return text


def table_row(cells: list[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def shown(nbytes: int) -> str:
    """A size as people write it."""
    return f"{nbytes // MiB} MiB" if nbytes >= MiB else f"{nbytes // KiB} KiB"


def one_line(error: BaseException) -> str:
    """An error, short."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# -- running -----------------------------------------------------------------------------------------------------------


def devmem_version() -> str:
    """Of the sources that lie here, since it is they that are imported."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("version"))


def is_emulated() -> bool:
    """Whether the driver in this process is the emulated one."""
    from devmem.testing import emulator

    try:
        emulator.control("cuda")
    except emulator.EmulatorNotLoaded:
        return False
    return True


def always_fresh() -> bool:
    """Give every large host array fresh pages, as a program's first one has; whether the allocator could be told so."""
    try:
        return bool(ctypes.CDLL(None).mallopt(-3, MMAP_THRESHOLD))
    except (OSError, AttributeError):
        return False


def find_libraries(emulated: bool) -> tuple[list[Library], dict[str, str]]:
    """Those that can be used, and for each its version or the reason why not."""
    usable: list[Library] = []
    states: dict[str, str] = {}
    for kind in (Devmem, Bare, Cupy, Torch, NumbaCuda):
        if emulated and kind in (Cupy, Torch):
            states[kind.name] = "not used: it launches kernels, which the emulated driver refuses"
            continue
        try:
            library = kind()
            states[kind.name] = library.version()
            device = library.upload(np.ones(16, np.float32))  # whatever it does once, it does now
            same(np.asarray(library.download(device)), np.ones(16, np.float32))
            usable.append(library)
        except Exception as error:
            states[kind.name] = f"not used: {one_line(error)}"
    return usable, states


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--budget", type=float, default=110, metavar="SECONDS", help="to end within (default: 110)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, after every row")
    options = parser.parse_args()
    started = time.perf_counter()

    try:
        dm.use_backend("cuda")
        device = dm.current_device()
    except dm.DevmemError as error:
        print(f"bandwidth: {error}", file=sys.stderr)
        return 2
    emulated = is_emulated()
    if emulated and not options.quick:
        print(
            "bandwidth: this is the emulated driver, whose speed means nothing: --quick shows that it runs",
            file=sys.stderr,
        )
        return 2
    primary = checked(cu.cuDevicePrimaryCtxRetain(checked(cu.cuDeviceGet(device.info.ordinal))))
    checked(cu.cuCtxSetCurrent(primary))
    effort = QUICK if options.quick else Effort()
    fresh = always_fresh()
    libraries, states = find_libraries(emulated)
    if not any(isinstance(each, Devmem) for each in libraries):
        print(f"bandwidth: devmem itself cannot be used: {states[Devmem.name]}", file=sys.stderr)
        return 1
    found: dict[str, Any] = {
        "device": device.info.name,
        "emulated": emulated,
        "quick": options.quick,
        "libraries": states,
        "fresh_pages_forced": fresh,
        "effort": asdict(effort),
        "rows": [],
        "unfinished": [],
    }
    data = Data(max(*effort.sizes, effort.square**2 * 4))
    rows = list(cases(effort, data))
    for at, case in enumerate(rows):
        left = options.budget - (time.perf_counter() - started)
        if left <= 0:
            found["unfinished"].append(case.title)
            continue
        checked(cu.cuCtxSetCurrent(primary))  # some leave another behind
        row = measure(case, libraries, data, effort, min(left, 2.5 * left / (len(rows) - at)))
        found["rows"].append(asdict(row))
        print(f"{time.perf_counter() - started:6.1f} s  {row.title}", file=sys.stderr, flush=True)
        write(options.json, found)
    found |= {"asked": judged(found["rows"], found["quick"]), "predicted": predicted(found["rows"], found["quick"])}
    found["seconds"] = time.perf_counter() - started
    write(options.json, found)
    print(markdown(found))
    # What goes wrong in somebody else's library is told, and is not our failure.
    return 1 if any("error" in row["cells"].get(name, {}) for row in found["rows"] for name in ("devmem", LIMIT)) else 0


def write(path: Path | None, found: dict[str, Any]) -> None:
    """The whole file or nothing: whoever is cut off leaves the last whole one."""
    if path is not None:
        beside = path.with_name(path.name + ".part")
        beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
