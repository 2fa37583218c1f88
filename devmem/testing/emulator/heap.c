/* A heap: blocks within one reserved address range.
 *
 * Two-level free lists make the cost of allocating and freeing independent of the number of live blocks. A 64-ary tree of
 * block starts finds the block of an interior address in a few steps. Free neighbours are always joined. All blocks share one
 * mapping, as the kernel allows a process 65,530 mappings only. Called with the core's lock.
 */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void *reserve(size_t bytes, int protection)
{
    void *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Map the same memory twice: at the addresses of the program, inaccessible or not, and accessible for the emulator. */
static bool open_twice(struct heap *heap, int protection)
{
    heap->file = memfd_create("devmem-emulated-memory", MFD_CLOEXEC);
    if (heap->file < 0 || ftruncate(heap->file, (off_t)heap->bytes) != 0) return false;
    void *reserved = mmap(NULL, heap->bytes, protection, MAP_SHARED | MAP_NORESERVE, heap->file, 0);
    void *alias = mmap(NULL, heap->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, heap->file, 0);
    if (reserved == MAP_FAILED || alias == MAP_FAILED) return false;
    heap->base = (uint64_t)(uintptr_t)reserved;
    heap->access = alias;
    return true;
}

static bool open_once(struct heap *heap)
{
    heap->file = -1;
    heap->access = reserve(heap->bytes, PROT_READ | PROT_WRITE);
    heap->base = (uint64_t)(uintptr_t)heap->access;
    return heap->access != NULL;
}

static void class_of(size_t granules, int *major, int *minor)
{
    if (granules < SUBCLASSES) {
        *major = 0;
        *minor = (int)granules;
        return;
    }
    int top = 63 - __builtin_clzll(granules);
    *major = top - 3;
    *minor = (int)((granules >> (top - 4)) & (SUBCLASSES - 1));
}

static size_t index_of(const struct heap *heap, uint64_t address) { return (address - heap->base) / GRANULE; }

static void mark_start(struct heap *heap, struct block *block)
{
    size_t bit = index_of(heap, block->base);
    heap->at[bit] = block;
    for (int level = 0; level < BITMAP_LEVELS; level++, bit >>= 6) heap->starts[level][bit >> 6] |= 1ull << (bit & 63);
}

static void unmark_start(struct heap *heap, struct block *block)
{
    size_t bit = index_of(heap, block->base);
    heap->at[bit] = NULL;
    for (int level = 0; level < BITMAP_LEVELS; level++, bit >>= 6) {
        heap->starts[level][bit >> 6] &= ~(1ull << (bit & 63));
        if (heap->starts[level][bit >> 6]) return;
    }
}

/* The last start at or before `bit`, or -1. */
static long start_before(const struct heap *heap, long bit)
{
    for (int level = 0; level < BITMAP_LEVELS && bit >= 0; level++) {
        uint64_t word = heap->starts[level][bit >> 6] & (~0ull >> (63 - (bit & 63)));
        if (word) {
            bit = (bit & ~63l) | (63 - __builtin_clzll(word));
            while (level-- > 0) bit = bit * 64 + 63 - __builtin_clzll(heap->starts[level][bit]);
            return bit;
        }
        bit = (bit >> 6) - 1;
    }
    return -1;
}

static void free_list_add(struct heap *heap, struct block *block)
{
    int major, minor;
    class_of(block->capacity / GRANULE, &major, &minor);
    block->kind = BLOCK_FREE;
    block->free_before = NULL;
    block->free_after = heap->free[major][minor];
    if (block->free_after) block->free_after->free_before = block;
    heap->free[major][minor] = block;
    heap->classes |= 1ull << major;
    heap->subclasses[major] |= 1u << minor;
}

static void free_list_remove(struct heap *heap, struct block *block)
{
    int major, minor;
    class_of(block->capacity / GRANULE, &major, &minor);
    if (block->free_after) block->free_after->free_before = block->free_before;
    if (block->free_before) block->free_before->free_after = block->free_after;
    else heap->free[major][minor] = block->free_after;
    if (heap->free[major][minor]) return;
    heap->subclasses[major] &= ~(1u << minor);
    if (!heap->subclasses[major]) heap->classes &= ~(1ull << major);
}

/* Find a free block. The size is rounded up to the next class, of which every block is large enough. */
static struct block *find_fit(struct heap *heap, size_t granules)
{
    int major, minor;
    size_t rounded = granules;
    if (granules >= SUBCLASSES) rounded += (1ull << (63 - __builtin_clzll(granules) - 4)) - 1;
    class_of(rounded, &major, &minor);
    uint32_t minors = heap->subclasses[major] & (~0u << minor);
    if (!minors) {
        uint64_t majors = major + 1 < 64 ? heap->classes & (~0ull << (major + 1)) : 0;
        if (!majors) return NULL;
        major = __builtin_ctzll(majors);
        minors = heap->subclasses[major];
    }
    return heap->free[major][__builtin_ctz(minors)];
}

/* Search the class of the size itself, which find_fit() skips: it may have a large enough block too. */
static struct block *find_in_own_class(struct heap *heap, size_t granules)
{
    int major, minor;
    class_of(granules, &major, &minor);
    for (struct block *block = heap->free[major][minor]; block; block = block->free_after)
        if (block->capacity >= granules * GRANULE) return block;
    return NULL;
}

static void split(struct heap *heap, struct block *block, size_t bytes)
{
    if (block->capacity == bytes) return;
    struct block *rest = calloc(1, sizeof *rest);
    if (!rest) return; /* use the larger block */
    rest->heap = heap;
    rest->base = block->base + bytes;
    rest->access = block->access + bytes;
    rest->capacity = block->capacity - bytes;
    rest->before = block;
    rest->after = block->after;
    if (rest->after) rest->after->before = rest;
    block->after = rest;
    block->capacity = bytes;
    mark_start(heap, rest);
    free_list_add(heap, rest);
}

static struct block *join(struct heap *heap, struct block *left, struct block *right)
{
    unmark_start(heap, right);
    left->capacity += right->capacity;
    left->after = right->after;
    if (left->after) left->after->before = left;
    free(right);
    return left;
}

/* Return the pages of large free blocks to the operating system. */
static void release_pages(struct heap *heap, struct block *block)
{
    if (block->capacity < 1u << 20) return;
    uint64_t page = 4096, offset = (block->base - heap->base + page - 1) / page * page;
    uint64_t end = (block->base - heap->base + block->capacity) / page * page;
    if (heap->file >= 0)
        (void)!fallocate(heap->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)(end - offset));
    else madvise(heap->access + offset, end - offset, MADV_DONTNEED);
}

