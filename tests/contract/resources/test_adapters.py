"""Other people's allocators as resources, against the published suite: real ones where they do without a GPU, else stand-ins."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import standins

from devmem import errors, plugins
from devmem.adapters.cuda_core import CudaCoreMemory
from devmem.adapters.cupy import CuPyMemory
from devmem.adapters.emm import EMMMemory, resources
from devmem.adapters.foreign_resource import ForeignResource, address
from devmem.adapters.rmm import RMMMemory
from devmem.adapters.torch import TorchMemory
from devmem.backends.host.hooks import HostBackend
from devmem.spi.driver import Backend, Driver
from devmem.spi.memory import MemoryResource
from devmem.spi.types import LEGACY_STREAM, PER_THREAD_STREAM, Capability, MemoryKind
from devmem.testing import MemoryResourceTests
from devmem.testing.stream_hold import entered


def host(devices: int = 1) -> HostBackend:
    backend = HostBackend()
    backend.configure({"strict": True, "devices": devices})
    return backend


@pytest.fixture
def driver() -> Iterator[Driver]:
    opened = host().open(0)
    with entered(opened):
        yield opened
    opened.close()


@pytest.fixture(params=["real", "stand-in"])
def rmm(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """RMM's resources: the real ones, over callbacks, or those that stand for them."""
    if request.param == "real":
        yield pytest.importorskip("rmm.mr", reason="RMM is not installed")
    else:
        with standins.installed(**standins.rmm()):
            yield sys.modules["rmm.mr"]


class OnHost(MemoryResourceTests):
    """The suite over the strict host backend, with a library's stand-in installed."""

    modules: dict[str, ModuleType] = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def library(self) -> Iterator[None]:
        with standins.installed(**self.modules):
            yield

    def make_backend(self) -> Backend:
        return host()


def callbacks(mr: ModuleType, driver: Driver) -> object:
    """A resource of RMM over a driver of devmem."""

    def allocate(nbytes, stream):
        return driver.alloc(nbytes, stream.__cuda_stream__()[1] or LEGACY_STREAM)

    def deallocate(ptr, nbytes, stream):
        with contextlib.suppress(errors.DevmemError):  # RMM cannot carry an exception from here
            driver.free(ptr, nbytes, stream.__cuda_stream__()[1] or LEGACY_STREAM)

    return mr.CallbackMemoryResource(allocate, deallocate)


class TestRMMMemory(OnHost):
    @pytest.fixture(autouse=True)
    def take(self, rmm: ModuleType) -> None:
        self.rmm = rmm

    def make_resource(self, driver: Driver) -> MemoryResource:
        return RMMMemory(self.rmm.StatisticsResourceAdaptor(callbacks(self.rmm, driver)))


class TestCuPyPool(OnHost):
    modules = standins.cupy()

    def make_resource(self, driver: Driver) -> MemoryResource:
        return CuPyMemory(standins.MemoryPool(driver))


class TestCuPyFunction(OnHost):
    modules = standins.cupy()

    def make_resource(self, driver: Driver) -> MemoryResource:
        def malloc(size):
            ptr = driver.alloc(size, LEGACY_STREAM)
            owner = standins.NumbaPointer(ptr, lambda: driver.free(ptr, size, LEGACY_STREAM))
            return standins.MemoryPointer(standins.UnownedMemory(ptr, size, owner, 0), 0)

        return CuPyMemory(malloc)


class TorchOnHost(TorchMemory):
    backends = frozenset({"host"})


