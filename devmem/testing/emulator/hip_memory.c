/* HIP front: memory, pools and IPC handles, in calls without a stream.
 *
 * Any thread may call the functions; they run under the core's lock.
 */
#define _GNU_SOURCE
#include "hip.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* --- device memory ------------------------------------------------------------------------------------------------ */

/* An allocation of zero bytes succeeds with a null address. */
static status alloc_device(struct context *context, size_t bytes, uint64_t *out)
{
    if (!out) return INVALID_VALUE;
    *out = 0;
    return bytes ? device_alloc(context, bytes, out) : OK;
}

HIP(hipMalloc)(uint64_t *out, size_t bytes)
{
    BEGIN(hipMalloc, NEED_CONTEXT);
    END(alloc_device(context, bytes, out));
}

enum { MALLOC_DEFAULT, MALLOC_FINE, MALLOC_SIGNAL, MALLOC_UNCACHED, MALLOC_CONTIGUOUS };

/* Signal memory is one word that host and device can access. */
HIP(hipExtMallocWithFlags)(uint64_t *out, size_t bytes, unsigned flags)
{
    BEGIN(hipExtMallocWithFlags, NEED_CONTEXT);
    REQUIRE(out && flags <= MALLOC_CONTIGUOUS, INVALID_VALUE);
    REQUIRE(flags != MALLOC_SIGNAL || bytes == 8, INVALID_VALUE);
    END(flags == MALLOC_SIGNAL ? host_alloc(context, bytes, flags, out) : alloc_device(context, bytes, out));
}

#define ROW_ALIGNMENT 256u

static size_t row_of(size_t width) { return size_rounded(width, ROW_ALIGNMENT); }

HIP(hipMallocPitch)(uint64_t *out, size_t *pitch, size_t width, size_t height)
{
    BEGIN(hipMallocPitch, NEED_CONTEXT);
    REQUIRE(out && pitch, INVALID_VALUE);
    size_t row = row_of(width);
    status taken = alloc_device(context, size_times(row, height), out);
    if (taken == OK) *pitch = row;
    END(taken);
}

HIP(hipMalloc3D)(struct pitched *out, struct extent extent)
{
    BEGIN(hipMalloc3D, NEED_CONTEXT);
    uint64_t address;
    REQUIRE(out, INVALID_VALUE);
    size_t pitch = row_of(extent.width);
    status taken = alloc_device(context, size_times(size_times(pitch, extent.height), extent.depth), &address);
    if (taken == OK) *out = (struct pitched){(void *)(uintptr_t)address, pitch, extent.width, extent.height};
    END(taken);
}

/* Any address within a block of any kind frees the whole block, after a wait for the streams of its device. */
static status free_any(uint64_t address)
{
    struct block *block = block_find(address);
    if (!address) return OK;
    if (block && block->pool && block->kind == BLOCK_IMPORTED) return device_free(NULL, address);
    if (!block || block->kind == BLOCK_REGISTERED || block->kind == BLOCK_IMPORTED) return INVALID_VALUE;
    if (block->kind != BLOCK_POOLED) return block_free(block);
    if (hip_rocm() < 700) device_drain(block->device);
    block = block_find(address);
    if (block) pool_free_now(block);
    return block ? OK : INVALID_VALUE;
}

HIP(hipFree)(uint64_t address)
{
    BEGIN(hipFree, NEED_CONTEXT);
    END(free_any(address));
}

HIP(hipMemGetInfo)(size_t *free_bytes, size_t *total)
{
    BEGIN(hipMemGetInfo, NEED_CONTEXT);
    const struct heap *heap = &devices[context->device].heap;
    REQUIRE(free_bytes || total, INVALID_VALUE);
    if (free_bytes) *free_bytes = heap->bytes - heap->used;
    if (total) *total = heap->bytes;
    END(OK);
}