bool heap_open(struct heap *heap, size_t bytes, enum heap_mapping mapping)
{
    heap->bytes = bytes / 4096 * 4096;
    int protection = mapping == MAPPED_HIDDEN ? PROT_NONE : PROT_READ | PROT_WRITE;
    if (!heap->bytes || !(mapping == MAPPED_ONCE ? open_once(heap) : open_twice(heap, protection))) return false;
    size_t bits = heap->bytes / GRANULE;
    heap->at = reserve(bits * sizeof *heap->at, PROT_READ | PROT_WRITE);
    if (!heap->at) return false;
    for (int level = 0; level < BITMAP_LEVELS; level++) {
        bits = bits / 64 + 1;
        heap->starts[level] = reserve(bits * 8, PROT_READ | PROT_WRITE);
        if (!heap->starts[level]) return false;
    }
    struct block *all = calloc(1, sizeof *all);
    if (!all) return false;
    all->heap = heap;
    all->base = heap->base;
    all->access = heap->access;
    all->capacity = heap->bytes;
    mark_start(heap, all);
    free_list_add(heap, all);
    return true;
}

struct block *heap_alloc(struct heap *heap, size_t bytes)
{
    if (bytes > heap->bytes) return NULL;
    size_t granules = (bytes + GRANULE - 1) / GRANULE;
    struct block *block = find_fit(heap, granules);
    if (!block) block = find_in_own_class(heap, granules);
    if (!block) return NULL;
    free_list_remove(heap, block);
    split(heap, block, granules * GRANULE);
    heap->used += block->capacity;
    return block;
}

void heap_free(struct block *block)
{
    struct heap *heap = block->heap;
    heap->used -= block->capacity;
    release_pages(heap, block);
    if (block->after && block->after->kind == BLOCK_FREE) {
        free_list_remove(heap, block->after);
        join(heap, block, block->after);
    }
    if (block->before && block->before->kind == BLOCK_FREE) {
        free_list_remove(heap, block->before);
        block = join(heap, block->before, block);
    }
    free_list_add(heap, block);
}

/* The allocated block that contains an address. */
struct block *heap_find(struct heap *heap, uint64_t address)
{
    if (!heap->bytes || address < heap->base || address >= heap->base + heap->bytes) return NULL;
    long start = start_before(heap, (long)index_of(heap, address));
    struct block *block = start < 0 ? NULL : heap->at[start];
    return block && block->kind != BLOCK_FREE ? block : NULL;
}

struct block *heap_first(struct heap *heap) { return heap->bytes ? heap->at[0] : NULL; }
