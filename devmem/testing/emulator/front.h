/* What the fronts share: how an exported function enters and leaves the core, and small lookups.
 *
 * The header of each front defines FRONT_ENTER and FRONT_LEAVE: core_enter() and core_leave(), or functions around them.
 */
#ifndef DEVMEM_EMULATOR_FRONT_H
#define DEVMEM_EMULATOR_FRONT_H

#include "core.h"

#include <string.h>

typedef uint64_t handle;      /* contexts, streams, events, pools: opaque pointers to the program */

struct ipc_handle {
    unsigned char bytes[64];
};

struct dim3 {
    unsigned x, y, z;
};

/* How a kernel is launched: of the CUDA runtime also the first fields of cudaLaunchConfig_t. */
struct launch {
    struct dim3 grid, block;
    size_t shared;
    handle stream;
};

/* What both runtimes call extent, position, pitched pointer and parameters of a 3D copy. */
struct extent {
    size_t width, height, depth;
};

struct position {
    size_t x, y, z;
};

struct pitched {
    void *at;
    size_t pitch, xsize, ysize;
};

struct copy3d {
    void *src_array;
    struct position src_at;
    struct pitched src;
    void *dst_array;
    struct position dst_at;
    struct pitched dst;
    struct extent extent;
    int kind;
};

_Static_assert(sizeof(struct copy3d) == 160, "layout of the copy descriptor");

/* An exported function begins with BEGIN and returns through END: between the two it holds the core's lock. */
#define BEGIN(name, need)                                            \
    struct context *context = NULL;                                  \
    (void)context;                                                   \
    status begun = FRONT_ENTER(FUNCTION_##name, need, &context);     \
    if (begun != OK) return begun
#define END(result) return FRONT_LEAVE(result)
#define REQUIRE(condition, code) if (!(condition)) END(code)

/* Find the stream of a call, or return why it is not one. STREAM_OF, of the file, says which stream 0 is. */
#define FIND_STREAM(variable, stream)                                            \
    struct stream *variable;                                                     \
    status found_##variable = stream_get(context, STREAM_OF(stream), &variable); \
    REQUIRE(found_##variable == OK, found_##variable)

/* Define the exported functions of virtual memory. IMPORTED_FILE, of the front, finds the file descriptor that is given. */
#define VIRTUAL_FUNCTIONS(define, vendor)                                                                                    \
    define(vendor##MemGetAllocationGranularity)(size_t *out, const struct memory_properties *properties, int option)         \
    {                                                                                                                        \
        BEGIN(vendor##MemGetAllocationGranularity, NEED_INIT);                                                               \
        END(out && properties ? virtual_granularity(properties, option, out) : INVALID_VALUE);                               \
    }                                                                                                                        \
    define(vendor##MemCreate)(handle *out, size_t bytes, const struct memory_properties *properties, unsigned long long flags) \
    {                                                                                                                        \
        BEGIN(vendor##MemCreate, NEED_INIT);                                                                                 \
        END(out && properties ? virtual_create(bytes, properties, flags, out) : INVALID_VALUE);                              \
    }                                                                                                                        \
    define(vendor##MemRelease)(handle which)                                                                                 \
    {                                                                                                                        \
        BEGIN(vendor##MemRelease, NEED_INIT);                                                                                \
        END(virtual_release(which));                                                                                         \
    }                                                                                                                        \
    define(vendor##MemGetAllocationPropertiesFromHandle)(struct memory_properties *out, handle which)                        \
    {                                                                                                                        \
        BEGIN(vendor##MemGetAllocationPropertiesFromHandle, NEED_INIT);                                                      \
        END(out ? virtual_properties(which, out) : INVALID_VALUE);                                                           \
    }                                                                                                                        \
    define(vendor##MemAddressReserve)(uint64_t *out, size_t bytes, size_t alignment, uint64_t hint, unsigned long long flags) \
    {                                                                                                                        \
        (void)hint;                                                                                                          \
        BEGIN(vendor##MemAddressReserve, NEED_INIT);                                                                         \
        END(out ? virtual_reserve(bytes, alignment, flags, out) : INVALID_VALUE);                                            \
    }                                                                                                                        \
    define(vendor##MemAddressFree)(uint64_t address, size_t bytes)                                                           \
    {                                                                                                                        \
        BEGIN(vendor##MemAddressFree, NEED_INIT);                                                                            \
        END(virtual_unreserve(address, bytes));                                                                              \
    }                                                                                                                        \
    define(vendor##MemMap)(uint64_t address, size_t bytes, size_t offset, handle which, unsigned long long flags)            \
    {                                                                                                                        \
        BEGIN(vendor##MemMap, NEED_INIT);                                                                                    \
        END(virtual_map(address, bytes, offset, which, flags));                                                              \
    }                                                                                                                        \
    define(vendor##MemUnmap)(uint64_t address, size_t bytes)                                                                 \
    {                                                                                                                        \
        BEGIN(vendor##MemUnmap, NEED_INIT);                                                                                  \
        END(virtual_unmap(address, bytes));                                                                                  \
    }                                                                                                                        \
    define(vendor##MemSetAccess)(uint64_t address, size_t bytes, const struct access_description *wanted, size_t count)      \
    {                                                                                                                        \
        BEGIN(vendor##MemSetAccess, NEED_INIT);                                                                              \
        END(wanted ? virtual_set_access(address, bytes, wanted, count) : INVALID_VALUE);                                     \
    }                                                                                                                        \
    define(vendor##MemExportToShareableHandle)(void *out, handle which, int type, unsigned long long flags)                  \
    {                                                                                                                        \
        BEGIN(vendor##MemExportToShareableHandle, NEED_INIT);                                                                \
        END(out ? virtual_export(which, type, flags, out) : INVALID_VALUE);                                                  \
    }                                                                                                                        \
    define(vendor##MemImportFromShareableHandle)(handle *out, void *from, int type)                                          \
    {                                                                                                                        \
        BEGIN(vendor##MemImportFromShareableHandle, NEED_INIT);                                                              \
        REQUIRE(out, INVALID_VALUE);                                                                                         \
        if (type == HANDLE_POSIX_FILE) END(virtual_import_file(IMPORTED_FILE(from), out));                                   \
        END(type == HANDLE_FABRIC && from ? virtual_import_fabric(from, out) : INVALID_VALUE);                               \
    }

/* Define an exported function that returns one number of a stream. */
#define STREAM_GETTER(define, name, type, value)   \
    define(name)(handle stream, type *out)         \
    {                                              \
        BEGIN(name, NEED_CONTEXT);                 \
        FIND_STREAM(of, stream);                   \
        REQUIRE(out, INVALID_VALUE);               \
        *out = of->value;                          \
        END(OK);                                   \
    }

#define FUNCTION_NUMBER(name) FUNCTION_##name,
#define FUNCTION_NAME(name) #name,

static inline uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

static inline struct box linear_box(uint64_t to, enum side to_side, uint64_t from, enum side from_side, size_t bytes)
{
    return (struct box){{to, bytes, bytes, to_side}, {from, bytes, bytes, from_side}, bytes, 1, 1};
}

struct error_text {
    int code;
    const char *name, *text;
};

#define ERROR_TEXT(code, name, text) {code, name, text},

static inline const struct error_text *error_find(const struct error_text *errors, size_t count, int code)
{
    for (size_t index = 0; index < count; index++)
        if (errors[index].code == code) return &errors[index];
    return NULL;
}

#endif
