"""The kinds of CUDA memory: the flags that really reach the driver, our own pool, registration, managed memory, IPC."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from waits import patience

import devmem as dm
from devmem.backends.cuda.hooks import CudaBackend
from devmem.cli.info import info
from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, AllocFlags, Box, Capability, CopyKind, MemoryKind
from devmem.testing import emulator
from tests.helpers.memory_policy import MemoryPolicy

ROOT = Path(__file__).resolve().parents[3]
PAGE = 4096

_reason = CudaBackend().unavailable()
pytestmark = pytest.mark.skipif(_reason is not None, reason=f"no CUDA driver, real or emulated: {_reason}")
emulated_only = pytest.mark.skipif("DEVMEM_EMULATOR" not in os.environ, reason="needs the emulator's control")
cu: Any = importlib.import_module("cuda.bindings.driver") if _reason is None else None

DATA = np.arange(1000, dtype=np.int32)
PORTABLE, DEVICEMAP, WRITE_COMBINED = 1, 2, 4


def ok(result: tuple[Any, ...]) -> Any:
    """The output of a call of the raw bindings that must succeed."""
    assert not result[0], result[0]
    return result[1] if len(result) == 2 else result[1:]


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    dm.close()
    with dm.use_backend("cuda"):
        yield
    dm.close()


@pytest.fixture
def driver() -> Iterator[Any]:
    """A driver of device 0, entered."""
    made: Any = CudaBackend().open(0)
    token = made.enter()
    try:
        yield made
    finally:
        made.exit(token)
        made.close()


@pytest.fixture
def control() -> Iterator[emulator.Control]:
    dm.memory_info()
    found = emulator.control("cuda")
    found.reset()
    yield found
    found.reset()


def flags_of(address: int) -> int:
    with dm.current_device().entered():
        return int(ok(cu.cuMemHostGetFlags(address)))


def pool_of(address: int) -> int:
    """The pool that memory came from, 0 for plain memory."""
    with dm.current_device().entered():
        return int(ok(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address)))


# -- flags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("wc", [False, True])
def test_flags_of_pinned_memory(portable: bool, wc: bool) -> None:
    array = dm.pinned_array(100, portable=portable, wc=wc)
    # The driver may set flags that were not asked for: with unified addressing all memory is portable and mapped.
    asked = (PORTABLE if portable else 0) | (WRITE_COMBINED if wc else 0)
    found = flags_of(array.ctypes.data)
    assert found & asked == asked
    assert bool(found & WRITE_COMBINED) is wc


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("wc", [False, True])
def test_flags_of_mapped_memory(portable: bool, wc: bool) -> None:
    array = dm.mapped_array(100, portable=portable, wc=wc)
    asked = DEVICEMAP | (PORTABLE if portable else 0) | (WRITE_COMBINED if wc else 0)
    found = flags_of(array.ctypes.data)
    assert found & asked == asked
    assert bool(found & WRITE_COMBINED) is wc


@emulated_only
@pytest.mark.parametrize("flags", [AllocFlags.NONE, AllocFlags.PORTABLE, AllocFlags.WRITE_COMBINED, AllocFlags(3)])
def test_exactly_the_flags_asked_for(flags: AllocFlags, driver: Any) -> None:
    """The emulator adds none of its own."""
    expected = (PORTABLE if flags & AllocFlags.PORTABLE else 0) | (
        WRITE_COMBINED if flags & AllocFlags.WRITE_COMBINED else 0
    )
    for kind, extra in ((MemoryKind.PINNED, 0), (MemoryKind.MAPPED, DEVICEMAP)):
        ptr = driver.alloc(100, LEGACY_STREAM, kind, flags)
        assert ok(cu.cuMemHostGetFlags(ptr)) == expected | extra
        driver.free(ptr, 100, LEGACY_STREAM, kind)


@pytest.mark.parametrize("kind", list(MemoryKind))
def test_no_bytes_never_reach_the_driver(kind: MemoryKind, driver: Any) -> None:
    assert driver.alloc(0, LEGACY_STREAM, kind) == 0
    driver.free(0, 0, LEGACY_STREAM, kind)


def test_mapped_memory_has_an_address_for_the_device() -> None:
    array = dm.mapped_array(1000, np.int32)
    array[...] = DATA
    with dm.current_device().entered():
        assert array.ptr == int(ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0)))
    assert array[10:].ptr == array.ptr + 40
    seen = np.zeros(1000, np.int32)
    with dm.current_device().entered() as driver:  # by way of the device's address
        driver.copy(seen.ctypes.data, array.ptr, 4000, CopyKind.D2H, LEGACY_STREAM, blocking=True)
    assert np.array_equal(seen, DATA)


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_the_pool_is_our_own() -> None:
    array = dm.to_device(DATA)
    ours = pool_of(array.ptr)
    default = int(ok(cu.cuDeviceGetDefaultMemPool(0)))
    assert ours not in (0, default)
    assert int(ok(cu.cuDeviceGetMemPool(0))) == default, "the device's current pool was changed under other libraries"


def test_the_pool_keeps_everything() -> None:
    pool = pool_of(dm.to_device(DATA).ptr)
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    assert int(ok(cu.cuMemPoolGetAttribute(cu.CUmemoryPool(pool), threshold))) == (1 << 64) - 1
    default = ok(cu.cuDeviceGetDefaultMemPool(0))
    assert int(ok(cu.cuMemPoolGetAttribute(default, threshold))) == 0, "others' threshold was changed"


def test_one_pool_for_each_device() -> None:
    if CudaBackend().device_count() < 2:
        pytest.skip("one CUDA device only")
    near = pool_of(dm.to_device(DATA).ptr)
    with dm.device(1):
        far = pool_of(dm.to_device(DATA).ptr)
    assert near != far


def test_what_the_pool_keeps_and_gives_back() -> None:
    size = 64 << 20
    before = dm.memory_info()
    array = dm.device_array(size, np.uint8)
    array.free()
    dm.synchronize()  # with a threshold of zero the driver would take everything back here
    kept = dm.memory_info()
    assert kept.cached >= size
    assert kept.free <= before.free - size
    dm.trim(size // 2)
    dm.trim()
    given = dm.memory_info()
    assert given.cached == 0
    assert given.free >= kept.free + size


def test_trimming_spares_what_is_in_use() -> None:
    kept = dm.to_device(DATA)
    dropped = dm.device_array(16 << 20, np.uint8)
    dropped.free()
    dm.trim()
    assert np.array_equal(kept.copy_to_host(), DATA)


@emulated_only
def test_the_pool_goes_with_the_device(control: emulator.Control) -> None:
    dm.close()
    before = control.live()
    dm.to_device(DATA)
    dm.close()
    assert control.live() == before
    assert control.calls()["cuMemPoolDestroy"] >= 1


@emulated_only
def test_what_an_interrupt_has_lost_is_given_back_to_a_context_that_is_shared(
    control: emulator.Control, at_point: Callable[..., Any]
) -> None:
    """The context outlives the device where another library holds it, and destroying a pool frees none of its memory."""
    dm.close()
    ok(cu.cuDevicePrimaryCtxRetain(0))
    try:
        before = control.live()
        folder = str(Path(dm.__file__).parent)
        left, number = 0, 0
        while not left:
            number += 1
            made: Any = CudaBackend().open(0)
            token = made.enter()
            with at_point(number, lambda code: code.co_filename.startswith(folder)) as point:
                made.free_async(made.alloc_async(1000, LEGACY_STREAM), 1000, LEGACY_STREAM)
            left = max(point.left, 0)
            made.exit(token)
            made.close()
            assert control.live() == before, f"{number}: {point.where}"
        assert number > 10
    finally:
        ok(cu.cuDevicePrimaryCtxRelease(0))


@pytest.fixture
def without_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose attribute says that it has no pools."""
    asked = cu.cuDeviceGetAttribute
    pools = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED

    def answer(attribute: Any, device: Any) -> Any:
        error, value = asked(attribute, device)
        return error, 0 if attribute == pools else value

    monkeypatch.setattr(cu, "cuDeviceGetAttribute", answer)
    dm.close()


