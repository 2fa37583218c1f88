/* Memory pools for stream-ordered allocation: a pool keeps freed blocks, and reuses them as stream order allows.
 *
 * Freed blocks wait in free lists by size. The stream that freed a block may reuse it at once; another stream, when the free
 * has run (opportunistic reuse), or after a wait that the pool adds to that stream (internal dependencies). Use before the
 * allocation or after the free in stream order is found through the lease of the block. Called with the core's lock.
 */
#include "core.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TRIES 16 /* free blocks tried before new memory is taken from the device */

/* Four sizes for each power of two: a block may be a quarter larger than requested. */
static size_t rounded(size_t bytes)
{
    size_t unit = GRANULE;
    while (unit * 8 < bytes) unit *= 2;
    return (bytes + unit - 1) / unit * unit;
}

static int class_of(size_t capacity) { return 63 - __builtin_clzll(capacity); }

/* --- free lists --------------------------------------------------------------------------------------------------- */

static void return_to_device(struct pool *pool, struct block *block)
{
    pool->reserved -= block->capacity;
    op_release(block->free_op);
    block->free_op = NULL;
    block->pool = NULL;
    heap_free(block);
}

static void cache(struct pool *pool, struct block *block)
{
    int class = class_of(block->capacity);
    block->cached_next = pool->cached[class];
    pool->cached[class] = block;
}

static bool safe_to_release(const struct block *block) { return !block->free_op || block->free_op->done; }

static void trim(struct pool *pool, size_t keep)
{
    for (int class = 63; class >= 0; class--) {
        struct block **link = &pool->cached[class];
        while (*link && pool->reserved > keep) {
            struct block *block = *link;
            if (!safe_to_release(block) || pool->reserved - block->capacity < keep) {
                link = &block->cached_next;
                continue;
            }
            *link = block->cached_next;
            return_to_device(pool, block);
        }
    }
}

/* Free a destroyed pool when its last block has been freed; returns whether it did. */
static bool destroy_if_unused(struct pool *pool)
{
    if (!pool->closing || pool->live_blocks) return false;
    for (int class = 0; class < 64; class++)
        for (struct block *block; (block = pool->cached[class]);) {
            pool->cached[class] = block->cached_next;
            return_to_device(pool, block);
        }
    free(pool);
    return true;
}

/* A block that was imported from another process is closed. */
void pool_block_gone(struct pool *pool)
{
    pool->live_blocks--;
    destroy_if_unused(pool);
}

/* After a wait for a stream, event or context, the pools of the device release what exceeds their thresholds. */
void pools_trim_to_threshold(int device)
{
    for (struct pool *pool = devices[device].pools; pool; pool = pool->next)
        if (pool->reserved > pool->threshold) trim(pool, pool->threshold);
}

/* --- creation and destruction ------------------------------------------------------------------------------------- */

struct pool *pool_open(int device)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool) abort();
    pool->device = device;
    pool->follow_events = pool->opportunistic = pool->internal = 1;
    pool->readable_by = 1u << device;
    pool->handle = handle_new(HANDLE_POOL, pool);
    pool->next = devices[device].pools;
    devices[device].pools = pool;
    return pool;
}

status pool_create(int device, const struct pool_properties *properties, uint64_t *handle)
{
    struct pool *pool = pool_open(device);
    pool->max_bytes = properties->max_bytes;
    pool->shareable = properties->handles == HANDLE_POSIX_FILE;
    pool->decompresses = properties->usage == USAGE_HW_DECOMPRESS;
    *handle = pool->handle;
    live_handles++;
    return OK;
}

status pool_destroy(uint64_t handle)
{
    struct pool *pool = handle_get(handle, HANDLE_POOL);
    if (!pool || pool->is_default) return INVALID_VALUE;
    struct device *device = &devices[pool->device];
    struct pool **link = &device->pools;
    if (device->current_pool == pool) device->current_pool = device->default_pool;
    while (*link != pool) link = &(*link)->next;
    *link = pool->next;
    handle_free(handle);
    live_handles--;
    pool->closing = true;
    destroy_if_unused(pool);
    return OK;
}

void pools_reset(int device)
{
    for (struct pool *pool = devices[device].pools, *next; pool; pool = next) {
        next = pool->next;
        trim(pool, 0);
        if (!pool->is_default) pool_destroy(pool->handle);
        else pool->threshold = pool->used_high = pool->reserved_high = 0;
    }
}

