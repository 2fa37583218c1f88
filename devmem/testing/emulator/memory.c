/* Memory that the program can name: device, pinned, managed, registered and imported blocks. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096u

struct heap pinned_heap, managed_heap;
size_t live_bytes;

static uint64_t serials;

/* Registered and imported ranges, sorted by address. Few, so that moving the tail on insertion costs nothing much. */
struct block **ranges;
size_t range_count;
static size_t range_room;

/* --- leases ------------------------------------------------------------------------------------------------------- */

struct lease *lease_hold(struct lease *lease)
{
    if (lease) lease->references++;
    return lease;
}

void lease_drop(struct lease *lease)
{
    if (!lease || --lease->references) return;
    shade_drop(lease->shade);
    free(lease);
}

/* Queued operations that still want the bytes will fail; the one that touches them at this moment is waited for. */
void lease_end(struct block *block)
{
    struct lease *lease = block->lease;
    if (!lease) return;
    lease->dead = true;
    while (lease->running) pthread_cond_wait(&progress, &core_mutex);
    block->lease = NULL;
    lease_drop(lease);
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

void block_dress(struct block *block, enum block_kind kind, struct context *context, size_t bytes)
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
    block->lease->born = true;
    live_bytes += bytes;
}

void block_retire(struct block *block)
{
    live_bytes -= block->size;
    block->freed = true; /* first: nobody may find it while this thread waits */
    lease_end(block);
}

static void poison(struct block *block)
{
    memset(block->access, POISON, block->capacity < POISON_LIMIT ? block->capacity : POISON_LIMIT);
}

static status take(struct heap *heap, struct context *context, enum block_kind kind, size_t bytes, struct block **out)
{
    if (!bytes) return INVALID_VALUE;
    *out = heap_take(heap, bytes);
    if (!*out) return OUT_OF_MEMORY;
    block_dress(*out, kind, context, bytes);
    poison(*out);
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

/* The live block that holds an address, of whatever kind. */
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
    return block->kind == BLOCK_DEVICE || block->kind == BLOCK_POOLED || block->kind == BLOCK_IMPORTED;
}

static bool inside(const struct heap *heap, uint64_t address)
{
    return heap->bytes && address >= heap->base && address < heap->base + heap->bytes;
}

/* Ours to hand out, and therefore never pageable host memory, whether or not anything lives there now. */
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
    struct block *block;
    status taken = take(&devices[context->device].heap, context, BLOCK_DEVICE, bytes, &block);
    if (taken == OK) *address = block->base;
    return taken;
}

/* Only exact bases. Plain memory waits for its device's streams; pool memory, as documented, waits for nothing. */
status device_free(struct context *context, uint64_t address)
{
    (void)context;
    struct block *block = block_find(address);
    if (!block || block->base != address) return INVALID_VALUE;
    if (block->kind == BLOCK_POOLED) {
        pool_return(block);
        return OK;
    }
    if (block->kind != BLOCK_DEVICE && block->kind != BLOCK_MANAGED) return INVALID_VALUE;
    return block_release(block);
}

/* Free a whole block of a heap after all work of its device. */
status block_release(struct block *block)
{
    uint64_t serial = block->serial, base = block->base;
    device_drain(block->device);
    block = block_find(base); /* another thread may have freed it while this one waited */
    if (!block || block->serial != serial) return INVALID_VALUE;
    block_retire(block);
    if (!is_device_memory(block)) poison(block); /* a NumPy array that outlives its memory should look wrong */
    heap_give(block);
    return OK;
}

/* --- host --------------------------------------------------------------------------------------------------------- */

status host_alloc(struct context *context, size_t bytes, unsigned flags, uint64_t *address)
{
    struct block *block;
    status taken = take(&pinned_heap, context, BLOCK_PINNED, bytes, &block);
    if (taken != OK) return taken;
    block->flags = flags;
    *address = block->base;
    return OK;
}

