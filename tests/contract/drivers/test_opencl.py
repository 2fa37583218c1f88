"""The OpenCL backend on the OpenCL device of this machine: the conformance suite, and what this backend has besides."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from waits import patience

import devmem
from devmem.backends.opencl.hooks import OpenCLBackend
from devmem.spi.driver import Backend, Driver
from devmem.spi.errors import BackendError, DeviceLost, OutOfMemory, UnsupportedError
from devmem.spi.types import Box, CopyKind
from devmem.testing import DriverTests, hold
from devmem.toolkit import host_calls

cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from devmem.backends.opencl import driver as opencl_driver  # noqa: E402  # it imports pyopencl
from devmem.backends.opencl.memory import blocks_of  # noqa: E402
from devmem.backends.opencl.runtime import context_of, device  # noqa: E402
from devmem.backends.opencl.unified import unified_kinds  # noqa: E402

ROOT = Path(__file__).parents[3]
#: Whose devices are tested, where there are several runtimes.
PLATFORM = os.environ.get("DEVMEM_OPENCL_PLATFORM", "")


def chosen() -> OpenCLBackend:
    backend = OpenCLBackend()
    backend.configure({"platform": PLATFORM})
    return backend


class TestOpenCL(DriverTests):
    strict = True

    def make_backend(self) -> Backend:
        return chosen()

    @contextmanager
    def foreign_stream(self, driver: Driver) -> Iterator[tuple[object, Callable[[], object]]]:
        queue = cl.CommandQueue(context_of(device(PLATFORM, self.ordinal)))
        yield queue, queue.finish


if chosen().unavailable() is None and unified_kinds(device(PLATFORM, 0)):  # or each test would say what is lacking

    class TestUnifiedMemory(TestOpenCL):
        """The same of a device that has Intel's unified shared memory and no fine-grained memory, as Intel's GPUs do."""

        @pytest.fixture(autouse=True)
        def coarse(self, monkeypatch):
            monkeypatch.setattr(opencl_driver, "is_fine_grained", lambda device: False)


@pytest.fixture
def opencl() -> Iterator[object]:
    reason = chosen().unavailable()
    if reason is not None:
        pytest.skip(reason)
    with devmem.use_backend("opencl"):
        yield device(PLATFORM, 0)


def test_a_queue_of_the_users_is_a_stream(opencl):
    queue, another = cl.CommandQueue(context_of(opencl)), cl.Context([opencl])
    with pytest.raises(TypeError):
        devmem.external_stream(object())
    with pytest.raises(BackendError, match="another device's or context's queue"):
        devmem.external_stream(cl.CommandQueue(another))
    stream = devmem.external_stream(queue)
    array = devmem.to_device(np.arange(1000), stream=stream)
    assert array.copy_to_host(stream=queue).tolist() == list(range(1000))
    assert not hasattr(stream, "__cuda_stream__")


@pytest.mark.parametrize("nbytes", [1, 4096, 1 << 20, (1 << 20) + 1])
def test_a_pageable_source_has_been_read_when_copy_async_returns(opencl, nbytes):
    source = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    expected, stream, array = source.copy(), devmem.stream(), devmem.zeros(nbytes, "u1")
    with hold(stream):
        transfer = devmem.copy_async(source, array, stream=stream)
        assert not transfer.done()
        source[:] = 0
    assert (transfer.result().copy_to_host() == expected).all()


def test_the_code_of_its_page_runs(opencl, tmp_path):
    page, runner = ROOT / "docs" / "how-to" / "use-opencl.md", ROOT / "tests" / "docs" / "run_page.py"
    reason = "needs pyopencl; tests/contract/drivers/test_opencl.py runs it"
    done = subprocess.run(
        [sys.executable, runner, page, reason], capture_output=True, text=True, cwd=tmp_path, timeout=patience()
    )
    assert done.returncode == 0, done.stderr


class Thing:
    """What OpenCL says of itself, or a device that fails at a question."""

    def __init__(self, name, devices=(), version="OpenCL 2.0", shares=None):
        self.name, self.devices, self.version, self.shares, self.platform = name, devices, version, shares, self
        for each in devices:
            each.platform = self

    def get_devices(self):
        return list(self.devices)

    @property
    def svm_capabilities(self):
        if self.shares is None:
            raise cl.LogicError("clGetDeviceInfo", cl.status_code.INVALID_VALUE)
        return self.shares


OLD = Thing("old", [Thing("one that fails at the question", (), "OpenCL 1.2"), Thing("one without", shares=0)])
NEW = Thing("new", [Thing("one with", shares=1)])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "(there is no runtime; DEVMEM_OPENCL_PLATFORM=, OCL_ICD_VENDORS=/nowhere): pip install 'devmem-arrays"),
        ([Thing("empty")], "no OpenCL device shares virtual memory (empty has no device; DEVMEM"),
        ([OLD], "(old has one that fails at the question, one without; DEVMEM"),
        ([OLD, NEW], None),
    ],
)
def test_the_reason_tells_no_runtime_from_no_device(found, words, monkeypatch):
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nowhere")
    monkeypatch.setattr(cl, "get_platforms", lambda: found)
    told = OpenCLBackend().unavailable()
    assert told is None if words is None else words in told
    assert OpenCLBackend().device_count() == (words is None)


def test_a_platform_that_no_device_has_is_told_with_those_that_there_are(monkeypatch):
    monkeypatch.setattr(cl, "get_platforms", lambda: [NEW])
    backend = OpenCLBackend()
    backend.configure({"platform": "nvidia"})
    told = backend.unavailable()
    assert "(new has one with; DEVMEM_OPENCL_PLATFORM=nvidia, " in told


def test_kernels_are_refused_with_the_reason(opencl):
    @devmem.kernel
    def nothing(out):
        pass

    with pytest.raises(UnsupportedError, match="launches no compiled functions"):
        nothing[1, 1](devmem.zeros(3))


def test_a_stream_of_another_device_is_none(opencl):
    """Handles are numbers of devmem's own: none of them is given by two devices."""
    one, other = (chosen().open(0) for _ in range(2))
    stream, event = one.stream_create(0, True), one.event_create(False)
    other.stream_create(0, True), other.event_create(False)
    for call in (partial(other.stream_synchronize, stream), partial(other.event_query, event)):
        with pytest.raises(BackendError, match="was destroyed, or never made here"):
            call()
    one.close()
    other.close()


