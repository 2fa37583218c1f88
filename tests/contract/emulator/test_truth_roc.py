"""Claims about the HIP runtime, as tests in plain calls through ctypes that the emulated and a real runtime must both pass.

Each test is one claim; each class names its sources: chapters of AMD's HIP documentation, the source of the runtime (ROCm/clr),
and entries of docs/explanation/hip-is-not-cuda.md. No claim has been checked on AMD hardware yet. Where the process has no
usable runtime, one test runs this file in subprocesses on the emulator, once for each ROCm series whose rules differ. Where it
has one, real or emulated, each claim is a test; a failure on a real runtime is a fault of the emulator. Claims about behaviour
that the vendor leaves undefined or does not document are marked ``emulator_only``; claims that end the process run in a child.
"""

import collections
import ctypes
import functools
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from devmem.testing import emulator
from devmem.toolkit.numa import online_nodes

ROOT = Path(emulator.__file__).parents[3]
INVALID_VALUE, OUT_OF_MEMORY, INVALID_PITCH, INVALID_DEVICE_POINTER, INVALID_DIRECTION = 1, 2, 12, 17, 21
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND, NOT_READY = 100, 101, 201, 400, 500, 600
PEER_ENABLED, PEER_NOT_ENABLED, DESTROYED, ALREADY, NOT_REGISTERED, NOT_SUPPORTED = 704, 705, 709, 712, 713, 801
H2H, H2D, D2H, D2D, ANY_KIND = range(5)
LEGACY, PER_THREAD, NON_BLOCKING = 1, 2, 1
PORTABLE, MAPPED, WRITE_COMBINED, COHERENT, NON_COHERENT = 1, 2, 4, 0x40000000, 0x80000000
NUMA_USER, HOST_NUMA_ID = 0x2000_0000, 92
DISABLE_TIMING, INTERPROCESS, NO_FENCE, TO_DEVICE, TO_SYSTEM = 2, 4, 0x20000000, 0x40000000, 0x80000000
SIGNAL_MEMORY = 2
STAGED = 4 << 20

#: The ROCm series on which the claims are checked: before and after 7.0, and before and after 7.3.
SERIES = ("6.4", "7.2", "10.0")


#: Arrays whose addresses were passed to the runtime.
KEPT = collections.deque(maxlen=64)


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


def claims(source):
    """Mark a class of claims with their sources; pytest collects it where there is a usable runtime."""

    def decorate(cls):
        cls.__test__ = hip is not None
        cls.source = source
        return cls

    return decorate


def environment(**variables):
    try:
        added = emulator.environment("roc")
    except emulator.BuildError as error:
        pytest.skip(f"no emulator: {error}")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **added, "PYTHONPATH": path, **variables}


if hip is None:

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("series", SERIES)
    def test_every_claim_holds_on_the_emulator(series):
        command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull]
        command += ["--rootdir", str(ROOT), "-x", "--import-mode=importlib", __file__]
        run = functools.partial(subprocess.run, capture_output=True, text=True, check=False, timeout=280)
        done = run(command, env=environment(DEVMEM_EMULATOR_ROCM=series))
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


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


def emulated():
    try:
        emulator.control("roc")
    except emulator.EmulatorNotLoaded:
        return False
    return True


@pytest.fixture
def only_emulated():
    if not emulated():
        pytest.skip("the vendor leaves this undefined; the emulator defines it")


emulator_only = pytest.mark.usefixtures("only_emulated")


@pytest.fixture
def only_newest():
    if os.environ.get("DEVMEM_EMULATOR_ROCM", SERIES[-1]) != SERIES[-1]:
        pytest.skip("needs a new process, and is checked on the newest series")


#: For claims that need a new process and do not depend on the version.
once = pytest.mark.usefixtures("only_newest")


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
    held = emulator.control("roc").live() if emulated() else None
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


def address_of(array):
    """The address of an array, which is kept alive for a while: an operation may still read it."""
    KEPT.append(array)
    return array.ctypes.data


def pages(count):
    """Page-aligned host memory that is not registered."""
    room = np.zeros((count + 1) * 4096, np.uint8)
    skip = -address_of(room) % 4096
    return room[skip : skip + count * 4096]


def pinned(size, flags=COHERENT):
    """Page-locked memory and an array over it."""
    address = hip.out("hipHostMalloc", size, flags)
    return address, np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def read(address, size):
    out = sample(size)
    ok(hip.hipMemcpy(address_of(out), address, size, D2H))
    return out


def assert_blocked(stream):
    """The stream is not complete, also after some time."""
    time.sleep(0.01)
    returns(hip.hipStreamQuery(stream), NOT_READY)


