"""What the emulated HIP runtime claims, in raw calls through ctypes: on the emulator everywhere, on a real one where one is.

Where no runtime finds a device, one test runs this file again in subprocesses over the emulator, once for each of the
ROCm series whose rules differ. Where one does, real or emulated, each statement runs by itself, and a real runtime that
disagrees has caught the emulator out. Statements about what the vendor calls undefined, or says nowhere, carry
``emulator_only``; those that end the process run in a child.
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

ROOT = Path(emulator.__file__).parents[3]
INVALID_VALUE, OUT_OF_MEMORY, INVALID_PITCH, INVALID_DEVICE_POINTER, INVALID_DIRECTION = 1, 2, 12, 17, 21
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND, NOT_READY = 100, 101, 201, 400, 500, 600
PEER_ENABLED, PEER_NOT_ENABLED, DESTROYED, ALREADY, NOT_REGISTERED, NOT_SUPPORTED = 704, 705, 709, 712, 713, 801
H2H, H2D, D2H, D2D, ANY_KIND = range(5)
LEGACY, PER_THREAD, NON_BLOCKING = 1, 2, 1
PORTABLE, MAPPED, WRITE_COMBINED, COHERENT, NON_COHERENT = 1, 2, 4, 0x40000000, 0x80000000
DISABLE_TIMING, INTERPROCESS, NO_FENCE, TO_DEVICE, TO_SYSTEM = 2, 4, 0x20000000, 0x40000000, 0x80000000
SIGNAL_MEMORY = 2
STAGED = 4 << 20

#: The series of ROCm that the statements run over: before and after 7.0, before and after the change of mid-2026.
SERIES = ("6.4", "7.2", "10.0")


#: Arrays whose addresses were handed out.
KEPT = collections.deque(maxlen=64)


class Hip:
    """The runtime's functions; every integer is passed with 64 bits, which serves narrower parameters too."""

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
        """Call a function whose first parameter receives the result."""
        value = kind()
        ok(getattr(self, name)(ctypes.byref(value), *arguments))
        return value.value


def opened():
    """The runtime with a usable device, of whatever kind, or None."""
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


def statements(cls):
    """Collect a class of statements only where there is a runtime to make them about."""
    cls.__test__ = hip is not None
    return cls


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
    def test_every_statement_holds_on_the_emulator(series):
        command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull]
        command += ["--rootdir", str(ROOT), "-x", "--import-mode=importlib", __file__]
        run = functools.partial(subprocess.run, capture_output=True, text=True, check=False, timeout=280)
        done = run(command, env=environment(DEVMEM_EMULATOR_ROCM=series))
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


# --- tools ------------------------------------------------------------------------------------------------------------


def ok(result):
    assert result == 0, result


def refused(result, *codes):
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
        pytest.skip("the vendor leaves this open; the emulator is strict about it")


emulator_only = pytest.mark.usefixtures("only_emulated")


@pytest.fixture
def only_newest():
    if os.environ.get("DEVMEM_EMULATOR_ROCM", SERIES[-1]) != SERIES[-1]:
        pytest.skip("needs a process of its own, and has been said of the newest series")


#: Of statements in children that no version changes.
once = pytest.mark.usefixtures("only_newest")


def since(*first):
    return pytest.mark.skipif(hip is not None and version() < first, reason=f"other rules before {first}")


def before(*first):
    return pytest.mark.skipif(hip is not None and version() >= first, reason=f"other rules since {first}")


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Device 0 is current, and on the emulator nothing is left behind."""
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
        assert emulator.control("roc").live() == held, "the statement left memory or handles behind"


@pytest.fixture
def leaks():
    """The runtime itself leaks in this statement."""


def flat(size=4096, value=0):
    return np.full(size, value, np.uint8)


def at(array):
    """The address of an array, which is kept for a while: an operation may still read it."""
    KEPT.append(array)
    return array.ctypes.data


def pages(count):
    """Whole pages of the program's own memory."""
    room = np.zeros((count + 1) * 4096, np.uint8)
    skip = -at(room) % 4096
    return room[skip : skip + count * 4096]


def pinned(size, flags=COHERENT):
    """Page-locked memory and an array over it."""
    address = hip.out("hipHostMalloc", size, flags)
    return address, np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def read(address, size):
    out = flat(size)
    ok(hip.hipMemcpy(at(out), address, size, D2H))
    return out


def standing(stream):
    """The stream does not get on, given time to."""
    time.sleep(0.01)
    refused(hip.hipStreamQuery(stream), NOT_READY)


class Gate:
    """Hold a stream on the device side: it waits for a word of signal memory, on any runtime."""

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
        pytest.skip("no pools")
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


def child(code, *, expect=0, **variables):
    """Run statements in a process of their own, with the names of this file. The default is the same runtime."""
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
    told = {**os.environ, **variables}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=False, timeout=120)
    done = run([sys.executable, "-c", text], env={**told, "PYTHONPATH": path})
    assert done.returncode == expect, f"exit status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def two_devices():
    if hip.out("hipGetDeviceCount", kind=ctypes.c_int) < 2:
        pytest.skip("needs two devices")


SEGFAULT, ABORT = -11, -6


# --- the runtime and its devices --------------------------------------------------------------------------------------


@statements
class TestRuntime:
    def test_it_needs_no_opening(self):
        child("ok(hip.hipFree(hip.out('hipMalloc', 64)))")

    def test_hip_init_takes_no_flags(self):
        ok(hip.hipInit(0))
        refused(hip.hipInit(1), INVALID_VALUE)

    def test_the_driver_has_the_runtimes_version(self):
        assert hip.out("hipDriverGetVersion", kind=ctypes.c_int) // 100_000 == version()[0] * 100 + version()[1]

    def test_ordinals_are_checked(self):
        number = ctypes.c_int()
        for ordinal in (-1, hip.out("hipGetDeviceCount", kind=ctypes.c_int)):
            refused(hip.hipSetDevice(ordinal), INVALID_DEVICE)
            refused(hip.hipDeviceGet(ctypes.byref(number), ordinal), INVALID_DEVICE)
            refused(hip.hipDeviceGetAttribute(ctypes.byref(number), 87, ordinal), INVALID_DEVICE)

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

    def test_attributes_say_what_the_device_is(self):
        assert attribute(87) in (32, 64)
        assert attribute(16) in (0, 1)
        assert attribute(10011) in (0, 1)
        assert attribute(67) >= 0
        refused(hip.hipDeviceGetAttribute(ctypes.byref(ctypes.c_int()), 9000, 0), INVALID_VALUE)

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

    def test_errors_have_names_and_sentences(self):
        for name in ("hipGetErrorName", "hipGetErrorString"):
            getattr(hip._library, name).restype = ctypes.c_char_p
        assert hip._library.hipGetErrorName(2) == b"hipErrorOutOfMemory"
        assert hip._library.hipGetErrorString(1) == b"invalid argument"
        assert hip._library.hipGetErrorName(600) == b"hipErrorNotReady"

    @emulator_only
    def test_what_is_not_emulated_says_so(self, stream):
        refused(hip.hipModuleLoadData(ctypes.byref(ctypes.c_uint64()), at(flat())), NOT_SUPPORTED)
        refused(hip.hipModuleLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, None, None), NOT_SUPPORTED)
        refused(hip.hipLaunchKernel(0, 1, 1, 1, 1, 1, 1, None), NOT_SUPPORTED)
        refused(hip.hipGraphCreate(ctypes.byref(ctypes.c_uint64()), 0), NOT_SUPPORTED)
        refused(hip.hipMemAddressReserve(None), NOT_SUPPORTED)

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


