/* The lane of an open device: its driver's table of C entry points, and what has to hold for it to be taken.
 *
 * A lane is taken where the device's driver is the one that offered the table, the device is not being closed, no stream and no stack
 * of memory is in force for the thread, no page-locked memory is about, and nothing dropped needs more than the driver's stream-ordered
 * free. All of that is looked at in every call; what is not so is Python's to do.
 * Calls in the vendor's library go without the GIL, and are counted in the handle: a device that is closed waits for them.
 */
#include "native.h"

#include <structmember.h>

static PyTypeObject *lane_type;
static PyObject *blocks_get, *chosen_for_thread, *chosen_device, *chosen_stream, *find_device;
/* The device that was chosen in the last call, or None, and its lane; both NULL after `forget`. A thread asks for its device again when
 * `changes` is another than it has seen, or changes are under way: an exception that comes into one leaves it so. */
static PyObject *last_device, *last_lane;
static uint64_t changes = 1, under_way;
static int by_thread; /* whether choices are of a thread: not where a library tells its own threads apart, in one of the system's */
static _Thread_local uint64_t seen;
/* Whether any stream was ever made current in the process. */
static bool streams_entered;
static PyObject *name_lane, *name_choice, *name_popleft;

/* -- the vendor's calls; without the GIL ------------------------------------------------------------------------------------ */

int in_device(struct lane *lane, vendor_work *work, void *of, enum table_call *call) {
    const struct driver_table *table = lane->table;
    struct handle_state *handle = (struct handle_state *)lane->handle;
    uint64_t before = 0;
    *call = GET_CURRENT;
    handle->outside++;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = table->get_current(&before);
    bool elsewhere = before != table->current;
    if (!status && elsewhere) {
        *call = SET_CURRENT;
        status = table->set_current(table->current);
    }
    if (!status) {
        status = work(table, of, call);
        int left = elsewhere ? table->set_current(before) : 0;
        if (left && !status) {
            *call = SET_CURRENT;
            status = left;
        }
    }
    Py_END_ALLOW_THREADS
    handle->outside--;
    return status;
}

int free_one(const struct driver_table *table, void *of, enum table_call *call) {
    struct given_back *block = of;
    block->entered = true;
    *call = FREE;
    return table->free(block->address, table->stream);
}

int free_all(const struct driver_table *table, void *of, enum table_call *Py_UNUSED(call)) {
    struct frees *frees = of;
    frees->entered = true;
    for (Py_ssize_t at = 0; at < frees->count; at++) {
        int status = table->free(frees->each[at].address, table->stream);
        if (status && !frees->status)
            frees->status = status;
    }
    return 0;
}

/* -- whether it may be taken -------------------------------------------------------------------------------------------------- */

bool is_open(const struct lane *lane) {
    const struct handle_state *handle = (const struct handle_state *)lane->handle;
    return handle && handle->driver == lane->driver && handle->entry == lane->driver && handle->dead == Py_None &&
           lane->table->flags & TABLE_USABLE;
}

struct lane *lane_of_handle(PyObject *handle) {
    if (!handle || !PyObject_TypeCheck(handle, handle_type))
        return NULL;
    PyObject *lane = ((struct handle_state *)handle)->lane;
    return lane && Py_TYPE(lane) == lane_type && is_open((struct lane *)lane) ? (struct lane *)lane : NULL;
}

/* What Python finds among the blocks in force; None without any. */
static PyObject *in_blocks(PyObject *look) {
    PyObject *blocks = PyObject_CallNoArgs(blocks_get);
    if (!blocks || blocks == Py_None)
        return blocks;
    Py_DECREF(blocks);
    return PyObject_CallNoArgs(look);
}

/* Remember a device and its lane, references that it takes. What was remembered is let go of then, which may call anything: false where
 * that has remembered something else. */
static bool remember(PyObject *device, PyObject *lane) {
    PyObject *device_before = last_device, *lane_before = last_lane;
    last_device = device;
    last_lane = lane;
    Py_XDECREF(device_before);
    Py_XDECREF(lane_before);
    return last_device == device;
}

