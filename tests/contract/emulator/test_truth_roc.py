"""Claims about the HIP runtime, as tests in plain calls through ctypes that the emulated and a real runtime must both pass.

Each test is one claim; each class names its sources: chapters of AMD's HIP documentation, the source of the runtime (ROCm/clr),
and entries of docs/explanation/hip-is-not-cuda.md. No claim has been checked on AMD hardware yet. Where the process has no
usable runtime, one test runs this file in subprocesses on the emulator, once for each ROCm series whose rules differ. Where it
has one, real or emulated, each claim is a test; a failure on a real runtime is a fault of the emulator. Claims about behaviour
that the vendor leaves undefined or does not document are marked ``emulator_only``; claims that end the process run in a child.
"""

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import truth
from truth import (
    DESTROYED,
    DISABLE_TIMING,
    GLOBAL,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    INVALIDATED,
    LEGACY,
    NON_BLOCKING,
    NOT_FOUND,
    NOT_READY,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    PER_THREAD,
    RELAXED,
    UNSUPPORTED,
    emulator_only,
    once,
)
from waits import blocked, patience, together

from devmem.testing import emulator
from devmem.toolkit.numa import online_nodes

INVALID_PITCH, INVALID_DEVICE_POINTER, INVALID_DIRECTION, NO_DEVICE, ALREADY, NOT_REGISTERED = 12, 17, 21, 100, 712, 713
H2H, H2D, D2H, D2D, ANY_KIND = range(5)
PORTABLE, MAPPED, WRITE_COMBINED, COHERENT, NON_COHERENT = 1, 2, 4, 0x40000000, 0x80000000
NUMA_USER, HOST_NUMA_ID = 0x2000_0000, 92
INTERPROCESS, NO_FENCE, TO_DEVICE, TO_SYSTEM = 4, 0x20000000, 0x40000000, 0x80000000
SIGNAL_MEMORY = 2
STAGED = 4 << 20

#: The ROCm series on which the claims are checked: before and after 7.0, and before and after 7.3.
SERIES = ("6.4", "7.2", "10.0")


class Hip:
    """The functions of the runtime. Integers are passed with 64 bits, which is right for narrower parameters too."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def call(*arguments):
            wide = [ctypes.c_uint64(a & (2**64 - 1)) if isinstance(a, int) else a for a in arguments]
            return function(*wide)

        setattr(self, name, call)
        return call

    def out(self, name, *arguments, kind=ctypes.c_uint64):
        """Call a function that stores its result through the first parameter; return the result."""
        value = kind()
        ok(getattr(self, name)(ctypes.byref(value), *arguments))
        return value.value


def opened():
    """The runtime, real or emulated, if it has a usable device; otherwise None."""
    names = [f"{home}/lib/libamdhip64.so" for home in map(os.environ.get, ("ROCM_PATH", "ROCM_HOME")) if home]
    for name in (*names, "libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int()
        return Hip(library) if library.hipGetDeviceCount(ctypes.byref(count)) == 0 else None
    return None


hip = opened()
claims = truth.claims(hip is not None)


if hip is None:

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize(
        "series", [SERIES[-1], *(pytest.param(each, marks=pytest.mark.exhaustive) for each in SERIES[:-1])]
    )
    def test_every_claim_holds_on_the_emulator(series):
        truth.run_again(__file__, truth.environment("roc") | {"DEVMEM_EMULATOR_ROCM": series})


# --- tools ------------------------------------------------------------------------------------------------------------


def ok(result):
    assert result == 0, result


def returns(result, *codes):
    assert result in codes, result


@functools.cache
def version():
    """The version of HIP, as (7, 2); ROCm 10 has HIP 7.15."""
    number = hip.out("hipRuntimeGetVersion", kind=ctypes.c_int)
    return number // 10_000_000, number // 100_000 % 100


def since(*first):
    return pytest.mark.skipif(hip is not None and version() < first, reason=f"other rules before {first}")


def before(*first):
    return pytest.mark.skipif(hip is not None and version() >= first, reason=f"other rules since {first}")


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Make device 0 current. On the emulator, also check that the test leaves nothing live."""
    if hip is None:
        yield
        return
    ok(hip.hipSetDevice(0))
    ok(hip.hipDeviceSynchronize())
    held = emulator.control("roc").live() if vendor.emulated() else None
    yield
    ok(hip.hipSetDevice(0))
    ok(hip.hipDeviceSynchronize())
    hip.hipGetLastError()
    if held is not None and "leaks" not in request.fixturenames:
        assert emulator.control("roc").live() == held, "the test leaves memory or handles"


@pytest.fixture
def leaks():
    """The runtime leaks in this test."""


