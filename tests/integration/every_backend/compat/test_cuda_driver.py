"""`devmem.compat.numba_cuda`: contexts, devices, the driver's functions, deferred deallocation, plugins, other processes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import pickle
import sys
import types
import weakref

import numpy as np
import pytest

import devmem as dm
from devmem.compat import numba_cuda as cuda
from devmem.compat.numba_cuda.cudadrv import devices, driver, nvidia_driver
from devmem.compat.numba_cuda.cudadrv.driver import CudaAPIError, CudaDriverError, MemoryPointer
from devmem.compat.numba_roc.hsadrv import devices as roc_devices
from devmem.kernels.simulation import wave_size
from devmem.spi import SPI_VERSION


class Asked:
    """A backend that counts how often it is asked whether it can be used."""

    name = "asked"
    spi_version = SPI_VERSION

    def __init__(self):
        self.times = 0

    def unavailable(self):
        self.times += 1
        return "it is of a test"

    device_count = open = unavailable


@pytest.fixture(autouse=True)
def fresh(devmem_backend):
    """Contexts of this test's own, and no plugin left behind."""
    dm.close()
    yield
    cuda.close()
    dm.close()
    cuda.set_memory_manager(None)


# -- devices and contexts ----------------------------------------------------------------------------------------------


def test_the_list_of_gpus_and_their_facts():
    assert len(cuda.gpus) == len(list(cuda.gpus)) == len(cuda.gpus.lst) >= 1
    assert cuda.list_devices() is cuda.gpus
    first = cuda.gpus[0]
    assert first.id == 0
    assert str(first) == "<Managed Device 0>"
    assert "<Managed Device 0>" in str(cuda.gpus)
    assert cuda.gpus.current.id == dm.current_device().ordinal
    assert cuda.gpus["0"].id == 0
    assert [each.id for each in cuda.gpus[:1]] == [0]


def test_to_list_the_devices_does_not_ask_other_backends():
    """They would load their drivers, at each call: in a simulated program that of a GPU, too."""
    first = cuda.gpus[0]
    dm.register_backend(other := Asked())
    try:
        dm.backends()
        assert (before := other.times) >= 1
        assert len(cuda.gpus) == len(cuda.gpus.lst) == len(list(cuda.gpus)) == len(roc_devices.cus)
        assert cuda.select_device(0) == first._device
        assert cuda.current_context(0).device == first._device
        assert driver.Device.from_identity(first.get_device_identity()) == first._device
        assert other.times == before
    finally:
        dm.unregister_backend("asked")


@pytest.mark.parametrize(("number", "error"), [(99, IndexError), (-99, IndexError), ("a", ValueError)])
def test_devices_that_are_not_there(number, error):
    with pytest.raises(error):
        cuda.gpus[number]
    with pytest.raises(error):
        cuda.select_device(number)
    with pytest.raises(error):
        cuda.current_context(number)


def test_facts_of_a_device(device):
    found = cuda.get_current_device()
    assert isinstance(found, driver.Device)
    assert found == driver.Device(device.ordinal)
    assert found.name == device.name
    assert found.uuid.endswith(device.info.uuid)
    assert found.uuid.startswith("GPU-")
    assert len(found.compute_capability) == 2
    for known in (found.supports_float16, found.supports_bfloat16, found.supports_fp8):
        assert isinstance(known, bool)
    assert wave_size(device.info) == found.WARP_SIZE
    assert found.MAX_THREADS_PER_BLOCK >= 256
    assert bool(found.CAN_MAP_HOST_MEMORY) == ("mapped" in device.info.capabilities)
    identity = found.get_device_identity()
    assert set(identity) == {"pci_domain_id", "pci_bus_id", "pci_device_id"}
    assert driver.Device.from_identity(identity).id == found.id
    assert identity["pci_bus_id"] == found.PCI_BUS_ID
    with pytest.raises(AttributeError, match=r"'NO_SUCH_ATTRIBUTE': of CUDA's attributes it has .*, WARP_SIZE"):
        found.NO_SUCH_ATTRIBUTE  # noqa: B018
    with pytest.raises(RuntimeError, match="No device"):
        driver.Device.from_identity({"pci_domain_id": 77, "pci_bus_id": 77, "pci_device_id": 77})


