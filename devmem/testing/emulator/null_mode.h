/* The null mode of both fronts: a function counts its call, stores a fixed result and does nothing else.
 *
 * It is for measuring the overhead of the code above the driver. A program gets these functions in place of the strict ones
 * when it looks a name up, so that neither kind tests for the mode. They take no lock and may run on any thread. They are
 * called through the vendor's prototypes, with arguments that most of them do not declare; the calling convention of the
 * platform allows that.
 */
#ifndef DEVMEM_EMULATOR_NULL_MODE_H
#define DEVMEM_EMULATOR_NULL_MODE_H

#include <string.h>
#include <sys/mman.h>

#define CONTEXT_HANDLE 0x30000000u
#define POOL_HANDLE 0x30003000u
#define FIRST_HANDLE 0x30004000u
#define DEVICE_ADDRESS 0x7f0000000000u
#define TOTAL_BYTES (8ull << 30)
#define HOST_ADDRESS ((uint64_t)(uintptr_t)host_memory())

#define NULL_STATUS(name, parameters, body)                                                        \
    static status null_##name parameters                                                           \
    {                                                                                              \
        atomic_fetch_add_explicit(&function_calls[FUNCTION_##name], 1, memory_order_relaxed);      \
        body;                                                                                      \
        return OK;                                                                                 \
    }
#define NULL_NO_RESULT(name) NULL_STATUS(name, (void), (void)0)
#define NULL_HANDLE(name, value) NULL_STATUS(name, (uint64_t *out), *out = value)
#define NULL_INT(name, value) NULL_STATUS(name, (int *out), *out = value)

/* Functions whose names in the two vendors' libraries differ in the prefix only. */
#define NULL_COMMON(vendor)                                                                                                  \
    NULL_STATUS(vendor##MemGetAddressRange, (uint64_t *base, size_t *bytes),                                                 \
                if (base) *base = DEVICE_ADDRESS; if (bytes) *bytes = TOTAL_BYTES)                                           \
    NULL_STATUS(vendor##MemPoolGetAttribute, (uint64_t pool, int which, void *out),                                          \
                (void)pool; memset(out, 0, which > 3 ? 8 : 4))                                                               \
    NULL_STATUS(vendor##MemPoolGetAccess, (int *out), *out = ACCESS_READ_WRITE)                                              \
    NULL_STATUS(vendor##StreamGetPriority, (uint64_t stream, int *out), (void)stream; *out = 0)                              \
    NULL_STATUS(vendor##StreamGetFlags, (uint64_t stream, unsigned *out), (void)stream; *out = 0)                            \
    NULL_STATUS(vendor##StreamGetDevice, (uint64_t stream, int *out), (void)stream; *out = 0)                                \
    NULL_STATUS(vendor##StreamGetId, (uint64_t stream, uint64_t *out), (void)stream; *out = 1)                               \
    NULL_STATUS(vendor##StreamIsCapturing, (uint64_t stream, int *out), (void)stream; *out = 0)                              \
    NULL_STATUS(vendor##ThreadExchangeStreamCaptureMode, (int *mode), *mode = 0)                                             \
    NULL_STATUS(vendor##EventElapsedTime, (float *out), *out = 0)
#define NULL_COMMON_ENTRIES(X, vendor)                                                                                       \
    X(vendor##MemGetAddressRange) X(vendor##MemPoolGetAttribute) X(vendor##MemPoolGetAccess) X(vendor##StreamGetPriority)    \
    X(vendor##StreamGetFlags) X(vendor##StreamGetDevice) X(vendor##StreamGetId) X(vendor##StreamIsCapturing)                 \
    X(vendor##ThreadExchangeStreamCaptureMode) X(vendor##EventElapsedTime)

struct null_entry {
    const char *name;
    void *function;
};

#define NULL_ENTRY(name, ...) {#name, (void *)null_##name},

/* Callers keep streams, events, modules and functions in tables: their handles are distinct. */
static uint64_t new_handle(void)
{
    static _Atomic uint64_t count;
    return FIRST_HANDLE + (atomic_fetch_add_explicit(&count, 1, memory_order_relaxed) << 4);
}

/* Callers keep blocks in tables, too. An address comes again after 16 million. */
static uint64_t new_block(void)
{
    static _Atomic uint64_t count;
    return DEVICE_ADDRESS + (atomic_fetch_add_explicit(&count, 1, memory_order_relaxed) % (TOTAL_BYTES >> 9) << 9);
}

/* Host memory must exist, as callers make NumPy arrays of it. All allocations are the same memory. */
static void *host_memory(void)
{
    static _Atomic(void *) memory;
    void *known = atomic_load(&memory);
    if (known) return known;
    known = mmap(NULL, 1ull << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    atomic_store(&memory, known);
    return known;
}

/* The null function of a name, which may carry the suffix _spt, or NULL: then the strict function serves. */
static void *null_find(const struct null_entry *entries, size_t count, const char *name)
{
    for (size_t index = 0; index < count; index++) {
        size_t length = strlen(entries[index].name);
        if (strncmp(name, entries[index].name, length)) continue;
        if (!name[length] || strcmp(name + length, "_spt") == 0) return entries[index].function;
    }
    return NULL;
}

#endif
