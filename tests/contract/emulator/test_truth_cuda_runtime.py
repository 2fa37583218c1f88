"""Claims about the CUDA runtime, as tests in plain calls of ``libcudart`` that the emulated and a real runtime must both pass.

Each test is one claim; each class names the modules of NVIDIA's "CUDA Runtime API" reference from which its claims come. Where
the process has no runtime with a device, one test for each version runs this file in a subprocess on the emulated runtime. Where
it has one, real or emulated, each claim is a test; a failure on a real runtime is a fault of the emulator. Claims that change the
process for good run in a child. ``TRUTH_RUNTIME=12`` asks ``libcudart.so.12``.
"""

import ctypes
import functools
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import truth
from waits import patience, together

from devmem.testing import emulator

LIBRARY = f"libcudart.so.{os.environ.get('TRUTH_RUNTIME', '13')}"
INVALID_VALUE, OUT_OF_MEMORY, INVALID_PITCH, INVALID_DIRECTION = 1, 2, 12, 21
INVALID_DEVICE, INVALID_HANDLE, NOT_READY = 101, 400, 600
PEER_ALREADY_ENABLED, PEER_NOT_ENABLED, ALREADY_REGISTERED, NOT_REGISTERED = 704, 705, 712, 713
NOT_PERMITTED, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 800, 900, 901
UP, DOWN, DEFAULT = 1, 2, 4
NON_BLOCKING, DISABLE_TIMING, INTERPROCESS = 1, 2, 4
LEGACY, PER_THREAD = 1, 2
u64, size, number = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def runtime_here():
    """The runtime's library, if the process has one that sees a device."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return library if library.cudaGetDeviceCount(ctypes.byref(number())) == 0 else None


rt = runtime_here()


claims = truth.claims(rt is not None)


if rt is None:

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("version", ["13", "12"])
    def test_every_claim_holds_on_the_emulator(version):
        truth.run_again(__file__, truth.environment("cuda", runtime=True) | {"TRUTH_RUNTIME": version})


# --- tools ------------------------------------------------------------------------------------------------------------


def ok(status):
    assert status == 0, status


def out(call, *arguments, kind=u64):
    """What a call writes through its first argument."""
    value = kind()
    ok(call(ctypes.byref(value), *arguments))
    return value.value


def out_last(call, *arguments, kind=u64):
    """What a call writes through its last argument."""
    value = kind()
    ok(call(*arguments, ctypes.byref(value)))
    return value.value


def at(array):
    return u64(array.ctypes.data)


@functools.cache
def control():
    try:
        ctypes.CDLL("libcuda.so.1")
        return emulator.control("cuda")
    except (OSError, emulator.EmulatorNotLoaded):
        return None


@pytest.fixture(autouse=True)
def _tidy(request):
    """Device 0 is the thread's, no error is left from before; on the emulator the test leaves nothing live."""
    if rt is None:
        yield
        return
    ok(rt.cudaSetDevice(0))
    rt.cudaGetLastError()
    before = control().live() if control() else None
    yield
    ok(rt.cudaSetDevice(0))
    ok(rt.cudaDeviceSynchronize())
    if before is not None:
        assert control().live() == before, "the test leaves memory or handles"


@pytest.fixture
def block():
    """Device memory of 4096 bytes, zeroed."""
    address = u64(out(rt.cudaMalloc, size(4096)))
    ok(rt.cudaMemset(address, 0, size(4096)))
    ok(rt.cudaStreamSynchronize(u64(LEGACY)))  # or it may come after what a non-blocking stream does
    yield address
    ok(rt.cudaFree(address))


@pytest.fixture
def pinned():
    """4096 bytes of page-locked memory."""
    address = out(rt.cudaHostAlloc, size(4096), 0)
    yield np.frombuffer((ctypes.c_uint8 * 4096).from_address(address), np.uint8)
    ok(rt.cudaFreeHost(u64(address)))


def of_flags(flags):
    @pytest.fixture
    def made():
        stream = u64(out(rt.cudaStreamCreateWithFlags, flags))
        yield stream
        ok(rt.cudaStreamSynchronize(stream))
        ok(rt.cudaStreamDestroy(stream))

    return made


