/* The live blocks of a heap: each has a place in one array, which its allocation remembers.
 *
 * The places that are free form a list, the last one first: blocks that come and go lie in the same few, however many there are. No Python
 * runs in here, and memory for more is there before anything is changed: each function is one step for other threads, signal handlers and
 * finalizers.
 */
#include "native.h"

#include <string.h>
#include <structmember.h>

#define FEWEST 16 /* places */

PyTypeObject *blocks_type;

bool put_block(struct blocks *blocks, uint64_t address, uint64_t nbytes, uint32_t *place) {
    uint32_t at = blocks->free;
    if (at == blocks->used && at == blocks->size) {
        uint64_t size = at ? at + (uint64_t)at / 2 : FEWEST;
        struct block *places = size > UINT32_MAX ? NULL : PyMem_Realloc(blocks->places, size * sizeof(struct block));
        if (!places)
            return false;
        blocks->places = places;
        blocks->size = (uint32_t)size;
    }
    blocks->free = at == blocks->used ? ++blocks->used : (uint32_t)blocks->places[at].nbytes;
    blocks->places[at] = (struct block){address, nbytes};
    blocks->count++;
    blocks->nbytes += nbytes;
    *place = at;
    return true;
}

static void forget_all(struct blocks *blocks) {
    PyMem_Free(blocks->places);
    blocks->places = NULL;
    blocks->nbytes = blocks->count = blocks->size = blocks->used = blocks->free = 0;
}

bool take_block(struct blocks *blocks, uint32_t place, uint64_t address) {
    if (!address || place >= blocks->used || blocks->places[place].address != address)
        return false;
    blocks->nbytes -= blocks->places[place].nbytes;
    blocks->places[place] = (struct block){0, blocks->free};
    blocks->free = place;
    if (!--blocks->count && blocks->size > FEWEST)
        forget_all(blocks);
    return true;
}

static Py_ssize_t length(PyObject *self) { return ((struct blocks *)self)->count; }

/* enter(block): a block with an address and bytes, which remembers its place from now on */
static PyObject *enter(PyObject *self, PyObject *object) {
    struct allocation_state *block = (struct allocation_state *)object;
    if (!PyObject_TypeCheck(object, allocation_type))
        PyErr_SetString(PyExc_TypeError, "live blocks are AllocationStates");
    else if (!block->ptr)
        PyErr_SetString(PyExc_ValueError, "the address of a live block is not 0");
    else if (!put_block((struct blocks *)self, block->ptr, (uint64_t)block->nbytes, &block->place))
        PyErr_NoMemory();
    return PyErr_Occurred() ? NULL : none();
}

/* take(place, address): whether it was there */
static PyObject *take(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    uint64_t place = 0, address = 0;
    if (given != 2)
        PyErr_SetString(PyExc_TypeError, "take() takes a place and an address");
    else if ((place = PyLong_AsUnsignedLongLong(arguments[0])) != UINT64_MAX || !PyErr_Occurred())
        address = PyLong_AsUnsignedLongLong(arguments[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(place <= UINT32_MAX && take_block((struct blocks *)self, (uint32_t)place, address));
}

/* blocks(): a list of (address, bytes, place). The collector may run, and change the table, when all of it is copied already. */
static PyObject *every(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    const struct blocks *blocks = (const struct blocks *)self;
    uint32_t used = blocks->used;
    Py_ssize_t count = blocks->count, made = 0;
    struct block *copied = PyMem_Malloc(((size_t)used + 1) * sizeof(struct block));
    if (copied && used)
        memcpy(copied, blocks->places, used * sizeof(struct block));
    PyObject *list = copied ? PyList_New(count) : PyErr_NoMemory();
    for (uint32_t at = 0; list && at < used; at++) {
        if (!copied[at].address)
            continue;
        PyObject *item = Py_BuildValue("(KKI)", (unsigned long long)copied[at].address, (unsigned long long)copied[at].nbytes, at);
        if (!item || PyList_SetItem(list, made++, item) < 0)
            Py_CLEAR(list);
    }
    PyMem_Free(copied);
    return list;
}

static PyObject *clear(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    forget_all((struct blocks *)self);
    return none();
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    forget_all((struct blocks *)self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"enter", enter, METH_O, "Enter a block, which remembers its place."},
    {"take", FAST(take), "Take a block out; whether it was there."},
    {"blocks", every, METH_NOARGS, "A list of (address, bytes, place)."},
    {"clear", clear, METH_NOARGS, "Take all out."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef members[] = {
    {"nbytes", T_ULONGLONG, offsetof(struct blocks, nbytes), READONLY, "Bytes of all of them."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, (void *)dealloc}, {Py_mp_length, (void *)length}, {Py_tp_methods, methods}, {Py_tp_members, members}, {0, NULL},
};
static PyType_Spec spec = {"devmem._native.core.LiveBlocks", sizeof(struct blocks), 0, Py_TPFLAGS_DEFAULT, slots};

int add_blocks(PyObject *module) {
    blocks_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return blocks_type ? PyModule_AddObjectRef(module, "LiveBlocks", (PyObject *)blocks_type) : -1;
}
