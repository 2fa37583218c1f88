/* The emulated accelerator: devices, memory, streams, events, pools and faults.
 *
 * One core serves two thin fronts (the CUDA driver API in cuda*.c, the HIP runtime in hip*.c). A front checks its vendor's
 * argument rules, calls the core, and translates the few numbers that differ: status codes here are those that both share.
 *
 * Every core function runs under one lock, taken by core_enter() and given back by core_leave(). Only three things
 * leave it: waiting (host_wait), stream threads while they move bytes, and host functions. One lock is slower
 * than many and cannot be got wrong; the null mode exists for measuring.
 */
#ifndef DEVMEM_EMULATOR_CORE_H
#define DEVMEM_EMULATOR_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int status;

#define EXPORT __attribute__((visibility("default")))

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    MAP_FAILED_STATUS = 205,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908
};

#define MAX_DEVICES 16
#define GRANULE 512u          /* smallest unit of a heap; the driver's own alignment */
#define SIZE_CLASSES 40       /* two-level free lists: powers of two ... */
#define SUBCLASSES 16         /* ... each cut in sixteen */
#define BITMAP_LEVELS 6       /* 64-ary: six levels cover 2^36 granules */

struct context;
struct stream;
struct pool;
struct op;

/* --- heaps: one address range, sub-allocated ---------------------------------------------------------------------- */

enum block_kind { BLOCK_FREE, BLOCK_DEVICE, BLOCK_POOLED, BLOCK_PINNED, BLOCK_MANAGED, BLOCK_REGISTERED, BLOCK_IMPORTED };

/* The right to use a block's bytes. Queued operations hold it, so that one that runs too early or too late is caught,
 * even when the same address belongs to a new allocation by then. */
struct lease {
    int references;
    int running;              /* operations touching the bytes at this moment */
    bool allocated, freed;
    struct shadow *shadow;      /* of coarse-grained host memory: what the device wrote and the host may not see yet */
};

struct block {
    uint64_t base;            /* the address that the program sees */
    size_t size;              /* bytes asked for: the range that copies may touch */
    size_t capacity;          /* bytes taken from the heap */
    char *access;             /* where the copy engine reaches the same bytes */
    enum block_kind kind;
    bool freed;               /* given to a stream-ordered free that may not have run yet */
    unsigned flags;
    int device;
    uint64_t serial;          /* never reused: tells a block from its successor at the same address */
    struct context *context;
    struct pool *pool;
    struct lease *lease;
    struct block *device_alias;     /* of registered memory: the range by which the device knows it, if another */
    struct op *free_op;          /* the stream operation that gave a pooled block back */
    struct stream *freed_on;      /* where it was given back: compared, never followed */
    int references;           /* opens of an imported block */
    uint64_t exporter_key[3];     /* identity of an imported block: process, serial, device */
    struct heap *heap;
    struct block *before, *after;         /* address order within a heap */
    struct block *free_before, *free_after;
    struct block *cached_next;            /* in a pool's cache */
};

struct heap {
    uint64_t base;
    char *access;
    size_t bytes, used;
    int file;                                       /* the memfd behind a device, else -1 */
    struct block **at;                              /* by granule: the block that starts there */
    uint64_t *starts[BITMAP_LEVELS];                /* which granules start a block, as a 64-ary tree */
    uint64_t classes;
    uint32_t subclasses[SIZE_CLASSES];
    struct block *free[SIZE_CLASSES][SUBCLASSES];
};

bool heap_open(struct heap *heap, size_t bytes, bool hidden);
struct block *heap_alloc(struct heap *heap, size_t bytes);
void heap_free(struct block *block);
struct block *heap_find(struct heap *heap, uint64_t address);
struct block *heap_first(struct heap *heap);

/* --- devices and contexts ----------------------------------------------------------------------------------------- */

struct device {
    int physical;             /* ordinal before the visibility variable */
    struct heap heap;
    struct context *primary;
    struct pool *default_pool, *current_pool;
    struct pool *pools;       /* all that can be named */
};

struct context {
    uint64_t handle;
    int device;
    bool is_primary, active;
    unsigned retained, flags;
    unsigned generation;      /* grows with every reset: tells a stale per-thread stream */
    status sticky;
    uint32_t peers;           /* devices whose memory was made accessible */
    struct stream *legacy;
    struct stream *streams;
    struct context *next;     /* of all that ever were */
};

extern int device_count;
extern struct device devices[MAX_DEVICES];
extern struct context *contexts;

