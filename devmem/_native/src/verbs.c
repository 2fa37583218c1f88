/* to_device, device_array, copies and free, where nothing has to be decided: contiguous and small, on the legacy default stream, from
 * and to memory of the driver itself; and copies into and out of arrays on a stream that is named, which keep the host side.
 *
 * Objects are made first, because the collector may run then; what holds is looked at after that; then comes the vendor's library;
 * then the books, in which no Python runs.
 */
#include "native.h"

#include <string.h>
#include <time.h>

/* Small copies are timed when their number has none of these bits, as in devmem._core.telemetry.copy_statistics. */
#define SAMPLED 0xFF0

PyObject *device_array_class;
static PyObject *scalars, *array_class, *pinned_class, *empty, *name_dtype, *name_shape, *name_discard;

/* What was asked of the vendor's library. */
struct work {
    uint64_t address; /* on the device */
    void *host;       /* NULL: nothing is copied */
    size_t nbytes;
    uint64_t pooled; /* a block of the pool's, or 0: the driver gives one */
    bool allocate, up, timed, recorded;
    uint64_t on, event; /* a stream that the copy is enqueued on, and the event that is recorded behind it; or 0, and it is waited for */
    double seconds;
    enum table_call failed;
    struct frees *frees;
};

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static int copy_bytes(const struct driver_table *table, bool up, uint64_t device, uint64_t host, size_t nbytes) {
    int (*call)(uint64_t, uint64_t, size_t) = up ? table->copy_up : table->copy_down;
    uint64_t to = up ? device : host, from = up ? host : device;
    if (table->flags & TABLE_COPIES_TAKE_STREAM)
        return ((int (*)(uint64_t, uint64_t, size_t, int, uint64_t))(void (*)(void))call)(to, from, nbytes, up ? KIND_UP : KIND_DOWN, table->stream);
    return call(to, from, nbytes);
}

/* Enqueue a copy, and record the event behind it. */
static int enqueue(const struct driver_table *table, struct work *work, enum table_call *call) {
    int (*function)(uint64_t, uint64_t, size_t, uint64_t) = work->up ? table->enqueue_up : table->enqueue_down;
    uint64_t host = (uintptr_t)work->host, to = work->up ? work->address : host, from = work->up ? host : work->address;
    *call = work->up ? ENQUEUE_UP : ENQUEUE_DOWN;
    int status = table->flags & TABLE_COPIES_TAKE_STREAM
                     ? ((int (*)(uint64_t, uint64_t, size_t, int, uint64_t))(void (*)(void))function)(
                           to, from, work->nbytes, work->up ? KIND_UP : KIND_DOWN, work->on)
                     : function(to, from, work->nbytes, work->on);
    if (!status) {
        *call = EVENT_RECORD;
        status = table->event_record(work->event, work->on);
        work->recorded = !status;
    }
    return status;
}

/* Free what was dropped, allocate and copy. A new block stays. */
static int do_work(const struct driver_table *table, void *of, enum table_call *call) {
    struct work *work = of;
    int status = free_all(table, work->frees, call);
    if (work->allocate) {
        *call = ALLOCATE;
        status = table->allocate(&work->address, work->nbytes, table->pool, table->stream);
    }
    if (!status && work->host) {
        double began = work->timed ? now() : 0.0;
        *call = work->up ? COPY_UP : COPY_DOWN;
        status = work->event ? enqueue(table, work, call)
                             : copy_bytes(table, work->up, work->address, (uintptr_t)work->host, work->nbytes);
        if (!status && work->up && !work->event && table->flags & TABLE_UPLOADS_WAIT) {
            *call = SYNCHRONIZE;
            status = table->synchronize(table->stream);
        }
        if (work->timed)
            work->seconds = now() - began;
    }
    return status;
}

static int perform(struct lane *lane, struct work *work, struct frees *frees) {
    work->frees = frees;
    return in_device(lane, do_work, work, &work->failed);
}

