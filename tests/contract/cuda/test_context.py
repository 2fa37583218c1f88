"""The CUDA context: the primary one, retained once, entered only where another is current, and put back."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import check_ends
from waits import patience, together

import devmem as dm
from devmem.backends.cuda.hooks import CudaBackend
from devmem.spi.errors import BackendError
from devmem.spi.types import LEGACY_STREAM, MemoryKind
from devmem.testing import emulator

ROOT = Path(__file__).resolve().parents[3]

_reason = CudaBackend().unavailable()
pytestmark = pytest.mark.skipif(_reason is not None, reason=f"no CUDA driver, real or emulated: {_reason}")
emulated_only = pytest.mark.skipif("DEVMEM_EMULATOR" not in os.environ, reason="needs the emulator's control")
cu: Any = importlib.import_module("cuda.bindings.driver") if _reason is None else None

DATA = np.arange(1000, dtype=np.int32)


def ok(result: tuple[Any, ...]) -> Any:
    """The output of a call of the raw bindings that must succeed."""
    assert not result[0], result[0]
    return result[1] if len(result) == 2 else result[1:]


def current() -> int:
    return int(ok(cu.cuCtxGetCurrent()))


def new_context() -> Any:
    """A second context on device 0, as another library may have; it is current."""
    try:
        return ok(cu.cuCtxCreate(None, 0, 0))
    except TypeError:  # the binding of CUDA 12
        return ok(cu.cuCtxCreate(0, 0))


def active(ordinal: int) -> bool:
    return bool(ok(cu.cuDevicePrimaryCtxGetState(ordinal))[1])


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    """The backend in use, no device open yet and nothing current; the same again afterwards."""
    gc.collect()  # host memory in the frames of an earlier test keeps its driver open
    dm.close()
    ok(cu.cuInit(0))
    ok(cu.cuCtxSetCurrent(0))
    with dm.use_backend("cuda"):
        yield
    dm.close()
    for ordinal in range(CudaBackend().device_count()):
        cu.cuDevicePrimaryCtxRetain(ordinal)  # reset by a test, it is in use again by its other holders
        cu.cuDevicePrimaryCtxRelease(ordinal)
    assert current() == 0, "a context was left current"


@pytest.fixture
def calls() -> Callable[[], dict[str, int]]:
    """Count the driver's calls since the last time this was asked."""
    control = emulator.control("cuda")
    control.reset()

    def count() -> dict[str, int]:
        found = control.calls()
        control.reset()
        return found

    return count


@pytest.fixture
def two() -> None:
    if CudaBackend().device_count() < 2:
        pytest.skip("one CUDA device only")


def use_all_verbs() -> None:
    """Something of everything, on the current device."""
    stream, event = dm.stream(), dm.event()
    array = dm.to_device(DATA, stream=stream)
    assert np.array_equal(array.copy_to_host(), DATA)
    array[2:5] = 7
    array[::2].copy()
    event.record(stream)
    event.synchronize()
    pinned = dm.pinned_array(10)
    dm.mapped_array(10).copy_to_host()
    plain = np.zeros(20000)
    dm.register(plain)
    dm.deregister(plain)
    dm.memory_info()
    dm.synchronize()
    stream.close()
    event.close()
    array.free()
    del pinned
    dm.trim(device=dm.current_device())


# -- retained once, let go once ----------------------------------------------------------------------------------------


@emulated_only
def test_retained_once_per_device(calls: Callable[[], dict[str, int]], two: None) -> None:
    for ordinal in (0, 1):
        with dm.device(ordinal):
            for _ in range(3):
                use_all_verbs()
    seen = calls()
    assert seen["cuDevicePrimaryCtxRetain"] == 2
    assert "cuDevicePrimaryCtxRelease" not in seen
    assert not {"cuCtxCreate", "cuCtxDestroy", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxSetFlags"} & seen.keys()
    dm.close()
    assert calls()["cuDevicePrimaryCtxRelease"] == 2


@emulated_only
@pytest.mark.parametrize("end", [dm.close, dm.reset])
def test_the_end_releases(end: Callable[[], None]) -> None:
    outside = emulator.control("cuda").live()
    before = active(0)
    dm.to_device(DATA)
    dm.stream()
    dm.event()
    assert active(0)
    end()
    assert active(0) is before
    assert emulator.control("cuda").live() == outside
    use_all_verbs()  # it can be used again


@emulated_only
def test_what_another_library_has_there_stays() -> None:
    """It holds the primary context too: closing gives back what is ours, and nothing of its."""
    other = ok(cu.cuDevicePrimaryCtxRetain(0))
    try:
        ok(cu.cuCtxSetCurrent(other))
        theirs = ok(cu.cuMemAlloc(4096))
        stream = ok(cu.cuStreamCreate(0))
        before = emulator.control("cuda").live()
        mine = [dm.to_device(DATA), dm.stream(), dm.event(), dm.zeros(10)]
        with dm.use_memory(dm.memory.DriverMemory()):
            mine.append(dm.to_device(DATA))
        dm.register(DATA)
        dm.close()
        assert emulator.control("cuda").live() == before
        assert active(0)
        ok(cu.cuMemsetD8Async(theirs, 3, 4096, stream))
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuStreamDestroy(stream))
        ok(cu.cuMemFree(theirs))
        ok(cu.cuCtxSetCurrent(0))
    finally:
        ok(cu.cuDevicePrimaryCtxRelease(0))