stream, other, blocking = of_flags(NON_BLOCKING), of_flags(NON_BLOCKING), of_flags(0)


@pytest.fixture
def event():
    made = u64(out(rt.cudaEventCreateWithFlags, DISABLE_TIMING))
    yield made
    ok(rt.cudaEventDestroy(made))


class Gate:
    """Block a stream, on any runtime: a host function on it waits."""

    def __init__(self, stream):
        self.gate = threading.Event()
        self.function = HOST_FUNCTION(lambda _: self.gate.wait(patience()) and None)
        self.stream = stream
        ok(rt.cudaLaunchHostFunc(stream, self.function, None))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.gate.set()
        ok(rt.cudaDeviceSynchronize())


def child(code):
    """Run code in a new process, with the helpers of this file."""
    prelude = f"""
    import ctypes
    rt, u64, size, number = ctypes.CDLL({LIBRARY!r}), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int
    driver = ctypes.CDLL("libcuda.so.1")
    def active(device):
        flags, found = ctypes.c_uint(), number()
        assert driver.cuInit(0) == driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(found)) == 0
        return found.value
    """
    text = textwrap.dedent(prelude) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=patience(140)
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}{done.stderr}"


def count():
    return out(rt.cudaGetDeviceCount, kind=number)


def two_devices():
    if count() < 2:
        pytest.skip("needs two devices")


# --- errors, versions, devices ----------------------------------------------------------------------------------------


@claims("Error Handling; Version Management")
class TestErrors:
    def test_the_last_error_is_told_by_peek_and_then_cleared_by_get(self):
        assert rt.cudaSetDevice(-1) == INVALID_DEVICE
        assert rt.cudaPeekAtLastError() == rt.cudaPeekAtLastError() == INVALID_DEVICE
        assert rt.cudaGetLastError() == INVALID_DEVICE
        assert rt.cudaGetLastError() == rt.cudaPeekAtLastError() == 0

    def test_a_later_success_does_not_clear_the_error(self):
        assert rt.cudaSetDevice(-1) == INVALID_DEVICE
        assert count() > 0
        assert rt.cudaGetLastError() == INVALID_DEVICE

    def test_each_thread_has_its_own_last_error(self):
        assert rt.cudaSetDevice(-1) == INVALID_DEVICE
        assert (together(rt.cudaGetLastError), rt.cudaGetLastError()) == ([0], INVALID_DEVICE)

    def test_errors_have_names_and_texts_and_unknown_codes_one_of_their_own(self):
        for call in (rt.cudaGetErrorName, rt.cudaGetErrorString):
            call.restype = ctypes.c_char_p
        assert rt.cudaGetErrorName(0) == b"cudaSuccess"
        assert rt.cudaGetErrorName(OUT_OF_MEMORY) == b"cudaErrorMemoryAllocation"
        assert rt.cudaGetErrorString(OUT_OF_MEMORY) == b"out of memory"
        assert rt.cudaGetErrorName(9876) == rt.cudaGetErrorString(9876) == b"unrecognized error code"

    def test_versions_are_1000_times_the_major_and_10_times_the_minor(self):
        runtime, driver = out(rt.cudaRuntimeGetVersion, kind=number), out(rt.cudaDriverGetVersion, kind=number)
        assert runtime // 1000 == int(LIBRARY.rpartition(".")[2])
        assert driver // 1000 >= runtime // 1000
        assert runtime % 10 == driver % 10 == 0


