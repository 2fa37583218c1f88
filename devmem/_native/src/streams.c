/* Streams and events that are idle are given out again, recorded, and taken back, where nothing has to be decided.
 *
 * Handles are kept as devmem._core.ordering.spare keeps them, in the same tables; but here the record of a handle is kept with it, and
 * is its next owner's. An owner is parted from the record in a step in which no Python runs, so that it does not end it once more. Of
 * an owner whose finalizer the collector has called the record is in the queue already: Python closes it, with a new record.
 */
#include "native.h"

/* The classes of streams and events, of closed ones, and of the records of their handles. */
static PyTypeObject *stream_class, *event_class, *handle_of_stream, *handle_of_event;
static PyObject *closed_stream, *closed_event, *partial, *nothing;
static Py_ssize_t most_streams, most_events;
static PyObject *name_append, *name_appendleft, *name_class, *name_popleft, *name_stream_tables;

/* The handle of a record that is in its table, and a new reference to its number; NULL, without an exception, where it is not. */
static PyObject *handle_of(PyObject *record, PyObject *table, uint64_t *handle) {
    PyObject *number = ((struct record_state *)record)->handle;
    if (number && PyLong_CheckExact(number) && PyDict_GetItemWithError(table, number) == record) {
        *handle = PyLong_AsUnsignedLongLong(number);
        if (!PyErr_Occurred())
            return Py_NewRef(number);
    }
    PyErr_Clear();
    return NULL;
}

/* One call for a stream or an event. */
struct question {
    struct frees *frees;
    enum table_call wanted;
    uint64_t handle, stream;
    bool capturable; /* a graph may be captured on the stream, and waiting would end the capture */
};

static int put(const struct driver_table *table, void *of, enum table_call *call) {
    struct question *asked = of;
    uint64_t mode = table->relaxed;
    if (asked->frees)
        free_all(table, asked->frees, call);
    *call = asked->wanted;
    if (asked->wanted == STREAM_QUERY)
        return table->stream_query(asked->handle);
    if (asked->wanted == EVENT_RECORD)
        return table->event_record(asked->handle, asked->stream);
    if (asked->wanted == SYNCHRONIZE) {
        uint64_t capturing = 0;
        int failed = asked->capturable ? table->is_capturing(asked->handle, &capturing) : 0;
        return failed || capturing ? INT_MIN : table->synchronize(asked->handle); /* Python asks again, and says what is wrong */
    }
    int status = table->capture_mode(&mode);
    if (!status) {
        status = table->event_query(asked->handle);
        table->capture_mode(&mode);
    }
    return status;
}

/* Free what was dropped and call one function: its status. */
static int ask(struct lane *lane, struct frees *frees, enum table_call *call, uint64_t handle, uint64_t stream, bool capturable) {
    struct question asked = {frees, *call, handle, stream, capturable};
    return in_device(lane, put, &asked, call);
}

int query_event(struct lane *lane, uint64_t event) {
    enum table_call call = EVENT_QUERY;
    return ask(lane, NULL, &call, event, 0, false);
}