/* --- allocating --------------------------------------------------------------------------------------------------- */

static bool reusable(const struct pool *pool, const struct block *block, const struct stream *stream, bool insert_wait)
{
    if (!block->free_op || block->freed_on == stream) return true;
    if (block->free_op->done) return pool->opportunistic;
    return insert_wait && pool->internal;
}

static struct block *take_cached(struct pool *pool, size_t capacity, const struct stream *stream, bool insert_wait)
{
    struct block **link = &pool->cached[class_of(capacity)];
    for (int tries = 0; *link && tries < MAX_TRIES; tries++, link = &(*link)->cached_next) {
        struct block *block = *link;
        if (block->capacity < capacity || block->capacity > capacity + capacity / 4) continue;
        if (!reusable(pool, block, stream, insert_wait)) continue;
        *link = block->cached_next;
        return block;
    }
    return NULL;
}

static struct block *take_from_device(struct pool *pool, size_t capacity)
{
    if (pool->max_bytes && pool->reserved + capacity > pool->max_bytes) return NULL;
    struct block *block = heap_alloc(&devices[pool->device].heap, capacity);
    if (!block) {
        trim(pool, 0);
        block = heap_alloc(&devices[pool->device].heap, capacity);
    }
    if (!block) return NULL;
    block->free_op = NULL;
    block->freed_on = NULL;
    pool->reserved += block->capacity;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return block;
}

/* The bytes are poisoned in stream order: earlier work on the stream may still use the block for its previous owner. */
static void submit_alloc(struct stream *stream, struct block *block)
{
    if (block->free_op) stream_wait_op(stream, block->free_op);
    op_release(block->free_op);
    block->free_op = NULL;
    struct op *op = op_new(OP_ALLOC);
    op->alloc.at = (struct endpoint){block->access, 0, 0, lease_retain(block->lease), NULL};
    op->alloc.bytes = block->size;
    block->lease->allocated = false;
    stream_submit(stream, op);
    op_release(op);
}

status pool_alloc(struct context *context, struct pool *pool, size_t bytes, uint64_t stream_handle, uint64_t *address)
{
    struct stream *stream;
    status found = stream_for_work(context, stream_handle, &stream);
    if (found != OK) return found;
    if (!bytes || pool->exporter) return INVALID_VALUE;
    if (bytes > devices[pool->device].heap.bytes) return OUT_OF_MEMORY;
    size_t capacity = rounded(bytes);
    struct block *block = take_cached(pool, capacity, stream, false);
    if (!block) block = take_from_device(pool, capacity);
    if (!block) block = take_cached(pool, capacity, stream, true);
    if (!block) return OUT_OF_MEMORY;
    block_init(block, BLOCK_POOLED, context, bytes);
    block->device = pool->device;
    block->pool = pool;
    pool->live_blocks++;
    pool->used += block->capacity;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    submit_alloc(stream, block);
    *address = block->base;
    return OK;
}

/* --- freeing ------------------------------------------------------------------------------------------------------ */

static bool cache_freed(struct block *block)
{
    struct pool *pool = block->pool;
    block->freed = true;
    pool->used -= block->capacity;
    pool->live_blocks--;
    cache(pool, block);
    return destroy_if_unused(pool);
}

/* Free without a stream: the caller promises that no work uses the block. Returns whether the pool was freed too. */
bool pool_free_now(struct block *block)
{
    if (block->freed) return false;
    block_mark_freed(block);
    block->free_op = NULL;
    return cache_freed(block);
}

status pool_free(struct context *context, uint64_t address, uint64_t stream_handle)
{
    struct stream *stream;
    struct block *block = block_find(address);
    status found = stream_for_work(context, stream_handle, &stream);
    if (found != OK) return found;
    if (!block || block->base != address) return INVALID_VALUE;
    if (block->kind != BLOCK_POOLED) return INVALID_VALUE;
    struct op *op = op_new(OP_FREE);
    op->freed_lease = block->lease; /* the operation takes over the lease */
    block->lease = NULL;
    live_bytes -= block->size;
    block->free_op = op;
    block->freed_on = stream;
    stream_submit(stream, op);
    cache_freed(block);
    return OK;
}

/* --- calls by handle ---------------------------------------------------------------------------------------------- */

