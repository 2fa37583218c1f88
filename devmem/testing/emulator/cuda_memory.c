/* The CUDA driver API over the core: memory that does not belong to a stream, pools as objects, sharing. */
#include "cuda.h"

#include <string.h>

static bool is_device(int device) { return device >= 0 && device < device_count; }

/* --- device memory ------------------------------------------------------------------------------------------------ */

EXPORT status cuMemAlloc_v2(deviceptr *out, size_t bytes)
{
    BEGIN(cuMemAlloc, NEED_CONTEXT);
    END(out ? device_alloc(context, bytes, out) : INVALID_VALUE);
}

EXPORT status cuMemAllocPitch_v2(deviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    BEGIN(cuMemAllocPitch, NEED_CONTEXT);
    REQUIRE(out && pitch && width && height, INVALID_VALUE);
    REQUIRE(element == 4 || element == 8 || element == 16, INVALID_VALUE);
    *pitch = (width + GRANULE - 1) / GRANULE * GRANULE;
    END(device_alloc(context, *pitch * height, out));
}

EXPORT status cuMemFree_v2(deviceptr address)
{
    BEGIN(cuMemFree, NEED_CONTEXT);
    END(device_free(context, address));
}

EXPORT status cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    BEGIN(cuMemGetInfo, NEED_CONTEXT);
    const struct heap *heap = &devices[context->device].heap;
    REQUIRE(free_bytes && total, INVALID_VALUE);
    *free_bytes = heap->bytes - heap->used;
    *total = heap->bytes;
    END(OK);
}

EXPORT status cuMemGetAddressRange_v2(deviceptr *base, size_t *bytes, deviceptr address)
{
    BEGIN(cuMemGetAddressRange, NEED_CONTEXT);
    struct block *block = block_find(address);
    REQUIRE(block, NOT_FOUND);
    if (base) *base = block->base;
    if (bytes) *bytes = block->size;
    END(OK);
}

/* --- host memory -------------------------------------------------------------------------------------------------- */

EXPORT status cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    BEGIN(cuMemHostAlloc, NEED_CONTEXT);
    REQUIRE(out && flags <= 7, INVALID_VALUE);
    END(host_alloc(context, bytes, flags, (uint64_t *)out));
}

EXPORT status cuMemAllocHost_v2(void **out, size_t bytes)
{
    BEGIN(cuMemAllocHost, NEED_CONTEXT);
    END(out ? host_alloc(context, bytes, 0, (uint64_t *)out) : INVALID_VALUE);
}

EXPORT status cuMemFreeHost(void *address)
{
    BEGIN(cuMemFreeHost, NEED_CONTEXT);
    END(host_free(context, (uint64_t)(uintptr_t)address));
}

static bool is_page_locked(const struct block *block)
{
    return block && (block->kind == BLOCK_PINNED || block->kind == BLOCK_REGISTERED);
}

EXPORT status cuMemHostGetDevicePointer_v2(deviceptr *out, void *address, unsigned flags)
{
    BEGIN(cuMemHostGetDevicePointer, NEED_CONTEXT);
    uint64_t host = (uint64_t)(uintptr_t)address;
    REQUIRE(out && !flags && is_page_locked(block_find(host)), INVALID_VALUE);
    *out = host;
    END(OK);
}

EXPORT status cuMemHostGetFlags(unsigned *flags, void *address)
{
    BEGIN(cuMemHostGetFlags, NEED_CONTEXT);
    struct block *block = block_find((uint64_t)(uintptr_t)address);
    REQUIRE(flags && is_page_locked(block), INVALID_VALUE);
    *flags = block->flags;
    END(OK);
}

EXPORT status cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    BEGIN(cuMemHostRegister, NEED_CONTEXT);
    REQUIRE(flags <= 15, INVALID_VALUE);
    END(host_register(context, (uint64_t)(uintptr_t)address, bytes, flags));
}

EXPORT status cuMemHostUnregister(void *address)
{
    BEGIN(cuMemHostUnregister, NEED_CONTEXT);
    END(host_unregister(context, (uint64_t)(uintptr_t)address));
}

/* --- managed memory ----------------------------------------------------------------------------------------------- */

#define ATTACH_GLOBAL 1u
#define ATTACH_HOST 2u

EXPORT status cuMemAllocManaged(deviceptr *out, size_t bytes, unsigned flags)
{
    BEGIN(cuMemAllocManaged, NEED_CONTEXT);
    REQUIRE(out && (flags == ATTACH_GLOBAL || flags == ATTACH_HOST), INVALID_VALUE);
    END(managed_alloc(context, bytes, flags, out));
}

static status advise(deviceptr address, size_t bytes, int advice, struct location location)
{
    struct block *block = block_find(address);
    if (!bytes || advice < 1 || advice > 6 || !block || block->kind != BLOCK_MANAGED) return INVALID_VALUE;
    if (address + bytes > block->base + block->size) return INVALID_VALUE;
    bool placed = advice == 3 || advice >= 5; /* the others do not look at the location */
    if (placed && location.type == LOCATION_DEVICE && !is_device(location.id)) return INVALID_DEVICE;
    return OK;
}