@claims("Device Management; Peer Device Memory Access")
class TestDevices:
    def test_ordinals_are_checked(self):
        for ordinal in (-1, count()):
            assert rt.cudaSetDevice(ordinal) == INVALID_DEVICE
            assert rt.cudaDeviceGetAttribute(ctypes.byref(number()), 1, ordinal) == INVALID_DEVICE
        rt.cudaGetLastError()

    def test_a_device_is_the_choice_of_a_thread_and_at_first_0(self):
        two_devices()
        ok(rt.cudaSetDevice(1))
        ordinal = functools.partial(out, rt.cudaGetDevice, kind=number)
        assert (together(ordinal), ordinal()) == ([0], 1)

    def test_to_set_a_device_initialises_its_primary_context(self):
        child("""
        assert not active(0)
        assert rt.cudaSetDevice(0) == 0
        assert active(0)
        """)

    def test_to_initialise_a_device_does_not_make_it_current(self):
        two_devices()
        child("""
        found = number()
        assert rt.cudaInitDevice(1, 0, 0) == rt.cudaGetDevice(ctypes.byref(found)) == 0
        assert (active(1), found.value) == (1, 0)
        """)

    def test_a_reset_destroys_what_there_was_and_the_next_call_begins_anew(self):
        child("""
        at = u64()
        assert rt.cudaMalloc(ctypes.byref(at), size(64)) == rt.cudaDeviceReset() == 0
        assert not active(0)
        assert rt.cudaFree(at) == 1
        assert rt.cudaMalloc(ctypes.byref(at), size(64)) == 0
        assert active(0)
        """)

    def test_a_device_is_found_by_its_bus(self):
        for device in range(count()):
            text = ctypes.create_string_buffer(32)
            ok(rt.cudaDeviceGetPCIBusId(text, 32, device))
            assert out(rt.cudaDeviceGetByPCIBusId, text, kind=number) == device

    def test_the_greatest_priority_is_the_lowest_number(self):
        least, greatest = number(), number()
        ok(rt.cudaDeviceGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest)))
        assert greatest.value <= least.value

    def test_peer_access_is_enabled_once_and_disabled_once(self):
        two_devices()
        if not out(rt.cudaDeviceCanAccessPeer, 0, 1, kind=number):
            pytest.skip("the devices cannot access each other")
        assert rt.cudaDeviceDisablePeerAccess(1) == PEER_NOT_ENABLED
        ok(rt.cudaDeviceEnablePeerAccess(1, 0))
        assert rt.cudaDeviceEnablePeerAccess(1, 0) == PEER_ALREADY_ENABLED
        ok(rt.cudaDeviceDisablePeerAccess(1))
        assert rt.cudaDeviceEnablePeerAccess(1, 1) == INVALID_VALUE

    def test_no_device_is_its_own_peer(self):
        assert out(rt.cudaDeviceCanAccessPeer, 0, 0, kind=number) == 0


# --- memory -----------------------------------------------------------------------------------------------------------


