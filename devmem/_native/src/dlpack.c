/* DLPack: capsules of device arrays, arrays of such tensors, and the table of C functions that other libraries find on the class.
 *
 * A tensor that is exported here keeps its allocation alive. Its deleter may be called on any thread, with or without the GIL, twice,
 * and when the interpreter has ended: then the allocation ends with the process. The memory of a tensor that was given back stays
 * readable until some more have been given back, so that a second call finds that it has nothing to do.
 */
#include "native.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAJOR = 1, MINOR = 3, FLAG_READ_ONLY = 1, RETIRED = 64 };
#define UNVERSIONED "dltensor"
#define VERSIONED "dltensor_versioned"

/* -- what DLPack 1.3 declares ------------------------------------------------------------------------------------------------ */

struct tensor {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct unversioned {
    struct tensor tensor;
    void *context;
    void (*deleter)(struct unversioned *);
};
struct versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct versioned *);
    uint64_t flags;
    struct tensor tensor;
};
typedef void tell_error(void *context, const char *kind, const char *message);
struct exchange_table {
    uint32_t major, minor;
    struct exchange_table *before;
    int (*allocate)(struct tensor *like, struct versioned **made, void *context, tell_error *tell);
    int (*from_object)(void *object, struct versioned **made);
    int (*to_object)(struct versioned *tensor, void **made);
    int (*borrow)(void *object, struct tensor *out);
    int (*work_stream)(int32_t device_type, int32_t device_id, void **stream);
};

/* -- export ------------------------------------------------------------------------------------------------------------------- */

struct exported {
    union {
        struct unversioned unversioned;
        struct versioned versioned;
    } managed;
    _Atomic(PyObject *) owner;
    int64_t numbers[2 * MOST_AXES];
};

static atomic_bool ended;
static _Atomic(struct exported *) retired[RETIRED];
static atomic_uint retirements;

static void let_go(struct exported *block) {
    PyObject *owner = atomic_exchange(&block->owner, NULL);
    if (!owner)
        return;
    if (!atomic_load(&ended) && Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(owner);
        PyGILState_Release(state);
    }
    free(atomic_exchange(&retired[atomic_fetch_add(&retirements, 1) % RETIRED], block));
}

static void delete_unversioned(struct unversioned *tensor) { let_go(tensor->context); }
static void delete_versioned(struct versioned *tensor) { let_go(tensor->context); }

/* Let an owner live until the deleter was called: the tensor. */
static void *own(struct exported *block, PyObject *owner, bool versioned) {
    if (versioned)
        block->managed.versioned.context = block, block->managed.versioned.deleter = delete_versioned;
    else
        block->managed.unversioned.context = block, block->managed.unversioned.deleter = delete_unversioned;
    Py_INCREF(owner);
    atomic_init(&block->owner, owner);
    return &block->managed;
}

/* DLPack's types, with the dtypes, and the dtypes' sizes; filled by `exchange`. */
#define MOST_TYPES 32
static struct type {
    PyObject *dtype;
    uint8_t code, bits;
} types[MOST_TYPES];
static int type_count;

static const struct type *type_of(const PyObject *dtype) {
    for (int at = 0; at < type_count; at++)
        if (types[at].dtype == dtype)
            return &types[at];
    return NULL;
}

Py_ssize_t known_itemsize(const PyObject *dtype) {
    const struct type *type = type_of(dtype);
    return type ? type->bits / 8 : 0;
}

static PyObject *name_lent, *name_streams, *name_legacy, *name_has_negatives, *name_table, *name_owner, *name_ready, *name_read_only;

static int lend(struct allocation_state *block) {
    if (block->lent)
        return 0;
    const struct lane *lane = lane_of_handle(block->device_handle);
    PyObject *lent = lane && lane->live && block->heap == lane->heap ? Py_NewRef(lane->lent) : PyObject_GetAttr(block->heap, name_lent);
    PyObject *ptr = lent ? PyLong_FromUnsignedLongLong(block->ptr) : NULL;
    int done = ptr ? PySet_Add(lent, ptr) : -1;
    Py_XDECREF(ptr);
    Py_XDECREF(lent);
    block->lent = !done;
    return done;
}

