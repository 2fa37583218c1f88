"""Kernels by what is in them: those that ``DEVMEM_SIM=fast`` compiles, and those that it leaves to the simulator."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import NamedTuple

import numpy as np

import devmem as dm

N = 70
SIDE = 4
TABLE = np.array([2.5, -1.0, 7.25], np.float32)
PARTICLE = np.dtype([("place", np.float32), ("count", np.int32), ("flag", np.bool_)])
Pair = namedtuple("Pair", "left right")


class Case(NamedTuple):
    kernel: object
    arguments: tuple[object, ...]
    grid: object = (3, 32)
    why: str = ""  #: why it runs in the simulator; empty: it is compiled


def floats(*shape):
    return np.random.default_rng(5).normal(scale=40, size=shape or N).astype(np.float32)


def integers(*shape, dtype=np.int32):
    return np.random.default_rng(6).integers(-1000, 1000, shape or N).astype(dtype)


def zeros(*shape, dtype=np.float64):
    return np.zeros(shape or N, dtype)


@dm.kernel(device=True)
def scaled(a, i, by):
    return a[i] * by


@dm.kernel(device=True)
def counted(bins, value):
    dm.atomic.add(bins, value % bins.size, 1)


@dm.kernel
def column(a, b, out):
    i = dm.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@dm.kernel
def strides(a, out):
    for i in range(dm.grid(1), a.shape[0], dm.gridsize(1)):
        for j in range(a.shape[1]):
            out[j, i] = a[i, j] * 2 + a.T[j, i]


@dm.kernel
def assignments(a, out, wide):
    i = dm.grid(1)
    if i < a.size:
        x, (y, z) = a[i], (3, a[i - 1])
        out[i], wide[i, 0] = x * 40.7, -x
        wide[i, 1] = wide[i, 2] = y = y + 1
        wide[i, 2] += z
        wide[i, y - 1] -= 2.5
        out[i] -= 1
        out[i] <<= 1
        row = wide[i]
        row[4] = z
        wide[i][5] = x
        j = i
        j <<= 2
        j **= 2
        wide[i, 0] += j


@dm.kernel
def conversions(a, out8, out16, outu, out64):
    i = dm.grid(1)
    if i < a.size:
        v = a[i] * a[i] * a[i]
        out8[i], out16[i], outu[i], out64[i] = v, v, v, v
        out64[i] += int(v) + np.int8(v) + round(v / 7) + np.uint16(-v)


@dm.kernel
def control(a, out):
    i = dm.grid(1)
    if not i < a.size:
        return
    found, low, high = -1, 0, a.size
    while low < high:
        middle = (low + high) // 2
        if a[middle] < i and a[middle] != 3:
            low = middle + 1
        else:
            high = middle
        if middle == 5:
            break
    else:
        found = low
    for k in range(10, 0, -3):
        if k == i % 10:
            continue
        found += k if k % 2 else -k
    out[i] = found + min(i, 7) + max(low, high)


@dm.kernel
def locals_(a, out):
    i = dm.grid(1)
    kept = dm.local.array((2, 3), np.int16)
    if i < a.size:
        for j in range(2):
            for k in range(3):
                kept[j, k] = a[i] * 1000 + j + k
        out[i] = kept[1, 2] + scaled(kept[0], 1, 2) + dm.const.array_like(TABLE)[i % 3] * TABLE[-1]


@dm.kernel
def records(a, out):
    i = dm.grid(1)
    if i < a.size:
        a[i].count += a[i]["place"] * 3
        a[i]["place"] = a[i].count
        r = a[i - 1]
        out[i] = r.flag + a[i].flag


@dm.kernel
def tuples(pair, out, scalars):
    i = dm.grid(1)
    if i < out.size:
        a, b = pair
        out[i] = pair.left[i] + b[i] * scalars[1] + len(pair) + a.ndim


@dm.kernel
def views(a, out):
    i = dm.grid(1)
    if i < a.shape[0]:
        row = a[i, 1:-1]
        column = a[:, 2]
        out[i] = row[0] + row[row.size - 1] + column[i] + a[i, ..., 3]


@dm.kernel
def complexes(z, out):
    i = dm.grid(1)
    if i < z.size:
        w = z[i] * z[i] - z[i - 1]
        out[i] = w.real * 2 + w.imag


@dm.kernel
def histogram(a, bins, lowest, highest, bits, most):
    i = dm.grid(1)
    if i < a.size:
        counted(bins, a[i])
        dm.atomic.sub(bins, (0,), a[i])
        dm.atomic.min(lowest, 0, a[i])
        dm.atomic.max(highest, 0, a[i])
        dm.atomic.or_(bits, 0, a[i])
        dm.atomic.and_(bits, 1, a[i])
        dm.atomic.xor(bits, 2, a[i])
        dm.atomic.max(most, 0, a[i] * 0.5)
        dm.atomic.nanmin(most, 1, a[i] * 0.5)


@dm.kernel
def tree(a, sums):
    part = dm.shared.array(32, np.float32)
    t = dm.threadIdx.x
    part[t] = a[dm.grid(1) % a.size]
    dm.syncthreads()
    step = 32 // 2
    while step > 0:
        if t < step:
            part[t] += part[t + step]
        dm.barrier()
        step //= 2
    if t == 0:
        sums[dm.blockIdx.x] = part[0]


@dm.kernel
def tiles(a, out, counts):
    rows = dm.shared.array(shape=(SIDE, SIDE), dtype=np.int64)
    columns = dm.shared.array((SIDE, SIDE), "int64")
    x, y = dm.threadIdx.x, dm.threadIdx.y
    kept = dm.local.array(2, np.int64)
    kept[0], total = rows[y, x], 0
    for k in range(a.shape[0] // SIDE):
        rows[y, x] = a[y, k * SIDE + x]
        columns[y, x] = a[k * SIDE + y, x]
        if k % 2:
            dm.barrier()
        else:
            dm.syncthreads()
        for n in range(SIDE):
            total += scaled(rows[y], n, columns[n, x])
        counted(counts, total)
        dm.syncthreads()
        if k == 3:
            break
    out[y, x] = total + kept[0]


@dm.kernel
def neighbours(a, out):
    """A race between the threads of a block that has the same result in both."""
    part = dm.shared.array(32, np.float32)
    t = dm.threadIdx.x
    part[t] = t
    out[dm.grid(1)] = part[(t + 1) % 32]
    dm.barrier()
    if dm.grid(1) >= a.size:
        return
    out[dm.grid(1)] += a[dm.grid(1)]


@dm.kernel
def divisions(a, b, out):
    i = dm.grid(1)
    if i < a.size:
        out[i] = a[i] // (b[i] % 2) + a[i] % (b[i] % 2) + math.floor(a[i] / 3) + b[i] / a[i]


@dm.kernel
def ranges_over_unsigned(n, steps, out):
    i = dm.grid(1)
    for j in range(n[i]):
        out[i, 0] += j - n[i]  # below 0 it wraps
    for j in range(steps[i], n[i], steps[2]):
        out[i, 1] = -j


COMPILED = {
    "column": Case(column, (floats(), floats(), zeros(dtype=np.float32))),
    "column of integers": Case(column, (integers(), integers(dtype=np.uint8), zeros(dtype=np.int8))),
    "column, strided": Case(column, (floats(2 * N)[::2], floats(N, 2)[:, 1], zeros())),
    "strides": Case(strides, (integers(50, 7), zeros(7, 50)), (2, 16)),
    "strides, Fortran's order": Case(
        strides, (np.asfortranarray(integers(50, 7)), np.zeros((7, 50), order="F")), (2, 16)
    ),
    "assignments": Case(assignments, (integers(), zeros(dtype=np.int16), zeros(N, 6, dtype=np.float32))),
    "conversions": Case(
        conversions,
        (floats(), zeros(dtype=np.int8), zeros(dtype=np.int16), zeros(dtype=np.uint32), zeros(dtype=np.int64)),
    ),
    "control": Case(control, (np.sort(integers()), zeros(dtype=np.int64))),
    "local arrays": Case(locals_, (integers(), zeros())),
    "records": Case(records, (np.array([(i * 1.5, i, i % 2) for i in range(N)], PARTICLE), zeros())),
    "tuples": Case(tuples, (Pair(floats(), integers()), zeros(), (1, 2.5))),
    "views": Case(views, (integers(20, 6), zeros(20)), (1, 20)),
    "complex": Case(complexes, ((floats() + 1j * floats()).astype(np.complex64), zeros())),
    "atomic": Case(
        histogram,
        (
            integers(),
            zeros(8, dtype=np.int32),
            zeros(1, dtype=np.int64),
            zeros(1, dtype=np.int32),
            np.full(3, 255, np.int32),
            np.array([-1e3, np.nan]),
        ),
    ),
    "tree": Case(tree, (floats(), zeros(3, dtype=np.float32))),
    "tiles": Case(
        tiles, (integers(24, 24), zeros(SIDE, SIDE, dtype=np.int64), zeros(5, dtype=np.int32)), (2, (SIDE, SIDE))
    ),
    "neighbours": Case(neighbours, (floats(), zeros(96))),
    "divisions": Case(divisions, (integers(), integers(), zeros())),
    "unsigned range": Case(
        ranges_over_unsigned, (np.arange(0, 24, 3, np.uint32), np.arange(1, 9, dtype=np.uint8), zeros(8, 2)), (2, 4)
    ),
}


@dm.kernel(device=True)
def waiting():
    dm.barrier()


@dm.kernel
def waits(a):
    waiting()
    a[dm.grid(1)] += 1


@dm.kernel
def shuffles(a):
    dm.wavebarrier()
    a[dm.grid(1)] += 1


@dm.kernel
def shares(a):
    part = dm.shared.array(4, np.int32)
    part[dm.threadIdx.x] = 3
    a[dm.grid(1)] = part[dm.threadIdx.x]


@dm.kernel
def shares_dynamically(a):
    part = dm.shared.array(0, np.int32)
    dm.barrier()
    a[dm.grid(1)] = 1 + part.size


@dm.kernel
def numbers_threads(a):
    a[dm.grid(1)] = dm.atomic.add(a, 9, 1)


@dm.kernel
def swaps(a):
    dm.atomic.exch(a, 0, dm.grid(1))


@dm.kernel
def adds_floats(a):
    dm.atomic.add(a, 0, 0.1 * dm.grid(1))


@dm.kernel("int32(int32)", device=True)
def truncated(x):
    return x


@dm.kernel
def declares(a):
    a[dm.grid(1)] = truncated(1.5) * 4


@dm.kernel
def sums(a):
    a[dm.grid(1)] = a.sum()


@dm.kernel
def flattens(a):
    a.flat[dm.grid(1)] = 3


@dm.kernel
def divides_complex(z):
    z[dm.grid(1)] = z[0] / (2 + 1j)


@dm.kernel
def changes_type(a):
    h = np.uint64(a[0])
    for _ in range(dm.grid(1)):
        h = h * 3
    a[dm.grid(1)] = h


@dm.kernel
def prints(a):
    a[dm.grid(1)] = 2
    print(a[0])


@dm.kernel
def takes_remainders(a, n):
    a[dm.grid(1)] = math.fmod(a[0] + n, 3)


RECORDS = np.array([(1.5 * i, i + 1) for i in range(4)], [("x", np.float32), ("n", np.int32)])


@dm.kernel
def ranges_over_both(out, n):
    i = dm.grid(1)
    for j in range(1, n[i]):
        out[i] = j - n[i]


@dm.kernel
def takes_constant_records(out):
    i = dm.grid(1)
    out[i] = dm.const.array_like(RECORDS)[i % 4].x


@dm.kernel
def takes_constant_records_in_turn(out):
    for each in dm.const.array_like(RECORDS)[1:]:
        out[dm.grid(1)] += each.n


@dm.kernel
def takes_a_global_record(out):
    out[dm.grid(1)] = RECORDS[1]["n"]


def takes_arguments_for_constants(out, a):
    i = dm.grid(1)
    out[i] = dm.const.array_like(a)[i]


LEFT = {
    "barrier in a function": Case(waits, (zeros(dtype=np.int32),), (2, 4), "it uses dm.barrier()"),
    "barrier of a wave": Case(shuffles, (zeros(dtype=np.int32),), (2, 4), "it uses dm.wavebarrier()"),
    "no barrier": Case(shares, (zeros(dtype=np.int32),), (2, 4), "it uses shared memory without a barrier"),
    "dynamic": Case(shares_dynamically, (zeros(dtype=np.int32),), (2, 4), "it uses dynamic shared memory"),
    "result of an atomic": Case(
        numbers_threads,
        (zeros(dtype=np.int32),),
        (1, 8),
        "it uses the result of dm.atomic.add, which depends on the order",
    ),
    "exchange": Case(swaps, (zeros(dtype=np.int32),), (1, 4), "it uses dm.atomic.exch, which depends on the order"),
    "atomic of floats": Case(
        adds_floats, (zeros(),), (1, 4), "it uses atomic.add on float64, whose result depends on the order"
    ),
    "declared types": Case(declares, (zeros(dtype=np.int32),), (2, 4), "it uses truncated, which has declared types"),
    "whole arrays": Case(sums, (np.ones(8),), (1, 1), "it uses .sum of array(float64, 1d, C), in line "),
    "flat": Case(flattens, (zeros(),), (1, 4), "int64 is stored in "),
    "complex division": Case(divides_complex, (np.ones(8, np.complex128),), (1, 4), "it uses truediv of complex128"),
    "two types": Case(
        changes_type, (np.ones(8, np.int64),), (1, 4), "a variable is uint64 on one way, and float64 on another"
    ),
    "range of both": Case(
        ranges_over_both, (zeros(), np.full(8, 3, np.uint32)), (1, 4), "it calls Function(<class 'range'>) with ("
    ),
    "record of a constant": Case(takes_constant_records, (zeros(),), (1, 4), "it takes a record of a read-only array"),
    "records of a constant": Case(
        takes_constant_records_in_turn, (zeros(),), (1, 4), "it takes a record of a read-only array"
    ),
    "record of a global": Case(takes_a_global_record, (zeros(),), (1, 4), "it takes a record of a read-only array"),
    "print": Case(prints, (zeros(),), (1, 1), "it uses print("),
    "fmod": Case(takes_remainders, (np.full(8, 5.5), 2), (1, 4), "numba does not compile it: Unknown attribute 'fmod'"),
}
