/* cuGetProcAddress: which function has which name from which version of the API on; and the texts of errors. */
#include "cuda.h"
#include "cuda_errors.h"

#include <string.h>

const char *const function_names[] = {CUDA_FUNCTIONS(FUNCTION_NAME)};
const int function_count = FUNCTION_TOTAL;

typedef void *entry_point;

struct entry {
    const char *name;
    int since;                /* the version of the API from which the name means this function */
    entry_point legacy, per_thread;
};

#define PLAIN(X) \
    X(cuInit, 2000, cuInit) X(cuDriverGetVersion, 2020, cuDriverGetVersion) X(cuGetErrorName, 6000, cuGetErrorName) \
    X(cuGetErrorString, 6000, cuGetErrorString) X(cuGetProcAddress, 11030, cuGetProcAddress) \
    X(cuGetProcAddress, 12000, cuGetProcAddress_v2) \
    X(cuDeviceGet, 2000, cuDeviceGet) X(cuDeviceGetCount, 2000, cuDeviceGetCount) X(cuDeviceGetName, 2000, cuDeviceGetName) \
    X(cuDeviceGetUuid, 9020, cuDeviceGetUuid) X(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2) \
    X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2) X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute) \
    X(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId) X(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId) \
    X(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability) \
    X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain) \
    X(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease_v2) \
    X(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset_v2) \
    X(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState) \
    X(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags_v2) \
    X(cuCtxCreate, 3020, cuCtxCreate_v2) X(cuCtxCreate, 11040, cuCtxCreate_v3) X(cuCtxCreate, 12050, cuCtxCreate_v4) \
    X(cuCtxDestroy, 4000, cuCtxDestroy_v2) X(cuCtxGetCurrent, 4000, cuCtxGetCurrent) X(cuCtxSetCurrent, 4000, cuCtxSetCurrent) \
    X(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2) X(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2) \
    X(cuCtxGetDevice, 2000, cuCtxGetDevice) X(cuCtxGetDevice, 13000, cuCtxGetDevice_v2) X(cuCtxGetFlags, 7000, cuCtxGetFlags) \
    X(cuCtxGetId, 12000, cuCtxGetId) X(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion) \
    X(cuCtxSynchronize, 2000, cuCtxSynchronize) X(cuCtxSynchronize, 13000, cuCtxSynchronize_v2) \
    X(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange) \
    X(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess) \
    X(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer) X(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute) \
    X(cuMemAlloc, 3020, cuMemAlloc_v2) X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2) X(cuMemFree, 3020, cuMemFree_v2) \
    X(cuMemGetInfo, 3020, cuMemGetInfo_v2) X(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2) \
    X(cuMemAllocHost, 3020, cuMemAllocHost_v2) X(cuMemHostAlloc, 2020, cuMemHostAlloc) X(cuMemFreeHost, 2000, cuMemFreeHost) \
    X(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2) X(cuMemHostGetFlags, 2030, cuMemHostGetFlags) \
    X(cuMemHostRegister, 6050, cuMemHostRegister_v2) X(cuMemHostUnregister, 4000, cuMemHostUnregister) \
    X(cuMemAllocManaged, 6000, cuMemAllocManaged) X(cuMemAdvise, 8000, cuMemAdvise) X(cuMemAdvise, 12020, cuMemAdvise_v2) \
    X(cuPointerGetAttribute, 4000, cuPointerGetAttribute) X(cuPointerGetAttributes, 7000, cuPointerGetAttributes) \
    X(cuMemPoolCreate, 11020, cuMemPoolCreate) X(cuMemPoolDestroy, 11020, cuMemPoolDestroy) \
    X(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute) X(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute) \
    X(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo) X(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess) \
    X(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess) X(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool) \
    X(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool) X(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool) \
    X(cuMemPoolExportToShareableHandle, 11020, cuMemPoolExportToShareableHandle) \
    X(cuMemPoolImportFromShareableHandle, 11020, cuMemPoolImportFromShareableHandle) \
    X(cuMemPoolExportPointer, 11020, cuMemPoolExportPointer) X(cuMemPoolImportPointer, 11020, cuMemPoolImportPointer) \
    X(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle) X(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2) \
    X(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle) \
    X(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity) \
    X(cuMemCreate, 10020, cuMemCreate) \
    X(cuMemRelease, 10020, cuMemRelease) \
    X(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle) \
    X(cuMemAddressReserve, 10020, cuMemAddressReserve) \
    X(cuMemAddressFree, 10020, cuMemAddressFree) \
    X(cuMemMap, 10020, cuMemMap) \
    X(cuMemUnmap, 10020, cuMemUnmap) \
    X(cuMemSetAccess, 10020, cuMemSetAccess) \
    X(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle) \
    X(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle) \
    X(cuStreamCreate, 2000, cuStreamCreate) X(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority) \
    X(cuStreamDestroy, 4000, cuStreamDestroy_v2) \
    X(cuEventCreate, 2000, cuEventCreate) X(cuEventDestroy, 4000, cuEventDestroy_v2) X(cuEventQuery, 2000, cuEventQuery) \
    X(cuEventSynchronize, 2000, cuEventSynchronize) X(cuEventElapsedTime, 2000, cuEventElapsedTime) \
    X(cuEventElapsedTime, 12080, cuEventElapsedTime_v2) \
    X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode) X(cuGraphDestroy, 10000, cuGraphDestroy) \
    X(cuGraphCreate, 10000, cuGraphCreate) X(cuGraphExecDestroy, 10000, cuGraphExecDestroy) \
    X(cuGraphGetNodes, 10000, cuGraphGetNodes) X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags) \
    X(cuUserObjectCreate, 11030, cuUserObjectCreate) X(cuUserObjectRetain, 11030, cuUserObjectRetain) \
    X(cuUserObjectRelease, 11030, cuUserObjectRelease) X(cuGraphRetainUserObject, 11030, cuGraphRetainUserObject) \
    X(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute) \
    X(cuDeviceSetGraphMemAttribute, 11040, cuDeviceSetGraphMemAttribute) \
    X(cuPointerSetAttribute, 6000, cuPointerSetAttribute) X(cuIpcGetEventHandle, 4010, cuIpcGetEventHandle) \
    X(cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle)