def test_what_a_program_asks_to_choose_its_blocks(device):
    """On every backend: grids are made of these."""
    found = cuda.get_current_device()
    assert found.MULTIPROCESSOR_COUNT >= 1
    threads = found.MAX_THREADS_PER_BLOCK
    assert threads <= found.MAX_THREADS_PER_MULTIPROCESSOR
    blocks = [found.MAX_BLOCK_DIM_X, found.MAX_BLOCK_DIM_Y, found.MAX_BLOCK_DIM_Z]
    assert all(64 <= each <= threads for each in blocks)
    assert found.MAX_GRID_DIM_X == (1 << 31) - 1
    assert min(found.MAX_GRID_DIM_Y, found.MAX_GRID_DIM_Z) >= 65535
    assert found.MAX_SHARED_MEMORY_PER_BLOCK >= 48 << 10
    assert found.MAX_REGISTERS_PER_BLOCK >= 1 << 15
    assert found.TOTAL_CONSTANT_MEMORY >= 1 << 16
    assert found.compute_capability == (found.COMPUTE_CAPABILITY_MAJOR, found.COMPUTE_CAPABILITY_MINOR)


def test_there_is_one_context_for_each_device_and_all_threads(in_thread):
    context = cuda.current_context()
    assert cuda.current_context() is context
    assert in_thread(cuda.current_context) is context
    assert context.device.get_primary_context() is context
    assert context == cuda.gpus[context.device.id].get_primary_context()
    assert int(context.handle)
    assert f"of device {context.device.id}" in repr(context)
    for name in ("allocations", "modules", "extras"):
        assert isinstance(getattr(context, name), dict)


def test_each_thread_has_a_current_device_of_its_own(second, in_thread):
    before = cuda.get_current_device().id
    assert cuda.select_device(second.ordinal).id == second.ordinal
    assert cuda.get_current_device().id == second.ordinal
    assert in_thread(lambda: cuda.get_current_device().id) == before
    assert cuda.device_array(3).device == second
    cuda.select_device(before)


def test_a_gpu_in_with_is_current_inside(second):
    before = cuda.get_current_device().id
    with cuda.gpus[second.ordinal] as nothing:
        assert nothing is None
        assert cuda.get_current_device().id == second.ordinal
        with cuda.gpus[before]:
            assert cuda.get_current_device().id == before
        d = cuda.to_device(np.arange(3))
    assert cuda.get_current_device().id == before
    assert d.device == second
    # numba.cuda asks the current device for the memory of another one; here an array knows its own.
    assert d.copy_to_host().tolist() == [0, 1, 2]
    with pytest.raises(ZeroDivisionError), cuda.gpus[second.ordinal]:
        1 / 0  # noqa: B018
    assert cuda.get_current_device().id == before


def test_push_makes_a_context_current_until_pop(second):
    context = cuda.gpus[second.ordinal].get_primary_context()
    context.push()
    assert cuda.current_context() is context
    context.pop()
    assert cuda.current_context() is not context
    with pytest.raises(AssertionError):
        context.pop()


@pytest.mark.own_thread  # the last device stays selected
def test_a_function_that_requires_a_context_cannot_switch_it(second):
    @cuda.require_context
    def switch(what):
        """Its documentation."""
        return what()

    assert switch.__doc__ == "Its documentation."
    assert switch(cuda.current_context) is cuda.current_context()
    for change in (lambda: cuda.select_device(second.ordinal), lambda: cuda.gpus[second.ordinal].__enter__()):
        with pytest.raises(RuntimeError, match="Cannot switch CUDA-context"):
            switch(change)
    assert switch(lambda: switch(lambda: cuda.select_device(0).id)) == 0
    cuda.select_device(second.ordinal)


def test_a_context_that_is_not_primary_is_refused(device):
    handle = cuda.current_context().handle
    if handle == id(device.opened()):
        pytest.skip(f"{device} has no contexts of the driver's")
    newer = int(importlib.metadata.version("cuda-bindings").partition(".")[0]) >= 13
    other = driver.driver.cuCtxCreate(*([None] if newer else []), 0, device.driver().context.device)
    try:
        with pytest.raises(RuntimeError, match="Numba cannot operate on non-primary CUDA context"):
            cuda.current_context()
    finally:
        driver.driver.cuCtxDestroy(other)
    assert cuda.current_context().handle == handle


def test_close_and_reset_end_what_was_made_before():
    d, stream, context = cuda.to_device(np.arange(3)), cuda.stream(), cuda.current_context()
    cuda.close()
    for use in (d.copy_to_host, stream.synchronize):
        with pytest.raises(dm.ClosedError):
            use()
    assert cuda.current_context() is not context
    d = cuda.to_device(np.arange(3))
    context = cuda.current_context()
    context.reset()
    with pytest.raises(dm.ClosedError):
        d.copy_to_host()
    assert cuda.current_context() is context
    assert cuda.to_device(np.arange(3)).copy_to_host().tolist() == [0, 1, 2]
    cuda.get_current_device().reset()
    assert cuda.to_device(np.arange(3)).copy_to_host().tolist() == [0, 1, 2]


