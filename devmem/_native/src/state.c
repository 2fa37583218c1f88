/* The base classes of `DeviceHandle`, `Allocation`, `ArrayView`, `Stream`, `Event`, `OwnedHandle` and of what is looked at in each call: what the core reads of them lies
 * at a place that it knows.
 *
 * To Python they are classes with slots: an attribute that was not set raises AttributeError, but numbers and flags are 0 then. The class of allocations that are freed
 * when they are dropped (`owned_class`) has the finalizer here: it appends to the queue, and calls nothing else.
 */
#include "native.h"

#include <structmember.h>

PyTypeObject *handle_type, *allocation_type, *array_type, *stream_type, *event_type, *record_type, *deferral_type, *locks_type, *queue_type;
PyObject *zero;

#define EACH_OF_HANDLE(X) X(driver) X(entry) X(dead) X(dropped) X(lane) X(heap) X(drop) X(dlpack_device) X(legacy_number)
#define EACH_OF_ALLOCATION(X) X(queue) X(device_handle) X(heap) X(home) X(streams)
#define PRIVATE_OF_ARRAY(X) X(shape) X(dtype) X(strides) X(stream)
#define EACH_OF_ARRAY(X) PRIVATE_OF_ARRAY(X) X(allocation) X(open_device)
#define SHARED_BY_OWNERS(X) X(services) X(device_handle) X(handle) X(owned)
#define EACH_OF_OWNER(X) SHARED_BY_OWNERS(X) X(drop) X(recorder)
#define EACH_OF_RECORD(X) X(handle) X(table) X(key)
#define EACH_OF_DEFERRAL(X) X(counting)
#define EACH_OF_LOCKS(X) X(segments)
#define EACH_OF_QUEUE(X) X(pending) X(foreign_releases)
COLLECTED(handle, struct handle_state, EACH_OF_HANDLE)
COLLECTED(allocation, struct allocation_state, EACH_OF_ALLOCATION)
COLLECTED(array, struct array_state, EACH_OF_ARRAY)
COLLECTED(owner, struct owner_state, EACH_OF_OWNER)
COLLECTED(record, struct record_state, EACH_OF_RECORD)
COLLECTED(deferral, struct deferral_state, EACH_OF_DEFERRAL)
COLLECTED(locks, struct locks_state, EACH_OF_LOCKS)
COLLECTED(queue, struct queue_state, EACH_OF_QUEUE)

#define MEMBER(name, type, field) {name, type, offsetof(struct STATE, field), 0, NULL},
#define OBJECT(field) MEMBER(#field, T_OBJECT_EX, field)
#define PRIVATE(field) MEMBER("_" #field, T_OBJECT_EX, field)
#define COUNT(field) MEMBER(#field, T_PYSSIZET, field)
#define ADDRESS(name) MEMBER(name, T_ULONGLONG, ptr)
#define PLACE(field) MEMBER(#field, T_UINT, field)
#define FLAG(field) MEMBER(#field, T_BOOL, field)

#define STATE handle_state
static PyMemberDef handle_members[] = {EACH_OF_HANDLE(OBJECT) COUNT(dropped_bytes) COUNT(scopes) COUNT(outside){NULL, 0, 0, 0, NULL}};
#undef STATE
#define STATE allocation_state
static PyMemberDef allocation_members[] = {EACH_OF_ALLOCATION(OBJECT) ADDRESS("ptr") COUNT(nbytes) PLACE(place) FLAG(freed) FLAG(unnamed){NULL, 0, 0, 0, NULL}};
#undef STATE
#define STATE array_state
static PyMemberDef array_members[] = {PRIVATE_OF_ARRAY(PRIVATE) ADDRESS("_ptr") OBJECT(allocation) OBJECT(open_device){NULL, 0, 0, 0, NULL}};
#undef STATE
#define STATE owner_state
static PyMemberDef stream_members[] = {SHARED_BY_OWNERS(OBJECT) PRIVATE(drop) OBJECT(recorder) FLAG(external) FLAG(is_default)
                                       FLAG(non_blocking) FLAG(plain) FLAG(simple){NULL, 0, 0, 0, NULL}};
static PyMemberDef event_members[] = {SHARED_BY_OWNERS(OBJECT) PRIVATE(drop) FLAG(recorded) FLAG(timing){NULL, 0, 0, 0, NULL}};
#undef STATE
#define STATE record_state
static PyMemberDef record_members[] = {EACH_OF_RECORD(OBJECT) FLAG(idle) FLAG(leaving){NULL, 0, 0, 0, NULL}};
#undef STATE
#define STATE deferral_state
static PyMemberDef deferral_members[] = {EACH_OF_DEFERRAL(OBJECT) COUNT(depth){NULL, 0, 0, 0, NULL}};
#undef STATE
#define STATE locks_state
static PyMemberDef locks_members[] = {EACH_OF_LOCKS(OBJECT){NULL, 0, 0, 0, NULL}};
#undef STATE
#define STATE queue_state
static PyMemberDef queue_members[] = {EACH_OF_QUEUE(OBJECT) COUNT(pending_bytes){NULL, 0, 0, 0, NULL}};
#undef STATE