static void count(struct counter *counter, const struct work *work) {
    counter->copies++;
    counter->bytes += (long long)work->nbytes;
    if (work->timed) {
        counter->timed++;
        counter->seconds += work->seconds;
    }
}

/* The contiguous buffer of an ndarray with elements, fewer bytes than are Python's to copy, and no Python objects; else false. The
 * format, which NumPy makes anew each time, is asked for only where the dtype is none of NumPy's own numbers. */
static bool small_buffer(const struct lane *lane, PyObject *host, PyObject *dtype, int flags, Py_buffer *view) {
    if (PyObject_GetBuffer(host, view, PyBUF_STRIDES | (known_itemsize(dtype) ? 0 : PyBUF_FORMAT) | flags) < 0) {
        PyErr_Clear(); /* datetimes have none; read-only memory has no writable one */
        return false;
    }
    if (view->len > 0 && view->len < lane->small && view->ndim <= MOST_AXES && PyBuffer_IsContiguous(view, 'C') &&
        (!view->format || !strchr(view->format, 'O')))
        return true;
    PyBuffer_Release(view);
    return false;
}

/* Whether an object is an ndarray of NumPy's own class, or of devmem's: others may say anything of themselves. */
static bool is_ndarray(PyObject *object) {
    const PyObject *class = (PyObject *)Py_TYPE(object);
    return class == array_class || class == pinned_class;
}

/* Whether a tuple is the shape of a buffer. */
static bool has_shape(PyObject *shape, const Py_buffer *view) {
    Py_ssize_t lengths[MOST_AXES];
    bool same = integers(shape, lengths) == view->ndim;
    for (int axis = 0; same && axis < view->ndim; axis++)
        same = lengths[axis] == view->shape[axis];
    return same;
}

/* The shape of a buffer; arrays of one shape, one after the other, share the tuple. */
static PyObject *shape_of(const Py_buffer *view) {
    static PyObject *last;
    if (last && has_shape(last, view)) {
        Py_INCREF(last);
        return last;
    }
    PyObject *shape = tuple_of(view->shape, view->ndim);
    if (shape)
        set_field(&last, shape);
    return shape;
}

/* What has to hold for memory to be taken, which a pool gives at once: 1, 0, or -1 with an exception. */
static int may_allocate(struct lane *lane, struct work *work, struct frees *frees) {
    int found = takes_memory(lane);
    if (found > 0)
        found = is_open(lane) ? safe_point(lane, frees) : 0;
    if (found > 0 && (!is_open(lane) || !lane->live || (lane->ready && !(work->pooled = from_pool(lane, work->nbytes)))))
        found = free_now(lane, frees);
    return found;
}

/* The array and its allocation, still without memory. */
static struct array_state *blank(struct lane *lane, PyObject *shape, PyObject *dtype, PyObject *strides) {
    struct allocation_state *block = (struct allocation_state *)PyType_GenericAlloc((PyTypeObject *)lane->owned, 0);
    PyObject *array = block ? make_array((PyTypeObject *)device_array_class, 0, shape, dtype, strides ? strides : Py_None, Py_None,
                                         (PyObject *)block, lane->opened) : NULL;
    Py_XDECREF((PyObject *)block);
    if (!array)
        return NULL;
    set_field(&block->queue, (PyObject *)lane->queue);
    set_field(&block->device_handle, lane->handle);
    set_field(&block->home, lane->legacy);
    set_field(&block->streams, Py_None);
    block->unnamed = 1;
    return (struct array_state *)array;
}

/* Enter a block in the books; it is given back if that fails. From the end on its finalizer gives it back. */
static int enter_block(struct lane *lane, struct array_state *array, PyObject *heap, struct blocks *live, struct work *work) {
    struct allocation_state *block = (struct allocation_state *)array->allocation;
    if (!put_block(live, work->address, work->nbytes, &block->place)) {
        enum table_call call;
        struct given_back back = {.address = work->address};
        if (work->pooled)
            to_pool(pool_blocks(lane, work->nbytes), work->pooled);
        else
            in_device(lane, free_one, &back, &call);
        PyErr_NoMemory();
        return -1;
    }
    set_field(&block->heap, heap);
    block->nbytes = (Py_ssize_t)work->nbytes;
    array->ptr = block->ptr = work->address;
    return 0;
}