/* Let last_lane be that of the current device; false with an exception. */
static bool find_lane(void) {
    PyObject *device = in_blocks(chosen_device);
    if (device == Py_None) {
        PyObject *choice = PyObject_GetAttr(chosen_for_thread, name_choice);
        set_field(&device, choice ? PyTuple_GetItem(choice, 0) : NULL);
        Py_XDECREF(choice);
    }
    if (!device)
        return false;
    uint64_t before = changes;
    if (device == last_device)
        Py_DECREF(device);
    else {
        PyObject *opened = PyObject_CallNoArgs(find_device), *lane = opened ? PyObject_GetAttr(opened, name_lane) : NULL;
        Py_XDECREF(opened);
        if (!lane) {
            Py_DECREF(device);
            return false;
        }
        before += ++changes == before + 1; /* of what has changed meanwhile the next call takes note */
        if (!remember(device, lane))
            return find_lane();
    }
    seen = before;
    return true;
}

struct lane *current_lane(void) {
    if (!find_device || ((under_way || !by_thread || seen != changes) && !find_lane()) || is_none(last_lane) ||
        Py_TYPE(last_lane) != lane_type)
        return NULL;
    struct lane *lane = (struct lane *)last_lane;
    return is_open(lane) ? (struct lane *)Py_NewRef((PyObject *)lane) : NULL;
}

int on_legacy(PyObject *stream) {
    if (stream && stream != zero && stream != Py_None)
        return 0;
    if (!streams_entered)
        return 1;
    PyObject *current = in_blocks(chosen_stream);
    if (!current)
        return -1;
    Py_DECREF(current);
    return current == Py_None;
}

int takes_memory(struct lane *lane) {
    const struct handle_state *handle = (const struct handle_state *)lane->handle;
    PyObject *heap = handle->heap;
    if (handle->scopes || is_none(heap))
        return 0;
    if (heap != lane->heap) {
        Py_INCREF(heap);
        PyObject *tables = PyObject_CallFunctionObjArgs(lane->plain, heap, NULL);
        if (!tables) {
            Py_DECREF(heap);
            return -1;
        }
        PyObject **fields[] = {(PyObject **)&lane->live, &lane->lent, &lane->ready, &lane->home};
        bool plain = PyTuple_Check(tables) && PyTuple_Size(tables) && Py_TYPE(PyTuple_GetItem(tables, 0)) == blocks_type;
        for (Py_ssize_t at = 0, count = plain ? PyTuple_Size(tables) : 0; at < 4; at++)
            set_field(fields[at], at < count ? PyTuple_GetItem(tables, at) : NULL);
        set_field(&lane->heap, heap);
        Py_DECREF(tables);
        Py_DECREF(heap);
    }
    return lane->live != NULL;
}

bool is_unlocked(const struct lane *lane) {
    PyObject *segments = lane->locks->segments;
    return segments && PyList_Check(segments) && !PyList_Size(segments);
}

/* -- pools: no Python runs --------------------------------------------------------------------------------------------------- */

PyObject *pool_blocks(const struct lane *lane, size_t nbytes) {
    PyObject *known = PyDict_GetItemWithError(lane->ready, lane->home), *key = known ? PyLong_FromSize_t(nbytes) : NULL;
    PyObject *blocks = key ? PyDict_GetItemWithError(known, key) : NULL;
    Py_XDECREF(key);
    if (!blocks)
        PyErr_Clear();
    return blocks;
}

uint64_t from_pool(const struct lane *lane, size_t nbytes) {
    PyObject *blocks = pool_blocks(lane, nbytes);
    Py_ssize_t count = blocks ? PyList_Size(blocks) : 0;
    uint64_t address = count > 0 ? PyLong_AsUnsignedLongLong(PyList_GetItem(blocks, count - 1)) : 0;
    if (address == UINT64_MAX || (address && PyList_SetSlice(blocks, count - 1, count, NULL) < 0)) {
        PyErr_Clear();
        address = 0;
    }
    return address;
}

bool to_pool(PyObject *blocks, uint64_t address) {
    PyObject *ptr = blocks ? PyLong_FromUnsignedLongLong(address) : NULL;
    bool entered = ptr && PyList_Append(blocks, ptr) == 0;
    Py_XDECREF(ptr);
    if (!entered)
        PyErr_Clear();
    return entered;
}

/* -- dropped memory ------------------------------------------------------------------------------------------------------------ */

