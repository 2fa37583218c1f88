"""Claims about the CUDA driver, as tests in plain driver calls that the emulated and a real driver must both pass.

Each test is one claim; each class names the modules of NVIDIA's "CUDA Driver API" reference from which its claims come.
Where the process has no driver, one test runs this file in a subprocess on the emulator. Where it has one, real or emulated,
each claim is a test; a failure on a real driver is a fault of the emulator. Claims about behaviour that the vendor leaves
undefined, and about the emulator itself, are marked ``emulator_only``; claims that change the process for good run in a child.
"""

import contextlib
import ctypes
import functools
import importlib.metadata
import mmap
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import truth
from truth import (
    DISABLE_TIMING,
    GLOBAL,
    INVALID_CONTEXT,
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
)
from waits import patience, together

from devmem.testing import emulator
from devmem.toolkit.numa import online_nodes

driver = pytest.importorskip("cuda.bindings.driver", reason="the claims are written with cuda-bindings")

SUCCESS = driver.CUresult.CUDA_SUCCESS
SERIES = int(importlib.metadata.version("cuda-bindings").split(".")[0])
FILE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
MODES = driver.CUstreamCaptureMode
DESTROYED = driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED


def driver_here() -> bool:
    """Whether the bindings find a driver library, real or emulated."""
    try:
        return driver.cuDriverGetVersion()[0] == SUCCESS
    except Exception:  # each series of the bindings raises another error
        return False


HERE = driver_here()
claims = truth.claims(HERE)


if not HERE:

    @pytest.mark.timeout(300)
    def test_every_claim_holds_on_the_emulator():
        truth.run_again(__file__, truth.environment("cuda"))

    @pytest.mark.exhaustive  # another setting of the bindings
    @pytest.mark.timeout(300)
    def test_every_claim_holds_where_stream_0_is_the_per_thread_stream():
        variables = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"}
        truth.run_again(__file__, truth.environment("cuda") | variables)


# --- tools ------------------------------------------------------------------------------------------------------------


def ok(result):
    assert result[0] == SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


def returns(result, *codes):
    assert result[0] in codes, result[0]


class Cuda(truth.Vendor):
    """The driver under the names of the statements that hold for both vendors."""

    name, column = "cuda", 0
    UNDEFINED = frozenset({"test_default_streams_cannot_be_destroyed"})
    BY_ORDINAL = (("cuDeviceGet",), ("cuDeviceTotalMem",), ("cuDevicePrimaryCtxRetain",))
    ERROR_NAMES: ClassVar = {OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY", NOT_READY: "CUDA_ERROR_NOT_READY"}
    ERROR_TEXTS: ClassVar = {OUT_OF_MEMORY: "out of memory"}
    DEFAULT_STREAMS = (0, LEGACY, PER_THREAD)
    UNSAFE = ("allocate", "query an event")
    SAFE_IF_RELAXED = ("allocate", "query an event", "wait for an event", "page-lock")
    NO_RANGE = (NOT_FOUND, INVALID_VALUE)
    PITCH_MULTIPLE = 32
    EVENT_FLAGS = (0, 1, DISABLE_TIMING, DISABLE_TIMING | 4)
    NO_EVENT_FLAGS = (64, 4)  # 4: shared between processes, but keeping time
    UNKNOWN_EVENT = INVALID_HANDLE
    PINNED, PINNED_FLAGS, NO_REGISTER_FLAGS = 0, (0, 7), 64
    WITH_BLOCK = """
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    block = int(ok(driver.cuMemAlloc(64)))
    """

    def call(self, function, *arguments):
        error, *values = getattr(driver, function)(*arguments)
        if error != SUCCESS:
            raise truth.Refused(error)
        values = [int(value) if isinstance(value, driver.CUdeviceptr) else value for value in values]
        return values[0] if len(values) == 1 else tuple(values)

    def entering(self):
        context = self.call("cuCtxGetCurrent")
        return lambda: self.call("cuCtxSetCurrent", context)

    def child(self, code, *, expect=0, files=(), **variables):
        """Run code in a new process, with helpers like those of this file."""
        prelude = """
        import ctypes, os, sys, threading
        import numpy as np
        from cuda.bindings import driver
        def ok(result):
            assert result[0] == 0, result[0]
            return result[1] if len(result) == 2 else result[1:]
        def code(result):
            return int(result[0])
        """
        return truth.child(prelude, code, expect=expect, files=files, variables=variables)

    def identity(self, device):
        name, uuid = self.call("cuDeviceGetName", 64, device), self.call("cuDeviceGetUuid", device)
        return name.rstrip(b"\0 "), bytes(uuid.bytes), self.call("cuDeviceGetPCIBusId", 32, device).split(b"\0")[0]

    def device_at(self, bus):
        return int(self.call("cuDeviceGetByPCIBusId", bus))

    def error_name(self, code):
        return self.call("cuGetErrorName", driver.CUresult(code)).decode()

    def error_text(self, code):
        return self.call("cuGetErrorString", driver.CUresult(code)).decode()

    def allocate_rows(self, width, height):
        return self.call("cuMemAllocPitch", width, height, 4)

    def allocate_word(self):
        return self.pin(4, 0)

    def wait_word(self, stream, address, value):
        self.call("cuStreamWaitValue32", stream, address, value, 0)

    def write_word(self, stream, address, value):
        self.call("cuStreamWriteValue32", stream, address, value, 0)

    def wait_event(self, stream, event):
        self.call("cuStreamWaitEvent", stream, event, 0)

    def launch_host(self, stream, function, data):
        self.call("cuLaunchHostFunc", stream, driver.CUhostFn(function), data)

    @contextlib.contextmanager
    def peer(self, device):
        """What enables and disables access to a device."""
        yield self.call("cuDevicePrimaryCtxRetain", device)
        self.call("cuDevicePrimaryCtxRelease", device)

    def begin_capture(self, stream, mode):
        self.call("cuStreamBeginCapture", stream, MODES(mode))

    def exchange_mode(self, mode):
        return int(self.call("cuThreadExchangeStreamCaptureMode", MODES(mode)))

    def capture_status(self, stream):
        found = self.call("cuStreamIsCapturing", stream)
        assert found == self.call("cuStreamGetCaptureInfo", stream)[0]
        return int(found)

    def instantiate(self, graph):
        return self.call("cuGraphInstantiate", graph, 0)

    def create_pool(self, *, shareable=False):
        if shareable:
            kinds = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
            if not self.call("cuDeviceGetAttribute", kinds, 0) & 1:
                pytest.skip("the device's pools have no file descriptors")
        return self.call("cuMemPoolCreate", pool_properties(shareable=shareable))

    def ipc_handle(self, address):
        return ctypes.string_at(self.call("cuIpcGetMemHandle", address).getPtr(), 64)

    def open_ipc(self, data):
        handle = driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), data, 64)
        return self.call("cuIpcOpenMemHandle", handle, 1)

    def export_pool(self, pool, flags):
        return int(self.call("cuMemPoolExportToShareableHandle", pool, FILE, flags))

    def export_pointer(self, address):
        return ctypes.string_at(self.call("cuMemPoolExportPointer", address).getPtr(), 64)

    def physical_properties(self):
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        if not self.call("cuDeviceGetAttribute", attribute, 0):
            pytest.skip("the device has no virtual memory management")
        made = driver.CUmemAllocationProp()
        made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        made.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        made.location.id = 0
        made.requestedHandleTypes = FILE
        return made

    def granularity(self, properties):
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self.call("cuMemGetAllocationGranularity", properties, least))

    def reserve(self, size):
        return self.call("cuMemAddressReserve", size, 0, 0, 0)

    def allow(self, address, size):
        self.call("cuMemSetAccess", address, size, [access()], 1)

    def export_physical(self, physical):
        return int(self.call("cuMemExportToShareableHandle", physical, FILE, 0))


@pytest.fixture(autouse=True)
def context(request):
    """The primary context of device 0, current. On the emulator, also check that the test leaves nothing live."""
    if "no_context" in request.fixturenames or not HERE:
        yield None
        return
    primary = always_retained()
    ok(driver.cuCtxSetCurrent(primary))
    before = emulator.control("cuda").live() if vendor.emulated() else None
    yield primary
    ok(driver.cuCtxSetCurrent(primary))
    ok(driver.cuCtxSynchronize())
    if before is not None:
        assert emulator.control("cuda").live() == before, "the test leaves memory or handles"
    ok(driver.cuCtxSetCurrent(None))


@functools.cache
def always_retained():
    """The primary context, retained for the whole run: activating it takes long on a real device."""
    ok(driver.cuInit(0))
    return ok(driver.cuDevicePrimaryCtxRetain(0))


@pytest.fixture
def no_context():
    """The test runs without a current context."""


def pool_properties(*, shareable=False):
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = FILE if shareable else driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    return properties


def access():
    made = driver.CUmemAccessDesc()
    made.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = 0
    made.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return made


vendor = Cuda()
pinned, read, pages, address_of, Gate = vendor.pinned, vendor.read, vendor.pages, vendor.address_of, vendor.gate
assert_blocked, on_another_thread, child = vendor.assert_blocked, vendor.on_another_thread, vendor.child


# --- the driver and its devices ---------------------------------------------------------------------------------------


