"""The address space of the host backend: never the same byte twice, and everything comes back."""

from __future__ import annotations

import ctypes
import itertools
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import patience, together

from devmem.backends.host.arena import CHUNK, KEPT_PAGES, SLAB_LIMIT, Arena, _slot_size
from devmem.spi.errors import OutOfMemory

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="hidden memory needs memfd_create")


@pytest.fixture(params=[pytest.param(True, marks=linux), False], ids=["hidden", "readable"])
def arena(request):
    arena = Arena(64 * MIB, hidden=request.param)
    yield arena
    arena.mapping.unmap()


def release(arena, ptr, nbytes):
    end = arena.invalidate(ptr, nbytes)
    assert end
    arena.recycle(ptr, end)


def test_blocks_are_aligned_and_inside(arena):
    for nbytes in (1, 255, 256, 257, 1000, 1025, 70_000, SLAB_LIMIT, SLAB_LIMIT + 1, MIB, MIB + 1, 5 * MIB):
        ptr = arena.allocate(nbytes)
        assert ptr % 256 == 0
        assert arena.base <= ptr
        assert ptr + nbytes <= arena.end


@pytest.mark.parametrize("nbytes", [1, 256, 300, 1024, 1025, 4097, 300_000, SLAB_LIMIT])
def test_slots_hold_what_they_are_for_and_waste_little(nbytes):
    step = _slot_size(nbytes)
    assert step % 256 == 0
    assert nbytes <= step <= max(256, nbytes + 255, nbytes * 1.26)


