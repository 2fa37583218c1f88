"""What cuda.core does over the emulated CUDA driver, a verb at a time: a script that prints what became of each."""

import cuda.core
import numpy as np
import pytest
from cuda.core import Device, LegacyPinnedMemoryResource
from cuda.core.utils import StridedMemoryView
from verbs import report, verb  # beside this script

import devmem as dm
from devmem.testing import hold
from devmem.testing.emulator import control

host = np.arange(1 << 14, dtype="i4")
device = Device(0)
device.set_current()


def pinned():
    buffer = LegacyPinnedMemoryResource().allocate(host.nbytes)
    return buffer, np.from_dlpack(buffer).view("i4")


def uploaded(stream):
    source, there = pinned()
    there[:] = host
    buffer = device.allocate(host.nbytes, stream=stream)
    source.copy_to(buffer, stream=stream)
    return source, buffer


def same(buffer, stream):
    target, seen = pinned()
    buffer.copy_to(target, stream=stream)
    stream.sync()
    assert (seen == host).all()


@verb("allocate, copy from and to the host")
def _():
    stream = device.create_stream()
    _source, buffer = uploaded(stream)
    same(buffer, stream)


@verb("page-locked memory, asynchronous copies on a held stream")
def _():
    stream = device.create_stream()
    source, seen = pinned()
    seen[:] = host
    buffer = device.allocate(host.nbytes, stream=stream)
    with control("cuda").hold(int(stream.handle)):
        source.copy_to(buffer, stream=stream)
        event = stream.record()
        assert not event.is_done
    event.sync()
    same(buffer, stream)


@verb("streams and events")
def _():
    one, other = device.create_stream(), device.create_stream()
    with control("cuda").hold(int(one.handle)):
        event = one.record()
        other.wait(event)
        assert not event.is_done
    other.sync()
    assert event.is_done


@verb("filling with bytes")
def _():
    stream = device.create_stream()
    buffer = device.allocate(host.nbytes, stream=stream)
    buffer.fill(7, stream=stream)
    target, seen = pinned()
    buffer.copy_to(target, stream=stream)
    stream.sync()
    assert (seen.view("u1") == 7).all()


@verb("stream-ordered memory is reused when its stream has passed")
def _():
    stream = device.create_stream()
    first = device.allocate(1 << 20, stream=stream)
    address = int(first.handle)
    first.close(stream)
    assert int(device.allocate(1 << 20, stream=stream).handle) == address


@verb("running out of memory")
def _():
    with pytest.raises(Exception, match="OUT_OF_MEMORY"):
        device.allocate(1 << 40, stream=device.create_stream())


@verb("exchange by DLPack, both ways")
def _():
    ours = dm.to_device(host)
    assert StridedMemoryView.from_dlpack(ours, stream_ptr=-1).ptr == ours.ptr
    stream = device.create_stream()
    _source, buffer = uploaded(stream)
    stream.sync()
    assert dm.from_dlpack(buffer).ptr == int(buffer.handle)


@verb("exchange with a stream that is held, both ways")
def _():
    page, one, theirs = dm.pinned_array(host.shape, "i4"), dm.stream(non_blocking=True), device.create_stream()
    page[:] = host
    with hold(one) as latch:
        ours = dm.to_device(page, stream=one)
        view = StridedMemoryView.from_dlpack(ours, stream_ptr=int(theirs.handle))
        event = theirs.record()
        assert view.ptr == ours.ptr
        assert not event.is_done
        latch.release()
    event.sync()
    with hold(dm.external_stream(theirs)) as latch:
        _source, buffer = uploaded(theirs)
        back = dm.from_dlpack(buffer).copy(stream=dm.external_stream(theirs))
        assert not theirs.record().is_done
        latch.release()
    theirs.sync()
    assert (back.copy_to_host().view("i4") == host).all()


@verb("devmem's arrays in cuda.core's memory")
def _():
    with dm.use_memory("cuda_core"):
        ours = dm.to_device(host)
        assert (ours.copy_to_host() == host).all()
        ours.free()


@verb("cuda.core's memory from devmem's stack")
def _():
    from devmem.adapters import cuda_core

    before, stream = dm.memory_info().live, device.create_stream()
    resource = cuda_core.memory_resource()
    buffer = resource.allocate(host.nbytes, stream=stream)
    assert dm.memory_info().live == before + host.nbytes
    source, seen = pinned()
    seen[:] = host
    source.copy_to(buffer, stream=stream)
    same(buffer, stream)
    buffer.close(stream)


@verb("a stream of devmem's")
def _():
    stream = device.create_stream(dm.stream())
    _source, buffer = uploaded(stream)
    same(buffer, stream)


if __name__ == "__main__":
    report(f"cuda.core {cuda.core.__version__}")