/* A spare record of a class whose handle has passed: a new reference, and one to its number. NULL with or without an exception. */
static PyObject *take(struct lane *lane, PyObject *by_key, PyObject *key, PyTypeObject *class, PyObject *table, PyObject **number) {
    PyObject *kept = PyDict_GetItemWithError(by_key, key), *record = NULL;
    struct frees frees;
    *number = NULL;
    Py_XINCREF(kept);
    if (!kept || PyObject_Size(kept) <= 0 || !is_open(lane) || safe_point(lane, &frees) <= 0) {
        Py_XDECREF(kept);
        return NULL;
    }
    bool passed = false;
    enum table_call call = class == handle_of_stream ? STREAM_QUERY : EVENT_QUERY;
    uint64_t handle = 0;
    if (is_open(lane) && (record = PyObject_CallMethodObjArgs(kept, name_popleft, NULL))) {
        int status = INT_MIN;
        if (Py_TYPE(record) == class && (*number = handle_of(record, table, &handle)))
            status = ask(lane, &frees, &call, handle, 0, false);
        passed = !status && is_open(lane) && PyDict_GetItemWithError(table, *number) == record;
        if (!passed && is_open(lane)) /* another turn, or Python's to take, to ask and to say what is wrong */
            Py_XDECREF(PyObject_CallMethodObjArgs(kept, status == NOT_READY ? name_append : name_appendleft, record, NULL));
    }
    PyErr_Clear(); /* another thread took the last one */
    bool settled = (frees.entered ? settle(lane, &frees) : free_now(lane, &frees)) == 0;
    if (passed && !settled) {
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        Py_XDECREF(PyObject_CallMethodObjArgs(kept, name_append, record, NULL));
        PyErr_Restore(kind, value, trace);
    }
    if (!passed || !settled) {
        Py_CLEAR(record);
        Py_CLEAR(*number);
    }
    Py_DECREF(kept);
    return record;
}

/* Make an object the owner of a record; its finalizer drops it. Where that fails the handle has no owner until the device is closed. */
static bool hand_over(struct lane *lane, struct owner_state *made, PyObject *record, PyObject *number, PyObject *table) {
    PyObject *drop = PyObject_CallFunctionObjArgs(partial, ((struct handle_state *)lane->handle)->drop, record, NULL);
    PyObject *reference = drop && table ? PyWeakref_NewRef((PyObject *)made, NULL) : NULL;
    bool done = drop && (!table || (reference && PyDict_SetItem(table, number, reference) == 0));
    if (done) {
        ((struct record_state *)record)->idle = ((struct record_state *)record)->leaving = 0;
        set_field(&made->owned, record);
        set_field(&made->handle, number);
        set_field(&made->drop, drop);
    }
    Py_XDECREF(drop);
    Py_XDECREF(reference);
    return done;
}

/* Part an owner from its record, and keep that: True. `own`: the table that has the owner, or NULL. No Python runs, but for an audit
 * hook: what ends the owner in it, or on another thread meanwhile, finds nothing to end. */
static PyObject *keep(struct owner_state *owner, struct record_state *record, PyObject *class, PyObject *kept, PyObject *own) {
    set_field(&owner->owned, Py_None);
    if (PyObject_SetAttr((PyObject *)owner, name_class, class) < 0) {
        set_field(&owner->owned, (PyObject *)record);
        return NULL;
    }
    set_field(&owner->drop, nothing);
    owner->plain = owner->simple = 0;
    record->leaving = record->idle = 1;
    if (own && PyDict_DelItem(own, record->handle) < 0)
        PyErr_Clear();
    PyObject *done = PyObject_CallMethodObjArgs(kept, name_append, (PyObject *)record, NULL);
    Py_XDECREF(done);
    return done ? PyBool_FromLong(1) : NULL;
}

/* The spare ones of a record's kind, where there is room and no lease may have found its handle: borrowed. */
static PyObject *room_for(struct lane *lane, PyObject *record, PyObject *by_key, Py_ssize_t most) {
    if (!is_open(lane) || PyDict_Size(lane->held) || PyObject_Size(lane->given_up))
        return NULL;
    PyObject *key = ((struct record_state *)record)->key, *kept = key ? PyDict_GetItemWithError(by_key, key) : NULL;
    return kept && PyObject_Size(kept) < most ? kept : NULL;
}

/* Whether no memory stack has to be told of a stream's end. */
static bool is_untold(struct lane *lane, PyObject *number) {
    PyObject *tables = PyObject_GetAttr(lane->memory, name_stream_tables);
    bool untold = tables && PyTuple_Check(tables);
    for (Py_ssize_t at = 0; untold && at < PyTuple_Size(tables); at++)
        untold = PyDict_Check(PyTuple_GetItem(tables, at)) && PyDict_Contains(PyTuple_GetItem(tables, at), number) == 0;
    PyErr_Clear();
    Py_XDECREF(tables);
    return untold;
}