/* Give the block of an array back on the way out of a failure, whose exception is set. */
static void discard(struct array_state *array) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *done = PyObject_CallMethodObjArgs(array->allocation, name_discard, NULL);
    if (!done)
        PyErr_WriteUnraisable(array->allocation);
    Py_XDECREF(done);
    PyErr_Restore(kind, value, trace);
}

/* Memory for a blank array, and its first elements; `host`, whose buffer is `work->host`, may be NULL. */
static PyObject *fill_in(struct lane *lane, struct array_state *array, struct work *work, PyObject *host, struct frees *frees) {
    PyObject *heap = Py_NewRef(lane->heap), *live = Py_NewRef((PyObject *)lane->live);
    int status = 0, settled = 0;
    bool made = work->pooled, copied = false;
    work->address = work->pooled;
    work->allocate = !made;
    if (!made) {
        status = perform(lane, work, frees);
        made = !status || work->failed == COPY_UP || work->failed == SYNCHRONIZE || (work->failed == SET_CURRENT && work->address);
        settled = settle(lane, frees); /* a warning may have become an error */
        copied = made;
        if (!made && !settled && work->failed == ALLOCATE) {
            /* What the driver's method would have raised is answered as it is there: room is made, and it is asked once more. */
            PyObject *address = PyObject_CallFunction(lane->recover, "iin", (int)work->failed, status, (Py_ssize_t)work->nbytes);
            made = address && (work->address = PyLong_AsUnsignedLongLong(address)) && !PyErr_Occurred();
            Py_XDECREF(address);
        } else if (!made && !settled)
            refuse(lane, work->failed, status);
    }
    int done = made ? enter_block(lane, array, heap, (struct blocks *)live, work) : -1;
    if (!done && !copied) {
        work->allocate = false;
        status = work->host ? perform(lane, work, frees) : 0;
    }
    if (!done && settled < 0) {
        discard(array);
        done = -1;
    } else if (!done && status) {
        PyObject *answer = PyObject_CallFunction(lane->once_more, "iiOOO", (int)work->failed, status, array, host ? host : Py_None, Py_None);
        if (!answer) {
            discard(array);
            done = -1;
        }
        Py_XDECREF(answer);
    } else if (!done && work->host)
        count(&lane->up, work);
    Py_DECREF(heap);
    Py_DECREF(live);
    if (done < 0) {
        Py_DECREF((PyObject *)array);
        return NULL;
    }
    return (PyObject *)array;
}

static PyObject *new_array(PyObject *shape, PyObject *dtype, PyObject *strides, Py_ssize_t nbytes, PyObject *stream) {
    struct lane *lane = current_lane();
    if (!lane)
        return PyErr_Occurred() ? NULL : none();
    PyObject *result = NULL;
    struct frees frees;
    int go = on_legacy(stream);
    if (go > 0) {
        struct array_state *array = blank(lane, shape, dtype, strides);
        struct work work = {.nbytes = (size_t)nbytes};
        go = array ? may_allocate(lane, &work, &frees) : -1;
        if (go > 0)
            result = fill_in(lane, array, &work, NULL, &frees);
        else
            Py_XDECREF((PyObject *)array);
    }
    Py_DECREF((PyObject *)lane);
    return go ? result : none();
}

/* allocate(shape, dtype, strides or None, bytes, stream): a new array, or None. */
static PyObject *allocate(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    Py_ssize_t nbytes = given == 5 ? PyLong_AsSsize_t(arguments[3]) : 0;
    if (nbytes <= 0)
        return PyErr_Occurred() ? NULL : none();
    return new_array(arguments[0], arguments[1], arguments[2], nbytes, arguments[4]);
}

