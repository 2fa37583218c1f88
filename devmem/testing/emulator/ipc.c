/* Device memory shared between processes: a handle names the memfd of the exporter, which is opened through /proc.
 *
 * The importer maps the exporter's memory, so both see the same bytes. Memory of a pool is named by two things: the pool, by a
 * file of its own, and the block, by data that only go with that pool. Called with the core's lock.
 */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x64656d656d697063u
#define PAGE 4096u
#define LAZY_PEER_ACCESS 1u
#define EVENT_MAGIC 0x64656d656d657674u
#define POOL_MAGIC 0x64656d656d706f6fu
#define POINTER_MAGIC 0x64656d656d707472u

struct export_record {
    uint64_t magic, process, serial, offset, bytes;
    int32_t file, device;
};

_Static_assert(sizeof(struct export_record) <= 64, "a handle is 64 bytes");

/* Only the base of plain device memory can be exported. */
status ipc_export(uint64_t address, unsigned char handle[64])
{
    struct block *block = block_find(address);
    if (!block || block->kind != BLOCK_DEVICE || block->base != address) return INVALID_VALUE;
    struct export_record record = {MAGIC, (uint64_t)getpid(), block->serial, block->base - block->heap->base, block->size,
                            block->heap->file, block->device};
    memset(handle, 0, 64);
    memcpy(handle, &record, sizeof record);
    return OK;
}

static bool is_import_of(const struct block *block, const struct export_record *record)
{
    return block->kind == BLOCK_IMPORTED && block->exporter_key[0] == record->process && block->exporter_key[1] == record->serial
        && block->exporter_key[2] == (uint64_t)record->device;
}

static int open_exported(const struct export_record *record)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%d", (unsigned long long)record->process, record->file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static status map_exported(const struct export_record *record, struct block *block)
{
    int file = open_exported(record);
    if (file < 0) return MAP_FAILED_STATUS;
    /* A forged handle must not reach behind the file's end: the pages there can be mapped, and not touched. */
    struct stat found;
    if (fstat(file, &found) || record->offset > (uint64_t)found.st_size || record->bytes > (uint64_t)found.st_size - record->offset) {
        close(file);
        return MAP_FAILED_STATUS;
    }
    uint64_t skip = record->offset % PAGE;
    size_t bytes = record->bytes + skip;
    void *reserved = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, file, (off_t)(record->offset - skip));
    void *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)(record->offset - skip));
    close(file);
    if (reserved == MAP_FAILED || alias == MAP_FAILED) return MAP_FAILED_STATUS;
    block->base = (uint64_t)(uintptr_t)reserved + skip;
    block->access = (char *)alias + skip;
    block->capacity = bytes;
    return OK;
}

static struct block *already_open(const struct export_record *record)
{
    for (size_t index = 0; index < range_count; index++)
        if (is_import_of(ranges[index], record)) return ranges[index];
    return NULL;
}

/* Make a block of the exporter's memory; on success it is found by its address. */
static status import_new(struct context *context, const struct export_record *record, struct block **out)
{
    struct block *block = calloc(1, sizeof *block);
    if (!block) abort();
    status mapped = map_exported(record, block);
    if (mapped != OK) {
        free(block);
        return mapped;
    }
    block_init(block, BLOCK_IMPORTED, context, record->bytes);
    live_bytes -= record->bytes; /* memory of the exporter counts as a handle, not in bytes */
    live_handles++;
    block->references = 1;
    block->exporter_key[0] = record->process;
    block->exporter_key[1] = record->serial;
    block->exporter_key[2] = (uint64_t)record->device;
    *out = block;
    return range_insert(block);
}

static void import_end(struct block *block)
{
    range_remove(block);
    lease_end(block);
    uint64_t skip = block->base % PAGE;
    munmap((void *)(uintptr_t)(block->base - skip), block->capacity);
    munmap(block->access - skip, block->capacity);
    live_handles--;
    free(block);
}

status ipc_import(struct context *context, const unsigned char handle[64], unsigned flags, uint64_t *address)
{
    struct export_record record;
    memcpy(&record, handle, sizeof record);
    if (record.magic != MAGIC || flags & ~LAZY_PEER_ACCESS) return INVALID_VALUE;
    if (record.process == (uint64_t)getpid()) return INVALID_CONTEXT;
    struct block *block = vendor_rules.imports_are_distinct ? NULL : already_open(&record);
    if (block) {
        block->references++;
        *address = block->base;
        return OK;
    }
    status made = import_new(context, &record, &block);
    if (made == OK) *address = block->base;
    return made;
}