@statements
class TestLastError:
    @since(7, 0)
    def test_it_stays_until_it_is_read(self):
        refused(hip.hipFree(12345), INVALID_VALUE)
        ok(hip.hipDeviceSynchronize())
        assert hip.hipPeekAtLastError() == INVALID_VALUE
        assert hip.hipGetLastError() == INVALID_VALUE
        assert hip.hipGetLastError() == 0

    @before(7, 0)
    def test_before_rocm_7_it_is_the_result_of_the_last_call(self):
        refused(hip.hipFree(12345), INVALID_VALUE)
        assert hip.hipPeekAtLastError() == INVALID_VALUE
        ok(hip.hipDeviceSynchronize())
        assert hip.hipGetLastError() == 0

    @since(7, 0)
    def test_the_result_of_the_last_call_can_be_had_since(self):
        refused(hip.hipFree(12345), INVALID_VALUE)
        ok(hip.hipDeviceSynchronize())
        assert hip.hipExtGetLastError() == 0
        assert hip.hipGetLastError() == INVALID_VALUE

    @since(7, 0)
    def test_not_ready_is_not_an_error(self, stream):
        hip.hipGetLastError()
        with Gate(stream):
            refused(hip.hipStreamQuery(stream), NOT_READY)
            assert hip.hipPeekAtLastError() == 0

    def test_each_thread_has_its_own(self):
        seen = []
        hip.hipGetLastError()
        thread = threading.Thread(target=lambda: seen.extend([hip.hipFree(12345), hip.hipGetLastError()]))
        thread.start()
        thread.join()
        assert seen == [INVALID_VALUE, INVALID_VALUE]
        assert hip.hipGetLastError() == 0


@statements
class TestCurrentDevice:
    def test_every_thread_begins_on_device_0(self):
        two_devices()
        ok(hip.hipSetDevice(1))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(hip.out("hipGetDevice", kind=ctypes.c_int)))
        thread.start()
        thread.join()
        assert seen == [0]
        assert hip.out("hipGetDevice", kind=ctypes.c_int) == 1

    def test_memory_and_streams_belong_to_it(self):
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
    def test_a_reset_ends_memory_and_handles(self):
        child("""
        address, made = hip.out("hipMalloc", 64), hip.out("hipEventCreate")
        ok(hip.hipDeviceReset())
        assert hip.hipFree(address) == INVALID_VALUE
        assert hip.hipEventQuery(made) == DESTROYED
        ok(hip.hipFree(hip.out("hipMalloc", 64)))
        """)


# --- memory -----------------------------------------------------------------------------------------------------------


@statements
class TestDeviceMemory:
    def test_nothing_is_given_nothing(self):
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
    def test_the_host_cannot_touch_it(self):
        child("ctypes.string_at(hip.out('hipMalloc', 64), 1)", expect=SEGFAULT)

    def test_what_is_not_known_is_not_freed(self, block):
        refused(hip.hipFree(12345), INVALID_VALUE)
        refused(hip.hipFree(at(flat())), INVALID_VALUE)

    @emulator_only
    def test_freeing_twice_is_refused(self):
        address = hip.out("hipMalloc", 64)
        ok(hip.hipFree(address))
        refused(hip.hipFree(address), INVALID_VALUE)

    def test_an_address_within_a_block_frees_the_whole(self):
        address = hip.out("hipMalloc", 4096)
        ok(hip.hipFree(address + 100))
        refused(hip.hipFree(address), INVALID_VALUE)

    def test_host_memory_is_freed_too(self):
        address, _ = pinned(64)
        ok(hip.hipFree(address))
        refused(hip.hipHostFree(address), INVALID_VALUE)

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
        refused(hip.hipMalloc(ctypes.byref(out), 1 << 50), OUT_OF_MEMORY)

    def test_what_is_free_is_told(self, block):
        rest, total = ctypes.c_size_t(), ctypes.c_size_t()
        ok(hip.hipMemGetInfo(ctypes.byref(rest), ctypes.byref(total)))
        assert 0 < rest.value < total.value

    def test_a_block_is_found_from_inside(self, block):
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        ok(hip.hipMemGetAddressRange(ctypes.byref(base), ctypes.byref(size), block + 7))
        assert (base.value, size.value) == (block, 4096)
        ok(hip.hipMemPtrGetInfo(block, ctypes.byref(size)))
        assert size.value == 4096
        refused(hip.hipMemGetAddressRange(ctypes.byref(base), ctypes.byref(size), at(flat())), NOT_FOUND)

    def test_rows_are_padded(self):
        pitch = ctypes.c_size_t()
        address = hip.out("hipMallocPitch", ctypes.byref(pitch), 100, 10)
        assert pitch.value >= 100
        assert pitch.value % 4 == 0
        ok(hip.hipFree(address))

    def test_flags_of_the_extension(self):
        for flags in (0, 1):
            ok(hip.hipFree(hip.out("hipExtMallocWithFlags", 64, flags)))
        refused(hip.hipExtMallocWithFlags(ctypes.byref(ctypes.c_uint64()), 64, SIGNAL_MEMORY), INVALID_VALUE)
        refused(hip.hipExtMallocWithFlags(ctypes.byref(ctypes.c_uint64()), 64, 77), INVALID_VALUE)


@statements
class TestHostMemory:
    def test_nothing_is_given_nothing(self):
        assert hip.out("hipHostMalloc", 0, 0) == 0
        ok(hip.hipHostFree(0))

    def test_both_coherences_at_once_are_refused(self):
        refused(hip.hipHostMalloc(ctypes.byref(ctypes.c_uint64()), 64, COHERENT | NON_COHERENT), INVALID_VALUE)

    @pytest.mark.parametrize("flags", [0, PORTABLE, COHERENT, NON_COHERENT | PORTABLE])
    def test_flags_can_be_read_back(self, flags):
        address, _ = pinned(64, flags)
        found = ctypes.c_uint()
        ok(hip.hipHostGetFlags(ctypes.byref(found), address))
        assert found.value == flags
        ok(hip.hipHostFree(address))

    def test_only_page_locked_memory_has_flags(self, block):
        refused(hip.hipHostGetFlags(ctypes.byref(ctypes.c_uint()), block), INVALID_VALUE)
        refused(hip.hipHostGetFlags(ctypes.byref(ctypes.c_uint()), at(flat())), INVALID_VALUE)

    def test_it_has_an_address_on_the_device(self):
        address, host = pinned(4096)
        there = hip.out("hipHostGetDevicePointer", address, 0)
        ok(hip.hipMemset(there, 7, 4096))
        ok(hip.hipDeviceSynchronize())
        assert (host == 7).all()
        ok(hip.hipHostFree(address))
        refused(hip.hipHostGetDevicePointer(ctypes.byref(ctypes.c_uint64()), at(flat()), 0), INVALID_VALUE)

    def test_an_address_within_it_frees_the_whole(self):
        address, _ = pinned(4096)
        ok(hip.hipHostFree(address + 64))
        refused(hip.hipHostFree(address), INVALID_VALUE)


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