/* Whether nothing has to be ordered for a consumer on the legacy default stream: 1, 0, or -1 with an exception. */
static int is_ready(const struct array_state *array, const struct allocation_state *block) {
    if (block->streams != Py_None || is_none(block->home))
        return 0;
    const struct lane *lane = lane_of_handle(block->device_handle);
    if (lane)
        return block->home == lane->legacy;
    PyObject *streams = PyObject_GetAttr(array->open_device, name_streams);
    PyObject *legacy = streams ? PyObject_GetAttr(streams, name_legacy) : NULL;
    int same = legacy ? legacy == block->home : -1;
    Py_XDECREF(streams);
    Py_XDECREF(legacy);
    return same;
}

/* The block of an array that is devmem's own and live, has elements, and a handle: borrowed; else NULL. */
static struct allocation_state *block_of(PyObject *object) {
    if (!PyObject_TypeCheck(object, array_type))
        return NULL;
    struct array_state *array = (struct array_state *)object;
    if (!array->allocation || !PyObject_TypeCheck(array->allocation, allocation_type) || !array->open_device)
        return NULL;
    struct allocation_state *block = (struct allocation_state *)array->allocation;
    if (block->freed || is_none(block->home) || is_none(block->heap) || !block->ptr || !array->ptr || !block->device_handle ||
        !PyObject_TypeCheck(block->device_handle, handle_type) ||
        ((struct handle_state *)block->device_handle)->dead != Py_None)
        return NULL;
    return block;
}

/* The tensor of an array, which keeps its block alive; NULL, mostly without an exception, where Python has to look. */
static struct exported *describe(struct array_state *array, struct allocation_state *block, bool versioned) {
    const struct type *type = type_of(array->dtype);
    PyObject *device = ((struct handle_state *)block->device_handle)->dlpack_device;
    Py_ssize_t axes = array->shape && PyTuple_Check(array->shape) ? PyTuple_Size(array->shape) : -1;
    bool packed = array->strides == Py_None;
    if (!type || axes < 0 || axes > MOST_AXES || !device || !PyTuple_Check(device) || PyTuple_Size(device) != 2 ||
        (!packed && !(array->strides && PyTuple_Check(array->strides) && PyTuple_Size(array->strides) == axes)))
        return NULL;
    struct exported *block_out = malloc(sizeof *block_out);
    if (!block_out)
        return NULL;
    struct tensor *tensor = versioned ? &block_out->managed.versioned.tensor : &block_out->managed.unversioned.tensor;
    int64_t *shape = block_out->numbers, *strides = block_out->numbers + axes, step = 1;
    Py_ssize_t itemsize = type->bits / 8;
    bool said = true;
    for (Py_ssize_t axis = axes - 1; axis >= 0; axis--) {
        shape[axis] = PyLong_AsLongLong(PyTuple_GetItem(array->shape, axis));
        int64_t bytes = packed ? 0 : PyLong_AsLongLong(PyTuple_GetItem(array->strides, axis));
        strides[axis] = packed ? step : bytes / itemsize;
        said &= packed || bytes % itemsize == 0;
        said &= !__builtin_mul_overflow(step, shape[axis], &step);
    }
    *tensor = (struct tensor){
        .data = (void *)(uintptr_t)array->ptr,
        .device_type = (int32_t)PyLong_AsLong(PyTuple_GetItem(device, 0)),
        .device_id = (int32_t)PyLong_AsLong(PyTuple_GetItem(device, 1)),
        .ndim = (int32_t)axes, .code = type->code, .bits = type->bits, .lanes = 1, .shape = shape, .strides = strides};
    if (!said || PyErr_Occurred() || lend(block) < 0) {
        PyErr_Clear();
        free(block_out);
        return NULL;
    }
    if (versioned) {
        struct versioned *managed = &block_out->managed.versioned;
        managed->major = MAJOR, managed->minor = MINOR, managed->flags = 0;
    }
    own(block_out, (PyObject *)block, versioned);
    return block_out;
}

