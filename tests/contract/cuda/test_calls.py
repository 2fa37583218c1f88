"""How many calls of the driver each verb makes: counted, not timed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import devmem as dm
from devmem import _native
from devmem.backends.cuda.hooks import CudaBackend
from devmem.testing import emulator

_reason = CudaBackend().unavailable()
pytestmark = [
    pytest.mark.skipif(_reason is not None, reason=f"no CUDA driver, real or emulated: {_reason}"),
    pytest.mark.skipif("DEVMEM_EMULATOR" not in os.environ, reason="needs the emulator's control"),
]
cu: Any = importlib.import_module("cuda.bindings.driver") if _reason is None else None

DATA = np.arange(1000, dtype=np.int32)
QUERY = {"cuCtxGetCurrent": 1}
SWITCH = {"cuCtxGetCurrent": 1, "cuCtxSetCurrent": 2}

Count = Callable[[Callable[[], object]], dict[str, int]]


@pytest.fixture(params=["current", "nothing"])
def entering(request: pytest.FixtureRequest) -> Iterator[dict[str, int]]:
    """The calls that entering and leaving cost: one question where the primary context is current, else there and back too."""
    dm.close()
    cu.cuCtxSetCurrent(0)
    with dm.use_backend("cuda"):
        dm.memory_info()
        if request.param == "current":
            cu.cuCtxSetCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
        yield QUERY if request.param == "current" else SWITCH
        if request.param == "current":
            cu.cuCtxSetCurrent(0)
            cu.cuDevicePrimaryCtxRelease(0)
        dm.close()


@pytest.fixture
def count(entering: dict[str, int]) -> Count:
    """The driver's calls that something makes; what it returns is kept until they are counted."""
    control = emulator.control("cuda")

    def run(call: Callable[[], object]) -> dict[str, int]:
        control.reset()
        kept = call()
        seen = control.calls()
        del kept
        return seen

    return run


def prepared(memory: str) -> None:
    """The queue empty, and nothing left to do for the first call only."""
    dm.use_memory(memory)
    dm.to_device(DATA).free()
    dm.trim()


ALLOCATE = {"stream_ordered": "cuMemAllocFromPoolAsync", "driver": "cuMemAlloc"}
#: What captures of graphs must not see costs two calls more: nothing that an upload with nothing to free does.
UNSEEN = {"cuThreadExchangeStreamCaptureMode": 2}
FREE = {"stream_ordered": "cuMemFreeAsync", "driver": "cuMemFree"}


@pytest.mark.parametrize("memory", ["stream_ordered", "driver"])
def test_an_upload_makes_one_allocation_and_one_copy(memory: str, count: Count, entering: dict[str, int]) -> None:
    prepared(memory)
    assert count(lambda: dm.to_device(DATA)) == {**entering, ALLOCATE[memory]: 1, "cuMemcpyHtoD": 1}


def test_upload_on_a_stream(count: Count, entering: dict[str, int]) -> None:
    """The event is for the source, which has to live until the stream has passed; from then on it is reused.

    Pageable memory has been read by then, and needs none; the compiled core does not ask what it is.
    """
    prepared("stream_ordered")
    stream = dm.stream()
    pinned = dm.pinned_array(1000, np.int32)
    for turn in range(3):
        seen = count(lambda: dm.to_device(pinned, stream=stream))
        assert seen.pop("cuEventCreate", 0) == (turn == 0)
        copied = {**entering, "cuMemAllocFromPoolAsync": 1, "cuMemcpyHtoDAsync": 1}
        asked = {"cuMemHostGetFlags": 1}
        if _native.core is not None and turn:  # the first event is Python's
            copied["cuCtxGetCurrent"] += 1
            asked = {}
        assert seen == {**copied, **asked, "cuEventRecord": 1}
        stream.synchronize()
        seen = count(lambda: dm.to_device(DATA, stream=stream))
        if _native.core is None:
            assert seen == {**copied, **asked, "cuPointerGetAttribute": 1, "cuStreamIsCapturing": 1}
        else:
            copied["cuCtxGetCurrent"] = 2
            assert seen == {**copied, "cuEventRecord": 1}
        stream.synchronize()


@pytest.mark.parametrize("locked", [True, False])
def test_copies_on_a_stream(locked: bool, count: Count, entering: dict[str, int]) -> None:
    """The compiled core keeps the host side behind an event, whatever memory it is; Python asks what it is first."""
    array, stream = dm.to_device(DATA), dm.stream()
    host: Any = dm.pinned_array(1000, np.int32) if locked else np.zeros(1000, np.int32)
    array.copy_to_device(dm.pinned_array(1000, np.int32), stream)  # the event is made
    asked = {"cuMemHostGetFlags": 1} | ({} if locked else {"cuPointerGetAttribute": 1})
    kept = {"cuEventRecord": 1}
    if _native.core is None:
        kept = asked | (kept if locked else {"cuStreamIsCapturing": 1})
    for copy, call in ((array.copy_to_device, "HtoD"), (array.copy_to_host, "DtoH")):
        stream.synchronize()
        assert count(partial(copy, host, stream)) == {**entering, f"cuMemcpy{call}Async": 1, **kept}
    stream.synchronize()