@claims("Initialization; Version Management; Device Management; Error Handling")
class TestDriver(truth.Devices):
    def test_calls_before_cu_init_return_not_initialized(self, no_context):
        child("""
        assert code(driver.cuDriverGetVersion()) == 0
        assert code(driver.cuDeviceGetCount()) == 3
        assert code(driver.cuMemAlloc(4)) == 3
        assert code(driver.cuCtxGetCurrent()) == 3
        assert code(driver.cuInit(0)) == 0
        assert code(driver.cuInit(0)) == 0
        """)

    def test_cu_init_takes_no_flags(self):
        returns(driver.cuInit(1), INVALID_VALUE)

    def test_attributes_report_the_features_of_the_device(self):
        names = driver.CUdevice_attribute
        for attribute in (
            names.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
            names.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
            names.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
            names.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            names.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
        ):
            assert ok(driver.cuDeviceGetAttribute(attribute, 0)) == 1
        assert ok(driver.cuDeviceGetAttribute(names.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0)) == 32
        # "NUMA ID of the host node closest to the device. Returns -1 when system does not support NUMA."
        assert ok(driver.cuDeviceGetAttribute(names.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0)) in (-1, *online_nodes())

    def test_a_forked_child_may_not_use_the_driver(self):
        child("""
        ok(driver.cuInit(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        kept = ok(driver.cuMemAlloc(64))
        pid = os.fork()
        if not pid:
            os._exit(0 if code(driver.cuMemAlloc(64)) == 3 and code(driver.cuMemFree(kept)) == 3 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        ok(driver.cuMemFree(kept))
        """)

    @emulator_only
    def test_modules_and_kernels_are_not_supported(self):
        returns(driver.cuModuleLoadData(b"\0" * 64), NOT_SUPPORTED)
        returns(driver.cuModuleLoadDataEx(b"\0" * 64, 0, [], []), NOT_SUPPORTED)
        returns(driver.cuModuleGetFunction(1, b"kernel"), NOT_SUPPORTED)
        returns(driver.cuModuleUnload(1), NOT_SUPPORTED)
        shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        returns(driver.cuFuncSetAttribute(1, shared, 0), NOT_SUPPORTED)
        returns(driver.cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), NOT_SUPPORTED)


# --- contexts ---------------------------------------------------------------------------------------------------------


@claims("Primary Context Management; Context Management")
class TestContexts:
    def test_memory_needs_a_current_context(self):
        ok(driver.cuCtxSetCurrent(None))
        assert int(ok(driver.cuCtxGetCurrent())) == 0
        returns(driver.cuMemAlloc(64), INVALID_CONTEXT)
        returns(driver.cuMemHostAlloc(64, 0), INVALID_CONTEXT)
        returns(driver.cuStreamCreate(0), INVALID_CONTEXT)
        returns(driver.cuEventCreate(0), INVALID_CONTEXT)
        returns(driver.cuCtxGetDevice(), INVALID_CONTEXT)
        returns(driver.cuCtxSynchronize(), INVALID_CONTEXT)

    def test_a_new_thread_has_no_current_context(self, context):
        assert together(lambda: int(ok(driver.cuCtxGetCurrent()))) == [0]
        assert int(ok(driver.cuCtxGetCurrent())) == int(context)

    def test_retaining_again_gives_the_same_context(self, context):
        again = ok(driver.cuDevicePrimaryCtxRetain(0))
        assert int(again) == int(context)
        ok(driver.cuDevicePrimaryCtxRelease(0))
        assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 1

    def test_the_contexts_of_a_thread_are_a_stack(self, context):
        ok(driver.cuCtxPushCurrent(context))
        assert int(ok(driver.cuCtxPopCurrent())) == int(context)
        assert int(ok(driver.cuCtxGetCurrent())) == int(context)
        assert int(ok(driver.cuCtxGetDevice())) == 0
        ok(driver.cuCtxSetCurrent(None))
        returns(driver.cuCtxPopCurrent(), INVALID_CONTEXT)

    def test_releasing_more_often_than_retaining_is_refused(self, no_context):
        child("""
        ok(driver.cuInit(0))
        ok(driver.cuDevicePrimaryCtxRetain(0))
        ok(driver.cuDevicePrimaryCtxRelease(0))
        assert code(driver.cuDevicePrimaryCtxRelease(0)) == 201
        """)

    def test_a_reset_frees_memory_and_the_context_can_be_retained_again(self, no_context):
        child("""
        ok(driver.cuInit(0))
        primary = ok(driver.cuDevicePrimaryCtxRetain(0))
        ok(driver.cuCtxSetCurrent(primary))
        address = ok(driver.cuMemAlloc(1 << 20))
        ok(driver.cuDevicePrimaryCtxReset(0))
        assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 0
        assert code(driver.cuMemAlloc(64)) == 709
        again = ok(driver.cuDevicePrimaryCtxRetain(0))
        ok(driver.cuCtxSetCurrent(again))
        assert code(driver.cuMemFree(address)) == 1
        ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
        """)

    def test_the_last_release_resets_the_primary_context(self, no_context):
        child("""
        ok(driver.cuInit(0))
        primary = ok(driver.cuDevicePrimaryCtxRetain(0))
        ok(driver.cuCtxSetCurrent(primary))
        ok(driver.cuMemAlloc(1 << 20))
        ok(driver.cuDevicePrimaryCtxRelease(0))
        assert code(driver.cuMemAlloc(64)) == 709
        """)

    @emulator_only
    def test_old_streams_and_events_are_unknown_after_a_reset(self, no_context):
        child("""
        ok(driver.cuInit(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        stream, event = ok(driver.cuStreamCreate(0)), ok(driver.cuEventCreate(0))
        ok(driver.cuDevicePrimaryCtxReset(0))
        ok(driver.cuDevicePrimaryCtxRetain(0))
        assert code(driver.cuStreamQuery(stream)) == 400
        assert code(driver.cuStreamDestroy(stream)) == 400
        assert code(driver.cuEventQuery(event)) == 400
        """)

    def test_destroying_a_created_context_frees_its_memory(self, context):
        made = ok(driver.cuCtxCreate(0, 0) if SERIES < 13 else driver.cuCtxCreate(None, 0, 0))
        assert int(ok(driver.cuCtxGetCurrent())) == int(made) != int(context)
        address = ok(driver.cuMemAlloc(4096))
        ok(driver.cuCtxDestroy(made))
        assert int(ok(driver.cuCtxGetCurrent())) == int(context)
        returns(driver.cuMemFree(address), INVALID_VALUE)

    def test_the_greatest_priority_is_the_smaller_number(self):
        least, greatest = ok(driver.cuCtxGetStreamPriorityRange())
        assert greatest <= least


# --- device memory ----------------------------------------------------------------------------------------------------


@claims("Memory Management")
class TestDeviceMemory(truth.DeviceMemory):
    def test_zero_bytes_are_refused(self):
        returns(driver.cuMemAlloc(0), INVALID_VALUE)

    def test_more_bytes_than_the_device_has_are_out_of_memory(self):
        total = ok(driver.cuDeviceTotalMem(0))
        returns(driver.cuMemAlloc(total * 2), driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))

    def test_memory_is_freed_once_and_by_its_base(self):
        address = int(ok(driver.cuMemAlloc(4096)))
        returns(driver.cuMemFree(address + 256), INVALID_VALUE)
        ok(driver.cuMemFree(address))
        returns(driver.cuMemFree(address), INVALID_VALUE)

    def test_free_bytes_fall_by_an_allocation_and_rise_by_its_free(self):
        size = 64 << 20
        free, total = ok(driver.cuMemGetInfo())
        address = ok(driver.cuMemAlloc(size))
        assert ok(driver.cuMemGetInfo())[0] <= free - size
        assert ok(driver.cuMemGetInfo())[1] == total
        ok(driver.cuMemFree(address))
        assert ok(driver.cuMemGetInfo())[0] == free

    @emulator_only
    def test_new_memory_is_not_zeroed(self):
        address = int(ok(driver.cuMemAlloc(4096)))
        assert read(address, 4096).all()
        ok(driver.cuMemFree(address))


# --- copies and fills -------------------------------------------------------------------------------------------------


def sample(size=4096):
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def box_2d(width, height):
    copy = driver.CUDA_MEMCPY2D()
    copy.WidthInBytes, copy.Height = width, height
    return copy