def test_in_another_thread_close_ends_nothing_of_others(in_thread):
    d = cuda.to_device(np.arange(3))
    in_thread(cuda.close)
    assert d.copy_to_host().tolist() == [0, 1, 2]


# -- memory of a context -----------------------------------------------------------------------------------------------


def test_memory_info_has_free_and_total():
    info = cuda.current_context().get_memory_info()
    assert isinstance(info, cuda.MemoryInfo)
    assert 0 < info.free <= info.total
    assert info == (info.free, info.total)


def test_memalloc_gives_an_owned_pointer():
    memory = cuda.current_context().memalloc(64)
    assert type(memory) is driver.OwnedPointer
    assert isinstance(memory._mem, driver.AutoFreePointer)
    assert memory.size == 64
    assert memory.device_pointer.value == memory.device_ctypes_pointer.value == memory.device_pointer_value
    memory.memset(7)
    out = np.zeros(64, np.uint8)
    driver.device_to_host(out, memory, 64)
    assert set(out) == {7}
    part = memory.view(16, 48)
    assert part.size == 32
    part.memset(1, 8)
    driver.device_to_host(out, memory, 64)
    assert (out[16:24] == 1).all()
    assert (out[24:] == 7).all()
    with pytest.raises(RuntimeError, match="negative"):
        memory.view(8, 4)


def test_memory_lives_as_long_as_a_part_of_it():
    before = dm.memory_info().live
    memory = cuda.current_context().memalloc(1 << 20)
    part = memory.view(100)
    del memory
    assert dm.memory_info().live == before + (1 << 20)
    del part
    gc.collect()
    dm.trim()
    assert dm.memory_info().live == before


def test_memory_without_bytes():
    memory = MemoryPointer(cuda.current_context(), 0, 0)
    assert memory.view(0, 0) is memory
    assert memory.device_pointer_value is None
    with pytest.raises(RuntimeError, match="non-empty slice"):
        memory.view(0, 4)


def test_memhostalloc_gives_memory_that_numpy_writes(need_kind):
    need_kind("pinned", "mapped")
    context = cuda.current_context()
    pinned = context.memhostalloc(32)
    array = np.ndarray(4, np.float64, buffer=pinned)
    array[:] = 3
    assert cuda.to_device(array).copy_to_host().tolist() == [3] * 4
    assert isinstance(pinned, cuda.PinnedMemory)
    assert pinned.own() is pinned
    mapped = context.memhostalloc(32, mapped=True, portable=True, wc=True)
    array = np.ndarray(32, np.uint8, buffer=mapped)
    driver.device_memset(mapped, 0xAB, 32)
    assert (array == 0xAB).all()
    array[:] = 9
    out = np.empty_like(array)
    driver.device_to_host(out, mapped, 32)
    assert (out == 9).all()
    assert driver.is_device_memory(mapped)
    before = dm.memory_info().host.live
    del array, mapped, pinned
    gc.collect()
    dm.trim()
    assert dm.memory_info().host.live == before - 64


def test_memallocmanaged_gives_memory_that_both_sides_reach(need_kind):
    need_kind("managed")
    memory = cuda.current_context().memallocmanaged(32, attach_global=True)
    array = np.ndarray(4, np.float64, buffer=memory)
    array[:] = 3
    out = np.empty(4)
    cuda.synchronize()
    driver.device_to_host(out, memory, 32)
    assert out.tolist() == [3] * 4


def test_mempin_locks_pages_until_dropped(need):
    need("host_register", "mapped")
    context, host = cuda.current_context(), np.arange(8.0)
    memory = context.mempin(host, driver.host_pointer(host), host.nbytes)
    assert memory.owned is host
    del memory
    gc.collect()
    memory = context.mempin(host, driver.host_pointer(host), host.nbytes, mapped=True)
    seen = cuda.cudadrv.devicearray.DeviceNDArray((8,), (8,), "f8", gpu_data=memory)
    seen[:] = 5
    cuda.synchronize()
    assert host.tolist() == [5] * 8


def test_pointers_finalize_once():
    calls = []
    memory = MemoryPointer(cuda.current_context(), ctypes.c_void_p(0x1000), 8, finalizer=lambda: calls.append(1))
    assert memory.is_managed
    assert memory.owner is memory
    memory.free()
    assert calls == [1]
    with pytest.raises(RuntimeError, match="dead memory"):
        memory.free()
    del memory
    assert calls == [1]
    held = driver.AutoFreePointer(cuda.current_context(), 0x1000, 8, finalizer=lambda: calls.append(2))
    first, second_one = held.own(), held.own()
    assert held.refct == 2
    assert first.size == 8
    del first
    assert calls == [1]
    del second_one
    assert calls == [1, 2]
    owner = object()
    assert MemoryPointer(None, 0x1000, 8, owner).owner is owner