class Gate:
    """Block a stream, on any runtime: it waits for a word of signal memory."""

    def __init__(self, stream):
        self.address = hip.out("hipExtMallocWithFlags", 8, SIGNAL_MEMORY)
        self.word = ctypes.c_uint64.from_address(self.address)
        self.word.value = 0
        ok(hip.hipStreamWaitValue32(stream, self.address, 1, 0, 0xFFFFFFFF))

    def open(self):
        self.word.value = 1

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.open()
        ok(hip.hipDeviceSynchronize())
        ok(hip.hipFree(self.address))


def made_stream():
    made = hip.out("hipStreamCreateWithFlags", NON_BLOCKING)
    yield made
    ok(hip.hipStreamSynchronize(made))
    ok(hip.hipStreamDestroy(made))


stream, other = pytest.fixture(made_stream, name="stream"), pytest.fixture(made_stream, name="other")


@pytest.fixture
def event():
    made = hip.out("hipEventCreateWithFlags", DISABLE_TIMING)
    yield made
    ok(hip.hipEventDestroy(made))


@pytest.fixture
def block():
    """Device memory of 4096 bytes, zeroed."""
    address = hip.out("hipMalloc", 4096)
    ok(hip.hipMemset(address, 0, 4096))
    ok(hip.hipDeviceSynchronize())
    yield address
    ok(hip.hipFree(address))


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


@pytest.fixture
def pool():
    if not attribute(88):
        pytest.skip("the device has no memory pools")
    made = hip.out("hipMemPoolCreate", ctypes.byref(PoolProperties(allocation=1, location=Location(1, 0))))
    yield made
    ok(hip.hipMemPoolDestroy(made))


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


def child(code, *, expect=0, files=(), **variables):
    """Run code in a new process, with the names of this file, some open files and, by default, the same runtime."""
    prelude = f"""
    import ctypes, os, sys, threading, importlib.util
    import numpy as np
    spec = importlib.util.spec_from_file_location("truth", {__file__!r})
    truth = importlib.util.module_from_spec(spec)
    sys.modules["truth"] = truth
    spec.loader.exec_module(truth)
    from truth import *
    """
    text = textwrap.dedent(prelude) + textwrap.dedent(code)
    changed = {**os.environ, **variables}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=False, timeout=120)
    done = run([sys.executable, "-c", text], env={**changed, "PYTHONPATH": path}, pass_fds=files)
    assert done.returncode == expect, f"exit status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def two_devices():
    if hip.out("hipGetDeviceCount", kind=ctypes.c_int) < 2:
        pytest.skip("needs two devices")


SEGFAULT, ABORT = -11, -6


# --- the runtime and its devices --------------------------------------------------------------------------------------


@claims("Initialization and Version; Device Management; hip-is-not-cuda 3.17")
class TestRuntime:
    def test_the_first_call_opens_the_runtime(self):
        child("ok(hip.hipFree(hip.out('hipMalloc', 64)))")

    def test_hip_init_takes_no_flags(self):
        ok(hip.hipInit(0))
        returns(hip.hipInit(1), INVALID_VALUE)

    def test_the_driver_has_the_runtimes_version(self):
        assert hip.out("hipDriverGetVersion", kind=ctypes.c_int) // 100_000 == version()[0] * 100 + version()[1]

    def test_ordinals_are_checked(self):
        number = ctypes.c_int()
        for ordinal in (-1, hip.out("hipGetDeviceCount", kind=ctypes.c_int)):
            returns(hip.hipSetDevice(ordinal), INVALID_DEVICE)
            returns(hip.hipDeviceGet(ctypes.byref(number), ordinal), INVALID_DEVICE)
            returns(hip.hipDeviceGetAttribute(ctypes.byref(number), 87, ordinal), INVALID_DEVICE)

    def test_devices_have_names_and_different_uuids_and_bus_ids(self):
        seen, count = set(), hip.out("hipGetDeviceCount", kind=ctypes.c_int)
        for device in range(count):
            name, uuid, bus = (ctypes.create_string_buffer(n) for n in (64, 16, 32))
            ok(hip.hipDeviceGetName(name, 64, device))
            ok(hip.hipDeviceGetUuid(uuid, device))
            ok(hip.hipDeviceGetPCIBusId(bus, 32, device))
            assert name.value
            assert hip.out("hipDeviceGetByPCIBusId", bus, kind=ctypes.c_int) == device
            seen |= {uuid.raw, bus.value}
        assert len(seen) == 2 * count

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

    def test_errors_have_names_and_texts(self):
        for name in ("hipGetErrorName", "hipGetErrorString"):
            getattr(hip._library, name).restype = ctypes.c_char_p
        assert hip._library.hipGetErrorName(2) == b"hipErrorOutOfMemory"
        assert hip._library.hipGetErrorString(1) == b"invalid argument"
        assert hip._library.hipGetErrorName(600) == b"hipErrorNotReady"

    @emulator_only
    def test_modules_kernels_and_graphs_are_not_supported(self, stream):
        returns(hip.hipModuleLoadData(ctypes.byref(ctypes.c_uint64()), address_of(sample())), NOT_SUPPORTED)
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
        seen = []
        hip.hipGetLastError()
        thread = threading.Thread(target=lambda: seen.extend([hip.hipFree(12345), hip.hipGetLastError()]))
        thread.start()
        thread.join()
        assert seen == [INVALID_VALUE, INVALID_VALUE]
        assert hip.hipGetLastError() == 0


