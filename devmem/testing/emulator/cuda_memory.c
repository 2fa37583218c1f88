/* CUDA front: memory, pools and IPC handles, in calls without a stream.
 *
 * Any thread may call the functions; they run under the core's lock.
 */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

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
    size_t row = size_rounded(width, GRANULE);
    status taken = device_alloc(context, size_times(row, height), out);
    if (taken == OK) *pitch = row;
    END(taken);
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
    END(host_free(context, address_of(address)));
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
    struct block *block = block_find(address_of(address));
    REQUIRE(flags && is_page_locked(block), INVALID_VALUE);
    *flags = block->flags;
    END(OK);
}

#define REGISTER_READ_ONLY 8u

/* Whether no part of some memory of the program is mapped read-only. */
static bool is_writable(uint64_t address, size_t bytes)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long long start, end;
    char writes, line[512];
    bool writable = true;
    while (maps && writable && fgets(line, sizeof line, maps))
        if (sscanf(line, "%llx-%llx %*c%c", &start, &end, &writes) == 3 && start < address + bytes && address < end)
            writable = writes == 'w';
    if (maps) fclose(maps);
    return writable;
}

EXPORT status cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    BEGIN(cuMemHostRegister, NEED_CONTEXT);
    REQUIRE(flags <= 15, INVALID_VALUE);
    /* The vendor documents that the flag is required, not with which status the call fails without it. */
    REQUIRE(flags & REGISTER_READ_ONLY || is_writable((uint64_t)(uintptr_t)address, bytes), INVALID_VALUE);
    END(host_register(context, (uint64_t)(uintptr_t)address, bytes, flags));
}