def test_resolve_knows_interior_addresses(arena):
    for nbytes in (1, 100, 1000, 300_000, 3 * MIB):
        ptr = arena.allocate(nbytes)
        assert arena.resolve(ptr, nbytes) == ptr + arena.shift
        assert arena.resolve(ptr + nbytes - 1, 1) == ptr + nbytes - 1 + arena.shift
        assert arena.resolve(ptr + nbytes // 2, nbytes - nbytes // 2)
        assert not arena.resolve(ptr, nbytes + 1)
        assert not arena.resolve(ptr + nbytes, 1)
        assert not arena.resolve(ptr - 1, 1) or arena.resolve(ptr - 1, 2) == 0


def test_a_range_over_two_neighbours_is_in_no_block(arena):
    first, second = sorted(arena.allocate(256) for _ in range(2))
    assert second == first + 256
    assert not arena.resolve(first, 512)
    assert not arena.resolve(first + 255, 2)


def test_resolve_forgets_what_was_invalidated(arena):
    ptr = arena.allocate(3 * MIB)
    end = arena.invalidate(ptr, 3 * MIB)
    assert end
    assert not arena.resolve(ptr, 1)
    assert not arena.resolve(ptr + MIB, 1)
    arena.recycle(ptr, end)
    assert not arena.resolve(ptr + MIB, 1)


def test_invalidate_wants_the_base_and_the_size(arena):
    ptr = arena.allocate(1000)
    assert not arena.invalidate(ptr + 256, 744)
    assert not arena.invalidate(ptr, 999)
    assert arena.invalidate(ptr, 1000)
    assert not arena.invalidate(ptr, 1000)


def test_a_invalidated_block_is_not_handed_out(arena):
    ptr = arena.allocate(40 * MIB)
    end = arena.invalidate(ptr, 40 * MIB)
    with pytest.raises(OutOfMemory):
        arena.allocate(40 * MIB)
    arena.recycle(ptr, end)
    assert arena.allocate(40 * MIB)


def test_an_end_that_is_over_makes_nothing_free(arena):
    """As where an interrupted owner cannot know whether the job that recycles the block was enqueued."""
    ptr = arena.allocate(1000)
    end = arena.invalidate(ptr, 1000)
    arena.recycle(ptr, end)
    arena.recycle(ptr, end)
    assert arena.allocate(1000) == ptr
    arena.recycle(ptr, end)
    assert arena.allocate(1000) != ptr
    newer = arena.invalidate(ptr, 1000)
    arena.recycle(ptr, end)
    assert arena.allocate(1000) != ptr
    arena.recycle(ptr, newer)
    assert arena.allocate(1000) == ptr


def test_out_of_memory_says_the_numbers(arena):
    arena.allocate(10 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        arena.allocate(60 * MIB)
    for number in (60 * MIB, 54 * MIB, 64 * MIB):
        assert f"{number:,}" in str(caught.value)
    assert caught.value.name == "OUT_OF_MEMORY"
    assert arena.used == 10 * MIB


def test_all_of_it_can_be_had(arena):
    ptr = arena.allocate(64 * MIB)
    release(arena, ptr, 64 * MIB)
    small = [arena.allocate(256) for _ in range(64 * MIB // 256)]
    assert len(set(small)) == len(small)
    with pytest.raises(OutOfMemory):
        arena.allocate(1)
    for ptr in small:
        release(arena, ptr, 256)
    assert arena.used == 0
    release(arena, arena.allocate(64 * MIB), 64 * MIB)


def test_sizes_that_change_never_exhaust_it(arena):
    # Every size leaves an empty slab behind; they have to be given back when room is needed.
    for nbytes in list(range(256, SLAB_LIMIT, 4096)) + [MIB * n for n in range(1, 60)]:
        release(arena, arena.allocate(nbytes), nbytes)
    assert arena.allocate(64 * MIB)


def test_freed_neighbours_are_joined(arena):
    blocks = [arena.allocate(8 * MIB) for _ in range(8)]
    for ptr in blocks[1::2] + blocks[::2]:
        release(arena, ptr, 8 * MIB)
    assert arena.allocate(64 * MIB)


def test_many_live_blocks():
    arena = Arena(1 << 30, hidden=False)
    blocks = [arena.allocate(128) for _ in range(100_000)]
    assert len(set(blocks)) == 100_000
    assert arena.resolve(blocks[77_777] + 100, 28)
    for ptr in blocks:
        release(arena, ptr, 128)
    assert arena.used == 0
    assert sum(arena._chunks) <= 1
    arena.mapping.unmap()


@linux
@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("nbytes", [MIB, 32 * MIB, KEPT_PAGES + MIB])
def test_freed_memory_goes_back_to_the_system_beyond_what_is_kept(hidden, nbytes):
    arena = Arena(2 * KEPT_PAGES + 2 * MIB, hidden=hidden)
    kept = KEPT_PAGES // nbytes
    blocks = [arena.allocate(nbytes) for _ in range(kept + 1)]
    for ptr in blocks:
        ctypes.memset(ptr + arena.shift, 7, 16)
    for ptr in blocks:
        release(arena, ptr, nbytes)
    found = [ctypes.string_at(ptr + arena.shift, 16) for ptr in blocks]
    assert found == [b"\7" * 16] * kept + [bytes(16)]
    arena.mapping.unmap()


@linux
@pytest.mark.parametrize("hidden", [True, False])
def test_memory_that_is_freed_and_taken_again_keeps_its_pages(hidden):
    """As in a loop over batches: to make pages takes ten times as long as to copy to them."""
    arena = Arena(2 * KEPT_PAGES, hidden=hidden)
    nbytes = KEPT_PAGES // 4
    for turn in range(12):
        blocks = [arena.allocate(nbytes) for _ in range(2)]
        for ptr in blocks:
            assert ctypes.string_at(ptr + arena.shift, 16) == bytes([turn]) * 16
            ctypes.memset(ptr + arena.shift, turn + 1, 16)
        for ptr in blocks:
            release(arena, ptr, nbytes)
    arena.discard()
    assert ctypes.string_at(arena.allocate(nbytes) + arena.shift, 16) == bytes(16)
    arena.mapping.unmap()


@linux
def test_a_hidden_address_faults():
    program = f"""
import ctypes
from devmem.backends.host.arena import Arena
arena = Arena({64 * MIB}, hidden=True)
ptr = arena.allocate(100)
ctypes.memset(ptr + arena.shift, 1, 100)
assert ctypes.string_at(ptr + arena.shift, 1) == bytes([1])
print("alias", flush=True)
ctypes.string_at(ptr, 1)
print("read", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(140), check=False
    )
    assert done.stdout == "alias\n"
    assert done.returncode == -signal.SIGSEGV


def test_threads_never_get_the_same_block():
    arena = Arena(256 * MIB, hidden=False)
    got: list[list[int]] = [[], [], [], []]

    def work(mine):
        for _ in range(500):
            kept = arena.allocate(300)
            release(arena, arena.allocate(300), 300)
            mine.append(kept)

    together(*(partial(work, mine) for mine in got))
    everything = [ptr for mine in got for ptr in mine]
    assert len(set(everything)) == len(everything) == len(arena.live)
    arena.mapping.unmap()


sizes = st.one_of(
    st.integers(1, 5000), st.integers(1, SLAB_LIMIT), st.integers(SLAB_LIMIT, 6 * MIB), st.just(CHUNK), st.just(256)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(sizes, st.tuples(st.integers(0, 1 << 30)))))
def test_the_arena_agrees_with_a_model(steps):
    """A number allocates so many bytes, a tuple frees one of the live blocks."""
    arena = Arena(32 * MIB, hidden=False)
    live: dict[int, int] = {}
    for step in steps:
        if isinstance(step, tuple):
            if live:
                ptr = sorted(live)[step[0] % len(live)]
                release(arena, ptr, live.pop(ptr))
            continue
        try:
            ptr = arena.allocate(step)
        except OutOfMemory:
            continue
        assert ptr % 256 == 0
        assert arena.base <= ptr <= arena.end - step
        live[ptr] = step
        order = sorted(live)
        for low, high in itertools.pairwise(order):
            assert low + live[low] <= high
    assert arena.live == live
    for ptr, nbytes in live.items():
        assert arena.resolve(ptr, nbytes)
        assert not arena.resolve(ptr, nbytes + 1)
    for ptr, nbytes in live.items():
        release(arena, ptr, nbytes)
    assert arena.used == 0
    assert arena.allocate(32 * MIB)
    arena.mapping.unmap()


@linux
def test_pages_of_what_was_freed_are_given_back_when_they_are_asked_for():
    """One slab of each size is kept, with its pages; a trim gives them back, or a long run would seem to grow."""

    def resident():
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssShmem"))

    arena = Arena(64 * MIB, hidden=True)
    before = resident()
    for nbytes in range(1 << 15, SLAB_LIMIT, 1 << 15):
        ptr = arena.allocate(nbytes)
        ctypes.memset(ptr + arena.shift, 1, nbytes)
        release(arena, ptr, nbytes)
    kept = arena.allocate(1000)
    ctypes.memset(kept + arena.shift, 7, 1000)
    assert resident() - before > 2 * MIB
    arena.discard()
    assert resident() - before < MIB // 2
    assert ctypes.string_at(kept + arena.shift, 1000) == b"\7" * 1000
    arena.mapping.unmap()


def test_a_handler_may_allocate_while_the_pages_of_a_free_arena_are_given_back(arena, at_point):
    handled = []

    def handler():
        handled.append(arena.allocate(CHUNK))
        release(arena, handled[-1], CHUNK)

    number, left = 0, 0
    while left <= 0:
        number += 1
        release(arena, arena.allocate(MIB), MIB)
        with at_point(
            number, lambda code: code is Arena.discard.__code__ or code is Arena._discard.__code__, handler
        ) as point:
            arena.discard()
        left = point.left
    assert len(handled) == number - 1 > 5
