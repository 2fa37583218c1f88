/* The numbers that kernels see in the simulator: classes that derive from NumPy's scalars, with the operators of compiled code.
 *
 * The Python code is devmem/kernels/compilers/simulator/numbers.py, which says what each operator gives for operands of which types.
 * Here they take float32, float64 and integers of at most 64 bits, also Python's, and give everything else to `general`, which is
 * Python: a division by zero, a shift by 64 or more, complex numbers.
 */
#include "native.h"

enum number_kind { NO_NUMBER, SIGNED, UNSIGNED, SINGLE, DOUBLE };

struct number {
    enum number_kind kind;
    bool joins_single; /* as int16 does: with a float32 it gives a float32 */
    int64_t i;
    double d; /* a float32 too */
};

/* A NumPy scalar, as numpy/arrayscalars.h declares it; `number_class` looks whether the value lies there. */
struct scalar {
    PyObject_HEAD
    union {
        int64_t i;
        double d;
        float s;
    } value;
};

#define MOST_CLASSES 10
static struct {
    PyTypeObject *type;
    struct number like;
} classes[MOST_CLASSES];
static int count;
static PyTypeObject *results[DOUBLE + 1]; /* int64, uint64, float32, float64 */
static PyObject *general, *truths[2];

/* What the objects of a class are, without a value. */
static struct number number_of_type(PyTypeObject *type) {
    for (int i = 0; i < count; i++)
        if (type == classes[i].type)
            return classes[i].like;
    bool truth = type == &PyBool_Type || type == Py_TYPE(truths[0]);
    return (struct number){truth || type == &PyLong_Type ? SIGNED : type == &PyFloat_Type ? DOUBLE : NO_NUMBER, truth, 0, 0};
}

static struct number of_scalar(PyObject *object, struct number found) {
    const struct scalar *scalar = (struct scalar *)object;
    if (found.kind >= SINGLE)
        found.d = found.kind == SINGLE ? (double)scalar->value.s : scalar->value.d;
    else
        found.i = scalar->value.i;
    return found;
}

static struct number read_number(PyObject *object) {
    struct number found = number_of_type(Py_TYPE(object));
    if (found.kind != SIGNED || !PyLong_Check(object))
        return found.kind ? of_scalar(object, found) : found; /* Python's floats lie as NumPy's do */
    int overflow;
    found.i = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow)
        found.kind = NO_NUMBER;
    return found;
}

static PyObject *new_scalar(PyTypeObject *type, enum number_kind kind, int64_t i, double d) {
    struct scalar *scalar = (struct scalar *)PyType_GenericAlloc(type, 0);
    if (scalar && kind == SINGLE)
        scalar->value.s = (float)d;
    else if (scalar && kind == DOUBLE)
        scalar->value.d = d;
    else if (scalar)
        scalar->value.i = i;
    return (PyObject *)scalar;
}

