/* The null mode of the CUDA front: see null_mode.h. cuGetProcAddress hands these functions out. */
#define _GNU_SOURCE
#include "cuda.h"

#include "null_mode.h"

static uint64_t current = 0;

#define NO_RESULT(X) \
    X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxSetFlags) X(cuCtxDestroy) \
    X(cuCtxSynchronize) X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess) X(cuMemFree) X(cuMemFreeHost) \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemPrefetchAsync) X(cuMemAdvise) \
    X(cuMemPrefetchBatchAsync) X(cuMemDiscardBatchAsync) X(cuMemDiscardAndPrefetchBatchAsync) X(cuMemFreeAsync) X(cuMemPoolDestroy) X(cuMemPoolExportPointer) \
    X(cuMemPoolSetAttribute) X(cuMemPoolTrimTo) X(cuMemPoolSetAccess) X(cuDeviceSetMemPool) X(cuIpcGetMemHandle) \
    X(cuIpcCloseMemHandle) X(cuMemAddressFree) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) \
    X(cuMemSetAccess) X(cuMemGetAllocationPropertiesFromHandle) X(cuMemcpy) X(cuMemcpyAsync) X(cuMemcpyHtoD) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoH) \
    X(cuMemcpyDtoHAsync) X(cuMemcpyDtoD) X(cuMemcpyDtoDAsync) X(cuMemcpyPeer) X(cuMemcpyPeerAsync) X(cuMemcpy2D) \
    X(cuMemcpy2DUnaligned) X(cuMemcpy2DAsync) X(cuMemcpy3D) X(cuMemcpy3DAsync) X(cuMemcpyBatchAsync) X(cuMemcpy3DBatchAsync) \
    X(cuMemcpyWithAttributesAsync) X(cuMemsetD8) \
    X(cuMemsetD16) X(cuMemsetD32) X(cuMemsetD8Async) X(cuMemsetD16Async) X(cuMemsetD32Async) X(cuMemsetD2D8) X(cuMemsetD2D16) \
    X(cuMemsetD2D32) X(cuMemsetD2D8Async) X(cuMemsetD2D16Async) X(cuMemsetD2D32Async) X(cuStreamDestroy) X(cuStreamQuery) \
    X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamAttachMemAsync) X(cuStreamWaitValue32) X(cuStreamWriteValue32) \
    X(cuLaunchHostFunc) X(cuEventDestroy) X(cuEventRecord) X(cuEventRecordWithFlags) X(cuEventQuery) X(cuEventSynchronize) \
    X(cuModuleUnload) X(cuLibraryUnload) X(cuFuncSetAttribute) X(cuFuncSetCacheConfig) X(cuLaunchKernel) X(cuLaunchKernelEx) \
    X(cuLaunchCooperativeKernel) X(cuPointerSetAttribute) X(cuStreamAddCallback) X(cuGraphLaunch) \
    X(cuGraphExecDestroy) X(cuUserObjectRetain) X(cuUserObjectRelease) X(cuGraphRetainUserObject) X(cuIpcGetEventHandle) \
    X(cuStreamBeginCapture) X(cuStreamBeginCaptureToGraph) X(cuGraphDestroy) X(cuProfilerStart) X(cuProfilerStop)

#define HANDLES(X) \
    X(cuDevicePrimaryCtxRetain, CONTEXT_HANDLE) X(cuCtxCreate, CONTEXT_HANDLE) X(cuCtxGetCurrent, current) \
    X(cuCtxPopCurrent, CONTEXT_HANDLE) X(cuMemAlloc, new_block()) X(cuMemAllocAsync, new_block()) \
    X(cuMemAllocFromPoolAsync, new_block()) X(cuIpcOpenMemHandle, DEVICE_ADDRESS) X(cuMemPoolCreate, POOL_HANDLE) \
    X(cuMemPoolImportFromShareableHandle, POOL_HANDLE) X(cuMemPoolImportPointer, DEVICE_ADDRESS) \
    X(cuDeviceGetDefaultMemPool, POOL_HANDLE) X(cuDeviceGetMemPool, POOL_HANDLE) X(cuStreamCreate, new_handle()) \
    X(cuStreamCreateWithPriority, new_handle()) X(cuEventCreate, new_handle()) X(cuModuleLoad, new_handle()) \
    X(cuModuleLoadData, new_handle()) X(cuModuleLoadDataEx, new_handle()) X(cuModuleLoadFatBinary, new_handle()) \
    X(cuModuleGetFunction, new_handle()) X(cuLibraryLoadData, new_handle()) X(cuLibraryLoadFromFile, new_handle()) \
    X(cuLibraryGetKernel, new_handle()) X(cuLibraryGetModule, new_handle()) X(cuKernelGetFunction, new_handle()) \
    X(cuGraphInstantiateWithFlags, new_handle()) X(cuUserObjectCreate, new_handle()) X(cuIpcOpenEventHandle, new_handle()) \
    X(cuGraphCreate, new_handle()) X(cuMemHostAlloc, HOST_ADDRESS) X(cuMemAllocHost, HOST_ADDRESS) \
    X(cuMemAllocManaged, HOST_ADDRESS) X(cuMemCreate, new_handle()) X(cuMemImportFromShareableHandle, new_handle()) \
    X(cuMemAddressReserve, DEVICE_ADDRESS) X(cuMemGetAllocationGranularity, 2 << 20)

