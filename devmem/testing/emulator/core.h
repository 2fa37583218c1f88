/* The emulated accelerator: devices, memory, streams, events, pools, capture, and faults that tests inject.
 *
 * One core serves two vendor fronts: the CUDA driver API (cuda*.c) and the HIP runtime (hip*.c). A front checks arguments
 * by its vendor's rules, calls the core, and translates the few status codes that differ; the codes below are common to both.
 *
 * Threads: the program may call from any thread. Each stream that has work has one thread, which runs its operations in
 * order. All core state is guarded by one lock, core_mutex: core_enter() takes it, core_leave() releases it, and the core's
 * functions run with it held unless their comment says otherwise. It is released only while a thread waits (host_wait),
 * while a stream thread moves bytes, and while a host function of the program runs. One lock costs speed and prevents
 * races; the null mode is for measurements.
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
#define GRANULE 512u          /* unit of a heap, and alignment of its blocks */
#define SIZE_CLASSES 40       /* two-level free lists: a class for each power of two, */
#define SUBCLASSES 16         /* each divided into sixteen */
#define BITMAP_LEVELS 6       /* 64-ary: six levels cover 2^36 granules */
#define LEAST_MEMORY 4096u    /* bytes that a heap may have: from a page */
#define MOST_MEMORY (1ull << 40) /* to what fits an address space for each of MAX_DEVICES, mapped twice */

struct context;
struct stream;
struct pool;
struct op;

/* --- sizes -------------------------------------------------------------------------------------------------------- */

/* Programs choose every factor of a size. SIZE_MAX stands for a result that 64 bits do not hold: no memory has as many bytes. */
static inline size_t size_plus(size_t one, size_t other)
{
    size_t sum;
    return __builtin_add_overflow(one, other, &sum) ? SIZE_MAX : sum;
}

static inline size_t size_times(size_t one, size_t other)
{
    size_t product;
    return __builtin_mul_overflow(one, other, &product) ? SIZE_MAX : product;
}

/* The least multiple of `unit` that is no less than `bytes`. */
static inline size_t size_rounded(size_t bytes, size_t unit) { return size_times(size_plus(bytes, unit - 1) / unit, unit); }

/* The distance of a row of a box from the first byte of its memory. */
static inline size_t size_to_row(size_t z, size_t plane, size_t y, size_t pitch)
{
    return size_plus(size_times(z, plane), size_times(y, pitch));
}

/* The bytes from the first of a box to its last; no side of the box is 0. */
static inline size_t size_of_box(size_t width, size_t height, size_t depth, size_t pitch, size_t plane)
{
    return size_plus(size_to_row(depth - 1, plane, height - 1, pitch), width);
}

/* --- heaps: blocks within one address range ----------------------------------------------------------------------- */

enum block_kind { BLOCK_FREE, BLOCK_DEVICE, BLOCK_POOLED, BLOCK_PINNED, BLOCK_MANAGED, BLOCK_REGISTERED, BLOCK_IMPORTED,
                  BLOCK_VIRTUAL };

/* Whether the bytes of a block may be used. Queued operations retain the lease of their block, not the block: so an operation
 * that runs before the allocation or after the free is found, even if a new block has the same address by then. */
struct lease {
    int references;
    int running;              /* operations that access the bytes now */
    bool allocated, freed;
    struct shadow *shadow;      /* for coarse-grained host memory: see coherence.c */
};

