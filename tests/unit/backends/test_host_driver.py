"""The host driver's contract: what it does, and what it refuses."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from waits import patience, together

from devmem.backends.host import hooks
from devmem.backends.host.driver import HostDriver
from devmem.spi import SPI_VERSION
from devmem.spi.driver import PROTOCOLS
from devmem.spi.errors import BackendError, ConfigError, OutOfMemory
from devmem.spi.types import LEGACY_STREAM, AllocFlags, Box, CopyKind, MemoryKind

H2D, D2H, D2D = CopyKind.H2D, CopyKind.D2H, CopyKind.D2D
S = LEGACY_STREAM
linux = pytest.mark.skipif(sys.platform != "linux", reason="strict memory needs Linux")


@pytest.fixture
def driver():
    driver = HostDriver(0, strict=True, devices=1)
    token = driver.enter()
    yield driver
    driver.exit(token)
    driver.close()


@pytest.fixture
def relaxed():
    driver = HostDriver(0, strict=False, devices=1)
    token = driver.enter()
    yield driver
    driver.exit(token)
    driver.close()


def refused(name):
    return pytest.raises(BackendError, match=f"{name}\\)$")


def read(driver, ptr, nbytes):
    out = ctypes.create_string_buffer(nbytes)
    driver.copy(ctypes.addressof(out), ptr, nbytes, D2H, S, blocking=True)
    return out.raw


def write(driver, ptr, data):
    source = ctypes.create_string_buffer(data, len(data))
    driver.copy(ptr, ctypes.addressof(source), len(data), H2D, S, blocking=True)


def run_program(body):
    program = (
        "import ctypes, os, sys\n"
        "from devmem.backends.host.driver import HostDriver\n"
        "from devmem.spi.types import *\n"
        "d = HostDriver(0, strict=True, devices=1)\n"
        "d.enter()\n" + body
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(140), check=False
    )


class TestBackend:
    def test_the_hook_gives_the_host_backend(self):
        (backend,) = hooks.devmem_backends()
        assert backend.name == "host"
        assert backend.spi_version == SPI_VERSION
        assert backend.unavailable() is None
        assert backend.device_count() == 1

    def test_finding_it_imports_nothing(self):
        program = (
            "import sys; import devmem.spi.driver; before = set(sys.modules)\n"
            "from devmem.backends.host import hooks as h; h.devmem_backends()[0].device_count()\n"
            "print(sorted(set(sys.modules) - before))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(140), check=True
        )
        assert "numpy" not in done.stdout
        assert "driver" not in done.stdout

    def test_options_set_devices_and_strictness(self):
        backend = hooks.HostBackend()
        backend.configure({"strict": True, "devices": 3})
        assert backend.device_count() == 3
        driver = backend.open(2)
        assert driver.info.ordinal == 2
        assert driver.info.facts["strict"] is (sys.platform == "linux")
        driver.close()
        with refused("INVALID_DEVICE"):
            backend.open(3)

    @pytest.mark.parametrize("options", [{"strict": 1}, {"devices": 0}, {"devices": True}, {"devices": "2"}, {"x": 1}])
    def test_wrong_options_change_nothing(self, options):
        backend = hooks.HostBackend()
        with pytest.raises(ConfigError):
            backend.configure(options)
        assert backend.device_count() == 1


def test_it_is_what_it_says(driver):
    info = driver.info
    assert info.backend == "host"
    assert info.total_bytes == driver.memory_info()[1]
    assert info.memory_kinds == set(MemoryKind)
    for capability in info.capabilities:
        assert isinstance(driver, PROTOCOLS[capability])
    again = HostDriver(0, strict=False, devices=2)
    other = HostDriver(1, strict=False, devices=2)
    assert again.info.uuid == info.uuid != other.info.uuid
    again.close()
    other.close()


class TestContext:
    def calls(self, driver):
        ptr = 1 << 20
        return {
            "alloc": lambda: driver.alloc(1, S),
            "free": lambda: driver.free(ptr, 1, S),
            "copy": lambda: driver.copy(ptr, ptr, 1, H2D, S, blocking=True),
            "copy_strided": lambda: driver.copy_strided(Box(ptr, 1, 1, ptr, 1, 1, 1, 1, 1), H2D, S, blocking=True),
            "fill": lambda: driver.fill(ptr, 0, 1, 1, S),
            "memory_info": driver.memory_info,
            "stream_create": lambda: driver.stream_create(0, False),
            "stream_destroy": lambda: driver.stream_destroy(S),
            "stream_synchronize": lambda: driver.stream_synchronize(S),
            "stream_query": lambda: driver.stream_query(S),
            "stream_wait": lambda: driver.stream_wait(S, 1),
            "event_create": lambda: driver.event_create(False),
            "event_destroy": lambda: driver.event_destroy(1),
            "event_record": lambda: driver.event_record(1, S),
            "event_query": lambda: driver.event_query(1),
            "event_synchronize": lambda: driver.event_synchronize(1),
            "event_elapsed": lambda: driver.event_elapsed(1, 1),
            "synchronize": driver.synchronize,
            "alloc_async": lambda: driver.alloc_async(1, S),
            "free_async": lambda: driver.free_async(ptr, 1, S),
            "pool_cached": driver.pool_cached,
            "pool_trim": lambda: driver.pool_trim(0),
            "pool_threshold": lambda: driver.pool_threshold(0),
            "host_register": lambda: driver.host_register(4096, 4096, False),
            "host_unregister": lambda: driver.host_unregister(4096, 4096),
            "device_pointer": lambda: driver.device_pointer(1),
            "prefetch": lambda: driver.prefetch(ptr, 1, True, S),
            "advise": lambda: driver.advise(ptr, 1, "set_read_mostly", True),
            "can_access": lambda: driver.can_access(1),
            "copy_peer": lambda: driver.copy_peer(ptr, 0, ptr, 0, 1, S, blocking=True),
            "hold": lambda: driver.hold(S),
            "release": lambda: driver.release(1),
        }

    def test_every_call_needs_it(self):
        driver = HostDriver(0, strict=True, devices=1)
        for call, make in self.calls(driver).items():
            with refused("INVALID_CONTEXT") as caught:
                make()
            assert caught.value.call == call
        driver.close()

    def test_every_call_needs_an_open_device(self, driver):
        driver.close()
        for call, make in {**self.calls(driver), "enter": driver.enter}.items():
            with refused("DEVICE_CLOSED") as caught:
                make()
            assert caught.value.call == call
        driver.close()

    def test_is_the_threads_own(self, driver):
        with pytest.raises(BackendError) as caught:
            together(lambda: driver.alloc(1, S))
        assert caught.value.name == "INVALID_CONTEXT"

    def test_entered_devices_nest(self):
        one, two = HostDriver(0, strict=True, devices=2), HostDriver(1, strict=True, devices=2)
        outer = one.enter()
        inner = two.enter()
        again = two.enter()
        two.synchronize()
        with refused("INVALID_CONTEXT"):
            one.synchronize()
        two.exit(again)
        two.synchronize()
        two.exit(inner)
        one.synchronize()
        with refused("INVALID_CONTEXT"):
            two.synchronize()
        one.exit(outer)
        with refused("INVALID_CONTEXT"):
            one.synchronize()
        one.close()
        two.close()

    def test_a_device_can_be_opened_again(self, driver):
        ptr = driver.alloc(100, S)
        driver.close()
        again = HostDriver(0, strict=True, devices=1)
        token = again.enter()
        with refused("INVALID_ADDRESS"):
            again.free(ptr, 100, S)
        write(again, again.alloc(4, S), b"abcd")
        again.exit(token)
        again.close()


class TestMemory:
    @pytest.mark.parametrize("kind", MemoryKind)
    def test_free_wants_kind_base_and_size(self, driver, kind):
        ptr = driver.alloc(1000, S, kind, AllocFlags.PORTABLE | AllocFlags.FINE)
        other = MemoryKind.PINNED if kind is not MemoryKind.PINNED else MemoryKind.DEVICE
        with refused("INVALID_ADDRESS"):
            driver.free(ptr, 1000, S, other)
        with refused("INVALID_ADDRESS"):
            driver.free(ptr + 256, 744, S, kind)
        with refused("INVALID_VALUE"):
            driver.free(ptr, 999, S, kind)
        driver.free(ptr, 1000, S, kind)
        with refused("INVALID_ADDRESS"):
            driver.free(ptr, 1000, S, kind)
        assert driver.live_counts()[:2] == (0, 0)

    def test_no_bytes_are_address_zero(self, driver):
        assert driver.alloc(0, S) == driver.alloc_async(0, S) == 0
        driver.free(0, 0, S)
        driver.free_async(0, 0, S)
        assert driver.live_counts()[:2] == (0, 0)

    def test_less_than_nothing_is_not_a_size(self, driver):
        with refused("INVALID_VALUE"):
            driver.alloc(-1, S)

    def test_an_unknown_kind_is_refused(self, driver):
        with refused("INVALID_VALUE"):
            driver.alloc(1, S, "texture")

    def test_out_of_memory_names_the_request_and_takes_nothing(self, driver):
        free, total = driver.memory_info()
        with pytest.raises(OutOfMemory) as caught:
            driver.alloc(total + 1, S)
        assert f"{total + 1:,}" in str(caught.value)
        assert driver.memory_info() == (free, total)
        assert driver.live_counts() == (0, 0, 0, 0)

    def test_live_counts_count_what_is_live(self, driver):
        ptr = driver.alloc(1000, S)
        pinned = driver.alloc(24, S, MemoryKind.PINNED)
        stream, event = driver.stream_create(0, True), driver.event_create(True)
        assert driver.live_counts() == (1024, 2, 1, 1)
        driver.free(ptr, 1000, S)
        driver.free(pinned, 24, S, MemoryKind.PINNED)
        driver.stream_destroy(stream)
        driver.event_destroy(event)
        assert driver.live_counts() == (0, 0, 0, 0)
        assert driver.memory_info()[0] == driver.memory_info()[1]

    @linux
    @pytest.mark.parametrize("kind", ["DEVICE", "MAPPED"])
    def test_touching_device_memory_crashes(self, kind):
        done = run_program(
            f"ptr = d.alloc(100, 1, MemoryKind.{kind})\n"
            f"if {kind!r} == 'MAPPED': ptr = d.device_pointer(ptr)\n"
            "print('here', flush=True)\n"
            "ctypes.string_at(ptr, 1)"
        )
        assert done.stdout == "here\n"
        assert done.returncode == -signal.SIGSEGV

    @pytest.mark.parametrize("kind", [MemoryKind.PINNED, MemoryKind.MAPPED, MemoryKind.MANAGED])
    def test_host_kinds_are_the_hosts(self, driver, kind):
        ptr = driver.alloc(16, S, kind)
        ctypes.memmove(ptr, b"0123456789abcdef", 16)
        dev = driver.alloc(16, S)
        driver.copy(dev, ptr, 16, H2D, S, blocking=True)
        assert read(driver, dev, 16) == b"0123456789abcdef"
        driver.fill(dev, 0x41, 1, 16, S)
        assert driver.copy(ptr, dev, 16, D2H, S, blocking=False) is True
        driver.synchronize()
        assert ctypes.string_at(ptr, 16) == b"A" * 16
        driver.free(ptr, 16, S, kind)
        with refused("INVALID_ADDRESS"):
            driver.copy(dev, ptr, 16, H2D, S, blocking=True)

    def test_mapped_memory_has_two_addresses(self, driver):
        host = driver.alloc(1000, S, MemoryKind.MAPPED)
        ptr = driver.device_pointer(host)
        assert (ptr != host) is driver.info.facts["strict"]
        assert driver.device_pointer(host + 999) == ptr + 999
        driver.fill(ptr + 10, 0x42, 1, 5, S)
        assert ctypes.string_at(host + 9, 7) == b"\0BBBBB\0"
        with refused("INVALID_VALUE"):
            driver.device_pointer(host + 1000)

    @linux
    def test_mapped_sides_are_not_mixed_up(self, driver):
        host = driver.alloc(16, S, MemoryKind.MAPPED)
        dev = driver.alloc(16, S)
        with refused("INVALID_ADDRESS"):
            driver.copy(dev, driver.device_pointer(host), 16, H2D, S, blocking=True)
        with refused("INVALID_ADDRESS"):
            driver.copy(dev, host, 16, D2D, S, blocking=True)

    def test_pinned_memory_has_no_device_address(self, driver):
        with refused("INVALID_VALUE"):
            driver.device_pointer(driver.alloc(16, S, MemoryKind.PINNED))

    def test_managed_memory_is_both_sides(self, driver):
        ptr = driver.alloc(16, S, MemoryKind.MANAGED)
        assert driver.device_pointer(ptr) == ptr
        driver.fill(ptr, 0x43, 1, 16, S)
        assert ctypes.string_at(ptr, 16) == b"C" * 16
        driver.prefetch(ptr, 16, False, S)
        driver.advise(ptr, 16, "set_read_mostly", False)
        driver.advise(ptr, 16, "unset_accessed_by", True)
        with refused("INVALID_VALUE"):
            driver.advise(ptr, 16, "set_fast", False)
        with refused("INVALID_VALUE"):
            driver.prefetch(ptr, 17, False, S)
        with refused("INVALID_VALUE"):
            driver.advise(driver.alloc(16, S), 16, "set_read_mostly", False)

    def test_readable_blocks_outlive_their_device(self):
        driver = HostDriver(0, strict=True, devices=1)
        token = driver.enter()
        pinned = driver.alloc(16, S, MemoryKind.PINNED)
        mapped = driver.alloc(16, S, MemoryKind.MAPPED)
        driver.exit(token)
        driver.close()
        del driver
        for ptr in (pinned, mapped):
            ctypes.memset(ptr, 1, 16)
            assert ctypes.string_at(ptr, 16) == b"\1" * 16


class TestCopy:
    def test_bytes_come_back_by_way_of_two_blocks(self, driver):
        for nbytes in (1, 3, 128, 4097, 70_000, 3 << 20):
            data = os.urandom(nbytes)
            a, b = driver.alloc(nbytes, S), driver.alloc(nbytes, S)
            write(driver, a, data)
            assert driver.copy(b, a, nbytes, D2D, S, blocking=True) is False
            assert read(driver, b, nbytes) == data

    def test_addresses_inside_a_block_are_taken(self, driver):
        ptr = driver.alloc(100, S)
        driver.fill(ptr, 0x2E, 1, 100, S)
        write(driver, ptr + 33, b"middle")
        assert read(driver, ptr + 32, 8) == b".middle."

    @pytest.mark.parametrize("nbytes", [0, -1])
    def test_a_copy_of_no_bytes_is_refused(self, driver, nbytes):
        ptr = driver.alloc(8, S)
        with refused("INVALID_VALUE"):
            driver.copy(ptr, 1 << 20, nbytes, H2D, S, blocking=True)

    def test_null_addresses_are_refused(self, driver):
        ptr = driver.alloc(8, S)
        for dst, src, kind in ((ptr, 0, H2D), (0, ptr, D2H), (0, 1 << 20, H2D), (0, ptr, D2D)):
            with refused("INVALID_VALUE"):
                driver.copy(dst, src, 8, kind, S, blocking=True)

    def test_an_unknown_kind_is_refused(self, driver):
        with refused("INVALID_VALUE"):
            driver.copy(1, 1, 1, "h2h", S, blocking=True)

    @pytest.mark.parametrize("blocking", [True, False])
    def test_device_addresses_must_lie_in_one_block(self, driver, blocking):
        host = ctypes.addressof(buffer := ctypes.create_string_buffer(4096))
        ptr = driver.alloc(256, S)
        after = driver.alloc(256, S)
        assert after == ptr + 256
        for bad, nbytes in ((ptr + 1, 256), (ptr, 257), (ptr - 1, 4), (host, 4), (after + 256, 1)):
            with refused("INVALID_ADDRESS"):
                driver.copy(bad, host, nbytes, H2D, S, blocking=blocking)
            with refused("INVALID_ADDRESS"):
                driver.copy(host, bad, nbytes, D2H, S, blocking=blocking)
            with refused("INVALID_ADDRESS"):
                driver.fill(bad, 0, 1, nbytes, S)
        driver.free(ptr, 256, S)
        with refused("INVALID_ADDRESS"):
            driver.copy(ptr, host, 4, H2D, S, blocking=blocking)
        assert buffer.raw == bytes(4096)

    @linux
    def test_device_memory_is_no_host_side(self, driver):
        a, b = driver.alloc(256, S), driver.alloc(256, S)
        with refused("INVALID_ADDRESS"):
            driver.copy(a, b, 4, H2D, S, blocking=True)
        with refused("INVALID_ADDRESS"):
            driver.copy(b, a, 4, D2H, S, blocking=True)

    def test_overlapping_copies_are_refused(self, driver):
        ptr = driver.alloc(256, S)
        for dst, src in ((ptr, ptr), (ptr, ptr + 10), (ptr + 15, ptr)):
            with refused("INVALID_VALUE"):
                driver.copy(dst, src, 16, D2D, S, blocking=True)
        driver.copy(ptr, ptr + 16, 16, D2D, S, blocking=True)

    def test_a_refused_call_does_nothing(self, driver):
        ptr = driver.alloc(16, S)
        write(driver, ptr, b"A" * 16)
        with refused("INVALID_ADDRESS"):
            driver.fill(ptr, 0, 1, 17, S)
        assert read(driver, ptr, 16) == b"A" * 16


class TestFill:
    @pytest.mark.parametrize("count", [1, 3, 100_000])
    @pytest.mark.parametrize(("width", "value"), [(1, 0xAB), (2, 0xABCD), (4, 0x01020304), (4, 0xFFFFFFFF), (2, 0)])
    def test_fills_of_every_width_touch_only_their_elements(self, driver, width, value, count):
        ptr = driver.alloc(width * count + 8, S)
        driver.fill(ptr, 0x77, 1, width * count + 8, S)
        driver.fill(ptr + 4, value, width, count, S)
        expected = b"\x77" * 4 + value.to_bytes(width, sys.byteorder) * count + b"\x77" * 4
        assert read(driver, ptr, width * count + 8) == expected

    @pytest.mark.parametrize(
        ("offset", "value", "width", "count"),
        [(0, 0, 3, 1), (0, 0, 8, 1), (0, 256, 1, 1), (0, -1, 4, 1), (1, 0, 2, 1), (2, 0, 4, 1), (0, 0, 1, 0)],
    )
    def test_bad_fills_are_refused(self, driver, offset, value, width, count):
        ptr = driver.alloc(64, S)
        with refused("INVALID_VALUE"):
            driver.fill(ptr + offset, value, width, count, S)


def box(dst, dst_pitch, src, src_pitch, width, height):
    """Rows, in one slice."""
    return Box(dst, dst_pitch, height, src, src_pitch, height, width, height, 1)


class TestCopyStrided:
    @pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 16, 33, 1000])
    @pytest.mark.parametrize("blocking", [True, False])
    def test_copies_of_rows_agree_with_numpy(self, driver, width, blocking):
        rows, host_pitch, pitch = 50, width + 5, width + 3
        source = np.random.default_rng(width).integers(0, 256, (rows, host_pitch), np.uint8)
        ptr, twin = driver.alloc(rows * pitch, S), driver.alloc(rows * width, S)
        driver.fill(ptr, 0, 1, rows * pitch, S)
        up = box(ptr, pitch, source.ctypes.data + 2, host_pitch, width, rows)
        assert driver.copy_strided(up, H2D, S, blocking=blocking) is False
        driver.copy_strided(box(twin, width, ptr, pitch, width, rows), D2D, S, blocking=blocking)
        back = np.zeros((rows, host_pitch), np.uint8)
        down = box(back.ctypes.data + 1, host_pitch, twin, width, width, rows)
        assert driver.copy_strided(down, D2H, S, blocking=blocking) is False
        assert (back[:, 1 : width + 1] == source[:, 2 : width + 2]).all()
        assert not back[:, 0].any()
        assert not back[:, width + 1 :].any()

    def test_order_and_snapshot(self, driver):
        stream = driver.stream_create(0, True)
        ptr = driver.alloc(8, stream)
        source = np.arange(16, dtype=np.uint8)
        hold = driver.hold(stream)
        driver.fill(ptr, 0xFF, 1, 8, stream)
        assert driver.copy_strided(box(ptr, 4, source.ctypes.data, 8, 2, 2), H2D, stream, blocking=False) is False
        source[:] = 0
        driver.release(hold)
        driver.stream_synchronize(stream)
        assert read(driver, ptr, 8) == bytes([0, 1, 255, 255, 8, 9, 255, 255])

    def test_pinned_is_read_later(self, driver):
        pinned = driver.alloc(16, S, MemoryKind.PINNED)
        ptr = driver.alloc(4, S)
        hold = driver.hold(S)
        assert driver.copy_strided(box(ptr, 2, pinned, 8, 2, 2), H2D, S, blocking=False) is True
        ctypes.memmove(pinned, bytes(range(16)), 16)
        driver.release(hold)
        assert read(driver, ptr, 4) == bytes([0, 1, 8, 9])

    def test_bad_pitches_are_refused(self, driver):
        host = np.zeros(100, np.uint8).ctypes.data
        ptr = driver.alloc(100, S)
        for dst_pitch, src_pitch, width, height in ((9, 10, 10, 10), (10, 9, 10, 10), (10, 10, 0, 1), (10, 10, 1, 0)):
            with refused("INVALID_VALUE"):
                driver.copy_strided(box(ptr, dst_pitch, host, src_pitch, width, height), H2D, S, blocking=True)
        driver.copy_strided(box(ptr, 11, host, 10, 1, 10), H2D, S, blocking=True)
        with refused("INVALID_ADDRESS"):
            driver.copy_strided(box(ptr, 11, host, 10, 2, 10), H2D, S, blocking=True)
        with refused("INVALID_VALUE"):
            driver.copy_strided(box(ptr, 10, ptr + 9, 10, 5, 5), D2D, S, blocking=True)


class TestRegistration:
    PAGE = mmap.PAGESIZE

    @pytest.fixture
    def pages(self):
        memory = np.zeros(10 * self.PAGE, np.uint8)
        start = -(-memory.ctypes.data // self.PAGE) * self.PAGE
        yield start
        del memory

    def test_counts_as_pinned(self, driver, pages):
        ptr = driver.alloc(8, S)
        driver.host_register(pages, 2 * self.PAGE, False)
        hold = driver.hold(S)
        assert driver.copy(ptr, pages + 100, 8, H2D, S, blocking=False) is True
        ctypes.memmove(pages + 100, b"afterall", 8)
        driver.release(hold)
        assert read(driver, ptr, 8) == b"afterall"
        driver.host_unregister(pages, 2 * self.PAGE)
        assert driver.copy(ptr, pages + 100, 8, H2D, S, blocking=False) is False

    def test_overlapping_registrations_are_refused(self, driver, pages):
        page = self.PAGE
        driver.host_register(pages + 2 * page, 2 * page, False)
        for first, count in ((2, 2), (2, 1), (3, 1), (1, 2), (3, 3), (0, 6)):
            with refused("HOST_MEMORY_ALREADY_REGISTERED"):
                driver.host_register(pages + first * page, count * page, False)
        driver.host_register(pages, 2 * page, False)
        driver.host_register(pages + 4 * page, page, False)
        driver.host_unregister(pages + 2 * page, 2 * page)
        driver.host_register(pages + 3 * page, page, False)

    def test_unregister_wants_the_range(self, driver, pages):
        page = self.PAGE
        driver.host_register(pages, 2 * page, False)
        for ptr, nbytes in ((pages + page, page), (pages, page), (pages + 5 * page, page)):
            with refused("HOST_MEMORY_NOT_REGISTERED"):
                driver.host_unregister(ptr, nbytes)
        driver.host_unregister(pages, 2 * page)
        with refused("HOST_MEMORY_NOT_REGISTERED"):
            driver.host_unregister(pages, 2 * page)

    def test_one_device_for_all(self, pages):
        """Locked for every device; undone by the one that did it, at the latest at its end."""
        one, other = HostDriver(0, strict=True, devices=2), HostDriver(1, strict=True, devices=2)

        def within(driver, call, *arguments, **keywords):
            token = driver.enter()
            try:
                return getattr(driver, call)(*arguments, **keywords)
            finally:
                driver.exit(token)

        try:
            within(one, "host_register", pages, 2 * self.PAGE, True)
            with refused("HOST_MEMORY_ALREADY_REGISTERED"):
                within(other, "host_register", pages + self.PAGE, self.PAGE, False)
            with refused("HOST_MEMORY_NOT_REGISTERED"):
                within(other, "host_unregister", pages, 2 * self.PAGE)
            ptr = within(other, "alloc", 8, S)
            assert within(other, "copy", ptr, pages, 8, H2D, S, blocking=False) is True
            within(other, "synchronize")
            assert within(other, "device_pointer", pages) == within(one, "device_pointer", pages)
            one.close()
            with refused("INVALID_VALUE"):
                within(other, "device_pointer", pages)
            within(other, "host_register", pages, 2 * self.PAGE, False)
            with refused("INVALID_VALUE"):
                within(other, "device_pointer", pages)
            within(other, "host_unregister", pages, 2 * self.PAGE)
        finally:
            one.close()
            other.close()

    def test_only_whole_pages_are_registered(self, driver, pages):
        for ptr, nbytes in ((pages + 1, self.PAGE), (pages, self.PAGE - 1), (0, self.PAGE), (pages, 0)):
            with refused("INVALID_VALUE"):
                driver.host_register(ptr, nbytes, False)

    @linux
    def test_device_memory_is_not_the_hosts_to_register(self, driver):
        ptr = driver.alloc(1 << 20, S)
        with refused("INVALID_VALUE"):
            driver.host_register(ptr, self.PAGE, False)
        pinned = driver.alloc(1 << 20, S, MemoryKind.PINNED)
        with refused("HOST_MEMORY_ALREADY_REGISTERED"):
            driver.host_register(pinned, self.PAGE, False)

    def test_mapped_pages_have_a_device_address(self, driver, pages):
        page = self.PAGE
        driver.host_register(pages, 2 * page, True)
        ptr = driver.device_pointer(pages)
        assert driver.device_pointer(pages + page + 7) == ptr + page + 7
        driver.fill(ptr + 5, 0x44, 1, 3, S)
        assert ctypes.string_at(pages + 4, 5) == b"\0DDD\0"
        driver.host_unregister(pages, 2 * page)
        with refused("INVALID_VALUE"):
            driver.device_pointer(pages)
        if driver.info.facts["strict"]:
            with refused("INVALID_ADDRESS"):
                driver.fill(ptr, 0, 1, 1, S)

    @linux
    def test_device_pointer_is_not_the_hosts(self, driver, pages):
        driver.host_register(pages, self.PAGE, True)
        with refused("INVALID_ADDRESS"):
            driver.copy(driver.alloc(8, S), driver.device_pointer(pages), 8, H2D, S, blocking=True)

    def test_unregister_waits_for_copies(self, driver, pages):
        driver.host_register(pages, self.PAGE, False)
        hold = driver.hold(S)
        driver.copy(driver.alloc(8, S), pages, 8, H2D, S, blocking=False)
        ended = threading.Event()

        def unregister():
            token = driver.enter()
            driver.host_unregister(pages, self.PAGE)
            driver.exit(token)
            ended.set()

        threading.Thread(target=unregister, daemon=True).start()
        assert not ended.is_set()
        driver.release(hold)
        assert ended.wait(patience())


class TestPeer:
    @pytest.fixture
    def pair(self):
        pair = [HostDriver(ordinal, strict=True, devices=2) for ordinal in range(2)]
        ptrs = []
        for device in pair:
            token = device.enter()
            ptrs.append(device.alloc(8, S))
            device.fill(ptrs[-1], 0x30 + len(ptrs), 1, 8, S)
            device.exit(token)
        token = pair[0].enter()
        yield *pair, *ptrs
        pair[0].exit(token)
        for device in pair:
            device.close()

    def test_peer_copies_move_bytes_between_devices(self, pair):
        one, _, a, b = pair
        assert one.can_access(1)
        assert not one.can_access(0)
        assert not one.can_access(2)
        one.copy_peer(a, 0, b, 1, 8, S, blocking=True)
        assert read(one, a, 8) == b"2" * 8

    def test_bad_peer_copies_are_refused(self, pair):
        one, two, a, b = pair
        with refused("INVALID_ADDRESS"):
            one.copy_peer(a, 1, b, 0, 8, S, blocking=True)
        with refused("INVALID_ADDRESS"):
            one.copy_peer(a, 0, b, 1, 9, S, blocking=True)
        with refused("INVALID_VALUE"):
            one.copy_peer(a, 0, b, 1, 0, S, blocking=True)
        with refused("INVALID_DEVICE"):
            one.copy_peer(a, 0, b, 7, 8, S, blocking=True)
        two.close()
        with refused("INVALID_(DEVICE|ADDRESS)"):  # by whether the device is open elsewhere
            one.copy_peer(a, 0, b, 1, 8, S, blocking=True)

    def test_the_other_device_waits_before_it_frees(self, pair):
        one, two, a, b = pair
        hold = one.hold(S)
        one.copy_peer(a, 0, b, 1, 8, S, blocking=False)
        ended = threading.Event()

        def free():
            token = two.enter()
            two.free(b, 8, S)
            two.exit(token)
            ended.set()

        threading.Thread(target=free, daemon=True).start()
        assert not ended.is_set()
        one.release(hold)
        assert ended.wait(patience())
        assert read(one, a, 8) == b"2" * 8

    def test_a_device_may_close_under_a_copy(self, pair):
        one, two, a, b = pair
        hold = one.hold(S)
        one.copy_peer(a, 0, b, 1, 8, S, blocking=False)
        two.close()
        one.release(hold)
        one.synchronize()


class TestNotStrict:
    def test_memory_is_readable(self, relaxed):
        ptr = relaxed.alloc(8, S)
        relaxed.fill(ptr, 0x45, 1, 8, S)
        assert ctypes.string_at(ptr, 8) == b"E" * 8
        assert relaxed.info.facts["strict"] is False

    def test_host_memory_can_be_device_memory(self, relaxed):
        array = np.zeros(8, np.uint8)
        relaxed.fill(array.ctypes.data, 0x46, 1, 8, S)
        assert array.tobytes() == b"F" * 8
        assert read(relaxed, array.ctypes.data, 8) == b"F" * 8

    def test_its_own_memory_is_still_checked(self, relaxed):
        ptr = relaxed.alloc(256, S)
        with refused("INVALID_ADDRESS"):
            relaxed.fill(ptr, 0, 1, 257, S)
        relaxed.free(ptr, 256, S)
        with refused("INVALID_ADDRESS"):
            relaxed.fill(ptr, 0, 1, 1, S)

    def test_mapped_memory_has_one_address(self, relaxed):
        host = relaxed.alloc(8, S, MemoryKind.MAPPED)
        ptr = relaxed.device_pointer(host)
        relaxed.fill(ptr, 0x47, 1, 8, S)
        assert ctypes.string_at(host, 8) == ctypes.string_at(ptr, 8) == b"G" * 8


class TestExit:
    HELD = (
        "n = 1 << 20\n"
        "p = d.alloc(n, 1)\n"
        "h = d.alloc(n, 1, MemoryKind.PINNED)\n"
        "s = d.stream_create(0, True)\n"
        "d.copy(p, h, n, CopyKind.H2D, s, blocking=False)\n"
        "d.hold(s)\n"
        "d.copy(p, h, n, CopyKind.H2D, s, blocking=False)\n"
    )

    def check(self, done, stdout="end\n"):
        assert (done.returncode, done.stdout, done.stderr) == (0, stdout, "")

    def test_with_held_and_running_copies(self):
        self.check(run_program(self.HELD + "print('end')"))

    def test_with_large_copies_running(self):
        self.check(
            run_program(
                "n = 256 << 20\n"
                "p, h = d.alloc(n, 1), d.alloc(n, 1, MemoryKind.PINNED)\n"
                "for _ in range(20): d.copy(p, h, n, CopyKind.H2D, 1, blocking=False)\n"
                "print('end')"
            )
        )

    def test_a_held_stream_ends_with_the_process_after_close(self):
        self.check(run_program(self.HELD + "d.close()\nprint('end')"))

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_of_a_forked_child(self):
        body = (
            "import warnings; warnings.simplefilter('ignore')\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    e = HostDriver(0, strict=True, devices=1)\n"
            "    e.enter()\n"
            "    q = e.alloc(8, 1)\n"
            "    e.release(e.hold(1)); e.synchronize()\n"
            "    e.fill(q, 1, 1, 8, 1)\n"
            "    sys.exit(7)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
            "print('end')"
        )
        self.check(run_program(self.HELD + body))