static bool was_lent(const struct lane *lane, uint64_t address) {
    if (!PySet_Size(lane->lent))
        return false;
    PyObject *ptr = PyLong_FromUnsignedLongLong(address);
    bool lent = !ptr || PySet_Contains(lane->lent, ptr) != 0;
    Py_XDECREF(ptr);
    PyErr_Clear();
    return lent;
}

bool is_simple(const struct lane *lane, const struct allocation_state *block) {
    return (PyObject *)Py_TYPE((PyObject *)block) == lane->owned && !block->freed && block->ptr && block->streams == Py_None &&
           block->home == lane->legacy && lane->live && block->heap == lane->heap && block->device_handle == lane->handle &&
           !was_lent(lane, block->ptr);
}

uint64_t strike_out(struct lane *lane, struct allocation_state *block) {
    uint64_t address = block->ptr;
    block->freed = 1;
    block->ptr = 0;
    if (!take_block(lane->live, block->place, address))
        return 0;
    /* The driver keeps what its own methods gave. It is to forget it, as it does not see it freed; a pool's chunk is not. */
    PyObject *ptr = !lane->ready && PyDict_Size(lane->blocks) ? PyLong_FromUnsignedLongLong(address) : NULL;
    if (!ptr || PyDict_DelItem(lane->blocks, ptr) < 0)
        PyErr_Clear(); /* without memory for the number it is freed all the same */
    Py_XDECREF(ptr);
    return address;
}

void enter_again(struct lane *lane, struct allocation_state *block, uint64_t address, struct blocks *live) {
    struct handle_state *handle = (struct handle_state *)lane->handle;
    if (put_block(live, address, (uint64_t)block->nbytes, &block->place)) /* without memory for that it is lost: better than in use twice */
        block->ptr = address;
    handle->dropped_bytes += block->nbytes;
    Py_XDECREF(PyObject_CallFunctionObjArgs(handle->drop, (PyObject *)block, NULL));
    PyErr_Clear();
}

/* Take all that was dropped: 1, 0 where one of them is not simple and nothing was done, -1 with an exception. */
static int take_dropped(struct lane *lane, Py_ssize_t count, struct frees *frees) {
    struct handle_state *handle = (struct handle_state *)lane->handle;
    if (count > MOST_FREES)
        return 0;
    if (lane->deferral->depth)
        return 0;
    if (lane->simple != Py_True && PyDict_Size(lane->own_streams)) { /* one may be capturing a graph; Python runs here */
        PyObject *capturing = PyObject_CallNoArgs(lane->capturing);
        Py_XDECREF(capturing);
        if (capturing != Py_False)
            return capturing ? 0 : -1;
    }
    if (!is_open(lane))
        return 0;
    PyObject *free_ones = NULL; /* of the pool's, of a size */
    Py_ssize_t size = -1;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *item = PySequence_GetItem(handle->dropped, at);
        if (!item) { /* another thread, or a signal's handler, was here */
            PyErr_Clear();
            return 0;
        }
        const struct allocation_state *block = (const struct allocation_state *)item;
        bool simple = is_simple(lane, block);
        if (simple && lane->ready && block->nbytes != size)
            free_ones = pool_blocks(lane, (size_t)(size = block->nbytes));
        simple &= !lane->ready || free_ones;
        Py_DECREF(item);
        if (!simple)
            return 0;
    }
    PyObject *pooled[MOST_FREES]; /* dropped at the end: that may call weak references, and so anything */
    Py_ssize_t back = 0;
    while (count-- > 0) { /* no Python runs here: each is still what it was */
        PyObject *item = PyObject_CallMethodObjArgs(handle->dropped, name_popleft, NULL);
        if (!item)
            return -1;
        struct allocation_state *block = (struct allocation_state *)item;
        handle->dropped_bytes -= block->nbytes;
        uint64_t address = strike_out(lane, block);
        if (address && !lane->ready) {
            frees->each[frees->count].block = block;
            frees->each[frees->count++].address = address;
            continue;
        }
        if (address && block->nbytes != size)
            free_ones = pool_blocks(lane, (size_t)(size = block->nbytes));
        if (address && !to_pool(free_ones, address)) {
            block->freed = 0;
            enter_again(lane, block, address, lane->live);
        }
        pooled[back++] = item;
    }
    if (frees->count)
        set_field((PyObject **)&frees->live, (PyObject *)lane->live);
    while (back > 0)
        Py_DECREF(pooled[--back]);
    return 1;
}