def test_without_pools_plain_memory_is_used(without_pools: None) -> None:
    info = dm.current_device().info
    assert Capability.STREAM_ORDERED not in info.capabilities
    assert info.facts["memory_pools"] is False
    stream = dm.stream()
    array = dm.to_device(DATA, stream=stream)
    assert np.array_equal(array.copy_to_host(), DATA)
    with dm.current_device().entered():
        attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        assert not int(ok(cu.cuPointerGetAttribute(attribute, array.ptr)) or 0)
    array.free()
    dm.trim()
    assert dm.memory_info().cached == 0
    with pytest.raises(dm.errors.UnsupportedError):
        dm.use_memory("stream_ordered")


@emulated_only
def test_without_pools_no_pool_is_made(without_pools: None, control: emulator.Control) -> None:
    dm.close()
    control.reset()
    dm.memory_info()
    opening = control.calls()["cuMemAlloc"]
    dm.to_device(DATA)
    dm.trim()
    dm.close()
    seen = control.calls()
    assert not [name for name in seen if "Pool" in name], seen
    assert seen["cuMemAlloc"] == seen["cuMemFree"] == 1 + opening


# -- registration ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pages() -> np.ndarray[Any, Any]:
    """Sixteen whole pages of ordinary memory."""
    raw = np.zeros(17 * PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + 16 * PAGE]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """What the driver has registered, by base; undoing anything else fails the test."""
    live: dict[int, int] = {}
    register, unregister = cu.cuMemHostRegister, cu.cuMemHostUnregister

    def registering(ptr: int, nbytes: int, flags: int) -> Any:
        result = register(ptr, nbytes, flags)
        if not result[0]:
            assert ptr not in live
            live[ptr] = nbytes
        return result

    def unregistering(ptr: int) -> Any:
        assert ptr in live, "a base that was never registered"
        del live[ptr]
        return unregister(ptr)

    monkeypatch.setattr(cu, "cuMemHostRegister", registering)
    monkeypatch.setattr(cu, "cuMemHostUnregister", unregistering)
    return live


