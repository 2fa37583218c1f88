/* CUDA runtime front: memory, pools and IPC handles, in calls without a stream. Any thread may call the functions. */
#include "runtime.h"

#include <string.h>

/* --- device memory ------------------------------------------------------------------------------------------------ */

/* Nothing asked for is nothing given: NULL. */
RUNTIME_CALL(cudaMalloc)(uint64_t *out, size_t bytes)
{
    BEGIN(cudaMalloc, NEED_CONTEXT);
    REQUIRE(out, INVALID_VALUE);
    *out = 0;
    END(bytes ? DRIVER(cuMemAlloc)(out, bytes) : OK);
}

static status alloc_rows(struct pitched *out, size_t width, size_t height, size_t depth)
{
    uint64_t address = 0;
    size_t pitch = size_rounded(width, GRANULE);
    size_t bytes = size_times(size_times(pitch, height), depth);
    status taken = bytes ? DRIVER(cuMemAlloc)(&address, bytes) : OK;
    if (taken == OK) *out = (struct pitched){(void *)(uintptr_t)address, pitch, width, height};
    return taken;
}

RUNTIME_CALL(cudaMallocPitch)(void **out, size_t *pitch, size_t width, size_t height)
{
    BEGIN(cudaMallocPitch, NEED_CONTEXT);
    struct pitched made;
    REQUIRE(out && pitch, INVALID_VALUE);
    status taken = alloc_rows(&made, width, height, 1);
    REQUIRE(taken == OK, taken);
    *out = made.at;
    *pitch = made.pitch;
    END(OK);
}

RUNTIME_CALL(cudaMalloc3D)(struct pitched *out, struct extent extent)
{
    BEGIN(cudaMalloc3D, NEED_CONTEXT);
    END(out ? alloc_rows(out, extent.width, extent.height, extent.depth) : INVALID_VALUE);
}

RUNTIME_CALL(cudaFree)(uint64_t address)
{
    BEGIN(cudaFree, NEED_CONTEXT);
    END(address ? DRIVER(cuMemFree)(address) : OK);
}

RUNTIME_CALL(cudaMemGetInfo)(size_t *free_bytes, size_t *total)
{
    BEGIN(cudaMemGetInfo, NEED_CONTEXT);
    END(DRIVER(cuMemGetInfo)(free_bytes, total));
}

/* --- host memory -------------------------------------------------------------------------------------------------- */

static status alloc_host(void **out, size_t bytes, unsigned flags)
{
    if (!out) return INVALID_VALUE;
    *out = NULL;
    return bytes ? DRIVER(cuMemHostAlloc)(out, bytes, flags) : OK;
}

RUNTIME_CALL(cudaHostAlloc)(void **out, size_t bytes, unsigned flags)
{
    BEGIN(cudaHostAlloc, NEED_CONTEXT);
    END(alloc_host(out, bytes, flags));
}

RUNTIME_CALL(cudaMallocHost)(void **out, size_t bytes)
{
    BEGIN(cudaMallocHost, NEED_CONTEXT);
    END(alloc_host(out, bytes, 0));
}

RUNTIME_CALL(cudaFreeHost)(void *address)
{
    BEGIN(cudaFreeHost, NEED_CONTEXT);
    END(address ? DRIVER(cuMemFreeHost)(address) : OK);
}

RUNTIME_CALL(cudaHostRegister)(void *address, size_t bytes, unsigned flags)
{
    BEGIN(cudaHostRegister, NEED_CONTEXT);
    END(DRIVER(cuMemHostRegister)(address, bytes, flags));
}

RUNTIME_CALL(cudaHostUnregister)(void *address)
{
    BEGIN(cudaHostUnregister, NEED_CONTEXT);
    END(DRIVER(cuMemHostUnregister)(address));
}

RUNTIME_CALL(cudaHostGetDevicePointer)(uint64_t *out, void *address, unsigned flags)
{
    BEGIN(cudaHostGetDevicePointer, NEED_CONTEXT);
    END(DRIVER(cuMemHostGetDevicePointer)(out, address, flags));
}

RUNTIME_CALL(cudaHostGetFlags)(unsigned *flags, void *address)
{
    BEGIN(cudaHostGetFlags, NEED_CONTEXT);
    END(DRIVER(cuMemHostGetFlags)(flags, address));
}

/* --- managed memory ----------------------------------------------------------------------------------------------- */

RUNTIME_CALL(cudaMallocManaged)(uint64_t *out, size_t bytes, unsigned flags)
{
    BEGIN(cudaMallocManaged, NEED_CONTEXT);
    END(DRIVER(cuMemAllocManaged)(out, bytes, flags));
}

static status advise(uint64_t address, size_t bytes, int advice, struct location location)
{
    BEGIN(cudaMemAdvise, NEED_CONTEXT);
    END(DRIVER(cuMemAdvise)(address, bytes, advice, location));
}

#if RUNTIME < 13
RUNTIME_CALL(cudaMemAdvise)(uint64_t address, size_t bytes, int advice, int device)
{
    return advise(address, bytes, advice, (struct location){device < 0 ? LOCATION_HOST : LOCATION_DEVICE, device});
}

RUNTIME_CALL(cudaMemAdvise_v2)(uint64_t address, size_t bytes, int advice, struct location location)
#else
RUNTIME_CALL(cudaMemAdvise)(uint64_t address, size_t bytes, int advice, struct location location)
#endif
{
    return advise(address, bytes, advice, location);
}

