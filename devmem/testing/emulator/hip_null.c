/* The null mode: every call is counted, answers with a fixed number, and does nothing. For measuring what stands above.
 *
 * Handed out by the choosers of hip_table.c. They are called through the vendor's prototypes with arguments that most of
 * them do not declare.
 */
#define _GNU_SOURCE
#include "hip.h"

#include <string.h>
#include <sys/mman.h>

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

static _Thread_local int current;

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
    X(hipGetLastError) X(hipPeekAtLastError) X(hipExtGetLastError) X(hipDeviceSynchronize) X(hipDeviceReset) \
    X(hipDeviceEnablePeerAccess) X(hipDeviceDisablePeerAccess) X(hipFree) X(hipHostFree) X(hipHostRegister) \
    X(hipHostUnregister) X(hipMemPrefetchAsync) X(hipMemPrefetchAsync_v2) X(hipMemAdvise) X(hipMemAdvise_v2) X(hipFreeAsync) \
    X(hipMemPoolDestroy) X(hipMemPoolSetAttribute) X(hipMemPoolTrimTo) X(hipMemPoolSetAccess) X(hipDeviceSetMemPool) \
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
    X(hipProfilerStop)

#define HANDLES(X) \
    X(hipMalloc, DEVICE_ADDRESS) X(hipExtMallocWithFlags, DEVICE_ADDRESS) X(hipMallocAsync, DEVICE_ADDRESS) \
    X(hipMallocFromPoolAsync, DEVICE_ADDRESS) X(hipIpcOpenMemHandle, DEVICE_ADDRESS) X(hipMemPoolCreate, POOL_HANDLE) \
    X(hipDeviceGetDefaultMemPool, POOL_HANDLE) X(hipDeviceGetMemPool, POOL_HANDLE) X(hipStreamCreate, new_handle()) \
    X(hipStreamCreateWithFlags, new_handle()) X(hipStreamCreateWithPriority, new_handle()) X(hipEventCreate, new_handle()) \
    X(hipEventCreateWithFlags, new_handle()) X(hipModuleLoad, new_handle()) X(hipModuleLoadData, new_handle()) \
    X(hipModuleLoadDataEx, new_handle()) X(hipModuleGetFunction, new_handle()) \
    X(hipHostMalloc, (uint64_t)(uintptr_t)host_memory()) X(hipHostAlloc, (uint64_t)(uintptr_t)host_memory()) \
    X(hipMallocManaged, (uint64_t)(uintptr_t)host_memory())

/* Those with an odd shape. */
#define OTHERS(X) \
    X(hipGetDevice) X(hipSetDevice) X(hipDeviceCanAccessPeer) X(hipMemGetInfo) X(hipMemGetAddressRange) X(hipMemPtrGetInfo) \
    X(hipHostGetDevicePointer) X(hipHostGetFlags) X(hipPointerGetAttributes) X(hipPointerGetAttribute) \
    X(hipMemPoolGetAttribute) X(hipMemPoolGetAccess) X(hipStreamGetPriority) X(hipStreamGetFlags) X(hipStreamGetDevice) \
    X(hipStreamGetId) X(hipStreamIsCapturing) X(hipThreadExchangeStreamCaptureMode) X(hipEventElapsedTime)

NOTHINGS(NULL_NOTHING)
HANDLES(NULL_HANDLE)
NULL_STATUS(hipGetDevice, (int *out), *out = current)
NULL_STATUS(hipSetDevice, (int device), current = device)
NULL_STATUS(hipDeviceCanAccessPeer, (int *out), *out = 0)
NULL_STATUS(hipMemGetInfo, (size_t *rest, size_t *total), if (rest) *rest = TOTAL_BYTES; if (total) *total = TOTAL_BYTES)
NULL_STATUS(hipMemGetAddressRange, (uint64_t *base, size_t *bytes),
            if (base) *base = DEVICE_ADDRESS; if (bytes) *bytes = TOTAL_BYTES)
NULL_STATUS(hipMemPtrGetInfo, (uint64_t address, size_t *bytes), (void)address; *bytes = TOTAL_BYTES)
NULL_STATUS(hipHostGetDevicePointer, (uint64_t *out, uint64_t host), *out = host)
NULL_STATUS(hipHostGetFlags, (unsigned *out), *out = 0)
NULL_STATUS(hipPointerGetAttributes, (struct pointer_attributes *out, uint64_t address),
            *out = ((struct pointer_attributes){HIP_MEMORY_DEVICE, 0, (void *)(uintptr_t)address, NULL, 0, 0}))
NULL_STATUS(hipPointerGetAttribute, (void *out, int attribute, uint64_t address),
            if (attribute == 2) memcpy(out, &(int){HIP_MEMORY_DEVICE}, 4);
            else if (attribute == 9) memset(out, 0, 4);
            else if (attribute == 6 || attribute == 8) memset(out, 0, 1);
            else memcpy(out, &address, 8))
NULL_STATUS(hipMemPoolGetAttribute, (uint64_t pool, int which, void *out), (void)pool; memset(out, 0, which > 3 ? 8 : 4))
NULL_STATUS(hipMemPoolGetAccess, (int *out), *out = 3)
NULL_STATUS(hipStreamGetPriority, (uint64_t stream, int *out), (void)stream; *out = 0)
NULL_STATUS(hipStreamGetFlags, (uint64_t stream, unsigned *out), (void)stream; *out = 0)
NULL_STATUS(hipStreamGetDevice, (uint64_t stream, int *out), (void)stream; *out = 0)
NULL_STATUS(hipStreamGetId, (uint64_t stream, uint64_t *out), (void)stream; *out = 1)
NULL_STATUS(hipStreamIsCapturing, (uint64_t stream, int *out), (void)stream; *out = 0)
NULL_STATUS(hipThreadExchangeStreamCaptureMode, (int *mode), *mode = 0)
NULL_STATUS(hipEventElapsedTime, (float *out), *out = 0)

#define ENTRY_NOTHING(name) {#name, (void *)null_##name},
#define ENTRY_VALUE(name, value) {#name, (void *)null_##name},
static const struct { const char *name; void *function; } quick[] = {
    NOTHINGS(ENTRY_NOTHING) HANDLES(ENTRY_VALUE) OTHERS(ENTRY_NOTHING)};

static bool is_twin(const char *name, const char *plain)
{
    size_t length = strlen(plain);
    return strncmp(name, plain, length) == 0 && (!name[length] || strcmp(name + length, "_spt") == 0);
}

/* Facts about devices have no thin form: their strict functions answer. */
void *null_function(const char *name)
{
    for (size_t index = 0; index < sizeof quick / sizeof *quick; index++)
        if (is_twin(name, quick[index].name)) return quick[index].function;
    return NULL;
}
