"""What devmem takes for granted of a real driver, one row of docs/reference/assumptions.md each.

Neither the emulated drivers nor other imitations can tell whether a row holds: they were written with the same assumptions.
``scripts/gpu-check`` runs this file on a device and says of each row whether it holds there. Here it shows that the rows run.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem.spi.errors import BackendError, UnsupportedError
from devmem.spi.types import LEGACY_STREAM, AllocFlags, CopyKind, MemoryKind
from devmem.testing import StreamHold

#: As many streams as no device has queues in hardware.
MANY_STREAMS = 64


@pytest.fixture
def driver(devmem_backend: str) -> Iterator[Any]:
    device = dm.current_device()
    with device.entered() as driver:
        yield driver
        driver.synchronize()
    dm.close()


@pytest.fixture
def stream(driver: Any) -> Iterator[int]:
    made = driver.stream_create(0, True)
    yield made
    driver.stream_synchronize(made)
    driver.stream_destroy(made)


def need(driver: Any, *capabilities: str, kind: str = "device") -> None:
    for capability in capabilities:
        if capability not in driver.info.capabilities:
            pytest.skip(f"the device lacks {capability}")
    if kind not in driver.info.memory_kinds:
        pytest.skip(f"the device has no {kind} memory")


def held(driver: Any, stream: int) -> StreamHold:
    """A hold of fifteen seconds; afterwards `expired` says whether the block waited for the stream."""
    need(driver, "hold")
    return StreamHold(driver, stream, patience=15.0, tolerant=True)


@pytest.mark.parametrize("nbytes", [1 << 20, 16 << 20, 64 << 20])
@pytest.mark.parametrize("kind", [MemoryKind.DEVICE, MemoryKind.PINNED])
def test_allocating_waits_for_no_stream(driver: Any, stream: int, kind: MemoryKind, nbytes: int) -> None:
    """Staging makes its slots, of 16 MiB, while copies run. A driver may serve small blocks from a cache of its own."""
    need(driver, kind=kind)
    with held(driver, stream) as hold:
        ptr = driver.alloc(nbytes, LEGACY_STREAM, kind)
        expired = hold.expired
    driver.free(ptr, nbytes, LEGACY_STREAM, kind)
    assert not expired, f"allocating {nbytes} bytes of {kind} memory waited for a stream"


@pytest.mark.parametrize("nbytes", [4096, 1 << 20])
def test_a_pageable_upload_waits_for_no_stream(driver: Any, stream: int, nbytes: int) -> None:
    """The vendors' manuals leave it open: where it waits, `to_device` of pageable memory below the staging size does."""
    data, ptr = np.ones(nbytes, np.uint8), driver.alloc(nbytes, LEGACY_STREAM)
    with held(driver, stream) as hold:
        driver.copy(ptr, data.ctypes.data, nbytes, CopyKind.H2D, stream, blocking=False)
        expired = hold.expired
    driver.stream_synchronize(stream)
    driver.free(ptr, nbytes, LEGACY_STREAM)
    assert not expired, f"an upload of {nbytes} pageable bytes waited for its stream"


def test_a_held_stream_stops_no_other(driver: Any, stream: int) -> None:
    """Streams may share queues in hardware, and a hold is a wait for a value in memory."""
    others = [driver.stream_create(0, True) for _ in range(MANY_STREAMS)]
    ptr = driver.alloc(4096, LEGACY_STREAM)
    with held(driver, stream) as hold:
        for other in others:
            driver.fill(ptr, 1, 1, 4096, other)
        for other in others:
            driver.stream_synchronize(other)
        expired = hold.expired
    for other in others:
        driver.stream_destroy(other)
    driver.free(ptr, 4096, LEGACY_STREAM)
    assert not expired, "a stream waited for another one that is held"


