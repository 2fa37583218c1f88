"""What the CUDA driver says when it refuses, and what devmem makes of it."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waits import patience

import devmem as dm
from devmem.backends.cuda.hooks import CudaBackend
from devmem.spi.errors import BackendError, DeviceLost, OutOfMemory
from devmem.spi.types import LEGACY_STREAM, Box, Capability, CopyKind, MemoryKind
from devmem.testing import emulator

ROOT = Path(__file__).resolve().parents[3]

_reason = CudaBackend().unavailable()
pytestmark = [
    pytest.mark.skipif(_reason is not None, reason=f"no CUDA driver, real or emulated: {_reason}"),
    pytest.mark.skipif("DEVMEM_EMULATOR" not in os.environ, reason="needs the emulator's control"),
]
cu: Any = importlib.import_module("cuda.bindings.driver") if _reason is None else None

DATA = np.arange(1000, dtype=np.int32)

#: Errors that concern one call, with the driver's sentence.
ORDINARY = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", "unavailable"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    205: ("CUDA_ERROR_MAP_FAILED", "map"),
    400: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    704: ("CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"),
    712: ("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already"),
    713: ("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "registered"),
    800: ("CUDA_ERROR_NOT_PERMITTED", "operation not permitted"),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
    900: ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "captur"),
    999: ("CUDA_ERROR_UNKNOWN", "unknown error"),
}
#: A status that no binding knows.
UNKNOWN = 99999
#: Errors after which the context is of no more use.
STICKY = {
    4: "CUDA_ERROR_DEINITIALIZED",
    214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    220: "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    226: "CUDA_ERROR_CONTAINED",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT",
    709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    710: "CUDA_ERROR_ASSERT",
    714: "CUDA_ERROR_HARDWARE_STACK_ERROR",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    717: "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    718: "CUDA_ERROR_INVALID_PC",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    721: "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    810: "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    911: "CUDA_ERROR_EXTERNAL_DEVICE",
}


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    dm.close()
    with dm.use_backend("cuda"):
        yield
    emulator.control("cuda").reset()
    dm.close()
    for ordinal in range(CudaBackend().device_count()):  # no error of this test is met by the next
        cu.cuDevicePrimaryCtxReset(ordinal)
        cu.cuDevicePrimaryCtxRetain(ordinal)  # in use again by its other holders
        cu.cuDevicePrimaryCtxRelease(ordinal)
    cu.cuCtxSetCurrent(0)


@pytest.fixture
def control(cuda: None) -> emulator.Control:
    found = emulator.control("cuda")
    found.reset()
    return found


class Open:
    """A driver of a device, entered, with one thing of each kind made on it."""

    def __init__(self, ordinal: int) -> None:
        self.driver: Any = CudaBackend().open(ordinal)
        self.token = self.driver.enter()
        self.ptr = self.driver.alloc(4000, LEGACY_STREAM)
        self.pooled = self.driver.alloc_async(4000, LEGACY_STREAM)
        self.pinned = self.driver.alloc(4000, LEGACY_STREAM, MemoryKind.MAPPED)
        self.managed = self.driver.alloc(4000, LEGACY_STREAM, MemoryKind.MANAGED)
        self.stream = self.driver.stream_create(0, True)
        self.event, self.timed = self.driver.event_create(False), self.driver.event_create(True)
        self.driver.event_record(self.timed, LEGACY_STREAM)
        self.driver.synchronize()
        self.host = DATA.copy()
        self.page = np.zeros(8192, np.uint8)
        self.base = -(-self.page.ctypes.data // 4096) * 4096

    def close(self) -> None:
        cu.cuCtxSetCurrent(self.token or 0)
        self.driver.memory.host_blocks.clear()  # what is left is dropped with the context
        self.driver.close()


@pytest.fixture
def opened() -> Iterator[Open]:
    made = Open(0)
    yield made
    made.close()


#: Every call of the driver behind every method of ours.
CALLS: dict[str, tuple[str, Callable[[Open], object]]] = {
    "enter": ("cuCtxGetCurrent", lambda o: o.driver.enter()),
    "exit": ("cuCtxSetCurrent", lambda o: o.driver.exit(o.driver.context.primary)),
    "alloc": ("cuMemAlloc", lambda o: o.driver.alloc(100, 1)),
    "alloc pinned": ("cuMemHostAlloc", lambda o: o.driver.alloc(100, 1, MemoryKind.PINNED)),
    "alloc managed": ("cuMemAllocManaged", lambda o: o.driver.alloc(100, 1, MemoryKind.MANAGED)),
    "alloc_async": ("cuMemAllocFromPoolAsync", lambda o: o.driver.alloc_async(100, 1)),
    "free": ("cuMemFree", lambda o: o.driver.free(o.ptr, 4000, 1)),
    "free pinned": ("cuMemFreeHost", lambda o: o.driver.free(o.pinned, 4000, 1, MemoryKind.MAPPED)),
    "free managed": ("cuMemFree", lambda o: o.driver.free(o.managed, 4000, 1, MemoryKind.MANAGED)),
    "free_async": ("cuMemFreeAsync", lambda o: o.driver.free_async(o.pooled, 4000, 1)),
    "pool_cached": ("cuMemPoolGetAttribute", lambda o: o.driver.pool_cached()),
    "pool_trim": ("cuMemPoolTrimTo", lambda o: o.driver.pool_trim(0)),
    "pool_threshold": ("cuMemPoolSetAttribute", lambda o: o.driver.pool_threshold(0)),
    "memory_info": ("cuMemGetInfo", lambda o: o.driver.memory_info()),
    "copy up": ("cuMemcpyHtoD", lambda o: copy(o, CopyKind.H2D, 1, True)),
    "copy down": ("cuMemcpyDtoH", lambda o: copy(o, CopyKind.D2H, 1, True)),
    "copy up on a stream": ("cuMemcpyHtoDAsync", lambda o: copy(o, CopyKind.H2D, o.stream, False)),
    "copy down on a stream": ("cuMemcpyDtoHAsync", lambda o: copy(o, CopyKind.D2H, o.stream, False)),
    "copy within": ("cuMemcpyDtoDAsync", lambda o: copy(o, CopyKind.D2D, 1, False)),
    "copy and wait": ("cuStreamSynchronize", lambda o: copy(o, CopyKind.D2H, o.stream, True)),
    "copy_strided": (
        "cuMemcpy2DAsync",
        lambda o: o.driver.copy_strided(
            Box(o.ptr, 100, 9, o.host.ctypes.data, 100, 9, 50, 9, 1), CopyKind.H2D, 1, blocking=True
        ),
    ),
    "copy_peer": ("cuMemcpyPeerAsync", lambda o: o.driver.copy_peer(o.ptr, 0, o.ptr + 200, 0, 9, 1, blocking=True)),
    "can_access": ("cuDeviceCanAccessPeer", lambda o: o.driver.can_access(1)),
    "fill 8": ("cuMemsetD8Async", lambda o: o.driver.fill(o.ptr, 1, 1, 4, 1)),
    "fill 16": ("cuMemsetD16Async", lambda o: o.driver.fill(o.ptr, 1, 2, 4, 1)),
    "fill 32": ("cuMemsetD32Async", lambda o: o.driver.fill(o.ptr, 1, 4, 4, 1)),
    "stream_create": ("cuStreamCreateWithPriority", lambda o: o.driver.stream_create(0, False)),
    "stream_destroy": ("cuStreamDestroy", lambda o: o.driver.stream_destroy(o.stream)),
    "stream_synchronize": ("cuStreamSynchronize", lambda o: o.driver.stream_synchronize(o.stream)),
    "stream_query": ("cuStreamQuery", lambda o: o.driver.stream_query(o.stream)),
    "stream_wait": ("cuStreamWaitEvent", lambda o: o.driver.stream_wait(o.stream, o.event)),
    "event_create": ("cuEventCreate", lambda o: o.driver.event_create(True)),
    "event_destroy": ("cuEventDestroy", lambda o: o.driver.event_destroy(o.event)),
    "event_record": ("cuEventRecord", lambda o: o.driver.event_record(o.event, 1)),
    "event_query": ("cuEventQuery", lambda o: o.driver.event_query(o.event)),
    "event_synchronize": ("cuEventSynchronize", lambda o: o.driver.event_synchronize(o.event)),
    "event_elapsed": ("cuEventElapsedTime", lambda o: o.driver.event_elapsed(o.timed, o.timed)),
    "synchronize": ("cuCtxSynchronize", lambda o: o.driver.synchronize()),
    "host_register": ("cuMemHostRegister", lambda o: o.driver.host_register(o.base, 4096, True)),
    "host_unregister": ("cuMemHostUnregister", lambda o: o.driver.host_unregister(o.base, 4096)),
    "device_pointer": ("cuMemHostGetDevicePointer", lambda o: o.driver.device_pointer(o.pinned)),
    "prefetch": ("cuMemPrefetchAsync", lambda o: o.driver.prefetch(o.managed, 4000, False, 1)),
    "advise": ("cuMemAdvise", lambda o: o.driver.advise(o.managed, 4000, "set_read_mostly", False)),
    "ipc_export": ("cuIpcGetMemHandle", lambda o: o.driver.ipc_export(o.ptr)),
    "ipc_open": ("cuIpcOpenMemHandle", lambda o: o.driver.ipc_open(bytes(64))),
    "ipc_close": ("cuIpcCloseMemHandle", lambda o: o.driver.ipc_close(o.ptr)),
    "capturing": ("cuStreamIsCapturing", lambda o: o.driver.capturing(o.stream)),
    "hold": ("cuStreamWaitValue32", lambda o: o.driver.hold(o.stream)),
}


def copy(o: Open, kind: CopyKind, stream: int, blocking: bool) -> None:
    to, origin = {
        CopyKind.H2D: (o.ptr, o.host.ctypes.data),
        CopyKind.D2H: (o.host.ctypes.data, o.ptr),
        CopyKind.D2D: (o.ptr, o.ptr + 2000),
    }[kind]
    o.driver.copy(to, origin, 2000, kind, stream, blocking=blocking)


# -- what an error tells -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(ORDINARY))
def test_an_error_tells_call_code_name_and_the_drivers_sentence(
    code: int, opened: Open, control: emulator.Control
) -> None:
    name, sentence = ORDINARY[code]
    control.fail("cuMemGetInfo", 1, code)
    with pytest.raises(BackendError) as caught:
        opened.driver.memory_info()
    error = caught.value
    assert type(error) is BackendError
    assert (error.backend, error.call, error.code, error.name) == ("cuda", "cuMemGetInfo", code, name)
    said = cu.cuGetErrorString(cu.CUresult(code))[1].decode()
    assert str(error) == f"cuMemGetInfo failed with {name} ({code}): {said}"
    assert sentence in said
    assert opened.driver.memory_info()  # and it concerned that call alone
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.call, again.code, again.name) == (str(error), error.call, code, name)


@pytest.mark.parametrize("code", [999, UNKNOWN])
@pytest.mark.parametrize("method", sorted(CALLS))
def test_every_call_is_checked_and_named(method: str, code: int, opened: Open, control: emulator.Control) -> None:
    function, call = CALLS[method]
    control.fail(function, 1, code)
    with pytest.raises(BackendError) as caught:
        call(opened)
    assert type(caught.value) is BackendError
    assert (caught.value.call.removesuffix("_v2"), caught.value.code) == (function, code)
    assert opened.driver.state.errors.lost is None
    assert opened.driver.memory_info()


def test_a_graph_that_is_destroyed_does_not_tell_of_another_one(opened: Open, control: emulator.Control) -> None:
    """What the driver did not destroy was told once; it is tried again with the next graph, and that tells nothing."""
    driver = opened.driver
    stream = driver.stream_create(0, True)
    first, second, third = (
        driver.graph_create([lambda to, on: to.fill(opened.ptr, 0, 1, 16, on)], stream) for _ in range(3)
    )
    control.fail("cuGraphExecDestroy", 1, UNKNOWN)
    with pytest.raises(BackendError, match="cuGraphExecDestroy"):
        driver.graph_destroy(first)
    before = control.calls()["cuGraphExecDestroy"]
    control.fail("cuGraphExecDestroy", 2, UNKNOWN)
    driver.graph_destroy(second)
    driver.graph_destroy(third)
    assert control.calls()["cuGraphExecDestroy"] == before + 4, "each of its own, and twice the first"
    driver.stream_destroy(stream)


def test_a_status_that_is_newer_than_the_binding(opened: Open, control: emulator.Control) -> None:
    control.fail("cuMemGetInfo", 1, UNKNOWN)
    with pytest.raises(BackendError, match=f"^cuMemGetInfo failed with {UNKNOWN} .*update cuda-bindings$") as caught:
        opened.driver.memory_info()
    assert (caught.value.backend, caught.value.name) == ("cuda", str(UNKNOWN))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.call, again.code) == (str(caught.value), "cuMemGetInfo", UNKNOWN)


def test_a_mistake_of_the_caller_is_no_status() -> None:
    from devmem.backends.cuda.binding import code_of

    with pytest.raises(ValueError, match=r"^not a number$"):
        code_of(ValueError("not a number"))


VERBS: dict[str, Callable[[Any], object]] = {
    "to_device": lambda array: dm.to_device(DATA),
    "to_device, stream": lambda array: dm.to_device(DATA, stream=dm.stream()),
    "device_array": lambda array: dm.device_array(3),
    "copy_to_host": lambda array: array.copy_to_host(),
    "copy_to_device": lambda array: array.copy_to_device(DATA),
    "fill": lambda array: array.fill(1),
    "copy": lambda array: array.copy(),
    "free": lambda array: array.free(),
    "trim": lambda array: dm.trim(),
    "pinned_array": lambda array: dm.pinned_array(3),
    "register": lambda array: dm.register(np.zeros(1 << 14, np.uint8)),
    "stream": lambda array: dm.stream().close(),
    "event": lambda array: dm.event().record(),
    "synchronize": lambda array: dm.synchronize(),
    "memory_info": lambda array: dm.memory_info(),
    "close": lambda array: dm.close(),
}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_driver_call_of_a_verb_may_meet_it(verb: str, control: emulator.Control) -> None:
    """Each function that the verb calls answers with a status unknown to the binding, in turn; it is told, and by its name."""

    def called() -> list[str]:
        array = dm.to_device(DATA)
        control.reset()
        VERBS[verb](array)
        return list(control.calls())

    # Of the mode of a thread nothing is told: the call that it is changed for goes on. Host memory of which the driver does not
    # say what it is counts as page-locked.
    silent = ("cuGetError", "cuThreadExchange", "cuMemHostGetFlags", "cuPointerGetAttribute")
    functions = [name for name in called() if not name.startswith(silent)]
    assert functions
    for function in functions:
        dm.close()
        array = dm.to_device(DATA)
        control.reset()
        control.fail(function, 1, UNKNOWN)
        with pytest.raises(BackendError) as caught:
            VERBS[verb](array)
        assert caught.value.code == UNKNOWN
        assert caught.value.call.removesuffix("_v2") == function
        control.reset()
        if (
            function == "cuDevicePrimaryCtxRelease"
        ):  # the driver refused it: the next test would find the context in use
            cu.cuDevicePrimaryCtxRelease(0)


@pytest.mark.parametrize("method", ["alloc", "alloc pinned", "alloc managed", "alloc_async"])
def test_out_of_memory_is_a_memory_error_that_names_the_request(
    method: str, opened: Open, control: emulator.Control
) -> None:
    function, call = CALLS[method]
    control.fail(function, 1, 2)
    with pytest.raises(OutOfMemory) as caught:
        call(opened)
    assert isinstance(caught.value, MemoryError)
    assert (caught.value.call, caught.value.code) == (function, 2)
    assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert "out of memory" in str(caught.value)
    call(opened)


def test_really_out_of_memory() -> None:
    total = dm.memory_info().total
    with pytest.raises(OutOfMemory, match=rf"asked for .* \({total + 1:,} bytes\)"):
        dm.device_array(total + 1, np.uint8)
    with dm.use_memory(dm.memory.DriverMemory()), pytest.raises(OutOfMemory):
        dm.device_array(total + 1, np.uint8)
    assert np.array_equal(dm.to_device(DATA).copy_to_host(), DATA)


@pytest.mark.parametrize("memory", ["driver", "stream_ordered"])
def test_out_of_memory_once_is_absorbed(memory: str, control: emulator.Control) -> None:
    with dm.use_memory(memory):
        dm.to_device(DATA)
        control.fail("cuMemAlloc" if memory == "driver" else "cuMemAllocFromPoolAsync", 1, 2)
        assert np.array_equal(dm.to_device(DATA).copy_to_host(), DATA)


@pytest.mark.parametrize("code", range(900, 910))
def test_a_capture_elsewhere_counts_as_one_here(code: int, opened: Open, control: emulator.Control) -> None:
    """The stream cannot be asked, so nothing may be freed."""
    control.fail("cuStreamIsCapturing", 1, code)
    assert opened.driver.capturing(opened.stream) is True
    assert opened.driver.capturing(opened.stream) is False


# -- not ready ---------------------------------------------------------------------------------------------------------


def test_not_ready_is_an_answer(opened: Open, control: emulator.Control) -> None:
    driver = opened.driver
    with control.hold(opened.stream):
        driver.fill(opened.ptr, 0, 1, 100, opened.stream)
        driver.event_record(opened.event, opened.stream)
        assert driver.stream_query(opened.stream) is False
        assert driver.event_query(opened.event) is False
    driver.stream_synchronize(opened.stream)
    assert driver.stream_query(opened.stream) is True
    assert driver.event_query(opened.event) is True
    control.fail("cuStreamQuery", 1, 600)
    control.fail("cuEventQuery", 1, 600)
    assert driver.stream_query(opened.stream) is False
    assert driver.event_query(opened.event) is False


def test_not_ready_is_an_error_where_a_time_is_asked_for(opened: Open, control: emulator.Control) -> None:
    with control.hold(opened.stream):
        opened.driver.event_record(opened.timed, opened.stream)
        with pytest.raises(BackendError, match="cuEventElapsedTime failed with CUDA_ERROR_NOT_READY"):
            opened.driver.event_elapsed(opened.timed, opened.timed)


# -- lost --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(STICKY))
def test_a_sticky_error_loses_the_device(code: int, opened: Open, control: emulator.Control) -> None:
    control.fail("cuMemGetInfo", 1, code)
    with pytest.raises(DeviceLost) as caught:
        opened.driver.memory_info()
    first = caught.value
    assert (first.call, first.code, first.name) == ("cuMemGetInfo", code, STICKY[code])
    assert "lost" in str(first)
    control.reset()
    with pytest.raises(DeviceLost) as caught:
        opened.driver.enter()
    again = caught.value
    assert (str(again), again.call, again.code, again.name) == (str(first), "cuMemGetInfo", code, STICKY[code])
    assert control.calls() == {}, "the driver was called"


def test_every_status_after_which_nvidia_gives_up_the_process_or_the_context_is_sticky() -> None:
    """By the sentences of the vendor's reference, which newer bindings carry."""
    told = {int(each): " ".join((each.__doc__ or "").split()) for each in cu.CUresult}
    if "terminated" not in told[700]:
        pytest.skip("this cuda.bindings does not document its statuses")
    lost = ("the process must be terminated", "The context cannot be used anymore", "has been destroyed using")
    assert {code for code, text in told.items() if any(words in text for words in lost)} <= STICKY.keys()