@claims("Memory Management; Unified Addressing")
class TestMemory:
    def test_too_much_is_out_of_memory(self):
        assert rt.cudaMalloc(ctypes.byref(u64()), size(1 << 60)) == OUT_OF_MEMORY

    def test_null_is_freed(self):
        ok(rt.cudaFree(u64(0)))
        ok(rt.cudaFreeHost(u64(0)))

    def test_memory_is_freed_once(self):
        address = u64(out(rt.cudaMalloc, size(64)))
        ok(rt.cudaFree(address))
        assert rt.cudaFree(address) == INVALID_VALUE

    def test_free_memory_is_a_part_of_the_total(self):
        free, total = size(), size()
        ok(rt.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
        assert 0 < free.value <= total.value

    def test_a_pitch_is_at_least_the_width(self):
        pitch = size()
        rows = u64(out(rt.cudaMallocPitch, ctypes.byref(pitch), size(100), size(7)))
        assert pitch.value >= 100
        ok(rt.cudaMemset2D(rows, pitch, 1, size(100), size(7)))
        assert rt.cudaMemset2D(rows, size(99), 1, size(100), size(7)) in (INVALID_VALUE, INVALID_PITCH)
        ok(rt.cudaFree(rows))

    def test_managed_memory_of_no_bytes_is_invalid(self):
        assert rt.cudaMallocManaged(ctypes.byref(u64()), size(0), 1) == INVALID_VALUE

    def test_what_an_address_is(self, block, pinned):
        class Attributes(ctypes.Structure):
            # The vendor's struct has reserved fields behind these.
            _fields_ = [("type", number), ("device", number), ("on_device", u64), ("on_host", u64), ("more", u64 * 8)]

        def of(address):
            found = Attributes()
            ok(rt.cudaPointerGetAttributes(ctypes.byref(found), u64(address)))
            return found

        managed = out(rt.cudaMallocManaged, size(64), 1)
        plain = np.zeros(8)
        addresses = plain.ctypes.data, pinned.ctypes.data, block.value, managed
        assert [of(each).type for each in addresses] == [0, 1, 2, 3]
        assert of(block.value).on_device == block.value
        assert of(pinned.ctypes.data).on_host == pinned.ctypes.data
        ok(rt.cudaFree(u64(managed)))

    def test_flags_of_page_locked_memory_can_be_read_back(self):
        portable = 1
        address = u64(out(rt.cudaHostAlloc, size(64), portable))
        assert out(rt.cudaHostGetFlags, address, kind=ctypes.c_uint) & portable
        assert rt.cudaHostGetFlags(ctypes.byref(ctypes.c_uint()), at(np.zeros(8))) == INVALID_VALUE
        ok(rt.cudaFreeHost(address))

    def test_page_locked_memory_has_one_address(self, pinned):
        assert out(rt.cudaHostGetDevicePointer, at(pinned), 0) == pinned.ctypes.data

    def test_memory_is_registered_once_and_unregistered_once(self):
        room = np.zeros(1 << 16, np.uint8)
        ok(rt.cudaHostRegister(at(room), size(room.nbytes), 0))
        assert rt.cudaHostRegister(at(room), size(room.nbytes), 0) == ALREADY_REGISTERED
        ok(rt.cudaHostUnregister(at(room)))
        assert rt.cudaHostUnregister(at(room)) == NOT_REGISTERED


@claims("Memory Management; API synchronization behavior")
class TestCopies:
    def test_the_kind_is_checked(self, block):
        data = np.zeros(64, np.uint8)
        assert rt.cudaMemcpy(block, at(data), size(64), 5) == INVALID_DIRECTION
        ok(rt.cudaMemcpy(block, at(data), size(64), UP))

    def test_the_default_kind_is_told_by_the_addresses(self, block):
        data, back = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
        ok(rt.cudaMemcpy(block, at(data), size(64), DEFAULT))
        ok(rt.cudaMemcpy(u64(block.value + 64), block, size(64), DEFAULT))
        ok(rt.cudaMemcpy(at(back), u64(block.value + 64), size(64), DEFAULT))
        assert np.array_equal(back, data)

    def test_rows_have_a_pitch_of_their_width_at_least(self, block):
        data, back = np.arange(64, dtype=np.uint8).reshape(8, 8), np.zeros((8, 4), np.uint8)
        ok(rt.cudaMemcpy2D(block, size(16), at(data), size(8), size(8), size(8), UP))
        ok(rt.cudaMemcpy2D(at(back), size(4), block, size(16), size(4), size(8), DOWN))
        assert np.array_equal(back, data[:, :4])
        assert rt.cudaMemcpy2D(at(back), size(4), block, size(16), size(5), size(2), DOWN) == INVALID_PITCH

    def test_a_copy_into_pageable_memory_is_done_when_the_call_returns(self, block, stream):
        back = np.zeros(4096, np.uint8)
        ok(rt.cudaMemsetAsync(block, 7, size(4096), stream))
        ok(rt.cudaMemcpyAsync(at(back), block, size(4096), DOWN, stream))
        assert (back == 7).all()

    def test_a_copy_from_pageable_memory_has_read_it_when_the_call_returns(self, block):
        data, back = np.full(4096, 3, np.uint8), np.zeros(4096, np.uint8)
        ok(rt.cudaMemcpy(block, at(data), size(4096), UP))
        data[...] = 9
        ok(rt.cudaMemcpy(at(back), block, size(4096), DOWN))
        assert (back == 3).all()

    def test_a_copy_of_page_locked_memory_waits_in_its_stream(self, block, stream, pinned):
        pinned[...] = 1
        with Gate(stream):
            ok(rt.cudaMemcpyAsync(block, at(pinned), size(4096), UP, stream))
            assert rt.cudaStreamQuery(stream) == NOT_READY
            pinned[...] = 2
        back = np.zeros(4096, np.uint8)
        ok(rt.cudaMemcpy(at(back), block, size(4096), DOWN))
        assert (back == 2).all()

    def test_a_fill_takes_the_low_byte(self, block):
        back = np.zeros(4096, np.uint8)
        ok(rt.cudaMemset(block, 0x1234, size(4096)))
        ok(rt.cudaMemcpy(at(back), block, size(4096), DOWN))
        assert (back == 0x34).all()

    def test_devices_copy_to_each_other(self, block):
        two_devices()
        ok(rt.cudaSetDevice(1))
        there = u64(out(rt.cudaMalloc, size(64)))
        back = np.ones(64, np.uint8)
        ok(rt.cudaMemset(there, 5, size(64)))
        ok(rt.cudaDeviceSynchronize())
        ok(rt.cudaMemcpyPeer(block, 0, there, 1, size(64)))
        ok(rt.cudaMemcpy(at(back), block, size(64), DOWN))
        assert (back == 5).all()
        assert rt.cudaMemcpyPeer(block, count(), there, 1, size(64)) == INVALID_DEVICE
        ok(rt.cudaFree(there))


@claims("Stream Ordered Memory Allocator")
class TestPools:
    def test_at_first_the_pool_of_a_device_is_its_default_pool(self):
        assert out(rt.cudaDeviceGetMemPool, 0) == out(rt.cudaDeviceGetDefaultMemPool, 0)

    def test_the_default_pool_cannot_be_destroyed(self):
        assert rt.cudaMemPoolDestroy(u64(out(rt.cudaDeviceGetDefaultMemPool, 0))) == INVALID_VALUE

    def test_a_pool_keeps_nothing_at_a_synchronisation_unless_asked(self):
        threshold = 4
        pool = u64(out(rt.cudaDeviceGetDefaultMemPool, 0))
        kept = u64()
        ok(rt.cudaMemPoolGetAttribute(pool, threshold, ctypes.byref(kept)))
        assert kept.value == 0

    def test_memory_is_allocated_and_freed_in_the_order_of_a_stream(self, stream):
        with Gate(stream):
            address = u64(out(rt.cudaMallocAsync, size(4096), stream))
            ok(rt.cudaMemsetAsync(address, 1, size(4096), stream))
            ok(rt.cudaFreeAsync(address, stream))
            assert rt.cudaStreamQuery(stream) == NOT_READY

    def test_memory_of_a_stream_may_be_freed_without_one(self, stream):
        address = u64(out(rt.cudaMallocAsync, size(64), stream))
        ok(rt.cudaStreamSynchronize(stream))
        ok(rt.cudaFree(address))


# --- streams and events -----------------------------------------------------------------------------------------------


@claims("Stream Management; Stream synchronization behavior; Execution Control")
class TestStreams:
    def test_a_stream_is_not_ready_until_its_work_is_done(self, stream):
        ok(rt.cudaStreamQuery(stream))
        with Gate(stream):
            assert rt.cudaStreamQuery(stream) == NOT_READY
        ok(rt.cudaStreamQuery(stream))

    def test_the_legacy_stream_waits_for_blocking_streams(self, blocking, block):
        with Gate(blocking):
            ok(rt.cudaMemsetAsync(block, 1, size(64), u64(0)))
            assert rt.cudaStreamQuery(u64(0)) == NOT_READY

    def test_blocking_streams_wait_for_the_legacy_stream(self, blocking, block):
        with Gate(u64(LEGACY)):
            ok(rt.cudaMemsetAsync(block, 1, size(64), blocking))
            assert rt.cudaStreamQuery(blocking) == NOT_READY

    def test_non_blocking_streams_and_the_legacy_stream_do_not_wait_for_each_other(self, stream, block):
        with Gate(stream):
            ok(rt.cudaMemsetAsync(block, 1, size(64), u64(0)))
            ok(rt.cudaStreamSynchronize(u64(0)))
        with Gate(u64(LEGACY)):
            ok(rt.cudaMemsetAsync(block, 1, size(64), stream))
            ok(rt.cudaStreamSynchronize(stream))

    def test_the_stream_of_a_thread_does_not_wait_for_other_streams(self, blocking, block):
        with Gate(blocking):
            ok(rt.cudaMemsetAsync(block, 1, size(64), u64(PER_THREAD)))
            ok(rt.cudaStreamSynchronize(u64(PER_THREAD)))

    def test_names_for_per_thread_default_streams_take_0_for_the_stream_of_the_thread(self, blocking, block):
        """What a program calls that was compiled with ``--default-stream per-thread``."""
        with Gate(blocking):
            ok(rt.cudaMemsetAsync_ptsz(block, 1, size(64), u64(0)))
            ok(rt.cudaStreamSynchronize_ptsz(u64(0)))
            ok(rt.cudaMemset_ptds(block, 2, size(64)))

    def test_a_stream_is_destroyed_before_its_work_is_done(self):
        made = u64(out(rt.cudaStreamCreateWithFlags, NON_BLOCKING))
        with Gate(made):
            ok(rt.cudaStreamDestroy(made))

    def test_nothing_is_copied_or_filled_on_a_stream_that_there_is(self, block):
        """On one that was destroyed it is an error, as with more bytes."""
        made, room = u64(out(rt.cudaStreamCreateWithFlags, NON_BLOCKING)), np.zeros(8, np.uint8)
        calls = (
            lambda: rt.cudaMemcpyAsync(block, at(room), size(0), UP, made),
            lambda: rt.cudaMemcpy2DAsync(block, size(8), at(room), size(8), size(0), size(1), UP, made),
            lambda: rt.cudaMemsetAsync(block, 1, size(0), made),
        )
        assert [call() for call in calls] == [0, 0, 0]
        ok(rt.cudaStreamDestroy(made))
        assert [call() for call in calls] == [400, 400, 400]

    def test_flags_are_checked_and_can_be_read_back(self, stream, blocking):
        assert rt.cudaStreamCreateWithFlags(ctypes.byref(u64()), 8) == INVALID_VALUE
        found = [out_last(rt.cudaStreamGetFlags, each, kind=ctypes.c_uint) for each in (stream, blocking)]
        assert found == [NON_BLOCKING, 0]

    def test_priorities_outside_of_the_range_are_clamped(self):
        least, greatest = number(), number()
        ok(rt.cudaDeviceGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest)))
        for asked, given in ((1000, least.value), (-1000, greatest.value)):
            made = u64(out(rt.cudaStreamCreateWithPriority, NON_BLOCKING, asked))
            assert out_last(rt.cudaStreamGetPriority, made, kind=number) == given
            ok(rt.cudaStreamDestroy(made))

    def test_streams_have_different_ids(self, stream, other):
        assert out_last(rt.cudaStreamGetId, stream) != out_last(rt.cudaStreamGetId, other)

    def test_a_stream_waits_for_the_event_of_another(self, stream, other, event):
        with Gate(stream):
            ok(rt.cudaEventRecord(event, stream))
            ok(rt.cudaStreamWaitEvent(other, event, 0))
            assert rt.cudaStreamQuery(other) == NOT_READY

    def test_the_functions_of_the_host_may_not_call_the_runtime(self, stream):
        seen = []
        function = HOST_FUNCTION(lambda _: seen.append(rt.cudaMalloc(ctypes.byref(u64()), size(64))))
        ok(rt.cudaLaunchHostFunc(stream, function, None))
        ok(rt.cudaStreamSynchronize(stream))
        assert seen == [NOT_PERMITTED]

    def test_a_callback_has_no_flags(self, stream):
        callback = ctypes.CFUNCTYPE(None, u64, number, ctypes.c_void_p)(lambda *_: None)
        assert rt.cudaStreamAddCallback(stream, callback, None, 1) == INVALID_VALUE