HIP(hipMemGetAddressRange)(uint64_t *base, size_t *bytes, uint64_t address)
{
    BEGIN(hipMemGetAddressRange, NEED_CONTEXT);
    struct block *block = block_find(address);
    REQUIRE(block, NOT_FOUND);
    if (base) *base = block->base;
    if (bytes) *bytes = block->size;
    END(OK);
}

HIP(hipMemPtrGetInfo)(uint64_t address, size_t *bytes)
{
    BEGIN(hipMemPtrGetInfo, NEED_CONTEXT);
    struct block *block = block_find(address);
    REQUIRE(bytes && (block || !address), INVALID_VALUE);
    *bytes = address ? block->size : 0;
    END(OK);
}

/* --- host memory -------------------------------------------------------------------------------------------------- */

/* Flags without coherence make memory coarse-grained, unless no flag is set or HIP_HOST_COHERENT=1. */
static bool is_coarse(unsigned flags)
{
    if (flags & HOST_NON_COHERENT) return true;
    return flags && !(flags & (HOST_COHERENT | HOST_MAPPED | HOST_NUMA_USER)) && core_setting("HIP_HOST_COHERENT", 0) != 1;
}

static status alloc_host(struct context *context, uint64_t *out, size_t bytes, unsigned flags)
{
    if (!out || (flags & (HOST_COHERENT | HOST_NON_COHERENT)) == (HOST_COHERENT | HOST_NON_COHERENT)) return INVALID_VALUE;
    *out = 0;
    if (!bytes) return OK;
    status taken = host_alloc(context, bytes, flags, out);
    if (taken == OK && is_coarse(flags)) shadow_attach(block_find(*out));
    return taken;
}

HIP(hipHostMalloc)(uint64_t *out, size_t bytes, unsigned flags)
{
    BEGIN(hipHostMalloc, NEED_CONTEXT);
    END(alloc_host(context, out, bytes, flags));
}

HIP(hipHostAlloc)(uint64_t *out, size_t bytes, unsigned flags)
{
    BEGIN(hipHostAlloc, NEED_CONTEXT);
    END(flags <= 7 ? alloc_host(context, out, bytes, flags) : INVALID_VALUE);
}

HIP(hipHostFree)(uint64_t address)
{
    BEGIN(hipHostFree, NEED_CONTEXT);
    END(free_any(address));
}

HIP(hipHostGetDevicePointer)(uint64_t *out, uint64_t host, unsigned flags)
{
    BEGIN(hipHostGetDevicePointer, NEED_CONTEXT);
    struct block *block = block_find(host);
    REQUIRE(out && !flags && block, INVALID_VALUE);
    *out = block_device_address(block, host);
    END(OK);
}

HIP(hipHostGetFlags)(unsigned *flags, uint64_t host)
{
    BEGIN(hipHostGetFlags, NEED_CONTEXT);
    struct block *block = block_find(host);
    REQUIRE(flags && block && block->kind == BLOCK_PINNED, INVALID_VALUE);
    *flags = block->flags;
    END(OK);
}

/* --- registered memory -------------------------------------------------------------------------------------------- */

#define REGISTER_FLAGS (1u | 2u | 4u | 8u | 0x80000000u)

/* Before ROCm 7.3 the runtime does not check whether memory is known: a second registration of an address succeeds, has no
 * effect and can never be undone. */
static status register_unchecked(struct context *context, uint64_t address, size_t bytes, unsigned flags)
{
    struct block *known = block_find(address);
    if (!known || (known->kind == BLOCK_REGISTERED && known->base != address)) return range_add(context, address, bytes, flags);
    if (is_device_memory(known)) return INVALID_VALUE;
    live_handles++;
    return OK;
}

static status register_checked(struct context *context, uint64_t address, size_t bytes, unsigned flags)
{
    struct block *known = block_find(address);
    if (known && is_device_memory(known)) return INVALID_VALUE;
    if (known || range_overlap(address, bytes)) return HOST_MEMORY_ALREADY_REGISTERED;
    return range_add(context, address, bytes, flags);
}