@pytest.mark.parametrize("method", sorted(CALLS))
def test_it_is_noticed_by_every_call(method: str, opened: Open, control: emulator.Control) -> None:
    function, call = CALLS[method]
    control.fail(function, 1, 700)
    with pytest.raises(DeviceLost) as caught:
        call(opened)
    assert caught.value.call.removesuffix("_v2") == function
    if method != "ipc_export":
        assert opened.driver.state.errors.lost is not None
    control.reset()
    with pytest.raises(DeviceLost) as again:
        opened.driver.enter()
    assert (again.value.call, again.value.code) == (caught.value.call, 700)


def test_the_first_error_is_the_one_that_is_told(opened: Open, control: emulator.Control) -> None:
    control.fail("cuMemGetInfo", 1, 700)
    control.fail("cuCtxSynchronize", 1, 719)
    with pytest.raises(DeviceLost):
        opened.driver.memory_info()
    with pytest.raises(DeviceLost):
        opened.driver.synchronize()
    with pytest.raises(DeviceLost) as caught:
        opened.driver.enter()
    assert (caught.value.call, caught.value.code) == ("cuMemGetInfo", 700)


def test_other_devices_go_on(opened: Open, control: emulator.Control) -> None:
    if CudaBackend().device_count() < 2:
        pytest.skip("one CUDA device only")
    other = Open(1)
    try:
        inner = opened.driver.enter()
        control.fail("cuMemGetInfo", 1, 700)
        with pytest.raises(DeviceLost):
            opened.driver.memory_info()
        opened.driver.exit(inner)
        token = other.driver.enter()
        assert other.driver.memory_info()
        copy(other, CopyKind.H2D, LEGACY_STREAM, True)
        other.driver.synchronize()
        other.driver.exit(token)
    finally:
        other.close()


