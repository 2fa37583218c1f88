"""Virtual memory, as a driver's part makes it and gives it back in steps."""

from __future__ import annotations

import pytest

from devmem.spi.errors import BackendError, LayoutError
from devmem.toolkit import memory, vendor_functions, virtual
from devmem.toolkit.driver_parts import DriverState
from devmem.toolkit.handles import Handles
from devmem.toolkit.vendor_functions import RelaxedCapture, StatusErrors, VendorFunctions, checked, recorded
from devmem.toolkit.virtual import VirtualMemory

FILES = memory.__file__, vendor_functions.__file__, virtual.__file__
UNIT = 1 << 21


class Vendor:
    """A library that counts what is out, and fails where it is told to."""

    def __init__(self):
        self.out, self.failing = [], ""

    def __getattr__(self, name):
        def call(*arguments):
            if name == self.failing:
                return (1,)
            if name == "MemGetAllocationGranularity":
                return 0, UNIT
            if name in ("MemCreate", "MemImportFromShareableHandle"):
                self.out.append("memory")
                return 0, 16
            if name == "MemAddressReserve":
                self.out.append("addresses")
                return 0, 4 * UNIT
            if name == "MemMap":
                self.out.append("mapping")
            ended = {"MemUnmap": "mapping", "MemAddressFree": "addresses", "MemRelease": "memory"}
            if name in ended:
                self.out.remove(ended[name])  # ValueError where it is ended twice
            return (0,)

        return call


class Memory(VirtualMemory):
    """The part, for numbers as they are."""

    place = 0

    def _properties(self, kind):
        return kind

    def _access(self):
        return ()

    def _place(self, handle):
        return self.place

    def _export(self, handle, kind):
        return bytes(64) if kind == virtual.FABRIC else handle

    def _import(self, given, kind):
        return self._functions.MemImportFromShareableHandle(given, kind)


@pytest.fixture
def vendor():
    return Vendor()


@pytest.fixture
def part(vendor):
    errors = StatusErrors("vendor", lambda status: ("BAD", "it is bad"), ())

    def bound(form):
        return lambda name: form(name, getattr(vendor, name), errors.fail, int)

    functions = VendorFunctions("", bound(checked), bound(recorded))
    return Memory(DriverState(0, functions, errors, RelaxedCapture(None), Handles(int), Handles(int)))


@pytest.mark.parametrize("make", ["virtual_alloc", "virtual_open"])
def test_what_the_table_has_is_whole_behind_an_interrupt(vendor, part, make, at_point):
    """Nothing is ended twice, and what is in the table can be used, and freed when the driver is closed."""
    number, left = 0, 0
    while left <= 0:
        number += 1
        vendor.out.clear()
        with at_point(number, lambda code: code.co_filename in FILES) as point:
            getattr(part, make)(3, UNIT)
        left = point.left
        for ptr in [each.start for each in part.mapped.ranges]:
            assert part.virtual_range(ptr) == (ptr, UNIT), point.where
            assert sorted(vendor.out) == ["addresses", "mapping", "memory"], point.where
            with at_point(number, lambda code: code.co_filename in FILES) as point:
                part.virtual_free(ptr, UNIT, 1)
            left = min(left, point.left)
            if part.virtual_range(ptr) is not None:
                part.virtual_free(ptr, UNIT, 1)
        assert part.virtual_range(4 * UNIT) is None, point.where
    assert number > 20


@pytest.mark.parametrize("name", ["MemCreate", "MemAddressReserve", "MemMap", "MemSetAccess"])
def test_what_fails_leaves_nothing(vendor, part, name):
    vendor.failing = name
    with pytest.raises(BackendError, match=name):
        part.virtual_alloc(3, 1)
    assert not vendor.out and part.virtual_range(4 * UNIT) is None
    vendor.failing = ""
    assert part.virtual_range(part.virtual_alloc(UNIT + 1, 1)) == (4 * UNIT, 2 * UNIT)


def test_memory_of_another_device_is_not_opened(vendor, part):
    part.place = 1
    with pytest.raises(LayoutError, match="of device 1, not of 0"):
        part.virtual_open(3, UNIT)
    assert not vendor.out


def test_what_cannot_be_unmapped_is_told_once(vendor, part):
    ptr = part.virtual_alloc(3, 1)
    vendor.failing = "MemUnmap"
    with pytest.raises(BackendError, match="MemUnmap"):
        part.virtual_free(ptr, 3, 1)
    assert not part.is_out(ptr) and part.virtual_range(ptr) is None
    with pytest.raises(BackendError, match="no virtual memory of this device"):
        part.virtual_free(ptr, 3, 1)