class StandIn:
    def __init__(self, *arguments, **named):
        pass


@pytest.mark.parametrize("end", ["free", "free_async", "close"])
def test_buffers_are_released_before_the_memory_that_they_are_on(opencl, end, monkeypatch):
    driver = chosen().open(0)
    ptr, stream, left = driver.alloc(64, 0), driver.stream_create(0, True), []
    block = blocks_of(opencl).containing(ptr, ptr + 64)
    with monkeypatch.context() as patched:
        patched.setattr(cl, "Buffer", StandIn)  # pyopencl's own takes no weak reference
        buffers = [weakref.ref(block.buffer(written)) for written in (False, True)]
    release = block.memory.release
    block.memory = SimpleNamespace(release=lambda: (left.append([each() for each in buffers]), release()))
    if end != "close":
        getattr(driver, end)(ptr, 64, stream)
        driver.memory_info()
    driver.close()
    assert left == [[None, None]]


# -- what fails in the middle ------------------------------------------------------------------------------------------


def failing(code, message="clSomething"):
    def call(*arguments, **named):
        raise cl.LogicError(cl._cl._ErrorRecord(message, code, message))

    return call


LOST = cl.status_code.DEVICE_NOT_AVAILABLE


@pytest.fixture
def driver(opencl):
    driver = chosen().open(0)
    yield driver
    driver.close()


def test_a_device_that_is_lost_while_a_queue_is_flushed_raises_an_error_of_devmems(driver, monkeypatch):
    ptr, stream = driver.alloc(64, 0), driver.stream_create(0, True)
    monkeypatch.setattr(cl.CommandQueue, "flush", failing(LOST))
    with pytest.raises(DeviceLost):
        driver.fill(ptr, 0, 1, 64, stream)
    with pytest.raises(DeviceLost):
        driver.enter()


def test_a_device_that_cannot_be_opened_raises_an_error_of_devmems(opencl, monkeypatch):
    monkeypatch.setattr(cl, "UserEvent", failing(cl.status_code.OUT_OF_HOST_MEMORY))
    with pytest.raises(OutOfMemory):
        chosen().open(0)


def test_a_buffer_that_cannot_be_made_raises_an_error_of_devmems(driver, monkeypatch):
    dst, src, stream = driver.alloc(640, 0), driver.alloc(640, 0), driver.stream_create(0, True)
    monkeypatch.setattr(cl, "Buffer", failing(cl.status_code.OUT_OF_HOST_MEMORY))
    with pytest.raises(OutOfMemory):
        driver.copy_strided(Box(dst, 64, 10, src, 64, 10, 32, 10, 1), CopyKind.D2D, stream, blocking=False)


def test_a_queue_that_cannot_say_what_it_is_raises_an_error_of_devmems(driver, monkeypatch):
    """Intel's runtime for the CPU cannot, of a queue whose context is gone."""
    queue = cl.CommandQueue(context_of(device(PLATFORM, 0)))
    monkeypatch.setattr(cl.CommandQueue, "context", property(failing(cl.status_code.INVALID_CONTEXT)))
    with pytest.raises(BackendError, match="clGetCommandQueueInfo"):
        driver.stream_from(queue)


@pytest.mark.parametrize("name", ["enqueue_marker", "enqueue_barrier"])
def test_memory_that_was_mapped_for_a_host_function_is_unmapped_where_a_later_call_fails(driver, monkeypatch, name):
    stream, ranges = driver.stream_create(0, True), [(driver.alloc(64, 0), 64) for _ in range(2)]
    maps, unmaps = (counted(monkeypatch, f"_enqueue_svm_{each}") for each in ("map", "unmap"))
    with monkeypatch.context() as patched:
        patched.setattr(cl, name, failing(cl.status_code.OUT_OF_HOST_MEMORY))
        with pytest.raises(OutOfMemory):
            driver.launch_host_function(lambda places: None, ranges, stream)
    assert (len(maps), len(unmaps)) == (2, 2)
    driver.stream_synchronize(stream)  # nothing is left that it would wait for


def counted(monkeypatch, name):
    calls, function = [], getattr(cl._cl, name)
    monkeypatch.setattr(cl._cl, name, lambda *each, **named: (calls.append(each), function(*each, **named))[1])
    return calls


def test_two_threads_first_host_functions_on_a_stream_start_one_worker(driver, monkeypatch):
    stream, started, start = driver.stream_create(0, True), [], threading.Thread.start

    def launch():
        driver.launch_host_function(lambda places: None, [], stream)

    def meanwhile(function):
        """Another thread's call comes to its end between the first one's question and its start."""
        monkeypatch.setattr(host_calls, "run_apart", lambda function: function())
        launch()
        function()

    monkeypatch.setattr(host_calls, "run_apart", meanwhile)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread), start(thread)))
    launch()
    assert len(started) == 1
