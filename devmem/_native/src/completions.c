/* Payloads behind events, by stream: what `CompletionQueue` waits with, and how verbs of the core let go of what has passed.
 *
 * To enter something in the table, to take it out and to take empty queues out is one step each, in which no Python runs: another
 * thread, a signal's handler and a finalizer find it whole. Payloads are let go of behind the last step, because that may run anything.
 */
#include "native.h"

#define MOST_PASSED 64 /* that are let go of in one call */

PyTypeObject *queues_type;
static PyObject *deque, *name_append, *name_popleft;

/* The first entry of a stream's queue: a new reference, or NULL. */
static PyObject *first_of(PyObject *queues, PyObject *stream, PyObject **queue) {
    *queue = PyDict_GetItemWithError(queues, stream);
    PyObject *first = *queue && PyObject_Size(*queue) > 0 ? PySequence_GetItem(*queue, 0) : NULL;
    PyErr_Clear();
    return first;
}

bool enter_last(PyObject *queues, PyObject *stream, PyObject *entry) {
    PyObject *made = PyDict_Contains(queues, stream) ? NULL : PyObject_CallNoArgs(deque); /* first: the collector may run */
    PyObject *queue = PyDict_GetItemWithError(queues, stream);
    if (!queue && made && PyDict_SetItem(queues, stream, made) == 0)
        queue = made;
    PyObject *done = queue ? PyObject_CallMethodObjArgs(queue, name_append, entry, NULL) : NULL;
    Py_XDECREF(made);
    Py_XDECREF(done);
    return done;
}

/* Take an entry out, if it is the first; whether it was. */
static bool take_first(PyObject *queues, PyObject *stream, PyObject *entry) {
    PyObject *queue, *first = first_of(queues, stream, &queue);
    bool taken = first == entry;
    if (taken)
        Py_XDECREF(PyObject_CallMethodObjArgs(queue, name_popleft, NULL)); /* the caller has the entry */
    Py_XDECREF(first);
    PyErr_Clear();
    return taken;
}

/* Take the empty queues of these streams out. */
static void take_empty(PyObject *queues, PyObject *streams) {
    for (Py_ssize_t at = 0; at < PyList_Size(streams); at++) {
        PyObject *stream = PyList_GetItem(streams, at), *queue = PyDict_GetItemWithError(queues, stream);
        if (queue && PyObject_Size(queue) == 0)
            PyDict_DelItem(queues, stream); /* the list keeps the stream: nothing ends here */
    }
    PyErr_Clear();
}

int let_go_of_passed(struct lane *lane) {
    PyObject *gone[MOST_PASSED], *streams = PyDict_Keys(lane->completing), *queue, *entry;
    Py_ssize_t count = 0;
    int found = streams ? 1 : -1;
    for (Py_ssize_t at = 0; found > 0 && at < PyList_Size(streams); at++) {
        PyObject *stream = PyList_GetItem(streams, at);
        bool passed = true;
        while (passed && found > 0 && (entry = first_of(lane->completing, stream, &queue))) {
            /* The entry keeps the event from being recorded anew. */
            PyObject *event = PyTuple_CheckExact(entry) ? PyTuple_GetItem(entry, 0) : NULL;
            uint64_t number = event && PyLong_Check(event) ? PyLong_AsUnsignedLongLong(event) : 0;
            int status = number && count < MOST_PASSED && is_open(lane) ? query_event(lane, number) : -1;
            passed = status == 0;
            if (passed && take_first(lane->completing, stream, entry))
                gone[count++] = entry;
            else
                Py_DECREF(entry); /* another thread has taken it */
            if (!passed && status != NOT_READY)
                found = 0; /* of a captured graph, or lost: Python asks again, and says what is wrong */
        }
    }
    if (streams) {
        take_empty(lane->completing, streams);
        Py_DECREF(streams);
    }
    while (count > 0)
        Py_DECREF(gone[--count]);
    return found;
}

/* enter(stream, (event, payload)) */
static PyObject *enter(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (given != 2 || !PyTuple_CheckExact(arguments[1]) || PyTuple_Size(arguments[1]) != 2)
        return PyErr_Format(PyExc_TypeError, "enter() takes a stream and (event, payload)");
    return enter_last(self, arguments[0], arguments[1]) ? none() : NULL;
}

/* take(stream, (event, payload), list): whether it was the first of the stream's; then its payload is in the list */
static PyObject *take(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (given != 3 || !PyTuple_CheckExact(arguments[1]) || PyTuple_Size(arguments[1]) != 2 || !PyList_CheckExact(arguments[2]))
        return PyErr_Format(PyExc_TypeError, "take() takes a stream, (event, payload) and a list");
    PyObject *queue, *first = first_of(self, arguments[0], &queue);
    Py_XDECREF(first);
    if (first != arguments[1])
        return PyBool_FromLong(0);
    if (PyList_Append(arguments[2], PyTuple_GetItem(first, 1)) < 0)
        return NULL;
    return PyBool_FromLong(take_first(self, arguments[0], first));
}

/* tidy(): streams that have nothing are taken out */
static PyObject *tidy(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    PyObject *streams = PyDict_Keys(self);
    if (!streams)
        return NULL;
    take_empty(self, streams);
    Py_DECREF(streams);
    return none();
}

static PyMethodDef methods[] = {
    {"enter", FAST(enter), "Put (event, payload) behind all that a stream has."},
    {"take", FAST(take), "Take out what a stream has first, and append its payload to a list; whether it was the first."},
    {"tidy", tidy, METH_NOARGS, "Take out streams that have nothing."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, NULL}};
static PyType_Spec spec = {"devmem._native.core.EventQueues", 0, 0, Py_TPFLAGS_DEFAULT, slots};

int add_completions(PyObject *module) {
    const struct name names[] = {{&name_append, "append"}, {&name_popleft, "popleft"}, {NULL, NULL}};
    PyObject *collections = intern(names) < 0 ? NULL : PyImport_ImportModule("collections");
    deque = collections ? PyObject_GetAttrString(collections, "deque") : NULL;
    PyObject *bases = deque ? PyTuple_Pack(1, &PyDict_Type) : NULL;
    queues_type = bases ? (PyTypeObject *)PyType_FromSpecWithBases(&spec, bases) : NULL;
    Py_XDECREF(collections);
    Py_XDECREF(bases);
    return queues_type ? PyModule_AddObjectRef(module, "EventQueues", (PyObject *)queues_type) : -1;
}
