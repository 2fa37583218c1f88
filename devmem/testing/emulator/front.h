/* What the two vendor fronts share: how an exported function enters and leaves the core, and small lookups.
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