def sample(size=4096, value=0):
    return np.full(size, value, np.uint8)


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class PoolProperties(ctypes.Structure):
    _fields_ = (
        ("allocation", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("security", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    )


class Pitched(ctypes.Structure):
    _fields_ = (
        ("ptr", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("xsize", ctypes.c_size_t),
        ("ysize", ctypes.c_size_t),
    )


class Triple(ctypes.Structure):
    _fields_ = (("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t))


class Copy3D(ctypes.Structure):
    _fields_ = (
        ("src_array", ctypes.c_void_p),
        ("src_pos", Triple),
        ("src", Pitched),
        ("dst_array", ctypes.c_void_p),
        ("dst_pos", Triple),
        ("dst", Pitched),
        ("extent", Triple),
        ("kind", ctypes.c_int),
    )


class PointerAttributes(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("device_pointer", ctypes.c_void_p),
        ("host_pointer", ctypes.c_void_p),
        ("managed", ctypes.c_int),
        ("flags", ctypes.c_uint),
    )


class IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def attribute(number, device=0):
    return hip.out("hipDeviceGetAttribute", number, device, kind=ctypes.c_int)


class Roc(truth.Vendor):
    """The runtime under the names of the statements that hold for both vendors."""

    name, column = "roc", 1
    #: Functions that store their result through the first parameter.
    RESULTS = frozenset(
        [
            "allocate",
            "allocate_managed",
            "pin",
            "flags_of",
            "create_stream",
            "create_event",
            "allocate_from",
            "device_count",
            "device_at",
            "can_access_peer",
            "create_physical",
        ]
    )
    UNDEFINED = frozenset({"test_a_captured_event_cannot_be_queried_in_any_mode"})
    BY_ORDINAL = (
        ("hipSetDevice",),
        ("hipDeviceGet", ctypes.byref(ctypes.c_int())),
        ("hipDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 87),
    )
    ERROR_NAMES: ClassVar = {OUT_OF_MEMORY: "hipErrorOutOfMemory", NOT_READY: "hipErrorNotReady"}
    ERROR_TEXTS: ClassVar = {INVALID_VALUE: "invalid argument"}
    DEFAULT_STREAMS = (0, PER_THREAD)
    UNSAFE = ("allocate",)
    SAFE_IF_RELAXED = ("allocate", "page-lock")
    NO_RANGE = (NOT_FOUND,)
    PITCH_MULTIPLE = 4
    EVENT_FLAGS = (0, 1, DISABLE_TIMING, DISABLE_TIMING | TO_SYSTEM, TO_DEVICE)
    NO_EVENT_FLAGS = (TO_SYSTEM | TO_DEVICE, INTERPROCESS, 8)
    UNKNOWN_EVENT = DESTROYED
    PINNED, PINNED_FLAGS = COHERENT, (0, PORTABLE, COHERENT, NON_COHERENT | PORTABLE, NUMA_USER | COHERENT)
    NO_REGISTER_FLAGS = 0x100
    newest = os.environ.get("DEVMEM_EMULATOR_ROCM", SERIES[-1]) == SERIES[-1]
    WITH_BLOCK = "block = hip.out('hipMalloc', 64)\n"

    def call(self, function, *arguments):
        error = getattr(hip, function)(*arguments)
        if error:
            raise truth.Refused(error)

    def result(self, function, *arguments, kind=ctypes.c_uint64):
        value = kind()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def __getattr__(self, name):
        if name in self.RESULTS:
            return functools.partial(self.result, truth.FUNCTIONS[name][self.column])
        return super().__getattr__(name)

    def child(self, code, *, expect=0, files=(), **variables):
        """Run code in a new process, with the names of this file, some open files and, by default, the same runtime."""
        prelude = f"""
        import ctypes, os, sys, threading, importlib.util
        import numpy as np
        spec = importlib.util.spec_from_file_location("claimed", {__file__!r})
        claimed = importlib.util.module_from_spec(spec)
        sys.modules["claimed"] = claimed
        spec.loader.exec_module(claimed)
        from claimed import *
        """
        return truth.child(prelude, code, expect=expect, files=files, variables=variables)

    def identity(self, device):
        name, uuid, bus = (ctypes.create_string_buffer(n) for n in (64, 16, 32))
        self.call("hipDeviceGetName", name, 64, device)
        self.call("hipDeviceGetUuid", uuid, device)
        self.call("hipDeviceGetPCIBusId", bus, 32, device)
        return name.value, uuid.raw, bus.value

    def error_name(self, code, function="hipGetErrorName"):
        told = getattr(hip._library, function)
        told.restype = ctypes.c_char_p
        return told(code).decode()

    def error_text(self, code):
        return self.error_name(code, "hipGetErrorString")

    def address_range(self, address):
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("hipMemGetAddressRange", ctypes.byref(base), ctypes.byref(size), address)
        return base.value, size.value

    def allocate_rows(self, width, height):
        pitch = ctypes.c_size_t()
        return self.result("hipMallocPitch", ctypes.byref(pitch), width, height), pitch.value

    def upload(self, to, source, size):
        self.call("hipMemcpy", to, source, size, H2D)

    def download(self, to, source, size):
        self.call("hipMemcpy", to, source, size, D2H)

    def upload_async(self, to, source, size, stream):
        self.call("hipMemcpyAsync", to, source, size, H2D, stream)

    def download_async(self, to, source, size, stream):
        self.call("hipMemcpyAsync", to, source, size, D2H, stream)

    def allocate_word(self):
        return self.result("hipExtMallocWithFlags", 8, SIGNAL_MEMORY)

    def wait_word(self, stream, address, value):
        self.call("hipStreamWaitValue32", stream, address, value, 0, 0xFFFFFFFF)

    def write_word(self, stream, address, value):
        self.call("hipStreamWriteValue32", stream, address, value, 0)

    def wait_event(self, stream, event):
        self.call("hipStreamWaitEvent", stream, event, 0)

    def elapsed(self, start, end):
        return self.result("hipEventElapsedTime", start, end, kind=ctypes.c_float)

    def launch_host(self, stream, function, data):
        self.call("hipLaunchHostFunc", stream, function, data)

    @contextlib.contextmanager
    def peer(self, device):
        """What enables and disables access to a device."""
        yield device

    def exchange_mode(self, mode):
        found = ctypes.c_int(mode)
        self.call("hipThreadExchangeStreamCaptureMode", ctypes.byref(found))
        return found.value

    def capture_status(self, stream):
        found = ctypes.c_int(7)
        self.call("hipStreamIsCapturing", stream, ctypes.byref(found))
        return found.value

    def end_capture(self, stream):
        graph = ctypes.c_uint64()
        self.call("hipStreamEndCapture", stream, ctypes.byref(graph))
        return graph.value

    def instantiate(self, graph):
        return self.result("hipGraphInstantiateWithFlags", graph, 0)

    def create_pool(self, *, shareable=False):
        if not attribute(88):
            pytest.skip("the device has no memory pools")
        properties = PoolProperties(allocation=1, handles=int(shareable), location=Location(1, 0))
        return self.result("hipMemPoolCreate", ctypes.byref(properties))

    def ipc_handle(self, address):
        made = IpcHandle()
        self.call("hipIpcGetMemHandle", ctypes.byref(made), address)
        return bytes(made)

    def open_ipc(self, data):
        return self.result("hipIpcOpenMemHandle", IpcHandle.from_buffer_copy(data), 1)

    def export_pool(self, pool, flags):
        return self.result("hipMemPoolExportToShareableHandle", pool, 1, flags, kind=ctypes.c_int)

    def export_pointer(self, address):
        data = IpcHandle()
        self.call("hipMemPoolExportPointer", ctypes.byref(data), address)
        return bytes(data)

    def physical_properties(self):
        if not attribute(89):
            pytest.skip("the device has no virtual memory management")
        return (ctypes.c_int * 8)(1, 1, 1, 0)  # pinned, for file descriptors, on device 0

    def granularity(self, properties):
        return self.result("hipMemGetAllocationGranularity", properties, 0)

    def reserve(self, size):
        return self.result("hipMemAddressReserve", size, 0, 0, 0)

    def allow(self, address, size):
        self.call("hipMemSetAccess", address, size, (ctypes.c_int * 3)(1, 0, 3), 1)

    def export_physical(self, physical):
        return self.result("hipMemExportToShareableHandle", physical, 1, 0, kind=ctypes.c_int)


vendor = Roc()
pinned, read, pages, address_of, Gate = vendor.pinned, vendor.read, vendor.pages, vendor.address_of, vendor.gate
assert_blocked, on_another_thread, child, relaxed = (
    vendor.assert_blocked,
    vendor.on_another_thread,
    vendor.child,
    vendor.relaxed,
)
SEGFAULT, ABORT = -11, -6


# --- the runtime and its devices --------------------------------------------------------------------------------------


@claims("Initialization and Version; Device Management; hip-is-not-cuda 3.17")
class TestRuntime(truth.Devices):
    def test_the_first_call_opens_the_runtime(self):
        child("ok(hip.hipFree(hip.out('hipMalloc', 64)))")

    def test_hip_init_takes_no_flags(self):
        ok(hip.hipInit(0))
        returns(hip.hipInit(1), INVALID_VALUE)

    def test_the_driver_has_the_runtimes_version(self):
        assert hip.out("hipDriverGetVersion", kind=ctypes.c_int) // 100_000 == version()[0] * 100 + version()[1]

    def test_each_device_has_one_context_which_is_always_there(self):
        """Deprecated, says the reference: retained for code that comes from CUDA's driver API. HIP's own calls name devices."""
        count = hip.out("hipGetDeviceCount", kind=ctypes.c_int)
        contexts = [
            hip.out("hipDevicePrimaryCtxRetain", n, kind=ctypes.c_void_p) for n in range(count) for _ in range(2)
        ]
        assert all(contexts)
        assert contexts[::2] == contexts[1::2]
        assert len(set(contexts)) == count
        for device in range(count):
            ok(hip.hipDevicePrimaryCtxRelease(device))
        for ordinal in (-1, count):
            returns(hip.hipDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), ordinal), INVALID_DEVICE)
            returns(hip.hipDevicePrimaryCtxRelease(ordinal), INVALID_DEVICE)
        returns(hip.hipDevicePrimaryCtxRetain(None, 0), INVALID_VALUE)

    def test_attributes_report_the_features_of_the_device(self):
        assert attribute(87) in (32, 64)
        assert attribute(16) in (0, 1)
        assert attribute(10011) in (0, 1)
        assert attribute(67) >= 0
        returns(hip.hipDeviceGetAttribute(ctypes.byref(ctypes.c_int()), 9000, 0), INVALID_VALUE)

    @since(6, 0)
    def test_properties_have_the_layout_of_rocm_6(self):
        raw = ctypes.create_string_buffer(b"\xff" * 1536, 1536)
        ok(hip.hipGetDevicePropertiesR0600(raw, 0))
        name = ctypes.create_string_buffer(64)
        ok(hip.hipDeviceGetName(name, 64, 0))
        total = hip.out("hipDeviceTotalMem", 0, kind=ctypes.c_size_t)
        assert raw.raw.split(b"\0")[0] == name.value
        assert int.from_bytes(raw.raw[288:296], "little") == total
        assert int.from_bytes(raw.raw[308:312], "little") == attribute(87)
        assert raw.raw[1160:1163] == b"gfx"
        assert raw.raw[1472:1536] == b"\xff" * 64

    @emulator_only
    def test_modules_kernels_and_graphs_are_not_supported(self, stream):
        returns(hip.hipModuleLoadData(ctypes.byref(ctypes.c_uint64()), address_of(sample())), NOT_SUPPORTED)
        returns(hip.hipModuleGetFunction(ctypes.byref(ctypes.c_uint64()), 1, b"kernel"), NOT_SUPPORTED)
        returns(hip.hipModuleUnload(1), NOT_SUPPORTED)
        returns(hip.hipModuleLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, None, None), NOT_SUPPORTED)
        returns(hip.hipLaunchKernel(0, 1, 1, 1, 1, 1, 1, None), NOT_SUPPORTED)
        returns(hip.hipGraphCreate(ctypes.byref(ctypes.c_uint64()), 0), NOT_SUPPORTED)
        returns(hip.hipMemRangeGetAttribute(None), NOT_SUPPORTED)

    @emulator_only
    @once
    def test_a_forked_child_may_not_use_the_runtime(self):
        child("""
        kept = hip.out("hipMalloc", 64)
        pid = os.fork()
        if not pid:
            os._exit(0 if hip.hipFree(kept) == 3 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        ok(hip.hipFree(kept))
        """)


@claims("Error Handling; hip-is-not-cuda 6.11")
class TestLastError:
    @since(7, 0)
    def test_since_rocm_7_the_last_error_remains_until_it_is_read(self):
        returns(hip.hipFree(12345), INVALID_VALUE)
        ok(hip.hipDeviceSynchronize())
        assert hip.hipPeekAtLastError() == INVALID_VALUE
        assert hip.hipGetLastError() == INVALID_VALUE
        assert hip.hipGetLastError() == 0

    @before(7, 0)
    def test_before_rocm_7_the_last_error_is_the_result_of_the_last_call(self):
        returns(hip.hipFree(12345), INVALID_VALUE)
        assert hip.hipPeekAtLastError() == INVALID_VALUE
        ok(hip.hipDeviceSynchronize())
        assert hip.hipGetLastError() == 0

    @since(7, 0)
    def test_since_rocm_7_hip_ext_get_last_error_returns_the_last_result(self):
        returns(hip.hipFree(12345), INVALID_VALUE)
        ok(hip.hipDeviceSynchronize())
        assert hip.hipExtGetLastError() == 0
        assert hip.hipGetLastError() == INVALID_VALUE

    @since(7, 0)
    def test_since_rocm_7_not_ready_is_not_an_error(self, stream):
        hip.hipGetLastError()
        with Gate(stream):
            returns(hip.hipStreamQuery(stream), NOT_READY)
            assert hip.hipPeekAtLastError() == 0

    def test_each_thread_has_its_own_last_error(self):
        hip.hipGetLastError()
        assert together(lambda: (hip.hipFree(12345), hip.hipGetLastError())) == [(INVALID_VALUE, INVALID_VALUE)]
        assert hip.hipGetLastError() == 0


@claims("Device Management; hip-is-not-cuda 6.21")
class TestCurrentDevice:
    def test_the_current_device_of_a_new_thread_is_0(self):
        vendor.two_devices()
        ok(hip.hipSetDevice(1))
        ordinal = functools.partial(hip.out, "hipGetDevice", kind=ctypes.c_int)
        assert (together(ordinal), ordinal()) == ([0], 1)

    def test_memory_and_streams_belong_to_the_current_device(self):
        vendor.two_devices()
        ok(hip.hipSetDevice(1))
        address, made = hip.out("hipMalloc", 64), hip.out("hipStreamCreate")
        ok(hip.hipSetDevice(0))
        found = PointerAttributes()
        ok(hip.hipPointerGetAttributes(ctypes.byref(found), address))
        assert found.device == 1
        if version() >= (6, 0):
            number = ctypes.c_int()
            ok(hip.hipStreamGetDevice(made, ctypes.byref(number)))
            assert number.value == 1
        ok(hip.hipStreamDestroy(made))
        ok(hip.hipFree(address))

    @emulator_only
    @once
    def test_a_reset_frees_memory_and_handles(self):
        child("""
        address, made = hip.out("hipMalloc", 64), hip.out("hipEventCreate")
        ok(hip.hipDeviceReset())
        assert hip.hipFree(address) == INVALID_VALUE
        assert hip.hipEventQuery(made) == DESTROYED
        ok(hip.hipFree(hip.out("hipMalloc", 64)))
        """)


# --- memory -----------------------------------------------------------------------------------------------------------


@claims("Memory Management; hip-is-not-cuda 6.14, 6.15")
class TestDeviceMemory(truth.DeviceMemory):
    def test_a_block_tells_its_size(self, block):
        size = ctypes.c_size_t()
        ok(hip.hipMemPtrGetInfo(block, ctypes.byref(size)))
        assert size.value == 4096

    def test_zero_bytes_give_null(self):
        assert hip.out("hipMalloc", 0) == 0
        ok(hip.hipFree(0))

    def test_freeing_an_unknown_address_is_refused(self, block):
        returns(hip.hipFree(12345), INVALID_VALUE)
        returns(hip.hipFree(address_of(sample())), INVALID_VALUE)

    @emulator_only
    def test_freeing_twice_is_refused(self):
        address = hip.out("hipMalloc", 64)
        ok(hip.hipFree(address))
        returns(hip.hipFree(address), INVALID_VALUE)

    def test_an_interior_address_frees_the_whole_block(self):
        address = hip.out("hipMalloc", 4096)
        ok(hip.hipFree(address + 100))
        returns(hip.hipFree(address), INVALID_VALUE)

    def test_hip_free_accepts_host_memory(self):
        address, _ = pinned(64)
        ok(hip.hipFree(address))
        returns(hip.hipHostFree(address), INVALID_VALUE)

    def test_freeing_waits_for_the_device(self, stream):
        address = hip.out("hipMalloc", 4096)
        with Gate(stream) as gate:
            thread = threading.Thread(target=hip.hipFree, args=(address,), daemon=True)
            thread.start()
            blocked(thread)
            gate.open()
            thread.join(patience())
            assert not thread.is_alive()

    def test_too_much_is_refused(self):
        out = ctypes.c_uint64()
        returns(hip.hipMalloc(ctypes.byref(out), 1 << 50), OUT_OF_MEMORY)

    def test_the_free_bytes_are_fewer_than_the_total(self, block):
        rest, total = ctypes.c_size_t(), ctypes.c_size_t()
        ok(hip.hipMemGetInfo(ctypes.byref(rest), ctypes.byref(total)))
        assert 0 < rest.value < total.value

    def test_the_flags_of_hip_ext_malloc_are_checked(self):
        for flags in (0, 1):
            ok(hip.hipFree(hip.out("hipExtMallocWithFlags", 64, flags)))
        returns(hip.hipExtMallocWithFlags(ctypes.byref(ctypes.c_uint64()), 64, SIGNAL_MEMORY), INVALID_VALUE)
        returns(hip.hipExtMallocWithFlags(ctypes.byref(ctypes.c_uint64()), 64, 77), INVALID_VALUE)


@claims("Memory Management; hip-is-not-cuda 6.4, 6.5")
class TestHostMemory(truth.HostMemory):
    def test_zero_bytes_give_null(self):
        assert hip.out("hipHostMalloc", 0, 0) == 0
        ok(hip.hipHostFree(0))

    def test_both_coherences_at_once_are_refused(self):
        returns(hip.hipHostMalloc(ctypes.byref(ctypes.c_uint64()), 64, COHERENT | NON_COHERENT), INVALID_VALUE)

    def test_the_nearest_node_of_the_host_is_one_of_the_systems_or_none(self):
        """ "NUMA ID of the cpu node closest to the device, or -1 when NUMA isn't supported"; not before ROCm 7."""
        number = ctypes.c_int()
        if hip.hipDeviceGetAttribute(ctypes.byref(number), HOST_NUMA_ID, 0) == INVALID_VALUE:
            pytest.skip("this runtime does not tell it")
        assert number.value in (-1, *online_nodes())

    def test_only_page_locked_memory_has_flags(self, block):
        returns(hip.hipHostGetFlags(ctypes.byref(ctypes.c_uint()), block), INVALID_VALUE)
        returns(hip.hipHostGetFlags(ctypes.byref(ctypes.c_uint()), address_of(sample())), INVALID_VALUE)

    def test_host_memory_has_a_device_address(self):
        address, host = pinned(4096)
        there = hip.out("hipHostGetDevicePointer", address, 0)
        ok(hip.hipMemset(there, 7, 4096))
        ok(hip.hipDeviceSynchronize())
        assert (host == 7).all()
        ok(hip.hipHostFree(address))
        returns(hip.hipHostGetDevicePointer(ctypes.byref(ctypes.c_uint64()), address_of(sample()), 0), INVALID_VALUE)

    def test_an_interior_address_frees_the_whole_block(self):
        address, _ = pinned(4096)
        ok(hip.hipHostFree(address + 64))
        returns(hip.hipHostFree(address), INVALID_VALUE)


def is_coarse(flags):
    address, _ = pinned(64, flags)
    coarse = emulator.control("roc").is_coarse(address)
    ok(hip.hipHostFree(address))
    return coarse


@pytest.fixture(params=[COHERENT, NON_COHERENT], ids=["coherent", "non-coherent"])
def either(request):
    address, host = pinned(4096, request.param)
    host[:] = 1
    yield address, host
    ok(hip.hipHostFree(address))


@pytest.fixture
def coarse():
    address, host = pinned(4096, NON_COHERENT)
    host[:] = 1
    yield address, host
    ok(hip.hipHostFree(address))


@claims("Coherence Control; hip-is-not-cuda 6.5, 6.6")
class TestCoherence:
    @emulator_only
    def test_flags_without_coherence_make_memory_coarse_grained(self):
        assert not is_coarse(0)
        assert is_coarse(PORTABLE)
        assert is_coarse(WRITE_COMBINED)
        assert is_coarse(NON_COHERENT)
        assert not is_coarse(COHERENT | PORTABLE)
        assert not is_coarse(MAPPED | PORTABLE)

    @emulator_only
    @once
    def test_hip_host_coherent_makes_memory_fine_grained(self):
        child("assert not is_coarse(PORTABLE) and is_coarse(NON_COHERENT)", HIP_HOST_COHERENT="1")

    @pytest.mark.parametrize("wait", ["stream", "device"])
    def test_synchronizing_a_stream_or_the_device_publishes_writes(self, either, block, stream, wait):
        address, host = either
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpyAsync(address, block, 4096, D2H, stream))
        ok(hip.hipStreamSynchronize(stream) if wait == "stream" else hip.hipDeviceSynchronize())
        assert (host == 5).all()

    def test_an_event_that_releases_to_the_system_publishes_writes(self, either, block, stream):
        address, host = either
        done = hip.out("hipEventCreateWithFlags", DISABLE_TIMING | TO_SYSTEM)
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpyAsync(address, block, 4096, D2H, stream))
        ok(hip.hipEventRecord(done, stream))
        ok(hip.hipEventSynchronize(done))
        assert (host == 5).all()
        ok(hip.hipEventDestroy(done))

    @emulator_only
    def test_another_event_does_not_publish_writes(self, coarse, block, stream, event):
        address, host = coarse
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpyAsync(address, block, 2048, D2H, stream))
        ok(hip.hipEventRecord(event, stream))
        ok(hip.hipEventSynchronize(event))
        ok(hip.hipStreamQuery(stream))
        assert (host == 1).all()
        ok(hip.hipStreamSynchronize(stream))
        assert (host[:2048] == 5).all()
        assert (host[2048:] == 1).all()

    @emulator_only
    def test_fine_grained_memory_needs_no_release(self, block, stream, event):
        address, host = pinned(4096, COHERENT)
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpyAsync(address, block, 4096, D2H, stream))
        ok(hip.hipEventRecord(event, stream))
        ok(hip.hipEventSynchronize(event))
        assert (host == 5).all()
        ok(hip.hipHostFree(address))

    def test_the_device_reads_its_own_unpublished_writes(self, coarse, block, stream):
        address, _ = coarse
        ok(hip.hipMemsetAsync(address, 9, 100, stream))
        ok(hip.hipMemcpyAsync(block, address, 4096, H2D, stream))
        ok(hip.hipStreamSynchronize(stream))
        back = read(block, 4096)
        assert (back[:100] == 9).all()
        assert (back[100:] == 1).all()

    def test_the_device_reads_what_the_host_wrote_before_the_copy(self, coarse, block, stream):
        address, host = coarse
        host[:] = np.arange(4096, dtype=np.uint8)
        ok(hip.hipMemcpyAsync(block, address, 4096, H2D, stream))
        ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == host).all()

    @emulator_only
    def test_rows_of_a_2d_copy_are_published_by_a_wait_only(self, coarse, block, stream, event):
        address, host = coarse
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpy2DAsync(address, 64, block, 64, 32, 64, D2H, stream))
        ok(hip.hipEventRecord(event, stream))
        ok(hip.hipEventSynchronize(event))
        assert (host == 1).all()
        ok(hip.hipStreamSynchronize(stream))
        assert (host.reshape(64, 64)[:, :32] == 5).all()
        assert (host.reshape(64, 64)[:, 32:] == 1).all()

    def test_a_blocking_copy_publishes_writes(self, coarse, block):
        address, host = coarse
        ok(hip.hipMemset(block, 5, 4096))
        ok(hip.hipMemcpy(address, block, 4096, D2H))
        assert (host == 5).all()