@claims("Memory Management; Peer Context Memory Access; API synchronization behavior")
class TestCopies(truth.Copies, truth.Fills, truth.Peers):
    def test_a_round_trip_keeps_the_bytes(self, block):
        source = sample()
        ok(driver.cuMemcpyHtoD(block, address_of(source), 4096))
        assert (read(block, 4096) == source).all()

    def test_a_copy_may_start_at_an_interior_address(self, block):
        source = sample(100)
        ok(driver.cuMemcpyHtoD(block + 33, address_of(source), 100))
        whole = read(block, 4096)
        assert (whole[33:133] == source).all()
        assert not whole[:33].any()
        assert not whole[133:].any()

    def test_the_unified_copy_finds_the_direction(self, block):
        source, back = sample(), np.zeros(4096, np.uint8)
        ok(driver.cuMemcpy(block, address_of(source), 4096))
        ok(driver.cuMemcpy(address_of(back), block, 4096))
        assert (back == source).all()

    def test_a_copy_within_the_device(self, block):
        source, second = sample(), ok(driver.cuMemAlloc(4096))
        ok(driver.cuMemcpyHtoD(block, address_of(source), 4096))
        ok(driver.cuMemcpyDtoD(second, block, 4096))
        assert (read(second, 4096) == source).all()
        ok(driver.cuMemFree(second))

    def test_an_unknown_address_is_refused(self):
        returns(driver.cuMemcpyHtoD(64, address_of(sample()), 16), INVALID_VALUE)
        returns(driver.cuMemsetD8(64, 0, 16), INVALID_VALUE)

    @emulator_only
    def test_every_byte_must_belong_to_the_allocation(self, block):
        source = sample()
        returns(driver.cuMemcpyHtoD(block + 1, address_of(source), 4096), INVALID_VALUE)
        returns(driver.cuMemcpyDtoH(address_of(source), block + 4095, 2), INVALID_VALUE)
        returns(driver.cuMemsetD8(block, 0, 4097), INVALID_VALUE)
        returns(driver.cuMemcpyHtoD(block, 0, 16), INVALID_VALUE)
        returns(driver.cuMemcpyHtoD(block, 4096, 16), INVALID_VALUE)

    @emulator_only
    def test_a_freed_address_is_refused(self):
        address = int(ok(driver.cuMemAlloc(4096)))
        ok(driver.cuMemFree(address))
        returns(driver.cuMemcpyHtoD(address, address_of(sample()), 16), INVALID_VALUE)
        returns(driver.cuMemcpy(address, address_of(sample()), 16), INVALID_VALUE)

    @emulator_only
    def test_a_device_address_is_refused_as_a_host_address(self, block):
        returns(driver.cuMemcpyHtoD(block, block, 16), INVALID_VALUE)

    def test_a_pinned_source_is_read_in_stream_order(self, block, stream):
        address, source = pinned(4096)
        source[:] = 1
        with Gate(stream) as gate:
            ok(driver.cuMemcpyHtoDAsync(block, address, 4096, stream))
            source[:] = 2
            gate.open()
            ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 4096) == 2).all()
        ok(driver.cuMemFreeHost(address))

    def test_a_pageable_source_is_read_before_the_call_returns(self, block, stream):
        source = np.full(4096, 1, np.uint8)
        ok(driver.cuMemcpyHtoDAsync(block, address_of(source), 4096, stream))
        source[:] = 2
        ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 4096) == 1).all()

    @emulator_only
    def test_a_pageable_source_is_staged_while_the_stream_is_blocked(self, block, stream):
        source = np.full(4096, 1, np.uint8)
        with Gate(stream) as gate:
            ok(driver.cuMemcpyHtoDAsync(block, address_of(source), 4096, stream))
            source[:] = 2
            gate.open()
            ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 4096) == 1).all()

    def test_a_pinned_destination_is_written_in_stream_order(self, block, stream):
        address, back = pinned(4096)
        back[:] = 0
        ok(driver.cuMemsetD8(block, 7, 4096))
        ok(driver.cuCtxSynchronize())
        with Gate(stream) as gate:
            ok(driver.cuMemcpyDtoHAsync(address, block, 4096, stream))
            assert not back.any()
            gate.open()
            ok(driver.cuStreamSynchronize(stream))
        assert (back == 7).all()
        ok(driver.cuMemFreeHost(address))

    def test_a_copy_without_async_waits_for_a_pinned_source(self, block):
        address, source = pinned(1 << 20)
        source[:] = 5
        big = ok(driver.cuMemAlloc(1 << 20))
        ok(driver.cuMemcpyHtoD(big, address, 1 << 20))
        source[:] = 6
        assert (read(big, 1 << 20) == 5).all()
        ok(driver.cuMemFree(big))
        ok(driver.cuMemFreeHost(address))

    def test_a_fill_must_be_aligned_to_its_unit(self, block):
        returns(driver.cuMemsetD16(block + 1, 0, 1), INVALID_VALUE)
        returns(driver.cuMemsetD32(block + 2, 0, 1), INVALID_VALUE)

    def test_a_2d_fill_does_not_change_the_gaps(self, block, stream):
        ok(driver.cuMemsetD2D32Async(block, 64, 0x01020304, 3, 5, stream))
        ok(driver.cuStreamSynchronize(stream))
        rows = read(block, 64 * 5).view(np.uint32).reshape(5, 16)
        assert (rows[:, :3] == 0x01020304).all()
        assert not rows[:, 3:].any()

    def test_a_2d_copy_applies_pitches_and_offsets(self, block):
        source = sample(20 * 10).reshape(10, 20)
        copy = box_2d(7, 4)
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.srcHost, copy.srcPitch, copy.srcXInBytes, copy.srcY = address_of(source), 20, 3, 2
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.dstDevice, copy.dstPitch, copy.dstXInBytes, copy.dstY = block, 32, 1, 1
        ok(driver.cuMemcpy2D(copy))
        assert (read(block, 160).reshape(5, 32)[1:, 1:8] == source[2:6, 3:10]).all()

    def test_rows_wider_than_their_pitch_are_refused(self, block):
        source = sample()
        copy = box_2d(40, 2)
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.srcHost, copy.srcPitch = address_of(source), 40
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.dstDevice, copy.dstPitch = block, 32
        returns(driver.cuMemcpy2D(copy), INVALID_VALUE)
        returns(driver.cuMemcpy2DAsync(copy, 0), INVALID_VALUE)

    @pytest.mark.parametrize("side", ["src", "dst"])
    def test_a_pitch_over_the_largest_of_the_device_is_refused(self, block, side):
        source = sample()
        largest = ok(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0))
        volume = driver.CUDA_MEMCPY3D()
        volume.WidthInBytes, volume.Height, volume.Depth = 16, 1, 1
        for copy, run in ((box_2d(16, 1), driver.cuMemcpy2DAsync), (volume, driver.cuMemcpy3DAsync)):
            copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
            copy.srcHost, copy.srcPitch = address_of(source), 16
            copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
            copy.dstDevice, copy.dstPitch = block, 16
            setattr(copy, f"{side}Pitch", largest + 1)
            returns(run(copy, 0), INVALID_VALUE)

    def test_a_3d_copy_applies_pitches_and_offsets(self, block, stream):
        source = sample(4 * 5 * 6).reshape(4, 5, 6)
        copy = driver.CUDA_MEMCPY3D()
        copy.WidthInBytes, copy.Height, copy.Depth = 4, 3, 2
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.srcHost, copy.srcPitch, copy.srcHeight = address_of(source), 6, 5
        copy.srcXInBytes, copy.srcY, copy.srcZ = 1, 2, 1
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.dstDevice, copy.dstPitch, copy.dstHeight = block, 8, 4
        ok(driver.cuMemcpy3DAsync(copy, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 64).reshape(2, 4, 8)[:, :3, :4] == source[1:3, 2:5, 1:5]).all()

    def test_a_peer_copy_moves_bytes_between_devices(self, context, block):
        vendor.two_devices()
        source = sample()
        ok(driver.cuMemcpyHtoD(block, address_of(source), 4096))
        ok(driver.cuCtxSynchronize())
        peer = ok(driver.cuDevicePrimaryCtxRetain(1))
        ok(driver.cuCtxPushCurrent(peer))
        there = ok(driver.cuMemAlloc(4096))
        ok(driver.cuMemcpyPeer(there, peer, block, context, 4096))
        ok(driver.cuCtxSynchronize())
        assert (read(there, 4096) == source).all()
        ok(driver.cuMemFree(there))
        ok(driver.cuCtxPopCurrent())
        ok(driver.cuDevicePrimaryCtxRelease(1))

    def test_a_peer_copy_on_a_stream_comes_behind_its_earlier_work(self, context, block, stream):
        """ "Copies from device memory in one context to device memory in another context" (cuMemcpyPeerAsync)."""
        vendor.two_devices()
        peer = ok(driver.cuDevicePrimaryCtxRetain(1))
        ok(driver.cuCtxPushCurrent(peer))
        there = ok(driver.cuMemAlloc(4096))
        ok(driver.cuCtxPopCurrent())
        ok(driver.cuMemsetD8Async(block, 7, 4096, stream))
        ok(driver.cuMemcpyPeerAsync(there, peer, block, context, 4096, stream))
        ok(driver.cuMemsetD8Async(block, 8, 4096, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (read(there, 4096) == 7).all()
        ok(driver.cuMemFree(there))
        ok(driver.cuDevicePrimaryCtxRelease(1))

    def test_the_unaligned_2d_copy_takes_any_pitch(self, block):
        """Of cuMemcpy2D, which may fail for other pitches than cuMemAllocPitch's: this one "does not have this restriction"."""
        source, second = sample(), ok(driver.cuMemAlloc(4096))
        ok(driver.cuMemcpyHtoD(block, address_of(source), 4096))
        copy = box_2d(7, 50)
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.srcPitch, copy.dstDevice, copy.dstPitch = block, 33, second, 9
        ok(driver.cuMemcpy2DUnaligned(copy))
        ok(driver.cuCtxSynchronize())
        assert (read(second, 450).reshape(50, 9)[:, :7] == source[: 50 * 33].reshape(50, 33)[:, :7]).all()
        copy.dstPitch = 6  # less than a row
        returns(driver.cuMemcpy2DUnaligned(copy), INVALID_VALUE)
        ok(driver.cuMemFree(second))

    def test_fills_on_a_stream_write_units_of_2_and_4_bytes_in_order(self, block, stream):
        """ "The dstDevice pointer must be two byte aligned" (cuMemsetD16Async), "four byte aligned" (cuMemsetD32Async)."""
        ok(driver.cuMemsetD16Async(block, 0x2233, 2048, stream))
        ok(driver.cuMemsetD32Async(block + 8, 0x44556677, 2, stream))
        ok(driver.cuStreamSynchronize(stream))
        whole = read(block, 4096)
        assert (whole[8:16].view(np.uint32) == 0x44556677).all()
        assert (np.delete(whole, np.s_[8:16]).view(np.uint16) == 0x2233).all()
        returns(driver.cuMemsetD16Async(block + 1, 0, 1, stream), INVALID_VALUE)
        returns(driver.cuMemsetD32Async(block + 2, 0, 1, stream), INVALID_VALUE)


def attributes(order, flags=0):
    made = driver.CUmemcpyAttributes()
    made.srcAccessOrder, made.flags = order, flags
    return made


def batch(to, source, sizes, attrs, firsts, stream):
    count = len(sizes)
    if ok(driver.cuDriverGetVersion()) < 12080:
        pytest.skip("the driver has no batch copies")
    return driver.cuMemcpyBatchAsync(to, source, sizes, count, attrs, firsts, len(attrs), stream)


def pointers(*addresses):
    return [driver.CUdeviceptr(int(address)) for address in addresses]


@claims("Memory Management (cuMemcpyBatchAsync)")
class TestBatches:
    def test_one_call_makes_many_copies(self, block, stream):
        """By the reference, "Performs a batch of memory copies. The batch as a whole executes in stream order"."""
        source, back = sample(), np.zeros(4096, np.uint8)
        order = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        here, there = (
            pointers(*(address_of(source) + 512 * i for i in range(8))),
            pointers(*(block + 512 * i for i in range(8))),
        )
        returns(batch(there, here, [512] * 8, [order], [0], stream), SUCCESS)
        ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 4096) == source).all()
        returns(batch(pointers(address_of(back)), pointers(block), [4096], [order], [0], stream), SUCCESS)
        ok(driver.cuStreamSynchronize(stream))
        assert (back == source).all()

    def test_copies_may_be_asked_to_overlap_with_what_is_computed(self, block, stream):
        """ "Note that this flag is a hint and can be ignored"."""
        source = sample()
        order = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 1)
        returns(batch(pointers(block), pointers(address_of(source)), [4096], [order], [0], stream), SUCCESS)
        ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 4096) == source).all()

    def test_one_copy_with_attributes(self, block, stream):
        """CUDA 13.2's call, for one copy, with the attributes of cuMemcpyBatchAsync."""
        if not hasattr(driver, "cuMemcpyWithAttributesAsync") or ok(driver.cuDriverGetVersion()) < 13020:
            pytest.skip("the driver, or the binding, has no such call")
        source = sample()
        order = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 1)
        ok(driver.cuMemcpyWithAttributesAsync(block, address_of(source), 4096, order, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 4096) == source).all()

    def test_a_source_can_be_read_during_the_call(self, block, stream):
        """By the reference, "all accesses must be complete before the API call returns"."""
        source = np.full(4096, 3, np.uint8)
        order = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)
        returns(batch(pointers(block), pointers(address_of(source)), [4096], [order], [0], stream), SUCCESS)
        source[:] = 4
        ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 4096) == 3).all()

    def test_the_legacy_stream_is_refused(self, block):
        """By the reference, "The stream to enqueue the operations in. Must not be legacy NULL stream"."""
        source = sample()
        order = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        returns(batch(pointers(block), pointers(address_of(source)), [16], [order], [0], LEGACY), INVALID_VALUE)

    def test_attributes_are_checked(self, block, stream):
        """By the reference, "the first entry in attrsIdxs must always be 0"; "numAttrs must be lesser than or equal to count"."""
        source = sample()
        order = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        invalid = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_INVALID)
        one = pointers(block), pointers(address_of(source)), [16]
        returns(batch(*one, [invalid], [0], stream), INVALID_VALUE)
        returns(batch(*one, [order], [1], stream), INVALID_VALUE)
        returns(batch(*one, [order, order], [0, 1], stream), INVALID_VALUE)

    @emulator_only
    def test_the_copies_of_a_batch_may_run_in_any_order(self, block, stream):
        """By the reference, "copies within a batch are not guaranteed to execute in any specific order"."""
        source = np.array([1, 2], np.uint8)
        order = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        there, here = pointers(block, block), pointers(address_of(source), address_of(source) + 1)
        returns(batch(there, here, [1, 1], [order], [0], stream), SUCCESS)
        ok(driver.cuStreamSynchronize(stream))
        assert read(block, 1)[0] == 1

    @emulator_only
    def test_a_pageable_source_in_stream_order_is_read_when_the_stream_reaches_it(self, block, stream):
        """By the reference, "then the source will be accessed in stream order"."""
        source = np.full(16, 1, np.uint8)
        order = attributes(driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        with Gate(stream) as gate:
            returns(batch(pointers(block), pointers(address_of(source)), [16], [order], [0], stream), SUCCESS)
            source[:] = 2
            gate.open()
            ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 16) == 2).all()


