/* The functions of the CUDA front; cuda_abi.h has their structs, so that no vendor header is needed. */
#ifndef DEVMEM_EMULATOR_CUDA_H
#define DEVMEM_EMULATOR_CUDA_H

#define FRONT_ENTER core_enter
#define FRONT_LEAVE core_leave

#include "cuda_abi.h"
#include "front.h"

/* The functions of this front, by the names under which they are counted and made to fail. */
#define CUDA_FUNCTIONS(X) \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuGetProcAddress) \
    X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetUuid) X(cuDeviceTotalMem) X(cuDeviceGetAttribute) \
    X(cuDeviceGetPCIBusId) X(cuDeviceGetByPCIBusId) X(cuDeviceComputeCapability) \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxGetState) \
    X(cuDevicePrimaryCtxSetFlags) \
    X(cuCtxCreate) X(cuCtxDestroy) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent) \
    X(cuCtxGetDevice) X(cuCtxGetFlags) X(cuCtxGetId) X(cuCtxGetApiVersion) X(cuCtxSynchronize) X(cuCtxGetStreamPriorityRange) \
    X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess) X(cuDeviceCanAccessPeer) X(cuDeviceGetP2PAttribute) \
    X(cuMemAlloc) X(cuMemAllocPitch) X(cuMemFree) X(cuMemGetInfo) X(cuMemGetAddressRange) \
    X(cuMemAllocHost) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostGetDevicePointer) X(cuMemHostGetFlags) \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemAllocManaged) X(cuMemPrefetchAsync) X(cuMemAdvise) \
    X(cuMemPrefetchBatchAsync) X(cuMemDiscardBatchAsync) X(cuMemDiscardAndPrefetchBatchAsync) \
    X(cuPointerGetAttribute) X(cuPointerGetAttributes) X(cuPointerSetAttribute) \
    X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync) X(cuMemPoolCreate) X(cuMemPoolDestroy) \
    X(cuMemPoolSetAttribute) X(cuMemPoolGetAttribute) X(cuMemPoolTrimTo) X(cuMemPoolSetAccess) X(cuMemPoolGetAccess) \
    X(cuDeviceGetDefaultMemPool) X(cuDeviceGetMemPool) X(cuDeviceSetMemPool) \
    X(cuMemPoolExportToShareableHandle) X(cuMemPoolImportFromShareableHandle) X(cuMemPoolExportPointer) X(cuMemPoolImportPointer) \
    X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle) \
    X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) \
    X(cuMemGetAllocationGranularity) X(cuMemGetAllocationPropertiesFromHandle) X(cuMemExportToShareableHandle) \
    X(cuMemImportFromShareableHandle) X(cuMemcpy) X(cuMemcpyAsync) X(cuMemcpyHtoD) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoH) X(cuMemcpyDtoHAsync) \
    X(cuMemcpyDtoD) X(cuMemcpyDtoDAsync) X(cuMemcpyPeer) X(cuMemcpyPeerAsync) X(cuMemcpy2D) X(cuMemcpy2DUnaligned) \
    X(cuMemcpy2DAsync) X(cuMemcpy3D) X(cuMemcpy3DAsync) X(cuMemcpyBatchAsync) X(cuMemcpy3DBatchAsync) \
    X(cuMemcpyWithAttributesAsync) \
    X(cuMemsetD8) X(cuMemsetD16) X(cuMemsetD32) X(cuMemsetD8Async) X(cuMemsetD16Async) X(cuMemsetD32Async) \
    X(cuMemsetD2D8) X(cuMemsetD2D16) X(cuMemsetD2D32) X(cuMemsetD2D8Async) X(cuMemsetD2D16Async) X(cuMemsetD2D32Async) \
    X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamSynchronize) \
    X(cuStreamWaitEvent) X(cuStreamGetPriority) X(cuStreamGetFlags) X(cuStreamGetCtx) X(cuStreamGetDevice) X(cuStreamGetId) \
    X(cuStreamIsCapturing) X(cuStreamGetCaptureInfo) X(cuStreamBeginCapture) X(cuStreamEndCapture) \
    X(cuStreamBeginCaptureToGraph) X(cuThreadExchangeStreamCaptureMode) X(cuGraphCreate) X(cuGraphDestroy) \
    X(cuGraphExecDestroy) X(cuGraphGetNodes) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuUserObjectCreate) \
    X(cuUserObjectRetain) X(cuUserObjectRelease) X(cuGraphRetainUserObject) X(cuDeviceGetGraphMemAttribute) \
    X(cuDeviceSetGraphMemAttribute) X(cuStreamAddCallback) X(cuStreamAttachMemAsync) X(cuStreamWaitValue32) \
    X(cuStreamWriteValue32) X(cuLaunchHostFunc) \
    X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventRecordWithFlags) X(cuEventQuery) X(cuEventSynchronize) \
    X(cuEventElapsedTime) \
    CUDA_UNSUPPORTED(X)

/* Exported to return CUDA_ERROR_NOT_SUPPORTED; in the null mode they return success. functions.py reads this list. */
#define CUDA_UNSUPPORTED(X) \
    X(cuModuleLoad) X(cuModuleLoadData) X(cuModuleLoadDataEx) X(cuModuleLoadFatBinary) X(cuModuleUnload) \
    X(cuModuleGetFunction) X(cuModuleGetGlobal) X(cuLibraryLoadData) X(cuLibraryLoadFromFile) X(cuLibraryUnload) \
    X(cuLibraryGetKernel) X(cuLibraryGetModule) X(cuKernelGetFunction) X(cuKernelGetAttribute) X(cuFuncGetAttribute) \
    X(cuFuncSetAttribute) X(cuFuncSetCacheConfig) X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuLaunchCooperativeKernel) \
    X(cuMemGetAccess) X(cuMemRetainAllocationHandle) X(cuMemRangeGetAttribute) X(cuProfilerStart) X(cuProfilerStop)

enum { CUDA_FUNCTIONS(FUNCTION_NUMBER) FUNCTION_TOTAL };
_Static_assert(FUNCTION_TOTAL <= MAX_FUNCTIONS, "room for all counters");

int cuda_version(void);
#define DECOMPRESS_SINCE 12080 /* the version that brought what concerns the decompression engine */
void *null_function(const char *name);

#endif
