"""Every function of the emulated HIP runtime, and what is checked of its arguments and its order."""

from __future__ import annotations

COMMON = (
    "Of every call: counted; can be made to fail with any code; opens the runtime; no device (the first call 101, later "
    "ones 100; before ROCm 6 always 101); forked child (3); process ending (4); called from a host function (801). Where "
    "work is done: on the thread's current device, with the error of a lost device (from ROCm 7 on; before, the process "
    "ends). Rules that changed go by the emulated version, DEVMEM_EMULATOR_ROCM (10.0)."
)

_COPY = "every byte within its allocation (1); an address that no allocation holds is the program's own memory; "
_WAYS = "kind beyond the known (21) and else ignored, but two unknown addresses must be said to be the host's (1); "
_LATER = (
    "pageable source up to 4 MiB read before the call returns, a longer one waited for; pageable destination and host to "
    "host waited for; pinned later"
)
_ENDED = "has ended on return, but from a device to itself"
_PITCH = "pitch below the width (12); one that is no multiple of 4 is counted as slow"
_STREAM = "unknown or destroyed stream (709; from ROCm 7 on the process dies, SIGSEGV), 1 before ROCm 6.3 (SIGSEGV)"
_EVENT = "none (400), unknown (709)"
_POOLS = "switched off by HIP_MEM_POOL_SUPPORT=0 (801); "

_CAPTURED = (
    "until it ends: plain allocating and freeing, registering, from ROCm 7 on asking or waiting for events (900), in the threads "
    "whose mode lets them; asking or waiting for the stream or its device (900); work on the legacy stream (906) where that "
    "waits for it: each spoils it; work on the stream other than recording an event (801), which then can be neither asked nor "
    "waited for (907)"
)