# -- functions of the driver's module ----------------------------------------------------------------------------------


def test_the_drivers_copies_move_bytes():
    host, out = np.arange(8.0), np.zeros(8)
    a, b = cuda.device_array(8), cuda.device_array(8)
    driver.host_to_device(a, host, 64)
    driver.device_to_device(b, a, 64)
    driver.device_to_host(out, b, 64)
    assert out.tolist() == host.tolist()
    stream = cuda.stream()
    driver.device_memset(b, 0, 32, stream=stream)
    driver.device_to_host(out, b, 64, stream=stream)
    stream.synchronize()
    assert out.tolist() == [0, 0, 0, 0, 4, 5, 6, 7]
    with pytest.raises(TypeError, match="Expected a Stream"):
        driver.device_memset(b, 0, 32, stream=3)
    with pytest.raises(ValueError, match="read-only"):
        driver.device_to_host(b"12345678", b, 8)
    with pytest.raises(Exception, match="Not a CUDA memory object"):
        driver.host_to_device(host, host, 64)


def test_sizes_and_addresses():
    host = np.arange(24.0).reshape(4, 6)
    d = cuda.to_device(host)
    assert driver.device_pointer(d) == d.ptr == driver.device_ctypes_pointer(d).value
    assert driver.device_ctypes_pointer(None).value is None
    assert driver.device_memory_size(d) == 192
    begin, end = driver.device_extents(d[1])
    assert begin <= d.ptr
    assert end >= d.ptr + 192
    assert driver.host_pointer(host) == host.ctypes.data
    assert driver.host_pointer(5) == 5
    assert driver.host_memory_size(host) == 192
    low, high = driver.host_memory_extents(host[::-1, ::2])
    assert (low, high) == (host.ctypes.data, host.ctypes.data + 184)
    assert driver.memory_size_from_info((3, 4), (48, 8), 8) == 128
    assert driver.memory_size_from_info((0, 4), (48, 8), 8) == 0
    assert driver.is_device_memory(d)
    assert not driver.is_device_memory(host)
    driver.require_device_memory(d)
    with pytest.raises(Exception, match="Not a CUDA memory object"):
        driver.require_device_memory(host)
    with pytest.raises(TypeError):
        driver.host_pointer([1, 2])


def test_the_driver_object():
    assert driver.driver.is_available
    assert driver.driver.initialization_error is None
    driver.driver.ensure_initialized()
    assert driver.driver.get_device_count() == len(cuda.gpus)
    assert driver.driver.get_device(0).id == 0
    cuda.current_context()
    assert cuda.get_current_device() in driver.driver.list_devices()
    with driver.driver.get_active_context() as active:
        current = nvidia_driver.current_handle(dm.current_device())
        if nvidia_driver.binding_of(dm.current_device()) is None:
            current = cuda.current_context().handle
        assert active.context_handle == (current or None)
        assert active.devnum == (cuda.get_current_device().id if current else None)
        assert bool(active) == bool(current)
    assert len(driver.get_version()) == 2
    for _ in range(10):  # whatever others have left there
        if driver.driver.pop_active_context() is None:
            break
    assert driver.driver.pop_active_context() is None
    with pytest.raises(AttributeError):
        driver.driver.nonsense  # noqa: B018
    with pytest.raises(CudaDriverError, match="cuNoSuchFunction"):
        driver.driver.cuNoSuchFunction()


def test_errors_are_of_their_kinds_and_can_be_pickled():
    assert issubclass(CudaAPIError, CudaDriverError)
    assert issubclass(cuda.CudaSupportError, ImportError)
    assert issubclass(driver.DeadMemoryError, RuntimeError)
    error = CudaAPIError(2, "no memory")
    assert (error.code, error.msg, str(error)) == (2, "no memory", "[2] no memory")
    with pytest.raises(CudaAPIError) as caught:
        cuda.device_array(1 << 60, np.int8)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert (again.code, again.backend) == (2, dm.current_device().backend)


# -- deferred deallocation ---------------------------------------------------------------------------------------------


def queue():
    found = cuda.current_context().memory_manager.deallocations
    found.clear()
    assert len(found) == 0
    return found