def test_device_array_makes_one_allocation(count: Count, entering: dict[str, int]) -> None:
    prepared("stream_ordered")
    assert count(lambda: dm.device_array(1000)) == {**entering, "cuMemAllocFromPoolAsync": 1}


@pytest.mark.parametrize("empty", [0, (3, 0, 2)])
def test_empty_arrays_never_reach_the_driver(empty: Any, count: Count) -> None:
    prepared("stream_ordered")

    def call() -> None:
        array = dm.device_array(empty)
        array.fill(1)
        array.copy_to_host()
        array.copy()
        array.free()

    assert not {name for name in count(call) if not name.startswith("cuCtx")}


def test_a_download_makes_one_copy(count: Count, entering: dict[str, int]) -> None:
    array = dm.to_device(DATA)
    assert count(array.copy_to_host) == {**entering, "cuMemcpyDtoH": 1}


def test_a_download_into_an_array_makes_one_copy(count: Count, entering: dict[str, int]) -> None:
    array, out = dm.to_device(DATA), np.empty_like(DATA)
    assert count(lambda: array.copy_to_host(out)) == {**entering, "cuMemcpyDtoH": 1}
    assert np.array_equal(out, DATA)


def test_copy_to_device_makes_one_copy(count: Count, entering: dict[str, int]) -> None:
    array, other = dm.to_device(DATA), dm.to_device(DATA[::-1].copy())
    assert count(lambda: array.copy_to_device(DATA)) == {**entering, "cuMemcpyHtoD": 1}
    # Within a device the driver's copy does not wait, and the verb does.
    assert count(lambda: array.copy_to_device(other)) == {**entering, "cuMemcpyDtoDAsync": 1, "cuStreamSynchronize": 1}


@pytest.mark.parametrize("memory", ["stream_ordered", "driver"])
def test_free_makes_one_call(memory: str, count: Count, entering: dict[str, int]) -> None:
    prepared(memory)
    array = dm.to_device(DATA)
    seen = count(array.free)
    if memory == "driver":  # taken back when nothing uses it any more, so the home stream is waited for
        seen.pop("cuStreamSynchronize")
    unseen = UNSEEN if memory == "driver" else {}
    assert {name: n for name, n in seen.items() if name != "cuStreamIsCapturing"} == {
        **entering,
        **unseen,
        FREE[memory]: 1,
    }
    assert count(array.free) == {}


def test_freeing_on_the_legacy_stream_asks_nothing(count: Count, entering: dict[str, int]) -> None:
    prepared("stream_ordered")
    assert count(dm.device_array(1000).free) == {**entering, "cuMemFreeAsync": 1}


def test_dropping_calls_nothing(count: Count) -> None:
    prepared("stream_ordered")
    arrays = [dm.to_device(DATA), dm.to_device(DATA)]
    assert count(arrays.clear) == {}


def test_dropped_streams_and_events_call_nothing(count: Count) -> None:
    made = [dm.stream(), dm.event()]
    assert count(made.clear) == {}


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[3:9],
        lambda a: a[::-2],
        lambda a: a[..., None],
        lambda a: a.reshape(10, 100),
        lambda a: a.reshape(10, 100).T,
        lambda a: a.ravel(),
        lambda a: a.view(np.uint8),
        lambda a: a.squeeze(),
        lambda a: list(a.split(100)),
        lambda a: a.bind(dm.legacy_default_stream()),
        lambda a: (a.ptr, a.shape, a.nbytes, a.flags, len(a), repr(a), a.device, a.is_c_contiguous()),
    ],
)
def test_views_and_facts_call_nothing(view: Callable[[Any], object], count: Count) -> None:
    array = dm.to_device(DATA)
    assert count(lambda: view(array)) == {}


def test_reading_one_element_makes_one_copy(count: Count, entering: dict[str, int]) -> None:
    array = dm.to_device(DATA)
    assert count(lambda: array[7]) == {**entering, "cuMemcpyDtoH": 1}
    assert count(lambda: array.item(7)) == {**entering, "cuMemcpyDtoH": 1}


def test_rows_are_one_call(count: Count, entering: dict[str, int]) -> None:
    image = dm.zeros((64, 4096), np.uint8)
    host = np.ones((64, 4096), np.uint8)
    seen = count(lambda: image[:, :1024].copy_to_device(host[:, 1024:2048]))
    seen.pop("cuStreamSynchronize", None)
    assert seen == {**entering, "cuMemcpy2DAsync": 1}
    seen = count(lambda: image[:, :1024].copy_to_host(host[:, :1024]))
    seen.pop("cuStreamSynchronize", None)
    assert seen == {**entering, "cuMemcpy2DAsync": 1}