#define PTDS_FUNCTIONS(X) \
    X(cuMemcpy, 4000, cuMemcpy) X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2) X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2) \
    X(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2) X(cuMemcpyPeer, 4000, cuMemcpyPeer) X(cuMemcpy2D, 3020, cuMemcpy2D_v2) \
    X(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2) X(cuMemcpy3D, 3020, cuMemcpy3D_v2) \
    X(cuMemsetD8, 3020, cuMemsetD8_v2) X(cuMemsetD16, 3020, cuMemsetD16_v2) X(cuMemsetD32, 3020, cuMemsetD32_v2) \
    X(cuMemsetD2D8, 3020, cuMemsetD2D8_v2) X(cuMemsetD2D16, 3020, cuMemsetD2D16_v2) X(cuMemsetD2D32, 3020, cuMemsetD2D32_v2)

#define PTSZ_FUNCTIONS(X) \
    X(cuMemcpyAsync, 4000, cuMemcpyAsync) X(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2) \
    X(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2) \
    X(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync) X(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2) \
    X(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2) X(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync) \
    X(cuMemcpyWithAttributesAsync, 13020, cuMemcpyWithAttributesAsync) \
    X(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2) X(cuMemcpy3DBatchAsync, 12080, cuMemcpy3DBatchAsync) \
    X(cuMemcpy3DBatchAsync, 13000, cuMemcpy3DBatchAsync_v2) \
    X(cuMemsetD8Async, 3020, cuMemsetD8Async) X(cuMemsetD16Async, 3020, cuMemsetD16Async) \
    X(cuMemsetD32Async, 3020, cuMemsetD32Async) X(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async) \
    X(cuMemsetD2D16Async, 3020, cuMemsetD2D16Async) X(cuMemsetD2D32Async, 3020, cuMemsetD2D32Async) \
    X(cuMemAllocAsync, 11020, cuMemAllocAsync) X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync) \
    X(cuMemFreeAsync, 11020, cuMemFreeAsync) X(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync) \
    X(cuMemPrefetchBatchAsync, 13000, cuMemPrefetchBatchAsync) X(cuMemDiscardBatchAsync, 13000, cuMemDiscardBatchAsync) \
    X(cuMemDiscardAndPrefetchBatchAsync, 13000, cuMemDiscardAndPrefetchBatchAsync) \
    X(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2) X(cuStreamAttachMemAsync, 6000, cuStreamAttachMemAsync) \
    X(cuStreamQuery, 2000, cuStreamQuery) X(cuStreamSynchronize, 2000, cuStreamSynchronize) \
    X(cuStreamWaitEvent, 3020, cuStreamWaitEvent) X(cuEventRecord, 2000, cuEventRecord) \
    X(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags) X(cuStreamGetPriority, 5050, cuStreamGetPriority) \
    X(cuStreamGetFlags, 5050, cuStreamGetFlags) X(cuStreamGetCtx, 9020, cuStreamGetCtx) \
    X(cuStreamGetCtx, 12050, cuStreamGetCtx_v2) \
    X(cuStreamGetDevice, 12080, cuStreamGetDevice) X(cuStreamGetId, 12000, cuStreamGetId) \
    X(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph) X(cuGraphLaunch, 10000, cuGraphLaunch) \
    X(cuStreamAddCallback, 5000, cuStreamAddCallback) \
    X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2) X(cuStreamEndCapture, 10000, cuStreamEndCapture) \
    X(cuStreamIsCapturing, 10000, cuStreamIsCapturing) X(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2) \
    X(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3) X(cuLaunchHostFunc, 10000, cuLaunchHostFunc) \
    X(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2) X(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2)