/* make(shape, dtype, strides, order, stream): a new array, or None. The shape is an int or a tuple of ints, the dtype one that is known. */
static PyObject *make(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    if (given != 5 || arguments[2] != Py_None || !PyUnicode_CheckExact(arguments[3]) ||
        PyUnicode_CompareWithASCIIString(arguments[3], "C") || !scalars)
        return none();
    /* A class, a text, or a dtype that is that very one: equal ones may differ in what NumPy does not compare. */
    PyObject *known = PyDict_GetItemWithError(scalars, arguments[1]); /* (dtype, bytes of an element) */
    PyObject *dtype = known ? PyTuple_GetItem(known, 0) : NULL;
    bool plain = dtype && (dtype == arguments[1] || PyType_Check(arguments[1]) || PyUnicode_CheckExact(arguments[1]));
    bool many = PyTuple_CheckExact(arguments[0]);
    Py_ssize_t lengths[MOST_AXES], axes = many ? PyTuple_Size(arguments[0]) : 1;
    Py_ssize_t nbytes = plain && axes <= MOST_AXES ? PyLong_AsSsize_t(PyTuple_GetItem(known, 1)) : 0;
    for (Py_ssize_t axis = 0; axis < axes && nbytes > 0; axis++) {
        PyObject *length = many ? PyTuple_GetItem(arguments[0], axis) : arguments[0];
        lengths[axis] = PyLong_CheckExact(length) ? PyLong_AsSsize_t(length) : -1;
        if (lengths[axis] <= 0 || __builtin_mul_overflow(nbytes, lengths[axis], &nbytes))
            nbytes = 0;
    }
    if (nbytes <= 0)
        return python_goes_on() ? none() : NULL; /* Python says what is wrong */
    const Py_buffer described = {.ndim = (int)axes, .shape = lengths};
    PyObject *shape = shape_of(&described);
    PyObject *made = shape ? new_array(shape, dtype, Py_None, nbytes, arguments[4]) : NULL;
    Py_XDECREF(shape);
    return made;
}

/* The lane of an array which is contiguous and in a block of the core's; where no stream is named, it is bound to none, and the block's
 * home is the legacy stream. A new reference. */
static struct lane *lane_of(PyObject *object, bool named) {
    if (!PyObject_TypeCheck(object, array_type))
        return NULL;
    struct array_state *array = (struct array_state *)object;
    if (!array->allocation || !PyObject_TypeCheck(array->allocation, allocation_type) || (!named && array->stream != Py_None) ||
        array->strides != Py_None || !array->ptr)
        return NULL;
    struct allocation_state *block = (struct allocation_state *)array->allocation;
    struct lane *lane = lane_of_handle(block->device_handle);
    if (!lane || block->freed || (PyObject *)Py_TYPE((PyObject *)block) != lane->owned || (!named && block->home != lane->legacy))
        return NULL;
    Py_INCREF((PyObject *)lane);
    return lane;
}

/* Whether an argument may be a stream on which a copy is enqueued, and not waited for. */
static bool is_named(PyObject *stream) { return PyObject_TypeCheck(stream, stream_type); }

/* Whether a block was used on other streams than its home. */
static bool others(const struct allocation_state *block) { return block->streams && PyDict_Check(block->streams); }

/* What a copy on a named stream keeps: (an event that is to be recorded behind it, (the host side,)). NULL, with or without an exception,
 * where the block was not used on the stream before, or there is no event at hand: Python sees to that. */