@claims("Device Management; hip-is-not-cuda 6.21")
class TestCurrentDevice:
    def test_the_current_device_of_a_new_thread_is_0(self):
        two_devices()
        ok(hip.hipSetDevice(1))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(hip.out("hipGetDevice", kind=ctypes.c_int)))
        thread.start()
        thread.join()
        assert seen == [0]
        assert hip.out("hipGetDevice", kind=ctypes.c_int) == 1

    def test_memory_and_streams_belong_to_the_current_device(self):
        two_devices()
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
class TestDeviceMemory:
    def test_zero_bytes_give_null(self):
        assert hip.out("hipMalloc", 0) == 0
        ok(hip.hipFree(0))

    def test_addresses_are_aligned_and_distinct(self):
        addresses = [hip.out("hipMalloc", n) for n in (1, 100, 1000)]
        assert all(a % 256 == 0 for a in addresses)
        assert len(set(addresses)) == 3
        for address in addresses:
            ok(hip.hipFree(address))

    @emulator_only
    @once
    def test_the_host_cannot_access_device_memory(self):
        child("ctypes.string_at(hip.out('hipMalloc', 64), 1)", expect=SEGFAULT)

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
            ended = threading.Event()
            thread = threading.Thread(target=lambda: (hip.hipFree(address), ended.set()))
            thread.start()
            assert not ended.wait(0.05)
            gate.open()
            thread.join()

    def test_too_much_is_refused(self):
        out = ctypes.c_uint64()
        returns(hip.hipMalloc(ctypes.byref(out), 1 << 50), OUT_OF_MEMORY)

    def test_the_free_bytes_are_fewer_than_the_total(self, block):
        rest, total = ctypes.c_size_t(), ctypes.c_size_t()
        ok(hip.hipMemGetInfo(ctypes.byref(rest), ctypes.byref(total)))
        assert 0 < rest.value < total.value

    def test_an_interior_address_finds_its_range(self, block):
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        ok(hip.hipMemGetAddressRange(ctypes.byref(base), ctypes.byref(size), block + 7))
        assert (base.value, size.value) == (block, 4096)
        ok(hip.hipMemPtrGetInfo(block, ctypes.byref(size)))
        assert size.value == 4096
        returns(hip.hipMemGetAddressRange(ctypes.byref(base), ctypes.byref(size), address_of(sample())), NOT_FOUND)

    def test_pitched_rows_are_padded(self):
        pitch = ctypes.c_size_t()
        address = hip.out("hipMallocPitch", ctypes.byref(pitch), 100, 10)
        assert pitch.value >= 100
        assert pitch.value % 4 == 0
        ok(hip.hipFree(address))

    def test_the_flags_of_hip_ext_malloc_are_checked(self):
        for flags in (0, 1):
            ok(hip.hipFree(hip.out("hipExtMallocWithFlags", 64, flags)))
        returns(hip.hipExtMallocWithFlags(ctypes.byref(ctypes.c_uint64()), 64, SIGNAL_MEMORY), INVALID_VALUE)
        returns(hip.hipExtMallocWithFlags(ctypes.byref(ctypes.c_uint64()), 64, 77), INVALID_VALUE)


@claims("Memory Management; hip-is-not-cuda 6.4, 6.5")
class TestHostMemory:
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

    @pytest.mark.parametrize("flags", [0, PORTABLE, COHERENT, NON_COHERENT | PORTABLE, NUMA_USER | COHERENT])
    def test_flags_can_be_read_back(self, flags):
        address, _ = pinned(64, flags)
        found = ctypes.c_uint()
        ok(hip.hipHostGetFlags(ctypes.byref(found), address))
        assert found.value == flags
        ok(hip.hipHostFree(address))

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
class TestRegistering:
    def test_registered_memory_is_pinned_until_unregistered(self, block, stream):
        here = pages(2)
        ok(hip.hipHostRegister(address_of(here), 8192, 0))
        here[:] = 1
        with Gate(stream) as gate:
            ok(hip.hipMemcpyAsync(block, address_of(here), 4096, H2D, stream))
            here[:] = 2
            gate.open()
            ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == 2).all()
        ok(hip.hipHostUnregister(address_of(here)))

    def test_zero_bytes_and_unknown_flags_are_refused(self):
        here = pages(1)
        returns(hip.hipHostRegister(0, 4096, 0), INVALID_VALUE)
        returns(hip.hipHostRegister(address_of(here), 0, 0), INVALID_VALUE)
        returns(hip.hipHostRegister(address_of(here), 4096, 0x100), INVALID_VALUE)

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
            ended = threading.Event()
            thread = threading.Thread(target=lambda: (hip.hipHostUnregister(address_of(here)), ended.set()))
            thread.start()
            assert not ended.wait(0.05)
            gate.open()
            thread.join()


