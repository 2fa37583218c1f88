"""Work that devmem does not see is declared by ``record_stream``: the memory outlives it."""

from __future__ import annotations

import numpy as np
import pytest

import devmem as dm
from devmem.spi.types import CopyKind
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")

N = 4096


def read_later(device, array, out, stream):
    """What another library would do: a download by the driver's own call, of which devmem knows nothing."""
    with device.entered() as driver:
        driver.copy(out.__array_interface__["data"][0], array.ptr, N, CopyKind.D2H, stream.handle, blocking=False)


@pytest.fixture(params=["ours", "foreign"])
def stream(request, device):
    if request.param == "ours":
        yield dm.stream(non_blocking=True)
        return
    with device.entered() as driver:
        handle = driver.stream_create(0, True)
    yield dm.external_stream(handle)
    dm.synchronize()
    dm.trim()
    with device.entered() as driver:
        driver.stream_destroy(handle)


@pytest.mark.parametrize(
    "declared", [True, pytest.param(False, marks=pytest.mark.races("what is not declared is a race"))]
)
@pytest.mark.parametrize("home", ["default", "named"])
def test_memory_outlives_the_declared_work_of_others(device, need, need_kind, stream, declared, home):
    need("hold")
    need_kind("pinned")
    side, out = dm.stream(non_blocking=True), dm.pinned_array(N, "u1")
    with dm.use_memory("pool"):
        array = dm.full(N, 7, "u1") if home == "default" else dm.to_device(np.full(N, 7, "u1"), stream=side)
        side.synchronize()
        with hold(stream) as latch:
            read_later(device, array, out, stream)
            if declared:
                array[1:].record_stream(stream)
            array.free()
            writer = dm.default_stream() if home == "default" else side
            scribbled = [dm.device_array(N, "u1", stream=writer) for _ in range(4)]
            for each in scribbled:
                each.fill(0xEE, stream=writer)
            if not declared:
                writer.synchronize()
            latch.release()
        dm.synchronize()
    assert set(out.tolist()) == ({7} if declared else {0xEE}), "without the declaration the block is in use again"


def test_what_devmem_does_afterwards_still_waits_for_the_allocation(device, need, need_kind):
    """The declaration must not count for the wait that memory without a named stream is owed."""
    need("hold")
    need_kind("pinned")
    source = dm.pinned_array(N, "u1")
    source[...] = 5
    blocking, other, out = dm.stream(), dm.stream(non_blocking=True), dm.pinned_array(N, "u1")
    with blocking:
        array = dm.device_array(N, "u1")
    with hold(blocking) as latch:
        array.copy_to_device(source, stream=blocking)
        array.record_stream(other)
        array.copy_to_host(out, stream=other)
        latch.release()
    dm.synchronize()
    assert set(out.tolist()) == {5}


def test_what_cannot_be_declared_is_told(device):
    array = dm.zeros(4)
    with pytest.raises(dm.LayoutError, match="is not the handle of a stream"):
        array.record_stream(0x0DEA_D000)
    with pytest.raises(TypeError):
        array.record_stream("nothing")
    stream = dm.stream()
    stream.close()
    with pytest.raises(dm.ClosedError):
        array.record_stream(stream)
    dm.zeros(0).record_stream(dm.stream())
    array.free()
    with pytest.raises(dm.ClosedError):
        array.record_stream(0)