/* The end of a capsule that was not taken. */
static void end_capsule(PyObject *capsule) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        struct versioned *tensor = PyCapsule_GetPointer(capsule, VERSIONED);
        if (tensor->deleter)
            tensor->deleter(tensor);
    } else if (PyCapsule_IsValid(capsule, UNVERSIONED)) {
        struct unversioned *tensor = PyCapsule_GetPointer(capsule, UNVERSIONED);
        if (tensor->deleter)
            tensor->deleter(tensor);
    }
    PyErr_Restore(kind, value, trace);
}

/* export(array, stream, max_version, dl_device, copy): a capsule, or None. */
static PyObject *export(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    if (given != 5 || arguments[3] != Py_None || (arguments[4] != Py_None && arguments[4] != Py_False))
        return none();
    bool versioned = arguments[2] != Py_None;
    if (versioned) {
        if (!PyTuple_CheckExact(arguments[2]) || PyTuple_Size(arguments[2]) != 2 ||
            !PyLong_CheckExact(PyTuple_GetItem(arguments[2], 0)) || !PyLong_CheckExact(PyTuple_GetItem(arguments[2], 1)))
            return none();
        versioned = PyLong_AsLong(PyTuple_GetItem(arguments[2], 0)) >= 1;
    }
    struct array_state *array = (struct array_state *)arguments[0];
    struct allocation_state *block = block_of(arguments[0]);
    PyObject *number = block ? ((struct handle_state *)block->device_handle)->legacy_number : NULL;
    if (PyErr_Occurred()) /* a version that is no number */
        PyErr_Clear();
    else if (block && !is_none(number) &&
             (arguments[1] == Py_None ||
              (PyLong_CheckExact(arguments[1]) && PyObject_RichCompareBool(arguments[1], number, Py_EQ) == 1))) {
        int ready = is_ready(array, block);
        struct exported *made = ready > 0 ? describe(array, block, versioned) : NULL;
        if (made) {
            PyObject *capsule = PyCapsule_New(&made->managed, versioned ? VERSIONED : UNVERSIONED, end_capsule);
            if (!capsule)
                let_go(made);
            return capsule;
        }
        if (ready < 0)
            return NULL;
    }
    return none();
}

/* -- import ------------------------------------------------------------------------------------------------------------------- */

/* Owns a tensor that was taken. */
struct taken {
    PyObject_HEAD
    struct versioned *tensor;
};
static PyTypeObject *taken_type;