@emulated_only
def test_closing_a_driver_gives_back_what_is_out() -> None:
    """Whose address an interrupt has kept from the caller, say: the context may outlive the driver."""
    ok(cu.cuDevicePrimaryCtxRetain(0))
    try:
        before = emulator.control("cuda").live()
        driver: Any = CudaBackend().open(0)
        token = driver.enter()
        for kind in (MemoryKind.DEVICE, MemoryKind.PINNED, MemoryKind.MAPPED, MemoryKind.MANAGED):
            driver.alloc(4096, LEGACY_STREAM, kind)
        driver.alloc_async(4096, driver.stream_create(0, True))
        driver.virtual_alloc(4096, LEGACY_STREAM)
        driver.event_create(False)
        driver.exit(token)
        driver.close()
        assert emulator.control("cuda").live() == before
        assert active(0)
    finally:
        ok(cu.cuDevicePrimaryCtxRelease(0))


@emulated_only
def test_opening_and_closing_leaves_the_count_as_it_was() -> None:
    held = active(0)
    for _ in range(5):
        use_all_verbs()
        dm.reset()
    assert active(0) is held


def test_host_memory_outlives_the_device() -> None:
    """The context is kept while an ndarray points into memory that came from it."""
    array = dm.pinned_array(1000, np.int32)
    array[...] = 5
    dm.close()
    assert np.all(array == 5)
    array[...] = 6
    assert array.sum() == 6000
    del array
    ok(cu.cuDevicePrimaryCtxRelease(0))  # no other holder will: what outlives the device is left to the driver


# -- entering ----------------------------------------------------------------------------------------------------------


def test_nothing_current_before_stays_nothing_current() -> None:
    assert current() == 0
    use_all_verbs()
    assert current() == 0


@emulated_only
def test_entered_by_comparing(calls: Callable[[], dict[str, int]]) -> None:
    """Where the primary context is current already, one question is all; nothing is set, pushed or popped."""
    array = dm.to_device(DATA)
    ok(cu.cuCtxSetCurrent(cu.cuDevicePrimaryCtxRetain(0)[1]))
    try:
        calls()
        array.copy_to_host()
        seen = calls()
        assert seen["cuCtxGetCurrent"] == 1
        assert not {"cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"} & seen.keys()
    finally:
        ok(cu.cuCtxSetCurrent(0))
        ok(cu.cuDevicePrimaryCtxRelease(0))
    array.copy_to_host()
    seen = calls()
    assert seen["cuCtxSetCurrent"] >= 2  # there and back


def test_a_second_context_of_the_device_is_put_back() -> None:
    other = new_context()
    try:
        use_all_verbs()
        assert current() == int(other)
        theirs = ok(cu.cuMemAlloc(100))  # their context still works
        ok(cu.cuMemFree(theirs))
    finally:
        ok(cu.cuCtxDestroy(other))
        ok(cu.cuCtxSetCurrent(0))


def test_the_other_devices_context_is_put_back(two: None) -> None:
    other = ok(cu.cuDevicePrimaryCtxRetain(1))
    ok(cu.cuCtxSetCurrent(other))
    try:
        use_all_verbs()
        assert current() == int(other)
        with dm.device(1):
            use_all_verbs()
        assert current() == int(other)
    finally:
        ok(cu.cuCtxSetCurrent(0))
        ok(cu.cuDevicePrimaryCtxRelease(1))


def test_put_back_also_when_a_verb_fails() -> None:
    other = new_context()
    try:
        with pytest.raises(dm.errors.OutOfMemory):
            dm.device_array(1 << 50, np.uint8)
        assert current() == int(other)
    finally:
        ok(cu.cuCtxDestroy(other))
        ok(cu.cuCtxSetCurrent(0))