@claims("Memory Management; hip-is-not-cuda 6.1, 6.2, 6.4")
class TestRegistering(truth.Registering):
    def test_unmapped_memory_is_refused(self):
        returns(hip.hipHostRegister(1 << 40, 4096, 0), INVALID_VALUE, OUT_OF_MEMORY)

    @emulator_only
    def test_registered_memory_has_another_address_on_the_device(self, block):
        here = pages(2)
        ok(hip.hipHostRegister(address_of(here), 8192, 0))
        there = hip.out("hipHostGetDevicePointer", address_of(here) + 100, 0)
        assert there != address_of(here) + 100
        here[:] = 3
        ok(hip.hipMemcpy(block, there, 64, H2D))
        assert (read(block, 64) == 3).all()
        ok(hip.hipMemset(there, 4, 64))
        ok(hip.hipDeviceSynchronize())
        assert (here[100:164] == 4).all()
        assert here[99] == here[164] == 3
        found = PointerAttributes()
        ok(hip.hipPointerGetAttributes(ctypes.byref(found), there))
        assert (found.host_pointer, found.device_pointer) == (address_of(here) + 100, there)
        ok(hip.hipHostUnregister(address_of(here)))
        returns(hip.hipMemset(there, 4, 64), INVALID_VALUE)

    @emulator_only
    @once
    def test_unregistering_an_interior_address_aborts_the_process(self):
        for offset in (1, 4096):
            output = child(
                f"""
            here = pages(2)
            ok(hip.hipHostRegister(address_of(here), 8192, 0))
            hip.hipHostUnregister(address_of(here) + {offset})
            """,
                expect=ABORT,
            )
            assert "abort" in output

    @emulator_only
    @once
    def test_unregistering_allocated_host_memory_aborts_the_process(self):
        child("hip.hipHostUnregister(pinned(64)[0])", expect=ABORT)

    def test_unknown_memory_cannot_be_unregistered(self):
        returns(hip.hipHostUnregister(address_of(sample())), NOT_REGISTERED)
        returns(hip.hipHostUnregister(0), INVALID_VALUE)

    @since(7, 3)
    def test_since_rocm_7_3_registering_twice_is_refused(self):
        here, (host, _) = pages(4), pinned(4096)
        ok(hip.hipHostRegister(address_of(here), 8192, 0))
        returns(hip.hipHostRegister(address_of(here), 8192, 0), ALREADY)
        returns(hip.hipHostRegister(address_of(here) + 4096, 8192, 0), ALREADY)
        returns(hip.hipHostRegister(host, 4096, 0), ALREADY)
        ok(hip.hipHostUnregister(address_of(here)))
        ok(hip.hipHostFree(host))

    @before(7, 3)
    @emulator_only
    def test_before_rocm_7_3_registering_twice_succeeds_and_leaks(self, leaks):
        here = pages(2)
        ok(hip.hipHostRegister(address_of(here), 8192, 0))
        held = emulator.control("roc").live()[1]
        ok(hip.hipHostRegister(address_of(here), 8192, 0))
        assert emulator.control("roc").live()[1] == held + 1
        ok(hip.hipHostUnregister(address_of(here)))
        returns(hip.hipHostUnregister(address_of(here)), NOT_REGISTERED)
        assert emulator.control("roc").live()[1] == held

    @before(7, 3)
    @emulator_only
    def test_before_rocm_7_3_overlapping_ranges_are_accepted(self):
        here = pages(4)
        ok(hip.hipHostRegister(address_of(here), 8192, 0))
        ok(hip.hipHostRegister(address_of(here) + 4096, 8192, 0))
        ok(hip.hipHostUnregister(address_of(here)))
        ok(hip.hipHostUnregister(address_of(here) + 4096))

    def test_unregistering_waits_for_the_device(self, stream):
        here = pages(1)
        ok(hip.hipHostRegister(address_of(here), 4096, 0))
        with Gate(stream) as gate:
            thread = threading.Thread(target=hip.hipHostUnregister, args=(address_of(here),), daemon=True)
            thread.start()
            blocked(thread)
            gate.open()
            thread.join(patience())
            assert not thread.is_alive()


