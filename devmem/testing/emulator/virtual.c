/* Virtual memory: physical memory has handles, addresses are reserved, and calls map the two and make them accessible.
 *
 * Physical memory is a file of its own, whose last page says what it is. A process that is given a duplicate of it, or its
 * fabric handle, maps the same bytes; they are there as long as any process has a handle or a mapping. What is mapped is found
 * by its address only while a device has access. Called with the core's lock.
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

#define PAGE 4096u
#define MEMORY_MAGIC 0x64656d656d766d6du
#define FABRIC_MAGIC 0x64656d656d666162u

/* The last page of the file. */
struct label {
    uint64_t magic, process, serial;
    int32_t physical, types;
};

struct physical {
    struct label label;
    size_t bytes;
    int file, device, handles, mappings;
    bool imported;
};

struct fabric_record {
    struct label label;
    int32_t file;
};

_Static_assert(sizeof(struct fabric_record) <= 64, "a fabric handle is 64 bytes");
_Static_assert(sizeof(struct memory_properties) == 32, "both vendors' layout");

struct mapping {
    struct block block;
    struct physical *physical;
    uint32_t accessible; /* bit set of devices */
    struct mapping *next;
};

struct reservation {
    uint64_t base;
    size_t bytes;
    struct reservation *next;
};

static struct mapping *mappings;
static struct reservation *reservations;
static struct context no_context; /* virtual memory belongs to none */
static uint64_t serials;

static bool is_whole(size_t bytes) { return bytes && bytes % VIRTUAL_GRANULARITY == 0; }

static void *cleared(size_t bytes)
{
    void *made = calloc(1, bytes);
    if (!made) abort();
    return made;
}

/* --- physical memory ---------------------------------------------------------------------------------------------- */

static uint64_t physical_open(struct physical from)
{
    struct physical *physical = cleared(sizeof *physical);
    *physical = from;
    physical->handles = 1;
    if (physical->imported) live_handles++; /* memory of the exporter counts as a handle, not in bytes */
    else live_bytes += physical->bytes;
    return handle_new(HANDLE_PHYSICAL, physical);
}

static void physical_end(struct physical *physical)
{
    if (physical->handles || physical->mappings) return;
    if (physical->imported) live_handles--;
    else {
        live_bytes -= physical->bytes;
        devices[physical->device].heap.used -= physical->bytes;
    }
    close(physical->file);
    free(physical);
}

status virtual_granularity(const struct memory_properties *properties, int option, size_t *bytes)
{
    if (properties->location.type != LOCATION_DEVICE || option < 0 || option > 1) return INVALID_VALUE;
    if (!is_device(properties->location.id)) return INVALID_DEVICE;
    *bytes = VIRTUAL_GRANULARITY;
    return OK;
}

status virtual_create(size_t bytes, const struct memory_properties *properties, uint64_t flags, uint64_t *handle)
{
    int device = properties->location.id, types = properties->handles;
    if (properties->allocation != ALLOCATION_PINNED || properties->location.type != LOCATION_DEVICE) return INVALID_VALUE;
    if (flags || !is_whole(bytes) || types & ~(HANDLE_POSIX_FILE | HANDLE_FABRIC)) return INVALID_VALUE;
    if (!is_device(device)) return INVALID_DEVICE;
    if (types & HANDLE_FABRIC && !core_setting("DEVMEM_EMULATOR_FABRIC", 0)) return NOT_PERMITTED;
    struct heap *heap = &devices[device].heap;
    if (bytes > heap->bytes - heap->used) return OUT_OF_MEMORY;
    struct physical made = {{MEMORY_MAGIC, (uint64_t)getpid(), ++serials, devices[device].physical, types}, bytes,
                            memfd_create("devmem-emulated-memory", MFD_CLOEXEC), device, 0, 0, false};
    if (made.file < 0) return OUT_OF_MEMORY;
    unsigned char poison[PAGE]; /* fresh memory holds anything */
    memset(poison, POISON, sizeof poison);
    if (ftruncate(made.file, (off_t)(bytes + PAGE)) < 0
        || pwrite(made.file, poison, sizeof poison, 0) != (ssize_t)sizeof poison
        || pwrite(made.file, &made.label, sizeof made.label, (off_t)bytes) != (ssize_t)sizeof made.label) {
        close(made.file);
        return OUT_OF_MEMORY;
    }
    heap->used += bytes;
    *handle = physical_open(made);
    return OK;
}