def test_switched_by_another_library_in_between() -> None:
    """What was current at the last call says nothing about the next."""
    array = dm.to_device(DATA)
    primary = ok(cu.cuDevicePrimaryCtxRetain(0))
    other = new_context()
    ok(cu.cuCtxSetCurrent(0))
    try:
        for context in (primary, other, 0, other, primary, 0):
            ok(cu.cuCtxSetCurrent(context))
            assert np.array_equal(array.copy_to_host(), DATA)
            assert current() == int(context)
    finally:
        ok(cu.cuCtxDestroy(other))
        ok(cu.cuCtxSetCurrent(0))
        ok(cu.cuDevicePrimaryCtxRelease(0))


def test_memory_belongs_to_the_primary_context() -> None:
    with dm.use_memory(dm.memory.DriverMemory()):
        array = dm.to_device(DATA)
    primary = ok(cu.cuDevicePrimaryCtxRetain(0))
    other = new_context()
    try:
        with dm.use_memory(dm.memory.DriverMemory()):
            made_meanwhile = dm.to_device(DATA)
        attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT
        for each in (array, made_meanwhile):
            assert int(ok(cu.cuPointerGetAttribute(attribute, each.ptr))) == int(primary)
    finally:
        ok(cu.cuCtxDestroy(other))
        ok(cu.cuCtxSetCurrent(0))
        ok(cu.cuDevicePrimaryCtxRelease(0))


def test_two_devices_in_two_threads(two: None) -> None:
    barrier = threading.Barrier(2)

    def work(ordinal: int) -> None:
        with dm.use_backend("cuda"), dm.device(ordinal):
            for turn in range(30):
                barrier.wait(patience())
                assert current() == 0
                array = dm.to_device(DATA + turn)
                assert array.device.ordinal == ordinal
                use_all_verbs()
                assert np.array_equal(array.copy_to_host(), DATA + turn)

    together(*(partial(work, ordinal) for ordinal in (0, 1)))


def test_a_copy_between_devices_keeps_no_context(two: None) -> None:
    near = dm.to_device(DATA)
    with dm.device(1):
        far = dm.device_array(DATA.shape, DATA.dtype)
    far.copy_to_device(near)
    assert np.array_equal(far.copy_to_host(), DATA)
    assert current() == 0
    held = ok(cu.cuDevicePrimaryCtxRetain(0))
    ok(cu.cuDevicePrimaryCtxRelease(0))
    assert int(held)


# -- taken away --------------------------------------------------------------------------------------------------------


@emulated_only
def test_reset_from_outside_is_an_error_and_no_crash() -> None:
    array, stream = dm.to_device(DATA), dm.stream()
    ok(cu.cuDevicePrimaryCtxReset(0))
    with pytest.raises(dm.errors.DeviceLost) as caught:
        dm.to_device(DATA)
    assert caught.value.name == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
    assert caught.value.code == 709
    with pytest.raises(dm.errors.DeviceLost):
        array.copy_to_host()
    with pytest.raises(dm.errors.DeviceLost):
        stream.synchronize()
    del array, stream
    gc.collect()
    dm.close()
    use_all_verbs()  # opened afresh, it works again


@emulated_only
def test_reset_from_outside_leaves_the_other_device_alone(two: None) -> None:
    array = dm.to_device(DATA)
    with dm.device(1):
        far = dm.to_device(DATA)
    ok(cu.cuDevicePrimaryCtxReset(0))
    with pytest.raises(BackendError):
        array.copy_to_host()
    assert np.array_equal(far.copy_to_host(), DATA)
    with dm.device(1):
        use_all_verbs()
    del far
    with pytest.raises(dm.errors.DeviceLost):
        dm.trim()  # of every device: the one that is lost says so, and the other is trimmed
    dm.device(1).synchronize()  # what was freed in stream order is the pool's once the stream has passed
    dm.trim(device=1)
    info = dm.memory_info(device=1)
    assert (info.live, info.pending, info.cached) == (0, 0, 0)


@emulated_only
def test_reset_from_outside_and_used_again_by_others() -> None:
    """The context has the same address as before, and nothing that was made in it."""
    with dm.use_memory(dm.memory.DriverMemory()):
        array = dm.to_device(DATA)
    ok(cu.cuDevicePrimaryCtxReset(0))
    ok(cu.cuDevicePrimaryCtxRetain(0))
    try:
        with pytest.raises(BackendError):
            array.copy_to_host()
        with pytest.raises(BackendError):
            dm.to_device(DATA)  # the pool is gone
        with pytest.raises(BackendError):
            array.free()
        with pytest.raises(BackendError):
            dm.close()
    finally:
        ok(cu.cuDevicePrimaryCtxRelease(0))
    use_all_verbs()