def operation(to, source, size, to_row=0, source_row=0, rows=0, order=1):
    """A copy of a batch in three dimensions, between addresses whose rows and layers lie so far apart."""
    made = driver.CUDA_MEMCPY3D_BATCH_OP()
    for operand, address, row in ((made.dst, to, to_row), (made.src, source, source_row)):
        operand.type = driver.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER
        operand.op.ptr.ptr = driver.CUdeviceptr(int(address))
        operand.op.ptr.rowLength, operand.op.ptr.layerHeight = row, rows
    made.extent.width, made.extent.height, made.extent.depth = size
    made.srcAccessOrder = driver.CUmemcpySrcAccessOrder(order)
    return made


def volumes(operations, stream, flags=0):
    if ok(driver.cuDriverGetVersion()) < 12080:
        pytest.skip("the driver has no batch copies")
    return driver.cuMemcpy3DBatchAsync(len(operations), operations, flags, stream)


@claims("Memory Management (cuMemcpy3DBatchAsync)")
class TestVolumeBatches:
    def test_one_call_makes_many_copies_of_rows(self, block, stream):
        """By the reference, rowLength is "the length of each row in elements", layerHeight "the height of each layer"."""
        ok(driver.cuMemsetD8(block, 0, 4096))
        ok(driver.cuCtxSynchronize())
        source = sample()
        there = operation(block, address_of(source), (64, 4, 1), 64, 256)
        also = operation(block + 1024, address_of(source) + 64, (64, 2, 2), 128, 256, 4)
        returns(volumes([there, also], stream), SUCCESS)
        ok(driver.cuStreamSynchronize(stream))
        found = read(block, 4096)
        rows = source.reshape(16, 256)
        assert (found[:256].reshape(4, 64) == rows[:4, :64]).all()
        assert (found[1024:1280].reshape(2, 128)[:, :64] == rows[:2, 64:128]).all()
        assert (found[1536:1792].reshape(2, 128)[:, :64] == rows[4:6, 64:128]).all()
        assert not found[1024:1280].reshape(2, 128)[:, 64:].any()

    def test_without_lengths_rows_and_layers_lie_one_behind_the_other(self, block, stream):
        """By the reference, zero: "tightly packed according to the copy extent"."""
        source = sample()
        returns(volumes([operation(block, address_of(source), (16, 16, 16))], stream), SUCCESS)
        ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 4096) == source).all()

    def test_the_legacy_stream_is_refused(self, block):
        """By the reference, "The stream to enqueue the operations in. Must not be default NULL stream"."""
        returns(volumes([operation(block, address_of(sample()), (16, 1, 1))], LEGACY), INVALID_VALUE)

    def test_flags_are_zero(self, block, stream):
        """By the reference, "Flags for future use, must be zero now"."""
        returns(volumes([operation(block, address_of(sample()), (16, 1, 1))], stream, 1), INVALID_VALUE)

    @pytest.mark.parametrize("size", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
    def test_no_extent_is_zero(self, block, stream, size):
        """By the reference, "The width, height and depth of a copy are specified in elements and must not be zero"."""
        returns(volumes([operation(block, address_of(sample()), size)], stream), INVALID_VALUE)

    def test_rows_and_layers_are_at_least_as_long_as_the_copy(self, block, stream):
        """By the reference, "must either be zero or be greater than or equal to the width of the copy"."""
        source = sample()
        returns(volumes([operation(block, address_of(source), (64, 4, 1), 63)], stream), INVALID_VALUE)
        returns(volumes([operation(block, address_of(source), (64, 4, 2), rows=3)], stream), INVALID_VALUE)

    def test_each_copy_has_an_order_of_access(self, block, stream):
        """By the reference, each has to "have a valid srcAccessOrder setting"."""
        returns(volumes([operation(block, address_of(sample()), (16, 1, 1), order=0)], stream), INVALID_VALUE)

    @emulator_only
    def test_a_copy_beyond_its_allocation_is_refused_and_nothing_is_copied(self, block, stream):
        ok(driver.cuMemsetD8(block, 0, 4096))
        ok(driver.cuCtxSynchronize())
        source = sample()
        good, bad = (operation(block, address_of(source), (64, rows, 1), 64, 64) for rows in (1, 65))
        returns(volumes([good, bad], stream), INVALID_VALUE)
        ok(driver.cuStreamSynchronize(stream))
        assert not read(block, 4096).any()

    @emulator_only
    def test_the_copies_of_a_batch_may_run_in_any_order(self, block, stream):
        """By the reference, "copies within a batch are not guaranteed to execute in any specific order"."""
        source = np.array([1, 2], np.uint8)
        both = [operation(block, address_of(source) + at, (1, 1, 1)) for at in range(2)]
        returns(volumes(both, stream), SUCCESS)
        ok(driver.cuStreamSynchronize(stream))
        assert read(block, 1)[0] == 1

    @emulator_only
    def test_a_pageable_source_in_stream_order_is_read_when_the_stream_reaches_it(self, block, stream):
        """By the reference, "then the source will be accessed in stream order"."""
        source = np.full(16, 1, np.uint8)
        with Gate(stream) as gate:
            returns(volumes([operation(block, address_of(source), (4, 4, 1))], stream), SUCCESS)
            source[:] = 2
            gate.open()
            ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 16) == 2).all()


# --- streams ----------------------------------------------------------------------------------------------------------


