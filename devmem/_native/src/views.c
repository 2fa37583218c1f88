/* Views: slices of the first axis, rows, and reshapes of contiguous arrays. Nothing is asked of the device. */
#include "native.h"

#include <string.h>

static PyObject *name_itemsize;

static Py_ssize_t itemsize_of(PyObject *dtype) {
    Py_ssize_t itemsize = known_itemsize(dtype);
    if (itemsize)
        return itemsize;
    PyObject *found = PyObject_GetAttr(dtype, name_itemsize);
    itemsize = found ? PyLong_AsSsize_t(found) : -1;
    Py_XDECREF(found);
    return itemsize;
}

int integers(PyObject *tuple, Py_ssize_t *values) {
    Py_ssize_t count = tuple && PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (count < 0 || count > MOST_AXES)
        return -1;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *item = PyTuple_GetItem(tuple, at);
        if (!PyLong_CheckExact(item))
            return -1;
        values[at] = PyLong_AsSsize_t(item);
        if (values[at] == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return -1;
        }
    }
    return (int)count;
}

PyObject *tuple_of(const Py_ssize_t *values, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int at = 0; tuple && at < count; at++) {
        PyObject *value = PyLong_FromSsize_t(values[at]);
        if (!value || PyTuple_SetItem(tuple, at, value) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* Strides of a C-contiguous array with elements; false where they are no numbers. */
static bool packed(const Py_ssize_t *shape, int count, Py_ssize_t itemsize, Py_ssize_t *strides) {
    Py_ssize_t step = itemsize;
    for (int axis = count - 1; axis >= 0; axis--) {
        strides[axis] = step;
        if (shape[axis] <= 0 || __builtin_mul_overflow(step, shape[axis], &step))
            return false;
    }
    return true;
}

/* Shape and strides of an array, whose memory is there; its number of axes, -1 where Python has to look, -2 with an exception. */
static int layout(PyObject *object, Py_ssize_t *shape, Py_ssize_t *strides, Py_ssize_t *itemsize) {
    struct array_state *array = (struct array_state *)object;
    if ((PyObject *)Py_TYPE(object) != device_array_class || !PyObject_TypeCheck(object, array_type) || !array->dtype || !array->allocation ||
        !PyObject_TypeCheck(array->allocation, allocation_type))
        return -1;
    struct allocation_state *block = (struct allocation_state *)array->allocation;
    if (block->freed || !block->device_handle || !PyObject_TypeCheck(block->device_handle, handle_type) ||
        ((struct handle_state *)block->device_handle)->dead != Py_None)
        return -1;
    int count = integers(array->shape, shape);
    if (count < 0)
        return -1;
    *itemsize = itemsize_of(array->dtype);
    if (*itemsize <= 0)
        return PyErr_Occurred() ? -2 : -1;
    if (array->strides == Py_None)
        return packed(shape, count, *itemsize, strides) ? count : -1;
    return integers(array->strides, strides) == count ? count : -1;
}

/* An array of the same class over the same memory; without strides it is contiguous. */
static PyObject *view(PyObject *object, Py_ssize_t offset, const Py_ssize_t *shape, const Py_ssize_t *strides, int count) {
    struct array_state *array = (struct array_state *)object;
    bool no_elements = false;
    for (int axis = 0; axis < count; axis++)
        no_elements |= shape[axis] == 0;
    PyObject *lengths = tuple_of(shape, count), *steps = strides ? tuple_of(strides, count) : none();
    uint64_t ptr = no_elements ? 0 : array->ptr + (uint64_t)offset;
    PyObject *made = NULL;
    if (lengths && steps)
        made = make_array(Py_TYPE(object), ptr, lengths, array->dtype, steps, array->stream, array->allocation, array->open_device);
    Py_XDECREF(lengths);
    Py_XDECREF(steps);
    return made;
}

/* part(array, key): the view of a slice of the first axis, or of one of several rows, or None. */
static PyObject *part(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    Py_ssize_t shape[MOST_AXES], strides[MOST_AXES], expected[MOST_AXES], itemsize, start, stop, step = 1, offset;
    bool row = given == 2 && PyLong_CheckExact(arguments[1]);
    if (!row && (given != 2 || Py_TYPE(arguments[1]) != &PySlice_Type))
        return none();
    int count = layout(arguments[0], shape, strides, &itemsize);
    if (count < 1 + row)
        return count == -2 ? NULL : none();
    if (row)
        start = PyLong_AsSsize_t(arguments[1]);
    if (row ? PyErr_Occurred() || start >= shape[0] || start < -shape[0] : PySlice_Unpack(arguments[1], &start, &stop, &step) < 0)
        return python_goes_on() ? none() : NULL; /* Python says what is wrong with it */
    if (step > PY_SSIZE_T_MAX / 2 || step < -PY_SSIZE_T_MAX / 2) /* it was cut to what fits */
        return none();
    if (row)
        start += start < 0 ? shape[0] : 0;
    else
        shape[0] = PySlice_AdjustIndices(shape[0], &start, &stop, step);
    if (__builtin_mul_overflow(start, strides[0], &offset) || __builtin_mul_overflow(strides[0], step, &strides[0]))
        return none();
    count -= row;
    bool contiguous = packed(shape + row, count, itemsize, expected) && !memcmp(strides + row, expected, (size_t)count * sizeof *strides);
    return view(arguments[0], shape[0] ? offset : 0, shape + row, contiguous ? NULL : strides + row, count);
}

/* reshaped(array, lengths): the view of a contiguous array with another shape, or None. */
static PyObject *reshaped(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t given) {
    Py_ssize_t shape[MOST_AXES], strides[MOST_AXES], itemsize, wanted[MOST_AXES], expected[MOST_AXES], size = 1, known = 1;
    if (given != 2)
        return none();
    PyObject *lengths = arguments[1];
    if (PyTuple_CheckExact(lengths) && PyTuple_Size(lengths) == 1 && PyTuple_CheckExact(PyTuple_GetItem(lengths, 0)))
        lengths = PyTuple_GetItem(lengths, 0);
    int axes = integers(lengths, wanted), open = -1;
    int count = axes < 1 ? -1 : layout(arguments[0], shape, strides, &itemsize);
    if (count < 0)
        return count == -2 ? NULL : none();
    if (!packed(shape, count, itemsize, expected)) /* no elements, or too many */
        return none();
    for (int axis = 0; axis < count; axis++) {
        if (strides[axis] != expected[axis])
            return none();
        size *= shape[axis];
    }
    for (int axis = 0; axis < axes; axis++) {
        if (wanted[axis] == -1 && open < 0)
            open = axis;
        else if (wanted[axis] <= 0 || __builtin_mul_overflow(known, wanted[axis], &known))
            return none();
    }
    if (open >= 0) {
        wanted[open] = size / known;
        known *= wanted[open];
    }
    if (known != size || !packed(wanted, axes, itemsize, strides))
        return none();
    return view(arguments[0], 0, wanted, NULL, axes);
}

static PyMethodDef functions[] = {
    {"part", FAST(part), "The view of a slice of the first axis."},
    {"reshaped", FAST(reshaped), "The view of a contiguous array with another shape."},
    {NULL, NULL, 0, NULL},
};

int add_views(PyObject *module) {
    name_itemsize = PyUnicode_InternFromString("itemsize");
    return name_itemsize ? PyModule_AddFunctions(module, functions) : -1;
}