static void free_number(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static double as_double(const struct number *a) {
    return a->kind >= SINGLE ? a->d : a->kind == UNSIGNED ? (double)(uint64_t)a->i : (double)a->i;
}

/* The type that two operands are converted to. */
static enum number_kind common(const struct number *a, const struct number *b) {
    if (!a->kind || !b->kind)
        return NO_NUMBER;
    if (a->kind < SINGLE && b->kind < SINGLE)
        return a->kind == UNSIGNED && b->kind == UNSIGNED ? UNSIGNED : SIGNED;
    return (a->kind == SINGLE || a->joins_single) && (b->kind == SINGLE || b->joins_single) ? SINGLE : DOUBLE;
}

#define EACH_OPERATOR(X)                                                                                                    \
    X(add, ADD) X(subtract, SUB) X(multiply, MUL) X(true_divide, TRUEDIV) X(floor_divide, FLOORDIV) X(remainder, MOD)       \
    X(lshift, LSHIFT) X(rshift, RSHIFT) X(and, AND) X(or, OR) X(xor, XOR)
#define NAMED(slot, name) name,
enum operation { EACH_OPERATOR(NAMED) };
static const char *const operations[] = {"add", "sub", "mul", "truediv", "floordiv", "mod", "lshift", "rshift", "and", "or", "xor"};
static const char *const comparisons[] = {[Py_LT] = "lt", [Py_LE] = "le", [Py_EQ] = "eq", [Py_NE] = "ne", [Py_GT] = "gt", [Py_GE] = "ge"};

static bool of_integers(enum operation what, enum number_kind kind, int64_t a, int64_t b, int64_t *found) {
    uint64_t x = (uint64_t)a, y = (uint64_t)b;
    if (what >= FLOORDIV && what <= RSHIFT) {
        bool shifts = what >= LSHIFT;
        if (shifts)
            y = (uint32_t)b; /* as PTX's instructions take the amount */
        if (shifts ? y >= 64 : b == 0)
            return false;
        if (what == LSHIFT)
            *found = (int64_t)(x << y);
        else if (kind == UNSIGNED)
            *found = (int64_t)(shifts ? x >> y : what == MOD ? x % y : x / y);
        else if (shifts)
            *found = a >> y;
        else if (b == -1)
            *found = what == MOD || a == INT64_MIN ? 0 : -a; /* 0 is numba's for what no int64 holds */
        else { /* the quotient is rounded down */
            bool down = a % b && (a < 0) != (b < 0);
            *found = what == MOD ? a % b + (down ? b : 0) : a / b - down;
        }
    } else
        *found = (int64_t)(what == ADD ? x + y : what == SUB ? x - y : what == MUL ? x * y : what == AND ? x & y : what == OR ? x | y : x ^ y);
    return true;
}

static PyObject *operate(enum operation what, PyObject *left, PyObject *right) {
    struct number a = read_number(left), b = read_number(right);
    enum number_kind kind = common(&a, &b);
    if (kind && kind < SINGLE && what != TRUEDIV) {
        int64_t found;
        if (what == LSHIFT || what == RSHIFT)
            kind = a.kind;
        if (of_integers(what, kind, a.i, b.i, &found))
            return new_scalar(results[kind], kind, found, 0);
    } else if (kind && what <= TRUEDIV) {
        double x = as_double(&a), y = as_double(&b); /* twice the digits of a float32: rounding twice changes nothing */
        if (kind < SINGLE)
            kind = DOUBLE;
        if (what != TRUEDIV || y != 0)
            return new_scalar(results[kind], kind, 0, what == ADD ? x + y : what == SUB ? x - y : what == MUL ? x * y : x / y);
    }
    return PyObject_CallFunction(general, "sOO", operations[what], left, right);
}

#define OPERATOR(slot, name) \
    static PyObject *nb_##slot(PyObject *left, PyObject *right) { return operate(name, left, right); }
EACH_OPERATOR(OPERATOR)

static PyObject *compare(PyObject *left, PyObject *right, int how) {
    struct number a = read_number(left), b = read_number(right);
    enum number_kind kind = common(&a, &b);
    if (!kind)
        return PyObject_CallFunction(general, "sOO", comparisons[how], left, right);
    bool less, more;
    if (kind >= SINGLE) {
        double x = as_double(&a), y = as_double(&b);
        less = x < y, more = x > y;
        if (!less && !more && x != y) /* nan */
            less = more = true;
    } else if (a.kind != b.kind && (a.i < 0 || b.i < 0)) { /* below the range of one of the two, or above the other's */
        less = a.kind == SIGNED, more = !less;
    } else
        less = a.i != b.i && (kind == UNSIGNED ? (uint64_t)a.i < (uint64_t)b.i : a.i < b.i), more = a.i != b.i && !less;
    bool nan = less && more, equal = !less && !more;
    bool found = how == Py_EQ ? equal : how == Py_NE ? !equal : !nan && (how == Py_LT ? less : how == Py_LE ? !more : how == Py_GT ? more : !less);
    Py_INCREF(truths[found]);
    return truths[found];
}

static PyObject *negative(PyObject *self) {
    struct number a = read_number(self);
    return new_scalar(results[a.kind], a.kind, (int64_t)(0 - (uint64_t)a.i), -a.d);
}

/* A number from one of the same kind at once; else as NumPy makes it. */
static PyObject *new_number(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    if (!named && PyTuple_Size(arguments) == 1) {
        enum number_kind kind = number_of_type(type).kind;
        struct number found = read_number(PyTuple_GetItem(arguments, 0));
        bool fits = kind >= SINGLE ? found.kind >= SINGLE : found.kind == kind || (found.kind == SIGNED && found.i >= 0);
        if (found.kind && fits)
            return new_scalar(type, kind, found.i, found.d);
    }
    newfunc theirs = (newfunc)PyType_GetSlot((PyTypeObject *)PyType_GetSlot(type, Py_tp_base), Py_tp_new);
    return theirs(type, arguments, named);
}

#define SLOT(slot, name) {Py_nb_##slot, (void *)nb_##slot},

/* number_class(name, base, kind, joins_single): a class that derives from a scalar of NumPy's; None where scalars lie differently, and
 * before `number_results`. Of the classes of a kind the last one is that of results. */
static PyObject *number_class(PyObject *Py_UNUSED(module), PyObject *arguments) {
    const char *name;
    PyObject *base;
    int kind, joins_single;
    if (!PyArg_ParseTuple(arguments, "sOip", &name, &base, &kind, &joins_single))
        return NULL;
    PyObject *one = general ? PyObject_CallFunction(base, "i", 1) : none();
    if (!one || one == Py_None)
        return one;
    struct number found = of_scalar(one, (struct number){(enum number_kind)kind, joins_single, 0, 0});
    Py_DECREF(one);
    if (count == MOST_CLASSES || kind < SIGNED || kind > DOUBLE || (found.kind >= SINGLE ? found.d != 1 : found.i != 1))
        return none();
    char full[80];
    PyOS_snprintf(full, sizeof full, "devmem.kernels.compilers.simulator.numbers.%s", name);
    PyType_Slot slots[] = {
        EACH_OPERATOR(SLOT)
        {Py_nb_negative, (void *)negative},
        {Py_tp_richcompare, (void *)compare},
        {Py_tp_hash, PyType_GetSlot((PyTypeObject *)base, Py_tp_hash)},
        {Py_tp_new, (void *)new_number},
        {Py_tp_alloc, (void *)PyType_GenericAlloc},
        {Py_tp_dealloc, (void *)free_number},
        {Py_tp_free, (void *)PyObject_Free},
        {0, NULL},
    };
    PyType_Spec spec = {full, 0, 0, Py_TPFLAGS_DEFAULT, slots};
    PyObject *type = PyType_FromSpecWithBases(&spec, base);
    if (!type)
        return NULL;
    results[kind] = classes[count].type = (PyTypeObject *)type;
    found.i = 0, found.d = 0;
    classes[count++].like = found;
    Py_INCREF(type);
    return type;
}

/* number_results(general, false, true): what computes the rest, and what comparisons give. */
static PyObject *number_results(PyObject *Py_UNUSED(module), PyObject *arguments) {
    if (!PyArg_ParseTuple(arguments, "OOO", &general, &truths[0], &truths[1]))
        return NULL;
    Py_INCREF(arguments); /* kept, and what is in it */
    return none();
}

static PyMethodDef functions[] = {
    {"number_class", number_class, METH_VARARGS, "A class of the numbers that kernels see."},
    {"number_results", number_results, METH_VARARGS, "What such numbers need of Python."},
    {NULL, NULL, 0, NULL},
};

int add_numbers(PyObject *module) { return PyModule_AddFunctions(module, functions); }