def test_what_is_dropped_waits_until_it_is_too_much():
    pending, seen = queue(), []
    for _ in range(11):
        cuda.to_device(np.arange(1))
        seen.append(len(pending))
    assert seen == [*range(1, 11), 0]


def test_streams_and_events_wait_in_a_queue_of_their_own():
    pending = queue()
    context = cuda.current_context()
    cuda.stream()
    cuda.event()
    gc.collect()
    assert len(context.deallocations) >= 1
    assert len(pending) == 0


def test_defer_cleanup_nests_and_holds_everything():
    pending = queue()
    with cuda.defer_cleanup():
        for _ in range(6):
            cuda.to_device(np.arange(1))
        with cuda.defer_cleanup():
            for _ in range(10):
                cuda.to_device(np.arange(1))
        assert pending.is_disabled
        pending.clear()
        assert len(pending) == 16
    assert not pending.is_disabled
    pending.clear()
    assert len(pending) == 0


def test_defer_cleanup_ends_also_when_the_body_raises():
    pending = queue()
    with pytest.raises(ZeroDivisionError), cuda.defer_cleanup():
        1 / 0  # noqa: B018
    assert not pending.is_disabled


def test_what_plugins_add_to_the_queue():
    pending, freed = queue(), []
    for number in range(10):
        pending.add_item(freed.append, number, 8)
    assert (len(pending), freed) == (10, [])
    pending.add_item(freed.append, 10)
    assert freed == list(range(11))


def test_numbas_variables_set_the_thresholds(monkeypatch, device):
    monkeypatch.setenv("NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT", "3")
    monkeypatch.setenv("NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO", "0.5")
    cuda.close()
    dm.close()
    pending, seen = queue(), []
    for _ in range(5):
        cuda.to_device(np.arange(1))
        seen.append(len(pending))
    assert seen == [1, 2, 3, 0, 1]
    assert pending._max_pending_bytes == pending.memory_capacity // 2
    monkeypatch.setenv("NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT", "many")
    dm.close()
    with pytest.warns(dm.DevmemWarning, match="many"):
        cuda.to_device(np.arange(1))


