"""The functions of the emulated CUDA driver, with the checks of their arguments and of the order of calls."""

from __future__ import annotations

COMMON = (
    "Every call is counted and can be made to fail. Every call checks: not initialised or forked child (3); process "
    "exiting (4); called from a host function (800). Calls that need a context check: none current (201); destroyed or "
    "reset (709); sticky error of earlier work."
)

_HINTS = "legacy stream, flags, ranges that are not managed, no ranges (1); "
_COPY = "every byte within one live allocation; unknown, freed or unmapped addresses (1); "
_PAGEABLE = "pageable source read before the call returns, pageable destination written before it does, pinned later"
_BLOCKING = "waits as the vendor's page on API synchronization says: a pageable source after the stream, then staged"
_BOX = "pitch and height against the box (1), pitch over the maximum (1), arrays (801); "
_STREAM = "handle unknown or destroyed (400)"

_CAPTURED = (
    "until the end of the capture these calls fail: in threads whose mode does not allow them, plain allocation and freeing, "
    "registration, calls of pools, event queries and waits (900); a query of or a wait for the stream or its context (900); "
    "work on the legacy stream, if that waits for this one (906). Each invalidates the capture. Work on the stream other than "
    "copies of page-locked or device memory, fills, host functions and recording an event fails (801); the recorded event can be "
    "neither queried nor waited for (907)"
)

#: Virtual memory, alike in both vendors' libraries; by the names behind ``cuMem`` and ``hipMem``.
VIRTUAL = {
    "GetAllocationGranularity": "location, option (1), device (101); 2 MiB",
    "Create": "size no multiple of 2 MiB, type, location, flags (1), device (101), no room (2); for fabric handles without "
    "DEVMEM_EMULATOR_FABRIC=1 (800)",
    "Release": "unknown (1); the memory goes with its last handle and mapping, in any process",
    "GetAllocationPropertiesFromHandle": "unknown (1); of imported memory too",
    "AddressReserve": "size no multiple of a page, alignment, flags (1); aligned to 2 MiB",
    "AddressFree": "not what was reserved, mapped (1)",
    "Map": "unknown handle, more than there is, not reserved, mapped already, no multiples of 2 MiB, flags (1); no access until "
    "it is set",
    "Unmap": "not what was mapped (1); does not wait: queued work that uses the memory gets 700",
    "SetAccess": "not mapped throughout, flags (1), device (101), other locations (801); without it addresses are unknown",
    "ExportToShareableHandle": "unknown, imported, made without the type, flags (1); a new file descriptor each time, or the 64 "
    "bytes of a fabric handle",
    "ImportFromShareableHandle": "no such memory, exporter of a fabric handle exited (1), device not visible (101)",
}

