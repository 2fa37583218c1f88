"""The functions of the emulated HIP runtime, with the checks of their arguments and of the order of calls."""

from __future__ import annotations

from .cuda_functions import VIRTUAL

COMMON = (
    "Every call is counted, can be made to fail with any code, and opens the runtime. Every call checks: no device (the "
    "first call 101, later ones 100; before ROCm 6 always 101); forked child (3); process exiting (4); called from a host "
    "function (801). Calls that do work use the thread's current device, and return the error of a lost device (from ROCm 7 "
    "on; before, the process ends). Rules that changed depend on the emulated version, DEVMEM_EMULATOR_ROCM (10.0)."
)

_COPY = "every byte within its allocation (1); an address outside all allocations is host memory of the program; "
_KINDS = "unknown kind (21); otherwise ignored, but for two unknown addresses it must say host (1); "
_ASYNC = (
    "pageable source up to 4 MiB read before the call returns; waits for a longer one, for a pageable destination and for "
    "host to host; page-locked memory later"
)
_BLOCKING = "complete on return, except within one device"
_PITCH = "pitch below the width (12); a pitch that is no multiple of 4 counts as slow"
_STREAM = "unknown or destroyed stream (709; from ROCm 7 on the process dies, SIGSEGV), 1 before ROCm 6.3 (SIGSEGV)"
_EVENT = "NULL (400), unknown (709)"
_HINTS = "flags, ranges that are not managed, no ranges (1); not in the layout `old`; "
_POOLS = "switched off by HIP_MEM_POOL_SUPPORT=0 (801); "

_CAPTURED = (
    "until the end of the capture these calls fail: in threads whose mode does not allow them, plain allocation and freeing, "
    "registration, from ROCm 7 on event queries and waits (900); a query of or a wait for the stream or its device (900); "
    "work on the legacy stream, if that waits for this one (906). Each invalidates the capture. Work on the stream other than "
    "copies of page-locked or device memory, fills, host functions and recording an event fails (801); the recorded event can be "
    "neither queried nor waited for (907)"
)