@claims("Stream Management; Stream Memory Operations; Execution Control; Stream synchronization behavior")
class TestStreams(truth.Streams, truth.HostFunctions):
    def test_flags_and_priorities_are_kept(self, context):
        least, greatest = ok(driver.cuCtxGetStreamPriorityRange())
        made = ok(driver.cuStreamCreateWithPriority(NON_BLOCKING, greatest))
        assert ok(driver.cuStreamGetFlags(made)) == NON_BLOCKING
        assert ok(driver.cuStreamGetPriority(made)) == greatest
        assert int(ok(driver.cuStreamGetCtx(made))) == int(context)
        both = ok(driver.cuStreamGetCtx_v2(made))  # since CUDA 12.5
        assert (int(both[0]), int(both[1])) == (int(context), 0), "no green context"
        ok(driver.cuStreamDestroy(made))
        made = ok(driver.cuStreamCreateWithPriority(0, least + 100))
        assert ok(driver.cuStreamGetPriority(made)) == least
        ok(driver.cuStreamDestroy(made))
        returns(driver.cuStreamCreate(64), INVALID_VALUE)

    def test_a_stream_tells_the_context_that_it_was_made_in(self, context):
        """By the reference, "returns the regular context in pCtx and NULL in pGreenCtx"."""
        mine = ok(driver.cuCtxCreate(0, 0) if SERIES < 13 else driver.cuCtxCreate(None, 0, 0))
        made = ok(driver.cuStreamCreate(0))
        ok(driver.cuCtxPopCurrent())
        found, green = ok(driver.cuStreamGetCtx_v2(made))
        assert (int(found), int(green)) == (int(mine), 0) and int(mine) != int(context)
        ok(driver.cuCtxDestroy(mine))

    def test_a_stream_is_first_in_first_out(self, block, stream):
        for value in range(50):
            ok(driver.cuMemsetD8Async(block, value, 4096, stream))
        back = np.zeros(4096, np.uint8)
        ok(driver.cuMemcpyDtoHAsync(address_of(back), block, 4096, stream))
        assert (back == 49).all()

    def test_a_blocked_stream_is_not_ready_and_does_not_block_another(self, block, stream, other):
        with Gate(stream):
            assert_blocked(stream)
            ok(driver.cuMemsetD8Async(block, 1, 16, other))
            ok(driver.cuStreamSynchronize(other))
        ok(driver.cuStreamQuery(stream))

    def test_the_legacy_stream_waits_for_blocking_streams(self, block, event):
        blocking = ok(driver.cuStreamCreate(0))
        with Gate(blocking):
            ok(driver.cuMemsetD8Async(block, 1, 16, blocking))
            ok(driver.cuMemsetD8Async(block, 2, 16, LEGACY))
            ok(driver.cuEventRecord(event, LEGACY))
            assert_blocked(LEGACY)
            returns(driver.cuEventQuery(event), NOT_READY)
        assert (read(block, 16) == 2).all()
        ok(driver.cuStreamDestroy(blocking))

    def test_blocking_streams_wait_for_the_legacy_stream(self, block):
        blocking = ok(driver.cuStreamCreate(0))
        with Gate(LEGACY):
            ok(driver.cuMemsetD8Async(block, 1, 16, blocking))
            assert_blocked(blocking)
        ok(driver.cuStreamDestroy(blocking))

    def test_non_blocking_streams_and_the_legacy_stream_ignore_each_other(self, block, stream):
        with Gate(LEGACY):
            ok(driver.cuMemsetD8Async(block, 1, 16, stream))
            ok(driver.cuStreamSynchronize(stream))
        with Gate(stream):
            ok(driver.cuMemsetD8Async(block, 1, 16, LEGACY))
            ok(driver.cuStreamSynchronize(LEGACY))

    def test_the_per_thread_stream_is_a_blocking_stream_of_its_thread(self, context, block):
        with Gate(LEGACY):
            ok(driver.cuMemsetD8Async(block, 1, 16, PER_THREAD))
            assert_blocked(PER_THREAD)

        def on_another_thread():
            ok(driver.cuCtxSetCurrent(context))
            return driver.cuStreamQuery(PER_THREAD)[0]

        with Gate(PER_THREAD):
            assert_blocked(PER_THREAD)
            assert together(on_another_thread) == [SUCCESS]

    def test_synchronising_the_legacy_stream_waits_for_blocking_streams(self, block):
        blocking = ok(driver.cuStreamCreate(0))
        gate = Gate(blocking)
        opener = threading.Timer(0.05, gate.open)
        opener.start()
        ok(driver.cuStreamSynchronize(LEGACY))
        assert gate.word.value == 1
        opener.join(patience())
        gate.__exit__()
        ok(driver.cuStreamDestroy(blocking))

    def test_the_work_of_a_destroyed_stream_completes(self, block):
        made = ok(driver.cuStreamCreate(NON_BLOCKING))
        with Gate(made) as gate:
            ok(driver.cuMemsetD8Async(block, 8, 4096, made))
            ok(driver.cuStreamDestroy(made))
            gate.open()
            ok(driver.cuCtxSynchronize())
        assert (read(block, 4096) == 8).all()

    @emulator_only
    def test_a_destroyed_stream_is_unknown(self, block):
        made = ok(driver.cuStreamCreate(0))
        ok(driver.cuStreamDestroy(made))
        for result in (
            driver.cuStreamDestroy(made),
            driver.cuStreamQuery(made),
            driver.cuStreamSynchronize(made),
            driver.cuMemsetD8Async(block, 0, 16, made),
            driver.cuStreamGetFlags(made),
        ):
            returns(result, INVALID_HANDLE)

    @emulator_only
    def test_host_functions_may_not_call_the_driver(self, stream):
        seen = []
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(driver.cuMemAlloc(64)[0]))
        ok(driver.cuLaunchHostFunc(stream, driver.CUhostFn(ctypes.cast(call, ctypes.c_void_p).value), 0))
        ok(driver.cuStreamSynchronize(stream))
        assert seen == [driver.CUresult.CUDA_ERROR_NOT_PERMITTED]

    def test_a_stream_writes_a_word_and_another_waits_for_it(self, block, stream, other):
        ok(driver.cuStreamWaitValue32(stream, block, 5, 0))
        ok(driver.cuMemsetD8Async(block + 64, 1, 1, stream))
        assert_blocked(stream)
        ok(driver.cuStreamWriteValue32(other, block, 6, 0))
        ok(driver.cuStreamSynchronize(stream))
        assert read(block, 4).view(np.uint32)[0] == 6


# --- capture of graphs ------------------------------------------------------------------------------------------------


def allocate():
    """Allocate and free: calls that are potentially unsafe during a capture."""
    error, block = driver.cuMemAlloc(64)
    return (error,) if error else driver.cuMemFree(block)


@claims("Stream Management (cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode)")
class TestCapture(truth.Captures):
    def test_in_relaxed_mode_no_thread_is_restricted(self, capturing, passed):
        capturing.begin(RELAXED)
        ok(allocate())
        ok(on_another_thread(lambda: driver.cuEventQuery(passed)))
        assert capturing.end() == SUCCESS

    @emulator_only
    @pytest.mark.parametrize("what", ["cuMemPoolTrimTo", "cuStreamSynchronize", "cuCtxSynchronize"])
    def test_waits_and_calls_of_pools_invalidate_a_capture(self, capturing, what):
        stream, pool = capturing.begin(GLOBAL), ok(driver.cuDeviceGetDefaultMemPool(0))
        arguments = {"cuMemPoolTrimTo": (pool, 0), "cuStreamSynchronize": (stream,), "cuCtxSynchronize": ()}[what]
        returns(getattr(driver, what)(*arguments), UNSUPPORTED)
        assert capturing.end() == INVALIDATED

    def test_the_legacy_stream_cannot_be_used_while_a_blocking_stream_captures(self, block):
        stream = ok(driver.cuStreamCreate(0))
        implicit = driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        returns(driver.cuStreamBeginCapture(LEGACY, MODES(GLOBAL)), UNSUPPORTED)
        ok(driver.cuStreamBeginCapture(stream, MODES(GLOBAL)))
        returns(driver.cuStreamIsCapturing(driver.CUstream(LEGACY)), implicit)
        returns(driver.cuMemsetD8Async(block, 1, 1, LEGACY), implicit)
        returns(driver.cuStreamEndCapture(stream), INVALIDATED)
        ok(driver.cuStreamDestroy(stream))


@claims(
    "Graph Management: cuGraphInstantiateWithFlags, cuGraphLaunch ('ordered behind both any previous work in hStream and any "
    "previous launches of hGraphExec'), cuGraphDestroy, cuGraphExecDestroy; Stream Management: cuStreamBeginCapture ('all "
    "operations pushed into the stream will not be executed, but will instead be captured into a graph')"
)
class TestGraphs(truth.Graphs):
    def test_later_work_on_the_stream_is_behind_the_graph(self, graph_of, block, stream):
        graph = graph_of(lambda on: ok(driver.cuMemsetD8Async(block, 7, 64, on)))
        with Gate(stream) as gate:
            ok(driver.cuGraphLaunch(graph, stream))
            ok(driver.cuMemsetD8Async(block, 8, 32, stream))
            gate.open()
            ok(driver.cuStreamSynchronize(stream))
        assert (read(block, 64) == [8] * 32 + [7] * 32).all()

    def test_an_empty_graph_is_launched_too(self, graph_of, stream):
        ok(driver.cuGraphLaunch(graph_of(lambda on: None), stream))
        ok(driver.cuStreamSynchronize(stream))

    def test_a_capture_on_a_stream_that_does_not_block_leaves_the_legacy_stream_alone(self, graph_of, block):
        def enqueue(on):
            ok(driver.cuMemsetD8Async(block, 7, 64, on))
            ok(driver.cuMemsetD8(block, 1, 64))
            ok(on_another_thread(allocate))
            assert (read(block, 64) == 1).all()

        graph_of(enqueue)

    @emulator_only
    def test_memory_that_was_freed_since_is_found_at_the_launch(self, graph_of, stream):
        memory = ok(driver.cuMemAlloc(64))
        graph = graph_of(lambda on: ok(driver.cuMemsetD8Async(memory, 7, 64, on)))
        ok(driver.cuMemFree(memory))
        returns(driver.cuGraphLaunch(graph, stream), INVALID_VALUE)


# --- events -----------------------------------------------------------------------------------------------------------


@claims("Event Management")
class TestEvents(truth.Events):
    def test_an_event_completes_when_its_stream_reaches_it(self, event, stream):
        with Gate(stream):
            ok(driver.cuEventRecord(event, stream))
            returns(driver.cuEventQuery(event), NOT_READY)
        ok(driver.cuEventQuery(event))

    def test_a_later_record_replaces_the_earlier_one(self, event, stream, other):
        with Gate(stream):
            ok(driver.cuEventRecord(event, stream))
            ok(driver.cuEventRecord(event, other))
            ok(driver.cuEventSynchronize(event))

    def test_another_stream_waits_for_an_event(self, block, event, stream, other):
        with Gate(stream) as gate:
            ok(driver.cuMemsetD8Async(block, 1, 16, stream))
            ok(driver.cuEventRecord(event, stream))
            ok(driver.cuStreamWaitEvent(other, event, 0))
            ok(driver.cuMemsetD8Async(block, 2, 16, other))
            assert_blocked(other)
            gate.open()
            ok(driver.cuStreamSynchronize(other))
        assert (read(block, 16) == 2).all()

    def test_elapsed_time_needs_two_recorded_events_with_timing(self, event, stream):
        timed = ok(driver.cuEventCreate(0))
        returns(driver.cuEventElapsedTime(timed, timed), INVALID_HANDLE)
        ok(driver.cuEventRecord(timed, stream))
        ok(driver.cuEventRecord(event, stream))
        ok(driver.cuStreamSynchronize(stream))
        returns(driver.cuEventElapsedTime(timed, event), INVALID_HANDLE)
        ok(driver.cuEventDestroy(timed))

    def test_an_event_is_recorded_in_its_context_and_waited_for_in_any(self, event, stream):
        vendor.two_devices()
        ok(driver.cuCtxPushCurrent(ok(driver.cuDevicePrimaryCtxRetain(1))))
        theirs = ok(driver.cuStreamCreate(NON_BLOCKING))
        returns(driver.cuEventRecord(event, theirs), INVALID_HANDLE)
        ok(driver.cuEventRecord(event, stream))
        ok(driver.cuStreamWaitEvent(theirs, event, 0))
        ok(driver.cuStreamSynchronize(theirs))
        ok(driver.cuStreamDestroy(theirs))
        ok(driver.cuCtxPopCurrent())
        ok(driver.cuDevicePrimaryCtxRelease(1))

    def test_an_event_that_a_stream_waits_for_can_be_destroyed(self, block, stream, other):
        made = ok(driver.cuEventCreate(DISABLE_TIMING))
        with Gate(stream) as gate:
            ok(driver.cuEventRecord(made, stream))
            ok(driver.cuStreamWaitEvent(other, made, 0))
            ok(driver.cuEventDestroy(made))
            assert_blocked(other)
            gate.open()
            ok(driver.cuStreamSynchronize(other))


