/* The module, which the other files fill. */
#include "native.h"

#define INTERFACE 13 /* as in devmem/_native/__init__.py */

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "devmem._native.core",
    .m_doc = "The hot paths of devmem, in C; see devmem/_native/src/native.h.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit_core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (add_blocks(module) < 0 || add_buffers(module) < 0 || add_completions(module) < 0 || add_dlpack(module) < 0 ||
                   add_state(module) < 0 || add_lane(module) < 0 || add_verbs(module) < 0 || add_views(module) < 0 || add_streams(module) < 0 || add_numbers(module) < 0 ||
                   PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0))
        Py_CLEAR(module);
    return module;
}