@claims("Managed Memory; hip-is-not-cuda 6.17")
class TestManagedMemory:
    def test_host_and_device_use_one_address(self):
        address = hip.out("hipMallocManaged", 4096, 1)
        here = np.frombuffer((ctypes.c_uint8 * 4096).from_address(address), np.uint8)
        here[:] = 3
        assert (read(address, 4096) == 3).all()
        ok(hip.hipMemset(address, 4, 4096))
        ok(hip.hipDeviceSynchronize())
        assert (here == 4).all()
        ok(hip.hipFree(address))

    def test_flags_and_size_are_checked(self):
        for size, flags in ((0, 1), (64, 0), (64, 8)):
            returns(hip.hipMallocManaged(ctypes.byref(ctypes.c_uint64()), size, flags), INVALID_VALUE)

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
class TestCopies:
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

    def test_zero_bytes_are_no_error(self, block):
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
            ended = threading.Event()
            thread = threading.Thread(
                target=lambda: (ok(hip.hipMemcpyAsync(there, address_of(here), size, H2D, stream)), ended.set())
            )
            thread.start()
            assert not ended.wait(0.05)
            gate.open()
            thread.join()
        assert (read(there, size) == 1).all()
        ok(hip.hipFree(there))

    def test_a_pageable_destination_is_written_before_the_call_returns(self, block, stream):
        out = sample(value=9)
        ok(hip.hipMemcpyAsync(address_of(out), block, 4096, D2H, stream))
        assert (out == 0).all()

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
        two_devices()
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
        two_devices()
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


@claims("Memory Management")
class TestFills:
    def test_a_fill_writes_units_of_1_2_or_4_bytes(self, block):
        ok(hip.hipMemset(block, 0x1FF, 4096))
        assert (read(block, 4096) == 255).all()
        ok(hip.hipMemsetD16(block, 0x0102, 8))
        ok(hip.hipMemsetD32(block + 16, 0x03040506, 4))
        ok(hip.hipMemsetD8(block + 32, 9, 4))
        back = read(block, 40)
        assert (back[:16].view(np.uint16) == 0x0102).all()
        assert (back[16:32].view(np.uint32) == 0x03040506).all()
        assert list(back[32:40]) == [9] * 4 + [255] * 4

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
class TestStreams:
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

    def test_default_streams_cannot_be_destroyed(self):
        returns(hip.hipStreamDestroy(0), INVALID_HANDLE)
        returns(hip.hipStreamDestroy(PER_THREAD), INVALID_HANDLE)

    def test_a_stream_tells_its_device(self, stream):
        """hipStreamGetDevice: the device that was current as the stream was made."""
        two_devices()
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
            seen = []
            thread = threading.Thread(target=lambda: seen.append(hip.hipStreamQuery(PER_THREAD)))
            thread.start()
            thread.join()
            assert seen == [0]

    def test_spt_functions_take_0_for_the_per_thread_stream(self, block, stream):
        with Gate(PER_THREAD):
            returns(hip.hipStreamQuery_spt(0), NOT_READY)
            ok(hip.hipMemcpyAsync_spt(block, block + 2048, 64, D2D, 0))
            ok(hip.hipStreamSynchronize(stream))
            returns(hip.hipStreamQuery_spt(0), NOT_READY)
        ok(hip.hipStreamSynchronize_spt(0))

    def test_a_new_stream_does_not_capture(self, stream):
        found = ctypes.c_int(7)
        ok(hip.hipStreamIsCapturing(stream, ctypes.byref(found)))
        assert found.value == 0

    @since(6, 0)
    def test_streams_have_distinct_ids(self, stream, other):
        one, two = ctypes.c_uint64(), ctypes.c_uint64()
        ok(hip.hipStreamGetId(stream, ctypes.byref(one)))
        ok(hip.hipStreamGetId(other, ctypes.byref(two)))
        assert one.value != two.value


GLOBAL, THREAD_LOCAL, RELAXED = range(3)
ILLEGAL_STATE, UNSUPPORTED, INVALIDATED, IMPLICIT, CAPTURED, WRONG_THREAD = 401, 900, 901, 906, 907, 908