static void taken_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    struct versioned *tensor = ((struct taken *)self)->tensor;
    if (tensor && tensor->deleter == delete_versioned)
        tensor->deleter(tensor);
    else if (tensor && tensor->deleter && !atomic_load(&ended)) {
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        Py_BEGIN_ALLOW_THREADS /* it may wait for a thread that wants it */
        tensor->deleter(tensor);
        Py_END_ALLOW_THREADS
        PyErr_Restore(kind, value, trace);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot taken_slots[] = {{Py_tp_dealloc, (void *)taken_dealloc}, {0, NULL}};
static PyType_Spec taken_spec = {"devmem._native.core.Taken", sizeof(struct taken), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, taken_slots};

static PyObject *foreign_class, *check_memory, *table_export, *table_import, *table_allocate, *table_stream, *our_capsule;

static PyObject *shape_of(const struct tensor *tensor) {
    PyObject *shape = PyTuple_New(tensor->ndim);
    for (int axis = 0; shape && axis < tensor->ndim; axis++) {
        PyObject *length = PyLong_FromLongLong(tensor->shape[axis]);
        if (!length || PyTuple_SetItem(shape, axis, length) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

/* Whether a device, as DLPack names it, is that of a lane. */
static bool is_of(const struct lane *lane, int32_t device_type, int32_t device_id) {
    PyObject *device = ((const struct handle_state *)lane->handle)->dlpack_device;
    return device && PyLong_AsLong(PyTuple_GetItem(device, 0)) == device_type && PyLong_AsLong(PyTuple_GetItem(device, 1)) == device_id;
}

/* The array of a tensor on the lane's device: contiguous, and ready on the legacy default stream. NULL, mostly without an exception,
 * where Python has to look; the tensor is not taken then. */
static PyObject *array_of(struct lane *lane, struct versioned *managed) {
    const struct tensor *tensor = &managed->tensor;
    struct handle_state *handle = (struct handle_state *)lane->handle;
    PyObject *dtype = NULL;
    uint64_t address = (uint64_t)(uintptr_t)tensor->data, end;
    int64_t nbytes = tensor->bits / 8;
    if (managed->major != MAJOR || tensor->lanes != 1 || tensor->bits % 8 || !address || tensor->ndim < 0 ||
        tensor->ndim > MOST_AXES || (tensor->ndim && !tensor->shape) || is_none(handle->heap) ||
        !is_of(lane, tensor->device_type, tensor->device_id))
        return NULL;
    for (int at = 0; at < type_count; at++)
        if (types[at].code == tensor->code && types[at].bits == tensor->bits)
            dtype = types[at].dtype;
    int64_t step = 1;
    for (int axis = tensor->ndim - 1; axis >= 0; axis--) {
        if (tensor->shape[axis] <= 0 || (tensor->strides && tensor->shape[axis] > 1 && tensor->strides[axis] != step) ||
            __builtin_mul_overflow(step, tensor->shape[axis], &step))
            return NULL;
    }
    if (!dtype || __builtin_mul_overflow(nbytes, step, &nbytes) ||
        __builtin_add_overflow(address, tensor->byte_offset, &address) ||
        __builtin_add_overflow(address, (uint64_t)nbytes, &end))
        return NULL;
    if (managed->deleter != delete_versioned) { /* memory of another library: whether the driver knows it */
        PyObject *known = PyObject_CallFunction(check_memory, "OKL", lane->opened, (unsigned long long)address, (long long)nbytes);
        bool is_known = known == Py_True;
        Py_XDECREF(known);
        if (!is_known)
            return NULL;
    }
    PyObject *shape = shape_of(tensor);
    struct allocation_state *block = (struct allocation_state *)PyType_GenericAlloc((PyTypeObject *)foreign_class, 0);
    struct taken *owner = (struct taken *)PyType_GenericAlloc(taken_type, 0);
    PyObject *array = NULL;
    if (shape && block && owner)
        array = make_array((PyTypeObject *)device_array_class, address, shape, dtype, Py_None, Py_None, (PyObject *)block, lane->opened);
    bool made = array;
    if (made) {
        set_field(&block->queue, (PyObject *)lane->queue);
        set_field(&block->device_handle, lane->handle);
        set_field(&block->heap, handle->heap);
        set_field(&block->home, Py_None);
        set_field(&block->streams, Py_None);
        block->ptr = address;
        block->nbytes = (Py_ssize_t)nbytes;
        block->unnamed = 1;
        made = PyObject_SetAttr((PyObject *)block, name_ready, lane->legacy) == 0 &&
               PyObject_SetAttr((PyObject *)block, name_read_only, managed->flags & FLAG_READ_ONLY ? Py_True : Py_False) == 0 &&
               PyObject_SetAttr((PyObject *)block, name_owner, (PyObject *)owner) == 0;
        if (made)
            owner->tensor = managed;
    }
    Py_XDECREF(shape);
    Py_XDECREF((PyObject *)block);
    Py_XDECREF((PyObject *)owner);
    if (!made)
        Py_CLEAR(array);
    return array;
}

/* The table of a class of arrays; NULL, mostly without an exception, where it has none, or Python has to look. The last class is remembered. */
static struct exchange_table *table_of(PyTypeObject *class) {
    static PyTypeObject *last;
    static struct exchange_table *table;
    if (class == last)
        return table;
    PyObject *capsule = PyObject_GetAttr((PyObject *)class, name_table);
    struct exchange_table *found = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    while (found && found->major != MAJOR)
        found = found->before;
    if (!python_goes_on())
        return NULL;
    if (found && PyObject_HasAttr((PyObject *)class, name_has_negatives)) /* PyTorch's may be negated when they are read */
        found = NULL;
    Py_XDECREF(capsule);
    Py_INCREF((PyObject *)class); /* so that no other class has its address; there are few */
    Py_XDECREF((PyObject *)last);
    last = class;
    return table = found;
}

/* Give a tensor back that was not taken. */
static void refuse_tensor(struct versioned *tensor) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (tensor->deleter)
        tensor->deleter(tensor);
    PyErr_Restore(kind, value, trace);
}

/* adopt(object): the array of what its class exports by the C table, or None. */
static PyObject *adopt(PyObject *Py_UNUSED(module), PyObject *object) {
    struct exchange_table *table = our_capsule ? table_of(Py_TYPE(object)) : NULL;
    struct lane *lane = table ? current_lane() : NULL;
    struct versioned *tensor = NULL;
    PyObject *found = NULL;
    if (!lane)
        return PyErr_Occurred() ? NULL : none();
    int go = on_legacy(NULL);
    if (go > 0 && (PyObject *)Py_TYPE(object) == device_array_class) {
        struct allocation_state *block = block_of(object);
        go = block && block->device_handle == lane->handle ? is_ready((struct array_state *)object, block) : 0;
        struct exported *made = go > 0 ? describe((struct array_state *)object, block, true) : NULL;
        tensor = made ? &made->managed.versioned : NULL;
    } else if (go > 0) {
        void *stream = NULL;
        const struct handle_state *handle = (const struct handle_state *)lane->handle;
        PyObject *device = handle->dlpack_device;
        int32_t type = (int32_t)PyLong_AsLong(PyTuple_GetItem(device, 0)), number = (int32_t)PyLong_AsLong(PyTuple_GetItem(device, 1));
        bool same = !table->work_stream(type, number, &stream) &&
                    (!stream || (!is_none(handle->legacy_number) &&
                                 (uint64_t)(uintptr_t)stream == PyLong_AsUnsignedLongLong(handle->legacy_number)));
        if (!same || table->from_object(object, &tensor))
            tensor = NULL; /* Python asks in its own way, and says what is wrong */
    }
    if (tensor && is_open(lane))
        found = array_of(lane, tensor);
    if (tensor && !found)
        refuse_tensor(tensor);
    Py_DECREF((PyObject *)lane);
    return go < 0 || found || !python_goes_on() ? found : none();
}

/* -- our table ------------------------------------------------------------------------------------------------------------------ */

static int from_object(void *pointer, struct versioned **made) {
    PyObject *object = pointer;
    struct allocation_state *block = block_of(object);
    *made = NULL;
    if (block && on_legacy(NULL) > 0 && is_ready((struct array_state *)object, block) > 0) {
        struct exported *found = describe((struct array_state *)object, block, true);
        if (found) {
            *made = &found->managed.versioned;
            return 0;
        }
    }
    if (PyErr_Occurred())
        return -1;
    PyObject *capsule = PyObject_CallFunctionObjArgs(table_export, object, NULL);
    const struct versioned *tensor = capsule ? PyCapsule_GetPointer(capsule, VERSIONED) : NULL;
    struct exported *found = tensor ? malloc(sizeof *found) : NULL;
    if (found) { /* its own deleter may be called once only, so the capsule, which calls it, is the owner */
        found->managed.versioned = *tensor;
        *made = own(found, capsule, true);
    } else if (tensor)
        PyErr_NoMemory();
    Py_XDECREF(capsule);
    return found ? 0 : -1;
}

static int to_object(struct versioned *tensor, void **made) {
    struct lane *lane = on_legacy(NULL) > 0 ? current_lane() : NULL;
    *made = NULL;
    if (lane) {
        *made = array_of(lane, tensor);
        Py_DECREF((PyObject *)lane);
    }
    if (*made)
        return 0;
    if (!python_goes_on()) {
        refuse_tensor(tensor);
        return -1;
    }
    PyObject *capsule = PyCapsule_New(tensor, VERSIONED, end_capsule); /* the tensor is ours now, whatever becomes of it */
    if (!capsule)
        return -1;
    *made = PyObject_CallFunction(table_import, "Oii", capsule, (int)tensor->tensor.device_type, (int)tensor->tensor.device_id);
    Py_DECREF(capsule);
    return *made ? 0 : -1;
}

static int allocate(struct tensor *like, struct versioned **made, void *context, tell_error *tell) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *shape = shape_of(like), *array = NULL;
    *made = NULL;
    if (shape)
        array = PyObject_CallFunction(table_allocate, "iiOiii", (int)like->device_type, (int)like->device_id, shape, (int)like->code,
                                      (int)like->bits, (int)like->lanes);
    int status = array ? from_object(array, made) : -1;
    if (status) {
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        PyErr_NormalizeException(&kind, &value, &trace);
        PyObject *name = kind ? PyObject_GetAttrString(kind, "__name__") : NULL, *text = value ? PyObject_Str(value) : NULL;
        const char *named = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL, *said = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
        tell(context, named ? named : "RuntimeError", said ? said : "");
        PyErr_Clear();
        Py_XDECREF(name), Py_XDECREF(text), Py_XDECREF(kind), Py_XDECREF(value), Py_XDECREF(trace);
    }
    Py_XDECREF(array);
    Py_XDECREF(shape);
    PyGILState_Release(state);
    return status;
}

static int work_stream(int32_t device_type, int32_t device_id, void **stream) {
    struct lane *lane = on_legacy(NULL) > 0 ? current_lane() : NULL;
    PyObject *number = lane && is_of(lane, device_type, device_id) ? ((struct handle_state *)lane->handle)->legacy_number : NULL;
    number = is_none(number) ? NULL : Py_NewRef(number);
    Py_XDECREF((PyObject *)lane);
    if (!number && !PyErr_Occurred())
        number = PyObject_CallFunction(table_stream, "ii", (int)device_type, (int)device_id);
    *stream = number ? (void *)(uintptr_t)PyLong_AsUnsignedLongLong(number) : NULL;
    Py_XDECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

static struct exchange_table our_table = {
    .major = MAJOR, .minor = MINOR, .allocate = allocate, .from_object = from_object, .to_object = to_object, .work_stream = work_stream};

/* exchange(class of foreign allocations, {dtype: (code, bits)}, check_memory, export, import, allocate, stream): the table's capsule */
static PyObject *exchange(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *class, *known, *check, *out, *in, *make, *stream, *dtype, *pair;
    Py_ssize_t at = 0;
    if (!PyArg_ParseTuple(arguments, "OO!OOOOO:exchange", &class, &PyDict_Type, &known, &check, &out, &in, &make, &stream))
        return NULL;
    if (!PyType_Check(class) || !PyType_IsSubtype((PyTypeObject *)class, allocation_type))
        return PyErr_Format(PyExc_TypeError, "the class of foreign allocations is a subclass of AllocationState");
    for (type_count = 0; type_count < MOST_TYPES && PyDict_Next(known, &at, &dtype, &pair); type_count++) {
        int code, bits;
        if (!PyArg_ParseTuple(pair, "ii", &code, &bits))
            return NULL;
        Py_INCREF(dtype);
        types[type_count] = (struct type){dtype, (uint8_t)code, (uint8_t)bits};
    }
    set_field(&foreign_class, class);
    set_field(&check_memory, check);
    set_field(&table_export, out);
    set_field(&table_import, in);
    set_field(&table_allocate, make);
    set_field(&table_stream, stream);
    if (!our_capsule && !(our_capsule = PyCapsule_New(&our_table, "dlpack_exchange_api", NULL)))
        return NULL;
    Py_INCREF(our_capsule);
    return our_capsule;
}

/* end(): the interpreter is about to end */
static PyObject *end(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    atomic_store(&ended, true);
    return none();
}

static PyMethodDef functions[] = {
    {"export", FAST(export), "A DLPack capsule of a device array."},
    {"adopt", adopt, METH_O, "The device array of an object that has DLPack's table of C functions."},
    {"exchange", exchange, METH_VARARGS, "Say what DLPack's table calls, and make it."},
    {"end", end, METH_NOARGS, "Say that the interpreter is about to end."},
    {NULL, NULL, 0, NULL},
};

int add_dlpack(PyObject *module) {
    const struct name names[] = {
        {&name_lent, "lent"}, {&name_streams, "streams"}, {&name_legacy, "legacy"}, {&name_has_negatives, "is_neg"},
        {&name_table, "__dlpack_c_exchange_api__"}, {&name_owner, "owner"}, {&name_ready, "ready"},
        {&name_read_only, "read_only"}, {NULL, NULL},
    };
    if (intern(names) < 0)
        return -1;
    taken_type = (PyTypeObject *)PyType_FromSpec(&taken_spec);
    return taken_type ? PyModule_AddFunctions(module, functions) : -1;
}