@statements
class TestCoherence:
    @emulator_only
    def test_flags_that_do_not_say_make_it_coarse(self):
        assert not is_coarse(0)
        assert is_coarse(PORTABLE)
        assert is_coarse(WRITE_COMBINED)
        assert is_coarse(NON_COHERENT)
        assert not is_coarse(COHERENT | PORTABLE)
        assert not is_coarse(MAPPED | PORTABLE)

    @emulator_only
    @once
    def test_a_variable_makes_it_fine(self):
        child("assert not is_coarse(PORTABLE) and is_coarse(NON_COHERENT)", HIP_HOST_COHERENT="1")

    @pytest.mark.parametrize("wait", ["stream", "device"])
    def test_waiting_for_all_work_shows_it(self, either, block, stream, wait):
        address, host = either
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpyAsync(address, block, 4096, D2H, stream))
        ok(hip.hipStreamSynchronize(stream) if wait == "stream" else hip.hipDeviceSynchronize())
        assert (host == 5).all()

    def test_an_event_that_releases_to_the_system_shows_it(self, either, block, stream):
        address, host = either
        done = hip.out("hipEventCreateWithFlags", DISABLE_TIMING | TO_SYSTEM)
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpyAsync(address, block, 4096, D2H, stream))
        ok(hip.hipEventRecord(done, stream))
        ok(hip.hipEventSynchronize(done))
        assert (host == 5).all()
        ok(hip.hipEventDestroy(done))

    @emulator_only
    def test_another_event_does_not(self, coarse, block, stream, event):
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
    def test_fine_memory_needs_no_release(self, block, stream, event):
        address, host = pinned(4096, COHERENT)
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpyAsync(address, block, 4096, D2H, stream))
        ok(hip.hipEventRecord(event, stream))
        ok(hip.hipEventSynchronize(event))
        assert (host == 5).all()
        ok(hip.hipHostFree(address))

    def test_the_device_reads_what_it_wrote(self, coarse, block, stream):
        address, _ = coarse
        ok(hip.hipMemsetAsync(address, 9, 100, stream))
        ok(hip.hipMemcpyAsync(block, address, 4096, H2D, stream))
        ok(hip.hipStreamSynchronize(stream))
        back = read(block, 4096)
        assert (back[:100] == 9).all()
        assert (back[100:] == 1).all()

    def test_the_device_sees_what_the_host_wrote_before_the_copy(self, coarse, block, stream):
        address, host = coarse
        host[:] = np.arange(4096, dtype=np.uint8)
        ok(hip.hipMemcpyAsync(block, address, 4096, H2D, stream))
        ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == host).all()

    @emulator_only
    def test_rows_of_a_box_stay_hidden_too(self, coarse, block, stream, event):
        address, host = coarse
        ok(hip.hipMemsetAsync(block, 5, 4096, stream))
        ok(hip.hipMemcpy2DAsync(address, 64, block, 64, 32, 64, D2H, stream))
        ok(hip.hipEventRecord(event, stream))
        ok(hip.hipEventSynchronize(event))
        assert (host == 1).all()
        ok(hip.hipStreamSynchronize(stream))
        assert (host.reshape(64, 64)[:, :32] == 5).all()
        assert (host.reshape(64, 64)[:, 32:] == 1).all()

    def test_a_copy_that_waits_shows_it(self, coarse, block):
        address, host = coarse
        ok(hip.hipMemset(block, 5, 4096))
        ok(hip.hipMemcpy(address, block, 4096, D2H))
        assert (host == 5).all()


@statements
class TestRegistering:
    def test_registered_memory_is_pinned_until_unregistered(self, block, stream):
        here = pages(2)
        ok(hip.hipHostRegister(at(here), 8192, 0))
        here[:] = 1
        with Gate(stream) as gate:
            ok(hip.hipMemcpyAsync(block, at(here), 4096, H2D, stream))
            here[:] = 2
            gate.open()
            ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == 2).all()
        ok(hip.hipHostUnregister(at(here)))

    def test_nothing_and_unknown_flags_are_refused(self):
        here = pages(1)
        refused(hip.hipHostRegister(0, 4096, 0), INVALID_VALUE)
        refused(hip.hipHostRegister(at(here), 0, 0), INVALID_VALUE)
        refused(hip.hipHostRegister(at(here), 4096, 0x100), INVALID_VALUE)

    def test_memory_that_is_not_there_is_refused(self):
        refused(hip.hipHostRegister(1 << 40, 4096, 0), INVALID_VALUE, OUT_OF_MEMORY)

    @emulator_only
    def test_the_device_has_another_address_for_it(self, block):
        here = pages(2)
        ok(hip.hipHostRegister(at(here), 8192, 0))
        there = hip.out("hipHostGetDevicePointer", at(here) + 100, 0)
        assert there != at(here) + 100
        here[:] = 3
        ok(hip.hipMemcpy(block, there, 64, H2D))
        assert (read(block, 64) == 3).all()
        ok(hip.hipMemset(there, 4, 64))
        ok(hip.hipDeviceSynchronize())
        assert (here[100:164] == 4).all()
        assert here[99] == here[164] == 3
        found = PointerAttributes()
        ok(hip.hipPointerGetAttributes(ctypes.byref(found), there))
        assert (found.host_pointer, found.device_pointer) == (at(here) + 100, there)
        ok(hip.hipHostUnregister(at(here)))
        refused(hip.hipMemset(there, 4, 64), INVALID_VALUE)

    @emulator_only
    @once
    def test_only_its_start_can_be_unregistered(self):
        for offset in (1, 4096):
            said = child(
                f"""
            here = pages(2)
            ok(hip.hipHostRegister(at(here), 8192, 0))
            hip.hipHostUnregister(at(here) + {offset})
            """,
                expect=ABORT,
            )
            assert "abort" in said

    @emulator_only
    @once
    def test_page_locked_memory_is_not_registered_memory(self):
        child("hip.hipHostUnregister(pinned(64)[0])", expect=ABORT)

    def test_unknown_memory_cannot_be_unregistered(self):
        refused(hip.hipHostUnregister(at(flat())), NOT_REGISTERED)
        refused(hip.hipHostUnregister(0), INVALID_VALUE)

    @since(7, 3)
    def test_registering_twice_is_refused_since_2026(self):
        here, (host, _) = pages(4), pinned(4096)
        ok(hip.hipHostRegister(at(here), 8192, 0))
        refused(hip.hipHostRegister(at(here), 8192, 0), ALREADY)
        refused(hip.hipHostRegister(at(here) + 4096, 8192, 0), ALREADY)
        refused(hip.hipHostRegister(host, 4096, 0), ALREADY)
        ok(hip.hipHostUnregister(at(here)))
        ok(hip.hipHostFree(host))

    @before(7, 3)
    @emulator_only
    def test_before_it_succeeds_and_leaks(self, leaks):
        here = pages(2)
        ok(hip.hipHostRegister(at(here), 8192, 0))
        held = emulator.control("roc").live()[1]
        ok(hip.hipHostRegister(at(here), 8192, 0))
        assert emulator.control("roc").live()[1] == held + 1
        ok(hip.hipHostUnregister(at(here)))
        refused(hip.hipHostUnregister(at(here)), NOT_REGISTERED)
        assert emulator.control("roc").live()[1] == held

    @before(7, 3)
    @emulator_only
    def test_before_overlaps_are_not_noticed(self):
        here = pages(4)
        ok(hip.hipHostRegister(at(here), 8192, 0))
        ok(hip.hipHostRegister(at(here) + 4096, 8192, 0))
        ok(hip.hipHostUnregister(at(here)))
        ok(hip.hipHostUnregister(at(here) + 4096))

    def test_unregistering_waits_for_the_device(self, stream):
        here = pages(1)
        ok(hip.hipHostRegister(at(here), 4096, 0))
        with Gate(stream) as gate:
            ended = threading.Event()
            thread = threading.Thread(target=lambda: (hip.hipHostUnregister(at(here)), ended.set()))
            thread.start()
            assert not ended.wait(0.05)
            gate.open()
            thread.join()