def test_registering_locks_whole_pages(pages: Any, registered: dict[int, int]) -> None:
    array = pages[100:5000]
    dm.register(array)
    assert registered == {pages.ctypes.data: 2 * PAGE}
    assert flags_of(array.ctypes.data) & PORTABLE
    dm.deregister(array)
    assert registered == {}


def test_overlaps_are_counted_and_undone_at_their_exact_bases(pages: Any, registered: dict[int, int]) -> None:
    base = pages.ctypes.data
    first, second, third = pages[2 * PAGE : 4 * PAGE], pages[: 8 * PAGE], pages[3 * PAGE + 7 : 9 * PAGE + 1]
    dm.register(first)
    dm.register(second)
    dm.register(third)
    assert registered == {
        base + 2 * PAGE: 2 * PAGE,
        base: 2 * PAGE,
        base + 4 * PAGE: 4 * PAGE,
        base + 8 * PAGE: 2 * PAGE,
    }
    dm.deregister(first)  # the others still need its pages
    assert base + 2 * PAGE in registered
    dm.deregister(second)
    assert registered == {base + 2 * PAGE: 2 * PAGE, base + 4 * PAGE: 4 * PAGE, base + 8 * PAGE: 2 * PAGE}
    dm.deregister(third)
    assert registered == {}
    with pytest.raises(dm.errors.DevmemError):
        dm.deregister(third)


def test_registered_pages_that_another_library_has_locked(pages: Any) -> None:
    """The driver refuses them: a typed error, and nothing of ours stays registered."""
    dm.memory_info()
    with dm.current_device().entered():
        ok(cu.cuMemHostRegister(pages.ctypes.data + 4 * PAGE, PAGE, 0))
    try:
        with pytest.raises(BackendError) as caught:
            dm.register(pages[:PAGE], pages[2 * PAGE : 6 * PAGE])
        assert caught.value.call == "cuMemHostRegister"
        assert caught.value.name == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        assert caught.value.code == 712
    finally:
        with dm.current_device().entered():
            ok(cu.cuMemHostUnregister(pages.ctypes.data + 4 * PAGE))
    with dm.register(pages):
        assert flags_of(pages.ctypes.data)
    with dm.current_device().entered():
        assert cu.cuMemHostGetFlags(pages.ctypes.data)[0]


def test_mapped_registers_pages_that_the_device_reaches(pages: Any, registered: dict[int, int]) -> None:
    pages[...] = np.arange(pages.size) % 251
    with dm.mapped(pages[PAGE : 3 * PAGE]) as view:
        assert flags_of(pages.ctypes.data + PAGE) & DEVICEMAP
        assert np.array_equal(view.copy_to_host(), pages[PAGE : 3 * PAGE])
        view.fill(9)
    assert np.all(pages[PAGE : 3 * PAGE] == 9)
    assert registered == {}


def test_closing_undoes_registrations(pages: Any, registered: dict[int, int]) -> None:
    dm.register(pages, pages[:PAGE])
    dm.close()
    assert registered == {}