EXPORT status cuMemAdvise(deviceptr address, size_t bytes, int advice, int device)
{
    BEGIN(cuMemAdvise, NEED_CONTEXT);
    struct location location = {device < 0 ? LOCATION_HOST : LOCATION_DEVICE, device};
    END(advise(address, bytes, advice, location));
}

EXPORT status cuMemAdvise_v2(deviceptr address, size_t bytes, int advice, struct location location)
{
    BEGIN(cuMemAdvise, NEED_CONTEXT);
    END(advise(address, bytes, advice, location));
}

/* --- what is at an address? --------------------------------------------------------------------------------------- */

enum {
    POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE, POINTER_DEVICE_POINTER, POINTER_HOST_POINTER, POINTER_P2P_TOKENS,
    POINTER_SYNC_MEMOPS, POINTER_BUFFER_ID, POINTER_IS_MANAGED, POINTER_DEVICE_ORDINAL, POINTER_IS_LEGACY_IPC_CAPABLE,
    POINTER_RANGE_START, POINTER_RANGE_SIZE, POINTER_MAPPED, POINTER_ALLOWED_HANDLE_TYPES, POINTER_IS_RDMA_CAPABLE,
    POINTER_ACCESS_FLAGS, POINTER_POOL, POINTER_MAPPING_SIZE, POINTER_MAPPING_BASE, POINTER_MEMORY_BLOCK_ID
};

static void put(void *out, const void *value, size_t bytes) { memcpy(out, value, bytes); }
static void put_word(void *out, uint64_t value) { put(out, &value, 8); }
static void put_int(void *out, int value) { put(out, &value, 4); }
static void put_bool(void *out, bool value) { put(out, &value, 1); }

static bool host_side(const struct block *block) { return block->kind == BLOCK_PINNED || block->kind == BLOCK_REGISTERED; }

static status describe(void *out, int attribute, uint64_t address, const struct block *block)
{
    bool on_host = host_side(block), managed = block->kind == BLOCK_MANAGED;
    switch (attribute) {
    case POINTER_CONTEXT: put_word(out, block->kind == BLOCK_POOLED ? 0 : block->context->handle); return OK;
    case POINTER_MEMORY_TYPE: put_int(out, on_host ? MEMORY_HOST : MEMORY_DEVICE); return OK;
    case POINTER_DEVICE_POINTER: put_word(out, address); return OK;
    case POINTER_HOST_POINTER:
        if (!on_host && !managed) return INVALID_VALUE;
        put_word(out, address);
        return OK;
    case POINTER_SYNC_MEMOPS: put_bool(out, false); return OK;
    case POINTER_BUFFER_ID: put_word(out, block->serial); return OK;
    case POINTER_IS_MANAGED: put_int(out, managed); return OK;
    case POINTER_DEVICE_ORDINAL: put_int(out, block->device); return OK;
    case POINTER_IS_LEGACY_IPC_CAPABLE: put_bool(out, block->kind == BLOCK_DEVICE); return OK;
    case POINTER_RANGE_START:
    case POINTER_MAPPING_BASE: put_word(out, block->base); return OK;
    case POINTER_RANGE_SIZE:
    case POINTER_MAPPING_SIZE: put_word(out, block->size); return OK;
    case POINTER_MAPPED: put_bool(out, true); return OK;
    case POINTER_ALLOWED_HANDLE_TYPES: put_word(out, 0); return OK;
    case POINTER_IS_RDMA_CAPABLE: put_bool(out, false); return OK;
    case POINTER_ACCESS_FLAGS: put_int(out, ACCESS_READ_WRITE); return OK;
    case POINTER_POOL: put_word(out, block->pool ? block->pool->handle : 0); return OK;
    case POINTER_MEMORY_BLOCK_ID: put_word(out, block->serial); return OK;
    default: return attribute == POINTER_P2P_TOKENS ? NOT_SUPPORTED : INVALID_VALUE;
    }
}

EXPORT status cuPointerGetAttribute(void *out, int attribute, deviceptr address)
{
    BEGIN(cuPointerGetAttribute, NEED_CONTEXT);
    struct block *block = block_find(address);
    END(out && block ? describe(out, attribute, address, block) : INVALID_VALUE);
}

static size_t width_of(int attribute)
{
    switch (attribute) {
    case POINTER_MEMORY_TYPE:
    case POINTER_IS_MANAGED:
    case POINTER_DEVICE_ORDINAL:
    case POINTER_ACCESS_FLAGS: return 4;
    case POINTER_SYNC_MEMOPS:
    case POINTER_IS_LEGACY_IPC_CAPABLE:
    case POINTER_MAPPED:
    case POINTER_IS_RDMA_CAPABLE: return 1;
    default: return 8;
    }
}