FUNCTIONS: dict[str, dict[str, str]] = {
    "Driver and devices": {
        "cuInit": "flags (1); no device (100)",
        "cuDriverGetVersion": "13.0, or DEVMEM_EMULATOR_CUDA_VERSION, which hides newer functions",
        "cuGetProcAddress": "name and version; per-thread variants; newer than the driver or unknown (500)",
        "cuGetErrorName": "unknown code (1)",
        "cuGetErrorString": "unknown code (1)",
        "cuDeviceGet": "ordinal (101)",
        "cuDeviceGetCount": "DEVMEM_EMULATOR_DEVICES (2), CUDA_VISIBLE_DEVICES by ordinal",
        "cuDeviceGetName": "device (101)",
        "cuDeviceGetUuid": "device (101); one for each physical ordinal",
        "cuDeviceTotalMem": "device (101); DEVMEM_EMULATOR_MEMORY (8 GiB, committed on first access)",
        "cuDeviceGetAttribute": "device (101), attribute (1), newer than the driver (1); unlisted attributes are 0",
        "cuDeviceGetPCIBusId": "device (101), room for the text (1)",
        "cuDeviceGetByPCIBusId": "no such bus (101)",
        "cuDeviceComputeCapability": "device (101)",
        "cuDeviceCanAccessPeer": "devices (101); 1 for two different devices",
        "cuDeviceGetP2PAttribute": "devices (101), the same one twice (101), attribute (1)",
    },
    "Contexts": {
        "cuDevicePrimaryCtxRetain": "device (101); counted",
        "cuDevicePrimaryCtxRelease": "released more often than retained (201); the last one resets",
        "cuDevicePrimaryCtxReset": "ends streams, discards queued work, frees memory and handles; the reference count stays",
        "cuDevicePrimaryCtxGetState": "device (101)",
        "cuDevicePrimaryCtxSetFlags": "device (101), flags (1)",
        "cuCtxCreate": "device (101), flags (1); parameters of newer forms (801); pushed",
        "cuCtxDestroy": "unknown or primary (201)",
        "cuCtxGetCurrent": "of the calling thread, also if destroyed",
        "cuCtxSetCurrent": "unknown context (201); NULL pops",
        "cuCtxPushCurrent": "unknown context (201); depth of 64",
        "cuCtxPopCurrent": "empty stack (201)",
        "cuCtxGetDevice": "none current (201)",
        "cuCtxGetFlags": "",
        "cuCtxGetId": "new after a reset",
        "cuCtxGetApiVersion": "",
        "cuCtxSynchronize": "waits for the work queued on all streams; pools release memory over their thresholds",
        "cuCtxGetStreamPriorityRange": "0 to -5",
        "cuCtxEnablePeerAccess": "flags (1), unknown context (201), own device (101), twice (704)",
        "cuCtxDisablePeerAccess": "not enabled (705)",
    },
    "Device memory": {
        "cuMemAlloc": "zero bytes (1), no room (2); poisoned; the host cannot access the address",
        "cuMemAllocPitch": "zero size, element of another size than 4, 8, 16 (1)",
        "cuMemFree": "unknown, interior, freed (1); waits for the device's streams, but not for pool memory",
        "cuMemGetInfo": "exact to 512 bytes",
        "cuMemGetAddressRange": "unknown address (500)",
        "cuPointerGetAttribute": "unknown address (1); the host pointer of device memory (1); P2P tokens (801); needs no context",
        "cuPointerGetAttributes": "an unknown address gives zeros; needs no context",
        "cuPointerSetAttribute": "SYNC_MEMOPS of device memory, everything else (1): copies without Async wait",
    },
    "Host memory": {
        "cuMemAllocHost": "zero bytes (1)",
        "cuMemHostAlloc": "zero bytes, flags (1)",
        "cuMemFreeHost": "unknown, interior, freed (1); queued copies that still use it poison the context (700)",
        "cuMemHostGetDevicePointer": "flags, memory that is not page-locked (1); the same address",
        "cuMemHostGetFlags": "memory that is not page-locked (1)",
        "cuMemHostRegister": "nothing, flags, memory that is not there, or is mapped read-only, without READ_ONLY (1); "
        "overlap by one byte (712)",
        "cuMemHostUnregister": "unknown (713), interior (1); queued copies that still use it poison the context (700)",
    },
    "Managed memory": {
        "cuMemAllocManaged": "zero bytes, flags (1)",
        "cuMemPrefetchAsync": "not managed, zero bytes, location, flags (1), device (101); moves nothing",
        "cuMemAdvise": "memory that is not managed, zero bytes, advice (1), device (101); has no effect",
        "cuMemPrefetchBatchAsync": _HINTS + "indices, no place (1), device (101); moves nothing",
        "cuMemDiscardBatchAsync": _HINTS + "the bytes change in stream order",
        "cuMemDiscardAndPrefetchBatchAsync": _HINTS
        + "indices, no place (1), device (101); the bytes change in stream order",
        "cuStreamAttachMemAsync": "memory that is not managed, part of it, flags (1); has no effect",
    },
    "Pools": {
        "cuMemAllocAsync": "zero bytes (1), no room (2); allocated in stream order: earlier use on another stream gets 700",
        "cuMemAllocFromPoolAsync": "as above; unknown pool (1), its byte limit (2)",
        "cuMemFreeAsync": "unknown, interior, freed, not of a pool (1); freed in stream order: later use gets 700",
        "cuMemPoolCreate": (
            "type of allocation, usage other than for decompression (1), host memory, handles other than file descriptors (801), "
            "device (101)"
        ),
        "cuMemPoolDestroy": "unknown, a default pool (1); freed after its last block",
        "cuMemPoolSetAttribute": "unknown pool or attribute, high marks other than 0 (1)",
        "cuMemPoolGetAttribute": "unknown pool or attribute (1)",
        "cuMemPoolTrimTo": "unknown pool (1); keeps blocks whose free has not run",
        "cuMemPoolSetAccess": "location, flags, removal of its own device (1), device (101); copies do not check it",
        "cuMemPoolGetAccess": "unknown pool, location (1), device (101)",
        "cuDeviceGetDefaultMemPool": "device (101)",
        "cuDeviceGetMemPool": "device (101)",
        "cuDeviceSetMemPool": "device (101), unknown or imported pool, one of another device (1)",
        "cuMemPoolExportToShareableHandle": "pool made without the type, flags (1); a new file descriptor each time",
        "cuMemPoolImportFromShareableHandle": "no file of a pool, flags (1), device not visible (101); gives no memory, and has "
        "no access until it is set",
        "cuMemPoolExportPointer": "anything but the start of live memory of a shareable pool (1)",
        "cuMemPoolImportPointer": "another pool's data, no access, exporter exited (1); again: the same address, not counted",
    },
    "Virtual memory": {f"cuMem{name}": what for name, what in VIRTUAL.items()},
    "Sharing": {
        "cuIpcGetMemHandle": "the base of plain device memory, nothing else (1)",
        "cuIpcOpenMemHandle": "a handle of this process (201), no handle, flags (1), exporter exited (205); counted",
        "cuIpcCloseMemHandle": "not opened (1)",
        "cuIpcGetEventHandle": "unknown, or not created for it (400)",
        "cuIpcOpenEventHandle": "no handle (400), one of this process (201), exporter exited (205)",
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
        "cuMemcpyWithAttributesAsync": "as a batch of one copy; from version 13.2 on",
        "cuMemcpyBatchAsync": _COPY + "legacy stream, attributes, indices (1); run last to first; read in stream order",
        "cuMemcpy3DBatchAsync": _COPY
        + "legacy stream, flags, order, empty extents, rows and layers shorter than the copy (1); arrays (801); last to first",
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
        "cuStreamDestroy": _STREAM + ", a default stream (400); queued work still runs",
        "cuStreamQuery": _STREAM + "; not ready (600); the legacy stream queries its blocking streams too",
        "cuStreamSynchronize": _STREAM + "; the legacy stream waits for its blocking streams too",
        "cuStreamWaitEvent": _STREAM + "; event (400), flags (1); waits for the last record before the call",
        "cuStreamGetPriority": _STREAM,
        "cuStreamGetFlags": _STREAM,
        "cuStreamGetCtx": _STREAM + "; there are no green contexts",
        "cuStreamGetDevice": _STREAM,
        "cuStreamGetId": _STREAM,
        "cuStreamWaitValue32": _STREAM + "; alignment, address, flags (1), NOR (801)",
        "cuStreamWriteValue32": _STREAM + "; alignment, address, flags (1)",
        "cuStreamAddCallback": _STREAM + "; flags (1); as below; runs on a failed stream too, with its error",
        "cuLaunchHostFunc": _STREAM + "; no function (1); runs in stream order, may not call the driver (800)",
    },
    "Capture of graphs": {
        "cuStreamBeginCapture": _STREAM + "; the legacy stream (900), twice (401), mode (1); " + _CAPTURED,
        "cuStreamEndCapture": _STREAM + "; not capturing (401), another thread unless relaxed (908), invalidated (901)",
        "cuStreamIsCapturing": _STREAM + "; the legacy stream, while it waits for a capturing stream (906)",
        "cuStreamGetCaptureInfo": _STREAM
        + "; as above; the status, the id and the graph of the capture, no dependencies",
        "cuStreamBeginCaptureToGraph": "as cuStreamBeginCapture; unknown graph, dependencies (1)",
        "cuThreadExchangeStreamCaptureMode": "mode (1)",
        "cuGraphCreate": "flags (1)",
        "cuGraphDestroy": "unknown (1)",
        "cuGraphGetNodes": "unknown (1); how many, not which",
        "cuGraphInstantiateWithFlags": "unknown, flags (1)",
        "cuGraphExecDestroy": "unknown (1)",
        "cuGraphLaunch": _STREAM + "; unknown (1), memory that was freed (1); the nodes run in the order of the stream",
        "cuUserObjectCreate": "no destructor, no references, flags (1)",
        "cuUserObjectRetain": "unknown, no references (1)",
        "cuUserObjectRelease": "unknown, more references than there are (1); the last one calls the destructor",
        "cuGraphRetainUserObject": "unknown, references, flags (1); kept as long as the graph and what was made of it",
        "cuDeviceGetGraphMemAttribute": "device (101), attribute (1); graphs use no memory",
        "cuDeviceSetGraphMemAttribute": "device (101), attribute, other than 0 (1)",
    },
    "Events": {
        "cuEventCreate": "flags, shared between processes with timing (1)",
        "cuEventDestroy": "unknown (400); streams continue to wait for it",
        "cuEventRecord": "unknown, stream of another context (400)",
        "cuEventRecordWithFlags": "as above; flags (1)",
        "cuEventQuery": "unknown (400), not ready (600); one never recorded is complete",
        "cuEventSynchronize": "unknown (400)",
        "cuEventElapsedTime": "unknown, not recorded, without timing, of two devices (400), not ready (600)",
    },
}