@emulated_only
def test_what_is_left_of_a_device_whose_context_was_reset_from_outside_keeps_none_from_opening() -> None:
    """Its pool is gone, and its host memory, which is never given back while an array refers to it."""
    pinned = dm.pinned_array(10)
    dm.close()
    ok(cu.cuDevicePrimaryCtxReset(0))
    for _ in range(2):
        use_all_verbs()
        dm.close()
    del pinned
    with pytest.raises(BackendError):
        dm.trim()  # the memory went with the context: that is told once
    use_all_verbs()


@emulated_only
@pytest.mark.parametrize("code", [700, 719])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside another library"])
def test_a_lost_device_is_tried_again_and_where_the_error_stays_a_restart_is_advised(code: int, others: bool) -> None:
    """In a process of its own: host memory that tests before have left would keep the context, and its error."""
    program = f"""
        import devmem as dm
        from test_context import use_a_lost_device
        with dm.use_backend("cuda"):
            use_a_lost_device({code}, {others})
        print("ends")
    """
    check_ends(program, str(Path(__file__).parent))


def use_a_lost_device(code: int, others: bool) -> None:
    array, stream = dm.to_device(DATA), dm.stream()
    if others:
        ok(cu.cuDevicePrimaryCtxRetain(0))
    control = emulator.control("cuda")
    try:
        control.fail("cuMemcpyHtoDAsync", 1, code)
        for use in (lambda: dm.to_device(DATA, stream=stream), array.copy_to_host):
            with pytest.raises(dm.errors.DeviceLost, match=r"reset.* tries .* restart the process") as caught:
                use()
            assert caught.value.code == code
        dm.reset()
        if others:  # the context is theirs, too, and its error stays
            with pytest.raises(dm.errors.DeviceLost, match="restart the process"):
                dm.to_device(DATA)
            dm.reset()
    finally:
        control.reset()
        if others:
            ok(cu.cuDevicePrimaryCtxRelease(0))
    use_all_verbs()


@emulated_only
def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    script = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np
import devmem as dm
from devmem.testing import emulator
data = np.arange(100)
array, stream, event, pinned = dm.to_device(data), dm.stream(), dm.event(), dm.pinned_array(10)
dropped = [dm.to_device(data) for _ in range(3)]
child = os.fork()
if not child:
    emulator.control("cuda").reset()
    pinned[...] = 1
    attempts = [
        lambda: array.copy_to_host(), lambda: dm.to_device(data), lambda: stream.synchronize(), lambda: array.free(),
        lambda: event.record(), lambda: dm.stream(), lambda: dm.pinned_array(3), lambda: dm.memory_info(),
        lambda: array.fill(0), lambda: array.copy_to_device(data), lambda: stream.close(), lambda: event.close(),
        lambda: dm.synchronize(), lambda: dm.trim(),
    ]
    for attempt in attempts:
        try:
            attempt()
        except dm.errors.ForkedError as error:
            assert "fork" in str(error)
        else:
            os._exit(1)
    del array, stream, event, pinned, dropped
    import gc
    gc.collect()
    dm.close()
    called = emulator.control("cuda").calls()
    os._exit(0 if set(called) <= {"cuInit", "cuDriverGetVersion"} else 2)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 0, status
assert np.array_equal(array.copy_to_host(), data)
del array, stream, event, pinned, dropped
dm.close()
assert emulator.control("cuda").live() == (0, 0)
"""
    environment = {**os.environ, "DEVMEM_BACKEND": "cuda", "PYTHONPATH": str(ROOT)}
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


# -- streams of other contexts -------------------------------------------------------------------------------------------


def test_a_stream_of_a_context_of_another_library_is_refused_by_name() -> None:
    dm.zeros(1)  # opens the device
    mine = new_context()
    stream = int(ok(cu.cuStreamCreate(0)))
    with pytest.raises(dm.UnsupportedError, match=r"another context than the primary one of device 0.*cuCtxCreate"):
        dm.external_stream(stream)
    assert current() == int(mine), "put back"
    ok(cu.cuCtxDestroy(mine))


def test_a_stream_of_a_green_context_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gives the primary context for it, beside the green one."""
    dm.zeros(1)
    driver: Any = dm.current_device().driver()
    with dm.current_device().entered():
        stream = driver.stream_create(0, True)
    primary = driver.context.primary
    monkeypatch.setattr(driver.state.functions, "StreamGetCtx_v2", lambda handle: (primary, cu.CUgreenCtx(0x6EE0)))
    monkeypatch.setattr(dm.current_device().opened().streams, "_streams", {})
    taken = dm.external_stream(stream)
    assert taken.external
    array = dm.to_device(np.arange(4), stream=taken)
    assert array.copy_to_host().tolist() == [0, 1, 2, 3]
    del array
    dm.synchronize()
    with dm.current_device().entered():
        driver.stream_destroy(stream)