#define INTS(X) \
    X(cuMemPoolExportToShareableHandle, -1) X(cuMemExportToShareableHandle, -1) X(cuDriverGetVersion, cuda_version()) X(cuCtxGetDevice, 0) X(cuDeviceCanAccessPeer, 0) \
    X(cuDeviceGetP2PAttribute, 0) X(cuFuncGetAttribute, 1024) X(cuKernelGetAttribute, 1024)

#define OWN_RESULT(X) \
    X(cuDeviceGet) X(cuDevicePrimaryCtxGetState) X(cuCtxSetCurrent) X(cuCtxPushCurrent) X(cuMemGetInfo) \
    X(cuMemHostGetDevicePointer) X(cuMemHostGetFlags) X(cuPointerGetAttribute) X(cuPointerGetAttributes) \
    X(cuStreamGetCtx) X(cuStreamGetCaptureInfo) X(cuStreamEndCapture) X(cuCtxGetStreamPriorityRange)

NO_RESULT(NULL_NO_RESULT)
HANDLES(NULL_HANDLE)
NULL_COMMON(cu)
INTS(NULL_INT)
NULL_STATUS(cuDeviceGet, (int *out, int ordinal), *out = ordinal)
NULL_STATUS(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active), (void)device; *flags = 0; *active = 1)
NULL_STATUS(cuCtxSetCurrent, (uint64_t which), current = which)
NULL_STATUS(cuCtxPushCurrent, (uint64_t which), current = which)
NULL_STATUS(cuMemGetInfo, (size_t *rest, size_t *total), *rest = *total = TOTAL_BYTES)
NULL_STATUS(cuMemHostGetDevicePointer, (uint64_t *out, uint64_t host), *out = host)
NULL_STATUS(cuMemHostGetFlags, (unsigned *out), *out = 0)
NULL_STATUS(cuStreamGetCtx, (uint64_t stream, uint64_t *out), (void)stream; *out = CONTEXT_HANDLE)
NULL_STATUS(cuStreamEndCapture, (uint64_t stream, uint64_t *out), (void)stream; *out = new_handle())
NULL_STATUS(cuStreamGetCaptureInfo, (uint64_t stream, int *out), (void)stream; *out = 0)
NULL_STATUS(cuCtxGetStreamPriorityRange, (int *least, int *greatest), *least = 0; *greatest = -5)

static void one_attribute(void *out, int attribute, uint64_t address)
{
    uint64_t word = attribute == 1 ? CONTEXT_HANDLE : attribute == 3 || attribute == 11 ? address : 0;
    int number = attribute == 2 ? MEMORY_DEVICE : 0;
    bool narrow = attribute == 2 || attribute == 8 || attribute == 9, flag = attribute == 6 || attribute == 10 || attribute == 13;
    memcpy(out, narrow ? (void *)&number : (void *)&word, narrow ? 4 : flag ? 1 : 8);
}

NULL_STATUS(cuPointerGetAttribute, (void *out, int attribute, uint64_t address), one_attribute(out, attribute, address))
NULL_STATUS(cuPointerGetAttributes, (unsigned count, const int *wanted, void **out, uint64_t address),
            for (unsigned index = 0; index < count; index++) one_attribute(out[index], wanted[index], address))

static const struct null_entry entries[] = {
    NO_RESULT(NULL_ENTRY) HANDLES(NULL_ENTRY) INTS(NULL_ENTRY) NULL_COMMON_ENTRIES(NULL_ENTRY, cu) OWN_RESULT(NULL_ENTRY)};

/* Facts about devices have no null form: the strict functions return them, after a real cuInit. */
void *null_function(const char *name) { return null_find(entries, sizeof entries / sizeof *entries, name); }