def test_every_verb_tells_of_the_first_failure(control: emulator.Control) -> None:
    """From the failing call on, by name, whatever is tried; closing lets go, and then it starts afresh."""
    array, stream, event = dm.to_device(DATA), dm.stream(), dm.event()
    pinned, mapped, managed = dm.pinned_array(10), dm.mapped_array(10), dm.managed_array(10)
    dropped = dm.to_device(DATA)
    control.reset()
    CudaBackend().open(1).close()
    opening = control.calls()
    control.fail("cuMemcpyDtoH", 1, 700)
    with pytest.raises(DeviceLost) as caught:
        array.copy_to_host()
    assert caught.value.call == "cuMemcpyDtoH"
    control.reset()
    attempts: list[Callable[[], object]] = [
        array.copy_to_host,
        array.copy,
        dm.synchronize,
        dm.memory_info,
        dm.stream,
        dm.event,
        dm.trim,
        stream.synchronize,
        stream.query,
        stream.close,
        event.record,
        event.query,
        event.synchronize,
        event.close,
        mapped.copy_to_host,
        managed.copy_to_host,
        managed.prefetch,
        lambda: array.fill(0),
        lambda: array.copy_to_device(DATA),
        lambda: dm.to_device(DATA),
        lambda: dm.to_device(DATA, stream=stream),
        lambda: dm.device_array(3),
        lambda: dm.pinned_array(3),
        lambda: dm.mapped_array(3),
        lambda: dm.managed_array(3),
        lambda: dm.register(DATA),
        lambda: dm.to_device(array, device=1),
        array.free,
    ]
    for attempt in attempts:
        with pytest.raises(DeviceLost) as again:
            attempt()
        assert (again.value.call, again.value.code) == ("cuMemcpyDtoH", 700)
        assert str(again.value) == str(caught.value)
    called = {name for name, count in control.calls().items() if count > opening.get(name, 0)}
    # Only what the other device needed was asked for, which was opened.
    assert not {"cuMemcpyDtoH", "cuMemFreeAsync", "cuMemFree", "cuStreamDestroy", "cuEventDestroy"} & called
    assert not {"cuStreamSynchronize", "cuMemHostAlloc", "cuMemAllocManaged", "cuMemHostRegister"} & called
    pinned[...] = 1  # still there
    del dropped
    with dm.device(1):
        assert np.array_equal(dm.to_device(DATA).copy_to_host(), DATA)
    dm.close()
    del pinned, mapped, managed, attempts, attempt
    gc.collect()
    dm.trim()  # lets go of the context, which was kept for the sake of host memory that was still referenced