int settle(struct lane *lane, struct frees *frees) {
    PyObject *kind, *value, *trace;
    if (!frees->count)
        return 0;
    PyErr_Fetch(&kind, &value, &trace);
    for (Py_ssize_t at = 0; at < frees->count; at++) {
        struct allocation_state *block = frees->each[at].block;
        if (!frees->entered) {
            block->freed = 0;
            enter_again(lane, block, frees->each[at].address, frees->live);
        }
        Py_DECREF((PyObject *)block);
    }
    int status = frees->status, done = 0;
    frees->count = frees->status = 0;
    Py_CLEAR(frees->live);
    PyErr_Restore(kind, value, trace);
    if (status && !kind) {
        PyObject *told = PyObject_CallFunction(lane->told, "ii", (int)FREE, status);
        done = told ? 0 : -1;
        Py_XDECREF(told);
    }
    return done;
}

int free_now(struct lane *lane, struct frees *frees) {
    enum table_call call;
    if (!frees->count)
        return 0;
    if (is_open(lane))
        in_device(lane, free_all, frees, &call);
    return settle(lane, frees);
}

int safe_point(struct lane *lane, struct frees *frees) {
    struct handle_state *handle = (struct handle_state *)lane->handle;
    frees->live = NULL;
    frees->count = frees->status = frees->entered = 0;
    int passed = PyDict_Size(lane->completing) ? let_go_of_passed(lane) : 1;
    if (passed <= 0)
        return passed;
    Py_ssize_t dropped = PyObject_Size(handle->dropped);
    if (dropped <= 0)
        return dropped < 0 ? -1 : 1;
    const struct queue_state *queue = lane->queue;
    Py_ssize_t pending = queue->pending ? PyObject_Size(queue->pending) : -1;
    Py_ssize_t releases = pending < 0 || !queue->foreign_releases ? -1 : PyObject_Size(queue->foreign_releases);
    if (releases)
        return PyErr_Occurred() ? -1 : 0;
    if (pending + dropped <= lane->max_count && queue->pending_bytes + handle->dropped_bytes <= lane->max_bytes)
        return 1;
    return pending ? 0 : take_dropped(lane, dropped, frees);
}

void refuse(struct lane *lane, enum table_call call, int status) {
    PyObject *never = PyObject_CallFunction(lane->refused, "ii", (int)call, status);
    Py_XDECREF(never);
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_SystemError, "the driver did not raise for call %d, status %d", (int)call, status);
}

/* -- the type ------------------------------------------------------------------------------------------------------------------- */

#define TABLES(X)                                                                                                                 \
    X(blocks) X(completing) X(own_streams) X(held) X(spare_streams) X(spare_events) X(stream_handles) X(event_handles)
#define GIVEN(X)                                                                                                                  \
    TABLES(X) X(opened) X(handle) X(driver) X(keep) X(refused) X(queue) X(locks) X(legacy) X(deferral) X(owned) X(plain)         \
    X(recover) X(once_more) X(told) X(capturing) X(services) X(memory) X(given_up) X(simple) X(passed) X(recorded)
#define EACH(X) GIVEN(X) X(heap) X(live) X(lent) X(ready) X(home)
COLLECTED(lane, struct lane, EACH)

/* Lane(address of the table, bytes from which copies are Python's, count and bytes of the queue, objects by name) */
static PyObject *lane_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    unsigned long long table;
    Py_ssize_t small, max_count, max_bytes;
    if (!PyArg_ParseTuple(arguments, "Knnn:Lane", &table, &small, &max_count, &max_bytes))
        return NULL;
    struct lane *lane = (struct lane *)PyType_GenericAlloc(type, 0);
    if (!lane)
        return NULL;
    bool right = named;
    lane->table = (struct driver_table *)(uintptr_t)table;
    lane->small = small;
    lane->max_count = max_count;
    lane->max_bytes = max_bytes;