struct block {
    uint64_t base;            /* the address that the program sees */
    size_t size;              /* bytes that the program requested: copies may access these */
    size_t capacity;          /* bytes taken from the heap */
    char *access;             /* where the emulator reads and writes the same bytes */
    enum block_kind kind;
    bool sync_memops;         /* copies without Async of this memory are complete on return */
    bool freed;               /* the program freed it; the stream-ordered free may not have run yet */
    unsigned flags;
    int device;
    uint64_t serial;          /* unique: distinguishes blocks that have the same address one after the other */
    struct context *context;
    struct pool *pool;
    struct lease *lease;
    struct block *device_alias;     /* the device's own range for registered memory, if it has one */
    struct op *free_op;          /* the stream operation that freed a pooled block */
    struct stream *freed_on;      /* the stream of that operation: compared, never dereferenced */
    int references;           /* how often an imported block was opened */
    uint64_t exporter_key[3];     /* of an imported block: process, serial, device of the exporter */
    struct heap *heap;
    struct block *before, *after;         /* neighbours by address in the heap */
    struct block *free_before, *free_after;
    struct block *cached_next;            /* in the free list of a pool */
};

struct heap {
    uint64_t base;
    char *access;
    size_t bytes, used;
    int file;                                       /* the memfd of memory that is mapped twice, else -1 */
    struct block **at;                              /* the block that starts at each granule, or NULL */
    uint64_t *starts[BITMAP_LEVELS];                /* 64-ary tree of bits: where blocks start */
    uint64_t classes;
    uint32_t subclasses[SIZE_CLASSES];
    struct block *free[SIZE_CLASSES][SUBCLASSES];
};

/* Whether the emulator has a mapping of its own, and the program's addresses are inaccessible then. */
enum heap_mapping { MAPPED_ONCE, MAPPED_TWICE, MAPPED_HIDDEN };

bool heap_open(struct heap *heap, size_t bytes, enum heap_mapping mapping);
struct block *heap_alloc(struct heap *heap, size_t bytes);
void heap_free(struct block *block);
struct block *heap_find(struct heap *heap, uint64_t address);
struct block *heap_first(struct heap *heap);

/* --- devices and contexts ----------------------------------------------------------------------------------------- */

struct device {
    int physical;             /* ordinal before visibility variables are applied */
    struct heap heap;
    struct context *primary;
    struct pool *default_pool, *current_pool;
    struct pool *pools;       /* pools that are not destroyed */
};