@claims("Event Management")
class TestEvents:
    def test_an_event_that_was_never_recorded_is_complete(self, event, stream):
        ok(rt.cudaEventQuery(event))
        ok(rt.cudaEventSynchronize(event))
        ok(rt.cudaStreamWaitEvent(stream, event, 0))

    def test_an_event_is_complete_when_the_work_before_it_is(self, event, stream):
        with Gate(stream):
            ok(rt.cudaEventRecord(event, stream))
            assert rt.cudaEventQuery(event) == NOT_READY
        ok(rt.cudaEventQuery(event))

    def test_a_wait_is_for_the_record_before_it(self, event, stream, other):
        ok(rt.cudaEventRecord(event, other))
        ok(rt.cudaEventSynchronize(event))
        ok(rt.cudaStreamWaitEvent(other, event, 0))
        with Gate(stream):
            ok(rt.cudaEventRecord(event, stream))
            ok(rt.cudaStreamSynchronize(other))

    def test_flags_are_checked_and_shared_events_have_no_timing(self):
        for flags in (64, INTERPROCESS):
            assert rt.cudaEventCreateWithFlags(ctypes.byref(u64()), flags) == INVALID_VALUE

    def test_an_event_for_other_processes_is_opened_in_one(self, stream):
        made, handle = u64(out(rt.cudaEventCreateWithFlags, DISABLE_TIMING | INTERPROCESS)), (ctypes.c_char * 64)()
        ok(rt.cudaIpcGetEventHandle(handle, made))
        ok(rt.cudaEventRecord(made, stream))
        ok(rt.cudaEventSynchronize(made))
        child(f"""
        class Handle(ctypes.Structure):
            _fields_ = [("reserved", ctypes.c_char * 64)]
        event = u64()
        assert rt.cudaIpcOpenEventHandle(ctypes.byref(event), Handle.from_buffer_copy({handle.raw!r})) == 0
        assert rt.cudaEventSynchronize(event) == rt.cudaEventQuery(event) == rt.cudaEventDestroy(event) == 0
        """)
        ok(rt.cudaEventDestroy(made))

    def test_an_event_of_this_process_has_no_handle(self, event):
        assert rt.cudaIpcGetEventHandle((ctypes.c_char * 64)(), event) != 0

    def test_time_between_events(self, stream, event):
        start, end = u64(out(rt.cudaEventCreate)), u64(out(rt.cudaEventCreate))
        elapsed = ctypes.byref(ctypes.c_float())
        assert rt.cudaEventElapsedTime(elapsed, start, end) == INVALID_HANDLE  # not recorded
        ok(rt.cudaEventRecord(start, stream))
        with Gate(stream):
            ok(rt.cudaEventRecord(end, stream))
            assert rt.cudaEventElapsedTime(elapsed, start, end) == NOT_READY
        assert 0 <= out(rt.cudaEventElapsedTime, start, end, kind=ctypes.c_float) < 60_000
        ok(rt.cudaEventRecord(event, stream))
        ok(rt.cudaEventSynchronize(event))
        assert rt.cudaEventElapsedTime(elapsed, start, event) == INVALID_HANDLE  # without timing
        for each in (start, end):
            ok(rt.cudaEventDestroy(each))


