/* Stream-ordered memory: a pool keeps what is freed and hands it out again as the order of streams allows.
 *
 * Freed blocks wait in the pool by size class. One is reused at once on the stream that freed it; on another stream when
 * the free has run (opportunistic reuse) or after a wait that the pool inserts (internal dependencies).
 */
#include "core.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_AT 16 /* cached blocks tried before new memory is taken */

/* Four sizes to a power of two: a block may be a quarter larger than asked. */
static size_t rounded(size_t bytes)
{
    size_t unit = GRANULE;
    while (unit * 8 < bytes) unit *= 2;
    return (bytes + unit - 1) / unit * unit;
}

static int class_of(size_t capacity) { return 63 - __builtin_clzll(capacity); }

/* --- the reserve -------------------------------------------------------------------------------------------------- */

static void unreserve(struct pool *pool, struct block *block)
{
    pool->reserved -= block->capacity;
    op_drop(block->died);
    block->died = NULL;
    block->pool = NULL;
    heap_give(block);
}

static void cache(struct pool *pool, struct block *block)
{
    int class = class_of(block->capacity);
    block->cached_next = pool->cached[class];
    pool->cached[class] = block;
}

static bool safe_to_release(const struct block *block) { return !block->died || block->died->done; }

status pool_trim(struct pool *pool, size_t keep)
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
            unreserve(pool, block);
        }
    }
    return OK;
}

/* A destroyed pool goes with the last block that was taken from it. */
static bool maybe_gone(struct pool *pool)
{
    if (!pool->closing || pool->live_blocks) return false;
    for (int class = 0; class < 64; class++)
        for (struct block *block; (block = pool->cached[class]);) {
            pool->cached[class] = block->cached_next;
            unreserve(pool, block);
        }
    free(pool);
    return true;
}

/* Waiting for a stream, event or context makes every pool of the device give back what exceeds its threshold. */
void pools_relax(int device)
{
    for (struct pool *pool = devices[device].pools; pool; pool = pool->next)
        if (pool->reserved > pool->threshold) pool_trim(pool, pool->threshold);
}

/* --- lives -------------------------------------------------------------------------------------------------------- */

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

status pool_create(int device, size_t max_bytes, uint64_t *handle)
{
    struct pool *pool = pool_open(device);
    pool->max_bytes = max_bytes;
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
    handle_drop(handle);
    live_handles--;
    pool->closing = true;
    maybe_gone(pool);
    return OK;
}

void pools_drop(int device)
{
    for (struct pool *pool = devices[device].pools, *next; pool; pool = next) {
        next = pool->next;
        pool_trim(pool, 0);
        if (!pool->is_default) pool_destroy(pool->handle);
        else pool->threshold = pool->used_high = pool->reserved_high = 0;
    }
}

/* --- taking ------------------------------------------------------------------------------------------------------- */

static bool reusable(const struct pool *pool, const struct block *block, const struct stream *stream, bool insert_wait)
{
    if (!block->died || block->home == stream) return true;
    if (block->died->done) return pool->opportunistic;
    return insert_wait && pool->internal;
}

static struct block *from_cache(struct pool *pool, size_t capacity, const struct stream *stream, bool insert_wait)
{
    struct block **link = &pool->cached[class_of(capacity)];
    for (int tries = 0; *link && tries < LOOK_AT; tries++, link = &(*link)->cached_next) {
        struct block *block = *link;
        if (block->capacity < capacity || block->capacity > capacity + capacity / 4) continue;
        if (!reusable(pool, block, stream, insert_wait)) continue;
        *link = block->cached_next;
        return block;
    }
    return NULL;
}

static struct block *from_device(struct pool *pool, size_t capacity)
{
    if (pool->max_bytes && pool->reserved + capacity > pool->max_bytes) return NULL;
    struct block *block = heap_take(&devices[pool->device].heap, capacity);
    if (!block) {
        pool_trim(pool, 0);
        block = heap_take(&devices[pool->device].heap, capacity);
    }
    if (!block) return NULL;
    block->died = NULL;
    block->home = NULL;
    pool->reserved += block->capacity;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return block;
}

/* Bytes are poisoned in stream order: earlier work of the stream may still use them for the block's former owner. */
static void announce(struct stream *stream, struct block *block)
{
    if (block->died) stream_wait_op(stream, block->died);
    op_drop(block->died);
    block->died = NULL;
    struct op *op = op_new(OP_ALLOC);
    op->birth.at = (struct moved){block->access, 0, 0, lease_hold(block->lease), NULL};
    op->birth.bytes = block->size;
    block->lease->born = false;
    stream_submit(stream, op);
    op_drop(op);
}

