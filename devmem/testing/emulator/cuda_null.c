/* The null mode: every call is counted, answers with a fixed number, and does nothing. For measuring what stands above.
 *
 * Handed out by cuGetProcAddress alone, so that the strict functions carry no test for it and these none of theirs.
 * They are called through the vendor's prototypes with arguments that most of them do not declare.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <string.h>
#include <sys/mman.h>

#define CONTEXT_HANDLE 0x30000000u
#define POOL_HANDLE 0x30003000u
#define FIRST_HANDLE 0x30004000u
#define DEVICE_ADDRESS 0x7f0000000000u
#define TOTAL_BYTES (8ull << 30)

#define COUNT(name) atomic_fetch_add_explicit(&function_calls[FUNCTION_##name], 1, memory_order_relaxed)
#define NULL_STATUS(name, parameters, body) \
    static status null_##name parameters    \
    {                                       \
        COUNT(name);                        \
        body;                               \
        return OK;                          \
    }
#define NULL_NOTHING(name) NULL_STATUS(name, (void), (void)0)
#define NULL_HANDLE(name, value) NULL_STATUS(name, (uint64_t *out), *out = value)
#define NULL_INT(name, value) NULL_STATUS(name, (int *out), *out = value)

static uint64_t current = 0;

/* Streams, events, modules and functions are told from each other by those who keep them in tables. */
static uint64_t new_handle(void)
{
    static _Atomic uint64_t count;
    return FIRST_HANDLE + (atomic_fetch_add_explicit(&count, 1, memory_order_relaxed) << 4);
}

/* Pinned memory is really there: NumPy arrays are laid over it. All of it is the same memory. */
static void *host_memory(void)
{
    static _Atomic(void *) memory;
    void *known = atomic_load(&memory);
    if (known) return known;
    known = mmap(NULL, 1ull << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    atomic_store(&memory, known);
    return known;
}

#define NOTHINGS(X) \
    X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxSetFlags) X(cuCtxDestroy) \
    X(cuCtxSynchronize) X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess) X(cuMemFree) X(cuMemFreeHost) \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemPrefetchAsync) X(cuMemAdvise) X(cuMemFreeAsync) X(cuMemPoolDestroy) \
    X(cuMemPoolSetAttribute) X(cuMemPoolTrimTo) X(cuMemPoolSetAccess) X(cuDeviceSetMemPool) X(cuIpcGetMemHandle) \
    X(cuIpcCloseMemHandle) X(cuMemcpy) X(cuMemcpyAsync) X(cuMemcpyHtoD) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoH) \
    X(cuMemcpyDtoHAsync) X(cuMemcpyDtoD) X(cuMemcpyDtoDAsync) X(cuMemcpyPeer) X(cuMemcpyPeerAsync) X(cuMemcpy2D) \
    X(cuMemcpy2DUnaligned) X(cuMemcpy2DAsync) X(cuMemcpy3D) X(cuMemcpy3DAsync) X(cuMemcpyBatchAsync) X(cuMemsetD8) \
    X(cuMemsetD16) X(cuMemsetD32) X(cuMemsetD8Async) X(cuMemsetD16Async) X(cuMemsetD32Async) X(cuMemsetD2D8) X(cuMemsetD2D16) \
    X(cuMemsetD2D32) X(cuMemsetD2D8Async) X(cuMemsetD2D16Async) X(cuMemsetD2D32Async) X(cuStreamDestroy) X(cuStreamQuery) \
    X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamAttachMemAsync) X(cuStreamWaitValue32) X(cuStreamWriteValue32) \
    X(cuLaunchHostFunc) X(cuEventDestroy) X(cuEventRecord) X(cuEventRecordWithFlags) X(cuEventQuery) X(cuEventSynchronize) \
    X(cuModuleUnload) X(cuLibraryUnload) X(cuFuncSetAttribute) X(cuFuncSetCacheConfig) X(cuLaunchKernel) X(cuLaunchKernelEx) \
    X(cuLaunchCooperativeKernel) X(cuProfilerStart) X(cuProfilerStop)

#define HANDLES(X) \
    X(cuDevicePrimaryCtxRetain, CONTEXT_HANDLE) X(cuCtxCreate, CONTEXT_HANDLE) X(cuCtxGetCurrent, current) \
    X(cuCtxPopCurrent, CONTEXT_HANDLE) X(cuMemAlloc, DEVICE_ADDRESS) X(cuMemAllocAsync, DEVICE_ADDRESS) \
    X(cuMemAllocFromPoolAsync, DEVICE_ADDRESS) X(cuIpcOpenMemHandle, DEVICE_ADDRESS) X(cuMemPoolCreate, POOL_HANDLE) \
    X(cuDeviceGetDefaultMemPool, POOL_HANDLE) X(cuDeviceGetMemPool, POOL_HANDLE) X(cuStreamCreate, new_handle()) \
    X(cuStreamCreateWithPriority, new_handle()) X(cuEventCreate, new_handle()) X(cuModuleLoad, new_handle()) \
    X(cuModuleLoadData, new_handle()) X(cuModuleLoadDataEx, new_handle()) X(cuModuleLoadFatBinary, new_handle()) \
    X(cuModuleGetFunction, new_handle()) X(cuLibraryLoadData, new_handle()) X(cuLibraryLoadFromFile, new_handle()) \
    X(cuLibraryGetKernel, new_handle()) X(cuLibraryGetModule, new_handle()) X(cuKernelGetFunction, new_handle()) \
    X(cuMemHostAlloc, (uint64_t)(uintptr_t)host_memory()) X(cuMemAllocHost, (uint64_t)(uintptr_t)host_memory()) \
    X(cuMemAllocManaged, (uint64_t)(uintptr_t)host_memory())

