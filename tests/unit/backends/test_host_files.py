"""Files read into the memory of a strict host device and written from it: every byte, or an error and nothing lost."""

from __future__ import annotations

import errno
import os
import sys
import threading

import numpy as np
import pytest
from waits import patience, together

from devmem.backends.host import files as host_files
from devmem.backends.host.driver import HostDriver
from devmem.backends.host.files import HostFiles
from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, CopyKind, MemoryKind

S = LEGACY_STREAM
LATE = patience()
DATA = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)
pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system does not read files at a position")


@pytest.fixture
def driver():
    driver = HostDriver(0, strict=True, devices=1)
    token = driver.enter()
    yield driver
    driver.exit(token)
    driver.close()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Several calls of the system, and several fillings of the buffer."""
    monkeypatch.setattr(host_files, "PART", 3000)
    monkeypatch.setattr(host_files, "BUFFER", 1000)


@pytest.fixture
def path(tmp_path):
    DATA.tofile(tmp_path / "data")
    return str(tmp_path / "data")


def content(driver, ptr, nbytes=DATA.nbytes):
    found = np.empty(nbytes, np.uint8)
    driver.copy(found.ctypes.data, ptr, nbytes, CopyKind.D2H, S, blocking=True)
    return found


def refused(name):
    return pytest.raises(BackendError, match=f"{name}\\)$")


def test_there_and_back(driver, path, tmp_path):
    ptr = driver.alloc(DATA.nbytes, S)
    assert HostFiles().unavailable() is None
    assert HostFiles().read(path, 0, ptr, DATA.nbytes) == DATA.nbytes
    assert np.array_equal(content(driver, ptr), DATA)
    (tmp_path / "out").write_bytes(b"head")
    assert HostFiles().write(str(tmp_path / "out"), 4, ptr, DATA.nbytes) == DATA.nbytes
    assert (tmp_path / "out").read_bytes() == b"head" + DATA.tobytes()


def test_parts_of_a_block_and_of_a_file(driver, path, tmp_path):
    ptr = driver.alloc(DATA.nbytes, S)
    driver.fill(ptr, 9, 1, DATA.nbytes, S)
    assert HostFiles().read(path, 77, ptr + 101, 5003) == 5003
    expected = np.full_like(DATA, 9)
    expected[101 : 101 + 5003] = DATA[77 : 77 + 5003]
    assert np.array_equal(content(driver, ptr), expected)
    (tmp_path / "out").touch()
    assert HostFiles().write(str(tmp_path / "out"), 0, ptr + 50, 4001) == 4001
    assert (tmp_path / "out").read_bytes() == expected[50 : 50 + 4001].tobytes()


@pytest.mark.parametrize("kind", [MemoryKind.MAPPED, MemoryKind.MANAGED])
def test_memory_of_the_host_that_the_device_reaches(driver, path, kind):
    """It lies in no file of the device's."""
    host = driver.alloc(DATA.nbytes, S, kind)
    ptr = driver.device_pointer(host)
    assert HostFiles().read(path, 0, ptr, DATA.nbytes) == DATA.nbytes
    assert np.array_equal(content(driver, ptr), DATA)


@pytest.mark.parametrize("kind", [MemoryKind.DEVICE, MemoryKind.MANAGED])
@pytest.mark.parametrize("length", [0, 500, 3000, 3500])
def test_a_short_file(driver, path, kind, length):
    """What came is told, and what lies behind is as it was."""
    os.truncate(path, length)
    ptr = driver.alloc(DATA.nbytes, S, kind)
    driver.fill(ptr, 9, 1, DATA.nbytes, S)
    assert HostFiles().read(path, 0, ptr, DATA.nbytes) == length
    found = content(driver, ptr)
    assert np.array_equal(found[:length], DATA[:length])
    assert np.all(found[length:] == 9)


def test_addresses_are_checked(driver, path):
    """Nothing is read into, or written from, what is no live memory of the device."""
    ptr, pinned = driver.alloc(DATA.nbytes, S), driver.alloc(DATA.nbytes, S, MemoryKind.PINNED)
    neighbour = driver.alloc(DATA.nbytes, S)
    driver.fill(neighbour, 9, 1, DATA.nbytes, S)
    freed = driver.alloc(DATA.nbytes, S)
    driver.free(freed, DATA.nbytes, S)
    for wrong in (freed, ptr + 1, pinned, DATA.ctypes.data if sys.platform == "linux" else freed):
        for move in (HostFiles().read, HostFiles().write):
            with refused("INVALID_ADDRESS"):
                move(path, 0, wrong, DATA.nbytes + (wrong == ptr + 1) * 1000)
    assert np.all(content(driver, neighbour) == 9)
    assert np.array_equal(np.fromfile(path, np.uint8), DATA)


def test_errors_of_the_system_are_raised_and_lose_no_device(driver, path, tmp_path, monkeypatch):
    ptr = driver.alloc(DATA.nbytes, S)
    for move in (HostFiles().read, HostFiles().write):
        with pytest.raises(FileNotFoundError):
            move(str(tmp_path / "nothing"), 0, ptr, DATA.nbytes)
    with monkeypatch.context() as patch:
        for name, move in (("preadv", HostFiles().read), ("pwrite", HostFiles().write)):
            patch.setattr(os, name, broken)
            with pytest.raises(OSError, match="broken") as told:
                move(path, 0, ptr, DATA.nbytes)
            assert told.value.errno == errno.EIO
    assert HostFiles().read(path, 0, ptr, DATA.nbytes) == DATA.nbytes
    assert np.array_equal(content(driver, ptr), DATA)


