"""`Control` of the emulated CUDA driver: failures, delays, holds, counters. Calls go through ctypes, without bindings."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waits import patience

from devmem.testing import emulator

ROOT = Path(emulator.__file__).parents[3]
PRELUDE = """
import ctypes, os, time
from devmem.testing import emulator
driver = ctypes.CDLL(emulator.load("cuda"))
control = emulator.control("cuda")
u64, size = ctypes.c_uint64, ctypes.c_size_t

def out(call, *arguments, kind=u64):
    value = kind()
    assert call(ctypes.byref(value), *arguments) == 0
    return value

def ready():
    assert driver.cuInit(0) == 0
    assert driver.cuCtxSetCurrent(out(driver.cuDevicePrimaryCtxRetain, 0)) == 0

def alloc(n=4096):
    return out(driver.cuMemAlloc_v2, size(n))

def tries(n=4096):
    value = u64()
    return driver.cuMemAlloc_v2(ctypes.byref(value), size(n))
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_a_compiler():
    try:
        emulator.library("cuda")
    except emulator.BuildError as error:
        pytest.skip(str(error))


def emulated(code, **variables):
    """Run code in a new process that has the emulator mapped, and return what it wrote to stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    text = PRELUDE + textwrap.dedent(code)
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=patience(140))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_without_an_emulator_there_is_nothing_to_control():
    code = "from devmem.testing import emulator; emulator.control('cuda')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "EmulatorNotLoaded: no emulated cuda library is mapped" in done.stderr
    assert "devmem emulate cuda -- COMMAND" in done.stderr


def test_calls_are_counted_until_a_reset():
    emulated("""
    ready()
    for _ in range(3): driver.cuMemFree_v2(alloc())
    assert control.calls()["cuMemAlloc"] == control.calls()["cuMemFree"] == 3
    assert "cuMemHostAlloc" not in control.calls()
    control.reset()
    assert control.calls() == {}
    """)


def test_live_bytes_and_handles():
    emulated("""
    ready()
    assert control.live() == (0, 0)
    address, stream, event = alloc(100), out(driver.cuStreamCreate, 0), out(driver.cuEventCreate, 0)
    pinned = out(driver.cuMemHostAlloc, size(50), 0)
    assert control.live() == (150, 2)
    pool = out(driver.cuDeviceGetDefaultMemPool, 0)
    extra = out(driver.cuMemAllocAsync, size(10), stream)
    assert control.live() == (160, 2)
    driver.cuMemFreeAsync(extra, stream), driver.cuMemFree_v2(address), driver.cuMemFreeHost(pinned)
    driver.cuStreamDestroy_v2(stream), driver.cuEventDestroy_v2(event)
    assert control.live() == (0, 0)
    alloc(), out(driver.cuStreamCreate, 0)
    assert driver.cuDevicePrimaryCtxReset_v2(0) == 0
    assert control.live() == (0, 0)
    """)


def test_the_nth_call_fails_once():
    emulated("""
    ready()
    control.fail("cuMemAlloc", 3, 2)
    assert [tries() for _ in range(5)] == [0, 0, 2, 0, 0]
    """)


def test_every_call_from_the_nth_on_fails_until_a_reset():
    emulated("""
    ready()
    control.fail("cuMemAlloc_v2", 2, 2, repeat=True)
    assert [tries() for _ in range(4)] == [0, 2, 2, 2]
    control.reset()
    assert tries() == 0
    """)


def test_a_failed_call_does_nothing():
    emulated("""
    ready()
    address = alloc()
    control.fail("cuMemFree", 1, 1)
    assert driver.cuMemFree_v2(address) == 1
    assert control.live()[0] == 4096
    assert driver.cuMemFree_v2(address) == 0
    """)


def test_a_lost_context_stays_lost_until_it_is_reset():
    emulated("""
    ready()
    control.fail("cuMemcpyHtoD", 1, 700)
    assert driver.cuMemcpyHtoD_v2(alloc(), b"1234", size(4)) == 700
    assert tries() == driver.cuCtxSynchronize() == 700
    assert driver.cuDevicePrimaryCtxReset_v2(0) == 0
    ready()
    assert tries() == 0
    """)


def test_a_function_that_does_not_exist_cannot_fail():
    emulated("""
    try: control.fail("cuMemAlloq", 1, 2)
    except ValueError as error: assert "cuMemAlloq" in str(error)
    else: raise AssertionError
    """)


def test_a_held_stream_does_not_run():
    emulated("""
    ready()
    stream, address = out(driver.cuStreamCreate, 1), alloc()
    with control.hold(stream.value):
        assert driver.cuMemsetD8Async(address, 1, size(16), stream) == 0
        time.sleep(0.02)
        assert driver.cuStreamQuery(stream) == 600
    assert driver.cuStreamSynchronize(stream) == 0
    """)


def test_holds_nest_and_are_released_once():
    emulated("""
    ready()
    with control.hold(0) as outer, control.hold(1) as inner:
        driver.cuMemsetD8_v2(alloc(), 1, size(16))
        inner.release(), inner.release()
        time.sleep(0.02)
        assert driver.cuStreamQuery(u64(1)) == 600
    assert driver.cuCtxSynchronize() == 0
    """)


def test_a_stream_destroyed_while_held_completes_when_released():
    emulated("""
    ready()
    stream, address, event = out(driver.cuStreamCreate, 1), alloc(), out(driver.cuEventCreate, 2)
    with control.hold(stream.value):
        driver.cuMemsetD8Async(address, 1, size(16), stream), driver.cuEventRecord(event, stream)
        assert driver.cuStreamDestroy_v2(stream) == 0
        assert driver.cuEventQuery(event) == 600
    assert driver.cuEventSynchronize(event) == 0
    """)


def test_an_unknown_stream_cannot_be_held():
    emulated("""
    ready()
    try:
        with control.hold(12345): raise AssertionError
    except ValueError as error: assert "0x3039" in str(error)
    """)


def test_delays_slow_work_and_a_seed_repeats_them():
    emulated("""
    ready()
    stream, address = out(driver.cuStreamCreate, 1), alloc()
    control.delay(30_000)
    def seconds():
        start = time.monotonic()
        driver.cuMemsetD8Async(address, 1, size(16), stream), driver.cuStreamSynchronize(stream)
        return time.monotonic() - start
    assert seconds() > 0.025
    control.delay(0, jitter=100, seed=1)
    control.delay(0)
    seconds()
    """)


def test_every_call_in_a_forked_child_is_refused():
    emulated("""
    ready()
    alloc()
    pid = os.fork()
    if not pid: os._exit(0 if tries() == 3 and control.live()[0] == 4096 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert tries() == 0
    """)


def test_the_largest_settings_are_possible():
    code = """
    ready()
    assert out(driver.cuDeviceGetCount, kind=ctypes.c_int).value == 16
    assert out(driver.cuDeviceTotalMem_v2, 15, kind=size).value == 1 << 40
    """
    assert not emulated(
        code, DEVMEM_EMULATOR_DEVICES="16", DEVMEM_EMULATOR_MEMORY="1T", DEVMEM_EMULATOR_HOST_MEMORY="1TiB"
    )


def test_settings_choose_devices_and_their_memory():
    code = """
    ready()
    assert out(driver.cuDeviceGetCount, kind=ctypes.c_int).value == 3
    assert out(driver.cuDeviceTotalMem_v2, 2, kind=size).value == 1 << 20
    assert tries(1 << 20) == 0 and tries(1) == 2
    """
    emulated(code, DEVMEM_EMULATOR_DEVICES="3", DEVMEM_EMULATOR_MEMORY="1MiB")


#: The status of calls with sizes whose products or sums 64 bits do not hold.
TOO_LARGE = {
    "fills": """
    cuMemsetD16_v2(p, 7, size(2**63 + 1)) == 1
    cuMemsetD32_v2(p, 7, size(2**62 + 1)) == 1
    cuMemsetD32Async(p, 7, size(2**62 + 1), None) == 1
    cuMemsetD2D8_v2(p, size(2**63), 7, size(100), size(3)) == 1
    cuMemsetD2D8_v2(p, size(2**32), 7, size(100), size(2**32 + 1)) == 1
    cuMemsetD2D8_v2(p, size(100), 7, size(100), size(2**64 // 100 + 5)) == 1
    cuMemsetD2D32_v2(p, size(64), 7, size(2**62 + 1), size(2)) == 1
    """,
    "pitched": """
    cuMemAllocPitch_v2(ctypes.byref(u64()), ctypes.byref(size()), size(2**20), size(2**44 + 1), 4) == 2
    cuMemAllocPitch_v2(ctypes.byref(u64()), ctypes.byref(size()), size(2**33), size(2**33), 4) == 2
    cuMemAllocPitch_v2(ctypes.byref(u64()), ctypes.byref(size()), size(2**64 - 1), size(2), 4) == 2
    """,
    "managed": """
    cuMemAdvise(out(driver.cuMemAllocManaged, size(4096), 1), size(2**64 - 1), 1, 0) == 1
    cuMemPrefetchAsync(out(driver.cuMemAllocManaged, size(4096), 1), size(2**64 - 1), 0, None) == 1
    """,
}


@pytest.mark.parametrize("calls", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_size_that_64_bits_do_not_hold_is_refused(calls):
    emulated(f"""
    ready()
    p, host = alloc(1024), ctypes.create_string_buffer(1024)
    assert driver.cuMemsetD8_v2(p, 1, size(1024)) == 0
    for call in {calls.split(chr(10))}:
        assert not call.strip() or eval("driver." + call.strip()), call
        assert driver.cuMemcpyDtoH_v2(host, p, size(1024)) == 0
        assert host.raw == bytes([1]) * 1024, call
    """)


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("DEVMEM_EMULATOR_DEVICES", "x", "from 0 to 16"),
        ("DEVMEM_EMULATOR_DEVICES", "-1", "from 0 to 16"),
        ("DEVMEM_EMULATOR_DEVICES", "100", "from 0 to 16"),
        ("DEVMEM_EMULATOR_DEVICES", "1.5", "from 0 to 16"),
        ("DEVMEM_EMULATOR_MEMORY", "1X", "K, M, G or T"),
        ("DEVMEM_EMULATOR_MEMORY", "1 G", "K, M, G or T"),
        ("DEVMEM_EMULATOR_MEMORY", "100", "from 4096 to"),
        ("DEVMEM_EMULATOR_MEMORY", "2T", "to 1099511627776"),
        ("DEVMEM_EMULATOR_HOST_MEMORY", "nan", "K, M, G or T"),
        ("DEVMEM_EMULATOR_CUDA_VERSION", "x", "from 1000 to"),
        ("DEVMEM_EMULATOR_CUDA_VERSION", "13.0", "from 1000 to"),
    ],
)
def test_a_setting_that_is_not_allowed_is_told_and_not_used(variable, value, allowed):
    code = """
    ready()
    assert out(driver.cuDeviceGetCount, kind=ctypes.c_int).value == 2
    assert out(driver.cuDeviceTotalMem_v2, 0, kind=size).value == 8 << 30
    assert out(driver.cuDriverGetVersion, kind=ctypes.c_int).value == 13000
    """
    (line,) = emulated(code, **{variable: value}).splitlines()
    assert line.startswith("devmem emulator: ") and f"{variable}={value} " in line and allowed in line


def test_visible_devices_follow_the_vendors_rules():
    count = "assert driver.cuInit(0) == 0; assert out(driver.cuDeviceGetCount, kind=ctypes.c_int).value == 1"
    emulated(count, CUDA_VISIBLE_DEVICES="1,7,0")
    emulated("assert driver.cuInit(0) == 100", CUDA_VISIBLE_DEVICES="")
    emulated("assert driver.cuInit(0) == 100", CUDA_VISIBLE_DEVICES="-1")


def test_an_older_driver_lacks_newer_functions():
    code = """
    def found(name, version):
        pointer = ctypes.c_void_p()
        return driver.cuGetProcAddress_v2(name, ctypes.byref(pointer), version, u64(0), None), bool(pointer)
    assert found(b"cuMemAlloc", 3020) == (0, True)
    assert found(b"cuMemcpyBatchAsync", 12080) == (500, False)
    assert found(b"cuNoSuchThing", 12040) == (500, False)
    """
    emulated(code, DEVMEM_EMULATOR_CUDA_VERSION="12040")


@pytest.mark.parametrize("mode", ["strict", "null"])
def test_nvidias_runtime_gets_no_answer(mode):
    """It asks by this function for tables that NVIDIA does not document. The emulator must never offer it, in any spelling."""
    code = """
    from devmem.testing.emulator import elf
    exported = elf.read(emulator.library("cuda")).defined
    assert "cuGetProcAddress_v2" in exported
    assert not [name for name in exported if "ExportTable" in name]
    assert not [name for name in control.functions() if "ExportTable" in name]
    assert not hasattr(driver, "cuGetExportTable")
    for version in (3000, 3020, 11030, 12000, 13000):
        for flags in (0, 1, 2):
            pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
            answers = [
                driver.cuGetProcAddress(b"cuGetExportTable", ctypes.byref(pointer), version, u64(flags)),
                driver.cuGetProcAddress_v2(
                    b"cuGetExportTable", ctypes.byref(pointer), version, u64(flags), ctypes.byref(status)
                ),
            ]
            assert (answers, pointer.value, status.value) == ([500, 500], None, 1)
    """
    emulated(code, DEVMEM_EMULATOR_MODE=mode)


def test_the_null_mode_counts_and_does_nothing():
    code = """
    def function(name, version, *types):
        pointer = ctypes.c_void_p()
        assert driver.cuGetProcAddress_v2(name, ctypes.byref(pointer), version, u64(0), None) == 0
        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(pointer.value)
    assert driver.cuInit(0) == 0
    take = function(b"cuMemAlloc", 3020, ctypes.c_void_p, size)
    copy = function(b"cuMemcpyHtoD", 3020, u64, ctypes.c_char_p, size)
    launch = function(b"cuLaunchKernel", 7000, *[u64] * 11)
    one, two = u64(), u64()
    assert take(ctypes.addressof(one), 64) == take(ctypes.addressof(two), 0) == 0
    assert 0 != one.value != two.value != 0  # a block of its own each time: frees of dropped arrays tell them apart
    for name, version in ((b"cuEventCreate", 2000), (b"cuStreamCreate", 2000)):
        make = function(name, version, ctypes.c_void_p, ctypes.c_uint)
        assert make(ctypes.addressof(one), 0) == make(ctypes.addressof(two), 0) == 0
        assert one.value != two.value
    assert copy(64, b"x", 1) == 0 and launch(*[0] * 11) == 0
    assert control.calls()["cuMemAlloc"] == 2 and control.calls()["cuLaunchKernel"] == 1
    """
    emulated(code, DEVMEM_EMULATOR_MODE="null")


def test_every_exported_function_is_described():
    emulated("""
    from devmem.testing.emulator.cuda_functions import FUNCTIONS
    from devmem.testing.emulator.functions import unsupported
    described = [name for names in FUNCTIONS.values() for name in names] + unsupported("cuda")
    assert sorted(described) == sorted(control.functions()), set(described) ^ set(control.functions())
    """)


def test_allocations_do_not_overlap_and_interior_addresses_find_them():
    emulated(
        """
    import bisect, random
    ready()
    rng, live, total = random.Random(7), {}, 64 << 20
    base, span = u64(), size()
    for step in range(6000):
        if live and rng.random() < 0.48 or sum(live.values()) > total // 2:
            address = rng.choice(list(live)) if step % 3 else next(reversed(live))
            assert driver.cuMemFree_v2(u64(address)) == 0
            del live[address]
        else:
            n = rng.choice([1, 100, 512, 513, rng.randrange(1, 5000), rng.randrange(1, 300_000)])
            value = u64()
            assert driver.cuMemAlloc_v2(ctypes.byref(value), size(n)) == 0
            live[value.value] = n
        if step % 500 == 0:
            ends = 0
            for address in sorted(live):
                assert address >= ends and address % 256 == 0
                ends = address + live[address]
                inside = address + rng.randrange(live[address])
                assert driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(span), u64(inside)) == 0
                assert (base.value, span.value) == (address, live[address])
    for address in live: assert driver.cuMemFree_v2(u64(address)) == 0
    assert tries(total) == 0  # all of it is one piece again
    """,
        DEVMEM_EMULATOR_MEMORY="64M",
    )


def test_a_context_that_is_retained_while_another_thread_releases_it_is_a_new_one():
    """The release waits for what runs; it once waited for the streams of the new one, too: for ever."""
    emulated("""
    import threading
    ready()
    stream, active = out(driver.cuStreamCreate, 0), ctypes.c_int(1)
    running, gate = threading.Event(), threading.Event()
    wait_for_gate = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (running.set(), gate.wait()) and None)
    assert driver.cuLaunchHostFunc(stream, wait_for_gate, None) == 0
    running.wait()
    releasing = threading.Thread(target=driver.cuDevicePrimaryCtxRelease_v2, args=(0,), daemon=True)
    releasing.start()
    while active.value:
        assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(ctypes.c_uint()), ctypes.byref(active)) == 0
    before = control.calls()["cuDevicePrimaryCtxRetain"]
    retaining = threading.Thread(target=ready, daemon=True)
    retaining.start()
    while control.calls()["cuDevicePrimaryCtxRetain"] == before: time.sleep(0.001)
    assert releasing.is_alive()
    gate.set()
    releasing.join(100), retaining.join(100)
    assert not releasing.is_alive() and not retaining.is_alive()
    ready()
    assert tries() == 0
    """)