@claims("Managed Memory; hip-is-not-cuda 6.17")
class TestManagedMemory(truth.ManagedMemory):
    def test_migration_is_reported_by_attributes(self):
        assert attribute(24) in (0, 1)
        assert attribute(9) in (0, 1)
        assert attribute(65) in (0, 1)

    @emulator_only
    def test_migration_is_off_unless_hsa_xnack_is_1(self):
        assert (attribute(24), attribute(9), attribute(65)) == (1, 0, 0)
        child("assert (attribute(24), attribute(9), attribute(65)) == (1, 1, 1)", HSA_XNACK="1")

    def test_where_pages_migrate_memory_of_the_host_is_used_by_its_own_address(self):
        """ "Device supports coherently accessing pageable memory without calling hipHostRegister on it"."""
        child(
            """
            if attribute(65):
                host, block = np.zeros(4096, np.uint8), hip.out("hipMalloc", 4096)
                ok(hip.hipMemsetD8Async(address_of(host), 5, 4096, 0))
                ok(hip.hipDeviceSynchronize())
                assert (host == 5).all()
                ok(hip.hipMemcpy(block, address_of(host), 4096, 3))
                back = np.zeros(4096, np.uint8)
                ok(hip.hipMemcpy(address_of(back), block, 4096, 2))
                assert (back == 5).all()
            """,
            HSA_XNACK="1",
        )

    def test_managed_memory_is_discarded_and_prefetched_in_batches(self):
        """ "Reading from a discarded range without first writing or prefetching to it will return an indeterminate value"."""
        child(
            """
            if attribute(9) and hasattr(hip, "hipMemDiscardBatchAsync"):
                address, stream = hip.out("hipMallocManaged", 8192, 1), hip.out("hipStreamCreate")
                here = np.frombuffer((ctypes.c_uint8 * 8192).from_address(address), np.uint8)
                here[:] = 3
                ranges, sizes = (ctypes.c_size_t * 1)(address), (ctypes.c_size_t * 1)(4096)
                first, host = ctypes.c_size_t(0), (ctypes.c_int * 2)(2, 0)
                long = ctypes.c_size_t
                ok(hip.hipMemDiscardBatchAsync(ranges, sizes, long(1), long(0), stream))
                ok(hip.hipMemsetD8Async(address, 7, 4096, stream))
                ok(hip.hipMemPrefetchBatchAsync(ranges, sizes, long(1), host, ctypes.byref(first), long(1), long(0), stream))
                ok(hip.hipStreamSynchronize(stream))
                assert (here[:4096] == 7).all() and (here[4096:] == 3).all()
                both = hip.hipMemDiscardAndPrefetchBatchAsync
                ok(both(ranges, sizes, long(1), host, ctypes.byref(first), long(1), long(0), stream))
                returns(hip.hipMemDiscardBatchAsync(ranges, sizes, long(1), long(1), stream), INVALID_VALUE)
                ok(hip.hipStreamSynchronize(stream))
                assert (here[4096:] == 3).all()
            """,
            HSA_XNACK="1",
        )

    def test_managed_memory_can_be_advised_and_prefetched(self, stream):
        address = hip.out("hipMallocManaged", 4096, 1)
        ok(hip.hipMemAdvise(address, 4096, 100, 0))
        ok(hip.hipMemPrefetchAsync(address, 4096, 0, stream))
        ok(hip.hipStreamSynchronize(stream))
        returns(hip.hipMemPrefetchAsync(address, 0, 0, stream), INVALID_VALUE)
        ok(hip.hipFree(address))

    @pytest.mark.parametrize(("kind", "number"), [(1, 0), (2, 0), (3, 0)], ids=["device", "host", "NUMA node"])
    def test_a_place_is_a_kind_and_a_number(self, stream, kind, number):
        """ "destination location to prefetch to"; "flags for future use, must be zero now"."""
        if not hasattr(hip, "hipMemPrefetchAsync_v2"):
            pytest.skip("the runtime knows devices alone")
        address, place = hip.out("hipMallocManaged", 4096, 1), ctypes.c_uint64(number << 32 | kind)
        ok(hip.hipMemAdvise_v2(address, 4096, 3, place))
        ok(hip.hipMemPrefetchAsync_v2(address, 4096, place, 0, stream))
        ok(hip.hipStreamSynchronize(stream))
        returns(hip.hipMemPrefetchAsync_v2(address, 4096, place, 1, stream), INVALID_VALUE)
        ok(hip.hipFree(address))