FUNCTIONS: dict[str, dict[str, str]] = {
    "Runtime and errors": {
        "hipInit": "flags (1)",
        "hipRuntimeGetVersion": "7.15 for ROCm 10, else that of ROCm",
        "hipDriverGetVersion": "the same",
        "hipGetErrorName": "an unknown code is hipErrorUnknown; returns the text",
        "hipGetErrorString": "as above",
        "hipDrvGetErrorName": "unknown code (1)",
        "hipDrvGetErrorString": "unknown code (1)",
        "hipGetLastError": "of the thread: the last failure but not ready (600), until read; before ROCm 7 the last result",
        "hipPeekAtLastError": "the same, and stays",
        "hipExtGetLastError": "the last result, whatever it was; not in the layout `old`",
    },
    "Devices": {
        "hipGetDeviceCount": (
            "DEVMEM_EMULATOR_DEVICES (2), narrowed by ROCR_VISIBLE_DEVICES, then by HIP_VISIBLE_DEVICES or, where that is "
            "empty, CUDA_VISIBLE_DEVICES: ordinals or GPU- identities, cut at the first unknown, empty hides nothing; no "
            "device (100)"
        ),
        "hipGetDevice": "of the thread, 0 at first",
        "hipSetDevice": "ordinal (101)",
        "hipDeviceGet": "ordinal (101)",
        "hipDeviceGetName": "device (101)",
        "hipDeviceGetUuid": "device (101); sixteen hexadecimal digits, what follows GPU- in lists",
        "hipDeviceTotalMem": "device (101); DEVMEM_EMULATOR_MEMORY (8 GiB, taken as it is touched)",
        "hipDeviceGetAttribute": (
            "device (101), attribute (1); unlisted attributes are 0. Migration by HSA_XNACK=1, integrated by "
            "DEVMEM_EMULATOR_INTEGRATED=1, large BAR by DEVMEM_EMULATOR_LARGE_BAR=1"
        ),
        "hipGetDevicePropertiesR0600": "device (101); the layout of ROCm 6; not in the layout `old`",
        "hipDeviceGetPCIBusId": "device (101), room for the text (1)",
        "hipDeviceGetByPCIBusId": "no such bus (1)",
        "hipDeviceComputeCapability": "device (101)",
        "hipDeviceSynchronize": "waits for what all streams hold now; shows coarse-grained host memory",
        "hipDeviceReset": "of the current device: ends streams, drops queued work, forgets memory and handles",
        "hipGetDeviceFlags": "",
        "hipDeviceGetStreamPriorityRange": "1 to -1",
        "hipDeviceCanAccessPeer": "devices (101); every pair can, no device itself",
        "hipDeviceEnablePeerAccess": "flags (1), device, itself (101), twice (704); nothing needs it",
        "hipDeviceDisablePeerAccess": "device (101), not enabled (705)",
        "hipDeviceGetP2PAttribute": "devices, the same one twice (101), attribute (1)",
        "hipExtGetLinkTypeAndHopCount": "devices, the same one twice (101); PCI Express, one hop",
    },
    "Device memory": {
        "hipMalloc": "no room (2); zero bytes give nothing; poisoned, at an address that the host cannot touch",
        "hipExtMallocWithFlags": "flags, signal memory of another size than 8 (1); signal memory is the host's too",
        "hipMallocPitch": "rows of multiples of 256",
        "hipMalloc3D": "as above",
        "hipFree": (
            "unknown, freed, registered, opened from another process (1); any address within frees the whole block, host "
            "memory too; waits for the device's streams, for pool memory only before ROCm 7"
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
            "coherent and non-coherent (1), no room (2); zero bytes give nothing. Coarse-grained if non-coherent, or if there "
            "are flags and none of coherent, mapped, NUMA, unless HIP_HOST_COHERENT=1: what the device writes is then seen "
            "after waiting for a stream or the device, after a copy that waits, and after an event made with ReleaseToSystem"
        ),
        "hipHostAlloc": "as above, flags over 7 (1); not in the layout `old`",
        "hipHostFree": "as hipFree",
        "hipHostGetDevicePointer": "flags, unknown address (1); another address for registered memory",
        "hipHostGetFlags": "memory that hipHostMalloc did not make (1); the flags as given",
        "hipHostRegister": (
            "nothing, flags, device memory, memory that is not there (1); from 7.3 on known memory or overlap by one byte "
            "(712); before, the second registration of an address succeeds, counts for nothing and is never given back"
        ),
        "hipHostUnregister": (
            "none (1), unknown (713), anything but the start of a registered range (the process aborts); waits for the device"
        ),
    },
    "Managed memory": {
        "hipMallocManaged": "zero bytes, flags (1)",
        "hipMemPrefetchAsync": "not managed, zero bytes, location, flags (1), device (101); moves nothing",
        "hipMemPrefetchAsync_v2": "as above; not in the layout `old`",
        "hipMemAdvise": "memory that is not managed, zero bytes, advice (1), device (101); has no effect",
        "hipMemAdvise_v2": "as above; not in the layout `old`",
    },
    "Pools (none in the layout `old`)": {
        "hipMallocAsync": _POOLS + "no room (2); zero bytes give nothing, before ROCm 7 (1); born on the stream",
        "hipMallocFromPoolAsync": "as above; unknown pool (1), its byte limit (2)",
        "hipFreeAsync": "unknown (1), none (before ROCm 7: 1); dies on the stream; other device memory waits for the device",
        "hipMemPoolCreate": _POOLS + "type of allocation, location (1), shareable handles (801)",
        "hipMemPoolDestroy": "unknown, a default pool (1); lives on until its memory is freed",
        "hipMemPoolSetAttribute": "unknown pool or attribute, high marks other than 0 (1)",
        "hipMemPoolGetAttribute": "unknown pool or attribute (1)",
        "hipMemPoolTrimTo": "unknown pool (1); keeps what frees have not reached",
        "hipMemPoolSetAccess": "location, flags, its own device shut out (1), device (101); not enforced in copies",
        "hipMemPoolGetAccess": "unknown pool, location (1), device (101)",
        "hipDeviceGetDefaultMemPool": _POOLS + "device (101)",
        "hipDeviceGetMemPool": _POOLS + "device (101)",
        "hipDeviceSetMemPool": "device (101), unknown pool or one of another device (1)",
    },
    "Sharing": {
        "hipIpcGetMemHandle": "anything but the start of plain device memory (17)",
        "hipIpcOpenMemHandle": "flags other than 1 (1), a handle of this process (201), exporter gone (17); each its address",
        "hipIpcCloseMemHandle": "none (1), not opened (400)",
    },
    "Copies": {
        "hipMemcpy": _COPY + _WAYS + _ENDED,
        "hipMemcpyAsync": _COPY + _WAYS + _LATER,
        "hipMemcpyWithStream": _COPY + _WAYS + _ENDED,
        "hipMemcpyHtoD": _COPY + _ENDED,
        "hipMemcpyHtoDAsync": _COPY + _LATER,
        "hipMemcpyDtoH": _COPY + _ENDED,
        "hipMemcpyDtoHAsync": _COPY + _LATER,
        "hipMemcpyDtoD": _COPY + _ENDED,
        "hipMemcpyDtoDAsync": _COPY + _LATER,
        "hipMemcpyPeer": "devices (101), which are not compared with the addresses; " + _COPY + _ENDED,
        "hipMemcpyPeerAsync": "devices (101), which are not compared with the addresses; " + _COPY + _LATER,
        "hipMemcpyBatchAsync": (
            "before ROCm 7.1, attributes before 7.3 (801); nothing to copy, no bytes, a default stream (1), the last a guess; "
            + _COPY
            + _LATER
            + "; not in the layout `old`"
        ),
        "hipMemcpy2D": _COPY + _WAYS + _PITCH,
        "hipMemcpy2DAsync": _COPY + _WAYS + _PITCH,
        "hipMemcpyParam2D": _COPY + _PITCH + "; types (1), arrays (801)",
        "hipMemcpyParam2DAsync": _COPY + _PITCH + "; types (1), arrays (801)",
        "hipMemcpy3D": _COPY + _WAYS + _PITCH + "; planes shorter than the box (1), arrays (801)",
        "hipMemcpy3DAsync": _COPY + _WAYS + _PITCH + "; planes shorter than the box (1), arrays (801)",
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
            ("hipMemset2D", "hipMemset2DAsync", "hipMemset3D", "hipMemset3DAsync"),
            "unknown address, more than its allocation holds, pitch (1)",
        ),
    },
    "Streams": {
        "hipStreamCreate": "",
        "hipStreamCreateWithFlags": "flags (1)",
        "hipStreamCreateWithPriority": "flags (1); priorities are clamped, and do not change the order",
        "hipStreamDestroy": _STREAM + ", a default stream (400); queued work goes on",
        "hipStreamQuery": _STREAM + "; not ready (600); shows nothing of coarse-grained memory",
        "hipStreamSynchronize": _STREAM + "; shows coarse-grained host memory",
        "hipStreamWaitEvent": _STREAM + "; event " + _EVENT + ", flags (1); means the last record before the call",
        "hipStreamGetFlags": _STREAM,
        "hipStreamGetPriority": _STREAM,
        "hipStreamGetDevice": _STREAM + "; not in the layout `old`",
        "hipStreamGetId": _STREAM + "; not in the layout `old`",
        "hipStreamWaitValue32": _STREAM + "; alignment, address, flags (1)",
        "hipStreamWaitValue64": _STREAM + "; alignment, address, flags (1)",
        "hipStreamWriteValue32": _STREAM + "; alignment, address, flags (1)",
        "hipStreamWriteValue64": _STREAM + "; alignment, address, flags (1)",
        "hipLaunchHostFunc": _STREAM + "; no function (1); runs in its turn, without the runtime (801)",
    },
    "Capture of graphs": {
        "hipStreamBeginCapture": _STREAM + "; the legacy stream (900), twice (401), mode (1); " + _CAPTURED,
        "hipStreamEndCapture": _STREAM
        + "; not capturing (401), another thread unless relaxed (908), spoilt (901); empty graph",
        "hipStreamIsCapturing": _STREAM + "; the legacy stream while one that it waits for captures (906)",
        "hipThreadExchangeStreamCaptureMode": "mode (1)",
        "hipGraphDestroy": "unknown (1)",
    },
    "Events": {
        "hipEventCreate": "",
        "hipEventCreateWithFlags": "flags, more than one scope of release (1); shared between processes (801)",
        "hipEventDestroy": _EVENT + "; streams that wait for it still do",
        "hipEventRecord": _EVENT + "; stream of another device (400)",
        "hipEventRecordWithFlags": "as above; flags (1); not in the layout `old`",
        "hipEventQuery": _EVENT + ", not ready (600); one never recorded is complete",
        "hipEventSynchronize": _EVENT,
        "hipEventElapsedTime": "unknown, not recorded, without timing, of two devices (400), not ready (600)",
    },
}