status virtual_release(uint64_t handle)
{
    struct physical *physical = handle_get(handle, HANDLE_PHYSICAL);
    if (!physical) return INVALID_VALUE;
    if (--physical->handles == 0) handle_free(handle);
    physical_end(physical);
    return OK;
}

status virtual_properties(uint64_t handle, struct memory_properties *out)
{
    struct physical *physical = handle_get(handle, HANDLE_PHYSICAL);
    if (!physical) return INVALID_VALUE;
    *out = (struct memory_properties){ALLOCATION_PINNED, physical->label.types, {LOCATION_DEVICE, physical->device}, NULL, {0}};
    return OK;
}

/* Every call makes another file descriptor, which the program closes. */
status virtual_export(uint64_t handle, int type, uint64_t flags, void *out)
{
    struct physical *physical = handle_get(handle, HANDLE_PHYSICAL);
    if (!physical || flags || !(physical->label.types & type) || physical->imported) return INVALID_VALUE;
    if (type == HANDLE_POSIX_FILE) {
        int file = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
        if (file < 0) return OUT_OF_MEMORY;
        *(int *)out = file;
        return OK;
    }
    if (type != HANDLE_FABRIC) return INVALID_VALUE;
    struct fabric_record record;
    memset(&record, 0, sizeof record); /* with what lies between its fields */
    record.label = physical->label;
    record.label.magic = FABRIC_MAGIC;
    record.file = physical->file;
    memset(out, 0, 64);
    memcpy(out, &record, sizeof record);
    return OK;
}