def exchange(mode):
    """Set the capture mode of this thread; return the previous one."""
    found = ctypes.c_int(mode)
    ok(hip.hipThreadExchangeStreamCaptureMode(ctypes.byref(found)))
    return found.value


def relaxed(call):
    before = exchange(RELAXED)
    try:
        return call()
    finally:
        assert exchange(before) == RELAXED


def on_another_thread(call):
    """The result of a call on another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def allocate():
    """Allocate and free: calls that are potentially unsafe during a capture."""
    block = ctypes.c_uint64()
    return hip.hipMalloc(ctypes.byref(block), 64) or hip.hipFree(block.value)


@pytest.fixture
def capturing():
    """Begins a capture on a non-blocking stream; returns the status of its end."""
    stream, begun = hip.out("hipStreamCreateWithFlags", NON_BLOCKING), []

    class Capture:
        def begin(self, mode):
            ok(hip.hipStreamBeginCapture(stream, mode))
            begun.append(mode)
            return stream

        def end(self):
            begun.clear()
            graph = ctypes.c_uint64()
            error = hip.hipStreamEndCapture(stream, ctypes.byref(graph))
            if not error:
                ok(hip.hipGraphDestroy(graph.value))
            return error

    capture = Capture()
    yield capture
    if begun:
        capture.end()
    ok(hip.hipStreamDestroy(stream))


@pytest.fixture
def passed(event, stream):
    """A completed event."""
    ok(hip.hipEventRecord(event, stream))
    ok(hip.hipEventSynchronize(event))
    return event


@claims("Graph Management (stream capture); source of the runtime")
class TestCapture:
    def test_a_stream_reports_its_capture(self, capturing):
        def state(stream):
            found = ctypes.c_int(7)
            ok(hip.hipStreamIsCapturing(stream, ctypes.byref(found)))
            return found.value

        stream = capturing.begin(GLOBAL)
        assert state(stream) == 1
        assert capturing.end() == 0
        assert state(stream) == 0

    @pytest.mark.parametrize(
        "where", [on_another_thread, lambda call: call()], ids=["another thread", "the same thread"]
    )
    def test_in_global_mode_an_unsafe_call_of_any_thread_fails_and_invalidates_the_capture(self, capturing, where):
        capturing.begin(GLOBAL)
        returns(where(allocate), UNSUPPORTED)
        assert capturing.end() == INVALIDATED

    @emulator_only
    def test_since_rocm_7_event_queries_are_unsafe_calls(self, capturing, passed):
        """For events that were recorded before, some 7.x releases refuse the query in every mode."""
        capturing.begin(GLOBAL)
        forbidden = version() >= (7, 0)
        returns(on_another_thread(lambda: hip.hipEventQuery(passed)), UNSUPPORTED if forbidden else 0)
        assert capturing.end() == (INVALIDATED if forbidden else 0)

    @pytest.mark.parametrize(
        "where", [on_another_thread, lambda call: call()], ids=["another thread", "the same thread"]
    )
    def test_a_thread_in_relaxed_mode_may_make_unsafe_calls(self, capturing, where):
        def lock():
            word = ctypes.c_uint64()
            return hip.hipHostMalloc(ctypes.byref(word), 64, 0) or hip.hipHostFree(word.value)

        capturing.begin(GLOBAL)
        ok(where(lambda: relaxed(allocate)))
        ok(where(lambda: relaxed(lock)))
        assert capturing.end() == 0

    @emulator_only
    def test_a_thread_in_relaxed_mode_may_query_events(self, capturing, passed):
        capturing.begin(GLOBAL)
        ok(on_another_thread(lambda: relaxed(lambda: hip.hipEventQuery(passed))))
        ok(on_another_thread(lambda: relaxed(lambda: hip.hipEventSynchronize(passed))))
        assert capturing.end() == 0

    def test_in_thread_local_mode_only_the_capturing_thread_is_restricted(self, capturing):
        capturing.begin(THREAD_LOCAL)
        ok(on_another_thread(allocate))
        assert capturing.end() == 0
        capturing.begin(THREAD_LOCAL)
        returns(allocate(), UNSUPPORTED)
        assert capturing.end() == INVALIDATED

    def test_each_thread_has_its_own_mode(self):
        relaxed(
            lambda: on_another_thread(lambda: exchange(GLOBAL)) == GLOBAL or pytest.fail("the threads share the mode")
        )

    @emulator_only
    def test_a_captured_event_cannot_be_queried_in_any_mode(self, capturing, event):
        stream = capturing.begin(GLOBAL)
        ok(hip.hipEventRecord(event, stream))
        returns(relaxed(lambda: hip.hipEventQuery(event)), CAPTURED)

    @emulator_only
    def test_what_is_no_node_here_cannot_be_captured(self, capturing, block):
        """Pageable memory: the reference does not say when a graph reads it. And words of memory."""
        stream = capturing.begin(RELAXED)
        returns(hip.hipMemcpyAsync(block, address_of(np.zeros(8, np.uint8)), 8, 1, stream), NOT_SUPPORTED)
        returns(hip.hipStreamWriteValue32(stream, block, 1, 0), NOT_SUPPORTED)
        assert capturing.end() == 0

    def test_a_capture_ends_on_the_thread_that_began_it(self, capturing):
        stream = capturing.begin(GLOBAL)
        returns(hip.hipStreamBeginCapture(stream, GLOBAL), ILLEGAL_STATE)
        returns(
            on_another_thread(lambda: hip.hipStreamEndCapture(stream, ctypes.byref(ctypes.c_uint64()))), WRONG_THREAD
        )


@pytest.fixture
def graph_of():
    """An executable graph of what a function enqueues on the stream that it is given, captured in relaxed mode."""
    made, stream = [], hip.out("hipStreamCreateWithFlags", NON_BLOCKING)

    def make(enqueue):
        ok(hip.hipStreamBeginCapture(stream, RELAXED))
        enqueue(stream)
        graph = ctypes.c_uint64()
        ok(hip.hipStreamEndCapture(stream, ctypes.byref(graph)))
        made.append(hip.out("hipGraphInstantiateWithFlags", graph, ctypes.c_uint64(0)))
        ok(hip.hipGraphDestroy(graph))
        return made[-1]

    yield make
    ok(hip.hipDeviceSynchronize())
    for graph in made:
        ok(hip.hipGraphExecDestroy(graph))
    ok(hip.hipStreamDestroy(stream))


@claims(
    "Graph Management: hipStreamBeginCapture, hipStreamEndCapture, hipGraphInstantiateWithFlags ('does not support any of "
    "flag'), hipGraphLaunch ('Launches an executable graph in the specified stream'), hipGraphDestroy, hipGraphExecDestroy"
)
class TestGraphs:
    def test_captured_work_runs_at_each_launch_and_not_before(self, graph_of, block, stream):
        ok(hip.hipMemset(block, 0, 64))
        graph = graph_of(lambda on: ok(hip.hipMemsetAsync(block, 7, 64, on)))
        ok(hip.hipDeviceSynchronize())
        assert not read(block, 64).any()
        for _ in range(2):
            ok(hip.hipGraphLaunch(graph, stream))
            ok(hip.hipStreamSynchronize(stream))
            assert (read(block, 64) == 7).all()
            ok(hip.hipMemset(block, 0, 64))
            ok(hip.hipDeviceSynchronize())

    def test_copies_read_page_locked_memory_when_they_run(self, graph_of, block, stream):
        (source, into), (target, out) = pinned(4096), pinned(4096)

        def enqueue(on):
            ok(hip.hipMemcpyAsync(block, source, 4096, 1, on))
            ok(hip.hipMemcpyAsync(target, block, 4096, 2, on))

        graph = graph_of(enqueue)
        for value in (1, 2):
            into[:], out[:] = 0, 0
            with Gate(stream) as gate:
                ok(hip.hipGraphLaunch(graph, stream))
                into[:] = value
                assert_blocked(stream)
                assert not out.any()
                gate.open()
                ok(hip.hipStreamSynchronize(stream))
            assert (out == value).all()
        ok(hip.hipHostFree(source))
        ok(hip.hipHostFree(target))

    def test_nodes_of_one_stream_run_in_the_order_of_their_capture(self, graph_of, block, stream):
        def enqueue(on):
            for value in range(1, 20):
                ok(hip.hipMemsetAsync(block, value, 64, on))

        ok(hip.hipGraphLaunch(graph_of(enqueue), stream))
        ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 64) == 19).all()

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

    @emulator_only
    def test_a_destroyed_graph_is_not_launched(self, graph_of, stream):
        returns(hip.hipGraphLaunch(0x1234, stream), INVALID_VALUE)
        returns(hip.hipGraphExecDestroy(0x1234), INVALID_VALUE)


@claims("Event Management; hip-is-not-cuda 6.6")
class TestEvents:
    def test_an_unrecorded_event_is_complete(self, event, stream):
        ok(hip.hipEventQuery(event))
        ok(hip.hipEventSynchronize(event))
        ok(hip.hipStreamWaitEvent(stream, event, 0))

    def test_a_wait_is_for_the_last_record_before_it(self, event, stream, other, block):
        with Gate(stream) as gate:
            ok(hip.hipEventRecord(event, stream))
            returns(hip.hipEventQuery(event), NOT_READY)
            ok(hip.hipStreamWaitEvent(other, event, 0))
            assert_blocked(other)
            gate.open()
            ok(hip.hipStreamSynchronize(other))

    def test_event_flags_are_checked(self):
        for flags in (0, 1, DISABLE_TIMING, DISABLE_TIMING | TO_SYSTEM, TO_DEVICE):
            ok(hip.hipEventDestroy(hip.out("hipEventCreateWithFlags", flags)))
        for flags in (TO_SYSTEM | TO_DEVICE, INTERPROCESS, 8):
            returns(hip.hipEventCreateWithFlags(ctypes.byref(ctypes.c_uint64()), flags), INVALID_VALUE)

    def test_a_null_event_is_refused(self, stream):
        returns(hip.hipEventRecord(0, stream), INVALID_HANDLE)
        returns(hip.hipEventDestroy(0), INVALID_HANDLE)
        returns(hip.hipEventQuery(0), INVALID_HANDLE)
        returns(hip.hipStreamWaitEvent(stream, 0, 0), INVALID_HANDLE)

    @emulator_only
    def test_a_destroyed_event_is_unknown(self):
        made = hip.out("hipEventCreate")
        ok(hip.hipEventDestroy(made))
        returns(hip.hipEventDestroy(made), DESTROYED)
        returns(hip.hipEventQuery(made), DESTROYED)

    def test_the_time_between_two_events_is_positive(self, stream):
        start, end, found = hip.out("hipEventCreate"), hip.out("hipEventCreate"), ctypes.c_float(-1)
        returns(hip.hipEventElapsedTime(ctypes.byref(found), start, end), INVALID_HANDLE)
        ok(hip.hipEventRecord(start, stream))
        ok(hip.hipEventRecord(end, stream))
        ok(hip.hipEventSynchronize(end))
        ok(hip.hipEventElapsedTime(ctypes.byref(found), start, end))
        assert found.value >= 0
        ok(hip.hipEventDestroy(start))
        ok(hip.hipEventDestroy(end))

    def test_an_event_is_recorded_on_its_device_only(self, event):
        two_devices()
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
class TestHostFunctions:
    def test_host_functions_run_in_stream_order(self, stream):
        seen = []
        call = CALLBACK(seen.append)
        with Gate(stream):
            ok(hip.hipLaunchHostFunc(stream, ctypes.cast(call, ctypes.c_void_p), 7))
            assert_blocked(stream)
            assert seen == []
        assert seen == [7]

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
class TestPools:
    def test_memory_is_allocated_and_freed_in_stream_order(self, pool, stream):
        address = hip.out("hipMallocFromPoolAsync", 4096, pool, stream)
        ok(hip.hipMemsetAsync(address, 3, 4096, stream))
        out = sample()
        ok(hip.hipMemcpyAsync(address_of(out), address, 4096, D2H, stream))
        assert (out == 3).all()
        ok(hip.hipFreeAsync(address, stream))

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
class TestPeers:
    def test_peer_access_is_enabled_once(self):
        two_devices()
        if not hip.out("hipDeviceCanAccessPeer", 0, 1, kind=ctypes.c_int):
            pytest.skip("the two devices have no peer access")
        ok(hip.hipDeviceEnablePeerAccess(1, 0))
        returns(hip.hipDeviceEnablePeerAccess(1, 0), PEER_ENABLED)
        ok(hip.hipDeviceDisablePeerAccess(1))
        returns(hip.hipDeviceDisablePeerAccess(1), PEER_NOT_ENABLED)

    def test_a_device_is_not_its_own_peer(self):
        returns(hip.hipDeviceEnablePeerAccess(0, 0), INVALID_DEVICE)
        assert hip.out("hipDeviceCanAccessPeer", 0, 0, kind=ctypes.c_int) == 0


IMPORTER = """
handle = IpcHandle.from_buffer_copy(bytes.fromhex(os.environ["HANDLE"]))
assert hip.hipIpcOpenMemHandle(ctypes.byref(ctypes.c_uint64()), handle, 0) == INVALID_VALUE
address = hip.out("hipIpcOpenMemHandle", handle, 1)
assert (read(address, 4096) == 7).all()
ok(hip.hipMemset(address, 8, 4096))
ok(hip.hipDeviceSynchronize())
ok(hip.hipIpcCloseMemHandle(address))
"""


@claims("Device Management (hipIpcGetMemHandle); hip-is-not-cuda 6.19")
class TestSharing:
    def handle(self, address):
        made = IpcHandle()
        ok(hip.hipIpcGetMemHandle(ctypes.byref(made), address))
        return made

    def test_another_process_sees_the_same_bytes(self, block):
        ok(hip.hipMemset(block, 7, 4096))
        ok(hip.hipDeviceSynchronize())
        child(IMPORTER, HANDLE=bytes(self.handle(block)).hex())
        assert (read(block, 4096) == 8).all()

    def test_a_process_cannot_open_its_own_handle(self, block):
        returns(hip.hipIpcOpenMemHandle(ctypes.byref(ctypes.c_uint64()), self.handle(block), 1), INVALID_CONTEXT)

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
        child(code, HANDLE=bytes(self.handle(block)).hex())

    @emulator_only
    def test_only_the_base_of_device_memory_has_a_handle(self, block):
        returns(hip.hipIpcGetMemHandle(ctypes.byref(IpcHandle()), block + 512), INVALID_DEVICE_POINTER)
        returns(hip.hipIpcGetMemHandle(ctypes.byref(IpcHandle()), address_of(sample())), INVALID_DEVICE_POINTER)


POOL_IMPORTER = """
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


