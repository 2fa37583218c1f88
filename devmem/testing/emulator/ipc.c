/* Device memory shared between processes: a handle names the memfd of the exporter, which is opened through /proc.
 *
 * The importer maps the exporter's memory, so both see the same bytes. Called with the core's lock.
 */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x64656d656d697063u
#define PAGE 4096u
#define LAZY_PEER_ACCESS 1u

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

static status map_exported(const struct export_record *record, struct block *block)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%d", (unsigned long long)record->process, record->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return MAP_FAILED_STATUS;
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
    block = calloc(1, sizeof *block);
    if (!block) abort();
    status mapped = map_exported(&record, block);
    if (mapped != OK) {
        free(block);
        return mapped;
    }
    block_init(block, BLOCK_IMPORTED, context, record.bytes);
    live_bytes -= record.bytes; /* memory of the exporter counts as a handle, not in bytes */
    live_handles++;
    block->references = 1;
    block->exporter_key[0] = record.process;
    block->exporter_key[1] = record.serial;
    block->exporter_key[2] = (uint64_t)record.device;
    *address = block->base;
    return range_insert(block);
}

status ipc_close(uint64_t address)
{
    struct block *block = block_find(address);
    if (!block || block->kind != BLOCK_IMPORTED || block->base != address) return INVALID_VALUE;
    if (--block->references > 0) return OK;
    range_remove(block);
    lease_end(block);
    uint64_t skip = block->base % PAGE;
    munmap((void *)(uintptr_t)(block->base - skip), block->capacity);
    munmap(block->access - skip, block->capacity);
    live_handles--;
    free(block);
    return OK;
}
