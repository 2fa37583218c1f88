/* Memory of the program: device, page-locked and managed blocks from heaps, and registered and imported ranges.
 *
 * Every address that the program passes is looked up here, so an unknown or freed address is an error and not a crash. Blocks
 * are identified by serial numbers and used through leases: see core.h. Called with the core's lock; freeing may release it
 * while it waits for streams.
 */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096u

struct heap pinned_heap, managed_heap;
size_t live_bytes;

static uint64_t serials;

/* Registered and imported ranges, sorted by address. There are few, so an insertion may move the rest. */
struct block **ranges;
size_t range_count;
static size_t range_room;

/* --- leases ------------------------------------------------------------------------------------------------------- */

struct lease *lease_retain(struct lease *lease)
{
    if (lease) lease->references++;
    return lease;
}

void lease_release(struct lease *lease)
{
    if (!lease || --lease->references) return;
    shadow_free(lease->shadow);
    free(lease);
}

/* End the use of a block: wait for operations that access it now; those that are still queued will fail. */
void lease_end(struct block *block)
{
    struct lease *lease = block->lease;
    if (!lease) return;
    lease->freed = true;
    while (lease->running) pthread_cond_wait(&progress, &core_mutex);
    block->lease = NULL;
    lease_release(lease);
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

void block_init(struct block *block, enum block_kind kind, struct context *context, size_t bytes)
{
    block->kind = kind;
    block->size = bytes;
    block->context = context;
    block->device = context->device;
    block->serial = ++serials;
    block->freed = false;
    block->flags = 0;
    block->pool = NULL;
    block->lease = calloc(1, sizeof *block->lease);
    if (!block->lease) abort();
    block->lease->references = 1;
    block->lease->allocated = true;
    live_bytes += bytes;
}

void block_mark_freed(struct block *block)
{
    live_bytes -= block->size;
    block->freed = true; /* before the wait, so that block_find() does not return it meanwhile */
    lease_end(block);
}

static void poison(struct block *block)
{
    memset(block->access, POISON, block->capacity < POISON_LIMIT ? block->capacity : POISON_LIMIT);
}

static status allocate(struct heap *heap, struct context *context, enum block_kind kind, size_t bytes, unsigned flags,
                       uint64_t *address)
{
    if (!bytes) return INVALID_VALUE;
    struct block *block = heap_alloc(heap, bytes);
    if (!block) return OUT_OF_MEMORY;
    block_init(block, kind, context, bytes);
    block->flags = flags;
    poison(block);
    *address = block->base;
    return OK;
}

static size_t range_after(uint64_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->base <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static struct block *range_find(uint64_t address)
{
    size_t index = range_after(address);
    struct block *block = index ? ranges[index - 1] : NULL;
    return block && address < block->base + block->size ? block : NULL;
}

struct block *range_overlap(uint64_t address, size_t bytes)
{
    size_t index = range_after(address + bytes - 1);
    struct block *block = index ? ranges[index - 1] : NULL;
    return block && block->base + block->size > address ? block : NULL;
}

status range_insert(struct block *block)
{
    if (range_count == range_room) {
        range_room = range_room ? range_room * 2 : 64;
        ranges = realloc(ranges, range_room * sizeof *ranges);
        if (!ranges) abort();
    }
    size_t index = range_after(block->base);
    memmove(ranges + index + 1, ranges + index, (range_count - index) * sizeof *ranges);
    ranges[index] = block;
    range_count++;
    return OK;
}

void range_remove(struct block *block)
{
    size_t index = range_after(block->base) - 1;
    memmove(ranges + index, ranges + index + 1, (--range_count - index) * sizeof *ranges);
}

/* The live block of any kind that contains an address, or NULL. */
struct block *block_find(uint64_t address)
{
    struct block *block = NULL;
    for (int index = 0; index < device_count && !block; index++) block = heap_find(&devices[index].heap, address);
    if (!block) block = heap_find(&pinned_heap, address);
    if (!block) block = heap_find(&managed_heap, address);
    if (!block) return range_find(address);
    bool live = !block->freed && address < block->base + block->size;
    return live ? block : NULL;
}

bool is_device_memory(const struct block *block)
{
    return block->kind == BLOCK_DEVICE || block->kind == BLOCK_POOLED || block->kind == BLOCK_IMPORTED
        || block->kind == BLOCK_VIRTUAL;
}

/* Whether the bytes at an address within a block end within it. */
bool block_contains(const struct block *block, uint64_t address, size_t bytes)
{
    return size_plus(address, bytes) <= block->base + block->size;
}

static bool inside(const struct heap *heap, uint64_t address)
{
    return heap->bytes && address >= heap->base && address < heap->base + heap->bytes;
}

/* Whether an address belongs to a heap, and so is never pageable host memory. */
bool is_reserved(uint64_t address)
{
    for (int index = 0; index < device_count; index++)
        if (inside(&devices[index].heap, address)) return true;
    return inside(&pinned_heap, address) || inside(&managed_heap, address);
}

bool range_is_mapped(uint64_t address, size_t bytes)
{
    uint64_t first = address / PAGE * PAGE;
    return address + bytes >= address && msync((void *)(uintptr_t)first, address + bytes - first, MS_ASYNC) == 0;
}

/* --- device ------------------------------------------------------------------------------------------------------- */

status device_alloc(struct context *context, size_t bytes, uint64_t *address)
{
    return allocate(&devices[context->device].heap, context, BLOCK_DEVICE, bytes, 0, address);
}

/* Free a block by its base. Waits for the streams of its device, but for pool memory, as documented, does not wait. */
status device_free(struct context *context, uint64_t address)
{
    (void)context;
    struct block *block = block_find(address);
    if (!block || block->base != address) return INVALID_VALUE;
    if (block->kind == BLOCK_POOLED) {
        pool_free_now(block);
        return OK;
    }
    if (block->kind == BLOCK_IMPORTED && block->pool) {
        device_drain(block->device);
        block = block_find(address); /* another thread may have freed it meanwhile */
        if (!block || block->base != address || block->kind != BLOCK_IMPORTED) return INVALID_VALUE;
        pool_import_end(block);
        return OK;
    }
    if (block->kind != BLOCK_DEVICE && block->kind != BLOCK_MANAGED) return INVALID_VALUE;
    return block_free(block);
}

/* Wait for all work of the device and free a block. */
status block_free(struct block *block)
{
    uint64_t serial = block->serial, base = block->base;
    device_drain(block->device);
    block = block_find(base); /* another thread may have freed it meanwhile */
    if (!block || block->serial != serial) return INVALID_VALUE;
    block_mark_freed(block);
    if (!is_device_memory(block)) poison(block); /* so that an array that outlives its memory shows wrong values */
    heap_free(block);
    return OK;
}

/* --- host --------------------------------------------------------------------------------------------------------- */

status host_alloc(struct context *context, size_t bytes, unsigned flags, uint64_t *address)
{
    return allocate(&pinned_heap, context, BLOCK_PINNED, bytes, flags, address);
}

status host_free(struct context *context, uint64_t address)
{
    (void)context;
    struct block *block = block_find(address);
    if (!block || block->kind != BLOCK_PINNED || block->base != address) return INVALID_VALUE;
    block_mark_freed(block);
    poison(block); /* as in block_free() */
    heap_free(block);
    return OK;
}

status host_register(struct context *context, uint64_t address, size_t bytes, unsigned flags)
{
    if (!address || !bytes || address + bytes < address) return INVALID_VALUE;
    if (range_overlap(address, bytes)) return HOST_MEMORY_ALREADY_REGISTERED;
    struct block *pinned = block_find(address);
    if (pinned && pinned->kind == BLOCK_PINNED) return HOST_MEMORY_ALREADY_REGISTERED;
    return range_add(context, address, bytes, flags);
}

/* Record memory of the program as page-locked. It must be mapped; nothing else is checked. */
status range_add(struct context *context, uint64_t address, size_t bytes, unsigned flags)
{
    if (is_reserved(address) || !range_is_mapped(address, bytes)) return INVALID_VALUE;
    struct block *block = calloc(1, sizeof *block);
    if (!block) abort();
    block_init(block, BLOCK_REGISTERED, context, bytes);
    live_bytes -= bytes; /* memory of the program counts as a handle, not in bytes */
    live_handles++;
    block->base = address;
    block->access = (char *)(uintptr_t)address;
    block->flags = flags;
    return range_insert(block);
}

/* Give registered memory a second address, for the device; the host cannot access it. */
void range_alias(struct block *block)
{
    size_t offset = block->base % PAGE, bytes = (block->size + offset + PAGE - 1) / PAGE * PAGE;
    struct block *alias = malloc(sizeof *alias);
    void *reserved = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!alias || reserved == MAP_FAILED) abort();
    *alias = *block;
    alias->base = (uint64_t)(uintptr_t)reserved + offset;
    alias->capacity = bytes;
    lease_retain(alias->lease);
    range_insert(alias);
    block->device_alias = alias;
}

static void alias_forget(struct block *alias)
{
    if (!alias) return;
    range_remove(alias);
    lease_release(alias->lease);
    munmap((void *)(uintptr_t)(alias->base / PAGE * PAGE), alias->capacity);
    free(alias);
}

void range_forget(struct block *block)
{
    range_remove(block);
    alias_forget(block->device_alias);
    lease_end(block);
    live_handles--;
    free(block);
}

status host_unregister(struct context *context, uint64_t address)
{
    (void)context;
    struct block *block = range_find(address);
    if (!block || block->kind != BLOCK_REGISTERED) return HOST_MEMORY_NOT_REGISTERED;
    if (block->base != address) return INVALID_VALUE;
    range_forget(block);
    return OK;
}

/* --- managed ------------------------------------------------------------------------------------------------------ */

status managed_alloc(struct context *context, size_t bytes, unsigned flags, uint64_t *address)
{
    return allocate(&managed_heap, context, BLOCK_MANAGED, bytes, flags, address);
}

static bool is_managed(uint64_t address, size_t bytes)
{
    struct block *block = block_find(address);
    return bytes && block && block->kind == BLOCK_MANAGED && block_contains(block, address, bytes);
}

/* Advice is checked and has no effect. `placed`: the advice has a location. */
status managed_advise(uint64_t address, size_t bytes, struct location location, bool placed)
{
    if (!is_managed(address, bytes)) return INVALID_VALUE;
    return placed && location.type == LOCATION_DEVICE && !is_device(location.id) ? INVALID_DEVICE : OK;
}

/* Prefetching is an operation of the stream that moves nothing. */
status managed_prefetch(struct context *context, uint64_t stream_handle, uint64_t address, size_t bytes, struct location to)
{
    struct stream *stream;
    status found = stream_for_work(context, stream_handle, &stream);
    if (found != OK) return found;
    if (!is_managed(address, bytes) || to.type < LOCATION_DEVICE || to.type > LOCATION_HOST_NUMA_CURRENT) return INVALID_VALUE;
    if (to.type == LOCATION_DEVICE && !is_device(to.id)) return INVALID_DEVICE;
    stream_mark(stream);
    return OK;
}

/* What a discarded range holds, so that no program relies on it. */
#define DISCARDED 0xdb

/* Many ranges: prefetched to places, each from its first range on; discarded; or both. Ranges are not aligned by the caller. */
status managed_batch(struct context *context, uint64_t stream_handle, const uint64_t *ranges, const size_t *sizes, size_t count,
                     const struct location *to, const size_t *firsts, size_t places, bool discards)
{
    struct stream *stream;
    status found = stream_for_work(context, stream_handle, &stream);
    if (found != OK) return found;
    if (!ranges || !sizes || !count) return INVALID_VALUE;
    for (size_t index = 0; index < places; index++) {
        if (index ? firsts[index] <= firsts[index - 1] || firsts[index] >= count : firsts[0] != 0) return INVALID_VALUE;
        if (to[index].type < LOCATION_DEVICE || to[index].type > LOCATION_HOST_NUMA_CURRENT) return INVALID_VALUE;
        if (to[index].type == LOCATION_DEVICE && !is_device(to[index].id)) return INVALID_DEVICE;
    }
    for (size_t index = 0; index < count; index++)
        if (!is_managed(ranges[index], sizes[index])) return INVALID_VALUE;
    for (size_t index = 0; discards && index < count && found == OK; index++)
        found = fill_run(context, stream_handle, ranges[index], 0, DISCARDED, 1, sizes[index], 1, false);
    if (found == OK) stream_mark(stream);
    return found;
}

/* --- attributes of an address ------------------------------------------------------------------------------------- */

uint64_t block_device_address(const struct block *block, uint64_t address)
{
    return block->device_alias ? block->device_alias->base + (address - block->base) : address;
}

uint64_t block_host_address(const struct block *block, uint64_t address)
{
    return block->kind == BLOCK_REGISTERED ? (uint64_t)(uintptr_t)block->access + (address - block->base) : address;
}

/* An attribute as a number; false where the memory does not have it. Fronts supply POINTER_MEMORY_TYPE. */
bool pointer_attribute(const struct block *block, int attribute, uint64_t address, uint64_t *value)
{
    *value = 0;
    switch (attribute) {
    case POINTER_CONTEXT: *value = block->context->handle; return true;
    case POINTER_DEVICE_POINTER: *value = block_device_address(block, address); return true;
    case POINTER_HOST_POINTER: *value = block_host_address(block, address); return !is_device_memory(block);
    case POINTER_P2P_TOKENS: return false;
    case POINTER_SYNC_MEMOPS: *value = block->sync_memops; return true;
    case POINTER_BUFFER_ID:
    case POINTER_MEMORY_BLOCK_ID: *value = block->serial; return true;
    case POINTER_IS_MANAGED: *value = block->kind == BLOCK_MANAGED; return true;
    case POINTER_DEVICE_ORDINAL: *value = (uint64_t)block->device; return true;
    case POINTER_IS_LEGACY_IPC_CAPABLE: *value = block->kind == BLOCK_DEVICE; return true;
    case POINTER_RANGE_START:
    case POINTER_MAPPING_BASE: *value = block->base; return true;
    case POINTER_RANGE_SIZE:
    case POINTER_MAPPING_SIZE: *value = block->size; return true;
    case POINTER_MAPPED: *value = 1; return true;
    case POINTER_ACCESS_FLAGS: *value = ACCESS_READ_WRITE; return true;
    case POINTER_IS_HW_DECOMPRESS_CAPABLE:
        *value = block->kind == BLOCK_DEVICE || (block->pool && block->pool->decompresses);
        return true;
    case POINTER_POOL: *value = block->pool ? block->pool->handle : 0; return true;
    default: return true; /* 0: no, or none */
    }
}

size_t pointer_attribute_size(int attribute)
{
    switch (attribute) {
    case POINTER_MEMORY_TYPE:
    case POINTER_DEVICE_ORDINAL:
    case POINTER_ACCESS_FLAGS: return 4;
    case POINTER_SYNC_MEMOPS:
    case POINTER_IS_MANAGED:
    case POINTER_IS_LEGACY_IPC_CAPABLE:
    case POINTER_MAPPED:
    case POINTER_IS_HW_DECOMPRESS_CAPABLE:
    case POINTER_IS_RDMA_CAPABLE: return 1;
    default: return 8;
    }
}

/* --- reset -------------------------------------------------------------------------------------------------------- */

static bool is_alias(const struct block *block)
{
    return block->kind == BLOCK_REGISTERED && block->base != (uint64_t)(uintptr_t)block->access;
}

static bool belongs_to(const struct block *block, const struct context *context, int device)
{
    if (block->kind == BLOCK_FREE) return false;
    return block->context == context || (context->is_primary && block->kind == BLOCK_POOLED && block->device == device);
}

static void heap_free_context(struct heap *heap, struct context *context, int device)
{
    for (struct block *block = heap_first(heap), *next; block; block = next) {
        next = block->after;
        if (!belongs_to(block, context, device)) continue;
        if (block->kind == BLOCK_POOLED) {
            if (pool_free_now(block)) next = heap_first(heap); /* the pool was freed with its blocks: `next` may be gone */
            continue;
        }
        block_mark_freed(block);
        while (next && next->kind == BLOCK_FREE) next = next->after; /* heap_free() may join it to this block */
        heap_free(block);
    }
}

/* Free all memory of a context that has no streams. */
void blocks_free_context(struct context *context, int device)
{
    heap_free_context(&devices[device].heap, context, device);
    heap_free_context(&pinned_heap, context, device);
    heap_free_context(&managed_heap, context, device);
    for (size_t index = 0; index < range_count;) {
        struct block *block = ranges[index];
        if (block->context != context || is_alias(block)) {
            index++;
            continue;
        }
        if (block->kind == BLOCK_IMPORTED) block->references = 1;
        if (block->kind == BLOCK_IMPORTED && block->pool) pool_import_end(block);
        else if (block->kind == BLOCK_IMPORTED) ipc_close(block->base);
        else range_forget(block);
        index = 0; /* an alias may have been removed too */
    }
}