/* Unlike the singular call this is no error for an unknown address: everything is then zero. */
EXPORT status cuPointerGetAttributes(unsigned count, const int *wanted, void **out, deviceptr address)
{
    BEGIN(cuPointerGetAttributes, NEED_CONTEXT);
    REQUIRE(count && wanted && out, INVALID_VALUE);
    struct block *block = block_find(address);
    for (unsigned index = 0; index < count; index++) {
        REQUIRE(out[index] && wanted[index] > 0 && wanted[index] <= POINTER_MEMORY_BLOCK_ID, INVALID_VALUE);
        if (!block || describe(out[index], wanted[index], address, block) != OK) {
            memset(out[index], 0, width_of(wanted[index]));
            if (wanted[index] == POINTER_DEVICE_ORDINAL) put_int(out[index], -2);
        }
    }
    END(OK);
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

EXPORT status cuMemPoolCreate(handle *out, const struct pool_properties *properties)
{
    BEGIN(cuMemPoolCreate, NEED_INIT);
    REQUIRE(out && properties && properties->allocation == ALLOCATION_PINNED, INVALID_VALUE);
    REQUIRE(properties->location.type == LOCATION_DEVICE && !properties->handles, NOT_SUPPORTED);
    REQUIRE(is_device(properties->location.id), INVALID_DEVICE);
    END(pool_create(properties->location.id, properties->max_bytes, out));
}

EXPORT status cuMemPoolDestroy(handle which)
{
    BEGIN(cuMemPoolDestroy, NEED_INIT);
    END(pool_destroy(which));
}

EXPORT status cuMemPoolTrimTo(handle which, size_t keep)
{
    BEGIN(cuMemPoolTrimTo, NEED_INIT);
    struct pool *pool = handle_get(which, HANDLE_POOL);
    END(pool ? pool_trim(pool, keep) : INVALID_VALUE);
}

EXPORT status cuMemPoolSetAttribute(handle which, int attribute, const void *value)
{
    BEGIN(cuMemPoolSetAttribute, NEED_INIT);
    struct pool *pool = handle_get(which, HANDLE_POOL);
    END(pool && value ? pool_set_attribute(pool, attribute, value) : INVALID_VALUE);
}

EXPORT status cuMemPoolGetAttribute(handle which, int attribute, void *out)
{
    BEGIN(cuMemPoolGetAttribute, NEED_INIT);
    struct pool *pool = handle_get(which, HANDLE_POOL);
    END(pool && out ? pool_get_attribute(pool, attribute, out) : INVALID_VALUE);
}

EXPORT status cuMemPoolSetAccess(handle which, const struct access_description *wanted, size_t count)
{
    BEGIN(cuMemPoolSetAccess, NEED_INIT);
    struct pool *pool = handle_get(which, HANDLE_POOL);
    END(pool && (wanted || !count) ? pool_set_access(pool, wanted, count) : INVALID_VALUE);
}

EXPORT status cuMemPoolGetAccess(int *flags, handle which, const struct location *location)
{
    BEGIN(cuMemPoolGetAccess, NEED_INIT);
    struct pool *pool = handle_get(which, HANDLE_POOL);
    END(pool && flags && location ? pool_get_access(pool, location, flags) : INVALID_VALUE);
}

EXPORT status cuDeviceGetDefaultMemPool(handle *out, int device)
{
    BEGIN(cuDeviceGetDefaultMemPool, NEED_INIT);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *out = devices[device].default_pool->handle;
    END(OK);
}

EXPORT status cuDeviceGetMemPool(handle *out, int device)
{
    BEGIN(cuDeviceGetMemPool, NEED_INIT);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *out = devices[device].current_pool->handle;
    END(OK);
}

EXPORT status cuDeviceSetMemPool(int device, handle which)
{
    BEGIN(cuDeviceSetMemPool, NEED_INIT);
    struct pool *pool = handle_get(which, HANDLE_POOL);
    REQUIRE(is_device(device), INVALID_DEVICE);
    REQUIRE(pool && pool->device == device, INVALID_VALUE);
    devices[device].current_pool = pool;
    END(OK);
}

/* --- between processes -------------------------------------------------------------------------------------------- */

EXPORT status cuIpcGetMemHandle(struct ipc_handle *out, deviceptr address)
{
    BEGIN(cuIpcGetMemHandle, NEED_CONTEXT);
    END(out ? ipc_export(address, out->bytes) : INVALID_VALUE);
}

EXPORT status cuIpcOpenMemHandle_v2(deviceptr *out, struct ipc_handle from, unsigned flags)
{
    BEGIN(cuIpcOpenMemHandle, NEED_CONTEXT);
    END(out ? ipc_import(context, from.bytes, flags, out) : INVALID_VALUE);
}

EXPORT status cuIpcCloseMemHandle(deviceptr address)
{
    BEGIN(cuIpcCloseMemHandle, NEED_CONTEXT);
    END(ipc_close(address));
}