struct context {
    uint64_t handle;
    int device;
    bool is_primary, active, ending; /* ending: a thread frees what is in it */
    unsigned retained, flags;
    unsigned generation;      /* incremented by a reset, so that old per-thread streams are recognised */
    status sticky;
    uint32_t peers;           /* bit set of devices with peer access enabled */
    struct stream *legacy;
    struct stream *streams;
    struct context *next;     /* of all contexts; they are never freed */
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

/* --- entry and exit of exported functions ------------------------------------------------------------------------- */

enum need { NEED_NOTHING, NEED_INIT, NEED_CONTEXT };

extern pthread_mutex_t core_mutex;
extern pthread_cond_t progress;      /* an operation completed: waiting host threads check again */
extern _Thread_local bool inside_host_function;

status core_enter(int function, enum need need, struct context **context);
status core_leave(status result);
status core_initialize(void);
uint64_t core_now(void);
size_t core_setting(const char *name, size_t otherwise);
int core_host_node(void);
size_t core_setting_within(const char *name, size_t otherwise, size_t least, size_t most);
bool core_null_mode(void);

enum handle_kind { HANDLE_CONTEXT = 1, HANDLE_STREAM, HANDLE_EVENT, HANDLE_POOL, HANDLE_GRAPH, HANDLE_GRAPH_EXEC,
                   HANDLE_USER_OBJECT, HANDLE_PHYSICAL };

uint64_t handle_new(enum handle_kind kind, void *object);
void *handle_get(uint64_t handle, enum handle_kind kind);
void handle_free(uint64_t handle);
void *handle_next(enum handle_kind kind, size_t *cursor);

/* --- what a front supplies ---------------------------------------------------------------------------------------- */

/* Behaviour in which the two vendors' drivers differ. */
struct vendor_rules {
    bool unknown_is_pageable;     /* an unknown address in a copy is taken for pageable host memory */
    bool blocking_calls_complete;          /* a copy without Async is complete on return, except within one device */
    bool imports_are_distinct;  /* an IPC handle opened twice gives two addresses */
    size_t staging_limit;          /* an asynchronous copy stages pageable sources up to this size, and waits for longer ones */
    bool (*takes_host_addresses)(void); /* devices use pageable memory in place, by its own address */
    status host_function_status;  /* status of a call from a host function */
};

extern struct vendor_rules vendor_rules;

status front_admit(enum need need);           /* before every call, with the lock; an error refuses the call */
bool front_forbidden_in_capture(int function);              /* a call that is potentially unsafe during capture; see capture.c */
status front_unknown_stream(uint64_t handle); /* the status for an unknown stream; may end the process */
void front_device_failed(status code);                 /* after an error that loses the context; may end the process */
bool core_is_open(void);
_Noreturn void core_die(int signal, const char *format, ...);
extern const char *const function_names[];    /* indexed by the numbers that core_enter() takes */
extern const int function_count;
int front_visible_devices(int physical[MAX_DEVICES], int total);   /* fills the ordinals, returns their number */

/* --- faults ------------------------------------------------------------------------------------------------------- */

#define MAX_FUNCTIONS 256
extern atomic_ulong function_calls[MAX_FUNCTIONS];
extern atomic_ulong slow_copies;  /* copies that the vendor's library would do row by row */

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
    POINTER_ACCESS_FLAGS, POINTER_POOL, POINTER_MAPPING_SIZE, POINTER_MAPPING_BASE, POINTER_MEMORY_BLOCK_ID,
    POINTER_IS_HW_DECOMPRESS_CAPABLE
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
status managed_batch(struct context *context, uint64_t stream, const uint64_t *ranges, const size_t *sizes, size_t count,
                     const struct location *to, const size_t *firsts, size_t places, bool discards);
status managed_prefetch(struct context *context, uint64_t stream, uint64_t address, size_t bytes, struct location to);
struct block *block_find(uint64_t address);
bool is_device_memory(const struct block *block);
bool block_contains(const struct block *block, uint64_t address, size_t bytes);
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

/* One end of a copy as the program describes it: rows of a (depth, height, width) box. */
struct box_end {
    uint64_t address;         /* of the first byte of the box */
    size_t pitch, plane;      /* distance in bytes of rows, and of planes */
    enum side side;
};

struct box {
    struct box_end to, from;
    size_t width, height, depth;
};

enum source_read { READ_DEFAULT, READ_IN_STREAM_ORDER, READ_DURING_CALL };   /* when a copy reads a pageable source */

struct endpoint {                /* one end of a copy after the lookup of its address */
    char *bytes;
    size_t pitch, plane;
    struct lease *lease;      /* NULL for pageable and staged memory */
    struct block *block;      /* valid only until the operation is queued */
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
    uint64_t value, mask;     /* only a wait uses the mask */
    unsigned width, how;      /* width in bytes; the comparison, or how to write */
};

#define VALUE_RAISE 4u        /* write it unless a greater one is there */

status value_run(struct context *context, uint64_t stream, uint64_t address, struct value value, bool writes);

/* --- coarse-grained host memory ----------------------------------------------------------------------------------- */

void shadow_attach(struct block *block);
void shadow_free(struct shadow *shadow);
void shadow_write(struct shadow *shadow, char *at, const void *from, size_t bytes);
void shadow_read(struct shadow *shadow, void *to, const char *at, size_t bytes);
void shadows_publish(void);

/* --- accesses of the program beside copies ------------------------------------------------------------------------ */

bool watch_wanted(void);
void watch_begin(struct op *op);
void watch_end(struct op *op);
void watch_after_fork_in_child(void);

/* --- streams ------------------------------------------------------------------------------------------------------ */

enum op_kind { OP_MARKER, OP_COPY, OP_FILL, OP_HOST, OP_ALLOC, OP_FREE, OP_WAIT_VALUE, OP_WRITE_VALUE };

/* A host function that is told the stream and its status; it runs on a failed stream too. */
typedef void (*stream_callback)(uint64_t stream, status result, void *data);

struct op {
    enum op_kind kind;
    int references;
    bool done;
    bool watched;             /* the pages that the host must not access are protected: see watch.c */
    bool publishes;           /* makes coarse-grained memory visible to the host when it completes */
    uint64_t finished;        /* time of completion in nanoseconds */
    uint64_t sequence;
    struct stream *stream;
    struct op *next;
    int waiting_for;
    struct op **successors;
    int successor_count, successor_room;
    union {
        struct { struct transfer *transfers; size_t count; } copy;
        struct { struct endpoint at; size_t width, height; uint32_t value; unsigned unit; } fill;
        struct { void (*call)(void *); stream_callback callback; void *data; uint64_t stream; } host;
        struct { struct endpoint at; struct value asked; } value;
        struct { struct endpoint at; size_t bytes; } alloc;
        struct lease *freed_lease;
    };
};

struct graph;

struct capture {
    int state, mode;
    struct graph *graph;
    bool into;                /* the program's own graph, which outlives the capture */
    const void *thread;       /* the thread that began the capture */
    uint64_t number;
};

struct stream {
    uint64_t handle;
    struct context *context;
    unsigned flags;
    int priority;
    bool blocking, legacy, closing, aborting, has_thread;
    bool counted;             /* created by the program and not destroyed: counts in live_handles */
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
status stream_for_node(struct context *context, uint64_t handle, struct stream **out);
struct stream *stream_find(struct context *context, uint64_t handle);
status stream_query(struct stream *stream);
status stream_synchronize(struct stream *stream);
status stream_wait_op(struct stream *stream, struct op *earlier);
struct stream *stream_open(struct context *context, unsigned flags, int priority);
void streams_abort(struct context *context);
void device_drain(int device);
void stream_mark(struct stream *stream);
status stream_call_host(struct context *context, uint64_t stream, void (*call)(void *), void *data);
status stream_call_back(struct context *context, uint64_t stream, stream_callback callback, void *data);
void host_wait(struct op *op);
void host_wait_context(struct context *context);

/* --- events ------------------------------------------------------------------------------------------------------- */

struct event {
    uint64_t handle;
    struct context *context;
    unsigned flags;
    struct op *last;
    bool captured;            /* the last recording was on a capturing stream */
    struct shared_event *shared;              /* of an event that processes share; see event.c */
    int file;                 /* the memfd of `shared` in the process that created it, else -1 */
};

#define EVENT_DISABLE_TIMING 2u
#define EVENT_INTERPROCESS 4u
#define EVENT_RELEASE_TO_SYSTEM 0x80000000u

status event_create(struct context *context, unsigned flags, uint64_t *handle);
status event_share(struct event *event, int file);
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
    unsigned short usage; /* CUDA's; HIP has nothing there */
    unsigned char reserved[54];
};

#define ACCESS_READ_WRITE 3
#define ALLOCATION_PINNED 1
#define HANDLE_POSIX_FILE 1
#define USAGE_HW_DECOMPRESS 2
#define HANDLE_FABRIC 8

struct pool {
    uint64_t handle;
    int device;
    bool is_default, closing;
    bool shareable;                           /* it was made with a file descriptor for other processes */
    bool decompresses;                        /* it was made for the decompression engine */
    uint64_t exporter, exporter_pool;         /* of an imported pool: the process that it belongs to, and its handle there */
    size_t max_bytes;
    uint64_t threshold;
    int follow_events, opportunistic, internal;
    uint64_t used, used_high, reserved, reserved_high;
    size_t live_blocks;
    uint32_t readable_by;                     /* bit set of devices with access */
    struct block *cached[64];                 /* free lists by size class, newest first */
    struct pool *next;                        /* of the same device */
};

status pool_create(int device, const struct pool_properties *properties, uint64_t *handle);
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
void pool_block_gone(struct pool *pool);

/* --- virtual memory ----------------------------------------------------------------------------------------------- */

#define VIRTUAL_GRANULARITY (2u << 20)

/* Both vendors' layout: what physical memory is. */
struct memory_properties {
    int allocation, handles;
    struct location location;
    void *security;
    unsigned char flags[8];
};

status virtual_granularity(const struct memory_properties *properties, int option, size_t *bytes);
status virtual_create(size_t bytes, const struct memory_properties *properties, uint64_t flags, uint64_t *handle);
status virtual_release(uint64_t handle);
status virtual_properties(uint64_t handle, struct memory_properties *out);
status virtual_export(uint64_t handle, int type, uint64_t flags, void *out);
status virtual_import_file(int file, uint64_t *handle);
status virtual_import_fabric(const void *from, uint64_t *handle);
status virtual_reserve(size_t bytes, size_t alignment, uint64_t flags, uint64_t *address);
status virtual_unreserve(uint64_t address, size_t bytes);
status virtual_map(uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags);
status virtual_unmap(uint64_t address, size_t bytes);
status virtual_set_access(uint64_t address, size_t bytes, const struct access_description *wanted, size_t count);

/* --- capture of graphs -------------------------------------------------------------------------------------------- */

enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };   /* modes, of captures and of threads */
enum { CAPTURE_STATE_NONE, CAPTURE_STATE_ACTIVE, CAPTURE_STATE_INVALIDATED };