status devices_open(void);
bool is_device(int device);
struct context *context_current(status *why);
void context_fail(struct context *context, status code);
uint64_t context_top(void);
status context_push(uint64_t handle);
status context_pop(uint64_t *handle);
status context_set(uint64_t handle);
status context_of_handle(uint64_t handle, struct context **out);
status primary_retain(int device, uint64_t *handle);
status primary_release(int device);
status primary_reset(int device);
status context_create(int device, unsigned flags, uint64_t *handle);
status context_destroy(uint64_t handle);
status context_synchronize(struct context *context);
status peer_enable(struct context *context, uint64_t peer);
status peer_disable(struct context *context, uint64_t peer);

/* --- the gate that every exported function passes ----------------------------------------------------------------- */

enum need { NEED_NOTHING, NEED_INIT, NEED_CONTEXT };

extern pthread_mutex_t core_mutex;
extern pthread_cond_t progress;      /* something finished: host threads look again */
extern _Thread_local bool inside_host_function;

status core_enter(int function, enum need need, struct context **context);
status core_leave(status result);
status core_initialize(void);
uint64_t core_now(void);
size_t core_setting(const char *name, size_t otherwise);
bool core_null_mode(void);

enum handle_kind { HANDLE_CONTEXT = 1, HANDLE_STREAM, HANDLE_EVENT, HANDLE_POOL, HANDLE_GRAPH };

uint64_t handle_new(enum handle_kind kind, void *object);
void *handle_get(uint64_t handle, enum handle_kind kind);
void handle_free(uint64_t handle);
void *handle_next(enum handle_kind kind, size_t *cursor);

/* --- what the core asks of its front ------------------------------------------------------------------------------ */

/* How the two vendors' drivers behave where they differ and neither is wrong. */
struct vendor_rules {
    bool unknown_is_pageable;     /* an unknown address in a copy is pageable host memory, there or not */
    bool blocking_calls_complete;          /* a copy without Async has ended when it returns, but from device to the same device */
    bool imports_are_distinct;  /* memory of another process opened twice has two addresses */
    size_t staging_limit;          /* longest pageable source that an asynchronous copy reads ahead; longer ones are waited for */
    status host_function_status;  /* what a call from a host function gets */
};

extern struct vendor_rules vendor_rules;

status front_admit(enum need need);           /* before every call, with the lock: may it go on, and is all there? */
bool front_forbidden_in_capture(int function);              /* is it a call that captures of graphs do not see, and forbid? */
status front_unknown_stream(uint64_t handle); /* the status for it, if the vendor's library lives on */
void front_device_failed(status code);                 /* work on a device failed for good; may end the process */
bool core_is_open(void);
_Noreturn void core_die(int signal, const char *format, ...);
extern const char *const function_names[];    /* its functions, in the order of the numbers given to core_enter() */
extern const int function_count;
int front_visible_devices(int physical[MAX_DEVICES], int total);   /* which of them, and how many */

/* --- faults ------------------------------------------------------------------------------------------------------- */

#define MAX_FUNCTIONS 256
extern atomic_ulong function_calls[MAX_FUNCTIONS];
extern atomic_ulong slow_copies;  /* boxes that the vendor's library moves row by row, many times slower */

status fault_due(int function);
bool fault_is_sticky(status code);
void fault_delay(uint64_t stream, uint64_t sequence);

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Where memory is, in both vendors' calls. */
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3, LOCATION_HOST_NUMA_CURRENT = 4 };

struct location {
    int type, id;
};

/* Attributes of an address, with both vendors' numbers. */
enum {
    POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE, POINTER_DEVICE_POINTER, POINTER_HOST_POINTER, POINTER_P2P_TOKENS,
    POINTER_SYNC_MEMOPS, POINTER_BUFFER_ID, POINTER_IS_MANAGED, POINTER_DEVICE_ORDINAL, POINTER_IS_LEGACY_IPC_CAPABLE,
    POINTER_RANGE_START, POINTER_RANGE_SIZE, POINTER_MAPPED, POINTER_ALLOWED_HANDLE_TYPES, POINTER_IS_RDMA_CAPABLE,
    POINTER_ACCESS_FLAGS, POINTER_POOL, POINTER_MAPPING_SIZE, POINTER_MAPPING_BASE, POINTER_MEMORY_BLOCK_ID
};

extern struct heap pinned_heap, managed_heap;
extern size_t live_bytes;
extern long live_handles;