static PyObject *kept_behind(struct lane *lane, const struct allocation_state *block, PyObject *stream, PyObject *host, struct work *work) {
    Py_ssize_t count = PyList_Size(lane->passed);
    if (count <= 0)
        return NULL;
    PyObject *number = Py_NewRef(PyList_GetItem(lane->passed, count - 1)), *event = NULL;
    if (PyList_SetSlice(lane->passed, count - 1, count, NULL) == 0) /* no Python has run: it is ours alone */
        event = PyObject_CallFunctionObjArgs(lane->recorded, number, NULL); /* from now on it goes back by itself */
    PyObject *payload = event ? PyTuple_Pack(1, host) : NULL, *entry = payload ? PyTuple_Pack(2, event, payload) : NULL;
    work->event = event ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_DECREF(number);
    Py_XDECREF(event);
    Py_XDECREF(payload);
    bool used = block->home == stream || (others(block) && PyDict_Contains(block->streams, stream) == 1);
    if (entry && (!used || !is_own_stream(lane, stream, &work->on)))
        Py_CLEAR(entry);
    return entry;
}

/* Note a copy that was enqueued, whatever came of the call; false with an exception. */
static bool note(struct lane *lane, const struct allocation_state *block, PyObject *stream, PyObject *entry) {
    if (!enter_last(lane->completing, stream, entry)) {
        Py_INCREF(entry); /* for good: nothing would tell when it has passed */
        return false;
    }
    /* Once more: another thread may have taken the stream for one that has passed. */
    return block->home == stream || !others(block) || PyDict_SetItem(block->streams, stream, Py_None) == 0;
}

/* Copy between an array and an ndarray of its shape and dtype, on a stream if one is named: 1, 0, or -1 with an exception. */
static int copy(struct lane *lane, PyObject *object, PyObject *host, bool up, PyObject *stream) {
    struct array_state *array = (struct array_state *)object;
    struct allocation_state *block = (struct allocation_state *)array->allocation;
    PyObject *entry = NULL;
    struct frees frees;
    Py_buffer view;
    PyObject *dtype = PyObject_GetAttr(host, name_dtype);
    if (!dtype)
        return -1;
    Py_DECREF(dtype);
    if (dtype != array->dtype || !is_unlocked(lane) || (stream && (!lane->table->enqueue_up || stream == lane->legacy)) ||
        !small_buffer(lane, host, dtype, up ? 0 : PyBUF_WRITABLE, &view))
        return 0;
    struct counter *counter = up ? &lane->up : &lane->down;
    struct work work = {.address = array->ptr, .host = view.buf, .nbytes = (size_t)view.len, .up = up,
                        .timed = !(counter->copies & SAMPLED)};
    int status = 0, go = has_shape(array->shape, &view) && is_open(lane) ? safe_point(lane, &frees) : 0;
    if (go > 0 && stream)
        entry = kept_behind(lane, block, stream, host, &work);
    if (go > 0 && (!is_open(lane) || block->freed || (stream && !(entry && is_unlocked(lane)))))
        go = free_now(lane, &frees) < 0 || PyErr_Occurred() ? -1 : 0;
    else if (go > 0) {
        status = perform(lane, &work, &frees);
        /* Memory on pages that were locked meanwhile is not read or written when the call returns. */
        bool lost = work.recorded && (!note(lane, block, stream, entry) || (!is_unlocked(lane) && !wait_for(stream)));
        go = settle(lane, &frees) < 0 || lost ? -1 : 1;
        if (!status)
            count(counter, &work);
    }
    PyBuffer_Release(&view);
    bool asked = go > 0 && status;
    if (asked) {
        PyObject *answer = PyObject_CallFunction(lane->once_more, "iiOOO", (int)work.failed, status, object, host, stream ? stream : Py_None);
        Py_XDECREF(answer);
        go = answer ? 1 : -1;
    }
    if (entry && status && work.failed == EVENT_RECORD && !(asked && PyErr_ExceptionMatches(PyExc_Exception)))
        Py_INCREF(entry); /* it was enqueued, and neither an event nor a wait of Python's tells when it has passed */
    Py_XDECREF(entry);
    return go;
}

