"""Blocks of other processes' pools, as a driver's part lets go of them: the block, then the pool that was imported for it."""

from __future__ import annotations

import pytest

from devmem.spi.errors import BackendError
from devmem.toolkit import memory, vendor_functions
from devmem.toolkit.driver_parts import DriverState
from devmem.toolkit.handles import Handles
from devmem.toolkit.memory import IPC_HANDLE_BYTES, PoolSharing
from devmem.toolkit.vendor_functions import RelaxedCapture, StatusErrors, VendorFunctions, checked, recorded

FILES = memory.__file__, vendor_functions.__file__


class Vendor:
    """A library with one pool and one block, and what was ended of them."""

    def __init__(self):
        self.ended, self.statuses = [], {}

    def MemPoolImportFromShareableHandle(self, *_):
        return 0, 16

    def MemPoolImportPointer(self, *_):
        return 0, 4096

    def MemFree(self, ptr):
        self.ended.append(ptr)
        return (self.statuses.get("MemFree", 0),)

    def MemPoolDestroy(self, pool):
        self.ended.append(pool)
        return (self.statuses.get("MemPoolDestroy", 0),)


@pytest.fixture
def vendor():
    return Vendor()


@pytest.fixture
def sharing(vendor):
    errors = StatusErrors("vendor", lambda status: ("BAD", "it is bad"), ())

    def bound(form):
        return lambda name: form(name, getattr(vendor, name), errors.fail, int)

    functions = VendorFunctions("", bound(checked), bound(recorded))
    state = DriverState(0, functions, errors, RelaxedCapture(None), Handles(int), Handles(int))
    return PoolSharing(state, None, bytes, bytes, 1, lambda pool: None, "MemFree")


def test_no_interrupt_ends_a_block_or_its_pool_twice(vendor, sharing, at_point):
    """And the pool never goes before the block."""
    number, left = 0, 0
    while left <= 0:
        number += 1
        vendor.ended.clear()
        ptr = sharing.pool_open(3, bytes(IPC_HANDLE_BYTES))
        with at_point(number, lambda code: code.co_filename in FILES) as point:
            sharing.pool_close(ptr)
        left = point.left
        sharing.pool_close(ptr)
        assert vendor.ended == [4096, 16][: len(vendor.ended)], point.where
        assert not sharing.imported
    assert number > 5


@pytest.mark.parametrize("name", ["MemFree", "MemPoolDestroy"])
def test_what_fails_is_not_ended_again(vendor, sharing, name):
    vendor.statuses[name] = 1
    ptr = sharing.pool_open(3, bytes(IPC_HANDLE_BYTES))
    with pytest.raises(BackendError, match=name):
        sharing.pool_close(ptr)
    sharing.pool_close(ptr)
    assert vendor.ended == [4096, 16]