/* A new owner of a spare record of a class: NULL with or without an exception. */
static struct owner_state *new_owner(struct lane *lane, PyTypeObject *class, PyTypeObject *of, PyObject *spare, PyObject *key,
                                     PyObject *table, PyObject *own) {
    PyObject *record = NULL, *number = NULL;
    struct owner_state *made = (struct owner_state *)PyType_GenericAlloc(class, 0);
    if (made) {
        set_field(&made->drop, nothing);
        set_field(&made->services, lane->services);
        set_field(&made->device_handle, lane->handle);
        record = take(lane, spare, key, of, table, &number);
    }
    if (!record || !hand_over(lane, made, record, number, own))
        Py_CLEAR(made);
    Py_XDECREF(number);
    Py_XDECREF(record);
    return made;
}

/* take_stream(priority, non_blocking): a stream that was used before, or None. */
static PyObject *take_stream(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    if (given != 2 || !stream_class || !PyLong_CheckExact(arguments[0]) || !PyBool_Check(arguments[1]))
        return none();
    struct lane *lane = current_lane();
    if (!lane)
        return PyErr_Occurred() ? NULL : none();
    PyObject *key = PyTuple_Pack(2, arguments[0], arguments[1]);
    struct owner_state *made =
        key ? new_owner(lane, stream_class, handle_of_stream, lane->spare_streams, key, lane->stream_handles, lane->own_streams) : NULL;
    if (made) {
        set_field(&made->recorder, Py_None);
        made->non_blocking = arguments[1] == Py_True;
        made->plain = 1;
        made->simple = lane->simple == Py_True;
    }
    Py_XDECREF(key);
    Py_DECREF((PyObject *)lane);
    return made || PyErr_Occurred() ? (PyObject *)made : none();
}

/* take_event(timing): an event that was used before, or None. */
static PyObject *take_event(PyObject *Py_UNUSED(module), PyObject *timing) {
    if (!event_class || !PyBool_Check(timing))
        return none();
    struct lane *lane = current_lane();
    if (!lane)
        return PyErr_Occurred() ? NULL : none();
    struct owner_state *made =
        new_owner(lane, event_class, handle_of_event, lane->spare_events, timing, lane->event_handles, NULL);
    if (made)
        made->timing = timing == Py_True;
    Py_DECREF((PyObject *)lane);
    return made || PyErr_Occurred() ? (PyObject *)made : none();
}

/* The lane and the record of a stream or an event of devmem's own, by the record's class: new references, and one to its number. NULL,
 * without an exception, where Python has to look. */
static struct lane *lane_of_owner(PyObject *object, PyTypeObject *class, PyObject **record, PyObject **number, uint64_t *handle) {
    struct owner_state *owner = (struct owner_state *)object;
    struct lane *lane = lane_of_handle(owner->device_handle);
    *record = owner->owned;
    if (!lane || !*record || Py_TYPE(*record) != class ||
        !(*number = handle_of(*record, class == handle_of_stream ? lane->stream_handles : lane->event_handles, handle)))
        return NULL;
    Py_INCREF(*record);
    Py_INCREF((PyObject *)lane);
    return lane;
}

static void let_go(struct lane *lane, PyObject *record, PyObject *number) {
    Py_DECREF(number);
    Py_DECREF(record);
    Py_DECREF((PyObject *)lane);
}

/* The spare streams, where a stream's work can be waited for, and its record kept among them: borrowed. */
static PyObject *may_keep(struct lane *lane, const struct owner_state *stream, PyObject *record, PyObject *number) {
    return stream->owned == record && stream->recorder == Py_None && !PyDict_Size(lane->completing) && is_untold(lane, number) &&
           PyDict_GetItemWithError(lane->stream_handles, number) == record
               ? room_for(lane, record, lane->spare_streams, most_streams)
               : NULL;
}

