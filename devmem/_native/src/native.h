/* devmem's compiled core, devmem._native.core, in C against the limited API of CPython 3.11.
 *
 * Each function does what the Python code beside its call does, and does it only where nothing has to be decided: otherwise it
 * returns None, having changed nothing, and that code runs. The Python code is the specification.
 *
 * No signal handler runs inside of a function here, because no bytecode does, but where it calls Python code: what a function has
 * begun it ends, so an interrupt loses nothing. The collector may run wherever an object is made, and other threads wherever the GIL
 * is released; state is whole at these points.
 *
 *   state.c     the parts of device handles, allocations and arrays that the core reads: base classes of the Python classes
 *   blocks.c    the live blocks of heaps
 *   lane.c      one open device's way to the vendor's library: when it may be taken, entering, the queue of dropped memory
 *   verbs.c     to_device, device_array, copies, free
 *   views.c     slices and reshapes
 *   streams.c   streams and events that are used again
 *   completions.c  what copies keep until their stream has passed them
 *   dlpack.c    capsules, and DLPack's table of C functions
 *   buffers.c   addresses of host arrays
 *   numbers.c   the numbers of simulated kernels
 */
#ifndef DEVMEM_NATIVE_H
#define DEVMEM_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver_table.h"

#define MOST_AXES 8 /* arrays with more are left to Python */

/* -- state.c: the layouts of the base classes ---------------------------------------------------------------------------- */

struct handle_state {
    PyObject_HEAD
    PyObject *driver, *entry, *dead, *dropped, *lane, *heap;
    PyObject *drop; /* the bound append of `dropped` */
    PyObject *dlpack_device, *legacy_number; /* for DLPack: (type, number); the legacy default stream, or None */
    Py_ssize_t dropped_bytes;
    Py_ssize_t scopes; /* `with use_memory()` blocks */
    Py_ssize_t outside; /* calls of the core that are in the vendor's library, without the GIL */
};

struct allocation_state {
    PyObject_HEAD
    PyObject *queue, *device_handle, *heap, *home, *streams;
    uint64_t ptr;
    Py_ssize_t nbytes;
    uint32_t place; /* among the live blocks of the heap */
    char freed, unnamed;
    char lent; /* its address is in `heap.lent`, as long as it lives */
};

struct array_state {
    PyObject_HEAD
    PyObject *shape, *dtype, *strides, *stream, *allocation, *open_device;
    uint64_t ptr;
};

/* How many blocks defer cleanup; the page-locked runs; what waits to be freed. */
struct deferral_state {
    PyObject_HEAD
    PyObject *counting;
    Py_ssize_t depth;
};

struct locks_state {
    PyObject_HEAD
    PyObject *segments;
};

struct queue_state {
    PyObject_HEAD
    PyObject *pending, *foreign_releases;
    Py_ssize_t pending_bytes;
};

/* A stream or an event: it owns a handle by a record, which is None of one that is closed. */
struct owner_state {
    PyObject_HEAD
    PyObject *services, *device_handle, *handle, *owned, *drop;
    PyObject *recorder; /* of a stream */
    char external, is_default, non_blocking, plain, simple; /* of a stream */
    char recorded, timing; /* of an event */
};

struct record_state {
    PyObject_HEAD
    PyObject *handle, *table, *key;
    char idle, leaving;
};

extern PyTypeObject *handle_type, *allocation_type, *array_type, *stream_type, *event_type, *record_type, *deferral_type, *locks_type,
    *queue_type;
extern PyObject *zero;
extern PyObject *device_array_class; /* `DeviceNDArray`, once `arrays` has told it */

#define VISIT(field) Py_VISIT(state->field);
#define CLEAR(field) Py_CLEAR(state->field);
/* What a type needs to be collected: its struct has the object fields that EACH lists. */
#define COLLECTED(name, layout, EACH)                                           \
    static int name##_traverse(PyObject *self, visitproc visit, void *arg) {    \
        layout *state = (layout *)self;                                         \
        EACH(VISIT)                                                             \
        Py_VISIT(Py_TYPE(self));                                                \
        return 0;                                                               \
    }                                                                           \
    static int name##_clear(PyObject *self) {                                   \
        layout *state = (layout *)self;                                         \
        EACH(CLEAR)                                                             \
        return 0;                                                               \
    }                                                                           \
    static void name##_dealloc(PyObject *self) {                                \
        PyTypeObject *type = Py_TYPE(self);                                     \
        PyObject_GC_UnTrack(self);                                              \
        name##_clear(self);                                                     \
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);                     \
        Py_DECREF(type);                                                        \
    }

