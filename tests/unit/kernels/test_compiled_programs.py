"""Whole kernels give what compiled code gives, bit for bit: ``numba.njit(error_model="numpy")``, whose checksums are recorded."""

from __future__ import annotations

import importlib.util
import math
import zlib

import numpy as np
import pytest

import devmem as dm

N = 64


def xoroshiro(seeds, out):
    """Random numbers, as numba.cuda.random makes them of two words."""
    for i in range(seeds.size):
        low, high = seeds[i], seeds[i] ^ np.uint64(0x9E3779B97F4A7C15)
        for _ in range(8):
            found = low + high
            high ^= low
            low = ((low << np.uint64(55)) | (low >> np.uint64(9))) ^ high ^ (high << np.uint64(14))
            high = (high << np.uint64(36)) | (high >> np.uint64(28))
        out[i] = np.float64(found >> np.uint64(11)) * (1.0 / (np.uint64(1) << np.uint64(53)))


def hashed(words, out):
    """FNV-1a and a finalizer of MurmurHash, in 32 bits that wrap."""
    for i in range(words.size):
        value = np.uint32(2166136261)
        for k in range(4):
            value = np.uint32((value ^ ((words[i] >> (8 * k)) & 0xFF)) * np.uint32(16777619))
        value = np.uint32((value ^ (value >> 16)) * np.uint32(0x85EBCA6B))
        out[i] = value ^ (value >> 13)


def filtered(samples, out):
    """A low pass in fixed point, with the sums of int16 in an int32 that is cut to the range."""
    for i in range(samples.size):
        total = np.int32(1 << 14)
        for k in range(5):
            tap = np.int16((-3277, 9830, 19661, 9830, -3277)[k])
            total = np.int32(total + samples[(i + k) % samples.size] * tap)
        total >>= 15
        out[i] = min(max(total, -32768), 32767)


def mandelbrot(places, out):
    """How soon a point escapes, in single precision, and where it is then."""
    for i in range(places.size):
        cx, cy = places[i], np.float32(0.3) - places[i] / np.float32(7)
        x = y = np.float32(0)
        count = 0
        while count < 50 and x**2 + y**2 < np.float32(4):
            x, y = x**2 - y**2 + cx, np.float32(2) * x * y + cy
            count += 1
        out[i] = count + x - y // np.float32(0.01)


def summed(values, out):
    """A prefix sum in the order of a tree, with means and a power of each."""
    for i in range(values.size):
        out[i] = values[i]
    step = 1
    while step < values.size:
        for i in range(values.size - 1, step - 1, -1):
            out[i] += out[i - step]
        step *= 2
    for i in range(values.size):
        out[i] = out[i] % 7 - (out[i] / (i + 1)) ** -2 + math.sqrt(abs(out[i])) + -np.uint8(i)


#: By program: the argument, the type of the results, and their checksum.
PROGRAMS = [
    (xoroshiro, np.arange(1, N + 1, dtype=np.uint64) * np.uint64(0x123456789ABCDEF), np.float64, "83d3d521"),
    (hashed, np.arange(N, dtype=np.uint32) * np.uint32(0x9E3779B1), np.uint32, "b9df190d"),
    (filtered, (np.arange(N) * 7919 % 65536 - 32768).astype(np.int16), np.int16, "b9dc667e"),
    (mandelbrot, np.linspace(-2, 0.5, N, dtype=np.float32), np.float64, "bf2e59c7"),
    (summed, np.linspace(-3, 8, N), np.float64, "c81fb77c"),
]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(("program", "given", "dtype", "digest"), PROGRAMS, ids=[each[0].__name__ for each in PROGRAMS])
def test_a_program_gives_what_compiled_code_gives(simulated, program, given, dtype, digest, watched):
    with dm.simulator(race_check=watched):
        _, found = simulated.run(program, 1, 1, given, np.zeros(N, dtype))
    if importlib.util.find_spec("numba") is not None:
        import numba

        expected = np.zeros(N, dtype)
        numba.njit(error_model="numpy")(program)(given, expected)
        assert found.tobytes() == expected.tobytes(), (found, expected)
    assert f"{zlib.crc32(found.tobytes()):08x}" == digest
