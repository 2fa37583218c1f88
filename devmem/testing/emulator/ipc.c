/* Sharing device memory between processes: the handle names the exporter's memfd, reached through /proc. */
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

struct ticket {
    uint64_t magic, process, serial, offset, bytes;
    int32_t file, device;
};

_Static_assert(sizeof(struct ticket) <= 64, "a handle is 64 bytes");

/* Pool memory has no handle of this kind; neither has host memory, nor the middle of a block. */
status ipc_export(uint64_t address, unsigned char handle[64])
{
    struct block *block = block_find(address);
    if (!block || block->kind != BLOCK_DEVICE || block->base != address) return INVALID_VALUE;
    struct ticket ticket = {MAGIC, (uint64_t)getpid(), block->serial, block->base - block->heap->base, block->size,
                            block->heap->file, block->device};
    memset(handle, 0, 64);
    memcpy(handle, &ticket, sizeof ticket);
    return OK;
}

static bool same(const struct block *block, const struct ticket *ticket)
{
    return block->kind == BLOCK_IMPORTED && block->peer_key[0] == ticket->process && block->peer_key[1] == ticket->serial
        && block->peer_key[2] == (uint64_t)ticket->device;
}

static status map_foreign(const struct ticket *ticket, struct block *block)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%d", (unsigned long long)ticket->process, ticket->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return MAP_FAILED_STATUS;
    uint64_t skip = ticket->offset % PAGE;
    size_t bytes = ticket->bytes + skip;
    void *seen = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, file, (off_t)(ticket->offset - skip));
    void *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)(ticket->offset - skip));
    close(file);
    if (seen == MAP_FAILED || alias == MAP_FAILED) return MAP_FAILED_STATUS;
    block->base = (uint64_t)(uintptr_t)seen + skip;
    block->access = (char *)alias + skip;
    block->capacity = bytes;
    return OK;
}

static struct block *already_open(const struct ticket *ticket)
{
    for (size_t index = 0; index < range_count; index++)
        if (same(ranges[index], ticket)) return ranges[index];
    return NULL;
}

status ipc_import(struct context *context, const unsigned char handle[64], unsigned flags, uint64_t *address)
{
    struct ticket ticket;
    memcpy(&ticket, handle, sizeof ticket);
    if (ticket.magic != MAGIC || flags & ~LAZY_PEER_ACCESS) return INVALID_VALUE;
    if (ticket.process == (uint64_t)getpid()) return INVALID_CONTEXT;
    struct block *block = manners.opens_are_distinct ? NULL : already_open(&ticket);
    if (block) {
        block->references++;
        *address = block->base;
        return OK;
    }
    block = calloc(1, sizeof *block);
    if (!block) abort();
    status mapped = map_foreign(&ticket, block);
    if (mapped != OK) {
        free(block);
        return mapped;
    }
    block_dress(block, BLOCK_IMPORTED, context, ticket.bytes);
    live_bytes -= ticket.bytes; /* the exporter's bytes: counted here as a handle */
    live_handles++;
    block->references = 1;
    block->peer_key[0] = ticket.process;
    block->peer_key[1] = ticket.serial;
    block->peer_key[2] = (uint64_t)ticket.device;
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