# -- managed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attach_global", [True, False])
def test_managed_memory_is_attached_globally(attach_global: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    allocate = cu.cuMemAllocManaged
    monkeypatch.setattr(
        cu, "cuMemAllocManaged", lambda nbytes, flags: (asked.append(flags), allocate(nbytes, flags))[1]
    )
    array = dm.managed_array(1000, np.int32, attach_global=attach_global)
    assert asked == [1 if attach_global else 2]
    with dm.current_device().entered():
        attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
        assert ok(cu.cuPointerGetAttribute(attribute, array.ptr))
    array[...] = DATA
    assert np.array_equal(array.copy_to_host(), DATA)
    array.copy_to_device(DATA[::-1].copy())
    dm.synchronize()
    assert np.array_equal(array, DATA[::-1])


def test_managed_hints_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    if Capability.MANAGED not in dm.current_device().info.capabilities:
        pytest.skip("the device does not migrate managed memory")
    seen: list[tuple[Any, ...]] = []

    def spy(name: str) -> None:
        name = f"{name}_v2" if hasattr(cu, f"{name}_v2") else name
        real = getattr(cu, name)

        def call(*arguments: Any) -> Any:
            seen.append((name, *arguments))
            return real(*arguments)

        monkeypatch.setattr(cu, name, call)

    spy("cuMemPrefetchAsync")
    spy("cuMemAdvise")
    array = dm.managed_array(1000, np.int32)
    side = dm.stream()
    array[250:].prefetch()
    array.prefetch(to_host=True, stream=side)
    side.synchronize()
    kinds = cu.CUmemLocationType
    (_, ptr, nbytes, place, flags, stream), (_, _, _, host, _, on) = seen
    assert (ptr, nbytes, flags, int(stream)) == (array.ptr + 1000, 3000, 0, LEGACY_STREAM)
    assert (place.type, place.id) == (kinds.CU_MEM_LOCATION_TYPE_DEVICE, 0)
    assert host.type == kinds.CU_MEM_LOCATION_TYPE_HOST
    assert int(on) == side.handle
    seen.clear()
    words = [f"{verb}_{what}" for verb in ("set", "unset") for what in ("read_mostly", "preferred_location")]
    for word in [*words, "set_accessed_by", "unset_accessed_by"]:
        array.advise(word)
    array.advise("set_preferred_location", to_host=True)
    assert [each[3] for each in seen] == [
        *(getattr(cu.CUmem_advise, f"CU_MEM_ADVISE_{word.upper()}") for word in words),
        cu.CUmem_advise.CU_MEM_ADVISE_SET_ACCESSED_BY,
        cu.CUmem_advise.CU_MEM_ADVISE_UNSET_ACCESSED_BY,
        cu.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
    ]


# -- fills, batches, rows, peers ---------------------------------------------------------------------------------------


@emulated_only
@pytest.mark.parametrize(
    ("dtype", "value", "call"),
    [
        (np.uint8, 0xAB, "cuMemsetD8Async"),
        (np.int16, -2, "cuMemsetD16Async"),
        (np.float32, 1.5, "cuMemsetD32Async"),
        (np.int32, 0x01010101, "cuMemsetD8Async"),
        (np.int32, 0x00010001, "cuMemsetD16Async"),
        (np.float64, 0.0, "cuMemsetD8Async"),
        (np.complex64, 0, "cuMemsetD8Async"),
    ],
)
def test_fills_take_the_narrowest_memset(dtype: Any, value: Any, call: str, control: emulator.Control) -> None:
    array = dm.device_array(777, dtype)
    control.reset()
    array.fill(value)
    assert {name: count for name, count in control.calls().items() if "Memset" in name} == {call: 1}
    assert np.array_equal(array.copy_to_host(), np.full(777, value, dtype))


@emulated_only
def test_a_fill_that_no_memset_can_do(control: emulator.Control) -> None:
    array = dm.device_array(5000, np.float64)
    control.reset()
    array.fill(np.pi)
    assert not [name for name in control.calls() if "Memset" in name]
    assert np.array_equal(array.copy_to_host(), np.full(5000, np.pi))


def test_a_batch_copies_in_both_directions(driver: Any) -> None:
    if Capability.BATCH_COPY not in driver.info.capabilities:
        pytest.skip("the driver or the binding has no batches")
    base = driver.alloc(4000, LEGACY_STREAM)
    back = np.zeros(1000, np.int32)
    stream = driver.stream_create(0, True)
    starts, sizes = [0, 400, 1200, 3996], [400, 800, 2796, 4]
    there = [base + at for at in starts]
    driver.copy_batch(there, [DATA.ctypes.data + at for at in starts], sizes, CopyKind.H2D, stream)
    driver.copy_batch([back.ctypes.data + at for at in starts], there, sizes, CopyKind.D2H, stream)
    driver.stream_synchronize(stream)
    assert np.array_equal(back, DATA)
    driver.stream_destroy(stream)
    driver.free(base, 4000, LEGACY_STREAM)


def test_batches_read_in_stream_order_and_from_and_to_the_host_beside_what_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not hasattr(cu, "cuMemcpyBatchAsync"):
        pytest.skip("this cuda-bindings has no batches")
    asked: list[list[tuple[Any, int]]] = []
    batch, batch_of_boxes = cu.cuMemcpyBatchAsync, cu.cuMemcpy3DBatchAsync

    def watch(described: Any) -> None:
        asked.append([(each.srcAccessOrder, each.flags) for each in described])

    def copying(*arguments: Any) -> Any:
        watch(arguments[4])
        return batch(*arguments)

    def copying_boxes(*arguments: Any) -> Any:
        watch(arguments[1])
        return batch_of_boxes(*arguments)

    monkeypatch.setattr(cu, "cuMemcpyBatchAsync", copying)
    monkeypatch.setattr(cu, "cuMemcpy3DBatchAsync", copying_boxes)
    order = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    beside = int(cu.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
    with dm.current_device().entered() as driver:
        if Capability.VOLUME_BATCH not in driver.info.capabilities:
            pytest.skip("the driver has no batches")
        there, here = driver.alloc(4000, LEGACY_STREAM), driver.alloc(4000, LEGACY_STREAM, MemoryKind.PINNED)
        stream = driver.stream_create(0, True)
        for kind, to, origin, flags in (
            (CopyKind.H2D, there, here, beside),
            (CopyKind.D2H, here, there, beside),
            (CopyKind.D2D, there, there + 2000, 0),
        ):
            asked.clear()
            driver.copy_batch([to, to + 400], [origin, origin + 400], [400, 400], kind, stream)
            driver.copy_3d_batch([Box(to, 100, 2, origin, 100, 2, 50, 2, 1)], kind, stream)
            assert asked == [[(order, flags)]] * 2
        driver.stream_synchronize(stream)
        driver.stream_destroy(stream)
        driver.free(there, 4000, LEGACY_STREAM)
        driver.free(here, 4000, LEGACY_STREAM, MemoryKind.PINNED)


@emulated_only
def test_a_batch_is_one_call(driver: Any, control: emulator.Control) -> None:
    if Capability.BATCH_COPY not in driver.info.capabilities:
        pytest.skip("the driver or the binding has no batches")
    one, two = driver.alloc(400, LEGACY_STREAM), driver.alloc(400, LEGACY_STREAM)
    stream = driver.stream_create(0, False)
    control.reset()
    assert driver.copy_batch([two, two + 200], [one, one + 200], [200, 200], CopyKind.D2D, stream) is False
    assert control.calls() == {"cuMemcpyBatchAsync": 1}
    driver.synchronize()
    driver.stream_destroy(stream)
    driver.free(one, 400, LEGACY_STREAM)
    driver.free(two, 400, LEGACY_STREAM)


def test_without_batches_on_an_older_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    library = importlib.import_module("devmem.backends.cuda.binding")
    monkeypatch.setattr(library, "OLDEST_DRIVER", 12000)
    for version in (12060, 12010):
        dm.close()
        monkeypatch.setattr(cu, "cuDriverGetVersion", lambda version=version: (cu.CUresult.CUDA_SUCCESS, version))
        assert Capability.BATCH_COPY not in dm.current_device().info.capabilities
    assert Capability.MANAGED not in dm.current_device().info.capabilities
    with pytest.raises(dm.errors.UnsupportedError):
        dm.managed_array(10).prefetch()


@emulated_only
@pytest.mark.parametrize("version", [12000, 12010, 12020, 12060, 12080, 12090, 13000])
def test_nothing_is_called_that_the_driver_has_not_got(version: int) -> None:
    """Round trips through everything, on a driver that hides what came after it; one too old for the binding is refused."""
    script = """
import numpy as np
import devmem as dm
from devmem.spi.types import CopyKind
data = np.arange(6000, dtype=np.int32).reshape(3, 4, 500)
stream = dm.stream()
a = dm.to_device(data, stream=stream)
b = dm.to_device(np.asfortranarray(data))
a[:, ::2, 100:].copy_to_device(data[:, ::2, 100:])
a[:, ::2, :300].copy_to_device(b[:, ::2, :300])
assert np.array_equal(a.copy_to_host(), data) and np.array_equal(b.copy_to_host(), data)
with dm.device(1):
    assert np.array_equal(dm.to_device(a).copy_to_host(), data)
m = dm.managed_array(100, np.int32)
for call in (m.prefetch, lambda: m.advise("set_read_mostly")):
    try:
        call()
    except dm.errors.UnsupportedError:
        assert VERSION < 12020
dm.mapped_array(10).copy_to_host()
with dm.register(data):
    a.copy_to_device(data)
dm.full(100, np.pi); dm.zeros(100)
start, end = dm.event(), dm.event()
start.record(stream); end.record(stream); end.synchronize(); start.elapsed_time(end)
dm.memory_info(); dm.trim(); dm.reset()
assert ("decompress_pool" in dm.current_device().info.capabilities) == (VERSION >= 12080)
with dm.current_device().entered() as driver:
    one, two = driver.alloc(8, 1), driver.alloc(8, 1)
    if "batch_copy" in driver.info.capabilities:
        made = driver.stream_create(0, True)
        driver.copy_batch([one], [two], [8], CopyKind.D2D, made)
        driver.synchronize()
        driver.stream_destroy(made)
    held = driver.hold(1)
    driver.release(held)
    driver.synchronize()
    assert len(driver.ipc_export(one)) == 64
dm.close()
"""
    script = script.replace("VERSION", str(version))
    if version // 1000 < cu.CUDA_VERSION // 1000:
        script = "import devmem as dm\nassert [b.usable for b in dm.backends() if b.name == 'cuda'] == [False]"
    environment = {
        **os.environ,
        "DEVMEM_BACKEND": "cuda",
        "PYTHONPATH": str(ROOT),
        "DEVMEM_EMULATOR_CUDA_VERSION": str(version),
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(140),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@emulated_only
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="policies of memory are Linux's")
@pytest.mark.parametrize("nodes", ["0", "0-1"])
def test_page_locked_memory_is_placed_on_the_devices_own_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: str
) -> None:
    monkeypatch.setenv("DEVMEM_EMULATOR_HOST_NODE", "1")
    policy = MemoryPolicy(monkeypatch, tmp_path)
    policy.has_nodes(nodes)
    placed: list[tuple[int, int]] = [(1, 2), (0, 0)] if nodes == "0-1" else []
    with dm.current_device().entered() as driver:
        assert driver.info.facts["pinned_node"] == (1 if placed else -1)
        assert ("NUMA node 1" in str(driver.info)) == bool(placed)
        for kind in MemoryKind:
            policy.set.clear()
            driver.free(driver.alloc(PAGE, LEGACY_STREAM, kind), PAGE, LEGACY_STREAM, kind)
            assert policy.set == (placed if kind in (MemoryKind.PINNED, MemoryKind.MAPPED) else [])
        policy.set.clear()
    with dm.use_memory("pinned_pool:64MiB", kind="pinned"):
        dm.pinned_array(3)
    assert policy.set == placed
    shown = CliRunner().invoke(info, [])
    assert shown.exit_code == 0 and ("node 1" in shown.output) == bool(placed)


#: Copies over a driver of 13.2, each with the call that it is to take: in the stream's order, page-locked memory with attributes.
WITH_ATTRIBUTES = """
import itertools, numpy as np, devmem as dm
from devmem.toolkit import copy_calls
from devmem.testing import emulator
times = itertools.cycle(TIMES)  # of the plain calls, of the newer one
copy_calls.time_of = lambda call: (call(), next(times))[1]
told = dm.current_device().info.facts["copy_calls"]
assert ("memory take the call with attributes" in told) == BETTER and " us by the call with attributes, " in told, told
control, name = emulator.control("cuda"), "cuMemcpyWithAttributesAsync"
control.reset()
first = dm.to_device(np.arange(10))
assert "cuStreamSynchronize" not in control.calls(), "no stream is left that the legacy stream is not in order with"
stream = dm.stream(non_blocking=True)
host, pageable = dm.pinned_array(1000), np.arange(1000.0)
host[...] = pageable
def taken(call):
    control.reset()
    call()
    return control.calls().get(name, 0)
up = dm.device_array(1000)
assert taken(lambda: up.copy_to_device(host, stream)) == BETTER
assert taken(lambda: up.copy_to_host(host, stream)) == BETTER
with dm.current_device().entered() as driver, control.hold(stream):
    assert driver.copy(up.ptr, host.ctypes.data, 8000, "h2d", stream.handle, blocking=False) is True
assert taken(lambda: up.copy_to_device(pageable, stream)) == 0, "a pageable source is read before the call returns"
assert taken(lambda: up.copy_to_device(host)) == 0, "the legacy stream takes no such call"
with dm.capture(stream) as plan:
    assert taken(lambda: up.copy_to_device(host, stream)) == 0
plan.replay()
stream.synchronize()
assert (up.copy_to_host() == pageable).all()
plan.close()
"""


WITHOUT_ATTRIBUTES = cu is not None and not hasattr(cu, "cuMemcpyWithAttributesAsync")


@emulated_only
@pytest.mark.skipif(WITHOUT_ATTRIBUTES, reason="this cuda-bindings has no such call")
@pytest.mark.parametrize(("times", "better"), [((2e-6, 1e-6), True), ((1e-6, 1e-6), True), ((1e-6, 2e-6), False)])
def test_single_copies_take_attributes_where_that_is_no_slower(times: tuple[float, float], better: bool) -> None:
    script = WITH_ATTRIBUTES.replace("TIMES", str(times)).replace("BETTER", str(better))
    environment = {**os.environ, "DEVMEM_BACKEND": "cuda", "PYTHONPATH": str(ROOT)}
    environment["DEVMEM_EMULATOR_CUDA_VERSION"] = "13020"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@emulated_only
@pytest.mark.skipif(WITHOUT_ATTRIBUTES, reason="this cuda-bindings has no such call")
def test_a_call_with_attributes_that_cannot_be_measured_is_not_taken() -> None:
    script = """
import devmem as dm
from devmem.testing import emulator
emulator.load("cuda")
emulator.control("cuda").fail("cuMemcpyWithAttributesAsync", 1, 801)
told = dm.current_device().info.facts["copy_calls"]
assert "take the plain calls" in told, told
assert dm.to_device([1, 2]).tolist() == [1, 2]
"""
    environment = {**os.environ, "DEVMEM_BACKEND": "cuda", "PYTHONPATH": str(ROOT)}
    environment["DEVMEM_EMULATOR_CUDA_VERSION"] = "13020"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@emulated_only
def test_rows_with_pitches_that_the_fast_call_refuses(driver: Any, control: emulator.Control) -> None:
    """Within a device cuMemcpy2DAsync may refuse what cuMemcpy2DUnaligned takes."""
    src, dst = driver.alloc(3000, LEGACY_STREAM), driver.alloc(3000, LEGACY_STREAM)
    source = (np.arange(3000) % 251).astype(np.uint8)
    back = np.zeros(3000, np.uint8)
    stream = driver.stream_create(0, True)
    driver.copy(src, source.ctypes.data, 3000, CopyKind.H2D, stream, blocking=True)
    driver.fill(dst, 0, 1, 3000, stream)
    control.reset()
    control.fail("cuMemcpy2DAsync", 1, 1)
    box = Box(dst, 30, 60, src, 50, 60, 20, 60, 1)
    running = driver.copy_strided(box, CopyKind.D2D, stream, blocking=False)
    assert running is False
    seen = control.calls()
    assert seen["cuMemcpy2DUnaligned"] == 1
    assert seen["cuStreamSynchronize"] == 2  # what came before on the stream, and the copy itself, for what comes after
    driver.copy(back.ctypes.data, dst, 3000, CopyKind.D2H, stream, blocking=True)
    expected = np.zeros(3000, np.uint8)
    expected[: 60 * 30].reshape(60, 30)[:, :20] = source.reshape(60, 50)[:, :20]
    assert np.array_equal(back, expected)
    control.fail("cuMemcpy2DAsync", 1, 1)
    with pytest.raises(BackendError, match="cuMemcpy2DAsync"):  # no such second way from the host
        driver.copy_strided(box._replace(src=source.ctypes.data), CopyKind.H2D, stream, blocking=False)
    driver.stream_destroy(stream)
    driver.free(src, 3000, LEGACY_STREAM)
    driver.free(dst, 3000, LEGACY_STREAM)


@emulated_only
@pytest.mark.parametrize("stack", ["driver", "stream_ordered"])
def test_the_first_copy_between_devices_enables_access_to_the_others_memory(
    control: emulator.Control, stack: str
) -> None:
    """Without it the driver passes the bytes through the host, and says nothing."""
    if len([each for each in dm.devices() if each.backend == "cuda"]) < 2:
        pytest.skip("one CUDA device only")
    for _ in range(2):  # a device that is opened again has a new context and a new pool
        there = dm.device("cuda:1")
        with there, dm.use_memory(stack):
            source = dm.to_device(np.arange(1000))
        control.reset()
        for _ in range(3):
            assert np.array_equal(dm.to_device(source, device=0).copy_to_host(), np.arange(1000))
        calls = control.calls()
        assert (calls["cuCtxEnablePeerAccess"], calls["cuMemPoolSetAccess"]) == (1, 1)
        dm.reset(1)


@emulated_only
@pytest.mark.parametrize("code", [704, 711], ids=["by another library already", "too many peers"])
def test_a_copy_between_devices_goes_on_where_access_is_not_enabled_anew(control: emulator.Control, code: int) -> None:
    if len([each for each in dm.devices() if each.backend == "cuda"]) < 2:
        pytest.skip("one CUDA device only")
    dm.reset(0)
    dm.reset(1)
    source = dm.to_device(DATA, device=1)
    dm.zeros(1, device=0)
    control.reset()
    control.fail("cuCtxEnablePeerAccess", 1, code)
    for _ in range(2):
        assert np.array_equal(dm.to_device(source, device=0).copy_to_host(), DATA)
    assert control.calls()["cuCtxEnablePeerAccess"] == 1
    control.reset()


@emulated_only
def test_a_copy_between_devices_is_one_peer_copy(control: emulator.Control) -> None:
    near = dm.to_device(DATA)
    control.reset()
    far = dm.to_device(near, device=1)
    assert control.calls()["cuMemcpyPeerAsync"] == 1
    near.fill(0)
    assert np.array_equal(far.copy_to_host(), DATA)
    near.copy_to_device(far)
    assert np.array_equal(near.copy_to_host(), DATA)


@emulated_only
def test_between_devices_that_cannot_reach_each_other(
    control: emulator.Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = dm.to_device(DATA)
    monkeypatch.setattr(cu, "cuDeviceCanAccessPeer", lambda *_: (cu.CUresult.CUDA_SUCCESS, 0))
    control.reset()
    far = dm.to_device(near, device=1)
    assert "cuMemcpyPeerAsync" not in control.calls()
    assert np.array_equal(far.copy_to_host(), DATA)


# -- IPC ---------------------------------------------------------------------------------------------------------------

IMPORTER = """
import sys
import numpy as np
from devmem.backends.cuda.hooks import CudaBackend
from devmem.spi.types import CopyKind
backend = CudaBackend()
assert backend.unavailable() is None
driver = backend.open(0)
driver.enter()
ptr = driver.ipc_open(bytes.fromhex(sys.argv[1]))
seen = np.zeros(1000, np.int32)
driver.copy(seen.ctypes.data, ptr, 4000, CopyKind.D2H, 1, blocking=True)
assert np.array_equal(seen, np.arange(1000)), seen
driver.fill(ptr, 7, 4, 500, 1)
driver.synchronize()
driver.ipc_close(ptr)
driver.close()
"""


def test_shared_with_another_process(driver: Any) -> None:
    ptr = driver.alloc(4000, LEGACY_STREAM)
    driver.copy(ptr, DATA.ctypes.data, 4000, CopyKind.H2D, LEGACY_STREAM, blocking=True)
    handle = driver.ipc_export(ptr)
    assert isinstance(handle, bytes)
    assert len(handle) == 64
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER, handle.hex()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=patience(140),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    back = np.zeros(1000, np.int32)
    driver.copy(back.ctypes.data, ptr, 4000, CopyKind.D2H, LEGACY_STREAM, blocking=True)
    assert np.array_equal(back, np.concatenate([np.full(500, 7), DATA[500:]]))
    driver.free(ptr, 4000, LEGACY_STREAM)


def test_not_opened_in_the_process_that_shares_it(driver: Any) -> None:
    ptr = driver.alloc(4000, LEGACY_STREAM)
    handle = driver.ipc_export(ptr)
    with pytest.raises(BackendError) as caught:
        driver.ipc_open(handle)
    assert caught.value.call == "cuIpcOpenMemHandle"
    driver.free(ptr, 4000, LEGACY_STREAM)


def test_memory_of_a_pool_is_not_shared(driver: Any) -> None:
    ptr = driver.alloc_async(4000, LEGACY_STREAM)
    driver.synchronize()
    with pytest.raises(BackendError, match=r"use_memory\(DriverMemory\(\)\)") as caught:
        driver.ipc_export(ptr)
    assert (caught.value.call, caught.value.code) == ("cuIpcGetMemHandle", 1)
    driver.free_async(ptr, 4000, LEGACY_STREAM)


@emulated_only
@pytest.mark.parametrize("garbage", [bytes(64), b"x" * 64])
def test_a_handle_that_is_none(driver: Any, garbage: bytes) -> None:
    with pytest.raises(BackendError, match="cuIpcOpenMemHandle"):
        driver.ipc_open(garbage)


@pytest.mark.parametrize("size", [0, 63, 65])
def test_a_handle_of_another_size(driver: Any, size: int) -> None:
    """Copied into the driver's struct unseen it would read or write past the end."""
    with pytest.raises(dm.errors.LayoutError, match=f"64 bytes, not {size}"):
        driver.ipc_open(bytes(size))


# -- facts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cuDeviceGetUuid", "cuMemPrefetchAsync", "cuMemAdvise"])
def test_of_two_forms_of_a_function_the_newer_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda-bindings 12 has both, the newer as ..._v2: the older UUID is that of a MIG partition's device. 13 has one."""
    forms = [form for form in (name, f"{name}_v2") if hasattr(cu, form)]
    assert len(forms) == (2 if metadata.version("cuda-bindings").startswith("12.") else 1)
    called: list[str] = []
    for form in forms:
        monkeypatch.setattr(cu, form, lambda *_, form=form: called.append(form) or (cu.CUresult.CUDA_SUCCESS, None))
    importlib.import_module("devmem.backends.cuda.binding").bind(name, pytest.fail)()
    assert called == forms[-1:]


def test_a_devices_uuid_is_asked_for_in_its_newer_form(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = [form for form in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2") if hasattr(cu, form)]
    called: list[str] = []
    for form in forms:
        ask = getattr(cu, form)
        monkeypatch.setattr(cu, form, lambda device, form=form, ask=ask: called.append(form) or ask(device))
    CudaBackend().open(0).close()
    assert set(called) == {forms[-1]}


def test_the_facts_of_a_device_are_the_drivers() -> None:
    info = dm.current_device().info
    assert (info.backend, info.ordinal) == ("cuda", 0)
    device = ok(cu.cuDeviceGet(0))
    assert info.name == ok(cu.cuDeviceGetName(256, device)).partition(b"\0")[0].decode()
    assert info.uuid.replace("-", "") == bytes(ok(cu.cuDeviceGetUuid(device)).bytes).hex()
    assert info.total_bytes == ok(cu.cuDeviceTotalMem(device)) == dm.memory_info().total
    assert int(ok(cu.cuDeviceGetByPCIBusId(info.pci_id.encode()))) == int(device)
    assert info.arch == f"sm_{info.facts['compute_capability'].replace('.', '')}"
    assert set(info.facts) >= {
        "compute_capability",
        "copy_engines",
        "driver_version",
        "integrated",
        "ipc",
        "managed_memory",
        "memory_pools",
        "pageable_memory_access",
    }
    uuids: Callable[[], set[str]] = lambda: {each.info.uuid for each in dm.devices() if each.backend == "cuda"}  # noqa: E731
    assert len(uuids()) == CudaBackend().device_count()