#define INTS(X) \
    X(cuDriverGetVersion, cuda_version()) X(cuCtxGetDevice, 0) X(cuDeviceCanAccessPeer, 0) \
    X(cuDeviceGetP2PAttribute, 0) X(cuFuncGetAttribute, 1024) X(cuKernelGetAttribute, 1024)

/* Those with an odd shape. */
#define OTHERS(X) \
    X(cuDeviceGet) X(cuDevicePrimaryCtxGetState) X(cuCtxSetCurrent) X(cuCtxPushCurrent) X(cuMemGetInfo) \
    X(cuMemGetAddressRange) X(cuMemHostGetDevicePointer) X(cuMemHostGetFlags) X(cuPointerGetAttribute) \
    X(cuPointerGetAttributes) X(cuMemPoolGetAttribute) X(cuMemPoolGetAccess) X(cuStreamGetPriority) X(cuStreamGetFlags) \
    X(cuStreamGetCtx) X(cuStreamGetDevice) X(cuStreamGetId) X(cuStreamIsCapturing) X(cuStreamGetCaptureInfo) \
    X(cuEventElapsedTime) X(cuCtxGetStreamPriorityRange) X(cuThreadExchangeStreamCaptureMode)

NOTHINGS(NULL_NOTHING)
HANDLES(NULL_HANDLE)
INTS(NULL_INT)
NULL_STATUS(cuDeviceGet, (int *out, int ordinal), *out = ordinal)
NULL_STATUS(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active), (void)device; *flags = 0; *active = 1)
NULL_STATUS(cuCtxSetCurrent, (uint64_t which), current = which)
NULL_STATUS(cuCtxPushCurrent, (uint64_t which), current = which)
NULL_STATUS(cuMemGetInfo, (size_t *rest, size_t *total), *rest = *total = TOTAL_BYTES)
NULL_STATUS(cuMemGetAddressRange, (uint64_t *base, size_t *bytes),
            if (base) *base = DEVICE_ADDRESS; if (bytes) *bytes = TOTAL_BYTES)
NULL_STATUS(cuMemHostGetDevicePointer, (uint64_t *out, uint64_t host), *out = host)
NULL_STATUS(cuMemHostGetFlags, (unsigned *out), *out = 0)
NULL_STATUS(cuMemPoolGetAttribute, (uint64_t pool, int which, void *out), (void)pool; memset(out, 0, which > 3 ? 8 : 4))
NULL_STATUS(cuMemPoolGetAccess, (int *out), *out = 3)
NULL_STATUS(cuStreamGetPriority, (uint64_t stream, int *out), (void)stream; *out = 0)
NULL_STATUS(cuStreamGetFlags, (uint64_t stream, unsigned *out), (void)stream; *out = 0)
NULL_STATUS(cuStreamGetCtx, (uint64_t stream, uint64_t *out), (void)stream; *out = CONTEXT_HANDLE)
NULL_STATUS(cuStreamGetDevice, (uint64_t stream, int *out), (void)stream; *out = 0)
NULL_STATUS(cuStreamGetId, (uint64_t stream, uint64_t *out), (void)stream; *out = 1)
NULL_STATUS(cuStreamIsCapturing, (uint64_t stream, int *out), (void)stream; *out = 0)
NULL_STATUS(cuStreamGetCaptureInfo, (uint64_t stream, int *out), (void)stream; *out = 0)
NULL_STATUS(cuEventElapsedTime, (float *out), *out = 0)
NULL_STATUS(cuThreadExchangeStreamCaptureMode, (int *mode), *mode = 0)
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

#define ENTRY_NOTHING(name) {#name, (void *)null_##name},
#define ENTRY_VALUE(name, value) {#name, (void *)null_##name},
static const struct { const char *name; void *function; } quick[] = {
    NOTHINGS(ENTRY_NOTHING) HANDLES(ENTRY_VALUE) INTS(ENTRY_VALUE) OTHERS(ENTRY_NOTHING)};

/* Facts about devices have no thin form: their strict functions answer, after a true cuInit. */
void *null_function(const char *name, int version)
{
    (void)version;
    for (size_t index = 0; index < sizeof quick / sizeof *quick; index++)
        if (strcmp(quick[index].name, name) == 0) return quick[index].function;
    return NULL;
}