/* download(array, ndarray or None, stream, pinned): the ndarray, a new one for None; or None. */
static PyObject *download(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    if (given != 4 || arguments[3] != Py_False || (arguments[1] != Py_None && !is_ndarray(arguments[1])))
        return none();
    PyObject *host = NULL, *stream = is_named(arguments[2]) ? arguments[2] : NULL;
    struct lane *lane = lane_of(arguments[0], stream);
    if (!lane)
        return none();
    int go = stream ? 1 : on_legacy(arguments[2]);
    if (go > 0) {
        struct array_state *array = (struct array_state *)arguments[0];
        host = arguments[1] == Py_None ? PyObject_CallFunctionObjArgs(empty, array->shape, array->dtype, NULL) : arguments[1];
        if (arguments[1] != Py_None)
            Py_INCREF(host);
        go = host ? copy(lane, arguments[0], host, false, stream) : -1;
    }
    Py_DECREF((PyObject *)lane);
    if (go > 0)
        return host;
    Py_XDECREF(host);
    return go < 0 ? NULL : none();
}

/* upload_into(array, ndarray, stream): True, or None. */
static PyObject *upload_into(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    if (given != 3 || !is_ndarray(arguments[1]))
        return none();
    PyObject *stream = is_named(arguments[2]) ? arguments[2] : NULL;
    struct lane *lane = lane_of(arguments[0], stream);
    if (!lane)
        return none();
    int go = stream ? 1 : on_legacy(arguments[2]);
    if (go > 0)
        go = copy(lane, arguments[0], arguments[1], true, stream);
    Py_DECREF((PyObject *)lane);
    return go < 0 ? NULL : go ? PyBool_FromLong(1) : none();
}

/* upload(ndarray, stream, copy, to, device): the array `to`, a new one for None; or None. */
static PyObject *upload(PyObject *module, PyObject *const *arguments, Py_ssize_t given) {
    if (given != 5 || arguments[2] != Py_True || arguments[4] != Py_None || !is_ndarray(arguments[0]))
        return none();
    if (arguments[3] != Py_None) {
        PyObject *const into[] = {arguments[3], arguments[0], arguments[1]};
        PyObject *done = upload_into(module, into, 3);
        if (done == Py_True)
            set_field(&done, arguments[3]);
        return done;
    }
    PyObject *host = arguments[0], *shape = NULL, *dtype = NULL, *result = NULL;
    struct lane *lane = current_lane();
    if (!lane)
        return PyErr_Occurred() ? NULL : none();
    struct array_state *array = NULL;
    struct frees frees;
    Py_buffer view;
    int go = on_legacy(arguments[1]);
    if (go > 0)
        go = is_unlocked(lane);
    if (go > 0 && !(dtype = PyObject_GetAttr(host, name_dtype)))
        go = -1;
    if (go > 0 && (go = small_buffer(lane, host, dtype, 0, &view))) {
        shape = shape_of(&view);
        array = shape ? blank(lane, shape, dtype, NULL) : NULL;
        struct work work = {.host = view.buf, .nbytes = (size_t)view.len, .up = true, .timed = !(lane->up.copies & SAMPLED)};
        go = array ? may_allocate(lane, &work, &frees) : -1;
        if (go > 0) {
            result = fill_in(lane, array, &work, host, &frees);
            array = NULL;
        }
        PyBuffer_Release(&view);
        Py_XDECREF(shape);
        Py_XDECREF((PyObject *)array);
    }
    Py_XDECREF(dtype);
    Py_DECREF((PyObject *)lane);
    return go ? result : none();
}

/* beside(open device, allocation, address, stream or None, allocation of empty arrays, C-contiguous ndarrays, their bytes, bytes from
 * each to the next): arrays like these, one behind the other. */