/* The table needs the addresses only; the parameters are declared with the definitions. */
#define DECLARE_ONE(name, since, symbol) extern char symbol##_address[] __asm__(#symbol);
#define DECLARE_PTDS(name, since, symbol) DECLARE_ONE(name, since, symbol) DECLARE_ONE(name, since, symbol##_ptds)
#define DECLARE_PTSZ(name, since, symbol) DECLARE_ONE(name, since, symbol) DECLARE_ONE(name, since, symbol##_ptsz)
#define DECLARE_UNSUPPORTED(name) DECLARE_ONE(name, 0, name)
PLAIN(DECLARE_ONE)
PTDS_FUNCTIONS(DECLARE_PTDS)
PTSZ_FUNCTIONS(DECLARE_PTSZ)
CUDA_UNSUPPORTED(DECLARE_UNSUPPORTED)

#define ENTRY_ONE(name, since, symbol) {#name, since, symbol##_address, symbol##_address},
#define ENTRY_PTDS(name, since, symbol) {#name, since, symbol##_address, symbol##_ptds_address},
#define ENTRY_PTSZ(name, since, symbol) {#name, since, symbol##_address, symbol##_ptsz_address},
#define ENTRY_UNSUPPORTED(name) {#name, 0, name##_address, name##_address},
static const struct entry entries[] = {
    PLAIN(ENTRY_ONE) PTDS_FUNCTIONS(ENTRY_PTDS) PTSZ_FUNCTIONS(ENTRY_PTSZ) CUDA_UNSUPPORTED(ENTRY_UNSUPPORTED)};

/* --- finding ------------------------------------------------------------------------------------------------------ */

enum { SYMBOL_FOUND = 0, SYMBOL_UNKNOWN = 1, SYMBOL_TOO_NEW = 2 };
#define FLAG_PER_THREAD 2u

static const struct entry *find_entry(const char *name, int version, int *reason)
{
    const struct entry *best = NULL;
    *reason = SYMBOL_UNKNOWN;
    for (size_t index = 0; index < sizeof entries / sizeof *entries; index++) {
        const struct entry *entry = &entries[index];
        if (strcmp(entry->name, name) != 0) continue;
        *reason = SYMBOL_TOO_NEW;
        if (entry->since <= version && version <= cuda_version() && (!best || entry->since > best->since)) best = entry;
    }
    if (best) *reason = SYMBOL_FOUND;
    return best;
}

static status find(const char *name, void **out, int version, uint64_t flags, int *found)
{
    int reason;
    if (!name || !out) return INVALID_VALUE;
    const struct entry *entry = find_entry(name, version, &reason);
    void *null = entry && core_null_mode() ? null_function(name) : NULL;
    *out = null ? null : !entry ? NULL : flags & FLAG_PER_THREAD ? entry->per_thread : entry->legacy;
    if (found) *found = reason;
    return entry ? OK : NOT_FOUND;
}

EXPORT status cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found)
{
    BEGIN(cuGetProcAddress, NEED_NOTHING);
    END(find(name, out, version, flags, found));
}

EXPORT status cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

static const struct error_text errors[] = {CUDA_ERRORS(ERROR_TEXT)};

static status describe(int code, const char **out, bool by_name)
{
    const struct error_text *known = error_find(errors, sizeof errors / sizeof *errors, code);
    if (out) *out = !known ? NULL : by_name ? known->name : known->text;
    return out && known ? OK : INVALID_VALUE;
}

EXPORT status cuGetErrorName(int code, const char **out)
{
    BEGIN(cuGetErrorName, NEED_NOTHING);
    END(describe(code, out, true));
}

EXPORT status cuGetErrorString(int code, const char **out)
{
    BEGIN(cuGetErrorString, NEED_NOTHING);
    END(describe(code, out, false));
}