FUNCTIONS: dict[str, dict[str, str]] = {
    "Runtime and errors": {
        "hipInit": "flags (1)",
        "hipRuntimeGetVersion": "7.15 for ROCm 10, otherwise the version of ROCm",
        "hipDriverGetVersion": "the same",
        "hipGetErrorName": "hipErrorUnknown for an unknown code; returns the text",
        "hipGetErrorString": "as above",
        "hipDrvGetErrorName": "unknown code (1)",
        "hipDrvGetErrorString": "unknown code (1)",
        "hipGetLastError": "the thread's last failure but not ready (600), then cleared; before ROCm 7 its last result",
        "hipPeekAtLastError": "the same, not cleared",
        "hipExtGetLastError": "the last result; not in the layout `old`",
    },
    "Devices": {
        "hipGetDeviceCount": (
            "DEVMEM_EMULATOR_DEVICES (2), reduced by ROCR_VISIBLE_DEVICES, then by HIP_VISIBLE_DEVICES or, if that is empty, "
            "CUDA_VISIBLE_DEVICES: ordinals or GPU- identities, up to the first unknown one; an empty list hides nothing; no "
            "device (100)"
        ),
        "hipGetDevice": "of the thread; initially 0",
        "hipSetDevice": "ordinal (101)",
        "hipDeviceGet": "ordinal (101)",
        "hipDeviceGetName": "device (101)",
        "hipDevicePrimaryCtxRetain": "device (101), no place for the context (1); one for each device",
        "hipDevicePrimaryCtxRelease": "device (101)",
        "hipDeviceGetUuid": "device (101); sixteen hexadecimal digits, as after GPU- in lists",
        "hipDeviceTotalMem": "device (101); DEVMEM_EMULATOR_MEMORY (8 GiB, committed on first access)",
        "hipDeviceGetAttribute": (
            "device (101), attribute (1); unlisted attributes are 0. Migration by HSA_XNACK=1, integrated by "
            "DEVMEM_EMULATOR_INTEGRATED=1, large BAR by DEVMEM_EMULATOR_LARGE_BAR=1"
        ),
        "hipGetDevicePropertiesR0600": "device (101); the layout of ROCm 6; not in the layout `old`",
        "hipDeviceGetPCIBusId": "device (101), room for the text (1)",
        "hipDeviceGetByPCIBusId": "no such bus (1)",
        "hipDeviceComputeCapability": "device (101)",
        "hipDeviceSynchronize": "waits for the work queued on all streams; publishes coarse-grained host memory",
        "hipDeviceReset": "of the current device: ends streams, discards queued work, frees memory and handles",
        "hipGetDeviceFlags": "",
        "hipDeviceGetStreamPriorityRange": "1 to -1",
        "hipDeviceCanAccessPeer": "devices (101); 1 for two different devices",
        "hipDeviceEnablePeerAccess": "flags (1), device, itself (101), twice (704); copies do not need it",
        "hipDeviceDisablePeerAccess": "device (101), not enabled (705)",
        "hipDeviceGetP2PAttribute": "devices, the same one twice (101), attribute (1)",
        "hipExtGetLinkTypeAndHopCount": "devices, the same one twice (101); PCI Express, one hop",
    },
    "Device memory": {
        "hipMalloc": "no room (2); zero bytes give NULL; poisoned; the host cannot access the address",
        "hipExtMallocWithFlags": "flags, signal memory of another size than 8 (1); the host can access signal memory",
        "hipMallocPitch": "rows of multiples of 256",
        "hipMalloc3D": "as above",
        "hipFree": (
            "unknown, freed, registered, opened from another process (1); any address within a block frees it, host memory too; "
            "waits for the device's streams, for pool memory only before ROCm 7"
        ),
        "hipMemGetInfo": "exact to 512 bytes",
        "hipMemGetAddressRange": "unknown address (500)",
        "hipMemPtrGetInfo": "unknown address (1)",
        "hipPointerGetAttributes": "an unknown address is of no type, before ROCm 7 an error (1)",
        "hipPointerGetAttribute": "unknown address, attribute, the host pointer of device memory (1); P2P tokens (801)",
        "hipDrvPointerGetAttributes": "an unknown address gives zeros",
    },
    "Host memory": {
        "hipHostMalloc": (
            "coherent and non-coherent (1), no room (2); zero bytes give NULL. Coarse-grained if non-coherent, or if flags are "
            "set but none of coherent, mapped, NUMA, unless HIP_HOST_COHERENT=1: the host then sees what the device wrote after "
            "waiting for a stream or the device, after a copy that waits, or after an event with ReleaseToSystem"
        ),
        "hipHostAlloc": "as above, flags over 7 (1); not in the layout `old`",
        "hipHostFree": "as hipFree",
        "hipHostGetDevicePointer": "flags, unknown address (1); another address for registered memory",
        "hipHostGetFlags": "memory that hipHostMalloc did not make (1); the flags as given",
        "hipHostRegister": (
            "zero bytes, flags, device memory, unmapped memory (1); from 7.3 on known memory or overlap by one byte (712); "
            "before, a second registration of an address succeeds, has no effect and can never be undone"
        ),
        "hipHostUnregister": (
            "NULL (1), unknown (713), other than the start of a registered range (the process aborts); waits for the device"
        ),
    },
    "Managed memory": {
        "hipMallocManaged": "zero bytes, flags (1)",
        "hipMemPrefetchAsync": "not managed, zero bytes, location, flags (1), device (101); moves nothing",
        "hipMemPrefetchAsync_v2": "as above; not in the layout `old`",
        "hipMemAdvise": "memory that is not managed, zero bytes, advice (1), device (101); has no effect",
        "hipMemAdvise_v2": "as above; not in the layout `old`",
        "hipMemPrefetchBatchAsync": _HINTS + "indices, no place (1), device (101); moves nothing",
        "hipMemDiscardBatchAsync": _HINTS + "without HSA_XNACK=1 (801); the bytes change in stream order",
        "hipMemDiscardAndPrefetchBatchAsync": _HINTS
        + "indices, no place (1), device (101), without HSA_XNACK=1 (801); the bytes change in stream order",
    },
    "Pools (none in the layout `old`)": {
        "hipMallocAsync": _POOLS + "no room (2); zero bytes give NULL, before ROCm 7 (1); allocated in stream order",
        "hipMallocFromPoolAsync": "as above; unknown pool (1), its byte limit (2)",
        "hipFreeAsync": "unknown (1), NULL (before ROCm 7: 1); freed in stream order; other memory after a wait for the device",
        "hipMemPoolCreate": _POOLS + "type of allocation, location (1), handles other than file descriptors (801)",
        "hipMemPoolDestroy": "unknown, a default pool (1); freed after its last block",
        "hipMemPoolSetAttribute": "unknown pool or attribute, high marks other than 0 (1)",
        "hipMemPoolGetAttribute": "unknown pool or attribute (1)",
        "hipMemPoolTrimTo": "unknown pool (1); keeps blocks whose free has not run",
        "hipMemPoolSetAccess": "location, flags, removal of its own device (1), device (101); copies do not check it",
        "hipMemPoolGetAccess": "unknown pool, location (1), device (101)",
        "hipDeviceGetDefaultMemPool": _POOLS + "device (101)",
        "hipDeviceGetMemPool": _POOLS + "device (101)",
        "hipDeviceSetMemPool": "device (101), unknown or imported pool, one of another device (1)",
        "hipMemPoolExportToShareableHandle": "pool made without the type, flags (1); a new file descriptor each time",
        "hipMemPoolImportFromShareableHandle": "flags (1), no file of a pool (2); gives no memory, has no access until it is set",
        "hipMemPoolExportPointer": "NULL (1), anything but the start of live memory of a shareable pool (2)",
        "hipMemPoolImportPointer": "another pool's data, no access, exporter exited (2); again: the same address, not counted",
    },
    "Virtual memory": {f"hipMem{name}": what for name, what in VIRTUAL.items()}
    | {
        "hipMemImportFromShareableHandle": VIRTUAL["ImportFromShareableHandle"]
        + "; a file descriptor is given by its address before ROCm 7.1"
    },
    "Sharing": {
        "hipIpcGetMemHandle": "anything but the start of plain device memory (17)",
        "hipIpcOpenMemHandle": (
            "flags other than 1 (1), a handle of this process (201), exporter exited (17); each call gives another address"
        ),
        "hipIpcCloseMemHandle": "NULL (1), not opened (400)",
    },
    "Copies": {
        "hipMemcpy": _COPY + _KINDS + _BLOCKING,
        "hipMemcpyAsync": _COPY + _KINDS + _ASYNC,
        "hipMemcpyWithStream": _COPY + _KINDS + _BLOCKING,
        "hipMemcpyHtoD": _COPY + _BLOCKING,
        "hipMemcpyHtoDAsync": _COPY + _ASYNC,
        "hipMemcpyDtoH": _COPY + _BLOCKING,
        "hipMemcpyDtoHAsync": _COPY + _ASYNC,
        "hipMemcpyDtoD": _COPY + _BLOCKING,
        "hipMemcpyDtoDAsync": _COPY + _ASYNC,
        "hipMemcpyPeer": "devices (101), which are not compared with the addresses; " + _COPY + _BLOCKING,
        "hipMemcpyPeerAsync": "devices (101), which are not compared with the addresses; " + _COPY + _ASYNC,
        "hipMemcpyBatchAsync": (
            "before ROCm 7.1, attributes before 7.3 (801); no copies, zero bytes, the legacy stream (1; a guess); "
            + _COPY
            + _ASYNC
            + "; not in the layout `old`"
        ),
        "hipMemcpy2D": _COPY + _KINDS + _PITCH,
        "hipMemcpy2DAsync": _COPY + _KINDS + _PITCH,
        "hipMemcpyParam2D": _COPY + _PITCH + "; types (1), arrays (801)",
        "hipMemcpyParam2DAsync": _COPY + _PITCH + "; types (1), arrays (801)",
        "hipMemcpy3D": _COPY + _KINDS + _PITCH + "; planes shorter than the box (1), arrays (801)",
        "hipMemcpy3DAsync": _COPY + _KINDS + _PITCH + "; planes shorter than the box (1), arrays (801)",
        "hipDrvMemcpy3D": _COPY + _PITCH + "; types, planes shorter than the box (1), arrays (801)",
        "hipDrvMemcpy3DAsync": _COPY + _PITCH + "; types, planes shorter than the box (1), arrays (801)",
    },
    "Fills": {
        **dict.fromkeys(
            ("hipMemset", "hipMemsetAsync", "hipMemsetD8", "hipMemsetD8Async"),
            "unknown address, more than its allocation holds (1)",
        ),
        **dict.fromkeys(
            ("hipMemsetD16", "hipMemsetD16Async", "hipMemsetD32", "hipMemsetD32Async"),
            "unknown address, more than its allocation holds, alignment (1)",
        ),
        **dict.fromkeys(
            ("hipMemset2D", "hipMemset2DAsync"),
            "unknown address, more than its allocation holds, pitch (1)",
        ),
        **dict.fromkeys(
            ("hipMemset3D", "hipMemset3DAsync"),
            "unknown address, more than its allocation holds, pitch, planes that overlap (1); checks all planes before it writes "
            "one",
        ),
    },
    "Streams": {
        "hipStreamCreate": "",
        "hipStreamCreateWithFlags": "flags (1)",
        "hipStreamCreateWithPriority": "flags (1); priorities are clamped, and do not change the order",
        "hipStreamDestroy": _STREAM + ", a default stream (400); queued work still runs",
        "hipStreamQuery": _STREAM + "; not ready (600); does not publish coarse-grained memory",
        "hipStreamSynchronize": _STREAM + "; publishes coarse-grained host memory",
        "hipStreamWaitEvent": _STREAM + "; event " + _EVENT + ", flags (1); waits for the last record before the call",
        "hipStreamGetFlags": _STREAM,
        "hipStreamGetPriority": _STREAM,
        "hipStreamGetDevice": _STREAM + "; not in the layout `old`",
        "hipGetStreamDeviceId": "as above, but returns the device, or -1",
        "hipStreamGetId": _STREAM + "; not in the layout `old`",
        "hipStreamWaitValue32": _STREAM + "; alignment, address, flags (1)",
        "hipStreamWaitValue64": _STREAM + "; alignment, address, flags (1)",
        "hipStreamWriteValue32": _STREAM + "; alignment, address, flags (1)",
        "hipStreamWriteValue64": _STREAM + "; alignment, address, flags (1)",
        "hipLaunchHostFunc": _STREAM + "; no function (1); runs in stream order, may not call the runtime (801)",
    },
    "Capture of graphs": {
        "hipStreamBeginCapture": _STREAM + "; the legacy stream (900), twice (401), mode (1); " + _CAPTURED,
        "hipStreamEndCapture": _STREAM
        + "; not capturing (401), another thread unless relaxed (908), invalidated (901)",
        "hipStreamIsCapturing": _STREAM + "; the legacy stream, while it waits for a capturing stream (906)",
        "hipThreadExchangeStreamCaptureMode": "mode (1)",
        "hipGraphInstantiate": "unknown (1)",
        "hipGraphInstantiateWithFlags": "unknown (1); the flags do nothing",
        "hipGraphLaunch": _STREAM
        + "; unknown (1), memory that was freed (1); the nodes run in the order of the stream",
        "hipGraphDestroy": "unknown (1)",
        "hipGraphExecDestroy": "unknown (1)",
    },
    "Events": {
        "hipEventCreate": "",
        "hipEventCreateWithFlags": "flags, more than one scope of release (1); shared between processes (801)",
        "hipEventDestroy": _EVENT + "; streams continue to wait for it",
        "hipEventRecord": _EVENT + "; stream of another device (400)",
        "hipEventRecordWithFlags": "as above; flags (1); not in the layout `old`",
        "hipEventQuery": _EVENT + ", not ready (600); one never recorded is complete",
        "hipEventSynchronize": _EVENT,
        "hipEventElapsedTime": "unknown, not recorded, without timing, of two devices (400), not ready (600)",
    },
    "Device code": {
        "__hipRegisterFatBinary": "counted; nothing in it is read",
        "__hipUnregisterFatBinary": "counted",
        "__hipRegisterFunction": "counted",
        "__hipRegisterVar": "counted",
        "__hipPushCallConfiguration": "of the thread; one, not a stack",
        "__hipPopCallConfiguration": "the one that was pushed last",
    },
}
