"""Memory that is opened of another process's pool: imported once, and closed with the last that has it open."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from devmem._core.base import hot_state
from devmem._core.base.hot_state import BlocksByPlace
from devmem._core.base.interrupts import CannotWait
from devmem._core.interop import ipc
from devmem._core.memory import heap
from devmem.toolkit import memory, vendor_functions
from devmem.toolkit.driver_parts import DriverState
from devmem.toolkit.handles import Handles
from devmem.toolkit.memory import ForeignMemory
from devmem.toolkit.vendor_functions import RelaxedCapture, VendorFunctions, checked, recorded

CODE = (__file__, ipc.__file__, heap.__file__, hot_state.__file__)
KEY, OTHER = ("owner", b"block"), ("owner", b"other")


class Imports:
    """A driver that imports blocks. It does not count how often."""

    def __init__(self):
        self.out, self.addresses = {}, iter(range(4096, 1 << 40, 4096))

    def pool_open(self, descriptor, data):
        # Not counted: a block that is here already has the address that it has.
        ptr = next((ptr for ptr, other in self.out.items() if other == data), 0) or next(self.addresses)
        self.out[ptr] = data
        return ptr

    def pool_close(self, ptr):
        self.out.pop(ptr, None)


@pytest.fixture
def pool():
    made = ipc.OpenedPool()
    made.bind(Imports())
    return made


def watched(code):
    return code.co_filename in CODE and (code.co_filename != __file__ or code.co_name.startswith("pool_"))


def opened(pool, key=KEY):
    [ptr] = map(pool.open, (key,), (3,), (key[1],))
    return ptr


def test_a_block_is_imported_once(pool):
    first, second, other = opened(pool), opened(pool), opened(pool, OTHER)
    assert first == second != other
    pool.deallocate(first, 8, 0)
    assert set(pool.driver.out) == {first, other}
    pool.deallocate(second, 8, 0)
    pool.deallocate(other, 8, 0)
    assert not pool.driver.out


@pytest.mark.parametrize("others", [0, 1])
def test_an_interrupt_closes_nothing_that_is_open(pool, at_point, others):
    """What it leaves imported is used again by the next that opens the block."""
    kept = [opened(pool) for _ in range(others)]
    number, left = 0, 0
    while left <= 0:
        number += 1
        with at_point(number, watched) as point:
            opened(pool)
        left = point.left
        again = opened(pool)
        assert pool.driver.out[again] == KEY[1] and set(kept) <= {again}, point.where
        pool.deallocate(again, 8, 0)
        assert set(kept) <= set(pool.driver.out), point.where
    assert number > 2


def entered(books, ptr):
    """A live block."""
    block = heap.Block(ptr, 8, 0)
    books.enter(block)
    return block


@pytest.mark.parametrize("others", [0, 1])
def test_an_interrupt_as_a_block_is_let_go_of_closes_nothing_that_is_open(pool, at_point, others):
    kept = [opened(pool) for _ in range(others)]
    books = heap.Heap(SimpleNamespace(device="a device"), pool)
    books.live = BlocksByPlace()
    for ptr in kept:
        entered(books.live, ptr)
    number, left = 0, 0
    while left <= 0:
        number += 1
        ptr = opened(pool)
        block = entered(books.live, ptr)
        with at_point(number, watched) as point:
            books.give_back(block, 0)
        left = point.left
        books.give_back(block, 0)
        assert set(kept) <= set(pool.driver.out), point.where
        assert len(books.live) >= len(kept), point.where
        again = opened(pool)
        assert pool.driver.out[again] == KEY[1], point.where
        pool.deallocate(again, 8, 0)
    assert number > 5


def test_an_interrupt_leaves_a_block_entered_once_or_not_at_all(at_point):
    number, left = 0, 0
    while left <= 0:
        number, books = number + 1, BlocksByPlace()
        first, second = entered(books, 4096), heap.Block(4096, 8, 0)
        with at_point(number, lambda code: code.co_filename == hot_state.__file__) as point:
            books.enter(second)
        left = point.left
        assert [block[:2] for block in books.blocks()] in ([(4096, 8)], 2 * [(4096, 8)]), point.where
        assert books.take(first.place, 4096)
    assert number > 2


def test_a_handler_imports_no_block_that_its_own_thread_imports(pool, at_point):
    """At each point: it is refused there, or has the one import."""
    number, left, refused = 0, 0, 0
    while left <= 0:
        number, got = number + 1, []

        def handler(got=got):
            nonlocal refused
            try:
                got.append(opened(pool))
            except CannotWait:
                refused += 1

        with at_point(number, watched, handler) as point:
            got.append(opened(pool))
        left = point.left
        assert len(set(got)) == 1, point.where
        for ptr in got:
            assert set(pool.driver.out) == {ptr}, point.where
            pool.deallocate(ptr, 8, 0)
        assert not pool.driver.out, point.where
    assert refused
    assert number > 5


class Opens:
    """A driver that opens memory, any number of times, whose calls can be interrupted before and behind the vendor's."""

    def __init__(self, functions):
        state = DriverState(0, functions, None, RelaxedCapture(None), Handles(int), Handles(int))
        self.ipc_close = ForeignMemory(state, bytes, bytes, int).ipc_close


def test_what_was_let_go_of_is_closed_once_at_most(at_point):
    """By the driver, which counts how often it is open, wherever an interrupt comes."""
    ended, resource = [], ipc.Opened()

    def bound(form):
        return lambda name: form(name, lambda ptr: (ended.append(ptr) or 0,), lambda *_: None, int)

    resource.bind(Opens(VendorFunctions("", bound(checked), bound(recorded))))
    books, number, left = heap.Heap(SimpleNamespace(device="a device"), resource), 0, 0
    books.live = BlocksByPlace()
    code = (*CODE, memory.__file__, vendor_functions.__file__)
    while left <= 0:
        books.live.clear()
        number, block = number + 1, entered(books.live, 4096)
        ended.clear()
        with at_point(number, lambda each: each.co_filename in code and each.co_filename != __file__) as point:
            books.give_back(block, 0)
        left = point.left
        books.give_back(block, 0)
        assert ended in ([], [4096]), point.where
        assert not block.ptr, point.where
    assert ended == [4096]
    assert number > 5