static PyObject *beside(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *opened, *block, *stream, *nothing, *sources, *sizes, *steps;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "OO!KOO!O!O!O!:beside", &opened, allocation_type, &block, &address, &stream, allocation_type, &nothing,
                          &PyList_Type, &sources, &PyList_Type, &sizes, &PyList_Type, &steps))
        return NULL;
    PyObject *made = PyList_New(0);
    for (Py_ssize_t at = 0; made && at < PyList_Size(sources); at++) {
        PyObject *nbytes = PyList_GetItem(sizes, at), *step = nbytes ? PyList_GetItem(steps, at) : NULL;
        PyObject *source = step ? PyList_GetItem(sources, at) : NULL, *shape = source ? PyObject_GetAttr(source, name_shape) : NULL;
        PyObject *dtype = shape ? PyObject_GetAttr(source, name_dtype) : NULL, *array = NULL;
        bool empty = dtype && PyLong_AsUnsignedLongLong(nbytes) == 0;
        if (dtype)
            array = make_array((PyTypeObject *)device_array_class, empty ? 0 : address, shape, dtype, Py_None, stream,
                               empty ? nothing : block, opened);
        address += array ? PyLong_AsUnsignedLongLong(step) : 0;
        Py_XDECREF(dtype);
        Py_XDECREF(shape);
        if (PyErr_Occurred() || PyList_Append(made, array) < 0)
            Py_CLEAR(made);
        Py_XDECREF(array);
    }
    return made;
}

/* free(allocation): True, or None. */
static PyObject *free_block(PyObject *Py_UNUSED(module), PyObject *object) {
    if (!PyObject_TypeCheck(object, allocation_type))
        return none();
    struct allocation_state *block = (struct allocation_state *)object;
    struct lane *lane = lane_of_handle(block->device_handle);
    PyObject *pooled = lane && lane->ready ? pool_blocks(lane, (size_t)block->nbytes) : NULL;
    if (!lane || lane->deferral->depth || !is_simple(lane, block) || (lane->ready && !pooled))
        return none();
    Py_INCREF((PyObject *)lane);
    int status = 0;
    enum table_call call;
    PyObject *live = Py_NewRef((PyObject *)lane->live);
    struct given_back back = {.address = strike_out(lane, block)};
    if (back.address && lane->ready)
        back.entered = to_pool(pooled, back.address);
    else if (back.address)
        status = in_device(lane, free_one, &back, &call);
    if (back.address && !back.entered)
        enter_again(lane, block, back.address, (struct blocks *)live);
    Py_DECREF(live);
    if (status && !PyErr_Occurred())
        refuse(lane, call, status);
    Py_DECREF((PyObject *)lane);
    return status ? NULL : PyBool_FromLong(1);
}

/* arrays(class of ndarrays, that of page-locked ones, numpy.empty, class of device arrays, {class of a scalar, text or dtype: (dtype, its bytes)}) */
static PyObject *arrays(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *class, *pinned, *make, *device, *known;
    if (!PyArg_ParseTuple(arguments, "OOOOO!:arrays", &class, &pinned, &make, &device, &PyDict_Type, &known))
        return NULL;
    if (!PyType_Check(device) || !PyType_IsSubtype((PyTypeObject *)device, array_type))
        return PyErr_Format(PyExc_TypeError, "the class of device arrays is a subclass of ArrayState");
    set_field(&device_array_class, device);
    set_field(&scalars, known);
    set_field(&array_class, class);
    set_field(&pinned_class, pinned);
    set_field(&empty, make);
    return none();
}

static PyMethodDef functions[] = {
    {"upload", FAST(upload), "A device array with the elements of an ndarray."},
    {"allocate", FAST(allocate), "A new device array."},
    {"make", FAST(make), "A new device array of a usual layout."},
    {"download", FAST(download), "Copy a device array to the host."},
    {"upload_into", FAST(upload_into), "Copy an ndarray into a device array."},
    {"beside", beside, METH_VARARGS, "Device arrays like some ndarrays, one behind the other."},
    {"free", free_block, METH_O, "Free an allocation."},
    {"arrays", arrays, METH_VARARGS, "Say what arrays are."},
    {NULL, NULL, 0, NULL},
};

int add_verbs(PyObject *module) {
    const struct name names[] = {{&name_dtype, "dtype"}, {&name_shape, "shape"}, {&name_discard, "discard"}, {NULL, NULL}};
    return intern(names) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
