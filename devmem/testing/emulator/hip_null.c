/* The null mode of the HIP front: see null_mode.h. The loader hands these functions out: see hip_table.c. */
#define _GNU_SOURCE
#include "hip.h"

#include "null_mode.h"

static _Thread_local int current;

#define NO_RESULT(X) \
    X(hipGetLastError) X(hipPeekAtLastError) X(hipExtGetLastError) X(hipDeviceSynchronize) X(hipDeviceReset) \
    X(hipDeviceEnablePeerAccess) X(hipDeviceDisablePeerAccess) X(hipFree) X(hipHostFree) X(hipHostRegister) \
    X(hipHostUnregister) X(hipMemPrefetchAsync) X(hipMemPrefetchAsync_v2) X(hipMemAdvise) X(hipMemAdvise_v2) \
    X(hipMemPrefetchBatchAsync) X(hipMemDiscardBatchAsync) X(hipMemDiscardAndPrefetchBatchAsync) X(hipFreeAsync) \
    X(hipMemPoolDestroy) X(hipMemPoolExportPointer) X(hipMemPoolSetAttribute) X(hipMemPoolTrimTo) X(hipMemPoolSetAccess) X(hipDeviceSetMemPool) \
    X(hipMemAddressFree) X(hipMemRelease) X(hipMemMap) X(hipMemUnmap) X(hipMemSetAccess) X(hipMemGetAllocationPropertiesFromHandle) \
    X(hipIpcGetMemHandle) X(hipIpcCloseMemHandle) X(hipMemcpy) X(hipMemcpyAsync) X(hipMemcpyWithStream) X(hipMemcpyHtoD) \
    X(hipMemcpyHtoDAsync) X(hipMemcpyDtoH) X(hipMemcpyDtoHAsync) X(hipMemcpyDtoD) X(hipMemcpyDtoDAsync) X(hipMemcpyPeer) \
    X(hipMemcpyPeerAsync) X(hipMemcpy2D) X(hipMemcpy2DAsync) X(hipMemcpyParam2D) X(hipMemcpyParam2DAsync) X(hipMemcpy3D) \
    X(hipMemcpy3DAsync) X(hipMemcpyBatchAsync) X(hipDrvMemcpy3D) X(hipDrvMemcpy3DAsync) X(hipMemset) X(hipMemsetAsync) \
    X(hipMemsetD8) X(hipMemsetD8Async) X(hipMemsetD16) X(hipMemsetD16Async) X(hipMemsetD32) X(hipMemsetD32Async) X(hipMemset2D) \
    X(hipMemset2DAsync) X(hipMemset3D) X(hipMemset3DAsync) X(hipStreamDestroy) X(hipStreamQuery) X(hipStreamSynchronize) \
    X(hipStreamWaitEvent) X(hipStreamWaitValue32) X(hipStreamWaitValue64) X(hipStreamWriteValue32) X(hipStreamWriteValue64) \
    X(hipLaunchHostFunc) X(hipEventDestroy) X(hipEventRecord) X(hipEventRecordWithFlags) X(hipEventQuery) \
    X(hipEventSynchronize) X(hipModuleUnload) X(hipModuleLaunchKernel) X(hipExtModuleLaunchKernel) X(hipLaunchKernel) \
    X(hipLaunchCooperativeKernel) X(hipLaunchKernelExC) X(hipDrvLaunchKernelEx) X(hipFuncSetAttribute) X(hipProfilerStart) \
    X(hipProfilerStop) X(hipGraphExecDestroy) X(hipGraphDestroy) X(hipGraphLaunch) X(hipStreamBeginCapture)

#define HANDLES(X) \
    X(hipMalloc, new_block()) X(hipExtMallocWithFlags, new_block()) X(hipMallocAsync, new_block()) \
    X(hipMallocFromPoolAsync, new_block()) X(hipIpcOpenMemHandle, DEVICE_ADDRESS) X(hipMemPoolCreate, POOL_HANDLE) \
    X(hipMemPoolImportFromShareableHandle, POOL_HANDLE) X(hipMemPoolImportPointer, DEVICE_ADDRESS) \
    X(hipDeviceGetDefaultMemPool, POOL_HANDLE) X(hipDeviceGetMemPool, POOL_HANDLE) X(hipStreamCreate, new_handle()) \
    X(hipStreamCreateWithFlags, new_handle()) X(hipStreamCreateWithPriority, new_handle()) X(hipEventCreate, new_handle()) \
    X(hipEventCreateWithFlags, new_handle()) X(hipModuleLoad, new_handle()) X(hipModuleLoadData, new_handle()) \
    X(hipModuleLoadDataEx, new_handle()) X(hipModuleGetFunction, new_handle()) \
    X(hipGraphInstantiate, new_handle()) X(hipGraphInstantiateWithFlags, new_handle()) \
    X(hipHostMalloc, HOST_ADDRESS) X(hipHostAlloc, HOST_ADDRESS) X(hipMallocManaged, HOST_ADDRESS) \
    X(hipMemCreate, new_handle()) X(hipMemImportFromShareableHandle, new_handle()) X(hipMemAddressReserve, DEVICE_ADDRESS) \
    X(hipMemGetAllocationGranularity, 2 << 20)

#define OWN_RESULT(X) \
    X(hipGetDevice) X(hipSetDevice) X(hipDeviceCanAccessPeer) X(hipMemGetInfo) X(hipMemPtrGetInfo) \
    X(hipHostGetDevicePointer) X(hipHostGetFlags) X(hipPointerGetAttributes) X(hipPointerGetAttribute) X(hipStreamEndCapture)

NO_RESULT(NULL_NO_RESULT)
HANDLES(NULL_HANDLE)
NULL_COMMON(hip)
NULL_STATUS(hipGetDevice, (int *out), *out = current)
NULL_STATUS(hipSetDevice, (int device), current = device)
NULL_STATUS(hipDeviceCanAccessPeer, (int *out), *out = 0)
NULL_STATUS(hipMemGetInfo, (size_t *rest, size_t *total), if (rest) *rest = TOTAL_BYTES; if (total) *total = TOTAL_BYTES)
NULL_STATUS(hipMemPtrGetInfo, (uint64_t address, size_t *bytes), (void)address; *bytes = TOTAL_BYTES)
NULL_STATUS(hipHostGetDevicePointer, (uint64_t *out, uint64_t host), *out = host)
NULL_STATUS(hipHostGetFlags, (unsigned *out), *out = 0)
NULL_STATUS(hipStreamEndCapture, (uint64_t stream, uint64_t *out), (void)stream; *out = new_handle())
NULL_STATUS(hipPointerGetAttributes, (struct pointer_attributes *out, uint64_t address),
            *out = ((struct pointer_attributes){HIP_MEMORY_DEVICE, 0, (void *)(uintptr_t)address, NULL, 0, 0}))
NULL_STATUS(hipPointerGetAttribute, (void *out, int attribute, uint64_t address),
            if (attribute == 2) memcpy(out, &(int){HIP_MEMORY_DEVICE}, 4);
            else if (attribute == 9) memset(out, 0, 4);
            else if (attribute == 6 || attribute == 8) memset(out, 0, 1);
            else memcpy(out, &address, 8))

static const struct null_entry entries[] = {
    NO_RESULT(NULL_ENTRY) HANDLES(NULL_ENTRY) NULL_COMMON_ENTRIES(NULL_ENTRY, hip) OWN_RESULT(NULL_ENTRY)};

/* Facts about devices have no null form: the strict functions return them. */
void *null_function(const char *name) { return null_find(entries, sizeof entries / sizeof *entries, name); }
