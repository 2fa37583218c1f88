"""Well-known kernels, in devmem's names: the same file for every backend, and no test by itself.

`CASES` says of each how it is launched, on what, and what has to come out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import devmem

BLOCK = 64
TILE = 16
PADDED = TILE + 1  # shapes of shared arrays are constants, and to numba a sum in a kernel is none
BINS = 32
HALO = 2
BLOCK_AND_HALO = BLOCK + 2 * HALO
WEIGHTS = np.array([0.1, 0.2, 0.4, 0.2, 0.1], np.float32)


@devmem.kernel
def vector_add(a, b, out):
    i = devmem.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@devmem.kernel
def block_reverse(a):
    buffer = devmem.shared.array(BLOCK, np.float32)
    i = devmem.grid(1)
    t = devmem.threadIdx.x
    buffer[t] = a[i]
    devmem.barrier()
    a[i] = buffer[BLOCK - 1 - t]


@devmem.kernel
def tiled_transpose(src, dst):
    tile = devmem.shared.array((TILE, PADDED), np.float32)
    x = devmem.blockIdx.x * TILE + devmem.threadIdx.x
    y = devmem.blockIdx.y * TILE + devmem.threadIdx.y
    if y < src.shape[0] and x < src.shape[1]:
        tile[devmem.threadIdx.y, devmem.threadIdx.x] = src[y, x]
    devmem.syncthreads()
    x = devmem.blockIdx.y * TILE + devmem.threadIdx.x
    y = devmem.blockIdx.x * TILE + devmem.threadIdx.y
    if y < dst.shape[0] and x < dst.shape[1]:
        dst[y, x] = tile[devmem.threadIdx.x, devmem.threadIdx.y]


@devmem.kernel
def tiled_matmul(a, b, c):
    left = devmem.shared.array((TILE, TILE), np.float32)
    right = devmem.shared.array((TILE, TILE), np.float32)
    column, row = devmem.grid(2)
    tx = devmem.threadIdx.x
    ty = devmem.threadIdx.y
    total = np.float32(0)
    for tile in range((a.shape[1] + TILE - 1) // TILE):
        left[ty, tx] = 0
        right[ty, tx] = 0
        if row < a.shape[0] and tile * TILE + tx < a.shape[1]:
            left[ty, tx] = a[row, tile * TILE + tx]
        if column < b.shape[1] and tile * TILE + ty < b.shape[0]:
            right[ty, tx] = b[tile * TILE + ty, column]
        devmem.barrier(devmem.CLK_LOCAL_MEM_FENCE)
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        devmem.barrier(devmem.CLK_LOCAL_MEM_FENCE)
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@devmem.kernel
def scan_of_blocks(data, out):
    buffer = devmem.shared.array(BLOCK, np.int32)
    i = devmem.grid(1)
    t = devmem.threadIdx.x
    lane = devmem.laneid
    buffer[t] = data[i]
    devmem.wavebarrier()
    step = 1
    while step < devmem.warpsize:
        value = 0
        if lane >= step and t >= step:
            value = buffer[t - step]
        devmem.wavebarrier()
        buffer[t] += value
        devmem.wavebarrier()
        step *= 2
    devmem.barrier()
    total = 0
    for wave in range(t // devmem.warpsize):
        total += buffer[(wave + 1) * devmem.warpsize - 1]
    out[i] = buffer[t] + total


@devmem.kernel
def histogram(data, bins):
    mine = devmem.shared.array(BINS, np.int32)
    t = devmem.threadIdx.x
    if t < BINS:
        mine[t] = 0
    devmem.barrier()
    i = devmem.grid(1)
    while i < data.size:
        devmem.atomic.add(mine, data[i], 1)
        i += devmem.gridsize(1)
    devmem.barrier()
    if t < BINS:
        devmem.atomic.add(bins, t, mine[t])


@devmem.kernel
def stencil(src, dst):
    near = devmem.shared.array(BLOCK_AND_HALO, np.float32)
    i = devmem.grid(1)
    t = devmem.threadIdx.x
    near[t + HALO] = src[i] if i < src.size else 0
    if t < HALO:
        near[t] = src[i - HALO] if i >= HALO else 0
        near[t + HALO + BLOCK] = src[i + BLOCK] if i + BLOCK < src.size else 0
    devmem.barrier()
    if i < dst.size:
        total = np.float32(0)
        for k in range(2 * HALO + 1):
            total += near[t + k]
        dst[i] = total


@devmem.kernel
def sum_of_blocks(data, sums):
    partial = devmem.shared.array(0, np.float32)
    i = devmem.grid(1)
    t = devmem.threadIdx.x
    partial[t] = data[i] if i < data.size else 0
    devmem.barrier()
    step = devmem.blockDim.x // 2
    while step > 0:
        if t < step:
            partial[t] += partial[t + step]
        devmem.barrier()
        step //= 2
    if t == 0:
        sums[devmem.blockIdx.x] = partial[0]


@devmem.kernel
def weighted(src, dst):
    weights = devmem.const.array_like(WEIGHTS)
    i = devmem.grid(1)
    if i < dst.size:
        dst[i] = weights[i % weights.size] * src[i]


@devmem.kernel
def sort_of_fours(data):
    four = devmem.local.array(4, np.float32)
    i = devmem.grid(1) * 4
    if i + 3 < data.size:
        for k in range(4):
            four[k] = data[i + k]
        for k in range(1, 4):
            value = four[k]
            at = k - 1
            while at >= 0 and four[at] > value:
                four[at + 1] = four[at]
                at -= 1
            four[at + 1] = value
        for k in range(4):
            data[i + k] = four[k]


@devmem.kernel
def atomics(data, found):
    i = devmem.grid(1)
    if i < data.size:
        devmem.atomic.max(found, 0, data[i])
        devmem.atomic.min(found, 1, data[i])
        if devmem.atomic.cas(found, 2, 0, 1) == 0:
            devmem.atomic.exch(found, 3, 7)
        devmem.atomic.add(found, 4, 1)


@devmem.kernel
def of_opencl(out):
    x = devmem.get_global_id(0)
    y = devmem.get_global_id(1)
    there = devmem.get_group_id(0) * devmem.get_local_size(0) + devmem.get_local_id(0)
    devmem.mem_fence(devmem.CLK_GLOBAL_MEM_FENCE)
    devmem.mem_fence(devmem.CLK_LOCAL_MEM_FENCE)
    wide = devmem.get_global_size(0) == devmem.get_num_groups(0) * devmem.get_local_size(0)
    if wide and there == x:
        out[y, x] = x + 100 * y + 10000 * devmem.get_work_dim()


@devmem.kernel(device=True)
def clipped(value, limit):
    return min(max(value, -limit), limit)


@devmem.kernel
def clip(data, limit):
    i, j, k = devmem.grid(3)
    sizes = devmem.gridsize(3)
    if i < data.shape[0] and j < data.shape[1] and k < data.shape[2] and sizes[0] >= data.shape[0]:
        data[i, j, k] = clipped(data[i, j, k], limit)


class Case(NamedTuple):
    """A kernel, a launch of it, and what of the arguments it has to leave; ``signature`` as numba spells it."""

    kernel: Any
    launch: tuple[Any, ...]
    arguments: list[Any]
    expected: Callable[..., dict[int, Any]]
    signature: str
    code: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


def _floats(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).random(shape, np.float32)


def _ints(count: int, below: int) -> Any:
    return np.random.default_rng(below).integers(0, below, count).astype(np.int32)


def _reversed(a: Any) -> dict[int, Any]:
    return {0: a.reshape(-1, BLOCK)[:, ::-1].ravel()}


def _stencilled(src: Any, dst: Any) -> dict[int, Any]:
    padded = np.pad(src, HALO)
    return {1: sum(padded[k : k + src.size] for k in range(2 * HALO + 1))}


def _weighted(src: Any, dst: Any) -> dict[int, Any]:
    return {1: src * np.resize(WEIGHTS, src.size)}


def _clipped(data: Any, limit: float) -> dict[int, Any]:
    return {0: np.clip(data, -limit, limit)}


def _opencl(out: Any) -> dict[int, Any]:
    y, x = np.indices(out.shape)
    return {0: (x + 100 * y + 20000).astype(out.dtype)}


def cases() -> list[Case]:
    """Every kernel with arguments of its own."""
    grid = (3, 2)
    return [
        Case(
            vector_add,
            (4, BLOCK),
            [_floats(200), _floats(200), np.zeros(200, np.float32)],
            lambda a, b, out: {2: a + b},
            "void(float32[::1], float32[::1], float32[::1])",
        ),
        Case(block_reverse, (3, BLOCK), [_floats(3 * BLOCK)], _reversed, "void(float32[::1])", (".shared", "bar.sync")),
        Case(
            tiled_transpose,
            (grid, (TILE, TILE)),
            [_floats(30, 45), np.zeros((45, 30), np.float32)],
            lambda src, dst: {1: src.T},
            "void(float32[:, ::1], float32[:, ::1])",
            (".shared", "bar.sync"),
        ),
        Case(
            tiled_matmul,
            (grid, (TILE, TILE)),
            [_floats(30, 25), _floats(25, 40), np.zeros((30, 40), np.float32)],
            lambda a, b, c: {2: a @ b},
            "void(float32[:, ::1], float32[:, ::1], float32[:, ::1])",
            (".shared", "bar.sync"),
        ),
        Case(
            scan_of_blocks,
            (2, BLOCK),
            [_ints(2 * BLOCK, 9), np.zeros(2 * BLOCK, np.int32)],
            lambda data, out: {1: data.reshape(2, BLOCK).cumsum(axis=1).ravel()},
            "void(int32[::1], int32[::1])",
            (".shared", "bar.sync", "bar.warp.sync"),
        ),
        Case(
            histogram,
            (3, BLOCK),
            [_ints(500, BINS), np.zeros(BINS, np.int32)],
            lambda data, bins: {1: np.bincount(data, minlength=BINS)},
            "void(int32[::1], int32[::1])",
            (".shared", "bar.sync", "atom."),
        ),
        Case(
            stencil,
            (3, BLOCK),
            [_floats(150), np.zeros(150, np.float32)],
            _stencilled,
            "void(float32[::1], float32[::1])",
            (".shared", "bar.sync"),
        ),
        Case(
            sum_of_blocks,
            (3, BLOCK, 0, BLOCK * 4),
            [_floats(150), np.zeros(3, np.float32)],
            lambda data, sums: {1: np.pad(data, (0, 42)).reshape(3, BLOCK).sum(axis=1)},
            "void(float32[::1], float32[::1])",
            (".shared", "bar.sync"),
        ),
        Case(
            weighted,
            (3, BLOCK),
            [_floats(150), np.zeros(150, np.float32)],
            _weighted,
            "void(float32[::1], float32[::1])",
            (".const",),
        ),
        Case(
            sort_of_fours,
            (1, BLOCK),
            [_floats(100)],
            lambda data: {0: np.sort(data.reshape(-1, 4), axis=1).ravel()},
            "void(float32[::1])",
            (".local",),
        ),
        Case(
            atomics,
            (2, BLOCK),
            [_ints(100, 1000), np.array([-1, 5000, 0, 0, 0], np.int32)],
            lambda data, found: {1: np.array([data.max(), data.min(), 1, 7, data.size])},
            "void(int32[::1], int32[::1])",
            ("atom.", "cas"),
        ),
        Case(
            of_opencl,
            (grid, (TILE, 2)),
            [np.zeros((4, 48), np.int32)],
            _opencl,
            "void(int32[:, ::1])",
            ("membar",),
        ),
        Case(
            clip,
            ((2, 2, 2), (2, 3, 4)),
            [_floats(3, 5, 7) * 4 - 2, np.float32(0.5)],
            _clipped,
            "void(float32[:, :, ::1], float32)",
        ),
    ]