status capture_exchange(int *mode);
status capture_begin(struct stream *stream, int mode, struct graph *into);
status capture_end(struct stream *stream, uint64_t *graph);
void capture_forget(struct stream *stream);
status capture_state(const struct stream *stream, int *out, uint64_t *number);
status capture_check_unsafe(void);
status capture_check_work(const struct stream *stream);
bool capture_active(const struct stream *stream);
status capture_check_wait(struct stream *stream);
status capture_check_wait_context(struct context *context);

/* --- graphs ------------------------------------------------------------------------------------------------------- */

/* A call that was captured: made again, as it was, when what was instantiated of its graph is launched. */
enum node_kind { NODE_COPY, NODE_FILL, NODE_HOST };

struct node {
    enum node_kind kind;
    union {
        struct box copy;
        struct { uint64_t address; size_t pitch, width, height; uint32_t value; unsigned unit; } fill;
        struct { void (*call)(void *); void *data; } host;
    };
};

void graph_add(struct graph *graph, struct node node);
struct graph *graph_open(enum handle_kind kind);
struct graph *graph_find(uint64_t handle);
uint64_t graph_handle(const struct graph *graph);
void graph_close(struct graph *graph);
status graph_destroy(uint64_t handle, enum handle_kind kind);
status graph_nodes(uint64_t handle, size_t *count);
status graph_instantiate(uint64_t handle, uint64_t *exec);
status graph_launch(struct context *context, uint64_t exec, uint64_t stream);
status graph_retain_object(uint64_t handle, uint64_t object, unsigned count, bool move);
status user_object_create(void *data, void (*destroy)(void *), unsigned references, uint64_t *handle);
status user_object_change(uint64_t handle, unsigned count, bool release);

/* --- between processes -------------------------------------------------------------------------------------------- */

status ipc_export(uint64_t address, unsigned char handle[64]);
status ipc_import(struct context *context, const unsigned char handle[64], unsigned flags, uint64_t *address);
status ipc_close(uint64_t address);
status pool_export(uint64_t pool, int type, uint64_t flags, int *file);
status pool_import(int file, int type, uint64_t flags, uint64_t *pool);
status pool_export_pointer(uint64_t address, unsigned char data[64]);
status pool_import_pointer(struct context *context, uint64_t pool, const unsigned char data[64], uint64_t *address);
void pool_import_end(struct block *block);
status ipc_export_event(uint64_t event, unsigned char handle[64]);
status ipc_import_event(struct context *context, const unsigned char handle[64], uint64_t *event);

#endif