# --- the host's memory in place ---------------------------------------------------------------------------------------


@claims("Unified Memory on Devices with Full CUDA Unified Memory Support")
class TestCoherence:
    PAGEABLE = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS

    def test_memory_of_the_host_is_used_by_its_own_address(self, stream, block, monkeypatch):
        monkeypatch.setenv("DEVMEM_EMULATOR_COHERENCE", "1")
        if not ok(driver.cuDeviceGetAttribute(self.PAGEABLE, 0)):
            pytest.skip("the device takes no addresses of the host's memory")
        host, other = np.zeros(4096, np.uint8), np.full(4096, 9, np.uint8)
        ok(driver.cuMemsetD8Async(address_of(host), 5, 4096, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (host == 5).all()
        ok(driver.cuMemcpyHtoDAsync(address_of(host), address_of(other), 4096, stream))
        ok(driver.cuMemcpyDtoDAsync(block, address_of(host), 4096, stream))
        ok(driver.cuMemcpyDtoHAsync(address_of(other), block, 4096, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (host == 9).all() and (other == 9).all()
        error, *_ = driver.cuMemGetAddressRange(address_of(host))
        assert int(error) in (int(INVALID_VALUE), 500)

    @emulator_only
    def test_elsewhere_it_is_refused(self, stream):
        host = np.zeros(4096, np.uint8)
        returns(driver.cuMemsetD8Async(address_of(host), 5, 4096, stream), INVALID_VALUE)
        returns(driver.cuMemcpyDtoDAsync(address_of(host), address_of(host), 4096, stream), INVALID_VALUE)


# --- pools ------------------------------------------------------------------------------------------------------------

Attr = driver.CUmemPool_attribute
#: CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, "the decompression algorithms supported on the device"; and what says
#: whether "the pointer points to memory that is capable to be used for hardware accelerated decompression".
DECOMPRESS_ALGORITHMS = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK
DECOMPRESS_CAPABLE = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE


def pool_number(pool, attribute):
    return int(ok(driver.cuMemPoolGetAttribute(pool, attribute)))


@claims("Stream Ordered Memory Allocator")
class TestPools(truth.Pools):
    def test_zero_bytes_and_too_many_are_refused(self, stream):
        returns(driver.cuMemAllocAsync(0, stream), INVALID_VALUE)
        total = ok(driver.cuDeviceTotalMem(0))
        returns(driver.cuMemAllocAsync(total * 2, stream), driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)

    def test_a_stream_reuses_the_memory_that_it_freed_at_once(self, pool, stream):
        with Gate(stream):
            first = ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream))
            ok(driver.cuMemFreeAsync(first, stream))
            second = ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream))
            ok(driver.cuMemFreeAsync(second, stream))
        assert int(first) == int(second)

    def test_used_and_reserved_bytes_are_counted(self, pool, stream):
        threshold = driver.cuuint64_t(2**64 - 1)
        ok(driver.cuMemPoolSetAttribute(pool, Attr.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, threshold))
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 2**64 - 1
        address = ok(driver.cuMemAllocFromPoolAsync(1 << 20, pool, stream))
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 1 << 20
        ok(driver.cuMemFreeAsync(address, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= 1 << 20
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 1 << 20
        ok(driver.cuMemPoolTrimTo(pool, 0))
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0
        ok(driver.cuMemPoolSetAttribute(pool, Attr.CU_MEMPOOL_ATTR_USED_MEM_HIGH, driver.cuuint64_t(0)))
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0

    def test_without_a_threshold_a_wait_releases_memory(self, pool, stream):
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 0
        ok(driver.cuMemFreeAsync(ok(driver.cuMemAllocFromPoolAsync(1 << 20, pool, stream)), stream))
        ok(driver.cuStreamSynchronize(stream))
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0

    def test_all_kinds_of_reuse_are_enabled_by_default(self, pool):
        for attribute in (
            Attr.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            Attr.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
            Attr.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ):
            assert pool_number(pool, attribute) == 1
            ok(driver.cuMemPoolSetAttribute(pool, attribute, 0))
            assert pool_number(pool, attribute) == 0

    def test_cu_mem_free_accepts_pool_memory(self, pool, stream):
        address = ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream))
        ok(driver.cuStreamSynchronize(stream))
        ok(driver.cuMemFree(address))
        assert pool_number(pool, Attr.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0

    @emulator_only
    def test_cu_mem_free_async_accepts_bases_of_pool_memory_only_and_once(self, pool, stream, block):
        address = int(ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream)))
        returns(driver.cuMemFreeAsync(address + 512, stream), INVALID_VALUE)
        ok(driver.cuMemFreeAsync(address, stream))
        returns(driver.cuMemFreeAsync(address, stream), INVALID_VALUE)
        returns(driver.cuMemsetD8Async(address, 0, 16, stream), INVALID_VALUE)
        returns(driver.cuMemFreeAsync(block, stream), INVALID_VALUE)

    @emulator_only
    def test_a_full_pool_is_out_of_memory(self, stream):
        properties = pool_properties()
        properties.maxSize = 1 << 20
        made = ok(driver.cuMemPoolCreate(properties))
        address = ok(driver.cuMemAllocFromPoolAsync(1 << 20, made, stream))
        returns(driver.cuMemAllocFromPoolAsync(4096, made, stream), driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        ok(driver.cuMemFreeAsync(address, stream))
        ok(driver.cuMemPoolDestroy(made))

    def test_a_pool_can_be_made_for_the_decompression_engine_which_plain_memory_serves_too(self, stream):
        if not ok(driver.cuDeviceGetAttribute(DECOMPRESS_ALGORITHMS, 0)):
            pytest.skip("the device has no decompression engine")
        properties = pool_properties()
        properties.usage = driver.CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS
        made = ok(driver.cuMemPoolCreate(properties))
        address, plain = ok(driver.cuMemAllocFromPoolAsync(4096, made, stream)), ok(driver.cuMemAlloc(4096))
        assert [ok(driver.cuPointerGetAttribute(DECOMPRESS_CAPABLE, each)) for each in (address, plain)] == [1, 1]
        ok(driver.cuMemFreeAsync(address, stream))
        ok(driver.cuMemFree(plain))
        ok(driver.cuMemPoolDestroy(made))

    @emulator_only
    def test_memory_of_other_pools_does_not_serve_the_decompression_engine(self, pool, stream):
        address = ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream))
        assert not ok(driver.cuPointerGetAttribute(DECOMPRESS_CAPABLE, address))
        ok(driver.cuMemFreeAsync(address, stream))
        properties = pool_properties()
        properties.usage = 1
        returns(driver.cuMemPoolCreate(properties), INVALID_VALUE)

    def test_the_default_pool_is_current_at_first_and_cannot_be_destroyed(self):
        default = ok(driver.cuDeviceGetDefaultMemPool(0))
        assert int(ok(driver.cuDeviceGetMemPool(0))) == int(default)
        returns(driver.cuMemPoolDestroy(default), INVALID_VALUE)

    def test_allocations_come_from_the_current_pool_until_it_is_destroyed(self, stream):
        made = ok(driver.cuMemPoolCreate(pool_properties()))
        ok(driver.cuDeviceSetMemPool(0, made))
        address = ok(driver.cuMemAllocAsync(4096, stream))
        assert pool_number(made, Attr.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 4096
        ok(driver.cuMemFreeAsync(address, stream))
        ok(driver.cuMemPoolDestroy(made))
        assert int(ok(driver.cuDeviceGetMemPool(0))) == int(ok(driver.cuDeviceGetDefaultMemPool(0)))

    def test_a_destroyed_pool_remains_while_its_memory_is_in_use(self, stream):
        made = ok(driver.cuMemPoolCreate(pool_properties()))
        address = ok(driver.cuMemAllocFromPoolAsync(4096, made, stream))
        ok(driver.cuMemPoolDestroy(made))
        ok(driver.cuMemsetD8Async(address, 1, 4096, stream))
        ok(driver.cuStreamSynchronize(stream))
        ok(driver.cuMemFreeAsync(address, stream))
        ok(driver.cuStreamSynchronize(stream))

    @emulator_only
    def test_use_before_the_allocation_in_stream_order_loses_the_context(self, no_context):
        child("""
        from devmem.testing.emulator import control
        ok(driver.cuInit(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        one, two = ok(driver.cuStreamCreate(1)), ok(driver.cuStreamCreate(1))
        with control().hold(one):
            address = ok(driver.cuMemAllocAsync(4096, one))
            ok(driver.cuMemsetD8Async(address, 0, 4096, two))
            assert code(driver.cuStreamSynchronize(two)) == 700
        assert code(driver.cuMemAlloc(64)) == 700
        """)

    @emulator_only
    def test_use_after_the_free_in_stream_order_loses_the_context(self, no_context):
        child("""
        from devmem.testing.emulator import control
        ok(driver.cuInit(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        one, two = ok(driver.cuStreamCreate(1)), ok(driver.cuStreamCreate(1))
        address = ok(driver.cuMemAllocAsync(4096, one))
        ok(driver.cuStreamSynchronize(one))
        with control().hold(two):
            ok(driver.cuMemsetD8Async(address, 0, 4096, two))
            ok(driver.cuMemFreeAsync(address, one))
            ok(driver.cuStreamSynchronize(one))
        assert code(driver.cuStreamSynchronize(two)) == 700
        """)


# --- host memory ------------------------------------------------------------------------------------------------------

ALREADY = driver.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
NOT_REGISTERED = driver.CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED


@claims("Memory Management")
class TestHostMemory(truth.HostMemory, truth.Registering):
    def test_host_and_device_write_pinned_memory(self, block):
        address, here = pinned(4096, 3)
        here[:] = 4
        ok(driver.cuMemcpyHtoD(block, address, 4096))
        assert (read(block, 4096) == 4).all()
        assert int(ok(driver.cuMemHostGetDevicePointer(address, 0))) == address
        ok(driver.cuMemsetD8(address, 6, 4096))
        assert (here == 6).all()
        ok(driver.cuMemFreeHost(address))

    def test_zero_bytes_and_unknown_flags_are_refused(self):
        returns(driver.cuMemHostAlloc(0, 0), INVALID_VALUE)
        returns(driver.cuMemHostAlloc(64, 64), INVALID_VALUE)

    def test_pinned_memory_is_freed_once(self):
        address, _ = pinned(4096)
        ok(driver.cuMemFreeHost(address))
        returns(driver.cuMemFreeHost(address), INVALID_VALUE)

    def test_pageable_memory_has_no_device_pointer(self):
        returns(driver.cuMemHostGetDevicePointer(address_of(sample()), 0), INVALID_VALUE)

    def test_registering_what_is_registered_is_refused(self):
        here = pages(4)
        ok(driver.cuMemHostRegister(address_of(here), 8192, 0))
        returns(driver.cuMemHostRegister(address_of(here), 8192, 0), ALREADY)
        returns(driver.cuMemHostRegister(address_of(here) + 4096, 8192, 0), ALREADY)
        ok(driver.cuMemHostRegister(address_of(here) + 8192, 8192, 0))
        ok(driver.cuMemHostUnregister(address_of(here)))
        ok(driver.cuMemHostUnregister(address_of(here) + 8192))

    def test_unregistering_what_is_not_registered_is_refused(self):
        here = pages(2)
        returns(driver.cuMemHostUnregister(address_of(here)), NOT_REGISTERED, INVALID_VALUE)
        ok(driver.cuMemHostRegister(address_of(here), 8192, 0))
        ok(driver.cuMemHostUnregister(address_of(here)))
        returns(driver.cuMemHostUnregister(address_of(here)), NOT_REGISTERED, INVALID_VALUE)

    @emulator_only
    def test_only_the_base_can_be_unregistered(self):
        here = pages(2)
        ok(driver.cuMemHostRegister(address_of(here), 8192, 0))
        returns(driver.cuMemHostUnregister(address_of(here) + 4096), INVALID_VALUE)
        ok(driver.cuMemHostUnregister(address_of(here)))

    @pytest.mark.skipif(sys.platform != "linux", reason="asks for pages by Linux's flags")
    def test_memory_mapped_read_only_is_registered_with_the_flag_for_it_alone(self, block):
        device = driver.CUdevice_attribute
        if ok(driver.cuDeviceGetAttribute(device.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0)):
            pytest.skip("this device reads by the host's page tables")
        if not ok(driver.cuDeviceGetAttribute(device.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0)):
            pytest.skip("this device does not support the flag")
        with tempfile.TemporaryFile() as file:
            file.write(bytes(range(256)) * 32)
            file.flush()
            here = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        assert driver.cuMemHostRegister(here.ctypes.data, 8192, 0)[0] != SUCCESS
        ok(driver.cuMemHostRegister(here.ctypes.data, 8192, driver.CU_MEMHOSTREGISTER_READ_ONLY))
        ok(driver.cuMemcpyHtoD(block, here.ctypes.data, 4096))
        assert (read(block, 4096) == here[:4096]).all()
        ok(driver.cuMemHostUnregister(here.ctypes.data))

    def test_unmapped_memory_cannot_be_registered(self):
        returns(driver.cuMemHostRegister(1 << 40, 4096, 0), INVALID_VALUE)

    @emulator_only
    def test_unregistering_the_memory_of_a_queued_copy_loses_the_context(self, no_context):
        child("""
        from devmem.testing.emulator import control
        ok(driver.cuInit(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        here, there, stream = np.zeros(4096, np.uint8), ok(driver.cuMemAlloc(4096)), ok(driver.cuStreamCreate(1))
        ok(driver.cuMemHostRegister(here.ctypes.data, 4096, 0))
        with control().hold(stream):
            ok(driver.cuMemcpyHtoDAsync(there, here.ctypes.data, 4096, stream))
            ok(driver.cuMemHostUnregister(here.ctypes.data))
        assert code(driver.cuStreamSynchronize(stream)) == 700
        """)


# --- managed memory ---------------------------------------------------------------------------------------------------


Locations = driver.CUmemLocationType


def batches_of_hints():
    if not hasattr(driver, "cuMemDiscardBatchAsync") or ok(driver.cuDriverGetVersion()) < 13000:
        pytest.skip("the driver, or the binding, has no batches of hints")


def location(kind, index):
    made = driver.CUmemLocation()
    made.type, made.id = kind, index
    return made


@claims("Memory Management; Unified Addressing")
class TestManagedMemory(truth.ManagedMemory):
    def test_managed_memory_can_be_prefetched_and_advised(self, managed, stream):
        kinds = driver.CUmemLocationType
        device, host = location(kinds.CU_MEM_LOCATION_TYPE_DEVICE, 0), location(kinds.CU_MEM_LOCATION_TYPE_HOST, 0)
        prefetch = getattr(driver, "cuMemPrefetchAsync_v2", driver.cuMemPrefetchAsync)
        advise = getattr(driver, "cuMemAdvise_v2", driver.cuMemAdvise)
        advice = driver.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION
        ok(prefetch(managed, 4096, device, 0, stream))
        ok(prefetch(managed, 4096, host, 0, stream))
        ok(advise(managed, 4096, advice, device))
        returns(prefetch(managed, 4096, device, 1, stream), INVALID_VALUE)
        returns(prefetch(managed, 0, device, 0, stream), INVALID_VALUE)

    def test_other_memory_cannot_be_prefetched(self, block, stream):
        device = location(driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0)
        prefetch = getattr(driver, "cuMemPrefetchAsync_v2", driver.cuMemPrefetchAsync)
        returns(prefetch(block, 4096, device, 0, stream), INVALID_VALUE)

    def test_many_ranges_are_prefetched_by_one_call(self, managed, stream):
        """By the reference, "each entry must be greater than the previous entry and the last entry should be less than count"."""
        batches_of_hints()
        places = [
            location(kind, 0) for kind in (Locations.CU_MEM_LOCATION_TYPE_DEVICE, Locations.CU_MEM_LOCATION_TYPE_HOST)
        ]
        two = pointers(managed, managed + 1024), [1024, 1024], 2
        ok(driver.cuMemPrefetchBatchAsync(*two, places, [0, 1], 2, 0, stream))
        ok(driver.cuMemPrefetchBatchAsync(*two, places[:1], [0], 1, 0, stream))
        ok(driver.cuStreamSynchronize(stream))
        for arguments in (
            (*two, places[:1], [1], 1, 0, stream),  # no place for the first
            (*two, places, [0, 0], 2, 0, stream),
            (*two, places, [0, 2], 2, 0, stream),
            (*two, places[:1], [0], 1, 1, stream),  # flags
            (*two, places[:1], [0], 1, 0, LEGACY),
            (two[0], [1024, 0], 2, places[:1], [0], 1, 0, stream),
        ):
            returns(driver.cuMemPrefetchBatchAsync(*arguments), INVALID_VALUE)

    def test_other_memory_is_not_discarded(self, block, managed, stream):
        """By the reference, "must refer to managed memory"; flags "Must be zero"; the stream "Must not be legacy NULL stream"."""
        batches_of_hints()
        here = np.frombuffer((ctypes.c_uint8 * 4096).from_address(managed), np.uint8)
        here[:] = 5
        returns(driver.cuMemDiscardBatchAsync(pointers(managed, block), [16, 16], 2, 0, stream), INVALID_VALUE)
        returns(driver.cuMemDiscardBatchAsync(pointers(managed), [16], 1, 1, stream), INVALID_VALUE)
        returns(driver.cuMemDiscardBatchAsync(pointers(managed), [16], 1, 0, LEGACY), INVALID_VALUE)
        assert (here == 5).all()

    @pytest.mark.parametrize("moved", [False, True])
    def test_discarded_memory_can_be_written_again(self, managed, stream, moved):
        """By the reference, "This operation can be undone on any part of the range by either writing to it or prefetching it"."""
        batches_of_hints()
        one = pointers(managed), [4096], 1
        place = location(Locations.CU_MEM_LOCATION_TYPE_DEVICE, 0)
        if moved:
            ok(driver.cuMemDiscardAndPrefetchBatchAsync(*one, [place], [0], 1, 0, stream))
        else:
            ok(driver.cuMemDiscardBatchAsync(*one, 0, stream))
        ok(driver.cuMemsetD8Async(managed, 3, 4096, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (read(managed, 4096) == 3).all()

    @emulator_only
    def test_discarded_bytes_change_when_the_stream_reaches_it(self, managed, stream):
        """By the reference, "The batch as a whole executes in stream order"; reads "will return an indeterminate value"."""
        batches_of_hints()
        here = np.frombuffer((ctypes.c_uint8 * 4096).from_address(managed), np.uint8)
        here[:] = 5
        with Gate(stream) as gate:
            ok(driver.cuMemDiscardBatchAsync(pointers(managed + 16), [16], 1, 0, stream))
            assert (here == 5).all()
            gate.open()
            ok(driver.cuStreamSynchronize(stream))
        assert not (here[16:32] == 5).any()
        assert (here[:16] == 5).all()
        assert (here[32:] == 5).all()

    def test_managed_memory_can_be_attached_to_a_stream(self, managed, stream):
        ok(driver.cuStreamAttachMemAsync(stream, managed, 0, 4))
        ok(driver.cuStreamSynchronize(stream))
        ok(driver.cuStreamAttachMemAsync(stream, managed, 0, 1))
        returns(driver.cuStreamAttachMemAsync(stream, managed, 0, 8), INVALID_VALUE)


# --- attributes of an address -----------------------------------------------------------------------------------------

Attribute = driver.CUpointer_attribute


def pointer_attribute(attribute, address):
    return int(ok(driver.cuPointerGetAttribute(attribute, address)))


@claims("Unified Addressing")
class TestPointers:
    def test_attributes_of_device_memory(self, context, block):
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + 5) == 2
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, block + 5) == block + 5
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block) == 0
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, block) == 0
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + 5) == block
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + 5) == 4096
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_CONTEXT, block) == int(context)
        returns(driver.cuPointerGetAttribute(Attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER, block), INVALID_VALUE)

    def test_a_pointer_is_known_where_no_context_is_current(self, context, block):
        ok(driver.cuCtxSetCurrent(0))
        try:
            assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block) == 0
        finally:
            ok(driver.cuCtxSetCurrent(context))

    def test_attributes_of_pinned_memory(self):
        address, _ = pinned(4096)
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == 1
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 9) == address + 9
        ok(driver.cuMemFreeHost(address))

    def test_attributes_of_managed_memory(self, managed):
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, managed) == 1

    def test_pool_memory_names_its_pool(self, pool, stream):
        address = ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream))
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == int(pool)
        assert pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) == 0
        ok(driver.cuMemFreeAsync(address, stream))

    def test_buffer_ids_are_never_reused(self):
        seen = set()
        for _ in range(8):
            address = ok(driver.cuMemAlloc(4096))
            seen.add(pointer_attribute(Attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID, address))
            ok(driver.cuMemFree(address))
        assert len(seen) == 8

    def test_an_unknown_address_is_an_error_for_one_attribute_and_none_for_several(self, block):
        unknown = address_of(sample())
        returns(driver.cuPointerGetAttribute(Attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unknown), INVALID_VALUE)
        wanted = [Attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER]
        found = ok(driver.cuPointerGetAttributes(2, wanted, unknown))
        assert [int(value) for value in found] == [0, 0]
        found = ok(driver.cuPointerGetAttributes(2, wanted, block))
        assert [int(value) for value in found] == [2, block]