/* The file stays the program's: the memory is known by another descriptor of it. */
static status import_file(int given, const struct label *expected, uint64_t *handle)
{
    struct stat found;
    struct physical made = {.file = fcntl(given, F_DUPFD_CLOEXEC, 0), .device = -1, .imported = true};
    if (made.file < 0) return INVALID_VALUE;
    bool known = fstat(made.file, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > (off_t)PAGE
        && pread(made.file, &made.label, sizeof made.label, found.st_size - PAGE) == (ssize_t)sizeof made.label
        && made.label.magic == MEMORY_MAGIC;
    if (known && expected) known = made.label.process == expected->process && made.label.serial == expected->serial;
    for (int device = 0; known && device < device_count; device++)
        if (devices[device].physical == made.label.physical) made.device = device;
    if (!known || made.device < 0) {
        close(made.file);
        return known ? INVALID_DEVICE : INVALID_VALUE;
    }
    made.bytes = (size_t)found.st_size - PAGE;
    *handle = physical_open(made);
    return OK;
}

status virtual_import_file(int file, uint64_t *handle) { return import_file(file, NULL, handle); }

status virtual_import_fabric(const void *from, uint64_t *handle)
{
    struct fabric_record record;
    char path[64];
    memcpy(&record, from, sizeof record);
    if (record.label.magic != FABRIC_MAGIC) return INVALID_VALUE;
    snprintf(path, sizeof path, "/proc/%llu/fd/%d", (unsigned long long)record.label.process, record.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return INVALID_VALUE;
    status imported = import_file(file, &record.label, handle);
    close(file);
    return imported;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

status virtual_reserve(size_t bytes, size_t alignment, uint64_t flags, uint64_t *address)
{
    size_t unit = alignment > VIRTUAL_GRANULARITY ? alignment : VIRTUAL_GRANULARITY;
    if (flags || !bytes || bytes % PAGE || alignment & (alignment - 1)) return INVALID_VALUE;
    size_t wanted = size_plus(bytes, unit);
    char *found = mmap(NULL, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return OUT_OF_MEMORY;
    char *base = (char *)(size_rounded((size_t)(uintptr_t)found, unit));
    if (base > found) munmap(found, (size_t)(base - found));
    munmap(base + bytes, wanted - bytes - (size_t)(base - found));
    struct reservation *made = cleared(sizeof *made);
    *made = (struct reservation){(uint64_t)(uintptr_t)base, bytes, reservations};
    reservations = made;
    live_handles++;
    *address = made->base;
    return OK;
}

static bool meets(const struct block *block, uint64_t address, size_t bytes)
{
    return block->base < address + bytes && address < block->base + block->size;
}

static bool is_mapped(uint64_t address, size_t bytes)
{
    for (struct mapping *each = mappings; each; each = each->next)
        if (meets(&each->block, address, bytes)) return true;
    return false;
}

status virtual_unreserve(uint64_t address, size_t bytes)
{
    for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
        struct reservation *each = *link;
        if (each->base != address || each->bytes != bytes) continue;
        if (is_mapped(address, bytes)) return INVALID_VALUE;
        munmap((void *)(uintptr_t)address, bytes);
        *link = each->next;
        free(each);
        live_handles--;
        return OK;
    }
    return INVALID_VALUE;
}

static bool is_reserved_range(uint64_t address, size_t bytes)
{
    for (struct reservation *each = reservations; each; each = each->next)
        if (address >= each->base && size_plus(address, bytes) <= each->base + each->bytes) return true;
    return false;
}

status virtual_map(uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags)
{
    struct physical *physical = handle_get(handle, HANDLE_PHYSICAL);
    if (!physical || flags || !is_whole(bytes) || address % VIRTUAL_GRANULARITY || offset % VIRTUAL_GRANULARITY) return INVALID_VALUE;
    if (size_plus(offset, bytes) > physical->bytes || !is_reserved_range(address, bytes) || is_mapped(address, bytes))
        return INVALID_VALUE;
    void *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, physical->file, (off_t)offset);
    if (alias == MAP_FAILED) return OUT_OF_MEMORY;
    struct mapping *made = cleared(sizeof *made);
    block_init(&made->block, BLOCK_VIRTUAL, &no_context, bytes);
    live_bytes -= bytes; /* counted with the physical memory */
    live_handles++;
    made->block.device = physical->device;
    made->block.base = address;
    made->block.capacity = bytes;
    made->block.access = alias;
    made->physical = physical;
    made->next = mappings;
    physical->mappings++;
    mappings = made;
    return OK;
}

/* What is still queued and uses the memory fails. */
status virtual_unmap(uint64_t address, size_t bytes)
{
    for (struct mapping **link = &mappings; *link; link = &(*link)->next) {
        struct mapping *each = *link;
        if (each->block.base != address || each->block.size != bytes) continue;
        *link = each->next;
        if (each->accessible) range_remove(&each->block);
        lease_end(&each->block); /* may release the lock, when the memory is no longer to be found */
        munmap(each->block.access, bytes);
        each->physical->mappings--;
        physical_end(each->physical);
        live_handles--;
        free(each);
        return OK;
    }
    return INVALID_VALUE;
}

status virtual_set_access(uint64_t address, size_t bytes, const struct access_description *wanted, size_t count)
{
    size_t covered = 0;
    for (struct mapping *each = mappings; each; each = each->next) {
        if (!meets(&each->block, address, bytes)) continue;
        if (each->block.base < address || each->block.base + each->block.size > address + bytes) return INVALID_VALUE;
        covered += each->block.size;
    }
    if (!bytes || covered != bytes || !count) return INVALID_VALUE;
    for (size_t index = 0; index < count; index++) {
        if (wanted[index].location.type != LOCATION_DEVICE) return NOT_SUPPORTED;
        if (!is_device(wanted[index].location.id)) return INVALID_DEVICE;
        if (wanted[index].flags != 0 && wanted[index].flags != 1 && wanted[index].flags != ACCESS_READ_WRITE) return INVALID_VALUE;
    }
    for (struct mapping *each = mappings; each; each = each->next) {
        if (!meets(&each->block, address, bytes)) continue;
        uint32_t before = each->accessible;
        for (size_t index = 0; index < count; index++) {
            uint32_t device = 1u << wanted[index].location.id;
            each->accessible = wanted[index].flags ? each->accessible | device : each->accessible & ~device;
        }
        if (!before && each->accessible) range_insert(&each->block);
        if (before && !each->accessible) range_remove(&each->block);
    }
    return OK;
}