/* A new array of a class. */
PyObject *make_array(PyTypeObject *class, uint64_t ptr, PyObject *shape, PyObject *dtype, PyObject *strides, PyObject *stream,
                     PyObject *allocation, PyObject *opened);

static inline void set_field(PyObject **field, PyObject *value) {
    PyObject *before = *field;
    Py_XINCREF(value);
    *field = value;
    Py_XDECREF(before);
}

/* -- blocks.c: the live blocks of a heap --------------------------------------------------------------------------------- */

struct block {
    uint64_t address, nbytes; /* of a free place: 0, and the place that is free next */
};

struct blocks {
    PyObject_HEAD
    struct block *places;
    uint64_t nbytes; /* of all of them */
    uint32_t count, size, used, free; /* places from `used` on were never taken; `free`: the next one to take */
};

extern PyTypeObject *blocks_type;
/* Enter a block, and tell its place; false where there is no memory for that. */
bool put_block(struct blocks *blocks, uint64_t address, uint64_t nbytes, uint32_t *place);
/* Take a block out of its place; false where it is not there. */
bool take_block(struct blocks *blocks, uint32_t place, uint64_t address);

/* -- lane.c -------------------------------------------------------------------------------------------------------------- */

struct counter {
    long long copies, bytes, timed;
    double seconds;
};

struct lane {
    PyObject_HEAD
    struct driver_table *table;
    Py_ssize_t small;                   /* bytes from which a copy is Python's */
    Py_ssize_t max_count, max_bytes;    /* of the queue of dropped memory */
    PyObject *opened, *handle, *driver; /* the open device */
    PyObject *keep;                     /* owns the table */
    PyObject *refused;                  /* raises for (call, status) */
    struct queue_state *queue;
    struct locks_state *locks;
    struct deferral_state *deferral;
    PyObject *completing, *legacy, *own_streams;
    PyObject *owned;                    /* the class of allocations that are freed when they are dropped */
    PyObject *plain;                    /* whether a heap's verbs are the driver's stream-ordered ones */
    PyObject *recover;                  /* answers a failing allocation */
    PyObject *once_more;                /* answers a failing copy */
    PyObject *told;                     /* warns of a failure to free dropped memory */
    PyObject *capturing;                /* whether a graph is captured on a stream of the device */
    PyObject *heap, *lent;              /* the last heap that was found plain, and what was lent of it */
    struct blocks *live;                /* its blocks */
    PyObject *blocks;                   /* addresses that the driver's own methods gave */
    PyObject *ready, *home;             /* of a pool: by stream how a hit is made, and the legacy stream's number; else NULL */
    PyObject *services, *memory;        /* the device's streams, and its memory */
    PyObject *held, *given_up;          /* leases on handles, and handles whose end waits for them */
    PyObject *spare_streams, *spare_events, *stream_handles, *event_handles;
    PyObject *passed, *recorded;        /* numbers of events for `EventPool.record`, and the class of those that it gives */
    PyObject *simple;                   /* whether no graph can be captured on a stream */
    struct counter up, down;
};

/* Dropped blocks that are about to be freed, in their order. */
#define MOST_FREES 64
struct frees {
    struct blocks *live; /* what they were struck out of */
    Py_ssize_t count;
    int status; /* of the first that failed */
    bool entered;
    struct {
        struct allocation_state *block;
        uint64_t address;
    } each[MOST_FREES];
};

/* What is done in the vendor's library, in the device and without the GIL: a status, and which call it is of. */
typedef int vendor_work(const struct driver_table *table, void *of, enum table_call *call);
/* Enter the device, work and leave: the status. */
int in_device(struct lane *lane, vendor_work *work, void *of, enum table_call *call);

/* The lane of a device handle, where the core may take it, or NULL: borrowed. */
struct lane *lane_of_handle(PyObject *handle);
/* The lane of the current device, where the core may take it: a new reference. NULL with or without an exception. */
struct lane *current_lane(void);
/* Whether a lane may be taken now; no Python runs. */
bool is_open(const struct lane *lane);
/* Whether work without a named stream is ordered on the legacy default stream: 1, 0, or -1 with an exception. */
int on_legacy(PyObject *stream);
/* Whether memory comes from a plain heap: 1, 0, or -1 with an exception. */
int takes_memory(struct lane *lane);
/* Whether host memory may be copied without a look at page locks. */
bool is_unlocked(const struct lane *lane);
/* What has to be done before memory is taken or copied: 1, 0 where it is Python's, -1 with an exception. What is to be freed then is in
 * `frees`, and the caller gives it to `free_all` once the device is entered, and then to `settle`; or to `free_now`. */