status host_free(struct context *context, uint64_t address)
{
    (void)context;
    struct block *block = block_find(address);
    if (!block || block->kind != BLOCK_PINNED || block->base != address) return INVALID_VALUE;
    block_retire(block);
    poison(block); /* a NumPy array that outlives its memory should look wrong, not right */
    heap_give(block);
    return OK;
}

status managed_alloc(struct context *context, size_t bytes, unsigned flags, uint64_t *address)
{
    struct block *block;
    status taken = take(&managed_heap, context, BLOCK_MANAGED, bytes, &block);
    if (taken != OK) return taken;
    block->flags = flags;
    *address = block->base;
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

/* Memory of the program becomes page-locked. It must be there; nothing else is checked. */
status range_add(struct context *context, uint64_t address, size_t bytes, unsigned flags)
{
    if (is_reserved(address) || !range_is_mapped(address, bytes)) return INVALID_VALUE;
    struct block *block = calloc(1, sizeof *block);
    if (!block) abort();
    block_dress(block, BLOCK_REGISTERED, context, bytes);
    live_bytes -= bytes; /* the bytes are the program's own: counted as a handle */
    live_handles++;
    block->base = address;
    block->access = (char *)(uintptr_t)address;
    block->flags = flags;
    return range_insert(block);
}

/* Give registered memory a second address, which the device uses and the host cannot touch. */
void range_alias(struct block *block)
{
    size_t offset = block->base % PAGE, bytes = (block->size + offset + PAGE - 1) / PAGE * PAGE;
    struct block *alias = malloc(sizeof *alias);
    void *seen = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!alias || seen == MAP_FAILED) abort();
    *alias = *block;
    alias->base = (uint64_t)(uintptr_t)seen + offset;
    alias->capacity = bytes;
    lease_hold(alias->lease);
    range_insert(alias);
    block->seen = alias;
}

static void alias_forget(struct block *alias)
{
    if (!alias) return;
    range_remove(alias);
    lease_drop(alias->lease);
    munmap((void *)(uintptr_t)(alias->base / PAGE * PAGE), alias->capacity);
    free(alias);
}

void range_forget(struct block *block)
{
    range_remove(block);
    alias_forget(block->seen);
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

/* --- reset -------------------------------------------------------------------------------------------------------- */

static bool is_alias(const struct block *block)
{
    return block->kind == BLOCK_REGISTERED && block->base != (uint64_t)(uintptr_t)block->access;
}

static bool goes_with(const struct block *block, const struct context *context, int device)
{
    if (block->kind == BLOCK_FREE) return false;
    return block->context == context || (context->is_primary && block->kind == BLOCK_POOLED && block->device == device);
}

static void heap_drop(struct heap *heap, struct context *context, int device)
{
    for (struct block *block = heap_first(heap), *next; block; block = next) {
        next = block->after;
        if (!goes_with(block, context, device)) continue;
        if (block->kind == BLOCK_POOLED) {
            if (pool_return(block)) next = heap_first(heap); /* a whole pool went: the neighbours are not what they were */
            continue;
        }
        block_retire(block);
        while (next && next->kind == BLOCK_FREE) next = next->after; /* it may be joined to this block */
        heap_give(block);
    }
}

/* Forget all memory of a context that has no streams any more. */
void blocks_drop(struct context *context, int device)
{
    heap_drop(&devices[device].heap, context, device);
    heap_drop(&pinned_heap, context, device);
    heap_drop(&managed_heap, context, device);
    for (size_t index = 0; index < range_count;) {
        struct block *block = ranges[index];
        if (block->context != context || is_alias(block)) {
            index++;
            continue;
        }
        if (block->kind == BLOCK_IMPORTED) block->references = 1;
        if (block->kind == BLOCK_IMPORTED) ipc_close(block->base);
        else range_forget(block);
        index = 0; /* an alias may have gone with it */
    }
}
