"""numba.cuda.random: random numbers in kernels, by a generator for each thread (xoroshiro128+), on every backend.

The numbers are those of numba.cuda, to the last bit; of the normal distribution, to that of the functions that it is made from.
"""

# Source: https://prng.di.unimi.it/xoroshiro128plus.c and splitmix64.c, which are in the public domain
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import devmem

from .api import to_device

Words = npt.NDArray[np.uint64]

xoroshiro128p_dtype = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)

_JUMP = 0xBEAC0467EBA5FACB, 0xD86B048B86AA9922
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_TWO_PI32, _TWO_PI = np.float32(2 * math.pi), 2 * math.pi
_MINUS_TWO32, _UNIT = np.float32(-2), 1.0 / (1 << 53)
_ONE, _ROTATION, _SHIFT, _SECOND, _DROPPED, _WORD = (np.uint64(each) for each in (1, 55, 14, 36, 11, 64))


def _device(function: Callable[..., Any]) -> Any:
    return devmem.kernel(device=True)(function)


@_device
def xoroshiro128p_next(states: Any, index: Any) -> Any:
    """The next 64 random bits of the generator ``states[index]``, a uint64."""
    s0 = states[index]["s0"]
    s1 = states[index]["s1"]
    found = s0 + s1
    s1 ^= s0
    states[index]["s0"] = ((s0 << _ROTATION) | (s0 >> (_WORD - _ROTATION))) ^ s1 ^ (s1 << _SHIFT)
    states[index]["s1"] = (s1 << _SECOND) | (s1 >> (_WORD - _SECOND))
    return found


@_device
def xoroshiro128p_jump(states: Any, index: Any) -> None:
    """Advance the generator ``states[index]`` by 2^64 numbers."""
    s0 = np.uint64(0)
    s1 = np.uint64(0)
    for word in _JUMP:
        for bit in range(64):
            if np.uint64(word) >> np.uint64(bit) & _ONE:
                s0 ^= states[index]["s0"]
                s1 ^= states[index]["s1"]
            xoroshiro128p_next(states, index)
    states[index]["s0"] = s0
    states[index]["s1"] = s1


@_device
def init_xoroshiro128p_state(states: Any, index: Any, seed: Any) -> None:
    """Start the generator ``states[index]``, as the first one of `init_xoroshiro128p_states` is."""
    z = np.uint64(seed) + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    z = z ^ (z >> np.uint64(31))
    states[index]["s0"] = z
    states[index]["s1"] = z


@_device
def rotl(x: Any, k: Any) -> Any:
    """The bits of a uint64, rotated to the left by ``k``."""
    bits, by = np.uint64(x), np.uint64(k)
    return (bits << by) | (bits >> (_WORD - by))


@_device
def uint64_to_unit_float64(x: Any) -> Any:
    """A float64 from 0 up to, but not including, 1, of 64 random bits."""
    return (np.uint64(x) >> _DROPPED) * _UNIT


@_device
def uint64_to_unit_float32(x: Any) -> Any:
    """A float32 from 0 to 1, of 64 random bits."""
    return np.float32((np.uint64(x) >> _DROPPED) * _UNIT)


@_device
def xoroshiro128p_uniform_float64(states: Any, index: Any) -> Any:
    """A float64 from 0 up to, but not including, 1."""
    return (xoroshiro128p_next(states, index) >> _DROPPED) * _UNIT


@_device
def xoroshiro128p_uniform_float32(states: Any, index: Any) -> Any:
    """A float32 from 0 to 1."""
    return np.float32((xoroshiro128p_next(states, index) >> _DROPPED) * _UNIT)


@_device
def xoroshiro128p_normal_float64(states: Any, index: Any) -> Any:
    """A float64 of the normal distribution with mean 0 and variance 1, made from numbers of single precision."""
    u1 = xoroshiro128p_uniform_float32(states, index)
    u2 = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(-2.0 * math.log(u1)) * math.cos(_TWO_PI * u2)


@_device
def xoroshiro128p_normal_float32(states: Any, index: Any) -> Any:
    """A float32 of the normal distribution with mean 0 and variance 1."""
    u1 = xoroshiro128p_uniform_float32(states, index)
    u2 = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(_MINUS_TWO32 * math.log(u1)) * math.cos(_TWO_PI32 * u2)


def create_xoroshiro128p_states(n: int, seed: int, subsequence_start: int = 0, stream: Any = 0) -> Any:
    """A device array of ``n`` generators, 2^64 numbers apart, the first ``subsequence_start`` of them left out."""
    states = np.empty(n, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, seed, subsequence_start)
    return to_device(states, stream=stream)


def init_xoroshiro128p_states(states: Any, seed: int, subsequence_start: int = 0, stream: Any = 0) -> None:
    """Start the generators of a device array, as `create_xoroshiro128p_states` does."""
    host = np.empty(states.shape, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(host, seed, subsequence_start)
    states.copy_to_device(host, stream=stream)


def init_xoroshiro128p_states_cpu(states: npt.NDArray[Any], seed: int, subsequence_start: int) -> None:
    """Start the generators of a host array.

    To jump is linear in the bits of a state. So the jump by 2^k generators, k = 0, 1, ..., is a matrix, the square of the one
    before, and each doubles the states that are known.
    """
    found = np.empty((len(states), 2), np.uint64)
    found[:1] = _after(_seeded(seed), int(subsequence_start))
    jump, known = _jumped(_unit_states()), 1
    while known < len(found):
        many = min(known, len(found) - known)
        found[known : known + many] = _applied(jump, found[:many])
        known += many
        jump = _applied(jump, jump)
    states["s0"], states["s1"] = found[:, 0], found[:, 1]


def _after(states: Words, jumps: int) -> Words:
    """States so many jumps later."""
    jump = _jumped(_unit_states())
    while jumps:
        if jumps & 1:
            states = _applied(jump, states)
        jump = _applied(jump, jump)
        jumps >>= 1
    return states


def _seeded(seed: int) -> Words:
    z = (seed + int(_GOLDEN)) & _MASK
    z = (z ^ (z >> 30)) * int(_MIX[0]) & _MASK
    z = (z ^ (z >> 27)) * int(_MIX[1]) & _MASK
    z ^= z >> 31
    return np.full((1, 2), z, np.uint64)


def _unit_states() -> Words:
    """The 128 states that have a single bit, by the number of the bit."""
    units = np.zeros((128, 2), np.uint64)
    for bit in range(128):
        units[bit, bit // 64] = np.uint64(1 << bit % 64)
    return units


def _jumped(states: Words) -> Words:
    """States 2^64 numbers later."""
    s0, s1 = states[:, 0].copy(), states[:, 1].copy()
    found = np.zeros_like(states)
    for word in _JUMP:
        for bit in range(64):
            if word >> bit & 1:
                found[:, 0] ^= s0
                found[:, 1] ^= s1
            s1 ^= s0
            s0 = (s0 << _ROTATION | s0 >> (_WORD - _ROTATION)) ^ s1 ^ (s1 << _SHIFT)
            s1 = s1 << _SECOND | s1 >> (_WORD - _SECOND)
    return found


def _applied(matrix: Words, states: Words) -> Words:
    """A matrix, the images of the single bits, applied to states."""
    found = np.zeros_like(states)
    for bit, image in enumerate(matrix):
        has = states[:, bit // 64] >> np.uint64(bit % 64) & np.uint64(1)
        found ^= has[:, None] * image
    return found