/* close_stream(stream): True when its work is done and its handle kept, or None. */
static PyObject *close_stream(PyObject *Py_UNUSED(module), PyObject *stream) {
    PyObject *record, *number, *result = NULL, *kept;
    uint64_t handle;
    if (Py_TYPE(stream) != stream_class || PyObject_GC_IsFinalized(stream)) /* its handle is in the queue already */
        return none();
    struct lane *lane = lane_of_owner(stream, handle_of_stream, &record, &number, &handle);
    if (!lane)
        return none();
    bool waits = may_keep(lane, (struct owner_state *)stream, record, number);
    enum table_call call = SYNCHRONIZE;
    int status = waits ? ask(lane, NULL, &call, handle, 0, !((struct owner_state *)stream)->simple) : 0;
    if (status && status != INT_MIN)
        refuse(lane, call, status);
    else if (!status && Py_TYPE(stream) != stream_class) /* another thread has closed it meanwhile */
        result = PyBool_FromLong(1);
    /* It may have done anything else: then Python does it all once more. */
    else if (!status && waits && (kept = may_keep(lane, (struct owner_state *)stream, record, number))) {
        Py_INCREF(kept);
        result = keep((struct owner_state *)stream, (struct record_state *)record, closed_stream, kept, lane->own_streams);
        Py_DECREF(kept);
    }
    let_go(lane, record, number);
    return result || PyErr_Occurred() ? result : none();
}

/* synchronize(stream): True when its work is done, and what its copies kept was let go of; or None. */
static PyObject *synchronize(PyObject *Py_UNUSED(module), PyObject *stream) {
    PyObject *record, *number;
    uint64_t handle;
    if (Py_TYPE(stream) != stream_class)
        return none();
    struct lane *lane = lane_of_owner(stream, handle_of_stream, &record, &number, &handle);
    if (!lane)
        return none();
    enum table_call call = SYNCHRONIZE;
    const struct owner_state *owner = (const struct owner_state *)stream;
    int status = owner->recorder == Py_None ? ask(lane, NULL, &call, handle, 0, !owner->simple) : INT_MIN, passed = 0;
    if (status && status != INT_MIN)
        refuse(lane, call, status);
    else if (!status)
        passed = is_open(lane) && PyDict_Size(lane->completing) ? let_go_of_passed(lane) : is_open(lane);
    let_go(lane, record, number);
    return passed > 0 ? PyBool_FromLong(1) : PyErr_Occurred() ? NULL : none();
}

bool wait_for(PyObject *stream) {
    PyObject *done = synchronize(NULL, stream);
    Py_XDECREF(done);
    return done;
}

/* close_event(event): True when its handle is kept, or None. */
static PyObject *close_event(PyObject *Py_UNUSED(module), PyObject *event) {
    PyObject *record, *number, *result = NULL;
    uint64_t handle;
    if (Py_TYPE(event) != event_class || PyObject_GC_IsFinalized(event)) /* its handle is in the queue already */
        return none();
    struct lane *lane = lane_of_owner(event, handle_of_event, &record, &number, &handle);
    if (!lane)
        return none();
    PyObject *kept = room_for(lane, record, lane->spare_events, most_events);
    if (kept) {
        Py_INCREF(kept);
        result = keep((struct owner_state *)event, (struct record_state *)record, closed_event, kept, NULL);
        Py_DECREF(kept);
    }
    let_go(lane, record, number);
    return result || PyErr_Occurred() ? result : none();
}

bool is_own_stream(struct lane *lane, PyObject *stream, uint64_t *found) {
    PyObject *record, *number;
    struct lane *its = Py_TYPE(stream) == stream_class ? lane_of_owner(stream, handle_of_stream, &record, &number, found) : NULL;
    if (its)
        let_go(its, record, number);
    return its == lane && ((struct owner_state *)stream)->recorder == Py_None;
}

