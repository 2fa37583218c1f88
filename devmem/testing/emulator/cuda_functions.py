"""Every function of the emulated CUDA driver, and what is checked of its arguments and its order."""

from __future__ import annotations

# Said once, for all of them: the count of calls, a planned failure, a forked child (3), a process that is ending (4),
# cuInit not called (3), a driver call from a host function (800); and, for all that work in a context: no context
# current (201), one destroyed or reset (709), a sticky error of earlier work.
COMMON = (
    "Of every call: counted; can be made to fail; not initialised or forked child (3); process ending (4); called from "
    "a host function (800). Where a context is needed: none current (201), destroyed or reset (709), sticky error."
)

_COPY = "every byte within one live allocation; unknown, freed or unmapped addresses (1); "
_PAGEABLE = "pageable source read before the call returns, pageable destination written before it does, pinned later"
_BLOCKING = "as the vendor's page on synchronisation says: pageable source waits for the stream and is staged"
_BOX = "pitch and height against the box (1), pitch over the maximum (1), arrays (801); "
_STREAM = "handle unknown or destroyed (400)"

_CAPTURED = (
    "until it ends: plain allocating and freeing, registering, pools as objects, asking or waiting for events (900), in the "
    "threads whose mode lets them; asking or waiting for the stream or its context (900); work on the legacy stream (906) where "
    "that waits for it: each spoils it; work on the stream other than recording an event (801), which then can be neither asked "
    "nor waited for (907)"
)