status pool_alloc(struct context *context, struct pool *pool, size_t bytes, uint64_t stream_handle, uint64_t *address)
{
    struct stream *stream;
    status found = stream_for_work(context, stream_handle, &stream);
    if (found != OK) return found;
    if (!bytes) return INVALID_VALUE;
    if (bytes > devices[pool->device].heap.bytes) return OUT_OF_MEMORY;
    size_t capacity = rounded(bytes);
    struct block *block = from_cache(pool, capacity, stream, false);
    if (!block) block = from_device(pool, capacity);
    if (!block) block = from_cache(pool, capacity, stream, true);
    if (!block) return OUT_OF_MEMORY;
    block_dress(block, BLOCK_POOLED, context, bytes);
    block->device = pool->device;
    block->pool = pool;
    pool->live_blocks++;
    pool->used += block->capacity;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    announce(stream, block);
    *address = block->base;
    return OK;
}

/* --- giving back -------------------------------------------------------------------------------------------------- */

static bool give_back(struct block *block)
{
    struct pool *pool = block->pool;
    block->freed = true;
    pool->used -= block->capacity;
    pool->live_blocks--;
    cache(pool, block);
    return maybe_gone(pool);
}

/* Without a stream: the caller promises that nothing uses it any more. Says whether a whole pool went with it. */
bool pool_return(struct block *block)
{
    if (block->freed) return false;
    block_retire(block);
    block->died = NULL;
    return give_back(block);
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
    op->death = block->lease; /* passes from the block to the operation */
    block->lease = NULL;
    live_bytes -= block->size;
    block->died = op;
    block->home = stream;
    stream_submit(stream, op);
    give_back(block);
    return OK;
}

/* --- settings ----------------------------------------------------------------------------------------------------- */

enum {
    POOL_FOLLOW_EVENTS = 1, POOL_OPPORTUNISTIC, POOL_INTERNAL, POOL_THRESHOLD, POOL_RESERVED, POOL_RESERVED_HIGH, POOL_USED,
    POOL_USED_HIGH
};

/* The first three are of 4 bytes, the others of 8. */
status pool_set_attribute(struct pool *pool, int attribute, const void *value)
{
    int number;
    uint64_t word = 0;
    memcpy(&number, value, sizeof number);
    if (attribute >= POOL_THRESHOLD) memcpy(&word, value, sizeof word);
    switch (attribute) {
    case POOL_FOLLOW_EVENTS: pool->follow_events = number != 0; return OK;
    case POOL_OPPORTUNISTIC: pool->opportunistic = number != 0; return OK;
    case POOL_INTERNAL: pool->internal = number != 0; return OK;
    case POOL_THRESHOLD: pool->threshold = word; return OK;
    case POOL_RESERVED_HIGH: /* high marks can only be put back to what is current */
        if (!word) pool->reserved_high = pool->reserved;
        return word ? INVALID_VALUE : OK;
    case POOL_USED_HIGH:
        if (!word) pool->used_high = pool->used;
        return word ? INVALID_VALUE : OK;
    default: return INVALID_VALUE;
    }
}

status pool_get_attribute(const struct pool *pool, int attribute, void *out)
{
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

static bool is_device(int device) { return device >= 0 && device < device_count; }

status pool_set_access(struct pool *pool, const struct access_description *wanted, size_t count)
{
    for (size_t index = 0; index < count; index++) {
        const struct access_description *one = &wanted[index];
        bool known = one->flags == 0 || one->flags == 1 || one->flags == ACCESS_READ_WRITE;
        if (one->location.type != LOCATION_DEVICE || !known) return INVALID_VALUE;
        if (!is_device(one->location.id)) return INVALID_DEVICE;
        if (!one->flags && one->location.id == pool->device) return INVALID_VALUE; /* its own device cannot be shut out */
        if (one->flags) pool->readable_by |= 1u << one->location.id;
        else pool->readable_by &= ~(1u << one->location.id);
    }
    return OK;
}

status pool_get_access(const struct pool *pool, const struct location *location, int *flags)
{
    if (location->type != LOCATION_DEVICE) return INVALID_VALUE;
    if (!is_device(location->id)) return INVALID_DEVICE;
    *flags = pool->readable_by & (1u << location->id) ? ACCESS_READ_WRITE : 0;
    return OK;
}