def test_work_of_other_streams_is_not_waited_for(driver, path):
    ptr = driver.alloc(DATA.nbytes, S)
    stream = driver.stream_create(0, False)
    hold = driver.hold(stream)
    assert HostFiles().read(path, 0, ptr, DATA.nbytes) == DATA.nbytes
    assert not driver.stream_query(stream)
    driver.release(hold)


def test_memory_that_is_freed_or_closed_meanwhile_stays_until_the_file_was_read(driver, path, monkeypatch):
    """Or its bytes would come into memory that has become another block, or no memory at all."""
    ptr, sound = driver.alloc(DATA.nbytes, S), os.preadv
    freed, ended = threading.Event(), []

    def free():
        token = driver.enter()
        driver.free(ptr, DATA.nbytes, S)
        driver.exit(token)
        freed.set()

    def read(*arguments):
        if not ended:
            thread = threading.Thread(target=free)
            thread.start()
            ended.append(thread)
            while driver._space.device.live:
                pass
        assert not freed.is_set(), "it did not wait"
        return sound(*arguments)

    monkeypatch.setattr(os, "preadv", read)
    assert HostFiles().read(path, 0, ptr, DATA.nbytes) == DATA.nbytes
    assert freed.wait(LATE)
    ended[0].join(patience())


@pytest.mark.skipif(sys.platform != "linux", reason="only there device memory is a file")
def test_a_device_that_is_closed_meanwhile_leaves_its_memory_mapped(path, monkeypatch):
    driver, sound = HostDriver(0, strict=True, devices=1), os.preadv
    token = driver.enter()
    ptr = driver.alloc(DATA.nbytes, S)
    mapping = driver._space.device.mapping

    def read(*arguments):
        driver.close()
        return sound(*arguments)

    monkeypatch.setattr(os, "preadv", read)
    assert HostFiles().read(path, 0, ptr, DATA.nbytes) == DATA.nbytes
    driver.exit(token)
    found = np.empty_like(DATA)
    os.preadv(mapping.file, [found], ptr - mapping.base)
    assert np.array_equal(found, DATA)
    with refused("INVALID_CONTEXT"):
        HostFiles().read(path, 0, ptr, DATA.nbytes)


def test_an_interrupt_leaves_nothing_that_waits(driver, path, monkeypatch):
    ptr, reads, sound = driver.alloc(DATA.nbytes, S), [], os.preadv

    def interrupted(*arguments):
        reads.append(arguments)
        if len(reads) == 3:
            raise KeyboardInterrupt
        return sound(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            HostFiles().read(path, 0, ptr, DATA.nbytes)
    assert np.array_equal(content(driver, ptr)[:2000], DATA[:2000])
    driver.synchronize()
    driver.free(ptr, DATA.nbytes, S)
    assert not driver._engine.foreign


def test_a_handler_may_free_memory_on_the_thread_that_reads(driver, path, monkeypatch):
    """It waits for no call that waits for it, and what it freed becomes no other block before the file was read."""
    ptr, other, sound, calls = driver.alloc(DATA.nbytes, S), driver.alloc(600_000, S), os.preadv, []

    def handled(*arguments):
        if not calls:
            driver.free(other, 600_000, S)
            driver.free(ptr, DATA.nbytes, S)
            driver.synchronize()
            calls.append(driver.alloc(DATA.nbytes, S))
        return sound(*arguments)

    monkeypatch.setattr(os, "preadv", handled)
    assert HostFiles().read(path, 0, ptr, DATA.nbytes) == DATA.nbytes
    assert calls[0] != ptr
    driver.free(calls[0], DATA.nbytes, S)
    assert not driver._space.device.ending


@pytest.mark.parametrize("here", [False, True], ids=["another thread", "a handler"])
def test_memory_that_is_freed_in_a_streams_order_meanwhile(driver, path, monkeypatch, here):
    """What is allocated then lies elsewhere until the file was read; later the memory is taken again."""
    first, sound, calls = driver.alloc_async(3 * DATA.nbytes, S), os.preadv, []

    def free():
        token = driver.enter()
        driver.free_async(first, 3 * DATA.nbytes, S)
        calls.append(driver.alloc_async(3 * DATA.nbytes, S))
        driver.fill(calls[0], 7, 1, 3 * DATA.nbytes, S)
        driver.exit(token)

    def read(*arguments):
        if not calls:
            if here:
                free()
            else:
                together(free)
        return sound(*arguments)

    monkeypatch.setattr(os, "preadv", read)
    assert HostFiles().read(path, 0, first + DATA.nbytes, DATA.nbytes) == DATA.nbytes
    assert np.all(content(driver, calls[0], 3 * DATA.nbytes) == 7)
    assert not driver._space.device.ending
    assert driver.alloc_async(3 * DATA.nbytes, S) == first


def test_no_device_is_current(path):
    with refused("INVALID_CONTEXT"):
        HostFiles().read(path, 0, 1 << 20, 10)


def broken(*_):
    raise OSError(errno.EIO, "broken")