@pytest.mark.parametrize("flags", [AllocFlags.NONE, AllocFlags.WRITE_COMBINED, AllocFlags.PORTABLE])
def test_page_locked_memory_is_used_at_the_hosts_address(driver: Any, flags: AllocFlags) -> None:
    """Imported page-locked arrays are used at the address that they tell, unless the driver knows no device for it."""
    need(driver, "mapped", "pointer_info", kind="mapped")
    host = driver.alloc(4096, LEGACY_STREAM, MemoryKind.MAPPED, flags)
    found = driver.device_pointer(host), driver.pointer_device(host)
    driver.free(host, 4096, LEGACY_STREAM, MemoryKind.MAPPED)
    assert host == found[0] or found[1] is None


def test_registered_memory_is_used_at_the_hosts_address(driver: Any) -> None:
    need(driver, "mapped", "host_register", "pointer_info")
    pages = np.frombuffer(mmap.mmap(-1, 2 * mmap.PAGESIZE), np.uint8)
    host = pages.ctypes.data
    driver.host_register(host, pages.size, True)
    found = driver.device_pointer(host), driver.pointer_device(host)
    driver.host_unregister(host, pages.size)
    assert host == found[0] or found[1] is None


def test_pages_mapped_read_only_are_registered_or_refused(driver: Any) -> None:
    """Documented for CUDA alone, with a flag. A refusal leaves a copy by staging."""
    need(driver, "host_register")
    pages = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ), np.uint8)
    try:
        driver.host_register(pages.ctypes.data, pages.size, False)
    except BackendError as error:
        pytest.skip(f"refused: {error}")
    driver.host_unregister(pages.ctypes.data, pages.size)


EXPORTER = """
import sys
import devmem as dm
with dm.current_device().entered() as driver:
    print(driver.ipc_export(driver.alloc(1 << 20, 1)).hex(), flush=True)
    sys.stdin.readline()
"""