def test_cuda_can_be_disabled(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_CUDA", "1")
    assert not cuda.is_available()
    assert "CUDA is disabled due to setting NUMBA_DISABLE_CUDA=1" in cuda.cuda_error()  # numba's words
    with pytest.raises(cuda.CudaSupportError):
        cuda.to_device(np.arange(3))
    with pytest.raises(cuda.CudaSupportError):
        driver.driver.ensure_initialized()


# -- plugins -----------------------------------------------------------------------------------------------------------


class Block:
    """Memory of another allocator: it goes back when the object dies."""

    def __init__(self, pool, size, ptr):
        self.pool, self.size, self.ptr = pool, size, ptr
        pool.out += 1

    def __del__(self):
        self.pool.out -= 1
        self.pool.free.setdefault(self.size, []).append(self.ptr)


class Pool:
    """Stands for an allocator of its own, which reuses what comes back."""

    def __init__(self):
        self.upstream, self.out, self.free = None, 0, {}

    def malloc(self, size):
        with dm.current_device().entered() as bound:
            if self.upstream is None or self.upstream.driver is not bound:
                self.upstream, self.free = dm.memory.DriverMemory(), {}
                self.upstream.bind(bound)
            free = self.free.get(size)
            return Block(self, size, free.pop() if free else self.upstream.allocate(size, 1))

    def free_all_blocks(self):
        self.free.clear()


def pool_manager(pool):
    """As numba's documentation builds a manager over a library's pool."""

    class PoolManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._allocations = {}
            self._mp = None

        def initialize(self):
            super().initialize()
            self._mp = pool

        def memalloc(self, nbytes):
            block = self._mp.malloc(nbytes)
            self._allocations[block.ptr] = block
            return cuda.MemoryPointer(
                cuda.current_context(),
                ctypes.c_uint64(int(block.ptr)),
                nbytes,
                finalizer=self._make_finalizer(block.ptr),
            )

        def _make_finalizer(self, ptr):
            allocations = self._allocations

            def finalizer():
                allocations.pop(ptr)

            return finalizer

        def get_memory_info(self):
            return cuda.MemoryInfo(free=32, total=64)

        def reset(self):
            super().reset()
            if self._mp:
                self._mp.free_all_blocks()

        @contextlib.contextmanager
        def defer_cleanup(self):
            with super().defer_cleanup():
                yield

        @property
        def interface_version(self):
            return 1

    return PoolManager


def buffer_manager(pool):
    """As RMM's manager is built: it keeps buffers in ``allocations``, and its contexts are weak."""

    class BufferManager(cuda.HostOnlyCUDAMemoryManager):
        def memalloc(self, size):
            buffer = pool.malloc(size)
            self.allocations[buffer.ptr] = buffer
            allocations, ptr = self.allocations, buffer.ptr

            def finalizer():
                allocations.pop(ptr, None)

            context = weakref.proxy(self.context)
            return MemoryPointer(context, ctypes.c_void_p(buffer.ptr), size, finalizer=finalizer)

        def get_ipc_handle(self, memory):
            return f"handle of {int(memory.device_pointer)}"

        def get_memory_info(self):
            raise NotImplementedError

        @property
        def interface_version(self):
            return 1

    return BufferManager


@pytest.mark.parametrize("make", [pool_manager, buffer_manager])
def test_device_memory_comes_from_the_plugin(make):
    pool = Pool()
    cuda.set_memory_manager(make(pool))
    assert isinstance(cuda.current_context().memory_manager, cuda.HostOnlyCUDAMemoryManager)
    d = cuda.to_device(np.arange(6.0))
    other = cuda.device_array((2, 3))
    native = dm.zeros(4)
    assert pool.out == 3
    other.copy_to_device(d.reshape(2, 3))
    assert other.copy_to_host().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert native.copy_to_host().tolist() == [0] * 4
    memory = cuda.current_context().memalloc(100)
    assert pool.out == 4
    del memory
    assert pool.out == 3
    # Given back when no stream uses it, at the next call, and not in the collector.
    del d, other, native
    cuda.synchronize()
    cuda.device_array(1)
    gc.collect()
    dm.trim()
    assert pool.out == 0


def test_a_plugin_may_call_the_driver_itself(device, need_kind):
    """RMM's asks the driver for the handle of its memory."""
    need_kind("pinned")
    if cuda.current_context().handle == id(device.opened()):
        pytest.skip(f"{device} has no contexts of the driver's")
    seen = {}

    def noting(name):
        def method(self, *args, **kwargs):
            seen.setdefault(name, set()).add(int(driver.binding.cuCtxGetCurrent()[1]))
            return getattr(super(Noting, self), name)(*args, **kwargs)

        return method

    verbs = ["initialize", "memalloc", "memhostalloc", "get_ipc_handle", "get_memory_info"]
    Noting = type("Noting", (driver.NumbaCUDAMemoryManager,), {name: noting(name) for name in verbs})
    cuda.close()
    cuda.set_memory_manager(Noting)
    context = cuda.current_context()
    memory = context.memalloc(64)
    context.memhostalloc(64)
    context.get_memory_info()
    context.get_ipc_handle(memory)
    assert seen == {name: {context.handle} for name in verbs}


def test_the_hosts_part_of_a_plugin_is_done_by_devmem(need_kind, need):
    need_kind("pinned", "mapped")
    need("host_register")
    pool = Pool()
    cuda.set_memory_manager(pool_manager(pool))
    a = cuda.pinned_array(4)
    a[:] = 2
    assert cuda.mapped_array(4).shape == (4,)
    assert pool.out == 0
    host = cuda.current_context().memhostalloc(64)
    assert np.ndarray(8, buffer=host).shape == (8,)
    with cuda.pinned(np.arange(10.0)):
        assert cuda.to_device(a).copy_to_host().tolist() == [2] * 4


def test_what_a_plugin_says_of_itself_is_passed_on():
    cuda.set_memory_manager(pool_manager(Pool()))
    assert cuda.current_context().get_memory_info() == (32, 64)
    cuda.close()
    cuda.set_memory_manager(buffer_manager(Pool()))
    with pytest.raises(NotImplementedError):
        cuda.current_context().get_memory_info()
    d = cuda.device_array(4)
    assert d.get_ipc_handle()._ipc_handle == f"handle of {d.ptr}"


def test_the_end_of_a_context_takes_the_plugins_memory_back():
    pool = Pool()
    cuda.set_memory_manager(pool_manager(pool))
    d = cuda.to_device(np.arange(6.0))
    context = cuda.current_context()
    context.reset()
    gc.collect()
    assert pool.out == 0
    with pytest.raises(dm.ClosedError):
        d.copy_to_host()
    assert cuda.current_context() is context
    cuda.device_array(3)
    assert pool.out <= 1
    cuda.set_memory_manager(None)
    cuda.close()
    gc.collect()
    assert pool.out == 0
    assert not isinstance(cuda.current_context().memory_manager, type(context.memory_manager))


def test_a_plugin_that_comes_after_all_devices_were_closed_is_used():
    before = cuda.current_context()
    dm.close()
    pool = Pool()
    cuda.set_memory_manager(pool_manager(pool))
    d = cuda.to_device(np.arange(6.0))
    assert cuda.current_context() is before and pool.out == 1
    dm.close()
    cuda.set_memory_manager(None)
    cuda.device_array(3)
    del d
    gc.collect()
    assert pool.out == 0 and type(before.memory_manager) is driver.NumbaCUDAMemoryManager


def test_a_plugin_that_comes_after_the_first_use_is_refused():
    cuda.current_context()
    with pytest.raises(RuntimeError, match=r"comes too late: .* or call cuda\.close\(\) before"):
        cuda.set_memory_manager(pool_manager(Pool()))
    cuda.close()
    cuda.set_memory_manager(pool_manager(Pool()))


def test_a_plugin_with_all_of_the_hosts_part(need_kind):
    need_kind("pinned")
    pool, calls = Pool(), []

    class Whole(pool_manager(pool)):
        def memhostalloc(self, size, mapped=False, portable=False, wc=False):
            calls.append(size)
            raw = np.zeros(size, np.uint8)
            return cuda.PinnedMemory(self.context, raw.ctypes.data, size, owner=raw)

    cuda.set_memory_manager(Whole)
    cuda.current_context()
    assert cuda.pinned_array(4).shape == (4,)
    assert calls == [32]


def test_plugins_that_are_refused():
    class Version2(pool_manager(Pool())):
        interface_version = 2

    with pytest.raises(RuntimeError, match="EMM Plugin interface has version 2 - version 1 required"):
        cuda.set_memory_manager(Version2)
    with pytest.raises(RuntimeError, match="requires a context"):
        pool_manager(Pool())()
    with pytest.raises(TypeError, match="abstract"):
        cuda.BaseCUDAMemoryManager(context=None)


def numbas_own(name="RMMNumbaManager"):
    """A plugin as in a file that imports Numba, as RMM's does."""
    theirs = type("HostOnlyCUDAMemoryManager", (), {"__module__": "numba.cuda.cudadrv.driver"})
    return type(name, (theirs,), {"__module__": "rmm.allocators.numba", "interface_version": 1})


def test_plugins_of_numbas_own_contexts_are_refused(monkeypatch):
    """They would ask Numba for its context, and open one beside ours."""
    with pytest.raises(TypeError, match=r"rmm\.allocators\.numba\.RMMNumbaManager .* devmem\.use_memory\(\"rmm\"\)"):
        cuda.set_memory_manager(numbas_own())
    assert type(cuda.current_context().memory_manager).__name__ == "NumbaCUDAMemoryManager"
    cuda.close()
    for name, package in (("rmm", True), ("rmm.allocators", True), ("rmm.allocators.numba", False)):
        module = types.ModuleType(name)
        module._numba_memory_manager = numbas_own()
        if package:
            module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("NUMBA_CUDA_MEMORY_MANAGER", "rmm.allocators.numba")
    with pytest.raises(
        RuntimeError, match=r"from rmm.allocators.numba: .*Numba's own contexts.*DEVMEM_MEMORY_MANAGER=rmm"
    ):
        cuda.current_context()


def test_rmms_variable_is_answered_where_numba_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "rmm", None)
    monkeypatch.setenv("NUMBA_CUDA_MEMORY_MANAGER", "rmm.allocators.numba")
    with pytest.raises(RuntimeError, match="DEVMEM_MEMORY_MANAGER=rmm"):
        cuda.current_context()