int safe_point(struct lane *lane, struct frees *frees);
/* Free in the vendor's library. `vendor_work`. */
int free_all(const struct driver_table *table, void *frees, enum table_call *call);
/* Close the books of what was freed, and warn of a failure; where the device was not entered, queue it again. -1 with an exception. */
int settle(struct lane *lane, struct frees *frees);
int free_now(struct lane *lane, struct frees *frees);
/* One address is given back to the driver, and whether the device was entered for it. `vendor_work`. */
struct given_back {
    uint64_t address;
    bool entered;
};
int free_one(const struct driver_table *table, void *block, enum table_call *call);
/* The list of the pool's free blocks for requests of so many bytes on the legacy stream: borrowed, NULL where there is none yet. */
PyObject *pool_blocks(const struct lane *lane, size_t nbytes);
/* A block that is free in the pool, or 0; and one that goes back to such a list: false where there is none. */
uint64_t from_pool(const struct lane *lane, size_t nbytes);
bool to_pool(PyObject *blocks, uint64_t address);
/* Enter a block again where it was struck out: it was not given back. It waits in the queue, as a dropped one does. */
void enter_again(struct lane *lane, struct allocation_state *block, uint64_t address, struct blocks *live);
/* Whether an allocation is one that the core may free, to a pool if that has a list for it. */
bool is_simple(const struct lane *lane, const struct allocation_state *block);
/* Take a block out of those that are live: its address, which it forgets; 0 where it was none. */
uint64_t strike_out(struct lane *lane, struct allocation_state *block);
/* Raise for a status. */
void refuse(struct lane *lane, enum table_call call, int status);

/* -- completions.c -------------------------------------------------------------------------------------------------------- */

extern PyTypeObject *queues_type;
/* Put (event, payload) behind what a stream has; false with an exception. */
bool enter_last(PyObject *queues, PyObject *stream, PyObject *entry);
/* Let go of what running copies keep and have passed, which may run anything: 1, 0 where Python has to ask, -1 with an exception. */
int let_go_of_passed(struct lane *lane);

/* -- streams.c ------------------------------------------------------------------------------------------------------------ */

/* The number of a stream of devmem's own on which nothing is recorded: whether the stream is one, of the lane's device. */
bool is_own_stream(struct lane *lane, PyObject *stream, uint64_t *found);
/* Wait for a stream, unless a graph is captured on it; false with an exception. */
bool wait_for(PyObject *stream);
/* The status of an event, in the device. */
int query_event(struct lane *lane, uint64_t event);

/* -- dlpack.c: bytes of an element of one of NumPy's own types; 0 of others, or before `exchange` has told which they are ------------ */

Py_ssize_t known_itemsize(const PyObject *dtype);

/* -- views.c: the tuple of some lengths, or strides; and what is in one of at most MOST_AXES: their number, or -1, without an exception -- */

int integers(PyObject *tuple, Py_ssize_t *values);
PyObject *tuple_of(const Py_ssize_t *values, int count);

/* -- the other files: each adds its names to the module; -1 with an exception set if that fails ---------------------------- */

int add_blocks(PyObject *module);
int add_buffers(PyObject *module);
int add_completions(PyObject *module);
int add_dlpack(PyObject *module);
int add_lane(PyObject *module);
int add_numbers(PyObject *module);
int add_state(PyObject *module);
int add_streams(PyObject *module);
int add_verbs(PyObject *module);
int add_views(PyObject *module);

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

/* Make the names of attributes that a file asks for; the last has no place. -1 with an exception. */
struct name {
    PyObject **place;
    const char *text;
};
static inline int intern(const struct name *names) {
    for (; names->place; names++)
        if (!(*names->place = PyUnicode_InternFromString(names->text)))
            return -1;
    return 0;
}

/* A new reference to None. */
static inline PyObject *none(void) { return Py_NewRef(Py_None); }

/* Whether Python can go on: it meets an ordinary exception once more; an interrupt, which came while an object's own code ran, stays set. */
static inline bool python_goes_on(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return false;
    PyErr_Clear();
    return true;
}

/* Whether a reference is missing or None. */
static inline bool is_none(const PyObject *object) { return !object || object == Py_None; }

#endif
