"""The simulator against what can be worked out on paper: which threads race, and what comes out where none do."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm
from devmem.backends.host.hooks import HostBackend
from devmem.kernels.compilers.simulator.compiler import Simulator
from devmem.kernels.names import atomic, barrier, shared, threadIdx, wavebarrier
from devmem.spi.errors import SimulatorError

pytest.importorskip("greenlet")

CELLS, THREADS, WAVE = 3, 4, 2


class Access(NamedTuple):
    """What a thread does to a cell of shared memory: reads it, writes a value, or adds one atomically."""

    what: str
    cell: int
    value: int


accesses = st.builds(Access, st.sampled_from("rwa"), st.integers(0, CELLS - 1), st.integers(1, 2))
#: What each thread does between two barriers of its wave; several of those between two barriers of the block.
spans = st.lists(st.lists(accesses, max_size=2), min_size=THREADS, max_size=THREADS)
programs = st.lists(st.lists(spans, min_size=1, max_size=3), min_size=1, max_size=3)


def races(program):
    """Whether two accesses of different threads are ordered by no barrier, and not both read, both atomic or of one value."""
    for intervals in program:
        found = [
            (thread, span, access)
            for span, threads in enumerate(intervals)
            for thread, done in enumerate(threads)
            for access in done
        ]
        for (one, when, a), (two, then, b) in itertools.combinations(found, 2):
            if one == two or a.cell != b.cell or (one // WAVE == two // WAVE and when != then):
                continue
            if a.what == b.what and (a.what in "ra" or a.value == b.value):
                continue
            return True
    return False


def outcome(program):
    """What the cells hold in the end, if nothing races."""
    cells = [0] * CELLS
    for intervals in program:
        for threads in intervals:
            for done in threads:
                for access in done:
                    cells[access.cell] = {"r": cells[access.cell], "w": access.value, "a": cells[access.cell] + 1}[
                        access.what
                    ]
    return cells


@pytest.fixture(scope="module")
def driver():
    opened = HostBackend().open(0)
    token = opened.enter()
    yield opened
    opened.exit(token)
    opened.close()


@given(program=programs, seed=st.none() | st.integers(0, 1000))
def test_a_race_is_reported_exactly_where_there_is_one(driver, program, seed):
    result = []

    def kernel():
        s, t = shared.array(CELLS, np.int32), threadIdx.x
        if t < CELLS:
            s[t] = 0
        barrier()
        for intervals in program:
            for threads in intervals:
                for access in threads[t]:
                    if access.what == "r":
                        s[access.cell]
                    elif access.what == "w":
                        s[access.cell] = access.value
                    else:
                        atomic.add(s, access.cell, 1)
                wavebarrier()
            barrier()
        if t == 0:
            for cell in range(CELLS):
                result.append(int(s[cell]))

    compiled = Simulator().compile(kernel, (), driver, {})
    with dm.simulator(race_check=True, shuffle=seed, wave_size=WAVE):
        if races(program):
            with pytest.raises(SimulatorError, match="no barrier in between"):
                compiled.launch((1, 1, 1), (THREADS, 1, 1), 0, 1, ())
        else:
            compiled.launch((1, 1, 1), (THREADS, 1, 1), 0, 1, ())
            assert result == outcome(program)


@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    wave=st.integers(1, 8),
    seed=st.none() | st.integers(0, 1000),
)
def test_divergence_is_reported_exactly_where_threads_disagree(driver, counts, wave, seed):
    left = []

    def kernel():
        for _ in range(counts[threadIdx.x]):
            barrier()
        left.append(threadIdx.x)

    compiled = Simulator().compile(kernel, (), driver, {})
    with dm.simulator(shuffle=seed, wave_size=wave):
        if len(set(counts)) > 1:
            with pytest.raises(SimulatorError, match="divergence"):
                compiled.launch((1, 1, 1), (len(counts), 1, 1), 0, 1, ())
        else:
            compiled.launch((1, 1, 1), (len(counts), 1, 1), 0, 1, ())
            assert sorted(left) == list(range(len(counts)))


@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    wave=st.integers(1, 8),
    seed=st.none() | st.integers(0, 1000),
)
def test_waves_disagree_only_with_themselves(driver, counts, wave, seed):
    def kernel():
        for _ in range(counts[threadIdx.x]):
            wavebarrier()
        barrier()

    compiled = Simulator().compile(kernel, (), driver, {})
    waves = [counts[first : first + wave] for first in range(0, len(counts), wave)]
    with dm.simulator(shuffle=seed, wave_size=wave):
        if any(len(set(each)) > 1 for each in waves):
            with pytest.raises(SimulatorError, match="divergence"):
                compiled.launch((1, 1, 1), (len(counts), 1, 1), 0, 1, ())
        else:
            compiled.launch((1, 1, 1), (len(counts), 1, 1), 0, 1, ())