@statements
class TestManagedMemory:
    def test_both_sides_use_one_address(self):
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
            refused(hip.hipMallocManaged(ctypes.byref(ctypes.c_uint64()), size, flags), INVALID_VALUE)

    def test_migration_is_an_attribute(self):
        assert attribute(24) in (0, 1)
        assert attribute(9) in (0, 1)
        assert attribute(65) in (0, 1)

    @emulator_only
    def test_migration_is_off_unless_asked_for(self):
        assert (attribute(24), attribute(9), attribute(65)) == (1, 0, 0)
        child("assert (attribute(24), attribute(9), attribute(65)) == (1, 1, 1)", HSA_XNACK="1")

    def test_it_can_be_advised_and_prefetched(self, stream):
        address = hip.out("hipMallocManaged", 4096, 1)
        ok(hip.hipMemAdvise(address, 4096, 100, 0))
        ok(hip.hipMemPrefetchAsync(address, 4096, 0, stream))
        ok(hip.hipStreamSynchronize(stream))
        refused(hip.hipMemPrefetchAsync(address, 0, 0, stream), INVALID_VALUE)
        ok(hip.hipFree(address))


@statements
class TestPointers:
    def attributes(self, address):
        found = PointerAttributes()
        ok(hip.hipPointerGetAttributes(ctypes.byref(found), address))
        return found

    def test_device_memory(self, block):
        found = self.attributes(block + 5)
        assert (found.type, found.device, found.device_pointer, found.managed) == (2, 0, block + 5, 0)

    def test_page_locked_memory(self):
        address, _ = pinned(64)
        found = self.attributes(address + 5)
        assert (found.type, found.host_pointer) == (1, address + 5)
        ok(hip.hipHostFree(address))

    def test_managed_memory(self):
        address = hip.out("hipMallocManaged", 64, 1)
        assert (self.attributes(address).type, self.attributes(address).managed) == (3, 1)
        ok(hip.hipFree(address))

    @since(7, 0)
    @emulator_only
    def test_an_unknown_address_is_no_error(self):
        assert self.attributes(at(flat())).type == 0

    @before(7, 0)
    @emulator_only
    def test_before_rocm_7_an_unknown_address_is_one(self):
        refused(hip.hipPointerGetAttributes(ctypes.byref(PointerAttributes()), at(flat())), INVALID_VALUE)

    def test_one_question_at_a_time(self, block):
        word = ctypes.c_uint64()
        ok(hip.hipPointerGetAttribute(ctypes.byref(word), 11, block + 5))
        assert word.value == block
        kind = ctypes.c_int()
        ok(hip.hipPointerGetAttribute(ctypes.byref(kind), 2, block))
        assert kind.value == 2
        refused(hip.hipPointerGetAttribute(ctypes.byref(word), 11, at(flat())), INVALID_VALUE)


# --- copies -----------------------------------------------------------------------------------------------------------


@statements
class TestCopies:
    @pytest.mark.parametrize("kind", [H2D, ANY_KIND, D2D, 1024])
    def test_the_direction_is_what_the_addresses_are(self, block, kind):
        here = flat(value=5)
        ok(hip.hipMemcpy(block, at(here), 4096, kind))
        back = flat()
        ok(hip.hipMemcpy(at(back), block, 4096, kind))
        assert (back == 5).all()

    def test_kinds_that_do_not_exist_are_refused(self, block):
        for kind in (5, 77):
            refused(hip.hipMemcpy(block, at(flat()), 4096, kind), INVALID_DIRECTION)

    def test_two_unknown_addresses_must_be_said_to_be_the_hosts(self):
        to, source = flat(), flat(value=3)
        ok(hip.hipMemcpy(at(to), at(source), 4096, H2H))
        assert (to == 3).all()
        ok(hip.hipMemcpy(at(to), at(source), 4096, ANY_KIND))
        if not attribute(65):
            refused(hip.hipMemcpy(at(to), at(source), 4096, H2D), INVALID_VALUE)

    def test_no_bytes_are_no_error(self, block):
        ok(hip.hipMemcpy(block, 0, 0, H2D))
        ok(hip.hipMemcpyAsync(0, 0, 0, D2D, 0))

    def test_nothing_is_no_address(self, block):
        refused(hip.hipMemcpy(block, 0, 16, H2D), INVALID_VALUE)
        refused(hip.hipMemcpy(0, block, 16, D2H), INVALID_VALUE)

    def test_a_block_has_an_end(self, block):
        refused(hip.hipMemcpy(block + 4000, at(flat()), 97, H2D), INVALID_VALUE)
        refused(hip.hipMemcpy(at(flat()), block + 1, 4096, D2H), INVALID_VALUE)
        ok(hip.hipMemcpy(block + 4000, at(flat()), 96, H2D))

    @emulator_only
    @once
    def test_freed_memory_counts_as_the_hosts_and_ends_the_process(self):
        code = """
        there = hip.out("hipMalloc", 4096)
        ok(hip.hipFree(there))
        hip.hipMemcpy(there, at(flat()), 4096, ANY_KIND)
        """
        assert "no live allocation" in child(code, expect=SEGFAULT)

    @emulator_only
    @once
    def test_an_address_where_nothing_is_ends_the_process(self, block):
        child("hip.hipMemcpy(hip.out('hipMalloc', 64), 1 << 40, 64, H2D)", expect=SEGFAULT)

    def test_a_short_pageable_source_is_read_before_the_call_returns(self, block, stream):
        here = flat(value=1)
        with Gate(stream) as gate:
            ok(hip.hipMemcpyAsync(block, at(here), 4096, H2D, stream))
            here[:] = 2
            gate.open()
            ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == 1).all()

    def test_a_long_pageable_source_is_waited_for(self, stream):
        size = 2 * STAGED
        there, here = hip.out("hipMalloc", size), flat(size, 1)
        with Gate(stream) as gate:
            ended = threading.Event()
            thread = threading.Thread(
                target=lambda: (ok(hip.hipMemcpyAsync(there, at(here), size, H2D, stream)), ended.set())
            )
            thread.start()
            assert not ended.wait(0.05)
            gate.open()
            thread.join()
        assert (read(there, size) == 1).all()
        ok(hip.hipFree(there))

    def test_a_pageable_destination_is_written_before_the_call_returns(self, block, stream):
        out = flat(value=9)
        ok(hip.hipMemcpyAsync(at(out), block, 4096, D2H, stream))
        assert (out == 0).all()

    def test_page_locked_memory_is_read_and_written_later(self, block, stream):
        source, host = pinned(4096)
        host[:] = 1
        with Gate(stream) as gate:
            ok(hip.hipMemcpyAsync(block, source, 4096, H2D, stream))
            standing(stream)
            host[:] = 2
            gate.open()
            ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == 2).all()
        ok(hip.hipHostFree(source))

    def test_a_copy_within_the_device_returns_before_it_ends(self, block):
        there = hip.out("hipMalloc", 4096)
        with Gate(0):
            ok(hip.hipMemcpy(there, block, 4096, D2D))
            standing(0)
        ok(hip.hipFree(there))

    def test_a_copy_to_the_device_has_ended_when_the_call_returns(self, block):
        ok(hip.hipMemcpy(block, at(flat(value=4)), 4096, H2D))
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

    def test_a_stream_of_another_device_will_do(self, block):
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

    def test_devices_copy_without_peer_access(self, block, stream):
        two_devices()
        ok(hip.hipMemset(block, 6, 4096))
        ok(hip.hipDeviceSynchronize())
        ok(hip.hipSetDevice(1))
        there = hip.out("hipMalloc", 4096)
        ok(hip.hipSetDevice(0))
        ok(hip.hipMemcpyPeerAsync(there, 1, block, 0, 4096, stream))
        ok(hip.hipStreamSynchronize(stream))
        assert (read(there, 4096) == 6).all()
        refused(hip.hipMemcpyPeer(there, 99, block, 0, 4096), INVALID_DEVICE)
        ok(hip.hipFree(there))

    def test_copies_named_for_their_direction(self, block, stream):
        here, back = flat(value=7), flat()
        ok(hip.hipMemcpyHtoD(block, at(here), 4096))
        ok(hip.hipMemcpyDtoD(block, block + 2048, 1024))
        ok(hip.hipMemcpyDtoH(at(back), block, 4096))
        assert (back == 7).all()
        ok(hip.hipMemcpyHtoDAsync(block, at(flat(value=8)), 4096, stream))
        ok(hip.hipMemcpyDtoHAsync(at(back), block, 4096, stream))
        assert (back == 8).all()