/* The number of the stream that an argument means, on which work is ordered at once: 1, 0, or -1 with an exception. */
static int target(struct lane *lane, PyObject *stream, uint64_t *found) {
    if (Py_TYPE(stream) == stream_class && stream != lane->legacy)
        return is_own_stream(lane, stream, found);
    *found = lane->table->stream;
    return on_legacy(stream == lane->legacy ? NULL : stream);
}

/* record_event(event, stream): True, or None. */
static PyObject *record_event(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    PyObject *kept, *number;
    uint64_t handle, stream;
    if (given != 2 || Py_TYPE(arguments[0]) != event_class)
        return none();
    struct lane *lane = lane_of_owner(arguments[0], handle_of_event, &kept, &number, &handle);
    if (!lane)
        return none();
    enum table_call call = EVENT_RECORD;
    int go = target(lane, arguments[1], &stream), status = 0;
    if (go > 0)
        go = is_open(lane) && Py_TYPE(arguments[0]) == event_class;
    if (go > 0 && (status = ask(lane, NULL, &call, handle, stream, false)))
        refuse(lane, call, status);
    if (status)
        go = -1;
    else if (go > 0)
        ((struct owner_state *)arguments[0])->recorded = 1;
    let_go(lane, kept, number);
    return go < 0 ? NULL : go ? PyBool_FromLong(1) : none();
}

/* handles(Stream, its closed class, its record's, how many are kept; the same of events; partial, what does nothing) */
static PyObject *handles(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *stream, *without_stream, *of_stream, *event, *without_event, *of_event, *make, *no;
    Py_ssize_t streams, events;
    if (!PyArg_ParseTuple(arguments, "O!O!O!nO!O!O!nOO:handles", &PyType_Type, &stream, &PyType_Type, &without_stream, &PyType_Type,
                          &of_stream, &streams, &PyType_Type, &event, &PyType_Type, &without_event, &PyType_Type, &of_event,
                          &events, &make, &no))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)stream, stream_type) || !PyType_IsSubtype((PyTypeObject *)event, event_type) ||
        !PyType_IsSubtype((PyTypeObject *)of_stream, record_type) || !PyType_IsSubtype((PyTypeObject *)of_event, record_type))
        return PyErr_Format(PyExc_TypeError, "streams, events and records are subclasses of StreamState, EventState and RecordState");
    set_field((PyObject **)&handle_of_stream, of_stream);
    set_field((PyObject **)&handle_of_event, of_event);
    most_streams = streams;
    most_events = events;
    set_field(&closed_stream, without_stream);
    set_field(&closed_event, without_event);
    set_field(&partial, make);
    set_field(&nothing, no);
    set_field((PyObject **)&event_class, event);
    set_field((PyObject **)&stream_class, stream);
    return none();
}

static PyMethodDef functions[] = {
    {"take_stream", FAST(take_stream), "A stream that was used before."},
    {"take_event", take_event, METH_O, "An event that was used before."},
    {"close_stream", close_stream, METH_O, "Wait for a stream's work, and keep its handle."},
    {"synchronize", synchronize, METH_O, "Wait for a stream's work, and let go of what its copies kept."},
    {"close_event", close_event, METH_O, "Keep the handle of an event."},
    {"record_event", FAST(record_event), "Record an event on a stream."},
    {"handles", handles, METH_VARARGS, "Say what streams and events are."},
    {NULL, NULL, 0, NULL},
};

int add_streams(PyObject *module) {
    const struct name names[] = {
        {&name_append, "append"}, {&name_appendleft, "appendleft"}, {&name_class, "__class__"}, {&name_popleft, "popleft"},
        {&name_stream_tables, "stream_tables"}, {NULL, NULL},
    };
    return intern(names) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