# --- IPC --------------------------------------------------------------------------------------------------------------


@claims("Memory Management (cuIpcGetMemHandle)")
class TestSharing(truth.Sharing):
    IMPORTER = """
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(os.environ["HANDLE"]), 64)
    address = int(ok(driver.cuIpcOpenMemHandle(handle, 1)))
    back = np.zeros(4096, np.uint8)
    ok(driver.cuMemcpyDtoH(back.ctypes.data, address, 4096))
    assert (back == 7).all(), back
    ok(driver.cuMemsetD8(address, 8, 4096))
    ok(driver.cuCtxSynchronize())
    assert int(ok(driver.cuIpcOpenMemHandle(handle, 1))) == address
    ok(driver.cuIpcCloseMemHandle(address))
    ok(driver.cuIpcCloseMemHandle(address))
    assert code(driver.cuIpcCloseMemHandle(address)) != 0
    assert code(driver.cuMemcpyDtoH(back.ctypes.data, address, 4096)) == 1
    """

    def test_pool_and_host_memory_have_no_ipc_handle(self, pool, stream):
        address, (host, _) = ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream)), pinned(64)
        returns(driver.cuIpcGetMemHandle(address), INVALID_VALUE)
        returns(driver.cuIpcGetMemHandle(host), INVALID_VALUE)
        ok(driver.cuMemFreeAsync(address, stream))
        ok(driver.cuMemFreeHost(host))