HIP(hipHostRegister)(uint64_t address, size_t bytes, unsigned flags)
{
    BEGIN(hipHostRegister, NEED_CONTEXT);
    REQUIRE(address && bytes && !(flags & ~REGISTER_FLAGS) && address + bytes >= address, INVALID_VALUE);
    status done = (hip_rocm() < 703 ? register_unchecked : register_checked)(context, address, bytes, flags);
    struct block *block = done == OK ? block_find(address) : NULL;
    if (block && block->kind == BLOCK_REGISTERED && !block->device_alias) range_alias(block);
    END(done);
}

HIP(hipHostUnregister)(uint64_t address)
{
    BEGIN(hipHostUnregister, NEED_CONTEXT);
    struct block *block = block_find(address);
    REQUIRE(address, INVALID_VALUE);
    REQUIRE(block, HOST_MEMORY_NOT_REGISTERED);
    if (block->kind != BLOCK_REGISTERED || address_of(block->access) != address)
        core_die(SIGABRT, "hipHostUnregister(%#llx): not the start of a registered range; the runtime aborts",
                 (unsigned long long)address);
    uint64_t serial = block->serial;
    device_drain(block->device);
    block = block_find(address);
    REQUIRE(block && block->serial == serial, HOST_MEMORY_NOT_REGISTERED);
    range_forget(block);
    END(OK);
}

/* --- managed memory ----------------------------------------------------------------------------------------------- */

HIP(hipMallocManaged)(uint64_t *out, size_t bytes, unsigned flags)
{
    BEGIN(hipMallocManaged, NEED_CONTEXT);
    REQUIRE(out && bytes && (flags == 1 || flags == 2), INVALID_VALUE);
    END(managed_alloc(context, bytes, flags, out));
}

#define ADVICE_COARSE 100

static status advise(uint64_t address, size_t bytes, int advice, struct location location)
{
    bool grain = advice == ADVICE_COARSE || advice == ADVICE_COARSE + 1, placed = advice == 3 || advice == 5 || advice == 6;
    return grain || (advice >= 1 && advice <= 6) ? managed_advise(address, bytes, location, placed) : INVALID_VALUE;
}

HIP(hipMemAdvise)(uint64_t address, size_t bytes, int advice, int device)
{
    BEGIN(hipMemAdvise, NEED_CONTEXT);
    struct location location = {device < 0 ? LOCATION_HOST : LOCATION_DEVICE, device};
    END(advise(address, bytes, advice, location));
}

HIP(hipMemAdvise_v2)(uint64_t address, size_t bytes, int advice, struct location location)
{
    BEGIN(hipMemAdvise_v2, NEED_CONTEXT);
    END(advise(address, bytes, advice, location));
}

/* --- attributes of an address ------------------------------------------------------------------------------------- */

static int type_of(const struct block *block)
{
    if (block->kind == BLOCK_MANAGED) return HIP_MEMORY_MANAGED;
    return is_device_memory(block) ? HIP_MEMORY_DEVICE : HIP_MEMORY_HOST;
}

/* An unknown address is an error before ROCm 7; since then it is memory of no type. */
HIP(hipPointerGetAttributes)(struct pointer_attributes *out, uint64_t address)
{
    BEGIN(hipPointerGetAttributes, NEED_CONTEXT);
    struct block *block = block_find(address);
    REQUIRE(out, INVALID_VALUE);
    memset(out, 0, sizeof *out);
    REQUIRE(block || hip_rocm() >= 700, INVALID_VALUE);
    out->device = block ? block->device : -2;
    REQUIRE(block, OK);
    out->type = type_of(block);
    out->device_pointer = (void *)(uintptr_t)block_device_address(block, address);
    out->host_pointer = is_device_memory(block) ? NULL : (void *)(uintptr_t)block_host_address(block, address);
    out->is_managed = block->kind == BLOCK_MANAGED;
    out->flags = block->flags;
    END(OK);
}