status ipc_close(uint64_t address)
{
    struct block *block = block_find(address);
    if (!block || block->kind != BLOCK_IMPORTED || block->pool || block->base != address) return INVALID_VALUE;
    if (--block->references == 0) import_end(block);
    return OK;
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

/* What the file of an exported pool holds. A process that has the file may import the pool. */
struct pool_record {
    uint64_t magic, process, pool;
    int32_t physical;
};

struct pooled_record {
    struct export_record block;
    uint64_t pool;
};

_Static_assert(sizeof(struct pooled_record) <= 64, "the data of a pointer is 64 bytes");

/* Every call makes another file, which the program closes. */
status pool_export(uint64_t handle, int type, uint64_t flags, int *file)
{
    struct pool *pool = handle_get(handle, HANDLE_POOL);
    if (!pool || !pool->shareable || type != HANDLE_POSIX_FILE || flags) return INVALID_VALUE;
    struct pool_record record = {POOL_MAGIC, (uint64_t)getpid(), handle, devices[pool->device].physical};
    *file = memfd_create("devmem-emulated-pool", MFD_CLOEXEC);
    if (*file < 0) return OUT_OF_MEMORY;
    if (write(*file, &record, sizeof record) == (ssize_t)sizeof record) return OK;
    close(*file);
    return OUT_OF_MEMORY;
}

/* An imported pool gives no memory. Access to it is granted by cuMemPoolSetAccess alone. */
status pool_import(int file, int type, uint64_t flags, uint64_t *handle)
{
    struct pool_record record;
    if (type != HANDLE_POSIX_FILE || flags) return INVALID_VALUE;
    if (pread(file, &record, sizeof record, 0) != (ssize_t)sizeof record || record.magic != POOL_MAGIC) return INVALID_VALUE;
    for (int device = 0; device < device_count; device++) {
        if (devices[device].physical != record.physical) continue;
        struct pool *pool = pool_open(device);
        pool->exporter = record.process;
        pool->exporter_pool = record.pool;
        pool->readable_by = 0;
        *handle = pool->handle;
        live_handles++;
        return OK;
    }
    return INVALID_DEVICE;
}

status pool_export_pointer(uint64_t address, unsigned char data[64])
{
    struct block *block = block_find(address);
    if (!block || block->kind != BLOCK_POOLED || block->base != address || !block->pool->shareable) return INVALID_VALUE;
    struct pooled_record record = {{POINTER_MAGIC, (uint64_t)getpid(), block->serial, block->base - block->heap->base, block->size,
                                    block->heap->file, block->device}, block->pool->handle};
    memset(data, 0, 64);
    memcpy(data, &record, sizeof record);
    return OK;
}

/* A pointer that is imported again has the same address, and the first free ends it: nothing says that imports are counted. */
status pool_import_pointer(struct context *context, uint64_t handle, const unsigned char data[64], uint64_t *address)
{
    struct pool *pool = handle_get(handle, HANDLE_POOL);
    struct pooled_record record;
    memcpy(&record, data, sizeof record);
    if (!pool || !pool->exporter || record.block.magic != POINTER_MAGIC) return INVALID_VALUE;
    if (record.block.process != pool->exporter || record.pool != pool->exporter_pool) return INVALID_VALUE;
    if (!(pool->readable_by & (1u << pool->device))) return INVALID_VALUE; /* a guess */
    struct block *block = already_open(&record.block);
    if (!block) {
        status made = import_new(context, &record.block, &block);
        if (made != OK) return made == MAP_FAILED_STATUS ? INVALID_VALUE : made;
        block->device = pool->device;
        block->pool = pool;
        pool->live_blocks++;
    }
    *address = block->base;
    return OK;
}

void pool_import_end(struct block *block)
{
    struct pool *pool = block->pool;
    import_end(block);
    pool_block_gone(pool);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

status ipc_export_event(uint64_t which, unsigned char handle[64])
{
    struct event *event = handle_get(which, HANDLE_EVENT);
    if (!event || event->file < 0) return INVALID_HANDLE;
    struct export_record record = {.magic = EVENT_MAGIC, .process = (uint64_t)getpid(), .file = event->file};
    memset(handle, 0, 64);
    memcpy(handle, &record, sizeof record);
    return OK;
}

/* The event of this process has no timing, as the vendors require of those that are shared. */
status ipc_import_event(struct context *context, const unsigned char handle[64], uint64_t *out)
{
    struct export_record record;
    memcpy(&record, handle, sizeof record);
    if (record.magic != EVENT_MAGIC) return INVALID_HANDLE;
    if (record.process == (uint64_t)getpid()) return INVALID_CONTEXT;
    int file = open_exported(&record);
    if (file < 0) return MAP_FAILED_STATUS;
    status made = event_create(context, EVENT_DISABLE_TIMING, out);
    if (made == OK) made = event_share(handle_get(*out, HANDLE_EVENT), file);
    close(file);
    if (made != OK) event_destroy(*out);
    return made;
}