def batch(stream, *copies, count=None, attributes=0):
    """``hipMemcpyBatchAsync`` of (to, source, bytes)."""
    words = [(ctypes.c_size_t * len(copies))(*column) for column in zip(*copies, strict=True)]
    one = (ctypes.c_uint64 * 8)(1)  # in the order of the stream
    given = (ctypes.byref(one), ctypes.byref(ctypes.c_size_t(0))) if attributes else (None, None)
    count = len(copies) if count is None else count
    return hip.hipMemcpyBatchAsync(*words, ctypes.c_size_t(count), *given, ctypes.c_size_t(attributes), None, stream)


@statements
class TestBatches:
    @since(7, 1)
    def test_each_copy_goes_its_own_way(self, block, stream):
        up, back = flat(2048, 7), flat(2048)
        ok(batch(stream, (block, at(up), 2048)))
        ok(batch(stream, (block + 2048, block, 1000), (at(back), block, 2048)))
        ok(hip.hipStreamSynchronize(stream))
        assert (back == 7).all()
        assert (read(block + 2048, 1000) == 7).all()

    @since(7, 1)
    def test_they_are_in_the_order_of_the_stream(self, block, stream):
        source, host = pinned(4096)
        host[:] = 1
        with Gate(stream) as gate:
            ok(batch(stream, (block, source, 2048), (block + 2048, source, 2048)))
            standing(stream)
            host[:] = 2
            gate.open()
            ok(hip.hipStreamSynchronize(stream))
        assert (read(block, 4096) == 2).all()
        ok(hip.hipHostFree(source))

    @since(7, 1)
    def test_nothing_to_copy_is_an_error(self, block, stream):
        refused(batch(stream, (block, at(flat()), 16), count=0), INVALID_VALUE)
        refused(batch(stream, (block, at(flat()), 16), (block, at(flat()), 0)), INVALID_VALUE)

    @since(7, 1)
    @before(7, 3)
    def test_attributes_came_later(self, block, stream):
        refused(batch(stream, (block, at(flat()), 16), attributes=1), NOT_SUPPORTED)

    @emulator_only
    @before(7, 1)
    def test_an_older_runtime_has_none(self, block, stream):
        refused(batch(stream, (block, at(flat()), 16)), NOT_SUPPORTED)


@statements
class TestBoxes:
    def test_rows_with_a_pitch(self, block):
        here = np.arange(48, dtype=np.uint8).reshape(4, 12)
        ok(hip.hipMemcpy2D(block, 64, at(here), 12, 8, 4, H2D))
        back = np.zeros((4, 8), np.uint8)
        ok(hip.hipMemcpy2D(at(back), 8, block, 64, 8, 4, D2H))
        assert (back == here[:, :8]).all()

    def test_a_pitch_shorter_than_the_row_is_refused(self, block):
        refused(hip.hipMemcpy2D(block, 7, at(flat()), 8, 8, 4, H2D), INVALID_PITCH)
        refused(hip.hipMemcpy2D(block, 8, at(flat()), 7, 8, 4, H2D), INVALID_PITCH)

    def test_the_last_row_must_fit(self, block):
        refused(hip.hipMemcpy2D(block, 1024, at(flat(8192)), 1024, 1000, 5, H2D), INVALID_VALUE)
        ok(hip.hipMemcpy2D(block, 1024, at(flat(8192)), 1024, 1024, 4, H2D))

    def test_no_rows_are_no_error(self, block):
        ok(hip.hipMemcpy2D(block, 64, at(flat()), 64, 0, 4, H2D))
        ok(hip.hipMemcpy2D(block, 64, at(flat()), 64, 8, 0, H2D))

    @emulator_only
    def test_a_pitch_that_is_no_multiple_of_4_is_right_but_slow(self, block):
        control = emulator.control("roc")
        control.reset()
        here = np.arange(60, dtype=np.uint8)
        ok(hip.hipMemcpy2D(block, 15, at(here), 15, 10, 4, H2D))
        assert (read(block, 10) == here[:10]).all()
        assert control.slow_copies() == 1
        ok(hip.hipMemcpy2D(block, 16, at(here), 16, 10, 3, H2D))
        ok(hip.hipMemcpy2D(block, 15, at(here), 15, 10, 1, H2D))
        assert control.slow_copies() == 1

    def test_planes(self, block):
        here = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
        copy = Copy3D(
            src=Pitched(at(here), 6, 6, 5),
            src_pos=Triple(1, 1, 1),
            dst=Pitched(block, 16, 16, 8),
            extent=Triple(4, 3, 2),
            kind=H2D,
        )
        ok(hip.hipMemcpy3D(ctypes.byref(copy)))
        back = read(block, 16 * 8 * 2).reshape(2, 8, 16)
        assert (back[:, :3, :4] == here[1:3, 1:4, 1:5]).all()
        refused(hip.hipMemcpy3D(None), INVALID_VALUE)