@claims("Memory Management; hip-is-not-cuda 6.4")
class TestPointers:
    def attributes(self, address):
        found = PointerAttributes()
        ok(hip.hipPointerGetAttributes(ctypes.byref(found), address))
        return found

    def test_attributes_of_device_memory(self, block):
        found = self.attributes(block + 5)
        assert (found.type, found.device, found.device_pointer, found.managed) == (2, 0, block + 5, 0)

    def test_attributes_of_page_locked_memory(self):
        address, _ = pinned(64)
        found = self.attributes(address + 5)
        assert (found.type, found.host_pointer) == (1, address + 5)
        ok(hip.hipHostFree(address))

    def test_attributes_of_managed_memory(self):
        address = hip.out("hipMallocManaged", 64, 1)
        assert (self.attributes(address).type, self.attributes(address).managed) == (3, 1)
        ok(hip.hipFree(address))

    @since(7, 0)
    @emulator_only
    def test_since_rocm_7_an_unknown_address_is_no_error(self):
        assert self.attributes(address_of(sample())).type == 0

    @before(7, 0)
    @emulator_only
    def test_before_rocm_7_an_unknown_address_is_an_error(self):
        returns(hip.hipPointerGetAttributes(ctypes.byref(PointerAttributes()), address_of(sample())), INVALID_VALUE)

    def test_a_single_attribute_can_be_queried(self, block):
        word = ctypes.c_uint64()
        ok(hip.hipPointerGetAttribute(ctypes.byref(word), 11, block + 5))
        assert word.value == block
        kind = ctypes.c_int()
        ok(hip.hipPointerGetAttribute(ctypes.byref(kind), 2, block))
        assert kind.value == 2
        returns(hip.hipPointerGetAttribute(ctypes.byref(word), 11, address_of(sample())), INVALID_VALUE)


# --- copies -----------------------------------------------------------------------------------------------------------


@claims("Memory Management; hip-is-not-cuda 6.7, 6.8, 6.20")
class TestCopies(truth.Copies):
    def test_a_copy_with_a_stream_comes_behind_what_is_there_and_waits(self, block, stream):
        """By the runtime's source; the reference has only "Memory copy on the stream" (hipMemcpyWithStream)."""
        back = sample()
        ok(hip.hipMemsetD8Async(block, 6, 4096, stream))
        ok(hip.hipMemcpyWithStream(address_of(back), block, 4096, D2H, stream))
        assert (back == 6).all()

    @pytest.mark.parametrize("kind", [H2D, ANY_KIND, D2D, 1024])
    def test_the_addresses_determine_the_direction_not_the_kind(self, block, kind):
        here = sample(value=5)
        ok(hip.hipMemcpy(block, address_of(here), 4096, kind))
        back = sample()
        ok(hip.hipMemcpy(address_of(back), block, 4096, kind))
        assert (back == 5).all()

    def test_unknown_kinds_are_refused(self, block):
        for kind in (5, 77):
            returns(hip.hipMemcpy(block, address_of(sample()), 4096, kind), INVALID_DIRECTION)

    def test_for_two_unknown_addresses_the_kind_must_say_host(self):
        to, source = sample(), sample(value=3)
        ok(hip.hipMemcpy(address_of(to), address_of(source), 4096, H2H))
        assert (to == 3).all()
        ok(hip.hipMemcpy(address_of(to), address_of(source), 4096, ANY_KIND))
        if not attribute(65):
            returns(hip.hipMemcpy(address_of(to), address_of(source), 4096, H2D), INVALID_VALUE)

    def test_zero_bytes_may_be_anywhere(self, block):
        ok(hip.hipMemcpy(block, 0, 0, H2D))
        ok(hip.hipMemcpyAsync(0, 0, 0, D2D, 0))

    def test_a_null_address_is_refused(self, block):
        returns(hip.hipMemcpy(block, 0, 16, H2D), INVALID_VALUE)
        returns(hip.hipMemcpy(0, block, 16, D2H), INVALID_VALUE)

    def test_a_copy_beyond_the_end_of_a_block_is_refused(self, block):
        returns(hip.hipMemcpy(block + 4000, address_of(sample()), 97, H2D), INVALID_VALUE)
        returns(hip.hipMemcpy(address_of(sample()), block + 1, 4096, D2H), INVALID_VALUE)
        ok(hip.hipMemcpy(block + 4000, address_of(sample()), 96, H2D))

    @emulator_only
    @once
    def test_a_copy_of_freed_memory_ends_the_process(self):
        code = """
        there = hip.out("hipMalloc", 4096)
        ok(hip.hipFree(there))
        hip.hipMemcpy(there, address_of(sample()), 4096, ANY_KIND)
        """
        assert "no live allocation" in child(code, expect=SEGFAULT)

    @emulator_only
    @once
    def test_a_copy_of_an_unmapped_address_ends_the_process(self, block):
        child("hip.hipMemcpy(hip.out('hipMalloc', 64), 1 << 40, 64, H2D)", expect=SEGFAULT)

    def test_a_short_pageable_source_is_read_before_the_call_returns(self, block, stream):
        here = sample(value=1)
        with Gate(stream) as gate:
            ok(hip.hipMemcpyAsync(block, address_of(here), 4096, H2D, stream))
            here[:] = 2
            gate.open()
            ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == 1).all()

    def test_a_long_pageable_source_is_waited_for(self, stream):
        size = 2 * STAGED
        there, here = hip.out("hipMalloc", size), sample(size, 1)
        with Gate(stream) as gate:
            thread = threading.Thread(
                target=hip.hipMemcpyAsync, args=(there, address_of(here), size, H2D, stream), daemon=True
            )
            thread.start()
            blocked(thread)
            gate.open()
            thread.join(patience())
            assert not thread.is_alive()
        assert (read(there, size) == 1).all()
        ok(hip.hipFree(there))

    def test_page_locked_memory_is_read_and_written_in_stream_order(self, block, stream):
        source, host = pinned(4096)
        host[:] = 1
        with Gate(stream) as gate:
            ok(hip.hipMemcpyAsync(block, source, 4096, H2D, stream))
            assert_blocked(stream)
            host[:] = 2
            gate.open()
            ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == 2).all()
        ok(hip.hipHostFree(source))

    def test_a_copy_within_the_device_returns_before_it_is_complete(self, block):
        there = hip.out("hipMalloc", 4096)
        with Gate(0):
            ok(hip.hipMemcpy(there, block, 4096, D2D))
            assert_blocked(0)
        ok(hip.hipFree(there))

    def test_a_copy_to_the_device_is_complete_on_return(self, block):
        ok(hip.hipMemcpy(block, address_of(sample(value=4)), 4096, H2D))
        ok(hip.hipStreamQuery(0))
        source, _ = pinned(4096)
        ok(hip.hipMemcpy(block, source, 4096, H2D))
        ok(hip.hipStreamQuery(0))
        ok(hip.hipHostFree(source))

    def test_host_memory_on_both_sides_is_waited_for(self, stream):
        (one, host), (two, _) = pinned(4096), pinned(4096)
        host[:] = 0
        ok(hip.hipMemset(two, 6, 4096))
        ok(hip.hipMemcpyAsync(one, two, 4096, ANY_KIND, stream))
        assert (host == 6).all()
        ok(hip.hipHostFree(one))
        ok(hip.hipHostFree(two))

    def test_a_stream_of_another_device_is_accepted(self, block):
        vendor.two_devices()
        ok(hip.hipSetDevice(1))
        foreign = hip.out("hipStreamCreateWithFlags", NON_BLOCKING)
        ok(hip.hipSetDevice(0))
        source, host = pinned(4096)
        host[:] = 8
        ok(hip.hipMemcpyAsync(block, source, 4096, H2D, foreign))
        ok(hip.hipStreamSynchronize(foreign))
        assert (read(block, 4096) == 8).all()
        ok(hip.hipStreamDestroy(foreign))
        ok(hip.hipHostFree(source))

    def test_a_peer_copy_needs_no_peer_access(self, block, stream):
        vendor.two_devices()
        ok(hip.hipMemset(block, 6, 4096))
        ok(hip.hipDeviceSynchronize())
        ok(hip.hipSetDevice(1))
        there = hip.out("hipMalloc", 4096)
        ok(hip.hipSetDevice(0))
        ok(hip.hipMemcpyPeerAsync(there, 1, block, 0, 4096, stream))
        ok(hip.hipStreamSynchronize(stream))
        assert (read(there, 4096) == 6).all()
        returns(hip.hipMemcpyPeer(there, 99, block, 0, 4096), INVALID_DEVICE)
        ok(hip.hipFree(there))

    def test_copies_with_the_direction_in_their_name(self, block, stream):
        here, back = sample(value=7), sample()
        ok(hip.hipMemcpyHtoD(block, address_of(here), 4096))
        ok(hip.hipMemcpyDtoD(block, block + 2048, 1024))
        ok(hip.hipMemcpyDtoH(address_of(back), block, 4096))
        assert (back == 7).all()
        ok(hip.hipMemcpyHtoDAsync(block, address_of(sample(value=8)), 4096, stream))
        ok(hip.hipMemcpyDtoHAsync(address_of(back), block, 4096, stream))
        assert (back == 8).all()


def batch(stream, *copies, count=None, attributes=0):
    """``hipMemcpyBatchAsync`` of (to, source, bytes)."""
    words = [(ctypes.c_size_t * len(copies))(*column) for column in zip(*copies, strict=True)]
    one = (ctypes.c_uint64 * 8)(1)  # in the order of the stream
    given = (ctypes.byref(one), ctypes.byref(ctypes.c_size_t(0))) if attributes else (None, None)
    count = len(copies) if count is None else count
    return hip.hipMemcpyBatchAsync(*words, ctypes.c_size_t(count), *given, ctypes.c_size_t(attributes), None, stream)