FUNCTIONS: dict[str, dict[str, str]] = {
    "Driver and devices": {
        "cuInit": "flags (1); no device (100)",
        "cuDriverGetVersion": "13.0, or DEVMEM_EMULATOR_CUDA_VERSION, which hides newer functions",
        "cuGetProcAddress": "name and version; per-thread flavour; newer than the driver or unknown (500)",
        "cuGetErrorName": "unknown code (1)",
        "cuGetErrorString": "unknown code (1)",
        "cuDeviceGet": "ordinal (101)",
        "cuDeviceGetCount": "DEVMEM_EMULATOR_DEVICES (2), CUDA_VISIBLE_DEVICES by ordinal",
        "cuDeviceGetName": "device (101)",
        "cuDeviceGetUuid": "device (101); one for each physical ordinal",
        "cuDeviceTotalMem": "device (101); DEVMEM_EMULATOR_MEMORY (8 GiB, taken as it is touched)",
        "cuDeviceGetAttribute": "device (101), attribute (1); unlisted attributes are 0",
        "cuDeviceGetPCIBusId": "device (101), room for the text (1)",
        "cuDeviceGetByPCIBusId": "no such bus (101)",
        "cuDeviceComputeCapability": "device (101)",
        "cuDeviceCanAccessPeer": "devices (101); every pair can, no device itself",
        "cuDeviceGetP2PAttribute": "devices (101), the same one twice (101), attribute (1)",
    },
    "Contexts": {
        "cuDevicePrimaryCtxRetain": "device (101); counted",
        "cuDevicePrimaryCtxRelease": "released more often than retained (201); the last one resets",
        "cuDevicePrimaryCtxReset": "ends streams, drops queued work, forgets memory and handles; references stay",
        "cuDevicePrimaryCtxGetState": "device (101)",
        "cuDevicePrimaryCtxSetFlags": "device (101), flags (1)",
        "cuCtxCreate": "device (101), flags (1); parameters of newer forms (801); pushed",
        "cuCtxDestroy": "unknown or primary (201)",
        "cuCtxGetCurrent": "of the calling thread; a destroyed one is still named",
        "cuCtxSetCurrent": "unknown context (201); none pops",
        "cuCtxPushCurrent": "unknown context (201); depth of 64",
        "cuCtxPopCurrent": "empty stack (201)",
        "cuCtxGetDevice": "none current (201)",
        "cuCtxGetFlags": "",
        "cuCtxGetId": "a reset makes a new one",
        "cuCtxGetApiVersion": "",
        "cuCtxSynchronize": "waits for what all streams hold now; gives pool memory over the threshold back",
        "cuCtxGetStreamPriorityRange": "0 to -5",
        "cuCtxEnablePeerAccess": "flags (1), unknown context (201), own device (101), twice (704)",
        "cuCtxDisablePeerAccess": "not enabled (705)",
    },
    "Device memory": {
        "cuMemAlloc": "zero bytes (1), no room (2); poisoned, at an address that the host cannot touch",
        "cuMemAllocPitch": "zero size, element of another size than 4, 8, 16 (1)",
        "cuMemFree": "unknown, interior, freed (1); waits for the device's streams, but not for pool memory",
        "cuMemGetInfo": "exact to 512 bytes",
        "cuMemGetAddressRange": "unknown address (500)",
        "cuPointerGetAttribute": "unknown address (1); the host pointer of device memory (1); P2P tokens (801)",
        "cuPointerGetAttributes": "an unknown address gives zeros",
    },
    "Host memory": {
        "cuMemAllocHost": "zero bytes (1)",
        "cuMemHostAlloc": "zero bytes, flags (1)",
        "cuMemFreeHost": "unknown, interior, freed (1); queued copies that still use it poison the context (700)",
        "cuMemHostGetDevicePointer": "flags, memory that is not page-locked (1); the same address",
        "cuMemHostGetFlags": "memory that is not page-locked (1)",
        "cuMemHostRegister": "nothing, flags, memory that is not there (1); overlap by one byte (712)",
        "cuMemHostUnregister": "unknown (713), interior (1); queued copies that still use it poison the context (700)",
    },
    "Managed memory": {
        "cuMemAllocManaged": "zero bytes, flags (1)",
        "cuMemPrefetchAsync": "not managed, zero bytes, location, flags (1), device (101); moves nothing",
        "cuMemAdvise": "memory that is not managed, zero bytes, advice (1), device (101); has no effect",
        "cuStreamAttachMemAsync": "memory that is not managed, part of it, flags (1); has no effect",
    },
    "Pools": {
        "cuMemAllocAsync": "zero bytes (1), no room (2); born on the stream: other streams that come too early get 700",
        "cuMemAllocFromPoolAsync": "as above; unknown pool (1), its byte limit (2)",
        "cuMemFreeAsync": "unknown, interior, freed, not of a pool (1); dies on the stream: later users get 700",
        "cuMemPoolCreate": "type of allocation (1), host memory and shareable handles (801), device (101)",
        "cuMemPoolDestroy": "unknown, a default pool (1); lives on until its memory is freed",
        "cuMemPoolSetAttribute": "unknown pool or attribute, high marks other than 0 (1)",
        "cuMemPoolGetAttribute": "unknown pool or attribute (1)",
        "cuMemPoolTrimTo": "unknown pool (1); keeps what frees have not reached",
        "cuMemPoolSetAccess": "location, flags, its own device shut out (1), device (101); not enforced in copies",
        "cuMemPoolGetAccess": "unknown pool, location (1), device (101)",
        "cuDeviceGetDefaultMemPool": "device (101)",
        "cuDeviceGetMemPool": "device (101)",
        "cuDeviceSetMemPool": "device (101), unknown pool or one of another device (1)",
    },
    "Sharing": {
        "cuIpcGetMemHandle": "the base of plain device memory, nothing else (1)",
        "cuIpcOpenMemHandle": "a handle of this process (201), no handle, flags (1), exporter gone (205); counted",
        "cuIpcCloseMemHandle": "not opened (1)",
    },
    "Copies": {
        "cuMemcpy": _COPY + _BLOCKING,
        "cuMemcpyAsync": _COPY + _PAGEABLE,
        "cuMemcpyHtoD": _COPY + "a device address as source (1); " + _BLOCKING,
        "cuMemcpyHtoDAsync": _COPY + "a device address as source (1); " + _PAGEABLE,
        "cuMemcpyDtoH": _COPY + "complete on return",
        "cuMemcpyDtoHAsync": _COPY + _PAGEABLE,
        "cuMemcpyDtoD": _COPY + "does not wait",
        "cuMemcpyDtoDAsync": _COPY,
        "cuMemcpyPeer": _COPY + "each address on its context's device (1); serialised with both contexts",
        "cuMemcpyPeerAsync": _COPY + "each address on its context's device (1)",
        "cuMemcpy2D": _COPY + _BOX + _BLOCKING,
        "cuMemcpy2DUnaligned": _COPY + "as above, any pitch",
        "cuMemcpy2DAsync": _COPY + _BOX + _PAGEABLE,
        "cuMemcpy3D": _COPY + _BOX + _BLOCKING,
        "cuMemcpy3DAsync": _COPY + _BOX + _PAGEABLE,
        "cuMemcpyBatchAsync": _COPY + "legacy stream, attributes, indices (1); run last to first; read in stream order",
    },
    "Fills": {
        "cuMemsetD8": _COPY,
        "cuMemsetD16": _COPY + "alignment (1)",
        "cuMemsetD32": _COPY + "alignment (1)",
        "cuMemsetD8Async": _COPY,
        "cuMemsetD16Async": _COPY + "alignment (1)",
        "cuMemsetD32Async": _COPY + "alignment (1)",
        "cuMemsetD2D8": _COPY + "pitch (1)",
        "cuMemsetD2D16": _COPY + "pitch, alignment (1)",
        "cuMemsetD2D32": _COPY + "pitch, alignment (1)",
        "cuMemsetD2D8Async": _COPY + "pitch (1)",
        "cuMemsetD2D16Async": _COPY + "pitch, alignment (1)",
        "cuMemsetD2D32Async": _COPY + "pitch, alignment (1)",
    },
    "Streams": {
        "cuStreamCreate": "flags (1)",
        "cuStreamCreateWithPriority": "flags (1); priorities are clamped, and do not change the order",
        "cuStreamDestroy": _STREAM + ", a default stream (400); queued work goes on",
        "cuStreamQuery": _STREAM + "; not ready (600); the legacy stream asks its blocking streams too",
        "cuStreamSynchronize": _STREAM + "; the legacy stream waits for its blocking streams too",
        "cuStreamWaitEvent": _STREAM + "; event (400), flags (1); means the last record before the call",
        "cuStreamGetPriority": _STREAM,
        "cuStreamGetFlags": _STREAM,
        "cuStreamGetCtx": _STREAM,
        "cuStreamGetDevice": _STREAM,
        "cuStreamGetId": _STREAM,
        "cuStreamWaitValue32": _STREAM + "; alignment, address, flags (1), NOR (801)",
        "cuStreamWriteValue32": _STREAM + "; alignment, address, flags (1)",
        "cuLaunchHostFunc": _STREAM + "; no function (1); runs in its turn, without the driver (800)",
    },
    "Capture of graphs": {
        "cuStreamBeginCapture": _STREAM + "; the legacy stream (900), twice (401), mode (1); " + _CAPTURED,
        "cuStreamEndCapture": _STREAM
        + "; not capturing (401), another thread unless relaxed (908), spoilt (901); empty graph",
        "cuStreamIsCapturing": _STREAM + "; the legacy stream while one that it waits for captures (906)",
        "cuStreamGetCaptureInfo": _STREAM + "; as above; the status and the number of the capture",
        "cuThreadExchangeStreamCaptureMode": "mode (1)",
        "cuGraphDestroy": "unknown (1)",
    },
    "Events": {
        "cuEventCreate": "flags (1); shared between processes (801)",
        "cuEventDestroy": "unknown (400); streams that wait for it still do",
        "cuEventRecord": "unknown, stream of another context (400)",
        "cuEventRecordWithFlags": "as above; flags (1)",
        "cuEventQuery": "unknown (400), not ready (600); one never recorded is complete",
        "cuEventSynchronize": "unknown (400)",
        "cuEventElapsedTime": "unknown, not recorded, without timing, of two devices (400), not ready (600)",
    },
}