def test_the_range_of_memory_of_another_process_is_known(driver: Any) -> None:
    """Not documented for memory that was opened by IPC; devmem checks the layouts of imported arrays by it."""
    need(driver, "ipc", "pointer_info")
    command = [sys.executable, "-c", EXPORTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        ptr = driver.ipc_open(bytes.fromhex(other.stdout.readline().strip()))
        found = driver.pointer_range(ptr)
        driver.ipc_close(ptr)
        other.communicate("\n", timeout=patience(140))
    assert found is not None and found[0] <= ptr and ptr + (1 << 20) <= found[0] + found[1]


POOL_IMPORTER = """
import pickle, sys
import devmem as dm
given = pickle.loads(bytes.fromhex(sys.stdin.readline()))
one, two = dm.open_ipc_array(given), dm.open_ipc_array(given)
assert (one.copy_to_host() == 5).all()
one.free()
two[...] = 6
two.free()
again = dm.open_ipc_array(given)
assert (again.copy_to_host() == 6).all()
"""


def test_memory_of_the_drivers_pool_is_shared_by_a_descriptor(driver: Any) -> None:
    """And again after it was let go of, in the same process: the driver is not documented to count imports."""
    need(driver, "pool_ipc")
    with dm.use_memory("stream_ordered"):
        array = dm.full(1 << 20, 5, "u1")
    handle = pickle.dumps(array.get_ipc_handle()).hex()
    done = subprocess.run(
        [sys.executable, "-c", POOL_IMPORTER],
        input=handle + "\n",
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (array.copy_to_host() == 6).all()


def test_virtual_memory_is_shared_by_a_descriptor(driver: Any) -> None:
    """And mapped twice by the process that opens it, whose mappings stay when the memory is freed here."""
    need(driver, "virtual")
    with dm.use_memory("virtual"):
        array = dm.full(1 << 20, 5, "u1")
    handle = pickle.dumps(array.get_ipc_handle()).hex()
    command = [sys.executable, "-c", POOL_IMPORTER]
    done = subprocess.run(command, input=handle + "\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (array.copy_to_host() == 6).all()


def test_trimming_gives_back_what_was_freed_and_waited_for(driver: Any, stream: int) -> None:
    """Without the wait the pool may still count such a block as in use: so devmem waits, then trims."""
    need(driver, "stream_ordered", "pool_control")
    driver.free_async(driver.alloc_async(8 << 20, stream), 8 << 20, stream)
    driver.pool_trim(0)  # too early for some, and no error
    driver.stream_synchronize(stream)
    driver.pool_trim(0)
    assert driver.pool_cached() == 0


def test_memory_of_the_pool_is_used_on_streams_of_another_context(driver: Any, stream: int) -> None:
    """Foreign streams need not be of the primary context."""
    need(driver, "stream_ordered")
    if driver.info.backend != "cuda":
        pytest.skip("the vendor has no contexts")
    cu = pytest.importorskip("cuda.bindings.driver")
    ptr = driver.alloc_async(4096, stream)
    driver.stream_synchronize(stream)
    try:
        made, context = cu.cuCtxCreate(None, 0, driver.info.ordinal)
    except TypeError:  # cuda-bindings 12
        made, context = cu.cuCtxCreate(0, driver.info.ordinal)
    assert int(made) == 0, made
    try:
        error, foreign = cu.cuStreamCreate(1)
        assert int(error) == 0, error
        assert int(cu.cuMemsetD8Async(ptr, 1, 4096, foreign)[0]) == 0
        assert int(cu.cuStreamSynchronize(foreign)[0]) == 0
        assert int(cu.cuStreamDestroy(foreign)[0]) == 0
    finally:
        cu.cuCtxDestroy(context)
        driver.free_async(ptr, 4096, stream)


def test_kernels_of_numba_cuda_mlir_get_their_arguments(driver: Any) -> None:
    """devmem packs their parameters as its PTX lists them: the words of arrays, numbers of each size, complex numbers, tuples."""
    pytest.importorskip("numba_cuda_mlir", reason="numba-cuda-mlir is not installed")
    from devmem.kernels.compilers.numba_cuda_mlir import NumbaCudaMlir

    if driver.info.backend != "cuda" or not hasattr(driver, "launch"):
        pytest.skip("the device is not CUDA's, or launches nothing")

    def kernel(out: Any, table: Any, factor: Any, pair: Any, number: Any) -> None:
        i = dm.grid(1)
        near = dm.shared.array(32, np.float64)
        near[dm.laneid] = table[i, 1] * factor + pair[0][i] * pair[1]
        dm.barrier()
        out[i] = near[31 - dm.laneid] + number.real + number.imag

    host = np.arange(128.0).reshape(32, 4)
    out, table = dm.zeros(32), dm.to_device(host)[:, ::2]
    arguments = out, table, np.int8(-3), (dm.to_device(np.arange(32.0)), np.float32(2)), 1 + 2j
    compiler = NumbaCudaMlir()
    try:
        code = compiler.compile(kernel, tuple(map(compiler.type_of, arguments)), driver, {})
    except dm.UnsupportedError as error:
        pytest.skip(str(error))
    code.launch((1, 1, 1), (32, 1, 1), 0, LEGACY_STREAM, arguments)
    expected = (host[:, 2] * -3 + np.arange(32.0) * 2)[::-1] + 3
    np.testing.assert_allclose(out.copy_to_host(), expected)
    code.close()


@pytest.mark.parametrize("memory", ["plain", "of the pool"])
@pytest.mark.parametrize("before", ["nothing", "disabled"])
def test_peer_copies_work_before_access_is_enabled(driver: Any, stream: int, memory: str, before: str) -> None:
    """Both ways; the copies must not need what devmem asks for besides."""
    need(driver, "peer", "peer_access", *(["stream_ordered"] if memory == "of the pool" else []))
    others = [
        each for each in dm.devices() if each.backend == driver.info.backend and each.ordinal != driver.info.ordinal
    ]
    if not others or not driver.can_access(others[0].ordinal):
        pytest.skip("no other device is within reach")
    data, back, nbytes = np.arange(250, dtype="i4"), np.zeros(250, "i4"), 1000
    here, there = driver.info.ordinal, others[0].ordinal

    def allocate(of: Any, on: int) -> int:
        ptr = of.alloc_async(nbytes, on) if memory == "of the pool" else of.alloc(nbytes, on)
        of.stream_synchronize(on)
        return int(ptr)

    def free(of: Any, ptr: int, on: int) -> None:
        (of.free_async if memory == "of the pool" else of.free)(ptr, nbytes, on)

    with others[0].entered() as other:
        far = allocate(other, LEGACY_STREAM)
    if before == "disabled":
        driver.peer_access(there, False)
    near, second = allocate(driver, stream), allocate(driver, stream)
    driver.copy(near, data.ctypes.data, nbytes, CopyKind.H2D, stream, blocking=True)
    driver.copy_peer(far, there, near, here, nbytes, stream, blocking=True)
    driver.copy_peer(second, here, far, there, nbytes, stream, blocking=True)
    driver.copy(back.ctypes.data, second, nbytes, CopyKind.D2H, stream, blocking=True)
    for ptr in (near, second):
        free(driver, ptr, stream)
    driver.stream_synchronize(stream)
    with others[0].entered() as other:
        free(other, far, LEGACY_STREAM)
        other.synchronize()
    assert np.array_equal(back, data)


def test_a_batch_of_9000_copies_arrives(driver: Any, stream: int) -> None:
    """Some runtimes fail, or never return, where more than 8,192 go out in one call: no call has more than 4,096."""
    need(driver, "batch_copy", kind="pinned")
    count, nbytes = 9000, 9000 * 8
    locked, ptr = driver.alloc(2 * nbytes, LEGACY_STREAM, MemoryKind.PINNED), driver.alloc(nbytes, LEGACY_STREAM)
    host = np.ctypeslib.as_array((ctypes.c_uint64 * (2 * count)).from_address(locked))
    host[:count], host[count:] = np.arange(count), 0
    up, down = [locked + 8 * at for at in range(count)], [locked + nbytes + 8 * at for at in range(count)]
    device = [ptr + 8 * ((at * 7) % count) for at in range(count)]
    try:
        driver.copy_batch(device, up, [8] * count, CopyKind.H2D, stream)
        driver.copy_batch(down, device, [8] * count, CopyKind.D2H, stream)
    except UnsupportedError as error:
        pytest.skip(str(error))
    finally:
        driver.stream_synchronize(stream)
        arrived = host[count:].copy()
        driver.free(ptr, nbytes, LEGACY_STREAM)
        driver.free(locked, 2 * nbytes, LEGACY_STREAM, MemoryKind.PINNED)
    assert np.array_equal(arrived, np.arange(count))


@pytest.mark.parametrize("nbytes", [1, 4095, 4097])
def test_hints_for_managed_memory_take_any_size(driver: Any, stream: int, nbytes: int) -> None:
    """The driver may count managed memory in granules of pages."""
    need(driver, "managed", kind="managed")
    ptr = driver.alloc(nbytes, LEGACY_STREAM, MemoryKind.MANAGED)
    driver.advise(ptr, nbytes, "set_read_mostly", False)
    driver.prefetch(ptr, nbytes, False, stream)
    driver.stream_synchronize(stream)
    driver.free(ptr, nbytes, LEGACY_STREAM, MemoryKind.MANAGED)


def nodes_of(address: int) -> set[int]:
    """The NUMA nodes on which the pages of an address's mapping lie, as the system says; none where it does not."""
    try:
        lines = Path("/proc/self/numa_maps").read_text(encoding="ascii").splitlines()
    except OSError:
        return set()
    there = max(
        (line for line in lines if int(line.split()[0], 16) <= address), key=lambda line: int(line.split()[0], 16)
    )
    return {int(node) for node in re.findall(r" N(\d+)=", there)}


def test_page_locked_memory_lies_on_the_devices_own_node(driver: Any) -> None:
    """CUDA's by the policy of the thread that allocates, HIP's by the runtime itself."""
    need(driver, kind="pinned")
    node = driver.info.facts.get("pinned_node", -1)
    if node < 0:
        pytest.skip("the machine has one NUMA node, or the driver does not tell which is nearest")
    nbytes = 8 << 20  # a mapping of its own
    ptr = driver.alloc(nbytes, LEGACY_STREAM, MemoryKind.PINNED)
    ctypes.memset(ptr, 1, nbytes)
    found = nodes_of(ptr)
    driver.free(ptr, nbytes, LEGACY_STREAM, MemoryKind.PINNED)
    if not found:
        pytest.skip("the system does not tell where page-locked memory lies")
    assert found == {node}


@pytest.fixture
def coherent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over an emulator, devices that use the host's memory in place."""
    if "DEVMEM_EMULATOR" in os.environ:
        monkeypatch.setenv("DEVMEM_EMULATOR_COHERENCE", "2")
        monkeypatch.setenv("HSA_XNACK", "1")
        dm.close()


def test_host_memory_is_used_in_place(coherent: None, driver: Any, stream: int) -> None:
    """Copies and fills take any address of the host, on both sides, where the device says so."""
    if not driver.info.coherence:
        pytest.skip("the device takes no addresses of the host's memory: neither HMM nor ATS")
    nbytes = 4 << 20
    host, ptr = np.zeros(nbytes, np.uint8), driver.alloc(nbytes, LEGACY_STREAM)
    driver.fill(host.ctypes.data, 7, 1, nbytes // 2, stream)
    driver.stream_synchronize(stream)  # a pageable source may be read at once
    driver.copy(ptr, host.ctypes.data, nbytes, CopyKind.D2D, stream, blocking=False)
    driver.fill(ptr, 9, 1, 16, stream)
    driver.copy(host.ctypes.data + nbytes // 2, ptr, nbytes // 2, CopyKind.D2D, stream, blocking=False)
    driver.stream_synchronize(stream)
    driver.free(ptr, nbytes, LEGACY_STREAM)
    assert (host[: nbytes // 2] == 7).all()
    assert (host[nbytes // 2 :][:16] == 9).all() and (host[nbytes // 2 :][16:] == 7).all()


def test_a_stream_of_a_green_context_is_taken(driver: Any) -> None:
    """The driver names the primary context for it, and devmem's memory and events are used on it."""
    if driver.info.backend != "cuda":
        pytest.skip("the vendor has no contexts")
    cu = pytest.importorskip("cuda.bindings.driver")

    def ok(call: str, *arguments: Any) -> Any:
        try:
            error, *found = getattr(cu, call)(*arguments)
        except (AttributeError, RuntimeError) as missing:  # of the binding, or of the driver
            pytest.skip(f"there is no {call}: {missing}")
        assert int(error) == 0, f"{call}: {error}"
        return found[0] if found else None

    device = ok("cuDeviceGet", driver.info.ordinal)
    units = ok("cuDeviceGetDevResource", device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    described = ok("cuDevResourceGenerateDesc", [units], 1)
    flags = cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    green = ok("cuGreenCtxCreate", described, device, flags)
    handle = ok("cuGreenCtxStreamCreate", green, cu.CUstream_flags.CU_STREAM_NON_BLOCKING, 0)
    stream = dm.external_stream(int(handle))
    array = dm.to_device(np.arange(1000), stream=stream)
    other = dm.stream()
    other.wait(stream)
    assert np.array_equal(array.copy_to_host(stream=other), np.arange(1000))
    del array
    dm.synchronize()
    dm.trim()
    ok("cuStreamDestroy", handle)
    ok("cuGreenCtxDestroy", green)