@claims("Memory Management (hipMemcpyBatchAsync); hip-is-not-cuda 3.12")
class TestBatches:
    @since(7, 1)
    def test_each_copy_of_a_batch_has_its_own_direction(self, block, stream):
        up, back = sample(2048, 7), sample(2048)
        ok(batch(stream, (block, address_of(up), 2048)))
        ok(batch(stream, (block + 2048, block, 1000), (address_of(back), block, 2048)))
        ok(hip.hipStreamSynchronize(stream))
        assert (back == 7).all()
        assert (read(block + 2048, 1000) == 7).all()

    @since(7, 1)
    def test_a_batch_runs_in_stream_order(self, block, stream):
        source, host = pinned(4096)
        host[:] = 1
        with Gate(stream) as gate:
            ok(batch(stream, (block, source, 2048), (block + 2048, source, 2048)))
            assert_blocked(stream)
            host[:] = 2
            gate.open()
            ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == 2).all()
        ok(hip.hipHostFree(source))

    @since(7, 1)
    def test_an_empty_batch_is_an_error(self, block, stream):
        returns(batch(stream, (block, address_of(sample()), 16), count=0), INVALID_VALUE)
        returns(batch(stream, (block, address_of(sample()), 16), (block, address_of(sample()), 0)), INVALID_VALUE)

    @since(7, 1)
    @before(7, 3)
    def test_before_rocm_7_3_attributes_are_not_supported(self, block, stream):
        returns(batch(stream, (block, address_of(sample()), 16), attributes=1), NOT_SUPPORTED)

    @emulator_only
    @before(7, 1)
    def test_before_rocm_7_1_batches_are_not_supported(self, block, stream):
        returns(batch(stream, (block, address_of(sample()), 16)), NOT_SUPPORTED)


@claims("Memory Management; source of the runtime (pitches of the copy engines)")
class TestBoxes:
    def test_a_2d_copy_applies_pitches(self, block):
        here = np.arange(48, dtype=np.uint8).reshape(4, 12)
        ok(hip.hipMemcpy2D(block, 64, address_of(here), 12, 8, 4, H2D))
        back = np.zeros((4, 8), np.uint8)
        ok(hip.hipMemcpy2D(address_of(back), 8, block, 64, 8, 4, D2H))
        assert (back == here[:, :8]).all()

    def test_a_pitch_shorter_than_the_row_is_refused(self, block):
        returns(hip.hipMemcpy2D(block, 7, address_of(sample()), 8, 8, 4, H2D), INVALID_PITCH)
        returns(hip.hipMemcpy2D(block, 8, address_of(sample()), 7, 8, 4, H2D), INVALID_PITCH)

    def test_the_last_row_must_fit(self, block):
        returns(hip.hipMemcpy2D(block, 1024, address_of(sample(8192)), 1024, 1000, 5, H2D), INVALID_VALUE)
        ok(hip.hipMemcpy2D(block, 1024, address_of(sample(8192)), 1024, 1024, 4, H2D))

    def test_zero_rows_are_no_error(self, block):
        ok(hip.hipMemcpy2D(block, 64, address_of(sample()), 64, 0, 4, H2D))
        ok(hip.hipMemcpy2D(block, 64, address_of(sample()), 64, 8, 0, H2D))

    @emulator_only
    def test_a_pitch_that_is_no_multiple_of_4_is_correct_and_slow(self, block):
        control = emulator.control("roc")
        control.reset()
        here = np.arange(60, dtype=np.uint8)
        ok(hip.hipMemcpy2D(block, 15, address_of(here), 15, 10, 4, H2D))
        assert (read(block, 10) == here[:10]).all()
        assert control.slow_copies() == 1
        ok(hip.hipMemcpy2D(block, 16, address_of(here), 16, 10, 3, H2D))
        ok(hip.hipMemcpy2D(block, 15, address_of(here), 15, 10, 1, H2D))
        assert control.slow_copies() == 1

    def test_a_3d_copy_applies_pitches_and_planes(self, block):
        here = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
        copy = Copy3D(
            src=Pitched(address_of(here), 6, 6, 5),
            src_pos=Triple(1, 1, 1),
            dst=Pitched(block, 16, 16, 8),
            extent=Triple(4, 3, 2),
            kind=H2D,
        )
        ok(hip.hipMemcpy3D(ctypes.byref(copy)))
        back = read(block, 16 * 8 * 2).reshape(2, 8, 16)
        assert (back[:, :3, :4] == here[1:3, 1:4, 1:5]).all()
        returns(hip.hipMemcpy3D(None), INVALID_VALUE)

    def test_a_3d_copy_on_a_stream_comes_behind_what_is_there(self, block, stream):
        """ "Copies data between host and device asynchronously" (hipMemcpy3DAsync)."""
        back = np.zeros((2, 3, 4), np.uint8)
        copy = Copy3D(
            src=Pitched(block, 16, 16, 8),
            dst=Pitched(address_of(back), 4, 4, 3),
            extent=Triple(4, 3, 2),
            kind=D2H,
        )
        ok(hip.hipMemsetD8Async(block, 9, 4096, stream))
        ok(hip.hipMemcpy3DAsync(ctypes.byref(copy), stream))
        ok(hip.hipStreamSynchronize(stream))
        assert (back == 9).all()
        returns(hip.hipMemcpy3DAsync(None, stream), INVALID_VALUE)


@claims("Memory Management")
class TestFills(truth.Fills):
    def test_fills_on_a_stream_write_units_of_2_or_4_bytes_in_its_order(self, block, stream):
        """ "Fills the memory area pointed to by dest with the constant short value" (hipMemsetD16Async), "integer" (D32)."""
        ok(hip.hipMemsetD32Async(block, 0x44556677, 4, stream))
        ok(hip.hipMemsetD16Async(block, 0x2233, 4, stream))
        ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 8).view(np.uint16) == 0x2233).all()
        assert (read(block, 16)[8:].view(np.uint32) == 0x44556677).all()

    def test_a_fill_of_bytes_takes_the_lowest_byte(self, block):
        ok(hip.hipMemset(block, 0x1FF, 4096))
        assert (read(block, 4096) == 255).all()

    def test_2d_and_3d_fills_do_not_change_the_gaps(self, block):
        ok(hip.hipMemset2D(block, 64, 1, 8, 4))
        ok(hip.hipMemset3D(Pitched(block + 1024, 32, 32, 4), 2, Triple(8, 2, 3)))
        back = read(block, 4096)
        assert back[:256].sum() == 32
        assert back[1024:].sum() == 2 * 8 * 2 * 3

    def test_unknown_memory_and_too_much_are_refused(self, block):
        returns(hip.hipMemset(address_of(sample()), 0, 16), INVALID_VALUE)
        returns(hip.hipMemset(block + 1, 0, 4096), INVALID_VALUE)
        ok(hip.hipMemset(block, 0, 0))


# --- order ------------------------------------------------------------------------------------------------------------


@claims("Stream Management; hip-is-not-cuda 6.9, 6.10")
class TestStreams(truth.Streams):
    def test_priorities_are_few_and_clamped(self):
        least, greatest = ctypes.c_int(), ctypes.c_int()
        ok(hip.hipDeviceGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest)))
        assert (least.value, greatest.value) == (1, -1)
        made, found = hip.out("hipStreamCreateWithPriority", 0, -100), ctypes.c_int()
        ok(hip.hipStreamGetPriority(made, ctypes.byref(found)))
        assert found.value == greatest.value
        ok(hip.hipStreamDestroy(made))

    def test_stream_flags_are_checked(self, stream):
        found = ctypes.c_uint()
        ok(hip.hipStreamGetFlags(stream, ctypes.byref(found)))
        assert found.value == NON_BLOCKING
        returns(hip.hipStreamCreateWithFlags(ctypes.byref(ctypes.c_uint64()), 2), INVALID_VALUE)

    def test_a_stream_tells_its_device(self, stream):
        """hipStreamGetDevice: the device that was current as the stream was made."""
        vendor.two_devices()
        ok(hip.hipSetDevice(1))
        other = hip.out("hipStreamCreate")
        ok(hip.hipSetDevice(0))
        for made, device in ((stream, 0), (other, 1)):
            found = ctypes.c_int(-1)
            ok(hip.hipStreamGetDevice(made, ctypes.byref(found)))
            assert found.value == device
        ok(hip.hipStreamDestroy(other))

    @before(7, 0)
    @emulator_only
    def test_before_rocm_7_a_destroyed_stream_is_an_error(self, block):
        made = hip.out("hipStreamCreate")
        ok(hip.hipStreamDestroy(made))
        returns(hip.hipStreamQuery(made), DESTROYED)
        returns(hip.hipMemcpyAsync(block, address_of(sample()), 16, H2D, made), DESTROYED)
        returns(hip.hipStreamDestroy(made), DESTROYED)

    @since(7, 0)
    @emulator_only
    @pytest.mark.parametrize("call", ["hipStreamQuery(made)", "hipStreamDestroy(made)", "hipEventRecord(event, made)"])
    def test_since_rocm_7_use_of_a_destroyed_stream_ends_the_process(self, call):
        code = f"""
        made, event = hip.out("hipStreamCreate"), hip.out("hipEventCreate")
        ok(hip.hipStreamDestroy(made))
        hip.{call}
        """
        assert "destroyed" in child(code, expect=SEGFAULT)

    def test_blocking_streams_and_the_null_stream_wait_for_each_other(self, block):
        blocking = hip.out("hipStreamCreate")
        with Gate(0):
            ok(hip.hipMemsetAsync(block, 1, 64, blocking))
            assert_blocked(blocking)
        with Gate(blocking):
            ok(hip.hipMemsetAsync(block, 1, 64, 0))
            assert_blocked(0)
        ok(hip.hipStreamDestroy(blocking))

    def test_non_blocking_streams_and_the_null_stream_ignore_each_other(self, block, stream):
        with Gate(0):
            ok(hip.hipMemsetAsync(block, 1, 64, stream))
            ok(hip.hipStreamSynchronize(stream))

    @since(6, 3)
    def test_handle_1_is_the_null_stream(self, block, stream):
        with Gate(LEGACY):
            assert_blocked(0)

    def test_handle_2_is_the_per_thread_stream(self, block):
        with Gate(PER_THREAD):
            assert_blocked(PER_THREAD)
            assert together(lambda: hip.hipStreamQuery(PER_THREAD)) == [0]

    def test_spt_functions_take_0_for_the_per_thread_stream(self, block, stream):
        with Gate(PER_THREAD):
            returns(hip.hipStreamQuery_spt(0), NOT_READY)
            ok(hip.hipMemcpyAsync_spt(block, block + 2048, 64, D2D, 0))
            ok(hip.hipStreamSynchronize(stream))
            returns(hip.hipStreamQuery_spt(0), NOT_READY)
        ok(hip.hipStreamSynchronize_spt(0))

    @since(6, 0)
    def test_streams_have_distinct_ids(self, stream, other):
        one, two = ctypes.c_uint64(), ctypes.c_uint64()
        ok(hip.hipStreamGetId(stream, ctypes.byref(one)))
        ok(hip.hipStreamGetId(other, ctypes.byref(two)))
        assert one.value != two.value