#define TAKE(field) right = right && (lane->field = (void *)Py_XNewRef(PyDict_GetItemString(named, #field)));
#define IS_TABLE(field) right = right && PyDict_Check(lane->field);
    GIVEN(TAKE)
    TABLES(IS_TABLE)
    if (!right || !PyObject_TypeCheck(lane->handle, handle_type) || !PyObject_TypeCheck((PyObject *)lane->queue, queue_type) ||
        !PyObject_TypeCheck((PyObject *)lane->locks, locks_type) || !PyObject_TypeCheck((PyObject *)lane->deferral, deferral_type) ||
        !PyBool_Check(lane->simple) || Py_TYPE(lane->completing) != queues_type || !PyList_CheckExact(lane->passed) || !PyType_Check(lane->owned) ||
        !PyType_IsSubtype((PyTypeObject *)lane->owned, allocation_type)) {
        PyErr_SetString(PyExc_TypeError, "a lane takes every object by its name: tables, a device handle, a class of allocations");
        Py_CLEAR(lane);
    }
    return (PyObject *)lane;
}

/* take(reset): ((copies, bytes, timed copies, their seconds), the same) of uploads and of downloads */
static PyObject *lane_take(PyObject *self, PyObject *reset) {
    struct lane *lane = (struct lane *)self;
    int zeroed = PyObject_IsTrue(reset);
    if (zeroed < 0)
        return NULL;
    struct counter up = lane->up, down = lane->down;
    if (zeroed) /* before objects are made: a finalizer may copy then */
        lane->up = lane->down = (struct counter){0};
    return Py_BuildValue("((LLLd)(LLLd))", up.copies, up.bytes, up.timed, up.seconds, down.copies, down.bytes, down.timed, down.seconds);
}

static PyMethodDef lane_methods[] = {
    {"take", lane_take, METH_O, "What was copied: (copies, bytes, timed copies, seconds) of uploads and downloads."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_new, (void *)lane_new},         {Py_tp_dealloc, (void *)lane_dealloc}, {Py_tp_traverse, (void *)lane_traverse},
    {Py_tp_clear, (void *)lane_clear}, {Py_tp_methods, lane_methods},         {0, NULL},
};
static PyType_Spec lane_spec = {"devmem._native.core.Lane", sizeof(struct lane), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                lane_slots};

/* connect(get of the blocks in force, what was chosen for this thread, whether that is a thread of the system's, what looks for the
 * device, and for a stream, of the blocks, what finds the open device) */
static PyObject *connect(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *blocks, *thread, *device, *stream, *find;
    if (!PyArg_ParseTuple(arguments, "OOpOOO:connect", &blocks, &thread, &by_thread, &device, &stream, &find))
        return NULL;
    set_field(&blocks_get, blocks);
    set_field(&chosen_for_thread, thread);
    set_field(&chosen_device, device);
    set_field(&chosen_stream, stream);
    set_field(&find_device, find);
    return none();
}

/* forget(): the current device may be another one, or opened anew */
static PyObject *forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    changes++;
    remember(NULL, NULL);
    return none();
}

/* choosing(begins): a thread's choice of a device begins to change, or has changed */
static PyObject *choosing(PyObject *Py_UNUSED(module), PyObject *begins) {
    changes++;
    if (begins == Py_True)
        under_way++;
    else if (under_way)
        under_way--;
    return none();
}

/* stream_entered(): a stream is about to be made current */
static PyObject *stream_entered(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    streams_entered = true;
    return none();
}

static PyMethodDef functions[] = {
    {"stream_entered", stream_entered, METH_NOARGS, "Say that a stream is about to be made current."},
    {"connect", connect, METH_VARARGS, "Say where the current device and streams are to be found."},
    {"choosing", choosing, METH_O, "Say that the choice of a device begins to change, or has changed."},
    {"forget", forget, METH_NOARGS, "Forget which device was current."},
    {NULL, NULL, 0, NULL},
};

int add_lane(PyObject *module) {
    const struct name names[] = {
        {&name_lane, "lane"}, {&name_choice, "choice"}, {&name_popleft, "popleft"}, {NULL, NULL},
    };
    if (intern(names) < 0)
        return -1;
    lane_type = (PyTypeObject *)PyType_FromSpec(&lane_spec);
    if (!lane_type || PyModule_AddObjectRef(module, "Lane", (PyObject *)lane_type) < 0 ||
        PyModule_AddIntConstant(module, "TABLE_VERSION", TABLE_VERSION) < 0 ||
        PyModule_AddIntConstant(module, "TABLE_BYTES", sizeof(struct driver_table)) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