@statements
class TestFills:
    def test_bytes_halves_and_words(self, block):
        ok(hip.hipMemset(block, 0x1FF, 4096))
        assert (read(block, 4096) == 255).all()
        ok(hip.hipMemsetD16(block, 0x0102, 8))
        ok(hip.hipMemsetD32(block + 16, 0x03040506, 4))
        ok(hip.hipMemsetD8(block + 32, 9, 4))
        back = read(block, 40)
        assert (back[:16].view(np.uint16) == 0x0102).all()
        assert (back[16:32].view(np.uint32) == 0x03040506).all()
        assert list(back[32:40]) == [9] * 4 + [255] * 4

    def test_rows_and_planes(self, block):
        ok(hip.hipMemset2D(block, 64, 1, 8, 4))
        ok(hip.hipMemset3D(Pitched(block + 1024, 32, 32, 4), 2, Triple(8, 2, 3)))
        back = read(block, 4096)
        assert back[:256].sum() == 32
        assert back[1024:].sum() == 2 * 8 * 2 * 3

    def test_unknown_memory_and_too_much_are_refused(self, block):
        refused(hip.hipMemset(at(flat()), 0, 16), INVALID_VALUE)
        refused(hip.hipMemset(block + 1, 0, 4096), INVALID_VALUE)
        ok(hip.hipMemset(block, 0, 0))


# --- order ------------------------------------------------------------------------------------------------------------


@statements
class TestStreams:
    def test_priorities_are_few_and_clamped(self):
        least, greatest = ctypes.c_int(), ctypes.c_int()
        ok(hip.hipDeviceGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest)))
        assert (least.value, greatest.value) == (1, -1)
        made, found = hip.out("hipStreamCreateWithPriority", 0, -100), ctypes.c_int()
        ok(hip.hipStreamGetPriority(made, ctypes.byref(found)))
        assert found.value == greatest.value
        ok(hip.hipStreamDestroy(made))

    def test_flags(self, stream):
        found = ctypes.c_uint()
        ok(hip.hipStreamGetFlags(stream, ctypes.byref(found)))
        assert found.value == NON_BLOCKING
        refused(hip.hipStreamCreateWithFlags(ctypes.byref(ctypes.c_uint64()), 2), INVALID_VALUE)

    def test_default_streams_are_not_destroyed(self):
        refused(hip.hipStreamDestroy(0), INVALID_HANDLE)
        refused(hip.hipStreamDestroy(PER_THREAD), INVALID_HANDLE)

    @before(7, 0)
    @emulator_only
    def test_before_rocm_7_a_destroyed_stream_is_an_error(self, block):
        made = hip.out("hipStreamCreate")
        ok(hip.hipStreamDestroy(made))
        refused(hip.hipStreamQuery(made), DESTROYED)
        refused(hip.hipMemcpyAsync(block, at(flat()), 16, H2D, made), DESTROYED)
        refused(hip.hipStreamDestroy(made), DESTROYED)

    @since(7, 0)
    @emulator_only
    @pytest.mark.parametrize("call", ["hipStreamQuery(made)", "hipStreamDestroy(made)", "hipEventRecord(event, made)"])
    def test_since_rocm_7_it_ends_the_process(self, call):
        code = f"""
        made, event = hip.out("hipStreamCreate"), hip.out("hipEventCreate")
        ok(hip.hipStreamDestroy(made))
        hip.{call}
        """
        assert "destroyed" in child(code, expect=SEGFAULT)

    def test_streams_with_the_null_stream(self, block):
        blocking = hip.out("hipStreamCreate")
        with Gate(0):
            ok(hip.hipMemsetAsync(block, 1, 64, blocking))
            standing(blocking)
        with Gate(blocking):
            ok(hip.hipMemsetAsync(block, 1, 64, 0))
            standing(0)
        ok(hip.hipStreamDestroy(blocking))

    def test_non_blocking_streams_go_their_own_way(self, block, stream):
        with Gate(0):
            ok(hip.hipMemsetAsync(block, 1, 64, stream))
            ok(hip.hipStreamSynchronize(stream))

    @since(6, 3)
    def test_the_null_stream_is_1_too(self, block, stream):
        with Gate(LEGACY):
            standing(0)

    def test_2_is_the_threads_own(self, block):
        with Gate(PER_THREAD):
            standing(PER_THREAD)
            seen = []
            thread = threading.Thread(target=lambda: seen.append(hip.hipStreamQuery(PER_THREAD)))
            thread.start()
            thread.join()
            assert seen == [0]

    def test_twins_take_0_for_the_threads_own(self, block, stream):
        with Gate(PER_THREAD):
            refused(hip.hipStreamQuery_spt(0), NOT_READY)
            ok(hip.hipMemcpyAsync_spt(block, block + 2048, 64, D2D, 0))
            ok(hip.hipStreamSynchronize(stream))
            refused(hip.hipStreamQuery_spt(0), NOT_READY)
        ok(hip.hipStreamSynchronize_spt(0))

    def test_nothing_is_captured(self, stream):
        found = ctypes.c_int(7)
        ok(hip.hipStreamIsCapturing(stream, ctypes.byref(found)))
        assert found.value == 0

    @since(6, 0)
    def test_streams_have_numbers(self, stream, other):
        one, two = ctypes.c_uint64(), ctypes.c_uint64()
        ok(hip.hipStreamGetId(stream, ctypes.byref(one)))
        ok(hip.hipStreamGetId(other, ctypes.byref(two)))
        assert one.value != two.value


GLOBAL, THREAD_LOCAL, RELAXED = range(3)
ILLEGAL_STATE, UNSUPPORTED, INVALIDATED, IMPLICIT, CAPTURED, WRONG_THREAD = 401, 900, 901, 906, 907, 908


def exchange(mode):
    """Set this thread's mode towards captures; what it was."""
    found = ctypes.c_int(mode)
    ok(hip.hipThreadExchangeStreamCaptureMode(ctypes.byref(found)))
    return found.value


def relaxed(call):
    before = exchange(RELAXED)
    try:
        return call()
    finally:
        assert exchange(before) == RELAXED