@claims("Stream Ordered Memory Allocator (hipMemPoolExportToShareableHandle, hipMemPoolExportPointer)")
class TestSharedPools:
    """As the newer source of ROCm's runtime has them; the older one answers that it does not support them."""

    @pytest.fixture
    def shareable(self):
        if not attribute(88):
            pytest.skip("the device has no memory pools")
        properties = PoolProperties(allocation=1, handles=1, location=Location(1, 0))
        made = hip.out("hipMemPoolCreate", ctypes.byref(properties))
        yield made
        ok(hip.hipMemPoolDestroy(made))

    @once
    def test_another_process_sees_the_same_bytes(self, shareable, stream):
        address = hip.out("hipMallocFromPoolAsync", 4096, shareable, stream)
        ok(hip.hipMemsetAsync(address, 7, 4096, stream))
        ok(hip.hipStreamSynchronize(stream))
        file, data = hip.out("hipMemPoolExportToShareableHandle", shareable, 1, 0, kind=ctypes.c_int), IpcHandle()
        try:
            ok(hip.hipMemPoolExportPointer(ctypes.byref(data), address))
            child(POOL_IMPORTER, files=(file,), FILE=str(file), DATA=bytes(data).hex())
        finally:
            os.close(file)
        assert (read(address, 4096) == 8).all()
        ok(hip.hipFreeAsync(address, stream))
        ok(hip.hipStreamSynchronize(stream))

    def test_a_pool_that_was_not_made_for_it_is_not_exported(self, pool, shareable):
        file = ctypes.c_int()
        returns(hip.hipMemPoolExportToShareableHandle(ctypes.byref(file), pool, 1, 0), INVALID_VALUE)
        returns(hip.hipMemPoolExportToShareableHandle(ctypes.byref(file), shareable, 1, 1), INVALID_VALUE)