@claims("Stream Ordered Memory Allocator (cuMemPoolExportToShareableHandle, cuMemPoolExportPointer)")
class TestSharedPools(truth.SharedPools):
    IMPORTER = """
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    FILE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    pool = ok(driver.cuMemPoolImportFromShareableHandle(int(os.environ["FILE"]), FILE, 0))
    access = driver.CUmemAccessDesc()
    access.location.type, access.location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    if int(ok(driver.cuMemPoolGetAccess(pool, access.location))) != 3:
        ok(driver.cuMemPoolSetAccess(pool, [access], 1))
    data = driver.CUmemPoolPtrExportData()
    ctypes.memmove(data.getPtr(), bytes.fromhex(os.environ["DATA"]), 64)
    address = int(ok(driver.cuMemPoolImportPointer(pool, data)))
    back = np.zeros(4096, np.uint8)
    ok(driver.cuMemcpyDtoH(back.ctypes.data, address, 4096))
    assert (back == 7).all(), back
    ok(driver.cuMemsetD8(address, 8, 4096))
    ok(driver.cuCtxSynchronize())
    assert code(driver.cuMemAllocFromPoolAsync(64, pool, 0)) != 0, "an imported pool gives no memory"
    assert code(driver.cuDeviceSetMemPool(0, pool)) != 0
    ok(driver.cuMemFree(address))
    ok(driver.cuMemPoolDestroy(pool))
    """

    @emulator_only
    def test_only_the_base_of_live_memory_of_such_a_pool_is_exported(self, pool, pooled, stream, block):
        plain = int(ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream)))
        for address in (pooled + 512, plain, block):
            returns(driver.cuMemPoolExportPointer(address), INVALID_VALUE)
        ok(driver.cuMemFreeAsync(plain, stream))

    @emulator_only
    def test_data_go_with_their_pool_and_access_has_to_be_set(self, shareable, pooled):
        other = ok(driver.cuMemPoolCreate(pool_properties(shareable=True)))
        files = [int(ok(driver.cuMemPoolExportToShareableHandle(each, FILE, 0))) for each in (shareable, other)]
        right, wrong = (ok(driver.cuMemPoolImportFromShareableHandle(each, FILE, 0)) for each in files)
        data = ok(driver.cuMemPoolExportPointer(pooled))
        returns(driver.cuMemPoolImportPointer(right, data), INVALID_VALUE)
        for each in (right, wrong):
            ok(driver.cuMemPoolSetAccess(each, [access()], 1))
        returns(driver.cuMemPoolImportPointer(wrong, data), INVALID_VALUE)
        address = int(ok(driver.cuMemPoolImportPointer(right, data)))
        assert int(ok(driver.cuMemPoolImportPointer(right, data))) == address
        ok(driver.cuMemFree(address))
        returns(driver.cuMemFree(address), INVALID_VALUE)
        for each in files:
            os.close(each)
        for each in (right, wrong, other):
            ok(driver.cuMemPoolDestroy(each))
        with Path(os.devnull).open() as nothing:
            returns(driver.cuMemPoolImportFromShareableHandle(nothing.fileno(), FILE, 0), INVALID_VALUE)


@claims("Virtual Memory Management (cuMemCreate, cuMemMap, cuMemSetAccess, cuMemExportToShareableHandle)")
class TestVirtualMemory(truth.VirtualMemory):
    IMPORTER = """
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    FILE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = ok(driver.cuMemImportFromShareableHandle(int(os.environ["FILE"]), FILE))
    size = int(os.environ["SIZE"])
    address = int(ok(driver.cuMemAddressReserve(size, 0, 0, 0)))
    ok(driver.cuMemMap(address, size, 0, handle, 0))
    ok(driver.cuMemRelease(handle))
    access = driver.CUmemAccessDesc()
    access.location.type, access.location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(address, size, [access], 1))
    back = np.zeros(4096, np.uint8)
    ok(driver.cuMemcpyDtoH(back.ctypes.data, address, 4096))
    assert (back == 7).all(), back
    ok(driver.cuMemsetD8(address, 8, 4096))
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemUnmap(address, size))
    ok(driver.cuMemAddressFree(address, size))
    """

    def test_what_is_mapped_can_be_accessed_once_that_is_allowed(self, mapped, size):
        assert int(driver.cuMemsetD8(mapped, 7, size)[0]) != 0
        ok(driver.cuMemSetAccess(mapped, size, [access()], 1))
        ok(driver.cuMemsetD8(mapped, 7, size))
        assert (read(mapped + size - 4096, 4096) == 7).all()

    def test_memory_is_there_until_its_last_mapping_has_gone(self, properties, addresses, size):
        made = ok(driver.cuMemCreate(size, properties, 0))
        ok(driver.cuMemMap(addresses, size, 0, made, 0))
        ok(driver.cuMemRelease(made))
        ok(driver.cuMemSetAccess(addresses, size, [access()], 1))
        ok(driver.cuMemsetD8(addresses, 9, size))
        assert (read(addresses, 4096) == 9).all()
        ok(driver.cuMemUnmap(addresses, size))

    def test_sizes_are_multiples_of_the_granularity(self, properties, size, physical, addresses):
        returns(driver.cuMemCreate(size + 4096, properties, 0), INVALID_VALUE)
        returns(driver.cuMemMap(addresses, size + 4096, 0, physical, 0), INVALID_VALUE)

    def test_no_more_is_mapped_than_there_is_and_only_at_reserved_addresses(self, physical, addresses, size, block):
        returns(driver.cuMemMap(addresses, 2 * size, 0, physical, 0), INVALID_VALUE)
        returns(driver.cuMemMap(addresses + 2 * size, size, 0, physical, 0), INVALID_VALUE)

    def test_a_mapping_is_unmapped_whole(self, mapped, size, addresses, physical):
        ok(driver.cuMemMap(addresses + size, size, 0, physical, 0))
        returns(driver.cuMemUnmap(mapped, size // 2), INVALID_VALUE)
        ok(driver.cuMemUnmap(addresses + size, size))

    @emulator_only
    def test_what_is_mapped_is_in_the_way(self, physical, mapped, size):
        returns(driver.cuMemMap(mapped, size, 0, physical, 0), INVALID_VALUE)
        returns(driver.cuMemAddressFree(mapped, 2 * size), INVALID_VALUE)

    @emulator_only
    def test_only_what_was_made_for_it_is_exported_and_nothing_else_is_imported(self, properties, physical, size):
        properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        private = ok(driver.cuMemCreate(size, properties, 0))
        returns(driver.cuMemExportToShareableHandle(private, FILE, 0), INVALID_VALUE)
        ok(driver.cuMemRelease(private))
        fabric = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
        returns(driver.cuMemExportToShareableHandle(physical, fabric, 0), INVALID_VALUE)
        returns(driver.cuMemImportFromShareableHandle(bytes(64), fabric), INVALID_VALUE)
        with Path(os.devnull).open() as nothing:
            returns(driver.cuMemImportFromShareableHandle(nothing.fileno(), FILE), INVALID_VALUE)

    @emulator_only
    def test_a_fabric_handle_needs_the_systems_permission(self, properties, size, monkeypatch):
        properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
        returns(driver.cuMemCreate(size, properties, 0), driver.CUresult.CUDA_ERROR_NOT_PERMITTED)
        monkeypatch.setenv("DEVMEM_EMULATOR_FABRIC", "1")
        made = ok(driver.cuMemCreate(size, properties, 0))
        told = ok(driver.cuMemExportToShareableHandle(made, properties.requestedHandleTypes, 0))
        again = ok(driver.cuMemImportFromShareableHandle(bytes(told.data), properties.requestedHandleTypes))
        assert int(ok(driver.cuMemGetAllocationPropertiesFromHandle(again)).location.id) == 0
        for each in (made, again):
            ok(driver.cuMemRelease(each))