def elsewhere(call):
    """What a call gives on a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def allocate():
    """Allocate, and free again: what captures do not see."""
    block = ctypes.c_uint64()
    return hip.hipMalloc(ctypes.byref(block), 64) or hip.hipFree(block.value)


@pytest.fixture
def capturing():
    """Begin captures on a stream that nobody waits for, and say how they end."""
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
    """An event whose work is done."""
    ok(hip.hipEventRecord(event, stream))
    ok(hip.hipEventSynchronize(event))
    return event


@statements
class TestCapture:
    def test_a_stream_says_that_it_captures(self, capturing):
        def state(stream):
            found = ctypes.c_int(7)
            ok(hip.hipStreamIsCapturing(stream, ctypes.byref(found)))
            return found.value

        stream = capturing.begin(GLOBAL)
        assert state(stream) == 1
        assert capturing.end() == 0
        assert state(stream) == 0

    @pytest.mark.parametrize("where", [elsewhere, lambda call: call()], ids=["another thread", "the same"])
    def test_in_global_mode_no_thread_may_do_what_is_not_seen_and_who_does_spoils_it(self, capturing, where):
        capturing.begin(GLOBAL)
        refused(where(allocate), UNSUPPORTED)
        assert capturing.end() == INVALIDATED

    @emulator_only
    def test_since_rocm_7_nor_ask_for_events(self, capturing, passed):
        """Of events that were recorded on a stream before, some releases of 7 say so to threads in any mode."""
        capturing.begin(GLOBAL)
        forbidden = version() >= (7, 0)
        refused(elsewhere(lambda: hip.hipEventQuery(passed)), UNSUPPORTED if forbidden else 0)
        assert capturing.end() == (INVALIDATED if forbidden else 0)

    @pytest.mark.parametrize("where", [elsewhere, lambda call: call()], ids=["another thread", "the same"])
    def test_a_thread_in_relaxed_mode_may(self, capturing, where):
        def lock():
            word = ctypes.c_uint64()
            return hip.hipHostMalloc(ctypes.byref(word), 64, 0) or hip.hipHostFree(word.value)

        capturing.begin(GLOBAL)
        ok(where(lambda: relaxed(allocate)))
        ok(where(lambda: relaxed(lock)))
        assert capturing.end() == 0

    @emulator_only
    def test_a_thread_in_relaxed_mode_may_ask_for_events(self, capturing, passed):
        capturing.begin(GLOBAL)
        ok(elsewhere(lambda: relaxed(lambda: hip.hipEventQuery(passed))))
        ok(elsewhere(lambda: relaxed(lambda: hip.hipEventSynchronize(passed))))
        assert capturing.end() == 0

    def test_in_thread_local_mode_other_threads_may(self, capturing):
        capturing.begin(THREAD_LOCAL)
        ok(elsewhere(allocate))
        assert capturing.end() == 0
        capturing.begin(THREAD_LOCAL)
        refused(allocate(), UNSUPPORTED)
        assert capturing.end() == INVALIDATED

    def test_a_thread_keeps_its_own_mode(self):
        relaxed(lambda: elsewhere(lambda: exchange(GLOBAL)) == GLOBAL or pytest.fail("shared"))

    @emulator_only
    def test_an_event_that_was_captured_cannot_be_asked_even_so(self, capturing, event):
        stream = capturing.begin(GLOBAL)
        ok(hip.hipEventRecord(event, stream))
        refused(relaxed(lambda: hip.hipEventQuery(event)), CAPTURED)

    @emulator_only
    def test_what_would_be_captured_is_refused(self, capturing, block):
        stream = capturing.begin(RELAXED)
        refused(hip.hipMemsetAsync(block, 1, 1, stream), NOT_SUPPORTED)
        assert capturing.end() == 0

    def test_a_capture_ends_on_its_own_thread(self, capturing):
        stream = capturing.begin(GLOBAL)
        refused(hip.hipStreamBeginCapture(stream, GLOBAL), ILLEGAL_STATE)
        refused(elsewhere(lambda: hip.hipStreamEndCapture(stream, ctypes.byref(ctypes.c_uint64()))), WRONG_THREAD)


@statements
class TestEvents:
    def test_one_that_was_never_recorded_is_complete(self, event, stream):
        ok(hip.hipEventQuery(event))
        ok(hip.hipEventSynchronize(event))
        ok(hip.hipStreamWaitEvent(stream, event, 0))

    def test_streams_wait_for_the_last_record_before(self, event, stream, other, block):
        with Gate(stream) as gate:
            ok(hip.hipEventRecord(event, stream))
            refused(hip.hipEventQuery(event), NOT_READY)
            ok(hip.hipStreamWaitEvent(other, event, 0))
            standing(other)
            gate.open()
            ok(hip.hipStreamSynchronize(other))

    def test_flags_are_checked(self):
        for flags in (0, 1, DISABLE_TIMING, DISABLE_TIMING | TO_SYSTEM, TO_DEVICE):
            ok(hip.hipEventDestroy(hip.out("hipEventCreateWithFlags", flags)))
        for flags in (TO_SYSTEM | TO_DEVICE, INTERPROCESS, 8):
            refused(hip.hipEventCreateWithFlags(ctypes.byref(ctypes.c_uint64()), flags), INVALID_VALUE)

    def test_none_is_no_event(self, stream):
        refused(hip.hipEventRecord(0, stream), INVALID_HANDLE)
        refused(hip.hipEventDestroy(0), INVALID_HANDLE)
        refused(hip.hipEventQuery(0), INVALID_HANDLE)
        refused(hip.hipStreamWaitEvent(stream, 0, 0), INVALID_HANDLE)

    @emulator_only
    def test_a_destroyed_one_is_unknown(self):
        made = hip.out("hipEventCreate")
        ok(hip.hipEventDestroy(made))
        refused(hip.hipEventDestroy(made), DESTROYED)
        refused(hip.hipEventQuery(made), DESTROYED)

    def test_time_passes(self, stream):
        start, end, found = hip.out("hipEventCreate"), hip.out("hipEventCreate"), ctypes.c_float(-1)
        refused(hip.hipEventElapsedTime(ctypes.byref(found), start, end), INVALID_HANDLE)
        ok(hip.hipEventRecord(start, stream))
        ok(hip.hipEventRecord(end, stream))
        ok(hip.hipEventSynchronize(end))
        ok(hip.hipEventElapsedTime(ctypes.byref(found), start, end))
        assert found.value >= 0
        ok(hip.hipEventDestroy(start))
        ok(hip.hipEventDestroy(end))

    def test_an_event_stays_on_its_device(self, event):
        two_devices()
        ok(hip.hipSetDevice(1))
        foreign = hip.out("hipStreamCreate")
        refused(hip.hipEventRecord(event, foreign), INVALID_HANDLE)
        ok(hip.hipStreamDestroy(foreign))


@statements
class TestWords:
    def test_a_stream_waits_and_writes(self, stream):
        address = hip.out("hipExtMallocWithFlags", 8, SIGNAL_MEMORY)
        word = ctypes.c_uint64.from_address(address)
        word.value = 0
        ok(hip.hipStreamWaitValue64(stream, address, 1 << 40, 0, 2**64 - 1))
        ok(hip.hipStreamWriteValue64(stream, address, 5, 0))
        standing(stream)
        word.value = 1 << 40
        ok(hip.hipStreamSynchronize(stream))
        assert word.value == 5
        ok(hip.hipStreamWaitValue32(stream, address, 4, 1, 6))
        ok(hip.hipStreamWriteValue32(stream, address, 7, 0))
        ok(hip.hipStreamSynchronize(stream))
        assert word.value == 7
        ok(hip.hipFree(address))

    def test_flags_and_address_are_checked(self, stream):
        refused(hip.hipStreamWaitValue32(stream, 0, 1, 0, 1), INVALID_VALUE)
        refused(hip.hipStreamWriteValue32(stream, at(flat()), 1, 0), INVALID_VALUE)


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@statements
class TestHostFunctions:
    def test_they_run_in_their_turn(self, stream):
        seen = []
        call = CALLBACK(seen.append)
        with Gate(stream):
            ok(hip.hipLaunchHostFunc(stream, ctypes.cast(call, ctypes.c_void_p), 7))
            standing(stream)
            assert seen == []
        assert seen == [7]

    @emulator_only
    def test_they_may_not_call_the_runtime(self, stream):
        seen = []
        call = CALLBACK(lambda _: seen.append(hip.hipStreamQuery(0)))
        ok(hip.hipLaunchHostFunc(stream, ctypes.cast(call, ctypes.c_void_p), 0))
        ok(hip.hipStreamSynchronize(stream))
        assert seen == [NOT_SUPPORTED]

    def test_none_is_no_function(self, stream):
        refused(hip.hipLaunchHostFunc(stream, 0, 0), INVALID_VALUE)


# --- pools ------------------------------------------------------------------------------------------------------------


@statements
class TestPools:
    def test_memory_is_born_and_dies_on_the_stream(self, pool, stream):
        address = hip.out("hipMallocFromPoolAsync", 4096, pool, stream)
        ok(hip.hipMemsetAsync(address, 3, 4096, stream))
        out = flat()
        ok(hip.hipMemcpyAsync(at(out), address, 4096, D2H, stream))
        assert (out == 3).all()
        ok(hip.hipFreeAsync(address, stream))

    @since(7, 0)
    def test_nothing_is_given_nothing(self, pool, stream):
        assert hip.out("hipMallocAsync", 0, stream) == 0
        ok(hip.hipFreeAsync(0, stream))

    @before(7, 0)
    @emulator_only
    def test_before_rocm_7_nothing_is_refused(self, pool, stream):
        refused(hip.hipMallocAsync(ctypes.byref(ctypes.c_uint64()), 0, stream), INVALID_VALUE)
        refused(hip.hipFreeAsync(0, stream), INVALID_VALUE)

    @since(7, 0)
    def test_freeing_its_memory_without_a_stream_does_not_wait(self, pool, stream, other):
        address = hip.out("hipMallocFromPoolAsync", 4096, pool, other)
        ok(hip.hipStreamSynchronize(other))
        with Gate(stream):
            ok(hip.hipFree(address))

    def test_plain_memory_can_be_freed_like_it(self, pool, stream):
        address = hip.out("hipMalloc", 64)
        ok(hip.hipFreeAsync(address, stream))
        ok(hip.hipStreamSynchronize(stream))

    def test_settings(self, pool):
        word = ctypes.c_uint64(1 << 20)
        ok(hip.hipMemPoolSetAttribute(pool, 4, ctypes.byref(word)))
        found = ctypes.c_uint64()
        ok(hip.hipMemPoolGetAttribute(pool, 4, ctypes.byref(found)))
        assert found.value == 1 << 20
        refused(hip.hipMemPoolGetAttribute(pool, 99, ctypes.byref(found)), INVALID_VALUE)

    @emulator_only
    @once
    def test_they_can_be_switched_off(self):
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


@statements
class TestFaults:
    @since(7, 0)
    @emulator_only
    def test_work_on_memory_that_is_not_there_is_an_error_that_stays(self):
        child(TOO_EARLY)

    @before(7, 0)
    @emulator_only
    def test_before_rocm_7_it_ends_the_process(self):
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


@statements
class TestPeers:
    def test_access_is_enabled_once(self):
        two_devices()
        if not hip.out("hipDeviceCanAccessPeer", 0, 1, kind=ctypes.c_int):
            pytest.skip("the devices are not peers")
        ok(hip.hipDeviceEnablePeerAccess(1, 0))
        refused(hip.hipDeviceEnablePeerAccess(1, 0), PEER_ENABLED)
        ok(hip.hipDeviceDisablePeerAccess(1))
        refused(hip.hipDeviceDisablePeerAccess(1), PEER_NOT_ENABLED)

    def test_a_device_is_not_its_own_peer(self):
        refused(hip.hipDeviceEnablePeerAccess(0, 0), INVALID_DEVICE)
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


@statements
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

    def test_a_process_cannot_open_its_own(self, block):
        refused(hip.hipIpcOpenMemHandle(ctypes.byref(ctypes.c_uint64()), self.handle(block), 1), INVALID_CONTEXT)

    @emulator_only
    @once
    def test_two_opens_have_two_addresses(self, block):
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
    def test_only_the_start_of_device_memory_is_shared(self, block):
        refused(hip.hipIpcGetMemHandle(ctypes.byref(IpcHandle()), block + 512), INVALID_DEVICE_POINTER)
        refused(hip.hipIpcGetMemHandle(ctypes.byref(IpcHandle()), at(flat())), INVALID_DEVICE_POINTER)


def counted(**variables):
    variables = {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "", **variables}
    code = """
    number, bus = ctypes.c_int(), ctypes.create_string_buffer(32)
    hip = hip or Hip(ctypes.CDLL(os.environ["ROCM_PATH"] + "/lib/libamdhip64.so"))
    said = hip.hipGetDeviceCount(ctypes.byref(number))
    for device in range(number.value):
        ok(hip.hipDeviceGetPCIBusId(bus, 32, device))
        print(int(bus.value.decode().split(":")[1], 16), end=" ")
    if said:
        print(said)
    """
    return child(code, DEVMEM_EMULATOR_DEVICES="4", **variables).split()


@statements
@emulator_only
@once
class TestVisibleDevices:
    """By the bus numbers of those that are seen: 1 to 4."""

    def test_an_empty_list_hides_nothing(self):
        assert counted() == ["1", "2", "3", "4"]

    def test_ordinals_in_their_order(self):
        assert counted(HIP_VISIBLE_DEVICES="2,0") == ["3", "1"]
        assert counted(ROCR_VISIBLE_DEVICES="3,1", HIP_VISIBLE_DEVICES="1") == ["2"]

    def test_the_other_vendors_list_counts_where_the_own_is_empty(self):
        assert counted(CUDA_VISIBLE_DEVICES="1") == ["2"]
        assert counted(CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == ["1"]

    def test_a_list_is_cut_at_the_first_that_does_not_exist(self):
        assert counted(HIP_VISIBLE_DEVICES="1,9,0") == ["2"]
        assert counted(CUDA_VISIBLE_DEVICES="-1") == [str(NO_DEVICE)]

    def test_identities(self):
        assert counted(ROCR_VISIBLE_DEVICES="GPU-de5e3e0000000002") == ["3"]
        assert counted(HIP_VISIBLE_DEVICES="GPU-de5e3e0000000001,GPU-1") == ["2"]


@statements
@emulator_only
class TestNoDevice:
    def test_the_first_call_says_something_else_than_later_ones(self):
        first, later = (INVALID_DEVICE, INVALID_DEVICE if version() < (6, 0) else NO_DEVICE)
        child(
            f"""
        hip = Hip(ctypes.CDLL(os.environ["ROCM_PATH"] + "/lib/libamdhip64.so"))
        number = ctypes.c_int(7)
        assert truth.hip is None  # this file asked for the count: that was the first call
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