class TestTorchMemory(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        sys.modules.update(standins.torch(standins.TorchCuda(driver)))
        return TorchOnHost()

    modules = standins.torch(None)


class TestTorchPool(OnHost):
    modules = standins.torch(None)

    def make_resource(self, driver: Driver) -> MemoryResource:
        cuda = standins.TorchCuda(driver)
        sys.modules.update(standins.torch(cuda))
        return TorchOnHost(cuda.MemPool())


class TestCudaCoreMemory(OnHost):
    modules = standins.cuda_core()

    def make_resource(self, driver: Driver) -> MemoryResource:
        return CudaCoreMemory(standins.DeviceMemoryResource(driver))


class TestEMMMemory(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return resources(standins.Manager, context=driver)[0]


# -- what the suite does not ask ---------------------------------------------------------------------------------------


class Plain(ForeignResource):
    """Memory of the driver, as whatever `wrap` makes of its address."""

    install = "plain"

    def __init__(self, wrap=int):
        super().__init__()
        self.wrap = wrap
        self.given = []

    def _open(self, driver):
        self.opened = driver

    def _acquire(self, nbytes, stream):
        ptr = self.opened.alloc(nbytes, stream)
        self.given.append((ptr, nbytes))
        return self.wrap(ptr), object()

    def _release(self, ptr, nbytes, stream, home, owner):
        self.opened.free(ptr, nbytes, stream)


@pytest.mark.parametrize("name", plugins.ADAPTERS)
def test_its_name_leads_to_it(name):
    registry = plugins.Registry(block=("*",))
    made = registry.resource(name)()
    assert isinstance(made, ForeignResource)
    assert made.driver is None
    assert registry.resources[name][1] == "built in"


@pytest.mark.parametrize("answer", [None, 1.5, "0x100", True, object(), 0, -256])
def test_what_is_no_address_is_refused(driver, answer):
    resource = Plain(lambda ptr: answer)
    resource.bind(driver)
    with pytest.raises(errors.PluginError, match="as an address"):
        resource.allocate(100, LEGACY_STREAM)
    driver.free(*resource.given[0], LEGACY_STREAM)


def test_addresses_come_in_many_wrappings():
    import ctypes

    for given in (4096, ctypes.c_void_p(4096), ctypes.c_uint64(4096), SimpleNamespace(value=4096)):
        assert address(given, "x") == 4096


def test_an_address_that_is_out_is_refused_and_the_first_stays(driver):
    resource = Plain()
    resource.bind(driver)
    first = resource.allocate(100, LEGACY_STREAM)
    resource.wrap = lambda ptr: first
    with pytest.raises(errors.PluginError, match="of a block that is still allocated"):
        resource.allocate(100, LEGACY_STREAM)
    resource.deallocate(first, 100, LEGACY_STREAM)
    driver.free(*resource.given[1], LEGACY_STREAM)


def test_giving_back_twice_is_refused(driver):
    resource = Plain()
    resource.bind(driver)
    ptr = resource.allocate(100, LEGACY_STREAM)
    resource.deallocate(ptr, 100, LEGACY_STREAM)
    with pytest.raises(errors.DevmemError, match="did not allocate the address"):
        resource.deallocate(ptr, 100, LEGACY_STREAM)


def test_a_resource_without_a_device_says_so():
    with pytest.raises(errors.DevmemError, match=r"no device yet: install it with devmem.use_memory"):
        Plain().allocate(1, LEGACY_STREAM)


def test_it_serves_one_device(driver):
    resource = Plain()
    resource.bind(driver)
    resource.bind(driver)
    with pytest.raises(errors.DevmemError, match="bound to a device already"):
        resource.bind(SimpleNamespace(info=replace(driver.info, ordinal=1)))
    with pytest.raises(errors.ClosedError, match="make a new resource"):
        resource.bind(SimpleNamespace(info=driver.info))


@pytest.mark.parametrize(
    ("kind", "library"),
    [(RMMMemory, "rmm"), (CuPyMemory, "cupy"), (TorchMemory, "torch"), (CudaCoreMemory, r"cuda\.core")],
)
def test_a_missing_library_is_named_with_what_to_install(driver, monkeypatch, kind, library):
    for name in ("rmm", "rmm.mr", "cupy", "cupy.cuda", "torch", "cuda.core"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.BackendUnavailable, match=rf"{kind.__name__} needs {library}.*pip install"):
        kind().bind(driver)


@pytest.mark.parametrize("kind", [RMMMemory, CuPyMemory, TorchMemory, CudaCoreMemory])
def test_the_librarys_own_default_is_refused_on_a_device_it_has_no_memory_of(driver, kind):
    every = standins.rmm() | standins.cupy() | standins.torch(None) | standins.cuda_core()
    with (
        standins.installed(**every),
        pytest.raises(
            errors.PluginError, match=rf"{kind.__name__}\(\) without an allocator serves devices of cuda.*host:0"
        ),
    ):
        kind().bind(driver)


def test_rmms_order_is_read_from_what_stands_below(rmm):
    pool = type("PoolMemoryResource", (), {"allocate": None, "deallocate": None})()
    over = SimpleNamespace(get_upstream=lambda: SimpleNamespace(get_upstream=lambda: pool))
    assert RMMMemory(over).stream_ordered
    plain = rmm.CallbackMemoryResource(lambda n, s: 0, lambda p, n, s: None)
    assert not RMMMemory(plain).stream_ordered
    assert not RMMMemory(rmm.StatisticsResourceAdaptor(plain)).stream_ordered


def test_rmm_gets_the_stream_that_is_named(driver, rmm):
    seen = []

    def allocate(nbytes, stream):
        seen.append(stream.__cuda_stream__()[1])
        return driver.alloc(nbytes, LEGACY_STREAM)

    def deallocate(ptr, nbytes, stream):
        seen.append(stream.__cuda_stream__()[1])
        driver.free(ptr, nbytes, LEGACY_STREAM)

    resource = RMMMemory(rmm.CallbackMemoryResource(allocate, deallocate))
    resource.bind(driver)
    for stream in (LEGACY_STREAM, PER_THREAD_STREAM, 0x7700):
        resource.deallocate(resource.allocate(100, stream), 100, stream)
    assert seen == [1, 1, 2, 2, 0x7700, 0x7700]


def test_a_block_goes_back_to_the_rmm_resource_that_it_came_from(driver, rmm):
    resource = RMMMemory(callbacks(rmm, driver))
    resource.bind(driver)
    ptr = resource.allocate(100, LEGACY_STREAM)
    resource.resource = None  # replaced in the meantime
    resource.deallocate(ptr, 100, LEGACY_STREAM)


def test_a_pool_is_waited_for_where_it_cannot_order(driver):
    """CuPy and PyTorch put a block on the list of the stream that it was made for, whichever stream used it last."""
    waited = []
    pool = standins.MemoryPool(driver)
    with standins.installed(**standins.cupy()):
        resource = CuPyMemory(pool)
        resource.bind(driver)
        resource.driver = SimpleNamespace(stream_synchronize=waited.append, info=driver.info)
        side = driver.stream_create(0, True)
        for made, back in ((side, side), (side, LEGACY_STREAM), (PER_THREAD_STREAM, PER_THREAD_STREAM)):
            resource.deallocate(resource.allocate(100, made), 100, back)
    assert waited == [LEGACY_STREAM, PER_THREAD_STREAM]
    pool.free_all_blocks()
    driver.stream_destroy(side)


def test_nothing_is_promised_of_an_allocator_that_is_plugged_into_pytorch(driver):
    cuda = standins.TorchCuda(driver)
    with standins.installed(**standins.torch(cuda)):
        cuda.backend = "pluggable"
        resource = TorchOnHost()
        resource.bind(driver)
        assert (resource.stream_ordered, resource.cached_bytes) == (False, 0)
        resource.trim(0)
        native = TorchOnHost()
        cuda.backend = "native"
        native.bind(driver)
        assert native.stream_ordered


def test_memory_of_another_device_is_refused(driver):
    with standins.installed(**standins.cupy()):
        resource = CuPyMemory(lambda size: standins.MemoryPointer(standins.UnownedMemory(4096, size, None, 3), 0))
        resource.bind(driver)
        with pytest.raises(errors.PluginError, match="memory of device 3, not of device 0"):
            resource.allocate(10, LEGACY_STREAM)


def test_an_allocator_of_cupy_is_a_function(driver):
    with standins.installed(**standins.cupy()), pytest.raises(errors.PluginError, match="is no allocator of CuPy"):
        CuPyMemory(5).bind(driver)


def test_cupys_current_allocator_is_the_default(driver, monkeypatch):
    monkeypatch.setattr(CuPyMemory, "backends", frozenset({"host"}))
    pool = standins.MemoryPool(driver)
    with standins.installed(**standins.cupy(pool.malloc)):
        resource = CuPyMemory()
        resource.bind(driver)
        assert resource.stream_ordered
        assert resource.pool is pool


# -- Numba's interface -------------------------------------------------------------------------------------------------


def test_a_plugin_serves_pinned_memory_and_registers(driver):
    manager = standins.Manager(driver)
    _, pinned = resources(manager)
    pinned.bind(driver)
    assert pinned.kind is MemoryKind.PINNED
    ptr = pinned.allocate(1000, LEGACY_STREAM)
    pinned.deallocate(ptr, 1000, LEGACY_STREAM)
    pinned.host_register(0x10000, 4096, True)
    assert manager.pinned == {0x10000: (4096, True)}
    pinned.host_unregister(0x10000, 4096)
    assert manager.pinned == {}
    with pytest.raises(errors.DevmemError, match="did not register"):
        pinned.host_unregister(0x10000, 4096)


def test_a_plugin_hands_out_handles_for_other_processes(driver):
    device, _ = resources(SimpleNamespace(_numba_memory_manager=standins.Manager), context=driver)
    device.bind(driver)
    ptr = device.allocate(1000, LEGACY_STREAM)
    assert device.get_ipc_handle(ptr) == ("ipc", ptr)
    with pytest.raises(errors.DevmemError, match="no block at"):
        device.get_ipc_handle(ptr + 1)
    device.deallocate(ptr, 1000, LEGACY_STREAM)
    assert device.manager.initialized == 1


def test_a_plugin_of_another_version_is_refused():
    class Newer(standins.Manager):
        interface_version = 2

    with pytest.raises(
        errors.PluginError, match=r"Newer.*\(from .*\) has version 2 of Numba's interface: 1 is supported"
    ):
        resources(Newer)


def test_half_a_plugin_is_refused():
    class Half:
        interface_version = 1
        memalloc = memhostalloc = initialize = lambda self: None

    with pytest.raises(
        errors.PluginError, match=r"it lacks mempin, get_ipc_handle, get_memory_info, reset, defer_cleanup"
    ):
        EMMMemory(Half())
    with pytest.raises(errors.PluginError, match="cannot be instantiated with context"):
        resources(int)


def test_running_out_is_told_by_a_code(driver):
    class CudaAPIError(Exception):
        code = 2

    class Full(standins.Manager):
        def memalloc(self, size):
            raise CudaAPIError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")

    resource = EMMMemory(Full(driver))
    resource.bind(driver)
    with pytest.raises(errors.OutOfMemory, match=r"EMMMemory: 100 bytes are not available.*cuMemAlloc") as caught:
        resource.allocate(100, LEGACY_STREAM)
    assert isinstance(caught.value.__cause__, CudaAPIError)
    CudaAPIError.code = "?"
    with pytest.raises(CudaAPIError):
        resource.allocate(100, LEGACY_STREAM)


def test_the_host_backend_can_do_what_these_tests_lean_on(driver):
    assert Capability.STREAM_ORDERED in driver.info.capabilities
