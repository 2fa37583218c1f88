"""`devmem.compat.numba_cuda.random`: its numbers are numba.cuda's."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.compat.numba_cuda import random


def states(count, seed, start=0):
    made = np.empty(count, random.xoroshiro128p_dtype)
    random.init_xoroshiro128p_states_cpu(made, seed, start)
    return made


def step(state):
    """The generator, from its definition, in Python's integers."""
    mask = (1 << 64) - 1
    s0, s1 = state
    found = (s0 + s1) & mask
    s1 ^= s0
    turned = (s0 << 55 | s0 >> 9) & mask
    return found, (turned ^ s1 ^ (s1 << 14 & mask), (s1 << 36 | s1 >> 28) & mask)


def test_generators_are_a_jump_apart():
    """The jump, from its definition: the sum over its bits of the states that follow."""
    made = states(4, 7)
    state, jumped = tuple(map(int, made[0])), (0, 0)
    for word in (0xBEAC0467EBA5FACB, 0xD86B048B86AA9922):
        for bit in range(64):
            if word >> bit & 1:
                jumped = jumped[0] ^ state[0], jumped[1] ^ state[1]
            _, state = step(state)
    assert tuple(map(int, made[1])) == jumped
    assert np.array_equal(states(2, 7, 2), made[2:])
    assert np.array_equal(states(1, 7, 3), made[3:])


@pytest.mark.parametrize("count", [0, 1])
def test_few_generators(count):
    assert len(states(count, 3)) == count


def test_numbers_in_kernels_follow_the_generator():
    pytest.importorskip("greenlet")
    generators = random.create_xoroshiro128p_states(3, seed=5)
    before = generators.copy_to_host()

    @dm.kernel
    def kernel(generators, single, double, normal):
        i = dm.grid(1)
        double[i] = random.xoroshiro128p_uniform_float64(generators, i)
        single[i] = random.xoroshiro128p_uniform_float32(generators, i)
        normal[i] = random.xoroshiro128p_normal_float64(generators, i)

    with dm.device("host"):
        host = dm.to_device(before)
        out = [dm.to_device(np.zeros(3, dtype)) for dtype in (np.float32, np.float64, np.float64)]
        kernel[1, 3](host, *out)
        single, double, normal = (each.copy_to_host() for each in out)
    for i in range(3):
        first, state = step(tuple(map(int, before[i])))
        second, state = step(state)
        assert double[i] == (first >> 11) / (1 << 53)
        assert single[i] == np.float32((second >> 11) / (1 << 53))
        u1, state = step(state)
        u2, state = step(state)
        u1, u2 = (np.float32((each >> 11) / (1 << 53)) for each in (u1, u2))
        expected = np.sqrt(-2 * np.float64(np.log(u1))) * np.cos(2 * np.pi * np.float64(u2))
        assert normal[i] == pytest.approx(expected, rel=1e-6)


def test_states_are_those_of_numba_cuda():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba.cuda import random as theirs

    found = np.empty(100, theirs.xoroshiro128p_dtype)
    theirs.init_xoroshiro128p_states_cpu(found, 42, 5)
    assert np.array_equal(found.view(np.uint64), states(100, 42, 5).view(np.uint64))