static struct pool *pool_of(uint64_t handle) { return handle_get(handle, HANDLE_POOL); }

status pool_trim(uint64_t handle, size_t keep)
{
    struct pool *pool = pool_of(handle);
    if (!pool) return INVALID_VALUE;
    trim(pool, keep);
    return OK;
}

status device_set_pool(int device, uint64_t handle)
{
    struct pool *pool = pool_of(handle);
    if (!is_device(device)) return INVALID_DEVICE;
    if (!pool || pool->device != device || pool->exporter) return INVALID_VALUE;
    devices[device].current_pool = pool;
    return OK;
}

enum {
    POOL_FOLLOW_EVENTS = 1, POOL_OPPORTUNISTIC, POOL_INTERNAL, POOL_THRESHOLD, POOL_RESERVED, POOL_RESERVED_HIGH, POOL_USED,
    POOL_USED_HIGH
};

/* The first three values have 4 bytes, the others 8. */
status pool_set_attribute(uint64_t handle, int attribute, const void *value)
{
    struct pool *pool = pool_of(handle);
    if (!pool || !value) return INVALID_VALUE;
    int number;
    uint64_t word = 0;
    memcpy(&number, value, sizeof number);
    if (attribute >= POOL_THRESHOLD) memcpy(&word, value, sizeof word);
    switch (attribute) {
    case POOL_FOLLOW_EVENTS: pool->follow_events = number != 0; return OK;
    case POOL_OPPORTUNISTIC: pool->opportunistic = number != 0; return OK;
    case POOL_INTERNAL: pool->internal = number != 0; return OK;
    case POOL_THRESHOLD: pool->threshold = word; return OK;
    case POOL_RESERVED_HIGH: /* a high-water mark can only be reset, to the current value */
        if (!word) pool->reserved_high = pool->reserved;
        return word ? INVALID_VALUE : OK;
    case POOL_USED_HIGH:
        if (!word) pool->used_high = pool->used;
        return word ? INVALID_VALUE : OK;
    default: return INVALID_VALUE;
    }
}

status pool_get_attribute(uint64_t handle, int attribute, void *out)
{
    const struct pool *pool = pool_of(handle);
    if (!pool || !out) return INVALID_VALUE;
    int number = attribute == POOL_FOLLOW_EVENTS ? pool->follow_events
               : attribute == POOL_OPPORTUNISTIC ? pool->opportunistic : pool->internal;
    uint64_t word;
    switch (attribute) {
    case POOL_FOLLOW_EVENTS:
    case POOL_OPPORTUNISTIC:
    case POOL_INTERNAL: memcpy(out, &number, sizeof number); return OK;
    case POOL_THRESHOLD: word = pool->threshold; break;
    case POOL_RESERVED: word = pool->reserved; break;
    case POOL_RESERVED_HIGH: word = pool->reserved_high; break;
    case POOL_USED: word = pool->used; break;
    case POOL_USED_HIGH: word = pool->used_high; break;
    default: return INVALID_VALUE;
    }
    memcpy(out, &word, sizeof word);
    return OK;
}

status pool_set_access(uint64_t handle, const struct access_description *wanted, size_t count)
{
    struct pool *pool = pool_of(handle);
    if (!pool || (!wanted && count)) return INVALID_VALUE;
    for (size_t index = 0; index < count; index++) {
        const struct access_description *one = &wanted[index];
        bool known = one->flags == 0 || one->flags == 1 || one->flags == ACCESS_READ_WRITE;
        if (one->location.type != LOCATION_DEVICE || !known) return INVALID_VALUE;
        if (!is_device(one->location.id)) return INVALID_DEVICE;
        if (!one->flags && one->location.id == pool->device) return INVALID_VALUE; /* the pool's own device always has access */
        if (one->flags) pool->readable_by |= 1u << one->location.id;
        else pool->readable_by &= ~(1u << one->location.id);
    }
    return OK;
}

status pool_get_access(uint64_t handle, const struct location *location, int *flags)
{
    const struct pool *pool = pool_of(handle);
    if (!pool || !location || !flags || location->type != LOCATION_DEVICE) return INVALID_VALUE;
    if (!is_device(location->id)) return INVALID_DEVICE;
    *flags = pool->readable_by & (1u << location->id) ? ACCESS_READ_WRITE : 0;
    return OK;
}