@claims("Graph Management (stream capture); source of the runtime")
class TestCapture(truth.Captures):
    @emulator_only
    def test_since_rocm_7_event_queries_are_unsafe_calls(self, capturing, passed):
        """For events that were recorded before, some 7.x releases refuse the query in every mode."""
        capturing.begin(GLOBAL)
        forbidden = version() >= (7, 0)
        returns(on_another_thread(lambda: hip.hipEventQuery(passed)), UNSUPPORTED if forbidden else 0)
        assert capturing.end() == (INVALIDATED if forbidden else 0)

    @emulator_only
    def test_a_thread_in_relaxed_mode_may_query_events(self, capturing, passed):
        capturing.begin(GLOBAL)
        ok(on_another_thread(lambda: relaxed(lambda: hip.hipEventQuery(passed))))
        ok(on_another_thread(lambda: relaxed(lambda: hip.hipEventSynchronize(passed))))
        assert capturing.end() == 0


@claims(
    "Graph Management: hipStreamBeginCapture, hipStreamEndCapture, hipGraphInstantiateWithFlags ('does not support any of "
    "flag'), hipGraphLaunch ('Launches an executable graph in the specified stream'), hipGraphDestroy, hipGraphExecDestroy"
)
class TestGraphs(truth.Graphs):
    def test_hip_graph_instantiate_makes_the_same(self, block, stream, capturing):
        on, graph, made = capturing.begin(RELAXED), ctypes.c_uint64(), ctypes.c_uint64()
        ok(hip.hipMemsetAsync(block, 5, 64, on))
        ok(hip.hipStreamEndCapture(on, ctypes.byref(graph)))
        ok(hip.hipGraphInstantiate(ctypes.byref(made), graph, None, None, ctypes.c_size_t(0)))
        ok(hip.hipGraphLaunch(made, stream))
        ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 64) == 5).all()
        ok(hip.hipGraphExecDestroy(made))
        ok(hip.hipGraphDestroy(graph))
        capturing.begin(RELAXED)


@claims("Event Management; hip-is-not-cuda 6.6")
class TestEvents(truth.Events):
    def test_a_null_event_is_refused(self, stream):
        returns(hip.hipEventRecord(0, stream), INVALID_HANDLE)
        returns(hip.hipEventDestroy(0), INVALID_HANDLE)
        returns(hip.hipEventQuery(0), INVALID_HANDLE)
        returns(hip.hipStreamWaitEvent(stream, 0, 0), INVALID_HANDLE)

    def test_an_event_is_recorded_on_its_device_only(self, event):
        vendor.two_devices()
        ok(hip.hipSetDevice(1))
        foreign = hip.out("hipStreamCreate")
        returns(hip.hipEventRecord(event, foreign), INVALID_HANDLE)
        ok(hip.hipStreamDestroy(foreign))


@claims("Stream Memory Operations")
class TestWords:
    def test_a_stream_waits_for_and_writes_words(self, stream):
        address = hip.out("hipExtMallocWithFlags", 8, SIGNAL_MEMORY)
        word = ctypes.c_uint64.from_address(address)
        word.value = 0
        ok(hip.hipStreamWaitValue64(stream, address, 1 << 40, 0, 2**64 - 1))
        ok(hip.hipStreamWriteValue64(stream, address, 5, 0))
        assert_blocked(stream)
        word.value = 1 << 40
        ok(hip.hipStreamSynchronize(stream))
        assert word.value == 5
        ok(hip.hipStreamWaitValue32(stream, address, 4, 1, 6))
        ok(hip.hipStreamWriteValue32(stream, address, 7, 0))
        ok(hip.hipStreamSynchronize(stream))
        assert word.value == 7
        ok(hip.hipFree(address))

    def test_flags_and_address_are_checked(self, stream):
        returns(hip.hipStreamWaitValue32(stream, 0, 1, 0, 1), INVALID_VALUE)
        returns(hip.hipStreamWriteValue32(stream, address_of(sample()), 1, 0), INVALID_VALUE)


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@claims("Stream Management (hipLaunchHostFunc)")
class TestHostFunctions(truth.HostFunctions):
    @emulator_only
    def test_host_functions_may_not_call_the_runtime(self, stream):
        seen = []
        call = CALLBACK(lambda _: seen.append(hip.hipStreamQuery(0)))
        ok(hip.hipLaunchHostFunc(stream, ctypes.cast(call, ctypes.c_void_p), 0))
        ok(hip.hipStreamSynchronize(stream))
        assert seen == [NOT_SUPPORTED]

    def test_a_null_function_is_refused(self, stream):
        returns(hip.hipLaunchHostFunc(stream, 0, 0), INVALID_VALUE)


# --- pools ------------------------------------------------------------------------------------------------------------


@claims("Stream Ordered Memory Allocator; hip-is-not-cuda 6.15, 6.16")
class TestPools(truth.Pools):
    @since(7, 0)
    def test_since_rocm_7_zero_bytes_give_null(self, pool, stream):
        assert hip.out("hipMallocAsync", 0, stream) == 0
        ok(hip.hipFreeAsync(0, stream))

    @before(7, 0)
    @emulator_only
    def test_before_rocm_7_nothing_is_refused(self, pool, stream):
        returns(hip.hipMallocAsync(ctypes.byref(ctypes.c_uint64()), 0, stream), INVALID_VALUE)
        returns(hip.hipFreeAsync(0, stream), INVALID_VALUE)

    @since(7, 0)
    def test_freeing_its_memory_without_a_stream_does_not_wait(self, pool, stream, other):
        address = hip.out("hipMallocFromPoolAsync", 4096, pool, other)
        ok(hip.hipStreamSynchronize(other))
        with Gate(stream):
            ok(hip.hipFree(address))

    def test_hip_free_async_accepts_plain_memory(self, pool, stream):
        address = hip.out("hipMalloc", 64)
        ok(hip.hipFreeAsync(address, stream))
        ok(hip.hipStreamSynchronize(stream))

    def test_a_pool_is_trimmed_of_what_is_free(self, pool, stream):
        """ "The allocator cannot release OS allocations that back outstanding asynchronous allocations" (hipMemPoolTrimTo)."""

        def reserved():
            found = ctypes.c_uint64()
            ok(hip.hipMemPoolGetAttribute(pool, 5, ctypes.byref(found)))
            return found.value

        kept = ctypes.c_uint64(1 << 40)
        ok(hip.hipMemPoolSetAttribute(pool, 4, ctypes.byref(kept)))
        address = hip.out("hipMallocFromPoolAsync", 4096, pool, stream)
        ok(hip.hipStreamSynchronize(stream))
        ok(hip.hipMemPoolTrimTo(pool, 0))
        assert reserved() >= 4096
        ok(hip.hipFreeAsync(address, stream))
        ok(hip.hipStreamSynchronize(stream))
        assert reserved() >= 4096
        ok(hip.hipMemPoolTrimTo(pool, 0))
        assert reserved() == 0

    def test_attributes_of_pools_can_be_set_and_read(self, pool):
        word = ctypes.c_uint64(1 << 20)
        ok(hip.hipMemPoolSetAttribute(pool, 4, ctypes.byref(word)))
        found = ctypes.c_uint64()
        ok(hip.hipMemPoolGetAttribute(pool, 4, ctypes.byref(found)))
        assert found.value == 1 << 20
        returns(hip.hipMemPoolGetAttribute(pool, 99, ctypes.byref(found)), INVALID_VALUE)

    @emulator_only
    @once
    def test_an_environment_variable_switches_pools_off(self):
        child(
            """
        assert attribute(88) == 0
        assert hip.hipMallocAsync(ctypes.byref(ctypes.c_uint64()), 64, 0) == NOT_SUPPORTED
        assert hip.hipDeviceGetDefaultMemPool(ctypes.byref(ctypes.c_uint64()), 0) == NOT_SUPPORTED
        """,
            HIP_MEM_POOL_SUPPORT="0",
        )


# --- faults -----------------------------------------------------------------------------------------------------------

TOO_EARLY = """
made, other = hip.out("hipStreamCreateWithFlags", 1), hip.out("hipStreamCreateWithFlags", 1)
with emulator.control("roc").hold(made):
    address = hip.out("hipMallocAsync", 64, made)
    ok(hip.hipMemsetAsync(address, 1, 64, other))
    assert hip.hipStreamSynchronize(other) == 700
assert hip.hipMalloc(ctypes.byref(ctypes.c_uint64()), 64) == 700
"""


@claims("hip-is-not-cuda 6.12")
class TestFaults:
    @since(7, 0)
    @emulator_only
    def test_since_rocm_7_use_before_the_allocation_is_a_sticky_error(self):
        child(TOO_EARLY)

    @before(7, 0)
    @emulator_only
    def test_before_rocm_7_use_before_the_allocation_ends_the_process(self):
        assert "Memory access fault" in child(TOO_EARLY, expect=ABORT)

    @emulator_only
    def test_any_code_can_be_injected(self):
        control = emulator.control("roc")
        control.fail("hipMemGetInfo", 1, 4242)
        assert hip.hipMemGetInfo(ctypes.byref(ctypes.c_size_t()), None) == 4242
        control.fail("hipStreamQuery_spt", 1, 4242)
        assert hip.hipStreamQuery(0) == 4242
        ok(hip.hipMemGetInfo(ctypes.byref(ctypes.c_size_t()), None))


