/* Addresses of host arrays, through the buffer protocol. */
#include "native.h"

/* address(array): of an object whose buffer is C-contiguous; None of one that has no such buffer. Reading is enough. */
static PyObject *address(PyObject *Py_UNUSED(module), PyObject *array) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError) &&
            !PyErr_ExceptionMatches(PyExc_TypeError))
            return NULL;
        PyErr_Clear();
        return none();
    }
    PyObject *found = PyLong_FromUnsignedLongLong((uintptr_t)view.buf);
    PyBuffer_Release(&view);
    return found;
}

static PyMethodDef functions[] = {
    {"address", address, METH_O, "The address of a contiguous buffer, or None where there is none."},
    {NULL, NULL, 0, NULL},
};

int add_buffers(PyObject *module) { return PyModule_AddFunctions(module, functions); }