def test_a_fill_makes_one_memset(count: Count, entering: dict[str, int]) -> None:
    array = dm.to_device(DATA)
    assert count(lambda: array.fill(5)) == {**entering, "cuMemsetD32Async": 1, "cuStreamSynchronize": 1}
    stream = dm.stream()
    seen = count(lambda: array.fill(5, stream=stream))
    for ordering in ("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"):
        seen.pop(ordering, None)
    assert seen == {**entering, "cuMemsetD32Async": 1}


def test_streams_and_events(count: Count, entering: dict[str, int]) -> None:
    dm.trim()
    assert count(dm.stream) == {**entering, "cuStreamCreateWithPriority": 1}
    assert count(dm.event) == {**entering, "cuEventCreate": 1}
    stream, event, streams = dm.stream(), dm.event(), []
    assert count(lambda: event.record(stream)) == {**entering, "cuEventRecord": 1}
    assert count(event.query) == {**entering, **UNSEEN, "cuEventQuery": 1}
    assert count(event.synchronize) == {**entering, **UNSEEN, "cuEventSynchronize": 1}
    assert count(lambda: event.wait(stream)) == {**entering, "cuStreamWaitEvent": 1}
    # Either would end a capture on the stream, and so is not asked for while there is one.
    assert count(stream.query) == {**entering, "cuStreamIsCapturing": 1, "cuStreamQuery": 1}
    assert count(stream.synchronize) == {**entering, "cuStreamIsCapturing": 1, "cuStreamSynchronize": 1}
    assert count(event.close) == entering
    assert count(stream.close) == {**entering, "cuStreamIsCapturing": 1, "cuStreamSynchronize": 1}
    assert count(stream.close) == {}
    # What was closed is asked whether it has passed, and used again; or it is destroyed.
    assert count(lambda: streams.append(dm.stream())) == {**entering, "cuStreamQuery": 1}
    assert count(lambda: streams.append(dm.event())) == {**entering, **UNSEEN, "cuEventQuery": 1}
    for each in streams:
        each.close()
    seen = count(dm.trim)
    assert (seen["cuEventDestroy"], seen["cuStreamDestroy"]) >= (1, 1)
    assert count(lambda: [stream.closed, dm.default_stream(), dm.legacy_default_stream()]) == {}


def test_memory_info_and_synchronize(count: Count, entering: dict[str, int]) -> None:
    dm.use_memory("driver")
    seen = count(dm.memory_info)
    assert seen.pop("cuMemGetInfo") == 1
    assert {name for name in seen if not name.startswith("cuCtx")} <= {"cuMemPoolGetAttribute", *UNSEEN}
    seen = count(dm.synchronize)
    assert seen.pop("cuStreamIsCapturing") >= 2, "no stream is captured"
    assert seen == {**entering, "cuCtxSynchronize": 1}


def test_host_memory_comes_from_one_call_each(count: Count, entering: dict[str, int]) -> None:
    def without_queue(call: Callable[[], object]) -> dict[str, int]:
        return {name: n for name, n in count(call).items() if name != "cuStreamIsCapturing"}

    for first in (dm.pinned_array, dm.mapped_array, dm.managed_array):
        first(1)  # binds the memory of its kind to the device, once
    assert without_queue(lambda: dm.pinned_array(100)) == {**entering, **UNSEEN, "cuMemHostAlloc": 1}
    seen = without_queue(lambda: dm.mapped_array(100))
    assert seen == {**entering, **UNSEEN, "cuMemHostAlloc": 1, "cuMemHostGetDevicePointer": 1}
    assert without_queue(lambda: dm.managed_array(100)) == {**entering, **UNSEEN, "cuMemAllocManaged": 1}
    plain = np.zeros(100)
    assert without_queue(lambda: dm.register(plain)) == {**entering, "cuMemHostRegister": 1}
    assert without_queue(lambda: dm.register(plain)) == entering, "counted, not locked again"
    assert without_queue(lambda: dm.deregister(plain)) == entering
    assert without_queue(lambda: dm.deregister(plain)) == {**entering, "cuMemHostUnregister": 1}


def test_the_second_device_costs_the_same(count: Count) -> None:
    if CudaBackend().device_count() < 2:
        pytest.skip("one CUDA device only")
    with dm.device(1):
        dm.to_device(DATA).free()
        seen = count(lambda: dm.to_device(DATA))
    assert seen == {**SWITCH, "cuMemAllocFromPoolAsync": 1, "cuMemcpyHtoD": 1}


def test_queries_that_ask_no_device(count: Count) -> None:
    dm.current_device().info  # noqa: B018
    assert count(lambda: [dm.current_device().name, dm.current_device().info, dm.transfer_stats(), dm.settings()]) == {}