def test_a_plugin_is_named_by_a_variable(monkeypatch, tmp_path):
    (tmp_path / "my_manager.py").write_text(
        "from devmem.compat.numba_cuda.cudadrv.driver import NumbaCUDAMemoryManager\n"
        "class Mine(NumbaCUDAMemoryManager):\n    pass\n"
        "_numba_memory_manager = Mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CUDA_MEMORY_MANAGER", "my_manager")
    assert type(cuda.current_context().memory_manager).__name__ == "Mine"
    cuda.set_memory_manager(None)
    cuda.close()
    monkeypatch.setenv("NUMBA_CUDA_MEMORY_MANAGER", "no_such_module")
    with pytest.raises(RuntimeError, match="Failed to use memory manager from no_such_module"):
        cuda.current_context()


# -- other processes ---------------------------------------------------------------------------------------------------


def test_a_handle_cannot_be_opened_where_it_was_made(need):
    need("ipc")
    d = cuda.to_device(np.arange(6.0))
    handle = d[2:].get_ipc_handle()
    assert handle._ipc_handle.offset == d[2:].ptr - driver.device_extents(d)[0]
    assert len(bytes(handle._ipc_handle.handle)) == 64
    with pytest.raises(ValueError, match="original process"):
        handle.open()
    with pytest.raises(ValueError, match="not opened"):
        handle.close()
    assert isinstance(handle._ipc_handle, cuda.IpcHandle)
    assert cuda.current_context().get_ipc_handle(d.gpu_data).size == 48