EXPORT status cuMemHostUnregister(void *address)
{
    BEGIN(cuMemHostUnregister, NEED_CONTEXT);
    END(host_unregister(context, address_of(address)));
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
    bool placed = advice == 3 || advice >= 5; /* other advice ignores the location */
    return advice >= 1 && advice <= 6 ? managed_advise(address, bytes, location, placed) : INVALID_VALUE;
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

/* --- attributes of an address ------------------------------------------------------------------------------------- */

static bool attribute_value(const struct block *block, int attribute, uint64_t address, uint64_t *value)
{
    *value = 0;
    if (attribute == POINTER_CONTEXT && (block->kind == BLOCK_POOLED || block->kind == BLOCK_VIRTUAL)) return true; /* of no context */
    if (attribute != POINTER_MEMORY_TYPE) return pointer_attribute(block, attribute, address, value);
    *value = is_page_locked(block) ? MEMORY_HOST : MEMORY_DEVICE;
    return true;
}

static size_t attribute_size(int attribute)
{
    return attribute == POINTER_IS_MANAGED ? 4 : pointer_attribute_size(attribute);
}

#define POINTER_LAST (cuda_version() >= DECOMPRESS_SINCE ? POINTER_IS_HW_DECOMPRESS_CAPABLE : POINTER_MEMORY_BLOCK_ID)

static bool is_attribute(int attribute) { return attribute > 0 && attribute <= POINTER_LAST; }

EXPORT status cuPointerGetAttribute(void *out, int attribute, deviceptr address)
{
    BEGIN(cuPointerGetAttribute, NEED_INIT); /* no context need be current */
    struct block *block = block_find(address);
    uint64_t value;
    REQUIRE(out && block && is_attribute(attribute), INVALID_VALUE);
    bool known = attribute_value(block, attribute, address, &value);
    REQUIRE(known, attribute == POINTER_P2P_TOKENS ? NOT_SUPPORTED : INVALID_VALUE);
    memcpy(out, &value, attribute_size(attribute));
    END(OK);
}

/* Unlike in the singular call, an unknown address is no error: all attributes are then zero, the ordinal is -2. */
EXPORT status cuPointerGetAttributes(unsigned count, const int *wanted, void **out, deviceptr address)
{
    BEGIN(cuPointerGetAttributes, NEED_INIT);
    REQUIRE(count && wanted && out, INVALID_VALUE);
    struct block *block = block_find(address);
    for (unsigned index = 0; index < count; index++) {
        uint64_t value = wanted[index] == POINTER_DEVICE_ORDINAL ? (uint64_t)-2 : 0;
        REQUIRE(out[index] && is_attribute(wanted[index]), INVALID_VALUE);
        if (block && !attribute_value(block, wanted[index], address, &value)) value = 0;
        memcpy(out[index], &value, attribute_size(wanted[index]));
    }
    END(OK);
}

/* The one attribute that can be set, of device memory. */
EXPORT status cuPointerSetAttribute(const unsigned *value, int attribute, deviceptr address)
{
    BEGIN(cuPointerSetAttribute, NEED_INIT);
    struct block *block = block_find(address);
    REQUIRE(value && *value <= 1 && attribute == POINTER_SYNC_MEMOPS && block && is_device_memory(block), INVALID_VALUE);
    block->sync_memops = *value;
    END(OK);
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

EXPORT status cuMemPoolCreate(handle *out, const struct pool_properties *properties)
{
    BEGIN(cuMemPoolCreate, NEED_INIT);
    REQUIRE(out && properties && properties->allocation == ALLOCATION_PINNED, INVALID_VALUE);
    REQUIRE(properties->location.type == LOCATION_DEVICE, NOT_SUPPORTED);
    REQUIRE(!properties->handles || properties->handles == HANDLE_POSIX_FILE, NOT_SUPPORTED);
    REQUIRE(!properties->usage || (properties->usage == USAGE_HW_DECOMPRESS && cuda_version() >= DECOMPRESS_SINCE), INVALID_VALUE);
    REQUIRE(is_device(properties->location.id), INVALID_DEVICE);
    END(pool_create(properties->location.id, properties, out));
}

EXPORT status cuMemPoolDestroy(handle which)
{
    BEGIN(cuMemPoolDestroy, NEED_INIT);
    END(pool_destroy(which));
}

EXPORT status cuMemPoolTrimTo(handle which, size_t keep)
{
    BEGIN(cuMemPoolTrimTo, NEED_INIT);
    END(pool_trim(which, keep));
}

EXPORT status cuMemPoolSetAttribute(handle which, int attribute, const void *value)
{
    BEGIN(cuMemPoolSetAttribute, NEED_INIT);
    END(pool_set_attribute(which, attribute, value));
}

EXPORT status cuMemPoolGetAttribute(handle which, int attribute, void *out)
{
    BEGIN(cuMemPoolGetAttribute, NEED_INIT);
    END(pool_get_attribute(which, attribute, out));
}

EXPORT status cuMemPoolSetAccess(handle which, const struct access_description *wanted, size_t count)
{
    BEGIN(cuMemPoolSetAccess, NEED_INIT);
    END(pool_set_access(which, wanted, count));
}

EXPORT status cuMemPoolGetAccess(int *flags, handle which, const struct location *location)
{
    BEGIN(cuMemPoolGetAccess, NEED_INIT);
    END(pool_get_access(which, location, flags));
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
    END(device_set_pool(device, which));
}

EXPORT status cuMemPoolExportToShareableHandle(int *out, handle which, int type, unsigned long long flags)
{
    BEGIN(cuMemPoolExportToShareableHandle, NEED_INIT);
    END(out ? pool_export(which, type, flags, out) : INVALID_VALUE);
}

/* The file is given in the place of an address. */
EXPORT status cuMemPoolImportFromShareableHandle(handle *out, void *file, int type, unsigned long long flags)
{
    BEGIN(cuMemPoolImportFromShareableHandle, NEED_INIT);
    END(out ? pool_import((int)address_of(file), type, flags, out) : INVALID_VALUE);
}

EXPORT status cuMemPoolExportPointer(struct ipc_handle *out, deviceptr address)
{
    BEGIN(cuMemPoolExportPointer, NEED_INIT);
    END(out ? pool_export_pointer(address, out->bytes) : INVALID_VALUE);
}

EXPORT status cuMemPoolImportPointer(deviceptr *out, handle which, const struct ipc_handle *data)
{
    BEGIN(cuMemPoolImportPointer, NEED_CONTEXT);
    END(out && data ? pool_import_pointer(context, which, data->bytes, out) : INVALID_VALUE);
}

/* --- virtual memory ----------------------------------------------------------------------------------------------- */

#define PLAIN(name) EXPORT status name
#define IMPORTED_FILE(from) (int)address_of(from) /* given in the place of an address */
VIRTUAL_FUNCTIONS(PLAIN, cu)

/* --- IPC ---------------------------------------------------------------------------------------------------------- */

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

EXPORT status cuIpcGetEventHandle(struct ipc_handle *out, handle event)
{
    BEGIN(cuIpcGetEventHandle, NEED_CONTEXT);
    END(out ? ipc_export_event(event, out->bytes) : INVALID_VALUE);
}

EXPORT status cuIpcOpenEventHandle(handle *out, struct ipc_handle from)
{
    BEGIN(cuIpcOpenEventHandle, NEED_CONTEXT);
    END(out ? ipc_import_event(context, from.bytes, out) : INVALID_VALUE);
}
