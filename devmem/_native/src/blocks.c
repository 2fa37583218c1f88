/* The live blocks of a heap: to Python, a mapping from their addresses to their bytes.
 *
 * One array of pairs, at most four fifths full, is searched from the place that an address is hashed to up to an empty place, whose
 * address is 0. Where a block is taken out, those behind it move up. No Python runs in here, and memory for more is there before
 * anything is changed: each function is one step for other threads, signal handlers and finalizers.
 */
#include "native.h"

#define FEWEST 16 /* places */

PyTypeObject *blocks_type;

/* The place of an address, or the empty one that it would have. */
static struct block *place_of(const struct blocks *blocks, uint64_t address) {
    uint64_t mixed = address * UINT64_C(0x9E3779B97F4A7C15) >> 32;
    struct block *place = blocks->places + (mixed * blocks->size >> 32);
    while (place->address && place->address != address)
        place = place + 1 == blocks->places + blocks->size ? blocks->places : place + 1;
    return place;
}

static bool resize(struct blocks *blocks, uint64_t size) {
    struct blocks old = *blocks;
    struct block *places = size >> 32 ? NULL : PyMem_Calloc(size, sizeof(struct block));
    if (!places)
        return false;
    blocks->places = places;
    blocks->size = size;
    for (uint64_t at = 0; at < old.size; at++)
        if (old.places[at].address)
            *place_of(blocks, old.places[at].address) = old.places[at];
    PyMem_Free(old.places);
    return true;
}

bool put_block(struct blocks *blocks, uint64_t address, uint64_t nbytes) {
    if (5 * (blocks->count + 1) > 4 * blocks->size && !resize(blocks, blocks->size ? blocks->size + blocks->size / 2 : FEWEST))
        return false;
    struct block *place = place_of(blocks, address);
    blocks->count += !place->address;
    *place = (struct block){address, nbytes};
    return true;
}

bool take_block(struct blocks *blocks, uint64_t address, uint64_t *nbytes) {
    struct block *place = blocks->count && address ? place_of(blocks, address) : NULL, moved;
    if (!place || !place->address)
        return false;
    *nbytes = place->nbytes;
    place->address = 0;
    blocks->count--;
    while ((place = place + 1 == blocks->places + blocks->size ? blocks->places : place + 1)->address) {
        moved = *place;
        place->address = 0;
        *place_of(blocks, moved.address) = moved;
    }
    if (blocks->size > FEWEST && 8 * blocks->count < blocks->size)
        resize(blocks, blocks->size / 2); /* without memory for that it stays as it is */
    return true;
}

/* The address that an object is; 0 where it is none. */
static uint64_t address_of(PyObject *object) {
    uint64_t address = PyLong_Check(object) ? PyLong_AsUnsignedLongLong(object) : 0;
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return address;
}

static Py_ssize_t length(PyObject *self) { return (Py_ssize_t)((struct blocks *)self)->count; }

static int contains(PyObject *self, PyObject *key) {
    const struct blocks *blocks = (const struct blocks *)self;
    uint64_t address = address_of(key);
    return address && blocks->count && place_of(blocks, address)->address;
}

static int set_item(PyObject *self, PyObject *key, PyObject *value) {
    uint64_t address = address_of(key), nbytes = value ? PyLong_AsUnsignedLongLong(value) : 0;
    if (PyErr_Occurred())
        return -1;
    if (!address || !value)
        PyErr_SetString(PyExc_ValueError, "a live block is entered by an address other than 0, and taken out by pop()");
    else if (!put_block((struct blocks *)self, address, nbytes))
        PyErr_NoMemory();
    return PyErr_Occurred() ? -1 : 0;
}

/* pop(address, default): its bytes; it is no live block any more */
static PyObject *pop(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    uint64_t nbytes;
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "pop() takes an address and a default");
        return NULL;
    }
    return take_block((struct blocks *)self, address_of(arguments[0]), &nbytes) ? PyLong_FromUnsignedLongLong(nbytes)
                                                                                : Py_NewRef(arguments[1]);
}

/* items(): a list of (address, bytes). The collector may run, and change the table, when all of it is copied already. */
static PyObject *items(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    const struct blocks *blocks = (const struct blocks *)self;
    struct block *copied = PyMem_Malloc((blocks->count + 1) * sizeof(struct block));
    Py_ssize_t count = 0;
    for (uint64_t at = 0; copied && at < blocks->size; at++)
        if (blocks->places[at].address)
            copied[count++] = blocks->places[at];
    PyObject *list = copied ? PyList_New(count) : PyErr_NoMemory();
    for (Py_ssize_t at = 0; list && at < count; at++) {
        PyObject *item = Py_BuildValue("(KK)", (unsigned long long)copied[at].address, (unsigned long long)copied[at].nbytes);
        if (!item || PyList_SetItem(list, at, item) < 0)
            Py_CLEAR(list);
    }
    PyMem_Free(copied);
    return list;
}

static PyObject *clear(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    struct blocks *blocks = (struct blocks *)self;
    PyMem_Free(blocks->places);
    blocks->places = NULL;
    blocks->count = blocks->size = 0;
    return none();
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((struct blocks *)self)->places);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"pop", FAST(pop), "Take a block out: its bytes, or the default."},
    {"items", items, METH_NOARGS, "A list of (address, bytes)."},
    {"clear", clear, METH_NOARGS, "Take all out."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, (void *)dealloc},   {Py_mp_length, (void *)length},   {Py_mp_ass_subscript, (void *)set_item},
    {Py_sq_contains, (void *)contains}, {Py_tp_methods, methods},         {0, NULL},
};
static PyType_Spec spec = {"devmem._native.core.LiveBlocks", sizeof(struct blocks), 0, Py_TPFLAGS_DEFAULT, slots};

int add_blocks(PyObject *module) {
    blocks_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return blocks_type ? PyModule_AddObjectRef(module, "LiveBlocks", (PyObject *)blocks_type) : -1;
}
