"""The emulated CUDA runtime, both versions, through ctypes: its names, errors, contexts, copies, device code, graphs."""

import importlib.metadata
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
import ctypes, os, threading
from devmem.testing import emulator
rt = ctypes.CDLL("libcudart.so.13")
u64, size, text = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p
rt.cudaGetErrorName.restype = rt.cudaGetErrorString.restype = text

class Dim(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

def out(call, *arguments, kind=u64, first=True):
    value = kind()
    given = (ctypes.byref(value), *arguments) if first else (*arguments, ctypes.byref(value))
    assert call(*given) == 0, (call, rt.cudaPeekAtLastError())
    return value

def alloc(n=4096):
    return out(rt.cudaMalloc, size(n))

def control():
    ctypes.CDLL("libcuda.so.1")
    return emulator.control("cuda")

# A kernel and a variable, registered as a compiled program does it; both are named by addresses of the host.
rt.__cudaRegisterFatBinary.restype = ctypes.c_void_p
binary = ctypes.c_void_p(rt.__cudaRegisterFatBinary(None))
kernel, variable = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
rt.__cudaRegisterFunction(binary, kernel, None, b"k", -1, None, None, None, None, None)
rt.__cudaRegisterVar(binary, variable, None, b"v", 0, size(8), 0, 0)
"""

#: Opens an event of another process.
CHILD = """
import ctypes, sys
rt = ctypes.CDLL("libcudart.so.13")
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
event, stream = ctypes.c_uint64(), ctypes.c_uint64()
assert rt.cudaIpcOpenEventHandle(ctypes.byref(event), Handle.from_buffer_copy(bytes.fromhex(sys.argv[1]))) == 0
assert rt.cudaStreamCreate(ctypes.byref(stream)) == rt.cudaStreamWaitEvent(stream, event, 0) == 0
print(rt.cudaEventQuery(event), rt.cudaStreamQuery(stream), flush=True)
input()
print(rt.cudaEventSynchronize(event), rt.cudaStreamSynchronize(stream), rt.cudaEventQuery(event), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_a_compiler():
    try:
        emulator.environment("cuda", runtime=True)
    except emulator.BuildError as error:
        pytest.skip(str(error))


def run(code, **variables):
    """Run code in a new process with the emulated runtime."""
    environment = {**os.environ, **emulator.environment("cuda", runtime=True), "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=patience(140))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_exported_function_is_described_and_counted():
    run("""
    from devmem.testing.emulator.functions import TABLES, unsupported
    described = [n for names in TABLES["cuda runtime"].FUNCTIONS.values() for n in names] + unsupported("cuda runtime")
    names = [name for name in control().functions() if "cuda" in name]
    assert sorted(described) == sorted(names), set(described) ^ set(names)
    for name in described:
        assert name.startswith("__") or hasattr(rt, name), name
    alloc()
    assert control().calls()["cudaMalloc"] == control().calls()["cuMemAlloc"] == 1
    """)


def test_the_names_of_errors_are_those_of_the_vendor():
    pytest.importorskip("cuda.bindings.runtime")
    run("""
    from cuda.bindings.runtime import cudaError_t
    for error in cudaError_t:
        if error.value < 10000:
            assert rt.cudaGetErrorName(error.value).decode() == error.name
            assert rt.cudaGetErrorString(error.value)
    """)


@pytest.mark.parametrize(("version", "call"), [(13, "cudaGetDeviceProperties"), (12, "cudaGetDeviceProperties_v2")])
def test_the_device_descriptor_of_each_version(version, call):
    layout = {13: (360, 364, 384), 12: (360, 364, 388)}[version]
    run(f"""
    library = ctypes.CDLL("libcudart.so.{version}")
    raw = ctypes.create_string_buffer(2048)
    assert library.{call}(raw, 0) == 0
    assert raw.value.startswith(b"devmem emulated CUDA device")
    total = ctypes.cast(ctypes.byref(raw, 288), ctypes.POINTER(size))[0]
    assert total == 8 << 30, total
    number = lambda at: ctypes.cast(ctypes.byref(raw, at), ctypes.POINTER(ctypes.c_int))[0]
    assert number(308) == 32  # the size of a warp
    assert (number({layout[0]}), number({layout[1]})) == (8, 0), [number(at) for at in range(320, 400, 4)]
    assert number({layout[2]}) == 4  # multiprocessors
    """)


def test_the_newest_descriptor_is_what_the_vendors_binding_reads():
    pytest.importorskip("cuda.bindings.runtime")
    if not importlib.metadata.version("cuda-bindings").startswith("13."):
        pytest.skip("these bindings read another version's descriptor")
    run("""
    from cuda.bindings.runtime import cudaDeviceProp
    found = cudaDeviceProp()
    assert rt.cudaGetDeviceProperties(ctypes.c_void_p(found.getPtr()), 0) == 0
    expected = dict(totalGlobalMem=8 << 30, warpSize=32, major=8, minor=0, multiProcessorCount=4, memoryPoolsSupported=1,
                    maxThreadsPerMultiProcessor=1024, hostNumaId=-1, ipcEventSupported=1, l2CacheSize=1 << 20)
    assert {name: getattr(found, name) for name in expected} == expected
    """)


def test_the_last_error_is_kept_until_it_is_read():
    run("""
    assert rt.cudaSetDevice(7) == 101
    assert rt.cudaFree(u64(4096)) == 1
    assert rt.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())) == 0
    assert rt.cudaPeekAtLastError() == rt.cudaGetLastError() == 1
    assert rt.cudaGetLastError() == 0
    """)


def test_the_error_of_a_lost_context_stays_until_a_reset():
    run("""
    alloc()
    control().fail("cuMemAlloc", 1, 700)
    assert rt.cudaMalloc(ctypes.byref(u64()), size(64)) == 700
    assert [rt.cudaGetLastError() for _ in range(2)] == [700, 700]
    assert rt.cudaDeviceSynchronize() == 700
    assert rt.cudaDeviceReset() == 0
    alloc()
    rt.cudaGetLastError()
    assert rt.cudaGetLastError() == 0
    """)


def test_a_planned_failure_is_the_runtimes_own():
    run("""
    control().fail("cudaMalloc", 2, 46)
    alloc()
    assert rt.cudaMalloc(ctypes.byref(u64()), size(64)) == 46 == rt.cudaGetLastError()
    assert control().calls()["cuMemAlloc"] == 1
    alloc()
    control().reset()
    assert control().calls() == {}
    """)


def test_each_thread_has_its_device_and_the_drivers_context_counts():
    run("""
    driver = ctypes.CDLL("libcuda.so.1")
    device = lambda: out(rt.cudaGetDevice, kind=ctypes.c_int).value
    assert device() == 0
    assert rt.cudaSetDevice(1) == 0
    seen = []
    thread = threading.Thread(target=lambda: seen.append(device()))
    thread.start(); thread.join()
    assert (device(), seen) == (1, [0])
    assert driver.cuCtxSetCurrent(out(driver.cuDevicePrimaryCtxRetain, 0)) == 0
    assert device() == 0
    """)


def test_a_copy_goes_the_way_that_its_kind_says():
    run("""
    host, device = ctypes.create_string_buffer(64), alloc(64)
    at = u64(ctypes.addressof(host))
    assert rt.cudaMemcpy(device, at, size(64), 1) == 0
    assert rt.cudaMemcpy(at, device, size(64), 1) == 1
    assert rt.cudaMemcpy(at, device, size(64), 5) == 21
    assert rt.cudaMemcpy(at, device, size(65), 2) == 1
    assert rt.cudaMemset(device, 7, size(64)) == rt.cudaMemcpy(at, device, size(64), 4) == 0
    assert host.raw == bytes([7]) * 64
    assert rt.cudaMemcpy2D(at, size(4), device, size(8), size(8), size(2), 2) == 12
    assert rt.cudaMemcpy2D(at, size(16), device, size(32), size(16), size(2), 2) == 0
    """)


@pytest.mark.parametrize("call", ["cudaMemcpy({}, {}, size(64), 0)", "cudaMemcpyAsync({}, {}, size(64), 0, None)"])
def test_a_copy_from_host_to_host_takes_no_device_address(call):
    run(f"""
    host, other, device = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64), alloc(64)
    managed = out(rt.cudaMallocManaged, size(64), 1)
    assert rt.{call.format("device", "host")} == rt.{call.format("host", "device")} == rt.{call.format("device", "device")} == 1
    assert rt.{call.format("host", "other")} == rt.{call.format("host", "managed")} == 0
    """)


BOX = """
class Pitched(ctypes.Structure):
    _fields_ = [("at", u64), ("pitch", size), ("xsize", size), ("ysize", size)]

class Three(ctypes.Structure):
    _fields_ = [("x", size), ("y", size), ("z", size)]

class Copy(ctypes.Structure):
    _fields_ = [("src_array", u64), ("src_at", Three), ("src", Pitched), ("dst_array", u64), ("dst_at", Three), ("dst", Pitched),
                ("extent", Three), ("kind", ctypes.c_int)]

def copy3d(**at):
    source, target = Pitched(host, 100, 100, 8), Pitched(p.value, 100, 100, 8)
    return ctypes.byref(Copy(0, Three(), source, 0, Three(**at), target, Three(16, 2, 1), 1))

def made(call, *arguments):
    return call(ctypes.byref(u64()), ctypes.byref(size()), *map(size, arguments))

rt.cudaMemset3D.argtypes = [Pitched, ctypes.c_int, Three]
rt.cudaMalloc3D.argtypes = [ctypes.c_void_p, Three]
p, buffer = alloc(1024), ctypes.create_string_buffer(1 << 16)
host = ctypes.addressof(buffer)
assert rt.cudaMemset(p, 1, size(1024)) == 0
"""


#: The status of calls for boxes that no memory holds.
TOO_LARGE = {
    "fills": """
    rt.cudaMemset2D(p, size(2**63), 7, size(100), size(3)) == 1
    rt.cudaMemset2D(p, size(2**32), 7, size(100), size(2**32 + 1)) == 1
    """,
    "fills of planes": """
    rt.cudaMemset3D(Pitched(p.value, 8, 8, 16), 7, Three(8, 16, 9)) == 1  # one plane too many
    rt.cudaMemset3D(Pitched(p.value, 2**63, 8, 2), 7, Three(8, 1, 3)) == 1
    rt.cudaMemset3D(Pitched(p.value, 0, 0, 0), 7, Three(8, 1, 2**40)) == 12
    rt.cudaMemset3D(Pitched(p.value, 8, 8, 0), 7, Three(8, 1, 2**40)) == 1
    rt.cudaMemset3D(Pitched(host, 8, 8, 8), 7, Three(8, 8, 2)) == 1
    """,
    "copies": """
    rt.cudaMemcpy2D(p, size(100), buffer, size(100), size(100), size(2**62), 1) == 1
    rt.cudaMemcpy2D(p, size(2**30), p, size(2**30), size(100), size(2**34 + 1), 3) == 1
    rt.cudaMemcpy3D(copy3d(x=2**64 - 8)) == 12
    rt.cudaMemcpy3D(copy3d(y=2**64 - 2)) == 1
    rt.cudaMemcpy3D(copy3d(z=2**64 - 1)) == 1
    """,
    "pitched": """
    made(rt.cudaMallocPitch, 2**64 - 1, 2) == 2
    made(rt.cudaMallocPitch, 2**33, 2**33) == 2
    made(rt.cudaMallocPitch, 2**20, 2**44 + 1) == 2
    rt.cudaMalloc3D(ctypes.byref(Pitched()), Three(2**20, 2**44 + 1, 1)) == 2
    rt.cudaMalloc3D(ctypes.byref(Pitched()), Three(512, 2**30, 2**34)) == 2
    """,
}


@pytest.mark.parametrize("calls", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_box_that_no_memory_holds_is_refused_before_a_byte_is_written(calls):
    run(
        BOX
        + f"""
for call in {calls.split(chr(10))}:
    assert not call.strip() or eval(call.strip()), call
    assert rt.cudaMemcpy(buffer, p, size(1024), 2) == 0
    assert buffer.raw[:1024] == bytes([1]) * 1024, call
assert rt.cudaMemset3D(Pitched(p.value, 8, 8, 16), 7, Three(8, 16, 8)) == 0
"""
    )


def test_nothing_is_null_and_null_is_freed():
    run("""
    assert alloc(0).value == 0
    assert rt.cudaFree(u64(0)) == rt.cudaFreeHost(None) == 0
    assert out(rt.cudaHostAlloc, size(0), 0).value == 0
    """)


def test_what_an_address_is():
    run("""
    class Attributes(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("on_device", u64), ("on_host", u64)]
    def kind(address):
        return out(rt.cudaPointerGetAttributes, u64(address), kind=Attributes)
    host = ctypes.create_string_buffer(8)
    pinned = out(rt.cudaHostAlloc, size(64), 0).value
    managed = out(rt.cudaMallocManaged, size(64), 1).value
    found = [kind(each).type for each in (ctypes.addressof(host), pinned, alloc().value, managed)]
    assert found == [0, 1, 2, 3], found
    assert kind(pinned).on_host == pinned and kind(alloc().value).on_host == 0
    """)


def test_the_default_stream_of_the_thread_is_another():
    run("""
    stream = out(rt.cudaStreamCreate)
    device, host = alloc(64), out(rt.cudaHostAlloc, size(64), 0)
    with control().hold(stream.value):
        assert rt.cudaMemsetAsync(device, 1, size(64), stream) == 0
        assert rt.cudaStreamQuery_ptsz(u64(0)) == 0
        assert rt.cudaStreamQuery(u64(0)) == 600
    assert rt.cudaStreamSynchronize(stream) == 0
    """)


def test_a_launch_is_refused_or_skipped_and_an_unknown_kernel_is_neither():
    code = """
    one = Dim(1, 1, 1)
    launch = lambda what, block=one: rt.cudaLaunchKernel(what, one, block, None, size(0), u64(0))
    assert launch(kernel) == EXPECTED
    assert launch(b"no kernel") == 98
    assert launch(kernel, Dim(0, 1, 1)) == launch(kernel, Dim(1025, 1, 1)) == 9
    assert rt.cudaLaunchKernel(kernel, one, one, None, size(0), u64(12345)) == 400
    rt.__cudaUnregisterFatBinary(binary)
    assert launch(kernel) == 98
    """
    run(code.replace("EXPECTED", "801"))
    run(code.replace("EXPECTED", "0"), DEVMEM_EMULATOR_LAUNCHES="skip")


def test_a_variable_has_memory_on_each_device():
    run("""
    data, back = ctypes.create_string_buffer(b"1234567", 8), ctypes.create_string_buffer(8)
    at = lambda buffer: u64(ctypes.addressof(buffer))
    assert rt.cudaMemcpyToSymbol(variable, at(data), size(8), size(0), 1) == 0
    assert rt.cudaMemcpyFromSymbol(at(back), variable, size(8), size(0), 2) == 0
    assert back.raw == data.raw
    assert rt.cudaMemcpyToSymbol(variable, at(data), size(8), size(1), 1) == 1
    assert rt.cudaMemcpyToSymbol(b"none", at(data), size(8), size(0), 1) == 13
    first = out(rt.cudaGetSymbolAddress, variable).value
    rt.cudaSetDevice(1)
    assert out(rt.cudaGetSymbolAddress, variable).value != first
    """)


def test_a_captured_graph_keeps_objects_until_it_and_its_executable_are_gone():
    run("""
    stream = out(rt.cudaStreamCreateWithFlags, 1)
    gone = []
    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gone.append(rt.cudaFree(u64(0))))
    thing = out(rt.cudaUserObjectCreate, None, destroy, 1, 1)
    assert rt.cudaStreamBeginCapture(stream, 2) == 0
    state, number, graph = ctypes.c_int(), u64(), u64()
    info = rt.cudaStreamGetCaptureInfo
    assert info(stream, ctypes.byref(state), ctypes.byref(number), ctypes.byref(graph), None, None, None) == 0
    assert rt.cudaGraphRetainUserObject(graph, thing, 1, 1) == 0
    assert out(rt.cudaStreamEndCapture, stream, first=False).value == graph.value and state.value == 1
    executable = out(rt.cudaGraphInstantiate, graph, u64(0))
    assert rt.cudaGraphLaunch(executable, stream) == rt.cudaStreamSynchronize(stream) == 0
    assert rt.cudaGraphDestroy(graph) == 0 and gone == []
    assert rt.cudaGraphExecDestroy(executable) == 0
    assert gone == [800]  # called, and the destructor may not call the runtime
    assert rt.cudaGraphLaunch(executable, stream) == 1
    assert control().live()[1] == 1  # the stream
    """)


def test_a_callback_is_told_the_stream_and_its_status():
    run("""
    told = []
    callback = ctypes.CFUNCTYPE(None, u64, ctypes.c_int, ctypes.c_void_p)(lambda *a: told.append(a))
    stream = out(rt.cudaStreamCreate)
    assert rt.cudaStreamAddCallback(stream, callback, ctypes.c_void_p(5), 0) == 0
    assert rt.cudaStreamSynchronize(stream) == 0
    with control().hold(stream.value):
        assert rt.cudaStreamAddCallback(stream, callback, None, 0) == 0
        control().fail("cuCtxGetFlags", 1, 719)
        rt.cudaGetDeviceFlags(ctypes.byref(ctypes.c_uint()))
    assert rt.cudaStreamSynchronize(stream) == 719
    while len(told) < 2: pass
    assert told == [(stream.value, 0, 5), (stream.value, 719, None)], told
    """)


def test_an_event_is_shared_with_another_process():
    """The other process waits for it, and it completes there only when the held stream here has passed it."""
    run(
        """
    import subprocess, sys
    event = out(rt.cudaEventCreateWithFlags, 6)
    handle = ctypes.create_string_buffer(64)
    assert rt.cudaIpcGetEventHandle(handle, event) == 0
    assert rt.cudaIpcGetEventHandle(handle, out(rt.cudaEventCreate)) == 400
    stream = out(rt.cudaStreamCreate)
    with control().hold(stream.value):
        assert rt.cudaEventRecord(event, stream) == 0
        command = [sys.executable, "-c", os.environ["CHILD"], handle.raw.hex()]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == "600 600\\n"
    assert other.communicate("\\n", timeout=140)[0] == "0 0 0\\n"
    """,
        CHILD=CHILD,
    )


def test_the_null_mode_counts_and_does_nothing():
    run(
        """
    device = alloc(1 << 50)
    assert rt.cudaMemcpy(device, u64(1), size(1 << 50), 1) == 0
    assert control().calls()["cudaMemcpy"] == 1
    """,
        DEVMEM_EMULATOR_MODE="null",
    )


def test_without_a_driver_the_driver_is_insufficient(tmp_path):
    run(
        """
    assert rt.cudaMalloc(ctypes.byref(u64()), size(1)) == 35
    assert out(rt.cudaDriverGetVersion, kind=ctypes.c_int).value == 0
    """,
        LD_LIBRARY_PATH=str(tmp_path),
    )
    run("assert rt.cudaMalloc(ctypes.byref(u64()), size(1)) == 35", DEVMEM_EMULATOR_CUDA_VERSION="12080")
    run("assert rt.cudaMalloc(ctypes.byref(u64()), size(1)) == 100", DEVMEM_EMULATOR_DEVICES="0")


def test_a_pointer_is_known_without_a_context_and_one_attribute_can_be_set():
    run("""
    driver = ctypes.CDLL("libcuda.so.1")
    address = alloc()
    assert driver.cuCtxSetCurrent(None) == 0
    get = lambda what: out(driver.cuPointerGetAttribute, what, address, kind=u64).value
    assert get(9) == 0
    assert driver.cuPointerSetAttribute(ctypes.byref(ctypes.c_uint(1)), 6, address) == 0
    assert get(6) == 1
    assert driver.cuPointerSetAttribute(ctypes.byref(ctypes.c_uint(1)), 7, address) == 1
    """)


def test_the_runtime_needs_the_emulated_driver():
    with pytest.raises(emulator.BuildError, match="needs the emulated driver cuda, not 'roc'"):
        emulator.environment("roc", runtime=True)