status device_alloc(struct context *context, size_t bytes, uint64_t *address);
status device_free(struct context *context, uint64_t address);
status block_free(struct block *block);
status host_alloc(struct context *context, size_t bytes, unsigned flags, uint64_t *address);
status host_free(struct context *context, uint64_t address);
status host_register(struct context *context, uint64_t address, size_t bytes, unsigned flags);
status range_add(struct context *context, uint64_t address, size_t bytes, unsigned flags);
void range_forget(struct block *block);
void range_alias(struct block *block);
status host_unregister(struct context *context, uint64_t address);
status managed_alloc(struct context *context, size_t bytes, unsigned flags, uint64_t *address);
status managed_advise(uint64_t address, size_t bytes, struct location location, bool placed);
status managed_prefetch(struct context *context, uint64_t stream, uint64_t address, size_t bytes, struct location to);
struct block *block_find(uint64_t address);
bool is_device_memory(const struct block *block);
bool pointer_attribute(const struct block *block, int attribute, uint64_t address, uint64_t *value);
size_t pointer_attribute_size(int attribute);
uint64_t block_device_address(const struct block *block, uint64_t address);
uint64_t block_host_address(const struct block *block, uint64_t address);
bool is_reserved(uint64_t address);
bool range_is_mapped(uint64_t address, size_t bytes);
void blocks_free_context(struct context *context, int device);
void block_init(struct block *block, enum block_kind kind, struct context *context, size_t bytes);
void block_mark_freed(struct block *block);
struct lease *lease_retain(struct lease *lease);
void lease_release(struct lease *lease);
void lease_end(struct block *block);
status range_insert(struct block *block);
void range_remove(struct block *block);
struct block *range_overlap(uint64_t address, size_t bytes);
extern struct block **ranges;
extern size_t range_count;
#define POISON 0xA5
#define POISON_LIMIT 65536u

/* --- copies ------------------------------------------------------------------------------------------------------- */

enum side { SIDE_ANY, SIDE_HOST, SIDE_DEVICE };

/* One end of a copy as the program names it: rows of a (depth, height, width) box. */
struct box_end {
    uint64_t address;         /* of the box's first byte */
    size_t pitch, plane;      /* bytes from row to row, and from plane to plane */
    enum side side;
};

struct box {
    struct box_end to, from;
    size_t width, height, depth;
};

enum source_read { READ_DEFAULT, READ_IN_STREAM_ORDER, READ_DURING_CALL };   /* when a pageable source is read */

struct endpoint {                /* one end, resolved: where the engine reaches it, and whose it is */
    char *bytes;
    size_t pitch, plane;
    struct lease *lease;      /* none for pageable memory and staged copies */
    struct block *block;      /* only to look at before the operation is queued */
};

struct transfer {
    struct endpoint to, from;
    size_t width, height, depth;
    void *staged;
};

status copy_run(struct context *context, uint64_t stream, const struct box *box, bool blocking);
status copy_batch(struct context *context, uint64_t stream, const struct box *boxes, const enum source_read *reads,
                  size_t count, size_t *failed);
status fill_run(struct context *context, uint64_t stream, uint64_t address, size_t pitch, uint32_t value, unsigned unit,
                size_t width, size_t height, bool blocking);
void copy_perform(const struct transfer *transfers, size_t count);
void transfers_free(struct transfer *transfers, size_t count);
void fill_perform(const struct endpoint *at, size_t width, size_t height, uint32_t value, unsigned unit);

struct value {
    uint64_t value, mask;     /* the mask is for waiting alone */
    unsigned width, how;      /* bytes; how to compare */
};

status value_run(struct context *context, uint64_t stream, uint64_t address, struct value value, bool writes);

/* --- coarse-grained host memory ----------------------------------------------------------------------------------- */

void shadow_attach(struct block *block);
void shadow_free(struct shadow *shadow);
void shadow_write(struct shadow *shadow, char *at, const void *from, size_t bytes);
void shadow_read(struct shadow *shadow, void *to, const char *at, size_t bytes);
void shadows_publish(void);

/* --- streams ------------------------------------------------------------------------------------------------------ */

enum op_kind { OP_MARKER, OP_COPY, OP_FILL, OP_HOST, OP_ALLOC, OP_FREE, OP_WAIT_VALUE, OP_WRITE_VALUE };

struct op {
    enum op_kind kind;
    int references;
    bool done;
    bool publishes;           /* a mark that makes coarse-grained memory visible to the host */
    uint64_t finished;        /* nanoseconds */
    uint64_t sequence;
    struct stream *stream;
    struct op *next;
    int waiting_for;
    struct op **successors;
    int successor_count, successor_room;
    union {
        struct { struct transfer *transfers; size_t count; } copy;
        struct { struct endpoint at; size_t width, height; uint32_t value; unsigned unit; } fill;
        struct { void (*call)(void *); void *data; } host;
        struct { struct endpoint at; struct value asked; } value;
        struct { struct endpoint at; size_t bytes; } alloc;
        struct lease *freed_lease;
    };
};

struct capture {
    int state, mode;
    const void *thread;       /* that began it */
    uint64_t number;
};

struct stream {
    uint64_t handle;
    struct context *context;
    unsigned flags;
    int priority;
    bool blocking, legacy, closing, aborting, has_thread;
    bool counted;             /* made by the program, and not yet destroyed */
    int held;
    uint64_t submitted, number;
    struct op *head, *tail, *last;
    struct capture capture;
    pthread_cond_t wake;
    struct stream *next;      /* of the same context */
};