static bool attribute_value(const struct block *block, int attribute, uint64_t address, uint64_t *value)
{
    if (attribute != POINTER_MEMORY_TYPE) return pointer_attribute(block, attribute, address, value);
    *value = (uint64_t)type_of(block);
    return true;
}

HIP(hipPointerGetAttribute)(void *out, int attribute, uint64_t address)
{
    BEGIN(hipPointerGetAttribute, NEED_CONTEXT);
    struct block *block = block_find(address);
    uint64_t value;
    REQUIRE(out && block && attribute >= POINTER_CONTEXT && attribute <= POINTER_POOL, INVALID_VALUE);
    REQUIRE(attribute_value(block, attribute, address, &value), attribute == POINTER_P2P_TOKENS ? NOT_SUPPORTED : INVALID_VALUE);
    memcpy(out, &value, pointer_attribute_size(attribute));
    END(OK);
}

HIP(hipDrvPointerGetAttributes)(unsigned count, const int *wanted, void **out, uint64_t address)
{
    BEGIN(hipDrvPointerGetAttributes, NEED_CONTEXT);
    REQUIRE(count && wanted && out, INVALID_VALUE);
    struct block *block = block_find(address);
    for (unsigned index = 0; index < count; index++) {
        uint64_t value = 0;
        REQUIRE(out[index] && wanted[index] >= POINTER_CONTEXT && wanted[index] <= POINTER_POOL, INVALID_VALUE);
        if (!block || !attribute_value(block, wanted[index], address, &value)) value = 0;
        memcpy(out[index], &value, pointer_attribute_size(wanted[index]));
    }
    END(OK);
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

HIP(hipMemPoolCreate)(handle *out, const struct pool_properties *properties)
{
    BEGIN(hipMemPoolCreate, NEED_INIT);
    REQUIRE(hip_has_pools(), NOT_SUPPORTED);
    REQUIRE(out && properties && properties->allocation == ALLOCATION_PINNED, INVALID_VALUE);
    REQUIRE(properties->location.type == LOCATION_DEVICE && is_device(properties->location.id), INVALID_VALUE);
    REQUIRE(!properties->handles || properties->handles == HANDLE_POSIX_FILE, NOT_SUPPORTED);
    END(pool_create(properties->location.id, properties, out));
}

HIP(hipMemPoolDestroy)(handle which)
{
    BEGIN(hipMemPoolDestroy, NEED_INIT);
    END(pool_destroy(which));
}

HIP(hipMemPoolTrimTo)(handle which, size_t keep)
{
    BEGIN(hipMemPoolTrimTo, NEED_INIT);
    END(pool_trim(which, keep));
}

HIP(hipMemPoolSetAttribute)(handle which, int attribute, const void *value)
{
    BEGIN(hipMemPoolSetAttribute, NEED_INIT);
    END(pool_set_attribute(which, attribute, value));
}

HIP(hipMemPoolGetAttribute)(handle which, int attribute, void *out)
{
    BEGIN(hipMemPoolGetAttribute, NEED_INIT);
    END(pool_get_attribute(which, attribute, out));
}

HIP(hipMemPoolSetAccess)(handle which, const struct access_description *wanted, size_t count)
{
    BEGIN(hipMemPoolSetAccess, NEED_INIT);
    END(wanted && count ? pool_set_access(which, wanted, count) : INVALID_VALUE);
}

HIP(hipMemPoolGetAccess)(int *flags, handle which, const struct location *location)
{
    BEGIN(hipMemPoolGetAccess, NEED_INIT);
    END(pool_get_access(which, location, flags));
}

HIP(hipDeviceGetDefaultMemPool)(handle *out, int device)
{
    BEGIN(hipDeviceGetDefaultMemPool, NEED_INIT);
    REQUIRE(hip_has_pools(), NOT_SUPPORTED);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *out = devices[device].default_pool->handle;
    END(OK);
}

HIP(hipDeviceGetMemPool)(handle *out, int device)
{
    BEGIN(hipDeviceGetMemPool, NEED_INIT);
    REQUIRE(hip_has_pools(), NOT_SUPPORTED);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *out = devices[device].current_pool->handle;
    END(OK);
}

HIP(hipDeviceSetMemPool)(int device, handle which)
{
    BEGIN(hipDeviceSetMemPool, NEED_INIT);
    END(device_set_pool(device, which));
}

HIP(hipMemPoolExportToShareableHandle)(int *out, handle which, int type, unsigned flags)
{
    BEGIN(hipMemPoolExportToShareableHandle, NEED_INIT);
    END(out ? pool_export(which, type, flags, out) : INVALID_VALUE);
}

/* The file is given in the place of an address. */
HIP(hipMemPoolImportFromShareableHandle)(handle *out, void *file, int type, unsigned flags)
{
    BEGIN(hipMemPoolImportFromShareableHandle, NEED_CONTEXT);
    REQUIRE(out && type && !flags, INVALID_VALUE);
    status imported = pool_import((int)address_of(file), type, flags, out);
    END(imported == INVALID_VALUE ? OUT_OF_MEMORY : imported);
}

HIP(hipMemPoolExportPointer)(struct ipc_handle *out, uint64_t address)
{
    BEGIN(hipMemPoolExportPointer, NEED_CONTEXT);
    REQUIRE(out && address, INVALID_VALUE);
    END(pool_export_pointer(address, out->bytes) == OK ? OK : OUT_OF_MEMORY);
}

HIP(hipMemPoolImportPointer)(uint64_t *out, handle which, const struct ipc_handle *data)
{
    BEGIN(hipMemPoolImportPointer, NEED_CONTEXT);
    REQUIRE(out && which && data, INVALID_VALUE);
    END(pool_import_pointer(context, which, data->bytes, out) == OK ? OK : OUT_OF_MEMORY);
}

/* --- virtual memory ----------------------------------------------------------------------------------------------- */

/* Since ROCm 7.1 the file descriptor is given in the place of an address; before, by its address. */
static int imported_file(const void *from)
{
    return hip_rocm() >= 701 ? (int)address_of(from) : from ? *(const int *)from : -1;
}

#define IMPORTED_FILE(from) imported_file(from)
VIRTUAL_FUNCTIONS(HIP, hip)

/* --- IPC ---------------------------------------------------------------------------------------------------------- */

#define LAZY_PEER_ACCESS 1u

HIP(hipIpcGetMemHandle)(struct ipc_handle *out, uint64_t address)
{
    BEGIN(hipIpcGetMemHandle, NEED_CONTEXT);
    REQUIRE(out && address, INVALID_VALUE);
    status exported = ipc_export(address, out->bytes);
    END(exported == INVALID_VALUE ? HIP_INVALID_DEVICE_POINTER : exported);
}

HIP(hipIpcOpenMemHandle)(uint64_t *out, struct ipc_handle from, unsigned flags)
{
    BEGIN(hipIpcOpenMemHandle, NEED_CONTEXT);
    REQUIRE(out && flags == LAZY_PEER_ACCESS, INVALID_VALUE);
    status opened = ipc_import(context, from.bytes, flags, out);
    END(opened == MAP_FAILED_STATUS ? HIP_INVALID_DEVICE_POINTER : opened);
}

HIP(hipIpcCloseMemHandle)(uint64_t address)
{
    BEGIN(hipIpcCloseMemHandle, NEED_CONTEXT);
    REQUIRE(address, INVALID_VALUE);
    END(ipc_close(address) == OK ? OK : INVALID_HANDLE);
}