VIRTUAL_IMPORTER = """
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


def file_as_given(file):
    """As ROCm takes a file descriptor: since 7.1 in the place of an address, before by its address."""
    return ctypes.c_void_p(file) if version() >= (7, 1) else ctypes.byref(ctypes.c_int(file))


@claims("Virtual Memory Management (hipMemCreate, hipMemMap, hipMemSetAccess, hipMemExportToShareableHandle)")
class TestVirtualMemory:
    @pytest.fixture
    def properties(self):
        if not attribute(89):
            pytest.skip("the device has no virtual memory management")
        return (ctypes.c_int * 8)(1, 1, 1, 0)  # pinned, for file descriptors, on device 0

    @pytest.fixture
    def size(self, properties):
        return hip.out("hipMemGetAllocationGranularity", properties, 0)

    @pytest.fixture
    def physical(self, properties, size):
        made = hip.out("hipMemCreate", size, properties, 0)
        yield made
        ok(hip.hipMemRelease(made))

    @pytest.fixture
    def addresses(self, size):
        made = hip.out("hipMemAddressReserve", 2 * size, 0, 0, 0)
        yield made
        ok(hip.hipMemAddressFree(made, 2 * size))

    @pytest.fixture
    def mapped(self, physical, addresses, size):
        ok(hip.hipMemMap(addresses, size, 0, physical, 0))
        ok(hip.hipMemSetAccess(addresses, size, (ctypes.c_int * 3)(1, 0, 3), 1))
        yield addresses
        ok(hip.hipMemUnmap(addresses, size))

    @once
    def test_another_process_sees_the_same_bytes(self, physical, mapped, size):
        ok(hip.hipMemset(mapped, 7, size))
        ok(hip.hipDeviceSynchronize())
        file = hip.out("hipMemExportToShareableHandle", physical, 1, 0, kind=ctypes.c_int)
        try:
            child(VIRTUAL_IMPORTER, files=(file,), FILE=str(file), SIZE=str(size))
        finally:
            os.close(file)
        assert (read(mapped, 4096) == 8).all()

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
        assert truth.hip is None  # this file queried the device count: that was the first call
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