def test_handles_of_the_binding_go_by_their_bytes():
    """B1: its struct has lost a field."""

    class Handle:
        memory = (ctypes.c_uint8 * 64)(*range(64))

        def getPtr(self):
            return ctypes.addressof(self.memory)

    handle = cuda.IpcHandle(None, Handle(), 8)
    assert handle.handle == handle.handle.reserved == bytes(range(64))
    assert pickle.loads(pickle.dumps(handle)).handle == handle.handle
    assert cuda.IpcHandle(None, tuple(range(64)), 8).handle == handle.handle


def test_in_the_child_of_a_fork_it_says_so(python):
    done = python(
        "import os, numpy as np\n"
        "from devmem.compat import numba_cuda as cuda\n"
        "from devmem.compat.numba_cuda.cudadrv.driver import CudaDriverError\n"
        "d = cuda.to_device(np.arange(3))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    for use in (d.copy_to_host, lambda: cuda.to_device(np.arange(3)), cuda.current_context, cuda.stream):\n"
        "        try:\n"
        "            use()\n"
        "        except CudaDriverError as error:\n"
        "            assert 'CUDA initialized before forking' in str(error)\n"
        "        else:\n"
        "            os._exit(1)\n"
        "    os._exit(0)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    assert done.stdout.strip() == "0", done.stderr


SCRIPT = """
import pickle, sys
import numpy as np
from devmem.compat import numba_cuda as cuda
handle, raw, offset = pickle.loads(bytes.fromhex({text!r}))
with handle as array:
    assert array.copy_to_host().tolist() == [2, 3, 4, 5]
    try:
        handle.open()
    except ValueError as error:
        assert "already opened" in str(error)
    else:
        raise AssertionError
    array[0] = 50
try:
    with cuda.open_ipc_array(raw, (2,), "f8", offset=offset) as array:
        assert array.copy_to_host().tolist() == [50, 3]
        1 / 0
except ZeroDivisionError:
    pass
with cuda.open_ipc_array(raw, 2, np.float64, offset=offset) as array:
    array[1] = 60
staged = handle._ipc_handle.open_staged(cuda.current_context())
assert staged.size == 32
handle.close()
print("ok")
"""


def test_b1_memory_of_another_process(need, python):
    need("ipc")
    d = cuda.to_device(np.arange(6.0))
    handle = d[2:].get_ipc_handle()
    raw = handle._ipc_handle
    text = pickle.dumps((handle, bytes(raw.handle), raw.offset)).hex()
    done = python(SCRIPT.format(text=text))
    assert done.stdout.strip() == "ok", done.stderr
    assert d.copy_to_host().tolist() == [0, 1, 50, 60, 4, 5]


def test_where_there_is_no_sharing_it_says_so(device):
    if "ipc" in device.info.capabilities:
        pytest.skip(f"{device} shares memory with other processes")
    with pytest.raises(NotImplementedError, match="share"):
        cuda.to_device(np.arange(3.0)).get_ipc_handle()


def test_peer_access_is_asked_and_enabled(second):
    context = cuda.current_context()
    assert isinstance(context.can_access_peer(second.ordinal), bool)
    context.enable_peer_access(second.ordinal)
    with pytest.raises(AssertionError, match="flags"):
        context.enable_peer_access(second.ordinal, 1)


def test_a_peer_that_is_not_there():
    with contextlib.suppress(CudaAPIError):  # what the driver says to that
        assert not cuda.current_context().can_access_peer(99)


def test_memory_that_is_not_mapped_has_no_address_on_the_device(need_kind):
    need_kind("mapped")
    with pytest.raises(CudaAPIError):
        cuda.MappedMemory(cuda.current_context(), 8, 10)


def test_what_device_memory_depends_on_lives_as_long():
    class Owner:
        pass

    owner, d = Owner(), cuda.device_array(3)
    seen = weakref.ref(owner)
    driver.device_memory_depends(d, owner)
    del owner
    gc.collect()
    assert seen() is not None
    del d
    gc.collect()
    assert seen() is None


def test_the_public_functions_of_devices():
    assert devices.get_context() is cuda.current_context()
    assert devices.gpus is cuda.gpus
    devices.reset()
    assert cuda.to_device(np.arange(3)).copy_to_host().tolist() == [0, 1, 2]