/* --- attributes of an address ------------------------------------------------------------------------------------- */

/* An address that the driver does not know is unregistered host memory, which is no error. */
RUNTIME_CALL(cudaPointerGetAttributes)(struct pointer_attributes *out, uint64_t address)
{
    BEGIN(cudaPointerGetAttributes, NEED_INIT);
    static const int wanted[] = {POINTER_MEMORY_TYPE, POINTER_IS_MANAGED, POINTER_DEVICE_ORDINAL, POINTER_DEVICE_POINTER,
                                 POINTER_HOST_POINTER};
    unsigned type = 0, managed = 0;
    struct pointer_attributes found = {0};
    void *results[] = {&type, &managed, &found.device, &found.device_pointer, &found.host_pointer};
    REQUIRE(out, INVALID_VALUE);
    status result = DRIVER(cuPointerGetAttributes)(5, wanted, results, address);
    REQUIRE(result == OK, result);
    found.type = managed ? TYPE_MANAGED : type == MEMORY_HOST ? TYPE_HOST : type == MEMORY_DEVICE ? TYPE_DEVICE : TYPE_UNREGISTERED;
    if (!type) found.host_pointer = (void *)(uintptr_t)address;
    *out = found;
    END(OK);
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

RUNTIME_CALL(cudaMemPoolCreate)(handle *out, const struct pool_properties *properties)
{
    BEGIN(cudaMemPoolCreate, NEED_INIT);
    END(DRIVER(cuMemPoolCreate)(out, properties));
}

RUNTIME_CALL(cudaMemPoolDestroy)(handle pool)
{
    BEGIN(cudaMemPoolDestroy, NEED_INIT);
    END(DRIVER(cuMemPoolDestroy)(pool));
}

RUNTIME_CALL(cudaMemPoolSetAttribute)(handle pool, int attribute, const void *value)
{
    BEGIN(cudaMemPoolSetAttribute, NEED_INIT);
    END(DRIVER(cuMemPoolSetAttribute)(pool, attribute, value));
}

RUNTIME_CALL(cudaMemPoolGetAttribute)(handle pool, int attribute, void *out)
{
    BEGIN(cudaMemPoolGetAttribute, NEED_INIT);
    END(DRIVER(cuMemPoolGetAttribute)(pool, attribute, out));
}

RUNTIME_CALL(cudaMemPoolTrimTo)(handle pool, size_t keep)
{
    BEGIN(cudaMemPoolTrimTo, NEED_INIT);
    END(DRIVER(cuMemPoolTrimTo)(pool, keep));
}

RUNTIME_CALL(cudaMemPoolSetAccess)(handle pool, const struct access_description *wanted, size_t count)
{
    BEGIN(cudaMemPoolSetAccess, NEED_INIT);
    END(DRIVER(cuMemPoolSetAccess)(pool, wanted, count));
}

RUNTIME_CALL(cudaMemPoolGetAccess)(int *flags, handle pool, const struct location *location)
{
    BEGIN(cudaMemPoolGetAccess, NEED_INIT);
    END(DRIVER(cuMemPoolGetAccess)(flags, pool, location));
}

RUNTIME_CALL(cudaDeviceGetDefaultMemPool)(handle *out, int device)
{
    BEGIN(cudaDeviceGetDefaultMemPool, NEED_INIT);
    END(DRIVER(cuDeviceGetDefaultMemPool)(out, device));
}

RUNTIME_CALL(cudaDeviceGetMemPool)(handle *out, int device)
{
    BEGIN(cudaDeviceGetMemPool, NEED_INIT);
    END(DRIVER(cuDeviceGetMemPool)(out, device));
}

RUNTIME_CALL(cudaDeviceSetMemPool)(int device, handle pool)
{
    BEGIN(cudaDeviceSetMemPool, NEED_INIT);
    END(DRIVER(cuDeviceSetMemPool)(device, pool));
}

/* --- IPC ---------------------------------------------------------------------------------------------------------- */

RUNTIME_CALL(cudaIpcGetMemHandle)(struct ipc_handle *out, uint64_t address)
{
    BEGIN(cudaIpcGetMemHandle, NEED_CONTEXT);
    END(DRIVER(cuIpcGetMemHandle)(out, address));
}

RUNTIME_CALL(cudaIpcOpenMemHandle)(uint64_t *out, struct ipc_handle from, unsigned flags)
{
    BEGIN(cudaIpcOpenMemHandle, NEED_CONTEXT);
    END(flags == 1 ? DRIVER(cuIpcOpenMemHandle)(out, from, flags) : INVALID_VALUE);
}

RUNTIME_CALL(cudaIpcCloseMemHandle)(uint64_t address)
{
    BEGIN(cudaIpcCloseMemHandle, NEED_CONTEXT);
    END(DRIVER(cuIpcCloseMemHandle)(address));
}

RUNTIME_CALL(cudaIpcGetEventHandle)(struct ipc_handle *out, handle event)
{
    BEGIN(cudaIpcGetEventHandle, NEED_CONTEXT);
    END(DRIVER(cuIpcGetEventHandle)(out, event));
}

RUNTIME_CALL(cudaIpcOpenEventHandle)(handle *out, struct ipc_handle from)
{
    BEGIN(cudaIpcOpenEventHandle, NEED_CONTEXT);
    END(DRIVER(cuIpcOpenEventHandle)(out, from));
}