#define STREAM_LEGACY 1u
#define STREAM_PER_THREAD 2u
#define STREAM_NON_BLOCKING 1u

struct op *op_new(enum op_kind kind);
void op_retain(struct op *op);
void op_release(struct op *op);
void op_after(struct op *op, struct op *earlier);
status stream_submit(struct stream *stream, struct op *op);
status stream_create(struct context *context, unsigned flags, int priority, uint64_t *handle);
status stream_destroy(uint64_t handle);
status stream_get(struct context *context, uint64_t handle, struct stream **out);
status stream_for_work(struct context *context, uint64_t handle, struct stream **out);
struct stream *stream_find(struct context *context, uint64_t handle);
status stream_query(struct stream *stream);
status stream_synchronize(struct stream *stream);
status stream_wait_op(struct stream *stream, struct op *earlier);
struct stream *stream_open(struct context *context, unsigned flags, int priority);
void streams_abort(struct context *context);
void device_drain(int device);
void stream_mark(struct stream *stream);
status stream_call_host(struct context *context, uint64_t stream, void (*call)(void *), void *data);
void host_wait(struct op *op);
void host_wait_context(struct context *context);

/* --- events ------------------------------------------------------------------------------------------------------- */

struct event {
    uint64_t handle;
    struct context *context;
    unsigned flags;
    struct op *last;
    bool captured;            /* last recorded on a stream that was capturing */
};

#define EVENT_DISABLE_TIMING 2u
#define EVENT_INTERPROCESS 4u
#define EVENT_RELEASE_TO_SYSTEM 0x80000000u

status event_create(struct context *context, unsigned flags, uint64_t *handle);
status event_destroy(uint64_t handle);
status event_record(struct context *context, uint64_t event, uint64_t stream);
status event_query(uint64_t event);
status event_synchronize(uint64_t event);
status event_elapsed(uint64_t start, uint64_t end, float *milliseconds);
status event_wait(struct context *context, uint64_t stream, uint64_t event);
void events_free_context(struct context *context);

/* --- pools -------------------------------------------------------------------------------------------------------- */

/* Both vendors' layouts: which devices may access a pool, and what it allocates. */
struct access_description {
    struct location location;
    int flags;
};

struct pool_properties {
    int allocation, handles;
    struct location location;
    void *security;
    size_t max_bytes;
    unsigned char reserved[56];
};

#define ACCESS_READ_WRITE 3
#define ALLOCATION_PINNED 1

struct pool {
    uint64_t handle;
    int device;
    bool is_default, closing;
    size_t max_bytes;
    uint64_t threshold;
    int follow_events, opportunistic, internal;
    uint64_t used, used_high, reserved, reserved_high;
    size_t live_blocks;
    uint32_t readable_by;                     /* devices given access */
    struct block *cached[64];                 /* by size class, newest first */
    struct pool *next;                        /* of the same device */
};

status pool_create(int device, size_t max_bytes, uint64_t *handle);
struct pool *pool_open(int device);
status pool_destroy(uint64_t handle);
status pool_alloc(struct context *context, struct pool *pool, size_t bytes, uint64_t stream, uint64_t *address);
status pool_free(struct context *context, uint64_t address, uint64_t stream);
status pool_trim(uint64_t handle, size_t keep);
status pool_set_attribute(uint64_t handle, int attribute, const void *value);
status pool_get_attribute(uint64_t handle, int attribute, void *out);
status pool_set_access(uint64_t handle, const struct access_description *wanted, size_t count);
status pool_get_access(uint64_t handle, const struct location *location, int *flags);
status device_set_pool(int device, uint64_t handle);
bool pool_free_now(struct block *block);
void pools_trim_to_threshold(int device);
void pools_reset(int device);

/* --- capture of graphs -------------------------------------------------------------------------------------------- */

enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };   /* modes, of captures and of threads */
enum { CAPTURE_STATE_NONE, CAPTURE_STATE_ACTIVE, CAPTURE_STATE_INVALIDATED };

status capture_exchange(int *mode);
status capture_begin(struct stream *stream, int mode);
status capture_end(struct stream *stream, uint64_t *graph);
void capture_forget(struct stream *stream);
status capture_state(const struct stream *stream, int *out, uint64_t *number);
status capture_check_unsafe(void);
status capture_check_work(const struct stream *stream);
status capture_check_wait(struct stream *stream);
status capture_check_wait_context(struct context *context);
status graph_destroy(uint64_t handle);

/* --- between processes -------------------------------------------------------------------------------------------- */

status ipc_export(uint64_t address, unsigned char handle[64]);
status ipc_import(struct context *context, const unsigned char handle[64], unsigned flags, uint64_t *address);
status ipc_close(uint64_t address);

#endif