@claims("Stream Management: capture; Graph Management")
class TestCapture:
    def test_a_stream_tells_that_it_captures_and_its_graph_is_launched(self, stream):
        """The emulator captures no work: its graphs are empty."""
        relaxed = 2
        assert out_last(rt.cudaStreamIsCapturing, stream, kind=number) == 0
        ok(rt.cudaStreamBeginCapture(stream, relaxed))
        assert out_last(rt.cudaStreamIsCapturing, stream, kind=number) == 1
        graph = u64(out_last(rt.cudaStreamEndCapture, stream))
        executable = u64(out(rt.cudaGraphInstantiateWithFlags, graph, u64(0)))
        ok(rt.cudaGraphLaunch(executable, stream))
        ok(rt.cudaStreamSynchronize(stream))
        ok(rt.cudaGraphExecDestroy(executable))
        ok(rt.cudaGraphDestroy(graph))

    def test_a_stream_that_captures_cannot_be_waited_for_and_the_capture_is_lost(self, stream):
        ok(rt.cudaStreamBeginCapture(stream, 2))
        assert rt.cudaStreamSynchronize(stream) == CAPTURE_UNSUPPORTED
        graph = u64()
        assert rt.cudaStreamEndCapture(stream, ctypes.byref(graph)) == CAPTURE_INVALIDATED
        assert graph.value == 0

    def test_an_object_is_destroyed_when_the_last_graph_that_refers_to_it_is_gone(self):
        without_wait, move = 1, 1
        gone = threading.Event()
        destroy = HOST_FUNCTION(lambda _: gone.set())
        made = u64(out(rt.cudaUserObjectCreate, None, destroy, 1, without_wait))
        graph = u64(out(rt.cudaGraphCreate, 0))
        ok(rt.cudaGraphRetainUserObject(graph, made, 1, move))
        executable = u64(out(rt.cudaGraphInstantiateWithFlags, graph, u64(0)))
        ok(rt.cudaGraphDestroy(graph))
        assert not gone.is_set()
        ok(rt.cudaGraphExecDestroy(executable))
        assert gone.wait(patience())