def run_alone(script: str) -> None:
    """Run a script in a process of its own, which says nothing."""
    environment = {**os.environ, "DEVMEM_BACKEND": "cuda", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(140),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_lost_device_starts_afresh_when_its_host_memory_is_dropped() -> None:
    script = """
import gc
import numpy as np
import devmem as dm
from devmem.testing import emulator
data = np.arange(100)
pinned = dm.pinned_array(100)
pinned[:] = 3
array = dm.to_device(data)
emulator.control("cuda").fail("cuCtxSynchronize", 1, 700)
for attempt in (dm.synchronize, array.copy_to_host):
    try:
        attempt()
    except dm.DeviceLost:
        pass
    else:
        raise AssertionError(attempt)
dm.reset()
for _ in range(2):
    try:
        dm.to_device(data)
    except dm.DeviceLost as error:
        assert "1 page-locked or managed blocks of it are still referenced" in str(error), error
    else:
        raise AssertionError("the context is still there")
assert pinned.sum() == 300
del pinned
gc.collect()
assert np.array_equal(dm.to_device(data).copy_to_host(), data)
"""
    run_alone(script)


def test_a_lost_context_fails_every_later_call_and_closing_stays_quiet() -> None:
    """A context that the driver itself has given up: every later call says so, and closing does not raise it again."""
    script = """
import gc
import numpy as np
import devmem as dm
from devmem.testing import emulator
data = np.arange(100)
array, stream = dm.to_device(data), dm.stream()
far = dm.to_device(data, device=1)
emulator.control("cuda").fail("cuCtxSynchronize", 1, 719)
for attempt in (dm.synchronize, dm.synchronize, array.copy_to_host, stream.close, dm.memory_info):
    try:
        attempt()
    except dm.errors.DeviceLost as error:
        assert (error.call, error.code, error.name) == ("cuCtxSynchronize", 719, "CUDA_ERROR_LAUNCH_FAILED"), error
        assert "launch" in str(error)
    else:
        raise AssertionError(attempt)
assert np.array_equal(far.copy_to_host(), data)
del array, stream
gc.collect()
dm.reset()
dm.to_device(data)
assert np.array_equal(far.copy_to_host(), data)
dm.close()
"""
    run_alone(script)


# -- opening -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 800, 801])
def test_a_pool_that_may_not_be_shared_is_made_without_handles(control: emulator.Control, code: int) -> None:
    control.fail("cuMemPoolCreate", 1, code)
    driver = CudaBackend().open(0)
    assert Capability.STREAM_ORDERED in driver.info.capabilities
    assert Capability.POOL_IPC not in driver.info.capabilities
    driver.close()
    control.reset()
    driver = CudaBackend().open(0)
    assert Capability.POOL_IPC in driver.info.capabilities
    driver.close()


#: What opening calls to compare calls with one another.
MEASURING = {
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuMemHostGetFlags",
    "cuMemcpyHtoDAsync",
    "cuMemcpyBatchAsync",
    "cuPointerGetAttribute",
    "cuStreamCreateWithPriority",
    "cuStreamSynchronize",
}


def test_a_device_that_cannot_be_opened_leaves_nothing_behind(control: emulator.Control) -> None:
    """Every driver call that opening makes fails in turn; another library holds the context, so that leaks would show."""
    other = cu.cuDevicePrimaryCtxRetain(0)[1]
    try:
        before = control.live()
        control.reset()
        CudaBackend().open(0).close()
        made = control.calls()
        made.pop("cuMemPoolDestroy")
        made.pop("cuDevicePrimaryCtxRelease")
        made.pop("cuThreadExchangeStreamCaptureMode")
        for freeing in ("cuMemFree", "cuMemFreeHost", "cuStreamDestroy"):  # one that fails is not tried again
            made.pop(freeing)
        made.pop(
            "cuGetProcAddress"
        )  # without its answers there is no table of entry points, and Python calls the functions
        assert len(made) >= 12
        for function, count in made.items():
            for nth in range(1, count + 1):
                for code in (999, 2):
                    control.reset()
                    control.fail(function, nth, code)
                    failed = None
                    try:
                        CudaBackend().open(0).close()
                    except BackendError as error:
                        failed = error.call.removesuffix("_v2")
                    assert failed == function or (failed is None and function in MEASURING), (function, nth)
                    assert control.live() == before, (function, nth)
                    made_now = control.calls()
                    assert made_now.get("cuDevicePrimaryCtxRelease", 0) == made_now.get(
                        "cuDevicePrimaryCtxRetain", 0
                    ) - (function == "cuDevicePrimaryCtxRetain"), (function, nth)
                    if function != "cuCtxSetCurrent":
                        assert int(cu.cuCtxGetCurrent()[1]) == 0
                    cu.cuCtxSetCurrent(0)
        control.reset()
        CudaBackend().open(0).close()
        assert control.live() == before
    finally:
        assert other
        cu.cuDevicePrimaryCtxRelease(0)


def test_closing_that_fails_is_told(control: emulator.Control) -> None:
    for function in ("cuMemPoolDestroy", "cuDevicePrimaryCtxRelease"):
        dm.to_device(DATA)
        control.fail(function, 1, 999)
        with pytest.raises(BackendError, match=function):
            dm.close()
        dm.close()
        if function == "cuDevicePrimaryCtxRelease":
            cu.cuDevicePrimaryCtxRelease(0)


def test_a_stream_that_the_driver_does_not_know_is_refused_by_name() -> None:
    """Only where it is asked where streams come from; a driver need not see it, as a handle is an address."""
    if not dm.current_device().opened().handle.has(Capability.STREAM_ORIGIN):
        pytest.skip("this driver is not asked where streams come from")
    with pytest.raises(dm.UnsupportedError, match=r"the stream 0x80000000 cannot order work of .* it is no stream"):
        dm.external_stream(1 << 31)
