"""The functions of the emulated CUDA runtime, with the checks of their arguments and of the order of calls."""

from __future__ import annotations

COMMON = (
    "Every call is counted and can be made to fail. What the driver checks is checked by the driver that lies below: its "
    "status is the call's, as the two libraries number their errors alike. Calls that need a context make the primary context "
    "of the thread's device current where none is, and retain it again after a reset. Every call checks: no driver, or one "
    "older than the runtime (35)."
)

_STREAM = "handle unknown or destroyed (400)"
_COPY = "every byte within one live allocation (1); unknown kind (21); a direction that the addresses contradict (1)"
_PITCH = "; pitch below the width (12), arrays (801)"
_SYMBOL = "not registered (13)"
_FUNCTION = "not registered (98)"
_LAUNCH = (
    _FUNCTION
    + ", grid or block of nothing or too large (9), stream (400); then 801, or with DEVMEM_EMULATOR_LAUNCHES=skip 0"
)
_AS_DRIVER = "as in the driver"
_PLANES = "as in the driver; pitch (12); planes that overlap (1); checks all planes before it writes one"

FUNCTIONS: dict[str, dict[str, str]] = {
    "Runtime and errors": {
        "cudaRuntimeGetVersion": "13.0, or 12.9 in libcudart.so.12",
        "cudaDriverGetVersion": "of the driver below; 0 where there is none",
        "cudaGetErrorName": "returns the text",
        "cudaGetErrorString": "returns the text",
        "cudaGetLastError": "the thread's last failure, then cleared unless its context is lost",
        "cudaPeekAtLastError": "the same, not cleared",
        "cudaGetDriverEntryPoint": "as below, for the runtime's own version; name, flags (1)",
        "cudaGetDriverEntryPointByVersion": "name, flags (1); a function that is not there is no error",
    },
    "Devices": {
        "cudaGetDeviceCount": "no device (100)",
        "cudaGetDevice": "of the current context, else of the thread; initially 0",
        "cudaSetDevice": "ordinal (101); makes its primary context current",
        "cudaInitDevice": "ordinal (101), flags (1)",
        "cudaDeviceReset": "frees everything on the current device",
        "cudaDeviceSynchronize": "waits for the work queued on all streams",
        "cudaDeviceGetAttribute": _AS_DRIVER,
        "cudaGetDeviceProperties": "device (101); in libcudart.so.12 cudaGetDeviceProperties_v2, with its own layout",
        "cudaDeviceGetPCIBusId": _AS_DRIVER,
        "cudaDeviceGetByPCIBusId": _AS_DRIVER,
        "cudaGetDeviceFlags": _AS_DRIVER,
        "cudaSetDeviceFlags": _AS_DRIVER,
        "cudaDeviceGetStreamPriorityRange": "0 to -5",
        "cudaDeviceCanAccessPeer": _AS_DRIVER,
        "cudaDeviceEnablePeerAccess": "ordinal, own device (101), flags (1), twice (704)",
        "cudaDeviceDisablePeerAccess": "ordinal (101), not enabled (705)",
        "cudaDeviceGetP2PAttribute": _AS_DRIVER,
    },
    "Device memory": {
        "cudaMalloc": "no room (2); zero bytes give NULL",
        "cudaMallocPitch": "no room (2); nothing gives NULL",
        "cudaMalloc3D": "no room (2); nothing gives NULL",
        "cudaFree": "unknown, interior, freed (1); NULL does nothing",
        "cudaMemGetInfo": _AS_DRIVER,
        "cudaPointerGetAttributes": "an unknown address is unregistered host memory",
    },
    "Host memory": {
        "cudaMallocHost": "zero bytes give NULL",
        "cudaHostAlloc": "flags (1); zero bytes give NULL",
        "cudaFreeHost": "unknown, interior, freed (1); NULL does nothing",
        "cudaHostRegister": _AS_DRIVER,
        "cudaHostUnregister": _AS_DRIVER,
        "cudaHostGetDevicePointer": _AS_DRIVER,
        "cudaHostGetFlags": _AS_DRIVER,
    },
    "Managed memory": {
        "cudaMallocManaged": _AS_DRIVER,
        "cudaMemPrefetchAsync": "as in the driver; in libcudart.so.12 also _v2, with a location",
        "cudaMemAdvise": "as in the driver; in libcudart.so.12 also _v2, with a location",
        "cudaStreamAttachMemAsync": _AS_DRIVER,
    },
    "Pools": {
        "cudaMallocAsync": "as in the driver; zero bytes give NULL",
        "cudaMallocFromPoolAsync": "as in the driver; zero bytes give NULL",
        **dict.fromkeys(
            (
                "cudaFreeAsync",
                "cudaMemPoolCreate",
                "cudaMemPoolDestroy",
                "cudaMemPoolSetAttribute",
                "cudaMemPoolGetAttribute",
                "cudaMemPoolTrimTo",
                "cudaMemPoolSetAccess",
                "cudaMemPoolGetAccess",
                "cudaDeviceGetDefaultMemPool",
                "cudaDeviceGetMemPool",
                "cudaDeviceSetMemPool",
            ),
            _AS_DRIVER,
        ),
    },
    "Sharing": {
        "cudaIpcGetMemHandle": _AS_DRIVER,
        "cudaIpcOpenMemHandle": "as in the driver; flags other than 1 (1)",
        "cudaIpcCloseMemHandle": _AS_DRIVER,
        "cudaIpcGetEventHandle": _AS_DRIVER,
        "cudaIpcOpenEventHandle": _AS_DRIVER,
    },
    "Copies": {
        "cudaMemcpy": _COPY,
        "cudaMemcpyAsync": _COPY,
        "cudaMemcpy2D": _COPY + _PITCH,
        "cudaMemcpy2DAsync": _COPY + _PITCH,
        "cudaMemcpy3D": _COPY + _PITCH,
        "cudaMemcpy3DAsync": _COPY + _PITCH,
        "cudaMemcpyPeer": "as in the driver; ordinals (101)",
        "cudaMemcpyPeerAsync": "as in the driver; ordinals (101)",
        "cudaMemcpyBatchAsync": "as in the driver; which copy was refused is not told",
        "cudaMemcpyToSymbol": _SYMBOL + ", beyond it (1), kind (21)",
        "cudaMemcpyToSymbolAsync": _SYMBOL + ", beyond it (1), kind (21)",
        "cudaMemcpyFromSymbol": _SYMBOL + ", beyond it (1), kind (21)",
        "cudaMemcpyFromSymbolAsync": _SYMBOL + ", beyond it (1), kind (21)",
    },
    "Fills": {
        "cudaMemset": _AS_DRIVER,
        "cudaMemsetAsync": _AS_DRIVER,
        "cudaMemset2D": "as in the driver; pitch (12)",
        "cudaMemset2DAsync": "as in the driver; pitch (12)",
        "cudaMemset3D": _PLANES,
        "cudaMemset3DAsync": _PLANES,
    },
    "Streams": {
        "cudaStreamCreate": "",
        "cudaStreamCreateWithFlags": "flags (1)",
        "cudaStreamCreateWithPriority": "flags (1); priorities are clamped",
        "cudaStreamDestroy": _STREAM,
        "cudaStreamQuery": _STREAM + "; not ready (600), which is the last error too",
        "cudaStreamSynchronize": _STREAM,
        "cudaStreamWaitEvent": _STREAM + "; event (400), flags (1)",
        "cudaStreamGetPriority": _STREAM,
        "cudaStreamGetFlags": _STREAM,
        "cudaStreamGetDevice": _STREAM,
        "cudaStreamGetId": _STREAM,
        "cudaLaunchHostFunc": _AS_DRIVER,
        "cudaStreamAddCallback": _AS_DRIVER,
    },
    "Events": {
        "cudaEventCreate": "",
        "cudaEventCreateWithFlags": "flags, shared between processes with timing (1)",
        "cudaEventDestroy": "unknown (400)",
        "cudaEventRecord": "unknown, stream of another context (400)",
        "cudaEventRecordWithFlags": "as above; flags (1)",
        "cudaEventQuery": "unknown (400), not ready (600)",
        "cudaEventSynchronize": "unknown (400)",
        "cudaEventElapsedTime": "unknown, not recorded, without timing (400), not ready (600)",
    },
    "Capture of graphs": {
        "cudaStreamBeginCapture": _AS_DRIVER,
        "cudaStreamBeginCaptureToGraph": _AS_DRIVER,
        "cudaStreamEndCapture": "as in the driver",
        "cudaStreamIsCapturing": _AS_DRIVER,
        "cudaStreamGetCaptureInfo": "as in the driver; in libcudart.so.12 also _v2 and _v3, which return the graph",
        **dict.fromkeys(
            (
                "cudaThreadExchangeStreamCaptureMode",
                "cudaGraphCreate",
                "cudaGraphDestroy",
                "cudaGraphExecDestroy",
                "cudaGraphGetNodes",
                "cudaGraphInstantiate",
                "cudaGraphInstantiateWithFlags",
                "cudaGraphLaunch",
                "cudaUserObjectCreate",
                "cudaUserObjectRetain",
                "cudaUserObjectRelease",
                "cudaGraphRetainUserObject",
                "cudaDeviceGetGraphMemAttribute",
                "cudaDeviceSetGraphMemAttribute",
            ),
            _AS_DRIVER,
        ),
    },
    "Device code": {
        "__cudaRegisterFatBinary": "kept; nothing in it is read",
        "__cudaRegisterFatBinaryEnd": "",
        "__cudaUnregisterFatBinary": "its kernels and variables are unknown from now on",
        "__cudaInitModule": "",
        "__cudaRegisterFunction": "kept",
        "__cudaRegisterVar": "kept; device memory from its first use on, whose contents are those of any new allocation",
        "__cudaPushCallConfiguration": "of the thread; one, not a stack",
        "__cudaPopCallConfiguration": "the one that was pushed last",
        "__cudaGetKernel": _FUNCTION,
        "__cudaLaunchKernel": _LAUNCH,
        "cudaLaunchKernel": _LAUNCH,
        "cudaLaunchKernelExC": _LAUNCH,
        "cudaLaunchCooperativeKernel": _LAUNCH,
        "cudaFuncGetAttributes": _FUNCTION + "; the same for every kernel",
        "cudaFuncSetAttribute": _FUNCTION + "; has no effect",
        "cudaGetSymbolAddress": _SYMBOL,
        "cudaGetSymbolSize": _SYMBOL,
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor": _FUNCTION + ", threads (1)",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": _FUNCTION + ", threads, flags (1)",
        "cudaProfilerStart": "does nothing",
        "cudaProfilerStop": "does nothing",
    },
}
