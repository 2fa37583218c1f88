"""Seven kernels as real programs have them; the same lines run under devmem and under numba-cuda.

The module that `MODULE` names in the environment has the names for kernels: devmem, or numba.cuda.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

MODULE = "SEVEN_KERNELS_FROM"
TILE, BLOCK = 8, 64

cuda: Any = importlib.import_module(os.environ.get(MODULE, "devmem"))
jit: Callable[[Callable[..., None]], Any] = cuda.jit if cuda.__name__ == "numba.cuda" else cuda.kernel


@jit
def mandelbrot(out: Any, x0: Any, y0: Any, step: Any, most: Any) -> None:
    """A long loop of scalars."""
    x, y = cuda.grid(2)
    if x < out.shape[1] and y < out.shape[0]:
        a, b = x0 + x * step, y0 + y * step
        re, im, n = a, b, 0
        while n < most and re * re + im * im < 4.0:
            re, im = re * re - im * im + a, 2.0 * re * im + b
            n += 1
        out[y, x] = n


@jit
def stencil(src: Any, dst: Any) -> None:
    """A step of Jacobi's method."""
    x, y = cuda.grid(2)
    if 0 < x < src.shape[1] - 1 and 0 < y < src.shape[0] - 1:
        dst[y, x] = 0.25 * (src[y - 1, x] + src[y + 1, x] + src[y, x - 1] + src[y, x + 1])


@jit
def reduction(a: Any, sums: Any) -> None:
    """A tree in shared memory: seven barriers."""
    part = cuda.shared.array(BLOCK, np.float32)
    t = cuda.threadIdx.x
    part[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = BLOCK // 2
    while step > 0:
        if t < step:
            part[t] += part[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = part[0]


@jit
def bodies(place: Any, mass: Any, force: Any) -> None:
    """The forces of n bodies on each other."""
    i = cuda.grid(1)
    if i < mass.size:
        fx, fy, fz = 0.0, 0.0, 0.0
        for j in range(mass.size):
            dx = place[j, 0] - place[i, 0]
            dy = place[j, 1] - place[i, 1]
            dz = place[j, 2] - place[i, 2]
            near = dx * dx + dy * dy + dz * dz + 1e-3
            pull = mass[j] / (near * math.sqrt(near))
            fx += dx * pull
            fy += dy * pull
            fz += dz * pull
        force[i, 0] = fx
        force[i, 1] = fy
        force[i, 2] = fz


@jit
def matmul(a: Any, b: Any, c: Any) -> None:
    """A product of matrices in tiles."""
    left = cuda.shared.array((TILE, TILE), np.float32)
    right = cuda.shared.array((TILE, TILE), np.float32)  # numba's simulator takes two on one line for the same
    x, y = cuda.grid(2)
    total = np.float32(0)
    for k in range(a.shape[1] // TILE):
        left[cuda.threadIdx.y, cuda.threadIdx.x] = a[y, k * TILE + cuda.threadIdx.x]
        right[cuda.threadIdx.y, cuda.threadIdx.x] = b[k * TILE + cuda.threadIdx.y, x]
        cuda.syncthreads()
        for n in range(TILE):
            total += left[cuda.threadIdx.y, n] * right[n, cuda.threadIdx.x]
        cuda.syncthreads()
    c[y, x] = total


@jit
def monte_carlo(seeds: Any, draws: Any, hits: Any) -> None:
    """Points of a square that lie in its circle, by integers that are shifted and masked."""
    i = cuda.grid(1)
    if i < seeds.size:
        x, found = seeds[i], 0
        for _ in range(draws):
            x = (x ^ (x << 13)) & 0xFFFFFFFF
            x = x ^ (x >> 17)
            x = (x ^ (x << 5)) & 0xFFFFFFFF
            a, b = x & 0x7FFF, x >> 17
            if a * a + b * b < 0x40000000:
                found += 1
        hits[i] = found


@jit
def binary_search(table: Any, keys: Any, places: Any) -> None:
    """Where each key belongs in a sorted table."""
    i = cuda.grid(1)
    if i < keys.size:
        low, high = 0, table.size
        while low < high:
            middle = (low + high) // 2
            if table[middle] < keys[i]:
                low = middle + 1
            else:
                high = middle
        places[i] = low


KERNELS = {
    "Mandelbrot": mandelbrot,
    "stencil": stencil,
    "reduction": reduction,
    "bodies": bodies,
    "Monte Carlo": monte_carlo,
    "binary search": binary_search,
    "matrix product": matmul,
}
#: Those whose threads do not wait for each other.
WITHOUT_BARRIERS = ("Mandelbrot", "stencil", "bodies", "Monte Carlo", "binary search")


def arguments() -> dict[str, tuple[Any, Any, list[Any]]]:
    """By kernel: the grid, the block, and the arguments, of which the arrays are the host's."""
    random = np.random.default_rng(1)
    f4, side = np.float32, 32

    def numbers(*shape: int) -> Any:
        return random.random(shape, f4)

    tiles, tile = (side // TILE, side // TILE), (TILE, TILE)
    return {
        "Mandelbrot": ((8, 8), tile, [np.zeros((64, 64), np.int32), -2.0, -1.25, 2.5 / 64, 200]),
        "stencil": ((16, 16), tile, [numbers(128, 128), np.zeros((128, 128), f4)]),
        "reduction": (4, BLOCK, [numbers(4 * BLOCK), np.zeros(4, f4)]),
        "bodies": (4, BLOCK, [numbers(4 * BLOCK, 3), numbers(4 * BLOCK), np.zeros((4 * BLOCK, 3), f4)]),
        "Monte Carlo": (8, BLOCK, [random.integers(1, 1 << 32, 8 * BLOCK), 400, np.zeros(8 * BLOCK, np.int32)]),
        "binary search": (256, BLOCK, [np.sort(numbers(4096)), numbers(256 * BLOCK), np.zeros(256 * BLOCK, np.int32)]),
        "matrix product": (tiles, tile, [numbers(side, side), numbers(side, side), np.zeros((side, side), f4)]),
    }