#define TYPE(class, name, layout)                                                                                 \
    static PyType_Slot name##_slots[] = {                                                                         \
        {Py_tp_members, name##_members},                                                                          \
        {Py_tp_traverse, (void *)layout##_traverse},                                                              \
        {Py_tp_clear, (void *)layout##_clear},                                                                    \
        {Py_tp_dealloc, (void *)layout##_dealloc},                                                                \
        {0, NULL},                                                                                                \
    };                                                                                                            \
    static PyType_Spec name##_spec = {"devmem._native.core." class, sizeof(struct layout##_state), 0,             \
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, name##_slots};

TYPE("HandleState", handle, handle)
TYPE("AllocationState", allocation, allocation)
TYPE("ArrayState", array, array)
TYPE("StreamState", stream, owner)
TYPE("EventState", event, owner)
TYPE("RecordState", record, record)
TYPE("DeferralState", deferral, deferral)
TYPE("LocksState", locks, locks)
TYPE("QueueState", queue, queue)

PyObject *make_array(PyTypeObject *class, uint64_t ptr, PyObject *shape, PyObject *dtype, PyObject *strides, PyObject *stream,
                     PyObject *allocation, PyObject *opened) {
    struct array_state *array = (struct array_state *)PyType_GenericAlloc(class, 0);
    if (array) {
        array->ptr = ptr;
        set_field(&array->shape, shape);
        set_field(&array->dtype, dtype);
        set_field(&array->strides, strides);
        set_field(&array->stream, stream);
        set_field(&array->allocation, allocation);
        set_field(&array->open_device, opened);
    }
    return (PyObject *)array;
}

/* -- the class of allocations that are freed when they are dropped ------------------------------------------------------------ */

/* Runs wherever the collector runs. The append resurrects the block until the queue has freed it; it is not called again then. */
static void append_to_queue(PyObject *self) {
    struct allocation_state *block = (struct allocation_state *)self;
    struct handle_state *handle = (struct handle_state *)block->device_handle;
    if (!block->ptr || !handle || !PyObject_TypeCheck(block->device_handle, handle_type) || !handle->drop)
        return;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *done = PyObject_CallFunctionObjArgs(handle->drop, self, NULL);
    if (done)
        handle->dropped_bytes += block->nbytes;
    else
        PyErr_WriteUnraisable(self);
    Py_XDECREF(done);
    PyErr_Restore(kind, value, trace);
}

static PyType_Slot owned_slots[] = {{Py_tp_finalize, (void *)append_to_queue}, {0, NULL}};
static PyType_Spec owned_spec = {
    "devmem._core.lifetime.allocation.Allocation", 0, 0, Py_TPFLAGS_DEFAULT, owned_slots};

/* owned_class(allocation class): its subclass with the finalizer. */
static PyObject *owned_class(PyObject *Py_UNUSED(module), PyObject *base) {
    if (!PyType_Check(base) || !PyType_IsSubtype((PyTypeObject *)base, allocation_type))
        return PyErr_Format(PyExc_TypeError, "owned_class() takes a subclass of AllocationState");
    PyObject *bases = PyTuple_Pack(1, base);
    PyObject *made = bases ? PyType_FromSpecWithBases(&owned_spec, bases) : NULL;
    Py_XDECREF(bases);
    return made;
}

static PyMethodDef functions[] = {
    {"owned_class", owned_class, METH_O, "The subclass of a class of allocations that are queued when they are dropped."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type ? PyModule_AddObjectRef(module, name, (PyObject *)*type) : -1;
}

int add_state(PyObject *module) {
    if (!(zero = PyLong_FromLong(0)) || add_type(module, "HandleState", &handle_spec, &handle_type) < 0 ||
        add_type(module, "AllocationState", &allocation_spec, &allocation_type) < 0 ||
        add_type(module, "ArrayState", &array_spec, &array_type) < 0 ||
        add_type(module, "StreamState", &stream_spec, &stream_type) < 0 ||
        add_type(module, "EventState", &event_spec, &event_type) < 0 ||
        add_type(module, "RecordState", &record_spec, &record_type) < 0 ||
        add_type(module, "DeferralState", &deferral_spec, &deferral_type) < 0 ||
        add_type(module, "LocksState", &locks_spec, &locks_type) < 0 || add_type(module, "QueueState", &queue_spec, &queue_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