# --- peers, processes, visibility -------------------------------------------------------------------------------------


@claims("Peer to Peer Device Memory Access; hip-is-not-cuda 6.20")
class TestPeers(truth.Peers):
    def test_a_device_is_not_its_own_peer(self):
        returns(hip.hipDeviceEnablePeerAccess(0, 0), INVALID_DEVICE)
        assert hip.out("hipDeviceCanAccessPeer", 0, 0, kind=ctypes.c_int) == 0


@claims("Device Management (hipIpcGetMemHandle); hip-is-not-cuda 6.19")
class TestSharing(truth.Sharing):
    IMPORTER = """
    handle = IpcHandle.from_buffer_copy(bytes.fromhex(os.environ["HANDLE"]))
    assert hip.hipIpcOpenMemHandle(ctypes.byref(ctypes.c_uint64()), handle, 0) == INVALID_VALUE
    address = hip.out("hipIpcOpenMemHandle", handle, 1)
    assert (read(address, 4096) == 7).all()
    ok(hip.hipMemset(address, 8, 4096))
    ok(hip.hipDeviceSynchronize())
    ok(hip.hipIpcCloseMemHandle(address))
    """

    @emulator_only
    @once
    def test_opening_a_handle_twice_gives_two_addresses(self, block):
        code = """
        handle = IpcHandle.from_buffer_copy(bytes.fromhex(os.environ["HANDLE"]))
        one, two = (hip.out("hipIpcOpenMemHandle", handle, 1) for _ in range(2))
        assert one != two
        ok(hip.hipIpcCloseMemHandle(one))
        read(two, 64)
        ok(hip.hipIpcCloseMemHandle(two))
        assert hip.hipIpcCloseMemHandle(two) == INVALID_HANDLE
        """
        child(code, HANDLE=vendor.ipc_handle(block).hex())

    @emulator_only
    def test_only_the_base_of_device_memory_has_a_handle(self, block):
        returns(hip.hipIpcGetMemHandle(ctypes.byref(IpcHandle()), block + 512), INVALID_DEVICE_POINTER)
        returns(hip.hipIpcGetMemHandle(ctypes.byref(IpcHandle()), address_of(sample())), INVALID_DEVICE_POINTER)


@claims("Stream Ordered Memory Allocator (hipMemPoolExportToShareableHandle, hipMemPoolExportPointer)")
class TestSharedPools(truth.SharedPools):
    """As the newer source of ROCm's runtime has them; the older one answers that it does not support them."""

    IMPORTER = """
    file = ctypes.c_void_p(int(os.environ["FILE"]))
    data = IpcHandle.from_buffer_copy(bytes.fromhex(os.environ["DATA"]))
    pool = hip.out("hipMemPoolImportFromShareableHandle", file, 1, 0)
    ok(hip.hipMemPoolSetAccess(pool, (ctypes.c_int * 3)(1, 0, 3), 1))
    address = hip.out("hipMemPoolImportPointer", pool, ctypes.byref(data))
    assert (read(address, 4096) == 7).all()
    ok(hip.hipMemset(address, 8, 4096))
    ok(hip.hipDeviceSynchronize())
    ok(hip.hipFree(address))
    ok(hip.hipMemPoolDestroy(pool))
    """


def file_as_given(file):
    """As ROCm takes a file descriptor: since 7.1 in the place of an address, before by its address."""
    return ctypes.c_void_p(file) if version() >= (7, 1) else ctypes.byref(ctypes.c_int(file))


@claims("Virtual Memory Management (hipMemCreate, hipMemMap, hipMemSetAccess, hipMemExportToShareableHandle)")
class TestVirtualMemory(truth.VirtualMemory):
    IMPORTER = """
    given, size = int(os.environ["FILE"]), int(os.environ["SIZE"])
    handle = hip.out("hipMemImportFromShareableHandle", file_as_given(given), 1)
    address = hip.out("hipMemAddressReserve", size, 0, 0, 0)
    ok(hip.hipMemMap(address, size, 0, handle, 0))
    ok(hip.hipMemRelease(handle))
    ok(hip.hipMemSetAccess(address, size, (ctypes.c_int * 3)(1, 0, 3), 1))
    assert (read(address, 4096) == 7).all()
    ok(hip.hipMemset(address, 8, 4096))
    ok(hip.hipDeviceSynchronize())
    ok(hip.hipMemUnmap(address, size))
    ok(hip.hipMemAddressFree(address, size))
    """

    def test_a_descriptor_is_given_as_the_version_takes_it(self, physical):
        file, imported = hip.out("hipMemExportToShareableHandle", physical, 1, 0, kind=ctypes.c_int), None
        try:
            imported = hip.out("hipMemImportFromShareableHandle", file_as_given(file), 1)
        finally:
            os.close(file)
        told = (ctypes.c_int * 8)()
        ok(hip.hipMemGetAllocationPropertiesFromHandle(told, imported))
        assert told[2:4] == [1, 0]
        ok(hip.hipMemRelease(imported))

    @emulator_only
    def test_no_more_is_mapped_than_there_is_nor_twice(self, physical, mapped, size, properties):
        returns(hip.hipMemMap(mapped + size, 2 * size, 0, physical, 0), INVALID_VALUE)
        returns(hip.hipMemMap(mapped, size, 0, physical, 0), INVALID_VALUE)
        returns(hip.hipMemCreate(ctypes.byref(ctypes.c_uint64()), size + 4096, properties, 0), INVALID_VALUE)
        returns(hip.hipMemUnmap(mapped, size // 2), INVALID_VALUE)

    @emulator_only
    def test_nothing_else_is_exported_or_imported(self, physical):
        returns(hip.hipMemExportToShareableHandle(ctypes.byref(ctypes.c_uint64()), physical, 8, 0), INVALID_VALUE)
        imported = ctypes.c_uint64()
        with Path(os.devnull).open() as nothing:
            given = file_as_given(nothing.fileno())
            returns(hip.hipMemImportFromShareableHandle(ctypes.byref(imported), given, 1), INVALID_VALUE)


def visible_buses(**variables):
    variables = {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "", **variables}
    code = """
    number, bus = ctypes.c_int(), ctypes.create_string_buffer(32)
    hip = hip or Hip(ctypes.CDLL(os.environ["ROCM_PATH"] + "/lib/libamdhip64.so"))
    status = hip.hipGetDeviceCount(ctypes.byref(number))
    for device in range(number.value):
        ok(hip.hipDeviceGetPCIBusId(bus, 32, device))
        print(int(bus.value.decode().split(":")[1], 16), end=" ")
    if status:
        print(status)
    """
    return child(code, DEVMEM_EMULATOR_DEVICES="4", **variables).split()


@claims("GPU isolation techniques; hip-is-not-cuda 6.22")
@emulator_only
@once
class TestVisibleDevices:
    """Visible devices are identified by their bus numbers, 1 to 4."""

    def test_an_empty_list_hides_nothing(self):
        assert visible_buses() == ["1", "2", "3", "4"]

    def test_the_order_of_the_list_is_the_order_of_the_devices(self):
        assert visible_buses(HIP_VISIBLE_DEVICES="2,0") == ["3", "1"]
        assert visible_buses(ROCR_VISIBLE_DEVICES="3,1", HIP_VISIBLE_DEVICES="1") == ["2"]

    def test_an_empty_hip_list_falls_back_to_cuda_visible_devices(self):
        assert visible_buses(CUDA_VISIBLE_DEVICES="1") == ["2"]
        assert visible_buses(CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == ["1"]

    def test_a_list_ends_at_the_first_unknown_device(self):
        assert visible_buses(HIP_VISIBLE_DEVICES="1,9,0") == ["2"]
        assert visible_buses(CUDA_VISIBLE_DEVICES="-1") == [str(NO_DEVICE)]

    def test_devices_can_be_named_by_identity(self):
        assert visible_buses(ROCR_VISIBLE_DEVICES="GPU-de5e3e0000000002") == ["3"]
        assert visible_buses(HIP_VISIBLE_DEVICES="GPU-de5e3e0000000001,GPU-1") == ["2"]


@claims("source of the runtime")
@emulator_only
class TestNoDevice:
    def test_the_first_call_returns_another_error_than_later_ones(self):
        first, later = (INVALID_DEVICE, INVALID_DEVICE if version() < (6, 0) else NO_DEVICE)
        child(
            f"""
        hip = Hip(ctypes.CDLL(os.environ["ROCM_PATH"] + "/lib/libamdhip64.so"))
        number = ctypes.c_int(7)
        assert claimed.hip is None  # this file queried the device count: that was the first call
        assert hip.hipInit(0) == {later}
        assert hip.hipGetDeviceCount(ctypes.byref(number)) == NO_DEVICE and number.value == 0
        assert hip.hipMalloc(ctypes.byref(ctypes.c_uint64()), 64) == {later}
        assert hip.hipRuntimeGetVersion(ctypes.byref(number)) == 0 and number.value > 0
        """,
            DEVMEM_EMULATOR_DEVICES="0",
        )
        library = str(Path(os.environ["ROCM_PATH"]) / "lib" / "libamdhip64.so")
        code = f"import ctypes; assert ctypes.CDLL({library!r}).hipInit(0) == {first}"
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "DEVMEM_EMULATOR_DEVICES": "0"}, check=True)
